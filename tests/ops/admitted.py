"""Calls that operators admit: cases of other tests with other sizes, dtypes, strides and alignments, as configurations.

Equal sizes of a case become equal sizes, so most of what is drawn fits together; what does not is refused with a code.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any

import pytest
import torch

from graphene import _core
from graphene.errors import LaunchError
from graphene.ops.core.define import Arg, Defined, _stand_in
from graphene.ops.core.torch import NUMBERS

SIZES = (
    *range(1, 10), 12, 15, 16, 17, 20, 24, 30, 31, 32, 33, 36, 40, 48, 56, 60, 63, 64, 65, 66, 72, 80, 88, 96, 100, 104,
    112, 120, 127, 128, 129, 130, 144, 160, 192, 200, 224, 250, 254, 255, 256, 257, 272, 288, 320, 384, 400, 500, 510,
    512, 513, 514, 576, 640, 768, 1000, 1024, 1025, 1032, 1536, 2048, 2049, 3000, 4096, 5120, 7168, 8192, 8200, 11008,
    16384, 28672, 32768, 50257, 65535, 65536, 100003, 128256, 262144, 1 << 20, (1 << 24) + 8, (1 << 31) - 1, 1 << 31,
)  # fmt: skip
USUAL = tuple(n for n in SIZES if n <= 1024)
FLOATS = ("float16", "bfloat16", "float32", "float64")
MOST_ELEMS = 1 << 40

Draw = Callable[[Sequence[Any]], Any]  # one of the values


class Copy(Exception):  # noqa: N818
    """A recipe that wants tensors copied first."""

    def __init__(self, mask: int) -> None:
        super().__init__(mask)
        self.mask = mask


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides, n = [], 1
    for s in reversed(shape):
        strides.append(n)
        n *= max(s, 1)
    return tuple(reversed(strides))


def _lies(draw: Draw, t: torch.Tensor, shape: tuple[int, ...], far: tuple[str, ...]) -> tuple[int, ...]:
    """Strides: of the case's order of dimensions or another, dense or with room between rows, with steps or repeats."""
    rank = len(shape)
    how = draw(("case", "case", "dense", "dense", "rows", "odd rows", "steps", "order", "repeat", *far))
    order = sorted(range(rank), key=lambda d: -t.stride(d)) if how == "case" else list(range(rank))
    if how == "order" and rank > 1:
        order.insert(draw(range(rank)), order.pop(draw(range(rank))))
    strides, n = [0] * rank, 2 if how == "steps" else 1
    for i, d in enumerate(reversed(order)):
        strides[d] = n
        n *= max(shape[d], 1)
        if i == 0 and how in ("rows", "odd rows"):
            n += draw((8, 16, 64)) if how == "rows" else draw((1, 2, 3, 4))
        if i == 0 and how == "far":
            n = 1 << 31
    if how == "repeat" and rank:
        strides[draw(range(rank))] = 0
    return tuple(strides)


class Other:
    """One way to change a case: what each size, each dtype becomes."""

    sizes_drawn, sizes_usual, far = SIZES, USUAL, ("far",)

    def __init__(self, draw: Draw, arch: str) -> None:
        self.draw, self.arch = draw, arch
        self.sizes: dict[int, int] = {0: 0, 1: draw((1, 1, 1, 0, 2))}
        self.dtypes: dict[str, str] = {}
        self.few = draw((True, True, False))
        # Sizes of which one is a multiple of another often must remain so.
        self.factor = draw((0, 0, 1, 2, 3, 4, 5, 8, 11, 16, 40, 64, 100))

    def size(self, n: int) -> int:
        if n not in self.sizes:
            keep = self.draw((0, 1, 2, 3))
            if self.factor and keep:
                self.sizes[n] = n * self.factor
            else:
                self.sizes[n] = (
                    n if keep == 0 else self.draw(self.sizes_usual if self.few or keep == 1 else self.sizes_drawn)
                )
        return self.sizes[n]

    def dtype(self, name: str) -> str:
        if name not in self.dtypes:
            self.dtypes[name] = self.draw((name, name, *FLOATS)) if name in FLOATS else name
        return self.dtypes[name]

    def tensor(self, t: torch.Tensor) -> Arg:
        shape = tuple(self.size(s) for s in t.shape)
        name = self.dtype(str(t.dtype).removeprefix("torch."))
        arg = Arg(shape, _lies(self.draw, t, shape, self.far), name, self.arch, 128)
        return arg._replace(align=max(arg.item_bytes, self.draw((128, 128, 16, 8, 4, 2, 1))))

    def value(self, x: Any, kind: str) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if kind.startswith("int") and isinstance(x, (list, tuple)):
            return [self.size(n) for n in x]
        if kind == "Tensor[]":
            return [self.tensor(t) for t in x]
        if kind == "ScalarType?" and x is not None:
            return NUMBERS[getattr(torch, self.dtype(str(x).removeprefix("torch.")))]
        if kind == "int" and x > 1:
            return self.size(x)
        if kind == "bool":
            return self.draw((x, True, False))
        return x


def other(case: Sequence[Any], op: Defined, draw: Draw, arch: str) -> list[Any]:
    """The arguments of a configuration, all of the schema."""
    change = Other(draw, arch)
    return [change.value(x, p[1]) for x, p in zip(op._in_order(tuple(case), {}), op.params, strict=True)]


def admitted(op: Defined, given: Sequence[Any]) -> bool:
    """Whether the operator takes such a call; raises what is not an error with a code."""
    tensors = [a for x in given for a in (x if isinstance(x, list) else [x]) if isinstance(a, Arg)]
    if any(prod(a.shape) > MOST_ELEMS for a in tensors):
        return False
    try:
        op.definition.results(*(_stand_in(a, p[1]) for a, p in zip(given, op.params, strict=True)))
    except LaunchError:
        return False
    return True


def chosen(op: Defined, given: Sequence[Any]) -> Any:
    """The recipe of a configuration, tensors copied where that is wanted: as a call would, but for the launches."""

    def copy(mask: int, _: str) -> Any:
        raise Copy(mask)

    given = list(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core.Recipe, "copy", staticmethod(copy))
        for _ in range(3):
            try:
                return op.definition.configure(*given)
            except Copy as e:
                at = -1
                for i in op._tensors:
                    many = given[i] if isinstance(given[i], list) else [given[i]]
                    for j, a in enumerate(many):
                        at += 1
                        if e.mask >> at & 1:
                            many[j] = a._replace(strides=_dense(a.shape), align=128)
                    given[i] = many if isinstance(given[i], list) else many[0]
    raise AssertionError(f"{op.called}: no kernel takes what has been copied: {given}")


def sweep(doc: str | None, names: Collection[str], tried: Callable[[str, random.Random, int], str]) -> None:
    """The command of a module of tests: draws calls of each operator for some seconds, and counts what became of them.

    ``tried(name, rng, number)`` says it in a word, or in more what is wrong, which is printed once for each first line.
    Ends the process, with 1 where something was wrong.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operator", choices=sorted(names), action="append")
    options = parser.parse_args()
    failed = 0
    for name in options.operator or sorted(names):
        end, counts, wrong, number = time.monotonic() + options.seconds, Counter[str](), set[str](), 0
        while time.monotonic() < end:
            found = tried(name, random.Random(f"{options.seed} {number}"), number)
            if found.isalpha():
                counts[found] += 1
            elif (first := found.partition("\n")[0]) not in wrong:
                print(f"{name}, call {number}: {found}", flush=True)
                wrong.add(first)
            number += 1
        failed += len(wrong)
        print(f"{name}: {number} calls, {dict(counts)}, {len(wrong)} wrong", flush=True)
    raise SystemExit(failed > 0)
