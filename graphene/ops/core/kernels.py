"""From a configuration to kernels of graphene.kernels and the order of their arguments: the one place that knows both.

Kernels are kept: equal configurations share one. A reason in words stands for "there is no kernel".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from graphene import _core, dtypes
from graphene.kernels.elementwise import ElementwiseConfig, elementwise_kernel
from graphene.kernels.epilogues import ACTIVATIONS
from graphene.kernels.gemm.launches import PADDED_BYTES, gemm_launches
from graphene.kernels.gemm.problem import GemmConfig
from graphene.kernels.reduction import reduction_kernel
from graphene.kernels.rows.layernorm import layernorm_kernel
from graphene.kernels.rows.norm_backward import (
    exact_mean,
    layernorm_backward_kernel,
    norm_columns_kernel,
    rmsnorm_backward_kernel,
)
from graphene.kernels.rows.rmsnorm import rmsnorm_kernel
from graphene.kernels.rows.softmax import SoftmaxConfig, softmax_columns_kernel, softmax_kernel
from graphene.ops.core.torch import torch
from graphene.select.elements import select_elementwise, select_reduction
from graphene.select.gemm import select_gemm
from graphene.select.rows import (
    select_norm,
    select_norm_backward,
    select_norm_columns,
    select_softmax,
    select_softmax_columns,
)

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
MATMUL_DTYPES = ("float16", "bfloat16")
ROW_DTYPES = ("float16", "bfloat16", "float32")
MOST = 2**31 - 1  # elements of a row that kernels count
TOO_WIDE = "no kernel for rows of 2^31 elements and more"

Size: TypeAlias = "tuple[str | int, int]"  # "batch", "m", "n", "k" or a number; rounded up to a multiple


@dataclass
class Launches:
    """What is launched, in order: kernels with the names of their arguments, or numbers.

    ``workspaces``: by name, what they need besides: type and sizes. A name's suffix ".T" exchanges its last two
    dimensions, ".C" takes as many columns as the result has.
    """

    kernels: list[tuple[Any, list[str | float]]]
    workspaces: dict[str, tuple[str, list[Size]]] = field(default_factory=dict)


@functools.cache
def device(name: str) -> tuple[int, int, str | None]:
    """Multiprocessors, bytes of shared memory a block may have, the model; of a CPU what the simulator lowers for."""
    if name == "cpu":
        return 108, _core.shared_limit_bytes("sm_80"), None
    p = torch.cuda.get_device_properties(name)
    return p.multi_processor_count, getattr(p, "shared_memory_per_block_optin", 99 * 1024), p.name


@functools.cache
def memory_bytes(name: str) -> int:
    """All memory of a device; of a CPU as much as a large one has."""
    return 1 << 40 if name == "cpu" else int(torch.cuda.get_device_properties(name).total_memory)


@dataclass(frozen=True)
class Matmul:
    """A product as a kernel sees it.

    ``order``: whether a lies contiguous along k "T" or m "N", and b along n "T" or k "N". ``align``: bytes that divide
    the addresses, line starts and lengths of a, b and of result, bias and residual together.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    order: str
    align: tuple[int, int, int]
    batched: bool
    bias: bool
    residual: bool
    activation: str | None
    device: str
    out: str  # type of the result, bias and residual


def _gemm_config(p: Matmul) -> GemmConfig:
    options: dict[str, Any] = {
        "dtype": DTYPES[p.dtype], "order": p.order, "align": p.align, "bias": p.bias, "residual": p.residual,
        "activation": p.activation, "out": None if p.out == p.dtype else DTYPES[p.out],
    }  # fmt: skip
    if p.device == "cpu":  # the simulator computes whole tiles
        return GemmConfig((32, 32, 32), 2, (2, 2), batched=p.batched, **options)
    sms, shared_bytes, model = device(p.device)
    batch = p.batch if p.batched else None
    return select_gemm(p.m, p.n, p.k, batch=batch, sms=sms, shared_bytes=shared_bytes, device=model, **options)


def matmul(p: Matmul) -> Launches | str:
    """act(A @ B + bias) + residual."""
    c = _gemm_config(p)
    front: list[Size] = [("batch", 1)] if p.batched else []
    vector = PADDED_BYTES * 8 // dtypes_bits(DTYPES[p.dtype])
    workspaces: dict[str, tuple[str, list[Size]]] = {}
    for name, rows, along_k in (("A", "m", p.order[0] == "T"), ("B", "n", p.order[1] == "N")):
        if c.pad["AB".index(name)]:
            line: list[Size] = [(rows, 1), ("k", vector)] if along_k else [("k", 1), (rows, vector)]
            workspaces[name + "_padded"] = (c.dtype, front + line)
    if c.split_k > 1:
        workspaces["W"] = ("fp32", [(c.split_k, 1), *front, ("m", 1), ("n", 4)])
    return Launches([(x.kernel, list(x.arguments)) for x in gemm_launches(c)], workspaces)


def dtypes_bits(name: str) -> int:
    """Bits of an element."""
    return int(getattr(dtypes, name).bits)


@dataclass(frozen=True)
class Norm:
    """A normalisation over rows of ``width`` elements.

    ``align``: bytes that divide every address and row's start. ``dense``: where no gaps are between rows, bytes that
    divide every address.
    """

    kind: str  # "layer", "rms"
    rows: int
    width: int
    dtype: str
    align: int
    weight: bool
    bias: bool
    residual: bool
    total: bool  # also store input + residual
    eps: float
    device: str
    dense: int = 0


@functools.cache
def _norm(kind: str, config: Any) -> Any:
    return (layernorm_kernel if kind == "layer" else rmsnorm_kernel)(config)


def norm(p: Norm) -> Launches | str:
    """``norm(input + residual) * weight + bias``."""
    if p.dtype not in ROW_DTYPES:
        return f"no kernel for rows of {p.dtype}"
    config = select_norm(
        p.rows, p.width, getattr(dtypes, DTYPES[p.dtype]), align_bytes=p.align, dense_bytes=p.dense,
        shared_bytes=device(p.device)[1], device=device(p.device)[2], kind=f"{p.kind}norm",
        gamma=p.weight, beta=p.bias, residual=p.residual, write_sum=p.total,
    )  # fmt: skip
    given = {
        "input": True,
        "residual": p.residual,
        "weight": p.weight,
        "bias": p.bias,
        "output": True,
        "total": p.total,
    }
    return Launches([(_norm(p.kind, config), [*(name for name, has in given.items() if has), p.eps])])


@functools.cache
def _columns(config: Any) -> Any:
    return norm_columns_kernel(config)


@functools.cache
def _reduction(config: Any) -> Any:
    return reduction_kernel(config)


@functools.cache
def _norm_backward(kind: str, config: Any) -> Any:
    return (layernorm_backward_kernel if kind == "layer" else rmsnorm_backward_kernel)(config)


def norm_columns(rows: int, width: int) -> tuple[int, int, int]:
    """Of the kernel that sums over rows: rows of threads in a block, elements of a thread, parts of the rows."""
    config, parts = select_norm_columns(rows, width, dtypes.fp32, align_bytes=16)
    return config.rows, config.vector, parts


def norm_gradients(p: Norm, columns: bool) -> Launches | str:
    """Of the input, and where `columns` are wanted of weight and bias: of `p`, whose ``total`` has a gradient, too."""
    if p.dtype not in ROW_DTYPES:
        return f"no kernel for rows of {p.dtype}"
    dtype, shared_bytes = getattr(dtypes, DTYPES[p.dtype]), device(p.device)[1]
    config = select_norm_backward(
        p.rows, p.width, dtype, align_bytes=p.align, shared_bytes=shared_bytes, gamma=p.weight, residual=p.residual,
        write_sum=p.total,
    )  # fmt: skip
    centred = p.kind == "layer"
    statistics = ["mean"] * centred + ["rest"] * (centred and exact_mean(dtype)) + ["rstd"]
    inputs = ["x", "residual", "grad"] if p.residual else ["x", "grad"]
    given = (("weight", p.weight), ("total", p.total))
    names: list[str | float] = [*inputs, *(name for name, has in given if has), "dx", *statistics, p.eps]
    workspaces: dict[str, tuple[str, list[Size]]] = {name: ("fp32", [("rows", 1)]) for name in statistics}
    kernels: list[tuple[Any, list[str | float]]] = [(_norm_backward(p.kind, config), names)]
    if columns:
        options = {"centred": centred, "beta": True, "residual": p.residual}
        sums, parts = select_norm_columns(p.rows, p.width, dtype, align_bytes=p.align, **options)
        for name in ("dweight", "dbias"):
            workspaces[name + "_parts"] = ("fp32", [(parts, 1), ("width", 1)])
        kernels.append((_columns(sums), [*inputs, *statistics, "dweight_parts", "dbias_parts"]))
        last = select_reduction(parts, p.width, 0, dtype=dtypes.fp32, align_bytes=4, out_dtype=dtype)
        kernels += [(_reduction(last), [name + "_parts", name]) for name in ("dweight", "dbias")]
    return Launches(kernels, workspaces)


@dataclass(frozen=True)
class Softmax:
    """A softmax over rows of ``width`` elements. ``align``, ``dense``: as of ``Norm``.

    ``columns``: how many columns lie side by side; where there are several, the softmax goes over columns of ``width``
    elements.
    """

    rows: int
    width: int
    columns: int
    dtype: str
    out: str
    align: int
    device: str
    dense: int = 0


@functools.cache
def _softmax(config: SoftmaxConfig) -> Any:
    return softmax_kernel(config)


@functools.cache
def _softmax_columns(config: Any) -> Any:
    return softmax_columns_kernel(config)


def softmax_columns(width: int, columns: int, matrices: int, dtype: str = "float32", align: int = 4) -> Any:
    """The configuration for columns of ``width`` elements, `columns` of them side by side in each matrix."""
    t = getattr(dtypes, DTYPES[dtype])
    return select_softmax_columns(width, columns, t, align_bytes=align, batch=matrices)


def softmax(p: Softmax) -> Launches | str:
    """Softmax of rows or columns."""
    if p.dtype not in ROW_DTYPES or p.out not in ROW_DTYPES:
        return f"no kernel for a softmax of {p.dtype} in {p.out}"
    dtype, out = (getattr(dtypes, DTYPES[x]) for x in (p.dtype, p.out))
    if 1 < p.columns < 16 and p.width > 512 and p.device != "cpu":
        return "long columns, too few to read lines of them"
    if p.columns > 1:
        columns = softmax_columns(p.width, p.columns, p.rows, p.dtype, p.align)
        columns = replace(columns, out_dtype=None if out == dtype else out)
        return Launches([(_softmax_columns(columns), ["input", "output"])])
    align, dense = (min(x, 16 * dtype.bits // out.bits) for x in (p.align, p.dense))  # 16 bytes are stored at once
    config = select_softmax(
        p.rows, p.width, dtype, align_bytes=align, dense_bytes=dense, shared_bytes=device(p.device)[1],
        device=device(p.device)[2] if out == dtype else None,
    )  # fmt: skip
    return Launches([(_softmax(SoftmaxConfig(config.tile, dtype, None if out == dtype else out)), ["input", "output"])])


@functools.cache
def _gated(activation: str | None, config: ElementwiseConfig) -> Any:
    act = ACTIVATIONS[activation]
    return elementwise_kernel((lambda gate, up: act(gate) * up) if len(config.dtypes) > 1 else act, config)


def gated(width: int, dtype: str, activation: str | None, align: int, count: int) -> Any:
    """The kernel of act(gate) * up, or act(gate) if `count` is 1, over rows of ``width``.

    Arguments gate, up, result of shape (1, rows, width).
    """
    t = getattr(dtypes, DTYPES[dtype])
    return _gated(activation, select_elementwise(width, (t,) * count, t, align_bytes=align))
