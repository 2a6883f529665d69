"""Looking inside of a run of the simulator: what registers and memory held, after which statement."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from graphene import _core
from graphene._core import Wrote
from graphene.errors import SimulationError
from graphene.recorded import every
from graphene.simulate import check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene.recorded import Recorded

__all__ = ["Step", "Steps", "Watched", "Wrote", "steps", "watch"]

_SHOWN = 20  # lines of a printed result
_DRAWN = 400  # rows of a picture


class _Run:
    """What was written, and the error that ended the run, if one did."""

    def __init__(self, wrote: list[Wrote], left_out: int, error: SimulationError | None) -> None:
        self.wrote, self.left_out, self.error = tuple(wrote), left_out, error

    def _text(self, rows: Sequence[tuple[str, ...]], more: int) -> str:
        widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))] if rows else []
        lines = ["  ".join(c.ljust(n) for c, n in zip(r, widths, strict=True)).rstrip() for r in rows]
        return "\n".join([*lines, *self._notes(more)]) or "nothing was written"

    def _notes(self, more: int) -> list[str]:
        notes = [f"... and {more} more"] if more > 0 else []
        if self.error is not None:
            notes.append(f"ended by {self.error.code}: {str(self.error).splitlines()[0]}")
        return notes


def _value(x: object) -> str:
    return "never written" if x is None else f"{x:g}" if isinstance(x, float) else str(x)


class Watched(_Run):
    """What `kernel.watch` found: a sequence of ``Wrote`` in the order of the run, which prints as a table.

    ``error``: the SimulationError that ended the run; None if it ended well. ``left_out``: how many more there were.
    """

    def __iter__(self) -> Iterator[Wrote]:
        return iter(self.wrote)

    def __len__(self) -> int:
        return len(self.wrote)

    def __getitem__(self, i: int) -> Wrote:
        return self.wrote[i]

    @property
    def values(self) -> list[object]:
        """The values alone."""
        return [w.value for w in self.wrote]

    def _rows(self, most: int) -> list[tuple[str, ...]]:
        return [
            (w.where.rsplit("/", 1)[-1], f"block {w.block} thread {w.thread}", f"{w.place} = {_value(w.value)}",
             w.statement)
            for w in self.wrote[:most]
        ]  # fmt: skip

    def __repr__(self) -> str:
        return self._text(self._rows(_SHOWN), len(self.wrote) - _SHOWN + self.left_out)

    def svg(self) -> str:
        """The first 400 rows as a picture, which ``gr.svg`` writes to a file."""
        from graphene.viz.rows import draw_rows

        notes = self._notes(len(self.wrote) - _DRAWN + self.left_out)
        return draw_rows("what was written", ("line", "by", "value", "statement"), self._rows(_DRAWN), notes)


class Step(NamedTuple):
    """A statement that a thread executed.

    ``where``: Python ``file:line``. ``statement``: its text. ``wrote``: by place, such as "r[2]", what it wrote.
    """

    where: str
    statement: str
    wrote: dict[str, object]


class Steps(_Run):
    """What one thread executed, statement by statement: a sequence of ``Step``, forwards and backwards.

    ``error`` and ``left_out`` are as of `Watched`.
    """

    def __init__(self, wrote: list[Wrote], left_out: int, error: SimulationError | None) -> None:
        super().__init__(wrote, left_out, error)
        self._steps: list[Step] = []
        last = -1
        for w in wrote:
            if w.step != last:
                self._steps.append(Step(w.where, w.statement, {}))
                last = w.step
            self._steps[-1].wrote[w.place] = w.value

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, i: int) -> Step:
        return self._steps[i]

    def held(self, i: int = -1) -> dict[str, object]:
        """By place, what the thread had written last when step `i` was done. Raises IndexError."""
        out: dict[str, object] = {}
        for step in self._steps[: range(len(self._steps))[i] + 1]:
            out.update(step.wrote)
        return out

    def _rows(self, most: int) -> list[tuple[str, ...]]:
        return [
            (str(i), s.where.rsplit("/", 1)[-1], ", ".join(f"{p} = {_value(v)}" for p, v in s.wrote.items()))
            for i, s in enumerate(self._steps[:most])
        ]

    def __repr__(self) -> str:
        return self._text(self._rows(_SHOWN), len(self._steps) - _SHOWN)

    def svg(self) -> str:
        """The first 400 steps as a picture, which ``gr.svg`` writes to a file."""
        from graphene.viz.rows import draw_rows

        rows = [(*r, s.statement) for r, s in zip(self._rows(_DRAWN), self._steps, strict=False)]
        notes = self._notes(len(self._steps) - _DRAWN)
        return draw_rows("steps of a thread", ("step", "line", "wrote", "statement"), rows, notes)


def _blocks(kernel: Recorded, args: tuple[object, ...], named: dict[str, object], arch: str | None) -> int:
    """How many blocks a call has; what the run refuses anyway has as many as there can be."""
    size = kernel.ir.grid.size if kernel.ir.grid is not None else 2**31
    if isinstance(size, int):
        return size
    from graphene.judge.signature import Signature, evaluate

    names = [a.name for a in Signature.of(kernel).arguments]
    if len(args) + len(named) != len(names) or not set(named) <= set(names[len(args) :]):
        return 2**31
    given = (*args, *(named[n] for n in names[len(args) :]))
    return evaluate(str(size), _core.argument_sizes(kernel.lowered(arch), given))


def _number(kernel: Recorded, name: str, value: object, many: int) -> int:
    """A block or thread as the core takes it; `many`: how many there are."""
    if value is None:
        return -1
    last = many - 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= last:
        _core.fail("SIM_ARGUMENT", f"{kernel.name} has no {name} {value!r}", [f"want: 0 to {last}, or None for all"],
                   f"leave {name}= out, or name one of these")  # fmt: skip
    return value


def _run(
    kernel: Recorded, args: tuple[object, ...], named: dict[str, object], name: str, place: tuple[object, object],
    limit: object, arch: str | None, seed: int,
) -> tuple[list[Wrote], int, SimulationError | None]:  # fmt: skip
    check_seed(seed)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 2**31:
        raise ValueError(f"limit must be a number, more than 0, got {limit!r}")
    threads = kernel.ir.block.size if kernel.ir.block is not None else 1024
    thread = _number(kernel, "thread", place[1], int(threads))
    block = -1 if place[0] is None else _number(kernel, "block", place[0], _blocks(kernel, args, named, arch))
    wrote: list[Wrote] = []
    try:
        left = _core.watch(kernel.lowered(arch), args, named, seed, name, block, thread, limit, wrote)
    except SimulationError as error:
        return wrote, 0, error
    return wrote, left, None


def watch(
    kernel: Recorded, name: str, args: tuple[object, ...], named: dict[str, object], block: int | None = None,
    thread: int | None = None, limit: int = 10_000, arch: str | None = None, seed: int = 0,
) -> Watched:  # fmt: skip
    """What registers or a tensor in memory held, after which statement (Kernel.watch)."""
    made = (s.outs[0].name for s in every(_core.ir_statements(kernel.ir)) if s.kind == "allocate")
    known = sorted({t.name for t in kernel.ir.args} | set(made))
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 3) or known[:8]
        _core.fail("SIM_ARGUMENT", f"no register and no tensor of {kernel.name} is called {name!r}",
                   [f"there are: {', '.join(near)}"], "name one of these")  # fmt: skip
    return Watched(*_run(kernel, args, named, name, (block, thread), limit, arch, seed))


def steps(
    kernel: Recorded, args: tuple[object, ...], named: dict[str, object], block: int = 0, thread: int = 0,
    limit: int = 100_000, arch: str | None = None, seed: int = 0,
) -> Steps:  # fmt: skip
    """What one thread executed, statement by statement (Kernel.steps)."""
    return Steps(*_run(kernel, args, named, "", (block, thread), limit, arch, seed))
