"""`python -m graphene doctor` and `cache`, and the conflict with GraphQL's package of the same name."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import graphene
from graphene.cli import main
from graphene.cli.doctor import check_cache

PACKAGE = Path(graphene.__file__).parent


def run(*args: str, status: int = 0, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "graphene", *args],
        env=os.environ | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_doctor_says_what_is_there(cache_dir: Path) -> None:
    text = run("doctor", GRAPHENE_CUDA_DRIVER="/nowhere/libcuda.so.1")
    lines = text.splitlines()
    assert any(x.startswith("ok       NVRTC ") for x in lines)
    assert any(x.startswith("ok       compiling  a kernel for sm_90a in ") for x in lines)
    assert "note     driver     the CUDA driver cannot be loaded" in lines
    assert (
        " " * 20 + "loader: /nowhere/libcuda.so.1: cannot open shared object file: No such file or directory" in lines
    )
    assert any(x.startswith(" " * 20 + "fix: install the NVIDIA driver") for x in lines)
    assert f"ok       cache      {cache_dir}: 1 entry, " in text
    assert lines[-1] == "all that is needed is there"


def test_doctor_fails_without_a_compiler() -> None:
    out = json.loads(run("doctor", "--json", status=1, GRAPHENE_NVRTC="/nowhere/libnvrtc.so"))
    assert out["ok"] is False
    missing = [f for f in out["findings"] if f["status"] == "missing"]
    assert [f["what"] for f in missing] == ["compiling"]
    assert "/nowhere/libnvrtc.so" in missing[0]["text"]
    assert missing[0]["fix"] == "correct GRAPHENE_NVRTC, or unset it to search the usual places"


@pytest.mark.parametrize("command", [["doctor"], ["cache"], ["tune", "256x256x256", "--arch=sm_80"]])
def test_a_reader_that_leaves_is_no_error(command: list[str]) -> None:
    """As behind ``| head``: nothing on stderr, and the status of a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "graphene", *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_cache_command(cache_dir: Path) -> None:
    assert run("cache") == f"{cache_dir}: 0 entries, 0 bytes of 1.0 GiB\n"
    run("doctor", GRAPHENE_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert run("cache").startswith(f"{cache_dir}: 1 entry, ")
    assert run("cache", "--clear") == f"removed 1 entry\n{cache_dir}: 0 entries, 0 bytes of 1.0 GiB\n"
    assert run("cache", GRAPHENE_CACHE="0") == "off (GRAPHENE_CACHE=0, or no home directory)\n"


def test_doctor_tries_to_write_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions say little: to root everything is writable, and a disk may be full."""
    file = tmp_path / "a_file"
    file.write_text("")
    for folder, why in (
        (file / "cache", "Not a directory"),
        (file, "File exists"),
        (Path("/proc/nothing"), "No such file"),
    ):
        monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(folder))
        (cache,) = check_cache()
        assert (cache.status, cache.what) == ("note", "cache")
        assert cache.text.startswith(f"{folder}: nothing can be written there: {why}")
        assert cache.fix.startswith("set GRAPHENE_CACHE_DIR to a writable directory")
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "new" / "cache"))
    (cache,) = check_cache()
    assert cache.status == "ok"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--jobs", "0", "at least 1 is wanted, got 0"),
        ("--seconds", "nan", "more than 0 is wanted, got nan"),
        ("--minutes", "-1", "more than 0 is wanted, got -1"),
        ("--of", "/dev/null", "/dev/null is not a regular file"),
        ("--of", ".", ". is not a regular file"),
        ("--of", "EMPTY", "EMPTY: not of a check of the library"),
        ("--of", "LIST", "LIST is not a journal"),
        ("--of", "OTHER", "OTHER: not of a check of the library"),
    ],
)
def test_wrong_options_of_a_check(
    option: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").touch()
    Path("LIST").write_text("[]\n")
    Path("OTHER").write_text('{"what": "squares"}\n{"index": 0}\n')
    with pytest.raises(SystemExit) as ended:
        main(["check", "--library", f"{option}={value}"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main(["check", "--library", f"--of={tmp_path}/none"]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/none: No such file or directory\n"


def test_help_speaks_to_its_reader() -> None:
    text = run("--help")
    assert "What Graphene finds on this machine, and what it keeps there." in text
    assert "__init__" not in text
    for command in re.search(r"\{([\w,]+)\}", text)[1].split(","):
        about = run(command, "--help").split("\n\n")[1]
        assert about[0].isupper(), about
        assert about.endswith("."), about


def test_unknown_command() -> None:
    run("dance", status=2)


def load_conflict(folder: Path) -> None:
    """Imports _conflict.py as if the package were installed in `folder`."""
    file = folder / "_conflict.py"
    file.write_text((PACKAGE / "_conflict.py").read_text())
    spec = importlib.util.spec_from_file_location("conflict_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_graphql_beside_us_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "graphene"
    folder.mkdir(parents=True)
    (tmp_path / "site-packages" / "graphene_ir-0.1.0.dist-info").mkdir()
    load_conflict(folder)  # alone
    other = tmp_path / "site-packages" / "graphene-3.4.3.dist-info"
    other.mkdir()
    with pytest.raises(ImportError, match="GraphQL's package `graphene` is installed beside this one") as e:
        load_conflict(folder)
    assert str(other) in str(e.value)
    assert "pip uninstall -y graphene graphene-ir" in str(e.value)
    other.rmdir()
    (folder / "types").mkdir()
    (folder / "types" / "objecttype.py").write_text("")
    with pytest.raises(ImportError, match=r"types.objecttype\.py"):
        load_conflict(folder)


def test_import_is_quick_and_light() -> None:
    """The budget is 100 ms on a quiet machine; here a broad bound of its own time, whatever else the machine does."""
    code = "import time; t = time.process_time(); import graphene; print(time.process_time() - t)"
    code += "; import sys; print([m for m in ('torch', 'scipy', 'pandas') if m in sys.modules])"
    best = 10.0
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert out[1] == "[]"
        best = min(best, float(out[0]))
        if best < 0.1:
            break
        time.sleep(0.2)
    assert best < 1.0
