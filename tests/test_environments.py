"""How `.ci/run` tests without PyTorch and with it: what the environment without it has, and what runs in which one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[1] / ".ci"
spec = importlib.util.spec_from_file_location("bare", CI / "bare.py")
assert spec is not None
assert spec.loader is not None
bare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bare)


def test_the_declared_packages_and_what_they_need_are_there_and_no_other(tmp_path: Path) -> None:
    own, requirements = bare.declared("test")
    assert own == "graphene-ir"
    assert any(r.startswith("mkdocs>=") for r in requirements)  # of another extra, which this one names
    assert not any(r.startswith("graphene-ir") for r in requirements)
    names = bare.closure(requirements)
    assert {"numpy", "pytest", "pytest-xdist", "execnet", "pluggy"} <= names
    assert not {"torch", "transformers"} & names
    with pytest.raises(SystemExit, match="no-such-package>=3 is declared, but is not installed here"):
        bare.closure(["no-such-package>=3"])

    python = bare.make(tmp_path / "bare", {"pytest"} | bare.closure(["pytest"]))
    modules = ("pytest", "pluggy", "hypothesis", "torch")
    ask = f"import importlib.util as u; print([u.find_spec(m) is not None for m in {modules}])"
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, True, False, False]\n"
    tool = subprocess.run([python.parent / "pytest", "--version"], capture_output=True, text=True, check=True)
    assert "pytest" in tool.stdout + tool.stderr
    assert (python.parent / "pytest").read_text().startswith(f"#!{python}\n")


PLAIN = r"""
import os, pytest

@pytest.mark.parametrize("text", ["a", "b\n"])
def test_passes(text): pass

def test_waits():
    if not os.environ["SECOND"]: pytest.skip("what it needs is not here")

@pytest.fixture
def torn_down():
    yield
    assert os.environ["SECOND"]

def test_fails_at_its_end(torn_down): pass
"""


TENSORS = r"""
import pytest
from beside import converted
from numbers_beside import counted

NAMES = ["torch"]
try:
    import torch
except ImportError:
    torch = None

def as_tensor(x): return x if torch is None else torch.tensor(x)

def twice(x): return as_tensor(x), as_tensor(x)

@pytest.fixture
def tensor(): return as_tensor(1)

@pytest.fixture
def number(): return 1

class TestKinds:
    def test_of_a_class(self): assert as_tensor(1) == 1

def test_by_a_helper_of_a_helper(): twice(1)

def test_by_a_fixture(tensor): pass

@pytest.mark.usefixtures("tensor")
def test_by_a_fixture_that_a_mark_names(): pass

@pytest.mark.parametrize("name", NAMES)
def test_by_a_decorator(name): pass

def test_by_another_file(): converted(1)

# without torch
def test_by_a_comment(): pass

def test_of_numbers(number): assert counted(1) == 2
"""


def test_what_mentions_a_package_runs_again_and_what_stands_beside_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_tensors.py").write_text(TENSORS)
    (tmp_path / "test_beside.py").write_text("from numbers_beside import counted\n\ndef test_counts(): counted(1)\n")
    (tmp_path / "beside.py").write_text("def converted(x): return x  # as torch does\n")
    (tmp_path / "numbers_beside.py").write_text("def counted(x): return x + 1\n")
    (tmp_path / "test_all.py").write_text(
        "import os\n\nos.environ.pop('TORCH_HOME', None)  # of torch\n\ndef test_any(): pass\n"
    )
    passed = tmp_path / "passed"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "in_two", "-rA"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{CI}:{tmp_path}"}

    def ran(*options: str) -> set[str]:
        done = subprocess.run([*command, *options], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        return {line.split("::", 1)[1] for line in done.stdout.splitlines() if line.startswith("PASSED ")}

    first = ran(f"--passed-to={passed}")
    second = ran(f"--but={passed}")
    assert len(first) == 10
    assert first - second == {"test_of_numbers", "test_counts"}


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]])
def test_the_second_run_leaves_out_what_passed_and_needs_no_pytorch(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "test_tensors.py").write_text("def test_without():  # torch is not needed here\n    pass\n")
    passed = tmp_path / "passed"

    def run(*options: str, second: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "in_two", *workers, *options]
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CI), "SECOND": second}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()[-1]

    assert run(f"--passed-to={passed}", second="").startswith("4 passed, 1 skipped, 1 error")
    assert passed.read_text().splitlines() == [
        "test_plain.py::test_passes[a]",
        "test_plain.py::test_passes[b\\n]",
        "test_tensors.py::",
        "test_tensors.py::test_without",
    ]
    assert run(f"--but={passed}", second="1").startswith("3 passed")


def test_a_file_apart_from_its_option_would_be_taken_for_tests_and_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "setup.cfg").write_text("[tool:pytest]\npythonpath = more\n")
    (here / "more").mkdir()
    (here / "more" / "found_by_the_settings.py").write_text("")
    (here / "test_plain.py").write_text("import found_by_the_settings\n\ndef test_passes(): pass\n")
    passed = tmp_path / "elsewhere"
    passed.write_text("")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CI)}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "in_two", *options]
        return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)

    assert "write --but=FILE, not --but FILE" in run("--but", str(passed)).stderr
    assert run(f"--but={passed}").stdout.splitlines()[-1].startswith("1 passed")
