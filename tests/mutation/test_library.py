"""A sample of the kernels that selection returns; ``python -m graphene check --library`` checks all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphene.cli import main

ROOT = Path(__file__).parents[2]


def test_a_sample_of_the_library_keeps_its_promise(tmp_path, capsys) -> None:
    """Spread over the functions; the outcome says what was checked."""
    file = tmp_path / "library.json"
    status = main(["check", "--library", "--every", "193", "--jobs", "1", "--json", str(file)])
    assert status == 0, capsys.readouterr().out
    outcome = json.loads(file.read_text())
    assert {"commit", "date", "grid", "every", "kernels", "wrong", "found"} == set(outcome)
    assert outcome["kernels"] == len(outcome["found"]) > 10
    assert len({o["function"] for o in outcome["found"]}) >= 6
    assert all(o["calls"] for o in outcome["found"])
    assert "keep their promise" in capsys.readouterr().out


def test_kernels_of_one_function_are_judged_alone(capsys) -> None:
    assert main(["check", "--library", "--function", "groupnorm", "--every", "12", "--jobs", "1"]) == 0
    assert "3 of 3 kernels keep their promise" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["check", "--library", "--function", "grupnorm"])
    assert "the grid has no function whose name begins with 'grupnorm'" in capsys.readouterr().err
