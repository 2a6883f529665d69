"""Runs the calls that a plan chooses, and collects the findings."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.errors import GrapheneError, LaunchError, SimulationError
from graphene.judge.calls import Call, CallPlan
from graphene.judge.dead import unreachable
from graphene.judge.memory import SMALL_BYTES, left
from graphene.judge.numbers import statements
from graphene.judge.verdict import Broken, expect, judge_outputs
from graphene.recorded import every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene.judge.calls import Made
    from graphene.judge.covering import Covering
    from graphene.recorded import Recorded

__all__ = ["JudgedCall", "Outcome", "Runner"]

SIZES, REACH, DATA = 40, 10, 60  # calls at most
LANE_OPS = 9_000_000  # of all calls together
_CALLS, _LARGER = 16, 3  # the number of calls like the first, and the factor by which their number may grow
_FOR_FIRST = 0.1  # of these, for the first call
_FOR_DECIDING = 0.6  # more than these, for sizes while there are dividends that decided nothing yet
_FOR_SIZES, _FOR_REACH = 0.45, 0.15  # of these, for sizes and for what they did not reach; data get the rest
_FOR_TELLING = 0.4  # of what data get, for pairs that show more than others
_CALL = 200_000  # what making a call, compiling for it and judging it cost, in lane operations
_SMALL = 20_000  # lane operations of a call that runs though the budget is spent
_SHRINKS = 40
TANH = "tanh.approx"  # an instruction whose error the simulator does not show
_TRIES = 8  # calls that are tried until a first one runs


@dataclass
class JudgedCall:
    """One call that ran: its cost in lane operations, and its errors."""

    call: Call
    lane_ops: int
    hazard: GrapheneError | None = None
    broken: list[Broken] = field(default_factory=list)
    worst: float = 0.0
    place: str = ""
    judged: bool = False  # what the kernel promises was looked at
    compared: bool = False  # and it promises some result
    reached: frozenset[int] = frozenset()  # of the kernel's text, as the simulator numbers it
    launch: int | None = None  # of a sequence: the kernel that is wrong

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return self.hazard is None and not self.broken


@dataclass
class Outcome:
    """The outcome of all calls, and the smallest that is wrong."""

    runs: list[JudgedCall] = field(default_factory=list)
    failed: JudgedCall | None = None
    stated: set[str] = field(default_factory=set)
    found: dict[str, str] = field(default_factory=dict)  # tensors in which values become narrower, where they do
    rough: bool = False  # the kernel computes hyperbolic tangents by the one instruction
    missed: dict[int, str] | None = None  # statements that no thread executed, loops that none repeated, in any call
    places: dict[int, int] = field(default_factory=dict)  # the statements of these, as the kernel numbers them
    dead: set[int] = field(default_factory=set)  # of these, what the text says no call can reach
    too_large: list[str] = field(default_factory=list)  # calls that need more memory than they may
    refused: list[tuple[Call, LaunchError]] = field(default_factory=list)  # calls that a launch refuses
    offered: set[Any] = field(default_factory=set)  # features of what is divided that some candidate had
    covered: set[Any] = field(default_factory=set)

    def roundings(self) -> list[str]:
        """The differences, in words, between the rounding points that were found and those that the meaning states.

        A point that is stated and not found only counts if calls were chosen, since a caller's own call may miss it.
        """
        unsaid = [f"{said}, and computes with them: the meaning must say gr.rounded({name!r}, ...)"
                  for name, said in sorted(self.found.items()) if name not in self.stated]  # fmt: skip
        if self.rough and "tanh_approx" not in self.stated:
            unsaid.append(f"{TANH} may be off by 2^-11 of its result: the meaning must say gr.tanh(x), or the kernel "
                          'gr.tanh(x, accuracy="full")')  # fmt: skip
        absent = sorted(self.stated - set(self.found) - {"tanh_approx"}) if len(self.runs) > 1 else []
        return unsaid + [f"the meaning rounds {name!r}, in which no value becomes narrower" for name in absent]

    def count_missed(self, now: dict[int, str]) -> None:
        """Adds a call: what it reached is no longer missed."""
        known = self.missed
        left = now if known is None else {i: t for i, t in known.items() if i in now}
        self.missed = {i: t for i, t in left.items() if i not in self.dead}

    def uncovered(self) -> list[str]:
        """The parts that no call reached, in words."""
        left = sorted({f[:4] for f in self.offered} - {f[:4] for f in self.covered})
        names = {0: "0", 1: "1", -1: "-1", 2: "another"}
        said = [*(self.missed or {}).values(), *(f"{text} % {by} is {names[r]}" for text, by, _, r in left)]
        if self.too_large:
            said.append(f"calls that need more memory: {len(self.too_large)}, the first with {self.too_large[0]}")
        if self.refused:
            call, e = self.refused[0]
            why = e.diagnostics[0]["message"]
            said.append(f"calls that a launch refuses: {len(self.refused)}, the first with {call}: {why}")
        return said


class Runner:
    """Runs calls of a kernel on the simulator. ``explain``: looks for a smaller call where one is wrong."""

    def __init__(self, kernel: Recorded, arch: str | None, seed: int, plan: CallPlan, explain: bool = True) -> None:
        self.kernel, self.arch, self.seed, self.plan, self.explain = kernel, arch, seed, plan, explain
        self.outcome = Outcome(rough=_computes_roughly(kernel, arch, plan))
        self._codes = _core.CodeCache()  # many calls of other data have sizes that had a call before
        self._given: Made | None = None
        self._worked, self._known = 0.0, 0  # work of the first runs, and their number
        self._covering: Covering | None = None  # of sizes
        self._more = 0.0  # lane operations that sizes took beyond their share
        self._knows_points = False  # then calls are asked for rounding points only if they reach what none did before
        self._asked = set[int]()  # what calls reached that were asked

    def one(self, call: Call, made: Made) -> Outcome:
        """Runs a caller's own call."""
        self._given = made.copy()
        run = self.run_made(call, made)
        self.outcome.runs.append(run)
        self.outcome.failed = None if run.ok else run
        return self.outcome

    def keep(self, made: Made) -> None:
        """Makes `again` give these arguments."""
        self._given = made.copy()

    def again(self, call: Call) -> Made:
        """The arguments of a call that has run, as they were before."""
        return self._given.copy() if self._given is not None else self.plan.make(call)

    def run(self, call: Call) -> JudgedCall | None:
        """Makes a call's arguments, runs it, and holds it to the promise.

        None if a launch refuses it, or if it needs too much memory; ``outcome.refused`` and ``outcome.too_large`` list
        these calls.
        """
        try:
            return self.run_made(call, self.plan.make(call))
        except SimulationError as e:
            if e.code != "SIM_MEMORY":
                raise
            self.outcome.too_large.append(f"{call}: {e.diagnostics[0]['message']}")
            return None
        except LaunchError as e:
            if not call.wider:
                self.outcome.refused.append((call, e))
                return None
        return self.run(replace(call, wider=False))

    def run_made(self, call: Call, made: Made) -> JudgedCall:
        """Runs a call whose arguments are made."""
        return self.run_blocks(call, made, (), True)

    def run_blocks(self, call: Call, made: Made, blocks: Sequence[int], judged: bool) -> JudgedCall:
        """Runs some blocks of a call, or all if none is named; their results are judged if that is wanted."""
        promise = self.kernel.promise if judged else None
        program, room = self.kernel.lowered(self.arch), max(left(), SMALL_BYTES)
        only: dict[str, Any] | None = None
        try:
            if blocks:
                done = _core.run_blocks(program, made.given(), self.seed, blocks, room)
                only = {n: made.laid[n].part(mask) for n, mask in done.written.items()}
            else:
                asks = not self._knows_points
                done = _core.run_call(program, made.given(), self.seed, room, asks, self._codes)
            points = done.roundings
            if self._knows_points and not self._asked.issuperset(done.reached):
                again = self.again(call).given()
                points = _core.run_call(program, again, self.seed, room, True, self._codes).roundings
            self._asked.update(done.reached)
        except SimulationError as e:
            if e.code == "SIM_MEMORY":
                raise
            return JudgedCall(call, 0, hazard=e)
        run = JudgedCall(call, done.lane_ops, reached=frozenset(done.reached))
        if done.lane_ops:
            self.outcome.places.update({u.id: u.statement for u in done.unreached})
            self.outcome.count_missed({u.id: f"{u.where}: {u.text}" for u in done.unreached})
        sums = promise.sums.name if promise is not None and promise.sums is not None else ""
        for point in points:
            if point.source == point.type == sums:  # the bound counts what sums of this type lose
                continue
            said = f"{point.where}: {point.tensor} takes {point.source} values as {point.type}"
            self.outcome.found.setdefault(point.tensor, said)
        if promise is not None:
            wanted = expect(self.kernel, made.values)
            self.outcome.stated |= wanted.stated
            run.broken, run.worst, run.place = judge_outputs(self.kernel, wanted, made.values, made.results(), only)
            run.compared = bool(wanted.values)
            run.judged = only is None or promise.read is not None or any(m.any() for m in only.values())
        for a in self.plan.signature.outputs:
            laid = made.laid.get(a.name)
            if laid is not None and not laid.between(made.before[a.name]):
                run.broken.append(Broken(a.name, (), float("nan"), float("nan"), float("nan"), 0, 0))
        return run

    def all(self, sizes: int = SIZES, data: int = DATA, lane_ops: int = LANE_OPS) -> Outcome:
        """Runs calls until nothing new is covered, the budget is spent or one is wrong, which is then made smaller."""
        out = self.outcome
        first = self._begin(self._first(lane_ops) if sizes else self.plan.usual())
        if first is None:
            return out
        out.runs.append(first)
        lane_ops = min(max(lane_ops, _CALLS * first.lane_ops), _LARGER * lane_ops)
        if first.ok:
            self._sizes(sizes, lane_ops)
        if out.runs[-1].ok and (self.kernel.promise is not None or self.plan.floats):
            self._data(data, lane_ops + self._more)  # data of another kind show nothing where nothing is promised
        if not out.runs[-1].ok:
            out.failed = self._smallest(out.runs[-1]) if self.explain else out.runs[-1]
        return out

    def _first(self, lane_ops: float) -> Call:
        """The usual call. Where tiles are so large that it would leave little for others, one that covers much."""
        plan, usual = self.plan, self.plan.usual()
        most, rate = lane_ops * _FOR_FIRST, plan.threads
        if rate * plan.work(usual.sizes) <= most:
            return usual
        self._covering = plan.covering()
        d = self._covering.next(_CALL, rate, _CALL + most) or self._covering.least()
        return usual if d is None else plan.call(d, 0)

    def _begin(self, first: Call) -> JudgedCall | None:
        """The first call that runs: the given one, or another where that is refused or needs too much memory."""
        run, tried = self.run(first), [first.sizes]
        covering = self._covering
        for number in range(_TRIES if run is None else 0):
            covering = self._covering = covering or self.plan.covering()
            last = number == _TRIES - 1 or self.outcome.too_large
            d = covering.least() if last else covering.next(_CALL, self.plan.threads)
            if d is None or self.plan.sizes_of(d) in tried:
                break
            tried.append(self.plan.sizes_of(d))
            run = self.run(self.plan.call(d, 0))
            if run is not None:
                break
        return run

    def _sizes(self, calls: int, lane_ops: float) -> None:
        """Calls of sizes that cover something new; then larger ones, while parts of the kernel were not reached."""
        out, plan = self.outcome, self.plan
        covering = self._covering
        if covering is None:
            covering = self._covering = plan.covering()
            covering.count(dict(out.runs[0].call.sizes))
        for number in range(calls + REACH):
            if number == calls:
                self._leave_dead_out()
                self._more = max(self._spent() - lane_ops * _FOR_SIZES, 0)
            share = _FOR_SIZES + (_FOR_DECIDING * covering.undecided if number < calls else _FOR_REACH)
            left = lane_ops * share + self._more - self._spent()
            if number < calls:
                d = covering.next(_CALL, self._rate(), _CALL + max(left, _SMALL))
            else:  # what tables of integers say is drawn anew each time
                d = covering.reach(_CALL, self._rate(), _CALL + left) if out.missed and left > 0 else None
            if d is None and number >= calls:
                break
            run = self._further(plan.call(d, len(out.runs))) if d is not None else None
            if run is not None and not run.ok:
                break
        out.offered |= covering.offered
        out.covered |= covering.covered

    def _leave_dead_out(self) -> None:
        """What no call can reach is not missed."""
        out = self.outcome
        numbers: dict[int, list[int]] = {}
        for i in out.missed or {}:
            numbers.setdefault(out.places.get(i, -1), []).append(i)
        if numbers:
            order = enumerate(every(_core.ir_statements(self.kernel.ir)))
            missed = {place: numbers[s.id] for place, s in order if s.id in numbers}
            out.dead |= unreachable(self.plan.signature.data, missed)
        out.missed = {i: t for i, t in (out.missed or {}).items() if i not in out.dead}

    def _spent(self) -> int:
        return sum(r.lane_ops for r in self.outcome.runs)

    def _rate(self) -> float:
        """Lane operations by work, of the calls so far."""
        return self._spent() / max(self._works(), 1.0)

    def _works(self) -> float:
        for run in self.outcome.runs[self._known :]:
            self._worked += self.plan.work(run.call.sizes)
        self._known = len(self.outcome.runs)
        return self._worked

    def _data(self, calls: int, lane_ops: float) -> None:
        """Calls of other data at sizes that have run, or at others that take the same way through the kernel."""
        out, plan = self.outcome, self.plan
        bases, strayed = list(out.runs), set[int]()
        covering = plan.data_covering([(r.call, r.reached, _CALL + r.lane_ops) for r in bases])
        self._knows_points = True  # of all sizes; to follow them takes a sixth of a run
        share, told = _FOR_TELLING * (lane_ops - self._spent()), 0
        rare = plan.rare(r.reached for r in bases)
        for _ in range(calls):
            left = _CALL + max(lane_ops - self._spent(), _SMALL)
            again = rare.next() if told < share else None
            chosen = covering.spread(again, left) if again is not None else None
            chosen = chosen or covering.next(left, told < share)
            if chosen is None and (kind := plan.alone()) is not None:
                chosen = covering.again({"": kind, **plan.usual_scalars}, left)
            if chosen is None:
                break
            at, d = chosen
            base = bases[at]
            sizes, tables, before = base.call.sizes, base.call.tables, self._spent()
            if self._covering is not None and plan.decided and at not in strayed:
                sizes = plan.sizes_of(self._covering.alike(dict(sizes)))
            elif not plan.decided and at not in strayed:  # integers of data decide, which are drawn anew
                tables = len(out.runs)
            run = self._further(plan.with_data(replace(base.call, sizes=sizes, tables=tables), d, len(out.runs)))
            if run is not None and run.ok and not run.reached >= base.reached:
                strayed.add(at)
                run = self._further(plan.with_data(base.call, d, len(out.runs)))
            if run is not None:
                rare.count(d, run.reached)
            told += (again is not None or covering.tells(d)) * (self._spent() - before)
            if run is not None and not run.ok:
                break

    def _further(self, call: Call) -> JudgedCall | None:
        run = self.run(call)
        if run is not None:
            self.outcome.runs.append(run)
        return run

    def _smallest(self, failed: JudgedCall) -> JudgedCall:
        for _ in range(4):
            for call in self.plan.smaller(failed.call)[:_SHRINKS]:
                run = self.run(call)
                if run is not None and not run.ok and (run.hazard is None) == (failed.hazard is None):
                    failed = run
                    break
            else:
                break
        return failed


def _computes_roughly(kernel: Recorded, arch: str | None, plan: CallPlan) -> bool:
    """Whether a hyperbolic tangent is computed by an instruction whose error the simulator does not show."""
    attrs = [s["attrs"] for s in statements(plan.signature.data.get("body", ())) if s["stmt"] == "spec"]
    rough = any(x.get("op") == "tanh" and x.get("accuracy") != "full" for x in attrs)
    return rough and f"{TANH}.f32" in kernel.lowered(arch).cuda_source()


def refuses_memory(e: GrapheneError) -> str:
    """Why a call cannot run unchanged: memory, or a refusal of the launch. Raises any other error."""
    if not isinstance(e, LaunchError) and e.code != "SIM_MEMORY":
        raise e
    return str(e.diagnostics[0]["message"])


def where_meant(function: Any) -> str:
    """File and line of a meaning."""
    try:
        code = inspect.unwrap(getattr(function, "func", function)).__code__
    except AttributeError:
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
