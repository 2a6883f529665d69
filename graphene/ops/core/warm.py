"""Fills the cache and the plans for later calls, on a machine with or without a GPU."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from graphene import _core, archive, dtypes, shipped
from graphene._syntax import parsed
from graphene.ops.core import plans
from graphene.ops.core.define import Arg, Defined, bound, defined
from graphene.ops.core.torch import NUMBERS, fail, torch

_MOST_BYTES = 1 << 26  # the largest file of calls
# How a call of text spells element types: PyTorch's name of each.
_SPELLED = (dtypes.fp16, dtypes.bf16, dtypes.fp32, dtypes.fp64, dtypes.i32, dtypes.i64, dtypes.u8)
_DTYPES = {t.name: t.array_name for t in _SPELLED} | {"bool": "bool"}


class OperatorCall(NamedTuple):
    """A call: its operator, its arguments as a configuration sees them, but without device, and its name for people."""

    operator: Defined
    arguments: list[Any]
    text: str


class Warmed(NamedTuple):
    """The kernels of a call on an architecture by name, or why there are none, and whether there was a plan."""

    kernels: list[str]
    reason: str
    was_there: bool


class _Dtype:
    """Spells tensors: fp16[4096, 4096]."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, sizes: Any) -> Any:
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        return torch.empty(sizes, dtype=getattr(torch, self.name), device="meta")


def _wrong(text: str, why: str) -> None:
    fail("OP_ARGUMENT", "this is not a call of an operator", [f"got:  {text}", f"why:  {why}"],
         "as in 'matmul(fp16[4096, 4096], fp16[4096, 4096].T, activation=\"gelu\")'")  # fmt: skip


def _value(node: ast.expr) -> Any:
    """Literals, lists of them, and tensors: a dtype with sizes, its .T and transpose(i, j)."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in _DTYPES:
        return _Dtype(_DTYPES[node.value.id])[ast.literal_eval(node.slice)]
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return _value(node.value).mT
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "transpose":
        return _value(node.func.value).transpose(*(ast.literal_eval(a) for a in node.args))
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(x) for x in node.elts]
    return ast.literal_eval(node)


def _given(op: Defined, arguments: Iterable[Any]) -> list[Any]:
    """Arguments as a configuration sees them."""
    return [_seen(a, p[1]) for a, p in zip(arguments, op.params, strict=True)]


def _seen(a: Any, kind: str) -> Any:
    if isinstance(a, torch.Tensor):
        at = a.storage_offset() * a.element_size()
        align = min(128, at & -at) if at else 128
        return Arg(tuple(a.shape), tuple(a.stride()), str(a.dtype).removeprefix("torch."), "", align)
    if kind == "Tensor[]":
        return [_seen(t, "Tensor") for t in a]
    return NUMBERS[a] if kind == "ScalarType?" and a is not None else tuple(a) if isinstance(a, list) else a


def call(function: Callable[..., Any], *args: Any, **named: Any) -> OperatorCall:
    """The call of a function of graphene.ops. Only shapes, strides and dtypes of tensors count, so "meta" serves."""
    op, arguments = bound(function, *args, **named)
    return OperatorCall(op, _given(op, arguments), f"{op.called}")


def spelled(text: str) -> OperatorCall:
    """A call by its text: 'attention(fp16[2, 4096, 16, 128], fp16[2, 4096, 16, 128], ..., causal=True)'."""
    from graphene import ops

    try:
        tree = parsed(text.strip(), "eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            raise ValueError("it is not of the form operator(arguments)")
        if tree.func.id not in ops.__all__:
            raise ValueError(f"graphene.ops has no {tree.func.id!r}")
        function = getattr(ops, tree.func.id)
        args = [_value(a) for a in tree.args]
        named = {str(k.arg): _value(k.value) for k in tree.keywords}
        inspect.signature(function).bind(*args, **named)
    except (SyntaxError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, RecursionError) as e:
        _wrong(text, str(e))
    return call(function, *args, **named)._replace(text=text.strip())


def recorded(file: str | Path) -> list[OperatorCall]:
    """The calls that a process wrote with GRAPHENE_RECORD_CALLS=file, each once. Raises LaunchError OP_ARGUMENT."""
    out = []
    try:
        lines = archive.read_regular(Path(file), _MOST_BYTES).decode().splitlines()
        for line in dict.fromkeys(lines):
            row = json.loads(line)
            op = defined[row["operator"]]
            arguments = [plans.from_record(a, Arg) for a in row["arguments"]]
            if len(arguments) != len(op.params):
                raise ValueError(f"{op.called} takes {len(op.params)} arguments")
            out.append(OperatorCall(op, arguments, line))
    except OSError as e:
        fail("OP_ARGUMENT", f"the calls in {file} cannot be read", [f"why:  {e.strerror or e}"], "name another file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        fail("OP_ARGUMENT", f"{file} holds something else than recorded calls", [f"why:  {type(e).__name__}: {e}"],
             "record it again: GRAPHENE_RECORD_CALLS=FILE python ...")  # fmt: skip
    return out


def usual() -> list[str]:
    """The text of each call whose kernels come compiled with the package for sm_90a."""
    lines = (shipped.FOLDER / "usual_calls.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def warm(call: OperatorCall, arch: str) -> Warmed:
    """Compiles what the call launches on a typical device of an architecture, and keeps the plan.

    Raises what the call would raise, and CompileError.
    """
    op, arguments = call.operator, call.arguments
    place = _core.architecture(arch)
    for _ in range(2):
        given = placed(arguments, place)
        with plans.asked() as found:
            recipe = op.configure(given)
        if recipe.launches_kernels:
            kernels = [launch.kernel.name for launch in recipe.launches]
            return Warmed(kernels, "", found.planned)
        arguments = [_dense(a) for a in arguments]  # for a call that copies them first
    return Warmed([], recipe.reason or "nothing is launched", False)


def placed(arguments: Iterable[Any], device: str) -> list[Any]:
    """The arguments with every tensor on a device; an architecture may stand for the device."""
    return [placed(a, device) if isinstance(a, list) else a._replace(device=device) if _is_tensor(a) else a
            for a in arguments]  # fmt: skip


def _is_tensor(a: Any) -> bool:
    return isinstance(a, Arg)


def _dense(a: Any) -> Any:
    if isinstance(a, list):
        return [_dense(x) for x in a]
    if not _is_tensor(a):
        return a
    strides: list[int] = []
    n = 1
    for size in reversed(a.shape):
        strides.insert(0, n)
        n *= max(size, 1)
    return a._replace(strides=tuple(strides), align=128)
