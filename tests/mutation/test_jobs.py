"""Judgements in processes: none can hang or end the others, and a run goes on where it was ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import all_mutants
import pytest

from graphene.testing.jobs import Options, judge_all, read_journals

HEAD = {"what": "squares"}


def work(index: int) -> dict[str, Any]:
    if index == 2:
        time.sleep(60)
    if index == 3:
        os._exit(7)
    if index == 4:
        raise ValueError("four")
    return {"square": index * index}


def wrong(row: dict[str, Any]) -> bool:
    return "failed" in row


def test_a_judgement_that_hangs_or_ends_its_process_is_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "a" / "journal.jsonl"
    rows, whole = judge_all(work, 7, HEAD, Options(2, seconds=4, journal=journal), wrong)
    assert whole
    assert [r.get("square") for r in rows] == [0, 1, None, None, None, 25, 36]
    assert rows[2]["failed"] == "it took longer than 4 s"
    assert rows[3]["failed"] == "its process ended with 7"
    assert "ValueError: four" in rows[4]["failed"]
    assert "7 of 7, 3 wrong" in capfd.readouterr().err
    assert read_journals([journal]) == ({"what": "squares", "count": 7}, rows)


def test_a_run_goes_on_from_its_journal_and_parts_are_read_together(tmp_path: Path) -> None:
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for i, file in enumerate(files, 1):
        rows, whole = judge_all(lambda n: {"n": n}, 5, HEAD, Options(1, part=(i, 2), journal=file), wrong)
        assert whole
        assert [r["n"] for r in rows] == list(range(i - 1, 5, 2))
    file = files[0]
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + '{"index": 4, "n"')  # torn by a kill
    rows, whole = judge_all(lambda n: {"again": n}, 5, HEAD, Options(1, part=(1, 2), journal=file, resume=True), wrong)
    assert whole
    assert rows == [{"index": 0, "n": 0}, {"index": 2, "n": 2}, {"index": 4, "again": 4}]
    assert [r["index"] for r in read_journals(files)[1]] == [0, 1, 2, 3, 4]

    with pytest.raises(ValueError, match="another run's"):
        judge_all(work, 6, HEAD, Options(1, journal=file, resume=True), wrong)
    other = tmp_path / "3.jsonl"
    other.write_text(json.dumps({"what": "cubes"}) + "\n")
    with pytest.raises(ValueError, match="another run's"):
        read_journals([file, other])


def test_a_pipe_is_no_journal(tmp_path: Path) -> None:
    """It would block for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        read_journals([pipe])
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        judge_all(lambda n: {"n": n}, 5, HEAD, Options(1, journal=pipe, resume=True), wrong)


def test_nothing_is_begun_after_the_time(tmp_path: Path) -> None:
    options = Options(1, minutes=0.0, journal=tmp_path / "j")
    assert judge_all(work, 2, HEAD, options, wrong) == ([], False)
    assert read_journals([tmp_path / "j"]) == ({"what": "squares", "count": 2}, [])


def test_what_was_missed_and_kernels_that_changed_are_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["tensor_core_tile", "transpose_kernel"]
    monkeypatch.setattr(all_mutants, "CASES", {n: all_mutants.CASES[n] for n in names})
    same, other = names
    mutant = all_mutants.prepared(same)[1][3]
    missed = {"case": same, "number": 99, "operator": mutant.operator, "line": mutant.line + 7,
              "before": mutant.before, "after": mutant.after, "kind": "missed", "detail": ""}  # fmt: skip
    kinds = dict.fromkeys(all_mutants.KINDS, 1)
    few = {**dict.fromkeys(all_mutants.KINDS, 0), "promise": 1}
    kernels = {
        same: {"text": all_mutants.fingerprint(same), "commit": "old", "kinds": kinds},
        other: {"text": "another", "commit": "old", "kinds": few},
        "gone": {"text": "", "commit": "old", "kinds": kinds},
    }
    saved = {"commit": "old", "every": 1, "search": 1, "of": 9, "mutants": 9, "operators": {}, "kernels": kernels,
             "found": [missed, {**missed, "case": "gone"}]}  # fmt: skip
    jobs = all_mutants.again(saved)
    assert jobs[0] == (same, 3)
    assert {name for name, _ in jobs[1:]} == {other}
    assert len(jobs) == 1 + len(all_mutants.prepared(other)[1])

    now = [{**missed, "number": 3, "kind": "promise"}, {**missed, "case": other, "kind": "hazard"}]
    after = all_mutants.merged(saved, now, "new")
    assert after["kernels"][same]["kinds"] == {**kinds, "missed": 0, "promise": 2}
    assert after["kernels"][other]["commit"] == "new"
    assert after["kernels"][other]["kinds"]["hazard"] == sum(after["kernels"][other]["kinds"].values()) == 1
    assert list(after["kernels"]) == names
    assert [(r["kind"], r["was"], r["commit"]) for r in after["found"]] == [("promise", "missed", "new")]
    assert all_mutants.changed(after) == []
    text = all_mutants.page(after)
    assert "promise at new, missed before" in text
    assert "| transpose_kernel | new | 0 | 1 |" in text
    kernels[other]["kinds"] = kinds  # more than are judged again
    assert all_mutants.merged(saved, now, "new")["kernels"][other] == kernels[other]
