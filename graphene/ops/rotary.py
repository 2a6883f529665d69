"""graphene.ops.rotary: rotary position embedding of queries and keys, with the norm of each before it, in one pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import broadcast, divides, output, own, recipe, view

if TYPE_CHECKING:
    from graphene.kernels.rotary import RotaryConfig

SCHEMA = (
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-6, "
    "float weight_offset=0.0, bool interleaved=False) -> (Tensor, Tensor)"
)
WIDEST, MOST_BATCH, MOST_HEADS = 512, 65535, 4096


def results(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, *_: Any
) -> list[tuple[Any, Any]]:
    """Shapes and dtypes of the results, all arguments checked."""
    tensors = {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight}
    check_dtypes("rotary", tensors, FLOATS)
    check_dtypes("rotary", {"cos": cos, "sin": sin}, FLOATS)
    check_devices("rotary", tensors | {"cos": cos, "sin": sin})
    if (q_weight is None) != (k_weight is None):
        fail("OP_ARGUMENT", "rotary: one of the weights is missing", ["want: q_weight and k_weight, or neither"],
             "pass both, or normalise one of the tensors by rms_norm")  # fmt: skip
    for name, t in (("q", q), ("k", k)):
        if len(t.shape) != 4 or t.shape[-1] % 2:
            fail("OP_SHAPE", f"rotary: argument '{name}' has the wrong shape",
                 ["want: (batch, seq, heads, dim), dim even", f"got:  {shape_text(t.shape)}"],
                 "transpose it")  # fmt: skip
    batch, seq, _, dim = q.shape
    if not same_shape([batch, seq, dim], [*k.shape[:2], k.shape[3]]):
        fail("OP_SHAPE", "rotary: 'q' and 'k' differ in more than their heads",
             [f"want: [{batch},{seq},any,{dim}], as 'q'", f"got:  {shape_text(k.shape)}"],
             "give both the same batch, sequence and head size")  # fmt: skip
    for name, t in (("cos", cos), ("sin", sin)):
        fits = len(t.shape) == 3 and same_shape(t.shape[1:], [seq, dim])
        if not fits or not (t.shape[0] == 1 or t.shape[0] == batch) or t.shape[0] != cos.shape[0]:
            fail("OP_SHAPE", f"rotary: argument '{name}' has the wrong shape",
                 [f"want: [{batch},{seq},{dim}], or 1 in place of the batch, alike for both",
                  f"got:  {shape_text(t.shape)}"], "pass one value for each element of a head")  # fmt: skip
    for name, w in (("q_weight", q_weight), ("k_weight", k_weight)):
        if w is not None and not same_shape(w.shape, [dim]):
            fail("OP_SHAPE", f"rotary: argument '{name}' has the wrong shape",
                 [f"want: [{dim}], one for each element of a head", f"got:  {shape_text(w.shape)}"],
                 "pass a vector")  # fmt: skip
    return [(q.shape, q.dtype), (k.shape, k.dtype)]


def other(x: Tensor, interleaved: bool) -> Tensor:
    """The second of each pair, negative, in the place of the first, and the first in that of the second."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, eps: float,
    weight_offset: float, interleaved: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same by PyTorch's operators, in fp32 (fp64 for fp64), rounded once."""
    wide = wide_dtype(q.dtype)
    cos, sin = (t.to(wide).unsqueeze(2) for t in (cos, sin))
    made = []
    for x, w in ((q, q_weight), (k, k_weight)):
        h = x.to(wide)
        if w is not None:
            h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps) * (w.to(wide) + weight_offset)
        made.append((h * cos + other(h, interleaved) * sin).to(x.dtype).contiguous())
    return made[0], made[1]


def cost(q: Tensor, k: Tensor, *_: Any) -> int:
    """The number of elements, or the cost of a block for each head if that is more."""
    heads = int(q.shape[0]) * (int(q.shape[2]) + int(k.shape[2]))
    return max(4 * (int(q.numel()) + int(k.numel())), 400 * heads)


@functools.cache
def _kernel(config: RotaryConfig) -> Any:
    from graphene.kernels.rotary import rotary_kernel

    return rotary_kernel(config)


def configure(
    q: Arg, k: Arg, cos: Arg, sin: Arg, q_weight: Arg | None, k_weight: Arg | None, eps: float, weight_offset: float,
    interleaved: bool,
) -> Any:  # fmt: skip
    """The recipe of a configuration."""
    from graphene.select.rotary import select_rotary

    batch, seq, _, dim = q.shape
    heads = (q.shape[2], k.shape[2])
    outputs = [output(DTYPES.get(q.dtype, "fp32"), *([(i, d)] for d in range(4))) for i in range(2)]
    if q.dtype not in MATMUL_DTYPES or cos.dtype not in (*MATMUL_DTYPES, "float32"):
        return _core.Recipe.torch(f"no kernel for {q.dtype} with cosines of {cos.dtype}")
    if 0 in (*q.shape, *k.shape) and (batch * seq * dim == 0 or max(heads) == 0):
        return _core.Recipe(outputs, 2, [])
    if dim > WIDEST or min(heads) == 0 or max(heads) > MOST_HEADS or batch > MOST_BATCH:
        return _core.Recipe.torch(f"no kernel for {batch} sequences, {heads} heads of {dim}")
    tensors = [(i, t) for i, t in enumerate((q, k, cos, sin, q_weight, k_weight)) if t is not None]
    copies = sum(1 << i for i, t in tensors if t.strides[-1] != 1)
    if copies:
        return _core.Recipe.copy(copies, "the elements of a head do not lie one after the other")
    align = 16
    for i, t in tensors:
        steps = [t.strides[d] * t.item_bytes for d in range(len(t.shape) - 1) if t.shape[d] != 1]
        # Cosines of another type are read in vectors of as many elements.
        n = divides(16, *steps, t.align) * 2 // (t.item_bytes if i in (2, 3) else 2)
        align = min(align, n)
    pairs = "neighbours" if interleaved else "halves"
    dtype, angle = (getattr(dtypes, DTYPES[t.dtype]) for t in (q, cos))
    if align < 4 and interleaved:
        mask = sum(1 << i for i, _ in tensors)
        return _core.Recipe.copy(mask, "pairs of elements do not begin at multiples of their size")
    config = select_rotary(
        batch * seq, heads, dim, dtype, pairs=pairs, angle_dtype=angle, norm=q_weight is not None,
        align_bytes=max(align, 2),
    )  # fmt: skip
    views = {n: view(i, *(own(i, d) for d in range(4))) for n, i in (("q", 0), ("k", 1), ("yq", 6), ("yk", 7))}
    for name, i, t in (("cos", 2, cos), ("sin", 3, sin)):
        first = broadcast([(0, 0)]) if t.shape[0] == 1 else own(i, 0)
        views[name] = view(i, first, own(i, 1), own(i, 2))
    names: list[Any] = ["q", "k", "cos", "sin"]
    if q_weight is not None:
        views |= {"wq": view(4, own(4, 0)), "wk": view(5, own(5, 0))}
        names += ["wq", "wk"]
    names += ["yq", "yk"] + ([weight_offset, eps] if q_weight is not None else [])
    return recipe(outputs, 2, [(_kernel(config), names)], views)


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves the arguments for the gradient, which computes the norm again."""
    q, k, cos, sin, q_weight, k_weight, ctx.eps, ctx.offset, ctx.interleaved = inputs
    ctx.save_for_backward(q, k, cos, sin, q_weight, k_weight)


def backward(ctx: Any, gq: Tensor | None, gk: Tensor | None) -> tuple[Any, ...]:
    """The turn back, by this operator; through the norm by PyTorch's operators, in fp32."""
    q, k, cos, sin, q_weight, k_weight = ctx.saved_tensors
    gq, gk = (torch.zeros_like(x) if g is None else g for g, x in ((gq, q), (gk, k)))
    if q_weight is None:
        turned = other(sin, ctx.interleaved) * _signs(sin, ctx.interleaved)
        made = rotary(gq, gk, cos, turned, interleaved=ctx.interleaved)
        return (*made, None, None, None, None, None, None, None)
    wide = wide_dtype(q.dtype)
    c, s = (t.to(wide).unsqueeze(2) for t in (cos, sin))
    of_x, of_w = [], []
    for x, w, g in ((q, q_weight, gq), (k, k_weight, gk)):
        g = g.to(wide)
        g = g * c - other(g * s, ctx.interleaved)
        h = x.to(wide)
        rstd = torch.rsqrt((h * h).mean(-1, keepdim=True) + ctx.eps)
        n, gw = h * rstd, g * (w.to(wide) + ctx.offset)
        of_x.append(((gw - n * (gw * n).mean(-1, keepdim=True)) * rstd).to(x.dtype))
        of_w.append((g * n).sum((0, 1, 2)).to(w.dtype))
    return (*of_x, None, None, *of_w, None, None, None)


def _signs(x: Tensor, interleaved: bool) -> Tensor:
    """1 for the first of each pair, -1 for the second: with these, `other` of sines turns back."""
    one = torch.ones_like(x[..., ::2])
    return torch.stack([one, -one], -1).flatten(-2) if interleaved else torch.cat([one, -one], -1)


ROTARY = Defined(
    Definition("rotary", SCHEMA, configure, results, reference, cost, save, backward, exact={"q": 2, "k": 2},
               without_gradient=("cos", "sin"))
)  # fmt: skip


@public
def rotary(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    interleaved: bool = False,
) -> Any:
    """``(turn(q), turn(k))`` with ``turn(x) = x * cos + other(x) * sin``, in fp32, rounded once.

    ``q`` is (batch, seq, heads, dim) and ``k`` (batch, seq, kv_heads, dim), in any strides. ``other(x)`` exchanges the
    two elements of each pair and negates what comes to the first place: pairs are elements i and i + dim / 2, with
    ``interleaved`` elements 2 i and 2 i + 1. ``cos`` and ``sin`` are (batch or 1, seq, dim) of any floating-point
    dtype, and have no gradient. With ``q_weight`` and ``k_weight`` (dim,), each head x is first
    ``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)``. The results are contiguous. PyTorch's operators compute
    fp32 and fp64.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return (ROTARY.dispatched if is_compiling() else ROTARY.core)(
        q, k, cos, sin, q_weight, k_weight, eps, weight_offset, interleaved
    )
