"""The thesis' rules, and what is added to them: what cannot run is not admitted, what is rejected has a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import select
from graphene.select.tiles import tiles_for


def test_the_thesis_own_result() -> None:
    """Section 5.2: 2-byte elements and 48 KB give 128x128x64."""
    assert select.thesis_block_tiles(2, 48)[0] == (128, 128, 64)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 256))
def test_block_tiles_are_those_the_equations_admit(element_bytes: int, shared_kib: int) -> None:
    got = select.thesis_block_tiles(element_bytes, shared_kib)
    sizes = [16, 32, 64, 128, 256, 512]
    want = {
        (m, n, k) for m in sizes for n in sizes for k in sizes
        if m == n and m >= 2 * k and n >= 2 * k and (m * k + n * k) * element_bytes <= shared_kib * 1024
    }  # fmt: skip
    assert set(got) == want
    assert len(got) == len(want)
    used = [(m + n) * k for m, n, k in got]
    assert used == sorted(used, reverse=True)


def test_warp_tiles_of_the_thesis() -> None:
    """Section 5.3 for 128x128x64, by hand; the thesis' best, 32x64x16, and worst, 64x64x32, are there."""
    got = select.thesis_warp_tiles((128, 128, 64))
    assert (32, 64, 16) in got
    assert (64, 64, 32) in got
    assert (16, 16, 16) not in got  # 64 warps are 2048 threads
    assert (16, 32, 16) in got  # 32 warps are 1024
    assert (128, 64, 16) not in got  # at most half of the block's
    assert len(got) == len(set(got)) == 16


def test_the_model_orders_the_thesis_tiles_as_they_were_measured() -> None:
    """Table 4.2, Turing, 8192^3: 14.9, 34.3 and 48.9 TFLOP/s."""
    shape, turing = select.MatmulShape(8192, 8192, 8192), select.of_arch("sm_75")
    tiles = (
        select.Tile(32, 32, 64, 16, 16, 1),
        select.Tile(64, 256, 32, 32, 32, 1),
        select.Tile(128, 128, 64, 32, 64, 1),
    )
    worst, middle, best = (select.estimate(t, shape, turing).us for t in tiles)
    assert best < middle < worst / 1.3


SHAPES = st.tuples(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([1, 7]))


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.sampled_from(["sm_75", "sm_80", "sm_86", "sm_90a"]), st.sampled_from([1, 2, 4]))
def test_every_problem_has_a_tile_that_fits(shape: tuple[int, ...], arch: str, element_bytes: int) -> None:
    m, n, k, batch = shape
    device = select.of_arch(arch)
    selection = select.matmul_tiles(m, n, k, device, batch, element_bytes)
    s = select.MatmulShape(m, n, k, batch, element_bytes, k_step=32 // element_bytes)
    for tile, us, _ in selection.short_list:
        assert us > 0
        assert tile.threads <= 1024
        assert tile.shared_bytes(s) <= device.shared_bytes
        assert tile.registers(s) <= 255
        assert tile.registers(s) * tile.threads <= 65536
    everything = set(tiles_for(s, device))
    listed = {x[0] for x in selection.short_list}
    refused = {r.config for r in selection.rejected}
    assert listed | refused == everything
    assert not listed & refused
    assert all(r.reason for r in selection.rejected)


REASONS = {
    "1024 rows": (select.Tile(256, 64, 32, 64, 64, 2), (64, 4096, 4096), "256 rows of which 192 are always outside"),
    "threads": (select.Tile(256, 256, 32, 16, 32, 2), (4096,) * 3, "4096 threads, at most 1024"),
    "shared": (select.Tile(256, 256, 64, 64, 64, 5), (4096,) * 3, "327680 bytes of shared memory, at most 232448"),
    "spill": (select.Tile(128, 256, 32, 64, 128, 2), (4096,) * 3, "about 356 registers a thread, at most 255"),
    "file": (select.Tile(256, 256, 32, 64, 64, 2), (4096,) * 3, "about 126976 registers a block, at most 65536"),
    "warps": (select.Tile(128, 128, 32, 128, 64, 2), (4096,) * 3, "2 warps leave tensor cores idle"),
    "k": (select.Tile(128, 128, 24, 64, 64, 2), (4096,) * 3, "k step 24 is not a multiple of the instruction's 16"),
    "steps": (select.Tile(64, 64, 64, 32, 32, 4), (4096, 4096, 64), "4 stages, but 1 steps"),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_rejection_says_why(case: str) -> None:
    tile, (m, n, k), text = REASONS[case]
    reason = select.judge(tile, select.MatmulShape(m, n, k), select.of_arch("sm_90a"))
    assert reason is not None
    assert text in reason
    assert (
        select.judge(
            select.Tile(128, 128, 32, 64, 64, 3), select.MatmulShape(4096, 4096, 4096), select.of_arch("sm_90a")
        )
        is None
    )


def test_what_fits_is_not_said_to_spill() -> None:
    """Each compiles for sm_90a without spills, to 252 to 255 registers; 64x96 of a warp spills 612 bytes."""
    shape, h200 = select.MatmulShape(4096, 4096, 4096), select.of_arch("sm_90a")
    for bm, bn, wm, wn in ((128, 128, 32, 128), (128, 128, 128, 32), (96, 192, 48, 96), (192, 96, 96, 48)):
        tile = select.Tile(bm, bn, 64, wm, wn, 3)
        assert select.judge(tile, shape, h200) is None
        assert tile.registers(shape) == 255
    assert "it would spill" in str(select.judge(select.Tile(128, 192, 64, 64, 96, 3), shape, h200))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: select.matmul_tiles(0, 64, 64), "matmul_tiles: m does not fit"),
        (lambda: select.matmul_tiles(64, -1, 64), "matmul_tiles: n does not fit"),
        (lambda: select.matmul_tiles(64, 64, 1.5), "matmul_tiles: k is not an integer"),  # type: ignore[arg-type]
        (lambda: select.matmul_tiles(64, 64, 64, batch=0), "matmul_tiles: batch does not fit"),
        (lambda: select.matmul_tiles(64, 64, 64, element_bytes=3), "matmul_tiles: element_bytes does not fit"),
        (lambda: select.matmul_tiles(64, 64, 64, count=0), "rank: count does not fit"),
        (lambda: select.matmul_tiles(64, 64, 64, 90), "matmul_tiles: device does not fit"),  # type: ignore[arg-type]
        (lambda: select.thesis_block_tiles(0, 48), "thesis_block_tiles: element_bytes does not fit"),
        (lambda: select.thesis_block_tiles(2, -1), "thesis_block_tiles: shared_kib does not fit"),
        (lambda: select.thesis_warp_tiles("x"), "thesis_warp_tiles: block does not fit"),  # type: ignore[arg-type]
        (lambda: select.thesis_warp_tiles((128, 128, 0)), r"thesis_warp_tiles: block\[2\] does not fit"),
    ],
)
def test_sizes_are_positive_integers(call: Callable[[], object], text: str) -> None:
    with pytest.raises(gr.VerifyError, match=text) as e:
        call()
    assert e.value.code == "KERNEL_ARGUMENT"


def test_waves_decide_small_problems() -> None:
    """133 blocks on 132 multiprocessors take about twice the time of 132."""
    device, tile = select.of_arch("sm_90a"), select.Tile(128, 128, 64, 64, 64, 3)
    one = select.estimate(tile, select.MatmulShape(128, 128 * 132 * 2, 8192), device)
    more = select.estimate(tile, select.MatmulShape(128, 128 * (132 * 2 + 1), 8192), device)
    assert (one.waves, one.blocks_per_sm) == (1.0, 2)
    assert more.us > 1.3 * one.us


def test_narrow_and_deep_problems_are_split_along_k() -> None:
    assert select.matmul_tiles(16, 128, 65536).best.split_k > 1
    assert select.matmul_tiles(8192, 8192, 8192).best.split_k == 1
    assert select.matmul_tiles(16, 4096, 4096).best.bm <= 64


def test_the_table_reads() -> None:
    selection = select.matmul_tiles(4096, 4096, 4096)
    text = str(selection)
    assert text.splitlines()[0].startswith("4096x4096x4096, MatmulShape(m=4096,")
    assert f"rejected, {len(selection.rejected)} in all:" in text
    assert ".table(rejected=None)" in text
    assert len(selection.table(rejected=None).splitlines()) > len(selection.rejected)
    assert "<table>" in selection._repr_html_()
    assert selection.why(selection.best).startswith("chosen: ")
    assert selection.why(selection.rejected[0].config) == selection.rejected[0].reason
    with pytest.raises(KeyError):
        selection.why(select.Tile(1, 1, 1, 1, 1, 1))


def test_a_device_that_is_not_known() -> None:
    assert select.of_arch("sm_87").arch == "sm_87"
    with pytest.raises(gr.SelectError) as e:
        select.of_arch("sm_35")
    assert e.value.code == "TUNE_NO_CANDIDATE"
    with pytest.raises(gr.SelectError, match="no configuration of 64x64x64 serves") as e:
        select.matmul_tiles(64, 64, 64, only=lambda tile: tile.bm == 256)
    assert "rejected: 256 rows of which 192 are always outside" in str(e.value)
