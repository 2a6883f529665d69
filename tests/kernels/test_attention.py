"""Attention's kernels on the simulator: values against fp64, promises, synchronisation; and compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    Attention,
    BackwardConfig,
    Extra,
    ForwardConfig,
    ProductConfig,
    attention_combine_kernel,
    attention_forward_kernel,
    attention_keys_gradient_kernel,
    attention_queries_gradient_kernel,
    attention_queries_product_kernel,
    attention_tiles_kernel,
)
from graphene.kernels.attention.reference import forward
from graphene.select import select_backward, select_backward_saving, select_forward, select_short

LOG2E = math.log2(math.e)
forward_kernel = functools.cache(attention_forward_kernel)


class Case:
    """Random tensors of a problem, and in fp64 what must come out."""

    def __init__(self, a: Attention, b: int, sq: int, sk: int, hk: int, **numbers: float) -> None:
        rng = np.random.default_rng(hash((a.D, b, sq, sk, hk)) % 1000)
        h, self.a, self.numbers = hk * a.group, a, numbers

        def f16(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(np.float16)

        self.q, self.k, self.v, self.g = (
            f16(b, sq, h, a.D),
            f16(b, sk, hk, a.D),
            f16(b, sk, hk, a.D),
            f16(b, sq, h, a.D),
        )
        self.extras, ok = [], np.ones((b, h, sq, sk), bool)
        scale = self.scale = numbers.get("scale", a.D**-0.5)
        k, v = (np.repeat(t.astype(float), a.group, axis=2) for t in (self.k, self.v))
        q, g = self.q.astype(float), self.g.astype(float)
        s, slope = np.einsum("bqhd,bkhd->bhqk", q, k) * scale, 1
        if a.softcap:
            slope = 1 - np.tanh(s / numbers["cap"]) ** 2
            s = numbers["cap"] * np.tanh(s / numbers["cap"])
        for e in (a.mask, a.bias):
            if e is not None:
                shape = (b, 1, sq if e.rows else 1, sk)
                x = (rng.random(shape) < 0.6).astype(np.uint8) if e.dtype == gr.u8 else f16(*shape)
                x = x + np.float16(numbers.get("more", 0)) if e is a.bias else x
                self.extras.append(np.broadcast_to(x, (b, h, *shape[2:])))
                ok, s = (ok & (x != 0), s) if e.dtype == gr.u8 else (ok, s + x)
        i, j = np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None]
        ok &= (j <= i + numbers.get("right", 10**6)) & (j >= i - numbers.get("left", 10**6))
        s = np.where(ok, s, -np.inf)
        top = np.max(s, axis=3, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isinf(top), 0, top))
        total = p.sum(3, keepdims=True)
        with np.errstate(divide="ignore"):
            self.lse = (np.where(np.isinf(top), 0, top) + np.log(total))[..., 0]
        p = p / np.where(total == 0, 1, total)
        dp = np.einsum("bqhd,bkhd->bhqk", g, v)
        self.delta = (p * dp).sum(3)
        ds = p * (dp - self.delta[..., None]) * slope * scale
        self.o, self.dq = np.einsum("bhqk,bkhd->bqhd", p, v), np.einsum("bhqk,bkhd->bqhd", ds, k)
        self.dk, self.dv = (
            np.einsum("bhqk,bqhd->bkhd", x, y).reshape(b, sk, hk, a.group, a.D).sum(3) for x, y in ((ds, q), (p, g))
        )

    def numbers_of(self, gradient: bool = False) -> list[float]:
        n, a = self.numbers, self.a
        out = [self.scale * LOG2E] + ([n["cap"] * LOG2E] if a.softcap else []) + ([self.scale] if gradient else [])
        return out + ([n["left"]] if a.left else []) + ([n["right"]] if a.right else [])

    def forward(self, c: ForwardConfig, splits: int = 0) -> None:
        a = self.a
        tiles, o, lse = [], np.full_like(self.q, np.nan), np.full(self.lse.shape, np.nan, np.float32)
        if c.listed:
            tiles = [self.tiles(c)]
        if splits:
            b, _, hk, d = self.k.shape
            parts = np.full((splits, b, hk, self.q.shape[1] * a.group, d), np.nan, np.float32)
            top, logs = (np.full(parts.shape[:-1], np.nan, np.float32) for _ in range(2))
            forward_kernel(c).simulate(self.q, self.k, self.v, *self.extras, parts, top, logs, *self.numbers_of())
            attention_combine_kernel(Attention(a.D, group=a.group), True).simulate(parts, top, logs, o, lse)
        else:
            wide = [np.full(o.shape, np.nan, np.float32)] if c.training else []
            rest = [np.full_like(lse, np.nan)] if c.training and a.bias is not None else []
            args = (self.q, self.k, self.v, *self.extras, *tiles, o, lse, *wide, *rest)
            forward_kernel(c).simulate(*args, *self.numbers_of())
            for x in wide:
                np.testing.assert_array_equal(x.astype(np.float16), o)
                near(x, self.o)
            for x in rest:  # what a rounding to fp32 cuts off, and 0 for a row that sees no key
                assert (np.abs(x) <= 2.0**-22 * np.maximum(1, np.abs(np.where(np.isinf(lse), 0, lse)))).all()
        near(o, self.o)
        near(lse, self.lse)

    def tiles(self, c: ForwardConfig) -> Any:
        """The list of tiles, and that it names no tile twice and none that nothing sees."""
        a, (mask, b, h) = self.a, (self.extras[0][:, :1], self.q.shape[0], self.q.shape[2])
        if a.left or a.right:
            mask = np.broadcast_to(mask, (b, 1, self.q.shape[1], mask.shape[3]))
        rows, columns = -(-mask.shape[2] // c.BM), -(-mask.shape[3] // c.BN)
        listed = np.zeros((b, 1, rows, columns + 2), np.int32)
        attention_tiles_kernel(a, c.BM, c.BN).simulate(mask, listed, *self.numbers_of()[1:])
        return np.broadcast_to(listed, (b, h, rows, columns + 2))

    def given(self) -> list[Any]:
        rows = [self.delta.astype(np.float32), self.lse.astype(np.float32)]
        rest = [] if self.a.bias is None else [np.zeros_like(rows[0])]
        return [self.g, *rows, *rest, self.q, self.k, self.v, *self.extras]

    def backward(self, c: BackwardConfig, keys: BackwardConfig | None = None) -> None:
        args = self.given()
        dq, dk, dv = (np.full_like(t, np.nan) for t in (self.q, self.k, self.v))
        attention_queries_gradient_kernel(c).simulate(*args, dq, *self.numbers_of(gradient=True))
        attention_keys_gradient_kernel(keys or c).simulate(*args, dk, dv, *self.numbers_of(gradient=True))
        for got, want in ((dq, self.dq), (dk, self.dk), (dv, self.dv)):
            near(got, want)

    def saving(self, c: BackwardConfig, p: ProductConfig, heads: int) -> None:
        """So many heads of keys at a time; what the work space holds before must not matter."""
        (b, sq, _, _), sk, kv_heads = self.q.shape, self.k.shape[1], self.k.shape[2]
        dq, dk, dv = (np.full_like(t, np.nan) for t in (self.q, self.k, self.v))
        keys, product = attention_keys_gradient_kernel(c), attention_queries_product_kernel(p)
        numbers = self.numbers_of(gradient=True)
        for first in range(0, b * kv_heads, heads):
            saved = np.full((heads, self.a.group, -(-sq // 128) * 4, -(-sk // 128) * 128, 32), np.nan, np.float16)
            keys.simulate(*self.given(), saved, dk, dv, *numbers, first)
            product.simulate(self.k, saved, dq, *numbers[1 + self.a.softcap :], first)
        for got, want in ((dq, self.dq), (dk, self.dk), (dv, self.dv)):
            near(got, want)


def near(got: Any, want: Any) -> None:
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite].astype(float), want[finite], atol=4e-3, rtol=4e-3)


SMALL = {"BM": 32, "BN": 32, "WARPS": 2, "lse": True}
PROBLEMS: list[tuple[Attention, tuple[int, int, int, int], dict[str, float]]] = [
    (Attention(64), (2, 40, 70, 2), {}),
    (Attention(40, group=2), (1, 40, 70, 1), {}),
    (Attention(32, right=True, group=3), (1, 70, 40, 1), {"right": 0}),
    (Attention(32, left=True, right=True), (1, 150, 140, 1), {"left": 5, "right": 3}),
    (Attention(32, left=True), (1, 50, 140, 1), {"left": 40}),
    (Attention(32, softcap=True), (1, 40, 40, 1), {"cap": 0.5}),
    (Attention(32, softcap=True, wide=True), (1, 40, 40, 1), {"cap": 5.0}),
    (Attention(32, softcap=True, wide=True), (1, 40, 40, 1), {"cap": 1e6}),
    (Attention(32, scaled=True), (1, 40, 40, 1), {"scale": -0.3}),
    (Attention(32, mask=Extra(), bias=Extra(gr.fp16)), (2, 40, 70, 2), {}),
    (Attention(32, mask=Extra(rows=False), bias=Extra(gr.fp16, vector=2)), (2, 40, 70, 1), {}),
    (Attention(48, right=True, mask=Extra(rows=False, vector=2)), (1, 40, 70, 1), {"right": 0}),
    (Attention(32), (1, 40, 0, 1), {}),
]
IDS = [str(i) for i in range(len(PROBLEMS))]


@pytest.mark.parametrize(("a", "sizes", "numbers"), PROBLEMS, ids=IDS)
def test_forward(a: Attention, sizes: tuple[int, int, int, int], numbers: dict[str, float]) -> None:
    case = Case(a, *sizes, **numbers)
    case.forward(ForwardConfig(a, **SMALL))
    case.forward(ForwardConfig(a, **SMALL, lazy=False, q_in_registers=False, stages=3))
    case.forward(ForwardConfig(a, BM=32, BN=48, WARPS=1, lse=True, chunk=16, piece=16))
    case.forward(ForwardConfig(a, **SMALL, training=True))
    if a.mask is not None:
        case.forward(ForwardConfig(a, **SMALL, listed=True))


@pytest.mark.parametrize(("a", "sizes", "numbers"), PROBLEMS, ids=IDS)
def test_backward(a: Attention, sizes: tuple[int, int, int, int], numbers: dict[str, float]) -> None:
    case = Case(a, *sizes, **numbers)
    case.backward(BackwardConfig(a, 32, 32, 2))
    case.backward(BackwardConfig(dataclasses.replace(a, alike=True), 32, 16, 1, stages=3, keep=True, piece=16))
    if not a.softcap:
        case.backward(BackwardConfig(a, 32, 16, 2, 3), BackwardConfig(a, 32, 16, 2, 3, paired=True))


@pytest.mark.parametrize(("a", "sizes", "numbers"), PROBLEMS, ids=IDS)
def test_backward_with_a_work_space(a: Attention, sizes: tuple[int, int, int, int], numbers: dict[str, float]) -> None:
    case = Case(a, *sizes, **numbers)
    case.saving(BackwardConfig(a, 32, 32, 1, saves=True), ProductConfig(a, BN=32), heads=1)
    case.saving(BackwardConfig(a, 64, 64, 2, 3, saves=True), ProductConfig(a, stages=2, piece=16), heads=3)
    if not a.softcap:
        p = ProductConfig(a, BN=16, parts=2 if a.depth % 32 == 0 else 1)
        case.saving(BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=True), p, heads=1)
        pairs = BackwardConfig(dataclasses.replace(a, alike=True), 64, 64, 4, 4, saves=True, paired=True, piece=16)
        case.saving(pairs, p, heads=3)


@pytest.mark.parametrize("scale", [1.0, 2.0**-6, 2.0**-12])
def test_small_probabilities_are_passed_on(scale: float) -> None:
    """From warp to warp as fp16, without loss: those of long rows are below its normal numbers."""
    a = Attention(32, gr.bf16)
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((1, n, 1, 32)).astype(np.float32) for n in (32, 32, 32, 32))
    q, k, v, g = ((t.view(np.uint32) >> 16 << 16).view(np.float32) for t in (q, k, v, g))
    s = np.einsum("bqhd,bkhd->bhqk", q, k, dtype=float) * 0.1
    lse = np.log(np.exp(s).sum(3)) - np.log(scale)
    p = np.exp(s - lse[..., None])
    ds = p * np.einsum("bqhd,bkhd->bhqk", g, v, dtype=float)
    want = np.einsum("bhqk,bqhd->bkhd", ds, q) * 0.1
    made = []
    for paired in (False, True):
        c = BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=paired)
        dk, dv, saved = (np.zeros(x, np.uint16) for x in ((1, 32, 1, 32), (1, 32, 1, 32), (1, 1, 4, 128, 32)))
        args = [(t.view(np.uint32) >> 16).astype(np.uint16) for t in (q, k, v, g)]
        rows = [np.zeros(lse.shape, np.float32), lse.astype(np.float32)]
        attention_keys_gradient_kernel(c).simulate(args[3], *rows, *args[:3], saved, dk, dv, 0.1 * LOG2E, 0.1, 0)
        got = (dk.astype(np.uint32) << 16).view(np.float32)
        made.append(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert made[1] < 1.1 * made[0] < 0.01


def test_kernels_that_read_what_one_before_wrote_wait_for_it_by_themselves() -> None:
    a, c = Attention(32), BackwardConfig(Attention(32), 32, 32, 2)
    parts = attention_combine_kernel(a, True)
    for kernel in (parts, attention_keys_gradient_kernel(c), attention_queries_gradient_kernel(c)):
        assert [s.text for s in kernel.syncs() if "kernels" in s.text] == ["wait_kernels()"]


@pytest.mark.parametrize("more", [30, -30, 300])
@pytest.mark.parametrize("rows", [False, True])
def test_large_biases(more: float, rows: bool) -> None:
    """Of queries past the last, too, whose scores and LSE are 0."""
    a = Attention(32, bias=Extra(gr.fp16, rows))
    for sq in (1, 40):
        case = Case(a, 1, sq, 35, 1, more=more)
        case.forward(ForwardConfig(a, **SMALL))
        case.backward(BackwardConfig(a, 32, 32, 2))
        case.saving(BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=True), ProductConfig(a, BN=32), heads=1)


@pytest.mark.parametrize("splits", [0, 1, 4])
@pytest.mark.parametrize(
    ("a", "sizes", "numbers"),
    [(Attention(40, group=7, right=True, left=True), (2, 3, 150, 2), {"right": 0, "left": 50}),
     (Attention(64), (1, 1, 100, 2), {}), (Attention(256, group=4, mask=Extra(rows=False)), (1, 5, 70, 1), {}),
     (Attention(32, group=2), (1, 16, 1, 1), {})],
)  # fmt: skip
def test_short_queries(a: Attention, sizes: Any, numbers: dict[str, float], splits: int) -> None:
    c = ForwardConfig(a, 32, 32, 2, packed=True, split=splits > 0, lse=True)
    Case(a, *sizes, **numbers).forward(c, splits)


def test_maxima_that_grow() -> None:
    """Sums shrink by every path: scores that grow slowly, at once, and in some rows only."""
    a = Attention(32)
    for step in (0.02, 3.0, -3.0):
        case = Case(a, 1, 40, 200, 1)
        case.k = (np.arange(200)[None, :, None, None] * step * np.sign(case.q[0, 0, 0]) / 32).astype(np.float16)
        case.v = case.v[:, :, :1]
        s = np.einsum("bqhd,bkhd->bhqk", case.q.astype(float), case.k.astype(float)) * case.scale
        p = np.exp(s - s.max(3, keepdims=True))
        case.o = np.einsum("bhqk,bkhd->bqhd", p / p.sum(3, keepdims=True), case.v.astype(float))
        case.lse = np.log(p.sum(3)) + s.max(3)
        case.forward(ForwardConfig(a, **SMALL))


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [10, 19, 20, 21, 24, 29, 31, 38])
def test_scores_of_any_size(bits: int, sign: int, lazy: bool) -> None:
    """Up to 2^bits and some bits apart, exact in fp32; the maxima of a thread's rows grow in different tiles."""
    rng, step = np.random.default_rng(0), max(bits - 22, -6)
    q, k = (rng.integers(-3, 4, (1, n, 1, 32)).astype(np.float16) for n in (32, 160))
    q[..., 0] = 2.0 ** ((bits - step) // 2)
    k[..., 0] = sign * 2.0 ** (bits - step - (bits - step) // 2)
    v = rng.standard_normal(k.shape).astype(np.float16)
    scale = float(np.float32(1.37 * 2.0**step))  # whose product with the maximum is rounded
    s = np.einsum("bqhd,bkhd->bhqk", q.astype(float), k.astype(float))
    assert np.array_equal(s, s.astype(np.float32))
    p = np.exp2((s - s.max(3, keepdims=True)) * scale)
    total = p.sum(3, keepdims=True)
    o, lse = np.full_like(q, np.nan), np.full((1, 1, 32), np.nan, np.float32)
    forward_kernel(ForwardConfig(Attention(32), 32, 16, 2, lse=True, lazy=lazy)).simulate(q, k, v, o, lse, scale)
    near(o, np.einsum("bhqk,bkhd->bqhd", p / total, v.astype(float)))
    want = (s.max(3) * scale + np.log2(total[..., 0])) / LOG2E
    np.testing.assert_allclose(lse, want, rtol=2e-7)


@pytest.mark.parametrize(("a", "sizes", "numbers"), [p for p in PROBLEMS if p[1][2] > 0 and not p[0].scaled])
def test_keeps_its_promises(a: Attention, sizes: Any, numbers: dict[str, float]) -> None:
    case = Case(a, 1, min(sizes[1], 40), min(sizes[2], 50) // 2 * 2, 1, **numbers)
    o, lse = np.zeros_like(case.q), np.zeros(case.lse.shape, np.float32)
    forward = attention_forward_kernel(ForwardConfig(a, 32, 16, 2, lse=True))
    result = forward.check(case.q, case.k, case.v, *case.extras, o, lse, *case.numbers_of())
    assert result.ok, result.errors
    c = BackwardConfig(a, 32, 16, 2)
    args = case.given()
    result = attention_queries_gradient_kernel(c).check(*args, o, *case.numbers_of(gradient=True))
    assert result.ok, result.errors
    dk, dv = np.zeros_like(case.k), np.zeros_like(case.v)
    result = attention_keys_gradient_kernel(c).check(*args, dk, dv, *case.numbers_of(gradient=True))
    assert result.ok, result.errors


@pytest.mark.parametrize(("a", "sizes", "numbers"), [p for p in PROBLEMS if p[1][2] > 0 and not p[0].scaled])
def test_keeps_its_promises_with_a_work_space(a: Attention, sizes: Any, numbers: dict[str, float]) -> None:
    """Of the second of two heads: what belongs to the first stays as it is."""
    case = Case(a, 1, min(sizes[1], 40), min(sizes[2], 50) // 2 * 2, 2, **numbers)
    dq, dk, dv = np.zeros_like(case.q), np.zeros_like(case.k), np.zeros_like(case.v)
    saved, rest = np.zeros((1, a.group, 4, 128, 32), np.float16), [*case.numbers_of(gradient=True), 1]
    for paired in {False, not a.softcap}:
        kernel = attention_keys_gradient_kernel(BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=paired))
        result = kernel.check(*case.given(), saved, dk, dv, *rest)
        assert result.ok, result.errors
    product = attention_queries_product_kernel(ProductConfig(a, BN=32))
    result = product.check(case.k, saved, dq, *rest[1 + a.softcap :])
    assert result.ok, result.errors


def test_a_wrong_kernel_breaks_its_promise() -> None:
    """The causal kernel says that it is another one."""
    case = Case(Attention(32, right=True), 1, 35, 40, 1, right=0)
    kernel = attention_forward_kernel(ForwardConfig(case.a, 32, 16, 2))

    def everything_seen(Q: Any, K: Any, V: Any, scale_log2: float) -> Any:
        return forward(case.a, False, Q=Q, K=K, V=V, scale_log2=scale_log2)

    kernel = kernel.with_promise(everything_seen)
    result = kernel.check(case.q, case.k, case.v, np.zeros_like(case.q), *case.numbers_of())
    assert [e.code for e in result.errors] == ["CHECK_PROMISE"]


@pytest.mark.parametrize("stages", [2, 3])
def test_every_synchronisation_is_needed(stages: int) -> None:
    """With keys, or where there are none; the ends' waits and barriers are for the latter."""
    a = Attention(32)
    many, none = Case(a, 1, 35, 16 * (2 * stages + 1) + 8, 1), Case(a, 1, 35, 0, 1)
    for q_in_registers in (True, False):
        c = ForwardConfig(a, 32, 16, 2, stages, q_in_registers=q_in_registers)
        kernel = attention_forward_kernel(c)
        found = redundant(kernel, [(x.q, x.k, x.v, np.zeros_like(x.q), 0.2) for x in (many, none)])
        assert set(found) <= {'commit("cp.async.cg.16")'}, found  # without it a wait is for more than it must
    c = BackwardConfig(a, 32, 16, 2, stages)
    for keys in (False, True):
        calls = []
        for x in (many, none):
            if keys:  # the loop is over queries
                x = Case(a, 1, x.k.shape[1], 35, 1)
            rows = x.lse.astype(np.float32)
            outs = [np.zeros_like(x.k), np.zeros_like(x.v)] if keys else [np.zeros_like(x.q)]
            calls.append((x.g, rows, rows.copy(), x.q, x.k, x.v, *outs, 0.2, 0.2))
        kernel = (attention_keys_gradient_kernel if keys else attention_queries_gradient_kernel)(c)
        assert set(redundant(kernel, calls)) <= {'commit("cp.async.cg.16")'}
        if keys:
            calls = [(*c[:6], np.zeros((1, 1, 4, 256, 32), np.float16), *c[6:], 0) for c in calls]
            for paired in (False, True):
                c = BackwardConfig(a, 32, 32, 2, stages + paired, saves=True, paired=paired)
                found = redundant(attention_keys_gradient_kernel(c), calls)
                assert set(found) <= {'commit("cp.async.cg.16")'}
    c = ProductConfig(a, BN=16, stages=stages)
    calls = [(x.k, np.ones((1, 1, 4, 256, 32), np.float16), np.zeros_like(x.q), 0.2, 0) for x in (many, none)]
    assert set(redundant(attention_queries_product_kernel(c), calls)) <= {'commit("cp.async.cg.16")'}


def redundant(kernel: gr.Kernel, calls: list[tuple[Any, ...]]) -> list[str]:
    """The synchronisation statements that no call needs."""

    def runs(sync: Any, args: tuple[Any, ...]) -> bool:
        try:
            kernel.simulate(*args, skip=[sync.id])
        except gr.SimulationError:
            return False
        return True

    return [s.text for s in kernel.syncs() if all(runs(s, args) for args in calls)]


@pytest.mark.parametrize("D", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("right", [False, True])
def test_what_is_chosen_compiles(D: int, right: bool) -> None:
    a = Attention(D, right=right, alike=True)
    keys, queries = select_backward(a)
    short, _ = select_short(dataclasses.replace(a, group=4), 1, 1, 4096, 8)
    kernels = [attention_forward_kernel(select_forward(a, training=right)), attention_forward_kernel(short)]
    kernels += [attention_keys_gradient_kernel(keys), attention_queries_gradient_kernel(queries)]
    for kernel in kernels:
        assert kernel.compile("sm_90a").spill_bytes <= (256 if D <= 128 else 1024)
    saving = select_backward_saving(a)
    assert saving is not None
    for kernel in (attention_keys_gradient_kernel(saving[0]), attention_queries_product_kernel(saving[1])):
        assert kernel.compile("sm_90a").spill_bytes <= 64
    assert gr.parse(str(kernels[0])) == kernels[0]
    assert gr.Kernel.from_json(kernels[2].to_json()) == kernels[2]


def test_tiles_that_divide_the_keys_need_no_mask() -> None:
    """The kernel for such numbers of keys has one loop, its results have the other's bits, and it refuses others."""
    case = Case(Attention(32), 2, 40, 64, 2)
    any_keys = select_forward(case.a, lse=True)
    even = select_forward(case.a, lse=True, keys=64)
    assert even == dataclasses.replace(any_keys, even=True)
    assert select_forward(case.a, lse=True, keys=65) == any_keys
    assert not select_forward(Attention(32, right=True), keys=64).even
    results = []
    for c in (any_keys, even):
        o, lse = np.full_like(case.q, np.nan), np.full(case.lse.shape, np.nan, np.float32)
        forward_kernel(c).simulate(case.q, case.k, case.v, o, lse, *case.numbers_of())
        results.append((o.tobytes(), lse.tobytes()))
    assert results[0] == results[1]
    assert len(str(forward_kernel(even))) < 0.7 * len(str(forward_kernel(any_keys)))  # one loop, not two
    with pytest.raises(gr.LaunchError, match="LAUNCH_FACT"):
        forward_kernel(even).simulate(case.q, case.k[:, :63], case.v[:, :63], o, lse, *case.numbers_of())


@pytest.mark.parametrize("a", [Attention(32), Attention(32, right=True), Attention(16, left=True, right=True)])
def test_a_step_that_is_printed_once_has_the_bits_of_two(a: Attention) -> None:
    """One loop whose mask stands in an ``if`` gives the same results, and prints every product once."""
    case = Case(a, 1, 150, 200, 1, left=70, right=20)
    two = select_forward(a, lse=True)
    one = dataclasses.replace(two, one_loop=True)
    results = []
    for c in (two, one):
        o, lse = np.full_like(case.q, np.nan), np.full(case.lse.shape, np.nan, np.float32)
        forward_kernel(c).simulate(case.q, case.k, case.v, o, lse, *case.numbers_of())
        results.append((o.tobytes(), lse.tobytes()))
    assert results[0] == results[1]
    once, twice = (str(forward_kernel(c)).count("MatMul") for c in (one, two))
    assert twice == 2 * once


@pytest.mark.parametrize(
    ("make", "text"),
    [(lambda: Attention(20), "an integer from 8 to 256, a multiple of 8"),
     (lambda: ForwardConfig(Attention(32), BM=48), "an integer, 64 or more, a multiple of 64"),
     (lambda: ForwardConfig(Attention(32, right=True), even=True), "each query sees all keys"),
     (lambda: ForwardConfig(Attention(32), chunk=128), "an integer from 16 to 64, a multiple of 16"),
     (lambda: BackwardConfig(Attention(32), other=8), "an integer, 16 or more, a multiple of 16"),
     (lambda: BackwardConfig(Attention(32), other=16, saves=True), "one of 32, 64, 128"),
     (lambda: BackwardConfig(Attention(32), paired=True), "an integer, 3 or more"),
     (lambda: BackwardConfig(Attention(32), WARPS=3, stages=3, paired=True), "an integer from 2 to 32"),
     (lambda: BackwardConfig(Attention(32, softcap=True), stages=3, paired=True), "KERNEL_ARGUMENT"),
     (lambda: Attention(32, bias=Extra()), "bias.dtype"),
     (lambda: Attention(32, bias=Extra(gr.i32)), "bias.dtype"),
     (lambda: Attention(32, mask=Extra(gr.fp16)), "mask.dtype"),
     (lambda: Attention(32, mask=True), "mask is not an Extra"),
     (lambda: Attention(32, "fp16"), "dtype is not a type"),  # type: ignore[arg-type]
     (lambda: Attention(32, gr.fp32), 'one of "fp16", "bf16"'),
     (lambda: Attention(32, right="x"), "want: True or False"),  # type: ignore[arg-type]
     (lambda: Attention(32, score=3), "score cannot be called"),  # type: ignore[arg-type]
     (lambda: ProductConfig(Attention(48), parts=2), "an integer from 32 to 256, a multiple of 32")],
)  # fmt: skip
def test_arguments(make: Any, text: str) -> None:
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        make()
    assert text in str(e.value)
