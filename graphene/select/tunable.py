"""Tunables, and the choice that a model makes among configurations without measuring any."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from graphene import _core
from graphene.kernels.arguments import instance, number, size
from graphene.select.device import Device, the_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from graphene._core import Binary

__all__ = ["Rejected", "Runnable", "Selection", "Tunable", "rank"]

P = TypeVar("P")
C = TypeVar("C")


class Runnable(Protocol):
    """The built form of a configuration: a kernel, or several behind one call."""

    def compile(self, arch: str, /) -> Binary:
        """Compiles it; the binary's registers and spills are reported."""
        ...

    def __call__(self, *args: Any) -> object:
        """Launches it."""
        ...


@dataclass(frozen=True)
class Tunable(Generic[P, C]):
    """A kernel with choices: a type of configurations, its candidates, a factory, a generator of problems.

    ``name``, ``version``: those of tuning records; a record of another version is not used, so count up when the
    meaning of configurations changes. ``config``: a frozen dataclass of numbers, strings, booleans, None.
    ``candidates(problem, device)``: all configurations that are looked at. ``predict(config, problem, device)``:
    expected microseconds and a remark on them, or the reason why the configuration does not serve this problem.
    ``build(config, problem)``: a kernel, or an object that compiles and is called like one. ``arguments(problem)``:
    CUDA tensors of random values to call it with. ``key(problem)``: the dtype and the shape class, whose problems share
    a record. ``verify(problem, arguments)``: what is wrong after a call, or None. Before each candidate's first call
    all arguments have the values from ``arguments``, so fill the results with values that no call leaves there, such as
    NaN. ``reference(problem, arguments)``: is computed once and given to ``verify`` as a third argument. ``alike``: a
    configuration's kind; a short list holds two of a kind at most, so that it covers several kinds.
    ``incumbent(problem, device)``: the configuration without a record, which a tuning always measures, too.
    ``unusable(config, problem, device)``: why a configuration, for example a record's, cannot be used by any problem of
    its shape class, or None; without this function a configuration that ``predict`` refuses cannot be used.
    ``suits(config, estimated, problem, device)``: whether a record's configuration, which serves a class of problems,
    is taken for this problem rather than ``estimated``.
    """

    name: str
    config: Callable[..., C]
    candidates: Callable[[P, Device], Iterable[C]]
    predict: Callable[[C, P, Device], tuple[float, str] | str]
    build: Callable[[C, P], Runnable]
    arguments: Callable[[P], Sequence[Any]]
    key: Callable[[P], tuple[str, str]]
    version: int = 1
    verify: Callable[..., str | None] | None = None
    text: Callable[[C], str] = field(default=str)
    alike: Callable[[C], object] = field(default=lambda config: config)
    incumbent: Callable[[P, Device], C] | None = None
    reference: Callable[[P, Sequence[Any]], Any] | None = None
    unusable: Callable[[C, P, Device], str | None] | None = None
    suits: Callable[[C, C, P, Device], bool] | None = None

    def to_json(self, config: C) -> dict[str, Any]:
        """A configuration as a JSON object."""
        return asdict(config)  # type: ignore[call-overload, no-any-return]

    def from_json(self, data: dict[str, Any]) -> C:
        """The configuration that ``to_json`` wrote. Raises SelectError TUNE_FAILED for fields that it does not have.

        Raises what the configuration raises for values that it refuses.
        """
        if is_dataclass(self.config):
            known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(self.config)}
            unknown = [repr(n) for n in data if n not in known]
            missing = [repr(n) for n, needed in known.items() if needed and n not in data]
            if unknown or missing:
                lists = (("unknown", unknown), ("missing", missing))
                _core.fail("TUNE_FAILED", f"these are not the fields of {getattr(self.config, '__name__', self.name)}",
                           [f"{what}: {', '.join(names)}" for what, names in lists if names],
                           "tune it again, or remove the record")  # fmt: skip
        return self.config(**data)


@dataclass(frozen=True)
class Rejected(Generic[C]):
    """A configuration that is not on the short list, and why."""

    config: C
    reason: str


@dataclass(frozen=True)
class Selection(Generic[C]):
    """A ranked short list, and why each other candidate is not on it. Prints as a table.

    ``short_list``: configuration, expected microseconds and a remark, the best first.
    """

    what: str
    short_list: tuple[tuple[C, float, str], ...]
    rejected: tuple[Rejected[C], ...]
    text: Callable[[C], str] = field(default=str, repr=False)

    @property
    def best(self) -> C:
        """The first of the short list."""
        return self.short_list[0][0]

    def why(self, config: C) -> str:
        """The remark or the reason of a candidate. Raises KeyError for anything else."""
        for c, us, remark in self.short_list:
            if c == config:
                return f"chosen: {us:.1f} us expected, {remark}"
        for r in self.rejected:
            if r.config == config:
                return r.reason
        raise KeyError(config)

    def _rows(self) -> list[tuple[str, str, str]]:
        listed = [(self.text(c), f"{us:.1f}", remark) for c, us, remark in self.short_list]
        return [("configuration", "us", "remark"), *listed]

    def table(self, rejected: int | None = 12) -> str:
        """The short list, then up to ``rejected`` of the others with their reasons (None: all of them)."""
        rows = self._rows()
        shown = self.rejected if rejected is None else self.rejected[:rejected]
        others = [(self.text(r.config), "", r.reason) for r in shown]
        width = [max(len(row[i]) for row in (*rows, *others)) for i in range(2)]
        out = [self.what, ""]
        out += [f"{a.ljust(width[0])}  {b.rjust(width[1])}  {c}" for a, b, c in rows]
        if others:
            out += ["", f"rejected, {len(self.rejected)} in all:"]
            out += [f"{a.ljust(width[0])}  {b.rjust(width[1])}  {c}" for a, b, c in others]
        if len(shown) < len(self.rejected):
            out.append(f"... and {len(self.rejected) - len(shown)} more: .table(rejected=None)")
        return "\n".join(out)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self._rows())
        others = "".join(f"<tr><td>{escape(self.text(r.config))}</td><td></td><td>{escape(r.reason)}</td></tr>"
                         for r in self.rejected[:12])  # fmt: skip
        head = f"<tr><th colspan=3>rejected, {len(self.rejected)} in all</th></tr>" if others else ""
        return f"<div>{escape(self.what)}<table>{cells}{head}{others}</table></div>"


def is_time(us: object) -> bool:
    """Whether it is microseconds: a finite number, 0 or more."""
    try:
        return not isinstance(us, (bool, str, bytes)) and math.isfinite(us) and us >= 0  # type: ignore[arg-type, operator]
    except (TypeError, ValueError, OverflowError):
        return False


def predicted(tunable: Tunable[P, C], config: C, problem: P, device: Device) -> tuple[float, str] | str:
    """The tunable's prediction for a configuration; anything but a time is a reason against it.

    Raises VerifyError KERNEL_ARGUMENT for a result that is neither a time with a remark nor a reason.
    """
    verdict: Any = tunable.predict(config, problem, device)
    if isinstance(verdict, str):
        return verdict
    if not isinstance(verdict, tuple) or len(verdict) != 2:
        _core.fail("KERNEL_ARGUMENT", f"{tunable.name}: predict returned {type(verdict).__name__}",
                   ["want: (microseconds, remark), or a reason against it", f"got: {verdict!r}"])  # fmt: skip
    us, remark = verdict
    return (float(us), str(remark)) if is_time(us) else f"its expected time is {us!r}"


def rank(
    tunable: Tunable[P, C], problem: P, device: Device | str | int, count: int = 8, within: float = 1.6
) -> Selection[C]:
    """The candidates that the model expects to be fastest, and why each other candidate is not among them.

    ``device``: a Device, an architecture or the index of a CUDA device. ``count``: the greatest length of the short
    list. ``within``: the longest time of a candidate, as a multiple of the best's. Rejected candidates are ordered by
    how close they came. Raises VerifyError KERNEL_ARGUMENT, and SelectError TUNE_NO_CANDIDATE, with the reasons, if
    every candidate is rejected.
    """
    instance("rank", "tunable", tunable, Tunable)
    count, within = size("rank", "count", count), number("rank", "within", within)
    device = the_device("rank", device)
    expected: list[tuple[C, float, str]] = []
    refused: list[Rejected[C]] = []
    for config in dict.fromkeys(tunable.candidates(problem, device)):
        verdict = predicted(tunable, config, problem, device)
        if isinstance(verdict, str):
            refused.append(Rejected(config, verdict))
        else:
            expected.append((config, *verdict))
    expected.sort(key=lambda x: x[1])
    if not expected:
        reasons = dict.fromkeys(r.reason for r in refused)
        _core.fail("TUNE_NO_CANDIDATE", f"no configuration of {tunable.name} serves {problem} on {device.name}",
                   [f"rejected: {reason}" for reason in list(reasons)[:8]],
                   "use a kernel for such problems, or give the tunable more candidates")  # fmt: skip
    best = expected[0][1]
    chosen: list[tuple[C, float, str]] = []
    slower = []
    kinds: dict[object, int] = {}
    for place, (config, us, remark) in enumerate(expected, 1):
        kind = tunable.alike(config)
        more = f"{us / best:.2f} times the best's time expected ({us:.1f} us: {remark})"
        if us > within * best:
            slower.append(Rejected(config, more))
        elif kinds.get(kind, 0) >= 2:
            slower.append(Rejected(config, f"two like it are on the list; {more}"))
        elif len(chosen) >= count:
            slower.append(Rejected(config, f"rank {place} of {len(expected)}: {more}"))
        else:
            kinds[kind] = kinds.get(kind, 0) + 1
            chosen.append((config, us, remark))
    what = f"{tunable.name}, {problem}, on {device.name}: {len(chosen)} of {len(expected) + len(refused)} candidates"
    return Selection(what, tuple(chosen), (*slower, *refused), tunable.text)
