"""What the tuner does not believe: records written by hand, times that are none, sizes that do not exist."""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr
from graphene import select
from graphene.kernels import RowTile
from graphene.select import records, select_gemm, select_norm
from graphene.select.gemm import GEMM, GemmProblem, GemmTile
from graphene.select.rows import ROWS, RowProblem

pytestmark = pytest.mark.usefixtures("own_records")
H200 = select.of_arch("sm_90a")
NAN, INF = float("nan"), float("inf")


def keep(tunable: select.Tunable[Any, Any], problem: Any, config: Any) -> None:
    dtype, shape = tunable.key(problem)
    record = {"kernel": tunable.name, "version": tunable.version, "dtype": dtype, "shape": shape, "config": config}
    records.store(H200.name, record)


PRODUCT, ROW = GemmProblem(4096, 4096, 4096), RowProblem("layernorm", 8192, 4096)
TILE, ROW_TILE = GEMM.to_json(GemmTile((128, 128, 64), (2, 2), 3)), ROWS.to_json(RowTile(4096, 256))
EDITED = [
    (GEMM, PRODUCT, TILE, {"stages": 0}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"stages": 30}, "TUNE_NO_CANDIDATE"),
    (GEMM, PRODUCT, TILE, {"stages": None}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"tile": [128, 128]}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"tile": [128, 128, 60]}, "TUNE_NO_CANDIDATE"),
    (GEMM, PRODUCT, TILE, {"group": 0}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"split_k": 70000}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"warps": [0, 2]}, "KERNEL_ARGUMENT"),
    (GEMM, PRODUCT, TILE, {"colour": "red"}, "TUNE_FAILED"),
    (ROWS, ROW, ROW_TILE, {"threads": 100}, "KERNEL_ARGUMENT"),
    (ROWS, ROW, ROW_TILE, {"keep": "foo"}, "KERNEL_ARGUMENT"),
    (ROWS, ROW, ROW_TILE, {"keep": ["shared"]}, "KERNEL_ARGUMENT"),
    (ROWS, ROW, ROW_TILE, {"width": 4104}, "TUNE_NO_CANDIDATE"),
    (ROWS, ROW, ROW_TILE, {"colour": "red"}, "TUNE_FAILED"),
]


@pytest.mark.parametrize(("tunable", "problem", "config", "change", "code"), EDITED, ids=lambda x: str(x)[:24])
def test_a_record_that_was_edited_warns_once_and_is_passed_over(
    tunable: Any, problem: Any, config: dict[str, Any], change: dict[str, Any], code: str
) -> None:
    keep(tunable, problem, config | change)
    asked = {
        "choose": lambda: select.choose(tunable, problem, H200),
        "select": lambda: (
            select_gemm(4096, 4096, 4096, device=H200.name)
            if tunable is GEMM
            else select_norm(8192, 4096, device=H200.name)
        ),
    }
    for ask in asked.values():
        with pytest.warns(RuntimeWarning, match=rf"the record of (.|\n)* is not used: (.|\n)*\[{code}\]") as caught:
            chosen = ask()
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ask() == chosen
        records.forget()
    keep(tunable, problem, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tunable.to_json(select.choose(tunable, problem, H200)) == json.loads(json.dumps(config)) | {
            k: v for k, v in config.items() if isinstance(v, tuple)
        }


def test_a_record_without_a_field_is_none() -> None:
    keep(GEMM, PRODUCT, {k: v for k, v in TILE.items() if k != "warps"})
    with pytest.warns(
        RuntimeWarning, match=r"these are not the fields of GemmTile   \[TUNE_FAILED\]\n  missing: 'warps'"
    ):
        select.choose(GEMM, PRODUCT, H200)


class Idle:
    def compile(self, arch: str) -> Any:
        return types.SimpleNamespace(registers=1, spill_bytes=0)

    def __call__(self, *arguments: Any) -> None:
        pass


def idle(*predictions: Any) -> select.Tunable[int, int]:
    """As many configurations as predictions, which do nothing."""
    return select.Tunable(
        "idle", int, lambda p, d: range(len(predictions)), lambda c, p, d: predictions[c], lambda c, p: Idle(),
        lambda p: (), lambda p: ("", ""),
    )  # fmt: skip


@pytest.mark.parametrize("us", [NAN, INF, -INF, -3.0, "5", None, True, [1.0], 1j], ids=str)
def test_a_time_that_is_none_is_a_failure(us: Any) -> None:
    two = idle((1.0, ""), (1.5, ""))
    with pytest.raises(gr.SelectError, match="TUNE_FAILED") as e:
        select.tune(two, 0, H200, timer=lambda launch: us, progress=False, keep=False)
    assert str(e.value).count(f"ValueError: the timer returned {us!r}, which are not microseconds") == 2
    times = iter([us, 7.0, 7.0, 7.0, 7.0, 7.0])
    done = select.tune(two, 0, H200, timer=lambda launch: next(times), progress=False, keep=False)
    assert (done.best, done.measured[0].us) == (1, 7.0)


@pytest.mark.parametrize("us", [NAN, INF, -1.0, "3", None], ids=str)
def test_a_prediction_that_is_no_time_is_a_reason_against_it(us: Any) -> None:
    selection = select.rank(idle((us, ""), (2.0, "")), 0, H200)
    assert [c for c, _, _ in selection.short_list] == [1]
    assert selection.why(0) == f"its expected time is {us!r}"


@pytest.fixture(params=["none", "no device"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without PyTorch, or with one that has no device: the code of what it says."""
    none = types.SimpleNamespace(__version__="2.0", cuda=types.SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", None if request.param == "none" else none)
    return "OP_TORCH" if request.param == "none" else "LAUNCH_DRIVER"


@pytest.mark.parametrize(
    "measure",
    [
        lambda: select.tune(GEMM, GemmProblem(64, 64, 64), H200, timer=lambda f: 1.0, keep=False),
        lambda: select.tune(ROWS, RowProblem("softmax", 64, 64), H200, timer=lambda f: 1.0, keep=False),
        lambda: select.tune(GEMM, GemmProblem(64, 64, 64), H200),
        lambda: select.tune(ROWS, RowProblem("softmax", 64, 64), "sm_90a"),
        lambda: select.Timer(),
    ],
)
def test_measuring_without_a_device_says_so(measure: Callable[[], object], torch: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        measure()
    assert e.value.code == torch


def test_choosing_with_tuning_without_a_device_says_so(torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_TUNE", "1")
    with pytest.raises(gr.LaunchError) as e:
        select.choose(GEMM, GemmProblem(64, 64, 64), H200)
    assert e.value.code == torch
    with pytest.warns(RuntimeWarning, match="could not be tuned"):
        assert select_norm(64, 64, device="my GPU") == select_norm(64, 64)


SHAPE, SMALL = select.MatmulShape(64, 64, 64), select.Tile(64, 64, 32, 32, 32, 3)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: select.tune(GEMM, PRODUCT, None), "tune: device does not fit"),  # type: ignore[arg-type]
    (lambda: select.rank(GEMM, PRODUCT, 1.5), "rank: device does not fit"),  # type: ignore[arg-type]
    (lambda: select.choose(GEMM, PRODUCT, True), "choose: device does not fit"),
    (lambda: select.rank(None, PRODUCT, H200), "rank: tunable is not a Tunable"),  # type: ignore[arg-type]
    (lambda: select.tune(3, PRODUCT, H200), "tune: tunable is not a Tunable"),  # type: ignore[arg-type]
    (lambda: select.choose("gemm", PRODUCT, H200), "choose: tunable is not a Tunable"),  # type: ignore[arg-type]
    (lambda: select.tune(idle((1.0, "")), 0, H200, timer=3), "tune: timer cannot be called"),  # type: ignore[arg-type]
    (lambda: select.tune(idle((1.0, "")), 0, H200, selection=[1]), "tune: selection is not a Selection"),  # type: ignore[arg-type]
    (lambda: select.rank(idle(3), 0, H200), "idle: predict returned int"),
    (lambda: select.of_arch(3), "of_arch: arch does not fit"),  # type: ignore[arg-type]
    (lambda: select.matmul_tiles(64, 64, 64, only=3), "matmul_tiles: only cannot be called"),  # type: ignore[arg-type]
    (lambda: select.matmul_tiles(64, 64, 64, 1.0), "matmul_tiles: device does not fit"),  # type: ignore[arg-type]
    (lambda: select.judge(select.Tile(0, 64, 32, 32, 32, 3), SHAPE, H200), "Tile: bm does not fit"),
    (lambda: select.Tile(64, 64, 32, 32, 32, 2.5), "Tile: stages is not an integer"),  # type: ignore[arg-type]
    (lambda: select.Tile(64, 64, 32, 48, 32, 3), "Tile: warps' tiles do not make up the block's"),
    (lambda: select.Tile(64, 64, 32, 128, 32, 3), "Tile: warps' tiles do not make up the block's"),
    (lambda: select.MatmulShape(-1, 64, 64), "MatmulShape: m does not fit"),
    (lambda: select.estimate(SMALL, select.MatmulShape(64, 64, 64, rate=0), H200), "MatmulShape: rate does not fit"),
    (lambda: select.judge(None, SHAPE, H200), "judge: tile is not a Tile"),  # type: ignore[arg-type]
    (lambda: select.estimate(SMALL, 3, H200), "estimate: shape is not a MatmulShape"),  # type: ignore[arg-type]
    (lambda: select.estimate(SMALL, SHAPE, 3), "estimate: device does not fit"),  # type: ignore[arg-type]
    (lambda: select.Device("x", "sm_80", 0, 1, 1, 1, 1, 1), "Device: sm_count does not fit"),
    (lambda: select.Device("x", "sm_80", 1, 1, 1, 1, 0, 1), "Device: dram_bytes does not fit"),
    (lambda: select.choose(ROWS, RowProblem("layernorm", -1, 0), H200), "RowProblem: rows does not fit"),
    (lambda: RowProblem("layernorm", 1, 0), "RowProblem: width does not fit"),
    (lambda: RowProblem("foo", 1, 8), "RowProblem: kind does not fit"),
    (lambda: RowProblem("softmax", 1, 8, "fp99"), "RowProblem: dtype does not fit"),
    (lambda: RowProblem("softmax", 1, 8, align_bytes=3), "RowProblem: align_bytes does not fit"),
    (lambda: RowProblem("softmax", 1, 8, dense_bytes=-2), "RowProblem: dense_bytes does not fit"),
    (lambda: GemmProblem(64, 64, 64, dtype="f16"), "GemmProblem: dtype does not fit"),
    (lambda: GemmProblem(64, -64, 64), "GemmProblem: n does not fit"),
    (lambda: GemmProblem(64, 64, 64, batch=2.0), "GemmProblem: batch is not an integer"),  # type: ignore[arg-type]
    (lambda: GemmProblem(64, 64, 64, order="XX"), "GemmProblem: order does not fit"),
    (lambda: GemmProblem(64, 64, 64, align=(16, 16)), "GemmProblem: align does not fit"),  # type: ignore[arg-type]
    (lambda: GemmProblem(64, 64, 64, activation="foo"), "GemmProblem: activation does not fit"),
    (lambda: GemmProblem(64, 64, 64, bias=1), "GemmProblem: bias does not fit"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(gr.VerifyError) as e:
        call()
    assert str(e.value).startswith(f"{text}   [KERNEL_ARGUMENT]\n  want: ")


def test_an_architecture_names_a_device() -> None:
    assert select.rank(GEMM, PRODUCT, "sm_90a") == select.rank(GEMM, PRODUCT, H200)
    assert select.estimate(SMALL, SHAPE, "sm_90a") == select.estimate(SMALL, SHAPE, H200)
    assert select.choose(GEMM, PRODUCT, "sm_90a") == select.choose(GEMM, PRODUCT, H200)
    assert select.tune(idle((1.0, "")), 0, "sm_80", timer=lambda launch: 1.0, progress=False, keep=False).best == 0


def test_products_and_rows_of_nothing_have_configurations() -> None:
    assert select.rank(GEMM, GemmProblem(0, 8, 8), H200).best.split_k == 1
    assert select.rank(ROWS, RowProblem("softmax", 0, 8), H200).best.width == 8
