"""Plans on disk: when one is used, when not, and that a call with one builds nothing. No GPU: configurations for an
architecture, as `python -m graphene warm` makes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import _core, ops, timings  # noqa: E402
from graphene.cli.warm import warm_calls  # noqa: E402
from graphene.ops.core import plans, warm  # noqa: E402
from graphene.ops.core.define import Arg, defined  # noqa: E402
from graphene.select import records  # noqa: E402

ARCH = "sm_90a"
SOFTMAX = "softmax(fp16[64, 32], -1)"
ROOT = Path(gr.__file__).parents[1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("GRAPHENE_CACHE", "GRAPHENE_CACHE_LIMIT", "GRAPHENE_PLANS", "GRAPHENE_TUNE", "GRAPHENE_TUNE_DIR",
                 "GRAPHENE_LINEINFO", "GRAPHENE_RECORD_CALLS"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "cache"))
    plans.forget()  # those of another cache
    compiled = plans.compiled

    def anew(kernels: Any, arch: str) -> Any:
        for k in kernels:  # one that an earlier test compiled is in that test's cache
            k._binaries.clear()
        return compiled(kernels, arch)

    monkeypatch.setattr(plans, "compiled", anew)
    records.forget()
    yield tmp_path / "cache"
    records.forget()


@pytest.fixture(autouse=True)
def known_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's files may have changed since this process began, where somebody works on them."""
    monkeypatch.setattr(plans, "package_stamp", lambda: "this package")


def planned(text: str = SOFTMAX) -> bool:
    return warm.warm(warm.spelled(text), ARCH).was_there


def recipe_of(text: str) -> Any:
    call = warm.spelled(text)
    return call.operator.configure(warm.placed(call.arguments, ARCH))


def entries(cache: Path, holding: str) -> list[Path]:
    return [p.parent for p in cache.glob(f"graphene-v1/entries/*/*/{holding}")]


@pytest.mark.parametrize("found_first", [True, False])
def test_a_kernel_has_one_launcher_whether_its_plan_is_found_or_made(found_first: bool) -> None:
    """What one form has loaded is loaded for another, which may be met first while a CUDA graph is captured."""
    there, missing = SOFTMAX, "softmax(fp16[640, 32], -1)"  # other sizes, one kernel
    assert not planned(there)
    plans.forget()  # as a new process, which finds the plan of one form alone
    kernels = []
    for text in (there, missing) if found_first else (missing, there):
        with plans.asked() as found:
            kernels += [launch.kernel for launch in recipe_of(text).launches]
        assert found.planned == (text == there)
    assert len(kernels) == 2
    assert kernels[0] is kernels[1]


# By count: what a new process does with a full cache.

CALLS = [
    SOFTMAX,
    "layer_norm(fp16[64, 64], [64], fp16[64], None, residual=fp16[64, 64])",  # an argument is a number
    "matmul(fp16[64, 8192], fp16[8192, 64])",  # parts of k, then their sum: two kernels and a work space
    "fused_mlp(fp16[64, 32], [fp16[32, 32], fp16[32, 32]])",  # lists of tensors
]
RUN = """
import json, sys
from graphene import timings
from graphene.ops.core import warm
calls = [warm.spelled(t) for t in json.loads(sys.argv[1])]
out = []
with timings.recorded() as stages:
    for call in calls:
        done = warm.warm(call, "sm_90a")
        out.append([done.was_there, done.kernels])
print(json.dumps({"calls": out, "stages": {s.name: s.calls for s in stages}}))
"""


def process(cache: Path) -> Any:
    given = os.environ | {"GRAPHENE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(CALLS)], env=given, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_chooses_builds_lowers_and_prints_nothing(cache: Path) -> None:
    first, second = process(cache), process(cache)
    for name in ("choose", "build", "lower", "print", "NVRTC", "store the cubin", "store the plan"):
        assert first["stages"][name] > 0
        assert name not in second["stages"]
    assert second["stages"] == {"look up the plan": len(CALLS)}
    assert [there for there, _ in first["calls"]] == [False] * len(CALLS)
    assert [there for there, _ in second["calls"]] == [True] * len(CALLS)
    assert [names for _, names in first["calls"]] == [names for _, names in second["calls"]]
    assert len(first["calls"][2][1]) > 1


ON_GPU = """
import json, sys, torch
from graphene import ops, timings
torch.manual_seed(0)
x, w, q = (torch.randn(s, device="cuda", dtype=torch.float16) for s in ((64, 4096), (64, 4096), (2, 300, 4, 64)))
calls = [lambda: ops.matmul(x, w.T), lambda: ops.matmul(x[:, :4093], w[:, :4093].T), lambda: ops.softmax(x, -1),
         lambda: ops.attention(q, q, q, causal=True), lambda: ops.fused_mlp(x[:, :64], [w[:, :64].contiguous()] * 3)]
want = [x @ w.T, x[:, :4093] @ w[:, :4093].T, torch.softmax(x.float(), -1).half(), None, None]
with torch.no_grad(), timings.recorded() as stages:
    made = [f() for f in calls]
for y, right in zip(made, want):
    assert right is None or torch.allclose(y.float(), right.float(), rtol=2e-2, atol=2e-1)
torch.save(made, sys.argv[1])
print(json.dumps([s.name for s in stages]))
"""


@pytest.mark.gpu
def test_planned_calls_give_the_same_bits(cache: Path, tmp_path: Path) -> None:
    env = os.environ | {"GRAPHENE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    stages, results = [], []
    for i in range(2):
        file = tmp_path / f"{i}.pt"
        command = [sys.executable, "-c", ON_GPU, str(file)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        stages.append(json.loads(done.stdout))
        results.append(torch.load(file))
    assert {"choose", "build", "lower", "print", "NVRTC"} <= set(stages[0])
    assert not {"choose", "build", "lower", "print", "NVRTC"} & set(stages[1])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# What a plan says.


@pytest.mark.parametrize("text", CALLS)
def test_a_plan_launches_what_was_chosen(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setenv("GRAPHENE_PLANS", "0")
        chosen = recipe_of(text)
    recipe_of(text)
    plans.forget()  # as a new process
    found = recipe_of(text)
    assert (found.outputs, found.returned) == (chosen.outputs, chosen.returned)
    for was, now in zip(chosen.launches, found.launches, strict=True):
        kernel, launcher = was.kernel, now.kernel
        assert isinstance(kernel, gr.Kernel)
        assert isinstance(launcher, plans.Planned)
        assert now.arguments == was.arguments
        assert launcher._manifest(ARCH).to_json() == kernel.lowered(ARCH).manifest().to_json()
        assert launcher.binary(ARCH).cubin == kernel.compile(ARCH).cubin
        assert launcher.name == kernel.name
        with timings.recorded() as stages:
            repr(launcher)
        assert not stages
        assert launcher.kernel == kernel  # made now
        assert launcher.lowered(ARCH).entry == kernel.lowered(ARCH).entry


def test_plans_of_one_kernel_share_a_launcher() -> None:
    for rows in (64, 65):  # one kernel serves both
        recipe_of(f"softmax(fp16[{rows}, 32], -1)")
    one, other = (recipe_of(f"softmax(fp16[{rows}, 32], -1)").launches[0].kernel for rows in (64, 65))
    assert isinstance(one, plans.Planned)
    assert one is other


def test_of_another_architecture_a_planned_kernel_is_compiled() -> None:
    recipe_of(SOFTMAX)
    launcher = recipe_of(SOFTMAX).launches[0].kernel
    assert launcher.binary("sm_80").arch == "sm_80"
    assert launcher._manifest("sm_80").entry == launcher._manifest(ARCH).entry


# When a plan is not used.


def test_a_changed_problem_package_or_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not planned()
    assert planned()
    assert not planned("softmax(fp16[64, 40], -1)")
    assert not planned("softmax(bf16[64, 32], -1)")
    assert not warm.warm(warm.spelled(SOFTMAX), "sm_80").was_there
    monkeypatch.setattr(plans, "package_stamp", lambda: "another package")
    assert not planned()
    assert planned()
    monkeypatch.setattr(plans, "package_stamp", lambda: None)  # files that changed while the process ran
    assert not planned()
    assert not planned()


def test_a_changed_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(own))
    assert not planned()
    assert planned()
    record: dict[str, Any] = {"kernel": "k", "version": 1, "dtype": "fp16", "shape": "1", "config": {}}
    records.store("NVIDIA H200", record)
    assert not planned()
    assert planned()
    [file] = own.glob("*.json")
    file.write_text(file.read_text().replace('"1"', '"2"'))
    assert planned()  # this process believes what it has read
    records.forget()
    assert not planned()


def test_options_that_are_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not planned()
    monkeypatch.setenv("GRAPHENE_TUNE", "1")  # a call may be tuned first
    with pytest.warns(RuntimeWarning, match="could not be tuned"):
        assert not planned()
    monkeypatch.delenv("GRAPHENE_TUNE")
    assert planned()
    monkeypatch.setenv("GRAPHENE_PLANS", "0")
    assert not planned()
    monkeypatch.delenv("GRAPHENE_PLANS")
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    assert not planned()
    monkeypatch.delenv("GRAPHENE_CACHE")
    monkeypatch.setattr(_core, "default_compile_options", lambda: ["-std=c++20"])
    assert not planned()


def test_what_changes_while_a_choice_is_made_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter(["1", "2"])
    monkeypatch.setattr(plans, "stamp_of_records", lambda device: next(stamps))  # as where the call is tuned
    assert not planned()
    for stamp in ("1", "2"):
        monkeypatch.setattr(plans, "stamp_of_records", lambda device, stamp=stamp: stamp)
        assert not planned()


def test_a_function_from_elsewhere_is_asked_every_time() -> None:
    asked = []

    def configure(*given: Any) -> Any:
        asked.append(given)
        return recipe_of(SOFTMAX)

    given = [Arg((64, 32), (32, 1), "float16", ARCH, 128)]
    for _ in range(2):
        plans.recipe("mine", configure, given, [0], ARCH)
    assert len(asked) == 2


@pytest.mark.parametrize("file", ["plan.json", "kernel.cubin", "meta.json"])
@pytest.mark.parametrize("damage", ["bits", "cut", "gone", "folder"])
def test_what_is_damaged_is_made_again(cache: Path, file: str, damage: str) -> None:
    assert not planned()
    holding = "kernel.cubin" if file == "kernel.cubin" else "plan.json"
    [entry] = entries(cache, holding)
    path = entry / file
    data = path.read_bytes()
    path.unlink()
    if damage in ("bits", "cut"):
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if damage == "bits" else data[: len(data) // 2])
    if damage == "folder":
        path.mkdir()
    plans.forget()  # as a new process
    if damage == "folder" and holding == "plan.json":  # which nobody removes: it is not a file of an entry
        with pytest.warns(RuntimeWarning, match="cannot be removed"):
            assert not planned()
    else:
        assert not planned()
    if damage != "folder":
        assert planned()


WRONG: list[tuple[str, Any]] = [
    ("schema", 2), ("format", "x"), ("arch", "sm_80"), ("outputs", 3), ("outputs", [["fp16", [[[9, 0]]]]]),
    ("outputs", [["fp99", [[[0, 0]]]]]), ("returned", 5), ("returned", True), ("launches", []), ("launches", [{}]),
    ("arguments", []), ("arguments", [[0, [[[[0, 0]], [0]]]]]), ("arguments", [1, 2]), ("arguments", "ab"),
    ("arguments", [[-1, []], [0, []]]), ("arguments", [[0, [[[[0, 7]], [0]]]], [0, []]]),
    ("arguments", [[0, [[[[0, 0]], [9]]]], [0, []]]), ("arguments", [[0, [[[[0, 0, 0]], [0]]]], [0, []]]),
    ("arguments", [[2**70, []], [0, []]]), ("cubin", "0" * 81), ("cubin", "../../x"), ("cubin", 7),
    ("manifest", {}), ("manifest", None),
]  # fmt: skip


def test_a_plan_of_wrong_types_is_not_used(cache: Path) -> None:
    """Whatever a plan says that has the right checksums and the right request: made again, or an error with a code."""
    assert not planned()
    [entry] = entries(cache, "plan.json")
    good = json.loads((entry / "plan.json").read_text())
    for field, value in WRONG:
        bad = json.loads(json.dumps(good))
        (bad["launches"][0] if field in ("arguments", "cubin", "manifest") else bad)[field] = value
        _core.cache_discard(entry.name)
        assert _core.plan_store(good["request"], ARCH, json.dumps(bad)), field
        plans.forget()
        assert not planned(), (field, value)
        assert planned(), (field, value)


def test_what_is_no_plan_is_not_stored() -> None:
    for text in ("", "[]", "{}", '{"request": 1, "arch": "sm_90a"}', '{"request": "other", "arch": "sm_90a"}'):
        assert not _core.plan_store("request", ARCH, text)
    assert _core.plan_load("request", ARCH) is None
    assert _core.plan_load("request", "sm_1234") is None


# The cache holds plans as it holds kernels.


def test_a_miss_does_not_load_the_compiler(tmp_path: Path) -> None:
    """The compiler's version is a part of a plan's key; where no plan of the request is kept, nobody need know it."""
    look = f"""
        from graphene import _core
        assert _core.plan_load("request", "{ARCH}") is None
        print("nvrtc" in open("/proc/self/maps").read())
        _core.nvrtc_for("{ARCH}")
        print("nvrtc" in open("/proc/self/maps").read())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(look)], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"GRAPHENE_CACHE_DIR": str(tmp_path)})  # fmt: skip
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_a_compiler_that_starts_beside_a_choice_changes_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(_core, "nvrtc_start", begun.append)
    monkeypatch.setenv("GRAPHENE_START_COMPILER", "1")
    warm.warm(warm.spelled("softmax(fp16[64, 64], -1)"), ARCH)
    assert begun == [ARCH]
    warm.warm(warm.spelled("softmax(fp16[64, 64], -1)"), ARCH)  # the plan is found
    assert begun == [ARCH]


def test_clearing_counting_and_archives(cache: Path, tmp_path: Path) -> None:
    assert not planned()
    assert _core.cache_stats()["entries"] == 2
    assert gr.export_cache(tmp_path / "a.zip", [ARCH]) == 2
    assert _core.cache_clear() == 2
    plans.forget()
    assert not planned()
    _core.cache_clear()
    plans.forget()
    assert gr.import_cache(tmp_path / "a.zip") == (2, 0)
    assert planned()


def test_a_small_cache_and_one_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", "1")
    assert not planned()
    plans.forget()
    assert not planned()
    monkeypatch.delenv("GRAPHENE_CACHE_LIMIT")
    (cache / "graphene-v1" / "GRAPHENE_CACHE").unlink()  # whose folder is this?
    with pytest.warns(RuntimeWarning, match="it is not Graphene's"):
        assert not planned()


# The stamp of the package.


def test_the_stamp_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (package / "ops" / "core").mkdir(parents=True)
    here = package / "ops" / "core" / "plans.py"
    stamp = plans_stamp(monkeypatch, package)
    for path, text in ((here, "1"), (package / "a.py", "22"), (package / "r.json", "{}")):
        path.write_text(text)
        os.utime(path, ns=(1, 1))
    first = stamp()
    assert first == stamp()  # by sizes and times
    (package / "a.py").write_text("33")
    second = stamp()
    assert second != first
    (package / "ops" / "b.py").write_text("")
    assert stamp() not in (first, second)
    monkeypatch.setattr(plans, "_process_start_ns", lambda: 0)  # all of it is younger than the process
    assert stamp() is None


@pytest.mark.parametrize("kept", [b"[" * 100_000, b"\xff", b"[]", b'{"state": 1, "stamp": []}'])
def test_what_is_remembered_of_the_package_may_be_damaged(
    kept: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "graphene"
    (package / "ops" / "core").mkdir(parents=True)
    stamp = plans_stamp(monkeypatch, package)
    monkeypatch.setattr(_core, "memo_load", lambda name: kept)
    kept_now: list[bytes] = []
    monkeypatch.setattr(_core, "memo_store", lambda name, text: kept_now.append(text))
    found = stamp()
    assert re.fullmatch(r"[0-9a-f]{64}", found)
    assert json.loads(kept_now[0])["stamp"] == found


def plans_stamp(monkeypatch: pytest.MonkeyPatch, package: Path) -> Any:
    monkeypatch.undo()
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(package.parent / "cache"))
    monkeypatch.setattr(plans, "__file__", str(package / "ops" / "core" / "plans.py"))
    monkeypatch.setattr(plans, "_process_start_ns", lambda: 2**63)
    return plans.package_stamp.__wrapped__


def test_a_library_is_told_apart_by_its_build_id_or_by_its_bytes(tmp_path: Path) -> None:
    def hashed(data: bytes) -> str:
        (tmp_path / "library").write_bytes(data)
        return plans._hash_of_library(str(tmp_path / "library"))

    head = b"\x7fELF" + bytes(60) + b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0"
    one = hashed(head + bytes(20) + b"code")
    assert one == hashed(head + bytes(20) + b"stripped")  # the linker's hash is of the code
    assert one != hashed(head + bytes(19) + b"1" + b"code")
    assert hashed(b"\x7fELF" + bytes(9000) + b"a") != hashed(b"\x7fELF" + bytes(9000) + b"b")
    assert len(plans._hash_of_library(_core.__file__)) >= 64


# Compiling.


def test_kernels_of_a_call_are_compiled_in_threads() -> None:
    both = threading.Barrier(2, timeout=60)

    class Slow(gr.Kernel):
        def compile(self, arch: str) -> Any:
            if not both.broken and not self._met:
                self._met = True
                both.wait()  # nobody passes alone
            return super().compile(arch)

        _met = False

    kernels = []
    for name in ("one", "two"):
        with Slow(name) as k:
            gr.blocks(1)
            gr.threads(32)
        kernels.append(k)
    assert [b.entry for b in plans.compiled([*kernels, kernels[0]], ARCH)] == ["one", "two", "one"]


def test_an_error_of_any_kernel_is_the_call_s() -> None:
    class Refused(gr.Kernel):
        def compile(self, arch: str) -> Any:
            raise ValueError("refused")

    with gr.Kernel("good") as good:
        gr.blocks(1)
        gr.threads(32)
    for order in ([good, Refused("bad")], [Refused("bad"), good]):
        with pytest.raises(ValueError, match="refused"):
            plans.compiled(order, ARCH)


def test_described_calls_compile_nothing() -> None:
    with timings.recorded() as stages, plans.described():
        assert recipe_of(SOFTMAX).launches_kernels
    assert not {"lower", "print", "NVRTC"} & {s.name for s in stages}
    assert not planned()


# Warming.


def test_recorded_calls_are_warmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "calls"
    monkeypatch.setenv("GRAPHENE_RECORD_CALLS", str(file))
    texts = [CALLS[0], CALLS[1], CALLS[3], CALLS[0]]
    for text in texts:
        planned(text)
    monkeypatch.delenv("GRAPHENE_RECORD_CALLS")
    calls = warm.recorded(file)
    assert [c.operator.definition.name for c in calls] == ["softmax", "layer_norm", "fused_mlp"]
    assert all(warm.warm(c, ARCH).was_there for c in calls)
    for text in ("x", "{}", '{"operator": "softmax", "arguments": []}', '{"operator": "no", "arguments": []}',
                 '{"operator": "softmax", "arguments": [{"tensor": [[1], [], "float16", 1]}, 1, null]}'):  # fmt: skip
        file.write_text(text)
        with pytest.raises(gr.LaunchError, match="OP_ARGUMENT"):
            warm.recorded(file)


@pytest.mark.parametrize(
    "text",
    ["", "x", "softmax", "softmax(", "nothing(1)", "explain(1)x", "softmax(fp99[1], 0)", "softmax(fp16['a'], 0)",
     "__import__('os')", "softmax(fp16[-1], 0)", "softmax(open('x'), 0)",
     "matmul(fp16[4, 4])", "softmax(fp16[4, 4], 0, axis=1)"],
)  # fmt: skip
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(gr.LaunchError, match="OP_"):
        warm.spelled(text)


def test_what_has_no_kernel_says_why() -> None:
    done = warm.warm(warm.spelled("matmul(fp32[64, 64], fp32[64, 64])"), ARCH)
    assert done.kernels == []
    assert re.search("no kernel multiplies float32", done.reason)


def test_the_command(cache: Path) -> None:
    env = os.environ | {"GRAPHENE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "graphene", "warm", SOFTMAX, "--arch", ARCH]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\[1/1\] softmax\(fp16\[64, 32\], -1\) for sm_90a: softmax, \d+\.\d\d s\n", done.stdout)


def test_without_a_gpu_an_architecture_is_asked_for(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def none() -> Any:
        raise gr.LaunchError("the CUDA driver cannot be loaded", [{"code": "LAUNCH_NO_DRIVER"}])

    for found in (none, lambda: {"devices": []}):
        monkeypatch.setattr(_core, "driver_info", found)
        assert warm_calls([SOFTMAX], None, None) == 1
        said = "no GPU was found whose kernels could be compiled: name an architecture, as --arch sm_90a\n"
        assert capsys.readouterr().err == said
    assert not list(cache.glob("**/*.cubin"))


def test_every_operator_is_known_by_name() -> None:
    names = ("matmul", "attention", "layer_norm", "softmax", "gated")
    assert all(getattr(ops, name) is not None for name in names)  # which reads their files
    assert {*names, "attention_lse"} <= set(defined)
