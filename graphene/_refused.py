"""Errors found in Python that name the line of the program, as errors of the core do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from graphene import _core

if TYPE_CHECKING:
    from collections.abc import Sequence


def refuse(code: str, message: str, details: Sequence[str], fix: str) -> NoReturn:
    """Raises the exception of a code, with the line of the program in front of its text and in its diagnostic."""
    _core.fail(code, message, list(details), fix, located=True)
