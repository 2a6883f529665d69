"""Mutants of a kernel, and a judge for them.

A mutant is the kernel's text with one change: a synchronisation left out, a wait that waits for less, an index, a
stride, a swizzle, a bound, a condition, a group of threads, a ``.T`` or ``accumulate`` changed. A judge that can be
trusted tells every mutant that computes something else, on any schedule, from the kernel. ``judge`` says how it was
told:

- ``refused``: reading, verifying or lowering it fails
- ``hazard``: ``simulate`` or ``check`` finds a race, an undefined value, ... (SIM_*)
- ``promise``: ``check`` finds a spec that does not do what it says (CHECK_*)
- ``arguments``: the kernel no longer takes the arguments of the original
- ``values``: nothing but the result is wrong, and the changed statement is inside of no spec with a promise
- ``equal``: the result is the same on every seed: an equivalent mutant, or one that was missed
- ``missed``: the result is wrong, a promise covers the changed statement, and nothing was reported
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphene.check import check
from graphene.errors import GrapheneError, InternalError
from graphene.kernel import Kernel, parse

__all__ = ["Mutant", "Verdict", "judge", "mutants", "table"]

_VIEW = re.compile(r"^(\s*[%#]\d+):.*? = ([%#]\d+[.\[].*)$")
_NUMBER = re.compile(r"(?<![\w@%#.])(\d+)(?![\w.])")


@dataclass(frozen=True)
class Mutant:
    """One change of a kernel's text.

    ``operator``: what kind of change. ``line``: number of the changed line, from 1. ``before``, ``after``: its text,
    stripped; ``after`` is empty where the line is left out. ``text``: the whole mutant. ``promised``: inside of a spec
    that promises something.
    """

    operator: str
    line: int
    before: str
    after: str
    text: str
    promised: bool

    def __str__(self) -> str:
        return f"{self.operator}, line {self.line}: {self.before}  ->  {self.after or '(left out)'}"


@dataclass(frozen=True)
class Verdict:
    """How a mutant was told from its kernel: ``kind`` as in the module's documentation, ``detail`` a code or remark."""

    mutant: Mutant
    kind: str
    detail: str = ""


def untyped(text: str) -> list[str]:
    """The lines of a kernel's text without the types of views, which follow from how the views are made."""
    return [_VIEW.sub(r"\1 = \2", line) for line in text.splitlines()]


def _split(text: str) -> list[str]:
    """A list's entries, at the commas outside of brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([<") - (c in ")]>")
        if c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    return [*out, text[start:].strip()]


def _numbers(text: str) -> Iterator[str]:
    """The text with one of its integers one higher."""
    for m in _NUMBER.finditer(text):
        yield f"{text[: m.start()]}{int(m.group()) + 1}{text[m.end() :]}"


def _index(head: str, entries: list[str]) -> Iterator[tuple[str, str]]:
    scalars = [i for i, e in enumerate(entries) if e != ":"]
    for i, j in itertools.pairwise(scalars):
        if entries[i] != entries[j]:
            swapped = list(entries)
            swapped[i], swapped[j] = entries[j], entries[i]
            yield "index swapped", f"{head}[{', '.join(swapped)}]"
    for i in scalars:
        changed = list(entries)
        changed[i] = f"{entries[i]} + 1"
        yield "index + 1", f"{head}[{', '.join(changed)}]"


def _strides(shape: str) -> Iterator[str]:
    """A layout's text with its strides in another order, then with one of them changed."""
    sizes, _, strides = shape.partition(":")
    parts = _split(strides)
    if len(parts) > 1 and parts[0] != parts[-1]:
        yield f"{sizes}:{','.join(reversed(parts))}"
    for text in _numbers(strides):
        yield f"{sizes}:{text}"


def _view(line: str) -> Iterator[tuple[str, str]]:
    thread = line.lstrip().startswith("#")
    if m := re.fullmatch(r"(\s*[%#]\d+ = [%#]\d+)\[(.*)\]", line):
        for operator, text in _index(m[1], _split(m[2])):
            yield ("warp shifted" if thread and operator == "index + 1" else operator), text
    elif line.endswith(".T"):
        yield ".T dropped", line.removesuffix(".T") + ".permute(0, 1)"
    elif m := re.fullmatch(r"(\s*[%#]\d+ = [%#]\d+\.reshape\(\d+, \[)(.*)(\]\))", line):
        for shape in _strides(m[2]) if ":" in m[2] else ():
            yield "stride changed", m[1] + shape + m[3]
    elif m := re.fullmatch(r"(\s*[%#]\d+ = [%#]\d+\.tile\()(.*)(\))", line):
        layouts = re.findall(r"\[([^\[\]]*:[^\[\]]*)\]", m[2])
        for layout in layouts:
            for shape in _strides(layout):
                yield "stride changed", m[1] + m[2].replace(f"[{layout}]", f"[{shape}]", 1) + m[3]


def _statement(line: str) -> Iterator[tuple[str, str]]:
    body = line.lstrip()
    if m := re.fullmatch(r"(\s*for\(\w+=)(.*)(; \w+ < )(.*)(; \w+ \+= )(.*?)(\).*\{)", line):
        yield "loop starts later", f"{m[1]}{m[2]} + {m[6]}{''.join(m.group(3, 4, 5, 6, 7))}"
        yield "loop ends earlier", f"{''.join(m.group(1, 2, 3))}{m[4]} - {m[6]}{''.join(m.group(5, 6, 7))}"
    elif m := re.fullmatch(r"(\s*if\s*\()(.*)(\) \{)", line):
        yield "predicate dropped", f"{m[1]}1{m[3]}"
    elif body.startswith("exit_if"):
        yield "predicate dropped", ""
    elif "<- MatMul<<<" in line:
        if ", accumulate=false" in line:
            yield "accumulate flipped", line.replace(", accumulate=false", "")
        else:
            yield "accumulate flipped", re.sub(r"(>>>\([^)]*)\)", r"\1, accumulate=false)", line, count=1)
    elif "<- Init<<<" in line:
        yield "value changed", re.sub(r"value=(-?[\d.e+-]+|-?inf)", "value=3.5", line)
    elif " <- Allocate(" in line:
        yield from _allocation(line)
    elif m := re.fullmatch(r"(\s*\(.*\) = #\d+\.indices\(\))", line):
        names = re.findall(r"@\w+", line)
        if len(names) > 1:
            renamed = line.replace(names[0], "@\0").replace(names[-1], names[0]).replace("@\0", names[-1])
            yield "index swapped", renamed


def _allocation(line: str) -> Iterator[tuple[str, str]]:
    if ".SH <-" not in line:
        return
    if m := re.search(r", swizzle=Sw<(\d+),(\d+),(\d+)>", line):
        yield "swizzle changed", line.replace(m[0], "")
        yield "swizzle changed", line.replace(m[0], f", swizzle=Sw<{int(m[1]) - 1},{m[2]},{m[3]}>")
    if m := re.match(r"(\s*%\d+:.*\[)([^\[\]]*:[^\[\]]*)(\]\.\w+\.SH <-.*)", line):
        for shape in _strides(m[2]):
            yield "stride changed", m[1] + shape + m[3]


def _sync(line: str) -> Iterator[tuple[str, str]]:
    if not re.match(r"\s*(barrier|commit|wait|fence)\(", line):
        return
    yield "synchronisation left out", ""
    if m := re.search(r"pending=(\d+)", line):
        yield "wait count + 1", line.replace(m[0], f"pending={int(m[1]) + 1}")


def _argument(line: str) -> Iterator[tuple[str, str]]:
    if m := re.fullmatch(r"(%\d+:\[)(.*)(\]\.\w+\.GL = \w+ .*)", line):
        sizes, _, strides = m[2].partition(":")
        parts = _split(strides)
        if len(parts) > 1 and parts[0] != parts[-1]:
            yield "stride changed", f"{m[1]}{sizes}:{','.join(reversed(parts))}{m[3]}"


def mutants(kernel: Kernel) -> list[Mutant]:
    """Every change of one line that the operators know, in the order of the text; none is the kernel itself."""
    lines = untyped(str(kernel))
    original = parse("\n".join(lines) + "\n")
    if original != kernel:
        raise InternalError("the text without types reads as another kernel", [])
    out: list[Mutant] = []
    seen: set[str] = set()
    open_specs: list[bool] = []
    for number, line in enumerate(lines):
        if line.strip().startswith("}"):
            open_specs.pop()
        promised = any(open_specs)
        for operators in (_sync, _argument, _view, _statement):
            for operator, after in operators(line):
                changed = [*lines[:number], *([after] if after else []), *lines[number + 1 :]]
                text = "\n".join(changed) + "\n"
                if after == line or text in seen:
                    continue
                seen.add(text)
                out.append(Mutant(operator, number + 1, line.strip(), after.strip(), text, promised))
        if line.rstrip().endswith("{"):
            open_specs.append(" <- " in line and not re.search(r"<- Spec(<<<|<)", line))
    return out


def _arrays(arguments: Iterable[Any]) -> Iterator[np.ndarray]:
    for x in arguments:
        if isinstance(x, np.ndarray):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _arrays(x)


def _copies(arguments: Iterable[Any]) -> list[Any]:
    return [
        x.copy(order="K") if isinstance(x, np.ndarray) else _copies(x) if isinstance(x, (list, tuple)) else x
        for x in arguments
    ]


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(_arrays(a), _arrays(b), strict=True))


def judge(
    kernel: Kernel,
    mutant: Mutant,
    calls: Sequence[Callable[[], Sequence[Any]]],
    sizes: dict[str, int] | Sequence[dict[str, int] | Callable[[], Sequence[Any]]] | None = None,
    seeds: Iterable[int] = (0,),
    arch: str | None = None,
) -> Verdict:
    """How the mutant is told from the kernel.

    ``calls``: each makes the arguments of a call, always the same ones; ``sizes`` are those of ``check``, or of several
    checks (or what makes the arguments of one), by default its own. ``seeds``: schedules of every call; hazards do not
    depend on them. An InternalError is a bug and is raised.
    """

    def verdict(kind: str, detail: str = "") -> Verdict:
        return Verdict(mutant, kind, detail)

    wrong = ""
    try:
        changed = parse(mutant.text)
        if changed == kernel:
            return verdict("equal", "the same kernel")
        changed.lowered(arch)
    except InternalError:
        raise
    except GrapheneError as e:
        return verdict("refused", str(e.code))
    for number, arguments in enumerate(calls):
        want = _copies(arguments())
        kernel.simulate(*want, arch=arch)
        for seed in seeds:
            got = _copies(arguments())
            try:
                changed.simulate(*got, arch=arch, seed=seed)
            except InternalError:
                raise
            except GrapheneError as e:
                code = str(e.code)
                return verdict("arguments" if code.startswith("LAUNCH_") else "hazard", code)
            if not wrong and not _same(got, want):
                wrong = f"call {number}, seed {seed}"
    checks: Sequence[dict[str, int] | Callable[[], Sequence[Any]]] = (
        [sizes] if isinstance(sizes, dict) else sizes or [{}]
    )
    for of_check in checks:
        call, named = ((), of_check) if isinstance(of_check, dict) else (of_check(), {})
        errors = check(changed, tuple(call), arch, 0, named, once=True).errors
        if errors:
            return verdict("hazard" if errors[0].code.startswith("SIM_") else "promise", errors[0].code)
    if wrong:
        return verdict("missed" if mutant.promised else "values", wrong)
    return verdict("equal")


def table(verdicts: Iterable[Verdict]) -> str:
    """Operators by verdicts, counted."""
    rows: dict[str, dict[str, int]] = {}
    kinds = ["refused", "hazard", "promise", "arguments", "values", "equal", "missed"]
    for v in verdicts:
        row = rows.setdefault(v.mutant.operator, dict.fromkeys(kinds, 0))
        row[v.kind] += 1
    width = max([len("operator"), *map(len, rows)])
    lines = [" ".join([f"{'operator':{width}}", *(f"{k:>9}" for k in [*kinds, "all"])])]
    for operator, row in rows.items():
        lines.append(" ".join([f"{operator:{width}}", *(f"{row[k]:9}" for k in kinds), f"{sum(row.values()):9}"]))
    total = [sum(row[k] for row in rows.values()) for k in kinds]
    lines.append(" ".join([f"{'all':{width}}", *(f"{n:9}" for n in total), f"{sum(total):9}"]))
    return "\n".join(lines)
