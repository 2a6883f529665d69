"""Common to attention's kernels: the problem, the arguments, which keys a query sees, from products to scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import FLOATS, MOST_BLOCKS_YZ, element, flags, function, instance, size
from graphene.kernels.epilogues import pointwise

if TYPE_CHECKING:
    from collections.abc import Callable

LOG2E = math.log2(math.e)
MOST = 1 << 24  # the most queries or keys
LAZY = 8  # the maximum that sums are relative to changes when the true one is 2 to this power times as large
KEYS_OF_VALUES = 16  # transposed values of fp8 have the keys of each 16 in an order of their own
UP_FP8, LAZY_FP8 = 6, 2  # weights of fp8 are stored 2^6 times larger, at most 2^(6 + 2); e4m3 holds up to 448
FAR = 2.0**20  # from scores beyond this, the maximum is subtracted before they are scaled


@dataclass(frozen=True)
class Extra:
    """A tensor with a number for each score: its type, whether it differs between queries, elements side by side.

    gr.u8 is a mask, with 0 for a key that is not seen; fp16, bf16 or fp32 is a bias, which is added to the scores.
    """

    dtype: gr.DType = gr.u8
    rows: bool = True
    vector: int = 1


@dataclass(frozen=True)
class Attention:
    """The problem. A kernel contains code only for the options that it has.

    `left`, `right`: query i sees keys i + sk - sq - left ... i + sk - sq + right (arguments of the kernel). `mask`,
    `bias`: tensors with a number for every score. `softcap`: scores are cap * tanh(s / cap). `wide`: the cap is far
    above the scores. `scaled`: scores are scaled before their maximum is taken, which a scale that is not positive
    needs. `group`: how many heads share keys and values. `varlen`: sequences are packed one after the other. `alike`: V
    has the strides of K, and a gradient those of Q, which saves registers. `score`: for the forward kernel, a function
    score(s, query, key) of registers that replaces a scaled and capped score before bias and masks; `query` is a
    query's place among keys, i + sk - sq. On arrays the function is part of the kernel's meaning. `sinks`: a tensor has
    a score for each head that takes part in the softmax and has no value. `fp8`: the types of Q, K and V, whose numbers
    have 8 bits and scales; `dtype` is then that of the result. Raises VerifyError KERNEL_ARGUMENT.
    """

    D: int
    dtype: gr.DType = gr.fp16
    left: bool = False
    right: bool = False
    mask: Extra | None = None
    bias: Extra | None = None
    softcap: bool = False
    scaled: bool = False
    group: int = 1
    varlen: bool = False
    alike: bool = False
    wide: bool = False
    score: Callable[..., Any] | None = None
    sinks: bool = False
    fp8: tuple[gr.DType, gr.DType, gr.DType] | None = None

    def __post_init__(self) -> None:
        size("Attention", "D", self.D, multiple_of=8, most=256)
        size("Attention", "group", self.group)
        element("Attention", "dtype", self.dtype, ("fp16", "bf16"))
        for name in ("left", "right", "softcap", "scaled", "varlen", "alike", "wide", "sinks"):
            flags("Attention", name, (getattr(self, name),), 1)
        if self.fp8 is not None:
            size("Attention", "D", self.D, multiple_of=16, most=256)
            for name, dtype in zip("QKV", self.fp8, strict=True):
                element("Attention", f"fp8 of {name}", dtype, ("fp8e4m3", "fp8e5m2"))
        if self.score is not None:
            function("Attention", "score", self.score, of="of a score, its query and its key")
        for name, e, known in (("mask", self.mask, ("u8",)), ("bias", self.bias, FLOATS)):
            if e is not None:
                instance("Attention", name, e, Extra)
                element("Attention", f"{name}.dtype", e.dtype, known)

    @property
    def depth(self) -> int:
        """The head size that the tensor core takes; zeros fill shared memory up to it."""
        each = 16 if self.fp8 is None else 32
        return -(-self.D // each) * each

    @property
    def prescaled(self) -> bool:
        """Whether scores are scaled one by one instead of within the exponential."""
        return self.softcap or self.scaled or self.bias is not None or self.score is not None

    def atom(self, name: str) -> Any:
        """The matrix instruction for the type, and the other instructions by their names."""
        return gr.atom({"mma": f"mma.m16n8k16.f32.{'f16' if self.dtype == gr.fp16 else 'bf16'}"}.get(name, name))

    def shared(self, name: str, rows: int, stages: int | None = None, over: Any = None) -> gr.Tensor:
        """A tile of rows in shared memory."""
        swizzle = gr.swizzle(self.depth, self.dtype)
        return gr.alloc(name, [rows, self.depth], self.dtype, gr.SH, stages=stages, swizzle=swizzle, over=over)


def refuse_sinks(name: str, a: Attention, fix: str) -> None:
    """Raises KERNEL_ARGUMENT if a problem has sinks or fp8, of which the kernel of `name` knows nothing."""
    if a.fp8 is not None:
        _core.fail("KERNEL_ARGUMENT", f"{name}: fp8 does not fit", ["want: fp8=None", f"got: {a.fp8}"],
                   "take ForwardSm90")  # fmt: skip
    if a.sinks:
        _core.fail("KERNEL_ARGUMENT", f"{name}: sinks do not fit", ["want: sinks=False", "got: sinks=True"], fix)


class AttentionArguments:
    """The declarations of a kernel of attention: its sizes, and tensors of any strides.

    Tensors are (batch, seq, heads, D), or (total, heads, D) if sequences are packed. `keys`: the number of keys is a
    multiple of it. `fewest_keys`: the least number of keys that there are.
    """

    def __init__(self, a: Attention, keys: int = 1, fewest_keys: int = 0) -> None:
        self.a = a
        self.batch = gr.sym("batch", max=MOST_BLOCKS_YZ)
        wide = max(e.vector for e in (a.mask, a.bias, Extra()) if e is not None)
        self.sq = gr.sym("sq", max=MOST)
        self.sk = gr.sym("sk", multiple_of=math.lcm(wide, keys), min=fewest_keys, max=MOST)
        self.kv_heads = gr.sym("kv_heads", max=MOST_BLOCKS_YZ // a.group)
        self.heads = self.kv_heads * a.group
        self.strides: dict[str, Any] = {}

    def tensor(self, kind: Any, name: str, s: Any, heads: Any) -> gr.Tensor:
        """One of the tensors with heads."""
        front = () if self.a.varlen else (self.batch,)
        base = {"V": "K", "G": "Q"}.get(name, name) if self.a.alike else name
        dtype = dict(zip("QK", self.a.fp8 or (), strict=False)).get(name, self.a.dtype)
        if base not in self.strides:
            names = " ".join(base + x for x in ("b", "s", "h")[1 - len(front) :])
            self.strides[base] = gr.sym(names, multiple_of=128 // dtype.bits)
        strides = self.strides[base]
        layout = gr.Layout((*front, s, heads, self.a.D), (*strides, 1))
        made: gr.Tensor = kind(name, layout, dtype, align_bytes=16)
        return made

    def transposed_values(self, kind: Any) -> gr.Tensor:
        """Values of fp8 (batch, kv_heads, D, keys), as ``attention_values_kernel`` orders them."""
        assert self.a.fp8 is not None
        keys = gr.ceil_div(self.sk, KEYS_OF_VALUES) * KEYS_OF_VALUES
        layout = gr.Layout((self.batch, self.kv_heads, self.a.D, keys), (*gr.sym("Vb Vh Vd", multiple_of=16), 1))
        made: gr.Tensor = kind("V", layout, self.a.fp8[2], align_bytes=16)
        return made

    def scales(self) -> list[gr.Tensor]:
        """Of fp8, a number for each head of queries, of keys and of values, (batch, heads)."""
        of = zip("qkv", (self.heads, self.kv_heads, self.kv_heads), strict=True)
        shapes = ((f"scale_{n}", (self.batch, heads), tuple(gr.sym(f"s{n}b s{n}h"))) for n, heads in of)
        return [gr.input(n, gr.Layout(shape, strides), gr.fp32) for n, shape, strides in shapes]

    def extra(self, name: str, e: Extra | None) -> gr.Tensor | None:
        """A tensor (batch, heads, sq, sk), where sq is 1 unless it differs between queries; None if it is absent."""
        if e is None:
            return None
        strides: list[Any] = list(gr.sym(f"{name}b {name}h {name}q", multiple_of=e.vector))
        strides.append(gr.sym(f"{name}k") if e.vector == 1 else 1)
        shape = (self.batch, self.heads, self.sq if e.rows else 1, self.sk)
        return gr.input(name, gr.Layout(shape, tuple(strides)), e.dtype, align_bytes=e.vector * e.dtype.bits // 8)


class SequenceView:
    """One sequence of a batch: its sizes, and the parts of tensors that belong to it.

    A tensor of starts says where packed sequences begin.
    """

    def __init__(self, args: AttentionArguments, b: Any, starts: list[gr.Tensor]) -> None:
        self.b, self.varlen = b, bool(starts)
        self.sq, self.sk = args.sq, args.sk
        if starts:
            (q, q_end), (k, k_end) = ([gr.index(s[b + i], 0, 2**31 - 1) for i in (0, 1)] for s in starts)
            self.sq, self.sk = gr.max(q_end - q, 0), gr.max(k_end - k, 0)
            self.q_start, self.k_start = q, k
            self.args, self.starts = args, starts

    def queries(self, t: gr.Tensor, head: Any) -> gr.Tensor:
        """(sq, D) of a tensor like Q."""
        return t[:, head, :].window(self.q_start, self.sq) if self.varlen else t[self.b, :, head, :]

    def keys(self, t: gr.Tensor, head: Any) -> gr.Tensor:
        """(sk, D) of a tensor like K."""
        return t[:, head, :].window(self.k_start, self.sk) if self.varlen else t[self.b, :, head, :]

    def per_query(self, t: gr.Tensor, head: Any) -> gr.Tensor:
        """(sq,) of a tensor with a number for each query, such as the LSE."""
        return t[head, :].window(self.q_start, self.sq) if self.varlen else t[self.b, head, :]

    def fill_rest(
        self, of_keys: bool, rows: list[gr.Tensor], share: tuple[Any, Any], threads: gr.ThreadTensor, due: Any = None
    ) -> None:
        """Writes zeros (-inf to a row of the LSE) to the rows before the first sequence and after the last.

        `rows`: (total, D) of a head, or (total,) of the LSE. The blocks of the last sequence divide this work among
        them, or those for which `due` holds; `share`: this block's number among them, counted from 0, and how many
        there are.
        """
        (t,), count, (at, blocks) = threads.indices(), threads.size, share
        step, batch = gr.max(blocks, 1) * count, self.args.batch
        with gr.if_(self.b == batch - 1 if due is None else due):
            first, end = (gr.index(self.starts[of_keys][i], 0, 2**31 - 1) for i in (0, batch))
            inside = gr.max(end - first, 0)
            rest = (self.args.sk if of_keys else self.args.sq) - inside
            for n, view in enumerate(rows):
                lse = len(view.shape) == 1
                each = 1 if lse else 128 // view.dtype.bits  # elements of 16 bytes
                vectors = 1 if lse else self.args.a.D // each
                x = gr.alloc(f"rest{n}", [each], view.dtype, gr.RF)
                gr.init(x, -gr.inf if lse else 0)
                for i in gr.loop(f"rest_of_{view.name}", rest * vectors, start=at * count + t, step=step):
                    row = i // vectors
                    row = row + inside * (row >= first)
                    gr.move(view[row] if lse else view[row, :].tile([each])[i % vectors], x[0] if lse else x)


@dataclass
class Seen:
    """Which keys the queries of a sequence see. `left`, `right`: None is unlimited."""

    sq: Any
    sk: Any
    left: Any
    right: Any

    def key_tiles(self, first: Any, rows: int, BN: int) -> tuple[Any, Any, Any, Any]:
        """Tiles of BN keys: some of the queries see those from [0] to [1], and all see those from [2] to [3] whole."""
        lo, hi, whole_lo, whole_hi = 0, gr.ceil_div(self.sk, BN), 0, self.sk // BN
        shift = first + self.sk - self.sq
        if self.right is not None:
            hi = gr.max(gr.min(hi, gr.ceil_div(gr.min(shift + rows, self.sk) + self.right, BN)), 0)
            whole_hi = gr.min(whole_hi, (shift + self.right + 1) // BN)
        if self.left is not None:
            lo = gr.max((shift - self.left) // BN, 0)
            whole_lo = gr.ceil_div(shift + rows - 1 - self.left, BN)
        return lo, hi, whole_lo, whole_hi

    def query_tiles(self, first: Any, keys: int, BM: int) -> tuple[Any, Any, Any, Any]:
        """The same for tiles of BM queries and the keys from `first` on; queries past the last count as seeing all."""
        tiles = gr.ceil_div(self.sq, BM)
        lo, hi, whole_lo, whole_hi = 0, tiles, 0, tiles
        shift = first - (self.sk - self.sq)
        if self.right is not None:
            lo = gr.max((shift - self.right) // BM, 0)
            whole_lo = gr.ceil_div(shift + keys - 1 - self.right, BM)
        if self.left is not None:
            hi = gr.max(gr.min(tiles, (shift + keys - 1 + self.left) // BM + 1), 0)
            whole_hi = gr.min(tiles, (shift + self.left + 1) // BM)
        return lo, hi, whole_lo, whole_hi

    def of(self, query: Any, key: Any) -> Any:
        """The condition under which a query sees a key."""
        return self.some(query, query, key)

    def some(self, first: Any, last: Any, key: Any) -> Any:
        """The condition under which one of the queries from the first to the last sees a key."""
        shift = self.sk - self.sq
        seen = key < self.sk if self.right is None else key <= gr.min(last + shift + self.right, self.sk - 1)
        return seen if self.left is None else gr.logical_and(seen, key >= first + shift - self.left)


def negative(lse: Any) -> Any:
    """The negative log-sum-exp in units of log2(e): scores plus it are the logarithms of probabilities."""
    return gr.where(lse == -gr.inf, -gr.inf, lse * -LOG2E)


class Scores:
    """From products of queries and keys to scores in units of log2(e), which ``exp2`` takes."""

    def __init__(self, a: Attention) -> None:
        self.a = a
        self.given = gr.param("scale_log2", gr.fp32)  # scale * log2(e)
        self.scale: Any = self.given  # of fp8 with the scales of the queries and keys
        self.cap = gr.param("cap_log2", gr.fp32) if a.softcap else None  # cap * log2(e)

    @property
    def factor(self) -> Any:
        """The factor of scores within the exponential."""
        return 1.0 if self.a.prescaled else self.scale

    def capped(self, s: Any) -> Any:
        """Scaled scores after the cap, cap * tanh(s / cap), with tanh as 1 - 2 / (exp(2 s / cap) + 1).

        The approximate tanh of the hardware is too rough. The formula is off by the last digits of the cap. With a wide
        cap, small scores keep their digits by the series of tanh(t) / t.
        """
        if self.cap is None:
            return s * self.scale
        e = gr.exp2(s * (self.scale * (2 * LOG2E)) / self.cap)
        capped = gr.fma(-2 * self.cap, gr.rcp(e + 1), self.cap)
        if not self.a.wide:
            return capped
        t = s * self.scale / self.cap
        u = t * t
        series = gr.fma(u, gr.fma(u, gr.fma(u, -17 / 315, 2 / 15), -1 / 3), 1)
        return gr.where(u < 1 / 16, s * self.scale * series, capped)

    def changed(self, S: gr.Tensor, query: Any, key: Any) -> None:
        """Replaces scores by the function of them and of their places."""
        if self.a.score is not None:
            places = (gr.cast(x, gr.fp32) for x in (query, key))  # exact up to MOST
            S[:] = pointwise(self.a.score, S * (1 / LOG2E), *places) * LOG2E

    def add(
        self, S: gr.Tensor, columns: int, e: Extra, x: gr.Tensor, part_of: Callable[[int], gr.Tensor],
        load: str = "ld.global.nc", warp: Any = None,
    ) -> None:  # fmt: skip
        """Adds a bias to scores, or lets a mask rule them out, 16 columns at a time, through the registers `x`.

        `part_of`: gives the part of the mask or bias that belongs to 16 columns. `load`: "ld.global" in a kernel that
        waits for those before it, because these may have written the mask or bias. `warp`: it executes this, and its
        barriers keep the compiler from loading all parts at once, for which a large tile leaves no registers.
        """
        atom = vector_access(load, e.vector, e.dtype)
        for j in range(columns // 16):
            part = S.tile([None, 16])[0, j]
            gr.move(x, part_of(j), atom=atom)
            part[:] = gr.where(x != 0, part, -gr.inf) if e.dtype == gr.u8 else gr.fma(x, LOG2E, part)
            if warp is not None:
                gr.barrier(on=warp)
