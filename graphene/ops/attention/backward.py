"""The gradients of attention as operators of their own."""

from __future__ import annotations

import functools
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.ops.attention import reference as plain
from graphene.ops.attention.checks import operands
from graphene.ops.attention.recipe import (
    BACKWARD,
    alike,
    attention_of,
    boxed,
    copies,
    count_scores,
    extra_view,
    longest,
    numbers_of,
    refused,
    simulated_cost,
    whole,
    window_of,
)
from graphene.ops.core.define import Arg, Defined, Definition
from graphene.ops.core.kernels import DTYPES, memory_bytes, target_device
from graphene.ops.core.torch import Tensor, torch, wide_dtype
from graphene.ops.core.views import output, own, view
from graphene.select.device import Device

if TYPE_CHECKING:
    from graphene.kernels.attention.backward_sm90 import GradientSm90
    from graphene.kernels.attention.keys_sm90 import KeysSm90
    from graphene.kernels.attention.problem import Attention
    from graphene.kernels.attention.product_sm90 import ProductSm90

_NUMBERS = "bool causal, int left, int right, float scale, float softcap"
_FRONT = "(Tensor grad, Tensor delta, Tensor lse, Tensor q, Tensor k, Tensor v, "
_EXTRAS = "Tensor? mask, Tensor? bias, Tensor? rest, Tensor? grad_lse, "
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, Tensor? grad_lse, "


SAVED_BYTES = 1 << 31  # the largest work space
SAVED_PART = 16  # the work space takes at most 1/16 of the device's memory
LONG_HEADS = 2  # that share a larger work space, where the largest has too few of them
PADDING = 4  # the work space has at most this many times as many numbers as there are scores
WAVES = 3  # from this many blocks a multiprocessor on, two launches for a part of the heads pay


@functools.cache
def _kernels(a: Attention, small: bool, where: Device) -> tuple[Any, Any]:
    from graphene.kernels.attention.backward import (
        BackwardConfig,
        attention_keys_gradient_kernel,
        attention_queries_gradient_kernel,
    )
    from graphene.select.attention import select_backward

    keys, queries = (BackwardConfig(a, 32, 32, 2),) * 2 if small else select_backward(a, device=where)
    return attention_keys_gradient_kernel(keys), attention_queries_gradient_kernel(queries)


@functools.cache
def _saving(a: Attention, small: bool, where: Device) -> tuple[Any, Any] | None:
    from graphene.kernels.attention.backward import BackwardConfig, attention_keys_gradient_kernel
    from graphene.kernels.attention.product import attention_queries_product_kernel
    from graphene.select.attention import select_backward_saving

    chosen = select_backward_saving(a, device=where)
    if chosen is None:
        return None
    keys, product = chosen
    if small:
        keys, product = BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=keys.paired), replace(product, BN=32)
    return attention_keys_gradient_kernel(keys), attention_queries_product_kernel(product)


@functools.cache
def _by_wgmma(config: GradientSm90) -> tuple[Any, Any, Any]:
    from graphene.kernels.attention.backward_sm90 import attention_gradient_sm90
    from graphene.kernels.attention.problem import Attention
    from graphene.kernels.attention.sums import attention_rows_kernel, attention_sums_kernel

    a = config.what
    plain_rows = Attention(a.D, a.dtype, group=a.group)
    return (
        attention_rows_kernel(plain_rows),
        attention_gradient_sm90(config),
        attention_sums_kernel(plain_rows, config.parts),
    )


@functools.cache
def _tiled(keys: KeysSm90, product: ProductSm90) -> tuple[Any, Any, Any]:
    from graphene.kernels.attention.keys_sm90 import attention_keys_gradient_sm90
    from graphene.kernels.attention.problem import Attention
    from graphene.kernels.attention.product_sm90 import attention_queries_product_sm90
    from graphene.kernels.attention.sums import attention_rows_kernel

    a = keys.what
    return (
        attention_rows_kernel(Attention(a.D, a.dtype, group=a.group)),
        attention_keys_gradient_sm90(keys),
        attention_queries_product_sm90(product),
    )


def head_shares(
    heads: int, head_bytes: int, memory: int, blocks: int, device_blocks: int, most_bytes: int = 0
) -> list[tuple[int, int]]:
    """For each pair of launches its first head and number of heads; empty if a work space would be too large.

    `memory`: the device's bytes. `blocks`: how many blocks a head has; a launch needs `device_blocks` or more.
    `most_bytes`: of a work space, if more than usual.
    """
    each = min(heads, min(max(most_bytes, SAVED_BYTES), memory // SAVED_PART) // head_bytes, MOST_BLOCKS_YZ)
    if each == 0 or (each < heads and each * blocks < device_blocks):
        return []
    each = -(-heads // -(-heads // each))
    return [(first, min(each, heads - first)) for first in range(0, heads, each)]


class AttentionGradients:
    """The gradients of q, k and v (`varlen`: packed), from those of the result and the log-sum-exp (LSE).

    Kernels take `delta`: a row's sum of the result times its gradient, minus the gradient of the LSE. With a bias they
    take `rest`, what the LSE's rounding cut off. PyTorch's operators take the gradient of the LSE. PyTorch computes
    gradients of gradients.

    A configuration is for one batch and its lengths, because they decide how many launches the work space needs.
    """

    def __init__(self, varlen: bool) -> None:
        self.varlen = varlen
        exact: dict[str, int | str] = (
            {"q": 2, "k": 2, "v": 2, "cu_seqlens_q": 1} if varlen else {"q": 4, "k": 4, "v": 2}
        )
        schema = _FRONT + (_PACKED if varlen else _EXTRAS) + _NUMBERS + ") -> (Tensor, Tensor, Tensor)"
        self.defined = Defined(
            Definition(
                "attention_varlen_backward" if varlen else "attention_backward", schema, self.configure,
                self.results, self.reference,
                lambda _g, _d, _l, q, k, *rest: simulated_cost(q, k, rest, tile=(400, 60)),
                self.save, self.backward, exact=exact, part_of="attention_varlen" if varlen else "attention",
                flops=count_scores(BACKWARD, 3, varlen),
            )
        )  # fmt: skip

    def results(self, *args: Any) -> list[tuple[Any, Any]]:
        """Shapes and dtypes of the gradients of q, k and v, which were checked."""
        operands("attention_varlen" if self.varlen else "attention", 3 if self.varlen else 4, *args[3:6])
        return [(t.shape, t.dtype) for t in args[3:6]]

    def configure(self, *args: Any) -> Any:
        """The recipe of a configuration."""
        from graphene.kernels.attention.workspace import PANEL, ROWS
        from graphene.select.attention import select_backward_sm90, select_saving_sm90

        (g, delta, lse, q, k, v), given, (causal, left, right, scale, softcap) = args[:6], args[6:-6], args[-5:]
        mask, bias, rest = (None, None, None) if self.varlen else given
        results = 9 if self.varlen else 10  # in a recipe, tensors of the call come before its own
        dq, dk, dv = (whole(results + i, len(q.shape)) for i in range(3))
        left, right = window_of(causal, left, right)
        starts = dict(zip((6, 7), given, strict=False)) if self.varlen else {}
        if (other := refused(q, k, starts.get(6))) is not None:
            return other
        rank = len(q.shape)
        outputs = [output(DTYPES[q.dtype], *([(i, d)] for d in range(rank))) for i in (3, 4, 5)]
        if 0 in q.shape[:1] or 0 in q.shape[-2:]:
            return _core.Recipe(outputs, 3, [])
        dense = {1: delta, 2: lse, **starts} | ({} if rest is None else {8: rest})
        if (other := copies({0: g, 3: q, 4: k, 5: v}, dense)) is not None:
            return other
        a = attention_of(q, k, mask, bias, (left, right), scale, softcap)
        a = replace(a, alike=alike(k, v) and alike(q, g))
        rows = [whole(i, rank - 1) for i in ((1, 2) if bias is None else (1, 2, 8))]
        keys_of = whole(4, rank)
        inputs: list[Any] = [whole(0, rank), *rows, whole(3, rank), keys_of, whole(5, rank)]
        if self.varlen:
            inputs += [whole(i, 1) for i in (6, 7)]
        for i, x, e in ((6, mask, a.mask), (7, bias, a.bias)):
            if x is not None and e is not None:
                inputs.append(extra_view(i, x, e, (3, 4)))
        numbers = numbers_of(a, left, right, scale, softcap, gradient=True)
        most = [longest(n) for n in given[2:4]] if self.varlen else [q.shape[1], k.shape[1]]
        after = [[n] if self.varlen else [] for n in most]
        small = q.device == "cpu"
        if not self.varlen and not small and all(boxed(t) for t in (g, q, k, v)):
            device = target_device(q.device)
            tiled = select_saving_sm90(a, q.shape[1], k.shape[1], device=device)
            if tiled is not None:
                recipe = self.tiled(tiled, q, k, outputs, [inputs, dq, dk, dv, numbers], results)
                if recipe is not None:
                    return recipe
            by_wgmma = select_backward_sm90(a, q.shape[0], k.shape[1], k.shape[2], device=device)
            if by_wgmma is not None:
                return self.summed(by_wgmma, q, outputs, [inputs, dq, dk, dv, numbers], results)
        batch = given[0].shape[0] - 1 if self.varlen else q.shape[0]
        panels, padded = (-(-n // ROWS) * ROWS for n in most)
        where = target_device(q.device)
        heads = batch * k.shape[-2]
        head_bytes = a.group * panels * padded * q.item_bytes
        shares = head_shares(
            heads, head_bytes, memory_bytes(q.device), padded // ROWS, 1 if small else WAVES * where.sm_count
        )
        lengths = given[2:4] if self.varlen else (q.shape[1], k.shape[1])
        worth = small or PADDING * lengths[0] * lengths[1] >= panels * padded
        saving = _saving(a, small, where) if shares and worth else None
        if saving is None:
            keys, queries = _kernels(a, small, where)
            launches = [(queries, [*inputs, dq, *numbers, *after[0]]),
                        (keys, [*inputs, dk, dv, *numbers, *after[1]])]  # fmt: skip
            return _core.Recipe(outputs, 3, launches)
        keys, product = saving
        launches = []
        form = (a.group, panels // PANEL, padded, PANEL)
        outputs.append(output(DTYPES[q.dtype], [(-1, shares[0][1])], *([(-1, n)] for n in form)))
        starts_of = [whole(i, 1) for i in starts]
        for first, count in shares:
            saved = view(results + 3, (((-1, count),), (0,)), *(own(results + 3, d) for d in range(1, 5)))
            launches += [(keys, [*inputs, saved, dk, dv, *numbers, first, *after[1]]),
                         (product, [keys_of, saved, *starts_of, dq, *numbers[1 + a.softcap:], first,
                                    *after[0]])]  # fmt: skip
        return _core.Recipe(outputs, 3, launches)

    def tiled(
        self, kernels: tuple[KeysSm90, ProductSm90], q: Arg, k: Arg, outputs: list[Any], parts: list[Any], results: int
    ) -> Any:
        """The recipe of the kernels that pass scores' gradients on in tiles; None if the work space would be too large.

        As many heads share a work space as in `configure`; long ones may take up to a sixteenth of the device's memory.
        """
        from graphene.kernels.attention.backward_sm90 import QUERIES
        from graphene.kernels.attention.keys_sm90 import KEYS

        (g, delta, lse, *qkv), dq, dk, dv, numbers = parts
        group, device = kernels[0].what.group, target_device(q.device)
        tiles, keys = -(-q.shape[1] // QUERIES), -(-k.shape[1] // KEYS) * KEYS
        head_bytes = group * tiles * QUERIES * keys * q.item_bytes
        heads, memory = q.shape[0] * k.shape[2], memory_bytes(q.device)
        blocks = keys // KEYS, device.sm_count
        shares = head_shares(heads, head_bytes, memory, *blocks) or head_shares(
            heads, head_bytes, memory, *blocks, most_bytes=LONG_HEADS * head_bytes
        )
        if not shares:
            return None
        heads_of = [[(3, 0)], [(3, 2)]]
        spaces = [
            output("fp32", *heads_of, [(-1, tiles)], [(-1, 2 * QUERIES)]),
            output(DTYPES[q.dtype], *([(-1, n)] for n in (shares[0][1] * group, tiles, keys, QUERIES))),
        ]
        rows = whole(results + 3, 4)
        before, of_keys, product = _tiled(*kernels)
        launches: list[Any] = [(before, [delta, lse, rows])]
        for first, count in shares:
            saved = view(results + 4, (((-1, count * group),), (0,)), *(own(results + 4, d) for d in range(1, 4)))
            launches += [(of_keys, [g, rows, *qkv, saved, dk, dv, *numbers, first]),
                         (product, [qkv[1], saved, dq, *numbers[1:], first])]  # fmt: skip
        return _core.Recipe([*outputs, *spaces], 3, launches)

    def summed(self, config: GradientSm90, q: Arg, outputs: list[Any], parts: list[Any], results: int) -> Any:
        """The recipe of the kernel that adds gradients of queries up in fp32."""
        from graphene.kernels.attention.backward_sm90 import QUERIES

        (g, delta, lse, *qkv), dq, dk, dv, numbers = parts
        tiles = -(-q.shape[1] // QUERIES)
        heads = [[(3, 0)], [(3, 2)]]
        spaces = [
            output("fp32", *heads, [(-1, tiles)], [(-1, 2 * QUERIES)]),
            output("fp32", *heads, [(-1, config.parts * tiles)], [(-1, config.depth // 4)], [(-1, 256)]),
        ]
        rows, sums = whole(results + 3, 4), whole(results + 4, 5)
        before, kernel, after = _by_wgmma(config)
        launches = [
            (before, [delta, lse, rows]),
            (kernel, [g, rows, *qkv, dk, dv, sums, *numbers]),
            (after, [sums, dq, numbers[1]]),
        ]
        return _core.Recipe([*outputs, *spaces], 3, launches)

    def reference(self, *args: Any) -> Any:
        """The same by PyTorch's operators."""
        tensors = (args[0], *args[3:6])
        return (
            plain.backward_varlen(*tensors, *args[6:8], *args[10:])
            if self.varlen
            else plain.backward(*tensors, *args[6:8], *args[9:])
        )

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves the arguments for the gradient of the gradients."""
        at = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*(inputs[i] for i in at))
        ctx.rest = [None if i in at else x for i, x in enumerate(inputs)], at

    def backward(self, ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """The gradient of the gradients by PyTorch; `delta`, `lse` and `rest` follow from the other arguments."""
        args, at = list(ctx.rest[0]), ctx.rest[1]
        for i, t in zip(at, ctx.saved_tensors, strict=True):
            args[i] = t
        of = [i for i in (0, 3, 4, 5, len(args) - 6) if args[i] is not None]

        def formula(*tensors: Tensor) -> Any:
            given = dict(zip(of, tensors, strict=True))
            return self.reference(*(given.get(i, x) for i, x in enumerate(args)))

        made = torch.func.vjp(formula, *(args[i] for i in of))[1](gradients)
        found = dict(zip(of, made, strict=True))
        return tuple(found.get(i) for i in range(len(args)))

    def __call__(
        self, g: Tensor, g_lse: Tensor, wide: Tensor, lse: Tensor, rest: Tensor, *args: Any
    ) -> tuple[Any, ...]:
        """The gradients; `wide` is the result before its rounding, `args` are the arguments of attention."""
        g = torch.zeros_like(args[0]) if g is None else g
        delta = _delta(g.detach(), wide.detach(), None if g_lse is None else g_lse.detach())
        more = () if self.varlen else (None if args[4] is None else rest.detach(),)
        made: tuple[Any, ...] = self.defined(g, delta, lse.detach(), *args[:-5], *more, g_lse, *args[-5:])
        return made


def _delta_results(g: Tensor, out: Tensor, _: Tensor) -> list[tuple[Any, Any]]:
    shape = (*out.shape[:-3], out.shape[-2], out.shape[-3])
    return [(shape, wide_dtype(out.dtype))]


def _configure_delta(g: Arg, out: Arg, g_lse: Arg | None) -> Any:
    if (other := refused(g, g)) is not None:
        return other
    if any(t is not None and t.dtype != "float32" for t in (out, g_lse)):
        return _core.Recipe.torch("the result before its rounding, or the gradient of the LSE, is not fp32")
    rank = len(out.shape)
    outputs = [output("fp32", *([(1, d)] for d in (*range(rank - 3), rank - 2, rank - 3)))]
    if 0 in out.shape:
        return _core.Recipe(outputs, 1, [])
    if (other := copies({0: g, 1: out}, {1: out} if g_lse is None else {1: out, 2: g_lse})) is not None:
        return other
    kernel = _delta_kernel(out.shape[-1], getattr(dtypes, DTYPES[g.dtype]), rank == 3, g_lse is not None)
    more = [] if g_lse is None else [whole(2, rank - 1)]
    return _core.Recipe(outputs, 1, [(kernel, [whole(0, rank), whole(1, rank), *more, whole(3, rank - 1)])])


@functools.cache
def _delta_kernel(D: int, dtype: dtypes.DType, varlen: bool, lse: bool) -> Any:
    from graphene.kernels.attention.delta import attention_delta_kernel
    from graphene.kernels.attention.problem import Attention

    return attention_delta_kernel(Attention(D, dtype, varlen=varlen), lse)


def _delta_reference(g: Tensor, out: Tensor, g_lse: Tensor) -> Tensor:
    wide = wide_dtype(out.dtype)
    delta = (g.to(wide) * out.to(wide)).sum(-1).transpose(-1, -2)
    return (delta if g_lse is None else delta - g_lse).contiguous()


_delta = Defined(
    Definition(
        "attention_delta", "(Tensor grad, Tensor out, Tensor? grad_lse) -> Tensor", _configure_delta, _delta_results,
        _delta_reference, lambda g, *_: max(int(g.numel()), 32 * prod(g.shape[:-1])), exact={"grad": 2, "out": 2},
        part_of="attention",
    )
)  # fmt: skip
gradients, gradients_varlen = AttentionGradients(False), AttentionGradients(True)
