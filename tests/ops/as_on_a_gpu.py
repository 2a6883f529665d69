"""Calls on CPU tensors by the kernels that a GPU would get for them, on the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from graphene import _core
from graphene.dtypes import torch_type
from graphene.ops.core import define
from graphene.ops.core.define import Arg, Defined
from tests.ops.admitted import Draw, Other

SMALL = (*range(1, 10), 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 66, 72, 80, 96, 100)
MOST_ELEMS = 1 << 15
# How far a kernel's result may be from PyTorch's, which rounds elsewhere: what reads a wrong element is farther off.
NEAR = {torch.float16: 6e-3, torch.bfloat16: 4e-2, torch.float32: 6e-3, torch.float64: 1e-9}


@contextmanager
def kernels_of(arch: str, op: Defined) -> Iterator[None]:
    """Operators choose as on a typical GPU of the architecture, and run whatever it takes."""

    def there(a: Any) -> Any:
        return [there(x) for x in a] if isinstance(a, list) else a._replace(device=arch) if isinstance(a, Arg) else a

    def configure(given: Sequence[Any]) -> Any:
        op.definition.results(*(define._stand_in(a, p[1]) for a, p in zip(given, op.params, strict=True)))
        return op.definition.configure(*(there(a) for a in given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "configure", configure)
        new = _core.Operator(op.called, op.params, op.definition.returned, op._configure, op.dispatched)
        patch.setattr(op, "core", new)  # one that has seen no call
        yield


def run(op: Defined, args: Sequence[Any], arch: str) -> Any:
    """The results, or None where PyTorch's operators compute the call."""
    with kernels_of(arch, op), torch.no_grad():
        call, args = op._described(tuple(args))
        if call.outcome != "launch":
            return None
        sources = op._given(args)
        made = [torch.empty(shape, dtype=torch_type(dtype)) for dtype, shape in call.outputs]
        for launch in call.launches:
            views = [define._viewed([*sources, *made], v) for v in launch.arguments]
            launch.kernel.simulate(*views, arch=arch)
        return [args[op._written]] if op._written is not None else made[: call.returned]


class Laid(Other):
    """A case with other sizes and dtypes, whose tensors lie otherwise in memory."""

    sizes_drawn, sizes_usual, far = SMALL, SMALL, ()

    def __init__(self, draw: Draw, resized: bool) -> None:
        super().__init__(draw, "cpu")
        self.resized = resized
        self.factor = self.factor if self.factor <= 3 else 0

    def size(self, n: int) -> int:
        return super().size(n) if self.resized else n

    def made(self, t: Any) -> Any:
        if isinstance(t, list):
            return [self.made(x) for x in t]
        if not isinstance(t, torch.Tensor):
            return t
        a = self.tensor(t)
        dtype = getattr(torch, a.dtype)
        used = 1 + sum((s - 1) * d for s, d in zip(a.shape, a.strides, strict=True)) if 0 not in a.shape else 0
        if used > MOST_ELEMS:
            return None
        offset = 0 if a.align >= 64 else a.align // a.item_bytes
        room = torch.zeros(used + offset, dtype=dtype)
        out = room.as_strided(a.shape, a.strides, offset)
        if a.shape == t.shape and not (t.is_floating_point() and 0 in a.strides):
            values = t.to(dtype)
        else:
            values = torch.rand(a.shape) < 0.6 if dtype == torch.bool else torch.randn(a.shape).to(dtype)
        if 0 not in a.strides:
            return out.copy_(values)
        for at in itertools.product(*(range(n) for n in a.shape)):  # of values that share an element the last stays
            out[at] = values[at]
        return out


def integers(case: Sequence[Any]) -> bool:
    """Whether values say what lies where."""
    given = [t for x in case for t in (x if isinstance(x, list) else [x]) if isinstance(t, torch.Tensor)]
    return any(not t.is_floating_point() and t.dtype != torch.bool for t in given)


def laid(case: Sequence[Any], op: Defined, draw: Draw) -> list[Any] | None:
    change = Laid(draw, resized=not integers(case))
    out = []
    for x, p in zip(op._in_order(tuple(case), {}), op.params, strict=True):
        if p[0] == "allow_tf32":  # rounds operands, so results would not be near
            out.append(False)
            continue
        tensors = p[1].startswith("Tensor")
        out.append(change.made(x) if tensors else x if p[1] == "ScalarType?" else change.value(x, p[1]))
        if tensors and x is not None and (out[-1] is None or (isinstance(x, list) and None in out[-1])):
            return None
    return out


def differs(got: Any, want: Any, inputs: Sequence[Any]) -> str | None:
    """Where results are not near those of PyTorch's operators, in words."""
    given = [t.dtype for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
    narrow = max((NEAR.get(dtype, 0.2) for dtype in given), default=0.0)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"result {i}: {g.dtype} {list(g.shape)}, not {w.dtype} {list(w.shape)}"
        near = max(NEAR.get(g.dtype, 0.2), narrow)
        a, b = g.double(), w.double()
        far = ((a - b).abs() > near * (1 + b.abs())) & (a != b) & ~(a.isnan() & b.isnan())
        if far.any():
            at = tuple(far.nonzero()[0].tolist())
            return f"result {i} at {at}: {a[at].item()}, not {b[at].item()}"
    return None
