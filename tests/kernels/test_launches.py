"""Kernels that follow one another compute together what they promise: ``gr.check_launches``.

Each sequence of the library, and mistakes that no kernel of it shows alone. The tests take a few calls of each; run as
a program, the file takes all that ``check_launches`` chooses.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import Launch, Launches, kernels, launches
from graphene.judge.signature import Signature
from graphene.kernels import Attention, BackwardConfig, Extra, ForwardConfig, GemmConfig, ProductConfig
from graphene.kernels.attention import reference as means
from graphene.promise import is_array

SMALL: dict[str, Any] = {"tile": (32, 32, 32), "stages": 2}
GEMMS = {
    "split over k": GemmConfig(**SMALL, split_k=3),
    "both padded": GemmConfig(**SMALL, pad=(True, True), align=(2, 2, 2)),
    "padded, split, all options": GemmConfig(
        **SMALL, pad=(True, False), align=(2, 16, 16), split_k=2, bias=True, residual=True, activation="gelu",
        alpha=True, beta=True, batched=True, order="NT",
    ),
    "integers, split": GemmConfig((32, 32, 64), 2, dtype="i8", out="fp16", split_k=2, alpha=True),
    "padded rows of B": GemmConfig(**SMALL, pad=(False, True), align=(16, 2, 2), order="TT", activation="relu"),
}  # fmt: skip
SEQUENCES: dict[str, Callable[[], Launches]] = {
    f"product, {name}": functools.partial(kernels.gemm_launches, c) for name, c in GEMMS.items()
}


def sequence(function: Callable[[], Launches]) -> Callable[[], Launches]:
    SEQUENCES[function.__name__.replace("_", " ")] = function
    return function


def launch(kernel: gr.Kernel, **renamed: Any) -> Launch:
    """The kernel on arguments of its own names, but for some."""
    return Launch(kernel, tuple(renamed.get(a.name, a.name) for a in Signature.of(kernel).arguments))


@sequence
def attention_in_parts() -> Launches:
    a = Attention(32, left=True, right=True, group=3)
    parts = kernels.attention_forward_kernel(ForwardConfig(a, 16, 16, 1, packed=True, split=True))
    combine = kernels.attention_combine_kernel(a, lse=True)
    both = [launch(parts, O="parts", LSE="logs"), launch(combine, P="parts", L="logs")]
    return Launches(both, functools.partial(means.forward, a, True))


@sequence
def few_queries_in_clusters_and_parts() -> Launches:
    a = Attention(32, right=True, group=3)
    parts = kernels.attention_decode_kernel(kernels.DecodeConfig(a, 16, 32, 2, 2, cluster=2, split=True))
    both = [launch(parts, O="parts", LSE="logs"), launch(kernels.attention_combine_kernel(a), P="parts", L="logs")]
    return Launches(both, functools.partial(means.forward, a, False))


@sequence
def pages_in_parts() -> Launches:
    a = Attention(16, right=True, alike=True)
    parts = kernels.attention_paged_kernel(kernels.DecodeConfig(a, 8, 16, 1, 2, split=True, page=8))
    combine = kernels.attention_combine_kernel(a, lse=True)
    both = [launch(parts, O="parts", LSE="logs"), launch(combine, P="parts", L="logs")]
    return Launches(both, functools.partial(means.forward, a, True))


@sequence
def attention_of_listed_tiles() -> Launches:
    a = Attention(32, right=True, mask=Extra())
    tiles = kernels.attention_tiles_kernel(a, 32, 16)
    forward = kernels.attention_forward_kernel(ForwardConfig(a, 32, 16, 2, listed=True))

    def spaces(s: dict[str, int]) -> dict[str, Any]:
        return {"T": ((s["batch"], s["heads"], -(-s["sq"] // 32), -(-s["sk"] // 16) + 2), "i32")}

    shapes = {"M": ("batch", "heads", "sq", "sk")}
    return Launches([launch(tiles), launch(forward)], functools.partial(means.forward, a, False), shapes, spaces)


def trained(a: Attention, passed: str | None, **given: Any) -> dict[str, Any]:
    """O and all gradients, of Q, K, V and the gradient of O."""
    made = means.forward(a, True, True, **given)
    delta = means.delta(given["G"], made["wide"])
    every = {**given, "LSE": made["LSE"], "delta": delta}
    of_keys = means.keys_gradient(a, passed, **every)
    return {**made, "delta": delta, **of_keys, **means.queries_gradient(a, passed=passed, **every)}


def trains(a: Attention) -> list[gr.Kernel]:
    """The forward pass with what a gradient needs, and delta of it."""
    forward = kernels.attention_forward_kernel(ForwardConfig(a, 32, 16, 2, lse=True, training=True))
    return [forward, kernels.attention_delta_kernel(a)]


@sequence
def attention_and_its_gradients() -> Launches:
    a = Attention(32, right=True)
    every = [*trains(a),
             kernels.attention_keys_gradient_kernel(BackwardConfig(a, 32, 16, 2)),
             kernels.attention_queries_gradient_kernel(BackwardConfig(a, 32, 16, 2))]  # fmt: skip
    return Launches(map(launch, every), functools.partial(trained, a, None))


@sequence
def attention_and_gradients_that_are_saved() -> Launches:
    a = Attention(32, right=True)
    every = [*trains(a),
             kernels.attention_keys_gradient_kernel(BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=True)),
             kernels.attention_queries_product_kernel(ProductConfig(a, 16, 2, parts=2))]  # fmt: skip

    shapes = {"Q": ("batch", "sq", "kv_heads", 32), "dQ": ("batch", "sq", "kv_heads", 32)}

    def spaces(s: dict[str, int]) -> dict[str, Any]:
        heads, queries, keys = s["batch"] * s["kv_heads"], -(-s["sq"] // 128) * 4, -(-s["sk"] // 128) * 128
        return {"saved": ((heads, 1, queries, keys, 32), "fp16")}

    return Launches([launch(k, first=0) for k in every], functools.partial(trained, a, "p"), shapes, spaces)


@sequence
def gradients_of_a_layer_norm() -> Launches:
    N = 40
    config = kernels.select_norm_backward(64, N, gr.fp16, align_bytes=16, gamma=True)
    columns, _ = kernels.select_norm_columns(64, N, gr.fp16, align_bytes=16, centred=True, beta=True)
    last = kernels.reduction_kernel(kernels.select_reduction(5, N, 0, dtype=gr.fp32, align_bytes=4, out_dtype=gr.fp16))
    parts = {"dgamma": "dgamma_parts", "dbeta": "dbeta_parts"}

    def together(X: Any, dY: Any, gamma: Any, eps: float) -> dict[str, Any]:
        n = X - X.mean(-1, keepdims=True)
        rstd = 1 / np.sqrt((n * n).mean(-1, keepdims=True) + eps)
        n = n * rstd
        g = dY * gamma
        dX = (g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)) * rstd
        return {"dX": dX, "dgamma": (dY * n).sum(0, keepdims=True), "dbeta": dY.sum(0, keepdims=True)}

    every = [launch(kernels.layernorm_backward_kernel(config)), launch(kernels.norm_columns_kernel(columns), **parts)]
    every += [launch(last, X=part, Y=name) for name, part in parts.items()]
    shapes = {"dgamma": (1, "N"), "dbeta": (1, "N")}
    return Launches(every, together, shapes)


MISTAKES: dict[str, tuple[str, Callable[[Launches], Any]]] = {}


def mistake(of: str) -> Callable[[Callable[[Launches], Any]], Callable[[Launches], Any]]:
    """A change of a sequence of that name: of its launches, or the whole of it."""

    def known(function: Callable[[Launches], Any]) -> Callable[[Launches], Any]:
        MISTAKES[function.__name__.replace("_", " ")] = of, function
        return function

    return known


def renamed(x: Launch, **names: Any) -> Launch:
    """A launch with names in place of others."""
    return x._replace(arguments=tuple(names.get(str(n), n) for n in x.arguments))


@mistake("product, both padded")
def nothing_is_padded(x: Launches) -> Any:
    return x[1:]


@mistake("product, both padded")
def the_product_goes_first(x: Launches) -> Any:
    return x[::-1]


@mistake("product, both padded")
def the_operand_is_taken_that_was_not_padded(x: Launches) -> Any:
    return [x[0], renamed(x[1], A_padded="A")]


@mistake("product, both padded")
def lines_of_work_spaces_are_shorter_than_those_of_operands(x: Launches) -> Any:
    def spaces(s: dict[str, int]) -> dict[str, Any]:
        return {n: ((rows, min(length, 64)), dtype) for n, ((rows, length), dtype) in of_all(s).items()}

    of_all: Any = x.workspaces
    x.workspaces = spaces
    return x[:]


@mistake("product, split over k")
def a_part_more_than_anybody_computes(x: Launches) -> Any:
    return [renamed(x[0], **{"W.C": ("W", lambda W: W[:-1, :, :20])}), x[1]]


@mistake("product, split over k")
def the_sum_of_parts_goes_first(x: Launches) -> Any:
    return x[::-1]


@mistake("product, split over k")
def the_work_space_has_no_whole_vectors(x: Launches) -> Any:
    x.workspaces = lambda s: {"W": ((3, s["M"], s["N"] + 1), "fp32")}
    return x[:]


@mistake("product, padded, split, all options")
def the_activation_is_forgotten_behind_the_parts(x: Launches) -> Any:
    plain = kernels.gemm_launches(replace(GEMMS["padded, split, all options"], activation=None))
    return [*x[:2], plain[2]]


@mistake("product, padded, split, all options")
def alpha_and_beta_are_exchanged(x: Launches) -> Any:
    return [*x[:2], renamed(x[2], alpha="beta", beta="alpha")]


@mistake("product, padded, split, all options")
def the_residual_is_what_c_held(x: Launches) -> Any:
    return [*x[:2], renamed(x[2], residual="C", C="residual")]


@mistake("attention in parts")
def parts_are_combined_with_the_logarithms_of_others(x: Launches) -> Any:
    return [x[0], renamed(x[1], logs=("logs", lambda t: t[::-1].copy()))]


@mistake("few queries in clusters and parts")
def parts_are_combined_with_the_maxima_of_others(x: Launches) -> Any:
    return [x[0], renamed(x[1], top=("top", lambda t: t[::-1].copy()))]


@mistake("pages in parts")
def pages_are_those_of_other_sequences(x: Launches) -> Any:
    return [
        renamed(x[0], table=("table", lambda t: t[::-1].copy()), lengths=("lengths", lambda n: n[::-1].copy())),
        x[1],
    ]


@mistake("attention of listed tiles")
def tiles_are_listed_without_the_window(x: Launches) -> Any:
    tiles = kernels.attention_tiles_kernel(Attention(32, mask=Extra(), right=True), 32, 16)
    return [launch(tiles, right=100), x[1]]


@mistake("attention of listed tiles")
def tiles_are_listed_of_other_heads(x: Launches) -> Any:
    return [renamed(x[0], M=("M", lambda M: M[:, ::-1].copy())), x[1]]


@mistake("attention and its gradients")
def gradients_take_delta_for_the_logarithms(x: Launches) -> Any:
    return [*x[:2], renamed(x[2], delta="LSE", LSE="delta"), x[3]]


@mistake("attention and its gradients")
def delta_is_of_other_queries(x: Launches) -> Any:
    return [x[0], renamed(x[1], wide=("wide", lambda t: t[:, ::-1].copy())), *x[2:]]


@mistake("attention and its gradients")
def one_gradient_is_scaled_in_other_units(x: Launches) -> Any:
    return [*x[:3], renamed(x[3], scale="scale_log2")]


@mistake("attention and gradients that are saved")
def what_was_saved_is_read_as_of_the_next_head(x: Launches) -> Any:
    return [*x[:3], x[3]._replace(arguments=(*x[3].arguments[:-1], 1))]


@mistake("attention and gradients that are saved")
def what_was_saved_is_multiplied_by_values(x: Launches) -> Any:
    return [*x[:3], renamed(x[3], K="V")]


@mistake("attention and gradients that are saved")
def tiles_are_read_that_nobody_saved(x: Launches) -> Any:
    product = kernels.attention_queries_product_kernel(ProductConfig(Attention(32), 16, 2, parts=2))
    return [*x[:3], launch(product, first=0)]


@mistake("gradients of a layer norm")
def columns_are_summed_before_their_statistics(x: Launches) -> Any:
    return [x[1], x[0], *x[2:]]


@mistake("gradients of a layer norm")
def both_gradients_have_one_work_space(x: Launches) -> Any:
    one = {"dbeta_parts": "dgamma_parts"}
    return [x[0], renamed(x[1], **one), x[2], renamed(x[3], **one)]


@mistake("gradients of a layer norm")
def parts_are_not_summed_but_the_largest_taken(x: Launches) -> Any:
    config = kernels.select_reduction(5, 40, 0, "max", gr.fp32, align_bytes=4, out_dtype=gr.fp16)
    return [*x[:3], x[3]._replace(kernel=kernels.reduction_kernel(config))]


@mistake("gradients of a layer norm")
def gradients_of_columns_take_x_for_dy(x: Launches) -> Any:
    return [x[0], renamed(x[1], X="dY", dY="X"), *x[2:]]


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_computes_what_it_promises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "CALLS", (6, 6, 3_000_000))
    result = gr.check_launches(SEQUENCES[name]())
    assert result, str(result)
    assert len(result.calls) > 2
    assert result.worst is not None


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_sequence_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these is in a kernel."""
    monkeypatch.setattr(launches, "CALLS", (16, 8, 6_000_000))
    of, change = MISTAKES[name]
    built = SEQUENCES[of]()
    changed = change(built)
    try:
        told = not gr.check_launches(changed, means=built.means, shapes=built.shapes, workspaces=built.workspaces)
    except (gr.VerifyError, gr.SimulationError) as e:  # before anything runs
        told = e.code in ("KERNEL_ARGUMENT", "CHECK_MEANS")
    assert told


def test_a_call_runs_as_it_is_on_copies() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((5, 24)), rng.standard_normal((24, 8)), np.full((5, 8), np.nan)
    W = np.zeros((2, 5, 8), np.float32)
    given = {"A": a.astype(np.float16), "B": b.astype(np.float16).T.copy().T, "C": c.astype(np.float16), "W": W}
    x = kernels.gemm_launches(GemmConfig(**SMALL, split_k=2))
    result = gr.check_launches(x, given)
    assert result, str(result)
    assert len(result.calls) == 1
    assert np.isnan(given["C"]).all()
    assert not W.any()
    assert "in launch 1 of 2, gemm_sm80" in str(gr.check_launches(x, {**given, "W": W[..., :4]}))
    with pytest.raises(gr.VerifyError, match="there is no array W"):
        gr.check_launches(x, {n: t for n, t in given.items() if n != "W"})


def test_an_activation_means_itself_and_is_kept_without() -> None:
    """Not what was traced of it: arrays are given to the function."""
    arrays = []

    def doubled(x: Any) -> Any:
        arrays.append(is_array(x))
        return x * 2

    config = GemmConfig(**SMALL, activation=doubled)
    result = gr.check_launches(kernels.gemm_launches(config), M=8, N=8)
    assert result, str(result)
    assert any(arrays)
    assert pickle.loads(pickle.dumps(config)) == config


def test_kernels_alone_name_their_arguments() -> None:
    result = gr.check_launches(trains(Attention(32)), batch=1, kv_heads=2)
    assert result, str(result)
    assert all("batch=1, " in call and "kv_heads=2" in call for call in result.calls)


@pytest.mark.parametrize(
    ("launches", "says"),
    [
        ([], "there is nothing to launch"),
        ([3], "this is not a launch"),
        ([(kernels.gemm_pad("A"), ("A",))], "gemm_pad takes other arguments"),
        ([(kernels.gemm_pad("A"), ("A", 3))], "gemm_pad takes a tensor as A_padded"),
        ([(kernels.gemm_pad("A"), ("A", "Y.Z"))], "gemm_pad takes a tensor as A_padded"),
        ([(kernels.gemm_pad("A"), ("A", "Y.C"))], "Y needs a shape"),
    ],
)
def test_launches_that_are_none_are_refused(launches: Any, says: str) -> None:
    with pytest.raises(gr.VerifyError, match=says) as e:
        gr.check_launches(launches)
    assert e.value.code == "KERNEL_ARGUMENT"


def test_sizes_that_nothing_has_are_refused() -> None:
    x = kernels.gemm_launches(GemmConfig(**SMALL, split_k=2))
    for sizes, says in (
        ({"L": 3}, "the kernel has no size L"),
        ({"K": 3}, "the size K=3 breaks the symbol's facts"),
    ):
        with pytest.raises(gr.SimulationError, match=says) as e:
            gr.check_launches(x, **sizes)
        assert e.value.code == "SIM_ARGUMENT"


if __name__ == "__main__":
    for name, build in SEQUENCES.items():
        if not sys.argv[1:] or sys.argv[1] in name:
            result = gr.check_launches(build())
            print(f"{name}: {len(result.calls)} calls in {result.seconds:.1f} s: {result}", flush=True)
