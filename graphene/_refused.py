"""Errors found in Python that name the line of the program, as errors of the core do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from graphene import _core
from graphene.errors import GrapheneError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_KERNELS = os.path.join(_PACKAGE, "kernels") + os.sep  # programs like any user's


def _place() -> tuple[str, int] | None:
    """The file and line of the innermost frame outside of the package; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or file.startswith(_KERNELS):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def refuse(code: str, message: str, details: Sequence[str], fix: str) -> NoReturn:
    """Raises the exception of a code, with the line of the program in front of its text and in its diagnostic."""
    try:
        _core.fail(code, message, list(details), fix)
    except GrapheneError as error:
        place = _place()
        if place is None:
            raise
        file, line = place
        rows = [{**row, "file": file, "line": line} for row in error.diagnostics]
        raise type(error)(f"{os.path.basename(file)}:{line}: {error}", rows) from None
