"""The product as a tunable: candidates fit and compute it; select_gemm takes records before the model."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphene import select
from graphene.kernels.gemm.problem import rows_of_warp
from graphene.kernels.gemm.whole import gemm_launches, run_gemm
from graphene.select import records, select_gemm, trial_gemm
from graphene.select.gemm import GEMM, GemmProblem, GemmTile, choose, estimate, gemm_key

pytestmark = pytest.mark.usefixtures("own_records")
H200 = select.of_arch("sm_90a")


PROBLEMS = st.builds(
    GemmProblem,
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.sampled_from([None, 1, 6]),
    st.sampled_from(["fp16", "bf16", "fp32", "i8"]),
    st.sampled_from(["TN", "NN", "NT", "TT"]),
    st.sampled_from([(16, 16, 16), (8, 16, 4), (4, 4, 4)]),
    workspaces=st.booleans(),
)


@settings(max_examples=20, deadline=None)
@given(PROBLEMS)
def test_every_product_has_candidates_that_fit(p: GemmProblem) -> None:
    for config, us, _ in select.rank(GEMM, p, H200, 4).short_list:
        assert us > 0
        assert GEMM.from_json(GEMM.to_json(config)) == config
        assert config.split_k == 1 or p.workspaces
        assert config.pad == (False, False) or p.workspaces
        bm, bn, bk = config.tile
        size = {"fp16": 2, "bf16": 2, "fp32": 4, "i8": 1}[p.dtype]
        rows, columns = (n * rows_of_warp(config.kernel, n) for n in config.warps)  # eights along an instruction
        assert (bm % rows, bn % columns, bk * size % 64) == (0, 0, 0)


@pytest.mark.parametrize(
    "p",
    [GemmProblem(70, 72, 136), GemmProblem(33, 35, 37, align=(2, 2, 2)), GemmProblem(16, 48, 1024, order="TT")],
    ids=str,
)
def test_what_is_chosen_computes_the_product(p: GemmProblem) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((p.m, p.k)).astype(np.float16)
    b = rng.standard_normal((p.k, p.n)).astype(np.float16)
    b = b if p.order[1] == "T" else np.asfortranarray(b)
    c = np.zeros((p.m, p.n), np.float16)
    run_gemm(select.rank(GEMM, p, H200, 1).best.config(p), a, b, c)
    want = a.astype(np.float32) @ b.astype(np.float32)
    assert np.abs(c - want).max() < 2.0**-9 * np.abs(want).max()


SPILLING = [  # as compiled for sm_90a: dtype, order, tile, warps
    ("fp16", "TN", (128, 128, 64), (2, 2)),  # 200 bytes
    ("fp16", "TT", (256, 128, 64), (4, 2)),
    ("fp32", "TN", (128, 256, 32), (2, 4)),
    ("i8", "TN", (128, 256, 128), (2, 4)),
    ("i8", "NN", (192, 128, 128), (4, 2)),
    ("i8", "TT", (128, 192, 128), (2, 4)),
    ("i8", "NT", (192, 96, 128), (4, 2)),
]


@pytest.mark.parametrize("case", SPILLING, ids=str)
def test_narrow_copies_leave_room_for_the_sums(case: tuple[str, str, tuple[int, int, int], tuple[int, int]]) -> None:
    dtype, order, tile, warps = case
    p = GemmProblem(4096, 4096, 4096, None, dtype, order, (4, 4, 4), workspaces=False)
    spilling = GemmTile(tile, warps, 3)
    assert GEMM.predict(spilling, p, H200) == "copies of 4 bytes take so many registers that sums would spill"
    assert not isinstance(GEMM.predict(spilling, replace(p, align=(16, 16, 16)), H200), str)
    for size in (100, 512, 1000, 4096):
        for align in ((4, 4, 4), (4, 16, 16)):
            taken = select_gemm(size, size, size, dtype=dtype, order=order, align=align, workspaces=False)
            assert (taken.tile, taken.warps) != (tile, warps)


@pytest.mark.parametrize(("dtype", "order"), [("fp16", "TN"), ("fp32", "TN"), ("i8", "NT")])
def test_what_is_selected_for_narrow_copies_does_not_spill(dtype: str, order: str) -> None:
    terms = {} if dtype == "i8" else {"bias": True, "residual": True, "activation": "gelu"}
    config = select_gemm(4096, 4096, 4096, dtype=dtype, order=order, align=(4, 4, 4), workspaces=False, **terms)  # type: ignore[arg-type]
    (product,) = gemm_launches(config)
    assert product.kernel.compile("sm_90a").spill_bytes == 0


def keep(p: GemmProblem, config: GemmTile) -> None:
    dtype, shape = gemm_key(p)
    row = {"kernel": "gemm", "version": GEMM.version, "dtype": dtype, "shape": shape, "config": asdict(config)}
    records.store("my GPU", row)


def test_a_record_comes_before_the_estimate() -> None:
    p = GemmProblem(2048, 2048, 2048)
    estimated = select_gemm(2048, 2048, 2048, bias=True, activation="gelu")
    assert select_gemm(2048, 2048, 2048, bias=True, activation="gelu", device="my GPU") == estimated
    keep(p, GemmTile((128, 256, 64), (2, 4), 3, 8))
    chosen = select_gemm(2048, 2048, 2048, bias=True, activation="gelu", device="my GPU")
    assert (chosen.tile, chosen.warps, chosen.group) == ((128, 256, 64), (2, 4), 8)
    assert (chosen.bias, chosen.activation, chosen.order) == (True, "gelu", "TN")
    assert select_gemm(2000, 2040, 2100, device="my GPU").tile == (128, 256, 64)  # of the same class
    assert select_gemm(2048, 2048, 2048) == select_gemm(2048, 2048, 2048, device="another GPU")
    assert (
        select_gemm(2048, 2048, 2048, order="TT", device="my GPU").tile
        == select_gemm(2048, 2048, 2048, order="TT").tile
    )


def test_types_of_one_speed_share_records() -> None:
    keep(GemmProblem(2048, 2048, 2048), GemmTile((128, 256, 64), (2, 4), 3, 8))
    assert select_gemm(2048, 2048, 2048, dtype="bf16", device="my GPU").tile == (128, 256, 64)
    keep(GemmProblem(2048, 2048, 2048, dtype="bf16"), GemmTile((256, 128, 64), (4, 2), 3, 8))
    assert select_gemm(2048, 2048, 2048, dtype="bf16", device="my GPU").tile == (256, 128, 64)
    assert select_gemm(2048, 2048, 2048, device="my GPU").tile == (128, 256, 64)
    assert select_gemm(2048, 2048, 2048, dtype="i8", device="my GPU") == select_gemm(2048, 2048, 2048, dtype="i8")


def test_tuning_that_was_asked_for_but_fails_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_TUNE", "1")
    monkeypatch.setattr("graphene.select.measure.tune", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="512x512x512 TN fp16 could not be tuned: division by zero"):
        assert select_gemm(512, 512, 512, device="my GPU") == select_gemm(512, 512, 512)


def test_a_record_that_does_not_suit_the_sizes_is_passed_over() -> None:
    keep(GemmProblem(2048, 2048, 2048), GemmTile((256, 128, 64), (4, 2), 3))
    assert select_gemm(2048, 2048, 2048, device="my GPU").tile == (256, 128, 64)
    more = select_gemm(2100, 2048, 2048)  # 144 blocks for 132 multiprocessors: a second wave
    assert more.tile != (256, 128, 64)
    assert select_gemm(2100, 2048, 2048, device="my GPU") == more
    keep(GemmProblem(2048, 2048, 2048), GemmTile((32, 32, 32), (2, 2), 2))
    assert select_gemm(2048, 2048, 2048, device="my GPU") == select_gemm(2048, 2048, 2048)
    keep(GemmProblem(2048, 2048, 2048), GemmTile((256, 256, 64), (2, 2), 5))
    with pytest.warns(RuntimeWarning, match="327680 bytes of shared memory, at most 232448"):
        assert select_gemm(2048, 2048, 2048, device="my GPU") == select_gemm(2048, 2048, 2048)


def test_a_record_whose_parts_no_grid_has_is_passed_over() -> None:
    keep(GemmProblem(64, 64, 8192, 50000), GemmTile((64, 64, 64), (2, 2), 3, split_k=2))
    assert select_gemm(64, 64, 8192, batch=50000, device="my GPU").split_k == 1
    assert select_gemm(64, 64, 8192, batch=32768, device="my GPU").split_k in (1, 2)


GOOD = {"tile": [64, 64, 64], "warps": [2, 2], "stages": 3}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "missing: 'tile', 'warps', 'stages'"),
        ({**GOOD, "colour": 1}, "unknown: 'colour'"),
        ({**GOOD, "tile": 3}, "KERNEL_ARGUMENT"),
        ({**GOOD, "tile": [64, 64]}, "KERNEL_ARGUMENT"),
        ({**GOOD, "tile": [64, "64", 64]}, "KERNEL_ARGUMENT"),
        ({**GOOD, "tile": [72, 64, 64]}, "KERNEL_ARGUMENT"),
        ({**GOOD, "tile": [64, 64, 60]}, "TUNE_NO_CANDIDATE"),
        ({**GOOD, "stages": 30}, "TUNE_NO_CANDIDATE"),
        ({**GOOD, "warps": [0, 1]}, "KERNEL_ARGUMENT"),
        ({**GOOD, "warps": "x"}, "KERNEL_ARGUMENT"),
        ({**GOOD, "stages": 1}, "KERNEL_ARGUMENT"),
        ({**GOOD, "stages": 2.5}, "KERNEL_ARGUMENT"),
        ({**GOOD, "group": 0}, "KERNEL_ARGUMENT"),
        ({**GOOD, "group": -1}, "KERNEL_ARGUMENT"),
        ({**GOOD, "group": True}, "KERNEL_ARGUMENT"),
        ({**GOOD, "pad": [0, 1]}, "KERNEL_ARGUMENT"),
        ({**GOOD, "split_k": 0}, "KERNEL_ARGUMENT"),
    ],
    ids=str,
)
def test_a_malformed_record_warns_and_is_passed_over(config: dict, why: str) -> None:
    dtype, shape = gemm_key(GemmProblem(512, 512, 512))
    records.store(
        "my GPU", {"kernel": "gemm", "version": GEMM.version, "dtype": dtype, "shape": shape, "config": config}
    )
    with pytest.warns(RuntimeWarning, match=rf"the record of 1 of 512x512x512 .* is not used:(.|\n)*{why}"):
        assert select_gemm(512, 512, 512, device="my GPU") == select_gemm(512, 512, 512)


def test_a_measured_launch_does_not_wait_for_arguments_to_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding takes 0.1 ms, in which a GPU waits: it was counted to kernels of 10 us."""
    bound = []
    monkeypatch.setattr(trial_gemm, "bound_launches", lambda *given: bound.append(given) or [])
    p = GemmProblem(64, 64, 64, bias=True)
    run = trial_gemm.TrialRun(GemmTile((64, 64, 64), (2, 2), 3).config(p), p)
    a, b, c, other, bias = ([] for _ in range(5))
    for x in (a, a, other, a):
        run(x, b, c, bias)
    assert [given[1] is other for given in bound] == [False, True, False]
    assert all(given[4] is bias for given in bound)


def test_a_record_of_these_very_sizes_comes_before_the_model() -> None:
    """Also of the other type that is equally fast, and with terms, for which fewer stages fit."""
    p = GemmProblem(1000, 1000, 1000)
    estimated = estimate(p, H200)
    slow = replace(estimated, tile=(128, 160, 64), warps=(4, 1), turns=True, cluster=(1, 1, 1), stages=5)
    key = dict(zip(("dtype", "shape"), gemm_key(p), strict=True))
    record = {"kernel": "gemm", "version": GEMM.version, "problem": str(p), "config": GEMM.to_json(slow), **key}
    records.store(H200.name, record)
    assert choose(p, H200) == slow
    assert choose(replace(p, dtype="bf16"), H200) == slow
    terms = choose(replace(p, bias=True, residual=True, beta=True), H200)
    assert terms.tile == slow.tile
    assert terms.stages < slow.stages
    assert choose(replace(p, m=1008), H200) != slow


def test_a_product_with_terms_may_have_a_record_of_its_own() -> None:
    p = GemmProblem(2048, 2048, 2048)
    fused = replace(p, bias=True, activation="gelu", residual=True)

    def groups() -> list[int]:
        kinds = ((None, False), ("gelu", False), ("gelu", True))
        return [select_gemm(2048, 2048, 2048, device="my GPU", activation=a, residual=r).group for a, r in kinds]

    keep(p, GemmTile((128, 256, 64), (2, 4), 3, 7))
    assert groups() == [7, 7, 7]
    keep(fused, GemmTile((128, 256, 64), (2, 4), 3, 5))
    assert groups() == [7, 7, 5]
    for activation, residual, group in (("silu", True, 5), (None, True, 5), ("silu", False, 7), (None, False, 7)):
        alike = select_gemm(2048, 2048, 2048, device="my GPU", activation=activation, residual=residual)
        assert alike.group == group, (activation, residual)  # another activation takes about as long
    assert gemm_key(replace(p, bias=True, alpha=True)) == gemm_key(p)  # which cost next to nothing
