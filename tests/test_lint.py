"""Lint and format, part of the suite so that one command says whether a change may land."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = [d for d in ("graphene", "tests", "examples", "benchmarks", "tools") if (ROOT / d).exists()]


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def need(tool: str) -> str:
    path = shutil.which(tool, path=str(Path(sys.executable).parent)) or shutil.which(tool)
    if path is None:
        pytest.fail(f"{tool} is not installed: pip install 'graphene-ir[test]' brings it")
    return path


def files(folders: tuple[str, ...], suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(p for d in folders for p in (ROOT / d).rglob("*") if p.suffix in suffixes)


def test_ruff_check() -> None:
    run(need("ruff"), "check", *PYTHON)


def test_ruff_format() -> None:
    run(need("ruff"), "format", "--check", *PYTHON)


def test_mypy() -> None:
    run(need("mypy"), "--config-file", "setup.cfg")


def test_clang_format() -> None:
    sources = [str(p) for p in files(("csrc", "tests"), (".cpp", ".h"))]
    run(need("clang-format"), "--dry-run", "-Werror", *sources)


def test_files_are_short() -> None:
    """A file well over 600 lines holds two things."""
    lines = {
        p.relative_to(ROOT): len(p.read_text().splitlines())
        for p in files(("csrc", "graphene", "tests"), (".cpp", ".h", ".py", ".pyi"))
    }
    assert not {str(p): n for p, n in lines.items() if n > 650}
