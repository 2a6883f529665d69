"""graphene.ops.attention of fp8: queries, keys and values of 8 bits with scales, by wgmma on sm_90a."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.ops.attention import reference as plain
from graphene.ops.attention.checks import numbers, shapes
from graphene.ops.attention.recipe import FORWARD, boxed, count_scores, numbers_of, whole, window_of
from graphene.ops.core.checks import check_devices, readable, shape_text
from graphene.ops.core.define import Arg, Defined, Definition
from graphene.ops.core.kernels import target_device
from graphene.ops.core.torch import NUMBERS, Tensor, fail, torch
from graphene.ops.core.views import Dim, broadcast, output, own, view

if TYPE_CHECKING:
    from graphene.kernels.attention.sm90_config import ForwardSm90

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
RESULTS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
TYPES = {t.array_name: t for t in (dtypes.fp8e4m3, dtypes.fp8e5m2)}
Q, K, V, SCALE_Q, SCALE_K, SCALE_V, FIRST = range(7)  # the tensors of a call, and its first result
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor scale_q, Tensor scale_k, Tensor scale_v, ScalarType? out_dtype, "
    "bool causal, int left, int right, float? scale, float softcap) -> {result}"
)
_OF_NUMBER = {number: name for dtype, number in NUMBERS.items() for of, name in RESULTS.items() if dtype == of}
_SIMULATED_TILE_US = 1500  # of 64 queries and 32 keys


@functools.cache
def _kernel(config: ForwardSm90) -> Any:
    from graphene.kernels.attention.sm90 import attention_forward_sm90

    return attention_forward_sm90(config)


@functools.cache
def _values(dtype: dtypes.DType, depth: int) -> Any:
    from graphene.kernels.attention.values_fp8 import ValuesConfig, attention_values_kernel

    return attention_values_kernel(ValuesConfig(dtype, 64 if depth <= 64 else 128))


def results(lse: bool, *args: Any) -> list[tuple[Any, Any]]:
    """Shape and dtype of the results, all arguments checked."""
    name = "attention"
    q, k, v, *scales, out_dtype, _, left, right, scale, softcap = args
    given = {"q": q, "k": k, "v": v}
    of_scales = dict(zip(("scale_q", "scale_k", "scale_v"), scales, strict=True))
    check_devices(name, given | of_scales)
    for n, t in given.items():
        if t.dtype not in FP8:
            fail("OP_DTYPE", f"{name}: argument '{n}' has a dtype that does not go with scales",
                 ["want: " + ", ".join(map(str, FP8)), f"got:  {t.dtype}"],
                 "convert q, k and v, or pass no scales")  # fmt: skip
    shapes(name, 4, q, k, v)
    for n, t, heads in zip(of_scales, scales, (q.shape[2], k.shape[2], k.shape[2]), strict=True):
        fits = prod(t.shape) == 1 or (1 <= t.dim() <= 2 and t.shape[-1] == heads)
        if t.dtype != torch.float32:
            fail("OP_DTYPE", f"{name}: '{n}' of scales is no fp32", ["want: torch.float32", f"got:  {t.dtype}"],
                 "convert it: .float()")  # fmt: skip
        if not fits or (t.dim() == 2 and t.shape[0] not in (1, q.shape[0])):
            fail("OP_SHAPE", f"{name}: '{n}' of scales has the wrong shape",
                 [f"want: one element, [{heads}] or {shape_text((q.shape[0], heads))}", f"got:  {shape_text(t.shape)}"],
                 "pass a number for the tensor, each head, or each head of each member of the batch")  # fmt: skip
    if out_dtype is not None and out_dtype not in RESULTS:
        fail("OP_DTYPE", f"{name}: argument 'out_dtype' is not a type of a result",
             ["want: " + ", ".join(map(str, RESULTS)), f"got:  {out_dtype}"], "pass one of them")  # fmt: skip
    numbers(name, left, right, scale, softcap)
    made = [(q.shape, out_dtype or torch.bfloat16)]
    return made + [((q.shape[0], q.shape[2], q.shape[1]), torch.float32)] * lse


def positive(*args: Any) -> None:
    """Raises OP_ARGUMENT if a scale is negative or no number. Only CPU tensors are looked at."""
    for n, t in zip(("scale_q", "scale_k", "scale_v"), args[SCALE_Q : SCALE_V + 1], strict=True):
        if readable(t) and not bool((t >= 0).all()):
            fail("OP_ARGUMENT", f"attention: '{n}' of scales is negative or no number", [f"got:  {t.min().item()}"],
                 "pass what the numbers are to be multiplied by")  # fmt: skip


def unreadable(arg: Arg) -> bool:
    """Whether TMA cannot read it in place."""
    starts = [s for s, n in zip(arg.strides[:-1], arg.shape[:-1], strict=True) if n != 1]
    return (arg.strides[-1] != 1 and arg.shape[-1] != 1) or arg.align < 16 or any(s % 16 or s <= 0 for s in starts)


def of_heads(i: int, arg: Arg, heads_of: int) -> Any:
    """The view (batch, heads) of a scale, tensor i, for the heads of tensor `heads_of`."""
    at: list[int | None] = [None, None, *range(len(arg.shape))][-2:] if prod(arg.shape) > 1 else [None, None]
    full = ((Q, 0), (heads_of, 2))
    dims: list[Dim] = [
        broadcast([n]) if d is None or arg.shape[d] == 1 else own(i, d) for d, n in zip(at, full, strict=True)
    ]
    return view(i, *dims)


class Fp8Operator:
    """The operator; `lse`: it also returns the log-sum-exp."""

    def __init__(self, lse: bool) -> None:
        self.lse, schema = lse, _SCHEMA.format(result="(Tensor, Tensor)" if lse else "Tensor")
        self.defined = Defined(
            Definition(
                "attention_fp8" + ("_lse" if lse else ""), schema, self.configure, functools.partial(results, lse),
                self.reference, self.cost, exact={"q": 2, "k": 2, "v": 2}, said="attention", values=positive,
                without_gradient=("q", "k", "v", "scale_q", "scale_k", "scale_v"),
                flops=count_scores(FORWARD, 0, False),
            )
        )  # fmt: skip

    def configure(self, *args: Any) -> Any:
        """The recipe of a configuration."""
        from graphene.kernels.attention.problem import KEYS_OF_VALUES, MOST, Attention
        from graphene.kernels.attention.sm90_config import ForwardSm90
        from graphene.select.attention_fp8 import select_forward_fp8
        from graphene.select.sm90_time import has_wgmma

        q, k, v, *scales, out_dtype, causal, left, right, scale, softcap = args
        depth = q.shape[3]
        scale = depth**-0.5 if scale is None else scale
        left, right = window_of(causal, left, right)
        if depth % 16 or depth > 256:
            return _core.Recipe.torch(f"no kernel of fp8 for heads of {depth} elements")
        if q.shape[1] == 0 or k.shape[1] == 0:
            return _core.Recipe.torch("there are no queries or no keys")
        if max(q.shape[1], k.shape[1]) > MOST or max(q.shape[0], q.shape[2] * 2) > MOST_BLOCKS_YZ:
            return _core.Recipe.torch("no kernel of fp8 for as many keys, heads or sequences")
        where = target_device(q.device)
        if q.device != "cpu" and not has_wgmma(where):
            return _core.Recipe.torch("the kernels need instructions that sm_90a alone has")
        to = "bf16" if out_dtype is None else _OF_NUMBER[out_dtype]
        outputs = [output(to, *([(Q, d)] for d in range(4)))]
        if self.lse:
            outputs.append(output("fp32", [(Q, 0)], [(Q, 2)], [(Q, 1)]))
        if 0 in q.shape:
            return _core.Recipe(outputs, len(outputs), [])
        if copies := sum(1 << i for i, t in enumerate((q, k, v)) if unreadable(t) or not boxed(t)):
            return _core.Recipe.copy(
                copies, "the elements do not lie one after the other, 16 bytes of a head at a time"
            )
        a = Attention(
            depth, getattr(dtypes, to), left >= 0, right >= 0, softcap=softcap > 0, scaled=not scale > 0,
            group=q.shape[2] // k.shape[2], fp8=tuple(TYPES[t.dtype] for t in (q, k, v)),  # type: ignore[arg-type]
        )  # fmt: skip
        sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
        if q.device == "cpu":
            config = ForwardSm90(a, 32, 1, 2, 1, lse=self.lse, persistent=False, copier=False)
        else:
            config = select_forward_fp8(a, *sizes, lse=self.lse, device=where)
        keys = -(-k.shape[1] // KEYS_OF_VALUES) * KEYS_OF_VALUES
        lines = FIRST + len(outputs)  # the tensor of transposed values
        of_scales = [of_heads(i, t, n) for i, t, n in zip((SCALE_Q, SCALE_K, SCALE_V), scales, (Q, K, K), strict=True)]
        given = [whole(Q, 4), whole(K, 4), whole(lines, 4), *of_scales]
        made = [whole(FIRST + i, 4 - i) for i in range(len(outputs))]
        launches = [
            (_values(a.fp8[2], depth), [whole(V, 4), whole(lines, 4)]),  # type: ignore[index]
            (_kernel(config), [*given, *made, *numbers_of(a, left, right, scale, softcap)]),
        ]
        space = output(a.fp8[2].name, [(V, 0)], [(V, 2)], [(V, 3)], [(-1, keys)])  # type: ignore[index]
        return _core.Recipe([*outputs, space], len(outputs), launches)

    def reference(self, *args: Any) -> Any:
        """The same by PyTorch's operators, in fp32, rounded once."""
        q, k, v, *scales, out_dtype, causal, left, right, scale, softcap = args
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        wide = (t.float() * _per_head(s) for t, s in zip((q, k, v), scales, strict=True))
        out, lse, *_ = plain.forward(*wide, None, None, causal, left, right, scale, softcap)
        out = out.to(out_dtype or torch.bfloat16)
        return (out, lse) if self.lse else out

    def cost(self, q: Tensor, k: Tensor, *_: Any) -> int:
        """The multiply-adds of Q K^T, or the time of simulating whole tiles if that is more."""
        tiles = q.shape[0] * q.shape[2] * -(-q.shape[1] // 64) * -(-k.shape[1] // 32)
        return int(max(q.numel() * k.shape[1], tiles * _SIMULATED_TILE_US))


def _per_head(scale: Tensor) -> Tensor:
    """A scale as it multiplies (batch, seq, heads, dim)."""
    if prod(scale.shape) == 1:
        return scale.reshape(())
    return scale[:, None, :, None] if scale.dim() == 2 else scale[:, None]


def three(scales: Any) -> Sequence[Tensor]:
    """The scales of q, k and v; raises OP_ARGUMENT unless there are three tensors."""
    if isinstance(scales, (tuple, list)) and len(scales) == 3 and all(isinstance(t, torch.Tensor) for t in scales):
        return scales
    fail("OP_ARGUMENT", "attention: argument 'scales' means nothing",
         ["want: (scale_q, scale_k, scale_v), tensors of torch.float32", f"got:  {scales!r}"[:200]],
         "pass what q, k and v are to be multiplied by")  # fmt: skip
    raise AssertionError


FP8_LSE, FP8_ALONE = (Fp8Operator(lse).defined for lse in (True, False))
