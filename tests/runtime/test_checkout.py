"""A checkout that is not built, as the current folder: the installed package is used, or what to do is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphene
from graphene import _checkout

PACKAGE = Path(graphene._core.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package's Python alone, as git holds it."""
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "checkout" / "graphene", ignore=ignored)
    return tmp_path / "checkout"


def run(checkout: Path, *args: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")} | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *args], cwd=checkout, env=env, capture_output=True, text=True, check=False)


def test_the_installed_package_is_meant(checkout: Path) -> None:
    code = "import graphene, graphene.errors; print(graphene._core.__file__); print(graphene.errors.__file__)"
    done = run(checkout, "-c", code, path=str(PACKAGE.parent))
    assert done.stdout.splitlines() == [graphene._core.__file__, str(PACKAGE / "errors.py")], done.stderr
    done = run(checkout, "-m", "graphene", "cache", path=str(PACKAGE.parent))
    assert done.returncode == 0, done.stderr


def test_nothing_installed_is_said(checkout: Path) -> None:
    done = run(checkout, "-S", "-c", "import graphene")
    assert done.returncode == 1
    here = checkout / "graphene"
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: graphene's extension module is not built in {here}, and no installed copy is on sys.path: run "
        f"`pip install .` in {checkout}, or build it in place (CONTRIBUTING.md)"
    )


def test_only_a_folder_with_the_extension_is_a_copy(checkout: Path, tmp_path: Path) -> None:
    assert _checkout.installed_copy(str(PACKAGE), [str(tmp_path), str(checkout), str(PACKAGE.parent)]) is None
    here = str(checkout / "graphene")
    assert _checkout.installed_copy(here, [str(checkout), str(PACKAGE.parent)]) == str(PACKAGE)


def test_a_sub_interpreter_is_refused_at_once(tmp_path: Path) -> None:
    """The core would wait for its own lock there."""
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
attempt = "try: import graphene\\nexcept ImportError as e: print(e, flush=True)"
interpreters.run_string(interpreters.create(), attempt)
"""
    done = run(tmp_path, "-c", code, path=str(PACKAGE.parent))
    assert "graphene cannot be imported in a sub-interpreter: import it in the process's first one" in done.stdout, done
