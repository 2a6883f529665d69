"""What ``kernel.check()`` does and returns: it chooses calls from the kernel's text and holds them to the kernel's
promise, then every decomposed spec to its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graphene import _core, references
from graphene import promise as _promise
from graphene.errors import LaunchError, SimulationError
from graphene.simulate import Sync, check_memory, check_seed, check_sizes, relaxation, syncs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene.errors import GrapheneError
    from graphene.judge.calls import Call, CallPlan, Made
    from graphene.judge.runs import JudgedCall, Outcome, Runner
    from graphene.recorded import Recorded

__all__ = [
    "CheckError",
    "CheckResult",
    "Mutant",
    "Worst",
    "check",
    "known",
    "mutants",
    "of_hazard",
    "of_nothing",
    "of_promise",
    "worst_of",
]

MEMORY_BYTES = 1 << 30  # the most that a check may allocate
_SPECS = "what decomposed specs promise was not looked at"
# Decomposed specs are held to their promises in the smallest _GHOSTS calls. After the first of them these calls may
# take _GHOST_LANE_OPS together.
_GHOSTS = 8
_GHOST_LANE_OPS = 500_000
_FEW_BLOCKS = 8  # a grid of no more blocks is run whole, however large the blocks are
_GHOST_BLOCK_OPS = 20_000_000  # the most in all blocks of a large call that hold specs to their promises
_SMALLER = 8, 8, 1_000_000  # calls and lane operations that judge a kernel where a given call is too large for it
_MOST_JUDGED = 4e9  # the largest product of a large call's sizes: its meaning takes about a minute


@dataclass(frozen=True)
class CheckError:
    """A hazard, a broken promise of the kernel, or a spec whose decomposition does not do what the spec says.

    ``code``: SIM_* or CHECK_*; LAUNCH_* if every call was refused. ``where``: Python ``file:line`` of the statement, or
    of the kernel's meaning. ``ir``: its IR text, and that of the other side of a race. ``text``: everything, as an
    exception would print it.
    """

    code: str
    message: str
    where: str
    ir: tuple[str, ...]
    details: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


class Worst(NamedTuple):
    """The largest error in units of the bound (an error of 1 is still right), its element, and the call."""

    error: float
    element: str
    call: str


@dataclass(frozen=True, repr=False)
class CheckResult:
    """The outcome of ``kernel.check()``; true if nothing was found, and what the kernel promises was judged.

    ``errors``: a hazard if there is one, else every broken promise, or why no call could be judged. ``calls``: all
    calls that ran, with sizes, kind of data and scalars. ``worst``: the largest error of an output in units of the
    bound; None without a promise.
    ``promises``: how many instances of specs were held to their promises, at ``sizes`` and other small sizes.
    ``roundings``: names of the tensors in which values become narrower than fp32 and are then computed with.
    ``uncovered``: what no call reached: residues of a dividend, statements that no thread executed, loops that no
    thread repeated. ``blocks``: how many blocks ran in the first call in which specs were held to their promises.
    """

    errors: tuple[CheckError, ...]
    promises: int
    lane_ops: int
    sizes: dict[str, int]
    blocks: int
    arch: str
    calls: tuple[str, ...] = ()
    worst: Worst | None = None
    roundings: frozenset[str] = frozenset()
    uncovered: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.errors

    def __bool__(self) -> bool:
        return self.ok

    @property
    def worst_error(self) -> float | None:
        """The error of ``worst``."""
        return self.worst.error if self.worst is not None else None

    def __repr__(self) -> str:
        first, *more = str(self).splitlines()
        found = f"{len(self.errors)} errors, " if self.errors else ""
        return f"<CheckResult: {found}{first}{f' and {len(more)} lines more' * bool(more)}>"

    def __str__(self) -> str:
        if self.errors:
            return "\n".join(e.text for e in self.errors)
        n = len(self.calls)
        said = f"ok: {n} call{'s' * (n != 1)}"
        if self.worst is not None and self.worst.error == 0:
            said += ", every result is the number that is nearest"
        elif self.worst is not None:
            said += f", the largest error is {self.worst.error:.2f} of the bound, at {self.worst.element}"
        else:
            said += ", but no result was compared with a promise"
        if self.promises:
            said += "; 1 promise of a spec kept" if self.promises == 1 else f"; {self.promises} promises of specs kept"
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        if len(self.calls) == 1 and sizes:
            said += f" with {sizes}"
        return "\n".join([said, *(f"not covered: {u}" for u in self.uncovered)])


class Mutant(NamedTuple):
    """A kernel with one synchronisation statement weakened, and the hazard that is then found.

    ``change``: "left out" or, for a wait, "one more group in flight". ``hazard``: SIM_*, or None if none is found, and
    then the statement is redundant at these sizes.
    """

    sync: Sync
    change: str
    hazard: str | None

    def __str__(self) -> str:
        return f"{self.sync.where}: {self.sync.text} {self.change}: {self.hazard or 'no hazard'}"


def mutants(
    kernel: Recorded, args: tuple[object, ...], arch: str | None, seed: int, sizes: dict[str, int]
) -> list[Mutant]:
    """Looks for hazards without each synchronisation statement in turn, and with each weakened that can be."""
    made, _, used = _first_call(kernel, args, arch, seed, sizes)
    program = kernel.lowered(arch)
    given = _positional(kernel, made)

    def hazard(skip: Sequence[int] = (), relax: Sequence[int] = ()) -> str | None:
        try:
            found = _core.check(program, used, seed, skip=skip, relax=relax, hazards_alone=True, args=given)
        except SimulationError as error:  # what is left out is refused before anything runs
            return error.code
        return found.problems[0].code if found.problems else None

    out = []
    for sync in syncs(kernel):
        out.append(Mutant(sync, "left out", hazard(skip=[sync.id])))
        if weaker := relaxation(sync):
            out.append(Mutant(sync, weaker, hazard(relax=[sync.id])))
    return out


def _first_call(
    kernel: Recorded, args: tuple[object, ...], arch: str | None, seed: int, sizes: dict[str, int]
) -> tuple[Made, Call, dict[str, int]]:
    """The call with the given arguments, else the usual call of the sizes; and the values of all symbols."""
    from graphene.judge.calls import CallPlan, of_arguments

    check_seed(seed)
    check_sizes(sizes)
    program = kernel.lowered(arch)
    if args and not sizes:
        made, call = of_arguments(kernel, program, args)
    else:
        fixed = {**_core.argument_sizes(program, args), **sizes} if args else dict(sizes)
        plan = CallPlan(kernel, seed, known(kernel, fixed), conditions=_core.launch_conditions(program))
        call = plan.usual()
        made = plan.make(call)
    return made, call, _core.argument_sizes(program, _positional(kernel, made))


def _positional(kernel: Recorded, made: Made) -> tuple[object, ...]:
    from graphene.judge.signature import Signature

    given = made.given()
    return tuple(given[a.name] for a in Signature.of(kernel).arguments)


def known(kernel: Any, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes. Raises SimulationError SIM_ARGUMENT for a symbol that the kernel lacks, or that its facts exclude."""
    from graphene.judge.signature import Signature

    signature = Signature.of(kernel)
    integers = {p.name for p in signature.scalars}
    for name, value in sizes.items():
        facts = signature.symbols.get(name)
        if facts is None and name not in integers:
            has = ", ".join([*signature.symbols, *sorted(integers)]) or "none"
            _core.fail("SIM_ARGUMENT", f"the kernel has no size {name}", [f"sizes: {has}"],
                       "leave it out, or name one of these")  # fmt: skip
        if facts is not None and not facts.allow(value):
            _core.fail("SIM_ARGUMENT", f"the size {name}={value} breaks the symbol's facts",
                       [f"want: from {facts.least} to {facts.most}, a multiple of {facts.multiple_of}"])  # fmt: skip
    return sizes


def check(
    kernel: Recorded,
    args: tuple[object, ...],
    arch: str | None,
    seed: int,
    sizes: dict[str, int],
    once: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    explain: bool = True,
) -> CheckResult:
    """Runs calls of a kernel, with every access checked, and holds outputs to what the kernel promises; then runs the
    smallest of them over a prime field, where what each decomposed spec promises (``after == F(before)``) holds exactly
    or is wrong.

    ``args``: the one call that runs, unchanged. ``sizes``: values of the kernel's symbols in every call; the others are
    chosen. ``once``: only the first call is made. With both ``args`` and ``sizes``, the arrays only give sizes.
    ``memory_bytes``: how much this process may allocate meanwhile. ``explain``: whether a smaller call is looked for
    that shows the same, and the innermost spec that is wrong. Raises SimulationError SIM_ARGUMENT for sizes that
    the symbols' facts exclude, SIM_MEMORY for sizes or arguments that need more memory, CHECK_MEANS for a meaning that
    does not fit; VerifyError and SelectError as lowering does.
    """
    from graphene.judge.memory import limited

    check_seed(seed)
    check_sizes(sizes)
    check_memory(memory_bytes)
    with limited(memory_bytes):
        return _check(kernel, args, arch, seed, sizes, once, explain)


def _check(
    kernel: Recorded,
    args: tuple[object, ...],
    arch: str | None,
    seed: int,
    sizes: dict[str, int],
    once: bool,
    explain: bool,
) -> CheckResult:
    from graphene.judge.calls import CallPlan, of_arguments
    from graphene.judge.runs import Runner

    began = time.perf_counter()
    program = kernel.lowered(arch)
    if args and not sizes:
        made, call = of_arguments(kernel, program, args)
        runner = Runner(kernel, arch, seed, CallPlan(kernel, seed, call.sizes))
        runner.one(call, made)
    else:
        conditions = _core.launch_conditions(program)
        fixed = {**_core.argument_sizes(program, args), **sizes} if args else dict(sizes)
        runner = Runner(
            kernel, arch, seed, CallPlan(kernel, seed, known(kernel, fixed), conditions=conditions), explain
        )
        if not (fixed and _is_large(kernel, arch, seed, runner.plan)):
            runner.all(*((0, 0) if once else ()))
        outcome = runner.outcome
        if not outcome.runs and not outcome.refused:  # the call is too large: run some of its blocks
            some = _telling_blocks(kernel, arch, seed, runner, began)
            if some is None and not outcome.refused:
                some = _some_blocks(kernel, program, args, seed, fixed, began, outcome.uncovered())
            if some is not None and some.ok and some.worst is None and promises(kernel):
                small = CallPlan(kernel, seed, conditions=conditions)
                return _judged_smaller(some, kernel, Runner(kernel, arch, seed, small), began)
            if some is not None:
                return some
    return _result(kernel, arch, seed, runner, began)


def promises(kernel: Recorded) -> bool:
    """Whether the kernel says what it computes."""
    return kernel.promise is not None and kernel.promise.means is not _promise._nothing


def _is_large(kernel: Recorded, arch: str | None, seed: int, plan: CallPlan) -> bool:
    """Whether a call of these sizes takes too long or too much memory to be run whole, judging by a small call."""
    from graphene.judge.calls import CallPlan
    from graphene.judge.runs import LANE_OPS, Runner

    call = plan.usual()
    if plan.large(call):
        return True
    small = CallPlan(kernel, seed, conditions=_core.launch_conditions(kernel.lowered(arch)))
    usual = small.usual()
    if plan.cost(call.sizes) <= 4 * small.cost(usual.sizes):
        return False
    run = Runner(kernel, arch, seed, small).run(usual)
    return run is not None and run.lane_ops * plan.cost(call.sizes) / small.cost(usual.sizes) > 4 * LANE_OPS


def _some_blocks(
    kernel: Recorded,
    program: Any,
    args: tuple[object, ...],
    seed: int,
    sizes: dict[str, int],
    began: float,
    why: list[str],
) -> CheckResult:
    """Hazards and promises of specs in some blocks of a large grid, on random arguments that the core makes."""
    from graphene.judge.memory import limit
    from graphene.judge.runs import refuses_memory

    integers = {p for p in sizes if p not in _core.argument_sizes(program, args)} if args else set()
    known = {n: v for n, v in sizes.items() if n not in integers}
    try:
        found = _core.check(program, known, seed, references.evaluate, memory_bytes=limit())
    except SimulationError as e:
        why = [*why, f"{_SPECS}: {refuses_memory(e)}"]
        found = _core.check(program, known, seed, hazards_alone=True, memory_bytes=limit())
    uncovered = (f"outputs: {found.blocks} blocks ran, and what they wrote was not looked at", *why)
    return CheckResult(tuple(_errors(found.problems)), found.promises, found.lane_ops, found.sizes, found.blocks,
                       program.arch, uncovered=uncovered, seconds=time.perf_counter() - began)  # fmt: skip


def _telling_blocks(kernel: Recorded, arch: str | None, seed: int, runner: Runner, began: float) -> CheckResult | None:
    """Some blocks that differ from one another, of the usual call of sizes that are too large to run whole.

    None where its arguments cannot be made: ``runner.outcome`` says why, among calls that are too large or refused.
    """
    from graphene.judge.runs import refuses_memory

    plan, outcome, program = runner.plan, runner.outcome, kernel.lowered(arch)
    call = plan.usual()
    try:
        made = plan.make(call)
        told = _core.telling_blocks(program, made.given(), _FEW_BLOCKS)
        blocks = told.blocks
        if not blocks:
            return None
        runner.keep(made)
        judged = _unjudged(kernel, plan, call)
        try:
            run = runner.run_blocks(call, made, blocks, judged == "")
        except SimulationError as e:
            judged = refuses_memory(e)
            run = runner.run_blocks(call, runner.again(call), blocks, judged=False)
    except SimulationError as e:
        outcome.too_large.append(f"{call}: {refuses_memory(e)}")
        return None
    except LaunchError as e:
        outcome.refused.append((call, e))
        return None
    outcome.runs.append(run)
    outcome.failed = None if run.ok else run
    each = max(run.lane_ops // len(blocks), 1)
    step = -(-len(blocks) // max(min(_GHOST_BLOCK_OPS // each, _GHOSTS), 1))
    result = _result(kernel, arch, seed, runner, began, blocks[::step], judged == "")
    told_apart = f"which do what any of {told.looked_at} that were looked at does"
    said = [f"blocks: {len(blocks)} of {told.grid_blocks} ran, {told_apart}"]
    said += [f"what {kernel.name} promises was not looked at: {judged}"] if judged else []
    worst = result.worst if run.judged else None
    return replace(result, blocks=len(blocks), worst=worst, uncovered=(*said, *result.uncovered))


def _judged_smaller(some: CheckResult, kernel: Recorded, runner: Runner, began: float) -> CheckResult:
    """What some blocks of a large call told, none of whose results was judged, and what a few smaller calls tell."""
    runner.all(*_SMALLER)
    result = _result(kernel, runner.arch, runner.seed, runner, began)
    if not result.ok:
        return result
    said = f"what {kernel.name} promises was looked at in smaller calls alone"
    return replace(some, calls=(*some.calls, *result.calls), worst=result.worst, uncovered=(said, *some.uncovered),
                   promises=some.promises or result.promises, seconds=result.seconds)  # fmt: skip


def _unjudged(kernel: Recorded, plan: CallPlan, call: Call) -> str:
    """Why a large call's outputs are not held to the promise; "" if they are."""
    promise = kernel.promise
    if promise is None or not promises(kernel):
        return ""
    if promise.read is not None:
        return "its outputs are read together, those of all blocks"
    return "it would take too long" if plan.cost(call.sizes) > _MOST_JUDGED else ""


def _result(
    kernel: Recorded,
    arch: str | None,
    seed: int,
    runner: Runner,
    began: float,
    some: Sequence[int] = (),
    judged: bool = True,
) -> CheckResult:
    """``some``: the blocks in which decomposed specs are held to their promises; if empty, they are chosen.
    ``judged``: whether outputs were held to the kernel's promise.
    """
    from graphene.judge.runs import refuses_memory

    outcome = runner.outcome
    failed = outcome.failed
    errors: list[CheckError] = []
    kept, blocks, used, said = 0, 0, {}, ""
    if failed is not None and failed.hazard is not None:
        errors = of_hazard(failed.hazard, failed.call)
        used = dict(failed.call.sizes)
    else:
        inner: list[CheckError] = []
        judged_runs = [failed] if failed is not None else _smallest(outcome, runner.plan)
        for run in judged_runs if failed is None or runner.explain else ():
            try:
                found = ghost(kernel, arch, seed, runner, run, some)
            except SimulationError as e:
                if kernel.promise is None or not judged:
                    raise
                said = f"{_SPECS}, in the call {run.call}: {refuses_memory(e)}"
                continue
            kept += found.promises
            blocks, used = blocks or found.blocks, used or found.sizes
            if found.problems:
                inner = _errors(found.problems)
                break
        errors = [of_promise(kernel, failed, inner)] if failed is not None else inner
    if failed is None and judged and promises(kernel):
        errors += _of_roundings(kernel, outcome)
    errors = errors or of_nothing(kernel, outcome)
    program = kernel.lowered(arch)
    return CheckResult(
        errors=tuple(errors),
        promises=kept,
        lane_ops=sum(r.lane_ops for r in outcome.runs),
        sizes=used,
        blocks=blocks,
        arch=program.arch,
        calls=tuple(str(r.call) for r in outcome.runs),
        worst=worst_of(outcome) if kernel.promise else None,
        roundings=frozenset(outcome.found),
        uncovered=(*outcome.uncovered(), *([said] if said else [])) if not errors else (),
        seconds=time.perf_counter() - began,
    )


def worst_of(outcome: Outcome) -> Worst | None:
    """The largest error of all calls; None if no result was compared."""
    run = max((r for r in outcome.runs if r.compared), key=lambda r: r.worst, default=None)
    return Worst(run.worst, run.place, str(run.call)) if run is not None else None


def _does_something(run: JudgedCall) -> bool:
    return run.lane_ops > 0 or 0 not in run.call.sizes.values()


def _smallest(outcome: Outcome, plan: CallPlan) -> list[JudgedCall]:
    out: list[JudgedCall] = []
    spent = 0
    for run in sorted(filter(_does_something, outcome.runs), key=lambda r: r.lane_ops):
        if any(r.call.sizes == run.call.sizes for r in out):
            continue
        if out and spent + run.lane_ops > _GHOST_LANE_OPS:
            break
        spent += run.lane_ops
        out.append(run)
    if not out:
        return out
    usual = outcome.runs[0]
    out = out[:_GHOSTS]
    if _does_something(usual) and all(r is not usual for r in out) and spent + usual.lane_ops <= 2 * _GHOST_LANE_OPS:
        out[-1:] = [usual]
    return sorted(out, key=lambda r: r is not usual)


def ghost(
    kernel: Recorded, arch: str | None, seed: int, runner: Runner, run: JudgedCall, blocks: Sequence[int] = ()
) -> _core.CheckRun:
    """The inner specs that break their promise in a call; how many were judged, in how many blocks, and the sizes."""
    from graphene.judge.memory import limit

    program = kernel.lowered(arch)
    given = _positional(kernel, runner.again(run.call))
    sizes = _core.argument_sizes(program, given)
    return _core.check(
        program, sizes, seed, references.evaluate, args=given, promises_alone=True, memory_bytes=limit(), blocks=blocks
    )


def _errors(problems: Sequence[_core.Problem]) -> list[CheckError]:
    """What the core found, as errors of the check."""
    return [CheckError(p.code, p.message, p.where, p.ir, p.details, p.text) for p in problems]


def _meant(kernel: Recorded) -> tuple[str, str]:
    """File and line of a kernel's meaning ("" without one), and the same as the beginning of a message."""
    from graphene.judge.runs import where_meant

    where = where_meant(kernel.promise.means) if kernel.promise is not None else ""
    return where, f"{where}: " if where else ""


def of_nothing(kernel: Recorded, outcome: Outcome) -> list[CheckError]:
    """The error where no call of a kernel could run, so that nothing is known of it."""
    if outcome.runs:
        return []
    where, head = _meant(kernel)
    message = f"no call of {kernel.name} could be judged"
    if not outcome.refused:
        details = [f"in the call: {outcome.too_large[0]}"] if outcome.too_large else []
        code = "SIM_MEMORY"
    else:
        call, e = outcome.refused[0]
        d = e.diagnostics[0]
        details = [f"why: a launch refuses it: {d['message']}", *d["details"], f"in the call: {call}"]
        code = d["code"]
    return [CheckError(code, message, where, (), tuple(details),
                       "\n".join([f"{head}{message}   [{code}]", *(f"  {x}" for x in details)]))]  # fmt: skip


def _of_roundings(kernel: Recorded, outcome: Outcome) -> list[CheckError]:
    """Errors where the rounding points that the simulator found differ from those that the meaning states."""
    where, head = _meant(kernel)
    message = f"{kernel.name} rounds on the way where its meaning does not, or not where it does"
    return [CheckError("CHECK_PROMISE", message, where, (), (said,), f"{head}{message}   [CHECK_PROMISE]\n  {said}")
            for said in outcome.roundings()]  # fmt: skip


def of_hazard(hazard: GrapheneError, call: Call) -> list[CheckError]:
    """An exception that a call raised, as errors of the check."""
    out = []
    for d in hazard.diagnostics:
        where = f"{d['file']}:{d['line']}" if d.get("file") else ""
        details = (*d["details"], f"in the call: {call}")
        text = f"{hazard}\n  in the call: {call}"
        out.append(CheckError(d["code"], d["message"], where, tuple(d["ir"]), details, text))
    return out


def of_promise(kernel: Recorded, failed: JudgedCall, inner: list[CheckError]) -> CheckError:
    """The outputs of a call that break the kernel's promise, and the innermost specs that break theirs."""
    where, head = _meant(kernel)
    message = f"{kernel.name} does not compute what it promises"
    details = [*(f"wrong: {b}" for b in failed.broken), f"in the call: {failed.call}"]
    details += [f"innermost: {e.where}: {e.message}: {e.ir[0] if e.ir else ''}" for e in inner]
    text = "\n".join([f"{head}{message}   [CHECK_PROMISE]", *(f"  {d}" for d in details)])
    return CheckError("CHECK_PROMISE", message, where, tuple(t for e in inner for t in e.ir), tuple(details), text)
