"""graphene.ops.attention and attention_varlen: FlashAttention's conventions on tensors of any strides."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.ops.attention import reference as plain
from graphene.ops.attention.backward import gradients, gradients_varlen
from graphene.ops.attention.checks import results, results_varlen, sequences
from graphene.ops.attention.fp8 import FP8_ALONE, FP8_LSE, three
from graphene.ops.attention.recipe import (
    FORWARD,
    Tiles,
    alike,
    attention_of,
    boxed,
    copies,
    count_scores,
    extra_view,
    longest,
    numbers_of,
    of_all_heads,
    refused,
    simulated_cost,
    whole,
    window_of,
)
from graphene.ops.core.checks import check_numbers
from graphene.ops.core.context import lower
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, target_device
from graphene.ops.core.torch import Tensor, fail
from graphene.ops.core.views import output

if TYPE_CHECKING:
    from graphene.kernels.attention.decode import DecodeConfig
    from graphene.kernels.attention.forward import ForwardConfig
    from graphene.kernels.attention.problem import Attention
    from graphene.kernels.attention.sm90 import ForwardSm90

_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, {numbers}) -> {result}"
_PACKED = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
    "{numbers}) -> {result}"
)
_NUMBERS = "bool causal, int left, int right, float? scale, float softcap"


@functools.cache
def _kernel(config: ForwardConfig | DecodeConfig | ForwardSm90) -> Any:
    from graphene.kernels.attention.decode import DecodeConfig, attention_decode_kernel
    from graphene.kernels.attention.forward import attention_forward_kernel
    from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90

    if isinstance(config, DecodeConfig):
        return attention_decode_kernel(config)
    return attention_forward_sm90(config) if isinstance(config, ForwardSm90) else attention_forward_kernel(config)


@functools.cache
def _tiles(what: Attention, BM: int, BN: int, bits: bool) -> Any:
    from graphene.kernels.attention.key_tiles import attention_tiles_kernel
    from graphene.kernels.attention.problem import Attention

    return attention_tiles_kernel(Attention(what.D, left=what.left, right=what.right, mask=what.mask), BM, BN, bits)


@functools.cache
def combine_kernel(what: Attention, lse: bool) -> Any:
    """The kernel that puts parts together."""
    from graphene.kernels.attention.combine import attention_combine_kernel
    from graphene.kernels.attention.problem import Attention

    return attention_combine_kernel(Attention(what.D, what.dtype, group=what.group), lse)


class AttentionOperator:
    """The operator attention (`varlen`: of packed sequences).

    `lse`: it also returns the log-sum-exp. The operator with a gradient is one of its own, which the others have as
    `with_gradient`: it also returns what only its gradient reads.
    """

    def __init__(self, varlen: bool, lse: bool = True, with_gradient: Defined | None = None) -> None:
        self.varlen, self.lse, self.training = varlen, lse, with_gradient is None
        self.public = "attention_varlen" if varlen else "attention"
        result = "(Tensor, Tensor, Tensor, Tensor)" if self.training else "(Tensor, Tensor)" if lse else "Tensor"
        schema = (_PACKED if varlen else _SCHEMA).format(numbers=_NUMBERS, result=result)
        check = results_varlen if varlen else results
        self.defined = Defined(
            Definition(
                self.public + ("_training" if self.training else "_lse" if lse else ""), schema, self.configure,
                lambda *args: check(self.public, args, self.lse, self.training), self.reference, self.cost,
                self.save if self.training else None, self.backward if self.training else None,
                exact={"q": 2, "k": 2, "v": 2},
                said=self.public, autocast=lower, with_gradient=with_gradient, without_gradient=("bias",),
                values=(lambda *args: sequences(self.public, *args[:7])) if varlen else None,
                flops=count_scores(FORWARD, 0, varlen),
            )
        )  # fmt: skip

    def configure(self, q: Arg, k: Arg, v: Arg, *rest: Any) -> Any:
        """The recipe of a configuration."""
        from graphene.kernels.attention.decode import DecodeConfig

        given, (causal, left, right, scale, softcap) = rest[:-5], rest[-5:]
        scale = default_scale(q.shape[-1]) if scale is None else scale
        left, right = window_of(causal, left, right)
        starts = dict(zip((3, 4), given, strict=False)) if self.varlen else {}
        if (other := refused(q, k, starts.get(3))) is not None:
            return other
        rank, count = len(q.shape), 5  # tensors that are left out count, too
        outputs = [output(DTYPES[q.dtype], *([(0, d)] for d in range(rank)))]
        if self.lse:
            rows = [(0, 1), (0, 0)] if self.varlen else [(0, 0), (0, 2), (0, 1)]
            outputs.append(output("fp32", *([x] for x in rows)))
        biased = not self.varlen and given[1] is not None
        if self.training:
            outputs.append(output("fp32", *([(0, d)] for d in range(rank))))
            outputs.append(output("fp32", *([x] for x in rows)) if biased else output("fp32", [(-1, 0)]))
        if 0 in q.shape:
            return _core.Recipe(outputs, len(outputs), [])
        if (other := copies({0: q, 1: k, 2: v}, starts)) is not None:
            return other
        mask, bias = (None, None) if self.varlen else given
        a = replace(attention_of(q, k, mask, bias, (left, right), scale, softcap), alike=alike(k, v))
        inputs: list[Any] = [whole(i, rank) for i in range(3)]
        if self.varlen:
            inputs += [whole(i, 1) for i in (3, 4)]
        for i, x, e in ((3, mask, a.mask), (4, bias, a.bias)):
            if x is not None and e is not None:
                inputs.append(extra_view(i, x, e, (0, 1)))
        made = [whole(count, rank)] + ([whole(count + 1, rank - 1)] if self.lse else [])
        if self.training:
            made += [whole(count + 2, rank)] + ([whole(count + 3, rank - 1)] if biased else [])
        numbers = numbers_of(a, left, right, scale, softcap)
        numbers += [longest(given[2])] if self.varlen else []
        packed = (given[0].shape[0] - 1, given[2]) if self.varlen else None
        config, splits = self.choose(a, q, k, v, mask, bias, packed)
        kernel = _kernel(config)
        if not isinstance(config, DecodeConfig) and config.listed:
            tiles = Tiles(mask, config, count + len(outputs), (q.shape[1], k.shape[1]))
            bounds = numbers[len(numbers) - a.left - a.right :]
            launches = [(_tiles(a, config.BM, config.BN, config.bits), [tiles.mask, tiles.list, *bounds]),
                        (kernel, [*inputs, tiles.list_of_all, *made, *numbers])]  # fmt: skip
            return _core.Recipe([*outputs, tiles.output], len(outputs), launches)
        if splits == 1:
            return _core.Recipe(outputs, len(outputs), [(kernel, [*inputs, *made, *numbers])])
        parts = count + len(outputs)
        shape = [(-1, splits)], [(0, 0)], [(1, 2)], [(0, 1), (-1, a.group)]
        spaces = [output("fp32", *shape, [(0, 3)]), output("fp32", *shape), output("fp32", *shape)]
        work = [whole(parts, 5), whole(parts + 1, 4), whole(parts + 2, 4)]
        launches = [(kernel, [*inputs, *work, *numbers]), (combine_kernel(a, self.lse), [*work, *made])]
        return _core.Recipe([*outputs, *spaces], len(outputs), launches)

    def choose(
        self, a: Attention, q: Arg, k: Arg, v: Arg, mask: Arg | None, bias: Arg | None, packed: tuple[int, int] | None
    ) -> tuple[ForwardConfig | DecodeConfig | ForwardSm90, int]:
        """The kernel, and how many parts of the keys have results of their own.

        `packed`: how many sequences there are, and the longest one's queries.
        """
        from graphene.kernels.attention.forward import ForwardConfig
        from graphene.kernels.attention.key_tiles import CAPACITY
        from graphene.select.attention import SHORT, select_decode, select_forward, select_forward_sm90, select_short

        alike = all(
            x is None or (e is not None and not e.rows and of_all_heads(x)) for x, e in ((mask, a.mask), (bias, a.bias))
        )
        if not self.varlen and not self.training and q.shape[1] <= SHORT and alike:
            where = target_device(q.device)
            if q.device == "cpu":  # on the simulator, too, two blocks share keys
                where = where.of_size(2, where.shared_bytes)
            sizes = q.shape[0], q.shape[1], k.shape[1], k.shape[2]
            short = select_short(a, *sizes, lse=self.lse, device=where)
            if short[1] > 1 and where.arch == "sm_90a" and boxed(k) and boxed(v):
                return select_decode(a, *sizes, lse=self.lse, device=where)
            return short
        if q.device != "cpu" and boxed(q) and boxed(k) and boxed(v):
            batch, sq = (q.shape[0], q.shape[1]) if packed is None else packed
            sizes, device = (batch, q.shape[-2], sq, k.shape[-3]), target_device(q.device)
            by_wgmma = select_forward_sm90(a, *sizes, lse=self.lse, training=self.training, device=device)
            if by_wgmma is not None:
                return by_wgmma, 1
        config = (
            ForwardConfig(a, 32, 32, 2, lse=self.lse, training=self.training)
            if q.device == "cpu"
            else select_forward(
                a,
                lse=self.lse,
                training=self.training,
                device=target_device(q.device),
                longest=None if packed is None else packed[1],
                keys=k.shape[-3],
            )
        )
        listed = a.mask is not None and 0 < -(-k.shape[-3] // config.BN) <= CAPACITY
        return replace(config, listed=listed), 1

    def reference(self, *args: Any) -> Any:
        """The same by PyTorch's operators."""
        args = (*args[:-5], *_scaled(args[0], args[-5:]))
        made = plain.forward_varlen(*args[:5], *args[7:]) if self.varlen else plain.forward(*args)
        return made if self.training else made[:2] if self.lse else made[0]

    def cost(self, q: Tensor, k: Tensor, *rest: Any) -> int:
        """The multiply-adds of Q K^T, or the cost of its tiles if that is more."""
        from graphene.select.attention import SHORT

        return simulated_cost(q, k, rest, SHORT)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves the arguments and the results for the gradient."""
        tensors, (out, lse, wide, rest) = 5, output
        ctx.mark_non_differentiable(wide, rest)
        ctx.save_for_backward(*inputs[:tensors], wide if wide.dim() > 1 else out, lse, rest)
        ctx.numbers = (*inputs[tensors:-5], *_scaled(inputs[0], inputs[-5:]))
        ctx.set_materialize_grads(False)

    def backward(self, ctx: Any, g: Tensor, g_lse: Tensor, *_: Any) -> tuple[Any, ...]:
        """The gradient, by an operator of its own."""
        *tensors, wide, lse, rest = ctx.saved_tensors
        made = (gradients_varlen if self.varlen else gradients)(g, g_lse, wide, lse, rest, *tensors, *ctx.numbers)
        return (*made, *([None] * (2 + len(ctx.numbers))))


_TRAINING, _VARLEN_TRAINING = AttentionOperator(False).defined, AttentionOperator(True).defined
ATTENTION_LSE, ATTENTION = (AttentionOperator(False, lse, _TRAINING).defined for lse in (True, False))
VARLEN_LSE, VARLEN = (AttentionOperator(True, lse, _VARLEN_TRAINING).defined for lse in (True, False))


def default_scale(dim: int) -> float:
    """The scale of a call that names none."""
    return 1.0 / math.sqrt(dim) if dim > 0 else 1.0  # the checks of the arguments report a dim of 0


def _scaled(q: Tensor, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """The numbers of a call, with the scale filled in."""
    causal, left, right, scale, softcap = numbers
    return causal, left, right, default_scale(q.shape[-1]) if scale is None else scale, softcap


def bounds(name: str, window: Any) -> tuple[int, int]:
    """The window's two numbers."""
    if isinstance(window, (tuple, list)) and len(window) == 2:
        left, right = (-1 if w is None else w for w in window)
        if isinstance(left, int) and isinstance(right, int):
            return _of_64_bits(left), _of_64_bits(right)
    fail("OP_ARGUMENT", f"{name}: argument 'window' means nothing", ["want: (left, right), -1 for no limit",
         f"got:  {window!r}"], "pass numbers of keys, 0 or more, or -1")  # fmt: skip
    raise AssertionError


def _of_64_bits(bound: int) -> int:
    """A bound of the window that is larger than any number of keys."""
    return bound if -(2**63) <= bound < 2**63 else 2**62 if bound > 0 else -(2**62)


def _no_dropout(name: str, dropout_p: float) -> None:
    check_numbers(name, {"dropout_p": dropout_p})
    if dropout_p != 0:
        fail("OP_ARGUMENT", f"{name}: there is no dropout", [f"got:  dropout_p={dropout_p}"],
             "leave it out, or call torch.nn.functional.scaled_dot_product_attention")  # fmt: skip


def with_lse(name: str, return_lse: bool, with_it: Defined, without: Defined) -> Defined:
    """The operator that returns the LSE, or the one that does not."""
    if return_lse is not True and return_lse is not False:
        fail("OP_ARGUMENT", f"{name}: argument 'return_lse' is not a bool", [f"got:  {return_lse!r}"],
             "pass True or False")  # fmt: skip
    return with_it if return_lse else without


@public
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    dropout_p: float = 0.0,
    scales: Sequence[Tensor] | None = None,
    out_dtype: Any = None,
) -> Any:
    """``softmax(scale * q @ k^T + bias) @ v`` over the keys that each query sees, in fp32, rounded once.

    q is (batch, q_len, heads, dim), k and v are (batch, k_len, kv_heads, dim). kv_heads divides heads, and head h reads
    kv head h // (heads // kv_heads). The dtype is fp16 or bf16. Strides are any, with unit stride in dim, so a
    transposed (batch, heads, seq, dim) tensor is read in place. The result has q's shape and is row-major.

    Masks are aligned at the bottom right: with i the place of a query, j that of a key, and shift = k_len - q_len,
    ``causal`` sees j <= i + shift, and ``window`` = (left, right) sees i + shift - left <= j <= i + shift + right,
    where -1 is no limit. ``mask`` is bool, True for keys that are seen. Its shape is (batch, heads, q_len, k_len), with
    1 for a dimension that repeats, or (batch, k_len) for keys. Two dimensions are never (q_len, k_len), even if batch
    equals q_len; pass ``mask[None, None]``. ``bias`` broadcasts to (batch, heads, q_len, k_len), in q's dtype or fp32,
    and is added to the scaled scores; two dimensions of it are (q_len, k_len). ``scale`` None is 1 / sqrt(dim). With
    ``softcap`` scaled scores s become softcap * tanh(s / softcap), before the bias. ``return_lse`` also returns the log
    of each row's sum of exponentials (LSE), (batch, heads, q_len) in fp32. A query that sees no key gives zeros, and an
    LSE of -inf.

    Scores may have any size that fp32 holds. A bias below -2.35e38, which overflows in units of log2(e), counts as
    -inf. If the biases of a row are so large that fp32 holds no score beside them, its keys weigh alike. Rule keys out
    by ``mask``.

    With ``scales`` = (scale_q, scale_k, scale_v) q, k and v are float8_e4m3fn or float8_e5m2, each of them, and are
    multiplied by their scales: fp32 tensors of one element, (heads,) or (batch, heads), and kv_heads for k and v, none
    negative. Scores are computed in fp32; weights are rounded to e4m3 before they are multiplied by values, and tensor
    cores keep 14 bits of sums. The result has the dtype ``out_dtype``, bfloat16 or float16; None is bfloat16. There is
    no mask, no bias and no gradient.

    The gradient reaches q, k and v. For it the result is also saved in fp32. A bias that needs a gradient is refused,
    and so is dropout. Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    left = right = -1
    if window is not None:
        left, right = bounds("attention", window)
    if type(dropout_p) is not float or dropout_p != 0:
        _no_dropout("attention", dropout_p)
    cap = 0.0 if softcap is None else softcap
    if scales is not None:
        scale_q, scale_k, scale_v = three(scales)
        if mask is not None or bias is not None:
            fail("OP_ARGUMENT", "attention: fp8 goes with neither a mask nor a bias", ["got:  scales and one of them"],
                 "leave them out, or convert q, k and v")  # fmt: skip
        op = with_lse("attention", return_lse, FP8_LSE, FP8_ALONE)
        call = op.dispatched if is_compiling() else op.core
        return call(q, k, v, scale_q, scale_k, scale_v, out_dtype, causal, left, right, scale, cap)
    if out_dtype is not None:
        fail("OP_ARGUMENT", "attention: argument 'out_dtype' is for fp8", [f"got:  {out_dtype}, and no scales"],
             "leave it out, or convert the result")  # fmt: skip
    op = with_lse("attention", return_lse, ATTENTION_LSE, ATTENTION)
    call = op.dispatched if is_compiling() else op.core
    return call(q, k, v, mask, bias, causal, left, right, scale, cap)


@public
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    dropout_p: float = 0.0,
) -> Any:
    """Attention of packed sequences: q of (total_q, heads, dim), k and v of (total_k, kv_heads, dim).

    Sequence i is rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] of q, and likewise of k and v by cu_seqlens_k (both i32,
    on the same device). No sequence is longer than ``max_seqlen_q`` and ``max_seqlen_k``. Rows of q before the first
    sequence or after the last give zeros and an LSE of -inf. Such rows of k and v are not read. The gradients of all
    these rows are zeros. The rest is as in ``attention``; the LSE is (heads, total_q). Raises LaunchError: OP_DTYPE,
    OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    left = right = -1
    if window is not None:
        left, right = bounds("attention_varlen", window)
    if type(dropout_p) is not float or dropout_p != 0:
        _no_dropout("attention_varlen", dropout_p)
    cap = 0.0 if softcap is None else softcap
    op = with_lse("attention_varlen", return_lse, VARLEN_LSE, VARLEN)
    call = op.dispatched if is_compiling() else op.core
    return call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, left, right, scale, cap)
