"""gemm_sm90 of fp8, i8 and tf32: values of every option, scales, promoted sums; rounding, refusals, selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import GemmConfig, gemm_launches, gemm_sm90, run_gemm
from graphene.select import select_gemm

torch = pytest.importorskip("torch")

HELD: dict[str, Any] = {
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "i32": torch.int32,
}
HELD |= {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SMALL: dict[str, Any] = {
    "tile": (64, 64, 128), "warps": (4, 1), "stages": 3, "kernel": "gemm_sm90", "dtype": "fp8e4m3", "out": "fp16",
}  # fmt: skip
FEW = SMALL | {"tile": (16, 64, 128), "warps": (1, 4)}
SHARED = SMALL | {"tile": (128, 64, 128), "warps": (8, 1)}
TERMS: dict[str, Any] = {"bias": True, "residual": True, "activation": "relu"}


def drawn(config: GemmConfig, sizes: tuple[int, int, int], draw: Any, scale: Any) -> dict[str, Any]:
    """Arguments of run_gemm: operands and terms from `draw(shape)`, scales from `scale(length)`."""
    (M, N, K), out = sizes, HELD[config.out_dtype]
    given = {
        "a": torch.from_numpy(draw((M, K))).to(HELD[config.dtype]),
        "b": torch.from_numpy(draw((N, K))).to(HELD[config.b_dtype or config.dtype]).T,
        "c": torch.full((M, N), 77.0).to(out),
    }
    if config.bias:
        given["bias"] = torch.from_numpy(draw(N)).to(out)
    if config.residual:
        given["residual"] = torch.from_numpy(draw((M, N))).to(out)
    if config.scales is not None:
        lengths = (M, N) if config.scales == "rows" else (1, 1)
        given |= {n: torch.from_numpy(scale(x)).float() for n, x in zip(("scale_a", "scale_b"), lengths, strict=True)}
    return given


def wanted(config: GemmConfig, given: dict[str, Any]) -> Any:
    """The result in fp64."""
    g = {n: t.double() for n, t in given.items()}
    x = g["a"] @ g["b"]
    x = x * g["scale_a"][:, None] * g["scale_b"] if config.scales else x
    x = x + g["bias"] if config.bias else x
    x = x.relu() if config.activation else x
    return x + g["residual"] if config.residual else x


def whole_numbers(config: GemmConfig, sizes: tuple[int, int, int], rng: Any) -> dict[str, Any]:
    """Sums below 2^13, which are exact, and scales that are powers of two."""
    return drawn(
        config, sizes, lambda s: rng.integers(-3, 4, s).astype(np.float32), lambda n: 2.0 ** rng.integers(-1, 2, n)
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "e4m3": SMALL | {"turns": True, "out": "bf16"},
    "e5m2, sums": SMALL | {"dtype": "fp8e5m2", "out": None},
    "e4m3 by e5m2": SMALL | {"b_dtype": "fp8e5m2"},
    "e5m2 by e4m3, few rows": FEW | {"dtype": "fp8e5m2", "b_dtype": "fp8e4m3"},
    "scales of tensors": SMALL | TERMS | {"scales": "tensor", "turns": True},
    "scales of rows": SMALL | TERMS | {"scales": "rows", "turns": True},
    "scales of rows, fp32": SMALL | {"scales": "rows", "bias": True, "out": "fp32"},
    "scales of rows, few rows": FEW | {"scales": "rows", "bias": True},
    "scales of rows, few rows, fp32": FEW | {"scales": "rows", "out": "fp32"},
    "scales of rows, two rows of instructions": SMALL | {"tile": (128, 192, 128), "scales": "rows", "stages": 2},
    "scales of rows, parts of k": SMALL | {"scales": "rows", "split_k": 2, "bias": True},
    "scales of tensors, parts of k": SMALL | {"scales": "tensor", "split_k": 2},
    "promoted": SHARED | {"scales": "rows", "promote": True},
    "promoted in turns": SMALL | {"promote": True, "turns": True},
    "promoted, few rows": FEW | {"tile": (16, 128, 128), "warps": (1, 8), "promote": True, "cluster": (1, 1, 2)},
    "results of e5m2, scales of rows": SMALL | {"out": "fp8e5m2", "scales": "rows"},
    "results of e4m3, few rows, parts of k": FEW | {"out": "fp8e4m3", "split_k": 2},
    "cluster along rows": SMALL | {"tile": (64, 128, 128), "turns": True, "cluster": (2, 1, 1), "scales": "rows"},
    "i8, scales of rows": SMALL | {"dtype": "i8", "scales": "rows", "turns": True},
    "i8, scales of tensors": SMALL | {"dtype": "i8", "scales": "tensor", "out": "fp32"},
}  # fmt: skip


TF32 = SMALL | {"tile": (64, 64, 32), "dtype": "fp32", "out": None}
OPTIONS |= {
    "tf32": TF32 | TERMS | {"turns": True},
    "tf32, few rows, parts of k": TF32 | {"tile": (16, 64, 32), "warps": (1, 4), "split_k": 2, "out": "fp16"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_computes_the_product(name: str, rng: Any) -> None:
    config = GemmConfig(**OPTIONS[name])
    given = whole_numbers(config, (136, 144, 208 if not config.promote else 1168), rng)
    run_gemm(config, **given)
    assert torch.equal(given["c"].double(), wanted(config, given).to(given["c"].dtype).double())


def test_fp32_is_rounded_to_tf32_as_a_card_does_it() -> None:
    """By TMA: to nearest, of two to the even one; numbers of an H200 (benchmarks/results/hopper_h200.json)."""
    bits = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0xBF803000, 0x3FFFF000, 0x00001001, 0x007FFFFF, 0x7F7FEFFF]
    want = [0x3F800000, 0x3F804000, 0x3F800000, 0x3F802000, 0xBF804000, 0x40000000, 0x00002000, 0x00800000, 0x7F7FE000]
    a = np.zeros((64, 32), np.float32)
    a[: len(bits), 0] = np.array(bits, np.uint32).view(np.float32)
    b, c = np.eye(64, 32, dtype=np.float32), np.zeros((64, 64), np.float32)
    run_gemm(GemmConfig(**TF32), a, b.T, c)
    assert c[: len(bits), 0].view(np.uint32).tolist() == want


def test_lines_that_are_padded_first(rng: Any) -> None:
    odd = {"pad": (True, True), "align": (1, 1, 2), "b_dtype": "fp8e5m2", "scales": "rows"}
    config = GemmConfig(**SMALL | odd)
    given = whole_numbers(config, (65, 67, 133), rng)
    run_gemm(config, **given)
    assert torch.equal(given["c"].double(), wanted(config, given).half().double())


def test_promoted_sums_keep_what_fourteen_bits_lose(rng: Any) -> None:
    """Terms of one sign: each step of k cuts the sum, unless steps of 128 begin at 0."""
    errors = {}
    for promote in (False, True):
        config = GemmConfig(**SMALL | {"out": "fp32", "promote": promote})
        given = drawn(config, (64, 64, 4096), lambda s: np.abs(rng.standard_normal(s)).astype(np.float32), None)
        run_gemm(config, **given)
        want = wanted(config, given)
        errors[promote] = float(((given["c"].double() - want) / want).abs().max())
    assert errors[True] < 2e-3 < 10 * errors[True] < errors[False] < 0.1


LARGE: dict[str, dict[str, Any]] = {
    "in turns": {"tile": (128, 192, 128), "stages": 4, "turns": True, "scales": "rows"},
    "shared, terms": {"tile": (128, 256, 128), "stages": 3, "warps": (8, 1), "scales": "rows"} | TERMS,
    "promoted": {"tile": (128, 128, 128), "stages": 6, "warps": (8, 1), "scales": "rows", "promote": True},
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tiles_compile_without_spills(name: str) -> None:
    (launch,) = gemm_launches(GemmConfig(**SMALL | {"group": 8} | LARGE[name]))
    assert launch.kernel.compile("sm_90a").spill_bytes == 0


KERNELS: dict[str, dict[str, Any]] = {
    "mixed": {"b_dtype": gr.fp8e5m2, "scales": "rows", "epilogue": lambda x, b: gr.max(x + b, 0), "bias": True},
    "promoted": {"BM": 128, "warps": (8, 1), "promote": True, "scales": "tensor", "out": gr.fp8e4m3},
    "tf32": {"dtype": gr.fp32, "out": gr.fp32},
}


@pytest.mark.parametrize("name", KERNELS)
def test_keeps_its_promises(name: str) -> None:
    plain = {
        "BM": 64,
        "BN": 64,
        "STAGES": 2,
        "dtype": gr.fp8e4m3,
        "out": gr.fp16,
        "epilogue": lambda x: x,
        "bias": False,
    }
    kernel = gemm_sm90(**plain | KERNELS[name])
    assert gr.parse(str(kernel)) == kernel
    result = kernel.check(M=72, N=80, K={"tf32": 80, "promoted": 400}.get(name, 208))
    assert result.ok, str(result)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"order": "NN"}, "gemm_sm90: the instruction takes fp8e4m3 along k"),
    ({"kernel": "gemm_sm80", "warps": (2, 2)}, "GemmConfig: products of fp8, and scaled ones, are gemm_sm90's"),
    ({"b_dtype": "i8"}, "GemmConfig: b_dtype, of dtype fp8e4m3, does not fit"),
    ({"dtype": "fp16", "scales": "rows"}, "GemmConfig: only operands of bytes are scaled"),
    ({"dtype": "i8", "promote": True}, "GemmConfig: only sums of fp8 are promoted"),
    ({"scales": "rows", "batched": True}, "GemmConfig: scales have no batch"),
    ({"scales": "columns"}, "GemmConfig: scales does not fit"),
    ({"dtype": "i8", "out": "i32", "scales": "rows"}, "GemmConfig: integers are not scaled"),
    ({"promote": True, "tile": (64, 144, 128)}, "gemm_sm90: sums do not fit into registers"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_has_no_kernel_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        gemm_launches(GemmConfig(**SMALL | options))
    assert message in str(e.value)


def test_scales_are_given_if_the_configuration_has_them() -> None:
    a = torch.zeros(64, 128).to(torch.float8_e4m3fn)
    with pytest.raises(gr.VerifyError, match="run_gemm: scale_a does not fit"):
        run_gemm(GemmConfig(**SMALL | {"scales": "rows"}), a, a.T, torch.zeros(64, 64).half())


def test_selection_takes_tf32() -> None:
    for M, N, K in ((4096, 4096, 4096), (2048, 8192, 8192)):
        config = select_gemm(M, N, K, dtype="fp32", device="NVIDIA H200")
        assert (config.kernel, config.tile[2]) == ("gemm_sm90", 32)
    assert select_gemm(4096, 4096, 4096, dtype="fp32", order="NT", device="NVIDIA H200").kernel == "gemm_sm80"


@pytest.mark.parametrize("dtype", ["fp8e4m3", "fp8e5m2", "i8"])
def test_selection_takes_tiles_of_wgmma(dtype: str) -> None:
    for M, N, K in ((4096, 4096, 4096), (16, 4096, 4096), (1000, 1000, 1000)):
        plain = [{}, {"promote": True, "align": (8, 8, 8)}] if dtype != "i8" else []
        for more in (*plain, {"scales": "rows", "out": "bf16", "align": (16, 16, 2)}):
            config = select_gemm(M, N, K, dtype=dtype, device="NVIDIA H200", **more)
            assert (config.kernel, config.tile[2]) == ("gemm_sm90", 128)
            assert config.pad == ((True, True) if "promote" in more else (False, False))
            gemm_launches(config)


@pytest.mark.parametrize(("M", "N"), [(1, 1), (1, 8), (24, 32), (32, 1), (17, 100000), (100000, 3)])
def test_selection_has_tiles_for_few_rows_and_columns(M: int, N: int) -> None:
    for promote in (False, True):
        config = select_gemm(
            M, N, 4096, dtype="fp8e4m3", promote=promote, out="bf16", align=(16, 16, 2), device="NVIDIA H200"
        )
        gemm_launches(config)


def test_selection_refuses_what_no_kernel_computes() -> None:
    for more in ({"order": "TT", "device": "NVIDIA H200"}, {"device": "NVIDIA A100"}):
        with pytest.raises(gr.VerifyError, match="select_gemm: no kernel for this product of fp8e4m3"):
            select_gemm(256, 256, 256, dtype="fp8e4m3", **more)


@pytest.mark.gpu
def test_a_card_rounds_fp32_as_the_simulator_does(rng: Any) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper card")
    bits = rng.integers(0, 1 << 32, (64, 32), dtype=np.uint64).astype(np.uint32)
    bits[::2] = bits[::2] & ~np.uint32(0x1FFF) | np.uint32(0x1000)  # in the middle between two
    a = torch.from_numpy(bits.view(np.float32))
    a = torch.where(a.abs() < 1e30, a, 1.5)  # products of larger numbers and zeros are no numbers
    results = []
    for device in ("cpu", "cuda"):
        b, c = torch.eye(64, 32, device=device), torch.zeros(64, 64, device=device)
        run_gemm(GemmConfig(**TF32), a.to(device), b.T, c)
        results.append(c.cpu().view(torch.int32))
    assert torch.equal(*results)
