"""Golden texts: compared exactly; GRAPHENE_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """``golden("fig8.gir", text)``: the file holds exactly this text."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("GRAPHENE_UPDATE_GOLDEN") == "1":
            path.write_text(text)
        assert text == path.read_text()

    return check
