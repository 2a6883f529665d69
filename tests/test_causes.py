"""The functions of docs/errors.md: each causes its error, and does not where it is right."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

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
    assert len(FUNCTIONS) >= 120
    assert [n for n in FUNCTIONS if n.upper() not in CODES] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_causes_and_cures(name: str) -> None:
    function = FUNCTIONS[name]
    with pytest.raises(gr.GrapheneError) as caught:
        function(right=False)
    assert caught.value.code == name.upper()
    function(right=True)
