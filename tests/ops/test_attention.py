"""graphene.ops.attention and attention_varlen on CPU tensors: values, errors, gradients, compiled graphs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops.attention import backward as attention_gradients  # noqa: E402
from graphene.ops.attention import forward as attention_forward  # noqa: E402
from graphene.ops.attention import reference as plain  # noqa: E402
from graphene.ops.core.define import Arg  # noqa: E402
from graphene.select import attention as attention_choice  # noqa: E402
from graphene.select import of_arch, select_decode  # noqa: E402
from graphene.select.device import H200  # noqa: E402

F = torch.nn.functional
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        torch.manual_seed(1)
        yield


def r(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape).to(dtype)


def want(
    q: Any, k: Any, v: Any, causal: bool = False, window: Any = None, mask: Any = None, bias: Any = None,
    scale: float | None = None, softcap: float | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """In fp64, a row at a time: what the kernels must give."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.zeros(q.shape[0], q.shape[2], q.shape[1])
    (B, sq, H, D), sk, group = q.shape, k.shape[1], q.shape[2] // max(k.shape[2], 1)
    mask = mask[:, None, None] if mask is not None and mask.dim() == 2 else mask
    mask = torch.ones(B, H, sq, sk, dtype=torch.bool) if mask is None else mask.expand(B, H, sq, sk)
    bias = torch.zeros(B, H, sq, sk) if bias is None else bias.expand(B, H, sq, sk)
    left, right = window or (-1, -1)
    for b in range(B):
        for h in range(H):
            for i in range(sq):
                s = k[b, :, h // group].double() @ q[b, i, h].double() * (D**-0.5 if scale is None else scale)
                s = s if softcap is None else softcap * torch.tanh(s / softcap)
                s, place = s + bias[b, h, i], i + sk - sq
                seen = [
                    j for j in range(sk)
                    if mask[b, h, i, j] and not (causal and j > place) and not (0 <= right < j - place)
                    and not (0 <= left < place - j) and s[j] > -torch.inf
                ]  # fmt: skip
                lse[b, h, i] = torch.logsumexp(s[seen], 0) if seen else -torch.inf
                if seen:
                    out[b, i, h] = torch.softmax(s[seen], 0) @ v[b, seen, h // group].double()
    return out, lse


def close(got: Any, ref: Any) -> None:
    assert got.shape == ref.shape
    ulp = {torch.float16: 2.0**-10, BF16: 2.0**-7, torch.float32: 2.0**-16}[got.dtype]
    finite = ref.isfinite()
    assert torch.equal(got[~finite].double(), ref[~finite].double())
    error = (got.double() - ref.double())[finite].abs()
    assert (error <= ulp * (1 + ref[finite].abs())).all(), error.max().item()


def check(q: Any, k: Any, v: Any, said: str = "the simulator runs", **named: Any) -> None:
    out, lse = ops.attention(q, k, v, return_lse=True, **named)
    ref = want(q, k, v, **named)
    close(out, ref[0])
    close(lse, ref[1])
    assert torch.equal(ops.attention(q, k, v, **named), out)
    assert out.is_contiguous()
    assert said in ops.explain(ops.attention, q, k, v, **named)


def qkv(
    b: int = 1, sq: int = 20, sk: int = 33, h: int = 2, hk: int = 1, d: int = 32, dtype: Any = torch.float16
) -> Any:
    return r(b, sq, h, d, dtype=dtype), r(b, sk, hk, d, dtype=dtype), r(b, sk, hk, d, dtype=dtype)


MASKS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window": (3, 2)}, {"window": (0, 0)}, {"window": (-1, 4)}, {"window": (7, -1)},
    {"causal": True, "window": (5, 9)}, {"scale": 0.3}, {"scale": -0.4}, {"scale": 0.0}, {"softcap": 0.7},
    {"softcap": 0.7, "scale": -1.0, "causal": True},
]  # fmt: skip


@pytest.mark.parametrize("named", MASKS, ids=str)
@pytest.mark.parametrize(("sq", "sk"), [(20, 33), (40, 9), (1, 40), (33, 33)])
def test_masks(named: dict[str, Any], sq: int, sk: int) -> None:
    check(*qkv(1, sq, sk), **named)


def test_a_scale_of_zero_is_not_the_default() -> None:
    """Even of a negative zero."""
    q, k, v = qkv()
    args = (q, k, v, None, None, False, -1, -1)
    want = ops.attention(q, k, v)
    assert torch.equal(torch.ops.graphene.attention(*args, None, 0.0), want)
    for zero in (0.0, -0.0):
        mean = ops.attention(q, k, v, scale=zero)
        close(mean, v.double().mean(1, keepdim=True).expand(1, 20, 1, 32).repeat_interleave(2, 2))
        assert torch.equal(torch.ops.graphene.attention(*args, zero, 0.0), mean)
    assert torch.equal(ops.attention(q, k, v), want)


@pytest.mark.parametrize("d", [8, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float16, BF16])
def test_head_sizes(d: int, dtype: Any) -> None:
    check(*qkv(1, 9, 35, 2, 2, d, dtype), causal=d % 3 == 0)


@pytest.mark.parametrize("sk", [33, 34])
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 1, 1), (1, 4, 20), (2, 4, 20), (2, 1, 20), (1, 4, 1)])
def test_masks_and_biases_broadcast(shape: tuple[int, int, int], sk: int) -> None:
    q, k, v = qkv(2, 20, sk, 4, 2)
    mask = torch.rand(*shape, sk) < 0.6
    mask[0, 0, 0] = False
    check(q, k, v, mask=mask)
    check(q, k, v, mask=mask[..., :1], causal=True)
    check(q, k, v, bias=r(*shape, sk), window=(9, 9))
    check(q, k, v, bias=r(*shape, sk, dtype=torch.float32), mask=mask, softcap=2.0)
    check(q, k, v, bias=torch.where(mask, 0.5, -torch.inf))


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("low", [-1e30, -2.3e38, None])
def test_rows_that_a_bias_pushes_down_as_a_whole(dtype: Any, low: float | None) -> None:
    """Equally low numbers give the mean; what overflows in units of log2(e) is -inf, and gives zeros."""
    q, k, v = qkv(1, 8, 24, 2, 2, dtype=BF16)
    bias = torch.zeros(1, 1, 8, 24, dtype=dtype)
    bias[0, 0, 0] = bias[0, 0, 1, 5:] = torch.finfo(dtype).min if low is None else low
    out = ops.attention(q, k, v, bias=bias)
    assert "the simulator runs" in ops.explain(ops.attention, q, k, v, bias=bias)
    row = torch.zeros_like(v[:, 0]).float() if low is None else v.float().mean(1)
    torch.testing.assert_close(out[:, 0].float(), row, rtol=1e-2, atol=1e-2)
    close(out[:, 1:], want(q, k, v, bias=bias)[0][:, 1:])


def test_the_least_number_of_fp16_is_a_number() -> None:
    q, k, v = qkv(1, 8, 24, 2, 2)
    bias = torch.zeros(1, 1, 8, 24, dtype=torch.float16)
    bias[0, 0, 0] = bias[0, 0, 1, 5:] = torch.finfo(torch.float16).min
    out = ops.attention(q, k, v, bias=bias)
    torch.testing.assert_close(out.double(), want(q, k, v, bias=bias)[0], rtol=1e-2, atol=1e-2)


def test_masks_of_keys() -> None:
    q, k, v = qkv(3, 7, 70)
    lengths = torch.tensor([70, 0, 41])
    check(q, k, v, mask=torch.arange(70)[None] < lengths[:, None])
    check(q, k, v, mask=torch.arange(70)[None] >= lengths[:, None], causal=True)
    check(q, k, v, mask=torch.rand(3, 70) < 0.3)
    check(q, k, v, mask=(torch.rand(3, 140) < 0.3)[:, ::2])
    check(q, k, v, bias=r(7, 70))
    check(q, k, v, bias=r(2, 7, 70))
    q, k, v = qkv(7, 7, 9)  # as many batches as queries: two dimensions are of keys all the same
    mask = torch.rand(7, 9) < 0.5
    check(q, k, v, mask=mask)
    assert torch.equal(ops.attention(q, k, v, mask=mask), ops.attention(q, k, v, mask=mask[:, None, None]))


def test_views() -> None:
    q, k, v = r(2, 2, 9, 40), r(2, 1, 21, 40), r(2, 1, 21, 40)
    check(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
    check(*r(2, 11, 3, 2, 32).unbind(2))
    check(*r(2, 11, 2, 96).split(32, 3))
    check(r(2, 9, 2, 32), r(1, 20, 2, 32).expand(2, 20, 2, 32), r(2, 1, 2, 32).expand(2, 20, 2, 32))
    q, k, v = r(1, 9, 2, 65)[..., 1:], r(1, 9, 2, 128)[..., ::2], r(1, 9, 2, 64)
    check(q, k, v, "k is copied first, row-major")
    odd = r(1, 1, 1, 36)[..., 4:]  # row-major, of an address that is not a multiple of 16
    check(odd, odd, odd, "q is copied first, row-major")


def test_numbers_and_places_that_are_unusual() -> None:
    q, k, v = qkv(1, 20, 33)
    check(q, k, v, window=(2**40, 3))
    check(q, k, v, window=(2, 2**62), causal=False)
    starts = torch.tensor([[0, 9], [8, 9], [20, 9]]).int()[:, 0]
    x, y, z = q[0], k[0, :20], v[0, :20]
    out = ops.attention_varlen(x, y, z, starts, starts, 12, 12, causal=True)
    for i in (slice(0, 8), slice(8, 20)):
        close(out[i], want(x[None, i], y[None, i], z[None, i], causal=True)[0][0])
    many = r(65536, 1, 1, 8)
    close(ops.attention(many, many, many), many.double())
    assert "no kernel for more than 65535" in ops.explain(ops.attention, many, many, many)


def test_sizes_of_nothing() -> None:
    for b, sq, sk, h in ((0, 4, 4, 2), (1, 0, 4, 2), (1, 4, 0, 2), (1, 4, 4, 0)):
        check(*qkv(b, sq, sk, h, h), "")


def test_other_types_and_heads_go_to_pytorch() -> None:
    check(*qkv(d=20), "PyTorch's operators (no kernel for heads of 20 elements)", causal=True)
    q, k, v = (t.float() for t in qkv(sq=40))
    check(q, k, v, "PyTorch's operators (no kernel for attention of float32)", window=(2, 3), softcap=1.0)
    q, k, v = qkv(1, 200, 200, 2, 2, 64)
    close(ops.attention(q, k, v), F.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)))
          .transpose(1, 2))  # fmt: skip


@pytest.mark.parametrize("named", [{}, {"causal": True}, {"window": (4, 3), "softcap": 1.0}], ids=str)
def test_packed_sequences(named: dict[str, Any]) -> None:
    lq, lk = [5, 0, 20, 1, 13], [7, 3, 35, 1, 0]
    cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (lq, lk))
    q, k, v = (r(n, h, 32) for n, h in ((39, 2), (46, 1), (46, 1)))
    out, lse = ops.attention_varlen(q, k, v, cu_q, cu_k, 20, 35, return_lse=True, **named)
    for i in range(5):
        at, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        ref = want(q[None, at], k[None, keys], v[None, keys], **named)
        close(out[at], ref[0][0])
        close(lse[:, at], ref[1][0])
    assert "the simulator runs" in ops.explain(ops.attention_varlen, q, k, v, cu_q, cu_k, 20, 35, **named)


def gradients(f: Callable[..., Any], tensors: Any, g: Any) -> Any:
    tensors = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(f(*tensors), tensors, g)


@pytest.mark.parametrize("named", [{}, {"causal": True}, {"window": (4, 3), "softcap": 1.0}], ids=str)
def test_gradients(named: dict[str, Any]) -> None:
    q, k, v = qkv(2, 7, 12, 4, 2)
    g, mask = r(2, 7, 4, 32), torch.rand(2, 1, 7, 12) < 0.7
    got = gradients(lambda *t: ops.attention(*t, mask=mask, **named), (q, k, v), g)

    def wide(q: Any, k: Any, v: Any) -> Any:
        k, v = (t.repeat_interleave(2, 2).transpose(1, 2) for t in (k, v))
        s = q.transpose(1, 2) @ k.transpose(2, 3) * 32**-0.5
        s = s if "softcap" not in named else torch.tanh(s)
        i, j = torch.arange(7)[:, None] + 5, torch.arange(12)[None]
        left, right = named.get("window", (99, 0 if "causal" in named else 99))
        seen = mask & (j <= i + right) & (j >= i - left)
        p = torch.softmax(s.masked_fill(~seen, -1e9), 3) * seen.any(3, keepdim=True)
        return (p @ v).transpose(1, 2)

    for a, b in zip(got, gradients(wide, [t.double() for t in (q, k, v)], g.double()), strict=True):
        assert a.dtype == torch.float16
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("sq", "most", "kernels"), [(9, 0, (1, 0)), (10, 3 * 2 * 128 * 128 * 2, (0, 2))])
def test_gradients_whatever_the_work_space(monkeypatch: Any, sq: int, most: int, kernels: tuple[int, int]) -> None:
    """None, or one for three of the four heads of keys, with two heads of queries each."""
    monkeypatch.setattr(attention_gradients, "SAVED_BYTES", most)
    (q, k, v), g = qkv(2, sq, 40, 4, 2), r(2, sq, 4, 32)
    got = gradients(lambda *t: ops.attention(*t, causal=True), (q, k, v), g)
    wide = [t.double() for t in (q, k, v)]
    numbers = (True, -1, -1, 32**-0.5, 0.0)
    out, lse, _ = plain.Problem(*wide, None, None, numbers).forward()
    delta = (g.double() * out.transpose(1, 2)).sum(-1).transpose(1, 2)
    for a, b in zip(got, plain.backward(g.double(), *wide, None, None, None, *numbers), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=4e-3)
    rows = [x.float().contiguous() for x in (delta, lse)]
    said = attention_gradients.gradients.defined.explain(g, *rows, q, k, v, None, None, None, None, *numbers)
    assert tuple(said.count(f"kernel attention_queries_{x}") for x in ("gradient", "product")) == kernels


def test_a_work_space_takes_a_part_of_the_memory() -> None:
    shares, gib = attention_gradients.head_shares, 1 << 30
    assert shares(32, gib // 8, 140 * gib, 64, 396) == [(0, 16), (16, 16)]  # 2 GiB
    assert shares(32, gib // 8, 24 * gib, 64, 396) == [(0, 11), (11, 11), (22, 10)]  # 1.5 GiB
    assert shares(32, gib // 8, 8 * gib, 64, 396) == []  # four heads at a time leave multiprocessors idle
    assert shares(3, gib // 8, 8 * gib, 64, 396) == [(0, 3)]  # but here there are no more


@pytest.mark.parametrize(
    ("keys", "gib", "kernels"),
    [
        (4096, 141, ["rows", "keys_gradient_sm90", "queries_product_sm90"]),
        (16384, 141, ["rows", *["keys_gradient_sm90", "queries_product_sm90"] * 8]),  # 512 MiB a head, four at a time
        (40960, 141, ["rows", *["keys_gradient_sm90", "queries_product_sm90"] * 16]),  # two at a time
        (81920, 141, ["rows", "gradient_sm90", "sums"]),
    ],
)
def test_gradients_on_hopper(keys: int, gib: int, kernels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches for two sequences of 16 heads: a work space for as many heads as it holds, else sums."""
    monkeypatch.setattr(attention_gradients, "target_device", lambda _: H200)
    monkeypatch.setattr(attention_gradients, "memory_bytes", lambda _: gib << 30)
    q = Arg((2, keys, 16, 64), (keys * 1024, 1024, 64, 1), "float16", "cuda:0", 128)
    rows = Arg((2, 16, keys), (16 * keys, keys, 1), "float32", "cuda:0", 128)
    numbers = (True, -1, -1, 0.125, 0.0)
    made = attention_gradients.gradients.configure(q, rows, rows, q, q, q, None, None, None, None, *numbers)
    assert [x.kernel.name for x in made.launches] == [f"attention_{n}" for n in kernels]


def test_gradients_of_packed_sequences() -> None:
    q, k, v = r(12, 2, 32), r(20, 1, 32), r(20, 1, 32)
    cu_q, cu_k = torch.tensor([0, 5, 12]).int(), torch.tensor([0, 9, 20]).int()
    g = r(12, 2, 32)
    got = gradients(lambda *t: ops.attention_varlen(*t, cu_q, cu_k, 7, 11, causal=True), (q, k, v), g)
    for i in range(2):
        at, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        ref = gradients(
            lambda *t: ops.attention(*t, causal=True), (q[None, at], k[None, keys], v[None, keys]), g[None, at]
        )
        for a, b, part in zip(got, ref, (at, keys, keys), strict=True):
            torch.testing.assert_close(a[part], b[0], rtol=2e-3, atol=2e-3)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nothing has written is NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("large", [1.0, 300.0])
@pytest.mark.parametrize("cap", [30.0, 120.0, 130.0, 1e3, 1e4, 1e6, 1e9, 3e38, 1e300])
def test_caps_of_any_size(cap: float, large: float) -> None:
    """None of a score's digits is lost to a cap that is much larger; the LSE shows them."""
    q, k, v = qkv(1, 20, 33)
    out, lse = ops.attention(large * q, k, v, softcap=cap, return_lse=True)
    ref = want(large * q, k, v, softcap=cap)
    assert ((lse - ref[1]).abs() <= 1.5e-5 + 2e-6 * ref[1].abs()).all()
    close(out, ref[0])
    got, other = (
        gradients(lambda *t, c=c: ops.attention(*t, softcap=c), (q, k, v), torch.ones_like(q)) for c in (cap, 60.0)
    )
    for a, b in zip(got, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("places", [(0, 4, 9), (2, 4, 9), (3, 3, 3), (5, 5), (3,), (0, 12)], ids=str)
@pytest.mark.parametrize("longer", [0, 40])
@pytest.mark.usefixtures("poisoned")
def test_rows_outside_of_all_sequences(places: tuple[int, ...], longer: int) -> None:
    """Of queries and of keys: zeros, an LSE of -inf, no gradient; nothing of them is read."""
    cu, (a, b), most = torch.tensor(places).int(), (places[0], places[-1]), 5 if longer else 0
    most = max([most, *(y - x for x, y in pairwise(places))])
    whole = [r(12 + longer, h, 32) for h in (2, 1, 1)]
    parts = [t[a:b].clone().requires_grad_() for t in whole]
    for t in whole:
        t[:a] = t[b:] = torch.nan
        t.requires_grad_()
    made = []
    for (q, k, v), at in ((whole, cu), (parts, cu - a)):
        out, lse = ops.attention_varlen(q, k, v, at, at, most, most, causal=True, return_lse=True)
        out.backward(torch.ones_like(out))
        made.append((out, lse.T, q.grad, k.grad, v.grad))
    for t, part, outside in zip(*made, (0, -torch.inf, 0, 0, 0), strict=True):
        assert torch.equal(t[a:b], part)
        assert (torch.cat([t[:a], t[b:]]) == outside).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [10, 20, 28, 30, 36, 60])
def test_large_scores_lose_nothing(bits: int, sign: int) -> None:
    """Equal ones weigh the same."""
    q = torch.full((1, 16, 1, 64), 2.0 ** (bits / 2) / 8**0.5, dtype=BF16)
    v = r(1, 16, 1, 64, dtype=BF16)
    out = ops.attention(sign * q, q, v)
    torch.testing.assert_close(out, v.float().mean(1, keepdim=True).to(BF16).expand_as(v), rtol=2**-7, atol=2**-7)


def test_gradients_without_queries() -> None:
    """Whose keys have a gradient all the same: nothing."""
    q, k, v = r(0, 1, 32), r(50, 1, 32), r(50, 1, 32)
    cu_q, cu_k = torch.tensor([0, 0]).int(), torch.tensor([0, 50]).int()
    got = gradients(lambda *t: ops.attention_varlen(*t, cu_q, cu_k, 0, 50), (q, k, v), r(0, 1, 32))
    assert [t.shape for t in got] == [q.shape, k.shape, v.shape]
    assert not any(t.any() or t.isnan().any() for t in got)
    got = gradients(lambda *t: ops.attention(*t), (q[None], k[None], v[None]), r(1, 0, 1, 32))
    assert not any(t.any() or t.isnan().any() for t in got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("large", [-2.3e38, -1e9, 1e5])
@pytest.mark.parametrize(("sq", "sk", "dim"), [(9, 140, 32), (20, 45, 96)])
def test_weights_add_up_to_one_beside_large_scores(large: float, dtype: Any, sq: int, sk: int, dim: int) -> None:
    """The LSE of such rows has no digits left for their sum. Two blocks share 140 keys, 128 and 12."""
    q, k, v = qkv(sq=sq, sk=sk, d=dim, dtype=dtype)
    bias, g = torch.full((1, 1, sq, sk), large), r(*q.shape, dtype=dtype)
    off = 1e-5 if dtype == torch.float32 else 2e-3
    assert (ops.attention(q, k, torch.ones_like(v), bias=bias) - 1).abs().max() < off
    if large < -1e8:  # no score has digits beside it
        mean = v.double().mean(1, keepdim=True).repeat_interleave(2, 2).expand(q.shape)
        torch.testing.assert_close(ops.attention(q, k, v, bias=bias).double(), mean, rtol=off, atol=off)
    _, _, dv = gradients(lambda *t: ops.attention(*t, bias=bias), (q, k, v), g)
    torch.testing.assert_close(dv.double().sum((1, 2)), g.double().sum((1, 2)), rtol=10 * off, atol=10 * off)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
@pytest.mark.parametrize(
    ("dim", "how"),
    [(32, ""), (96, ""), (32, "bias"), (96, "bias"), (32, "mask"), (32, "packed"), (8, "window and cap")],
)
def test_gradients_beside_large_scores(dim: int, how: str, dtype: Any) -> None:
    """As near where scores are near 200, and probabilities near one, as where they are small."""
    q, k, v = qkv(sq=40, sk=60, h=1, d=dim, dtype=dtype)
    g, scale = r(*q.shape, dtype=dtype), 60 * dim**-0.5
    bias = r(1, 1, 40, 60, dtype=dtype) if how == "bias" else None
    mask = torch.rand(1, 60) < 0.7 if how == "mask" else None
    window, cap = ((50, 9), 300.0) if how == "window and cap" else ((-1, -1), 0.0)
    named = {"bias": bias, "mask": mask, "scale": scale, "softcap": cap, "window": window}
    if how == "packed":
        ends = torch.tensor([[0, 40], [0, 60]]).int()
        got = gradients(lambda *t: ops.attention_varlen(*t, *ends, 40, 60, scale=scale)[None],
                        [t[0] for t in (q, k, v)], g)  # fmt: skip
    else:
        got = gradients(lambda *t: ops.attention(*t, **named), (q, k, v), g)
    exact = plain.backward(*(t.double() for t in (g, q, k, v)), mask, bias, None, False, *window, scale, cap)
    for a, b in zip(got, exact, strict=True):
        error = (a.double() - b).norm() / b.norm()
        assert error < (7e-4 if dtype == torch.float16 else 5.6e-3), error


@pytest.mark.parametrize(("dtype", "more"), [(torch.float16, 12.0), (BF16, 89.0), (torch.float16, -1e4), (BF16, 1e4)])
@pytest.mark.parametrize("shape", [(1, 1, 1, 40), (1, 2, 1, 1), (1, 1, 17, 1)])
def test_a_number_added_to_all_scores_changes_nothing(dtype: Any, more: float, shape: tuple[int, ...]) -> None:
    q, k, v = qkv(1, 17, 40, 2, 2, 32, dtype)
    bias, g = torch.full(shape, more), r(*q.shape, dtype=dtype)
    ref = gradients(ops.attention, (q, k, v), g)
    for a, b in zip(gradients(lambda *t: ops.attention(*t, bias=bias), (q, k, v), g), ref, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=2e-2, atol=2e-2)


def test_gradient_of_the_lse() -> None:
    q, k, _ = qkv(1, 5, 9, 1, 1, 32, torch.float64)
    got = gradients(lambda q, k: ops.attention(q, k, k, scale=0.1, return_lse=True)[1], (q, k), torch.ones(1, 1, 5))
    ref = gradients(lambda q, k: (q[0, :, 0] @ k[0, :, 0].T * 0.1).logsumexp(1), (q, k), torch.ones(5).double())
    for a, b in zip(got, ref, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_compiled_graphs_and_opcheck() -> None:
    q, k, v = qkv(1, 8, 12)
    compiled = torch.compile(
        lambda q, k, v: ops.attention(q, k, v, causal=True) * 2, fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(q, k, v), ops.attention(q, k, v, causal=True) * 2)
    q.requires_grad_()
    compiled(q, k, v).sum().backward()
    assert q.grad is not None
    mask = torch.rand(1, 12) < 0.5
    args = (k.expand(1, 12, 2, 32), k, v, mask, None, True, -1, -1, 0.1, 0.0)
    torch.library.opcheck(torch.ops.graphene.attention.default, args)
    args = (k.expand(1, 12, 2, 32).contiguous().requires_grad_(), *args[1:])
    torch.library.opcheck(torch.ops.graphene.attention_training.default, args)
    cu = torch.tensor([0, 5, 12]).int()
    args = (r(12, 2, 32).requires_grad_(), r(12, 2, 32), r(12, 2, 32), cu, cu, 7, 7, True, -1, -1, 0.1, 0.0)
    torch.library.opcheck(torch.ops.graphene.attention_varlen_training.default, args)


Q, K, V = r(2, 8, 4, 32), r(2, 9, 2, 32), r(2, 9, 2, 32)
CU = torch.tensor([0, 8]).int()
ERRORS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: ops.attention(Q, K.float(), V), "OP_DTYPE", "attention: argument 'k' has another dtype"),
    (lambda: ops.attention(Q[0], K, V), "OP_SHAPE",
     "attention: argument 'q' has the wrong shape   [OP_SHAPE]\n  want: [batch,seq,heads,dim]\n  got:  [8,4,32]\n"
     "  fix: transpose or unsqueeze it: a transposed tensor is read in place"),
    (lambda: ops.attention(Q, K, V[:, :8]), "OP_SHAPE",
     "attention: argument 'v' has the wrong shape   [OP_SHAPE]\n  want: [2,9,2,32]\n  got:  [2,8,2,32]\n"
     "  fix: batch and dim are q's, keys and heads are the same in k and v"),
    (lambda: ops.attention(Q[:, :, :3], K, V), "OP_SHAPE", "want: kv heads that divide the 3 heads of q"),
    (lambda: ops.attention(Q, K, V, mask=r(2, 9)), "OP_DTYPE",
     "attention: argument 'mask' is not boolean   [OP_DTYPE]\n  want: torch.bool, True for what is seen\n"
     "  got:  torch.float16\n  fix: convert it, or pass what is added to the scores as bias="),
    (lambda: ops.attention(Q, K, V, mask=torch.ones(8, 9).bool()), "OP_SHAPE",
     "attention: argument 'mask' has the wrong shape   [OP_SHAPE]\n"
     "  want: [2,4,8,9], 1 for a dimension that repeats, or [2,9] of keys\n  got:  [8,9]\n"
     "  fix: unsqueeze it to (batch, heads, q_len, k_len); of queries and keys, pass mask[None, None]"),
    (lambda: ops.attention(Q, K, V, mask=torch.ones(1, 8, 9).bool()), "OP_SHAPE",
     "fix: unsqueeze it to (batch, heads, q_len, k_len)"),
    (lambda: ops.attention(Q, K, V, bias=torch.ones(8, 9).bool()), "OP_DTYPE", "fix: pass it as mask="),
    (lambda: ops.attention(Q, K, V, bias=r(9, 9)), "OP_SHAPE", "want: [2,4,8,9], or what broadcasts to it"),
    (lambda: ops.attention(Q, K, V, bias=r(8, 9).requires_grad_()), "OP_ARGUMENT",
     "attention: there is no gradient of the bias   [OP_ARGUMENT]\n  fix: pass bias.detach()"),
    (lambda: ops.attention(Q, K, V, window=3), "OP_ARGUMENT",
     "attention: argument 'window' means nothing   [OP_ARGUMENT]\n  want: (left, right), -1 for no limit\n  got:  3\n"
     "  fix: pass numbers of keys, 0 or more, or -1"),
    (lambda: ops.attention(Q, K, V, window=(-2, 0)), "OP_ARGUMENT", "got:  (-2, 0)"),
    (lambda: ops.attention(Q, K, V, scale=float("nan")), "OP_ARGUMENT", "argument 'scale' is not finite"),
    (lambda: ops.attention(Q, K, V, softcap=-1.0), "OP_ARGUMENT", "argument 'softcap' means nothing"),
    (lambda: ops.attention(Q, K, V, dropout_p=0.1), "OP_ARGUMENT",
     "attention: there is no dropout   [OP_ARGUMENT]\n  got:  dropout_p=0.1\n"
     "  fix: leave it out, or call torch.nn.functional.scaled_dot_product_attention"),
    (lambda: ops.attention(Q, None, V), "OP_ARGUMENT", "attention: argument 'k' is not a torch.Tensor"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU.long(), 8, 9), "OP_DTYPE",
     "attention_varlen: argument 'cu_seqlens_k' has another dtype   [OP_DTYPE]\n  want: torch.int32\n"
     "  got:  torch.int64\n  fix: convert it: .to(torch.int32)"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU[:1], 8, 9), "OP_SHAPE", "argument 'cu_seqlens_k'"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU, -8, 9), "OP_ARGUMENT", "'max_seqlen_q' is negative"),
    (lambda: ops.attention_varlen(Q, K, V, CU, CU, 8, 9), "OP_SHAPE", "want: [total,heads,dim]"),
    (lambda: ops.attention(Q, K, V, scale="x"), "OP_ARGUMENT", "attention: argument 'scale' is not a number"),
    (lambda: ops.attention(Q, K, V, softcap="x"), "OP_ARGUMENT", "attention: argument 'softcap' is not a number"),
    (lambda: ops.attention(Q, K, V, causal="no"), "OP_ARGUMENT",
     "attention: argument 'causal' is not a bool   [OP_ARGUMENT]\n  got:  'no'\n  fix: pass True or False"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU, 8.5, 9), "OP_ARGUMENT", "'max_seqlen_q' is not an integer"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU + torch.tensor([0, 2]).int(), 8, 10), "OP_ARGUMENT",
     "attention_varlen: argument 'cu_seqlens_k' leaves its tensor   [OP_ARGUMENT]\n"
     "  want: places from 0 to 9 that do not decrease\n  got:  [0, 10]\n"
     "  fix: pass 0 and the sums of the lengths so far"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU.flip(0), 8, 9), "OP_ARGUMENT", "got:  [8, 0]"),
    (lambda: ops.attention_varlen(Q[0], K[0], V[0], CU, CU, 7, 9), "OP_ARGUMENT",
     "attention_varlen: argument 'max_seqlen_q' is too small   [OP_ARGUMENT]\n  want: 8 or more\n  got:  7"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), ERRORS, ids=[f"{i}-{e[1]}" for i, e in enumerate(ERRORS)])
def test_errors(call: Callable[[], Any], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        call()
    assert e.value.code == code
    assert text in str(e.value)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("lse", [False, True])
def test_few_queries_by_the_kernel_of_a_hopper_gpu(lse: bool, parts: int, monkeypatch: Any) -> None:
    """Whose blocks share keys in clusters; and if there are parts, clusters do, too."""

    def choose(*args: Any, **named: Any) -> Any:
        config, _ = select_decode(*args, **named)
        return dataclasses.replace(config, cluster=2, split=parts > 1, lse=lse and parts == 1), parts

    monkeypatch.setattr(attention_forward, "target_device", lambda _: of_arch("sm_90a"))
    monkeypatch.setattr(attention_choice, "select_decode", choose)
    q, k, v = qkv(1, 3, 300, 6, 2, 48 + 8 * parts)  # a class that no other call is of
    made = ops.attention(q, k, v, causal=True, return_lse=lse)
    ref = want(q, k, v, causal=True)
    for got, exact in zip(made if lse else [made], ref, strict=False):
        close(got, exact)
    said = ops.explain(ops.attention, q, k, v, causal=True, return_lse=lse)
    assert "attention_decode" in said
    assert ("attention_combine" in said) == (parts > 1)
