"""How long PyTorch's compiler's kernels are expected to take, and planned ones beside them.

Inductor's kernels: a library's product for each product, and one kernel for operators that are computed element by
element, or reduced along rows, and read each other without a product between them. Each moves what it reads and writes
once.

The figures are of an H200: 66 products of cuBLAS in bf16, copies, and planned kernels were measured in CUDA graphs
(benchmarks/results/compile_h200.json, plan_h200.json). The model of products is 6% off in the mean.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Sequence
from typing import Any

from graphene.integrations.torch_compile.reading import PRODUCTS, REDUCTIONS, VIEWS, Node, tensor
from graphene.integrations.torch_compile.regions import PlannedRegion
from graphene.ops.core.torch import torch
from graphene.select.device import Device
from graphene.select.model import LAUNCH_US

KERNEL_US = 1.2  # from the end of one kernel to the end of the next, with little work, in a CUDA graph
REDUCING_US = 1.5  # a norm of 16 rows of 4096 took 2.2 to 2.7 us before a product
PLANNED_US = 2.2  # the same of a planned kernel, whose own time is that of its plan
# A gate of 3072 of 512 normalised rows of 1024 took 27.4 us by mma.sync, where 20.2 were expected. Few rows, and
# products of inputs, are off by less than the gain that is asked of every region.
NORMALISED_GAIN, FEW_ROWS = 0.27, 64
CACHED_BYTES, CACHED = 24 << 20, 1.55  # what the L2 cache still holds is moved faster than memory's rate, by this
# Sums and products of 16-bit operands of a multiprocessor in a clock, in the library's largest tile; on devices of
# other families, the rate of mma.sync, which their libraries use, too.
LIBRARY_FLOPS = {"sm_90": 4020.0, "sm_100": 8040.0}
LIBRARY_TILES = {(64, 64): 0.7, (128, 128): 0.9, (128, 256): 1.0}  # rows and columns, and the share of that rate
LIBRARY_US = 2.4  # a product without work
TILE_US = 3.2  # the start and the end of a tile of 128 x 256, while nothing is multiplied
READ_US = 1.3  # until memory is read at its rate
PARTS, PARTS_US = 4, 2.6  # k may be cut into these, whose sums another kernel adds up
LONG_FLOPS, SLOWED = 1e11, 1.16  # products of so much work lower the device's clock
NEAR = 48  # operators before and behind a region that its kernels may be joined with

aten = torch.ops.aten
HEAVY = {*PRODUCTS, aten.bmm.default, aten.baddbmm.default, aten.convolution.default}


def is_heavy(node: Node) -> bool:
    """Whether an operator is a kernel of its own, which Inductor joins with nothing."""
    if node.op != "call_function":
        return False
    name = str(node.target)
    return node.target in HEAVY or "scaled_dot_product" in name or not name.startswith(("aten", "prims", "<built"))


def _is_view(node: Node) -> bool:
    moved = (aten.permute.default, aten.t.default, aten.transpose.int, operator.getitem)
    return node.op == "call_function" and (node.target in VIEWS or node.target in moved)


def bytes_of(node: Node) -> int:
    """Bytes of a node's tensor, of a symbolic shape as in the example."""
    x = tensor(node)
    if x is None:
        return 0
    return math.prod(number_of(d) for d in x.shape) * int(x.element_size())


def shape_of(x: Any) -> tuple[int, ...]:
    """A tensor's shape, in the example."""
    return tuple(map(number_of, x.shape))


def number_of(size: Any) -> int:
    """A size; of a symbolic one, that of the example."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def library_us(m: int, k: int, n: int, moved_bytes: int, device: Device) -> float:
    """A library's product of 16-bit operands, m x k by k x n, in microseconds: the best of a few tiles, or memory."""
    flops = LIBRARY_FLOPS.get(device.family, device.flops_per_clock) * device.clock_ghz * 1e3  # of a microsecond
    least = moved_bytes / device.memory_rate / 1e3 + READ_US
    best = math.inf
    for (rows, columns), share in LIBRARY_TILES.items():
        for parts in (1, PARTS):
            blocks = math.ceil(m / rows) * math.ceil(n / columns) * parts
            work = 2 * rows * columns * math.ceil(k / parts) / (flops * share)
            us = math.ceil(blocks / device.sm_count) * (work + TILE_US * rows * columns / (128 * 256))
            us *= SLOWED if 2 * m * n * k > LONG_FLOPS else 1.0
            best = min(best, max(us, least) + (PARTS_US if parts > 1 else 0.0))
    return LIBRARY_US + best


class KernelTimes:
    """What kernels are expected to take on a device, in microseconds.

    ``reducing_us``: what a kernel that reduces rows takes beyond one that moves as many bytes.
    """

    measured = False
    reducing_us = REDUCING_US

    def __init__(self, device: Device) -> None:
        self.device = device

    def product_us(self, node: Node) -> float:
        """The time of a library's product."""
        a, b = (tensor(x) for x in node.args[-2:]) if node.target is aten.mm.default else map(tensor, node.args[1:3])
        m, k, n = math.prod(map(number_of, a.shape[:-1])), number_of(a.shape[-1]), number_of(b.shape[-1])
        moved = sum(bytes_of(x) for x in node.all_input_nodes) + bytes_of(node)
        return library_us(m, k, n, moved, self.device)

    def planned_us(self, region: PlannedRegion) -> float:
        """The time of a planned kernel, beside the kernels of this model."""
        return region.plan.expected_us - LAUNCH_US + PLANNED_US

    def needed_gain(self, region: PlannedRegion) -> float:
        """The part of the replaced time that a region must save: what expected times of its kind were off.

        Minus infinity where the usual gain is enough.
        """
        (out,) = region.plan.graph.outputs
        rows = out.axes[0].size or region.plan.sizes[out.axes[0].symbol]
        decision = region.plan.decisions.get("instruction")
        by_tma = decision is not None and decision.value == "wgmma"
        computed = any(v.op == "dot" and any(a.op != "input" for a in v.args) for v in out.value.walk())
        return NORMALISED_GAIN if computed and rows > FEW_ROWS and not by_tma else -math.inf

    def moving_us(self, moved_bytes: int) -> float:
        """The time of a kernel of Inductor's that reads and writes this number of bytes."""
        faster = CACHED if moved_bytes <= CACHED_BYTES else 1.0
        return KERNEL_US + moved_bytes / self.device.memory_rate / faster / 1e3


class Expected:
    """The expected time of an FX graph."""

    def __init__(self, nodes: Sequence[Node], times: KernelTimes) -> None:
        self.nodes, self.times = list(nodes), times
        self.order = {n: i for i, n in enumerate(self.nodes)}

    def difference_us(self, before: Sequence[PlannedRegion], after: Sequence[PlannedRegion]) -> tuple[float, float]:
        """The time of the nodes near the regions, with those of `before` and with those of `after`."""
        changed = [r for r in (*before, *after) if not (r in before and r in after)]
        at = [self.order[n] for r in changed for n in r.nodes]
        window = self.nodes[max(0, min(at) - NEAR) : max(at) + NEAR]
        return self.window_us(window, before), self.window_us(window, after)

    def window_us(self, window: Sequence[Node], regions: Sequence[PlannedRegion]) -> float:
        """The time of neighbouring nodes, some of which are planned."""
        inside = set(window)
        by_out = {r.out: r for r in regions}
        needs = {n: [x.node for x in by_out[n].leaves] if n in by_out else n.all_input_nodes for n in window}
        alive = self._alive(window, inside, needs)
        total = 0.0
        level: dict[Node, int] = {}  # how many heavy kernels stand before
        kernel: dict[Node, set[Node]] = {}
        joined: dict[Node, Node] = {}

        def find(n: Node) -> Node:
            while joined[n] is not n:
                joined[n] = joined[joined[n]]
                n = joined[n]
            return n

        def source(n: Node) -> Node:
            while _is_view(n) and n not in by_out:
                n = n.args[0]
            return n

        for n in window:
            if n not in alive or n.op != "call_function":
                continue
            of = [source(a) for a in needs[n]]
            level[n] = max((level.get(a, 0) + (a in by_out or is_heavy(a)) for a in of), default=0)
            if n in by_out:
                total += self.times.planned_us(by_out[n])
            elif n.target in PRODUCTS:
                total += self.times.product_us(n)
            elif source(n) is n and not is_heavy(n) and tensor(n) is not None:
                joined[n] = n
                for a in of:
                    if a in joined and level[a] == level[n]:
                        joined[find(a)] = find(n)
        for n in joined:
            kernel.setdefault(find(n), set()).add(n)
        readers: dict[Node, list[Node]] = {n: [u for u in n.users if u not in inside] for n in window}
        for n in alive:
            for a in needs[n]:
                readers.setdefault(a, []).append(n)
        for group in kernel.values():
            read = {a for n in group for a in map(source, needs[n]) if a not in group}
            written = {n for n in group if any(u not in group for u in _through_views(n, readers, by_out))}
            if written:
                total += self.times.moving_us(sum(map(bytes_of, read | written)))
                total += self.times.reducing_us if any(n.target in REDUCTIONS for n in group) else 0.0
        return total

    def _alive(self, window: Sequence[Node], inside: set[Node], needs: dict[Node, Any]) -> set[Node]:
        """Nodes that something reads, when regions are computed from their inputs."""
        hidden = set(window)
        stack = [n for n in window if not n.users or any(u not in inside for u in n.users)]
        alive: set[Node] = set()
        while stack:
            n = stack.pop()
            if n in hidden and n not in alive:
                alive.add(n)
                stack += needs[n]
        return alive


def _through_views(node: Node, readers: dict[Node, list[Node]], kernels: Container[Node]) -> list[Node]:
    """Who reads a node's tensor, looking through views; one that a kernel stores reads itself."""
    out: list[Node] = []
    stack = [node]
    while stack:
        for u in readers.get(stack.pop(), ()):
            (stack if _is_view(u) and u not in kernels else out).append(u)
    return out
