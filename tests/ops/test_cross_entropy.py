"""graphene.ops.cross_entropy: values, gradients, refusals, PyTorch's rules."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="pip install torch brings it")
import torch.nn.functional as F  # noqa: E402, N812

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.select.rows import select_cross_entropy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


def logits(*shape: int, dtype: Any = torch.float16) -> Any:
    return (3 * torch.randn(*shape)).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none"}], ids=str
)
def test_values_and_gradients(dtype: Any, options: dict[str, Any]) -> None:
    x, target = logits(6, 50, dtype=dtype), torch.randint(0, 50, (6,))
    target[2] = -100
    assert "the simulator runs" in ops.explain(ops.cross_entropy, x, target)
    got = ops.cross_entropy(x, target, **options)
    wide = x.detach().double().requires_grad_()
    want = F.cross_entropy(wide, target, **options)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), want, rtol=1e-6, atol=1e-5)
    (g,) = torch.autograd.grad(got.sum(), x)
    (exact,) = torch.autograd.grad(want.sum(), wide)
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-20}[dtype]
    assert ((g.double() - exact).abs() <= ulp * exact.abs() + 1e-6).all()


def test_z_loss_infinities_and_other_targets() -> None:
    x, target = logits(4, 520, dtype=torch.float32), torch.tensor([3, 519, 0, 520])
    x.data[0, 7] = -torch.inf
    got = ops.cross_entropy(x, target, z_loss=0.01, reduction="none")
    lse = torch.logsumexp(x.double(), -1)
    want = lse - x.double().gather(1, target.clamp(max=519)[:, None])[:, 0] + 0.01 * lse**2
    assert torch.allclose(got[:3].double(), want[:3], rtol=1e-6)
    assert got[3].isnan()
    (g,) = torch.autograd.grad(got[:3].sum(), x, retain_graph=True)
    (exact,) = torch.autograd.grad(want[:3].sum(), x)
    assert torch.allclose(g[:3], exact[:3], rtol=1e-5, atol=1e-6)
    assert torch.autograd.grad(got.sum(), x)[0][3].isnan().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_classes(smoothing: float, reduction: str) -> None:
    x, target, weight = logits(6, 20), torch.randint(0, 20, (6,)), torch.rand(20)
    target[2] = -100
    wide, options = x.detach().double().requires_grad_(), {"label_smoothing": smoothing, "reduction": reduction}
    got = ops.cross_entropy(x, target, weight, **options)
    want = F.cross_entropy(wide, target, weight.double(), **options)
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5)
    (g,), (exact,) = torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), wide)
    assert torch.allclose(g.double(), exact, rtol=2e-3, atol=1e-5)
    more = ops.cross_entropy(x, target, weight, z_loss=0.5, **options) - got
    of_rows = torch.where(target == -100, 0, weight.double()[target.clamp(min=0)])
    z = of_rows * torch.logsumexp(wide, -1) ** 2 / 2
    z = {"mean": z.sum() / of_rows.sum(), "sum": z.sum(), "none": z}[reduction]
    assert torch.allclose(more.double(), z, rtol=1e-3, atol=1e-3)


def test_views_and_empty() -> None:
    x, target = logits(40, 6).detach().T, torch.randint(0, 40, (6,))
    assert "input is copied first" in ops.explain(ops.cross_entropy, x, target)
    assert torch.allclose(ops.cross_entropy(x, target), F.cross_entropy(x.float(), target), atol=1e-5)
    assert ops.cross_entropy(logits(0, 8), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0


def test_errors() -> None:
    x, target = logits(3, 8), torch.zeros(3, dtype=torch.int64)
    for call, code, text in (
        (lambda: ops.cross_entropy(x, target[:2]), "OP_SHAPE", "want: [3], as 'input' without its last dimension"),
        (lambda: ops.cross_entropy(x, x), "OP_DTYPE", "'target' has a dtype that it does not take"),
        (lambda: ops.cross_entropy(x, target, torch.ones(3)), "OP_SHAPE", "want: [8], one for each class"),
        (lambda: ops.cross_entropy(x, target, target), "OP_DTYPE", "'weight' has a dtype"),
        (lambda: ops.cross_entropy(x, target, reduction="max"), "OP_ARGUMENT", "'reduction' is not known"),
        (lambda: ops.cross_entropy(x, target, label_smoothing=2.0), "OP_ARGUMENT", "want: a number from 0 to 1"),
    ):
        with pytest.raises(gr.LaunchError) as e:
            call()
        assert e.value.code == code
        assert text in str(e.value)
    with pytest.raises(gr.LaunchError) as e:
        ops.cross_entropy(logits(3, 0), target)
    assert str(e.value) == (
        "cross_entropy: argument 'input' has no classes   [OP_SHAPE]\n  want: one class or more in its last dimension\n"
        "  got:  [3,0]\n  fix: pass a logit for each class"
    )


def test_second_derivatives() -> None:
    x, target = logits(3, 5, dtype=torch.float64), torch.tensor([1, -100, 4])
    assert torch.autograd.gradgradcheck(lambda a: ops.cross_entropy(a, target, label_smoothing=0.1), (x,))


@pytest.mark.parametrize("classes", [32000, 128256])
def test_long_rows_have_the_threads_that_were_the_fastest(classes: int) -> None:
    for gradient, want in ((False, (512, 8)), (True, (1024, 2))):
        tile = select_cross_entropy(4096, classes, shared_bytes=227 << 10, gradient=gradient).tile
        assert (tile.threads, tile.unroll, tile.keep) == (*want, "memory")


OPCHECK = {
    "cross_entropy": lambda: [(logits(4, 30).detach(), torch.tensor([1, 2, -100, 29]), -100, 0.1, 0.01)],
    "cross_entropy_backward": lambda: [
        (torch.ones(4), logits(4, 30).detach(), torch.tensor([1, 2, -100, 29]), torch.full((4,), 9.0), -100, 0.0, 0.0)
    ],
}
