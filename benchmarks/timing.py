"""How several benchmarks time calls on a GPU: in turns, with a cold cache, from a graph, on operands in rotation."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

WARM_S = 0.15  # the time after which the device's clock is that of the work


def measure(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Microseconds of each, alternately, with a cold cache."""
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for run in ways.values():
        run()
    spans: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            spans[name].append((start, end))
    torch.cuda.synchronize()
    return {name: 1e3 * statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in spans.items()}


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph. It holds `run`, because a replay writes to the tensors that `run` holds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_held: Callable[[], Any] = run) -> None:
        graph.replay()

    return replay


def graph_of(calls: Sequence[Callable[[], Any]], count: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of this number of calls, in rotation."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for i in range(count):
            calls[i % len(calls)]()
    return graph


def in_graphs(ways: Mapping[str, Sequence[Callable[[], Any]]], count: int, rounds: int) -> dict[str, float]:
    """Microseconds of a call of each way: medians of graphs of `count` calls, whose turns alternate.

    The calls of a way are the same on other operands, so that none finds its own in the cache if all are larger. A
    device lowers its clock for what has run before: one tile took 81.7 us as the first of six ways, 91.4 as the third.
    So the ways run for `WARM_S` first, and each round has another order.
    """
    graphs = {name: graph_of(calls, count) for name, calls in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    order, draw, begun = list(graphs), random.Random(0), time.perf_counter()
    while time.perf_counter() - begun < WARM_S:
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            graph = graphs[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / count * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}
