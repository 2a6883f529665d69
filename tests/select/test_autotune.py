"""The tuner: failures cost a candidate, never the run; what won is found again; a shape unseen compiles one kernel."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import select
from graphene.select import records

DEVICE = select.of_arch("sm_80")


@dataclass(frozen=True)
class Config:
    threads: int
    fault: str = ""


@dataclass(frozen=True)
class Problem:
    n: int


class Idle:
    """Computes nothing."""

    def compile(self, arch: str) -> Any:
        return type("Binary", (), {"registers": 1, "spill_bytes": 0})

    def __call__(self, *arguments: Any) -> None:
        pass


def build(config: Config, problem: Problem) -> Any:
    if config.fault == "nothing":
        return Idle()
    if config.fault == "build":
        raise ValueError("such tiles do not fit\nand more")
    with gr.Kernel("doubled") as kernel:
        x, y = gr.input("x", [problem.n], gr.fp32), gr.output("y", [problem.n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(problem.n, config.threads)).indices(), gr.threads(config.threads).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        if config.fault != "run":  # else r is read before it is written
            gr.move(r, x.tile([config.threads])[b][t])
        r[:] = r * (3.0 if config.fault == "values" else 2.0)
        gr.move(y.tile([config.threads])[b][t], r)
    return kernel


built: list[Config] = []


def counted(config: Config, problem: Problem) -> Any:
    built.append(config)
    return build(config, problem)


def predict(config: Config, problem: Problem, device: select.Device) -> tuple[float, str] | str:
    if config.threads > device.max_threads:
        return f"{config.threads} threads, at most {device.max_threads}"
    return 1000.0 + abs(config.threads - 128), "a guess"


def verify(problem: Problem, arguments: Any) -> str | None:
    x, y = arguments
    return None if np.array_equal(y, 2 * x) else "y is not 2 x"


def tunable(*configs: Config) -> select.Tunable[Problem, Config]:
    return select.Tunable(
        "doubled", Config, lambda problem, device: configs, predict, counted,
        lambda problem: (np.arange(problem.n, dtype=np.float32), np.zeros(problem.n, np.float32)),
        lambda problem: ("fp32", f"n{problem.n.bit_length()}"), verify=verify,
    )  # fmt: skip


CONFIGS = tuple(Config(t) for t in (32, 64, 128, 256, 2048))


class Clock:
    """A timer that says what it is told, in the order of the short list, over and over."""

    def __init__(self, *us: float | Exception) -> None:
        self.us, self.calls = us, 0

    def __call__(self, launch: Any) -> float:
        launch()
        us = self.us[self.calls % len(self.us)]
        self.calls += 1
        if isinstance(us, Exception):
            raise us
        return us


@pytest.fixture(autouse=True)
def own_records(own_records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "cache"))
    built.clear()
    return own_records


def test_the_fastest_is_chosen_stored_and_found_again(own_records: Path) -> None:
    t = tunable(*CONFIGS)
    assert select.choose(t, Problem(100), DEVICE) == Config(128)  # the model's
    tuning = select.tune(t, Problem(100), DEVICE, timer=Clock(5, 3, 4, 9), progress=False)
    assert [m.config.threads for m in tuning.measured] == [64, 32, 128, 256]  # the short list is 128 64 32 256
    assert tuning.best == Config(64)
    assert select.choose(t, Problem(101), DEVICE) == Config(64)  # of the same class
    assert select.choose(t, Problem(500), DEVICE) == Config(128)
    records.forget()
    assert select.choose(t, Problem(100), DEVICE) == Config(64)
    assert tuning.stored is not None
    data = json.loads(Path(tuning.stored).read_text())
    assert data["device"] == DEVICE.name
    assert data["records"][0]["config"] == {"threads": 64, "fault": ""}
    assert data["records"][0]["us"] == 3
    assert "64" in str(tuning)


def test_what_is_used_now_is_measured_too() -> None:
    t = replace(tunable(*CONFIGS), incumbent=lambda problem, device: Config(96))
    tuning = select.tune(t, Problem(100), DEVICE, count=2, timer=Clock(5, 4, 3), progress=False)
    assert tuning.best == Config(96)
    assert [m.config.threads for m in tuning.measured] == [96, 64, 128]
    t = replace(t, incumbent=lambda problem, device: Config(64))
    assert len(select.tune(t, Problem(100), DEVICE, count=2, timer=Clock(5, 4), progress=False).measured) == 2


def test_candidates_that_fail_are_reported_and_survived() -> None:
    configs = (Config(128, "build"), Config(128, "values"), Config(128, "run"), Config(64), Config(32))
    tuning = select.tune(
        tunable(*configs), Problem(100), DEVICE, timer=Clock(RuntimeError("a fault"), *[7] * 9), progress=False
    )
    assert tuning.best == Config(32)
    failures = {m.config: m.failure for m in tuning.measured}
    assert failures[Config(128, "build")] == "ValueError: such tiles do not fit"
    assert failures[Config(128, "values")] == "ValueError: y is not 2 x"
    assert failures[Config(128, "run")].startswith("SimulationError: ")
    assert failures[Config(64)] == "RuntimeError: a fault"
    assert "failed: ValueError: y is not 2 x" in str(tuning)
    assert tuning.record is not None
    assert tuning.record["candidates"] == 1


@pytest.mark.parametrize("reference", [False, True])
def test_what_an_earlier_candidate_computed_is_no_merit_of_the_next(reference: bool) -> None:
    t = tunable(Config(128), Config(64, "nothing"), Config(32, "nothing"))
    computed = []
    if reference:

        def twice(problem: Problem, arguments: Any) -> Any:
            computed.append(problem)
            return 2 * arguments[0]

        def check(problem: Problem, arguments: Any, want: Any) -> str | None:
            return None if np.array_equal(arguments[1], want) else "y is not 2 x"

        t = replace(t, verify=check, reference=twice)
    tuning = select.tune(t, Problem(100), DEVICE, timer=Clock(5), progress=False)
    assert tuning.best == Config(128)
    assert [m.failure for m in tuning.measured] == ["", *["ValueError: y is not 2 x"] * 2]
    assert len(computed) == reference


class Lists(Idle):
    """Arguments neither NumPy's nor PyTorch's: writes its value to the second one and spoils the first."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, x: list[float], y: list[float]) -> None:
        if self.value:
            y[0] = x[0] * self.value
        x[0] = 0.0


def test_every_candidate_finds_the_arguments_as_they_were_made() -> None:
    t = select.Tunable(
        "lists", Config, lambda problem, device: (Config(2), Config(0), Config(3)), predict,
        lambda config, problem: Lists(config.threads), lambda problem: ([3.0], [0.0]), lambda problem: ("fp32", "1"),
        verify=lambda problem, arguments: None if arguments[1] == [6.0] else f"y is {arguments[1]}",
    )  # fmt: skip
    tuning = select.tune(t, Problem(1), DEVICE, timer=Clock(5), progress=False, keep=False)
    failures = {m.config.threads: m.failure for m in tuning.measured}
    assert failures == {2: "", 0: "ValueError: y is [0.0]", 3: "ValueError: y is [9.0]"}


def test_numbers_of_candidates_and_rounds_are_positive() -> None:
    for options in ({"count": 0}, {"rounds": 0}, {"count": 1.5}, {"rounds": "many"}):
        (name,) = options
        with pytest.raises(gr.VerifyError, match=rf"tune: {name} (does not fit|is not an integer)") as e:
            select.tune(tunable(*CONFIGS), Problem(100), DEVICE, timer=Clock(5), progress=False, **options)
        assert e.value.code == "KERNEL_ARGUMENT"
    with pytest.raises(gr.VerifyError, match="rank: count does not fit"):
        select.rank(tunable(*CONFIGS), Problem(100), DEVICE, 0)
    nothing = select.Selection[Config]("none", (), ())
    with pytest.raises(gr.SelectError, match="the selection has no configuration of doubled") as e:
        select.tune(tunable(*CONFIGS), Problem(100), DEVICE, timer=Clock(5), progress=False, selection=nothing)
    assert e.value.code == "TUNE_NO_CANDIDATE"


def test_a_lost_device_ends_the_measuring_and_the_best_so_far_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a memory fault a CUDA context answers nothing but errors."""
    monkeypatch.setattr("graphene.select.measure._context_is_lost", lambda: True)
    clock = Clock(5, 4, RuntimeError("an illegal memory access was encountered"))
    tuning = select.tune(tunable(*CONFIGS), Problem(100), DEVICE, timer=clock, progress=False)
    assert clock.calls == 3
    assert tuning.best == Config(64)
    failures = [m.failure for m in tuning.measured if m.failure]
    assert sorted(failures) == [
        "RuntimeError: an illegal memory access was encountered",
        "not measured: an earlier candidate lost the device",
    ]


def test_nothing_works_is_an_error_with_every_reason(own_records: Path) -> None:
    with pytest.raises(gr.SelectError) as e:
        select.tune(
            tunable(Config(128, "build"), Config(64, "values")), Problem(100), DEVICE, timer=Clock(1), progress=False
        )
    assert e.value.code == "TUNE_FAILED"
    assert "ValueError: such tiles do not fit" in str(e.value)
    assert "ValueError: y is not 2 x" in str(e.value)
    assert not own_records.exists()


def test_slow_candidates_are_left_after_two_rounds() -> None:
    clock = Clock(4.5, 30, 4, 90, 4.5, 30, 4, 90, 4.5, 4, 4.5, 4)
    tuning = select.tune(tunable(*CONFIGS), Problem(100), DEVICE, timer=clock, rounds=4, progress=False, keep=False)
    assert clock.calls == 4 + 4 + 2 + 2
    assert [len(m.rounds) for m in tuning.measured] == [4, 4, 2, 2]
    assert tuning.stored is None


def test_an_unseen_shape_compiles_one_kernel_and_tuning_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    t = tunable(*CONFIGS)
    config = select.choose(t, Problem(100), DEVICE)
    assert built == []
    t.build(config, Problem(100)).compile("sm_80")
    assert built == [Config(128)]
    monkeypatch.setenv("GRAPHENE_TUNE", "1")
    monkeypatch.setattr("graphene.select.measure.Timer", lambda: Clock(5, 3, 4, 9))
    assert select.choose(t, Problem(100), DEVICE) == Config(64)
    assert sorted(c.threads for c in built[1:]) == [32, 64, 128, 256]
    built.clear()
    assert select.choose(t, Problem(100), DEVICE) == Config(64)
    assert built == []


def store(t: select.Tunable[Problem, Config], config: dict[str, Any], version: int = 1, **more: Any) -> None:
    dtype, shape = t.key(Problem(100))
    row = {"kernel": t.name, "version": version, "dtype": dtype, "shape": shape, "config": config, "us": 1.0}
    records.store(DEVICE.name, row | more)


@pytest.mark.parametrize("config", [{"threads": 2048}, {"threads": "many"}, {"warps": 4}, {}])
def test_a_record_that_no_longer_fits_is_passed_over(config: dict[str, Any]) -> None:
    t = tunable(*CONFIGS)
    store(t, config)
    with pytest.warns(RuntimeWarning, match=r"the record of n7 on NVIDIA A100 is not used: (.|\n)*\[TUNE_"):
        assert select.choose(t, Problem(100), DEVICE) == Config(128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        assert select.choose(t, Problem(100), DEVICE) == Config(128)


def test_records_are_of_a_version_a_device_and_a_class() -> None:
    t = tunable(*CONFIGS)
    store(t, {"threads": 32}, version=2)
    assert select.choose(t, Problem(100), DEVICE) == Config(128)
    store(t, {"threads": 32})
    assert select.choose(t, Problem(100), DEVICE) == Config(32)
    assert select.choose(t, Problem(100), select.of_arch("sm_90a")) == Config(128)
    assert select.choose(t, Problem(300), DEVICE) == Config(128)


HEAD = f'{{"format": "graphene tuning records", "schema": 1, "device": "{DEVICE.name}"'
DAMAGED = {
    "": "the file is not JSON",
    "{": "the file is not JSON",
    "[" * 100000: "the file is not JSON",
    "\xff": "the file is not JSON",
    HEAD + ', "records": [NaN]}': "the file is not JSON",
    "[]": "the file is not graphene tuning records of schema 1 for NVIDIA A100",
    '{"format": "x"}': "the file is not graphene tuning records of schema 1 for NVIDIA A100",
    HEAD + "}": "the file has no list of records",
    HEAD + ', "records": {}}': "the file has no list of records",
    HEAD + ', "records": [3]}': "record 0 has no kernel, version, dtype, shape and config",
    HEAD
    + ', "records": [{"kernel": "k", "version": "1", "dtype": "x", "shape": "s", "config": {}}]}': "record 0 has no",
    HEAD + ', "records": [{"kernel": "k", "version": 1, "dtype": "x", "shape": "s", "config": []}]}': "record 0 has no",
}


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_warns_once_and_is_replaced(own_records: Path, text: str) -> None:
    t = tunable(*CONFIGS)
    store(t, {"threads": 32})
    (path,) = own_records.glob("*.json")
    path.write_text(text, "latin-1")
    records.forget()
    with pytest.warns(
        RuntimeWarning, match=rf"the tuning records in .* are not used: {DAMAGED[text]}.*\[TUNE_FAILED\]"
    ):
        assert select.choose(t, Problem(100), DEVICE) == Config(128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert select.choose(t, Problem(100), DEVICE) == Config(128)
    with pytest.warns(RuntimeWarning):
        store(t, {"threads": 64})
    assert select.choose(t, Problem(100), DEVICE) == Config(64)


def write(i: int) -> None:
    for k in range(5):
        records.store(DEVICE.name, {"kernel": f"k{i}", "version": 1, "dtype": "x", "shape": str(k), "config": {}})


def test_many_processes_add_their_records(own_records: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0] * 4
    (path,) = own_records.glob("*.json")
    assert len(json.loads(path.read_text())["records"]) == 20
    assert [p.suffix for p in own_records.iterdir() if p.name.startswith(".")] == []


def test_a_place_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path / "file"))
    with pytest.raises(gr.SelectError, match="cannot be written") as e:
        store(tunable(), {})
    assert e.value.code == "TUNE_FAILED"
    monkeypatch.delenv("GRAPHENE_TUNE_DIR")
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    with pytest.raises(gr.SelectError, match="the cache is off"):
        store(tunable(), {})


def test_the_text_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    select.tune(tunable(*CONFIGS), Problem(100), DEVICE, timer=Clock(5, 3, 4, 9), progress=True, keep=False, rounds=1)
    last = capsys.readouterr().err.split("\r")[-1]
    assert last == "tuning doubled  [####################]  8/8  best 3.0 us\n"


def test_shipped_records_are_whole_and_lazy() -> None:
    for path in records.SHIPPED.glob("*.json"):
        device = json.loads(path.read_text())["device"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert records.read(path, device)
        assert records.file_of(records.SHIPPED, device) == path
    code = "import graphene, sys; print('graphene.tune' in sys.modules, graphene.tune.Tile.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(gr.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout == "False Tile\n"
