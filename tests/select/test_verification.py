"""What a tuning accepts as right: all of the result, computed by the candidate itself, epilogue included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from graphene import select
from graphene.select import gemm, rows, trial_gemm, trial_rows
from graphene.select.gemm import GEMM, GemmProblem
from graphene.select.rows import ROWS, RowProblem

torch = pytest.importorskip("torch", reason="torch is not installed")

H200 = select.of_arch("sm_90a")
PRODUCTS = [
    GemmProblem(130, 72, 64),
    GemmProblem(130, 72, 64, batch=2, dtype="bf16"),
    GemmProblem(130, 72, 64, dtype="fp32", order="NT"),
    GemmProblem(130, 72, 64, dtype="i8"),
    GemmProblem(130, 72, 64, dtype="i8", bias=True, residual=True),
    *(GemmProblem(130, 72, 64, bias=True, residual=True, activation=a)
      for a in ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", None)),
]  # fmt: skip
BYTES = [
    GemmProblem(130, 72, 64, dtype="fp8e4m3", out="bf16", scales="rows"),
    GemmProblem(130, 72, 64, dtype="fp8e4m3", b_dtype="fp8e5m2", scales="tensor"),
    GemmProblem(130, 72, 64, dtype="i8", out="fp16", scales="rows"),
]
ROW_PROBLEMS = [RowProblem(k, 130, 264, t) for k in rows.KINDS for t in ("fp16", "bf16", "fp32")]


def result(p: Any, arguments: Any) -> Any:
    if isinstance(p, GemmProblem):
        return arguments[2]
    return arguments[-1] if p.kind == "softmax" else arguments[-2]


def tunable_of(p: Any) -> tuple[Any, Any]:
    return (GEMM, trial_gemm) if isinstance(p, GemmProblem) else (ROWS, trial_rows)


def spoil_nothing(y: Any) -> None:
    pass


def clear(rows: slice) -> Callable[[Any], None]:
    return lambda y: y[..., rows, :].zero_()


SPOILT = {
    "all": clear(slice(None)),
    "the first rows": clear(slice(0, 64)),
    "a row": clear(slice(7, 8)),
    "the last rows": clear(slice(-64, None)),
    "no number": lambda y: y.view(-1)[5:6].fill_(float("nan")),
    "swapped rows": lambda y: y.copy_(y.flip(-2)),
}


@pytest.mark.parametrize("p", [*PRODUCTS, *BYTES, *ROW_PROBLEMS], ids=str)
def test_all_of_the_result_is_compared(p: Any) -> None:
    t, module = tunable_of(p)
    arguments = module.arguments(p, "cpu")
    y = result(p, arguments)
    want = t.reference(p, arguments)
    assert t.verify(p, arguments, want) is not None  # nothing is written yet
    right = want.to(y.dtype)
    for name, spoil in {"": spoil_nothing, **SPOILT}.items():
        y.copy_(right)
        if name != "no number" or y.dtype.is_floating_point:
            spoil(y)
            assert (t.verify(p, arguments, want) is None) == (name == ""), name


@pytest.mark.parametrize("p", [p for p in PRODUCTS if p.bias], ids=str)
def test_what_becomes_of_the_sums_is_compared(p: GemmProblem) -> None:
    """A kernel without its epilogue is none."""
    arguments = trial_gemm.arguments(p, "cpu")
    a, b, c, bias, residual = arguments
    sums = a.double() @ b.double()
    for wrong in (sums, sums + bias.double(), sums + residual.double()):
        c.copy_(wrong)
        assert trial_gemm.verify(p, arguments) is not None


def test_the_simulated_kernel_is_right() -> None:
    p = GemmProblem(33, 40, 48, bias=True, residual=True, activation="gelu")
    arguments = trial_gemm.arguments(p, "cpu")
    GEMM.build(gemm.GemmTile((32, 32, 32), (2, 2), 2), p)(*arguments)
    assert trial_gemm.verify(p, arguments) is None
    for p in BYTES:
        arguments = trial_gemm.arguments(p, "cpu")
        GEMM.build(gemm.GemmTile((64, 64, 128), (4, 1), 2, kernel="gemm_sm90"), p)(*arguments)
        assert trial_gemm.verify(p, arguments) is None
    q = RowProblem("layernorm", 5, 264)
    arguments = trial_rows.arguments(q, "cpu")
    ROWS.build(select.rank(ROWS, q, H200, 1).best, q)(*arguments)
    assert trial_rows.verify(q, arguments) is None


@pytest.mark.parametrize("parts", [1, 1000, 1 << 26])
@pytest.mark.parametrize("p", [PRODUCTS[1], PRODUCTS[-1], ROW_PROBLEMS[0]], ids=str)
def test_parts_of_a_large_reference_are_all_of_it(p: Any, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    t, module = tunable_of(p)
    arguments = module.arguments(p, "cpu")
    want = t.reference(p, arguments)
    monkeypatch.setattr(module, "PART_ELEMENTS", parts)
    assert torch.allclose(t.reference(p, arguments), want, rtol=1e-6)
    y = result(p, arguments)
    y.copy_(want)
    assert t.verify(p, arguments, want) is None
    y[..., -1, :] = 0
    assert t.verify(p, arguments, want) is not None


class Fake:
    """A kernel of PyTorch's: right, or one that writes nothing, or half of the rows."""

    def __init__(self, p: Any, fault: str) -> None:
        self.p, self.fault = p, fault

    def compile(self, arch: str) -> Any:
        return type("Binary", (), {"registers": 1, "spill_bytes": 0})

    def __call__(self, *arguments: Any) -> None:
        t, _ = tunable_of(self.p)
        y = result(self.p, arguments)
        want = t.reference(self.p, arguments).to(y.dtype)
        count = {"": y.shape[-2], "nothing": 0, "half": y.shape[-2] // 2}[self.fault]
        y[..., :count, :] = want[..., :count, :]


@pytest.mark.parametrize("p", [PRODUCTS[0], PRODUCTS[3], PRODUCTS[5], ROW_PROBLEMS[0]], ids=str)
def test_kernels_that_compute_nothing_do_not_win(p: Any) -> None:
    t, module = tunable_of(p)
    faults = ["", "nothing", "half", "nothing"]
    configs = [c for c, _, _ in select.rank(t, p, H200, len(faults)).short_list]
    fault = dict(zip(configs, faults, strict=True))
    t = replace(
        t, arguments=lambda p: module.arguments(p, "cpu"), incumbent=None,
        build=lambda config, p: Fake(p, fault[config]),
    )  # fmt: skip
    tuning = select.tune(t, p, H200, len(faults), 1, timer=lambda launch: 1.0, progress=False, keep=False)
    assert tuning.best == configs[0]
    assert sum(1 for m in tuning.measured if m.failure) == 3
