"""What attention's kernels promise is what PyTorch computes in float64, gradients by its autograd; and it is held."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.judge.verdict import hold
from graphene.kernels import (
    Attention,
    BackwardConfig,
    Extra,
    ForwardConfig,
    attention_delta_kernel,
    attention_forward_kernel,
    attention_keys_gradient_kernel,
    attention_queries_gradient_kernel,
    flash_fwd,
)
from graphene.kernels.attention import reference as means
from graphene.kernels.attention import reference_saved as saved

torch = pytest.importorskip("torch")

A = Attention(16, right=True)
OPTIONS = {
    "causal": A,
    "all": Attention(16),
    "window of grouped heads": replace(A, left=True, group=2),
    "capped": replace(A, softcap=True),
    "mask and bias": Attention(16, mask=Extra(), bias=Extra(gr.fp16), group=2),
    "mask of keys": replace(A, mask=Extra(rows=False)),
    "packed": replace(A, varlen=True, group=2),
    "negative scale": replace(A, scaled=True),
}


def problem(a: Attention, sq: int, sk: int) -> dict[str, Any]:
    """Arguments of all kernels by name, doubles."""
    rng, b, kv = np.random.default_rng(0), 2, 2
    h, D, scale = kv * a.group, a.D, -0.3 if a.scaled else 0.3
    q, k = ((sq, h), (sk, kv)) if a.varlen else ((b, sq, h), (b, sk, kv))
    t = {n: rng.standard_normal((*s, D)) for n, s in (("Q", q), ("K", k), ("V", k), ("G", q))}
    rows = (h, sq) if a.varlen else (b, h, sq)
    t |= {"gL": rng.standard_normal(rows), "scale": scale, "scale_log2": scale * math.log2(math.e)}
    t |= {"cap_log2": 2.0 * math.log2(math.e)} if a.softcap else {}
    t |= {n: v for n, v, given in (("left", 5, a.left), ("right", 1, a.right)) if given}
    if a.mask is not None:
        t["M"] = rng.integers(0, 2, (b, h, sq if a.mask.rows else 1, sk))
    if a.bias is not None:
        t["B"] = rng.standard_normal((b, h, sq, sk))
        t["B"][..., ::7] = -np.inf
    if a.varlen:
        t |= {"starts_q": np.array([2, 9, 9, sq - 3]), "starts_k": np.array([1, 12, 20, sk]), "longest": sq}
    return t


def by_torch(a: Attention, t: dict[str, Any]) -> dict[str, Any]:
    """O, LSE and, of gradients of both, those of Q, K and V."""
    x = {n: torch.tensor(t[n], requires_grad=n in "QKV") for n in ("Q", "K", "V", "G", "gL")}
    parts = [(i, i) for i in range(2)]
    if a.varlen:
        ends = [pairwise(t[n]) for n in ("starts_q", "starts_k")]
        parts = [(slice(*q), slice(*k)) for q, k in zip(*ends, strict=True)]
    out, LSE = torch.zeros_like(x["Q"]), torch.full(t["gL"].shape, -torch.inf, dtype=torch.float64)
    for i, (q, k) in enumerate(parts):
        Q, K, V = (x[n][at].transpose(0, 1) for n, at in (("Q", q), ("K", k), ("V", k)))
        K, V = (y.repeat_interleave(a.group, 0) for y in (K, V))
        s = Q @ K.transpose(1, 2) * t["scale"]
        s = 2 * torch.tanh(s / 2) if a.softcap else s
        s = s + torch.tensor(t["B"][i]) if a.bias is not None else s
        place, key = torch.arange(Q.shape[1])[:, None] + K.shape[1] - Q.shape[1], torch.arange(K.shape[1])
        hidden = (key > place + t["right"]) if a.right else torch.zeros(1, dtype=torch.bool)
        hidden = hidden | (key < place - t["left"]) if a.left else hidden
        hidden = hidden | torch.tensor(t["M"][i] == 0) if a.mask is not None else hidden
        s = s.masked_fill(hidden, -torch.inf)
        nothing = s.isneginf().all(2, keepdim=True)
        p = torch.softmax(s.masked_fill(nothing, 0), 2).masked_fill(nothing, 0)
        out[q] = (p @ V).transpose(0, 1)
        lse = torch.logsumexp(s.masked_fill(nothing, 0), 2).masked_fill(nothing[..., 0], -torch.inf)
        LSE[(slice(None), q) if a.varlen else q] = lse
    total = (out * x["G"]).sum() + (LSE.masked_fill(LSE.isneginf(), 0) * x["gL"]).sum()
    total.backward()
    return {"O": out, "LSE": LSE, **{"d" + n: x[n].grad for n in "QKV"}}


@pytest.mark.parametrize("sizes", [(13, 29), (29, 24)], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_meanings_are_what_pytorch_computes(name: str, sizes: tuple[int, int]) -> None:
    a = OPTIONS[name]
    t = problem(a, *sizes)
    want = {n: x.detach().numpy() for n, x in by_torch(a, t).items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        made = means.forward(a, True, **t)
        delta = np.where(np.isneginf(made["LSE"]), 0, means.delta(t["G"], made["O"], t["gL"]))
        rows = {"LSE": made["LSE"], "delta": delta, "rest": np.zeros_like(delta)}
        made |= means.queries_gradient(a, **t, **rows) | means.keys_gradient(a, None, **t, **rows)
        # By a work space, in two launches.
        t |= {n: np.full_like(t[m], np.nan) for n, m in (("dQ", "Q"), ("dK", "K"), ("dV", "V"))}
        for first, count in ((0, 1), (1, (3 if a.varlen else 2) * 2 - 1)):
            t |= {"first": first, "saved": np.zeros((count, a.group, 4, 128, 32))}
            left = saved.saving_gradient(a, None, **t, **rows)
            t |= {"dK": left["dK"], "dV": left["dV"], "saved": saved.in_panels(left["dS"])}
            t["dQ"] = saved.product(a, 32, **t)["dQ"]
    for n, x in want.items():
        np.testing.assert_allclose(made[n], x, rtol=1e-11, atol=1e-12, err_msg=n)
        if n in t and n[0] == "d":
            np.testing.assert_allclose(t[n], x, rtol=1e-11, atol=1e-12, err_msg=n)


def test_parts_put_together_are_the_whole() -> None:
    a = replace(A, group=3)
    t = problem(a, 7, 40)
    whole = means.forward(a, True, **t)
    parts = []
    for keys in (slice(0, 11), slice(11, 40)):
        mask = np.zeros((2, 6, 1, 40))
        mask[..., keys] = 1
        with np.errstate(divide="ignore"):
            part = means.forward(replace(a, mask=Extra(rows=False)), True, **t, M=mask)
        o = part["O"].reshape(2, 7, 2, 3, 16).transpose(0, 2, 1, 3, 4).reshape(2, 2, 21, 16)
        logs = part["LSE"].reshape(2, 2, 3, 7).transpose(0, 1, 3, 2).reshape(2, 2, 21) * math.log2(math.e)
        top = np.where(np.isinf(logs), logs, np.random.default_rng(1).standard_normal(logs.shape))
        parts.append((o, top, np.where(np.isinf(logs), logs, logs - top)))
    made = means.together(3, *(np.stack(x) for x in zip(*parts, strict=True)))
    for n, x in made.items():
        np.testing.assert_allclose(x, whole[n], rtol=1e-11, err_msg=n)


@pytest.mark.parametrize("name", OPTIONS)
def test_kernels_hold_them(name: str) -> None:
    a = OPTIONS[name]
    t = problem(a, 35, 44)
    with np.errstate(divide="ignore"):
        given = means.forward(a, True, **t)
        given["delta"] = means.delta(t["G"], given["O"])
    given |= {"wide": given["O"], "rest": np.zeros_like(given["delta"])}
    form, same = ForwardConfig(a, 32, 16, 2, lse=True), BackwardConfig(a, 32, 32, 2)
    paired = [] if a.softcap else [replace(same, paired=True, stages=3)]
    for kernel in (
        attention_forward_kernel(form),
        attention_forward_kernel(replace(form, training=True)),
        attention_queries_gradient_kernel(same),
        *(attention_keys_gradient_kernel(c) for c in (same, *paired)),
        *([] if a.varlen else [attention_delta_kernel(a, lse=True)]),
        *([flash_fwd(16, 32, 16, 2)] if name == "causal" else []),
    ):
        args = arguments(kernel, t | given)
        assert hold(kernel, args) == []


def arguments(kernel: gr.Kernel, given: dict[str, Any]) -> dict[str, Any]:
    """Those of a kernel, in its types; outputs are not a number."""
    from graphene.judge.signature import Argument, Signature

    out: dict[str, Any] = {}
    for x in Signature.of(kernel).arguments:
        if not isinstance(x, Argument):
            out[x.name] = 0 if x.name == "right" and "right" not in given else given[x.name]
            continue
        kind = {"fp16": np.float16, "fp32": np.float32, "u8": np.uint8, "i32": np.int32}[x.dtype]
        like = given[x.name[1:] if x.name[0] == "d" and x.name != "delta" else x.name]
        out[x.name] = np.full(like.shape, np.nan, kind) if x.role == "output" else np.ascontiguousarray(like, kind)
    return out
