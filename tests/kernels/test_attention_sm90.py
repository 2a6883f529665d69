"""attention_sm90: values of its options on the simulator, its promise, its synchronisation, no spills, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.errors import VerifyError
from graphene.kernels import BackwardConfig, ForwardConfig
from graphene.kernels.attention import reference
from graphene.kernels.attention.key_tiles import attention_tiles_kernel, list_elems
from graphene.kernels.attention.keys_sm90 import KeysSm90
from graphene.kernels.attention.problem import LOG2E, Attention, Extra
from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
from graphene.select.attention import select_forward_sm90
from graphene.select.device import of_arch


def decayed(score: Any, query: Any, key: Any) -> Any:
    return score - 0.1 * abs(query - key)


CAUSAL = Attention(16, right=True)
SMALL = ForwardSm90(Attention(16), 16, 1, 2, queries=1)
ONE = replace(SMALL, apart=False, persistent=False)
CONFIGS = {
    "one consumer": SMALL,
    "turns": replace(SMALL, consumers=2, queries=2),
    "three consumers": ForwardSm90(replace(CAUSAL, D=64), 32, 3, 3),
    "no turns": replace(SMALL, consumers=2, turns=False, lazy=False),
    "causal": ForwardSm90(CAUSAL, 16, 2, lse=True),
    "window of grouped heads": ForwardSm90(Attention(24, left=True, right=True, group=2), 16, 1, lse=True),
    "results over queries": ForwardSm90(replace(CAUSAL, D=80), 32, 1, 2, queries=1, apart=False),
    "training": ForwardSm90(CAUSAL, 16, 1, lse=True, training=True),
    "no limit on the right": ForwardSm90(Attention(16, left=True), 16, 1),
    "capped, a function of scores": ForwardSm90(replace(CAUSAL, softcap=True, score=decayed), 32, 1),
    "negative scale": ForwardSm90(replace(CAUSAL, scaled=True), 16, 2, lse=True, training=True),
    "mask of keys": ForwardSm90(Attention(16, mask=Extra(rows=False)), 16, 2),
    "causal mask": ForwardSm90(replace(CAUSAL, mask=Extra()), 32, 1),
    "a block for each tile": replace(ONE, consumers=2, lse=True),
    "a block for each causal tile": replace(
        ONE, q_in_registers=True, what=replace(CAUSAL, group=2), lse=True, training=True
    ),
    "a block for each masked tile": replace(ONE, what=Attention(16, mask=Extra(rows=False))),
    "a block without a warp that copies": replace(ONE, what=replace(CAUSAL, left=True, group=2), copier=False),
    "two consumers without a warp that copies": replace(ONE, what=CAUSAL, copier=False, consumers=2, lse=True),
    "a masked block without a warp that copies": replace(
        ONE, what=Attention(16, mask=Extra(rows=False)), copier=False, stages=3, lse=True
    ),
    "uneven tiles": replace(SMALL, consumers=3, queries=2, uneven=True, lse=True),
    "uneven tiles, bias": replace(
        SMALL, what=Attention(16, bias=Extra(gr.fp16)), consumers=2, apart=False, uneven=True, turns=False
    ),
    "bias": replace(SMALL, what=replace(CAUSAL, bias=Extra(gr.fp32)), consumers=2, queries=2, lse=True, training=True),
    "sinks": replace(SMALL, what=replace(CAUSAL, sinks=True, group=2), consumers=2, queries=2, lse=True, training=True),
    "sinks, bias": replace(
        ONE, what=Attention(16, bias=Extra(gr.fp32), sinks=True), copier=False, lse=True, training=True
    ),
    "sinks, mask of keys": replace(ONE, what=Attention(16, mask=Extra(rows=False), sinks=True), lse=True),
    "bias, mask, a function of scores": replace(
        ONE, what=Attention(16, mask=Extra(rows=False), bias=Extra(gr.fp16), score=decayed)
    ),
}


def call(c: ForwardSm90, batch: int, sq: int, sk: int, scale: float = 0.3, kv_heads: int = 2) -> None:
    """Compares a call with the meaning in fp64."""
    a, rng = c.what, np.random.default_rng(sq + sk)
    heads = kv_heads * a.group
    shapes = {"Q": (sq, heads), "K": (sk, kv_heads), "V": (sk, kv_heads)}
    given: dict[str, Any] = {n: rng.standard_normal((batch, *s, a.D)).astype(np.float16) for n, s in shapes.items()}
    options = ("cap_log2", 3.0, a.softcap), ("left", 20, a.left), ("right", 3, a.right)
    numbers = {"scale_log2": -scale if a.scaled else scale, **{n: v for n, v, given in options if given}}
    wide = {n: x.astype(np.float64) for n, x in given.items()}
    lists: dict[str, Any] = {}
    if a.mask is not None:  # tiles that are seen whole, in part and not at all, and a head that sees nothing
        M = (rng.random((batch, heads, sq if a.mask.rows else 1, sk)) < 0.7).astype(np.uint8)
        M[0, ..., : c.BN], M[0, ..., 2 * c.BN :], M[-1, 1] = 1, 0, 0
        numbers_of_tiles = numbers.get("left"), numbers.get("right")
        entries = list_elems(sk, c.BN, c.bits)
        T = np.zeros((batch, heads, -(-sq // c.BM) if a.mask.rows or a.right else 1, entries), np.int32)
        all_rows = np.broadcast_to(M, (*M.shape[:2], sq, sk)) if T.shape[2] > 1 else M
        lists = {"T": reference.tiles(a, c.BM, c.BN, c.bits, all_rows, T, *numbers_of_tiles)}
        given["M"] = wide["M"] = M
    if a.bias is not None:  # also rows with nothing but a huge one
        B = rng.standard_normal((batch, heads, sq if a.bias.rows else 1, sk))
        B[0, 0, ::5], B[-1, -1, ..., 3::4] = -6e4, -np.inf
        given["B"] = B.astype(np.float16 if a.bias.dtype == gr.fp16 else np.float32)
        wide["B"] = given["B"].astype(np.float64)
    given |= lists
    if a.sinks:
        given["sinks"] = rng.standard_normal(heads).astype(np.float32) * 4
        given["sinks"][-1], wide["sinks"] = 30, given["sinks"].astype(np.float64)
        wide["sinks"][-1] = 30
    with np.errstate(divide="ignore"):
        want = reference.forward(a, c.lse, c.training, **wide, **numbers)
    got = {n: np.full(x.shape, np.nan, np.float16 if n == "O" else np.float32) for n, x in want.items()}
    attention_forward_sm90(c)(*given.values(), *got.values(), *numbers.values())
    if "rest" in got:  # what the LSE's rounding cut off
        got["LSE"], got["rest"] = got["LSE"] + got["rest"] * np.log(2.0), np.zeros_like(got["rest"])
    for n, x in want.items():
        np.testing.assert_allclose(got[n], x, rtol=2e-3, atol=2e-3, err_msg=n)


@pytest.mark.parametrize("name", CONFIGS)
def test_values(name: str) -> None:
    c = CONFIGS[name]
    call(c, 1, c.BM + 5, 3 * c.BN + 7)
    call(c, 2, 2 * c.BM, c.BN)
    call(c, 1, c.BM + 70, c.BN + 3)  # with a window, rows that see no key
    if c.uneven:
        call(c, 1, 7 * 64 + 3, c.BN)


KEYS = replace(ONE, what=Attention(16, mask=Extra(rows=False)), copier=False, lse=True)


@pytest.mark.parametrize("c", [
    replace(KEYS, bits=True, BN=48), replace(KEYS, longest_first=True), replace(KEYS, longest_first=True, bits=True),
    replace(KEYS, longest_first=True, bits=True, copier=True, consumers=2, stages=3),
], ids=lambda c: f"{c.bits} {c.longest_first} {c.copier}")  # fmt: skip
@pytest.mark.parametrize("batch", [1, 5, 35])
def test_padded_members_of_a_batch(c: ForwardSm90, batch: int) -> None:
    """Keys at the beginning, at the end, in the middle, with a hole, all, none; the lists come from their kernel."""
    rng, sk = np.random.default_rng(batch), 3 * c.BN + 5
    q, k, v = (rng.standard_normal((batch, n, 1, 16)).astype(np.float16) for n in (c.BM + 3, sk, sk))
    M = np.zeros((batch, 1, 1, sk), np.uint8)
    for b, kind in enumerate([2, 0, 1, 3, 5, 4, 0][:batch] + list(rng.integers(0, 6, max(batch - 7, 0)))):
        first, end = sorted(rng.integers(0, sk + 1, 2))
        first, end = ((0, end), (first, sk), (first, end), (0, sk), (0, sk), (0, 0))[kind]
        M[b, ..., first:end] = 1
        if kind == 4:
            M[b, ..., sk // 2] = 0
    T = np.full((batch, 1, 1, list_elems(sk, c.BN, c.bits)), -7, np.int32)
    want_T = reference.tiles(c.what, c.BM, c.BN, c.bits, M, T)
    attention_tiles_kernel(c.what, c.BM, c.BN, c.bits)(M, T)
    assert np.array_equal(T, want_T)
    with np.errstate(divide="ignore"):
        want = reference.forward(c.what, True, **{n: x.astype(float) for n, x in zip("QKV", (q, k, v), strict=True)},
                                 M=M, scale_log2=0.3)  # fmt: skip
    got = [np.full_like(q, np.nan), np.full(want["LSE"].shape, np.nan, np.float32)]
    attention_forward_sm90(c)(q, k, v, M, T, *got, 0.3)
    for x, y in zip(got, want.values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("what", [Attention(16, varlen=True), replace(CAUSAL, varlen=True, group=2)], ids=str)
@pytest.mark.parametrize("ends", [([2, 7, 150, 250], [3, 10, 100, 170]), ([0, 5, 5, 130], [0, 64, 96, 96])], ids=str)
def test_packed_sequences(what: Attention, ends: tuple[list[int], list[int]]) -> None:
    """Rows around the sequences, which nobody reads, and sequences without queries or keys."""
    rng, starts = np.random.default_rng(0), [np.array(x, np.int32) for x in ends]
    rows = {"Q": (ends[0][-1] + 4, 2 * what.group), "K": (ends[1][-1] + 9, 2), "V": (ends[1][-1] + 9, 2)}
    given: dict[str, Any] = {n: rng.standard_normal((*x, 16)).astype(np.float16) for n, x in rows.items()}
    for n in "KV":
        given[n][ends[1][-1] :] = np.nan
    numbers = {"scale_log2": 0.3} | ({"right": 3} if what.right else {})
    wide = {n: x.astype(np.float64) for n, x in given.items()} | dict(
        zip(("starts_q", "starts_k"), starts, strict=True)
    )
    with np.errstate(divide="ignore"):
        want = reference.forward(what, True, **wide, **numbers)
    got = {n: np.full(x.shape, np.nan, np.float16 if n == "O" else np.float32) for n, x in want.items()}
    for c in (
        replace(ONE, what=what, BN=32, consumers=2, lse=True),
        replace(ONE, what=what, BN=32, lse=True, copier=False),
        replace(ONE, what=what, BN=32, lse=True, copier=False, longest_first=True),
    ):
        kernel = attention_forward_sm90(c)
        kernel(*given.values(), *starts, *got.values(), *numbers.values(), int(np.diff(starts[0]).max()))
        for n, x in want.items():
            np.testing.assert_allclose(got[n], x, rtol=2e-3, atol=2e-3, err_msg=n)
            got[n][:] = np.nan


@pytest.mark.parametrize("count", [33, 70, 2050])
def test_many_packed_sequences_of_different_lengths(count: int) -> None:
    """A block finds the tile of its number whatever the other sequences are: most are empty, few have several tiles."""
    rng, what = np.random.default_rng(count), Attention(16, varlen=True)
    lengths = np.zeros(count, np.int64)
    lengths[rng.permutation(count)[:5]] = 1, 63, 64, 65, 130
    lengths[-1] = 3
    starts = np.array([2, *(2 + lengths.cumsum())], np.int32)
    q, k, v = (rng.standard_normal((starts[-1] + 1, 1, 16)).astype(np.float16) for _ in range(3))
    want = reference.forward(what, False, Q=q, K=k, V=v, starts_q=starts, starts_k=starts, scale_log2=0.3)["O"]
    made = []
    for longest_first in (False, True):
        made.append(np.full_like(q, np.nan))
        kernel = attention_forward_sm90(replace(ONE, what=what, BN=32, copier=False, longest_first=longest_first))
        kernel(q, k, v, starts, starts, made[-1], 0.3, int(lengths.max()))
        np.testing.assert_allclose(made[-1], want, rtol=2e-3, atol=2e-3)
    assert np.array_equal(*made)  # whichever block has a tile


@pytest.mark.parametrize("right", [False, True])
def test_blocks_take_the_longest_packed_sequences_first(right: bool) -> None:
    """In falling order of 64 keys; the last of causal rows first. Blocks that find no tile are the last ones."""
    queries, keys = np.array([70, 0, 3, 130, 1]), np.array([20, 90, 40, 100, 40])
    starts = [np.array([0, *x.cumsum()], np.int32) for x in (queries, keys)]
    q, k, v = (np.ones((n, 1, 16), np.float16) for n in (queries.sum(), keys.sum(), keys.sum()))
    c = replace(ONE, what=Attention(16, varlen=True, right=right), BN=16, copier=False, longest_first=True)
    given = q, k, v, *starts, np.full_like(q, np.nan), 0.3, *[3] * right, 130
    found: dict[int, dict[str, Any]] = {}
    for wrote in attention_forward_sm90(c).watch("found", *given):
        found.setdefault(wrote.block, {})[wrote.place] = wrote.value
    tiles = [(x["found[0]"], x["found[1]"]) for _, x in sorted(found.items())]
    in_order = [[(3, 0), (3, 1), (3, 2)], [(0, 0), (0, 1)], [(2, 0)], [(4, 0)]]
    want = [tile for sequence in in_order for tile in (sequence[::-1] if right else sequence)]
    assert tiles[: len(want)] == want
    assert all(m * 64 > queries.max() for _, m in tiles[len(want) :])


@pytest.mark.parametrize("sink", [-np.inf, -200.0, 0.5, 90.0, 1e5])
def test_a_sink_beside_scores_of_any_size(sink: float) -> None:
    """Beside a row of huge biases, one without keys, and scores that are far below or above it."""
    a = Attention(16, mask=Extra(rows=False), bias=Extra(gr.fp32), sinks=True)
    c = replace(ONE, what=a, copier=False, lse=True, training=True)
    rng, sk = np.random.default_rng(0), 40
    given: dict[str, Any] = {
        n: rng.standard_normal((4, s, 1, 16)).astype(np.float16) for n, s in zip("QKV", (9, sk, sk), strict=True)
    }
    given["Q"][2:] = 0  # fp32 holds no score beside their biases
    M = np.ones((4, 1, 1, sk), np.uint8)
    M[1] = 0
    B = np.broadcast_to(np.array([0, 0, -1e9, 3e4], np.float32)[:, None, None, None], (4, 1, 9, sk)).copy()
    T = reference.tiles(a, c.BM, c.BN, False, M, np.zeros((4, 1, 1, list_elems(sk, c.BN, False)), np.int32))
    sinks = np.full(1, sink, np.float32)
    wide = {n: x.astype(np.float64) for n, x in (*given.items(), ("B", B), ("sinks", sinks))}
    with np.errstate(divide="ignore"):
        want = reference.forward(a, True, True, **wide, M=M, scale_log2=0.3)
    got = {n: np.full(x.shape, np.nan, np.float16 if n == "O" else np.float32) for n, x in want.items()}
    attention_forward_sm90(c)(*given.values(), M, B, T, sinks, *got.values(), 0.3)
    sums = {n: x["LSE"].astype(np.float64) + x["rest"] * np.log(2.0) for n, x in (("got", got), ("want", want))}
    for n in ("O", "wide"):
        np.testing.assert_allclose(got[n], want[n], rtol=2e-3, atol=2e-3, err_msg=n)
    np.testing.assert_allclose(sums["got"], sums["want"], rtol=1e-6, atol=2e-3)


def test_gradients_of_attention_with_sinks_need_an_lse_that_has_them() -> None:
    """Those of queries, keys and values by the meanings of kernels that know nothing of sinks, and those of sinks."""
    torch = pytest.importorskip("torch")
    a, rng = Attention(16, right=True, group=2, sinks=True), np.random.default_rng(0)
    t: dict[str, Any] = {
        n: rng.standard_normal((2, s, h, 16)) for n, s, h in zip("GQKV", (5, 5, 9, 9), (4, 4, 2, 2), strict=True)
    }
    t |= {"sinks": rng.standard_normal(4), "scale": 0.3, "scale_log2": 0.3 * LOG2E, "right": 0}
    x = {n: torch.tensor(t[n], requires_grad=True) for n in ("Q", "K", "V", "sinks")}
    q, k, v = (x[n].transpose(1, 2) for n in "QKV")
    s = q @ k.repeat_interleave(2, 1).mT * 0.3
    s = s.masked_fill(torch.ones(5, 9, dtype=torch.bool).triu(5), -torch.inf)
    s = torch.cat([s, x["sinks"].view(-1, 1, 1).expand(2, 4, 5, 1)], -1)
    out = (torch.softmax(s, -1)[..., :-1] @ v.repeat_interleave(2, 1)).transpose(1, 2)
    (out * torch.tensor(t["G"])).sum().backward()
    made = reference.forward(a, True, **t)
    rows = {"LSE": made["LSE"], "delta": reference.delta(t["G"], made["O"])}
    got = reference.queries_gradient(replace(a, sinks=False), **t, **rows)
    got |= reference.keys_gradient(replace(a, sinks=False), None, **t, **rows)
    got["dsinks"] = -(np.exp(t["sinks"][:, None] - rows["LSE"]) * rows["delta"]).sum((0, 2))
    np.testing.assert_allclose(made["O"], out.detach().numpy(), rtol=1e-11, atol=1e-12)
    for n, given in x.items():
        np.testing.assert_allclose(got["d" + n], given.grad.numpy(), rtol=1e-11, atol=1e-12, err_msg=n)


def test_scores_of_any_size() -> None:
    call(CONFIGS["causal"], 1, 40, 50, scale=2.0**29)


@pytest.mark.parametrize("name", ["turns", "training"])
def test_its_promise_is_held(name: str) -> None:
    assert attention_forward_sm90(CONFIGS[name]).check().ok


def test_refusals() -> None:
    with pytest.raises(VerifyError, match="no kernel of this problem"):
        ForwardSm90(Attention(64, bias=Extra(gr.fp16), varlen=True))
    with pytest.raises(VerifyError, match="uneven tiles do not fit"):
        ForwardSm90(CAUSAL, uneven=True)
    with pytest.raises(VerifyError, match="one tile of queries"):
        ForwardSm90(Attention(64), persistent=False)
    for wrong in ({"what": None}, {"apart": "x"}, {"lse": 1}):
        with pytest.raises(VerifyError, match=next(iter(wrong))):
            ForwardSm90(**{"what": Attention(64)} | wrong)
    with pytest.raises(VerifyError, match="does not fit into registers"):
        ForwardSm90(Attention(64), 256, 3, queries=1)
    with pytest.raises(VerifyError, match="do not fit into shared memory"):
        ForwardSm90(Attention(256))
    with pytest.raises(VerifyError, match="has a block of its own"):
        ForwardSm90(Attention(64, varlen=True))
    with pytest.raises(VerifyError, match="training does not fit"):
        ForwardSm90(Attention(64), training=True)
    with pytest.raises(VerifyError, match="no order of work"):
        replace(ONE, longest_first=True)
    with pytest.raises(VerifyError, match="have no bits"):
        replace(KEYS, what=replace(CAUSAL, mask=Extra(rows=False)), bits=True)
    for other in (ForwardConfig, BackwardConfig, KeysSm90):
        with pytest.raises(VerifyError, match="sinks do not fit"):
            other(Attention(64, sinks=True))
    with pytest.raises(VerifyError, match="need a producer"):
        ForwardSm90(Attention(64), copier=False)


@pytest.mark.parametrize(
    "c",
    [
        ForwardSm90(Attention(64, right=True), 96, 3, 4),
        ForwardSm90(Attention(128, right=True, softcap=True), 128, 2, lse=True),
        ForwardSm90(Attention(64, mask=Extra(rows=False)), 64, 3, 3),
        ForwardSm90(Attention(64, mask=Extra(rows=False)), 64, 1, 2, 1, False, persistent=False, copier=False),
        ForwardSm90(Attention(64, right=True), 80, 1, 2, 1, False, lse=True, persistent=False, copier=False),
        ForwardSm90(Attention(64, varlen=True), 64, 1, 2, 1, False, persistent=False, copier=False),
        ForwardSm90(Attention(64, varlen=True), 64, 2, 3, 1, False, persistent=False, copier=False),
        replace(KEYS, what=Attention(64, mask=Extra(rows=False)), BN=64, longest_first=True, bits=True),
        replace(KEYS, what=Attention(64, varlen=True), BN=48, longest_first=True),
        replace(KEYS, what=Attention(64, varlen=True, right=True, left=True), BN=64, longest_first=True),
    ],
    ids=[
        "three consumers",
        "two consumers",
        "mask of keys",
        "mask of keys, no copier",
        "80 keys",
        "no copier",
        "two without a copier",
        "mask of keys, bits, longest first",
        "48 keys, longest first",
        "a window, longest first",
    ],
)
def test_it_compiles_without_spills(c: ForwardSm90) -> None:
    done = attention_forward_sm90(c).compile("sm_90a")  # serialised products are an error
    assert done.spill_bytes == 0


def test_the_chosen_tiles_are_the_fastest_that_were_measured() -> None:
    """On an H200, heads of 64: consumers, keys of a step, uneven tiles; or those of a small block for each tile."""
    plain, causal = Attention(64), replace(CAUSAL, D=64)
    three, small = (3, 128, False), (1, 64)
    measured: dict[Any, tuple[Any, ...]] = {
        (plain, 512, 384): three,
        (plain, 768, 128): (2, 128, False),
        (plain, 32, 4096): (3, 128, True),
        (plain, 1536, 512): (3, 128, True),
        (plain, 64, 1000): (3, 128, True),
        (plain, 24, 2048): three,
        (plain, 32, 3000): three,
        (plain, 64, 256): small,
        (causal, 64, 512): small,
        (causal, 128, 1024): (1, 80),
        (causal, 32, 4096): (1, 80),
    }
    for (what, heads, s), tiles in measured.items():
        c = select_forward_sm90(what, 1, heads, s, s)
        assert c is not None
        got = (c.consumers, c.BN, c.uneven) if c.persistent else (c.consumers, c.BN)
        assert got == tiles, (what, heads, s)
        assert c.copier == c.persistent


def test_which_problems_take_small_blocks() -> None:
    plain, causal = Attention(64), replace(CAUSAL, D=64)
    for what in (replace(plain, bias=Extra(gr.fp16)), replace(plain, D=256, varlen=True), replace(causal, varlen=True)):
        c = select_forward_sm90(what, 4, 8, 300, 900, lse=True)
        assert c is not None
        assert not c.persistent
    too_many = select_forward_sm90(replace(plain, varlen=True), 65535, 8192, 4096, 4096)
    assert too_many is None  # more blocks than a grid has
    padded = replace(plain, mask=Extra(rows=False))
    assert select_forward_sm90(replace(plain, mask=Extra()), 32, 16, 384, 384) is None
    assert select_forward_sm90(padded, 32, 16, 384, 384, training=True) is None
    assert select_forward_sm90(padded, 4, 16, 4096, 4096, training=True) is not None
    for sizes in ((32, 16, 384, 384), (8, 12, 512, 512), (4, 16, 4096, 4096)):
        c = select_forward_sm90(padded, *sizes)
        assert c is not None
        assert (c.consumers, c.BN, c.persistent, c.copier, c.bits) == (1, 64, False, False, True)
    for batch, total, keys in ((32, 32 * 207, 48), (8, 8 * 2000, 80)):  # of short sequences and of long ones
        c = select_forward_sm90(replace(plain, varlen=True), batch, 16, 4096, total)
        assert c is not None
        assert (c.BN, c.persistent) == (keys, False)
        assert c.longest_first
        few = select_forward_sm90(replace(plain, varlen=True), 4, 4, 4096, 1000)
        assert few is not None
        assert not few.longest_first
    few = select_forward_sm90(plain, 1, 16, 64, 8192)
    assert few is not None
    assert not few.persistent
    assert select_forward_sm90(plain, 1, 8, 64, 64, device=of_arch("sm_80")) is None
    for depth in range(8, 257, 8):
        assert select_forward_sm90(Attention(depth, right=True), 1, 8, 640, 640, training=True) is not None


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("sizes", [(32, 16, 384), (64, 12, 128), (128, 12, 512), (2, 16, 4096)], ids=str)
@pytest.mark.parametrize("what", [Attention(64), replace(CAUSAL, D=64), Attention(128), replace(CAUSAL, D=128)],
                         ids=lambda a: f"{a.D}{' causal' * a.right}")  # fmt: skip
def test_what_is_chosen_does_not_spill(what: Attention, sizes: tuple[int, int, int], lse: bool) -> None:
    """With any supported compiler but that three consumers who store the LSE spill 16 bytes with NVRTC 13.5."""
    batch, heads, s = sizes
    for dtype in (gr.fp16, gr.bf16) if s == 384 else (gr.fp16,):
        a = replace(what, dtype=dtype, alike=True)
        c = select_forward_sm90(a, batch, heads, s, s, lse=lse)
        assert c is not None
        done = attention_forward_sm90(c).compile("sm_90a")
        assert done.spill_bytes <= (16 if lse and c.consumers == 3 else 0), c
