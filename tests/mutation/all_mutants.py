"""Judges all mutants of all kernels, or every N-th, and writes docs/mutants.md and docs/mutants.json.

    python tests/mutation/all_mutants.py [--every N] [--jobs J] [--search S]

The exit status is 1 if one is missed. Runs that may be ended keep a journal, of which the pages are written at the end:

    python tests/mutation/all_mutants.py --journal a.jsonl --part 1/2 --minutes 9 [--resume]
    python tests/mutation/all_mutants.py --of a.jsonl b.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import sys
import zlib
from json import loads
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process a core
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # the checkout is judged
import attention_cases  # noqa: E402, F401  (they register themselves)
from cases import CASES, Case  # noqa: E402

from graphene.testing.jobs import add_options, judge_all, options_of, read_journals  # noqa: E402
from graphene.testing.library import commit, write  # noqa: E402
from graphene.testing.mutate import KINDS, TextMutant, judge, mutants, table  # noqa: E402

DOCS = HERE.parents[1] / "docs"
REASONS = loads((HERE / "equivalent.json").read_text())


def reason(r: dict[str, Any]) -> str:
    """Why a person who looked says that the mutant computes the same."""
    for known in REASONS:
        fits = re.fullmatch(known["kernel"], r["case"]) and re.fullmatch(known["operator"], r["operator"])
        if fits and re.search(known["before"], r["before"]) and re.search(known["after"], r["after"]):
            return str(known["reason"])
    return ""


@functools.cache
def prepared(name: str) -> tuple[Case, list[TextMutant]]:
    case = CASES[name]()
    return case, mutants(case.kernel)


def judged(name: str, number: int, search: int) -> dict[str, Any]:
    case, found = prepared(name)
    with contextlib.redirect_stderr(None):
        v = judge(case.kernel, found[number], case.calls, search=search)
    m = v.mutant
    return {"case": name, "number": number, "operator": m.operator, "line": m.line, "before": m.before,
            "after": m.after, "kind": v.kind, "detail": v.detail}  # fmt: skip


ONCE_MISSED = {
    "bound by one", "constant changed", "loop ends earlier", "loop starts later", "operands exchanged",
    "operation exchanged", "predicate dropped", "scalar exchanged", "statement left out", "type narrowed",
}  # fmt: skip
UNTOLD = ("missed", "ended", "within rounding")


def page(found: list[dict[str, Any]], head: dict[str, Any]) -> str:
    every, search = head["every"], head["search"]
    count = head["of"] // every
    which = f"all {count} mutants" if every == 1 else f"each {every}th mutant, {count} in all, spread over the texts"
    if len(found) < count:
        which = f"{len(found)} of {count} mutants, as many as there was time for; of kinds that were ever missed first"
    out = [
        "# Mutants",
        "",
        "A mutant is a kernel's text with one change that somebody might make by mistake (`graphene.testing.mutate`).",
        "A simulator that is to judge kernels must tell every kernel from its mutants.",
        "",
        f"This page counts the verdicts on {which}.",
        f"`python tests/mutation/all_mutants.py --every {every} --search {search}` judged them at commit",
        f"{head['commit']}. `docs/mutants.json` has the date, and the mutants that",
        "were not told from their kernel. `kernel.check()` chose sizes and data from each kernel's text. The tests",
        "judge a sample.",
        "",
        "- *refused*: reading, verifying or lowering the mutant fails",
        "- *hazard*: `check()` finds a race, an undefined value, ...",
        "- *promise*: `check()` finds a result, or a spec, that is not what the kernel or the spec promises",
        f"- *missed*: `check()` finds nothing, but a search with {search} x its calls, or a call of the case, shows",
        "  results out of the bound",
        "- *within rounding*: no call that was tried gives results out of the bound; mutants that compute the same are",
        "  among them",
        "- *ended*: judging the mutant took longer than it may, or ended the process",
        "",
        "```",
        table((r["operator"], r["kind"]) for r in found),
        "```",
        "",
        "| kernel | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    for name in CASES:
        of_kernel = [r["kind"] for r in found if r["case"] == name]
        if of_kernel:
            out.append(f"| {name} | " + " | ".join(str(of_kernel.count(k)) for k in KINDS) + " |")
    out += [
        "",
        "## Mutants within rounding that compute the same",
        "",
        "Each line gives the kernel, the reason, the number of such mutants, and one of the changed lines.",
        "",
    ]
    for name in CASES:
        why: dict[str, list[dict[str, Any]]] = {}
        for r in found:
            if r["case"] == name and r["kind"] == "within rounding" and (text := reason(r)):
                why.setdefault(text, []).append(r)
        out += [f"- {name}: {text} ({len(rs)}, such as `{rs[0]['before']}`)" for text, rs in why.items()]
    return "\n".join(out) + "\n"


def numbered(every: int) -> tuple[list[tuple[str, int]], int]:
    """Which mutants are judged, each a case and a number, and how many there are.

    Those whose kind was ever missed come first, and in each half the cases are mixed: a run that is cut off has judged
    what is most likely to be missed, of every kernel.
    """
    of_all = [(name, i) for name in CASES for i in range(len(prepared(name)[1]))]

    def order(job: tuple[str, int]) -> tuple[bool, int]:
        name, number = job
        seldom = prepared(name)[1][number].operator not in ONCE_MISSED
        return seldom, zlib.crc32(f"{name} {number}".encode())

    return sorted(of_all[every // 2 :: every], key=order), len(of_all)


def outcomes(rows: list[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    """The rows; one whose judgement was ended names its mutant, too."""
    out = []
    which = numbered(every)[0] if any("failed" in row for row in rows) else []
    for row in rows:
        if "failed" in row:
            name, number = which[row["index"]]
            m = prepared(name)[1][number]
            row = {"case": name, "number": number, "operator": m.operator, "line": m.line, "before": m.before,
                   "after": m.after, "kind": "ended", "detail": row["failed"]}  # fmt: skip
        out.append({key: value for key, value in row.items() if key != "index"})
    return out


def wrong(row: dict[str, Any]) -> bool:
    return "failed" in row or row["kind"] == "missed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--search", type=int, default=10)
    parser.add_argument(
        "--of", nargs="+", type=Path, metavar="JOURNAL", help="writes the pages of these, judges nothing"
    )
    add_options(parser)
    args = parser.parse_args()
    options = options_of(args)
    if args.of:
        head, rows = read_journals(args.of)
        whole = len(rows) == head["count"]
        if not whole:
            print(f"{len(rows)} of {head['count']} are judged", file=sys.stderr)
    else:
        jobs, count = numbered(args.every)
        head = {"commit": commit(), "every": args.every, "search": args.search, "of": count}
        rows, whole = judge_all(lambda i: judged(*jobs[i], args.search), len(jobs), head, options, wrong)
        whole = whole and options.part[1] == 1
    found = outcomes(rows, head["every"])
    if whole or args.of:
        (DOCS / "mutants.md").write_text(page(found, head))
        said = {**{key: head[key] for key in ("every", "search", "of")}, "mutants": len(found)}
        write(str(DOCS / "mutants.json"), said, [r for r in found if r["kind"] in UNTOLD], head["commit"])
    for r in found:
        if r["kind"] in ("missed", "ended"):
            what = f"{r['case']}, {r['operator']}, line {r['line']}: {r['before']} -> {r['after']}"
            print(f"{r['kind']}: {what}: {r['detail']}")
    return 1 if any(r["kind"] in ("missed", "ended") for r in found) else 0


if __name__ == "__main__":
    sys.exit(main())
