"""Judges all mutants of all kernels, or each so manieth, and writes docs/mutants.md and docs/mutants.json.

    python tests/mutation/all_mutants.py [--every N] [--jobs J] [--search S]

Raises the exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from json import loads
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # the checkout is judged
import attention_cases  # noqa: E402, F401  (they register themselves)
from cases import CASES, Case  # noqa: E402

from graphene.testing.library import commit, write  # noqa: E402
from graphene.testing.mutate import KINDS, Mutant, Verdict, judge, mutants, table  # noqa: E402

DOCS = HERE.parents[1] / "docs"
REASONS = loads((HERE / "equivalent.json").read_text())


def reason(name: str, m: Mutant) -> str:
    """Why a person who looked says that the mutant computes the same."""
    for r in REASONS:
        fits = re.fullmatch(r["kernel"], name) and re.fullmatch(r["operator"], m.operator)
        if fits and re.search(r["before"], m.before) and re.search(r["after"], m.after):
            return str(r["reason"])
    return ""


@functools.cache
def prepared(name: str) -> tuple[Case, list[Mutant]]:
    case = CASES[name]()
    return case, mutants(case.kernel)


def verdict(job: tuple[str, int, int]) -> Verdict:
    name, number, search = job
    case, found = prepared(name)
    with contextlib.redirect_stderr(None):
        return judge(case.kernel, found[number], case.calls, search=search)


def page(judged: dict[str, list[Verdict]], every: int, search: int) -> str:
    count = sum(map(len, judged.values()))
    which = "All" if every == 1 else f"Each {every}th, spread over the texts,"
    every_verdict = [v for vs in judged.values() for v in vs]
    out = [
        "# Mutants",
        "",
        "A simulator that is to judge kernels must tell every kernel from its mutants: the same text with one change",
        "that somebody might make by mistake (`graphene.testing.mutate`).",
        f"{which} were judged, {count} of them, by `python tests/mutation/all_mutants.py --every {every}",
        f"--search {search}` at commit {commit()}; each line is in `docs/mutants.json`, with the date.",
        "Sizes and data are those that `kernel.check()` chooses of a kernel's text. The tests judge a sample.",
        "",
        "- *refused*: reading, verifying or lowering fails",
        "- *hazard*: `check()` finds a race, an undefined value, ...",
        "- *promise*: `check()` finds a result, or a spec, that is not what the kernel or the spec promises",
        f"- *missed*: nothing is found, but {search} times as many calls, or a call of the case, leave a bound",
        "- *within rounding*: no call that was tried leaves a bound; those that compute the same are among them",
        "",
        "```",
        table(every_verdict),
        "```",
        "",
        "| kernel | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    for name, found in judged.items():
        counts = [sum(v.kind == k for v in found) for k in KINDS]
        out.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    out += ["", "## Within rounding, and looked at", ""]
    for name, found in judged.items():
        why: dict[str, list[Mutant]] = {}
        for v in found:
            if v.kind == "within rounding" and (text := reason(name, v.mutant)):
                why.setdefault(text, []).append(v.mutant)
        out += [f"- {name}: {text} ({len(ms)}, as `{ms[0].before}`)" for text, ms in why.items()]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--search", type=int, default=10)
    args = parser.parse_args()
    numbered = [(name, i) for name in CASES for i in range(len(prepared(name)[1]))]
    jobs = [(name, i, args.search) for name, i in numbered[args.every // 2 :: args.every]]
    judged: dict[str, list[Verdict]] = {}
    rows: list[dict[str, Any]] = []
    missed = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for done, ((name, number, _), v) in enumerate(zip(jobs, pool.map(verdict, jobs), strict=True), 1):
            judged.setdefault(name, []).append(v)
            m = v.mutant
            rows.append({"case": name, "number": number, "operator": m.operator, "line": m.line, "before": m.before,
                         "after": m.after, "kind": v.kind, "detail": v.detail})  # fmt: skip
            missed += v.kind == "missed"
            end = "\n" if done == len(jobs) or (not sys.stderr.isatty() and done % 50 == 0) else ""
            if sys.stderr.isatty() or end:
                bar = "#" * (40 * done // len(jobs))
                print(f"\r[{bar:40}] {done} of {len(jobs)}, {missed} missed", end=end, file=sys.stderr, flush=True)
    (DOCS / "mutants.md").write_text(page(judged, args.every, args.search))
    head = {"every": args.every, "search": args.search, "of": len(numbered), "mutants": len(rows)}
    write(str(DOCS / "mutants.json"), head, rows)
    for r in rows:
        if r["kind"] == "missed":
            print(
                f"missed: {r['case']}, {r['operator']}, line {r['line']}: {r['before']} -> {r['after']}: {r['detail']}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
