"""Mutants of every kernel are told from it, or leave no bound of its promise in any call that was tried.

``python tests/mutation/all_mutants.py`` judges all of them and writes docs/mutants.md; the tests a sample.
"""

from __future__ import annotations

import functools
import re
import zlib
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core
from graphene.testing.mutate import TextMutant, judge, mutants

HERE = Path(__file__).parent
import attention_cases  # noqa: E402, F401  (they register themselves)
from cases import CASES, Case, builders  # noqa: E402

SAMPLE = 4  # of each case


@functools.cache
def prepared(name: str) -> tuple[Case, list[TextMutant]]:
    case = CASES[name]()
    return case, mutants(case.kernel)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_keeps_its_promise(name: str) -> None:
    """Of a kernel that does not, every mutant is told."""
    assert not prepared(name)[0].kernel.check().errors


@pytest.mark.parametrize("name", CASES)
def test_a_sample_of_mutants_is_told(name: str) -> None:
    case, found = prepared(name)
    offset = zlib.crc32(name.encode()) % max(len(found) // SAMPLE, 1)  # not the same operators everywhere
    sample = found[offset :: max(len(found) // SAMPLE, 1)][:SAMPLE]
    missed = [v for v in (judge(case.kernel, m, case.calls, search=1) for m in sample) if v.kind == "missed"]
    assert not missed, "\n".join(f"{v.mutant}: {v.detail}" for v in missed)


# What ran in no chosen call, or in none with data that show it: by case, operator, what the line looks like, and which.
HIDDEN = [
    ("attention_forward_kernel, packed", "synchronisation left out", r"barrier\(\)", 1),
    ("attention_forward_kernel, packed", "statement left out", r"<- MatMul<<<\[\]\.block, #12>>>\(.*\) atom=\S+$", 0),
    ("attention_keys_gradient_kernel, packed", "bound by one", r"\.window\(index", -1),
    ("attention_forward_kernel, listed", "statement left out", r"TernaryPointwise<where>.*, 0\.0, ", 0),
    ("gemm_sm80, tf32", "index + 1", r"\[k \+ 2\]", 0),
    ("recurrent_cell, four gates", "accumulate flipped", r"%410 <- MatMul", 0),
    ("attention_queries_product_kernel", "predicate dropped", r"exit_if", 0),
    ("layernorm", "index + 1", r"%22 = %21\[@b0, 0\]", 0),
    ("attention_forward_sm90", "operands exchanged", r"BinaryPointwise<gt>.*, 1048576", -1),
    ("attention_forward_sm90, window, training", "constant changed", r"BinaryPointwise<\+>.*\(before, 0", 0),
    ("attention_forward_kernel, parts", "loop ends earlier", r"for\(v_46=", 0),
    ("attention_tiles_kernel", "statement left out", r"(%\d+) <- BinaryPointwise<min>.*\(\1, ", 0),
]


@pytest.mark.parametrize(("name", "operator", "line", "which"), HIDDEN)
def test_what_a_check_once_missed_is_told(name: str, operator: str, line: str, which: int) -> None:
    case, found = prepared(name)
    fitting = [m for m in found if m.operator == operator and re.search(line, m.before)]
    verdict = judge(case.kernel, fitting[which], search=0)
    assert verdict.kind in ("hazard", "promise"), f"{verdict.mutant}: {verdict.kind}, {verdict.detail}"


def test_every_kernel_has_its_mutants_judged() -> None:
    missing = builders() - {name.partition(",")[0] for name in CASES}
    assert not missing, f"tests/mutation/cases.py lacks a case for each of: {', '.join(sorted(missing))}"
    assert {"gemm_sm80", "flash_fwd", "mfma_64x32"} <= builders()


def test_every_kernel_promises_its_result() -> None:
    without = [name for name in CASES if CASES[name]().kernel.promise is None]
    assert not without, f"write gr.Kernel(name, means=...): {', '.join(without)}"


def test_no_schedule_shows_a_hazard() -> None:
    """Some of them; benchmarks/seeds_bench.py runs a thousand of each."""
    for name in CASES:
        case, _ = prepared(name)
        for seed in range(8):
            case.kernel.simulate(*case.calls[0](), seed=seed)


@pytest.mark.parametrize("name", ["gemm_sm80", "flash_fwd", "layernorm", "fused_mlp"])
def test_partial_tiles_need_their_predicates(name: str) -> None:
    """They are implied by the views, not written in the text: left out, something outside is touched."""
    case, _ = prepared(name)
    for call in case.calls[:1]:
        with pytest.raises(gr.SimulationError) as e:
            _core.simulate(case.kernel.lowered(), tuple(call()), {}, unguarded=True)
        assert e.value.code == "SIM_OUT_OF_BOUNDS"


def test_operators_change_what_they_say() -> None:
    _, found = prepared("tensor_core_tile")
    by_operator = {m.operator: m for m in found}
    assert set(by_operator) >= {
        "index swapped", "index + 1", "stride changed", "swizzle changed", "loop ends earlier", "loop starts later",
        ".T dropped", "accumulate flipped", "synchronisation left out", "warp shifted", "value changed",
    }  # fmt: skip
    assert {"wait count + 1", "predicate dropped"} <= {m.operator for m in prepared("fused_mlp")[1]}
    assert {m.operator for m in prepared("gemm_reduce")[1]} >= {
        "statement left out", "operation exchanged", "operands exchanged", "constant changed", "bound by one",
        "type narrowed", "scalar exchanged",
    }  # fmt: skip
    assert by_operator[".T dropped"].after.endswith(".permute(0, 1)")
    assert len({m.text for m in found}) == len(found)
