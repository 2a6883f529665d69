"""Judges all mutants of all kernels, or every N-th, and writes docs/mutants.md and docs/mutants.json.

    python tests/mutation/all_mutants.py [--every N] [--jobs J] [--search S]

The exit status is 1 if one is missed. Runs that may be ended keep a journal, of which the pages are written at the end:

    python tests/mutation/all_mutants.py --journal a.jsonl --part 1/2 --minutes 9 [--resume]
    python tests/mutation/all_mutants.py --of a.jsonl b.jsonl

What docs/mutants.json holds need not be judged again: ``--again`` takes the mutants that were missed or whose judgement
was ended, and then those of kernels whose text has changed since. The pages say which commit each verdict is of.

    python tests/mutation/all_mutants.py --again --search 1 --journal c.jsonl --minutes 5 [--resume]
    python tests/mutation/all_mutants.py --of c.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process a core
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]  # the checkout is judged
import attention_cases  # noqa: E402, F401  (they register themselves)
from cases import CASES, Case  # noqa: E402

from graphene.testing.jobs import add_options, judge_all, options_of, read_journals  # noqa: E402
from graphene.testing.library import commit, write  # noqa: E402
from graphene.testing.mutate import KINDS, TextMutant, judge, mutants, table, untyped  # noqa: E402

DOCS = HERE.parents[1] / "docs"
REASONS = json.loads((HERE / "equivalent.json").read_text())


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


AGAIN = ("missed", "ended")  # what is judged again though the kernel's text is the same
Saved = dict[str, Any]  # docs/mutants.json


def fingerprint(name: str) -> str:
    """What tells whether a kernel's text has changed."""
    return hashlib.sha1("\n".join(untyped(str(prepared(name)[0].kernel))).encode()).hexdigest()[:12]


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The rows by their kind."""
    kinds = [r["kind"] for r in rows]
    return {k: kinds.count(k) for k in KINDS}


def whole_run(found: list[dict[str, Any]], head: dict[str, Any]) -> Saved:
    """What is kept of a run over all kernels."""
    kernels = {}
    for name in CASES:
        if rows := [r for r in found if r["case"] == name]:
            kernels[name] = {"text": fingerprint(name), "commit": head["commit"], "kinds": counted(rows)}
    operators: dict[str, dict[str, int]] = {}
    for r in found:
        operators.setdefault(r["operator"], dict.fromkeys(KINDS, 0))[r["kind"]] += 1
    said = {key: head[key] for key in ("commit", "every", "search", "of")}
    untold = [r for r in found if r["kind"] in UNTOLD]
    return {**said, "mutants": len(found), "operators": operators, "kernels": kernels, "found": untold}


def changed(saved: Saved) -> list[str]:
    """The kernels whose text is another one than that which was judged."""
    return [n for n in CASES if saved["kernels"].get(n, {}).get("text") != fingerprint(n)]


def located(row: dict[str, Any]) -> int | None:
    """The number of a row's mutant today."""
    found = prepared(row["case"])[1]
    same = [i for i, m in enumerate(found) if all(getattr(m, x) == row[x] for x in ("operator", "before", "after"))]
    return min(same, key=lambda i: abs(found[i].line - row["line"])) if same else None


def again(saved: Saved) -> list[tuple[str, int]]:
    """What ``--again`` judges: a case and a number each; those of kernels that have not changed come first."""
    new = set(changed(saved))
    once = [r for r in saved["found"] if r["kind"] in AGAIN and r["case"] in CASES and r["case"] not in new]
    jobs = [(r["case"], number) for r in once if (number := located(r)) is not None]
    return jobs + [job for job in numbered(1)[0] if job[0] in new]


def merged(saved: Saved, rows: list[dict[str, Any]], now: str) -> Saved:
    """The outcome with what was judged again at the commit `now`. Verdicts on a kernel's former text stay while fewer
    of its mutants were judged again.
    """
    new = set(changed(saved))
    kept = [r for r in saved["found"] if r["case"] in CASES]
    kernels = {n: dict(k) for n, k in saved["kernels"].items() if n in CASES}
    for name in {r["case"] for r in rows}:
        mine = [r for r in rows if r["case"] == name]
        if name in new:
            before = sum(kernels[name]["kinds"].values()) if name in kernels else 0
            if len(mine) < min(before, len(prepared(name)[1])):
                continue  # the verdicts on its former text say more
            kernels[name] = {"text": fingerprint(name), "commit": now, "kinds": counted(mine)}
            kept = [r for r in kept if r["case"] != name]
            kept += [r for r in mine if r["kind"] in UNTOLD]
            continue
        for r in mine:
            same = [k for k in kept if all(k[x] == r[x] for x in ("case", "operator", "before", "after"))]
            old = min(same, key=lambda k: abs(k["line"] - r["line"]))
            kinds = kernels[name]["kinds"] = dict(kernels[name]["kinds"])
            kinds[old["kind"]] -= 1
            kinds[r["kind"]] += 1
            kept[kept.index(old)] = {**r, "was": old.get("was", old["kind"]), "commit": now}
    return {**saved, "kernels": kernels, "found": kept}


def page(saved: Saved) -> str:
    every, search, found, kernels = saved["every"], saved["search"], saved["found"], saved["kernels"]
    count = saved["of"] // every
    which = f"all {count} mutants" if every == 1 else f"each {every}th mutant, {count} in all, spread over the texts"
    if saved["mutants"] < count:
        began = "as many as time allowed. It began with kinds that were once missed. This was"
        which = f"{saved['mutants']} of {count} mutants,\n{began}"
    pairs = [(o, k) for o, kinds in saved["operators"].items() for k, n in kinds.items() for _ in range(n)]
    out = [
        "# Mutants",
        "",
        "A mutant is a kernel's text with one change that somebody might make by mistake (`graphene.testing.mutate`).",
        "A simulator that is to judge kernels must tell every kernel from its mutants.",
        "",
        f"`python tests/mutation/all_mutants.py --every {every} --search {search}` judged {which}",
        f"at commit {saved['commit']}. With `--again` it judges once more what was missed or ended, and the",
        "mutants of kernels whose text has changed since; the table of kernels says at which commit.",
        "`docs/mutants.json` has the date, and the mutants that were not told from their kernel. `kernel.check()`",
        "chose sizes and data from each kernel's text. The tests judge a sample.",
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
        f"By operator, at commit {saved['commit']}:",
        "",
        "```",
        table(pairs),
        "```",
        "",
        "By kernel; what was judged again counts as it was told then:",
        "",
        "| kernel | commit | " + " | ".join(KINDS) + " |",
        "|---|---|" + "---|" * len(KINDS),
    ]
    for name in CASES:
        if name in kernels:
            k = kernels[name]
            out.append(f"| {name} | {k['commit']} | " + " | ".join(str(k["kinds"][x]) for x in KINDS) + " |")
    stale = [n for n in changed(saved) if n in kernels]
    never = [n for n in CASES if n not in kernels]
    out += [
        "",
        f"Changed since they were judged: {', '.join(stale) or 'none'}. Not judged yet: {', '.join(never) or 'none'}.",
    ]
    if once := [r for r in found if "was" in r or r["kind"] in AGAIN]:
        out += ["", "## Mutants that were missed or ended", ""]
        for r in once:
            at = f"{r['kind']} at {r['commit']}, {r['was']} before" if "was" in r else r["kind"]
            out.append(f"- {r['case']}, {r['operator']}: `{r['before']}` became `{r['after']}`: {at}")
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


def save(saved: Saved) -> None:
    """Writes both pages."""
    (DOCS / "mutants.md").write_text(page(saved))
    head = {k: v for k, v in saved.items() if k not in ("commit", "date", "found")}
    write(str(DOCS / "mutants.json"), head, saved["found"], saved["commit"])


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


def outcomes(rows: list[dict[str, Any]], jobs: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """The rows; one whose judgement was ended names its mutant, too."""
    out = []
    for row in rows:
        if "failed" in row:
            name, number = jobs[row["index"]]
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
    parser.add_argument("--again", action="store_true", help="what was missed, and kernels that have changed, alone")
    add_options(parser)
    args = parser.parse_args()
    options = options_of(args)
    saved = json.loads((DOCS / "mutants.json").read_text()) if args.again else {}
    if args.of:
        head, rows = read_journals(args.of)
        whole = len(rows) == head["count"]
        if not whole:
            print(f"{len(rows)} of {head['count']} are judged", file=sys.stderr)
        if "again" in head:
            saved = json.loads((DOCS / "mutants.json").read_text())
        jobs = again(saved) if saved else numbered(head["every"])[0]
    else:
        jobs, count = (again(saved), saved["of"]) if args.again else numbered(args.every)
        head = {"commit": commit(), "every": args.every, "search": args.search, "of": count}
        head |= {"again": saved["commit"]} if args.again else {}
        rows, whole = judge_all(lambda i: judged(*jobs[i], args.search), len(jobs), head, options, wrong)
        whole = whole and options.part[1] == 1
    found = outcomes(rows, jobs)
    if saved and (whole or args.of):  # else the rest of the journal would be of other jobs
        save(merged(saved, found, head["commit"]))
    elif whole or args.of:
        save(whole_run(found, head))
    for r in found:
        if r["kind"] in ("missed", "ended"):
            what = f"{r['case']}, {r['operator']}, line {r['line']}: {r['before']} -> {r['after']}"
            print(f"{r['kind']}: {what}: {r['detail']}")
    return 1 if any(r["kind"] in ("missed", "ended") for r in found) else 0


if __name__ == "__main__":
    sys.exit(main())
