"""Checks of attention's arguments, before anything runs, with a code and a fix for each mistake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, readable, shape_text
from graphene.ops.core.torch import Tensor, fail, torch


def _shape(name: str, what: str, want: str, got: Sequence[Any], fix: str) -> NoReturn:
    fail("OP_SHAPE", f"{name}: argument '{what}' has the wrong shape", [f"want: {want}", f"got:  {shape_text(got)}"],
         fix)  # fmt: skip


def _argument(name: str, message: str, details: list[str], fix: str) -> NoReturn:
    fail("OP_ARGUMENT", f"{name}: {message}", details, fix)


def sequences(name: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, most_q: int, most_k: int) -> None:
    """Raises OP_ARGUMENT unless packed sequences lie inside of their tensors. Only CPU tensors are looked at."""
    parts = (("q", cu_q, q.shape[0], most_q), ("k", cu_k, k.shape[0], most_k))
    if not readable(cu_q, cu_k):
        return
    for what, cu, total, most in parts:
        places = cu.tolist()
        lengths = [b - a for a, b in pairwise(places)]
        if places[0] < 0 or places[-1] > total or min(lengths, default=0) < 0:
            _argument(name, f"argument 'cu_seqlens_{what}' leaves its tensor",
                      [f"want: places from 0 to {total} that do not decrease", f"got:  {places}"],
                      "pass 0 and the sums of the lengths so far")  # fmt: skip
        if max(lengths, default=0) > most:
            _argument(name, f"argument 'max_seqlen_{what}' is too small",
                      [f"want: {max(lengths)} or more", f"got:  {most}"],
                      "pass the longest sequence's length")  # fmt: skip


def numbers(name: str, left: int, right: int, scale: float | None, softcap: float) -> None:
    """Raises OP_ARGUMENT for a window, a scale or a softcap that has no meaning."""
    if left < -1 or right < -1:
        _argument(name, "argument 'window' means nothing", ["want: (left, right), -1 for no limit",
                  f"got:  ({left}, {right})"], "pass numbers of keys, 0 or more, or -1")  # fmt: skip
    if left >= 2**63 or right >= 2**63:
        _argument(name, "argument 'window' has more than 64 bits", [f"got:  ({left}, {right})"], "pass -1 for no limit")
    if scale is not None and not abs(scale) < float("inf"):
        _argument(
            name, "argument 'scale' is not finite", [f"got:  {scale}"], "pass a number, or None for 1 / sqrt(dim)"
        )
    if not 0 <= softcap < float("inf"):
        _argument(name, "argument 'softcap' means nothing", ["want: a number, 0 or more", f"got:  {softcap}"],
                  "leave it out for no cap")  # fmt: skip


def operands(name: str, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises OP_DTYPE, OP_DEVICE, OP_SHAPE unless q, k and v go together."""
    given = {"q": q, "k": k, "v": v}
    check_devices(name, given)
    check_dtypes(name, given, FLOATS)
    shapes(name, rank, q, k, v)


def shapes(name: str, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises OP_SHAPE unless the shapes of q, k and v go together."""
    given = {"q": q, "k": k, "v": v}
    form = "[batch,seq,heads,dim]" if rank == 4 else "[total,heads,dim]"
    for n, t in given.items():
        if t.dim() != rank:
            _shape(name, n, form, t.shape, "transpose or unsqueeze it: a transposed tensor is read in place")
    if q.shape[-1] == 0:
        _shape(name, "q", f"{form}, with a dim of 1 or more", q.shape, "pass heads with elements")
    front = [q.shape[0]] if rank == 4 else []
    want = [*front, *k.shape[len(front) : rank - 1], q.shape[-1]]
    for n, t in (("k", k), ("v", v)):
        if any(x != y for x, y in zip(t.shape, want, strict=True)):
            _shape(name, n, shape_text(want), t.shape, "batch and dim are q's, keys and heads are the same in k and v")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if (kv_heads == 0) != (heads == 0) or (kv_heads != 0 and heads % kv_heads != 0):
        _shape(name, "k", f"kv heads that divide the {heads} heads of q", k.shape,
               "each head of keys serves as many heads of queries")  # fmt: skip


def extras(name: str, q: Tensor, k: Tensor, mask: Tensor, bias: Tensor) -> None:
    """Raises OP_DTYPE, OP_DEVICE, OP_SHAPE unless mask and bias belong to these scores."""
    check_devices(name, {"q": q, "mask": mask, "bias": bias})
    scores = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if mask is not None:
        if mask.dtype != torch.bool:
            want = ["want: torch.bool, True for what is seen", f"got:  {mask.dtype}"]
            fail("OP_DTYPE", f"{name}: argument 'mask' is not boolean", want,
                 "convert it, or pass what is added to the scores as bias=")  # fmt: skip
        padding = mask.dim() == 2 and mask.shape[0] == scores[0] and mask.shape[1] == scores[3]
        if not padding and (mask.dim() != 4 or not _broadcasts(mask.shape, scores)):
            fix = "unsqueeze it to (batch, heads, q_len, k_len)"
            fix += "; of queries and keys, pass mask[None, None]" if mask.dim() == 2 else ""
            masks = f"{shape_text(scores)}, 1 for a dimension that repeats, or {shape_text(scores[::3])} of keys"
            _shape(name, "mask", masks, mask.shape, fix)
    if bias is not None:
        if bias.dtype != q.dtype and bias.dtype != torch.float32:
            fix = "pass it as mask=" if bias.dtype == torch.bool else "convert it"
            fail("OP_DTYPE", f"{name}: argument 'bias' has another dtype",
                 [f"want: {q.dtype}, as 'q', or torch.float32", f"got:  {bias.dtype}"], fix)  # fmt: skip
        if not 2 <= bias.dim() <= 4 or not _broadcasts(bias.shape, scores):
            _shape(name, "bias", f"{shape_text(scores)}, or what broadcasts to it", bias.shape,
                   "unsqueeze it to (batch, heads, q_len, k_len)")  # fmt: skip


def _broadcasts(shape: Sequence[Any], to: Sequence[Any]) -> bool:
    return all(n == 1 or n == m for n, m in zip(shape, to[len(to) - len(shape) :], strict=True))


def saved_for_gradient(q: Tensor, lse: Any, biased: bool) -> list[tuple[Any, Any]]:
    """Shape and dtype of what only the gradient reads: the result in fp32, and what the LSE's rounding cut off.

    A result that is not rounded is saved itself, and without a bias an LSE is exact enough; then they are empty.
    """
    rounded = q.dtype in (torch.float16, torch.bfloat16)
    return [(q.shape if rounded else (0,), torch.float32), (lse if biased else (0,), torch.float32)]


def results(name: str, args: Sequence[Any], lse: bool, training: bool) -> list[tuple[Any, Any]]:
    """Shape and dtype of the results of attention, all arguments checked."""
    q, k, v, mask, bias, _, left, right, scale, softcap = args
    operands(name, 4, q, k, v)
    extras(name, q, k, mask, bias)
    numbers(name, left, right, scale, softcap)
    of_lse = (q.shape[0], q.shape[2], q.shape[1])
    made = [(q.shape, q.dtype)] + [(of_lse, torch.float32)] * lse
    return made + (saved_for_gradient(q, of_lse, bias is not None) if training else [])


def tables(name: str, k: Tensor, table: Tensor, lengths: Tensor) -> None:
    """Raises OP_ARGUMENT unless the pages of all keys are there. Only CPU tensors are looked at."""
    if not readable(table, lengths):
        return
    (pages, page), most = k.shape[:2], table.shape[1] * k.shape[1]
    of_sequences = lengths.tolist()
    if any(not 0 <= n <= most for n in of_sequences):
        _argument(name, "argument 'cache_seqlens' has a length that the table has no pages for",
                  [f"want: from 0 to {table.shape[1]} pages of {page} keys, {most}", f"got:  {of_sequences}"],
                  "pass how many keys each sequence has")  # fmt: skip
    for i, n in enumerate(of_sequences):
        row = table[i, : -(-n // max(page, 1))].tolist()
        if (wrong := next((j for j, x in enumerate(row) if not 0 <= x < pages), None)) is not None:
            _argument(name, "argument 'block_table' names a page that does not exist",
                      [f"want: from 0 to {pages - 1}, for sequence {i} of {n} keys",
                       f"got:  {row[wrong]} at [{i}, {wrong}]"],
                      "pass the pages of each sequence in order")  # fmt: skip


def results_paged(name: str, args: Sequence[Any], lse: bool) -> list[tuple[Any, Any]]:
    """Shape and dtype of the results of attention over pages, all arguments checked."""
    q, k, v, table, lengths, _, left, right, scale, softcap = args
    given = {"q": q, "k_cache": k, "v_cache": v}
    check_devices(name, {**given, "block_table": table, "cache_seqlens": lengths})
    check_dtypes(name, given, FLOATS)
    forms = {"q": "[batch,seq,heads,dim]", "k_cache": "[pages,page_size,kv_heads,dim]",
             "v_cache": "[pages,page_size,kv_heads,dim]"}  # fmt: skip
    for n, t in given.items():
        if t.dim() != 4:
            _shape(name, n, forms[n], t.shape, "transpose or unsqueeze it: a transposed tensor is read in place")
    for n, what, extent in (("q", "dim", q.shape[-1]), ("k_cache", "page_size", k.shape[1])):
        if extent == 0:
            _shape(name, n, f"{forms[n]}, with a {what} of 1 or more", given[n].shape, "pass what has elements")
    for n, t, want in (("k_cache", k, (*k.shape[:3], q.shape[3])), ("v_cache", v, k.shape)):
        if tuple(t.shape) != tuple(want):
            _shape(name, n, shape_text(want), t.shape, "dim is q's, and keys and values have the same pages and heads")
    heads, kv_heads = q.shape[2], k.shape[2]
    if (kv_heads == 0) != (heads == 0) or (kv_heads != 0 and heads % kv_heads != 0):
        _shape(name, "k_cache", f"kv heads that divide the {heads} heads of q", k.shape,
               "each head of keys serves as many heads of queries")  # fmt: skip
    forms = {"block_table": "[batch,most]", "cache_seqlens": "[batch]"}
    for what, t, rank in (("block_table", table, 2), ("cache_seqlens", lengths, 1)):
        if t.dtype != torch.int32:
            fail("OP_DTYPE", f"{name}: argument '{what}' has another dtype", ["want: torch.int32",
                 f"got:  {t.dtype}"], "convert it: .to(torch.int32)")  # fmt: skip
        if t.dim() != rank or t.shape[0] != q.shape[0]:
            _shape(name, what, f"{forms[what]} for the {q.shape[0]} sequences of q", t.shape,
                   "pass a row of pages and a length for each sequence")  # fmt: skip
    numbers(name, left, right, scale, softcap)
    made = [(q.shape, q.dtype)]
    return made + [((q.shape[0], q.shape[2], q.shape[1]), torch.float32)] * lse


def results_varlen(name: str, args: Sequence[Any], lse: bool, training: bool) -> list[tuple[Any, Any]]:
    """The same of packed sequences."""
    q, k, v, cu_q, cu_k, most_q, most_k, _, left, right, scale, softcap = args
    operands(name, 3, q, k, v)
    check_devices(name, {"q": q, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k})
    for what, t in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if t.dtype != torch.int32:
            fail("OP_DTYPE", f"{name}: argument '{what}' has another dtype", ["want: torch.int32",
                 f"got:  {t.dtype}"], "convert it: .to(torch.int32)")  # fmt: skip
        if t.dim() != 1 or t.shape[0] < 1 or t.shape[0] != cu_q.shape[0]:
            _shape(name, what, "[batch + 1], the same of queries and of keys", t.shape,
                   "pass 0 and the sums of the lengths so far")  # fmt: skip
    for what, n in (("max_seqlen_q", most_q), ("max_seqlen_k", most_k)):
        if n < 0:
            _argument(name, f"argument '{what}' is negative", [f"got:  {n}"], "pass the longest sequence's length")
    numbers(name, left, right, scale, softcap)
    of_lse = (q.shape[1], q.shape[0])
    made = [(q.shape, q.dtype)] + [(of_lse, torch.float32)] * lse
    return made + (saved_for_gradient(q, of_lse, False) if training else [])
