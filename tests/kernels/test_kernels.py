"""The library's kernels: text and back, compiled without spills, simulated on ragged sizes, checked, run on the GPU."""

import functools

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import flash_fwd, fused_mlp, gemm_sm80, layernorm

ARCHS = ("sm_80", "sm_90a")


@functools.cache
def build(name, *args):
    return {"gemm": gemm_sm80, "flash": flash_fwd, "layernorm": layernorm, "mlp": fused_mlp}[name](*args)


BUILDS = [
    ("gemm",),
    ("gemm", 64, 64, 32, 3),
    ("flash", 64, 64, 32, 4, True),
    ("flash", 64, 64, 32, 4, False),
    ("layernorm", 1000),
    ("layernorm", 1024),
    ("mlp",),
]


@pytest.mark.parametrize("args", BUILDS, ids=lambda a: "-".join(map(str, a)))
def test_text_and_json_give_the_kernel_back(args):
    kernel = build(*args)
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("args", [*BUILDS, ("flash",)], ids=lambda a: "-".join(map(str, a)))
def test_compiles_without_spills(args, arch):
    assert build(*args).compile(arch).spill_bytes == 0


@pytest.mark.parametrize("args", BUILDS, ids=lambda a: "-".join(map(str, a)))
def test_keeps_its_promises(args):
    sizes = {
        "gemm": {"M": 100, "N": 72, "K": 136},
        "flash": {"batch": 1, "sq": 70, "sk": 100, "heads": 2, "kv_heads": 1},
        "layernorm": {"M": 2},
        "mlp": {"M": 140},
    }[args[0]]
    result = build(*args).check(**sizes)
    assert result.ok, result.errors


def f16(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def gemm_case(rng, M, N, K):
    a, b, bias = f16(rng, M, K), f16(rng, N, K), f16(rng, N)
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    return (a, b, bias), want.astype(np.float32), np.zeros((M, N), np.float16)


def attention_case(rng, batch, sq, sk, heads, kv_heads, causal, D=64):
    q, k, v = f16(rng, batch, sq, heads, D), f16(rng, batch, sk, kv_heads, D), f16(rng, batch, sk, kv_heads, D)
    want = np.zeros(q.shape, np.float64)
    for b in range(batch):
        for h in range(heads):
            kh = h * kv_heads // heads
            s = q[b, :, h].astype(np.float64) @ k[b, :, kh].astype(np.float64).T / np.sqrt(D)
            if causal:
                s = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None] + sk - sq, s, -np.inf)
            top = s.max(1, keepdims=True)
            p = np.exp(s - np.where(np.isinf(top), 0, top))
            total = p.sum(1, keepdims=True)
            want[b, :, h] = p @ v[b, :, kh].astype(np.float64) / np.where(total == 0, 1, total)
    return (q, k, v), want.astype(np.float32), np.zeros(q.shape, np.float16), 1 / np.sqrt(D) * np.log2(np.e)


def layernorm_case(rng, M, N):
    x, gamma, beta = f16(rng, M, N), f16(rng, N), f16(rng, N)
    y = x.astype(np.float64)
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
    return (x, gamma, beta), (y * gamma + beta).astype(np.float32), np.zeros((M, N), np.float16)


def mlp_case(rng, M, L=3, H=128):
    x, bias = f16(rng, M, H), [f16(rng, H) for _ in range(L)]
    weights = [(f16(rng, H, H) / 11).astype(np.float16) for _ in range(L)]
    y = x
    for w, b in zip(weights, bias, strict=True):
        y = np.maximum(y.astype(np.float64) @ w.astype(np.float64).T + b, 0).astype(np.float16)
    return (x, weights, bias), y.astype(np.float32), np.zeros((M, H), np.float16)


# Around the tile sizes, sizes of 1, several tiles with a ragged part. The largest remainder classes run on the GPU.
GEMM_SIZES = [(64, 64, 96), (1, 8, 8), (65, 72, 40), (63, 56, 32), (100, 136, 200), (2, 64, 24)]
ATTENTION_SIZES = [(1, 64, 64, 1, 1), (1, 1, 1, 1, 1), (1, 70, 33, 2, 1), (2, 33, 70, 2, 2), (1, 65, 31, 1, 1)]


@pytest.mark.parametrize("size", GEMM_SIZES)
def test_gemm(size, rng):
    inputs, want, c = gemm_case(rng, *size)
    build("gemm", 64, 64, 32, 3).simulate(*inputs, c)
    np.testing.assert_allclose(c, want, atol=2e-3 * np.sqrt(size[2]), rtol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", ATTENTION_SIZES)
def test_attention(size, causal, rng):
    inputs, want, o, scale = attention_case(rng, *size, causal)
    build("flash", 64, 64, 32, 4, causal).simulate(*inputs, o, scale)
    np.testing.assert_allclose(o, want, atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize(("M", "N"), [(1, 1000), (3, 1024), (2, 8), (2, 1032)])
def test_layernorm(M, N, rng):
    inputs, want, y = layernorm_case(rng, M, N)
    build("layernorm", N).simulate(*inputs, y)
    np.testing.assert_allclose(y, want, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("M", [1, 127, 128, 130])
def test_fused_mlp(M, rng):
    inputs, want, y = mlp_case(rng, M)
    build("mlp").simulate(*inputs, y)
    np.testing.assert_allclose(y, want, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ["gemm", "mlp"])
def test_nothing_to_do(name, rng):
    if name == "gemm":
        build("gemm").simulate(np.zeros((0, 8), np.float16), f16(rng, 8, 8), f16(rng, 8), np.zeros((0, 8), np.float16))
    else:
        (_, w, b), _, _ = mlp_case(rng, 1)
        build("mlp").simulate(np.zeros((0, 128), np.float16), w, b, np.zeros((0, 128), np.float16))


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_alarm_on_any_seed(seed, rng):
    inputs, _, c = gemm_case(rng, 65, 72, 168)
    build("gemm", 64, 64, 32, 3).simulate(*inputs, c, seed=seed)
    inputs, _, o, scale = attention_case(rng, 1, 40, 100, 1, 1, True)
    build("flash", 64, 64, 32, 4, True).simulate(*inputs, o, scale, seed=seed)


def test_a_tile_that_does_not_fit_is_refused():
    with pytest.raises(gr.VerifyError) as e:
        gemm_sm80(BK=48)
    assert str(e.value) == (
        "gemm_sm80: BK does not fit   [KERNEL_ARGUMENT]\n  want: an integer, 32 or more, a multiple of 32\n  got: 48"
    )


FUNCTION = "a function of the accumulators and the bias, such as lambda x, b: gr.max(x + b, 0)"


@pytest.mark.parametrize(
    ("build", "arguments", "want"),
    [
        (gemm_sm80, {"BM": 0}, "an integer, 32 or more, a multiple of 32"),
        (gemm_sm80, {"BN": "64"}, "an integer, 64 or more, a multiple of 64"),
        (gemm_sm80, {"STAGES": 1}, "an integer, 2 or more"),
        (gemm_sm80, {"STAGES": 2.0}, "an integer, 2 or more"),
        (gemm_sm80, {"STAGES": True}, "an integer, 2 or more"),
        (gemm_sm80, {"epilogue": 3}, FUNCTION),
        (flash_fwd, {"WARPS": 0}, "an integer from 1 to 32"),
        (flash_fwd, {"BM": 100}, "an integer, 128 or more, a multiple of 128"),
        (flash_fwd, {"D": 100}, "an integer, 16 or more, a multiple of 16"),
        (flash_fwd, {"BN": 8}, "an integer, 16 or more, a multiple of 16"),
        (layernorm, {"N": 1001}, "an integer, 8 or more, a multiple of 8"),
        (layernorm, {"THREADS": 2048}, "an integer from 32 to 1024, a multiple of 32"),
        (layernorm, {"eps": float("nan")}, "a number, 0 or more"),
        (layernorm, {"eps": "small"}, "a number, 0 or more"),
        (fused_mlp, {"L": 0}, "an integer, 1 or more"),
        (fused_mlp, {"H": 48}, "an integer, 32 or more, a multiple of 32"),
        (fused_mlp, {"WARPS": 4}, "an integer from 8 to 8"),
        (fused_mlp, {"BM": None}, "an integer, 64 or more, a multiple of 64"),
        (fused_mlp, {"act": "relu"}, FUNCTION),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_by_name(build, arguments, want):
    ((name, value),) = arguments.items()
    with pytest.raises(gr.VerifyError) as e:
        build(**arguments)
    assert e.value.code == "KERNEL_ARGUMENT"
    first, *details = str(e.value).splitlines()
    assert first.startswith(f"{build.__name__}: {name} ")
    assert details == [f"  want: {want}", f"  got: {value!r}"]


@pytest.mark.gpu
class TestOnTheGpu:
    @staticmethod
    def run(kernel, inputs, out, *scalars):
        import torch

        def up(x):
            return [up(i) for i in x] if isinstance(x, list) else torch.from_numpy(x).cuda()

        result = up(out)
        kernel(*map(up, inputs), result, *scalars)
        torch.cuda.synchronize()
        return result.cpu().numpy()

    @pytest.mark.parametrize("size", [*GEMM_SIZES, (300, 264, 1000), (1000, 1000, 1000)])
    def test_gemm(self, size, rng):
        inputs, want, c = gemm_case(rng, *size)
        got = self.run(build("gemm"), inputs, c)
        np.testing.assert_allclose(got, want, atol=2e-3 * np.sqrt(size[2]), rtol=2e-3)

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("size", [*ATTENTION_SIZES, (2, 1000, 1000, 4, 2), (1, 17, 2049, 2, 1)])
    def test_attention(self, size, causal, rng):
        inputs, want, o, scale = attention_case(rng, *size, causal)
        got = self.run(build("flash", 64, 64, 32, 4, causal), inputs, o, scale)
        np.testing.assert_allclose(got, want, atol=3e-3, rtol=3e-3)

    @pytest.mark.parametrize(("M", "N"), [(1, 1000), (1000, 1024), (7, 8), (100, 4096)])
    def test_layernorm(self, M, N, rng):
        inputs, want, y = layernorm_case(rng, M, N)
        got = self.run(build("layernorm", N), inputs, y)
        np.testing.assert_allclose(got, want, atol=4e-3, rtol=4e-3)

    @pytest.mark.parametrize("M", [1, 127, 1000])
    def test_fused_mlp(self, M, rng):
        inputs, want, y = mlp_case(rng, M)
        np.testing.assert_allclose(self.run(build("mlp"), inputs, y), want, atol=1e-2, rtol=1e-2)
