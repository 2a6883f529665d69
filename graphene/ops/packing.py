"""Weights of 4 and 8 bits in the order in which ``quantized_linear`` reads them, from GPTQ, AWQ or plain matrices."""

from __future__ import annotations

from typing import Any

from graphene.kernels.gemm.weights import CHUNK, PACKED_ROWS
from graphene.ops.core.checks import check_devices, check_tensors, integer, same_shape, shape_text
from graphene.ops.core.torch import Tensor, fail, torch

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the n-th of eight columns stands in a word of AWQ
FP8 = torch.float8_e4m3fn


def pack_weights(weight: Tensor) -> Tensor:
    """A matrix (N,K) of integers from 0 to 15, or of float8_e4m3fn, in the order of ``quantized_linear``.

    The result is int32, (N / 16, K / 64, 128) or for fp8 (N / 16, K / 64, 256). N is a multiple of 16 and K of 64.

    Raises LaunchError: OP_SHAPE, OP_DTYPE, OP_ARGUMENT.
    """
    n = "pack_weights"
    check_tensors(n, {"weight": weight})
    if weight.dim() != 2 or weight.shape[0] % PACKED_ROWS or weight.shape[1] % CHUNK:
        fail("OP_SHAPE", f"{n}: argument 'weight' has the wrong shape",
             [f"want: [N,K], multiples of {PACKED_ROWS} and {CHUNK}", f"got:  {shape_text(weight.shape)}"],
             "pad it with zeros")  # fmt: skip
    if weight.dtype != FP8 and (weight.dtype.is_floating_point or weight.dtype.is_complex):
        fail("OP_DTYPE", f"{n}: argument 'weight' is neither integers nor fp8",
             [f"want: integers from 0 to 15, or {FP8}", f"got:  {weight.dtype}"], "quantize it first")  # fmt: skip
    whole = weight.dtype != FP8
    if whole and weight.numel() and not weight.is_meta and not 0 <= int(weight.min()) <= int(weight.max()) <= 15:
        fail("OP_ARGUMENT", f"{n}: argument 'weight' has integers that 4 bits do not hold",
             ["want: 0 to 15", f"got:  {int(weight.min())} to {int(weight.max())}"],
             "add 8 to signed ones")  # fmt: skip
    numbers = weight if whole else weight.view(torch.uint8)
    tiles, chunks = weight.shape[0] // PACKED_ROWS, weight.shape[1] // CHUNK
    # lower row, row, 64 k, 16 k, upper k, pair, which of the pair
    parts = numbers.to(torch.int32).reshape(tiles, 2, 8, chunks, 4, 2, 4, 2)
    if whole:  # a word: which, upper k, lower row
        words = parts.permute(0, 3, 2, 6, 4, 7, 5, 1).reshape(tiles, chunks, 32, 4, 8) & 15
    else:  # a word: lower row, which; the words of 32 k come before those of the next
        words = parts.permute(0, 3, 2, 6, 4, 5, 1, 7).reshape(tiles, chunks, 32, 2, 4, 4).transpose(2, 3)
    bits = 4 if whole else 8
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=weight.device)
    return torch.sum(words << shifts, -1, dtype=torch.int32).reshape(tiles, chunks, -1)


def unpack_weights(packed: Tensor) -> Tensor:
    """What ``pack_weights`` packed: (N,K), uint8 or float8_e4m3fn. Raises LaunchError OP_SHAPE."""
    check_tensors("unpack_weights", {"packed": packed})
    check_packed("unpack_weights", packed)
    tiles, chunks, words = packed.shape
    bits = 4 if words == 128 else 8
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    parts = (packed.unsqueeze(-1) >> shifts & ((1 << bits) - 1)).to(torch.uint8)
    if bits == 4:
        parts = parts.reshape(tiles, chunks, 8, 4, 4, 2, 2, 2).permute(0, 7, 2, 1, 4, 6, 3, 5)
    else:
        parts = parts.reshape(tiles, chunks, 2, 8, 4, 2, 2, 2, 2).permute(0, 7, 3, 1, 2, 5, 6, 4, 8)
    numbers = parts.reshape(tiles * PACKED_ROWS, chunks * CHUNK)
    return numbers if bits == 4 else numbers.view(FP8)


def check_packed(name: str, packed: Tensor) -> None:
    """Raises OP_DTYPE, OP_SHAPE unless it is what ``pack_weights`` makes."""
    if packed.dtype != torch.int32:
        fail("OP_DTYPE", f"{name}: argument 'weight' is not packed", ["want: torch.int32", f"got:  {packed.dtype}"],
             "pack it: ops.pack_weights(weight)")  # fmt: skip
    if packed.dim() != 3 or packed.shape[2] not in (128, 256):
        fail("OP_SHAPE", f"{name}: argument 'weight' is not packed",
             [f"want: [N / {PACKED_ROWS},K / {CHUNK},128], for fp8 [..,256]", f"got:  {shape_text(packed.shape)}"],
             "pack it: ops.pack_weights(weight)")  # fmt: skip


def _nibbles(words: Tensor, dim: int, order: tuple[int, ...]) -> Tensor:
    """The eight integers of each word, side by side along a dimension; the n-th has the place order[n]."""
    shifts = torch.tensor([4 * i for i in order], dtype=torch.int32, device=words.device)
    parts = (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8)
    return parts.flatten(1) if dim == 1 else parts.transpose(1, 2).flatten(0, 1)


def _check_words(name: str, qweight: Tensor, qzeros: Tensor, scales: Tensor, n: Any, k: Any) -> None:
    """Raises OP_DEVICE, OP_DTYPE, OP_SHAPE unless zero points and scales belong to weights (n,k)."""
    check_devices(name, {"qweight": qweight, "qzeros": qzeros, "scales": scales})
    for what, t in (("qweight", qweight), ("qzeros", qzeros)):
        if t.dtype != torch.int32:
            fail("OP_DTYPE", f"{name}: argument '{what}' has a dtype that it does not take",
                 ["want: torch.int32", f"got:  {t.dtype}"], "pass the words of the checkpoint")  # fmt: skip
    groups = scales.shape[0] if scales.dim() == 2 else 0
    if not groups or not same_shape(scales.shape, [groups, n]) or k % groups:
        fail("OP_SHAPE", f"{name}: argument 'scales' has the wrong shape",
             [f"want: [K / group,N] of K = {k}, N = {n}", f"got:  {shape_text(scales.shape)}"],
             "pass the scales of the same layer")  # fmt: skip
    if not same_shape(qzeros.shape, [groups, n // 8]):
        fail("OP_SHAPE", f"{name}: argument 'qzeros' has the wrong shape",
             [f"want: [{groups},{n // 8}], eight in a word", f"got:  {shape_text(qzeros.shape)}"],
             "pass the zero points of the same layer")  # fmt: skip


def _matrix(name: str, qweight: Tensor, **more: Tensor | None) -> None:
    check_tensors(name, {"qweight": qweight} | {n: t for n, t in more.items() if t is not None or n != "g_idx"})
    if qweight.dim() != 2:
        fail("OP_SHAPE", f"{name}: argument 'qweight' is not a matrix",
             ["want: two dimensions", f"got:  {shape_text(qweight.shape)}"],
             "pass the words of one layer")  # fmt: skip


def pack_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, zero_offset: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, scale and zero for ``quantized_linear`` from the tensors of a layer of 4 bits as GPTQ stores them.

    ``qweight`` (K / 8, N) has eight neighbours along k in a word, ``qzeros`` (K / group, N / 8) eight along n, and
    ``scales`` is (K / group, N). Stored zero points are less by ``zero_offset``: 1 in the format "gptq", 0 in
    "gptq_v2". ``g_idx`` (K,) must say that groups are neighbours: weights in the order of activations (desc_act) need
    their inputs in another order, and are refused.

    Raises LaunchError: OP_SHAPE, OP_DTYPE, OP_DEVICE, OP_ARGUMENT.
    """
    _matrix("pack_gptq", qweight, qzeros=qzeros, scales=scales, g_idx=g_idx)
    if integer("pack_gptq", "zero_offset", zero_offset) not in (0, 1):
        fail("OP_ARGUMENT", "pack_gptq: argument 'zero_offset' is of no format",
             ['want: 1 for "gptq", 0 for "gptq_v2"', f"got:  {zero_offset}"],
             "pass the one of the checkpoint")  # fmt: skip
    k, n = 8 * qweight.shape[0], qweight.shape[1]
    _check_words("pack_gptq", qweight, qzeros, scales, n, k)
    group = k // scales.shape[0]
    if g_idx is not None and (g_idx.dtype not in (torch.int32, torch.int64) or not same_shape(g_idx.shape, [k])):
        code = "OP_SHAPE" if g_idx.dtype in (torch.int32, torch.int64) else "OP_DTYPE"
        fail(code, "pack_gptq: argument 'g_idx' is not a group for each of k",
             [f"want: [{k}] of torch.int32", f"got:  {shape_text(g_idx.shape)} of {g_idx.dtype}"],
             "pass the g_idx of the same layer, or None")  # fmt: skip
    if g_idx is not None and g_idx.is_meta != qweight.is_meta:
        fail("OP_DEVICE", "pack_gptq: arguments 'qweight' and 'g_idx' are on different devices",
             [f"qweight: {qweight.device}", f"g_idx: {g_idx.device}"], "give both values, or neither")  # fmt: skip
    if (
        g_idx is not None
        and not g_idx.is_meta
        and not torch.equal(g_idx.to("cpu", torch.int64), torch.arange(k) // group)
    ):
        fail("OP_ARGUMENT", "pack_gptq: argument 'g_idx' names groups that do not lie side by side",
             ["want: g_idx[i] = i / group", "got:  another order (desc_act)"],
             "sort rows of weights and columns of inputs by it")  # fmt: skip
    plain = tuple(range(8))
    zero = (_nibbles(qzeros, 1, plain) + zero_offset).to(torch.uint8)
    return pack_weights(_nibbles(qweight, 0, plain).T), scales, zero


def pack_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, scale and zero for ``quantized_linear`` from the tensors of a layer of 4 bits as AWQ stores them.

    ``qweight`` (K, N / 8) and ``qzeros`` (K / group, N / 8) have eight neighbours along n in a word, in the order 0, 2,
    4, 6, 1, 3, 5, 7; ``scales`` is (K / group, N).

    Raises LaunchError: OP_SHAPE, OP_DTYPE, OP_DEVICE, OP_ARGUMENT.
    """
    _matrix("pack_awq", qweight, qzeros=qzeros, scales=scales)
    k, n = qweight.shape[0], 8 * qweight.shape[1]
    _check_words("pack_awq", qweight, qzeros, scales, n, k)
    return pack_weights(_nibbles(qweight, 1, AWQ_ORDER).T), scales, _nibbles(qzeros, 1, AWQ_ORDER)
