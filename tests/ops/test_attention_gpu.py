"""graphene.ops.attention on a GPU: values at full size, gradients, captured and compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphene import ops  # noqa: E402
from graphene.ops.attention import backward as attention_gradients  # noqa: E402
from graphene.ops.attention import reference as plain  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.gpu


def r(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def near(got: Any, want: Any) -> None:
    """No element is off by more than rounding, relative to the largest."""
    assert got.isfinite().all()
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-16}[got.dtype]
    assert (got.double() - want).abs().max() <= 4 * ulp * (1 + want.abs().max())


def check(q: Any, k: Any, v: Any, gradients: bool = True, **named: Any) -> None:
    bias = named.get("bias")
    numbers = (named.get("causal", False), *named.get("window", (-1, -1)), named.get("scale", q.shape[-1] ** -0.5),
               named.get("softcap", 0.0))  # fmt: skip
    wide = [t.detach().double() for t in (q, k, v)]
    rest = (named.get("mask"), None if bias is None else bias.double(), *numbers)
    out, lse, _ = plain.Problem(*wide, *rest[:2], rest[2:]).forward()
    out = out.transpose(1, 2)
    near(ops.attention(q, k, v, **named), out)
    if not gradients:
        return
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    got, got_lse = ops.attention(*inputs, return_lse=True, **named)
    near(got.detach(), out)
    seen = lse.isfinite()
    assert torch.equal(got_lse.isfinite(), seen)
    near(got_lse.detach()[seen], lse[seen])
    g = torch.randn_like(got)
    want = plain.backward(g.double(), *wide, *rest[:2], None, *numbers)
    made = torch.autograd.grad(got, inputs, g, retain_graph=True)
    for a, b in zip(made, want, strict=True):
        near(a, b)
    for a, b in zip(made, torch.autograd.grad(got, inputs, g), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [32, 40, 48, 64, 80, 96, 128, 192, 256])
def test_head_sizes(d: int, dtype: Any) -> None:
    check(r(2, 300, 4, d, dtype=dtype), r(2, 333, 2, d, dtype=dtype), r(2, 333, 2, d, dtype=dtype))
    check(r(1, 300, 2, d, dtype=dtype), r(1, 333, 2, d, dtype=dtype), r(1, 333, 2, d, dtype=dtype), causal=True)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_gradients_without_a_work_space(monkeypatch: Any, d: int) -> None:
    """Of heads too short or too many for one; of some of the heads at a time."""
    check(r(2, 33, 4, d), r(2, 40, 2, d), r(2, 40, 2, d), causal=True)
    for heads in (0, 3):
        monkeypatch.setenv("GRAPHENE_PLANS", "0")  # a plan knows nothing of this
        monkeypatch.setattr(attention_gradients, "SAVED_BYTES", heads * 2 * 384 * 384 * 2)
        monkeypatch.setattr(attention_gradients, "WAVES", 0)
        check(r(2, 290 + heads, 4, d), r(2, 350, 2, d), r(2, 350, 2, d), causal=True)


@pytest.mark.parametrize(
    "named",
    [{"window": (70, 5)}, {"causal": True, "window": (100, -1)}, {"softcap": 2.0}, {"scale": -0.1, "causal": True}],
    ids=str,
)
def test_masks_by_place(named: dict[str, Any]) -> None:
    for sq, sk in ((300, 520), (520, 300)):
        check(r(2, sq, 4, 64), r(2, sk, 2, 64), r(2, sk, 2, 64), **named)


def test_masks_by_data() -> None:
    q, k, v = r(3, 260, 4, 64), r(3, 500, 4, 64), r(3, 500, 4, 64)
    lengths = torch.tensor([500, 0, 77], device="cuda")
    padding = torch.arange(500, device="cuda")[None] < lengths[:, None]
    check(q, k, v, mask=padding)
    check(q, k, v, mask=padding, causal=True)
    check(q, k, v, mask=torch.rand(3, 1, 260, 500, device="cuda") < 0.5, bias=r(4, 260, 500))
    check(q, k, v, bias=r(1, 1, 260, 1))


@pytest.mark.parametrize(("sq", "h", "hk", "d"), [(1, 32, 8, 128), (7, 14, 2, 64), (16, 4, 4, 80), (2, 8, 1, 256)])
def test_short_queries(sq: int, h: int, hk: int, d: int) -> None:
    for sk in (40, 4096):
        q, k, v = r(2, sq, h, d), r(2, sk, hk, d), r(2, sk, hk, d)
        check(q, k, v, gradients=False, causal=True)
        check(q, k, v, gradients=False, mask=torch.rand(2, sk, device="cuda") < 0.5)


@pytest.mark.parametrize(("b", "sq", "sk"), [(1, 1, 4096), (1, 5, 70000), (64, 2, 300), (1, 300, 500)])
def test_rows_of_one_huge_bias(b: int, sq: int, sk: int) -> None:
    """Beside which no score has digits: the mean of what a mask leaves, by clusters, by parts, and in gradients."""
    q, k, v = r(b, sq, 8, 64), r(b, sk, 2, 64), r(b, sk, 2, 64)
    bias = torch.full((1, 1, 1, sk), -1e9, device="cuda")
    mask = torch.arange(sk, device="cuda")[None].expand(b, sk) % 3 == 0
    mean = v[:, ::3].double().mean(1, keepdim=True).repeat_interleave(4, 2).expand(q.shape)
    near(ops.attention(q, k, v, bias=bias, mask=mask), mean)
    if b * sk < 1e5:
        v.requires_grad_()
        g = r(*q.shape)
        ops.attention(q, k, v, bias=bias, mask=mask).backward(g)
        want = g.double().view(b, sq, 2, 4, 64).sum((1, 3))[:, None] / mask[0].sum()
        near(v.grad[:, ::3], want.expand(b, -(-sk // 3), 2, 64))
        assert not v.grad[:, 1::3].any()


@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_where_probabilities_are_near_one(dim: int) -> None:
    """With scores near 200 they are as accurate as those of PyTorch's flash attention."""
    q, k, v, g = (r(2, 512, 4, dim) for _ in range(4))
    scale = 60 * dim**-0.5
    exact = plain.backward(*(t.double() for t in (g, q, k, v)), None, None, None, False, -1, -1, scale, 0.0)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    got = torch.autograd.grad(ops.attention(*inputs, scale=scale), inputs, g)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        peer = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in inputs), scale=scale)
        theirs = torch.autograd.grad(peer, inputs, g.transpose(1, 2))
    for a, b, c in zip(got, theirs, exact, strict=True):
        assert (a.double() - c).norm() <= 1.1 * (b.double() - c).norm()


@pytest.mark.parametrize("page", [16, 48, 256])
@pytest.mark.parametrize(("sq", "h", "hk", "d"), [(1, 32, 8, 128), (7, 14, 2, 64), (100, 4, 4, 80), (2, 8, 1, 256)])
def test_pages(sq: int, h: int, hk: int, d: int, page: int) -> None:
    """Behind a sequence's keys there is no number, and behind its pages no page."""
    lengths = torch.tensor([5000, 0, 3, 64 * page], dtype=torch.int32)
    most = -(-int(lengths.max()) // page)
    k, v = (r(4 * most + 1, page, hk, d) for _ in range(2))
    table = torch.randperm(4 * most + 1)[: 4 * most].view(4, most).int()
    for row, n in zip(table, lengths.tolist(), strict=True):
        row[-(-n // page) :] = -1
        if n % page:
            k[row[n // page], n % page :] = v[row[n // page], n % page :] = torch.nan
    args = (r(4, sq, h, d), k, v, table.cuda(), lengths.cuda())
    for causal in (False, True):
        out, lse = ops.attention_paged(*args, causal=causal, return_lse=True)
        of_torch = torch.ops.graphene.attention_paged_lse_reference(*args, causal, -1, -1, None, 0.0)
        near(out, of_torch[0].double())
        assert torch.equal(lse.isfinite(), of_torch[1].isfinite())
        near(lse[lse.isfinite()], of_torch[1][lse.isfinite()].double())
        assert torch.equal(ops.attention_paged(*args, causal=causal), out)


def test_packed_sequences() -> None:
    lengths = [300, 0, 1, 129, 40]
    starts = torch.tensor([7, *lengths], device="cuda").cumsum(0).int()
    q, k, v = (r(7 + 470 + 1000, h, 64).requires_grad_() for h in (4, 2, 2))
    rubbish = [torch.full_like(t, torch.nan) for t in (q, q, k, v)]
    del rubbish  # what results are made of
    out = ops.attention_varlen(q, k, v, starts, starts, 300, 300, causal=True)
    made = torch.autograd.grad(out, (q, k, v), g := torch.randn_like(out))
    at = 7
    for t in (out, *made):
        assert not torch.cat([t[:at], t[at + 470 :]]).any()
    for n in lengths:
        part = slice(at, at + n)
        alone = [t.detach()[None, part].requires_grad_() for t in (q, k, v)]
        one = ops.attention(*alone, causal=True)
        torch.testing.assert_close(out[None, part], one, rtol=2e-3, atol=2e-3)
        for a, b in zip(made, torch.autograd.grad(one, alone, g[None, part]), strict=True):
            torch.testing.assert_close(a[None, part], b, rtol=4e-3, atol=4e-3)
        at += n


def test_views_and_graphs() -> None:
    q, k, v = r(2, 260, 3, 4, 64).unbind(2)
    check(q, k, v)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    want = ops.attention(q, k, v)
    assert torch.equal(ops.attention(*heads_first), want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.attention(q, k, v)
    graph.replay()
    assert torch.equal(out, want)
    for scale in (None, 0.125, -0.0):
        args = (q, k, v, None, None, False, -1, -1, scale, 0.0)
        assert torch.equal(torch.ops.graphene.attention_forward(*args), ops.attention(q, k, v, scale=scale))
    compiled = torch.compile(lambda q, k, v: ops.attention(q, k, v, causal=True) * 2, fullgraph=True)
    assert torch.equal(compiled(q, k, v), ops.attention(q, k, v, causal=True) * 2)
