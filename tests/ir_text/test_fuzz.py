"""Mutated texts and documents under AddressSanitizer and UBSan: refused with a place, or surviving both forms."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
INPUTS = 20_000


def json_include() -> list[str]:
    """Where nlohmann/json.hpp is, as the build finds it: the system's or the wheel's."""
    places = [Path("/usr/include"), Path("/usr/local/include")]
    site = Path(sysconfig.get_paths()["purelib"])
    places += [site / "nlohmann_json" / "include", site / "include", Path(sysconfig.get_path("data")) / "include"]
    found = [p for p in places if (p / "nlohmann" / "json.hpp").exists()]
    if not found:
        pytest.skip("no nlohmann/json.hpp")
    return [] if found[0] == Path("/usr/include") else ["-isystem", str(found[0])]


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    sources = [p for layer in ("base", "sym", "layout", "ir") for p in sorted((ROOT / "csrc" / layer).glob("*.cpp"))]
    sources.append(ROOT / "tests" / "native" / "ir_text_fuzz.cpp")
    headers = [p for layer in ("base", "sym", "layout", "ir") for p in sorted((ROOT / "csrc" / layer).glob("*.[hd]*"))]
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for p in [*sources, *headers]:
        digest.update(p.read_bytes())
    folder = ROOT / "build" / f"ir_text_fuzz-{digest.hexdigest()[:16]}"
    program = folder / "ir_text_fuzz"
    if program.exists():
        return program
    for old in (ROOT / "build").glob("ir_text_fuzz-*"):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    launcher = [ccache] if (ccache := shutil.which("ccache")) else []
    include = ["-I", str(ROOT / "csrc"), *json_include()]

    def compile_one(source: Path) -> str:
        out = folder / (source.stem + "-" + source.parent.name + ".o")
        subprocess.run([*launcher, compiler, *FLAGS, *include, "-c", str(source), "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    partial = folder / "linking"
    subprocess.run([compiler, *FLAGS, *objects, "-o", str(partial)], check=True)
    partial.rename(program)
    return program


@pytest.mark.parametrize(("form", "accepted_at_least"), [("text", 400), ("json", 400)])
def test_mutated_inputs(fuzzer: Path, form: str, accepted_at_least: int) -> None:
    seeds = sorted(str(p) for p in (ROOT / "tests" / "golden").glob("*.gir"))
    run = subprocess.run([str(fuzzer), form, str(INPUTS), "1", *seeds], capture_output=True, text=True, check=False)
    assert run.returncode == 0, (run.stdout[-4000:], run.stderr[-4000:])
    words = run.stdout.split()
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert counts["inputs"] == INPUTS
    assert counts["accepted"] >= accepted_at_least
    want = {"IR_TYPE_MISMATCH", "IR_UNDEFINED", "IR_DUPLICATE", "IR_OPERANDS", "IR_DEPTH", "IR_NUMBER", "IR_FORMAT"}
    want |= {"IR_PARSE", "TENSOR_TILE", "THREAD_TILE", "SYM_DIV_ZERO"}
    if form == "json":
        want |= {"IR_JSON_SYNTAX", "IR_JSON_VALUE"}
    assert want <= counts.keys()
