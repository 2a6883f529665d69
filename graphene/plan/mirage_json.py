"""Mirage's graphs, as it publishes and saves them in JSON, read as graphs that are planned.

Semantics are those of Mirage (Wu et al., "Mirage: A Multi-Level Superoptimizer for Tensor Programs", 2024). A block
graph runs once for each block of its grid. An input map says which dimension each axis of the grid cuts, and a loop
dimension is cut by iterations; accumulators add over iterations. What a graph computes is kept; how it was scheduled is
decided anew by the planner.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene import dtypes as _dtypes
from graphene.plan.graph import Graph, refuse
from graphene.plan.indices import Digit, Node, contracted, fresh, into_graph, leaves, same, summed, take_outer

if TYPE_CHECKING:
    from graphene.plan.planned import Plan

__all__ = ["bfloat16", "cheapest", "float16", "float32", "load", "read"]

float16, bfloat16, float32 = _dtypes.fp16, _dtypes.bf16, _dtypes.fp32
_TYPES = {921: float16, 922: bfloat16, 930: float32}
_POINTWISE = {"exp": "exp", "silu": "silu", "gelu": "gelu_tanh", "relu": "relu", "square": "square", "sqrt": "sqrt",
              "div": "div", "mul": "mul", "add": "add", "sub": "sub"}  # fmt: skip


def load(path: str | os.PathLike[str]) -> list[Graph]:
    """All graphs of a file that Mirage published or saved. Raises VerifyError PLAN_GRAPH, with the operator's place."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"load takes the path of a file, got {path!r}")
    try:
        data = json.loads(Path(path).read_text())
    except ValueError as e:
        refuse("a file that is not JSON", f"file: {path}", f"got: {e}")
    if isinstance(data, list) and data and isinstance(data[0], dict):
        data = [data]  # a single graph
    if not isinstance(data, list):
        refuse("a file without graphs", f"file: {path}")
    stem = "".join(c if c.isalnum() else "_" for c in Path(path).stem)
    return [read(g, f"{stem}_{i}") for i, g in enumerate(data)]


def read(operators: Any, name: str = "mirage") -> Graph:
    """One graph, the list of its operators as in the JSON: inputs X0, X1, ..., outputs O0, O1, .... Raises PLAN_GRAPH.

    Neighbouring dimensions that no operator tells apart are one axis, and dimensions of one element are left out.
    """
    try:
        return _GraphReader(name).read(operators)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as e:
        refuse("JSON that does not describe a graph of Mirage", f"got: {type(e).__name__}: {e}")
        raise


def cheapest(graphs: list[Graph], arch: Any = "sm_80", **pin: Any) -> Plan:
    """The plan of least expected time of graphs that compute the same. Raises SelectError PLAN_NONE if none has one."""
    if not isinstance(graphs, (list, tuple)) or not all(isinstance(g, Graph) for g in graphs):
        raise TypeError(f"cheapest takes a list of graphs, got {graphs!r}")
    best: Plan | None = None
    refused: dict[str, None] = {}
    seen: dict[str, None] = {}
    for g in graphs:
        text = json.dumps({**g.to_json(), "name": ""})
        if text in seen:
            continue
        seen[text] = None
        try:
            p: Plan = g.plan(arch, pin=pin)
        except _errors() as e:
            refused[str(e).splitlines()[0]] = None
            continue
        if best is None or p.expected_us < best.expected_us:
            best = p
    if best is None:
        _core.fail("PLAN_NONE", f"none of {len(graphs)} graphs has a plan", list(refused)[:8])
    assert best is not None
    return best


def _errors() -> Any:
    from graphene.errors import SelectError

    return SelectError


def _kind(op: str) -> str:
    """An operator's name without its level: "tb_exp_op" and "kn_exp_op" are "exp"."""
    return op.removeprefix("kn_").removeprefix("tb_").removesuffix("_op")


class _GraphReader:
    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.inputs: dict[str, tuple[list[int], Any]] = {}
        self.tensors: dict[int, tuple[Node, list[list[Digit]]]] = {}
        self.types: dict[int, Any] = {}

    def read(self, operators: list[Any]) -> Graph:
        outputs: list[tuple[str, Node, Any, Any]] = []
        for op in operators:
            kind = _kind(op["op_type"])
            if kind == "input":
                self.input(op["output_tensors"][0])
            elif kind == "output":
                t = op["input_tensors"][0]
                node, dims = self.tensors[t["guid"]]
                outputs.append((f"O{len(outputs)}", node, dims, self.type(t)))
            elif kind == "customized":
                self.customized(op)
            else:
                t = op["output_tensors"][0]
                args = [fresh(*self.tensors[i["guid"]]) for i in op["input_tensors"]]
                self.tensors[t["guid"]] = self.operator(kind, args, t, op)
        if not outputs:
            refuse("a graph without outputs")
        into_graph(self.graph, self.inputs, outputs)
        return self.graph

    def type(self, t: Any) -> Any:
        known = _TYPES.get(t.get("data_type", 921))
        if known is None:
            refuse("a type of elements that is not known", f"got: {t['data_type']}")
        return known

    def input(self, t: Any) -> None:
        name, sizes = f"X{len(self.inputs)}", [int(n) for n in t["dim"][: t["num_dims"]]]
        self.inputs[name] = sizes, self.type(t)
        dims = [[Digit(n)] for n in sizes]
        self.tensors[t["guid"]] = Node("input", name=name, digits=dims), dims

    def operator(self, kind: str, args: Any, out: Any, op: Any) -> tuple[Node, list[list[Digit]]]:
        """An operator on whole tensors, or on a block's parts."""
        if kind == "matmul":
            (a, x), (b, y) = args
            for p, q in zip(x[:-2], y[:-2], strict=True):
                _broadcast(p, q)
            same(x[-1], y[-2])
            batch = [p if leaves(p) else q for p, q in zip(x[:-2], y[:-2], strict=True)]
            return contracted(a, b, x[-1]), [*batch, x[-2], y[-1]]
        if kind == "rms_norm":
            ((a, x),) = args
            square = summed(Node("mul", [a, a]), x[-1])
            mean = Node("mul", [square, Node("number", value=1.0 / _count(x[-1]))])
            return Node("mul", [a, Node("rsqrt", [mean])]), x
        if kind.startswith("reduction"):
            ((a, x),) = args
            axis = int(kind.split("_")[1])
            return summed(a, x[axis]), [d if i != axis else [] for i, d in enumerate(x)]
        if kind not in _POINTWISE:
            refuse(
                f"an operator that is not read: {op['op_type']}",
                f"known: matmul, rms_norm, reduction, {', '.join(_POINTWISE)}",
            )
        if len(args) == 1:
            ((a, x),) = args
            return (Node("mul", [a, a]) if kind == "square" else Node(_POINTWISE[kind], [a])), x
        (a, x), (b, y) = args
        for p, q in zip(x, y, strict=True):
            _broadcast(p, q)
        return Node(_POINTWISE[kind], [a, b]), [p if leaves(p) else q for p, q in zip(x, y, strict=True)]

    def customized(self, op: Any) -> None:
        g = op["bgraph"]
        grid = {a: [Digit(int(g["grid_dim"][a]))] for a in "xyz"}
        loop, times = [Digit(int(g["forloop_range"]))], int(g["forloop_range"])
        values: dict[int, tuple[Node, list[list[Digit]]]] = {}
        for o in g["operators"]:
            kind = _kind(o["op_type"])
            if kind == "input":
                node, dims = fresh(*self.tensors[o["dtensor"]["guid"]])
                for a in "xyz":
                    dims = _cut(dims, o["input_map"][a], grid[a], int(g["grid_dim"][a]))
                dims = _cut(dims, o["forloop_dim"], loop, times)
                values[o["output_tensors"][0]["guid"]] = node, dims
                continue
            args = [values[t["guid"]] for t in o["input_tensors"]]
            if kind == "output":
                node, dims = args[0]
                dims = list(dims)
                for a in "zyx":
                    at = o["output_map"][a]
                    if at >= 0:
                        dims[at] = [*grid[a], *dims[at]]
                self.tensors[o["dtensor"]["guid"]] = node, dims
            elif kind.startswith("accum") or kind.startswith("forloop_accum"):
                values[o["output_tensors"][0]["guid"]] = self.accumulate(kind, args[0], loop, times, g, o)
            else:
                values[o["output_tensors"][0]["guid"]] = self.operator(kind, args, o["output_tensors"][0], o)

    def accumulate(self, kind: str, arg: Any, loop: Any, times: int, g: Any, o: Any) -> Any:
        node, dims = arg
        kind = kind.removeprefix("forloop_").removeprefix("accum_")
        if kind in ("nored", "no_red"):
            return summed(node, loop), dims
        if kind == "red_ld_sum":
            return summed(node, [*loop, *dims[-1]]), [*dims[:-1], []]
        if kind == "red_ld_mean":
            mean = Node("number", value=1.0 / (times * _count(dims[-1])))
            return Node("mul", [summed(node, [*loop, *dims[-1]]), mean]), [*dims[:-1], []]
        if kind == "red_ld_rms":
            total = summed(Node("mul", [node, node]), [*loop, *dims[-1]])
            return Node("sqrt", [Node("mul", [total, Node("number", value=1.0 / (times * _count(dims[-1])))])]), [
                *dims[:-1],
                [],
            ]
        if kind == "redtox_ld_sum":
            outer, inner = take_outer(dims[-1], _count(dims[-1]) // int(g["reduction_dimx"]))
            return summed(node, [*loop, *outer]), [*dims[:-1], inner]
        return refuse(f"an accumulator that is not read: {o['op_type']}")


def _count(digits: list[Digit]) -> int:
    n = 1
    for d in leaves(digits):
        n *= d.size
    return n


def _broadcast(x: list[Digit], y: list[Digit]) -> None:
    if leaves(x) and leaves(y):
        same(x, y)


def _cut(dims: list[list[Digit]], at: int, by: list[Digit], n: int) -> list[list[Digit]]:
    """The dims of a part: dimension `at` is cut into n, of which `by` is the number."""
    if at < 0:
        return dims
    outer, inner = take_outer(dims[at], n)
    same(outer, by)
    return [inner if i == at else d for i, d in enumerate(dims)]
