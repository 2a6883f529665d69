"""Kernels compiled ahead of time run where there is no compiler, and a folder that was tampered with says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphene as gr
from graphene import _core
from graphene.precompiled import runs_on

from .test_launcher import environment, stub_library  # noqa: F401


def scale(n: int | gr.IntExpr, name: str = "scale") -> gr.Kernel:
    with gr.Kernel(name) as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        factor = gr.param("factor", gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x.tile([64])[b][t])
        r[:] = r * factor
        gr.move(y.tile([64])[b][t], r)
    return kernel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gr.precompile({"scale": scale(gr.sym("n")), "fixed-8": scale(8)}, tmp_path / "k", ["sm_80", "sm_90a"])
    return tmp_path / "k"


def test_what_is_written_is_what_is_loaded(folder: Path) -> None:
    loaded = gr.load_precompiled(folder)
    kernel = scale(gr.sym("n"))
    assert sorted(loaded) == ["fixed-8", "scale"]
    assert loaded["scale"].archs == ("sm_80", "sm_90a")
    assert loaded["scale"].kernel == kernel
    for arch in ("sm_80", "sm_90a"):
        assert loaded["scale"].binary(arch).cubin == kernel.compile(arch).cubin
        assert loaded["scale"]._manifest(arch).to_json() == kernel.lowered(arch).manifest().to_json()
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    loaded["scale"](x, y, factor=2.0)
    assert np.array_equal(y, 2 * x)
    with pytest.raises(gr.LaunchError):
        loaded["fixed-8"](x, y, factor=2.0)


LAUNCHES = """
import sys
import graphene as gr
import stub_cuda
from launching import tensor
kernel = gr.load_precompiled(sys.argv[1])["scale"]
stub_cuda.param_sizes(8, 8, 4, 8)
kernel(tensor("fp32", 100), tensor("fp32", 100, at=0x20000), 2.0)
kernel.load(0)
kernel(tensor("fp32", 200), tensor("fp32", 200, at=0x20000), 2.0)
print([c["grid"] for c in stub_cuda.take_launches()])
assert "libnvrtc" not in open("/proc/self/maps").read()
try:
    kernel.kernel.compile("sm_80")
except gr.CompileError as e:
    print(e.code)
"""


def test_launches_where_no_nvrtc_is_found(folder: Path, stub_library: Path, tmp_path: Path) -> None:  # noqa: F811
    env = environment(stub_library, GRAPHENE_NVRTC="/nowhere/libnvrtc.so", GRAPHENE_CACHE_DIR=str(tmp_path / "other"))
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES, str(folder)], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[(2, 1, 1), (4, 1, 1)]\nCOMPILE_NVRTC\n", done.stdout + done.stderr


def test_a_cubin_runs_on_later_revisions_of_its_generation_alone() -> None:
    assert runs_on("sm_80", "sm_80")
    assert runs_on("sm_80", "sm_86")
    assert runs_on("sm_80", "sm_89")
    assert runs_on("sm_90", "sm_90a")
    assert runs_on("sm_90a", "sm_90a")
    assert runs_on("sm_100f", "sm_103a")
    assert not runs_on("sm_86", "sm_80")
    assert not runs_on("sm_90a", "sm_90")
    assert not runs_on("sm_80", "sm_90a")
    assert not runs_on("sm_100a", "sm_103a")
    assert not runs_on("gfx90a", "gfx90a")


def test_the_best_fitting_architecture_is_taken(tmp_path: Path) -> None:
    gr.precompile({"k": scale(8)}, tmp_path, ["sm_86", "sm_80", "sm_90a"])
    kernel = gr.load_precompiled(tmp_path)["k"]
    assert kernel.binary("sm_89").arch == "sm_86"
    assert kernel.binary("sm_80").arch == "sm_80"
    with pytest.raises(gr.CompileError) as e:
        kernel.binary("sm_120")
    assert str(e.value).splitlines() == [
        "k was not compiled for sm_120   [PRECOMPILED_ARCH]",
        "  compiled for: sm_80, sm_86, sm_90a",
        f"  in: {tmp_path}",
        "  fix: add --arch sm_120 where it is compiled; or call .kernel, which compiles here",
    ]


def test_more_is_added_and_what_was_there_is_replaced(folder: Path) -> None:
    gr.precompile({"scale": scale(16), "more": scale(32)}, folder, ["sm_80"])
    loaded = gr.load_precompiled(folder)
    assert sorted(loaded) == ["fixed-8", "more", "scale"]
    assert loaded["scale"].archs == ("sm_80",)
    assert loaded["scale"].kernel == scale(16)


@pytest.mark.parametrize("file", ["scale.json", "scale.sm_80.cubin", "scale.sm_80.manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_an_error_when_it_is_needed(folder: Path, file: str, damage: str) -> None:
    data = bytearray((folder / file).read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(bytes(data) if damage == "flip" else bytes(data[:-1]))
    kernel = gr.load_precompiled(folder)["scale"]
    with pytest.raises(gr.CompileError, match=re.escape(file)) as e:
        assert kernel.kernel if file == "scale.json" else kernel.binary("sm_80")
    assert e.value.code == "PRECOMPILED"
    assert kernel.binary("sm_90a").arch == "sm_90a"


INDEXES = {
    "nothing": ("", "is damaged"),
    "a number": ("1", "is not a list of precompiled kernels"),
    "another format": ('{"format": "x"}', "is not a list of precompiled kernels"),
    "a later schema": ('{"format": "graphene kernels", "schema": 7}', "its schema is 7, this version reads 1"),
    "no kernels": ('{"format": "graphene kernels", "schema": 1}', "is malformed"),
    "a kernel that is none": ('{"format": "graphene kernels", "schema": 1, "kernels": {"a": 1}}', "is malformed"),
    "nested without end": ("[" * 100000, "is damaged"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_a_table_of_contents_that_is_none(tmp_path: Path, case: str) -> None:
    text, says = INDEXES[case]
    (tmp_path / "kernels.json").write_text(text)
    with pytest.raises(gr.CompileError, match=says) as e:
        gr.load_precompiled(tmp_path)
    assert e.value.code == "PRECOMPILED"


def test_a_name_that_the_folder_lacks(folder: Path) -> None:
    loaded = gr.load_precompiled(folder)
    assert loaded.get("other") is None
    assert "other" not in loaded
    with pytest.raises(gr.CompileError) as e:
        loaded["other"]
    assert e.value.code == "PRECOMPILED"
    assert str(e.value).splitlines()[:2] == [
        f"{folder} holds no kernel 'other'   [PRECOMPILED]",
        "  it holds: fixed-8, scale",
    ]
    with pytest.raises(gr.CompileError) as e:
        gr.load_precompiled(None)  # type: ignore[arg-type]
    assert e.value.code == "PRECOMPILED"


def _broken(value: object) -> list[object]:
    """The same JSON with one thing in it replaced or left out, in every place."""
    others: list[object] = [None, 0, -1, "", "x", [], {}]
    found: list[object] = [*others]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [{**value, key: other} for other in _broken(inner)]
            found.append({k: v for k, v in value.items() if k != key})
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            found += [[*value[:i], other, *value[i + 1 :]] for other in _broken(inner)]
    return found


def test_a_malformed_table_or_manifest_is_refused_or_harmless(tmp_path: Path) -> None:
    gr.precompile({"fixed": scale(8)}, tmp_path, ["sm_80"])
    table, manifest = tmp_path / "kernels.json", tmp_path / "fixed.sm_80.manifest.json"
    whole = json.loads(table.read_text())
    refused = set()

    def use() -> None:
        try:
            kernel = gr.load_precompiled(tmp_path)["fixed"]
            kernel._manifest("sm_80")
            kernel.binary("sm_80")
            assert kernel.kernel == scale(8)
        except gr.GrapheneError as e:
            refused.add(e.code)

    for broken in _broken(whole):
        table.write_text(json.dumps(broken))
        use()
    for broken in [*_broken(json.loads(manifest.read_text())), "\xff", "{"]:
        text = broken if isinstance(broken, str) else json.dumps(broken)
        manifest.write_bytes(text.encode("latin-1"))
        whole["kernels"]["fixed"]["archs"]["sm_80"]["manifest"]["sha256"] = _core.sha256(manifest.read_bytes())
        table.write_text(json.dumps(whole))
        use()
    assert refused == {"PRECOMPILED", "PRECOMPILED_ARCH", "LAUNCH_MANIFEST", "SYM_PARSE"}


def test_no_path_leads_out_of_the_folder(folder: Path) -> None:
    index = json.loads((folder / "kernels.json").read_text())
    for path in ("../k/scale.json", "/etc/passwd", "a/b", "..", ".hidden"):
        index["kernels"]["scale"]["ir"]["file"] = path
        (folder / "kernels.json").write_text(json.dumps(index))
        with pytest.raises(gr.CompileError, match="is not a file of it"):
            gr.load_precompiled(folder)


def test_bad_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gr.CompileError, match="precompile wants a folder"):
        gr.precompile({"k": scale(8)}, None, ["sm_80"])  # type: ignore[arg-type]
    for archs in (3, None, ["sm_80", 90]):
        with pytest.raises(gr.CompileError, match="precompile wants architectures"):
            gr.precompile({"k": scale(8)}, tmp_path, archs)  # type: ignore[arg-type]
    monkeypatch.setenv("GRAPHENE_NVRTC", str(_core.nvrtc_for("sm_80")["path"]))  # of version 13: without sm_70
    with pytest.raises(gr.CompileError, match=r"'\.\./x' cannot name a precompiled kernel"):
        gr.precompile({"../x": scale(8)}, tmp_path, ["sm_80"])
    for wrong in ([scale(8)], {"k": 1}, scale(8)):
        with pytest.raises(gr.CompileError, match="precompile wants kernels by name"):
            gr.precompile(wrong, tmp_path, ["sm_80"])  # type: ignore[arg-type]
    with pytest.raises(gr.CompileError, match="cannot name a precompiled kernel"):
        gr.precompile({1: scale(8)}, tmp_path, ["sm_80"])  # type: ignore[dict-item]
    with pytest.raises(gr.CompileError, match="nothing to compile"):
        gr.precompile({}, tmp_path, ["sm_80"])
    with pytest.raises(gr.CompileError) as e:
        gr.precompile({"k": scale(8)}, tmp_path, ["sm_80", "sm_70"])
    assert e.value.code == "COMPILE_ARCH"
    assert not (tmp_path / "kernels.json").exists()
    gr.precompile({"k": scale(8)}, tmp_path / "one", "sm_80")  # one architecture
    assert gr.load_precompiled(tmp_path / "one")["k"].archs == ("sm_80",)
    (tmp_path / "file").write_text("")
    with pytest.raises(gr.CompileError, match="cannot be written"):
        gr.precompile({"k": scale(8)}, tmp_path / "file", ["sm_80"])


def command(*args: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "graphene", "compile", *args],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_command_reads_kernels_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import graphene as gr\n"
        "def build(n=4):\n    with gr.Kernel('zeros') as kernel:\n"
        "        gr.init(gr.output('y', [n], gr.fp32)[gr.threads(n).indices()[0]], 0)\n    return kernel\n"
        "ready = build(8)\n"
    )
    (tmp_path / "text.gir").write_text(str(scale(8, "text")))
    (tmp_path / "text.json").write_text(scale(8, "other").to_json())
    own, out = f"{tmp_path}/own.py", str(tmp_path / "out")
    said = command(
        "small=gemm_sm80(BM=64, BN=64, warps=(2, 2), dtype=bf16, epilogue=linear('gelu', bias=True))",
        f"{own}:build(n=2)", f"ready={own}:ready", f"{tmp_path}/text.gir",
        f"{tmp_path}/text.json", "split=gemm_launches(GemmConfig(tile=(32, 32, 32), split_k=2))",
        "--arch", "sm_80,sm_90a", "--arch", "sm_80", "-o", out,
    )  # fmt: skip
    assert re.search(r"^small for sm_90a: \d+ registers, \d+ bytes$", said, re.MULTILINE)
    loaded = gr.load_precompiled(out)
    assert sorted(loaded) == ["other", "ready", "small", "split_0", "split_1", "text", "zeros"]
    assert all(k.archs == ("sm_80", "sm_90a") for k in loaded.values())
    assert loaded["text"].kernel == scale(8, "text")


def test_the_command_warms_the_cache() -> None:
    assert re.fullmatch(r"gemm_sm80 for sm_80: \d+ ms\n", command("gemm_sm80", "--arch", "sm_80"))
    assert command("gemm_sm80", "--arch", "sm_80") == "gemm_sm80 for sm_80: was cached\n"


def test_the_command_says_where_ones_own_code_failed(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import graphene as gr\n"
        "def build(n=4):\n    return [][n]\n"
        "def refused():\n    return gr.kernels.RowTile(0, 32)\n"
        "def number():\n    return 3\n"
    )
    said = command(f"{own}:build", "--arch", "sm_80", status=1)
    assert said == f"{own}:build: IndexError: list index out of range\n  at {own}:3, in build\n"
    said = command(f"{own}:build(n=1, m=2)", "--arch", "sm_80", status=2)
    assert "unexpected keyword argument 'm'\nfor example: " in said
    assert "[KERNEL_ARGUMENT]" in command(f"{own}:refused", "--arch", "sm_80", status=1)
    assert "is not a kernel but int" in command(f"{own}:number", "--arch", "sm_80", status=2)
    assert f"'nope' is not known: what {own} defines, dtypes, epilogues and" in command(
        f"{own}:nope", "--arch", "sm_80", status=2
    )
    for text, what, line in (
        ("x = 1\ny = {}['k']\n", "KeyError: 'k'", ":2, in <module>"),
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax (own.py, line 2)", ":2"),
        ("import absent_module\n", "ModuleNotFoundError: No module named 'absent_module'", ":1, in <module>"),
        ("assert False, 'never'\n", "AssertionError: never", ":1, in <module>"),
    ):
        own.write_text(text)
        assert command(f"{own}:f", "--arch", "sm_80", status=1) == f"{own}:f: {what}\n  at {own}{line}\n"


def test_the_command_explains_itself() -> None:
    assert "No such file" in command("absent.py:f", "--arch", "sm_80", status=2)
    assert "No module named 'absent'" in command("absent:f", "--arch", "sm_80", status=2)
    assert "'gemm_sm99' is not known" in command("gemm_sm99", "--arch", "sm_80", status=2)
    assert "neither a function nor a call" in command("gemm_sm80(", "--arch", "sm_80", status=2)
    assert "write a function in a file" in command("gemm_sm80(epilogue=lambda x: x)", "--arch", "sm_80", status=2)
    assert "No such file" in command("absent.gir", "--arch", "sm_80", status=2)
    assert "two kernels are called" in command("gemm_sm80", "gemm_sm80(BM=64)", "--arch", "sm_80", status=2)
    assert "[NO_ATOM]" in command("gemm_sm80", "--arch", "sm_75", status=1)
    assert "[KERNEL_ARGUMENT]" in command("gemm_sm80(BM=7)", "--arch", "sm_80", status=1)
    assert "unexpected keyword" in command("gemm_sm80(XY=1)", "--arch", "sm_80", status=2)
