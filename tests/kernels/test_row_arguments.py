"""What the builders of kernels that wait for memory take: everything else is refused with a code; nothing crashes."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    ElementwiseConfig,
    NormColumnsConfig,
    NormConfig,
    ReductionConfig,
    RowTile,
    SoftmaxColumnsConfig,
    SoftmaxConfig,
    TransposeConfig,
    elementwise_kernel,
    layernorm_backward_kernel,
    layernorm_kernel,
    norm_columns_kernel,
    reduction_kernel,
    rmsnorm_backward_kernel,
    rmsnorm_kernel,
    softmax_columns_kernel,
    softmax_kernel,
    transpose_kernel,
)
from graphene.select import (
    select_elementwise,
    select_norm,
    select_norm_backward,
    select_norm_columns,
    select_reduction,
    select_softmax,
    select_softmax_columns,
    select_transpose,
)

TILE = RowTile(64, 8, 4)
HALF = gr.fp16


def error(builder: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(gr.VerifyError) as e:
        builder(*args, **options)
    assert e.value.code == "KERNEL_ARGUMENT"
    return re.sub(r"\n  (?:(?:want|got): )?", " | ", str(e.value).replace("   [KERNEL_ARGUMENT]", ""))


FLOATS = 'one of "fp16", "bf16", "fp32"'
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (select_reduction, (6, 12, -2), {}, "select_reduction: axis does not fit | one of 0, 1 | -2"),
    (select_reduction, (6, 12, 2), {}, "select_reduction: axis does not fit | one of 0, 1 | 2"),
    (select_reduction, (6, 12, True), {}, "select_reduction: axis does not fit | one of 0, 1 | True"),
    (select_reduction, (-6, 12, 1), {}, "select_reduction: rows does not fit | an integer, 0 or more | -6"),
    (select_reduction, (6, "12", 1), {}, "select_reduction: columns is not an integer | an integer, 0 or more | '12'"),
    (select_reduction, (6, 12, 1), {"dtype": "fp16"},
     "select_reduction: dtype is not a type | one of gr.fp16, gr.bf16, gr.fp32, gr.i32 | 'fp16'"),
    (select_reduction, (6, 12, 1), {"dtype": gr.i8}, f"dtype does not fit | {FLOATS}, \"i32\" | 'i8'"),
    (select_reduction, (6, 12, 1), {"align_bytes": 3},
     "select_reduction: align_bytes does not fit | an integer, 2 or more, a multiple of 2 | 3"),
    (select_reduction, (6, 12, 1), {"align_bytes": 0}, "select_reduction: align_bytes does not fit"),
    (select_reduction, (6, 12, 1, "mul"), {}, 'op does not fit | one of "add", "max", "min" | \'mul\''),
    (ReductionConfig, (), {"dtype": gr.fp32},
     "vector is more than one instruction moves | at most 4 elements of fp32, 16 bytes | 8"),
    (ReductionConfig, (), {"dtype": gr.i32, "vector": 4, "scale": True},
     f"out_dtype, of scaled i32, does not fit | {FLOATS} | 'i32'"),
    (ReductionConfig, (), {"out_dtype": gr.i32}, f"out_dtype, of fp16, does not fit | {FLOATS} | 'i32'"),
    (ReductionConfig, (), {"threads": 12, "rows": 8}, "threads, no power of two, does not fit"),
    (ReductionConfig, (), {"threads": -32, "rows": -1}, "threads does not fit"),
    (ReductionConfig, (), {"vector": "8"}, "vector does not fit | one of 1, 2, 4, 8 | '8'"),
    (ReductionConfig, (), {"scale": 2.0}, "scale does not fit | True or False | 2.0"),
    (reduction_kernel, (None,), {}, "reduction_kernel: config is not a ReductionConfig | a ReductionConfig | None"),
    (select_norm, ("4", 64), {}, "rows is not an integer | an integer, 0 or more | '4'"),
    (select_norm, (4, 0), {}, "width does not fit"),
    (select_norm, (4, 64, "fp16"), {}, "dtype is not a type | one of gr.fp16, gr.bf16, gr.fp32 | 'fp16'"),
    (select_norm, (4, 64, gr.i32), {}, f"dtype does not fit | {FLOATS} | 'i32'"),
    (select_norm, (4, 64, gr.fp64), {}, f"dtype does not fit | {FLOATS} | 'fp64'"),
    (select_norm, (4, 64), {"align_bytes": 3}, "align_bytes does not fit"),
    (select_norm, (4, 64, gr.fp32), {"align_bytes": 2}, "an integer, 4 or more, a multiple of 4 | 2"),
    (select_norm, (4, 64), {"dense_bytes": -2}, "dense_bytes does not fit"),
    (select_norm, (4, 64), {"shared_bytes": 1e5}, "shared_bytes is not an integer"),
    (select_norm, (4, 64), {"gamma": "yes"}, "select_norm: gamma does not fit | True or False | 'yes'"),
    (select_norm, (4, 64), {"residual": 1}, "select_norm: residual does not fit"),
    (select_norm, (4, 64), {"write_sum": 1}, "NormConfig: write_sum does not fit"),
    (select_norm, (4, 64), {"eps": "x"}, "eps does not fit | a number, 0 or more | 'x'"),
    (select_norm, (4, 64), {"eps": -1.0}, "eps does not fit"),
    (select_norm, (4, 64), {"kind": "batchnorm"}, 'kind does not fit | one of "layernorm", "rmsnorm" | \'batchnorm\''),
    (NormConfig, (64,), {}, "NormConfig: tile is not a RowTile | a RowTile | 64"),
    (NormConfig, (TILE, gr.fp32), {}, "tile.vector is more than one instruction moves | at most 4 elements of fp32"),
    (NormConfig, (TILE,), {"affine_dtype": gr.fp32}, "tile.vector is more than one instruction moves"),
    (NormConfig, (TILE,), {"affine_dtype": "fp32"}, "affine_dtype is not a type"),
    (layernorm_kernel, (None,), {}, "layernorm_kernel: config is not a NormConfig | a NormConfig | None"),
    (rmsnorm_kernel, (TILE,), {}, "rmsnorm_kernel: config is not a NormConfig"),
    (select_norm_backward, (4, 64, "fp16"), {}, "dtype is not a type"),
    (select_norm_backward, (4, 64), {"gamma": 1}, "select_norm_backward: gamma does not fit"),
    (layernorm_backward_kernel, (None,), {}, "layernorm_backward_kernel: config is not a NormConfig"),
    (rmsnorm_backward_kernel, (NormConfig(RowTile(257, 32, dense=8)),), {},
     "rmsnorm_backward_kernel: tile.dense does not fit | 0, the gradients' rows begin with whole vectors | 8"
     " | fix: take the configuration of select_norm_backward"),
    (select_norm_columns, (4, 64, gr.i8), {}, "select_norm_columns: dtype does not fit"),
    (select_norm_columns, (4, 64), {"align_bytes": 1}, "select_norm_columns: align_bytes does not fit"),
    (NormColumnsConfig, (gr.fp32,), {"vector": 8}, "vector is more than one instruction moves"),
    (NormColumnsConfig, (gr.fp32,), {"centred": 1}, "centred does not fit"),
    (norm_columns_kernel, (None,), {}, "norm_columns_kernel: config is not a NormColumnsConfig"),
    (select_softmax, (4, 64, "fp16"), {}, "dtype is not a type"),
    (select_softmax, (4, 64, gr.i32), {}, "dtype does not fit"),
    (select_softmax, (0, 0), {}, "width does not fit"),
    (SoftmaxConfig, (None,), {}, "tile is not a RowTile"),
    (SoftmaxConfig, (TILE, gr.fp16, gr.fp32), {}, "tile.vector is more than one instruction moves"),
    (SoftmaxConfig, (TILE, gr.fp16, "fp32"), {}, "out_dtype is not a type"),
    (softmax_kernel, (None,), {}, "softmax_kernel: config is not a SoftmaxConfig"),
    (select_softmax_columns, (4, 64, gr.i8), {}, "select_softmax_columns: dtype does not fit"),
    (select_softmax_columns, (4, -64), {}, "select_softmax_columns: columns does not fit"),
    (select_softmax_columns, (4, 64), {"align_bytes": 3}, "select_softmax_columns: align_bytes does not fit"),
    (SoftmaxColumnsConfig, (gr.i8,), {}, f"dtype does not fit | {FLOATS} | 'i8'"),
    (SoftmaxColumnsConfig, (), {"vector": 8}, "vector does not fit | one of 1, 2, 4 | 8"),
    (softmax_columns_kernel, (None,), {}, "softmax_columns_kernel: config is not a SoftmaxColumnsConfig"),
    (select_transpose, (8, 8, "fp16"), {}, "select_transpose: dtype is not a type"),
    (select_transpose, (-8, 8), {}, "select_transpose: M does not fit"),
    (select_transpose, (8, 8), {"align_bytes": 3}, "select_transpose: align_bytes does not fit"),
    (TransposeConfig, ("fp16",), {}, "TransposeConfig: dtype is not a type"),
    (TransposeConfig, (gr.fp32, 8), {}, "load does not fit | one of 1, 2, 4 | 8"),
    (transpose_kernel, (None,), {}, "transpose_kernel: config is not a TransposeConfig"),
    (select_elementwise, (8, HALF, HALF), {}, "dtypes are not a tuple | the inputs' types, such as (gr.fp16, gr.fp16)"),
    (select_elementwise, (8, (HALF, "fp16"), HALF), {}, "dtypes[1] is not a type"),
    (select_elementwise, (8, (HALF,), "fp16"), {}, "out_dtype is not a type"),
    (select_elementwise, (8, (gr.fp64,), HALF), {}, "dtypes[0] does not fit"),
    (select_elementwise, (8, (HALF,), HALF, (True, False)), {}, "spread does not fit | True or False | (True, False)"),
    (select_elementwise, (8, (HALF,), HALF, 3), {}, "select_elementwise: spread does not fit | True or False | 3"),
    (RowTile, (1, 96, 4, 1), {"each": 2}, "a row of one element in registers has one thread | RowTile(width=1, "),
    (RowTile, (1, 2, 16, 1), {}, "a row of one element in registers has one thread | RowTile(width=1, "),
    (select_elementwise, (8, (HALF,), HALF), {"align_bytes": 0}, "align_bytes does not fit"),
    (ElementwiseConfig, ((gr.fp32,), gr.fp32, (False,)), {}, "vector is more than one instruction moves"),
    (ElementwiseConfig, ((HALF,), HALF, ()), {}, "spread does not fit | True or False | ()"),
    (elementwise_kernel, (None, select_elementwise(8, (HALF,), HALF)), {},
     "function cannot be called | a function of the inputs, such as lambda x, y: gr.max(x + y, 0) | None"),
    (elementwise_kernel, (lambda x, y: x + y, select_elementwise(8, (HALF,), HALF)), {},
     "the function takes other arguments | given: x0 | but: missing a required argument: 'y'"),
    (elementwise_kernel, (lambda x: None, select_elementwise(8, (HALF,), HALF)), {},
     "elementwise_kernel: the function gives something else | an expression of the inputs, or a number | None"),
    (elementwise_kernel, (lambda x: x, None), {}, "elementwise_kernel: config is not an ElementwiseConfig"),
]  # fmt: skip


@pytest.mark.parametrize(("builder", "args", "options", "text"), REFUSED)
def test_what_is_refused(builder: Any, args: Any, options: Any, text: str) -> None:
    assert text in error(builder, *args, **options)
    kernel = layernorm_kernel(NormConfig(TILE))  # nothing is left half built
    assert gr.parse(str(kernel)) == kernel


@pytest.mark.parametrize("keep", ["registers", "shared", "memory"])
@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_every_tile_that_is_taken_is_built(width: int, keep: str) -> None:
    """Rows shorter than their threads too."""
    built = 0
    for threads, rows, vector, each in itertools.product((1, 2, 4, 32, 96), (1, 4, 16), (1, 2, 8), (1, 2)):
        try:
            tile = RowTile(width, threads, rows, vector, keep, each=each)
        except gr.VerifyError:
            continue
        built += 1
        softmax_kernel(SoftmaxConfig(tile))
        layernorm_kernel(NormConfig(tile))
    assert built


@pytest.mark.parametrize(("dtype", "vector", "dense"), [(gr.fp32, 4, 8), (gr.fp32, 2, 4), (HALF, 8, 8)])
@pytest.mark.parametrize("keep", ["registers", "shared", "memory"])
def test_dense_rows_of_every_type_and_alignment(dtype: gr.DType, vector: int, dense: int, keep: str) -> None:
    """Addresses may be multiples of more than the 16 bytes that one instruction copies."""
    kernel = softmax_kernel(SoftmaxConfig(RowTile(515, 64, 1, vector, keep, dense=dense), dtype))
    x = np.random.default_rng(0).standard_normal((5, 515)).astype(np.float32 if dtype == gr.fp32 else np.float16)
    y = np.zeros_like(x)
    kernel.simulate(x, y)
    want = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, want / want.sum(1, keepdims=True), rtol=2e-3, atol=1e-6)


def test_whatever_is_taken_can_be_printed() -> None:
    """Any values for arguments: a kernel that can be printed, or a coded error."""
    rng = random.Random(0)
    values = [None, "fp16", -1, 0, 1, 3, 4, 8, 64, 1.5, True, gr.fp16, gr.fp32, gr.i8, gr.i32, gr.fp64, (4,)]
    good: list[tuple[Any, Any, list[Any], dict[str, Any]]] = [
        (select_norm, layernorm_kernel, [4, 64, gr.fp16], {"align_bytes": 16, "residual": True, "eps": 1e-5}),
        (select_norm_backward, layernorm_backward_kernel, [4, 64, gr.bf16], {"align_bytes": 8, "gamma": True}),
        (select_softmax, softmax_kernel, [4, 64, gr.fp32], {"align_bytes": 16, "dense_bytes": 0}),
        (select_softmax_columns, softmax_columns_kernel, [4, 64, gr.fp16], {"align_bytes": 16, "batch": 2}),
        (select_reduction, reduction_kernel, [4, 64, 1, "max", gr.fp16], {"align_bytes": 16, "scale": False}),
        (select_transpose, transpose_kernel, [8, 8, gr.fp16], {"align_bytes": 16}),
    ]
    built, codes = 0, set()
    for _ in range(150):
        select, build, args, options = rng.choice(good)
        args, options = list(args), dict(options)
        if rng.random() < 0.5:
            args[rng.randrange(len(args))] = rng.choice(values)
        else:
            options[rng.choice(list(options))] = rng.choice(values)
        try:
            str(build(select(*args, **options)))
            built += 1
        except gr.VerifyError as e:
            codes.add(e.code)
    assert built > 20
    assert codes == {"KERNEL_ARGUMENT"}
