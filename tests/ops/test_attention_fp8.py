"""graphene.ops.attention with fp8 and scales: values on the simulator and on a GPU, what it says, errors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops.attention.fp8 import FP8_ALONE, FP8_LSE  # noqa: E402

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = (torch.ones(()), torch.ones(()), torch.ones(()))


def r(*shape: int, dtype: Any = E4, device: str = "cpu") -> Any:
    return torch.randn(*shape, device=device).to(dtype)


def exact(q: Any, k: Any, v: Any, scales: Any, causal: bool = False, window: Any = (-1, -1)) -> Any:
    """In fp64, and the LSE."""
    wide = (
        t.double() * (s if s.numel() == 1 else s[..., None, :, None]) for t, s in zip((q, k, v), scales, strict=True)
    )
    return FP8_LSE.definition.reference(*wide, *ONE, torch.float64, causal, *window, q.shape[-1] ** -0.5, 0.0)


@pytest.mark.parametrize("types", [(E4, E4, E4), (E5, E4, E5), (E4, E5, E4)], ids=str)
@pytest.mark.parametrize("named", [{}, {"causal": True}, {"window": (9, 3)}], ids=str)
def test_values(types: Any, named: Any) -> None:
    """Of lengths that change from call to call, scales of each kind, and tensors of other strides."""
    torch.manual_seed(0)
    for sq, sk in ((20, 24), (20, 40), (7, 37)):
        q, k, v = (r(1, s, n, 32, dtype=t) for s, n, t in zip((sq, sk, sk), (4, 2, 2), types, strict=True))
        scales = torch.tensor(0.5), torch.rand(2) + 0.5, torch.rand(1, 2) + 0.5
        assert "the simulator runs" in ops.explain(ops.attention, q, k, v, scales=scales, **named)
        got, lse = ops.attention(q, k, v, scales=scales, return_lse=True, **named)
        want, want_lse = exact(q, k, v, scales, **named)
        assert got.dtype == torch.bfloat16
        assert float((got - want).norm()) < 0.03 * float(want.norm())
        torch.testing.assert_close(lse.double(), want_lse.double(), rtol=1e-3, atol=2e-3)
        turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
        assert torch.equal(ops.attention(*turned, scales=scales, **named), got)
        half = ops.attention(q, k, v, scales=scales, out_dtype=torch.float16, **named)
        torch.testing.assert_close(half, got.half(), rtol=1e-2, atol=1e-2)


def test_what_has_no_kernel_is_computed_by_torch() -> None:
    q, k, v = r(1, 20, 2, 24), r(1, 24, 2, 24), r(1, 24, 2, 24)
    assert "no kernel of fp8 for heads of 24 elements" in ops.explain(ops.attention, q, k, v, scales=ONE)
    got = ops.attention(q, k, v, scales=ONE)
    torch.testing.assert_close(got.double(), exact(q, k, v, ONE)[0].double(), rtol=1e-2, atol=1e-2)
    assert ops.attention(q[:, :0], k, v, scales=ONE).shape == (1, 0, 2, 24)


def test_compiled_graphs_hold_the_operator() -> None:
    q = r(1, 20, 2, 32)
    with torch.device("meta"):
        given = [torch.empty(1, 20, 2, 32, dtype=E4) for _ in range(3)] + [torch.ones(()) for _ in range(3)]
        made = FP8_ALONE.dispatched(*given, torch.float16, True, -1, -1, None, 0.0)
    assert (made.shape, made.dtype) == (q.shape, torch.float16)


def opcheck_cases() -> list[tuple[Any, ...]]:
    return [
        (r(1, 20, 4, 32), r(1, 24, 2, 32), r(1, 24, 2, 32, dtype=E5), torch.tensor(0.5), torch.ones(2),
         torch.ones(1, 2), None, True, -1, -1, None, 0.0),
    ]  # fmt: skip


OPCHECK = {"attention_fp8": opcheck_cases, "attention_fp8_lse": opcheck_cases}


@pytest.mark.parametrize(("change", "message"), [
    ({"scales": 2.0}, "argument 'scales' means nothing"),
    ({"scales": (torch.ones(3), *ONE[1:])}, "'scale_q' of scales has the wrong shape"),
    ({"scales": (*ONE[:2], torch.ones((), dtype=torch.float64))}, "'scale_v' of scales is no fp32"),
    ({"scales": (ONE[0], -ONE[1], ONE[2])}, "'scale_k' of scales is negative or no number"),
    ({"mask": torch.ones(1, 24, dtype=torch.bool)}, "neither a mask nor a bias"),
    ({"out_dtype": torch.float32}, "argument 'out_dtype' is not a type of a result"),
    ({"scales": None, "out_dtype": torch.float16}, "argument 'out_dtype' is for fp8"),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_errors(change: dict[str, Any], message: str) -> None:
    q, k, v = r(1, 20, 2, 32), r(1, 24, 2, 32), r(1, 24, 2, 32)
    with pytest.raises(gr.LaunchError, match=message):
        ops.attention(q, k, v, **{"scales": ONE, **change})
    with pytest.raises(gr.LaunchError, match="does not go with scales"):
        ops.attention(q.half(), k.half(), v.half(), scales=ONE)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [32, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("named", [{}, {"causal": True}, {"window": (90, 30)}], ids=str)
def test_values_on_a_gpu(d: int, named: Any) -> None:
    torch.manual_seed(0)
    for batch, sq, sk, types in (
        (2, 300, 333, (E4, E4, E4)),
        (3, 1000, 700, (E5, E4, E5)),
        (40, 200, 256, (E4, E5, E4)),
    ):
        q, k, v = (
            r(batch, s, n, d, dtype=t, device="cuda") for s, n, t in zip((sq, sk, sk), (8, 2, 2), types, strict=True)
        )
        scales = [torch.rand(*s, device="cuda") + 0.5 for s in ((1,), (2,), (batch, 2))]
        got, lse = ops.attention(q, k, v, scales=scales, return_lse=True, **named)
        want, want_lse = exact(q, k, v, scales, **named)
        assert got.isfinite().all()
        assert float((got - want).norm()) < 0.03 * float(want.norm())
        seen = want_lse.isfinite()
        torch.testing.assert_close(lse[seen].double(), want_lse[seen].double(), rtol=2e-3, atol=4e-3)
        assert torch.equal(ops.attention(q, k, v, scales=scales, **named), got)
