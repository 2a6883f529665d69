"""Mirage's Python API for graphs, under its names: what is built here is Mirage's JSON, which `read` plans."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from graphene.plan.graph import MOST, refuse
from graphene.plan.mirage_json import bfloat16, cheapest, float16, float32, load, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene.plan.graph import Graph

__all__ = [
    "DTensor", "KernelGraph", "STensor", "ThreadBlockGraph", "bfloat16", "cheapest", "float16", "float32", "load",
    "new_kernel_graph", "new_threadblock_graph", "read",
]  # fmt: skip

_CODES = {"fp16": 921, "bf16": 922, "fp32": 930}
ACCUMULATORS = {None: "nored", "sum": "red_ld_sum", "mean": "red_ld_mean", "rms": "red_ld_rms",
                "sum_todimx": "redtox_ld_sum"}  # fmt: skip


def _integers(what: str, given: Any, least: int) -> list[int]:
    """The numbers of a list, all of at least `least`."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(n, int) and not isinstance(n, bool) for n in given):
        raise TypeError(f"{what} is a list of integers, got {given!r}")
    if not all(least <= n < MOST for n in given):
        refuse(f"{what} has numbers from {least} to 2^31 - 1", f"got: {given!r}")
    return list(given)


class _Tensor:
    def __init__(self, dims: Sequence[int], guid: int, code: int, after: bool = False) -> None:
        self.dims, self.guid, self.code, self.after = tuple(int(n) for n in dims), guid, code, after

    @property
    def num_dims(self) -> int:
        """The number of dimensions."""
        return len(self.dims)

    def dim(self, i: int) -> int:
        """The size of a dimension."""
        return self.dims[i]

    def to_json(self) -> dict[str, Any]:
        """The object as Mirage writes it."""
        dims = [*self.dims, *[0] * (4 - len(self.dims))]
        return {"data_type": self.code, "dim": dims, "guid": self.guid, "num_dims": len(self.dims)}


class DTensor(_Tensor):
    """A tensor in global memory."""


class STensor(_Tensor):
    """A tensor of a block, in shared memory."""

    def to_json(self) -> dict[str, Any]:
        """The object as Mirage writes it."""
        return {**super().to_json(), "after_accum": self.after}


class _Operators:
    """The operators that kernel graphs and block graphs share."""

    level = ""

    def __init__(self) -> None:
        self.operators: list[dict[str, Any]] = []
        self._guid = 1

    def _new(self, like: _Tensor, dims: Sequence[int], after: bool | None = None) -> Any:
        raise NotImplementedError

    def _add(
        self, kind: str, args: Sequence[_Tensor], dims: Sequence[int], after: bool | None = None, **more: Any
    ) -> Any:
        out = self._new(args[0], dims, after)
        self.operators.append({
            "op_type": f"{self.level}_{kind}_op", "input_tensors": [a.to_json() for a in args],
            "output_tensors": [out.to_json()], **more,
        })  # fmt: skip
        return out

    def _pointwise(self, kind: str, a: _Tensor, b: _Tensor) -> Any:
        if len(a.dims) != len(b.dims) or any(x != y and 1 not in (x, y) for x, y in zip(a.dims, b.dims, strict=True)):
            refuse(f"{kind} of tensors whose sizes do not broadcast", f"got: {a.dims} and {b.dims}")
        return self._add(kind, [a, b], [max(x, y) for x, y in zip(a.dims, b.dims, strict=True)])

    def matmul(self, A: Any, B: Any) -> Any:
        """The product of the last two dimensions. Raises VerifyError PLAN_GRAPH for sizes that do not multiply."""
        if len(A.dims) != len(B.dims) or A.dims[:-2] != B.dims[:-2] or A.dims[-1] != B.dims[-2]:
            refuse("matmul of tensors whose sizes do not multiply", f"got: {A.dims} and {B.dims}")
        return self._add("matmul", [A, B], [*A.dims[:-1], B.dims[-1]])

    def add(self, A: Any, B: Any) -> Any:
        """The sum a + b; dimensions of one element broadcast."""
        return self._pointwise("add", A, B)

    def mul(self, A: Any, B: Any) -> Any:
        """The product a * b; dimensions of one element broadcast."""
        return self._pointwise("mul", A, B)

    def div(self, A: Any, B: Any) -> Any:
        """The quotient a / b; dimensions of one element broadcast."""
        return self._pointwise("div", A, B)

    def exp(self, A: Any) -> Any:
        """The number e to the power of each element."""
        return self._add("exp", [A], A.dims)

    def silu(self, A: Any) -> Any:
        """The product x * sigmoid(x)."""
        return self._add("silu", [A], A.dims)

    def gelu(self, A: Any) -> Any:
        """Mirage's gelu, which is the one by tanh."""
        return self._add("gelu", [A], A.dims)

    def relu(self, A: Any) -> Any:
        """The element where it is positive, else 0."""
        return self._add("relu", [A], A.dims)

    def square(self, A: Any) -> Any:
        """The square x * x."""
        return self._add("square", [A], A.dims)

    def sqrt(self, A: Any) -> Any:
        """The square root."""
        return self._add("sqrt", [A], A.dims)

    def rms_norm(self, A: Any, normalized_shape: Sequence[int] = ()) -> Any:
        """The quotient x / sqrt(mean(x^2)) along the last dimension."""
        if normalized_shape and tuple(normalized_shape) != A.dims[-1:]:
            refuse(
                "rms_norm along something else than the last dimension", f"got: {tuple(normalized_shape)} of {A.dims}"
            )
        return self._add("rms_norm", [A], A.dims)

    def reduction(self, A: Any, dim: int) -> Any:
        """The sum along a dimension, which keeps one element."""
        if not 0 <= dim < len(A.dims):
            refuse("a reduction along a dimension that the tensor does not have", f"got: {dim} of {A.dims}")
        return self._add(f"reduction_{dim}", [A], [1 if i == dim else n for i, n in enumerate(A.dims)])


class ThreadBlockGraph(_Operators):
    """What each block of a grid computes, in iterations of a loop."""

    level = "tb"

    def __init__(
        self, grid_dim: Sequence[int], block_dim: Sequence[int], forloop_range: int, reduction_dimx: int = 64
    ) -> None:
        super().__init__()
        (self.range,) = _integers("forloop_range", [forloop_range], 1)
        (self.reduction_dimx,) = _integers("reduction_dimx", [reduction_dimx], 1)
        given = (_integers("grid_dim", grid_dim, 1), _integers("block_dim", block_dim, 1))
        self.grid, self.block = ([*dims, 1, 1, 1][:3] for dims in given)
        self.inputs: list[DTensor] = []
        self.stored: list[tuple[dict[str, Any], STensor, tuple[int, ...]]] = []
        self._guid = 20_000_001

    def _new(self, like: _Tensor, dims: Sequence[int], after: bool | None = None) -> STensor:
        self._guid += 1
        return STensor(dims, self._guid - 1, like.code, like.after if after is None else after)

    def _map(self, given: Sequence[int]) -> dict[str, int]:
        return dict(zip("xyz", [*_integers("a map of dimensions", given, -1), -1, -1, -1][:3], strict=True))

    def new_input(
        self, dtensor: DTensor, input_map: Sequence[int], forloop_dim: int = -1, store_in_dmem: bool = False
    ) -> STensor:
        """A part of a tensor: grid axis i cuts dimension ``input_map[i]`` (-1: none), the loop `forloop_dim`."""
        del store_in_dmem
        dims, where = list(dtensor.dims), self._map(input_map)
        _integers("forloop_dim", [forloop_dim], -1)
        for at, n in [*zip(where.values(), self.grid, strict=True), (forloop_dim, self.range)]:
            if at >= 0:
                if at >= len(dims) or dims[at] % n:
                    refuse(
                        "a dimension that is cut into parts that do not divide it",
                        f"got: {at} of {dtensor.dims}",
                    )
                dims[at] //= n
        self.inputs.append(dtensor)
        out = self._new(dtensor, dims, after=False)
        self.operators.append({
            "op_type": "tb_input_op", "dtensor": dtensor.to_json(), "input_map": where, "forloop_dim": forloop_dim,
            "input_tensors": [], "output_tensors": [out.to_json()],
        })  # fmt: skip
        return out

    def forloop_accum(self, stensor: STensor, acc: str | None = None) -> STensor:
        """The sum over the loop's iterations; `acc`: of the last dimension's "sum", "mean", "rms" or "sum_todimx"."""
        if acc not in ACCUMULATORS:
            refuse("an accumulator that does not exist", f"want: one of {list(ACCUMULATORS)}", f"got: {acc!r}")
        last = stensor.dims[-1] if acc is None else self.reduction_dimx if acc == "sum_todimx" else 1
        made: STensor = self._add(f"accum_{ACCUMULATORS[acc]}", [stensor], [*stensor.dims[:-1], last], after=True)
        return made

    def new_output(
        self, stensor: STensor, output_map: Sequence[int], forloop_dim: int = -1, epilogue: Any = None
    ) -> None:
        """Stores a tensor: `output_map` says along which dimension the blocks of each axis lie side by side."""
        if forloop_dim != -1 or epilogue is not None:
            refuse("an output of each iteration, or with an epilogue", fix="accumulate first")
        where, dims = self._map(output_map), list(stensor.dims)
        for at, n in zip(where.values(), self.grid, strict=True):
            if at >= len(dims):
                refuse("an output map of a dimension that the tensor does not have", f"got: {at} of {stensor.dims}")
            if at >= 0:
                dims[at] *= n
        op = {
            "op_type": "tb_output_op",
            "output_map": where,
            "input_tensors": [stensor.to_json()],
            "output_tensors": [],
        }
        self.operators.append(op)
        self.stored.append((op, stensor, tuple(dims)))


class KernelGraph(_Operators):
    """A graph of operators on whole tensors, some of which are block graphs."""

    level = "kn"

    def __init__(self) -> None:
        super().__init__()
        self._guid = 10_000_001

    def _new(self, like: _Tensor, dims: Sequence[int], after: bool | None = None) -> DTensor:
        del after
        self._guid += 1
        return DTensor(dims, self._guid - 1, like.code)

    def new_input(self, dims: Sequence[int], dtype: Any = float16, strides: Sequence[int] | None = None) -> DTensor:
        """An argument, row-major. Raises VerifyError PLAN_GRAPH for other strides and unknown types."""
        dims = _integers("dims", dims, 1)
        dense = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
        if strides is not None and list(strides) != dense:
            refuse("an input that is not row-major", f"want: strides {dense}", f"got: {list(strides)}")
        if str(dtype) not in _CODES:
            refuse("a type of elements that is not known", f"got: {dtype}")
        self._guid += 1
        made = DTensor(dims, self._guid - 1, _CODES[str(dtype)])
        self.operators.append({"op_type": "kn_input_op", "input_tensors": [], "input_strides": dense,
                               "output_tensors": [made.to_json()]})  # fmt: skip
        return made

    def mark_output(self, A: DTensor, strides: Sequence[int] | None = None) -> None:
        """Makes a tensor a result."""
        del strides
        self.operators.append({"op_type": "kn_output_op", "input_tensors": [A.to_json()], "output_tensors": []})

    def customized(self, inputs: Sequence[DTensor], bgraph: ThreadBlockGraph) -> list[DTensor]:
        """Runs a block graph; returns what it stores."""
        if {t.guid for t in inputs} != {t.guid for t in bgraph.inputs}:
            refuse("a block graph with other inputs than those that it is given")
        outs = []
        for op, stensor, dims in bgraph.stored:
            outs.append(self._new(stensor, dims))
            op["dtensor"] = outs[-1].to_json()
        self.operators.append({
            "op_type": "kn_customized_op", "input_tensors": [t.to_json() for t in inputs],
            "output_tensors": [t.to_json() for t in outs],
            "bgraph": {
                "graph_level": "thread_block_graph", "grid_dim": dict(zip("xyz", bgraph.grid, strict=True)),
                "block_dim": dict(zip("xyz", bgraph.block, strict=True)), "forloop_range": bgraph.range,
                "reduction_dimx": bgraph.reduction_dimx, "operators": bgraph.operators,
            },
        })  # fmt: skip
        return outs

    def to_json(self) -> list[dict[str, Any]]:
        """The graph as Mirage saves it: a list of operators."""
        made: list[dict[str, Any]] = json.loads(json.dumps(self.operators))
        return made

    def graph(self, name: str = "mirage") -> Graph:
        """What it computes, to be evaluated or planned."""
        return read(self.to_json(), name)

    def plan(self, arch: Any = "sm_80", **pin: Any) -> Any:
        """A plan of what it computes: ``graph().plan``."""
        return self.graph().plan(arch, pin=pin)


def new_kernel_graph() -> KernelGraph:
    """An empty graph."""
    return KernelGraph()


def new_threadblock_graph(
    grid_dim: Sequence[int], block_dim: Sequence[int], forloop_range: int, reduction_dimx: int = 64
) -> ThreadBlockGraph:
    """An empty graph of blocks."""
    return ThreadBlockGraph(grid_dim, block_dim, forloop_range, reduction_dimx)
