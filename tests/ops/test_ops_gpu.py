"""graphene.ops on a GPU: values of every layout, the launch without Python, compiled graphs, captured graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from norm_gradients import norm_gradients_agree  # noqa: E402

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops.matmul import MATMUL  # noqa: E402

pytestmark = pytest.mark.gpu
ns = torch.ops.graphene
F = torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
}  # fmt: skip


def r(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype).requires_grad_(grad)


def want(a: Any, b: Any, bias: Any = None, activation: str | None = None, residual: Any = None) -> Any:
    z = a.double() @ b.double()
    z = z if bias is None else z + bias.double()
    z = ACTIVATIONS[activation](z)
    return z if residual is None else z + residual.double()


def close(got: Any, ref: Any, k: int = 1) -> None:
    """Rounded once: half an ulp, and what fp32 sums over k may be off.

    A matrix instruction adds 16 products to a sum and truncates: up to an ulp of a sum of some 4 sqrt(k) every time.
    """
    sums = 1e-5 * max(k, 1) ** 0.5 + k / 16 * 2.0**-23 * 4 * k**0.5
    assert got.shape == ref.shape
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23}[got.dtype]
    error = (got.double() - ref.double()).abs()
    assert (error <= 0.51 * ulp * ref.abs() + sums + 1e-6).all(), error.max().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 64), (256, 384, 512), (33, 65, 129), (1, 8, 72), (130, 1, 1), (77, 88, 264)]
)
def test_matmul_orders_and_sizes(dtype: Any, ta: bool, tb: bool, m: int, n: int, k: int) -> None:
    a = r(k, m, dtype=dtype).T if ta else r(m, k, dtype=dtype)
    b = r(n, k, dtype=dtype).T if tb else r(k, n, dtype=dtype)
    close(ops.matmul(a, b), want(a, b), k)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n", [64, 51])
def test_matmul_epilogues(activation: str | None, n: int) -> None:
    a, b, bias, residual = r(96, 128), r(128, n), r(n), r(96, n)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual), 128)
    close(ops.matmul(a, b, bias, activation), want(a, b, bias, activation), 128)
    close(ops.matmul(a, b, None, activation, residual), want(a, b, None, activation, residual), 128)


@pytest.mark.parametrize(
    ("sa", "sb"),
    [((3, 40, 64), (64, 48)), ((3, 40, 64), (3, 64, 48)), ((2, 3, 40, 64), (64, 48)), ((2, 3, 40, 64), (2, 3, 64, 48)),
     ((40, 64), (5, 64, 48)), ((2, 3, 40, 64), (3, 64, 48)), ((4, 1, 40, 64), (1, 5, 64, 48)), ((64,), (64, 48)),
     ((40, 64), (64,)), ((64,), (64,)), ((3, 40, 64), (64,)), ((64,), (3, 64, 48)), ((1, 40, 64), (3, 64, 48))],
)  # fmt: skip
def test_matmul_batches_and_vectors(sa: tuple[int, ...], sb: tuple[int, ...]) -> None:
    a, b = r(*sa), r(*sb)
    close(ops.matmul(a, b), want(a, b), 64)
    if len(sb) > 1:
        bias, residual = r(sb[-1]), r(*torch.matmul(a, b).shape)
        close(ops.matmul(a, b, bias, "relu", residual), want(a, b, bias, "relu", residual), 64)


def test_matmul_views_are_read_as_they_lie() -> None:
    big = r(200, 300)
    qkv = r(4, 10, 3, 8, 16)
    q, k = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
    views = [
        (big[:64, :128], r(128, 40)), (big[3:67, 5:133], r(128, 40)), (big[::2, :64], r(64, 40)),
        (big[:64, :128], big[:128, 8:48]), (r(3, 64, 128)[:, :, 64:], r(64, 40)),
        (r(64, 3, 128).transpose(0, 1), r(3, 128, 40)),
    ]  # fmt: skip
    for a, b in views:
        close(ops.matmul(a, b), want(a, b), 128)
        assert "copied" not in ops.explain(ops.matmul, a, b)
    close(ops.matmul(q, k.mT), want(q, k.mT), 16)
    for a in (big[:64, :256:2], r(64, 1).expand(64, 128), r(1, 128).expand(64, 128)):
        b = r(128, 40)
        close(ops.matmul(a, b), want(a, b), 150)
        assert "a is copied first" in ops.explain(ops.matmul, a, b)
    a, b, row = r(64, 128), r(128, 40), r(40)
    close(ops.matmul(a, b, residual=row.expand(64, 40)), want(a, b, residual=row.expand(64, 40)), 128)


def test_the_gradient_of_matmul_is_multiplied_by_matmul_on_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the products of a gradient are PyTorch's")
    a, b = r(256, 128, grad=True), r(128, 64, grad=True)
    g = r(256, 64)
    y = ops.matmul(a, b)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        y.backward(g)
    assert sum(e.name == "graphene::matmul_forward" for e in seen.events()) == 2
    close(a.grad, g.double() @ b.double().T, 64)
    close(b.grad, a.double().T @ g.double(), 256)


def test_matmul_out() -> None:
    a, b = r(64, 128), r(128, 40)
    for out in (torch.empty(64, 40, device="cuda", dtype=torch.half), r(64, 80)[:, 3:43], r(40, 64).T):
        assert ops.matmul(a, b, out=out) is out
        close(out, want(a, b), 128)
    for dtype in (torch.float16, torch.float32):  # our kernels, and PyTorch's
        x, y, flat = a.to(dtype).clone(), b.to(dtype), r(64 * 40, dtype=dtype)
        for bad in (x[:, :40], flat[:40].expand(64, 40), flat.as_strided((64, 40), (39, 1))):
            for _ in range(2):
                with pytest.raises(gr.LaunchError) as e:
                    ops.matmul(x, y, out=bad)
                assert e.value.code == "OP_OUT"
        both = torch.cat([x, x], 1)
        ops.matmul(both[:, :128], y, out=both[:, 130:170])
        close(both[:, 130:170], want(x, y), 128)
    leaf, kept = r(8, 64, grad=True), r(64, 40)
    y = ops.matmul(leaf, kept)
    ops.matmul(a, b, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    other = r(64, 40)
    ops.matmul(a, b, out=other)
    shared = r(64 * 128 + 64 * 40)
    x, y = shared[: 64 * 128].view(64, 128), shared[64 * 128 - 8 : 64 * 128 - 8 + 64 * 40].view(64, 40)
    with pytest.raises(gr.LaunchError):
        ops.matmul(x, b, out=y)


def test_autocast_converts_as_for_pytorchs_functions() -> None:
    h, b, f = torch.float16, torch.bfloat16, torch.float32
    x, w, g = r(16, 32), r(32, 24, dtype=f), r(32, dtype=f)
    out = torch.empty(16, 24, device="cuda")
    for to in (h, b):
        with torch.autocast("cuda", dtype=to):
            for p, q in ((x, w), (x, x.T), (x.to(b), w), (x.float(), w)):
                assert ops.matmul(p, q).dtype == torch.matmul(p, q).dtype == to
                torch.testing.assert_close(ops.matmul(p, q), torch.matmul(p, q), rtol=1e-2, atol=1e-2)
            close(ops.matmul(x.float(), w, out=out), want(x, w), 32)
            for mine, theirs in (
                (ops.layer_norm(x, (32,), g, g), F.layer_norm(x, (32,), g, g)),
                (ops.rms_norm(x, (32,), g), F.rms_norm(x.float(), (32,), g)),  # newer PyTorch's, in fp32 too
                (ops.softmax(x, -1), F.softmax(x, -1)), (ops.softmax(x, -1, h), F.softmax(x, -1, dtype=h)),
                (ops.softmax(x.double(), 0), F.softmax(x.double(), 0)),
            ):  # fmt: skip
                assert mine.dtype == theirs.dtype
                torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=1e-3)
            compiled = torch.compile(lambda x, w, g: ops.layer_norm(ops.matmul(x, w), (24,), g), fullgraph=True)
            got = compiled(x, w, g[:24])
            torch.testing.assert_close(got, ops.layer_norm(ops.matmul(x, w), (24,), g[:24]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_softmax_over_any_dimension_without_a_copy(dtype: Any) -> None:
    x = r(12, 70, 130, dtype=dtype)
    cases = [
        (x, 0), (x, 1), (x[:, 2:7], 1), (x[..., 3:100], 1), (r(5, 77, dtype=dtype), 0), (r(4, 1, 90, dtype=dtype), 0),
        (r(2, 3, 4, 65, dtype=dtype), 2), (r(2, 3, 8, 8, dtype=dtype), 1), (r(2, 1, 64, dtype=dtype), 1),
        (r(50, 70, 3, dtype=dtype), 1),
        (r(1, 10, 240, dtype=dtype).expand(6, 10, 240), 1), (r(9, 4096, 333, dtype=dtype), 1),
    ]  # fmt: skip
    for t, dim in cases:
        got = ops.softmax(t, dim)
        near = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5}[dtype]
        torch.testing.assert_close(got.double(), torch.softmax(t.double(), dim), rtol=near, atol=1e-6)
        said = ops.explain(ops.softmax, t, dim)
        assert "kernel softmax" in said
        assert "copied" not in said
    narrow = r(40, 3000, 7, dtype=dtype)  # PyTorch's is faster there
    assert "PyTorch's operators" in ops.explain(ops.softmax, narrow, 1)
    torch.testing.assert_close(ops.softmax(narrow, 1), torch.softmax(narrow, 1), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("stride", [2**31 - 8, 2**31 + 8])
def test_strides_of_more_than_32_bits(stride: int) -> None:
    """First near, so that a form of the same class is known when the far one comes."""
    large = torch.zeros(2**31 + 4096, device="cuda", dtype=torch.half)
    b, w = r(64, 40), r(64)
    for far in (128, stride, 256, stride):
        a = large.as_strided((2, 64), (far, 1), 8)
        a.copy_(r(2, 64))
        near = a.contiguous()
        assert torch.equal(ops.matmul(a, b), ops.matmul(near, b))
        assert torch.equal(ops.matmul(b.T, a.T), ops.matmul(b.T, near.T))
        assert torch.equal(ops.rms_norm(a, 64, w), ops.rms_norm(near, 64, w))
        assert torch.equal(ops.layer_norm(near, 64, residual=a), ops.layer_norm(near, 64, residual=near))
        assert torch.equal(ops.softmax(a, -1), ops.softmax(near, -1))
        assert torch.equal(ops.softmax(a, 0), ops.softmax(near, 0))
        said = ops.explain(ops.softmax, a, -1)
        assert ("copied" in said) == (far >= 2**31)
        out = large.as_strided((2, 40), (far, 1), 2048)
        assert torch.equal(ops.matmul(near, b, out=out), ops.matmul(near, b))


def test_matmul_without_elements() -> None:
    shapes = (((0, 64), (64, 8)), ((8, 64), (64, 0)), ((8, 0), (0, 8)), ((0, 8, 64), (64, 8)), ((3, 8, 0), (3, 0, 8)))
    for sa, sb in shapes:
        a, b = r(*sa), r(*sb)
        got = ops.matmul(a, b, r(sb[-1]), "relu")
        assert got.shape == torch.matmul(a, b).shape
    bias = r(8)
    close(ops.matmul(r(8, 0), r(0, 8), bias), bias.expand(8, 8))


def test_other_types_run_on_pytorchs_operators() -> None:
    a, b, bias = r(32, 48, dtype=torch.float32), r(48, 16, dtype=torch.float32), r(16, dtype=torch.float32)
    torch.testing.assert_close(ops.matmul(a, b, bias, "relu"), F.relu(a @ b + bias))
    assert "PyTorch's operators" in ops.explain(ops.matmul, a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape", [(5, 768), (3, 4, 1024), (2, 1000), (7, 33), (4, 1), (2, 8192), (1, 40000), (0, 64), (300, 64)]
)
def test_norms(dtype: Any, shape: tuple[int, ...]) -> None:
    x, e, w, b = r(*shape, dtype=dtype), r(*shape, dtype=dtype), r(shape[-1], dtype=dtype), r(shape[-1], dtype=dtype)
    n = shape[-1:]
    tolerance = {
        "rtol": 2.0**-7 if dtype == torch.bfloat16 else 2e-3,
        "atol": 2e-2 if dtype == torch.bfloat16 else 2e-3,
    }

    def same(got: Any, ref: Any) -> None:
        torch.testing.assert_close(got.double(), ref, **tolerance)

    for weight, bias in ((w, b), (w, None), (None, None)):
        dw, db = (t if t is None else t.double() for t in (weight, bias))
        same(ops.layer_norm(x, n, weight, bias), F.layer_norm(x.double(), n, dw, db))
        s = x.double() + e.double()
        same(ops.layer_norm(x, n, weight, bias, residual=e), F.layer_norm(s, n, dw, db))
        y, total = ops.layer_norm(x, n, weight, bias, residual=e, return_sum=True)
        same(y, F.layer_norm(s, n, dw, db))
        torch.testing.assert_close(total, x + e)
        if bias is None:
            same(ops.rms_norm(x, n, weight, 1e-6), F.rms_norm(x.double(), n, dw, 1e-6))
            y, total = ops.rms_norm(x, n, weight, 1e-6, residual=e, return_sum=True)
            same(y, F.rms_norm(s, n, dw, 1e-6))
            torch.testing.assert_close(total, x + e)
    same(ops.softmax(x, -1), torch.softmax(x.double(), -1))


def test_norms_of_views() -> None:
    x, w, b = r(40, 256), r(128), r(128)
    for v in (x[:, :128], x[3:30:2, 128:], x[:, 5:133], r(128, 40).T, r(3, 5, 128).transpose(0, 1), x[:, ::2]):
        n = v.shape[-1:]
        torch.testing.assert_close(ops.layer_norm(v, n, w, b), F.layer_norm(v, n, w, b), rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(ops.softmax(v, -1), torch.softmax(v, -1), rtol=2e-3, atol=1e-4)
        for dim in range(v.dim()):
            torch.testing.assert_close(ops.softmax(v, dim), torch.softmax(v, dim), rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(ops.softmax(x, -1, torch.float32), torch.softmax(x, -1, torch.float32))
    two = r(6, 4, 32)
    got = ops.layer_norm(two, (4, 32), r(4, 32) * 0 + 1, r(4, 32) * 0)
    torch.testing.assert_close(got, F.layer_norm(two, (4, 32)), rtol=2e-3, atol=2e-3)


def entered_python(f: Callable[[], Any]) -> list[str]:
    """Names of Python functions that run during a call, besides `f`."""
    names: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return [n for n in names if n not in ("<lambda>", "is_dynamo_compiling", "__call__")]


@pytest.mark.parametrize("grad_mode", [True, False])
def test_only_the_first_call_of_a_configuration_enters_python(grad_mode: bool) -> None:
    a, b, bias = r(64, 128), r(128, 40), r(40)
    rows, w = r(64, 512), r(512)
    calls = {
        "matmul": lambda: ops.matmul(a, b, bias, "relu"), "layer_norm": lambda: ops.layer_norm(rows, (512,), w, w),
        "rms_norm": lambda: ops.rms_norm(rows, (512,), w), "softmax": lambda: ops.softmax(rows, -1),
    }  # fmt: skip
    with torch.set_grad_enabled(grad_mode):
        for name, f in calls.items():
            f()
            assert entered_python(f) == [name], name
        forward = {
            "matmul": lambda: ns.matmul_forward.default(a, b, bias, "relu"),
            "layer_norm": lambda: ns.layer_norm_forward.default(rows, [512], w, w),
            "softmax": lambda: ns.softmax_forward.default(rows, -1),
        }
        for name, f in forward.items():
            f()
            assert entered_python(f) == [], name
    op = MATMUL.core
    before = op.configured
    for m in (64, 65, 70, 79):  # of one class, none a form that was seen
        a2 = r(m, 128)
        close(ops.matmul(a2, b, bias, "relu"), want(a2, b, bias, "relu"), 128)
    assert op.configured - before <= 1


def test_dispatcher_gives_the_same() -> None:
    a, b, bias, e = r(64, 128), r(128, 40), r(40), r(64, 40)
    for args in ((a, b), (a, b, bias), (a, b, bias, "gelu"), (a, b, None, "relu", e), (a[:, ::2], b[:64])):
        assert torch.equal(ns.matmul(*args), ops.matmul(*args))
        assert torch.equal(ns.matmul_forward(*args), ops.matmul(*args))
    x, w = r(20, 512), r(512)
    assert torch.equal(ns.layer_norm(x, [512], w, w), ops.layer_norm(x, 512, w, w))
    y, s = ns.add_layer_norm(x, [512], x, w, w)
    both = ops.layer_norm(x, 512, w, w, residual=x, return_sum=True)
    assert torch.equal(y, both[0])
    assert torch.equal(s, both[1])
    assert torch.equal(ns.softmax(x, -1), ops.softmax(x, -1))
    with pytest.raises(RuntimeError, match=r"\[OP_SHAPE\]"):
        ns.matmul_forward(a, a)
    out = torch.empty(64, 40, device="cuda", dtype=torch.half)
    assert ns.matmul_out(a, b, bias, "relu", e, out) is None
    assert torch.equal(out, ops.matmul(a, b, bias, "relu", e))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    g = {"grad": grad}
    torch.library.opcheck(ns.matmul.default, (r(16, 32, **g), r(32, 24, **g), r(24, **g), "gelu", r(16, 24, **g)))
    torch.library.opcheck(ns.matmul.default, (r(2, 16, 32, **g), r(32, 24, **g)))
    torch.library.opcheck(ns.layer_norm.default, (r(16, 64, **g), [64], r(64, **g), r(64, **g)))
    torch.library.opcheck(ns.add_layer_norm.default, (r(16, 64, **g), [64], r(16, 64, **g), r(64, **g), r(64, **g)))
    torch.library.opcheck(ns.rms_norm.default, (r(16, 64, **g), [64], r(64, **g), 1e-6))
    torch.library.opcheck(ns.softmax.default, (r(16, 64, **g), -1))
    if not grad:
        torch.library.opcheck(ns.matmul_forward.default, (r(16, 32), r(32, 24)))
        torch.library.opcheck(ns.matmul_out.default, (r(16, 32), r(32, 24), None, None, None, r(16, 24)))


def model(x: Any, w: Any, bias: Any, g: Any) -> Any:
    h = ops.matmul(x, w.T, bias, "gelu")
    y, s = ops.layer_norm(h, g.shape, g, g, residual=x, return_sum=True)
    return ops.softmax(y, -1) + ops.rms_norm(s, g.shape, g)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_breaks(grad: bool, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (64, 72) if dynamic else (64,):
        args = [r(rows, 128, grad=grad), r(128, 128, grad=grad), r(128, grad=grad), r(128, grad=grad)]
        got, ref = compiled(*args), model(*args)
        torch.testing.assert_close(got, ref, rtol=4e-3, atol=4e-3)
        if grad:
            up = r(rows, 128)
            mine = torch.autograd.grad(got, args, up)
            theirs = torch.autograd.grad(ref, args, up)
            for p, q in zip(mine, theirs, strict=True):
                torch.testing.assert_close(p, q, rtol=2e-2, atol=5e-2)


def test_gradients() -> None:
    for activation in ACTIVATIONS:
        args = [r(3, 20, 64, grad=True), r(64, 40, grad=True), r(40, grad=True), r(3, 20, 40, grad=True)]
        up = r(3, 20, 40)
        got = torch.autograd.grad(ops.matmul(args[0], args[1], args[2], activation, args[3]), args, up)
        wide = [a.detach().double().requires_grad_() for a in args]
        ref = torch.autograd.grad(want(wide[0], wide[1], wide[2], activation, wide[3]), wide, up.double())
        for p, q in zip(got, ref, strict=True):
            assert p.dtype == torch.float16
            torch.testing.assert_close(p.double(), q, rtol=1e-2, atol=6e-2)


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_where_sums_are_large(activation: str, dtype: Any) -> None:
    """The kernel of the sums rounds nothing: past float16's 65504 an activation has slopes."""
    for m, n, k in ((96, 64, 128), (33, 65, 129), (4, 24, 4096)):
        a, b = r(m, k, dtype=dtype) * 40, r(k, n, dtype=dtype) * 40
        with torch.no_grad():
            a[0], b[:, 0], a[1], b[:, 1] = 40, 40, -40, 30  # sums far past 65504
        bias = r(n, dtype=dtype)
        bias[0] = -60000
        leaves = [t.detach().requires_grad_() for t in (a, b, bias)]
        up = r(m, n, dtype=dtype) / 64
        got = torch.autograd.grad(ops.matmul(*leaves, activation), leaves, up)
        wide = [t.detach().double().requires_grad_() for t in leaves]
        z = (wide[0] @ wide[1] + wide[2]).detach().requires_grad_()
        (dz,) = torch.autograd.grad(ACTIVATIONS[activation](z), z, up.double())
        dz = dz.to(dtype).double()
        for p, q in zip(got, (dz @ wide[1].T, wide[0].T @ dz, dz.sum(0)), strict=True):
            assert p.isfinite().all()
            torch.testing.assert_close(p.double(), q, rtol=2e-2, atol=2e-2 * q.abs().max().item() + 1e-4)
    sums = ns.matmul_sums_forward(a.detach(), b.detach(), bias.detach().float())
    torch.testing.assert_close(sums.double(), z.detach(), rtol=1e-4, atol=1e-3 * z.abs().max().item())
    torch.library.opcheck(ns.matmul_sums_forward.default, (a.detach(), b.detach(), bias.detach().float()))


def test_gradients_take_sums_with_a_residual_unrounded() -> None:
    for width in (64, 770, 4096, 20000, 60000):
        x, e = (256 + r(8, width, dtype=torch.float32) / 8).half(), (r(8, width, dtype=torch.float32) / 16).half()
        g, w = r(8, width), r(width)
        for mine, theirs in ((ops.layer_norm, F.layer_norm), (ops.rms_norm, F.rms_norm)):
            leaves = [t.clone().requires_grad_() for t in (x, e, w)]
            got = torch.autograd.grad(mine(leaves[0], (width,), leaves[2], residual=leaves[1]), leaves, g)
            wide = [t.double().requires_grad_() for t in (x, e, w)]
            ref = torch.autograd.grad(theirs(wide[0] + wide[1], (width,), wide[2]), wide, g.double())
            for p, q in zip(got, ref, strict=True):
                torch.testing.assert_close(p.double(), q, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 40), (5, 33), (4000, 768), (1, 16), (300, 20001)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_norms_by_kernels(shape: tuple[int, ...], dtype: Any) -> None:
    norm_gradients_agree(r, shape, dtype)


def test_graph_capture() -> None:
    x, w, bias, g = r(64, 128), r(128, 128), r(128), r(128)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x, w, bias, g)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x, w, bias, g)
    for _ in range(3):
        x.copy_(r(64, 128))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, model(x, w, bias, g))


def test_gradients_are_captured() -> None:
    args = [r(64, 128, grad=True), r(128, 128, grad=True), r(128, grad=True), r(128, grad=True)]
    up = r(64, 128)

    def step() -> Any:
        return torch.autograd.grad(model(*args), args, up)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    with torch.no_grad():
        args[0].copy_(r(64, 128))
    graph.replay()
    torch.cuda.synchronize()
    for p, q in zip(got, step(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)


def test_first_calls_of_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def call(i: int) -> None:
        n = 8 * (1 + i % 13)
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b, w = r(24 + i % 5, 40 + n), r(40 + n, n), r(n)
            y = ops.matmul(a, b, activation="relu")
            close(y, want(a, b, activation="relu"), 64)
            z = ops.rms_norm(y, (n,), w)
            torch.testing.assert_close(z, F.rms_norm(y, (n,), w, 2.0**-23), rtol=2e-3, atol=2e-3)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(64)))


def test_streams() -> None:
    x, w = r(2048, 2048), r(2048, 2048)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.mul_(2)
        y = ops.matmul(x, w)
    torch.cuda.current_stream().wait_stream(side)
    close(y, want(x, w), 2048)


def test_the_direct_way_allocates_as_pytorch_does() -> None:
    """Results come from PyTorch's allocator: they can be recorded on streams, and are inference tensors where due."""
    a, b = r(64, 128), r(128, 40)
    before = torch.cuda.memory_allocated()
    y = ops.matmul(a, b)
    assert torch.cuda.memory_allocated() - before == y.numel() * 2 // 512 * 512 + (512 if y.numel() * 2 % 512 else 0)
    y.record_stream(torch.cuda.Stream())
    assert y.is_contiguous()
    assert not y.requires_grad
    with torch.inference_mode():
        assert ops.matmul(a, b).is_inference()


def test_modes_and_transformations_see_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    a, b = r(16, 32), r(32, 24)
    ops.matmul(a, b)
    with Note():
        ops.matmul(a, b)
    assert seen == ["graphene.matmul_forward.default"]
    close(torch.vmap(lambda x: ops.matmul(x, b))(r(3, 16, 32) * 0 + a), want(a, b).expand(3, 16, 24), 32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert ops.matmul(a.float(), b).dtype == torch.bfloat16


def test_errors_on_the_direct_way() -> None:
    a, b = r(16, 32), r(32, 24)
    for bad, code in (
        (lambda: ops.matmul(a, b.float()), "OP_DTYPE"), (lambda: ops.matmul(a, a), "OP_SHAPE"),
        (lambda: ops.matmul(a, b.cpu()), "OP_DEVICE"), (lambda: ops.matmul(a, b, activation="swish"), "OP_ARGUMENT"),
        (lambda: ops.matmul(a, b, r(23)), "OP_SHAPE"), (lambda: ops.layer_norm(a, (31,)), "OP_SHAPE"),
        (lambda: ops.softmax(a, 2), "OP_ARGUMENT"), (lambda: ops.matmul(a, b, out=r(16, 23)), "OP_OUT"),
    ):  # fmt: skip
        for _ in range(2):
            with pytest.raises(gr.LaunchError) as e:
                bad()
            assert e.value.code == code
