"""Row kernels as a tunable: every width has tiles that fit and compute what they should."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import select
from graphene.cli import main
from graphene.kernels import RowTile
from graphene.select import records, select_norm, select_softmax
from graphene.select.measure import best_known
from graphene.select.rows import ROWS, RowProblem

PROBLEMS = st.builds(
    RowProblem,
    st.sampled_from(["layernorm", "rmsnorm", "softmax"]),
    st.integers(1, 100000),
    st.integers(1, 65536),
    st.sampled_from(["fp16", "bf16", "fp32"]),
    st.sampled_from([16, 8, 4]),
    st.sampled_from([0, 16]),
)


@settings(max_examples=30, deadline=None)
@given(PROBLEMS, st.sampled_from(["sm_80", "sm_86", "sm_90a"]))
def test_every_width_has_a_tile(p: RowProblem, arch: str) -> None:
    device = select.of_arch(arch)
    for tile, us, _ in select.rank(ROWS, p, device, 4).short_list:
        assert us > 0
        assert tile.width == p.width
        assert p.width % tile.vector == 0 or tile.dense
        assert tile.keep != "shared" or p.row_bytes < device.shared_bytes
        assert ROWS.from_json(ROWS.to_json(tile)) == tile


@pytest.mark.parametrize(
    "p", [RowProblem("layernorm", 3, 72), RowProblem("softmax", 5, 33), RowProblem("rmsnorm", 2, 2056)], ids=str
)
def test_what_is_chosen_is_right(p: RowProblem) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((p.rows, p.width)).astype(np.float16)
    g, b = (rng.standard_normal(p.width).astype(np.float16) for _ in range(2))
    y, wide = np.zeros_like(x), x.astype(np.float64)
    kernel = ROWS.build(select.rank(ROWS, p, select.of_arch("sm_90a"), 1).best, p)
    if p.kind == "softmax":
        kernel(x, y)
        want = np.exp(wide - wide.max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
    elif p.kind == "rmsnorm":
        kernel(x, g, y, 1e-5)
        want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * g
    else:
        kernel(x, g, b, y, 1e-5)
        want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * g + b
    assert np.abs(y - want).max() < 4e-3 * np.abs(want).max()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path))
    yield tmp_path
    records.forget()


def keep(p: RowProblem, config: dict, dtype: str = "fp16") -> None:
    _, shape = ROWS.key(p)
    record = {"kernel": ROWS.name, "version": ROWS.version, "dtype": dtype, "shape": shape, "config": config}
    records.store("Some GPU", record)


def test_selections_take_their_records(folder) -> None:
    tile = RowTile(4096, 256, 1, 8, "shared", unroll=8)
    keep(RowProblem("layernorm", 8192, 4096), ROWS.to_json(tile))
    keep(RowProblem("softmax", 100, 1023, "fp16", 2, 16), ROWS.to_json(RowTile(1023, 96, 1, 4, dense=8)))
    assert select_norm(8192, 4096, device="Some GPU").tile == tile
    assert select_norm(8000, 4096, gr.bf16, device="Some GPU").tile == tile  # of the same class, and as fast
    for other in (
        select_norm(8192, 4096, device="Some GPU", residual=True),
        select_norm(8192, 4096, device="Some GPU", beta=False, kind="rmsnorm"),
        select_norm(8192, 4096, device="Another GPU"),
        select_norm(8192, 4096, gr.fp32, device="Some GPU"),
        select_norm(8192, 4096, device="Some GPU", align_bytes=8),
    ):
        assert other.tile.unroll != 8 or other.tile.threads != 256
    assert select_softmax(100, 1023, align_bytes=2, dense_bytes=16, device="Some GPU").tile.threads == 96
    assert select_softmax(100, 1023, align_bytes=2, device="Some GPU").tile.dense == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"threads": 33}, "KERNEL_ARGUMENT"),
        ({"threads": "many"}, "KERNEL_ARGUMENT"),
        ({"width": 4104}, "TUNE_NO_CANDIDATE"),
        ({"vector": 16}, "KERNEL_ARGUMENT"),
        ({"dense": 8}, "TUNE_NO_CANDIDATE"),
        ({"keep": "shared", "width": 4096, "each": 0}, "KERNEL_ARGUMENT"),
        ({"colour": 1}, "TUNE_FAILED"),
    ],
    ids=str,
)
def test_records_that_are_no_tile_for_the_rows_are_refused(folder, change, code) -> None:
    keep(RowProblem("layernorm", 8192, 4096), {**ROWS.to_json(RowTile(4096, 256)), **change})
    with pytest.warns(RuntimeWarning, match=code):
        config = select_norm(8192, 4096, device="Some GPU")
    assert config == select_norm(8192, 4096)


def test_the_command_line_ranks_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "layernorm:8192x4096", "softmax:10x1023", "--arch", "sm_90a", "--count", "3"]) == 0
    text = capsys.readouterr().out
    assert "rows, layernorm 8192x4096 fp16, on NVIDIA H200: 3 of " in text
    assert "rows, softmax 10x1023 fp16" in text
    for bad in ("layernorm:8192", "norm:1x1", "softmax:0x5"):
        assert main(["tune", bad]) == 2
        assert "kind:MxN" in capsys.readouterr().err


def test_the_records_that_ship_are_tiles_for_their_rows(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path))
    shipped = json.loads((records.SHIPPED / "nvidia_h200.json").read_text())["records"]
    mine = [r for r in shipped if r["kernel"] == ROWS.name and r["version"] == ROWS.version]
    assert len(mine) > 30
    h200 = select.of_arch("sm_90a")
    for r in mine:
        kind, shape = r["shape"].split()[:2]
        rows, width = map(int, shape.split("x"))
        align = 16 if "vectors of 8" in r["shape"] else 2 * int(r["shape"].split("vectors of ")[1].split()[0])
        problem = RowProblem(kind, rows, width, r["dtype"], align, 16)
        assert ROWS.key(problem) == (r["dtype"], r["shape"])
        assert not isinstance(ROWS.predict(ROWS.from_json(r["config"]), problem, h200), str)
        assert best_known(ROWS, problem, h200, partial(RowTile, width, 32, 1, 1)).threads == r["config"]["threads"]
