"""Mutants of a kernel, and a judge for them.

A mutant is the kernel's text with one change: a synchronisation or another statement left out, a wait that waits for
less or for the other phase, a number of arrivals or of bytes to come, blocks that receive nothing, an index, a stride,
a swizzle, a bound, a condition, a constant, an operation, the order of its operands, a scalar, a group of threads, a
``.T`` or ``accumulate`` changed, a value narrowed to bf16 on its way. A judge that can be trusted tells every mutant
that computes something else from the kernel. ``judge`` says how it was told:

- ``refused``: reading, verifying or lowering it fails, or it no longer takes the kernel's arguments
- ``hazard``: ``check`` finds a race, an undefined value, ... (SIM_*)
- ``promise``: ``check`` finds a result, or a spec, that is not what the kernel or the spec says (CHECK_*)
- ``missed``: ``check`` finds nothing, but one of ten times as many calls, of other seeds, or a call of the case does
- ``within rounding``: no call that was tried leaves the bound of the kernel's promise; mutants that compute the same
  are among them

``ended`` is said by those that run a judge in a process of its own: it took too long, or it ended its process.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphene import _core
from graphene.check import check
from graphene.errors import GrapheneError, InternalError
from graphene.judge.signature import Signature
from graphene.judge.verdict import hold
from graphene.kernel import Kernel, parse

__all__ = ["KINDS", "TextMutant", "Verdict", "judge", "mutants", "table"]

KINDS = ("refused", "hazard", "promise", "within rounding", "missed", "ended")

_VIEW = re.compile(r"^(\s*[%#]\d+):.*? = ([%#]\d+[.\[].*)$")
_NUMBER = re.compile(r"(?<![\w@%#.])(\d+)(?![\w.])")


@dataclass(frozen=True)
class TextMutant:
    """One change of a kernel's text.

    ``operator``: what kind of change. ``line``: number of the changed line, from 1. ``before``, ``after``: its text,
    stripped; ``after`` is empty where the line is left out. ``text``: the whole mutant.
    """

    operator: str
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.operator}, line {self.line}: {self.before}  ->  {self.after or '(left out)'}"


@dataclass(frozen=True)
class Verdict:
    """How a mutant was told from its kernel: ``kind`` as in the module's documentation, ``detail`` a code or remark."""

    mutant: TextMutant
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
        if condition := re.search(r" while\(.*\)", m[7]):
            yield "predicate dropped", line.replace(condition[0], "")
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


_OTHER = {"+": "-", "-": "+", "*": "+", "/": "*", "max": "min", "min": "max", "lt": "le", "le": "lt", "gt": "ge",
          "ge": "gt", "eq": "ne", "ne": "eq", "and": "or", "or": "and", "exp2": "id", "rcp": "id", "rsqrt": "rcp",
          "sqrt": "id", "neg": "id", "abs": "id", "shl": "shr", "shr": "shl", "floordiv": "mod", "mod": "floordiv",
          "^": "or", "popc": "clz", "clz": "popc", "ballot": "match"}  # fmt: skip
_COMBINED = {"add": "max", "max": "min", "min": "max", "and": "or", "or": "and", "xor": "or", "exchange": "add",
             "cas": "exchange"}  # fmt: skip
_COMMUTES = {"+", "*", "max", "min", "eq", "ne", "and", "or"}
_LEAF = re.compile(r"(\s*)([%]\d+(?:, %\d+)*) <- (\w+)(?:<([^<>]*)>)?<<<(.*?)>>>\((.*)\)(.*)")
_FLOAT = re.compile(r"(?<![\w@%#.])-?\d+\.\d+(?:e[+-]?\d+)?")


def _leaf(line: str) -> Iterator[tuple[str, str]]:
    """Changes of a statement that computes: of its operation, operands and constants, or it is left out."""
    m = _LEAF.fullmatch(line)
    if m is None:
        return
    space, out, kind, op, where, operands, rest = m.groups()
    block = rest.endswith("{")
    if not block:
        yield "statement left out", ""

    def with_(op: str | None, operands: str) -> str:
        return f"{space}{out} <- {kind}{'' if op is None else f'<{op}>'}<<<{where}>>>({operands}){rest}"

    if op in _OTHER and not block:
        yield "operation exchanged", with_(_OTHER[op], operands)
    if (m := re.search(r'combine="(\w+)"', operands)) and m[1] in _COMBINED and not block:
        yield "operation exchanged", with_(op, operands.replace(m[0], f'combine="{_COMBINED[m[1]]}"'))
    if m := re.search(r"\btable=(\d+)", operands):
        for table in (255 - int(m[1]), int(m[1]) ^ 0x80):
            yield "constant changed", with_(op, operands.replace(m[0], f"table={table}"))
    parts = _split(operands)
    data = [i for i, x in enumerate(parts) if "=" not in x or "==" in x]
    if (
        kind in ("BinaryPointwise", "TernaryPointwise", "MatMul")
        and not block
        and op not in _COMMUTES
        and len(data) > 1
    ):
        x, y = data[-2:] if op != "fma" else (data[0], data[2])
        if parts[x] != parts[y]:
            changed = list(parts)
            changed[x], changed[y] = parts[y], parts[x]
            yield "operands exchanged", with_(op, ", ".join(changed))
    if kind.endswith("Pointwise"):
        for number in _FLOAT.finditer(operands):
            value = float(number[0])
            for other in (-value, value * 1.01) if value else (1.0,):
                yield "constant changed", with_(op, operands[: number.start()] + repr(other) + operands[number.end() :])


def _bound(line: str) -> Iterator[tuple[str, str]]:
    """A bound of a loop, a condition or a window, one higher or lower."""
    if m := re.fullmatch(r"(\s*for\(\w+=.*; \w+ < )(.*)(; \w+ \+= .*\{)", line):
        yield "bound by one", f"{m[1]}{m[2]} - 1{m[3]}"
        yield "bound by one", f"{m[1]}{m[2]} + 1{m[3]}"
    for found in re.finditer(r" (<=|<) ", line) if re.match(r"\s*(if|exit_if)\s*\(", line) or "<where>" in line else ():
        other = " < " if found[1] == "<=" else " <= "
        yield "bound by one", line[: found.start()] + other + line[found.end() :]
    if m := re.fullmatch(r"(\s*[%#]\d+ = [%#]\d+\.window\()(.*)(\))", line):
        entries = _split(m[2])
        for i, e in enumerate(entries):
            yield "bound by one", f"{m[1]}{', '.join([*entries[:i], f'{e} + 1', *entries[i + 1 :]])}{m[3]}"


def _narrowed(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Behind a statement that computes a number of fp32 in a register: through bf16 and back."""
    numbers = [int(n) for line in lines for n in re.findall(r"^\s*%(\d+)", line)]
    free = max(numbers, default=0) + 1
    single = {m[1] for line in lines if (m := re.match(r"\s*(%\d+):\[\]\.fp32\.RF <- Allocate", line))}
    for number, line in enumerate(lines):
        m = _LEAF.fullmatch(line)
        if m is None or not m[3].endswith("Pointwise") or m[2] not in single or line.endswith("{"):
            continue
        through = f"%{free}:[].bf16.RF"
        space = m[1]
        cast = f"UnaryPointwise<cast><<<{m[5]}>>>"
        yield number, [line, f'{space}{through} <- Allocate(name="narrow")', f"{space}%{free} <- {cast}({m[2]})",
                       f"{space}{m[2]} <- {cast}(%{free})"]  # fmt: skip


def _scalars(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Where a scalar argument is used: another one of its type."""
    of_type: dict[str, list[str]] = {}
    for line in lines:
        if m := re.fullmatch(r"param \w+:(\w+) = (%\d+)", line):
            of_type.setdefault(m[1], []).append(m[2])
    for names in of_type.values():
        for x, y in zip(names, [*names[1:], names[0]], strict=True):
            for number, line in enumerate(lines):
                if x != y and not line.startswith("param") and re.search(rf"{x}\b", line):
                    yield number, re.sub(rf"{x}\b", y, line, count=1)


def _sync(line: str) -> Iterator[tuple[str, str]]:
    if m := re.search(r",? to=#\d+", line):
        yield "own block alone", line.replace(m[0], "")
    if m := re.search(r"\.mbar\.SH <- Allocate\(.*\barrivals=(\d+)", line):
        yield "arrivals + 1", line.replace(f"arrivals={m[1]}", f"arrivals={int(m[1]) + 1}")
    if not re.match(r"\s*(barrier|commit|wait|fence|arrive|wait_phase|sync)\(", line):
        return
    yield "synchronisation left out", ""
    if m := re.search(r"pending=(\d+)", line):
        yield "wait count + 1", line.replace(m[0], f"pending={int(m[1]) + 1}")
    if m := re.search(r"phase=(.*)\)", line):
        yield "phase inverted", line.replace(m[0], f"phase=1 - ({m[1]}))")
    if m := re.search(r"expect=\(([^)]*)\)", line):
        first, *others = _split(m[1])
        fewer = f"expect=({', '.join(others)})" if others else f"expect=({first}), expect_bytes=16"
        yield "bytes expected changed", line.replace(m[0], fewer)


def _argument(line: str) -> Iterator[tuple[str, str]]:
    if m := re.fullmatch(r"(%\d+:\[)(.*)(\]\.\w+\.GL = \w+ .*)", line):
        sizes, _, strides = m[2].partition(":")
        parts = _split(strides)
        if len(parts) > 1 and parts[0] != parts[-1]:
            yield "stride changed", f"{m[1]}{sizes}:{','.join(reversed(parts))}{m[3]}"


def mutants(kernel: Kernel) -> list[TextMutant]:
    """Every change of one line that the operators know, in the order of the text; none is the kernel itself."""
    lines = untyped(str(kernel))
    original = parse("\n".join(lines) + "\n")
    if original != kernel:
        raise InternalError("the text without types reads as another kernel", [])
    out: list[TextMutant] = []
    seen: set[str] = set()

    def add(operator: str, number: int, after: list[str]) -> None:
        text = "\n".join([*lines[:number], *after, *lines[number + 1 :]]) + "\n"
        if after != [lines[number]] and text not in seen:
            seen.add(text)
            out.append(
                TextMutant(operator, number + 1, lines[number].strip(), "; ".join(x.strip() for x in after), text)
            )

    narrow, scalars = dict(_narrowed(lines)), list(_scalars(lines))
    for number, line in enumerate(lines):
        for operators in (_sync, _argument, _view, _statement, _leaf, _bound):
            for operator, changed in operators(line):
                add(operator, number, [changed] if changed else [])
        if number in narrow:
            add("type narrowed", number, narrow[number])
        for at, changed in scalars:
            if at == number:
                add("scalar exchanged", number, [changed])
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


def _prints_the_same(kernel: Kernel, changed: Kernel, arch: str | None) -> bool:
    """Whether two kernels are the same CUDA C++, which says all that the simulator runs."""
    try:
        arch = kernel.lowered(arch).arch
        return kernel.cuda_source(arch) == changed.cuda_source(arch)
    except GrapheneError:
        return False


def judge(
    kernel: Kernel,
    mutant: TextMutant,
    calls: Sequence[Callable[[], Sequence[Any]]] = (),
    arch: str | None = None,
    search: int = 10,
) -> Verdict:
    """The verdict on a mutant, which is held to the promise of the kernel.

    ``calls``: each makes the arguments of a further call, for what ``check`` does not tell; ``search``: how many times
    the calls of a check are tried then. An InternalError is a bug and is raised.
    """
    from graphene.judge.calls import CallPlan
    from graphene.judge.runs import Runner

    def verdict(kind: str, detail: str = "") -> Verdict:
        return Verdict(mutant, kind, detail)

    promise = kernel.promise
    if promise is None:
        raise ValueError(f"{kernel.name} promises nothing: write gr.Kernel(name, means=...)")
    try:
        changed = parse(mutant.text).with_promise(promise.means, promise.read, promise.arguments, promise.sums)
        if changed == kernel:
            return verdict("within rounding", "the same kernel")
        errors = check(changed, (), arch, 0, {}, explain=False).errors
    except InternalError:
        raise
    except GrapheneError as e:
        return verdict("refused", str(e.code))
    if errors:
        code = errors[0].code
        how = {"SIM": "hazard", "LAUNCH": "refused"}.get(code.partition("_")[0], "promise")
        return verdict(how, code)
    if _prints_the_same(kernel, changed, arch):
        return verdict("within rounding", "the same code")
    same = True
    for seed in range(1, search + 1):
        plan = CallPlan(kernel, seed, conditions=_core.launch_conditions(kernel.lowered(arch)))
        runner = Runner(changed, arch, seed, plan, explain=False)
        for run in runner.all().runs:
            if not run.ok:
                return verdict("missed", str(run.call))
    for number, arguments in enumerate(calls):
        want, got = _copies(arguments()), _copies(arguments())
        kernel.simulate(*want, arch=arch)
        try:
            changed.simulate(*got, arch=arch)
        except GrapheneError as e:
            code = str(e.code)
            return verdict("refused" if code.startswith("LAUNCH_") else "missed", f"call {number}: {code}")
        same = same and _same(got, want)
        named = dict(zip((a.name for a in Signature.of(kernel).arguments), arguments(), strict=True))
        if not same and hold(changed, named, arch):
            return verdict("missed", f"call {number}")
    return verdict("within rounding", "the same bits" if same else "")


def table(verdicts: Iterable[tuple[str, str]]) -> str:
    """Operators by verdicts, counted: of pairs of an operator and a kind."""
    rows: dict[str, dict[str, int]] = {}
    for operator, kind in verdicts:
        rows.setdefault(operator, dict.fromkeys(KINDS, 0))[kind] += 1
    width = max([len("operator"), *map(len, rows)])
    lines = [" ".join([f"{'operator':{width}}", *(f"{k:>15}" for k in [*KINDS, "all"])])]
    for operator, row in rows.items():
        lines.append(" ".join([f"{operator:{width}}", *(f"{row[k]:15}" for k in KINDS), f"{sum(row.values()):15}"]))
    total = [sum(row[k] for row in rows.values()) for k in KINDS]
    lines.append(" ".join([f"{'all':{width}}", *(f"{n:15}" for n in total), f"{sum(total):15}"]))
    return "\n".join(lines)
