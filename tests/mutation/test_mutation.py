"""Every mutant of every kernel is told from it, or equivalent.json has the reason why it computes the same.

``python tests/mutation/test_mutation.py`` judges all of them and writes docs/mutants.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core
from graphene.testing.mutate import Mutant, Verdict, judge, mutants, table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import attention_cases  # noqa: E402, F401  (they register themselves)
from cases import CASES, SYNCHRONISATION, Case, builders  # noqa: E402

REASONS = json.loads((HERE / "equivalent.json").read_text())
PARTS = {"flash_fwd": 6, "gemm_sm80": 6, "fused_mlp": 6, "tensor_core_tile": 2}


@functools.cache
def prepared(name: str) -> tuple[Case, list[Mutant]]:
    case = CASES[name]()
    return case, case.mutants()


def verdicts(name: str, part: int = 0, parts: int = 1) -> list[Verdict]:
    case, all_of_them = prepared(name)
    return [judge(case.kernel, m, case.calls, case.sizes) for m in all_of_them[part::parts]]


def reason(name: str, m: Mutant) -> str | None:
    for r in REASONS:
        fits = re.fullmatch(r["kernel"], name) and re.fullmatch(r["operator"], m.operator)
        if fits and re.search(r["before"], m.before) and re.search(r["after"], m.after):
            return str(r["reason"])
    return None


@pytest.mark.parametrize(
    ("name", "part"), [(name, part) for name in CASES for part in range(PARTS.get(name, 1))], ids=lambda x: str(x)
)
def test_mutants_are_told_from_their_kernel(name: str, part: int) -> None:
    found = verdicts(name, part, PARTS.get(name, 1))
    print(table(found))
    unexplained = [v for v in found if v.kind in ("equal", "missed") and reason(name, v.mutant) is None]
    assert not unexplained, "\n".join(f"{v.kind}: {v.mutant}" for v in unexplained)


def test_every_kernel_has_its_mutants_judged() -> None:
    missing = builders() - {name.partition(",")[0] for name in CASES}
    assert not missing, f"tests/mutation/cases.py lacks a case for each of: {', '.join(sorted(missing))}"
    assert {"gemm_sm80", "flash_fwd", "mfma_64x32"} <= builders()


def test_every_kernel_promises_its_result() -> None:
    without = [name for name in CASES if CASES[name]().kernel.promise is None]
    assert not without, f"write gr.Kernel(name, means=...): {', '.join(without)}"


def test_a_sample_keeps_every_mutant_of_synchronisation() -> None:
    case, found = prepared("gemm_sm80")
    few = dataclasses.replace(case, sample=10).mutants()
    everything = mutants(case.kernel)
    assert found == [m for m in everything if m in found]
    synchronisation = [m for m in everything if m.operator in SYNCHRONISATION]
    assert [m for m in few if m.operator in SYNCHRONISATION] == synchronisation
    assert len(few) == len(synchronisation) + 10


def test_the_kernels_themselves_are_clean() -> None:
    for name in CASES:
        case, _ = prepared(name)
        for sizes in [case.sizes] if isinstance(case.sizes, dict) else case.sizes:
            assert (case.kernel.check(**sizes) if isinstance(sizes, dict) else case.kernel.check(*sizes())).ok, name
        for seed in range(20):
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
    assert by_operator[".T dropped"].after.endswith(".permute(0, 1)")
    assert len({m.text for m in found}) == len(found)


def page() -> str:
    out = [
        "# Mutants",
        "",
        "A simulator that is to judge kernels must tell every kernel from its mutants: the same text with one change",
        "that somebody might make by mistake (`graphene.testing.mutate`). The tests judge all of them;",
        "`python tests/mutation/test_mutation.py` wrote this page.",
        "",
        "- *refused*: reading, verifying or lowering fails",
        "- *hazard*: a race, an undefined value, ...",
        "- *promise*: `check()` names the spec that does not keep its promise",
        "- *arguments*: the original's arguments no longer fit",
        "- *values*: only the result is wrong, where no spec promises anything",
        "- *equal*: equivalent, or left open by a promise, for the reasons below each table",
    ]
    jobs = [(name, part, PARTS.get(name, 1)) for name in CASES for part in range(PARTS.get(name, 1))]
    with ProcessPoolExecutor() as pool:
        judged = list(pool.map(verdicts, *zip(*jobs, strict=True)))
    for name in CASES:
        found = [v for (n, _, _), vs in zip(jobs, judged, strict=True) if n == name for v in vs]
        found.sort(key=lambda v: v.mutant.line)
        missed = [v for v in found if v.kind in ("equal", "missed") and reason(name, v.mutant) is None]
        if missed:
            raise SystemExit("\n".join(f"{v.kind}: {v.mutant}" for v in missed))
        explained = [
            Verdict(v.mutant, "equal", v.detail) if v.kind == "missed" else v for v in found
        ]  # what a promise leaves open
        out += ["", f"## {name}", "", "```", table(explained), "```"]
        case, _ = prepared(name)
        if case.sample is not None and len(found) < (total := len(mutants(case.kernel))):
            of = "" if case.beside is None else f", of those that {case.beside} does not have,"
            out += ["", f"{len(found)} of {total} are judged{of} spread over the text; of synchronisation all."]
        why: dict[str, list[Mutant]] = {}
        for v in explained:
            if v.kind == "equal":
                why.setdefault(reason(name, v.mutant) or "", []).append(v.mutant)
        out += [""] if why else []
        out += [f"- {text} ({len(ms)}, as `{ms[0].before}`)" for text, ms in why.items()]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    (HERE.parents[1] / "docs/mutants.md").write_text(page())
