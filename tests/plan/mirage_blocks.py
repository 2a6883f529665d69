"""What Mirage's graphs mean, block by block and iteration by iteration: plain NumPy that knows nothing of digits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

__all__ = ["run"]


def _kind(op: dict[str, Any]) -> str:
    return str(op["op_type"]).removeprefix("kn_").removeprefix("tb_").removesuffix("_op")


def _operator(kind: str, args: list[Any]) -> Any:
    formulas = {
        "exp": np.exp, "silu": lambda x: x / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "square": np.square,
        "sqrt": np.sqrt, "gelu": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "div": np.divide, "mul": np.multiply, "add": np.add, "sub": np.subtract, "matmul": np.matmul,
        "rms_norm": lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True)),
    }  # fmt: skip
    if kind.startswith("reduction"):
        return args[0].sum(int(kind.split("_")[1]), keepdims=True)
    return formulas[kind](*args)


def _accumulated(kind: str, of: list[Any], reduction_dimx: int) -> Any:
    """All iterations of an accumulator."""
    kind = kind.removeprefix("forloop_").removeprefix("accum_")
    total = sum(x**2 for x in of) if kind == "red_ld_rms" else sum(of)
    count = len(of) * of[0].shape[-1]
    if kind == "red_ld_sum":
        return total.sum(-1, keepdims=True)
    if kind == "red_ld_mean":
        return total.sum(-1, keepdims=True) / count
    if kind == "red_ld_rms":
        return np.sqrt(total.sum(-1, keepdims=True) / count)
    if kind == "redtox_ld_sum":
        n = total.shape[-1] // reduction_dimx
        return total.reshape(*total.shape[:-1], n, reduction_dimx).sum(-2)
    return total


def _part(x: Any, at: int, i: int, n: int) -> Any:
    """Part i of n of a dimension."""
    if at < 0:
        return x
    size = x.shape[at] // n
    return np.take(x, range(i * size, (i + 1) * size), axis=at)


def _block(g: dict[str, Any], place: tuple[int, ...], tensors: dict[int, Any]) -> list[tuple[dict[str, Any], Any]]:
    """What one block stores."""
    grid = [g["grid_dim"][a] for a in "xyz"]
    collected: dict[int, list[Any]] = {}
    values: dict[int, Any] = {}
    for step in range(g["forloop_range"]):
        values = {}
        for op in g["operators"]:
            kind = _kind(op)
            if kind == "input":
                x = tensors[op["dtensor"]["guid"]]
                for axis, i, n in zip("xyz", place, grid, strict=True):
                    x = _part(x, op["input_map"][axis], i, n)
                values[op["output_tensors"][0]["guid"]] = _part(x, op["forloop_dim"], step, g["forloop_range"])
            elif kind != "output" and all(t["guid"] in values for t in op["input_tensors"]):
                args, out = [values[t["guid"]] for t in op["input_tensors"]], op["output_tensors"][0]["guid"]
                if "accum" in kind:
                    collected.setdefault(out, []).append(args[0])
                else:
                    values[out] = _operator(kind, args)
    stored = []
    for op in g["operators"]:
        kind = _kind(op)
        if "accum" in kind:
            out = op["output_tensors"][0]["guid"]
            values[out] = _accumulated(kind, collected[out], g["reduction_dimx"])
        elif kind == "output":
            stored.append((op, values[op["input_tensors"][0]["guid"]]))
        elif kind != "input" and op["output_tensors"][0]["guid"] not in values:
            values[op["output_tensors"][0]["guid"]] = _operator(kind, [values[t["guid"]] for t in op["input_tensors"]])
    return stored


def _customized(g: dict[str, Any], tensors: dict[int, Any]) -> None:
    grid = [g["grid_dim"][a] for a in "xyz"]
    whole: dict[int, Any] = {}
    for place in itertools.product(*map(range, grid)):
        for op, x in _block(g, place, tensors):
            at: list[tuple[int, int]] = [
                (0, 1)
            ] * x.ndim  # of each dimension: this block's part, and how many there are
            for axis, i, n in zip("xyz", place, grid, strict=True):
                d = op["output_map"][axis]
                if d >= 0:
                    at[d] = at[d][0] * n + i, at[d][1] * n
            shape = [s * n for s, (_, n) in zip(x.shape, at, strict=True)]
            full = whole.setdefault(op["dtensor"]["guid"], np.full(shape, np.nan))
            full[tuple(slice(i * s, (i + 1) * s) for s, (i, _) in zip(x.shape, at, strict=True))] = x
    tensors.update(whole)


def run(operators: list[dict[str, Any]], arrays: list[Any]) -> list[Any]:
    """The outputs of a graph, of its inputs in their order."""
    tensors: dict[int, Any] = {}
    given, outputs = iter(arrays), []
    for op in operators:
        kind = _kind(op)
        if kind == "input":
            tensors[op["output_tensors"][0]["guid"]] = next(given)
        elif kind == "output":
            outputs.append(tensors[op["input_tensors"][0]["guid"]])
        elif kind == "customized":
            _customized(op["bgraph"], tensors)
        else:
            args = [tensors[t["guid"]] for t in op["input_tensors"]]
            tensors[op["output_tensors"][0]["guid"]] = _operator(kind, args)
    return outputs
