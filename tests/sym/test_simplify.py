"""The simplifications that index arithmetic of tiled kernels needs, as exact results."""

from __future__ import annotations

from typing import Any

import pytest

import graphene as gr
from graphene import _core

var = _core.sym_var
x, y, z = var("x"), var("y", max=7), var("z", min=-50, max=50)
M, N, K = gr.sym("M N K")
P = gr.sym("P", min=1)
M8, K8 = gr.sym("M8", multiple_of=8), gr.sym("K8", multiple_of=8)
tid, bid = var("tid", "thread", max=255), var("bid.x", "block")
k = var("k", "loop", hi=gr.ceil_div(K, 32) - 1)
lane = var("lane", "coord", definition=tid % 32)


def same(a: Any, b: Any) -> None:
    assert _core.sym_identical(a, b), f"{a} is not {b}"


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ((x * 8 + y) // 8, x),
        ((x * 8 + y) % 8, y),
        ((x * 16 + y) // 32, x // 2),
        ((x * 16 + y) % 32, x % 2 * 16 + y),
        ((x * 16 + y + 8) // 16, x),
        ((x * 8 - 8 + y) // 8, x - 1),
        ((M // 4) // 8, M // 32),
        ((M // 4 + 3) // 8, (M + 12) // 32),
        ((M % 32) % 8, M % 8),
        ((M % 32 + x) % 8, (M + x) % 8),
        ((M % 32) // 8, M // 8 % 4),
        ((M // 4) % 8 // 2, M // 8 % 4),
        ((x * 6) // 4, x + x // 2),
        ((x * 6) % 4, x % 2 * 2),
        ((x * 6 + 1) // 4, (x * 6) // 4),
        (M // 8 * 8 + M % 8, M),
        (M - M // 8 * 8, M % 8),
        (M // 8 * 8 * N + M % 8 * N, M * N),
        (tid // 4 % 8 * 4 + tid % 4, tid % 32),
        (tid // 32 * 32 + tid // 4 % 8 * 4 + tid % 4, tid),
        (M // 32 * 8 + M // 4 % 8, M // 4),
        (M8 // 8 * 8, M8),
        (M8 // 8 * 4, M8 // 2),
        ((M8 + y) // 8, M8 // 8),
        ((M8 * 3 + y) % 8, y),
        ((M8 * K8) // 64, (M8 // 8) * (K8 // 8)),
        ((M8 * N) % 8, 0),
        (gr.ceil_div(M8, 8), M8 // 8),
        (gr.ceil_div(gr.ceil_div(M, 8), 4), gr.ceil_div(M, 32)),
        (gr.ceil_div(M * 32, 32), M),
        (M // 1, M),
        (M % 1, 0),
        (0 // M, 0),
        (x // -8, (-x) // 8),
        ((-x) // 8, -((x + 7) // 8)),
        ((-x) % 8, 7 - (x + 7) % 8),
        ((-x) // 8 * 8 + (-x) % 8, -x),
        (-((-x) // 8), gr.ceil_div(x, 8)),
        (z % -8, -((-z) % 8)),
    ],
)
def test_division_by_constants(got: Any, want: Any) -> None:
    same(got, want)


def test_remainder_goes_only_where_bounds_say_so() -> None:
    below, at = gr.sym("B", max=255), gr.sym("B", max=256)
    same(below % 256, below)
    assert str(at % 256) == "B%256"
    assert str(M % 256) == "M%256"
    assert below // 256 == 0
    assert str(at // 256) == "B//256"
    assert str(z % 64) == "z%64"
    assert str((z + 50) % 101) == "z + 50"


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ((x * N + M * N) // N, x + M),
        ((x * N * 4 + N * y) // (N * 2), x * 2 + y // 2),
        ((x * N) % N, 0),
        ((x * N) % (N * M), N * (x % M)),
        ((x * 8) % (N * 8), (x % N) * 8),
        ((x * 8 + y) // (N * 8), x // N),
        ((x * 8 + y) % (N * 8), x % N * 8 + y),
        (x // N * N + x % N, x),
        (x - N * (x // N), x % N),
        ((x // N) // M, x // (N * M)),
        ((x // N) // 4, x // (N * 4)),
        ((x % (N * M)) // N, x // N % M),
        ((x % (N * M)) % N, x % N),
        ((x + N) % N, x % N),
        ((x + N * 3) // N, x // N + 3),
        (M // M, 1),
        (M % M, 0),
        ((x * (N + 1) + (x % (N + 1))) // (N + 1), x),
        (x // -N, -x // N),
        (-(-x // N), gr.ceil_div(x, N)),
        (x % N // N, 0),
        ((x % N + N * y) // N, y),
    ],
)
def test_division_by_symbols(got: Any, want: Any) -> None:
    same(got, want)


def test_coordinates_of_a_tile_come_back() -> None:
    """Colexicographic index and coordinates are inverse: static, symbolic, mixed."""
    for shape in ((4, 8, 3), (P, 8, M), (P, N, M), (16, P, 4)):
        i = var("a", max=None, hi=shape[0] - 1)
        j = var("b", max=None, hi=shape[1] - 1)
        linear = i + shape[0] * (j + shape[1] * x)
        same(linear % shape[0], i)
        same(linear // shape[0] % shape[1], j)
        same(linear // (shape[0] * shape[1]), x)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (x ^ 0, x),
        (x ^ x, 0),
        ((x ^ N) ^ x, N),
        (y ^ 8, y + 8),
        (x ^ -1, -x - 1),
        ((x ^ -6) ^ -6, x),
        (x * 8 ^ y, x * 8 + y),
        (x * 8 ^ N * 8, (x ^ N) * 8),
        ((x * 8 + y) ^ N * 8, (x ^ N) * 8 + y),
        ((x * 8 ^ y) // 8, x),
        ((x * 8 ^ y) % 8, y),
        ((x ^ N * 8) % 8, x % 8),
        ((x ^ N * 8) // 8, x // 8 ^ N),
        ((x * 64 + y + 8) ^ 24, x * 64 + y + 16),
        ((y ^ 5) ^ 3, y ^ 6),
    ],
)
def test_exclusive_or(got: Any, want: Any) -> None:
    same(got, want)


def swizzle(offset: Any, bits: int = 3, base: int = 3, shift: int = 3) -> Any:
    return offset ^ offset // 2 ** (base + shift) % 2**bits * 2**base


def test_swizzled_addresses_split_into_what_varies_and_what_does_not() -> None:
    st, i = var("st", "scalar", max=2), var("i", "loop", max=3)
    row, column = tid // 32 * 16 + lane % 16, lane // 16 * 8
    base = swizzle(row * 64 + column)
    # Stages and tiles of 8 rows or more only add; a step along the row is a ^ with the thread's own part.
    same(swizzle(row * 64 + column + st * 8192), base + st * 8192)
    same(swizzle((row + i * 128) * 64 + column), base + i * 8192)
    j = var("j", "loop", max=3)
    step = swizzle(row * 64 + column + j * 16)
    assert str(step) == "tid//32*1024 + @lane%16*64 + (j*2 ^ @lane//16 ^ @lane%8)*8"
    same(swizzle(step), row * 64 + column + j * 16)
    # A row of vectors: the swizzle of a linear vector index.
    v = tid + 256 * i
    same(swizzle(v // 8 * 64 + v % 8 * 8), i * 2048 + (tid ^ tid // 8 % 8) * 8)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (gr.min(x, x + 1), x),
        (gr.max(x, x + 1), x + 1),
        (gr.min(y, 7), y),
        (gr.max(y, 0), y),
        (gr.min(y, 100, x + 100), y),
        (gr.max(gr.min(M, N), M), M),
        (gr.min(gr.max(M, N), M), M),
        (gr.min(3, 5), 3),
        (gr.max(tid - 256, 0), 0),
        (gr.min(gr.min(M, N), gr.min(N, K)), gr.min(K, gr.min(M, N))),
    ],
)
def test_minimum_and_maximum(got: Any, want: Any) -> None:
    same(got, want)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (x * 8 + 7 < M8, "x*8 < M8"),
        (x * 8 < M8, "x*8 < M8"),
        (x * 8 + y < M8, "x*8 < M8"),
        (x * 8 + y < M, "x*8 + y < M"),
        (bid * 128 + tid // 2 < M, "bid.x*128 + tid//2 < M"),
        (x * 8 < 20, "x < 3"),
        (x * 8 <= 16, "x < 3"),
        (x * 6 < M * 4, "x*3 < M*2"),
        (x <= M, "x <= M"),
        (x < M + 1, "x <= M"),
        (x - M > 3, "M + 3 < x"),
        (x + 5 >= M + 9, "M + 3 < x"),
        (x == M, "M == x"),
        (x * 2 == M * 2 + 4, "M + 2 == x"),
        (x * P < N * P, "x < N"),
        (x * P + x % P < N * P, "x < N"),
        (x * P <= N * P, "x <= N"),
        (~(x < M), "M <= x"),
        (~(x == M), "M != x"),
        ((x < M) & (x < N), "x < N and x < M"),
        ((x < 5) & (x < 9), "x < 5"),
        ((x < 5) | (x < 9), "x < 9"),
        (~((x < M) & (x < N)), "N <= x or M <= x"),
    ],
)
def test_comparisons_have_one_form(condition: Any, text: str) -> None:
    # The order of the operands of == and of conditions is by name.
    assert str(condition) == text


@pytest.mark.parametrize(
    ("condition", "decided"),
    [
        (y < 8, True),
        (y > 7, False),
        (x >= 0, True),
        (x * 8 == 3, False),
        (x * 8 + 4 == M8, False),
        (M == M, True),
        (M < M, False),
        (k * 32 < K, True),
        (k * 32 + 31 < K + 31, True),
        (k < gr.ceil_div(K, 32), True),
        (k * 32 >= K, False),
        (gr.ceil_div(K, 32) * 32 >= K, True),
        (gr.ceil_div(K, 32) * 32 < K + 32, True),
        (K // 32 * 32 <= K, True),
        (x % P < P, True),
        (x % P >= P, False),
        (gr.min(M, N) <= M, True),
        (gr.max(M, N) >= N, True),
        (gr.max(gr.min(M, N), 0) < 0, False),
        (gr.min(M, N) > N, False),
        ((x < M) & (x >= M), False),
        ((x < M) | (x >= M), True),
        (lane < 32, True),
        (lane <= tid, True),
        (P > 0, True),
    ],
)
def test_decided_conditions_are_python_bools(condition: Any, decided: bool) -> None:
    assert condition is decided


@pytest.mark.parametrize("condition", [M < N, k * 32 + 31 < K, x * 8 + y < M, M > 0, z < 0, x == M, M % 8 == 0])
def test_what_depends_on_values_stays_open(condition: Any) -> None:
    assert isinstance(condition, gr.IntExpr)
    assert _core.sym_decide(condition) is None


def test_nested_loop_bounds() -> None:
    i = var("i", "loop", hi=M - 1)
    j = var("j", "loop", hi=i)
    t = var("t", "loop", hi=gr.ceil_div(M, 8) * gr.ceil_div(N, 8) - 1)
    tiles = gr.ceil_div(M, 8)
    assert (j < M) is True
    assert (i * N + N <= M * N) is True
    assert (t % tiles < tiles) is True
    assert (t // tiles < gr.ceil_div(N, 8)) is True
    same(t // tiles * tiles + t % tiles, t)
    n = var("n", "loop", lo=M // 64, hi=gr.max(gr.min(M, N), 0) - 1)
    assert (n >= M // 64) is True
    assert (n < N) is True


def test_facts() -> None:
    assert _core.sym_bounds(tid // 4 % 8 * 2 + 1) == (1, 15)
    assert _core.sym_bounds(M - tid) == (-255, None)
    assert _core.sym_bounds(M8) == (0, None)
    assert _core.sym_bounds(z * z) == (0, 2500)
    assert _core.sym_divisor(M8 * 6 + 16) == 16
    assert _core.sym_divisor(M8 // 4) == 2
    assert _core.sym_divisor(0) == 0
    assert _core.sym_possible_bits(tid % 8 * 64 + tid // 64 * 4) == 0b111001100
    assert _core.sym_possible_bits(y * 2 + y) == 0b11111
    assert _core.sym_possible_bits(z) == 2**64 - 1
    assert _core.sym_fits_signed(tid * 4096 + tid, 32)
    assert not _core.sym_fits_signed(tid * 2**24 + tid, 32)
    assert not _core.sym_fits_signed(gr.min(tid * 2**24, 100), 32)
    assert not _core.sym_fits_signed(M, 32)


def test_coordinates() -> None:
    assert str(lane * 2) == "@lane*2"
    assert str(_core.sym_expand_coords(lane * 2 + 1)) == "tid%32*2 + 1"
    same(_core.sym_expand_coords(lane + tid // 32 * 32), tid)
    assert _core.sym_depends_on(lane * 2, "thread")
    assert not _core.sym_depends_on(M * k, "thread")
    assert [str(v) for v in _core.sym_free_vars(M * lane + k)] == ["M", "k", "@lane"]
