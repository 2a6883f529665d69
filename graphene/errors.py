"""The exceptions Graphene raises, with stable codes and structured diagnostics.

docs/errors.md lists the codes.
"""

from __future__ import annotations

from typing import Any


class GrapheneError(Exception):
    """Base of all errors.

    `code` is the stable code of the first diagnostic; `diagnostics` holds all of them as dicts with the keys code,
    file, line, message, ir, details, fix.
    """

    def __init__(self, text: str, diagnostics: list[dict[str, Any]] | None = None) -> None:
        super().__init__(text)
        self.diagnostics: list[dict[str, Any]] = diagnostics or []

    @property
    def code(self) -> str | None:
        """Stable code of the first diagnostic, such as "NO_ATOM"."""
        return self.diagnostics[0]["code"] if self.diagnostics else None


class LayoutError(GrapheneError):
    """A layout, symbolic integer or tensor view is not valid."""


class VerifyError(GrapheneError):
    """A kernel breaks a rule of the IR."""


class SelectError(GrapheneError):
    """No atomic spec, or more than one, implements a leaf."""


class CompileError(GrapheneError):
    """NVRTC or its loading failed."""


class LaunchError(GrapheneError):
    """The kernel cannot take the arguments, or the driver returned an error."""


class SimulationError(GrapheneError):
    """The simulator found a hazard: a race, out of bounds, undefined value, deadlock, ..."""


class InternalError(GrapheneError):
    """A bug in Graphene itself."""
