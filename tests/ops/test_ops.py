"""graphene.ops on CPU tensors: the simulator, PyTorch's operators, fake tensors, gradients, compiled graphs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import ACTIVATIONS, F, close, ns, quiet, r, simulated, want  # noqa: E402, F401

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops import norms  # noqa: E402
from graphene.ops.matmul import INTO, MATMUL  # noqa: E402

D = torch.float64

# Values


@pytest.mark.parametrize(
    ("a", "b"),
    [(r(20, 40), r(40, 24)), (r(40, 20).T, r(40, 24)), (r(20, 40), r(24, 40).T), (r(40, 20).T, r(24, 40).T),
     (r(5, 7), r(7, 3)), (r(9, 48)[:, 8:], r(40, 24)), (r(9, 49)[:, 1:41], r(40, 24)), (r(20, 40)[::2], r(40, 9)),
     (r(1, 40), r(40, 24)), (r(20, 1), r(1, 24)), (r(20, 40), r(40, 1)), (r(40), r(40, 24)), (r(20, 40), r(40)),
     (r(40), r(40)), (r(2, 3, 20, 16), r(16, 24)), (r(2, 20, 16), r(2, 16, 24)), (r(20, 16), r(2, 16, 24)),
     (r(20, 2, 16).transpose(0, 1), r(2, 16, 8)), (r(2, 20, 16), r(1, 16, 24)),
     (r(2, 5, 16)[:, :, 8:], r(8, 24)), (r(20, 40, dtype=torch.bfloat16), r(40, 24, dtype=torch.bfloat16))],
)  # fmt: skip
def test_matmul_reads_views_as_they_lie(a: Any, b: Any) -> None:
    close(ops.matmul(a, b), want(a, b))
    said = ops.explain(ops.matmul, a, b)
    assert "the simulator runs" in said
    assert "copied" not in said


def test_matmul_of_operands_that_repeat_over_different_dimensions_is_pytorchs() -> None:
    a, b = r(2, 1, 20, 16), r(3, 16, 24)
    close(ops.matmul(a, b), want(a, b))
    assert ops.explain(ops.matmul, a, b) == (
        "matmul: PyTorch's operators (both operands repeat over different batch dimensions)"
    )


@pytest.mark.parametrize("a", [r(20, 80)[:, ::2], r(20, 1).expand(20, 40), r(1, 40).expand(20, 40)])
def test_matmul_copies_what_no_kernel_reads(a: Any) -> None:
    b = r(40, 24)
    close(ops.matmul(a, b), want(a, b))
    assert "a is copied first, row-major" in ops.explain(ops.matmul, a, b)
    heads, keys = r(3, 20, 2, 16).transpose(1, 2), r(3, 2, 16, 8)  # the batch is not one dimension
    close(ops.matmul(heads, keys), want(heads, keys))
    assert "a is copied first, row-major" in ops.explain(ops.matmul, heads, keys)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("k", [8, 300000])  # by the simulator, and not
def test_vectors_with_a_bias_make_a_number(dtype: Any, activation: str | None, k: int) -> None:
    a, b, bias, residual = (r(*n, dtype=dtype) for n in ((k,), (k,), (1,), (1,)))
    a, b, residual = a / 8, b / 8, residual[0]
    ref = ACTIVATIONS[activation](a.double() @ b.double() + bias.double()[0])
    tolerance = {"rtol": 2.0**-10, "atol": 0.02}
    got = ops.matmul(a, b, bias, activation)
    assert got.shape == ()
    torch.testing.assert_close(got.double(), ref, **tolerance)
    torch.testing.assert_close(ops.matmul(a, b, bias, activation, residual).double(), ref + residual, **tolerance)
    out = torch.empty((), dtype=dtype)
    assert ops.matmul(a, b, bias, activation, out=out) is out
    torch.testing.assert_close(out, got)
    assert torch.ops.graphene.matmul_sums_forward(a[:8], b[:8], None).shape == ()
    if k == 8:
        torch.library.opcheck(torch.ops.graphene.matmul_forward.default, (a, b, bias, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_matmul_epilogues(activation: str | None) -> None:
    a, b, bias, residual = r(20, 40), r(40, 24), r(24), r(20, 24)
    assert simulated(ops.matmul, a, b, bias, activation, residual)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    close(ops.matmul(a, b, activation=activation), want(a, b, activation=activation))
    a, b, bias, residual = r(2, 20, 11), r(11, 7), r(7), r(20, 7).expand(2, 20, 7)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))


@pytest.mark.parametrize(
    ("activation", "pad", "split"),
    [("tanh", (True, False), 1), ("silu", (False, True), 1), ("relu", (True, True), 1), ("gelu", (False, False), 3),
     ("sigmoid", (True, True), 2)],
)  # fmt: skip
def test_matmul_with_workspaces(monkeypatch: Any, activation: str, pad: tuple[bool, bool], split: int) -> None:
    """Padded copies of operands, parts of k: what is chosen on a GPU for odd and for deep products."""
    from graphene.kernels.gemm.problem import GemmTile

    tile = GemmTile((32, 32, 32), (2, 2), 2, pad=pad, split_k=split)
    monkeypatch.setattr(sys.modules["graphene.ops.matmul"], "tile_of", lambda problem, where: tile)
    bias, residual = r(19), r(21, 19)
    for a in (r(21, 70), r(70, 21).T):
        for b in (r(70, 19), r(19, 70).T):
            said = ops.explain(ops.matmul, a, b, bias, activation, residual)
            assert said.count("\n  kernel ") == 1 + any(pad) + (split > 1)
            close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    a, b, residual = r(2, 21, 70), r(2, 70, 19), r(2, 21, 19)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    a, residual = r(3, 7, 70), r(3, 7, 19)  # the batch is rows
    close(ops.matmul(a, b[0], bias, activation, residual), want(a, b[0], bias, activation, residual))
    out = torch.empty(21, 19).half()
    close(ops.matmul(a.view(21, 70), b[0], bias, activation, out=out), want(a.view(21, 70), b[0], bias, activation))


def test_matmul_out() -> None:
    a, b = r(20, 40), r(40, 24)
    for out in (torch.empty(20, 24).half(), r(20, 48)[:, 8:32], r(24, 20).T):
        assert ops.matmul(a, b, out=out) is out
        close(out, want(a, b))
    nothing = r(4, 3)
    assert ops.matmul(r(4, 0), r(0, 3), r(3) * 0 + 2, out=nothing) is nothing
    assert (nothing == 2).all()


@pytest.mark.parametrize("turned", [False, True])
def test_fp32_may_be_rounded_to_tf32(turned: bool) -> None:
    a, b = r(20, 40, dtype=torch.float32), r(24, 40, dtype=torch.float32).T
    a, b = (a.T.contiguous().T, b.contiguous()) if turned else (a, b)
    assert ops.explain(ops.matmul, a, b).startswith("matmul: PyTorch's operators (no kernel multiplies float32 at full")
    assert "kernel gemm_sm80" in ops.explain(ops.matmul, a, b, allow_tf32=True)

    def rounded(x: Any) -> Any:  # to 10 bits
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).to(D)

    out = torch.empty(20, 24)
    got = ops.matmul(a, b, None, "relu", allow_tf32=True)
    assert torch.equal(ops.matmul(a, b, None, "relu", out=out, allow_tf32=True), got)
    want_ = (rounded(a.contiguous()) @ rounded(b.contiguous())).clamp(min=0)
    torch.testing.assert_close(got.to(D), want_, atol=2e-5, rtol=1e-5)
    assert not torch.equal(got, ops.matmul(a, b, None, "relu"))
    a, b = a.requires_grad_(), b.requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(ops.matmul(a, b, None, "relu", allow_tf32=True).sum(), (a, b)),
        torch.autograd.grad(torch.matmul(a, b).relu().sum(), (a, b)), atol=0.03, rtol=0.01,
    )  # fmt: skip


def test_without_elements() -> None:
    for sa, sb in (((0, 8), (8, 4)), ((4, 8), (8, 0)), ((0, 4, 8), (8, 4)), ((3, 0), (0, 4)), ((2, 3, 0), (0, 4))):
        got = ops.matmul(r(*sa), r(*sb), r(sb[-1]), "relu")
        assert got.shape == (r(*sa) @ r(*sb)).shape
    bias = r(4)
    assert torch.equal(ops.matmul(r(3, 0), r(0, 4), bias), bias.expand(3, 4))
    assert ops.layer_norm(r(0, 8), 8).shape == (0, 8)
    assert ops.rms_norm(r(3, 0, 8), (8,)).shape == (3, 0, 8)
    assert ops.softmax(r(0, 8), -1).shape == (0, 8)
    assert ops.softmax(r(3, 0), -1).shape == (3, 0)


@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 40), (3, 33), (4, 1), (1, 520)])
def test_norms(shape: tuple[int, ...]) -> None:
    x, e, w, b = r(*shape), r(*shape), r(shape[-1]), r(shape[-1])
    n, s = shape[-1:], x.double() + e.double()
    near = {"rtol": 2e-3, "atol": 2e-3}
    for weight, bias in ((w, b), (w, None), (None, None)):
        dw, db = (t if t is None else t.double() for t in (weight, bias))
        got = ops.layer_norm(x, n, weight, bias)
        torch.testing.assert_close(got.double(), F.layer_norm(x.double(), n, dw, db), **near)
        y, total = ops.layer_norm(x, n, weight, bias, residual=e, return_sum=True)
        torch.testing.assert_close(y.double(), F.layer_norm(s, n, dw, db), **near)
        torch.testing.assert_close(total, x + e)
    y, total = ops.rms_norm(x, n, w, residual=e, return_sum=True)
    torch.testing.assert_close(y.double(), F.rms_norm(s, n, w.double(), 2.0**-23), **near)
    torch.testing.assert_close(ops.rms_norm(x, n, w, 0.5).double(), F.rms_norm(x.double(), n, w.double(), 0.5), **near)
    assert ops.layer_norm(x, n, return_sum=True)[1] is x


def test_norms_of_views() -> None:
    x, w = r(6, 128), r(64)
    for v in (x[:, :64], x[1::2, 64:], r(64, 6).T, r(2, 3, 64).transpose(0, 1), x[:, ::2]):
        torch.testing.assert_close(ops.layer_norm(v, 64, w, w), F.layer_norm(v, (64,), w, w), rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(ops.softmax(v, -1), torch.softmax(v, -1), rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(ops.softmax(v, 0), torch.softmax(v, 0), rtol=2e-3, atol=1e-4)
    two, w2 = r(3, 4, 16), r(4, 16)
    got = ops.layer_norm(two, (4, 16), w2, w2)
    torch.testing.assert_close(got, F.layer_norm(two, (4, 16), w2, w2), rtol=2e-3, atol=2e-3)
    assert ops.softmax(x, -1, torch.float32).dtype == torch.float32
    torch.testing.assert_close(ops.softmax(torch.arange(6), 0, torch.float32), torch.softmax(torch.arange(6.0), 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [-1, 0])
def test_softmax_of_masked_rows(dtype: Any, dim: int) -> None:
    """Of masks as models write them: the least number, for a whole row where all is padding."""
    x = r(6, 16, dtype=dtype) + torch.full((6, 16), torch.finfo(dtype).min, dtype=dtype).triu(0)
    x[3], x[4] = -1e10, torch.finfo(dtype).max
    x, w = x.T.contiguous() if dim == 0 else x, r(16, 6) if dim == 0 else r(6, 16)
    x.requires_grad_()
    y, want = ops.softmax(x, dim), torch.softmax(x, dim)
    torch.testing.assert_close(y, want)
    for got, ref in zip(*(torch.autograd.grad((z.float() * w).sum(), x) for z in (y, want)), strict=True):
        torch.testing.assert_close(got, ref, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_softmax_over_any_dimension_without_a_copy(dtype: Any) -> None:
    x = r(6, 10, 24, dtype=dtype)
    cases = [
        (x, 0), (x, 1), (x, 2), (x[:, 2:7], 1), (x[:, 2:7, :], 0), (x[1:2], 1), (x[..., 3:20], 1),
        (r(9, dtype=dtype), 0),
        (r(5, 7, dtype=dtype), 0), (r(4, 1, 9, dtype=dtype), 0), (r(2, 3, 4, 5, dtype=dtype), 2), (x[::2, ::3], 1),
        (r(2, 3, 4, 5, dtype=dtype), 1), (r(1, 10, 24, dtype=dtype).expand(6, 10, 24), 1), (r(7, 1, dtype=dtype), 0),
        (r(3, 300, 2, dtype=dtype), 1), (x[:, ::3], 1), (r(8, 1, 3, dtype=dtype), 1),
    ]  # fmt: skip
    for t, dim in cases:
        for to in (None, torch.float32, torch.float16):
            got = ops.softmax(t, dim, to)
            ref = torch.softmax(t.to(to or dtype).double(), dim)
            assert got.dtype == (to or dtype)
            torch.testing.assert_close(got.double(), ref, rtol=2e-3, atol=1e-4)
            said = ops.explain(ops.softmax, t, dim, to)
            assert "the simulator runs" in said
            assert "copied" not in said
    for t, dim in ((x[:, :5], 2), (x.transpose(0, 2), 1), (x[:, :, ::2], 1), (x.transpose(1, 2), 0), (x[..., 5:6], 1)):
        torch.testing.assert_close(ops.softmax(t, dim).double(), torch.softmax(t.double(), dim), rtol=2e-3, atol=1e-4)
        assert "input is copied first" in ops.explain(ops.softmax, t, dim)
    special = torch.tensor([[0, -torch.inf, 1, torch.nan], [-torch.inf, -torch.inf, torch.inf, 1]])
    torch.testing.assert_close(ops.softmax(special.to(dtype), 0).float(), torch.softmax(special, 0), equal_nan=True)
    many = r(65536, 1, 2, dtype=dtype)
    assert "that many matrices" in ops.explain(ops.softmax, many, 1)
    assert (ops.softmax(many, 1) == 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_as_wide_as_shared_memory(dtype: Any) -> None:
    """The kernel that is chosen for CPU tensors fits what the simulator lowers for."""
    limit = 163 * 1024 // r(1, dtype=dtype).element_size()
    for width, terms in ((limit // 2 - 300, 2), (limit // 2 + 9, 2), (limit - 600, 1), (limit - 8, 1)):
        x, e = r(1, width, dtype=dtype), r(1, width, dtype=dtype) if terms == 2 else None
        total = x.double() if e is None else x.double() + e.double()
        assert simulated(ops.rms_norm, x, (width,), residual=e)
        y = ops.rms_norm(x, (width,), residual=e)
        torch.testing.assert_close(y.double(), F.rms_norm(total, (width,)), rtol=2e-3, atol=2e-3)


# Autocast


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_autocast_converts_as_for_pytorchs_functions(to: Any) -> None:
    h, f, d = torch.float16, torch.float32, torch.float64
    a, b, x, w = r(8, 16), r(16, 24, dtype=f), r(8, 16, dtype=to), r(16, dtype=f)
    with torch.autocast("cpu", dtype=to):
        for p, q in ((a, a.T), (a.float(), b), (a, b), (a.bfloat16(), b)):
            got = ops.matmul(p, q, activation="relu")
            assert got.dtype == torch.matmul(p, q).dtype == to
            close(got, want(p.to(to), q.to(to), activation="relu"))
        assert ops.matmul(a, b, r(24, dtype=f), residual=r(8, 24, dtype=h)).dtype == to
        assert ops.matmul(a.to(d), b.to(d)).dtype == d  # fp64 is left alone
        with pytest.raises(gr.LaunchError):
            ops.matmul(a.to(d), b)
        out = torch.empty(8, 24)
        assert ops.matmul(a.float(), b, out=out) is out  # and so is everything where there is an out
        torch.testing.assert_close(out.double(), want(a, b), rtol=1e-5, atol=1e-5)
        # What PyTorch does on a GPU, in fp32; on a CPU it leaves these as they are.
        q = r(1, 4, 2, 8, dtype=f)
        assert ops.attention(q, q.to(to), q.half()).dtype == to
        y, s = ops.layer_norm(x, 16, w, w, residual=x, return_sum=True)
        assert (y.dtype, s.dtype, ops.rms_norm(x, 16, w).dtype, ops.softmax(x, 0).dtype) == (f, f, f, f)
        torch.testing.assert_close(y, F.layer_norm(2 * x.float(), (16,), w, w), rtol=1e-4, atol=1e-4)
        for y, s in (ops.layer_norm(x, 16, return_sum=True), ops.rms_norm(x, 16, return_sum=True)):
            assert (y.dtype, s.dtype) == (f, f)  # one dtype, with a residual or without
            assert torch.equal(s, x.float())
        y, s = ops.layer_norm(x.double(), 16, return_sum=True)
        assert (y.dtype, s.dtype) == (d, d)
        torch.testing.assert_close(ops.softmax(x, -1), torch.softmax(x.float(), -1), rtol=1e-4, atol=1e-5)
        assert ops.softmax(x, -1, h).dtype == h
        assert ops.softmax(x.double(), -1).dtype == d
        leaf = x.float().requires_grad_()
        ops.layer_norm(ops.matmul(leaf, b, activation="silu"), 24).sum().backward()  # as if it were called outside
        assert leaf.grad.dtype == f
        large = r(80, 80, dtype=f, grad=True)
        with torch.autocast("cpu", enabled=False):
            y = ops.matmul(large, large.detach(), activation="tanh")
        (got,) = torch.autograd.grad(y, large, r(80, 80, dtype=f) * 0 + 1)
        (ref,) = torch.autograd.grad(torch.tanh(large.double() @ large.detach().double()).sum(), large)
        torch.testing.assert_close(got, ref, rtol=1e-3, atol=1e-4)
    with pytest.raises(gr.LaunchError):
        ops.layer_norm(x, 16, w, w)


# What it says


def test_explain_and_warn() -> None:
    assert ops.explain(ops.matmul, r(20, 32), r(24, 32).T, r(24)) == (
        "matmul: the simulator runs\n  kernel gemm_sm80\n    a as [20,32:32,1]\n    b as [32,24:1,32]\n"
        "    bias as [24:1]\n    result 0 as [20,24:24,1]"
    )
    assert ops.explain(ops.matmul, r(4, 4, dtype=torch.float32), r(4, 4, dtype=torch.float32)) == (
        "matmul: PyTorch's operators (no kernel multiplies float32 at full precision)"
    )
    assert ops.explain(ops.matmul, r(200, 300), r(300, 200)).startswith(
        "matmul: PyTorch's operators (too large for the simulator); on a GPU:\n  kernel gemm_sm80"
    )
    code = "import torch, graphene.ops as o; x = torch.ones(8, 8).half(); o.matmul(x, x); o.matmul(x, x)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("CpuWarning: graphene.ops.matmul on CPU tensors: run by the simulator") == 1


def test_explain_says_what_a_call_becomes() -> None:
    """The operator with the gradient, types as autocast converts them; nothing is run, and nothing stays behind."""
    q = r(1, 20, 2, 16)
    assert ops.explain(ops.attention, q, q, q).startswith("attention: the simulator runs")
    wanting = q.clone().requires_grad_()
    assert ops.explain(ops.attention, wanting, q, q).startswith("attention_training: the simulator runs")
    x, w = r(8, 16, dtype=torch.float32), r(16, 8, dtype=torch.float32)
    assert "no kernel multiplies float32" in ops.explain(ops.matmul, x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "the simulator runs" in ops.explain(ops.matmul, x, w)
    out = torch.full((8, 8), 7.0).half()
    said = ops.explain(ops.matmul, x.half(), w.half(), out=out)
    assert said.startswith("matmul_out: the simulator runs")
    assert out.eq(7).all()
    for _ in range(2):
        with pytest.raises(gr.LaunchError, match="OP_SHAPE"):
            ops.explain(ops.matmul, x, x)
        close(ops.matmul(x.half(), w.half()), want(x.half(), w.half()))


# PyTorch's machinery


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    g = {"grad": grad}
    torch.library.opcheck(ns.matmul.default, (r(8, 16, **g), r(16, 24, **g), r(24, **g), "gelu", r(8, 24, **g)))
    torch.library.opcheck(ns.matmul.default, (r(2, 8, 16, **g), r(16, 24, **g)))
    torch.library.opcheck(ns.layer_norm.default, (r(8, 16, **g), [16], r(16, **g), r(16, **g)))
    torch.library.opcheck(ns.add_layer_norm.default, (r(8, 16, **g), [16], r(8, 16, **g), r(16, **g), r(16, **g)))
    torch.library.opcheck(ns.rms_norm.default, (r(8, 16, **g), [16], r(16, **g), 1e-6))
    torch.library.opcheck(ns.add_rms_norm.default, (r(8, 16, **g), [16], r(8, 16, **g), r(16, **g), 1e-6))
    torch.library.opcheck(ns.softmax.default, (r(8, 16, **g), -1), {"dtype": torch.float32})
    if grad:
        return
    x, e, w = r(8, 16), r(8, 16), r(16)
    for of in (ns.matmul_forward, ns.matmul_reference):
        torch.library.opcheck(of.default, (r(8, 16), r(16, 24)))
        torch.library.opcheck(of.default, (r(2, 8, 16), r(2, 16, 24), r(24), "silu", r(2, 8, 24)))
    for of in (ns.matmul_out, ns.matmul_out_forward):
        torch.library.opcheck(of.default, (r(8, 16), r(16, 24), None, None, None, r(8, 24)))
        torch.library.opcheck(of.default, (r(3, 4), r(4), None, "relu", r(3), r(3)))
    for of in (ns.matmul_sums, ns.matmul_sums_forward):
        torch.library.opcheck(of.default, (r(8, 16), r(16, 24), r(24, dtype=torch.float32)))
        torch.library.opcheck(of.default, (r(2, 8, 16, dtype=D), r(16, 24, dtype=D)))
    torch.library.opcheck(ns.layer_norm_forward.default, (x, [16], w, w, 1e-5, e))
    torch.library.opcheck(ns.add_layer_norm_forward.default, (x, [8, 16], e))
    torch.library.opcheck(ns.rms_norm_forward.default, (x, [16], None, 1e-5, e))
    torch.library.opcheck(ns.add_rms_norm_forward.default, (x.T, [8], e.T, None, 1e-6))
    for of in (ns.layer_norm_backward, ns.layer_norm_backward_forward, ns.rms_norm_backward_forward):
        torch.library.opcheck(of.default, (x, e, x, [16], w, e, 1e-5, True))
        torch.library.opcheck(of.default, (x, None, x, [8, 16], None, None, 1e-5, False))
    torch.library.opcheck(ns.softmax_forward.default, (r(2, 8, 16), 1))


def model(x: Any, w: Any, bias: Any, g: Any) -> Any:
    h = ops.matmul(x, w.T, bias, "gelu")
    y, s = ops.layer_norm(h, g.shape, g, g, residual=x, return_sum=True)
    return ops.softmax(y, -1) + ops.rms_norm(s, g.shape, g)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_breaks(backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (8, 12):
        args = [r(rows, 16, grad=True), r(16, 16, grad=True), r(16, grad=True), r(16, grad=True)]
        got, ref = compiled(*args), model(*args)
        assert torch.equal(got, ref)
        up = torch.ones_like(ref)
        for p, q in zip(torch.autograd.grad(got, args, up), torch.autograd.grad(ref, args, up), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-2)
        with torch.no_grad():
            assert torch.equal(compiled(*args), ref)


def test_graphs_without_gradients_hold_the_lean_operator() -> None:
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph

    a, b = r(8, 16), r(16, 24)
    torch.compile(lambda a, b: ops.matmul(a, b), backend=backend, fullgraph=True)(a, b)
    assert "graphene.matmul_forward" in graphs[0]
    out = torch.empty(8, 24).half()
    compiled = torch.compile(lambda a, b, out: ops.matmul(a, b, out=out), backend="aot_eager", fullgraph=True)
    assert compiled(a, b, out) is out
    close(out, want(a, b))


def test_kernels_registered_through_python() -> None:
    """What a PyTorch without the C interface gets: the same kernels."""
    a, b, bias = r(20, 40), r(40, 24), r(24)
    close(MATMUL.on_cuda(a, b, bias, "relu"), want(a, b, bias, "relu"))
    x = r(20, 80)[:, ::2]
    close(MATMUL.on_cuda(x, b), want(x, b))
    wide = r(8, 8, dtype=torch.float32)
    assert torch.equal(MATMUL.on_cuda(wide, wide), wide @ wide)
    out = torch.empty(20, 24).half()
    assert INTO.on_cuda(a, b, None, None, None, out) is None
    close(out, want(a, b))


def test_what_must_see_operators_is_noticed() -> None:
    """By PyTorch's own functions, without Python: a version that lacks one is asked in Python instead."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode

    from graphene import _core

    def state() -> tuple[bool, bool]:
        now = _core.torch_state()
        return now.watched, now.gradients

    assert _core.torch_state() == _core.TorchState(without_python=True, watched=False, gradients=True)
    with torch.no_grad():
        assert state() == (False, False)
    with torch.inference_mode():
        assert state() == (False, False)
    with FakeTensorMode():
        assert state() == (True, True)
    with TorchFunctionMode():
        assert state() == (True, True)
    with torch.device("cpu"):  # a function mode that says where new tensors go: nothing to us
        assert state() == (False, True)
        with TorchFunctionMode():
            assert state() == (True, True)
    with forward_ad.dual_level():
        assert state() == (True, True)
    with torch.autocast("cpu"):
        assert state() == (False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no GPU here
        torch.set_autocast_enabled("cuda", True)
        assert state() == (True, True)
        torch.set_autocast_enabled("cuda", False)
    seen: list[tuple[bool, bool]] = []

    def traced(x: Any) -> Any:
        seen.append(state())
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(traced, r(3), check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(traced)(r(3))
    assert seen == [(True, True), (True, True)]
    assert state() == (False, True)


def test_fake_meta_and_transformed_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = ops.matmul(torch.empty(3, 8, 16, dtype=torch.half), torch.empty(16, 24, dtype=torch.half))
        assert (y.shape, y.dtype, y.stride()) == ((3, 8, 24), torch.half, (192, 24, 1))
        with pytest.raises(gr.LaunchError):
            ops.matmul(torch.empty(8, 16), torch.empty(15, 24))
    meta = ops.layer_norm(torch.empty(3, 8, device="meta"), 8)
    assert meta.is_meta
    assert meta.shape == (3, 8)
    a, b = r(3, 8, 16), r(16, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap says that it loops
        close(torch.vmap(lambda x: ops.matmul(x, b))(a), want(a, b))
    got = torch.func.grad(lambda x: ops.matmul(x, b, None, "silu").float().sum())(a)
    x = a.detach().requires_grad_()
    ops.matmul(x, b, None, "silu").float().sum().backward()
    assert torch.equal(got, x.grad)
    from torch.autograd import forward_ad

    with forward_ad.dual_level(), pytest.raises(gr.LaunchError, match="there is no forward-mode derivative"):
        ops.softmax(forward_ad.make_dual(r(8, 16), r(8, 16)), -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.matmul(r(8, 16, dtype=torch.float32), r(16, 24)).dtype == torch.bfloat16

    class Sub(torch.Tensor):
        pass

    assert isinstance(ops.matmul(r(8, 16).as_subclass(Sub), b), Sub)


@pytest.mark.parametrize(("name", "core"), [("layer_norm", "LAYER"), ("rms_norm", "RMS")])
def test_a_norm_enters_no_other_python_function(name: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its core, which is written in C++, and for which a function of C stands here."""
    monkeypatch.setattr(norms, core, SimpleNamespace(core="".format))
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        getattr(ops, name)(None, (4,), eps=1e-5)
    finally:
        sys.setprofile(None)
    assert [n for n in entered if n != "is_dynamo_compiling"] == [name]
