"""Normalisations and softmax against float64: every way to keep a row, every remainder class, text, compilation."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from spills import spilled

import graphene as gr
from graphene.kernels import (
    NormConfig,
    RowTile,
    SoftmaxColumnsConfig,
    SoftmaxConfig,
    layernorm_backward_kernel,
    layernorm_kernel,
    rmsnorm_backward_kernel,
    rmsnorm_kernel,
    softmax_columns_kernel,
    softmax_kernel,
)
from graphene.select import select_norm, select_norm_backward, select_softmax, select_softmax_columns

KERNELS = {"layernorm": layernorm_kernel, "rmsnorm": rmsnorm_kernel, "softmax": softmax_kernel}
# Threads of a part of a warp, of a warp, of two, of a number of warps other than a power of two, of many; vectors of
# each size; the last vector partly or wholly outside; rows kept in each way.
TILES = [
    RowTile(1, 1, 4, 1),
    RowTile(7, 8, 4, 1),
    RowTile(96, 4, 8),
    RowTile(100, 32, 2, 4),
    RowTile(70, 32, 1, 2),
    RowTile(512, 64),
    RowTile(1000, 96),
    RowTile(2056, 288),
    RowTile(1000, 96, 2, evict="no_allocate", each=2),
    RowTile(100, 32, 4, 4, each=2),
    RowTile(2048, 256),
    RowTile(65, 64, 1, 1, "shared"),
    RowTile(1100, 64, 1, 2, "shared"),
    RowTile(1024, 64, 1, 8, "shared"),
    RowTile(2052, 256, 1, 4, "shared", "evict_last"),
    RowTile(1023, 64, 1, 1, "memory"),
    RowTile(1032, 64, 1, 8, "memory"),
    RowTile(4104, 512, 1, 8, "shared"),
    RowTile(257, 32, 1, 8, dense=8),
    RowTile(1023, 128, 1, 4, dense=8),
    RowTile(770, 64, 1, 8, dense=8),
    RowTile(1025, 96, 1, 2, dense=4),
    RowTile(1022, 128, 1, 4, "shared", dense=8),
    RowTile(2049, 288, 1, 2, "shared", dense=8),
    RowTile(2056, 64, 1, 8, "shared", dense=8),  # its last part is a vector of some rows, nothing of others
    RowTile(2057, 64, 1, 8, "shared", "evict_last", dense=8),
    RowTile(1500, 64, 1, 8, "memory", dense=8),
    RowTile(1029, 64, 1, 8, "memory", dense=8),
]


@functools.cache
def build(name: str, config: NormConfig | SoftmaxConfig) -> gr.Kernel:
    return KERNELS[name](config)


def config_of(name: str, tile: RowTile, dtype: gr.DType = gr.fp16, **options) -> NormConfig | SoftmaxConfig:
    if name == "softmax":
        return SoftmaxConfig(tile, dtype)
    return NormConfig(tile, dtype, **{"beta": name == "layernorm", **options})


def reference(name, config, x, r=None, gamma=None, beta=None, eps=1e-5):
    h = x.astype(np.float64) + (0 if r is None else r)
    with np.errstate(all="ignore"):
        if name == "softmax":
            e = np.exp(h - h.max(1, keepdims=True))
            return e / e.sum(1, keepdims=True), h
        mean = h.mean(1, keepdims=True) if name == "layernorm" else 0
        y = (h - mean) / np.sqrt(((h - mean) ** 2).mean(1, keepdims=True) + eps)
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta), h


def run(name, config, M, rng, launch=None, x=None, dtype=np.float16):
    """What a kernel makes of random rows, and what it should: pairs of (got, want)."""
    width = config.tile.width
    x = rng.standard_normal((M, width)).astype(dtype) if x is None else x
    args, named, extra = [x], {}, []
    if name != "softmax":
        if config.residual:
            named["r"] = rng.standard_normal((M, width)).astype(dtype)
        for n in ("gamma", "beta"):
            if getattr(config, n):
                named[n] = rng.standard_normal(width).astype(dtype)
        args += named.values()
    y = np.full_like(x, np.nan)
    args.append(y)
    if name != "softmax":
        if config.write_sum:
            args.append(np.full_like(x, np.nan))
            extra = [args[-1]]
        if config.eps is None:
            args.append(1e-5)
    (launch or build(name, config).simulate)(*args)
    want, h = reference(name, config, x, **named)
    return [(y, want), *((s, h) for s in extra)]


def close(pairs, rtol=2e-3):
    for got, want in pairs:
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=rtol, atol=rtol * max(1e-4, np.nansum(np.abs(want)) / max(want.size, 1))
        )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_way_to_hold_rows(name, tile, rng):
    config = config_of(name, tile)
    close(run(name, config, 9 if tile.dense else tile.rows + 2, rng))  # dense: a row with each number of ends
    kernel = build(name, config)
    assert gr.parse(str(kernel)) == kernel
    result = kernel.check(M=2)
    assert result.ok, result.errors


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "width", [1, 2, 3, 4, 6, 8, 12, 31, 32, 33, 63, 64, 65, 127, 130, 255, 256, 257, 264, 1025, 1026]
)
def test_widths_that_a_caller_may_have(name, width, rng):
    config = (select_softmax if name == "softmax" else select_norm)(3, width)
    close(run(name, config, 3, rng))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("M", [0, 1, 7, 8, 9, 17])
def test_rows_of_several_to_a_block(name, M, rng):
    close(run(name, config_of(name, RowTile(24, 4, 8)), M, rng))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("keep", ["registers", "shared", "memory"])
@pytest.mark.parametrize(
    "options",
    [
        {"gamma": False, "beta": False},
        {"gamma": False, "beta": True},
        {"residual": True},
        {"residual": True, "write_sum": True, "eps": 1e-5},
    ],
    ids=lambda o: "-".join(o),
)
def test_what_a_normalisation_may_leave_out_or_add(name, keep, options, rng):
    close(run(name, config_of(name, RowTile(328, 32, 1, 8, keep), **options), 3, rng))


@pytest.mark.parametrize("name", KERNELS)
def test_fp32(name, rng):
    config = config_of(name, RowTile(1000, 64, 1, 4), gr.fp32)
    close(run(name, config, 2, rng, dtype=np.float32), rtol=3e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_bf16(name, rng):
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 104).bfloat16()
    gamma, beta = torch.randn(2, 104).bfloat16()
    config = config_of(name, RowTile(104, 4, 8), gr.bf16)
    y = torch.full_like(x, torch.nan)
    named = {"layernorm": {"gamma": gamma, "beta": beta}, "rmsnorm": {"gamma": gamma}, "softmax": {}}[name]
    build(name, config)(x, *named.values(), y, *([] if name == "softmax" else [1e-5]))
    want, _ = reference(name, config, x.double().numpy(), **{k: v.double().numpy() for k, v in named.items()})
    np.testing.assert_allclose(y.double().numpy(), want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_a_mean_far_from_zero_costs_no_digits(name, rng):
    """Where the squares' mean less the mean's square would leave nothing of the variance."""
    x = (rng.standard_normal((3, 512)) + 3000).astype(np.float32)
    close(run(name, config_of(name, RowTile(512, 64, 1, 4), gr.fp32), 3, rng, x=x, dtype=np.float32), rtol=1e-3)


@pytest.mark.parametrize("at", [0, 1, 8, -1])
@pytest.mark.parametrize(
    "tile",
    [RowTile(1000, 128), RowTile(512, 32, 4), RowTile(4096, 128, 1, 8, "shared"), RowTile(1001, 64, dense=8)],
    ids=lambda t: f"{t.width}{t.keep}",
)
def test_an_outlier_costs_no_digits(tile, at, rng):
    """Variances are summed up about an element of the row: not about this one, which would leave half of the digits."""
    x = rng.standard_normal((tile.rows, tile.width)).astype(np.float16)
    x[:, at] = 300
    y = np.zeros_like(x)
    layernorm_kernel(NormConfig(tile, gamma=False, beta=False, eps=1e-5)).simulate(x, y)
    d = x.astype(float) - x.astype(float).mean(-1, keepdims=True)
    want = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    ulp = 2.0 ** (np.floor(np.log2(np.abs(want))) - 10)
    assert (np.abs(y - want) / ulp)[np.abs(want) > 1e-3].max() < 0.51


def test_softmax_of_what_is_not_finite(rng):
    inf, nan = np.inf, np.nan
    x = np.array([[1, -inf, 2, 3], [-inf] * 4, [inf, 1, 2, 3], [nan, 1, 2, 3], [6e4, -6e4, 0, 6e4]], np.float16)
    ((got, want),) = run("softmax", SoftmaxConfig(RowTile(4, 1, 8, 4)), 5, rng, x=x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)
    assert np.isnan(got[1:4]).all()
    assert not np.isnan(got[[0, 4]]).any()


@pytest.mark.parametrize(
    ("B", "M", "N"), [(1, 1, 1), (2, 5, 64), (1, 33, 70), (3, 2, 7), (1, 100, 129), (0, 3, 3), (2, 0, 4), (2, 3, 0)]
)
def test_softmax_of_columns(B, M, N, rng):
    config = select_softmax_columns(M, N)
    kernel = softmax_columns_kernel(config)
    x = (rng.standard_normal((B, M, N)) * 30).astype(np.float16)
    y = np.full_like(x, np.nan)
    kernel.simulate(x, y)
    if x.size:
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        close([(y, e / e.sum(1, keepdims=True))])
        assert gr.parse(str(kernel)) == kernel
        assert kernel.check(B=1, M=9, N=N).ok
        assert kernel.compile("sm_80").spill_bytes == kernel.compile("sm_90a").spill_bytes == 0


def test_softmax_of_long_rows_that_are_not_finite():
    """Threads that have seen nothing but -inf in a part, or in all of them, have a sum of 0."""
    tile = RowTile(1200, 32, 1, 4, "memory")
    x = np.full((5, 1200), -np.inf, np.float32)
    x[0, 1000:] = 1.0
    x[1, :8] = 300.0
    x[2, 700] = np.nan
    x[3, 5] = np.inf
    y = np.zeros_like(x)
    softmax_kernel(SoftmaxConfig(tile, gr.fp32)).simulate(x, y)
    np.testing.assert_allclose(y[0], [0] * 1000 + [1 / 200] * 200, rtol=1e-5)
    np.testing.assert_allclose(y[1], [1 / 8] * 8 + [0] * 1192, rtol=1e-5)
    assert np.isnan(y[2:]).all()


def test_softmax_of_columns_that_are_not_finite():
    inf = np.inf
    x = np.array([[1, -inf, inf, np.nan, -inf, 6e4], [-inf, -inf, 1, 2, 3, -6e4], [2, -inf, 3, 4, -inf, 0]], np.float32)
    y = np.zeros((1, 3, 6), np.float32)
    softmax_columns_kernel(SoftmaxColumnsConfig(gr.fp32, rows=2)).simulate(x[None], y)
    assert np.isnan(y[0, :, 1:4]).all()
    np.testing.assert_allclose(y[0][:, [4, 5]], [[0, 1], [1, 0], [0, 0]], atol=1e-7)
    np.testing.assert_allclose(y[0, :, 0], [0.26894142, 0, 0.73105858], rtol=1e-5)


@pytest.mark.parametrize(
    "tile",
    [RowTile(64, 8, 4, 4), RowTile(64, 64, 1, 1, "shared"), RowTile(64, 64, 1, 1, "memory"),
     RowTile(1024, 256, 1, 1, "memory"), RowTile(1024, 32, 1, 1, "shared")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [gr.fp32, gr.bf16])
def test_a_variance_that_no_number_holds_gives_zeros(tile, dtype, rng):
    x = rng.standard_normal((4, tile.width)).astype(np.float32) * np.float32(1e20)
    x = x if dtype == gr.fp32 else (x.view(np.uint32) >> 16).astype(np.uint16)
    y = np.ones_like(x)
    build("layernorm", NormConfig(tile, dtype, gamma=False, beta=False, eps=1e-5)).simulate(x, y)
    assert not (y if dtype == gr.fp32 else y & 0x7FFF).any()


HUGE = np.float32(np.finfo(np.float32).max)
ENORMOUS = {
    "a masked row": [-HUGE, -HUGE, -HUGE, -HUGE],
    "a masked row of bf16": np.array([0xFF7F0000] * 4, np.uint32).view(np.float32),
    "far below": [-1e10, -1e10, -1e10, -1e10],
    "of inexact products": [-3.3e9, -3.3e9, 5.1e11, 5.1e11],
    "one masked": [-HUGE, 0, 1, 2],
    "one huge": [3e38, 0, 1, 2],
    "both ends": [HUGE, -HUGE, 0, HUGE],
    "both ends, infinite": [HUGE, -np.inf, -HUGE, 1e30],
}


def softmax64(x: np.ndarray) -> np.ndarray:
    power = np.exp(x.astype(np.float64) - x.astype(np.float64).max())
    return power / power.sum()


@pytest.mark.parametrize("row", ENORMOUS.values(), ids=ENORMOUS)
@pytest.mark.parametrize(
    "tile",
    [RowTile(4, 1, 32, 4), RowTile(64, 32, 4, 2), RowTile(64, 32, 1, 1, "shared"), RowTile(64, 32, 1, 1, "memory"),
     RowTile(65, 32, 1, 4, dense=4)],
    ids=str,
)  # fmt: skip
def test_softmax_of_any_finite_numbers(tile, row):
    x = np.resize(np.array(row, np.float32), (3, tile.width))
    y = np.zeros_like(x)
    build("softmax", SoftmaxConfig(tile, gr.fp32)).simulate(x, y)
    np.testing.assert_allclose(y, [softmax64(r) for r in x], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("row", ENORMOUS.values(), ids=ENORMOUS)
@pytest.mark.parametrize("rows", [1, 2])
def test_softmax_of_columns_of_any_finite_numbers(rows, row):
    for order in (row, row[::-1]):  # the maximum first, and last
        x = np.array([order], np.float32)[..., None]
        y = np.zeros_like(x)
        softmax_columns_kernel(SoftmaxColumnsConfig(gr.fp32, vector=1, rows=rows)).simulate(x, y)
        np.testing.assert_allclose(y[0, :, 0], softmax64(x[0, :, 0]), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_lie_apart(name, rng):
    wide = rng.standard_normal((5, 160)).astype(np.float16)
    config = config_of(name, RowTile(104, 16, 2))
    close(run(name, config, 5, rng, x=wide[:, 16:120]))
    if name == "softmax":
        one = np.broadcast_to(wide[:1, :104], (5, 104))  # a stride of zero
        out = np.zeros((5, 104), np.float16)
        build(name, config).simulate(one, out)
        close([(out, reference(name, config, one)[0])])


@pytest.mark.parametrize(
    "bad",
    [
        {"threads": 3},
        {"threads": 0},
        {"threads": 512, "rows": 3},
        {"threads": 8, "rows": 3},
        {"vector": 3},
        {"vector": 8, "width": 12},
        {"keep": "here"},
        {"evict": "now"},
        {"evict": "evict_last"},
        {"keep": "shared", "evict": "no_allocate"},
        {"each": 2},
        {"rows": 4, "each": 0},
        {"unroll": 0},
        {"keep": "shared", "rows": 2},
        {"width": 0},
    ],
    ids=str,
)
def test_tiles_that_do_not_fit(bad):
    with pytest.raises(gr.VerifyError, match="RowTile") as e:
        RowTile(**{"width": 64, "threads": 32, **bad})
    assert e.value.code == "KERNEL_ARGUMENT"


def test_choices():
    assert hash(select_norm(8, 768)) == hash(select_norm(8, 768))
    assert select_norm(8192, 768).tile == RowTile(768, 96, evict="no_allocate")
    assert select_norm(8192, 1024).tile == RowTile(1024, 128, evict="no_allocate")
    assert select_norm(4096, 5120).tile.threads == 320  # two rounds, and nobody idle
    assert select_norm(8192, 32768).tile == RowTile(32768, 512, 1, 8, "shared", "evict_last", unroll=8)
    assert select_norm(8192, 65536, gr.fp32).tile.keep == "memory"
    assert select_norm(8, 4096, align_bytes=4).tile.vector == 2
    assert select_softmax(100, 24).tile.rows > 1
    for width in [*range(1, 70), 1000, 1001, 5000, 16385, 65535, 65536]:
        for dtype in (gr.fp16, gr.fp32):
            for residual in (False, True):
                tile = select_norm(100, width, dtype, residual=residual).tile  # none is refused
                assert tile.threads * tile.rows <= 1024
                dense = select_norm(
                    100, width, dtype, align_bytes=dtype.bits // 8, dense_bytes=16, residual=residual
                ).tile
                assert dense.dense * dtype.bits == (128 if width >= 256 else 0), width


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("width", [32, 768, 1000, 1023, 4096, 4097, 8192, 30522, 32768, 65536])
def test_compiles_without_spills(name, width, arch):
    config = (select_softmax if name == "softmax" else select_norm)(8192, width, dense_bytes=16)
    assert build(name, config).compile(arch).spill_bytes == 0


@pytest.mark.parametrize("dtype", [gr.fp16, gr.bf16, gr.fp32])
@pytest.mark.parametrize("width", [10240, 14336, 16384, 24576, 32768, 50257])
def test_no_selection_for_long_rows_spills(width, dtype):
    elem_bytes = dtype.bits // 8
    where = {"align_bytes": 16 if width % 8 == 0 else elem_bytes, "shared_bytes": 227 * 1024}
    dense = {**where, "dense_bytes": 16}
    configs = {
        rmsnorm_kernel: [{"kind": "rmsnorm"}, {"beta": False}, {"beta": False, "residual": True}],
        layernorm_kernel: [{}, {"residual": True, "write_sum": True}],
    }
    kernels = [f(select_norm(8192, width, dtype, **dense, **c)) for f, all_of in configs.items() for c in all_of]
    for f in (layernorm_backward_kernel, rmsnorm_backward_kernel):
        kernels += [f(select_norm_backward(8192, width, dtype, **where, residual=r)) for r in (False, True)]
    known = {(24576, gr.fp32): {4: 12}, (50257, gr.bf16): {3: 136}}.get((width, dtype), {})  # of layer normalisations
    assert [spilled(k, "sm_90a", known.get(i, 0)) for i, k in enumerate(kernels)] == [0] * len(kernels)


def test_several_blocks_of_long_rows_share_a_multiprocessor():
    """Three blocks of 512 threads, two of 1024: nothing hides the loads of one alone."""
    for name, blocks in (("layernorm", 3), ("rmsnorm", 2), ("softmax", 2)):
        config = select_softmax(8192, 32768, shared_bytes=227 * 1024)
        if name != "softmax":
            config = select_norm(8192, 32768, beta=name == "layernorm", shared_bytes=227 * 1024)
        registers = build(name, config).compile("sm_90a").registers
        assert -(-registers // 8) * 8 * config.tile.threads * blocks <= 65536, name


def test_a_shift_by_a_typical_element_costs_no_registers():
    """Rows of 3072, of which ten blocks of 192 threads share a multiprocessor: three elements are looked at first."""
    kernel = layernorm_kernel(select_norm(4096, 3072))
    assert kernel.compile("sm_90a").registers <= 40
