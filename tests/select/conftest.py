"""What tests of the tuner share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graphene.select import records


@pytest.fixture
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of records that begins empty, and no tuning asked for."""
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path / "tune"))
    monkeypatch.delenv("GRAPHENE_TUNE", raising=False)
    records.forget()
    yield tmp_path / "tune"
    records.forget()
