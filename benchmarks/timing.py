"""How several benchmarks time calls on a GPU: in turns, with a cold cache, from a graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch


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
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return lambda: graph.replay()
