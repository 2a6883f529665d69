"""Names for coordinates, read off the assignment that is being executed: ``bm, bn = blocks.indices()`` -> bm, bn."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from graphene._syntax import parsed


def assigned(frame: FrameType, ranks: tuple[int, ...]) -> list[str]:
    """One name per coordinate, in order; "" where the source gives none.

    `ranks`: modes per level of the thread tensor whose indices() the frame calls.
    """
    return list(_assigned(frame.f_code, frame.f_lasti, ranks))


@lru_cache(maxsize=4096)
def _assigned(code: CodeType, lasti: int, ranks: tuple[int, ...]) -> tuple[str, ...]:
    count = sum(ranks)
    try:
        position = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
        target = _target(code.co_filename, position)
    except (SyntaxError, ValueError, IndexError):
        target = None
    if target is None:
        return ("",) * count
    if len(ranks) == 1:
        return _names(target, ranks[0])
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if len(parts) != len(ranks):
        return ("",) * count
    names: list[str] = []
    for part, rank in zip(parts, ranks, strict=True):
        names += (_name(part),) if rank == 1 else _names(part, rank)
    return tuple(names)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) and node.id != "_" else ""


def _names(node: ast.expr, rank: int) -> tuple[str, ...]:
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == rank:
        return tuple(_name(e) for e in node.elts)
    name = _name(node)
    if rank == 1:
        return (name,)
    return tuple(f"{name}{i}" if name else "" for i in range(rank))


def _target(filename: str, position: tuple[int | None, ...]) -> ast.expr | None:
    """The target that the call at this position is assigned to."""
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    for first in range(line, max(line - 4, 0), -1):  # the statement may start on an earlier line
        lines = [linecache.getline(filename, i) for i in range(first, end_line + 1)]
        indent = len(lines[0]) - len(lines[0].lstrip())
        try:
            statement = parsed("".join([lines[0][indent:], *lines[1:]]), "exec").body[0]
        except (SyntaxError, IndexError):
            continue
        at = (line - first + 1, column - (indent if line == first else 0))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            return _match(statement.targets[0], statement.value, at)
    return None


def _match(target: ast.expr, value: ast.expr, at: tuple[int, int]) -> ast.expr | None:
    if (value.lineno, value.col_offset) == at and isinstance(value, ast.Call):
        return target
    if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) and len(value.elts) == len(target.elts):
        for t, v in zip(target.elts, value.elts, strict=True):
            found = _match(t, v, at)
            if found is not None:
                return found
    return None
