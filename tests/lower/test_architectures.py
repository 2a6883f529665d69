"""Architectures are named; a name that is none is refused, wherever it is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphene as gr
from graphene import _core

KNOWN = (
    "sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_101 sm_101a sm_101f sm_103 "
    "sm_103a sm_103f sm_107 sm_107a sm_107f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f gfx90a"
)
NONE_OF_THEM = [
    "sm_999",
    "",
    "foo",
    "sm_60",
    "sm_80a",
    "sm_90f",
    "SM_80",
    "sm80",
    "sm_80 ",
    "sm_8",
    "sm_900",
    80,
    b"sm_80",
]


def copy() -> gr.Kernel:
    with gr.Kernel("copy") as kernel:
        x, y = gr.input("x", [4], gr.fp32), gr.output("y", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(4).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[t])
        gr.move(y[t], r)
    return kernel


ASKED: dict[str, Callable[[gr.Kernel, object], object]] = {
    "cuda_source": lambda k, a: k.cuda_source(a),  # type: ignore[arg-type]
    "compile": lambda k, a: k.compile(a),  # type: ignore[arg-type]
    "lowered": lambda k, a: k.lowered(a),  # type: ignore[arg-type]
    "simulate": lambda k, a: k.simulate(np.zeros(4, np.float32), np.zeros(4, np.float32), arch=a),  # type: ignore[arg-type]
    "check": lambda k, a: k.check(arch=a),  # type: ignore[arg-type]
    "mutants": lambda k, a: k.mutants(arch=a),  # type: ignore[arg-type]
    "report": lambda k, a: k.report(arch=a),  # type: ignore[arg-type]
    "runs_on": lambda k, a: gr.atoms()["ldmatrix.x4"].runs_on(a),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("arch", NONE_OF_THEM, ids=repr)
def test_what_is_no_architecture(ask: str, arch: object) -> None:
    with pytest.raises(gr.SelectError) as e:
        ASKED[ask](copy(), arch)
    assert str(e.value) == (
        f"there is no architecture {arch!r}   [ARCH_UNKNOWN]\n"
        f"  known: {KNOWN}\n"
        '  fix: name the GPU\'s, as `python -m graphene doctor` shows it: "sm_80" is an A100, "sm_90a" an H100 or H200'
    )


@pytest.mark.parametrize("ask", ["cuda_source", "compile", "runs_on"])
def test_none_is_a_choice_only_where_the_kernel_can_make_it(ask: str) -> None:
    with pytest.raises(gr.SelectError, match="there is no architecture None"):
        ASKED[ask](copy(), None)


def test_none_is_the_lowest_that_has_the_atoms() -> None:
    assert copy().lowered().arch == "sm_80"
    assert copy().lowered(None).arch == "sm_80"


@pytest.mark.parametrize("arch", KNOWN.split())
def test_every_known_one_is_lowered_for(arch: str) -> None:
    assert _core.architecture(arch) == arch
    assert "copy(" in copy().cuda_source(arch)
