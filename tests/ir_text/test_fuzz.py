"""Mutated texts and documents under AddressSanitizer and UBSan: refused with a place, or surviving both forms.

`tests/native/fuzz.py` builds the fuzzers; GRAPHENE_FUZZERS says where.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS, SEED = 1_000, 3  # `tests/native/fuzz.py` runs other seeds by the minute


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    told = os.environ.get("GRAPHENE_FUZZERS")
    program = Path(told or ROOT / "build" / "sanitized" / "tests" / "native") / "ir_text_fuzz"
    if not program.exists():
        missing = f"{program} is missing: python tests/native/fuzz.py builds it"
        if told:
            pytest.fail(f"GRAPHENE_FUZZERS is {told}, but {missing}")
        pytest.skip(missing)
    return program


@pytest.mark.parametrize(("form", "accepted_at_least"), [("text", 40), ("json", 40)])
def test_mutated_inputs(fuzzer: Path, form: str, accepted_at_least: int) -> None:
    seeds = sorted(str(p) for p in (ROOT / "tests" / "golden").glob("*.gir"))
    command = [str(fuzzer), form, str(INPUTS), str(SEED), *seeds]
    environment = os.environ | {"ASAN_OPTIONS": "malloc_context_size=4"}  # deeper stacks of allocations take a fifth
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, (run.stdout[-4000:], run.stderr[-4000:])
    words = run.stdout.split()
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert counts["inputs"] == INPUTS
    assert counts["accepted"] >= accepted_at_least
    want = {"IR_TYPE_MISMATCH", "IR_UNDEFINED", "IR_DUPLICATE", "IR_NUMBER", "IR_PARSE"}
    if form == "json":
        want |= {"IR_JSON_SYNTAX", "IR_JSON_VALUE"}
    assert want <= counts.keys()
    # What stands deeper is reached by a few of the inputs, and which of it follows from the texts that are mutated.
    assert len({"LAYOUT_INJECTIVE", "TENSOR_INDEX", "TENSOR_TILE", "THREAD_TILE"} & counts.keys()) >= 3
