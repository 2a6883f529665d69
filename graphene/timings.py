"""The time of each stage of first calls: ``GRAPHENE_TIMINGS=1`` prints it when the process ends.

Stages nest. The time of a stage does not include the stages within it. The rest of the time is the program's.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from graphene import _core
from graphene._core import StageTime

__all__ = ["StageTime", "print_at_exit", "recorded", "stages", "table"]


def stages() -> list[StageTime]:
    """The stages that were timed so far, in the order in which they were first entered."""
    return _core.stage_times()


def table(times: list[StageTime] | None = None) -> str:
    """The stages as text, one in each line, with their sum at the end."""
    times = stages() if times is None else times
    rows = [*times, StageTime("all stages", sum(t.ms for t in times), sum(t.calls for t in times))]
    width = max(len(t.name) for t in rows)
    return "\n".join(f"{t.name:{width}}  {t.ms:9.2f} ms  {t.calls:5} x" for t in rows)


@contextmanager
def recorded() -> Iterator[list[StageTime]]:
    """Times the code within, from zero. The list is filled when it ends. Earlier times are forgotten."""
    before = _core.stages_timed()
    out: list[StageTime] = []
    _core.forget_stage_times()
    _core.time_stages(True)
    try:
        yield out
    finally:
        _core.time_stages(before)
        out += stages()


def print_at_exit() -> None:
    """Prints the table to the standard error stream when the process ends."""
    atexit.register(lambda: print(f"graphene: time by stage\n{table()}", file=sys.stderr))
