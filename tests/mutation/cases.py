"""The kernels whose mutants are judged, with arguments of calls: as small as they still tell.

Every function of graphene/kernels and of examples that returns a ``gr.Kernel`` has a case under its name, those of
attention in attention_cases.py:

    @case("scale")
    def _() -> Case:
        x = normal(0, 70)
        return Case(scale(64), [lambda: [x, np.zeros_like(x)]])
"""

from __future__ import annotations

import ast
import functools
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import graphene as gr
from graphene import kernels
from graphene.kernels import (
    NormColumnsConfig,
    NormConfig,
    ReductionConfig,
    RowTile,
    SoftmaxConfig,
    TransposeConfig,
    flash_fwd,
    fused_mlp,
    gemm_pad,
    gemm_reduce,
    gemm_sm70,
    gemm_sm80,
    layernorm,
    layernorm_kernel,
    rmsnorm_kernel,
    softmax_kernel,
)
from graphene.kernels.gemm.grouped import GroupedConfig, grouped_kernel
from graphene.kernels.gemm.weights import WeightsConfig, weights_kernel
from graphene.kernels.mlp import MlpConfig, mlp_kernel, runs_of
from graphene.kernels.mlp_sm90 import MlpSm90Config, mlp_sm90
from graphene.kernels.mlp_sm90 import runs_of as sm90_runs_of
from graphene.kernels.recurrent import CellConfig, recurrent_cell
from graphene.kernels.recurrent_sm90 import CellSm90Config, cell_sm90
from graphene.kernels.rotary import RotaryConfig, rotary_kernel
from graphene.kernels.rows.cross_entropy import (
    CrossEntropyConfig,
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
)
from graphene.kernels.rows.groupnorm import GroupNormConfig, groupnorm_kernel
from graphene.kernels.rows.softmax import log_softmax_columns_kernel, log_softmax_kernel

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A kernel that promises its result; ``calls`` make the arguments of calls, beside those that `check` chooses."""

    kernel: gr.Kernel
    calls: list[Callable[[], Sequence[Any]]]


CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers the case of the function ``name``; of a second one of the same function: ``"name, what differs"``."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        assert name not in CASES, name
        CASES[name] = make
        return make

    return register


def builders() -> set[str]:
    """The functions that return a kernel, by name: of the library and of the examples."""
    found = set()
    for path in [*ROOT.glob("graphene/kernels/**/*.py"), *ROOT.glob("examples/*.py")]:
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.returns is None:
                continue
            if node.args.args and ast.unparse(node.args.args[0]) in ("product: Product", "p: GemmProblem"):
                continue  # what gemm_sm80 and its like call, or are called by, with what they were given
            if ast.unparse(node.returns) in ("gr.Kernel", "Kernel", "graphene.Kernel"):
                found.add(node.name)
    return found


def example(name: str, function: str) -> Any:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))[function]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@case("simple_gemm")
def _() -> Case:
    """The paper's root is a generic Spec, which promises nothing: here it says what it means."""
    made = example("03_simple_gemm", "simple_gemm")(256, 256, 3)
    kernel = gr.parse(str(made).replace("%3 <- Spec<<<", "%3 <- MatMul<<<"))
    kernel = kernel.with_promise(made.promise.means, sums=made.promise.sums)
    a, b, c = (np.asfortranarray(normal(i, *s)) for i, s in enumerate([(256, 3), (3, 256), (256, 256)]))
    return Case(kernel, [lambda: [a, b, c]])


@case("ldmatrix")
def _() -> Case:
    tile = np.arange(256, dtype=np.float16).reshape(16, 16)
    return Case(example("02_ldmatrix", "ldmatrix")(), [lambda: [tile, np.zeros((32, 8), np.float16)]])


@case("tensor_core_tile")
def _() -> Case:
    a, b = normal(0, 128, 64), normal(1, 128, 64)
    kernel = example("04_tensor_core_tile", "tensor_core_tile")()
    return Case(kernel, [lambda: [a, b, np.full((128, 128), np.nan, np.float32)]])


@case("mfma_64x32")
def _() -> Case:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((64, 3), (3, 32), (64, 32)))
    return Case(example("05_amd_mfma", "mfma_64x32")(3), [lambda: [a, b, c]])


@case("tma_copy")
def _() -> Case:
    x = normal(0, 70, 200)
    return Case(example("11_tma_copy", "tma_copy")(64, 32), [lambda: [x, np.zeros_like(x)]])


@case("gemm_sm90")
def _() -> Case:
    m, n, k = 130, 72, 200  # ragged everywhere, and more k-tiles than stages; three tiles of C
    a, b = normal(0, m, k), normal(1, n, k)
    kernel = example("12_gemm_sm90", "gemm_sm90")(64, 64, 3)
    return Case(kernel, [lambda: [a, b, np.full((m, n), np.nan, np.float16)]])


@case("gemm_sm80")
def _() -> Case:
    m, n, k = 70, 72, 232  # ragged everywhere, and more than twice as many k-tiles as stages
    a, b, bias = normal(0, m, k), normal(1, n, k), normal(2, n)
    kernel = gemm_sm80(64, 64, 32, 3)
    return Case(kernel, [lambda: [a, b, bias, np.zeros((m, n), np.float16)]])


@case("flash_fwd")
def _() -> Case:
    heads = 2

    def call(sq: int, sk: int) -> list[Any]:
        q, k, v = (normal(i, 2, s, heads, 32) for i, s in enumerate((sq, sk, sk)))
        return [q, k, v, np.zeros_like(q), 0.18]

    # Tiles that all rows see whole, the diagonal, a ragged edge; then rows that see nothing.
    return Case(flash_fwd(32, 32, 16, 2, True), [lambda: call(35, 70), lambda: call(35, 1)])


@case("layernorm")
def _() -> Case:
    x, gamma, beta = normal(0, 3, 1000), normal(1, 1000), normal(2, 1000)
    return Case(layernorm(1000), [lambda: [x, gamma, beta, np.zeros_like(x)]])


def norm_case(build: Callable[..., gr.Kernel], tile: RowTile, **options: Any) -> Case:
    """Two rows more than a block has; with all that a normalisation may have unless `options` says otherwise."""
    config = NormConfig(tile, **{"eps": 1e-5, **options})
    rows = 2 + tile.rows
    x, r = normal(0, rows, tile.width), normal(1, rows, tile.width)
    gamma, beta = normal(2, tile.width), normal(3, tile.width)

    def call() -> list[Any]:
        matrices = [x, r] if config.residual else [x]
        outputs = [np.zeros_like(x) for _ in range(2 if config.write_sum else 1)]
        return [*matrices, gamma, *([beta] if config.beta else []), *outputs]

    return Case(build(config), [call])


@case("layernorm_kernel")
def _() -> Case:
    """Several rows a block, a ragged last vector; X + R."""
    return norm_case(layernorm_kernel, RowTile(70, 16, 2, 2), residual=True, write_sum=True)


@case("layernorm_kernel, in shared memory")
def _() -> Case:
    return norm_case(layernorm_kernel, RowTile(812, 64, 1, 4, "shared"))


@case("rmsnorm_kernel, dense")
def _() -> Case:
    """Rows that begin anywhere: an element before the vectors, or behind them."""
    return norm_case(rmsnorm_kernel, RowTile(133, 32, 1, 2, dense=2), beta=False)


@case("rmsnorm_kernel")
def _() -> Case:
    """More warps than lanes read one by one."""
    return norm_case(rmsnorm_kernel, RowTile(1000, 256, 1, 4), beta=False)


@case("rmsnorm_kernel, factors plus an argument")
def _() -> Case:
    x, gamma = normal(0, 5, 40), normal(1, 40)
    kernel = rmsnorm_kernel(NormConfig(RowTile(40, 8, 4, 4), beta=False, shift=True))
    return Case(kernel, [lambda: [x, gamma, np.zeros_like(x), 1e-5, 1.0]])


@case("groupnorm_kernel")
def _() -> Case:
    """Vectors of one channel each; the last ones of a group are not a whole round of the threads."""
    x, gamma, beta = normal(0, 2, 3 * 2 * 36), normal(1, 6), normal(2, 6)
    kernel = groupnorm_kernel(GroupNormConfig(RowTile(2 * 36, 32, 1, 4), 3, 2))
    return Case(kernel, [lambda: [x, gamma, beta, np.zeros_like(x), 1e-5]])


@case("groupnorm_kernel, without factors")
def _() -> Case:
    x = normal(0, 3, 2 * 21)
    config = GroupNormConfig(RowTile(21, 32, 1, 1), 2, 3, gamma=False, beta=False)
    return Case(groupnorm_kernel(config), [lambda: [x, np.zeros_like(x), 1e-5]])


@case("rotary_kernel")
def _() -> Case:
    """Heads of three vectors in four lanes, two of them a thread; a norm."""
    config = RotaryConfig((4, 2), 24, norm=True, vector=4, each=2, threads=32)
    given = [normal(0, 2, 3, 4, 24), normal(1, 2, 3, 2, 24), normal(2, 2, 3, 24), normal(3, 2, 3, 24)]
    factors, y = [normal(4, 24), normal(5, 24)], [np.zeros_like(x) for x in given[:2]]
    return Case(rotary_kernel(config), [lambda: [*given, *factors, *y, 1.0, 1e-5]])


@case("rotary_kernel, two steps")
def _() -> Case:
    """Heads of 66 elements, read one by one: a half has 33 for 32 lanes, so one lane has two of each."""
    config = RotaryConfig((1, 1), 66, norm=True, vector=1, threads=32)
    given = [normal(0, 1, 2, 1, 66), normal(1, 1, 2, 1, 66), normal(2, 1, 2, 66), normal(3, 1, 2, 66)]
    factors, y = [normal(4, 66), normal(5, 66)], [np.zeros_like(x) for x in given[:2]]
    return Case(rotary_kernel(config), [lambda: [*given, *factors, *y, 1.0, 1e-5]])


@case("rotary_kernel, neighbours")
def _() -> Case:
    config = RotaryConfig((2, 1), 8, "neighbours", vector=8, threads=32)
    given = [normal(0, 1, 40, 2, 8), normal(1, 1, 40, 1, 8), normal(2, 1, 40, 8), normal(3, 1, 40, 8)]
    return Case(rotary_kernel(config), [lambda: [*given, *(np.zeros_like(x) for x in given[:2])]])


def weights_case(c: WeightsConfig, M: int, N: int, K: int) -> Case:
    bits = np.random.default_rng(1)
    words = bits.integers(-(2**31), 2**31, (N // 16, K // 64, 32 * c.words)).astype(np.int32)
    x, scale = normal(0, M, K), normal(2, K // c.group, N)
    more = [bits.integers(0, 17, scale.shape).astype(np.uint8)] * c.zeros + [normal(3, N)] * c.bias
    return Case(weights_kernel(c), [lambda: [x, words & -0x40404041, scale, *more, np.zeros((M, N), np.float16)]])


@case("weights_kernel")
def _() -> Case:
    return weights_case(WeightsConfig(zeros=True, bias=True, group=64, tokens=2, warps=(1, 1), stages=2), 9, 48, 256)


@case("weights_kernel, without zero points, in a cluster")
def _() -> Case:
    return weights_case(WeightsConfig(tiles=1, warps=(1, 1), stages=2, cluster=2), 3, 32, 384)


@case("weights_kernel, from memory to registers")
def _() -> Case:
    c = WeightsConfig(zeros=True, group=64, tiles=1, warps=(1, 1), stages=2, ahead=2)
    return weights_case(c, 3, 32, 640)


@case("weights_kernel, of whole tiles")
def _() -> Case:
    return weights_case(WeightsConfig(tiles=1, warps=(2, 1), stages=3, tokens=2, whole=True), 9, 64, 512)


@case("weights_kernel, of fp8")
def _() -> Case:
    return weights_case(WeightsConfig(bits=8, tiles=1, warps=(1, 2), stages=2), 3, 32, 256)


@case("grouped_kernel")
def _() -> Case:
    kernel = grouped_kernel(GroupedConfig(b_as_nk=True, tile=(32, 16, 32), warps=(2, 1), stages=3))
    a, b, ends = normal(0, 70, 40), normal(1, 4, 40, 24).swapaxes(1, 2).copy().swapaxes(1, 2), [0, 33, 37, 60]
    return Case(kernel, [lambda: [a, b, np.array(ends, np.int32), np.zeros((70, 24), np.float16)]])


@case("grouped_kernel, for Hopper")
def _() -> Case:
    c = GroupedConfig(b_as_nk=True, tile=(64, 16, 64), warps=(4, 1), stages=2, kernel="gemm_sm90", panel=2)
    a, b, ends = normal(0, 150, 72), normal(1, 3, 72, 24).swapaxes(1, 2).copy().swapaxes(1, 2), [70, 70, 137]
    return Case(grouped_kernel(c), [lambda: [a, b, np.array(ends, np.int32), np.zeros((150, 24), np.float16)]])


@case("grouped_kernel, along k")
def _() -> Case:
    kernel = grouped_kernel(GroupedConfig(along_k=True, tile=(32, 16, 32), warps=(2, 1), stages=3))
    a, b, ends = normal(0, 70, 40).T, normal(1, 70, 24), np.array([33, 33, 70], np.int32)
    return Case(kernel, [lambda: [a, b, ends, np.zeros((3, 40, 24), np.float16)]])


def softmax_case(tile: RowTile, build: Callable[..., gr.Kernel] = softmax_kernel) -> Case:
    """Maxima all over the rows, so large that a power of e overflows where one is missed."""
    x = normal(0, 24, tile.width)
    x[np.arange(24), np.linspace(0, tile.width - 1, 24).astype(int)] = 1000
    return Case(build(SoftmaxConfig(tile)), [lambda: [x, np.zeros_like(x)]])


@case("softmax_kernel")
def _() -> Case:
    return softmax_case(RowTile(250, 32, 8, 2))


@case("softmax_kernel, read by every pass")
def _() -> Case:
    return softmax_case(RowTile(600, 32, 1, 8, "memory"))


@case("log_softmax_kernel")
def _() -> Case:
    return softmax_case(RowTile(250, 32, 8, 2), log_softmax_kernel)


def softmax_columns_case(build: Callable[..., gr.Kernel]) -> Case:
    """37 rows: two parts of a column's sum, the second not full."""
    x = normal(0, 2, 37, 70)
    x[np.arange(70) % 2, np.arange(70) % 37, np.arange(70)] = 1000
    return Case(build(kernels.SoftmaxColumnsConfig(rows=4)), [lambda: [x, np.zeros_like(x)]])


@case("softmax_columns_kernel")
def _() -> Case:
    return softmax_columns_case(kernels.softmax_columns_kernel)


@case("log_softmax_columns_kernel")
def _() -> Case:
    return softmax_columns_case(log_softmax_columns_kernel)


def entropy_case(tile: RowTile, gradient: bool, every: bool) -> Case:
    """Targets all over the rows, the last of which is ignored."""
    rows = tile.rows + 2
    x, g = normal(0, rows, tile.width) * np.float16(3), normal(1, rows).astype(np.float32)
    target = (np.arange(rows, dtype=np.int64) * 7 + 3) % tile.width
    target[-1] = -100
    wide = x.astype(np.float64)
    lse = np.log(np.exp(wide).sum(1)).astype(np.float32)

    def call() -> list[Any]:
        made = [lse, g, np.zeros_like(x)] if gradient else [np.zeros(rows, np.float32) for _ in range(2)]
        return [x, target, *made, *([0.1, 0.25] if every else []), -100]

    build = cross_entropy_backward_kernel if gradient else cross_entropy_kernel
    return Case(build(CrossEntropyConfig(tile, smoothing=every, z=every)), [call])


@case("cross_entropy_kernel")
def _() -> Case:
    return entropy_case(RowTile(50, 8, 8, 2), gradient=False, every=True)


@case("cross_entropy_kernel, read part by part")
def _() -> Case:
    return entropy_case(RowTile(600, 32, 1, 8, "memory"), gradient=False, every=False)


@case("cross_entropy_backward_kernel")
def _() -> Case:
    return entropy_case(RowTile(50, 8, 8, 2), gradient=True, every=True)


def backward_case(build: Callable[..., gr.Kernel], tile: RowTile, stats: int) -> Case:
    rows = 2 + tile.rows
    x, dy, ds = (normal(i, rows, tile.width) for i in range(3))

    def call() -> list[Any]:
        per_row = [np.zeros(rows, np.float32) for _ in range(stats)]
        return [x, dy, normal(3, tile.width), ds, np.zeros_like(x), *per_row]

    return Case(build(NormConfig(tile, write_sum=True, eps=1e-5)), [call])


@case("layernorm_backward_kernel")
def _() -> Case:
    return backward_case(kernels.layernorm_backward_kernel, RowTile(70, 16, 2, 2), 2)


@case("rmsnorm_backward_kernel")
def _() -> Case:
    return backward_case(kernels.rmsnorm_backward_kernel, RowTile(812, 64, 1, 4, "memory"), 1)


@case("norm_columns_kernel")
def _() -> Case:
    x, dy = normal(0, 23, 70), normal(1, 23, 70)
    mean, rstd = (normal(i, 23).astype(np.float32) for i in (2, 3))
    kernel = kernels.norm_columns_kernel(NormColumnsConfig(rows=4))
    return Case(kernel, [lambda: [x, dy, mean, rstd, *np.zeros((2, 3, 70), np.float32)]])


@case("reduction_kernel")
def _() -> Case:
    x = normal(0, 5, 150)
    kernel = kernels.reduction_kernel(ReductionConfig(threads=8, rows=4, vector=2, scale=True))
    return Case(kernel, [lambda: [x, np.zeros((5, 3), np.float16), 0.5]])


@case("reduction_kernel, by columns")
def _() -> Case:
    x = normal(0, 23, 70)
    kernel = kernels.reduction_kernel(ReductionConfig(0, threads=32, rows=4, vector=2))
    return Case(kernel, [lambda: [x, np.zeros((3, 70), np.float16)]])


@case("transpose_kernel")
def _() -> Case:
    x = normal(0, 2, 68, 72)
    kernel = kernels.transpose_kernel(TransposeConfig(load=8, store=4))
    return Case(kernel, [lambda: [x, np.zeros((2, 72, 68), np.float16)]])


@case("elementwise_kernel")
def _() -> Case:
    config = kernels.ElementwiseConfig((gr.fp16, gr.fp16), gr.fp16, (False, True), threads=16, rows=4, vector=2)
    x, y = normal(0, 2, 6, 70), normal(1, 2, 6)
    kernel = kernels.elementwise_kernel(lambda x, y: gr.max(x, y), config)
    return Case(kernel, [lambda: [x, y, np.zeros_like(x)]])


def terms() -> Callable[..., Any]:
    """An epilogue that tells its arguments apart."""
    return lambda x, *more: gr.max(sum((t * (2 + i) for i, t in enumerate(more)), x), -9)


@case("gemm_sm80, through registers")
def _() -> Case:
    """Odd sizes; lines along m and n; a residual; rows of tiles in groups."""
    m, n, k = 71, 45, 169
    a, b, bias, residual = normal(0, k, m).T, normal(1, k, n).T, normal(2, n), normal(3, m, n)
    kernel = gemm_sm80(32, 32, 32, 3, terms(), warps=(2, 2), order="NT", align=(2, 2, 2), residual=True, group=2)
    return Case(kernel, [lambda: [a, b, bias, residual, np.zeros((m, n), np.float16)]])


@case("gemm_sm80, batched parts of k")
def _() -> Case:
    a, b = normal(0, 2, 35, 208), normal(1, 2, 208, 36)
    kernel = gemm_sm80(
        32, 32, 32, 2, None, warps=(2, 2), align=(16, 8, 8), order="TT", b_as_kn=True, batched=True, split_k=True
    )
    return Case(kernel, [lambda: [a, b, np.zeros((3, 2, 35, 36), np.float32)]])


@case("gemm_sm80, tf32")
def _() -> Case:
    """Longer lines than there are elements, zeros behind them; C is an input too."""
    a, b, c = (normal(i, *s).astype(np.float32) for i, s in enumerate([(35, 92), (90, 40), (35, 36)]))
    a[:, 90:] = 0
    kernel = gemm_sm80(
        32, 32, 16, 3, terms(), warps=(2, 2), order="TN", dtype=gr.fp32, bias=False, alpha=True, beta=True,
        padded=(True, False), align=(16, 4, 8),
    )  # fmt: skip
    b = np.ascontiguousarray(b[:, :36].T)
    return Case(kernel, [lambda: [a, b, c.copy(), 0.5, 0.25]])


@case("gemm_sm70")
def _() -> Case:
    m, n, k = 70, 36, 76
    a, b, bias = normal(0, m, k), normal(1, n, k), normal(2, n)
    kernel = gemm_sm70(32, 32, 32, warps=(2, 2), align=(8, 8, 4))
    return Case(kernel, [lambda: [a, b, bias, np.zeros((m, n), np.float16)]])


@case("gemm_pad")
def _() -> Case:
    """Lines of several pieces and a ragged one; as many as a block and a half has; three of each."""
    a, b = normal(0, 3, 19, 515), normal(1, 3, 25, 501)
    outs = np.ones((3, 19, 520), np.float16), np.ones((3, 25, 504), np.float16)
    return Case(gemm_pad("AB", batched=True), [lambda: [a, outs[0].copy(), b, outs[1].copy()]])


@case("gemm_reduce")
def _() -> Case:
    w = normal(0, 3, 3, 10, 136).astype(np.float32)
    bias, residual, c = normal(1, 134), normal(2, 3, 10, 134), normal(3, 3, 10, 134)
    kernel = gemm_reduce(terms(), align=4, batched=True, bias=True, residual=True, alpha=True, beta=True)
    return Case(kernel, [lambda: [w, bias, residual, c.copy(), 0.5, 0.25]])


@case("fused_mlp")
def _() -> Case:
    x = normal(0, 70, 64)
    weights = [(normal(1 + i, 64, 64) / 8).astype(np.float16) for i in range(3)]
    biases = [normal(7 + i, 64) for i in range(3)]
    return Case(fused_mlp(3, 64, 64), [lambda: [x, weights, biases, np.zeros((70, 64), np.float16)]])


def mlp_case(config: MlpConfig, m: int) -> Case:
    x, tensors = normal(0, m, config.widths[0]), []
    for r in runs_of(config):
        at = range(r.first, r.first + r.layers)
        tensors.append([(normal(1 + i, r.n, r.k) / 8).astype(np.float16) for i in at])
        if r.bias:
            tensors.append([normal(99 + i, r.n) for i in at])
    y = (m, config.widths[-1])
    return Case(mlp_kernel(config), [lambda: [x, *tensors, np.zeros(y, np.float16)]])


@case("mlp_kernel")
def _() -> Case:
    """Layers of one form, of which the ring holds less than two."""
    config = MlpConfig((48,) * 4, ("relu",) * 3, (True,) * 3, rows=16, warps=2, chunk=32, stages=3)
    return mlp_case(config, 40)


@case("mlp_kernel, ragged")
def _() -> Case:
    """A wide input that arrives in pieces, a hidden layer that fills up tiles, a wide result in pieces."""
    config = MlpConfig(
        (84, 28, 44, 70), ("relu", "sigmoid", None), (True, False, True), rows=16, warps=2,
        chunk=32, stages=3, columns=32, resident=64,
    )  # fmt: skip
    return mlp_case(config, 35)


@case("mlp_kernel, columns divided")
def _() -> Case:
    config = MlpConfig(
        (40, 64, 64, 24), ("relu",) * 3, (True,) * 3, rows=16, warps=2, across=3, chunk=32, stages=3, columns=48
    )
    return mlp_case(config, 40)


@case("mlp_sm90")
def _() -> Case:
    """Layers of one form between two others, a ragged width; three tiles of rows in a block, a ring of few stages."""
    config = MlpSm90Config((24, 32, 32, 40, 64), ("relu",) * 4, (True,) * 4, rows=64, stages=3, inputs=1)
    m, k = 128 * 8 + 40, config.widths
    weights = [(normal(1 + i, k[i + 1], k[i]) / 8).astype(np.float16) for i in range(4)]
    biases = [[normal(9 + r.first + i, r.n) for i in range(r.layers)] for r in sm90_runs_of(config)]
    return Case(mlp_sm90(config), [lambda: [normal(0, m, 24), *weights, *biases, np.zeros((m, 64), np.float16)]])


def cell_case(config: CellConfig | CellSm90Config, units: int, calls: list[tuple[int, int, int]]) -> Case:
    """A call for each (M, I, J)."""
    g, n = config.gates, units

    def call(m: int, i: int, j: int) -> list[Any]:
        inputs = [normal(0, m, i), normal(1, m, j), *([normal(2, m, n)] if g == 4 else [])]
        weights = [(normal(3 + t, g * n, k) / 8).astype(np.float16) for t, k in enumerate((i, j))]
        biases = [normal(5 + b, g * n) for b in range(config.biases)]
        return [*inputs, *weights, *biases, *(np.zeros((m, n), np.float16) for _ in range(2 if g == 4 else 1))]

    kernel = cell_sm90(config) if isinstance(config, CellSm90Config) else recurrent_cell(config)
    return Case(kernel, [functools.partial(call, *c) for c in calls])


@case("recurrent_cell")
def _() -> Case:
    """The paper's: once more tiles of each product than stages, once less; rows of tiles in groups."""
    config = CellConfig(tile=(32, 64, 32), warps=(2, 2), stages=3, group=2)
    return cell_case(config, 72, [(70, 136, 104), (33, 24, 104)])


@case("recurrent_cell, four gates")
def _() -> Case:
    config = CellConfig(gates=4, biases=2, tile=(32, 32, 32), warps=(2, 2), stages=4, align=(4, 4, 4, 4, 4))
    return cell_case(config, 34, [(35, 134, 102), (17, 26, 42)])


@case("cell_sm90")
def _() -> Case:
    """Columns that fill no tile, several tiles a block, of which a consumer passes over every other one."""
    return cell_case(CellSm90Config(tile=(64, 64), stages=3, group=2), 136, [(200, 136, 72)])


@case("cell_sm90, four gates")
def _() -> Case:
    return cell_case(CellSm90Config(gates=4, biases=2, tile=(64, 16), stages=2), 32, [(330, 72, 104)])


def everyday(name: str) -> Callable[[], Case]:
    def make() -> Case:
        kernel, arguments = example("14_everyday", "calls")()[name]
        return Case(kernel, [lambda: arguments])

    return make


for name in ("rotary", "histogram", "row_scan", "int4_product", "convolution", "cross_entropy", "top_k", "transpose"):
    case(name)(everyday(name))
