"""What the products' builders take: everything else is refused with a code; nothing crashes."""

from __future__ import annotations

import collections
import random
import re
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    GemmConfig,
    epilogues,
    gemm_launches,
    gemm_pad,
    gemm_reduce,
    gemm_sm70,
    gemm_sm80,
    gemm_workspaces,
    run_gemm,
)
from graphene.kernels.epilogues import relu
from graphene.kernels.gemm import whole
from graphene.select import select_gemm

BUILDERS = {"gemm_sm80": gemm_sm80, "gemm_sm70": gemm_sm70}


def error(builder: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(gr.VerifyError) as e:
        builder(*args, **options)
    assert e.value.code == "KERNEL_ARGUMENT"
    return re.sub(r"\n  (?:(?:want|got): )?", " | ", str(e.value).replace("   [KERNEL_ARGUMENT]", ""))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": 0}, "group does not fit | an integer, 1 or more | 0"),
        ({"group": -1}, "group does not fit"),
        ({"group": 1.5}, "group is not an integer"),
        ({"warps": (0, 1)}, "warps[0] does not fit | an integer from 1 to 32 | 0"),
        ({"warps": (2, 4, 1)}, "warps does not fit | 2 integers | (2, 4, 1)"),
        ({"warps": 8}, "warps does not fit"),
        ({"BM": 1024, "BN": 1024, "warps": (8, 8)}, "warps[0] * warps[1] does not fit"),
        ({"BM": 24}, "BM does not fit | an integer, 32 or more, a multiple of 32 | 24"),
        ({"BN": 0}, "BN does not fit"),
        ({"BK": 4}, "BK does not fit"),
        ({"order": "TX"}, 'order does not fit | one of "TN", "NN", "NT", "TT" | \'TX\''),
        ({"align": (16, 16)}, "align does not fit | 3 integers | (16, 16)"),
        ({"align": (16, 1, 16)}, "align[1], bytes of B, does not fit | one of 16, 8, 4, 2 | 1"),
        ({"align": (16, 16, 32)}, "align[2], bytes of C, does not fit"),
        ({"padded": True}, "padded does not fit | 2 booleans | True"),
        ({"batched": 2}, "batched does not fit | True or False | 2"),
        ({"out": gr.i8}, 'out, of dtype fp16, does not fit | one of "fp32", "fp16", "bf16" | \'i8\''),
        ({"out": "fp32"}, "out, of dtype fp16, is not a type | one of gr.fp32, gr.fp16, gr.bf16 | 'fp32'"),
        ({"epilogue": 3}, "epilogue cannot be called"),
        ({"epilogue": None, "bias": True}, "without an epilogue nothing is added to the product | "
         "neither bias nor residual | bias | fix: pass epilogue=lambda x, b: ..., or neither"),
        ({"bias": False, "residual": True}, "without an epilogue nothing is added to the product | "
         "neither bias nor residual | residual"),
        ({"bias": 1}, "bias does not fit"),
        ({"epilogue": lambda x: x}, "the epilogue takes other arguments | given: x, bias"
         " | but: too many positional arguments | fix: pass a function of these"),
        ({"BM": 32, "BN": 512, "BK": 16, "warps": (1, 32), "align": (2, 2, 2), "order": "NN"} ,
         "1024 threads cannot share a tile of A equally | tile: 16 lines of 32 elements of fp16"
         " | vectors of 16, 8, 4, 2 bytes, equally many for each thread"),
    ],
    ids=lambda x: "-".join(f"{k}={v}" for k, v in x.items() if not callable(v)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_what_is_refused(name: str, options: dict[str, Any], text: str) -> None:
    if name == "gemm_sm80" and options.get("BK") == 16:
        options = {**options, "BK": 32, "BM": 16}
        text = text.replace("16 lines of 32", "32 lines of 16")
    assert f"{name}: {text}" in error(BUILDERS[name], **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"STAGES": 1}, "gemm_sm80: STAGES does not fit"),
        ({"dtype": "fp16"}, "gemm_sm80: dtype is not a type | one of gr.fp16, gr.bf16, gr.fp32, gr.i8"),
        ({"dtype": gr.fp64}, "gemm_sm80: dtype does not fit"),
        ({"dtype": gr.i8, "out": gr.i8},
         'gemm_sm80: out, of dtype i8, does not fit | one of "i32", "fp32", "fp16", "bf16" | \'i8\''),
        ({"dtype": gr.i8, "alpha": True, "BK": 64}, "gemm_sm80: integers are not scaled"),
    ],
)  # fmt: skip
def test_what_gemm_sm80_refuses(options: dict[str, Any], text: str) -> None:
    assert text in error(gemm_sm80, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": "fp8"}, 'dtype does not fit | one of "fp16", "bf16", "fp32", "fp8e4m3", "fp8e5m2", "i8"'),
        ({"dtype": gr.fp16}, "dtype does not fit"),
        ({"out": "i8", "dtype": "i8"}, "out of dtype i8 does not fit"),
        ({"order": "XX"}, "order does not fit"),
        ({"align": 16}, "align does not fit"),
        ({"align": (2, 2, 2), "dtype": "fp32"}, "align[0], bytes of A, does not fit"),
        ({"activation": "swish"}, "activation does not fit"),
        ({"activation": ["relu"]}, "activation does not fit"),
        ({"activation": "gelu", "dtype": "i8"}, "gelu is not a function of integers"),
    ],
)
def test_what_configurations_refuse(options: dict[str, Any], text: str) -> None:
    assert "GemmConfig: " + text in error(GemmConfig, **options)
    assert "select_gemm: " + text in error(select_gemm, 64, 64, 64, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"epilogue": None},
        {"epilogue": None, "out": gr.fp32},
        {"epilogue": None, "alpha": True},
        {"epilogue": None, "beta": True},
    ],
    ids=lambda o: "-".join(o),
)
@pytest.mark.parametrize("name", BUILDERS)
def test_a_product_without_an_epilogue_is_the_product(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, 40), (32, 40)))
    c = np.full((32, 32), 3, np.float32 if "out" in options else np.float16)
    kernel = BUILDERS[name](BM=32, BN=32, BK=32, warps=(1, 1), **options)
    scales = [2.0] if "alpha" in options else [0.5] if "beta" in options else []
    kernel.simulate(a, b, c, *scales)
    want = a.astype(np.float64) @ b.T * (2 if "alpha" in options else 1) + (1.5 if "beta" in options else 0)
    np.testing.assert_allclose(c, want, rtol=2.0**-10, atol=1e-4)


def test_the_default_epilogue_is_that_of_a_bias() -> None:
    assert all("bias" in str(build()) and "bias" not in str(build(bias=False)) for build in BUILDERS.values())
    assert str(gemm_sm80()) == str(gemm_sm80(epilogue=lambda x, b: relu(x + b), bias=True))


def test_what_else_is_refused() -> None:
    assert "select_gemm: M does not fit" in error(select_gemm, -1, 8, 8)
    assert "select_gemm: K is not an integer" in error(select_gemm, 8, 8, 8.0)
    assert "select_gemm: batch does not fit" in error(select_gemm, 8, 8, 8, batch=-2)
    assert "select_gemm: sms does not fit" in error(select_gemm, 8, 8, 8, sms=0)
    assert "select_gemm: shared_bytes does not fit | room for the stages of one of the tiles | 100" in error(
        select_gemm, 1, 2, 3, shared_bytes=100
    )
    assert "select_gemm: device does not fit" in error(select_gemm, 8, 8, 8, device=5)
    assert "GemmConfig: the activation takes other arguments" in error(GemmConfig, activation=lambda x, y: x)
    assert "split_k does not fit" in error(GemmConfig, split_k=0)
    assert "GemmConfig: group does not fit" in error(GemmConfig, group=-1)
    assert "dtype of gemm_sm70 does not fit" in error(GemmConfig, kernel="gemm_sm70", dtype="bf16")
    assert "stages of gemm_sm70 does not fit | one of 2 | 7" in error(GemmConfig, kernel="gemm_sm70", stages=7)
    assert "GemmConfig: stages does not fit | an integer, 2 or more | 1" in error(GemmConfig, stages=1)
    assert (GemmConfig().stages, GemmConfig(kernel="gemm_sm70").stages) == (3, 2)
    for call, args in ((run_gemm, [None] * 4), (gemm_launches, [None]), (gemm_workspaces, ["x", 1, 2, 3])):
        assert f"{call.__name__}: config is not a GemmConfig | a GemmConfig" in error(call, *args)
    assert "gemm_workspaces: N does not fit" in error(gemm_workspaces, GemmConfig(), 1, -2, 3)
    for call in (epilogues.activation, epilogues.linear):
        assert "epilogues.activation: activation does not fit | one of None, 'relu', " in error(call, "foo")
    assert "gemm_reduce: out, of sums fp32, does not fit" in error(gemm_reduce, out=gr.i32)
    assert "GemmConfig: integers are not scaled" in error(GemmConfig, dtype="i8", beta=True)
    assert "gemm_reduce: integers are not scaled" in error(gemm_reduce, sums=gr.i32, out=gr.i32, alpha=True)
    assert "gemm_reduce: the epilogue takes other arguments" in error(gemm_reduce, bias=True)
    assert "gemm_reduce: sums is not a type" in error(gemm_reduce, sums="fp32")
    assert "gemm_reduce: out, of sums fp32, is not a type" in error(gemm_reduce, out="fp16")
    assert "gemm_reduce: batched, bias, residual, alpha, beta does not fit" in error(gemm_reduce, bias=1)
    assert "gemm_pad: names does not fit" in error(gemm_pad, "BA")
    assert "gemm_pad: dtype is not a type" in error(gemm_pad, dtype="fp16")
    assert "gemm_pad: dtype does not fit" in error(gemm_pad, dtype=gr.fp64)
    assert "gemm_reduce: align does not fit" in error(gemm_reduce, align=3)


def operands(**options: Any) -> tuple[GemmConfig, list[np.ndarray]]:
    a, b = np.ones((16, 32), np.float16), np.asfortranarray(np.ones((32, 16), np.float16))
    return GemmConfig((32, 32, 32), 2, (1, 1), **options), [a, b, np.zeros((16, 16), np.float16)]


TERMS = {"bias": np.ones(16, np.float16), "residual": np.ones((16, 16), np.float16), "alpha": 2.0, "beta": 1.0}


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("name", TERMS)
def test_a_product_takes_the_terms_of_its_configuration_and_no_others(name: str, split_k: int) -> None:
    c, tensors = operands(split_k=split_k)
    assert (
        f"run_gemm: {name} does not fit | none: the configuration has {name}=False | one"
        f" | fix: leave it out, or take GemmConfig(..., {name}=True)"
    ) in error(run_gemm, c, *tensors, **{name: TERMS[name]})
    assert (
        f"run_gemm: {name} does not fit | one: the configuration has {name}=True | none"
        f" | fix: pass it, or take GemmConfig(..., {name}=False)"
    ) in error(run_gemm, replace(c, **{name: True}), *tensors)
    assert not tensors[2].any()
    run_gemm(replace(c, **{name: True}), *tensors, **{name: TERMS[name]})
    assert (tensors[2] == {"alpha": 64, "beta": 32}.get(name, 33)).all()


def test_operands_are_tensors_that_lie_as_the_order_says() -> None:
    c, (a, b, d) = operands()
    assert "run_gemm: A does not fit | a tensor of 2 modes | NoneType" in error(run_gemm, c, None, b, d)
    assert "run_gemm: B does not fit | a tensor of 2 modes | list" in error(run_gemm, c, a, [[1.0]], d)
    assert "run_gemm: A does not fit | a tensor of 2 modes | shape (32,)" in error(run_gemm, c, a[0], b, d)
    assert "run_gemm: C does not fit | a tensor of 2 modes | shape (1, 16, 16)" in error(run_gemm, c, a, b, d[None])
    assert "run_gemm: A does not fit | a tensor of 3 modes" in error(run_gemm, replace(c, batched=True), a, b, d)
    assert "run_gemm: bias does not fit | a tensor of 1 modes | shape (1, 16)" in error(
        run_gemm, replace(c, bias=True), a, b, d, bias=d[:1]
    )
    assert (
        "run_gemm: A does not fit | stride 1 along M, as order='NN' says | shape (16, 32), strides (32, 1)"
        " | fix: copy it, or take another order"
    ) in error(run_gemm, replace(c, order="NN"), a, b, d)
    assert "run_gemm: B does not fit | stride 1 along K, as order='TN' says" in error(
        run_gemm, c, a, np.ascontiguousarray(b), d
    )
    assert "run_gemm: C does not fit | stride 1 along N | shape (16, 16), strides (1, 16) | fix: copy it" in error(
        run_gemm, c, a, b, np.asfortranarray(d)
    )


def test_integers_may_be_those_of_numpy_and_sequences_lists() -> None:
    i = np.int64
    c, tensors = operands()
    same = GemmConfig([i(32), 32, 32], i(2), [1, i(1)], i(1), pad=[False, False], align=[16, i(16), 16])  # type: ignore[arg-type]
    assert same == c
    assert hash(same) == hash(c)
    run_gemm(same, *tensors)
    assert (tensors[2] == 32).all()
    assert select_gemm(i(64), i(64), i(64), batch=i(2), align=[16, 16, i(16)]) == select_gemm(64, 64, 64, batch=2)  # type: ignore[arg-type]
    for builder in BUILDERS.values():
        assert builder(i(32), i(32), i(32), warps=[i(1), 1]).cuda_source("sm_90a") == builder(
            32, 32, 32, warps=(1, 1)
        ).cuda_source("sm_90a")
    assert "tile[0] is not an integer" in error(GemmConfig, tile=(True, 32, 32))
    assert "tile[0] is not an integer" in error(GemmConfig, tile=(np.float32(32), 32, 32))


@pytest.mark.parametrize("options", [{}, {"split_k": 2}, {"residual": True}], ids=str)
@pytest.mark.parametrize("returned", [None, (1, 2), "x"])
def test_an_epilogue_returns_one_value(options: dict[str, Any], returned: object) -> None:
    config = GemmConfig((32, 32, 32), 2, (1, 1), activation=lambda x: returned, **options)
    assert f"an epilogue returned {type(returned).__name__} | registers, an expression of them or a number" in error(
        gemm_launches, config
    )
    for builder in BUILDERS.values():
        assert "an epilogue returned" in error(builder, 32, 32, 32, epilogue=lambda x, b: returned, warps=(1, 1))


def test_kernels_of_functions_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be any number of functions; the kernels of the last ones are kept."""
    made: list[weakref.ref[Any]] = []

    class Built:
        """Stands for a kernel."""

    def build(_: Any) -> Built:
        made.append(weakref.ref(one := Built()))
        return one

    monkeypatch.setitem(whole.BUILDERS, "gemm_sm80", build)
    for i in range(300):
        gemm_launches(GemmConfig((32, 32, 32), 2, (1, 1), activation=lambda x, i=i: gr.max(x, 7000 + i)))
    assert [r() is not None for r in made] == [False] * 44 + [True] * 256


@pytest.mark.parametrize("name", BUILDERS)
def test_whatever_is_built_can_be_printed(name: str) -> None:
    """Random options: built, printed as CUDA C++, or refused with the code of an argument or of too much memory."""
    codes: collections.Counter[str | None] = collections.Counter()
    for seed in range(70):
        r = random.Random(seed)
        warps = r.choice([1, 1, 2, 2, 3, 4]), r.choice([1, 1, 2, 2, 3, 4, 8])
        options: dict[str, Any] = {
            "BM": r.choice([1, 1, 1, 2, 3, 4]) * 16 * warps[0], "BN": r.choice([1, 1, 1, 2, 3, 4]) * 16 * warps[1],
            "BK": r.choice([8, 16, 32, 32, 48, 64, 64, 96, 128]), "warps": warps, "group": r.choice([1, 3]),
            "order": r.choice(["TN", "NN", "NT", "TT"]), "out": r.choice([None, None, gr.fp32, gr.bf16, gr.i32]),
            "epilogue": r.choice([None, lambda x, *terms: sum(terms, x) * 2]),
        }  # fmt: skip
        for n in ("b_as_kn", "batched", "split_k", "bias", "residual", "alpha", "beta"):
            options[n] = r.random() < 0.3
        options["padded"] = r.random() < 0.3, r.random() < 0.3
        dtype = gr.fp16
        if name == "gemm_sm80":
            dtype = r.choice([gr.fp16, gr.bf16, gr.fp32, gr.i8])
            options.update(STAGES=r.choice([2, 3, 4]), dtype=dtype)
        out = options["out"] or (gr.i32 if dtype == gr.i8 else dtype)
        options["align"] = tuple(
            r.choice([w for w in (16, 8, 4, 2, 1) if 8 * w >= t.bits]) for t in (dtype, dtype, out)
        )
        try:
            BUILDERS[name](**options).cuda_source("sm_90a")
            codes["built"] += 1
        except gr.GrapheneError as e:
            codes[e.code] += 1
    assert set(codes) <= {"built", "KERNEL_ARGUMENT", "LOWER_SHARED_LIMIT"}, codes
    assert codes["built"] > 12, codes
