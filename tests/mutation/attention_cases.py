"""The cases of attention's kernels: where keys are shared, tiles listed, sequences packed, gradients stored, too."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cases import Case, case, normal

import graphene as gr
from graphene import kernels
from graphene.kernels import Attention, Extra
from graphene.kernels.attention.backward_sm90 import GradientSm90, attention_gradient_sm90
from graphene.kernels.attention.keys_sm90 import KeysSm90, attention_keys_gradient_sm90
from graphene.kernels.attention.product_sm90 import ProductSm90, attention_queries_product_sm90
from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
from graphene.kernels.attention.sums import attention_rows_kernel, attention_sums_kernel
from graphene.kernels.attention.values_fp8 import ValuesConfig, attention_values_kernel

CAUSAL = Attention(32, right=True)


@case("attention_forward_kernel")
def _() -> Case:
    """Tiles that all rows see whole, the diagonal, ragged edges; rows that see nothing; maxima that grow or are far."""

    def call(sq: int, sk: int, scale: float, right: int) -> list[Any]:
        q, k, v = (normal(i, 1, s, 2, 32) for i, s in enumerate((sq, sk, sk)))
        if scale > 1e8:  # one of a thread's rows alone is far
            near = (np.arange(sq) // 8 % 4 % 3 == 0)[None, :, None, None]
            q = np.where(near, q / 2.0**14, q * 8).astype(np.float16)
        return [q, k, v, np.full_like(q, np.nan), scale, right]

    calls = [
        functools.partial(call, *c)
        for c in (
            (35, 70, 0.18, 0),
            (35, 1, 0.18, 0),
            (35, 70, 8.0, 0),
            (35, 70, 8.0, 70),
            (35, 70, 7e4, 0),
            (35, 70, 6e8, 70),
        )
    ]
    kernel = kernels.attention_forward_kernel(kernels.ForwardConfig(CAUSAL, 32, 16, 2))
    return Case(kernel, calls)


@case("attention_forward_sm90")
def _() -> Case:
    """Two consumers in turns: tiles seen whole, the diagonal, ragged edges; maxima that grow, or are far."""

    def call(sq: int, sk: int, scale: float, right: int) -> list[Any]:
        q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((sq, sk, sk)))
        return [q, k, v, np.full_like(q, np.nan), scale, right]

    sizes = (140, 70, 0.18, 0), (100, 1, 8.0, 0), (40, 90, 8.0, 70), (40, 90, 6e8, 70)
    kernel = attention_forward_sm90(ForwardSm90(Attention(16, right=True), 16, 2, 2))
    return Case(kernel, [functools.partial(call, *c) for c in sizes])


@case("attention_forward_sm90, window, training")
def _() -> Case:
    """One consumer: both ends of a window, a head of keys for two of queries, results that take the queries' place."""

    def call(sq: int, sk: int, left: int) -> list[Any]:
        q, k, v = (normal(i, 1, s, h, 16) for i, (s, h) in enumerate(((sq, 2), (sk, 1), (sk, 1))))
        made = [np.full_like(q, np.nan), np.full((1, 2, sq), np.nan, np.float32), np.full(q.shape, np.nan, np.float32)]
        return [q, k, v, *made, 1.5, left, 3]

    what = Attention(16, left=True, right=True, group=2)
    config = ForwardSm90(what, 16, 1, 2, queries=1, apart=False, lazy=False, lse=True, training=True)
    return Case(attention_forward_sm90(config), [functools.partial(call, *c) for c in ((70, 90, 20), (90, 40, 0))])


def hopper_gradient(config: GradientSm90, calls: list[tuple[int, int]]) -> Case:
    """Calls of some queries and keys; sums that hold anything before."""
    a = config.what

    def call(sq: int, sk: int) -> list[Any]:
        q, k, v, g = (
            normal(i, 1, s, h, a.D) for i, (s, h) in enumerate(((sq, a.group), (sk, 1), (sk, 1), (sq, a.group)))
        )
        lse, delta = (normal(i, 1, a.group, sq).astype(np.float32) for i in (5, 4))
        tiles = -(-sq // 64)
        rows = np.full((1, a.group, tiles, 128), np.nan, np.float32)
        attention_rows_kernel(a).simulate(delta, lse + 4, rows)
        sums = np.full((1, a.group, config.parts * tiles, config.depth // 4, 256), np.nan, np.float32)
        return [g, rows, q, k, v, np.full_like(k, np.nan), np.full_like(v, np.nan), sums, 0.18, 0.125, 0]

    return Case(attention_gradient_sm90(config), [functools.partial(call, *c) for c in calls])


@case("attention_gradient_sm90, causal")
def _() -> Case:
    """Edges of keys and queries; rows that see no key."""
    return hopper_gradient(GradientSm90(Attention(64, right=True)), [(100, 200)])


@case("attention_gradient_sm90, heads in groups")
def _() -> Case:
    return hopper_gradient(GradientSm90(Attention(16, right=True, group=2), parts=2), [(70, 150)])


def saving_gradient(config: KeysSm90, sq: int, sk: int, numbers: list[int]) -> Case:
    """A call of some queries and keys, whose work space holds one of two heads of keys."""
    a = config.what

    def call() -> list[Any]:
        q, k, g, v = (normal(i, 1, s, h, a.D) for i, (s, h) in enumerate(((sq, 2 * a.group), (sk, 2)) * 2))
        lse, delta = (normal(i, 1, 2 * a.group, sq).astype(np.float32) for i in (5, 4))
        tiles = -(-sq // 64)
        rows = np.full((1, 2 * a.group, tiles, 128), np.nan, np.float32)
        attention_rows_kernel(a).simulate(delta, lse + 4, rows)
        saved = np.full((a.group, tiles, -(-sk // 128) * 128, 64), np.nan, np.float16)
        return [g, rows, q, k, v, saved, np.full_like(k, np.nan), np.full_like(k, np.nan), 0.18, 0.125, *numbers, 1]

    return Case(attention_keys_gradient_sm90(config), [call])


@case("attention_keys_gradient_sm90")
def _() -> Case:
    """Grouped heads, a causal window; edges of keys and queries; rows that see no key."""
    return saving_gradient(KeysSm90(Attention(16, right=True, group=2), stages=2, held=2), 100, 150, [-3])


@case("attention_keys_gradient_sm90, by shared memory, in turns")
def _() -> Case:
    return saving_gradient(KeysSm90(Attention(72, left=True), stages=2, direct=False, turns=True), 150, 130, [30])


@case("attention_keys_gradient_sm90, two stages of keys, values held")
def _() -> Case:
    config = KeysSm90(Attention(16, right=True, group=2), 2, 2, held=1)
    return saving_gradient(config, 100, 300, [200])


@case("attention_queries_product_sm90")
def _() -> Case:
    """One of two heads; tiles that one consumer's queries see and another's do not."""

    def call() -> list[Any]:
        k, saved = normal(0, 1, 150, 2, 16), normal(1, 2, 3, 256, 64)
        return [k, saved, np.full((1, 130, 4, 16), np.nan, np.float16), 0.25, 3, 1]

    what = Attention(16, right=True, group=2)
    return Case(attention_queries_product_sm90(ProductSm90(what, 2, 2)), [call])


@case("attention_rows_kernel")
def _() -> Case:
    delta, lse = (normal(i, 1, 2, 330).astype(np.float32) for i in range(2))
    lse[0, 1, 7] = -np.inf
    rows = np.full((1, 2, 6, 128), np.nan, np.float32)
    return Case(attention_rows_kernel(Attention(64)), [lambda: [delta, lse, rows]])


@case("attention_sums_kernel")
def _() -> Case:
    sums = normal(0, 2, 1, 3 * 2, 32, 256).astype(np.float32)
    made = np.full((2, 130, 1, 72), np.nan, np.float16)
    return Case(attention_sums_kernel(Attention(72), 2), [lambda: [sums, made, 0.25]])


@case("attention_forward_kernel, even")
def _() -> Case:
    kernel = kernels.attention_forward_kernel(kernels.ForwardConfig(Attention(16), 16, 16, 1, even=True))
    q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((17, 48, 48)))
    return Case(kernel, [lambda: [q, k, v, np.full_like(q, np.nan), 0.18]])


@case("attention_forward_kernel, printed once")
def _() -> Case:
    """One loop over tiles that are seen whole and others, a ragged edge among them."""
    config = kernels.ForwardConfig(Attention(16, right=True), 16, 16, 1, one_loop=True)
    q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((20, 50, 50)))
    return Case(
        kernels.attention_forward_kernel(config),
        [lambda x=x: [q, k, v, np.full_like(q, np.nan), x, 0] for x in (0.18, 8.0)],
    )


def gradient_case(kernel: gr.Kernel, of_keys: bool) -> Case:
    """As above, and blocks with nothing to go through."""

    def call(sq: int, sk: int, right: int) -> list[Any]:
        q, k, v, g = (normal(i, 1, s, 2, 32) for i, s in enumerate((sq, sk, sk, sq)))
        rows = [normal(4, 1, 2, sq).astype(np.float32), normal(5, 1, 2, sq).astype(np.float32) + 4]
        made = [np.full_like(x, np.nan) for x in ((k, v) if of_keys else (q,))]
        return [g, *rows, q, k, v, *made, 0.18, 0.125, right]

    calls = [functools.partial(call, *c) for c in ((35, 70, 0), (70, 35, 0), (35, 70, -60), (35, 70, -90))]
    return Case(kernel, calls)


@case("attention_keys_gradient_kernel")
def _() -> Case:
    config = kernels.BackwardConfig(CAUSAL, 32, 16, 2)
    return gradient_case(kernels.attention_keys_gradient_kernel(config), of_keys=True)


@case("attention_queries_gradient_kernel")
def _() -> Case:
    config = kernels.BackwardConfig(CAUSAL, 32, 16, 2)
    return gradient_case(kernels.attention_queries_gradient_kernel(config), of_keys=False)


def saving_case(kernel: gr.Kernel, of_keys: bool) -> Case:
    """Two heads' work space, whose contents before must not matter: both heads, or the second alone."""

    def call(sq: int, sk: int, right: int, first: int) -> list[Any]:
        q, k, v, g = (normal(i, 1, s, 2, 32) for i, s in enumerate((sq, sk, sk, sq)))
        form = (2, 1, -(-sq // 128) * 4, 128, 32)
        if not of_keys:
            return [k, normal(6, *form), np.full_like(q, np.nan), 0.125, right, first]
        rows = [normal(4, 1, 2, sq).astype(np.float32), normal(5, 1, 2, sq).astype(np.float32) + 4]
        made = [np.full(form, np.nan, np.float16), np.full_like(k, np.nan), np.full_like(v, np.nan)]
        return [g, *rows, q, k, v, *made, 0.18, 0.125, right, first]

    calls = [functools.partial(call, *c) for c in ((35, 70, 0, 0), (140, 35, 0, 0), (35, 70, -60, 1), (35, 70, -90, 0))]
    return Case(kernel, calls)


@case("attention_keys_gradient_kernel, paired")
def _() -> Case:
    config = kernels.BackwardConfig(CAUSAL, 32, 32, 2, 3, saves=True, paired=True)
    return saving_case(kernels.attention_keys_gradient_kernel(config), of_keys=True)


@case("attention_queries_product_kernel")
def _() -> Case:
    config = kernels.ProductConfig(CAUSAL, 16, 2, parts=2)
    return saving_case(kernels.attention_queries_product_kernel(config), of_keys=False)


@case("attention_combine_kernel")
def _() -> Case:
    parts = normal(0, 3, 2, 1, 10, 40).astype(np.float32)
    top, logs = (normal(i, 3, 2, 1, 10).astype(np.float32) for i in (1, 2))
    top[:, 0, 0, 3] = logs[:, 0, 0, 3] = -np.inf
    kernel = kernels.attention_combine_kernel(Attention(40, group=2), lse=True)

    def call() -> list[Any]:
        return [parts, top, logs, np.full((2, 5, 2, 40), np.nan, np.float16), np.full((2, 2, 5), np.nan, np.float32)]

    return Case(kernel, [call])


@case("attention_decode_kernel")
def _() -> Case:
    """Blocks and warps with keys that all queries see, that some see, with none at all; far scores; more rows."""
    what = Attention(32, right=True, group=3)
    kernel = kernels.attention_decode_kernel(kernels.DecodeConfig(what, 16, 32, 2, 2, cluster=2, lse=True))

    def call(sq: int, sk: int, scale: float, right: int) -> list[Any]:
        q, k, v = (normal(i, 1, s, h, 32) for i, (s, h) in enumerate(((sq, 6), (sk, 2), (sk, 2))))
        return [q, k, v, np.full_like(q, np.nan), np.full((1, 6, sq), np.nan, np.float32), scale, right]

    calls = [
        functools.partial(call, *c) for c in ((1, 230, 1.5, 0), (4, 70, 0.18, 0), (2, 100, 6e8, 9), (5, 3, 1.5, 0))
    ]
    return Case(kernel, calls)


@case("attention_decode_kernel, parts")
def _() -> Case:
    what = Attention(16, group=2)
    kernel = kernels.attention_decode_kernel(kernels.DecodeConfig(what, 8, 16, 1, 2, split=True))

    def call() -> list[Any]:
        q, k, v = (normal(i, 1, s, h, 16) for i, (s, h) in enumerate(((3, 2), (100, 1), (100, 1))))
        return [q, k, v, *(np.full((3, 1, 1, 6, *x), np.nan, np.float32) for x in ((16,), (), ())), 1.5]

    return Case(kernel, [call])


@case("attention_paged_kernel")
def _() -> Case:
    """Pages in any order, of which the last holds what is not a number; a sequence without keys."""
    what = Attention(32, left=True, right=True, alike=True)
    kernel = kernels.attention_paged_kernel(kernels.DecodeConfig(what, 16, 16, 1, 2, split=True, page=8))

    def call(parts: int, left: int, right: int, scale: float = 1.5) -> list[Any]:
        q, (k, v) = normal(0, 3, 9, 2, 32), (normal(i, 40, 8, 2, 32) for i in (1, 2))
        if scale > 1e8:  # the ninth row alone, which a thread has beside the first, is far
            q = np.where(np.arange(9)[None, :, None, None] < 8, q / 2.0**14, q * 8).astype(np.float16)
        table = np.array([[*range(30, 10, -1)], [9, 3] + [-1] * 18, [-1] * 20], np.int32)
        lengths = np.array([157, 16, 0], np.int32)
        k[11, 5:] = v[11, 5:] = np.nan
        made = [np.full((parts, 3, 2, 9, *x), np.nan, np.float32) for x in ((32,), (), ())]
        return [q, k, v, table, lengths, *made, scale, left, right]

    calls = ((1, 200, 0), (2, 40, 3), (2, 3, -30), (1, 200, 0, 6e8))
    return Case(kernel, [functools.partial(call, *c) for c in calls])


@case("attention_values_kernel")
def _() -> Case:
    """Values of fp8, by their bits: several tiles of keys and columns, each ragged; fewer keys than an operand has."""

    def call(shape: tuple[int, ...]) -> list[Any]:
        batch, keys, heads, depth = shape
        V = np.random.default_rng(keys).integers(1, 100, shape).astype(np.uint8)
        return [V, np.full((batch, heads, depth, -(-keys // 16) * 16), 7, np.uint8)]

    shapes = (2, 130, 3, 64), (1, 37, 2, 80), (1, 5, 1, 256)
    return Case(attention_values_kernel(ValuesConfig()), [functools.partial(call, s) for s in shapes])


@case("attention_delta_kernel")
def _() -> Case:
    g, o = normal(0, 2, 70, 2, 40), normal(1, 2, 70, 2, 40).astype(np.float32)
    less = normal(2, 2, 2, 70).astype(np.float32)
    kernel = kernels.attention_delta_kernel(Attention(40), lse=True)
    return Case(kernel, [lambda: [g, o, less, np.full_like(less, np.nan)]])


@case("attention_tiles_kernel")
def _() -> Case:
    """Tiles that are seen whole, in part, not at all; by the mask, by place, past the end."""
    seen = np.random.default_rng(0).random((2, 2, 70, 200)) < 0.5
    seen[0, :, :, :70], seen[:, :, :, 128:160] = True, False
    seen[0, 0, 63, 140] = seen[1, 0, 32, 140] = seen[0, :, :, 160:192] = True  # a block's last row, another's first
    kernel = kernels.attention_tiles_kernel(Attention(32, left=True, right=True, mask=Extra()), 32, 32)

    def call(keys: int, left: int, right: int) -> list[Any]:
        return [seen[..., :keys].astype(np.uint8), np.zeros((2, 2, 3, -(-keys // 32) + 2), np.int32), left, right]

    calls = [functools.partial(call, *c) for c in ((200, 300, 300), (192, 300, 300), (200, 60, 30), (200, 0, 0))]
    return Case(kernel, calls)


@case("attention_forward_kernel, listed")
def _() -> Case:
    what = Attention(32, right=True, mask=Extra(rows=False))
    kernel = kernels.attention_forward_kernel(kernels.ForwardConfig(what, 32, 16, 2, listed=True))

    def call(keys: int, right: int) -> list[Any]:
        seen = np.random.default_rng(0).integers(0, 2, (1, 2, 1, keys), np.uint8)
        seen[..., :18], seen[..., 32:48] = 1, 0
        seen[0, 1] *= right == 0  # else nothing is seen
        lists = np.zeros((1, 2, 2, -(-keys // 16) + 2), np.int32)
        tiles = kernels.attention_tiles_kernel(what, 32, 16)
        tiles.simulate(np.broadcast_to(seen, (1, 2, 35, keys)), lists, right)
        q, k, v = (normal(i, 1, s, 2, 32) for i, s in enumerate((35, keys, keys)))
        return [q, k, v, seen, lists, np.full_like(q, np.nan), 1.5, right]

    calls = [functools.partial(call, *c) for c in ((70, 0), (52, 20))]
    return Case(kernel, calls)


@case("attention_forward_sm90, mask of keys")
def _() -> Case:
    what = Attention(16, mask=Extra(rows=False))
    kernel = attention_forward_sm90(ForwardSm90(what, 16, 1, 2, 1, False, persistent=False, copier=False))

    def call(keys: int) -> list[Any]:
        seen = np.random.default_rng(0).integers(0, 2, (1, 2, 1, keys), np.uint8)
        seen[..., :18], seen[..., 32:48], seen[0, 1] = 1, 0, 0
        lists = np.zeros((1, 2, 1, -(-keys // 16) + 2), np.int32)
        kernels.attention_tiles_kernel(what, 64, 16).simulate(seen, lists)
        q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((70, keys, keys)))
        return [q, k, v, seen, lists, np.full_like(q, np.nan), 1.5]

    return Case(kernel, [functools.partial(call, n) for n in (70, 52)])


@case("attention_forward_sm90, without a warp that copies")
def _() -> Case:
    """A window: three tiles of keys or more for two places, the first of them not the first of all."""

    def call(sq: int, sk: int, left: int) -> list[Any]:
        q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((sq, sk, sk)))
        return [q, k, v, np.full_like(q, np.nan), 1.5, left, 3]

    what = Attention(16, left=True, right=True)
    config = ForwardSm90(what, 16, 1, 2, 1, False, persistent=False, copier=False)
    return Case(attention_forward_sm90(config), [functools.partial(call, *c) for c in ((70, 90, 20), (40, 90, 0))])


@case("attention_forward_sm90, capped")
def _() -> Case:
    what = Attention(16, softcap=True, score=lambda score, query, key: score - 0.1 * abs(query - key))
    kernel = attention_forward_sm90(ForwardSm90(what, 16, 1, 2, queries=1, lazy=False))
    q, k, v = (normal(i, 1, s, 2, 16) for i, s in enumerate((70, 40, 40)))
    return Case(kernel, [lambda: [q, k, v, np.full_like(q, np.nan), 1.5, 3.0]])


@case("attention_forward_sm90, packed")
def _() -> Case:
    what = Attention(16, right=True, varlen=True)
    kernel = attention_forward_sm90(ForwardSm90(what, 16, 2, 2, 1, False, lse=True, persistent=False))

    def call() -> list[Any]:
        q, k, v = (normal(i, s, 2, 16) for i, s in enumerate((190, 80, 80)))
        starts = [np.array(x, np.int32) for x in ((2, 7, 144, 187), (3, 10, 48, 76))]
        made = [np.full_like(q, np.nan), np.full((2, 190), np.nan, np.float32)]
        return [q, k, v, *starts, *made, 1.5, 1, 140]

    return Case(kernel, [call])


@case("attention_forward_kernel, parts")
def _() -> Case:
    what = Attention(32, left=True, right=True, group=3)
    kernel = kernels.attention_forward_kernel(kernels.ForwardConfig(what, 16, 16, 1, packed=True, split=True))

    def call(splits: int, left: int) -> list[Any]:
        heads = 2 if left == 30 else 1
        q, k, v = (normal(i, 1, s, h * heads, 32) for i, (s, h) in enumerate(((7, 3), (70, 1), (70, 1))))
        made = [
            np.full((splits, 1, heads, 21, *x), np.nan, np.float32) for x in ((32,), (), ())
        ]  # sums, maxima, logarithms
        return [q, k, v, *made, 1.5, left, 1]

    calls = [functools.partial(call, *c) for c in ((1, 100), (3, 30), (1, 16))]
    return Case(kernel, calls)


PACKED = Attention(32, right=True, varlen=True)


def packed_starts(q_end: int = 47, k_end: int = 50) -> list[np.ndarray]:
    """Rows before the first sequence and behind the last; sequences of more tiles than one, without queries or keys."""
    return [np.array(x, np.int32) for x in ((2, 7, 44, q_end), (3, 10, 48, k_end))]


@case("attention_forward_kernel, packed")
def _() -> Case:
    kernel = kernels.attention_forward_kernel(kernels.ForwardConfig(PACKED, 32, 16, 2, lse=True))

    def call() -> list[Any]:
        q, k, v = (normal(i, s, 2, 32) for i, s in enumerate((60, 50, 50)))
        made = [np.full_like(q, np.nan), np.full((2, 60), np.nan, np.float32)]
        return [q, k, v, *packed_starts(k_end=48), *made, 1.5, 1, 64]

    return Case(kernel, [call])


@case("attention_keys_gradient_kernel, packed")
def _() -> Case:
    kernel = kernels.attention_keys_gradient_kernel(kernels.BackwardConfig(PACKED, 32, 16, 2))

    def call() -> list[Any]:
        q, k, v, g = (normal(i, s, 2, 32) for i, s in enumerate((50, 60, 60, 50)))
        rows = [normal(4, 2, 50).astype(np.float32), normal(5, 2, 50).astype(np.float32) + 4]
        made = [np.full_like(x, np.nan) for x in (k, v)]
        return [g, *rows, q, k, v, *packed_starts(q_end=44), *made, 0.18, 0.125, 1, 64]

    return Case(kernel, [call])
