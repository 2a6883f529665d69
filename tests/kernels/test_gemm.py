"""Products of every order, type, alignment and epilogue: text, compilation, promises, values against float64."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from spills import spilled

import graphene as gr
from graphene.kernels import epilogues
from graphene.kernels.gemm.problem import GemmConfig
from graphene.kernels.gemm.whole import gemm_launches, gemm_workspaces, run_gemm
from graphene.select import select_gemm

NP = {"fp16": np.float16, "fp32": np.float32, "i8": np.int8, "i32": np.int32}
SMALL = GemmConfig(tile=(32, 32, 32), stages=2, warps=(2, 2))
BK = {"fp16": 32, "bf16": 32, "fp32": 16, "i8": 64}
ORDERS = ("TN", "NN", "NT", "TT")
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
erf = np.vectorize(math.erf)


def small(**fields: Any) -> GemmConfig:
    dtype = fields.get("dtype", "fp16")
    return replace(SMALL, tile=(32, 32, BK[dtype]), **fields)


def twice_u(x: np.ndarray) -> np.ndarray:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def activate(x: np.ndarray, name: str | None) -> np.ndarray:
    x = x.astype(np.float64)
    if name == "gelu":
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        return x / (1 + np.exp(np.minimum(-twice_u(x), 700)))
    sigmoid = 1 / (1 + np.exp(np.minimum(-x, 700)))
    return {None: x, "relu": np.maximum(x, 0), "silu": x * sigmoid, "sigmoid": sigmoid, "tanh": np.tanh(x)}[name]


def operands(rng, c: GemmConfig, M: int, N: int, K: int, batch: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Arrays of a product, laid out as the configuration says."""

    def matrix(rows: int, columns: int, row_major: bool) -> np.ndarray:
        shape = (*batch, rows, columns) if row_major else (*batch, columns, rows)
        if c.dtype == "i8":
            x = rng.integers(-128, 128, shape).astype(np.int8)
        else:
            x = rng.standard_normal(shape).astype(NP[c.dtype])
        return x if row_major else x.swapaxes(-1, -2)

    out = NP[c.out_dtype]
    return {
        "a": matrix(M, K, c.order[0] == "T"),
        "b": matrix(K, N, c.order[1] == "T"),
        "c": (4 * rng.standard_normal((*batch, M, N))).astype(out),
        "bias": (4 * rng.standard_normal(N)).astype(out),
        "residual": (4 * rng.standard_normal((*batch, M, N))).astype(out),
    }


def expected(c: GemmConfig, x: dict[str, np.ndarray], alpha: float, beta: float) -> np.ndarray:
    y = x["a"].astype(np.float64) @ x["b"].astype(np.float64)
    y = y * alpha if c.alpha else y
    y = y + beta * x["c"] if c.beta else y
    y = activate(y + x["bias"] if c.bias else y, c.activation)
    return y + x["residual"] if c.residual else y


def close(got: np.ndarray, want: np.ndarray, c: GemmConfig, K: int) -> None:
    if c.out_dtype == "i32":
        np.testing.assert_array_equal(got, want.astype(np.int64))
        return
    rounding = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}
    inputs = 2.0**-11 if c.dtype == "fp32" else 0.0  # tf32
    scale = np.sqrt(max(K, 1)) * 4
    np.testing.assert_allclose(got, want, rtol=2 * rounding[c.out_dtype], atol=scale * (inputs + 2.0**-20) + 1e-6)


def terms(c: GemmConfig, x: dict[str, Any], alpha: float = 0.5, beta: float = 0.25) -> dict[str, Any]:
    """Those that the configuration has."""
    given = {"bias": x["bias"], "residual": x["residual"], "alpha": alpha, "beta": beta}
    return {n: v for n, v in given.items() if getattr(c, n)}


def simulate(rng, c: GemmConfig, M: int, N: int, K: int, batch: tuple[int, ...] = ()) -> None:
    x = operands(rng, c, M, N, K, batch)
    want = expected(c, x, 0.5, 0.25)
    run_gemm(c, x["a"], x["b"], x["c"], **terms(c, x))
    close(x["c"], want, c, K)


# Every kernel.

KINDS = {
    **{f"fp16 {order}": small(order=order) for order in ORDERS},
    **{f"fp32 {order}": small(order=order, dtype="fp32") for order in ORDERS},
    **{f"i8 {order}": small(order=order, dtype="i8") for order in ORDERS},
    "bf16": small(dtype="bf16", bias=True),
    **{f"align {a} {o}": small(align=(a, a, a), order=o) for a in (8, 4, 2) for o in ("TN", "NT")},
    "align 16, 2, 4": small(align=(16, 2, 4), residual=True),
    "i8 align 1": small(dtype="i8", align=(1, 1, 4)),
    "fp32 align 4": small(dtype="fp32", align=(4, 4, 4), bias=True),
    "batched": small(batched=True, order="TT", bias=True, residual=True, alpha=True, beta=True),
    "split k": small(split_k=2),
    "split k in many parts": small(split_k=19),
    "split k, batched": small(split_k=2, batched=True, order="NT"),
    "pad": small(pad=(True, True), align=(2, 2, 2), order="TT"),
    "pad a": small(pad=(True, False), align=(2, 16, 2), order="NN"),
    "fp16 to fp32": small(out="fp32", bias=True, residual=True),
    "i8 to fp32": small(dtype="i8", out="fp32", alpha=True),
    "grouped": small(group=4),
    "i8 split k": small(dtype="i8", split_k=2),
    "i8 split k to fp32": small(dtype="i8", split_k=2, out="fp32", alpha=True, bias=True, activation="silu"),
    "i8 in integers": small(dtype="i8", bias=True, residual=True, activation="relu"),
    "one warp": replace(small(bias=True, residual=True), tile=(16, 16, 32), warps=(1, 1)),
    "vectors of 8 bytes": replace(small(align=(2, 2, 2)), tile=(32, 64, 32), warps=(2, 4)),
    "vectors, uneven lines": replace(small(align=(2, 2, 2), order="NT"), tile=(48, 48, 32), warps=(1, 3)),
    **{f"sm70 {order}": small(kernel="gemm_sm70", order=order) for order in ORDERS},
    "sm70 batched": small(kernel="gemm_sm70", batched=True, bias=True, residual=True, alpha=True, beta=True),
    "sm70 split k": small(kernel="gemm_sm70", split_k=2, activation="gelu", bias=True),
    "sm70 split k, batched": small(kernel="gemm_sm70", split_k=3, batched=True, order="NT"),
    "sm70 pad": small(kernel="gemm_sm70", pad=(True, True), align=(2, 2, 2), order="TT", group=3),
    "sm70 to fp32": small(kernel="gemm_sm70", out="fp32", residual=True, alpha=True, activation="tanh"),
    "sm70 one warp": replace(small(kernel="gemm_sm70", residual=True), tile=(16, 16, 8), warps=(1, 1)),
    **{f"{name}": small(activation=name, bias=True) for name in ACTIVATIONS[1:]},
}
CHECKED = {"M": 48, "N": 48, "K": 80}


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_keep_their_promises_and_text(kind: str) -> None:
    for kernel, _ in gemm_launches(KINDS[kind]):
        assert gr.parse(str(kernel)) == kernel
        names = {s.split()[1] for s in str(kernel).splitlines() if s.startswith("symbol ")}
        result = kernel.check(**{n: v for n, v in {**CHECKED, "S": 2}.items() if n in names})
        assert result.ok, str(result)


LARGE = [
    replace(c, tile=(*t[:2], t[2] * 16 // gr_bits), warps=t[3], stages=3)
    for t in ((256, 128, 64, (4, 2)), (128, 256, 64, (2, 4)), (128, 128, 64, (2, 2)))
    for c, gr_bits in (
        (GemmConfig(), 16),
        (GemmConfig(bias=True, activation="gelu", order="TT"), 16),
        (GemmConfig(bias=True, activation="gelu", residual=True), 16),
        (GemmConfig(bias=True, residual=True, align=(16, 16, 2)), 16),
        (GemmConfig(dtype="fp32", out="fp32", bias=True, activation="relu"), 32),
        (GemmConfig(dtype="i8"), 8),
        (GemmConfig(split_k=2), 16),
    )
]


def test_a_kernel_that_reads_what_the_one_before_wrote_waits_for_it_by_itself() -> None:
    """So does one that overwrites what the one before may still read."""

    def waits(c: GemmConfig) -> list[bool]:
        return ["wait_kernels()" in [s.text for s in kernel.syncs()] for kernel, _ in gemm_launches(c)]

    assert waits(small()) == [False]
    assert waits(small(align=(2, 2, 2), pad=(True, True))) == [True, True]
    assert waits(small(align=(2, 16, 2), pad=(True, False), group=3)) == [True, True]
    assert waits(small(split_k=2)) == [False, True]
    assert waits(small(align=(2, 2, 2), pad=(False, True), split_k=2)) == [True, True, True]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("c", LARGE, ids=lambda c: f"{c.tile}-{c.dtype}-{c.activation}-{c.residual}-{c.split_k}")
def test_large_tiles_compile_without_spills(c: GemmConfig, arch: str) -> None:
    for kernel, _ in gemm_launches(c):
        gelu = c.activation == "gelu" and arch == "sm_80"
        assert spilled(kernel, arch, before_13_5=16 if gelu else 0) == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32", "i8"])
def test_the_loop_over_k_has_no_bank_conflicts(order: str, dtype: str) -> None:
    for rows, columns, warps in ((64, 64, (2, 2)), (128, 96, (2, 2)), (32, 192, (1, 4))):
        config = replace(small(order=order, dtype=dtype), tile=(rows, columns, BK[dtype]), warps=warps)
        ((kernel, _),) = gemm_launches(config)
        lines = [r for r in kernel.report(M=rows, N=columns, K=128).rows if r.buffer in ("sA", "sB")]
        assert {r.op for r in lines} == {"copy to", "load"}
        assert all(r.conflicts == 0 for r in lines), (rows, columns)


# Values.


def test_orders_and_types(rng) -> None:
    for order in ORDERS:
        for dtype in ("fp16", "fp32", "i8"):
            simulate(rng, small(order=order, dtype=dtype), 48, 64, 80)


# Around 8 rows of an ldmatrix, 16 of an mma, 32 of the tile; several tiles with a ragged part.
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97)


@pytest.mark.parametrize("order", ["TN", "NT"])
@pytest.mark.parametrize("pad", [False, True])
def test_every_remainder_of_odd_sizes(order: str, pad: bool, rng) -> None:
    c = small(order=order, align=(2, 2, 2), pad=(pad, pad))
    for n in SIZES:
        simulate(rng, c, n, 19, 21)
        simulate(rng, c, 17, n, 21)
        simulate(rng, c, 17, 19, n)


@pytest.mark.parametrize(("align", "step"), [(16, 8), (8, 4), (4, 2)])
def test_every_remainder_of_aligned_sizes(align: int, step: int, rng) -> None:
    for order in ("TN", "TT"):
        c = small(order=order, align=(align, align, align))
        for n in sorted({-(-s // step) * step for s in SIZES}):
            simulate(rng, c, n if order == "NT" else n + 1, 3 * step, 5 * step)
            simulate(rng, c, 17, n, 3 * step)
            simulate(rng, c, 17, 5 * step, n)


def test_mixed_alignments(rng) -> None:
    for align, n, k in (((16, 2, 2), 21, 24), ((2, 16, 4), 24, 21), ((8, 4, 2), 34, 36), ((4, 16, 16), 40, 22)):
        simulate(rng, small(order="TT", align=align, bias=True, residual=True), 35, n, k)
        simulate(rng, small(order="TT", align=align, pad=(align[0] < 16, align[1] < 16)), 35, n, k)


@pytest.mark.parametrize("split_k", [1, 2, 3, 5])
def test_split_k(split_k: int, rng) -> None:
    """Fewer steps of k than parts, too."""
    for n, k, align in ((33, 97, 2), (40, 64, 16), (8, 8, 16), (34, 200, 4), (21, 0, 2)):
        c = small(split_k=split_k, align=(2, align, align), order="TT", bias=True, residual=True, activation="relu")
        simulate(rng, c, 35, n, k)
        simulate(rng, replace(c, alpha=True, beta=True, batched=True), 7, n, k, (3,))


def test_parts_of_integers_are_exact(rng) -> None:
    """Their sums do not pass through fp32, which has 24 bits."""
    for out in (None, "fp32"):
        c = small(dtype="i8", split_k=3, order="TT", out=out, bias=out is None)
        x = operands(rng, c, 20, 32, 4000)
        x["a"][:], x["b"][:] = 127, 127
        x["b"][0, :] = -1
        want = expected(c, x, 1, 0)
        run_gemm(c, x["a"], x["b"], x["c"], x["bias"] if c.bias else None)
        np.testing.assert_array_equal(x["c"], want.astype(NP[c.out_dtype]))


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.startswith(("sm70", "i8 split", "i8 in", "one warp", "vectors"))]
)
def test_values_of(kind: str, rng) -> None:
    c = KINDS[kind]
    for M, N, K in ((40, 56, 96), (8, 16, 16), (72, 40, 0)):
        simulate(rng, c, M, N, K, (3,) if c.batched else ())


def test_batches_and_broadcasts(rng) -> None:
    c = small(batched=True, bias=True, residual=True, order="TN")
    simulate(rng, c, 35, 40, 24, (3,))
    x = operands(rng, c, 35, 40, 24, (3,))
    x["a"] = np.broadcast_to(x["a"][:1], x["a"].shape)
    want = expected(c, x, 1, 0)
    run_gemm(c, x["a"], x["b"], x["c"], x["bias"], np.ascontiguousarray(x["residual"]))
    close(x["c"], want, c, 24)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_epilogues(name: str | None, rng) -> None:
    simulate(rng, small(activation=name, bias=True, residual=True), 35, 40, 48)
    simulate(rng, small(activation=name, out="fp32", alpha=True, beta=True), 35, 40, 48)
    simulate(rng, small(activation=name, split_k=2, bias=True), 35, 40, 48)


def test_any_function_of_registers_is_an_epilogue(rng) -> None:
    c = small(activation=lambda x: gr.where(x > 1, x * x, gr.abs(x)), out="fp32")
    x = operands(rng, c, 20, 24, 32)
    run_gemm(c, x["a"], x["b"], x["c"])
    y = x["a"].astype(np.float64) @ x["b"].astype(np.float64)
    np.testing.assert_allclose(x["c"], np.where(y > 1, y * y, np.abs(y)), rtol=1e-4, atol=1e-4)


def test_integers_are_scaled_in_fp32(rng) -> None:
    simulate(rng, small(dtype="i8", out="fp32", alpha=True, bias=True), 20, 24, 64)


@pytest.mark.parametrize(("name", "bits"), [*((name, 32) for name in ACTIVATIONS[1:]), ("gelu", 16)])
def test_activations_stay_within_their_errors(name: str, bits: int) -> None:
    """Of fp32 arithmetic as the simulator does it, against float64; `bits`: of the result."""
    x = np.concatenate([np.linspace(-20, 20, 3000), np.geomspace(1e-6, 90, 548), -np.geomspace(1e-6, 90, 548)])
    x = x.astype(np.float32)
    with gr.Kernel("k") as kernel:
        source, result = gr.input("x", [4096], gr.fp32), gr.output("y", [4096], gr.fp32)
        (b,), (t,) = gr.blocks(32).indices(), gr.threads(128).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, source.tile([128])[b][t])
        r[:] = epilogues.activation(name, bits)(r)
        gr.move(result.tile([128])[b][t], r)
    y = np.zeros_like(x)
    kernel.simulate(x, y)
    want = activate(x, name)
    argument = {"gelu_tanh": twice_u(x.astype(np.float64)), "tanh": 0, "relu": 0}.get(name, x)
    bound = 2.0**-22 * np.abs(x) if name == "gelu" else 2.0**-21 * np.abs(want) * (1 + np.abs(argument))
    if bits == 16:  # a quarter of what rounding to fp16 adds
        bound = 2.0**-13.5 * np.abs(want) + 2.0**-29 * np.abs(x)
    assert (np.abs(y - want) <= bound + 1e-36).all()


@pytest.mark.parametrize("out", ["fp16", "fp32"])
@pytest.mark.parametrize("split_k", [1, 2])
def test_beta_of_zero_reads_no_number_into_the_result(out: str, split_k: int, rng) -> None:
    """As in BLAS: C may be memory that was never written."""
    c = small(alpha=True, beta=True, out=out, split_k=split_k)
    x = operands(rng, c, 35, 40, 48)
    x["c"][:7], x["c"][7:20] = np.nan, np.inf
    want = 0.5 * (x["a"].astype(np.float64) @ x["b"].astype(np.float64))
    for beta in (0.0, -0.0):
        run_gemm(c, x["a"], x["b"], x["c"], **terms(c, x, beta=beta))
        close(x["c"], want, c, 48)
    x["c"][3] = np.nan
    run_gemm(c, x["a"], x["b"], x["c"], **terms(c, x, beta=1.0))
    assert np.isnan(x["c"][3]).all()
    assert not np.isnan(np.delete(x["c"], 3, 0)).any()


def test_relu_keeps_what_is_no_number(rng) -> None:
    c = small(activation="relu")
    x = operands(rng, c, 8, 8, 8)
    x["a"][3, 3] = np.nan
    run_gemm(c, x["a"], x["b"], x["c"])
    assert np.isnan(x["c"][3]).all()
    assert not np.isnan(np.delete(x["c"], 3, 0)).any()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(gr.VerifyError, match=r"one of None, 'relu', .*\n  got: 'swish'"):
        small(activation="swish")


# Configurations.


def test_equal_configurations_are_one_kernel() -> None:
    assert gemm_launches(small(bias=True))[0].kernel is gemm_launches(small(bias=True))[0].kernel
    two, three = (gemm_launches(small(split_k=s, align=(2, 2, 2))) for s in (2, 3))
    assert [x.kernel for x in two] == [x.kernel for x in three]
    assert two[0].kernel is three[0].kernel
    padded = [gemm_launches(small(align=(a, 16, 16), pad=(True, False)))[1].kernel for a in (2, 4)]
    assert padded[0] is padded[1]


def test_workspaces() -> None:
    c = small(align=(2, 2, 2), pad=(True, True), order="TT", split_k=3)
    assert gemm_workspaces(c, 5, 7, 9) == {
        "A_padded": ((5, 64), "fp16"), "B_padded": ((9, 64), "fp16"), "W": ((3, 5, 8), "fp32")
    }  # fmt: skip
    c = small(align=(2, 2, 2), pad=(True, True), order="NN", batched=True)
    assert gemm_workspaces(c, 5, 7, 9, 2) == {"A_padded": ((2, 9, 64), "fp16"), "B_padded": ((2, 7, 64), "fp16")}


@pytest.mark.parametrize("seed", range(40))
def test_selected_configurations_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    align = tuple(int(x) for x in rng.choice([16, 8, 4, 2], 3))
    step = max(align) // 2
    M, N, K = (int(x) * step for x in rng.integers(1, 1 + 70 // step, 3))
    c = select_gemm(M, N, K, align=align, order=str(rng.choice(ORDERS)), bias=True, workspaces=bool(seed % 2))
    c = replace(c, tile=(64, 64, c.tile[2]), warps=(2, 2), stages=2)  # the same kinds of kernels, faster to simulate
    simulate(rng, c, M, N, K)


def test_choices() -> None:
    assert select_gemm(4096, 4096, 4096).tile[:2] in ((256, 128), (128, 256))
    assert select_gemm(1024, 1024, 1024).tile[:2] == (64, 64)
    assert select_gemm(16, 4096, 4096).split_k > 1
    assert select_gemm(16, 4096, 4096, workspaces=False).split_k == 1
    assert select_gemm(1023, 1025, 1027, align=(2, 2, 2)).pad == (True, True)
    assert select_gemm(1023, 1025, 1027, align=(2, 2, 2), workspaces=False).pad == (False, False)
    assert select_gemm(20, 21, 23, align=(2, 2, 2)).pad == (False, False)
    assert select_gemm(4096, 4096, 4096, shared_bytes=99 * 1024).tile[:2] == (128, 128)
    assert select_gemm(64, 64, 65536, dtype="i8").split_k > 1
    assert select_gemm(64, 64, 65536).split_k > 16  # few blocks otherwise
    assert select_gemm(64, 64, 65536, batch=60000).split_k == 1  # a grid has so many
    assert select_gemm(1, 8192, 1024).split_k == 1
    assert select_gemm(1000, 1000, 1000).tile[:2] == (96, 96)  # lines that begin in the middle of the caches' lines
    assert select_gemm(3072, 768, 8192).tile[:2] == (96, 192)  # 128 blocks
    assert select_gemm(2**30 + 1, 3, 5, align=(2, 2, 2)).pad == (False, False)
    hash(select_gemm(8, 8, 8, batch=3))


# On the GPU.


@functools.cache
def torch_types() -> Any:
    import torch

    return torch, {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8,
                   "i32": torch.int32}  # fmt: skip


def run_on_the_gpu(rng, c: GemmConfig, M: int, N: int, K: int, batch: tuple[int, ...] = ()) -> None:
    torch, types = torch_types()
    base = replace(c, dtype="fp32", out="fp32", align=(16, 16, 16)) if c.dtype == "bf16" else c  # NumPy has no bf16
    x = operands(rng, base, M, N, K, batch)
    up = {n: torch.from_numpy(np.ascontiguousarray(v)).cuda() for n, v in x.items()}
    for n, row_major in (("a", c.order[0] == "T"), ("b", c.order[1] == "T")):
        up[n] = up[n].to(types[c.dtype])
        up[n] = up[n] if row_major else up[n].mT.contiguous().mT
    for n in ("c", "bias", "residual"):
        up[n] = up[n].to(types[c.out_dtype])
    want = expected(c, {n: v.double().cpu().numpy() for n, v in up.items()}, 0.5, 0.25)
    if not c.beta:
        up["c"].fill_(float("nan") if c.out_dtype != "i32" else 77)
    run_gemm(c, up["a"], up["b"], up["c"], **terms(c, up))
    torch.cuda.synchronize()
    close(up["c"].double().cpu().numpy(), want, c, K)


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kernel(self, kind: str, rng) -> None:
        c = KINDS[kind]
        run_on_the_gpu(rng, c, 304, 272, 208, (2,) if c.batched else ())

    @pytest.mark.parametrize("seed", range(60))
    def test_random_products(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        align = tuple(int(x) for x in rng.choice([16, 8, 4, 2], 3))
        step = max(align) // 2
        M, N, K = (int(x) * step for x in rng.integers(1, 1 + int(rng.choice([50, 300, 1100])) // step, 3))
        fields = {n: bool(rng.integers(2)) for n in ("bias", "residual", "alpha", "beta")}
        batch = (3,) if seed % 5 == 0 else ()
        c = select_gemm(
            M, N, K, align=align, order=str(rng.choice(ORDERS)), dtype=str(rng.choice(["fp16", "bf16"])),
            activation=ACTIVATIONS[seed % len(ACTIVATIONS)], batch=batch[0] if batch else None, **fields,
        )  # fmt: skip
        run_on_the_gpu(rng, c, M, N, K, batch)

    @pytest.mark.parametrize("size", [(1023, 1025, 1027), (257, 4099, 1031), (1, 1, 1), (1, 4097, 3), (129, 1, 4097)])
    @pytest.mark.parametrize("order", ORDERS)
    def test_odd_sizes(self, order: str, size: tuple[int, int, int], rng) -> None:
        for workspaces in (True, False):
            run_on_the_gpu(rng, select_gemm(*size, align=(2, 2, 2), order=order, workspaces=workspaces), *size)
