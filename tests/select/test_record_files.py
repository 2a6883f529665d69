"""Files of records: no link is written through, what somebody else put there is kept, no pipe is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import graphene as gr
from graphene.archive import write_atomically
from graphene.select import records


def test_records_are_not_written_through_links(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "tune"
    folder.mkdir()
    victim.write_text("precious")
    for name in ("dev.lock", "dev.json"):
        (folder / name).symlink_to(victim)
    record = {"kernel": "k", "version": 1, "dtype": "fp16", "shape": "s", "config": {}}
    with pytest.raises(gr.SelectError) as e:
        records.store("dev", record, folder)
    assert e.value.code == "TUNE_FAILED"
    assert victim.read_text() == "precious"
    (folder / "dev.lock").unlink()
    with pytest.warns(RuntimeWarning, match="is not JSON"):
        records.store("dev", record, folder)
    assert victim.read_text() == "precious"
    assert not (folder / "dev.json").is_symlink()


def test_what_lies_in_the_place_of_records_is_kept(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("somebody's")
    (tmp_path / "dev.lock").write_text("somebody's lock")
    with pytest.warns(RuntimeWarning, match="is not JSON"):
        records.store("dev", {"kernel": "k", "version": 1, "dtype": "a", "shape": "s", "config": {}}, tmp_path)
    assert [p.read_text() for p in tmp_path.glob("dev.json.*.bad")] == ["somebody's"]
    assert (tmp_path / "dev.lock").read_text() == "somebody's lock"


def test_a_pipe_of_records_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path))
    os.mkfifo(tmp_path / "dev.json")
    records.forget()
    with pytest.warns(RuntimeWarning, match="it is not a regular file"):
        assert records.find("dev", "k", 1, "fp16", "s") is None


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_atomically(path, b"all")
    assert path.read_bytes() == b"all"
    assert list(tmp_path.iterdir()) == [path]
