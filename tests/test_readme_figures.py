"""Every figure that the README quotes is the recorded one, rounded, and its command is what recorded it."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROSE = " ".join(README.split())
ROWS = {
    cells[0]: (cells[1], cells[2])
    for line in README.partition("## Figures")[2].splitlines()
    if line.startswith("| ") and (cells := [c.strip() for c in line.strip("|").split("|")])[0] != "what"
}


def results(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}_h200.json").read_text())
    return read


def launch(r: dict[str, Any]) -> list[str]:
    us = r["us_per_launch"]
    bare = us["bare cuLaunchKernel from C"]
    others = [f"{us[n] / bare:.2f}" for n in ("graphene", "CuPy RawKernel", "torch.add", "Triton")]
    return [f"{us['graphene']:.1f}", *others]


def operators(r: dict[str, Any]) -> list[str]:
    us = r["us_per_call"]
    names = ["matmul", "layer_norm", "rms_norm", "softmax"]
    calls = [f"graphene.ops.{n}" for n in names] + ["torch.matmul", *(f"torch {n}" for n in names[1:])]
    return [f"{us[n] / us['bare cuLaunchKernel from C']:.2f}" for n in calls]


def products(r: dict[str, Any], table: str, cases: list[str], ratio: bool) -> list[str]:
    """Of cases: our speed, then cuBLAS' and Triton's where they are; or how many times cuBLAS' speed ours is."""
    tflops = {(row["case"], row["peer"]): row["tflops"] for row in r["rows"] if row["table"] == table}
    if ratio:
        return [f"{tflops[c, 'graphene'] / tflops[c, 'cuBLAS']:.2f}" for c in cases]
    peers = ("graphene", "cuBLAS", "Triton")
    return [f"{tflops[c, peer]:.0f}" for peer in peers for c in cases if (c, peer) in tflops]


def against_cublas(r: dict[str, Any], *tables: str) -> list[str]:
    """Of each table: how many times cuBLAS' speed ours is, in the geometric mean and at least."""
    out = []
    for table in tables:
        us = {(x["case"], x["peer"]): x["microseconds"] for x in r["rows"] if x["table"] == table}
        ratios = [us[case, "cuBLAS"] / us[case, "graphene"] for case in dict.fromkeys(case for case, _ in us)]
        out += [f"{statistics.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"]
    return out


def fp8(r: dict[str, Any]) -> list[str]:
    """With scales of rows: our speed, and how many times PyTorch's it is; the same in the mean of each table."""
    cases, peer = [f"{n}x{n}x{n}" for n in (2048, 4096, 8192)], "torch._scaled_mm"
    tflops = {(row["table"], row["case"], row["peer"]): row["tflops"] for row in r["rows"]}
    ratios = {(t, c): x / tflops[t, c, peer] for (t, c, p), x in tflops.items() if p == "graphene" and t[:3] == "fp8"}
    means = [
        statistics.geometric_mean(x for (table, _), x in ratios.items() if table == t)
        for t in ("fp8", "fp8 of tensors", "fp8 promoted")
    ]
    speeds = [f"{tflops['fp8', c, 'graphene']:.0f}" for c in cases]
    return [*speeds, *(f"{ratios['fp8', c]:.2f}" for c in cases), *(f"{m:.2f}" for m in means)]


FUSED = ("bias", "relu", "gelu", "silu and residual")


def fused(r: dict[str, Any]) -> list[str]:
    """The speed of products with epilogues, as a share of the plain product's."""
    out = []
    for size in ("5376x5376x2048", "4096x4096x4096", "12288x3072x768"):
        rows = [x for x in r["rows"] if x["table"] == f"epilogues {size}" and x["peer"] == "graphene"]
        us = {x["case"]: x["microseconds"] for x in rows}
        out += [f"{us['plain'] / us[case]:.2f}" for case in FUSED]
    return out


def recorded(r: dict[str, Any]) -> list[str]:
    """Of the example's kernel: the best configuration's speed, then how many times cuBLAS' speed that is."""
    rows = [row for row in r["rows"] if row["table"] == "products" and row["peer"].startswith("in the IR")]
    cases = [" x ".join(map(str, s)) for s in (*((n,) * 3 for n in (2048, 4096, 8192)), (5376, 5376, 2048))]
    best = [max((row for row in rows if row["case"] == c), key=lambda row: row["tflops"]) for c in cases]
    return [*(f"{row['tflops']:.0f}" for row in best), *(f"{row['of cuBLAS']:.2f}" for row in best)]


def symbols(r: dict[str, Any]) -> list[str]:
    us = {row["peer"]: row["microseconds"] for row in r["rows"] if row["table"] == "constants"}
    return [f"{us['constants'] / us['symbols']:.2f}"]


def simulator(r: dict[str, Any]) -> list[str]:
    """Of the median run; the rates of the file are those of the best one."""
    fig8, mma = r["fig8"], r["mma"]
    lane_ops = fig8["lane_ops_per_second"] * fig8["cpu_seconds"] / fig8["median_cpu_seconds"]
    fma = mma["fma_per_second"] * mma["cpu_seconds"] / mma["median_cpu_seconds"]
    return [f"{lane_ops / 1e6:.0f}", f"{fma / 1e9:.2f}"]


def conflicts(r: dict[str, Any]) -> list[str]:
    """Of conflicts; of wavefronts in brackets."""
    total = str(len(r["patterns"]))
    equal = {k: sum(p[f"simulator_{k}"] == p[f"ncu_{k}"] for p in r["patterns"]) for k in ("conflicts", "wavefronts")}
    return [str(equal["conflicts"]), total, str(equal["wavefronts"])]


NAMED = ["8192x768", "12288x1024", "8192x4096", "4096x8192", "32768x4096", "8192x32768"]
ODD = ["8192x1023", "8192x4097", "8192x30522", "4096x50257"]


def of_copy(r: dict[str, Any], table: str, peer: str, cases: list[str]) -> list[str]:
    found = {x["case"]: x["of_copy"] for x in r["rows"] if (x["table"], x["peer"]) == (table, peer)}
    return [f"{found[c]:.2f}" for c in cases]


def norm(table: str) -> Callable[[dict[str, Any]], list[str]]:
    return lambda r: of_copy(r, table, "graphene", NAMED) + of_copy(r, table, "torch.compile", NAMED)


def dense(r: dict[str, Any]) -> list[str]:
    tables = ("layernorm", "rmsnorm", "softmax")
    return [x for peer in ("graphene", "torch.compile") for t in tables for x in of_copy(r, t, peer, ODD)]


def microseconds(r: dict[str, Any], table: str, against: str, cases: list[str]) -> list[str]:
    """Ours of each case, then how many times faster than another's."""
    us = {(x["case"], x["peer"]): x["us"] for x in r["rows"] if x["table"] == table}
    return [f"{us[c, 'graphene']:.1f}" for c in cases] + [f"{us[c, against] / us[c, 'graphene']:.2f}" for c in cases]


CELL = "relu(x W + h U + b)"


def concatenated(r: dict[str, Any], case: str) -> str:
    """Microseconds of the peer that is faster."""
    peer = "cuBLASLt on [x,h] concatenated before"
    return next(f"{x['us']:.1f}" for x in r["rows"] if (x["table"], x["case"], x["peer"]) == (CELL, case, peer))


LONG = [f"b2 h16 s4096 {d}" for d in ("d64", "d64 causal", "d128", "d128 causal")]


DECODED = ["b1 h32/8 keys 4096 d128", "b16 h32/8 keys 4096 d128", "b1 h32/8 keys 131072 d128"]


def attention(r: dict[str, Any], table: str, cases: list[str]) -> list[str]:
    """Our speed in each case, then how many times cuDNN's and FlashAttention-2's it is."""
    tflops = {(x["case"], x["peer"]): x["tflops"] for x in r["rows"] if x["table"] == table}
    ours = [tflops[c, "graphene"] for c in cases]
    peers = ("cuDNN", "FlashAttention-2")
    ratios = [t / tflops[c, peer] for peer in peers for c, t in zip(cases, ours, strict=True)]
    return [f"{t:.0f}" for t in ours] + [f"{x:.2f}" for x in ratios]


def padded(r: dict[str, Any]) -> list[str]:
    us = {(x["case"].rpartition(" ")[2], x["peer"]): x["us"] for x in r["rows"] if x["table"] == "masked"}
    ours = us["padded", "graphene"]
    return [f"{ours:.1f}", f"{ours / us['padded', 'cuDNN']:.2f}", f"{us['packed', 'graphene']:.1f}"]


def host(r: dict[str, Any]) -> list[str]:
    us = {x["peer"]: x["us"] for x in r["rows"] if x["table"] == "host"}
    return [f"{us['graphene'] / us['bare cuLaunchKernel from C']:.2f}"]


NETWORKS = ["bert", "roberta", "distilroberta", "xlm-roberta", "albert"]


def networks(r: dict[str, Any], table: str) -> list[str]:
    ms = {(x["case"], x["peer"]): x["ms"] for x in r["rows"] if x["table"] == table}
    return [f"{ms[n, peer] / ms[n, 'accelerated']:.2f}" for peer in ("eager", "sdpa") for n in NETWORKS]


# First words of a row -> the file of its figures, and the numbers of its second cell in order.
EXPECTED: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "host time of a launch": ("launch", launch),
    "host time of a call of `graphene.ops`": ("ops", operators),
    "fp16 products, 2048^3": (
        "gemm",
        lambda r: [*products(r, "square", [f"{n}x{n}x{n}" for n in (2048, 4096, 8192)], ratio=False)],
    ),
    "the product of `examples/12_gemm_sm90.py`": ("hopper", recorded),
    "eighteen products": ("gemm", lambda r: against_cublas(r, "usual", "usual TT", "usual bf16")),
    "fp16 products of odd sizes": (
        "gemm",
        lambda r: products(
            r,
            "odd",
            [
                f"{s} {o}"
                for o in ("TN", "TT")
                for s in ("1000x1000x1000", "1023x1025x1027", "257x4099x1031", "4097x4097x4097")
            ],
            ratio=True,
        ),
    ),
    "products with epilogues": ("gemm", fused),
    "fp8 products": ("gemm", fp8),
    "the product of 4096^3 with symbolic sizes": ("gemm", symbols),
    "Fig. 8: build, verify, lower, print": ("jit", lambda r: [f"{r['to_text_ms']:.1f}"]),
    "the same, first in a new process": ("startup", lambda r: [f"{r['fig8_built_ms'] + r['fig8_lowered_ms']:.1f}"]),
    "NVRTC for Fig. 8": ("jit", lambda r: [f"{r['nvrtc_ms']:.0f}", f"{r['first_nvrtc_ms']:.0f}"]),
    "`import graphene`": ("startup", lambda r: [f"{r['import_ms']:.0f}", f"{r['cubin_from_disk_ms']:.1f}"]),
    "Fig. 8 at 1024^3": ("fig8", lambda r: [f"{r['relative_error_against_float64']:.1e}".replace("e-0", "e-"), "16"]),
    "a vector copy": ("copy", lambda r: [f"{r['graphene_gb_per_s'] / 1e3:.2f}", f"{r['ratio']:.2f}"]),
    **{f"{t} fp16": ("norms", norm(t)) for t in ("layernorm", "rmsnorm", "softmax")},
    "rows that begin anywhere": ("norms", dense),
    "attention, fp16": (
        "fmha",
        lambda r: attention(r, "forward", ["b32 h16 s384 d64", *LONG, "b1 h16 s16384 d128 causal"]),
    ),
    "its gradient": ("fmha", lambda r: attention(r, "backward", ["b32 h16 s384 d64", *LONG])),
    "attention, 32 sequences": ("fmha", padded),
    "decoding": ("fmha", lambda r: microseconds(r, "decode", "cuDNN", DECODED)),
    "host time of a call of `graphene.ops.attention`": ("fmha", host),
    "fused MLP": (
        "mlp",
        lambda r: microseconds(
            r, "128 wide, 20 layers", "cuBLASLt a layer", [f"{m} rows" for m in (4096, 16384, 65536)]
        ),
    ),
    "`relu(x W + h U + b)`": (
        "lstm",
        lambda r: [*microseconds(r, CELL, "five kernels", ["2048x2048x1024"]), concatenated(r, "2048x2048x1024")],
    ),
    "BERT, RoBERTa": ("hf", lambda r: networks(r, "full")),
    "the same, padded": ("hf", lambda r: networks(r, "padded")),
    "simulator, Fig. 8": ("sim", simulator),
    "bank conflicts": ("bank_conflicts", conflicts),
}


@pytest.mark.parametrize("start", EXPECTED)
def test_a_figure_of_the_readme_is_the_recorded_one(start: str) -> None:
    (row,) = [r for r in ROWS if r.startswith(start)]
    name, numbers = EXPECTED[start]
    recorded = results(name)
    figure, command = ROWS[row]
    assert re.findall(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?|(?<=fp)\d+", figure) == numbers(recorded)
    assert recorded["command"].startswith(command.strip("`"))
    assert "H200" in recorded["machine"]["gpus"][0]


def test_every_row_is_compared() -> None:
    assert [r for r in ROWS if not r.startswith(("---", *EXPECTED))] == []


def test_the_versions_above_the_table_are_those_of_every_file() -> None:
    stated = re.search(r"One NVIDIA H200 \(torch ([\d.]+), CUDA ([\d.]+), NVRTC ([\d.]+)\)", README)
    assert stated is not None
    for name in sorted({n for n, _ in EXPECTED.values()}):
        machine = results(name)["machine"]
        assert set(machine["gpus"]) == {"NVIDIA H200"}  # one of them is measured
        assert machine["torch"].startswith(stated[1])
        assert machine["cuda_driver"] == stated[2]
        assert machine["nvidia-cuda-nvrtc"].startswith(stated[3])


def test_false_alarms() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/seeds_cpu.json").read_text())
    alarms, seeds = sum(recorded["alarms"].values()), recorded["seeds"]
    command = recorded["command"].partition(" --jobs")[0]
    assert f"{alarms} false alarms in {seeds} schedules of each kernel of the library: `{command}`" in PROSE
