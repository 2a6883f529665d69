"""Mistakes planted by hand in kernels that graphene.plan wrote (planned/*.txt): what stands there, and what instead.

``python tests/mutation/planned_mistakes.py`` checks every kernel that has one; the tests some of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import graphene as gr

FOLDER = Path(__file__).parent / "planned"


class Planned(NamedTuple):
    kernel: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.before.strip()} -> {self.after.strip() or '(left out)'}"


MISTAKES = [
    Planned("rms_gamma", ".tile([1, 16])[0, j], atom", ".tile([1, 16])[0, 0], atom"),
    Planned("rms_gamma", "s0 * (1 / K)", "s0 * (1 / (K + 24))"),
    Planned("rms_gamma", "element_s0(rXl)", "element_s0(a0)"),
    Planned("rms_gamma", "copy(k + AHEAD)", "copy(k + AHEAD - 1)"),
    Planned("rms_gamma", "at=6144", "at=4096"),
    Planned("rms_gamma", "gr.init(ps0, 0)", "gr.init(ps0, 1e-3)"),
    Planned("rms_gamma", "[j, wn].T", "[j, 0].T"),
    Planned("scores", "gr.move(cs1, s1.T)", "gr.move(cs1, s0.T)"),
    Planned("scores", "result(d0, s0 * (1 / D), cs1", "result(d0, cs1 * (1 / D), cs1"),
    Planned("scores", "        gr.barrier()  # the stages are free\n", ""),
    Planned("grouped", "k * BN + column < S", "k * BN + column <= S"),
    Planned("grouped", "gr.init(top, -gr.inf)", "gr.init(top, 0)"),
    Planned("grouped", "            lanes[:] = lanes * shrink\n", ""),
    Planned("grouped", "b_j = z % J", "b_j = gr.min(z, J - 1)"),
    Planned("grouped", "weights[:] = scores", "weights[:] = gr.cast(gr.cast(scores, gr.fp16), gr.fp32)"),
    Planned("grouped", "gr.exp(top - now)", "gr.exp(gr.max(top, -30) - now)"),
    Planned("convolution", "i_p * 2 + i_r - 1", "i_p * 2 + i_r"),
    Planned("convolution", "i_q * 2 + i_s - 1", "i_q * 2 + i_r - 1"),
    Planned("convolution", "i_p * 2 + i_r - 1, 1)", "gr.max(i_p * 2 + i_r - 1, 0), 1)"),
    Planned("convolution", "i_q = pixel % Q", "i_q = pixel % P"),
    Planned("convolution", "i_n = pixel // (P * Q)", "i_n = gr.min(pixel // (P * Q), N - 2)"),
    Planned("convolution", "k % (C // BK) * (BK // 8) + vector", "vector"),
    Planned("convolution", "i_s = k // (C // BK) % S", "i_s = k // (C // BK) % (S + 1)"),
    Planned("convolution", "[row, vector], part", "[row, 0], part"),
    Planned("convolution", "gr.ceil_div(R_S_C, BK)", "gr.ceil_div(R_S_C, BK) - 1"),
    Planned("convolution", "        gr.barrier()  # the stages are free\n", ""),
    Planned("convolution", "pixel // Q % P", "pixel % (P * Q) // P"),
    Planned("convolution", "i_n = pixel // (P * Q)", "i_n = pixel // (P * Q + 1)"),
    Planned("grouped", "            top[:] = now\n            sums[:]", "            sums[:]"),
    Planned("rms_gamma", "gr.init(ps0, 0)", "gr.init(ps0, 2.0**-10)"),
    Planned("layernorm", "element_s1(rX, s0), 0)", "element_s1(rX, s0), s0 * s0)"),
    Planned("layernorm", "result_Y(rX, s0, s1", "result_Y(rX, s0 * 1.01, s1"),
    Planned("layernorm", "s1[:] = s1 * (1 / N)", "s1[:] = s1 * (1 / (N - 1))"),
]


def made(name: str, before: str = "", after: str = "") -> gr.Kernel:
    """A planned kernel; with a mistake, if `before` stands in its text once."""
    text = (FOLDER / f"{name}.txt").read_text()
    assert not before or text.count(before) == 1, f"{name}: {before} stands {text.count(before)} times"
    module: dict[str, Any] = {}
    exec(compile(text.replace(before, after) if before else text, name, "exec"), module)
    kernel: gr.Kernel = module[name]()
    return kernel


def told(m: Planned) -> str:
    """How a mistake is told from its kernel; "" if it is not."""
    try:
        promise = made(m.kernel).promise
        assert promise is not None
        result = made(m.kernel, m.before, m.after).with_promise(promise.means).check()
    except gr.GrapheneError as e:
        return str(e.code)
    return "; ".join(sorted({e.code for e in result.errors}))


if __name__ == "__main__":
    silent = [m for m in MISTAKES if not (how := told(m)) or print(m, "->", how)]
    print(f"{len(MISTAKES) - len(silent)} of {len(MISTAKES)} are told", *silent, sep="\n")
    sys.exit(bool(silent))
