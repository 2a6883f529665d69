"""Measures the short list, and chooses a configuration: a record, else the model's best, or a measurement."""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from graphene import _core
from graphene.errors import GrapheneError
from graphene.kernels.arguments import function, instance, number, size
from graphene.select import records
from graphene.select.device import require_cuda, the_device
from graphene.select.tunable import Selection, Tunable, is_time, predicted, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphene.select.device import Device
    from graphene.select.tunable import Runnable

__all__ = ["Measured", "Timer", "Tuning", "best_known", "choose", "tune"]

EQUALLY_FAST = ("fp16", "bf16")
P = TypeVar("P")
C = TypeVar("C")


class _ProgressBar(Protocol):
    def update(self, n: int = ..., /) -> object: ...
    def set_postfix_str(self, s: str, /) -> object: ...
    def close(self) -> object: ...


class _TextBar:
    """A line on stderr: ``tuning gemm  [######....]  12/20  best 61.2 us``."""

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done, self.note = total, what, 0, ""
        self._show()

    def _show(self) -> None:
        filled = round(20 * self.done / max(self.total, 1))
        bar = "#" * filled + "." * (20 - filled)
        print(f"\r{self.what}  [{bar}]  {self.done}/{self.total}  {self.note}", end="", file=sys.stderr, flush=True)

    def update(self, n: int = 1, /) -> None:
        self.done += n
        self._show()

    def set_postfix_str(self, s: str, /) -> None:
        self.note = s.ljust(len(self.note))

    def close(self) -> None:
        print(file=sys.stderr)


class _NoBar:
    def update(self, n: int = 1, /) -> None: ...
    def set_postfix_str(self, s: str, /) -> None: ...
    def close(self) -> None: ...


def progress_bar(total: int, what: str, shown: bool) -> _ProgressBar:
    """A bar of tqdm if it is installed, else a line of text; nothing unless ``shown``."""
    if not shown:
        return _NoBar()
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return _TextBar(total, what)
    bar: _ProgressBar = tqdm(total=total, desc=what, leave=False)
    return bar


@dataclass
class Measured(Generic[C]):
    """One candidate with its microseconds in each round, or why it has none."""

    config: C
    expected_us: float
    rounds: list[float] = field(default_factory=list)
    failure: str = ""
    registers: int = 0
    spill_bytes: int = 0

    @property
    def us(self) -> float:
        """The median of the rounds; infinite without one."""
        return _median(self.rounds) if self.rounds and not self.failure else float("inf")


@dataclass(frozen=True)
class Tuning(Generic[C]):
    """The outcome: ``best``, the ``measured`` candidates (the best first), and the ``selection`` that they are from.

    ``record``: the stored record, and ``stored`` its file; both are None if nothing was stored. Prints as a table.
    """

    best: C
    measured: tuple[Measured[C], ...]
    selection: Selection[C]
    record: dict[str, Any] | None = None
    stored: str | None = None

    def __str__(self) -> str:
        text = self.selection.text
        width = max(len(text(m.config)) for m in self.measured)
        out = [self.selection.what, "", f"{'configuration'.ljust(width)}   measured   expected  registers"]
        for m in self.measured:
            spilled = f", {m.spill_bytes} bytes spilled" if m.spill_bytes else ""
            figures = f"{m.us:8.2f} us {m.expected_us:7.1f} us  {m.registers}{spilled}"
            out.append(f"{text(m.config).ljust(width)}  {'failed: ' + m.failure if m.failure else figures}")
        return "\n".join(out)


class Timer:
    """Measures launches on the current CUDA device with torch's events. Their arguments are not in the L2 cache.

    A round has as many launches as fill ``round_ms``, with a memory fill before each, which also hides the host's time.
    The figure is the median. Raises LaunchError OP_TORCH without torch, LAUNCH_DRIVER without a device.
    """

    def __init__(self, round_ms: float = 4.0) -> None:
        round_ms, torch = number("Timer", "round_ms", round_ms, positive=True), require_cuda("tune.Timer")
        self._torch, self._round_ms = torch, round_ms
        self._flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")  # more than any L2 cache

    def __call__(self, launch: Callable[[], object]) -> float:
        """Microseconds of one launch. Raises what the launch or the device raises."""
        once = min(self._times(launch, 2))
        return _median(self._times(launch, max(3, min(40, round(self._round_ms * 1e3 / (once + 70.0))))))

    def _times(self, launch: Callable[[], object], count: int) -> list[float]:
        pairs = []
        for _ in range(count):
            self._flush.zero_()
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch()
            end.record()
            pairs.append((start, end))
        self._torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) * 1e3 for start, end in pairs]


def _median(times: Sequence[float]) -> float:
    ordered, half = sorted(times), len(times) // 2
    return ordered[half] if len(times) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _first_line(e: BaseException) -> str:
    lines = str(e).splitlines()
    return f"{type(e).__name__}: {lines[0]}" if lines else type(e).__name__


def _build(
    tunable: Tunable[P, C], problem: P, arch: str, rows: Sequence[Measured[C]], bar: _ProgressBar
) -> dict[int, Runnable]:
    """The kernels that compile, by row; NVRTC runs outside of the interpreter's lock, so threads are enough."""

    def one(row: Measured[C]) -> Runnable:
        kernel = tunable.build(row.config, problem)
        binary = kernel.compile(arch)
        row.registers, row.spill_bytes = binary.registers, binary.spill_bytes
        return kernel

    from concurrent.futures import ThreadPoolExecutor, as_completed  # late: importing an operator reads this file

    kernels: dict[int, Runnable] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = {pool.submit(one, row): i for i, row in enumerate(rows)}
        for job in as_completed(jobs):
            i = jobs[job]
            try:
                kernels[i] = job.result()
            except Exception as e:
                rows[i].failure = _first_line(e)
            bar.update(1)
    return kernels


def tune(
    tunable: Tunable[P, C],
    problem: P,
    device: Device | str | int = 0,
    count: int = 12,
    rounds: int = 5,
    timer: Callable[[Callable[[], object]], float] | None = None,
    progress: bool | None = None,
    keep: bool = True,
    selection: Selection[C] | None = None,
) -> Tuning[C]:
    """Measures the short list on the device and returns the fastest configuration.

    ``device``: a Device, an architecture or the index of a CUDA device; candidates run on the current device.
    ``count``: the most candidates. ``selection``: the result of ``rank``, or your own. Candidates are compiled in
    parallel and then measured in turns, ``rounds`` times with ``timer``; after the second round those behind by more
    than a fifth are left out. A candidate that does not build, launch or compute the right values stays in the table
    with its reason. If one loses the device's context (a memory fault), this process can measure nothing more, and the
    best so far is chosen. ``progress``: shows a bar; None shows it if stderr is a terminal. ``keep``: stores the winner
    as a record. ``timer``: returns the microseconds of a launch; any other result counts as that candidate's failure.

    ``Timer``, the default, and the arguments of GEMM and ROWS need torch and a CUDA device, else they raise LaunchError
    OP_TORCH and LAUNCH_DRIVER. Raises SelectError TUNE_FAILED, with every reason, if no candidate could be measured;
    VerifyError KERNEL_ARGUMENT and SelectError TUNE_NO_CANDIDATE as ``rank``.
    """
    instance("tune", "tunable", tunable, Tunable)
    count, rounds = size("tune", "count", count), size("tune", "rounds", rounds)
    if timer is not None:
        function("tune", "timer", timer, ["launch"], "of a launch, that gives its microseconds")
    if selection is not None:
        instance("tune", "selection", selection, Selection)
    where = the_device("tune", device)
    chosen = selection or rank(tunable, problem, where, count)
    timer = timer or Timer()
    rows = [Measured(config, us) for config, us, _ in chosen.short_list[:count]]
    if tunable.incumbent is not None:
        now = tunable.incumbent(problem, where)
        if all(m.config != now for m in rows):
            expected = predicted(tunable, now, problem, where)
            rows.append(Measured(now, float("nan") if isinstance(expected, str) else expected[0]))
    if not rows:
        _core.fail("TUNE_NO_CANDIDATE", f"the selection has no configuration of {tunable.name}",
                   ["got: an empty short list"], "leave it out, or pass what rank returns")  # fmt: skip
    arguments = tunable.arguments(problem)
    shown = sys.stderr.isatty() if progress is None else progress
    bar = progress_bar(len(rows) * (1 + rounds), f"tuning {tunable.name}", shown)
    try:
        kernels = _build(tunable, problem, where.arch, rows, bar)
        _measure(tunable, problem, arguments, rows, kernels, rounds, timer, bar)
    finally:
        bar.close()
    rows.sort(key=lambda m: m.us)
    if rows[0].us == float("inf"):
        _core.fail("TUNE_FAILED", f"no configuration of {tunable.name} could be measured for {problem}",
                   [f"{tunable.text(m.config)}: {m.failure}" for m in rows], "correct what they say")  # fmt: skip
    best = rows[0].config
    if not keep:
        return Tuning(best, tuple(rows), chosen)
    dtype, shape = tunable.key(problem)
    record = {
        "kernel": tunable.name,
        "version": tunable.version,
        "dtype": dtype,
        "shape": shape,
        "problem": str(problem),
        "config": tunable.to_json(best),
        "us": round(rows[0].us, 3),
        "candidates": sum(1 for m in rows if not m.failure),
        "graphene": _version(),
    }
    path = records.store(where.name, record)
    return Tuning(best, tuple(rows), chosen, record, str(path))


def _version() -> str:
    import graphene

    return graphene.__version__


def _measure(
    tunable: Tunable[P, C],
    problem: P,
    arguments: Sequence[Any],
    rows: Sequence[Measured[C]],
    kernels: dict[int, Runnable],
    rounds: int,
    timer: Callable[[Callable[[], object]], float],
    bar: _ProgressBar,
) -> None:
    restore = _restorer(arguments)
    against = () if tunable.reference is None else (tunable.reference(problem, arguments),)
    running = dict(sorted(kernels.items()))
    for round_ in range(rounds):
        for i in list(running):
            row, kernel = rows[i], running[i]
            try:
                if round_ == 0:
                    restore()  # so that an earlier candidate's results do not count for this one
                    kernel(*arguments)
                    if tunable.verify is not None and (wrong := tunable.verify(problem, arguments, *against)):
                        raise ValueError(wrong)
                us = timer(lambda kernel=kernel: kernel(*arguments))  # type: ignore[misc]
                if not is_time(us):
                    raise ValueError(f"the timer returned {us!r}, which are not microseconds")
                row.rounds.append(float(us))
            except Exception as e:
                row.failure = _first_line(e)
                del running[i]
                if _context_is_lost():
                    for k in running:
                        rows[k].failure = "" if rows[k].rounds else "not measured: an earlier candidate lost the device"
                    return
            bar.update(1)
            best = min((m.us for m in rows), default=float("inf"))
            bar.set_postfix_str(f"best {best:.1f} us")
        if round_ == 1:
            running = {i: k for i, k in running.items() if rows[i].us <= 1.2 * min(rows[j].us for j in running)}


def _restorer(arguments: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that gives tensors, arrays and lists back the values that they have now."""
    kept = [(a, copy.deepcopy(a)) for a in arguments if hasattr(a, "__setitem__")]

    def restore() -> None:
        for argument, values in kept:
            if hasattr(argument, "copy_"):
                argument.copy_(values)
            elif hasattr(argument, "shape"):
                argument[...] = values
            else:
                argument[:] = copy.deepcopy(values)

    return restore


def _context_is_lost() -> bool:
    """Whether the CUDA context answers nothing but errors, as it does after a fault in a kernel."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def choose(tunable: Tunable[P, C], problem: P, device: Device | str | int = 0) -> C:
    """The configuration for a problem: the record of its shape class, else the model's best. Nothing is measured.

    With ``GRAPHENE_TUNE=1`` a shape class without a record is tuned first, which raises what ``tune`` raises. A record
    that is not a configuration, or cannot be used, is passed over, with a warning that says why and has the code.
    ``device``: a Device, an architecture or the index of a CUDA device. Raises VerifyError KERNEL_ARGUMENT, SelectError
    TUNE_NO_CANDIDATE.
    """
    instance("choose", "tunable", tunable, Tunable)
    where = the_device("choose", device)
    dtype, shape = tunable.key(problem)
    if (record := records.find(where.name, tunable.name, tunable.version, dtype, shape)) is not None:
        config = from_record(tunable, problem, where, record)
        if config is not None and not isinstance(predicted(tunable, config, problem, where), str):
            return config
    if os.environ.get("GRAPHENE_TUNE") == "1":
        return tune(tunable, problem, where).best
    return rank(tunable, problem, where, 1).best


def best_known(
    tunable: Tunable[P, C],
    problem: P,
    device: Device,
    estimated: Callable[[], C],
    to_tune: P | None = None,
    wider: Sequence[P] = (),
) -> C:
    """A library's choice: the configuration of the record of a problem's shape class on a device, else ``estimated()``.

    Nothing is estimated for sizes that were measured. fp16 and bf16 are equally fast, so either takes the other's
    record. A record that is not a configuration, or cannot be used, is passed over with one warning. A record that does
    not suit these sizes of its class is passed over without a word, unless it was measured for these very sizes. With
    ``GRAPHENE_TUNE=1`` a class without a record is tuned (by its problem ``to_tune``); if that fails, there is one
    warning, and ``estimated()`` is taken. ``wider``: other problems, whose classes have a record for this one, if its
    own has none.
    """
    config: C | None = None
    measured = False  # for these very sizes
    of, record = _record_of(tunable, (problem, *wider), device)
    if record is not None:
        config = from_record(tunable, problem, device, record)
        sizes = str(of).replace(tunable.key(of)[0], str(record["dtype"]))
        measured = config is not None and record.get("problem") == sizes
    elif os.environ.get("GRAPHENE_TUNE") == "1":
        try:
            config = tune(tunable, problem if to_tune is None else to_tune).best
        except Exception as e:
            code = "" if isinstance(e, GrapheneError) else "   [TUNE_FAILED]"
            records.warn_once(f"{problem} could not be tuned: {e}{code}")
    if config is None:
        return estimated()
    if measured or tunable.suits is None:
        return config
    other = estimated()
    return config if tunable.suits(config, other, problem, device) else other


def _record_of(tunable: Tunable[P, C], classes: Sequence[P], device: Device) -> tuple[P, dict[str, Any] | None]:
    """The first of some problems whose class has a record, and the record."""
    for of in classes:
        dtype, shape = tunable.key(of)
        for d in (dtype, *(t for t in EQUALLY_FAST if t != dtype)) if dtype in EQUALLY_FAST else (dtype,):
            if (record := records.find(device.name, tunable.name, tunable.version, d, shape)) is not None:
                return of, record
    return classes[0], None


def from_record(tunable: Tunable[P, C], problem: P, where: Device, record: dict[str, Any]) -> C | None:
    """The configuration of a record, which anybody may edit; None, with one warning, for an unusable record."""
    try:
        config = tunable.from_json(record["config"])
        unusable = tunable.unusable or (lambda *of: _refused(predicted(tunable, *of)))
        if (why := unusable(config, problem, where)) is not None:
            _core.fail("TUNE_NO_CANDIDATE", f"it does not fit {problem}", [f"why: {why}"], "tune it again")
    except Exception as e:
        code = "" if isinstance(e, GrapheneError) else "   [TUNE_FAILED]"
        of = f"the record of {record['shape']} on {where.name}"
        records.warn_once(f"{of} is not used: {e}{code}")
        return None
    return config


def _refused(verdict: tuple[float, str] | str) -> str | None:
    return verdict if isinstance(verdict, str) else None
