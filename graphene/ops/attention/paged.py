"""graphene.ops.attention_paged: attention over a cache of keys and values in pages, which are read in place."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.ops.attention import reference as plain
from graphene.ops.attention.checks import results_paged, tables
from graphene.ops.attention.forward import bounds, combine_kernel, default_scale, with_lse
from graphene.ops.attention.recipe import (
    FORWARD,
    alike,
    attention_of,
    boxed,
    copies,
    numbers_of,
    refused,
    whole,
    window_of,
)
from graphene.ops.core.context import lower
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, target_device
from graphene.ops.core.torch import Tensor, torch
from graphene.ops.core.views import output

if TYPE_CHECKING:
    from graphene.kernels.attention.decode import DecodeConfig

_SCHEMA = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cache_seqlens, "
    "bool causal, int left, int right, float? scale, float softcap) -> {result}"
)


@functools.cache
def _kernel(config: DecodeConfig) -> Any:
    from graphene.kernels.attention.paged import attention_paged_kernel

    return attention_paged_kernel(config)


class PagedOperator:
    """The operator attention_paged; `lse`: it also returns the log-sum-exp."""

    def __init__(self, lse: bool) -> None:
        self.lse, name = lse, "attention_paged"
        self.defined = Defined(
            Definition(
                name + ("_lse" if lse else ""), _SCHEMA.format(result="(Tensor, Tensor)" if lse else "Tensor"),
                self.configure, lambda *args: results_paged(name, args, lse), self.reference, self.cost,
                exact={"q": 2, "k_cache": 3, "v_cache": 3}, said=name, autocast=lower,
                without_gradient=("q", "k_cache", "v_cache"),
                values=lambda *args: tables(name, args[1], args[3], args[4]), part_of="attention", flops=self.count,
            )
        )  # fmt: skip

    def configure(self, q: Arg, k: Arg, v: Arg, table: Arg, lengths: Arg, *numbers: Any) -> Any:
        """The recipe of a configuration."""
        from graphene.select.attention import select_decode

        causal, left, right, scale, softcap = numbers
        scale = default_scale(q.shape[-1]) if scale is None else scale
        left, right = window_of(causal, left, right)
        page, keys = k.shape[1], table.shape[1] * k.shape[1]
        if (other := refused(q, k)) is not None:
            return other
        if page % 8:
            return _core.Recipe.torch(f"no kernel for pages of {page} keys, not a multiple of 8")
        if 0 in k.shape or table.shape[1] == 0:
            return _core.Recipe.torch("there are no pages")
        where = target_device(q.device)
        if q.device != "cpu" and where.arch != "sm_90a":
            return _core.Recipe.torch(f"no kernel that reads pages for {where.arch}")
        if not (boxed(k) and boxed(v)):
            return _core.Recipe.torch("pages or heads of the cache lie at the same place")
        outputs = [output(DTYPES[q.dtype], *([(0, d)] for d in range(4)))]
        if self.lse:
            outputs.append(output("fp32", [(0, 0)], [(0, 2)], [(0, 1)]))
        if 0 in q.shape:
            return _core.Recipe(outputs, len(outputs), [])
        if (other := copies({0: q, 1: k, 2: v}, {3: table, 4: lengths})) is not None:
            return other
        a = replace(attention_of(q, k, None, None, (left, right), scale, softcap), alike=alike(k, v))
        sizes = q.shape[0], q.shape[1], keys, k.shape[2]
        if q.device == "cpu":  # on the simulator, too, blocks share keys
            where = where.of_size(2, where.shared_bytes)
        config, parts = select_decode(a, *sizes, lse=self.lse, page=page, device=where)
        given = [*(whole(i, 4) for i in range(3)), whole(3, 2), whole(4, 1)]
        made = [whole(5, 4)] + ([whole(6, 3)] if self.lse else [])
        of_kernel = numbers_of(a, left, right, scale, softcap)
        if parts == 1:
            return _core.Recipe(outputs, len(outputs), [(_kernel(config), [*given, *made, *of_kernel])])
        first = 5 + len(outputs)
        shape = [(-1, parts)], [(0, 0)], [(1, 2)], [(0, 1), (-1, a.group)]
        spaces = [output("fp32", *shape, [(0, 3)]), output("fp32", *shape), output("fp32", *shape)]
        work = [whole(first, 5), whole(first + 1, 4), whole(first + 2, 4)]
        launches = [(_kernel(config), [*given, *work, *of_kernel]), (combine_kernel(a, self.lse), [*work, *made])]
        return _core.Recipe([*outputs, *spaces], len(outputs), launches)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, causal: bool, left: int, right: int,
        scale: float | None, softcap: float,
    ) -> Any:  # fmt: skip
        """The same by PyTorch's operators, which copy the pages together."""
        (pages, page), (batch, most), sq = k.shape[:2], table.shape, q.shape[1]
        keys = most * page
        key, length = torch.arange(keys, device=q.device), lengths.clamp(0, keys)[:, None]
        there = ((table >= 0) & (table < pages)).repeat_interleave(page, 1) & (key < length)
        if pages == 0:
            k, v = (torch.zeros(batch, keys, *t.shape[2:], dtype=t.dtype, device=t.device) for t in (k, v))
        else:
            at = table.clamp(0, pages - 1).long()
            k, v = (t[at].flatten(1, 2).masked_fill(~there[:, :, None, None], 0) for t in (k, v))
        place = torch.arange(sq, device=q.device)[None] + length - sq
        right = 0 if causal else right
        seen = (key < length)[:, None].expand(batch, sq, keys)
        seen = seen & (key <= place[..., None] + right) if right >= 0 else seen
        seen = seen & (key >= place[..., None] - left) if left >= 0 else seen
        scale = default_scale(q.shape[-1]) if scale is None else scale
        made = plain.forward(q, k, v, seen[:, None], None, False, -1, -1, scale, softcap)
        return made[:2] if self.lse else made[0]

    def cost(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, *_: Any) -> int:
        """The cost of the tiles of all pages that the table has room for, and of the blocks."""
        page, kv_heads, depth = k.shape[1:]
        rows = q.shape[1] * (q.shape[2] // max(kv_heads, 1))
        blocks = q.shape[0] * kv_heads * -(-rows // 64)
        tiles = -(-table.shape[1] * page // 32) * max(1, min(4, -(-rows // 16)))
        return int(blocks * (20000 + tiles * (300 + 12 * depth)))

    def count(self, q: Any, k: Any, v: Any, table: Any, *_: Any, **__: Any) -> int:
        """The operations of all keys that the table has room for."""
        return int(2 * FORWARD * q.numel() * table.shape[1] * k.shape[1])


PAGED_LSE, PAGED = (PagedOperator(lse).defined for lse in (True, False))


@public
def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of q (batch, q_len, heads, dim) over a cache in pages, as ``flash_attn_with_kvcache`` takes it.

    k_cache and v_cache are (pages, page_size, kv_heads, dim), of any strides, with unit stride in dim. Sequence i has
    ``cache_seqlens[i]`` keys (batch, i32), in the pages ``block_table[i, 0]``, ``block_table[i, 1]``, ... (batch, most,
    i32), of which the last may be filled in part. Masks are aligned at the bottom right, as in ``attention``: with
    ``causal`` the last query sees the sequence's last key, so the keys of the queries themselves are in the cache. What
    stands in the table behind a sequence's last page is not read, and what a page holds behind the sequence's last key
    changes nothing. A sequence without keys gives zeros and an LSE of -inf.

    The table and the lengths of CPU tensors are checked. On a GPU that would wait for the device; there a page that
    does not exist counts as zeros, a sequence ends with its row of the table, and nothing outside of the cache is read.

    The pages are read in place on sm_90a, if page_size is a multiple of 8; 64 and more is fastest. Elsewhere PyTorch's
    operators copy them together. There is no gradient. The rest is as in ``attention``. Raises LaunchError: OP_DTYPE,
    OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    left, right = (-1, -1) if window is None else bounds("attention_paged", window)
    cap = 0.0 if softcap is None else softcap
    op = with_lse("attention_paged", return_lse, PAGED_LSE, PAGED)
    call = op.dispatched if is_compiling() else op.core
    return call(q, k_cache, v_cache, block_table, cache_seqlens, causal, left, right, scale, cap)
