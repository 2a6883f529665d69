"""KernelTimes of kernels on the current device: what ``mode="max-autotune"`` decides by."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from graphene.errors import GrapheneError
from graphene.integrations.torch_compile.expected import KERNEL_US, KernelTimes, number_of, shape_of
from graphene.integrations.torch_compile.reading import Node, tensor
from graphene.integrations.torch_compile.regions import PlannedRegion
from graphene.ops.core.torch import torch
from graphene.plan.measure import measure
from graphene.plan.planned import Plan
from graphene.select.device import Device
from graphene.select.measure import Timer

Clock = Callable[[Callable[[], object]], float]
TRIED = 4  # plans of a region


class MeasuredKernelTimes(KernelTimes):
    """Times as they are measured: planned kernels, the library's products, and copies of as many bytes as Inductor's
    other kernels move, which none of these can be faster than. What an empty kernel takes is taken off, because kernels
    follow one another at once in a model.

    ``clock``: gives the microseconds of a call.
    """

    measured = True

    def __init__(self, device: Device, clock: Clock | None = None, where: str = "cuda") -> None:
        super().__init__(device)
        self._clock, self._where = clock, where
        self._known: dict[Any, float] = {}
        self._best: dict[str, Plan] = {}

    def needed_gain(self, region: PlannedRegion) -> float:
        """No gain beyond the usual: times are measured."""
        del region
        return -math.inf

    def _timed(self, key: Any, make: Callable[[], Callable[[], object]]) -> float:
        if key not in self._known:
            with _real_tensors():
                self._clock = self._clock or Timer()
                self._known[key] = self._clock(make())
        return self._known[key]

    def _net_us(self, us: float) -> float:
        """A time without what any kernel takes here, but with what it takes in a CUDA graph."""
        return max(us - self.empty_us(), 0.0) + KERNEL_US

    def empty_us(self) -> float:
        """The time of a copy of a few bytes."""
        return self._timed(("moving", 2), lambda: self._copy(2))

    def _copy(self, elements: int) -> Callable[[], object]:
        x = torch.zeros(elements, dtype=torch.uint8, device=self._where)
        y = torch.empty_like(x)
        return lambda: y.copy_(x)

    def product_us(self, node: Node) -> float:
        """The time of a library's product."""
        described = tuple(
            (shape_of(tensor(a)), tuple(map(number_of, tensor(a).stride())), tensor(a).dtype)
            for a in node.all_input_nodes
        )

        def make() -> Callable[[], object]:
            args = [_like(tensor(a), self._where) for a in node.args]
            return lambda: node.target(*args)

        return self._net_us(self._timed((str(node.target), str(described)), make))

    def moving_us(self, moved_bytes: int) -> float:
        """The time of a copy: as many bytes are read and written together, up to the next power of an eighth."""
        step = max(1, 1 << max(0, moved_bytes.bit_length() - 3))
        elements = max(2, -(-moved_bytes // step) * step // 2)
        return self._net_us(self._timed(("moving", elements), lambda: self._copy(elements)))

    def planned_us(self, region: PlannedRegion) -> float:
        """The time of the fastest of some plans, which becomes the region's plan."""
        p = region.plan
        key = json.dumps(p.graph.to_json()) + str(p.sizes)
        if key not in self._known:
            with _real_tensors():
                try:
                    self._clock = self._clock or Timer()
                    found = measure(p.graph, self.device, None, count=TRIED, timer=self._clock, **p.sizes)
                    self._best[key] = found.best
                    self._known[key] = min(us for _, us in found.rows if not isinstance(us, str))
                except (GrapheneError, ValueError):
                    self._known[key] = math.inf
        region.plan = self._best.get(key, p)
        return self._net_us(self._known[key])


def _like(x: Any, where: str) -> Any:
    """A tensor with random elements and another one's shape and strides."""
    made = torch.empty_strided(shape_of(x), [number_of(s) for s in x.stride()], dtype=x.dtype, device=where)
    return made.normal_()


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    """A context in which tensors are made, although a graph is being compiled."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), torch.no_grad():
        yield
