"""Parts of a kernel that no call can reach, as the text alone shows: nothing is missed there.

The conditions around a statement may exclude one another, whatever the sizes: in the branch for rows that begin with a
vector no element lies before the vectors. A loop may go round once at most: from n // 64 to (n + 63) // 64.
"""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene._syntax import parsed
from graphene.judge.numbers import FUNCTIONS, extents_of, names_of
from graphene.judge.trees import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["unreachable"]

_PERIOD = 1 << 12  # the longest period that is looked through
_PLACES = 1 << 20  # the most blocks times threads

_Found = tuple[dict[str, Any], tuple[str, ...]]


def _nested(block: Iterable[Any], around: tuple[str, ...]) -> Iterator[_Found]:
    """Statements of a block, each with the conditions around it that hold."""
    for s in block:
        yield s, around
        for key, inner in s.items():
            if isinstance(inner, list) and inner and isinstance(inner[0], dict) and "stmt" in inner[0]:
                holds = s["stmt"] == "if" and key == "then"
                yield from _nested(inner, (*around, str(s["condition"])) if holds else around)


def _divisors(text: str) -> int:
    """The least common multiple of the numbers that an expression divides by; 0 if it divides by anything else."""
    out = 1
    for n in ast.walk(parsed(text, "eval")):
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.FloorDiv | ast.Mod):
            by = n.right.value if isinstance(n.right, ast.Constant) else 0
            out = math.lcm(out, by) if isinstance(by, int) and by > 0 else 0
    return out


def _residues(text: str, name: str) -> bool:
    """Whether an expression has a name within remainders alone, so that it repeats with their period."""

    def free(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id == name
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return False
        return any(free(x) for x in ast.iter_child_nodes(node))

    return not free(parsed(text, "eval"))


def _value(text: str, values: Mapping[str, Any]) -> Any:
    return eval(compile(text, "<expression>", "eval"), {"__builtins__": {}, **FUNCTIONS}, dict(values))


def _contradict(conditions: tuple[str, ...], blocks: Mapping[str, Any], threads: int) -> bool:
    """Whether no block and no thread holds all of the conditions that are about one coordinate of each alone.

    A thread's coordinates are any number below the number of threads, each by itself.
    """
    texts = [plain(c) for c in conditions]
    names = [names_of(c) for c in conditions]
    for of_block in blocks:
        mine = [(t, n - {of_block}) for t, n in zip(texts, names, strict=True) if of_block in n]
        mine = [(t, rest) for t, rest in mine if len(rest) <= 1 and all(x.startswith("_at_") for x in rest)
                and not rest & blocks.keys() and _residues(t, of_block)]  # fmt: skip
        period = math.lcm(1, *(_divisors(t) for t, _ in mine))
        if not mine or not 0 < period <= _PERIOD or period * threads > _PLACES:
            continue
        block = np.arange(period)[:, None]
        held: Any = True
        for t, rest in mine:
            holds = _value(t, {of_block: block, **dict.fromkeys(rest, np.arange(threads)[None, :])})
            held = held & np.broadcast_to(holds, (period, threads)).any(1)
        if not np.any(held):
            return True
    return False


def _once(start: Any, stop: Any, step: Any) -> bool:
    """Whether a loop goes round once at most, for any value of the one symbol in its bounds.

    Sums of quotients by numbers rise by the same amount every period. If they rise by none, one period shows all.
    """
    turns = plain(f"({stop}) - ({start})")
    names = names_of(f"({stop}) - ({start})")
    if not isinstance(step, int) or len(names) != 1 or "min(" in turns or "max(" in turns:
        return False
    period, (name,) = _divisors(turns), names
    if not 0 < period <= _PERIOD or not _linear(parsed(turns, "eval").body):
        return False
    got, later = (_value(turns, {name: np.arange(period) + more}) for more in (0, period))
    return bool((got == later).all() and (got <= step).all())


def _linear(node: ast.AST) -> bool:
    """Whether an expression is made of sums, of products with numbers, and of quotients by numbers."""
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _linear(node.operand)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        return False
    number = isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant)
    if isinstance(node.op, ast.Mult) and not number:
        return False
    if isinstance(node.op, ast.FloorDiv) and not isinstance(node.right, ast.Constant):
        return False
    return _linear(node.left) and _linear(node.right)


def unreachable(data: Mapping[str, Any], missed: Mapping[int, Collection[int]]) -> set[int]:
    """Of parts that no call reached: those that no call can reach. ``data`` is the kernel's JSON.

    ``missed``: by the place of a statement among all of the text, from 0 on, the numbers of what was missed there: that
    a spec was executed, that a loop was repeated.
    """
    if not missed:
        return set()
    blocks = extents_of(data)
    threads = 1
    for level in (data.get("block") or {"levels": ()})["levels"]:
        for x in level["shape"] if isinstance(level["shape"], list) else [level["shape"]]:
            threads *= x if isinstance(x, int) else _PLACES
    found: set[int] = set()
    for place, (s, around) in enumerate(_nested(data.get("body", ()), ())):
        if place not in missed or s["stmt"] not in ("for", "spec"):
            continue
        once = s["stmt"] == "for" and _once(s["start"], s["stop"], s["step"])
        if once or (around and _contradict(around, blocks, threads)):
            found.update(missed[place])
    return found
