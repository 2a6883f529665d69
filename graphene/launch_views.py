"""How launches name views of arguments, "X.T" and "X.C", and sizes of work spaces."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Size", "viewed"]

# A dimension by its name, such as "batch" or "m", or a number; and of what it is rounded up to a multiple.
Size: TypeAlias = "tuple[str | int, int]"


def viewed(t: Any, view: str, columns: int) -> Any:
    """An array by a view: "T" exchanges its last two modes, "C" takes the first `columns`, "" is the array itself."""
    if view == "T":
        return t.swapaxes(-1, -2)
    return t[..., :columns] if view == "C" else t
