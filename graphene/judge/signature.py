"""The arguments of a kernel: names, types, sizes and strides in its symbols, and the symbols' facts."""

from __future__ import annotations

import json
import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from graphene.judge.trees import Trees

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphene.recorded import Recorded

__all__ = ["Argument", "Facts", "Parameter", "Signature", "evaluate"]

_KEPT = 8  # kernels whose JSON and trees are kept: they take more memory than the kernels themselves


@dataclass(frozen=True)
class Facts:
    """The facts of a symbol: its values are multiples of ``multiple_of`` from ``least`` to ``most``."""

    least: int = 0
    most: int = 2**63 - 1
    multiple_of: int = 1

    def allow(self, value: int) -> bool:
        """Whether the value keeps them."""
        return self.least <= value <= self.most and value % self.multiple_of == 0


@dataclass(frozen=True)
class Argument:
    """A tensor argument. Sizes and strides are integers or expressions; ``count`` is the length of a list."""

    name: str
    role: str
    dtype: str
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    count: int | None
    align_bytes: int


@dataclass(frozen=True)
class Parameter:
    """A scalar argument."""

    name: str
    dtype: str


@lru_cache(4096)
def _code(expression: str) -> Any:
    return compile(expression.replace("@", "_at_"), "<expression>", "eval")


def evaluate(expression: Any, values: Mapping[str, int]) -> int:
    """The value of an expression of symbols."""
    if isinstance(expression, int):
        return expression
    return int(eval(_code(expression), {"min": min, "max": max}, dict(values)))  # of the kernel's own text


def _flat(x: Any) -> Iterator[Any]:
    if isinstance(x, list):
        for y in x:
            yield from _flat(y)
    else:
        yield x


@dataclass(frozen=True)
class Signature:
    """The arguments that ``Signature.of(kernel)`` reads off the kernel's JSON."""

    symbols: dict[str, Facts]
    arguments: tuple[Argument | Parameter, ...]  # in order
    types: dict[str, str] = field(repr=False)  # of the kernel's tensors, by name
    data: dict[str, Any] = field(repr=False)  # the JSON

    @staticmethod
    def of(kernel: Recorded) -> Signature:
        """The kernel's signature. Those of the kernels asked for last are kept."""
        kept: Signature | None = kernel.__dict__.get("_signature") or _LATEST.get(kernel)
        if kept is None:
            kept = Signature._read(json.loads(kernel.to_json()))
            _LATEST.keep(kernel, kept)
        return kept

    @staticmethod
    def _read(data: dict[str, Any]) -> Signature:
        symbols = {s["name"]: Facts(s.get("min", 0), s.get("max", 2**63 - 1), s.get("multiple_of", 1))
                   for s in data["symbols"]}  # fmt: skip
        types: dict[str, str] = {}
        arguments: list[Argument | Parameter] = []
        for a in data["args"]:
            if a["role"] == "param":
                arguments.append(Parameter(a["name"], a["dtype"]))
                continue
            (level,) = a["type"]["levels"][-1:]
            sizes, strides = tuple(_flat(level["shape"])), tuple(_flat(level["stride"]))
            arguments.append(Argument(a["name"], a["role"], a["type"]["dtype"], sizes, strides, a.get("count"),
                                      a.get("align", 0)))  # fmt: skip
            types[a["name"]] = a["type"]["dtype"]

        def see(block: Any) -> None:
            for s in block:
                if s.get("stmt") == "allocate":
                    types[s["name"]] = s["type"]["dtype"]
                for inner in s.values():
                    if isinstance(inner, list) and inner and isinstance(inner[0], dict) and "stmt" in inner[0]:
                        see(inner)

        see(data["body"])
        return Signature(symbols, tuple(arguments), types, data)

    @cached_property
    def tensors(self) -> tuple[Argument, ...]:
        """The arguments that are tensors or lists of them."""
        return tuple(a for a in self.arguments if isinstance(a, Argument))

    @cached_property
    def scalars(self) -> tuple[Parameter, ...]:
        """The arguments that are numbers."""
        return tuple(a for a in self.arguments if isinstance(a, Parameter))

    @cached_property
    def trees(self) -> Trees:
        """The expressions of the kernel's text; kernels that are judged one after the other share them."""
        return Trees.shared()

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The tensors that the kernel writes."""
        return tuple(a for a in self.tensors if a.role != "input")

    def shape(self, argument: Argument, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """A tensor's extents at some sizes."""
        return tuple(evaluate(s, sizes) for s in argument.sizes)

    def elements(self, sizes: Mapping[str, int]) -> int:
        """How many elements all tensors have."""
        return sum(math.prod(self.shape(a, sizes)) * (a.count or 1) for a in self.tensors)


class _Latest:
    """Signatures of the `_KEPT` kernels asked for last. Those of kernels that are gone go with the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[weakref.ref[Recorded], Signature]] = OrderedDict()

    def get(self, kernel: Recorded) -> Signature | None:
        with self._lock:
            of, signature = self._kept.get(id(kernel), (None, None))
            if of is None or of() is not kernel:  # it has gone, and another one took its place in memory
                return None
            self._kept.move_to_end(id(kernel))
            return signature

    def keep(self, kernel: Recorded, signature: Signature) -> None:
        with self._lock:
            for gone in [at for at, (of, _) in self._kept.items() if of() is None]:
                del self._kept[gone]
            self._kept[id(kernel)] = (weakref.ref(kernel), signature)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)


_LATEST = _Latest()
