"""Mistakes planted by hand in decoding, caches in pages, attention and its gradients for Hopper, and products.

``python tests/mutation/further_mistakes.py`` checks every kernel that has one (further_mistakes.txt); tests do some.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_mistakes import read
from hopper_mistakes import BUILD as HOPPER
from hopper_mistakes import _gemm, _mlp
from product_mistakes import BUILD as PRODUCTS
from product_mistakes import Mistake, _norm, told
from product_mistakes import _gemm as _gemm_sm80

import graphene as gr


def _of(name: str) -> Any:
    return importlib.import_module(f"graphene.kernels.{name}")


def _attention(D: int, **options: Any) -> Any:
    return _of("attention.problem").Attention(D, **options)


def _decode(D: int, what: dict[str, Any], paged: bool = False, **how: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        config = _of("attention.decode").DecodeConfig(_attention(D, **what), **how)
        make = _of("attention.paged").attention_paged_kernel if paged else None
        kernel: gr.Kernel = (make or _of("attention.decode").attention_decode_kernel)(config)
        return kernel

    return build


def _forward(D: int, what: dict[str, Any], **how: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        config = _of("attention.sm90_config").ForwardSm90(_attention(D, **what), **how)
        kernel: gr.Kernel = _of("attention.sm90").attention_forward_sm90(config)
        return kernel

    return build


def _gradient(D: int, what: dict[str, Any], **how: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = _of("attention.backward_sm90")
        kernel: gr.Kernel = module.attention_gradient_sm90(module.GradientSm90(_attention(D, **what), **how))
        return kernel

    return build


def _keys(D: int, what: dict[str, Any], **how: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = _of("attention.keys_sm90")
        kernel: gr.Kernel = module.attention_keys_gradient_sm90(module.KeysSm90(_attention(D, **what), **how))
        return kernel

    return build


def _product(D: int, what: dict[str, Any], **how: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = _of("attention.product_sm90")
        kernel: gr.Kernel = module.attention_queries_product_sm90(
            module.ProductSm90(_attention(D, **what), 2, 2, **how)
        )
        return kernel

    return build


def _sums(name: str, *arguments: int) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        kernel: gr.Kernel = getattr(_of("attention.sums"), name)(_attention(arguments[0]), *arguments[1:])
        return kernel

    return build


def _entropy(tile: tuple[int, ...], gradient: bool = False, **options: Any) -> Callable[[Any], gr.Kernel]:
    def build(k: Any) -> gr.Kernel:
        module = _of("rows.cross_entropy")
        make = module.cross_entropy_backward_kernel if gradient else module.cross_entropy_kernel
        kernel: gr.Kernel = make(module.CrossEntropyConfig(k.RowTile(*tile), **options))
        return kernel

    return build


def _grouped(**options: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = _of("gemm.grouped")
        tile = {"tile": (32, 16, 32), "warps": (2, 1), "stages": 3}
        config = module.GroupedConfig(**(tile | options))
        kernel: gr.Kernel = module.grouped_kernel(config)
        return kernel

    return build


def _weights(**options: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = _of("gemm.weights")
        kernel: gr.Kernel = module.weights_kernel(module.WeightsConfig(stages=2, **options))
        return kernel

    return build


def _silu(k: Any) -> gr.Kernel:
    act = _of("epilogues").ACTIVATIONS["silu"]
    kernel: gr.Kernel = k.elementwise_kernel(act, k.ElementwiseConfig((gr.fp32,), gr.fp32, (False,), 32, 1, 2))
    return kernel


def _linear(act: str) -> Callable[[Any], gr.Kernel]:
    return lambda k: _gemm_sm80(epilogue=_of("epilogues").linear(act, True, True), bias=True, residual=True)(k)


def _silu_mlp(_: Any) -> gr.Kernel:
    module = _of("mlp")
    config = module.MlpConfig((48,) * 3, ("silu", "silu"), (True, True), rows=16, warps=2, chunk=32, stages=3)
    kernel: gr.Kernel = module.mlp_kernel(config)
    return kernel


def _values(_: Any) -> gr.Kernel:
    module = _of("attention.values_fp8")
    kernel: gr.Kernel = module.attention_values_kernel(module.ValuesConfig())
    return kernel


BUILD: dict[str, Callable[[Any], gr.Kernel]] = PRODUCTS | HOPPER
BUILD |= {
    "silu of fp32": _silu,
    "perceptron of silu": _silu_mlp,
    "linear, gelu": _linear("gelu"),
    "linear, relu": _linear("relu"),
    "values of fp8": _values,
    "training80": lambda k: k.attention_forward_kernel(
        k.ForwardConfig(_attention(16, bias=k.Extra(gr.fp16)), 32, 16, 2, lse=True, training=True)
    ),
    "keys80": lambda k: k.attention_keys_gradient_kernel(k.BackwardConfig(_attention(32, right=True), 32, 32, 2, 2)),
    "log softmax": lambda k: _of("rows.softmax").log_softmax_kernel(k.SoftmaxConfig(k.RowTile(250, 32, 8, 2))),
    "log softmax of columns": lambda k: _of("rows.softmax").log_softmax_columns_kernel(
        k.SoftmaxColumnsConfig(rows=4)
    ),
    "rmsnorm, sums": _norm("rmsnorm_kernel", residual=True, write_sum=True),
    "norm_columns of fp32": lambda k: k.norm_columns_kernel(k.NormColumnsConfig(dtype=gr.fp32, rows=4)),
    "product of batches": _gemm_sm80(batched=True),
    "weights of a cluster": _weights(zeros=True, group=64, tokens=2, warps=(1, 1), cluster=2),
    "weights of two warps": _weights(zeros=True, group=64, tokens=2, warps=(2, 1)),
    "paged, long pages": _decode(32, {"right": True, "alike": True}, True, BM=16, BN=16, WARPS=1, stages=2, split=True,
                                 page=32),
    "groups": _grouped(b_as_nk=True),
    "groups of k": _grouped(along_k=True),
    "groups90": _grouped(tile=(64, 16, 64), warps=(4, 1), stages=2, kernel="gemm_sm90", panel=2),
    "weights": _weights(zeros=True, bias=True, group=64, tokens=2, warps=(1, 1)),
    "weights ahead": _weights(tiles=1, warps=(1, 1), ahead=2),
    "weights of fp8": _weights(bits=8, tiles=1, warps=(1, 2)),
    "entropy": _entropy((50, 8, 8, 2), smoothing=True, z=True),
    "entropy in parts": _entropy((600, 32, 1, 8, "memory")),
    "entropy's gradient": _entropy((50, 8, 8, 2), True, smoothing=True, z=True),
    "decode": _decode(32, {"right": True, "group": 3}, BM=16, BN=32, WARPS=2, stages=2, cluster=2, lse=True),
    "decode parts": _decode(16, {"group": 2}, BM=8, BN=16, WARPS=1, stages=2, split=True),
    "decode one": _decode(64, {"left": True, "right": True}, BM=8, BN=32, WARPS=2, stages=2),
    "paged": _decode(32, {"left": True, "right": True, "alike": True}, True, BM=16, BN=16, WARPS=1, stages=2,
                     split=True, page=8),
    "f90": _forward(16, {"right": True}, BN=16, consumers=2, stages=2),
    "f90 lse": _forward(64, {"right": True, "group": 2}, BN=32, consumers=2, stages=2, lse=True),
    "f90 train": _forward(16, {"left": True, "right": True, "group": 2}, BN=16, consumers=1, stages=2, queries=1,
                          apart=False, lazy=False, lse=True, training=True),
    "f90 packed": _forward(16, {"right": True, "varlen": True}, BN=16, consumers=2, stages=2, queries=1, lse=True,
                           persistent=False, copier=False),
    "f90 order": _forward(16, {"right": True, "varlen": True, "group": 2}, BN=16, consumers=1, stages=2, queries=1,
                          lse=True, persistent=False, copier=False, longest_first=True),
    "f90 bits": lambda k: _forward(16, {"mask": k.Extra(rows=False)}, BN=32, consumers=1, stages=2, queries=1, lse=True,
                                   persistent=False, copier=False, longest_first=True, bits=True)(k),
    "f90 list": lambda k: k.attention_tiles_kernel(_attention(16, mask=k.Extra(rows=False)), 64, 48, True),
    "f90 sinks": lambda k: _forward(16, {"bias": k.Extra(gr.fp32), "sinks": True, "group": 2}, BN=16, consumers=1,
                                    stages=2, queries=1, lse=True, training=True)(k),
    "f90 sinks too": _forward(16, {"right": True, "sinks": True}, BN=16, consumers=2, stages=2, lse=True),
    "f90 plain": _forward(32, {}, BN=32, consumers=2, stages=2),
    "f90 rest": lambda k: _forward(16, {"bias": k.Extra(gr.fp16)}, BN=16, consumers=1, stages=2, queries=1, lse=True,
                                   training=True)(k),
    "mlp, wide input": _mlp(328, 64, 64, stages=4),
    "f90 uneven": _forward(16, {}, BN=16, consumers=3, stages=2, uneven=True),
    "f90 mask": lambda k: _forward(16, {"mask": k.Extra(rows=False), "right": True}, BN=16, consumers=1, stages=2,
                                   queries=1)(k),
    "k90": _keys(16, {"right": True, "group": 2}, stages=2, held=2),
    "k90 window": _keys(16, {"left": True, "right": True}, stages=2),
    "k90 turns": _keys(72, {"left": True}, stages=2, direct=False, turns=True),
    "k90 ahead": _keys(16, {"right": True, "group": 2}, keys=2, stages=2, held=1),
    "k90 plain": _keys(16, {}, stages=2),
    "p90": _product(16, {"right": True, "group": 2}),
    "p90 window": _product(16, {"left": True, "right": True}),
    "g90": _gradient(64, {"right": True}),
    "g90 group": _gradient(16, {"right": True, "group": 2}, parts=2),
    "g90 plain": _gradient(64, {}),
    "rows90": _sums("attention_rows_kernel", 64),
    "sums90": _sums("attention_sums_kernel", 72, 2),
    "joined, two": _gemm(128, 64, 2, turns=False, warps=(8, 1), cluster=(1, 1, 2)),
    "lines": _gemm(beta=True, epilogue=lambda x: x),
    "batched cluster k": _gemm(turns=False, warps=(4, 1), cluster=(1, 1, 2), batched=True),
    "gelu16": lambda k: _gemm(epilogue=_of("epilogues").gelu_of_16_bits)(k),
    "promoted deep": _gemm(64, 64, 2, turns=False, warps=(4, 1), dtype=gr.fp8e4m3, promote=True, out=gr.fp32,
                           scales="tensor"),
}  # fmt: skip

MISTAKES = [Mistake(m.file, m.text, m.instead, m.kernel) for m in read(Path(__file__).with_suffix(".txt"))]


if __name__ == "__main__":
    silent = []
    for i, m in enumerate(MISTAKES):
        how = told(m, BUILD)
        print(f"{i + 1}/{len(MISTAKES)}", m, "->", how or "SILENT", flush=True)
        silent += [] if how else [m]
    print(f"{len(MISTAKES) - len(silent)} of {len(MISTAKES)} are told", *silent, sep="\n")
    sys.exit(bool(silent))
