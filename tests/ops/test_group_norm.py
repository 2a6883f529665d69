"""graphene.ops.group_norm against PyTorch's of fp64: views, sizes, dtypes; refusals; gradients; compiled, mapped."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels.rows.groupnorm import GroupNormConfig  # noqa: E402
from graphene.kernels.rows.tile import RowTile  # noqa: E402
from tests.ops.cpu_cases import F, quiet, r, simulated  # noqa: E402

__all__ = ["quiet"]

ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def cases() -> list[tuple[Any, ...]]:
    return [
        (r(2, 12, 5, 6), 4, r(12), r(12)),
        (r(3, 8, dtype=torch.float32), 2, r(8, dtype=torch.float32)),
        (r(2, 12, 8, 8).to(memory_format=torch.channels_last), 4, None, r(12), 0.5),
        (r(2, 24, 16)[:, :12], 12, r(24)[::2]),
        (r(1, 4, 7, dtype=torch.float64), 1, r(4, dtype=torch.float64)),
        (r(0, 4, 7), 2, r(4)),
        (r(2, 4, 0), 2, r(4), r(4)),
    ]


OPCHECK = {"group_norm": cases}
CALL = {"group_norm": lambda: (r(2, 8, 4, 4), 2, r(8), r(8))}


def close(
    got: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, sums: float = 2e-6
) -> None:
    """Rounded once, from fp32; `sums`: how far its mean may be off in standard deviations, and those relatively."""
    wide = [None if t is None else t.double() for t in (weight, bias)]
    want = F.group_norm(x.double(), groups, *wide, eps)
    factor, addend = (torch.full((x.shape[1],), v, dtype=torch.double, device=x.device) for v in (1.0, 0.0))
    factor, addend = (t if w is None else w for t, w in zip((factor, addend), wide, strict=True))
    along = (-1, *[1] * (x.dim() - 2))
    off = (want - addend.view(along)).abs() + factor.abs().view(along)
    assert (got.shape, got.dtype, got.is_contiguous()) == (x.shape, x.dtype, True)
    assert ((got.double() - want).abs() <= 1.01 * ULP[x.dtype] * want.abs() + sums * off).all()


@pytest.mark.parametrize("dtype", list(ULP))
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 12, 5, 6), 4), ((3, 8), 2), ((2, 6, 8, 8), 6), ((1, 4, 700), 1), ((2, 32, 3), 32), ((2, 4, 2, 3, 4), 2),
     ((1, 6, 4000), 2)],
)  # fmt: skip
def test_values(shape: tuple[int, ...], groups: int, dtype: Any) -> None:
    x = (r(*shape, dtype=torch.float32) * 3 + 2).to(dtype)
    weight, bias = r(shape[1], dtype=dtype), r(shape[1], dtype=dtype)
    for affine in ((weight, bias), (weight, None), (None, bias), (None, None)):
        close(ops.group_norm(x, groups, *affine), x, groups, *affine)
        assert simulated(ops.group_norm, x, groups, *affine)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ULP))
@pytest.mark.parametrize("shape", [(4, 64, 32, 32), (2, 320, 9, 7), (8, 32, 100000), (3, 6, 1), (1, 2, 3000, 1001)])
def test_values_on_a_gpu(shape: tuple[int, ...], dtype: Any) -> None:
    torch.manual_seed(shape[-1])
    x = (torch.randn(shape, device="cuda") * 3 + 2).to(dtype)
    weight, bias = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(2))
    for given in (x, x.transpose(-1, -2) if x.dim() == 4 else x, x[:, : shape[1] // 2]):
        affine = weight[: given.shape[1]], bias[: given.shape[1]]
        close(ops.group_norm(given, 1, *affine), given, 1, *affine, sums=1e-5)
        close(ops.group_norm(given, given.shape[1]), given, given.shape[1], sums=1e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"tile": RowTile(24, 32, 2, 4)}, "tile.rows"), ({"tile": RowTile(512, 32, dense=8)}, "tile.dense"),
     ({"channels": 5}, "tile.width"), ({"channels": 4}, "tile.width"), ({"groups": 0}, "groups"),
     ({"gamma": 1}, "gamma"), ({"dtype": gr.i32}, "dtype"), ({"tile": 3}, "tile")],
)  # fmt: skip
def test_configurations_that_no_kernel_has(change: dict[str, Any], text: str) -> None:
    """Vectors lie within a channel: 24 elements of 4 channels are not vectors of 4."""
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        GroupNormConfig(**{"tile": RowTile(24, 32, 1, 4), "groups": 2, "channels": 3} | change)
    assert text in str(e.value)


def test_views() -> None:
    weight, bias = r(12), r(12)
    wide = r(4, 24, 6, 8)
    last = r(2, 12, 5, 6).to(memory_format=torch.channels_last)
    for x in (wide[:, :12], wide[::2, 12:], wide[:1, :12].expand(3, 12, 6, 8), wide[:, :12, ::2], last,
              wide[:, :12].transpose(2, 3), wide.view(-1)[1:1153].view(2, 12, 6, 8)):  # fmt: skip
        close(ops.group_norm(x, 3, weight, bias), x, 3, weight, bias)
    assert "copied" not in ops.explain(ops.group_norm, wide[:, :12], 3, weight, bias)
    assert "input is copied first, row-major" in ops.explain(ops.group_norm, last, 3, weight, bias)
    assert "weight is copied first" in ops.explain(ops.group_norm, wide[:, :12], 3, r(24)[::2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_mean_far_from_zero_costs_no_digits(dtype: Any) -> None:
    x = (r(2, 4, 64, dtype=torch.float32) + 1000).to(dtype)
    close(ops.group_norm(x, 2), x, 2)


def test_what_is_pytorchs() -> None:
    x, weight = r(2, 4, 6, dtype=torch.float64), r(4, dtype=torch.float64)
    torch.testing.assert_close(ops.group_norm(x, 2, weight), F.group_norm(x, 2, weight))
    large = r(1, 8, 40000)
    assert "too large for the simulator" in ops.explain(ops.group_norm, large, 2)
    close(ops.group_norm(large, 2), large, 2)
    for shape in ((0, 4, 3), (2, 4, 0)):
        assert ops.group_norm(r(*shape), 2, r(4)).shape == shape


def test_gradients() -> None:
    args = [r(*s, dtype=torch.float64, grad=True) for s in ((2, 6, 4), (6,), (6,))]
    call = lambda x, w, b: ops.group_norm(x, 3, w, b)  # noqa: E731
    assert torch.autograd.gradcheck(call, args)
    assert torch.autograd.gradgradcheck(call, args)
    x, weight, bias = r(2, 12, 9, grad=True), r(12, grad=True), r(12, grad=True)
    g = r(2, 12, 9)
    got = torch.autograd.grad(ops.group_norm(x, 4, weight, bias), (x, weight, bias), g)
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    want = torch.autograd.grad(F.group_norm(wide[0], 4, *wide[1:]), wide, g.double())
    for one, ref in zip(got, want, strict=True):
        assert one.dtype == torch.float16
        assert (one.double() - ref).norm() <= 1e-3 * ref.norm()


def test_compiled_mapped_and_under_autocast() -> None:
    x, weight, bias = r(2, 12, 5), r(12), r(12)
    want = ops.group_norm(x, 4, weight, bias)
    compiled = torch.compile(lambda t: ops.group_norm(t, 4, weight, bias) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), want * 2)
    rows = torch.vmap(lambda t: ops.group_norm(t, 4, weight, bias))(x.unsqueeze(1))
    assert torch.equal(rows.squeeze(1), want)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.group_norm(x, 4, weight, bias).dtype == torch.float32


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ((r(4), 2), "OP_SHAPE", "group_norm: argument 'input' has no channels   [OP_SHAPE]\n"
         "  want: (samples, channels, ...)\n  got:  [4]\n  fix: unsqueeze it"),
        ((r(2, 6, 4), 4), "OP_ARGUMENT",
         "group_norm: argument 'num_groups' does not divide the channels of 'input'   [OP_ARGUMENT]\n"
         "  want: a divisor of 6\n  got:  4\n  fix: give every group as many channels as the others"),
        ((r(2, 6, 4), 0), "OP_ARGUMENT", "want: a divisor of 6\n  got:  0"),
        ((r(2, 6, 4), 2.0), "OP_ARGUMENT", "group_norm: argument 'num_groups' is not an integer"),
        ((r(2, 6, 4), 2, r(3)), "OP_SHAPE", "group_norm: argument 'weight' has the wrong shape   [OP_SHAPE]\n"
         "  want: [6], one for each channel\n  got:  [3]\n  fix: pass a vector"),
        ((r(2, 6, 4), 2, None, r(6, dtype=torch.float32)), "OP_DTYPE", "'bias' has another dtype"),
        ((r(2, 6, 4), 2, r(6, dtype=torch.float16).to("meta")), "OP_DEVICE", "'weight' is on another device"),
        ((r(2, 6, 4), 2, None, None, "q"), "OP_ARGUMENT", "group_norm: argument 'eps' is not a number"),
        ((r(2, 6, 4).int(), 2), "OP_DTYPE", "group_norm: argument 'input' has a dtype that it does not take"),
        (([1.0], 2), "OP_ARGUMENT", "group_norm: argument 'input' is not a torch.Tensor"),
    ],
)  # fmt: skip
def test_refusals(args: tuple[Any, ...], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        ops.group_norm(*args)
    assert e.value.code == code
    assert text in str(e.value)
