"""How much memory a check may hold: the simulator counts what it allocates, the judge asks the operating system."""

from __future__ import annotations

import contextlib
import gc
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from graphene import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SMALL_BYTES", "left", "limit", "limited", "room"]

SMALL_BYTES = 1 << 20  # less is not asked for
_ANY = 1 << 61
_LIMIT: ContextVar[tuple[int, int] | None] = ContextVar("memory", default=None)  # bytes in all, held when it began


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[None]:
    """Within it, `room` limits the memory that this process allocates to `limit_bytes`."""
    token = _LIMIT.set((limit_bytes, _resident()))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def limit() -> int:
    """Bytes that may be taken in all."""
    found = _LIMIT.get()
    return _ANY if found is None else found[0]


def left() -> int:
    """Bytes that may still be taken."""
    found = _LIMIT.get()
    return _ANY if found is None else max(found[0] - max(_resident() - found[1], 0), 0)


def room(more_bytes: int, what: str) -> None:
    """Within `limited`, raises SimulationError SIM_MEMORY for too many bytes. ``what``: "the array needs"."""
    if _LIMIT.get() is None or more_bytes < SMALL_BYTES or more_bytes <= left():
        return
    gc.collect()
    if more_bytes > left():
        held = limit() - left()
        _core.fail("SIM_MEMORY", f"{what} more memory than a check may hold",
                   [f"want: at most {limit() >> 20} MiB", f"got: {held >> 20} MiB, and {more_bytes >> 20} MiB more"],
                   "pass smaller sizes, or a larger memory_bytes=")  # fmt: skip
