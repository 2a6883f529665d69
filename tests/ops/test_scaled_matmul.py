"""graphene.ops.scaled_matmul against fp64: types, scales, terms, orders, odd sizes; refusals; compiled; on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels import GemmConfig, run_gemm  # noqa: E402
from tests.ops.cpu_cases import ACTIVATIONS, quiet, simulated  # noqa: E402

__all__ = ["quiet"]

E4M3, E5M2, I8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def operands(m: int, n: int, k: int, a: Any = E4M3, b: Any = E4M3, device: str = "cpu") -> tuple[Any, Any]:
    """(m, k), and (k, n) whose columns lie contiguous."""

    def one(rows: int, dtype: Any) -> Any:
        if dtype == I8:
            return torch.randint(-16, 17, (rows, k), dtype=I8, device=device)
        return torch.randn(rows, k, device=device).to(dtype)

    return one(m, a), one(n, b).t()


def scales(m: int, n: int, rows: bool, device: str = "cpu") -> tuple[Any, Any]:
    if rows:
        return torch.rand(m, 1, device=device) + 0.5, torch.rand(1, n, device=device) - 1.5
    return torch.tensor(0.75, device=device), torch.tensor([-1.25], device=device)


def cases() -> list[tuple[Any, ...]]:
    a, b = operands(7, 24, 48)
    one, rows = scales(7, 24, False), scales(7, 24, True)
    bias, residual = torch.randn(24).bfloat16(), torch.randn(7, 24).bfloat16()
    whole = operands(5, 16, 32, I8, I8)
    return [
        (a, b, *one, bias, None, torch.bfloat16, True, "gelu", residual),
        (a, b.to(E5M2), *rows, None, None, torch.float32),
        (a, b.contiguous(), *rows, bias, None, torch.bfloat16),
        (a, b, *one),
        (*whole, *scales(5, 16, True), None, None, torch.float16, False, "relu"),
        (a[:0], b, *one, None, None, torch.float16),
        (a[:, :0], b[:0], *one, None, None, torch.float16),
    ]


OPCHECK = {"scaled_matmul": cases}


def close(got: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, sums: float, **more: Any) -> None:
    """Rounded once from fp32; `sums`: the error of sums, relative to the sums of sizes."""
    factor = scale_a.double() * scale_b.double()
    x, room = (a.double() @ b.double()) * factor, (a.double().abs() @ b.double().abs()) * factor.abs()
    x = x if more.get("bias") is None else x + more["bias"].double()
    x = ACTIVATIONS[more.get("activation")](x)
    x = x if more.get("residual") is None else x + more["residual"].double()
    assert got.shape == x.shape
    off = (got.double() - x).abs()
    assert (off <= 1.01 * ULP[got.dtype] * x.abs() + 1.2 * sums * room + 1e-5).all(), (off / room).max().item()


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("a", "b"), [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2), (I8, I8)])
def test_values(a: Any, b: Any, rows: bool) -> None:
    m, n, k = 33, 40, 176
    x, y, s = *operands(m, n, k, a, b), scales(m, n, rows)
    for dtype in ULP:
        terms = {"bias": torch.randn(n).to(dtype), "residual": torch.randn(m, n).to(dtype), "activation": "silu"}
        for fast, more in ((True, {}), (False, terms)):
            call = {"out_dtype": dtype, "use_fast_accum": fast, **more}
            close(ops.scaled_matmul(x, y, *s, **call), x, y, *s, 2.0**-20 if a == I8 else 2.0**-10, **more)
            assert simulated(ops.scaled_matmul, x, y, *s, **call)


def test_orders_and_sizes_that_are_copied_first() -> None:
    for m, n, k in ((5, 7, 9), (33, 35, 64), (1, 1, 200)):
        a, b = operands(m, n, k)
        s = scales(m, n, True)
        for x in (a, a.t().contiguous().t()):
            for y in (b, b.contiguous(), torch.stack([b, b], -1)[..., 0]):
                got = ops.scaled_matmul(x, y, *s, out_dtype=torch.float16)
                close(got, a, b, *s, 2.0**-10)
    by_rows = operands(32, 64, 128)
    text = ops.explain(
        ops.scaled_matmul, by_rows[0], by_rows[1].contiguous(), *scales(32, 64, False), out_dtype=torch.float16
    )
    assert "kernel transpose" in text


def test_what_pytorchs_operators_compute() -> None:
    a, b = operands(16, 32, 64)
    s = scales(16, 32, False)
    for dtype in (E4M3, E5M2):
        got = ops.scaled_matmul(a, b, *s, out_dtype=dtype, scale_result=torch.tensor(0.5))
        want = (a.float() @ b.float() * (s[0] * s[1]) * 0.5).to(dtype)
        assert got.dtype == dtype
        assert torch.equal(got.float(), want.float())
    huge = ops.scaled_matmul(a, b, torch.tensor(1e6), torch.tensor(1e6))
    assert huge.dtype == E4M3
    assert huge.float().abs().max() == 448
    text = ops.explain(ops.scaled_matmul, a, b, *s, scale_result=torch.tensor(0.5))
    assert "no kernel stores results of fp8 with scale_result" in text


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_results_of_fp8(dtype: Any) -> None:
    """They are the nearest numbers, and what is too large is the largest."""
    a, b = torch.randint(-3, 4, (33, 64)).to(E4M3), torch.randint(-3, 4, (48, 64)).to(E5M2).t()
    for s in ((torch.tensor(0.5), torch.tensor(0.5)), (torch.full((33, 1), 64.0), torch.full((1, 48), 2.0**12))):
        got = ops.scaled_matmul(a, b, *s, out_dtype=dtype)
        most = torch.finfo(dtype).max
        want = (a.float() @ b.float() * (s[0] * s[1])).clamp(-most, most).to(dtype)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        assert simulated(ops.scaled_matmul, a, b, *s, out_dtype=dtype)


def test_is_torchs_scaled_mm() -> None:
    """The arguments, by position and by name; their values where PyTorch has them on a CPU."""
    a, b = operands(16, 32, 64)
    s = torch.tensor(0.5), torch.tensor(2.0)
    for args, named in (((None, None, torch.bfloat16, True), {}), ((), {"out_dtype": torch.bfloat16})):
        want = torch._scaled_mm(a, b, *s, *args, **named)
        got = ops.scaled_matmul(a, b, *s, *args, **named)
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_compiled_and_under_autocast() -> None:
    a, b = operands(8, 16, 32)
    s = scales(8, 16, True)
    eager = ops.scaled_matmul(a, b, *s, out_dtype=torch.bfloat16)
    compiled = torch.compile(
        lambda *x: ops.scaled_matmul(*x, out_dtype=torch.bfloat16), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(a, b, *s), eager)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(ops.scaled_matmul(a, b, *s, out_dtype=torch.bfloat16), eager)


def test_there_is_no_gradient() -> None:
    a, b = operands(8, 16, 32)
    bias = torch.zeros(16, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(gr.LaunchError, match="OP_ARGUMENT") as e:
        ops.scaled_matmul(a, b, *scales(8, 16, False), bias, out_dtype=torch.bfloat16)
    assert "there is no gradient of the bias" in str(e.value)
    with torch.no_grad():
        ops.scaled_matmul(a, b, *scales(8, 16, False), bias, out_dtype=torch.bfloat16)


def test_refusals() -> None:
    a, b = operands(8, 16, 32)
    s = scales(8, 16, False)
    f16 = torch.float16
    for args, named, code, text in (
        ((a.half(), b, *s), {}, "OP_DTYPE", "argument 'a' has a dtype that it does not take"),
        ((a, b.half(), *s), {}, "OP_DTYPE", "argument 'b' has a dtype that it does not take"),
        ((a.view(I8), b, *s), {}, "OP_DTYPE", "argument 'b' has a dtype that it does not take"),
        ((a, b[:16], *s), {}, "OP_SHAPE", "a and b are not matrices of one k"),
        ((a[None], b, *s), {}, "OP_SHAPE", "a and b are not matrices of one k"),
        ((a, b, s[0].half(), s[1]), {}, "OP_DTYPE", "argument 'scale_a' is no fp32"),
        ((a, b, torch.ones(8, 1), s[1]), {}, "OP_SHAPE", "the scales fit neither tensors nor rows"),
        ((a, b, torch.ones(8), torch.ones(16)), {}, "OP_SHAPE", "the scales fit neither tensors nor rows"),
        ((a, b, *s), {"out_dtype": torch.int8}, "OP_DTYPE", "argument 'out_dtype' is not a type of a result"),
        ((a, b, *s), {"out_dtype": [torch.ones(4)]}, "OP_DTYPE", "argument 'out_dtype' is not a type of a result"),
        (
            (a.view(I8), b.view(I8), *s),
            {"out_dtype": E4M3},
            "OP_DTYPE",
            "argument 'out_dtype' is not a type of a result",
        ),
        (
            (a, b, *s, torch.ones(16)),
            {"out_dtype": f16},
            "OP_DTYPE",
            "argument 'bias' has another dtype than the result",
        ),
        ((a, b, *s, torch.ones(8).half()), {"out_dtype": f16}, "OP_SHAPE", "argument 'bias' has the wrong shape"),
        ((a, b, *s), {"out_dtype": f16, "scale_result": s[0]}, "OP_ARGUMENT", "'scale_result' is for results of fp8"),
        ((a, b, *s), {"scale_result": torch.ones(2)}, "OP_SHAPE", "argument 'scale_result' is not a number"),
        ((a, b, *s), {"out_dtype": f16, "activation": "elu"}, "OP_ARGUMENT", 'no activation is called "elu"'),
        ((a, b, *s), {"residual": torch.ones(16, 8).half()}, "OP_SHAPE", "argument 'residual' has the wrong shape"),
    ):
        with pytest.raises(gr.LaunchError, match=code) as e:
            ops.scaled_matmul(*args, **named)
        assert f"scaled_matmul: {text}" in str(e.value)


hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper card"
)


@pytest.mark.gpu
@hopper
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("a", "b"), [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2), (I8, I8)])
def test_values_on_a_gpu(a: Any, b: Any, rows: bool, fast: bool) -> None:
    """Sizes of many tiles and of few, odd ones, every result type, with terms and without."""
    torch.manual_seed(3)
    for m, n, k in (
        (1, 4096, 4096),
        (3, 5, 64),
        (16, 1024, 8192),
        (300, 520, 1040),
        (2048, 2048, 2048),
        (129, 257, 333),
    ):
        x, y, s = *operands(m, n, k, a, b, "cuda"), scales(m, n, rows, "cuda")
        sums = 2.0**-20 if a == I8 else 2.0**-10 if not fast else 2.0**-13 * (2 + 2 * k**0.5 + k / 16)
        for dtype in ULP:
            terms = {"bias": torch.randn(n).to("cuda", dtype), "residual": torch.randn(m, n).to("cuda", dtype)}
            for more in ({}, terms | {"activation": "gelu"}):
                got = ops.scaled_matmul(x, y, *s, out_dtype=dtype, use_fast_accum=fast, **more)
                close(got, x, y, *s, sums, **more)
    assert "kernel gemm_sm90" in ops.explain(ops.scaled_matmul, x, y, *s, out_dtype=torch.bfloat16)


@pytest.mark.gpu
@hopper
@pytest.mark.parametrize("promote", [False, True])
@pytest.mark.parametrize(("a", "b"), [("fp8e4m3", None), ("fp8e5m2", None), ("fp8e4m3", "fp8e5m2")])
def test_a_card_gives_the_simulators_bits(a: str, b: str | None, promote: bool) -> None:
    """Held-out values: of wide ranges, which every cut of a sum shows."""
    rng = np.random.default_rng(5)
    types = {"fp8e4m3": (E4M3, 8, 3), "fp8e5m2": (E5M2, 14, 2)}
    config = GemmConfig(
        (64, 64, 128), 3, (4, 1), dtype=a, b_dtype=b, out="fp32", kernel="gemm_sm90", promote=promote, scales="rows"
    )

    def drawn(rows: int, of: str) -> Any:
        dtype, reach, bits = types[of]
        x = np.ldexp(
            1 + rng.integers(0, 1 << bits, (rows, 528)) / (1 << bits),
            rng.integers(-reach // 2, reach // 2, (rows, 528)),
        )
        return torch.from_numpy(x * rng.choice([-1.0, 1.0], x.shape)).to(dtype)

    x, y = drawn(72, a), drawn(80, b or a).T
    s = [torch.from_numpy(rng.uniform(0.5, 2, n)).float() for n in (72, 80)]
    results = []
    for device in ("cpu", "cuda"):
        c = torch.zeros(72, 80, device=device)
        given = [t.to(device) for t in (x, y.T, *s)]
        run_gemm(config, given[0], given[1].T, c, scale_a=given[2], scale_b=given[3])
        results.append(c.cpu())
    assert torch.equal(*results)
