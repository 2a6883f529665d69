"""The functions of docs/errors.md: each causes its error, and does not where it is right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import _core

TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
MODULES = [importlib.import_module(p.stem) for p in sorted(TOOLS.glob("causes*.py"))]
CODES = {c.name for c in _core.error_codes()}
FUNCTIONS = {
    n: f for m in MODULES for n, f in vars(m).items() if callable(f) and "right" in getattr(f, "__annotations__", {})
}


def test_each_is_called_after_its_code() -> None:
    assert len(FUNCTIONS) >= 160
    assert [n for n in FUNCTIONS if n.upper() not in CODES] == []


def code(function: Any, right: bool) -> str | None:
    """The code of the error that a function raises, or that the check which it returns has found."""
    try:
        result = function(right=right)
    except gr.GrapheneError as error:
        if error.code == "COMPILE_NVRTC":
            pytest.skip("no NVRTC")
        return error.code
    return result.errors[0].code if result is not None and result.errors else None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_causes_and_cures(name: str) -> None:
    assert (code(FUNCTIONS[name], False), code(FUNCTIONS[name], True)) == (name.upper(), None)
