"""graphene.ops.quantized_linear and the packing of its weights: values, layouts of checkpoints, refusals, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="pip install torch brings it")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels.gemm.weights import WeightsConfig, unpacked  # noqa: E402
from graphene.select.device import of_arch  # noqa: E402
from graphene.select.weight_tiles import estimated_us, select_weights  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")
HALF, BF16, FP8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def layer(n: int, k: int, group: int | None, dtype: Any = HALF, zeros: bool = False, fp8: bool = False) -> list[Any]:
    """Weight, scale and zero of a layer, and its matrix in fp64; a group of None has scales of columns."""
    numbers = torch.randn(n, k).to(FP8) if fp8 else torch.randint(0, 16, (n, k))
    shape = (k // group, n) if group else (n,)
    scale, zero = (torch.rand(shape) + 0.5).to(dtype), torch.randint(0, 17, shape, dtype=torch.uint8) if zeros else None
    wide, rows = numbers.double().reshape(n, shape[0] if group else 1, -1), scale.double().reshape(-1, n)
    if not fp8:
        wide = wide - (zero.double().reshape(-1, n).T.unsqueeze(-1) if zeros else 8)
    return [ops.pack_weights(numbers), scale, zero, (wide * rows.T.unsqueeze(-1)).reshape(n, k)]


@pytest.mark.parametrize(
    ("shape", "n", "k", "group", "dtype", "zeros", "fp8", "bias"),
    [
        ((1,), 48, 256, 128, HALF, False, False, False),
        ((3, 3), 32, 192, 64, BF16, True, False, True),
        ((17,), 16, 128, 32, HALF, True, False, False),
        ((2,), 32, 64, None, HALF, False, False, True),
        ((4,), 16, 128, None, BF16, False, True, False),
        ((5,), 32, 128, 128, HALF, False, True, True),
    ],
)
def test_values(
    shape: tuple[int, ...], n: int, k: int, group: int | None, dtype: Any, zeros: bool, fp8: bool, bias: bool
) -> None:
    weight, scale, zero, wide = layer(n, k, group, dtype, zeros, fp8)
    x, b = torch.randn(*shape, k).to(dtype), torch.randn(n).to(dtype) if bias else None
    assert "the simulator runs" in ops.explain(ops.quantized_linear, x, weight, scale, zero, b)
    got = ops.quantized_linear(x, weight, scale, zero, b)
    want = x.double() @ wide.T + (b.double() if bias else 0)
    ulp = 2.0**-11 if dtype == HALF else 2.0**-8
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= ulp * want.abs() + 1e-4).all()
    reference = torch.ops.graphene.quantized_linear_reference(x, weight, scale, zero, b)
    assert ((reference.double() - want).abs() <= ulp * want.abs() + 1e-4).all()


def test_views_empty_and_what_no_kernel_takes() -> None:
    weight, scale, _, wide = layer(16, 128, 128)
    x = torch.randn(128, 5).half().T
    assert "copied first" in ops.explain(ops.quantized_linear, x, weight, scale)
    assert torch.allclose(ops.quantized_linear(x, weight, scale).double(), x.double() @ wide.T, rtol=1e-3, atol=1e-2)
    assert ops.quantized_linear(x[:0], weight, scale).shape == (0, 16)
    weight, scale, zero, wide = layer(16, 128, None, zeros=True)
    assert "no kernel has groups of 128" in ops.explain(ops.quantized_linear, x, weight, scale, zero)
    got = ops.quantized_linear(x, weight, scale, zero)
    assert torch.allclose(got.double(), x.double() @ wide.T, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("fp8", [False, True])
def test_packing(fp8: bool) -> None:
    numbers = torch.randn(48, 192).to(FP8) if fp8 else torch.randint(0, 16, (48, 192), dtype=torch.uint8)
    packed = ops.pack_weights(numbers)
    assert packed.shape == (3, 3, 256 if fp8 else 128)
    assert torch.equal(ops.unpack_weights(packed).float(), numbers.float())
    assert np.array_equal(unpacked(packed.numpy(), 8 if fp8 else 4), numbers.float().numpy())  # as the kernel says


def words(numbers: Any, order: tuple[int, ...]) -> Any:
    """Words of eight neighbours along the last dimension: that of number order[i] stands in bits 4 * i and on."""
    parts = numbers.reshape(*numbers.shape[:-1], -1, 8)
    total = sum(parts[..., o].long() << (4 * i) for i, o in enumerate(order))
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def test_checkpoints() -> None:
    k, n, group = 128, 32, 32
    q, z = torch.randint(0, 16, (k, n)), torch.randint(1, 16, (k // group, n))
    scale = (torch.rand(k // group, n) + 0.5).half()
    x = torch.randn(2, k).half()
    wide = (q.double() - z.double().repeat_interleave(group, 0)) * scale.double().repeat_interleave(group, 0)
    plain, awq = tuple(range(8)), (0, 2, 4, 6, 1, 3, 5, 7)
    in_k = words(q.T, plain).T.contiguous()
    for made in (
        ops.pack_gptq(in_k, words(z - 1, plain), scale, torch.arange(k) // group),
        ops.pack_gptq(in_k, words(z, plain), scale, zero_offset=0),
        ops.pack_awq(words(q, awq), words(z, awq), scale),
    ):
        assert torch.equal(ops.unpack_weights(made[0]).long(), q.T)
        assert torch.equal(made[2].long(), z)
        assert torch.allclose(ops.quantized_linear(x, *made).double(), x.double() @ wide, rtol=1e-3, atol=1e-2)


def test_gradients() -> None:
    weight, scale, zero, wide = layer(16, 128, 64, zeros=True)
    x, bias = torch.randn(3, 128).half().requires_grad_(), torch.zeros(16).half().requires_grad_()
    g = torch.randn(3, 16).half()
    got = torch.autograd.grad(ops.quantized_linear(x, weight, scale, zero, bias), (x, bias), g)
    assert torch.allclose(got[0].double(), g.double() @ wide, rtol=1e-2, atol=1e-1)
    assert torch.allclose(got[1].double(), g.double().sum(0), rtol=1e-3)


def test_errors() -> None:
    weight, scale, zero, _ = layer(16, 128, 64, zeros=True)
    x, q = torch.randn(3, 128).half(), torch.zeros(4, 16, dtype=torch.int32)
    g = torch.arange(32, dtype=torch.int32) // 32
    for call, code, text in (
        (lambda: ops.quantized_linear(x[:, :64], weight, scale), "OP_SHAPE", "want: [..,128], as many as the weight"),
        (lambda: ops.quantized_linear(x, weight, scale[:, :8]), "OP_SHAPE", "want: [16], or [K / group,16] of K = 128"),
        (lambda: ops.quantized_linear(x, weight, scale, zero[:1]), "OP_SHAPE", "want: [2,16], as 'scale'"),
        (lambda: ops.quantized_linear(x, weight, scale, scale), "OP_DTYPE", "'zero' has a dtype"),
        (lambda: ops.quantized_linear(x.float(), weight, scale), "OP_DTYPE", "'input' has a dtype"),
        (lambda: ops.quantized_linear(x, weight[0], scale), "OP_SHAPE", "'weight' is not packed"),
        (lambda: ops.quantized_linear(x, weight.long(), scale), "OP_DTYPE", "pack it: ops.pack_weights(weight)"),
        (lambda: ops.quantized_linear(x, weight, scale, None, scale), "OP_SHAPE", "want: [16], one for each column"),
        (lambda: ops.pack_weights(torch.zeros(8, 64, dtype=torch.uint8)), "OP_SHAPE", "multiples of 16 and 64"),
        (lambda: ops.pack_weights(torch.zeros(16, 64)), "OP_DTYPE", "neither integers nor fp8"),
        (lambda: ops.pack_weights(torch.full((16, 64), -1)), "OP_ARGUMENT", "got:  -1 to -1"),
        (lambda: ops.pack_weights(None), "OP_ARGUMENT", "'weight' is not a torch.Tensor"),
        (lambda: ops.pack_awq(q, None, scale), "OP_ARGUMENT", "'qzeros' is not a torch.Tensor"),
        (lambda: ops.pack_gptq(q, q, scale, zero_offset="1"), "OP_ARGUMENT", "'zero_offset'"),
        (lambda: ops.unpack_weights([]), "OP_ARGUMENT", "'packed' is not a torch.Tensor"),
        (lambda: ops.pack_gptq(q, q, scale[:, :8]), "OP_SHAPE", "want: [K / group,N] of K = 32, N = 16"),
        (lambda: ops.pack_gptq(q, q, scale[:1]), "OP_SHAPE", "want: [1,2], eight in a word"),
        (lambda: ops.pack_gptq(q, q, scale, zero_offset=2), "OP_ARGUMENT", "'zero_offset' is of no format"),
        (lambda: ops.pack_gptq(q, q[:1, :2], scale[:1], g.new_ones(32)), "OP_ARGUMENT", "do not lie side by side"),
        (lambda: ops.pack_gptq(q, q[:1, :2], scale[:1], g[:8]), "OP_SHAPE", "got:  [8] of torch.int32"),
        (lambda: ops.pack_gptq(q, q[:1, :2], scale[:1], g.half()), "OP_DTYPE", "got:  [32] of torch.float16"),
        (lambda: ops.pack_gptq(q, q[:1, :2], scale[:1], g.to("meta")), "OP_DEVICE", "g_idx: meta"),
        (lambda: ops.pack_awq(q[0], q, scale), "OP_SHAPE", "'qweight' is not a matrix"),
    ):
        with pytest.raises(gr.LaunchError) as e:
            call()
        assert e.value.code == code
        assert text in str(e.value)


def test_packing_where_there_are_no_values() -> None:
    """As models are made before their weights are read."""
    q, zeros = torch.empty(8, 16, dtype=torch.int32, device="meta"), torch.empty(1, 2, dtype=torch.int32, device="meta")
    scale, g = torch.empty(1, 16, dtype=torch.float16, device="meta"), torch.empty(64, dtype=torch.int32, device="meta")
    weight, scale, zero = ops.pack_gptq(q, zeros, scale, g)
    assert (weight.shape, zero.shape) == ((1, 1, 128), (1, 16))
    assert ops.quantized_linear(scale.new_empty(3, 64), weight, scale, zero).shape == (3, 16)


def test_zero_points_of_more_than_seven_bits() -> None:
    weight, scale, _, _ = layer(16, 64, 64, HALF, False, False)
    with pytest.raises(gr.GrapheneError) as e:
        ops.quantized_linear(torch.randn(1, 64).half(), weight, scale, torch.full(scale.shape, 200, dtype=torch.uint8))
    assert str(e.value).splitlines() == [
        "quantized_linear: argument 'zero' has numbers of more than seven bits   [OP_ARGUMENT]",
        "  want: 0 to 127",
        "  got:  200",
        "  fix: pass the weights that stand for zero",
    ]


def test_configurations() -> None:
    for options, text in (
        ({"bits": 8, "zeros": True}, "only integers have zero points"),
        ({"stages": 40}, "the stages do not fit into shared memory"),
        ({"group": 96}, "want: one of 128, 64, 32"),
    ):
        with pytest.raises(gr.VerifyError, match=text):
            WeightsConfig(**options)
    few, many = (select_weights(m, 4096, 4096, device=of_arch("sm_90a")) for m in (1, 64))
    assert (few.tokens, many.tokens) == (1, 8)
    assert many.cluster > 1
    assert select_weights(64, 4096, 4096, device=of_arch("sm_80")).cluster == 1
    assert few.whole
    assert not select_weights(1, 4096 + 16, 4096).whole
    assert not select_weights(1, 4096, 4096 + 128).whole


# Of an H200: tokens, rows, k, bits; the choice and its time in microseconds; the best one's time of those measured.
MEASURED = (
    ((16, 4096, 4096, 4), (2, (1, 4), 1), 9.9, 9.9), ((1, 8192, 8192, 4), (2, (1, 4), 1), 17.5, 17.5),
    ((1, 4096, 4096, 4), (2, (1, 8), 1), 9.4, 9.4), ((1, 28672, 8192, 4), (2, (4, 2), 1), 44.8, 44.8),
    ((64, 4096, 4096, 4), (1, (4, 1), 2), 16.0, 15.8), ((16, 4096, 4096, 8), (2, (1, 4), 1), 12.7, 11.6),
    ((1, 8192, 8192, 8), (1, (4, 2), 1), 27.1, 27.0), ((1, 4096, 4096, 8), (2, (1, 4), 1), 11.7, 11.3),
    ((1, 28672, 8192, 8), (1, (4, 1), 2), 72.3, 67.0), ((64, 4096, 4096, 8), (1, (4, 1), 2), 17.7, 16.9),
)  # fmt: skip


@pytest.mark.parametrize(("problem", "choice", "us", "best_us"), MEASURED)
def test_choices_are_near_the_best_that_was_measured(problem: Any, choice: Any, us: float, best_us: float) -> None:
    m, n, k, bits = problem
    hopper = of_arch("sm_90a")
    config = select_weights(m, n, k, bits=bits, group=128 if bits == 4 else 64, device=hopper)
    assert (config.tiles, config.warps, config.cluster) == choice
    assert us <= 1.1 * best_us
    assert 0.8 < estimated_us(config, config.cluster, m, n, k, hopper) / us < 1.2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize(("group", "zeros", "fp8"), [(128, False, False), (64, True, False), (None, False, True)])
def test_values_on_a_gpu(dtype: Any, group: int | None, zeros: bool, fp8: bool) -> None:
    for m, n, k in ((1, 4096, 4096), (3, 528, 320 if group != 128 else 384), (16, 256, 8192), (100, 512, 1024)):
        *given, wide = layer(n, k, group, dtype, zeros, fp8)
        x = torch.randn(m, k).to(dtype)
        got = ops.quantized_linear(x.cuda(), *(None if t is None else t.cuda() for t in given)).cpu()
        want = x.double() @ wide.T
        assert ((got.double() - want).abs() <= 2.0 ** (-11 if dtype == HALF else -8) * want.abs() + 1e-4 * k**0.5).all()


def cases() -> Any:
    return [(torch.randn(2, 64).half(), *layer(16, 64, 64)[:3], None)]


OPCHECK = {"quantized_linear": cases}
