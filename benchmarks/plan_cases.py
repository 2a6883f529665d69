"""What the benchmark of planned kernels measures: graphs, the same by PyTorch, and the library's kernels for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

import graphene as gr
from graphene import ops, plan
from graphene.kernels import (
    Attention,
    attention_forward_kernel,
    fused_mlp,
    gemm_launches,
    gemm_workspaces,
    layernorm_kernel,
    rmsnorm_kernel,
    softmax_kernel,
)
from graphene.kernels.gemm.whole import argument
from graphene.select import select_forward, select_gemm, select_norm, select_softmax

Operands = dict[str, torch.Tensor]
Call = Callable[[Operands], Any]
Ready = Callable[[Operands, dict[str, torch.Tensor]], Callable[[], Any]]
MMA, WGMMA = {"instruction": "mma.sync"}, {"instruction": "wgmma"}


@dataclass
class Case:
    """A graph, the sizes that it is planned for, and its peers.

    ``plans``: pins by the name of a way. ``eager``: the same by PyTorch's operators, of tensors by the names of inputs.
    ``library``: ways that take the operands and are ready to be timed; they are made with the operands of a call, and
    with the results that all calls of a way share, as those of plans and of a graph of PyTorch's do.
    ``alone``: ways that do a part of it, as a product alone, whose results are not compared.
    ``compiled``: whether PyTorch's compiler is measured, too. ``scales``: of inputs, whose elements are normal.
    """

    name: str
    graph: plan.Graph
    eager: Call
    sizes: dict[str, int] = field(default_factory=dict)
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"planned": {}})
    library: Mapping[str, Ready] = field(default_factory=dict)
    alone: Mapping[str, Ready] = field(default_factory=dict)
    compiled: bool = False
    scales: Mapping[str, float] = field(default_factory=dict)

    def operands(self, device: str = "cuda") -> Operands:
        """Random inputs."""
        out: Operands = {}
        for v in self.graph.inputs:
            shape = [a.size or self.sizes[a.name] for a in v.more["stored"]]
            if str(v.more["dtype"]) == "i32":  # indices of a few columns
                out[v.name] = torch.randint(1000, shape, device=device, dtype=torch.int32)
                continue
            dtype = {"fp16": torch.half, "bf16": torch.bfloat16, "fp32": torch.float32}[str(v.more["dtype"])]
            out[v.name] = (torch.randn(shape, device=device) * self.scales.get(v.name, 1.0)).to(dtype)
        return out


# Products


def product(m: int, n: int, k: int, device: str | None) -> Ready:
    """The library's product, of `mma.sync` without a device's name; with split k and all that belongs to it."""

    def ready(x: Operands, results: Operands) -> Callable[[], Any]:
        c = select_gemm(m, n, k, device=device)
        c_out = results.setdefault("C", torch.empty(m, n, device="cuda", dtype=torch.half))
        made = {"A": x["A"], "B": x["B"].T, "C": c_out}
        for name, (shape, dtype) in gemm_workspaces(c, m, n, k).items():
            made[name] = torch.empty(shape, device="cuda", dtype={"fp16": torch.half}.get(dtype, torch.float32))
        steps = [(kernel, [argument(made, x, n) for x in names]) for kernel, names in gemm_launches(c)]

        def run() -> Any:
            for kernel, args in steps:
                kernel(*args)
            return made["C"]

        return run

    return ready


def products() -> list[Case]:
    """Plain products beside the library's of either instruction and cuBLAS."""
    out = []
    shapes = [(4096, 4096, 4096), (2048, 8192, 4096), (512, 4096, 4096), (64, 4096, 4096), (12288, 3072, 768)]
    for M, N, K in (*shapes, (1000, 1000, 1000), (512, 2048, 2048)):
        m, k, n = plan.axes(m=gr.sym("M"), k=K, n=N)
        with plan.graph("product") as g:
            a, b = g.input("A", [m, k], gr.fp16), g.input("B", [n, k], gr.fp16)
            g.output("C", plan.dot(a, b, k), [m, n], gr.fp16)
        library = {"library, mma.sync": product(M, N, K, None), "library, wgmma": product(M, N, K, "NVIDIA H200")}
        spread = {**MMA, "copies.when": "between slices"}
        plans = {"planned, mma.sync": MMA, "planned, copies spread": spread, "planned, wgmma": WGMMA}
        plans["planned, wgmma, a tile for each block"] = {**WGMMA, "cluster": "none", "blocks": "a tile"}
        out.append(Case(f"product {M}x{N}x{K}", g, lambda x: x["A"] @ x["B"].T, {"m": M}, plans, library))
    m, k, n = plan.axes(m=gr.sym("M"), k=4096, n=4096)
    with plan.graph("linear_gelu") as g:
        a, b, bias = g.input("A", [m, k], gr.fp16), g.input("B", [n, k], gr.fp16), g.input("bias", [n], gr.fp16)
        g.output("C", plan.gelu(plan.dot(a, b, k) + bias), [m, n], gr.fp16)

    def gelu(x: Operands) -> Any:
        return functional.gelu(functional.linear(x["A"], x["B"], x["bias"]))

    scales = {"A": 0.1, "B": 0.1}
    out.append(Case("linear with gelu 4096^3", g, gelu, {"m": 4096}, plans, compiled=True, scales=scales))
    return out


def perceptrons() -> list[Case]:
    """Two layers of 128, whose middle stays on chip."""
    m, k, h, n = plan.axes(m=gr.sym("M"), k=128, h=128, n=128)
    with plan.graph("perceptron") as g:
        x, v, w = g.input("X", [m, k], gr.fp16), g.input("V", [h, k], gr.fp16), g.input("W", [h, n], gr.fp16)
        g.output("Y", plan.relu(plan.dot(plan.relu(plan.dot(x, v, k)), w, h)), [m, n], gr.fp16)

    def library(x: Operands, results: Operands) -> Callable[[], Any]:
        kernel, y = fused_mlp(L=2, H=128), results.setdefault("Y", torch.empty_like(x["X"]))
        weights = [x["V"], x["W"].T.contiguous()]
        biases = [torch.zeros(128, device="cuda", dtype=torch.half) for _ in range(2)]

        def run() -> Any:
            kernel(x["X"], weights, biases, y)
            return y

        return run

    def eager(x: Operands) -> Any:
        return torch.relu(torch.relu(x["X"] @ x["V"].T) @ x["W"])

    return [Case("two layers of 128, 65536 rows", g, eager, {"m": 65536}, library={"library": library},
                 scales={"V": 0.1, "W": 0.1})]  # fmt: skip


# Attention


def attention(b: int, h: int, j: int, s: int, d: int, norms: bool) -> Case:
    """Attention of b batches, h heads of keys, j heads of queries for each, s tokens of d elements."""
    B, H, J, Q, S, D, E = plan.axes(b=b, h=h, j=j, q=s, s=s, d=d, e=d)

    def norm(x: Any) -> Any:
        return x * plan.rsqrt(plan.mean(x * x, D) + 1e-6) if norms else x

    with plan.graph("attention") as g:
        q = g.input("Q", [B, H, J, Q, D], gr.fp16)
        k, v = g.input("K", [B, H, S, D], gr.fp16), g.input("V", [B, H, S, E], gr.fp16)
        weights = plan.softmax(plan.dot(norm(q), norm(k), D) * d**-0.5, S)
        g.output("O", plan.dot(weights, v, S), [B, H, J, Q, E], gr.fp16)

    def eager(x: Operands) -> Any:
        q, k = x["Q"].reshape(b, h * j, s, d), x["K"]
        if norms:
            q, k = (functional.rms_norm(t, (d,), None, 1e-6) for t in (q, k))
        made = functional.scaled_dot_product_attention(q, k, x["V"], enable_gqa=j > 1)
        return made.view(b, h, j, s, d)

    def tokens(x: Operands) -> list[torch.Tensor]:
        return [x[n].reshape(b, -1, s, d).transpose(1, 2) for n in "QKV"]

    def by_mma(x: Operands, results: Operands) -> Callable[[], Any]:
        kernel = attention_forward_kernel(select_forward(Attention(d), keys=s))
        q, k, v = tokens(x)
        o = results.setdefault("O", torch.empty_like(x["Q"]))
        to = o.view(b, h, s, d).transpose(1, 2)

        def run() -> Any:
            kernel(q, k, v, to, d**-0.5 * math.log2(math.e))
            return o

        return run

    def best(x: Operands, _: Operands) -> Callable[[], Any]:
        q, k, v = tokens(x)
        return lambda: ops.attention(q, k, v).transpose(1, 2).view(b, h, j, s, d)

    name = f"attention {b}x{h * j}x{s}x{d}" + (f", {h} heads of keys, normalised" if norms else "")
    return Case(name, g, eager, library={} if norms else {"library, mma.sync": by_mma, "library": best}, compiled=norms)


def attentions() -> list[Case]:
    """Plain attention beside the library's."""
    return [attention(4, 16, 1, 1024, 64, False), attention(2, 16, 1, 2048, 128, False)]


def normalised() -> list[Case]:
    """Grouped queries and keys that are normalised inside of the kernel."""
    return [attention(2, 8, 2, 1024, 64, True), attention(4, 4, 4, 512, 64, True), attention(2, 8, 2, 1024, 128, True)]


# Rows


def rows() -> list[Case]:
    """Softmax and norms beside the library's kernels."""
    out = []
    for count, width in ((8192, 1024), (8192, 4096)):
        for kind in ("softmax", "rmsnorm", "layernorm"):
            r, w = plan.axes(rows=gr.sym("R"), width=width)
            with plan.graph(kind) as g:
                x = g.input("X", [r, w], gr.fp16)
                if kind == "softmax":
                    y = plan.softmax(x, w)
                elif kind == "rmsnorm":
                    y = x * plan.rsqrt(plan.mean(x * x, w) + 1e-5) * g.input("G", [w], gr.fp16)
                else:
                    centred = x - plan.mean(x, w)
                    y = centred * plan.rsqrt(plan.mean(centred * centred, w) + 1e-5)
                    y = y * g.input("G", [w], gr.fp16) + g.input("B", [w], gr.fp16)
                g.output("Y", y, [r, w], gr.fp16)
            plans = {"planned": {}, "planned, divided": {"rewrite.reciprocals": False}}
            out.append(Case(f"{kind} {count}x{width}", g, eager_rows(kind, width), {"rows": count},
                            plans if kind == "softmax" else {"planned": {}},
                            {"library": library_rows(kind, count, width)}, compiled=True))  # fmt: skip
    return out


def eager_rows(kind: str, width: int) -> Call:
    """PyTorch's operator."""
    return {
        "softmax": lambda x: torch.softmax(x["X"], -1),
        "rmsnorm": lambda x: functional.rms_norm(x["X"], (width,), x["G"], 1e-5),
        "layernorm": lambda x: functional.layer_norm(x["X"], (width,), x["G"], x["B"], 1e-5),
    }[kind]


def library_rows(kind: str, count: int, width: int) -> Ready:
    """The library's kernel."""

    def ready(x: Operands, results: Operands) -> Callable[[], Any]:
        where: dict[str, Any] = {"dense_bytes": 16, "device": torch.cuda.get_device_name()}
        y, eps = results.setdefault("Y", torch.empty_like(x["X"])), () if kind == "softmax" else (1e-5,)
        if kind == "softmax":
            kernel = softmax_kernel(select_softmax(count, width, gr.fp16, **where))
        elif kind == "rmsnorm":
            kernel = rmsnorm_kernel(select_norm(count, width, gr.fp16, kind="rmsnorm", beta=False, **where))
        else:
            kernel = layernorm_kernel(select_norm(count, width, gr.fp16, **where))
        given = [x[n] for n in ("X", "G", "B") if n in x]

        def run() -> Any:
            kernel(*given, y, *eps)
            return y

        return run

    return ready


# What is fused


def pins(m: int, tiles: Sequence[tuple[int, int, int, str]]) -> dict[str, dict[str, Any]]:
    """The planner's own tile, and others: columns, k of a step, stages, warps."""
    others = {
        f"planned {n}x{k}, {s} stages": {**MMA, "tile.m": m, "tile.n": n, "loop.k": k, "stages": s, "warps": w}
        for n, k, s, w in tiles
    }
    return {"planned": MMA, **others}


def fused() -> list[Case]:
    """RMSNorm with a linear layer, a gated perceptron and LoRA, of few rows: memory bounds them."""
    out = []
    m, k, n = plan.axes(m=gr.sym("M"), k=4096, n=6144)
    with plan.graph("rms_linear") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        g.output("O", plan.dot(x * plan.rsqrt(plan.mean(x * x, k) + 1e-5), w, k), [m, n], gr.fp16)
    tiles = [(n, k, s, w) for n, w in ((32, "1x2"), (64, "1x4"), (96, "1x3")) for k, s in ((128, 3), (128, 5), (64, 5))]
    tiles += [(48, k, s, "1x3") for k, s in ((128, 3), (128, 4), (128, 6), (64, 8))]  # 128 blocks for 132 processors

    def normed(x: Operands) -> Any:
        return functional.rms_norm(x["X"], (4096,), None, 1e-5) @ x["W"]

    own = pins(16, tiles)
    out.append(Case("RMSNorm + linear 16x4096x6144", g, normed, {"m": 16}, own, compiled=True, scales={"W": 0.02}))
    m, k, f = plan.axes(m=gr.sym("M"), k=4096, f=4096)
    with plan.graph("swiglu") as g:
        x, v, w = g.input("X", [m, k], gr.fp16), g.input("V", [k, f], gr.fp16), g.input("W", [k, f], gr.fp16)
        g.output("H", plan.silu(plan.dot(x, v, k)) * plan.dot(x, w, k), [m, f], gr.fp16)
    tiles = [(n, k, s, w) for n, w in ((16, "1x1"), (32, "1x2"), (64, "1x4")) for k, s in ((128, 3), (64, 5))]

    def gated(x: Operands) -> Any:
        return functional.silu(x["X"] @ x["V"]) * (x["X"] @ x["W"])

    own, scales = pins(16, tiles), {"V": 0.02, "W": 0.02}
    out.append(Case("SwiGLU 8x4096 by 2 x 4096", g, gated, {"m": 8}, own, compiled=True, scales=scales))
    m, k, n, r = plan.axes(m=gr.sym("M"), k=256, n=4096, r=16)
    with plan.graph("lora") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        a, b = g.input("A", [k, r], gr.fp16), g.input("B", [r, n], gr.fp16)
        low = plan.dot(x, a, k).round(gr.fp16)
        g.output("O", plan.dot(x, w, k) + plan.dot(low, b, r), [m, n], gr.fp16)
    tiles = [(16, 128, 3, "1x1"), (16, 64, 4, "1x1"), (32, 64, 4, "1x2"), (32, 128, 3, "1x1")]

    def adapted(x: Operands) -> Any:
        return x["X"] @ x["W"] + x["X"] @ x["A"] @ x["B"]

    own, scales = pins(16, tiles), {"W": 0.1, "A": 0.1, "B": 0.1}
    out.append(Case("LoRA 16x256 by 4096, rank 16", g, adapted, {"m": 16}, own, compiled=True, scales=scales))
    return out


def convolutions() -> list[Case]:
    """3x3, NHWC, beside cuDNN; a bias and relu behind it."""
    out = []
    for side, channels in ((56, 64), (28, 128), (14, 256), (14, 512)):
        n, h, w, c = plan.axes(n=32, h=side, w=side, c=channels)
        p, q, r, s, k = plan.axes(p=side, q=side, r=3, s=3, k=channels)
        with plan.graph("convolution") as g:
            x, weights = g.input("X", [n, h, w, c], gr.fp16), g.input("F", [k, r, s, c], gr.fp16)
            windows = plan.window(plan.window(x, h, p, r, padding=1), w, q, s, padding=1)
            g.output("Y", plan.dot(windows, weights, [r, s, c]), [n, p, q, k], gr.fp16)

        def eager(x: Operands) -> Any:
            image, filters = (x[name].permute(0, 3, 1, 2) for name in "XF")  # channels_last, as cuDNN likes it
            return functional.conv2d(image, filters, padding=1).permute(0, 2, 3, 1)

        plans = {"planned": {}, "planned, wgmma": WGMMA}
        out.append(Case(f"convolution 3x3, 32x{side}x{side}x{channels}", g, eager, {}, plans, scales={"F": 0.05}))
    return out


def heads() -> list[Case]:
    """A loss of a vocabulary without stored logits, beside cuBLAS' product alone, which stores them."""
    out = []
    for rows, width, columns in ((4096, 4096, 128256), (64, 4096, 128256)):
        m, k, v = plan.axes(m=gr.sym("M"), k=width, v=columns)
        with plan.graph("head") as g:
            h, w = g.input("H", [m, k], gr.fp16), g.input("W", [v, k], gr.fp16)
            z = plan.dot(h, w, k)
            g.output("loss", plan.logsumexp(z, v) - plan.at(z, v, g.input("label", [m], gr.i32)), [m], gr.fp32)

        def eager(x: Operands) -> Any:
            return functional.cross_entropy((x["H"] @ x["W"].T).float(), x["label"].long(), reduction="none")

        def product_alone(x: Operands, results: Operands) -> Callable[[], Any]:
            z = results.setdefault("Z", torch.empty(len(x["H"]), len(x["W"]), device="cuda", dtype=x["H"].dtype))
            return lambda: torch.mm(x["H"], x["W"].T, out=z)

        tiles = {f"planned, {n} columns": {"tile.n": n} for n in ((192, 256) if rows > 64 else ())}
        if rows > 64:
            tiles["planned, 256 columns, 4 parts"] = {"tile.n": 256, "parts": 4}
        out.append(Case(f"loss of {columns}, {rows}x{width}", g, eager, {"m": rows}, {"planned": {}, **tiles},
                        alone={"cuBLAS, product alone": product_alone}, scales={"W": 0.02}))  # fmt: skip
    return out


TABLES: dict[str, Callable[[], list[Case]]] = {
    "fused": fused, "qknorm": normalised, "product": products, "perceptron": perceptrons, "attention": attentions,
    "rows": rows, "convolution": convolutions, "head": heads,
}  # fmt: skip
