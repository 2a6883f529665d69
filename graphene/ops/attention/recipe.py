"""How kernels of attention read arguments in place; the operators and their gradients share this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.ops.core.define import Arg
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES
from graphene.ops.core.torch import Tensor, torch
from graphene.ops.core.views import ONE, Dim, broadcast, output, own, view

if TYPE_CHECKING:
    from graphene.kernels.attention.forward import ForwardConfig
    from graphene.kernels.attention.problem import Attention, Extra
    from graphene.kernels.attention.sm90 import ForwardSm90

WIDE_CAP = 128.0  # beyond it the last digits of the cap are too large for scores, so kernels take more care
MOST_CAP = 2.0**120  # a larger cap changes no fp32 score
STEP = 128  # kernels are launched for the longest sequence, rounded up to a multiple of this


def of_all_heads(arg: Arg) -> bool:
    """Whether a mask or bias is the same for every head."""
    return (
        len(arg.shape) == 2
        or (len(arg.shape) == 4 and arg.shape[1] == 1)
        or (len(arg.shape) == 3 and arg.shape[0] == 1)
    )


def unreadable(arg: Arg) -> bool:
    """Whether no kernel can read it in place, which needs vectors of 16 bytes along the elements of a head."""
    starts = [s for s, n in zip(arg.strides[:-1], arg.shape[:-1], strict=True) if n != 1]
    lies = arg.strides[-1] == 1 or arg.shape[-1] == 1
    return not lies or arg.align < 16 or any(s % 8 or s < 0 for s in starts)


def _aligned_dims(arg: Arg, padding: bool) -> list[int | None]:
    """Which of its dimensions are batch, heads, sq, sk; a mask of keys has the first and the last."""
    rank = len(arg.shape)
    return [0, None, None, 1] if padding and rank == 2 else [None] * (4 - rank) + list(range(rank))


def extra(arg: Arg | None, padding: bool) -> Extra | None:
    """How a kernel reads a mask (`padding`) or a bias."""
    from graphene.kernels.attention.problem import Extra

    if arg is None:
        return None
    dims = _aligned_dims(arg, padding)
    starts = [s for s, n in zip(arg.strides[:-1], arg.shape[:-1], strict=True) if n != 1]
    pairs = arg.strides[-1] == 1 and arg.shape[-1] % 2 == 0 and arg.align >= 2 * arg.item_bytes
    pairs = pairs and all(s % 2 == 0 for s in starts)
    dtype = dtypes.u8 if padding else getattr(dtypes, DTYPES[arg.dtype])
    return Extra(dtype, dims[2] is not None and arg.shape[dims[2]] != 1, 2 if pairs else 1)


def extra_view(i: int, arg: Arg, e: Extra, at: tuple[int, int]) -> Any:
    """The view (batch, heads, sq or 1, sk) of tensor `i`; `at` says which tensors are q and k."""
    q, k = at
    full = ((q, 0), (q, 2), (q, 1), (k, 1))
    dims: list[Dim] = []
    for place, (d, extent) in enumerate(zip(_aligned_dims(arg, e.dtype == dtypes.u8), full, strict=True)):
        if place == 2 and not e.rows:
            dims.append(ONE)
        else:
            dims.append(broadcast([extent]) if d is None or arg.shape[d] == 1 else own(i, d))
    return view(i, *dims)


def numbers_of(
    a: Attention, left: int, right: int, scale: float, softcap: float, gradient: bool = False
) -> list[float | int]:
    """A kernel's numbers; kernels of the gradients also take the scale."""
    from graphene.kernels.attention.problem import LOG2E

    out: list[float | int] = [scale * LOG2E]
    out += [min(softcap, MOST_CAP) * LOG2E] if a.softcap else []
    out += [scale] if gradient else []
    return out + ([left] if a.left else []) + ([right] if a.right else [])


def simulated_cost(q: Tensor, k: Tensor, rest: Sequence[Any], short: int = 0, tile: tuple[int, int] = (150, 6)) -> int:
    """The multiply-adds of Q K^T, or the cost of simulating its tiles, 32 by 32 of each head, if that is more.

    `rest`: v and the arguments after it. `short`: the most queries for which a warp has 16 of the rows of a group of
    heads. `tile`: the cost of a tile, and its cost for each element of a head.
    """
    packed = q.dim() == 3
    sums, heads, depth = int(q.numel()) * int(k.shape[-3]), q.shape[-2], q.shape[-1]
    each = tile[0] + tile[1] * depth
    if packed:
        starts, longest = rest[1], rest[3:5]
        sequences = max(starts.shape[0] - 1, 0)
        empty = sequences * -(-longest[0] // STEP) * (STEP // 32)
        tiles = min(empty, sequences + q.shape[0] // 32) * -(-longest[1] // 32)
        return int(max(sums, heads * (20 * empty + each * tiles)))
    if q.shape[1] > short:
        return int(max(sums, q.shape[0] * heads * -(-q.shape[1] // 32) * -(-k.shape[1] // 32) * each))
    kv_heads = max(k.shape[-2], 1)
    rows = q.shape[1] * (heads // kv_heads)
    warps = max(1, min(4, -(-rows // 16)))
    keys = 64 if depth <= 64 else 32 if depth <= 128 else 16
    blocks = q.shape[0] * kv_heads * -(-rows // (16 * warps))
    return int(max(sums, blocks * warps * warps * -(-k.shape[1] // keys) * each))


def refused(q: Arg, k: Arg, starts: Arg | None = None) -> Any:
    """The recipe of PyTorch's operators if there is no kernel, else None; `starts`: those of packed sequences."""
    from graphene.kernels.attention.problem import MOST

    if q.dtype not in MATMUL_DTYPES:
        return _core.Recipe.torch(f"no kernel for attention of {q.dtype}")
    if q.shape[-1] % 8 or q.shape[-1] > 256:
        return _core.Recipe.torch(f"no kernel for heads of {q.shape[-1]} elements")
    if q.shape[-3] == 0 or k.shape[-3] == 0:
        return _core.Recipe.torch("there are no queries or no keys")
    if max(q.shape[-3], k.shape[-3]) > MOST:
        return _core.Recipe.torch(f"no kernel for more than {MOST} queries or keys")
    if starts is not None and starts.shape[0] == 1:
        return _core.Recipe.torch("there are no sequences")
    sequences = q.shape[0] if len(q.shape) == 4 else 1 if starts is None else starts.shape[0] - 1
    if max(q.shape[-2], sequences) > MOST_BLOCKS_YZ:
        return _core.Recipe.torch(f"no kernel for more than {MOST_BLOCKS_YZ} heads or sequences")
    return None


def alike(a: Arg, b: Arg) -> bool:
    """Whether two tensors have the same strides in dimensions of more than one element."""
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True))


def boxed(arg: Arg) -> bool:
    """Whether TMA copies boxes of it, which needs lines at places of their own."""
    return all(n == 1 or s > 0 for n, s in zip(arg.shape, arg.strides, strict=True))


def row_major(arg: Arg) -> bool:
    """Whether the elements lie one after the other."""
    stride = 1
    for n, s in zip(reversed(arg.shape), reversed(arg.strides), strict=True):
        if n != 1 and s != stride:
            return False
        stride *= n
    return True


def copies(tensors: dict[int, Arg], dense: dict[int, Arg]) -> Any:
    """The recipe that copies tensors which no kernel can read in place, else None; `dense` must be row-major."""
    mask = sum(1 << i for i, t in tensors.items() if unreadable(t))
    mask |= sum(1 << i for i, t in dense.items() if not row_major(t))
    if not mask:
        return None
    return _core.Recipe.copy(mask, "the elements do not lie one after the other, 16 bytes of a head at a time")


def window_of(causal: bool, left: int, right: int) -> tuple[int, int]:
    """The window, cut to the widest that a kernel takes."""
    from graphene.kernels.attention.problem import MOST

    return min(left, MOST), 0 if causal else min(right, MOST)


def attention_of(
    q: Arg, k: Arg, mask: Arg | None, bias: Arg | None, bounds: tuple[int, int], scale: float, softcap: float
) -> Attention:
    """The problem of a kernel; `bounds` are those of the window, -1 for none."""
    from graphene.kernels.attention.problem import Attention

    left, right = bounds
    return Attention(
        q.shape[-1], getattr(dtypes, DTYPES[q.dtype]), left >= 0, right >= 0, extra(mask, True), extra(bias, False),
        softcap > 0, not scale > 0, q.shape[-2] // max(k.shape[-2], 1), len(q.shape) == 3, wide=softcap > WIDE_CAP,
    )  # fmt: skip


def longest(most: int) -> int:
    """The length of the longest sequence for kernels; rows outside of all sequences need blocks, too."""
    return max(-(-most // STEP), 1) * STEP


def whole(i: int, rank: int) -> Any:
    """Tensor `i` in its own shape."""
    return view(i, *(own(i, d) for d in range(rank)))


class Tiles:
    """The list of tiles that a mask (tensor 3 of q, k, v, mask) lets queries see, as tensor `i` of a recipe.

    How many tiles there are belongs to the sizes (queries, keys): other sizes of a class are configured again.
    """

    def __init__(self, arg: Arg, c: ForwardConfig | ForwardSm90, i: int, sizes: tuple[int, int]) -> None:
        from graphene.kernels.attention.key_tiles import list_elems

        a, (sq, sk) = c.what, sizes
        assert a.mask is not None
        batch, head, query, key = _aligned_dims(arg, True)
        repeats = {d for d in (batch, head, query, key) if d is not None and arg.shape[d] == 1}
        rows = a.mask.rows or a.left or a.right
        along: list[Dim] = [ONE if d is None or d in repeats else own(3, d) for d in (batch, head)]
        if a.mask.rows and query is not None:
            along.append(own(3, query))
        else:
            along.append(broadcast([(0, 1)]) if rows else ONE)
        along.append(broadcast([(1, 1)]) if key is None or key in repeats else own(3, key))
        self.mask = view(3, *along)
        row_tiles, entries = -(-sq // c.BM) if rows else 1, list_elems(sk, c.BN, c.bits)
        sizes_of = [[(-1, 1)] if d is None or d in repeats else [(3, d)] for d in (batch, head)]
        self.output = output("i32", *sizes_of, [(-1, row_tiles)], [(-1, entries)])
        self.list = whole(i, 4)
        full = [broadcast([(0, at)]) if d is None or d in repeats else own(i, n)
                for n, (d, at) in enumerate(((batch, 0), (head, 2)))]  # fmt: skip
        self.list_of_all = view(i, *full, own(i, 2), own(i, 3))


FORWARD, BACKWARD = 2, 5  # products for each score; backward, the scores are computed again


def count_scores(products: int, skipped: int, packed: bool) -> Callable[..., int]:
    """Counts `products` products for each score, two for a multiply-add; `skipped` arguments come before q.

    All scores count, even those that a mask hides, as PyTorch counts them. A packed sequence counts its own scores.
    """

    def count(*args: Any, **_: Any) -> int:
        q, k = args[skipped : skipped + 2]
        return int(2 * products * q.numel() * k.shape[1])

    def count_packed(*args: Any, **_: Any) -> int:
        q, _k, _v, *starts = args[skipped : skipped + 5]
        longest = args[skipped + 5 : skipped + 7]
        each = q.shape[1] * q.shape[2]
        if any(t.device.type == "meta" or isinstance(t, torch._subclasses.FakeTensor) for t in starts):
            return int(2 * products * each * prod(longest) * (starts[0].shape[0] - 1))
        lengths = [[b - a for a, b in pairwise(t.tolist())] for t in starts]
        return int(2 * products * each * sum(m * n for m, n in zip(*lengths, strict=True)))

    return count_packed if packed else count
