"""Many judgements in processes of their own. None can hang or end the others, and each is on disk once it is made.

``judge_all`` runs ``work(0)`` to ``work(count - 1)``. Each outcome is a line of JSON in the *journal*, whose first line
says what is judged. A run that was ended goes on from its journal. The journals of several parts are read together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

__all__ = ["Options", "add_options", "at_least_one", "judge_all", "options_of", "read_journals"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """``jobs`` processes; ``seconds`` a judgement may take; ``minutes`` after which no more is begun and what runs is
    left to the next run; ``part``: the i-th of n; ``journal``: a file; ``resume``: what stands in it is not done again.
    """

    jobs: int = 1
    seconds: float = 600.0
    minutes: float | None = None
    part: tuple[int, int] = (1, 1)
    journal: Path | None = None
    resume: bool = False


def _part(text: str) -> tuple[int, int]:
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"want: i/n with i from 1 to n, got: {text}")
    return int(i), int(n)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"more than 0 is wanted, got {text}")
    return value


def at_least_one(text: str) -> int:
    """A number of a command line that counts things."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is wanted, got {text}")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what ``options_of`` reads."""
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="processes; as many as there are cores")
    parser.add_argument("--seconds", type=_positive, default=600.0, metavar="S", help="what one judgement may take")
    parser.add_argument("--minutes", type=_positive, metavar="M", help="what this run may take; --resume goes on")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="this part of the whole alone")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="a line for each outcome, as soon as it is there")
    parser.add_argument("--resume", action="store_true", help="leave out what stands in the journal")


def options_of(args: argparse.Namespace) -> Options:
    """The options of a command line."""
    return Options(args.jobs or os.cpu_count() or 1, args.seconds, args.minutes, args.part, args.journal, args.resume)


def read_journals(files: Iterable[Path]) -> tuple[Row, list[Row]]:
    """What was judged, and the outcomes of all journals, each once, in order.

    Raises ValueError for journals of different runs, and for anything else than a file, since a pipe would block.
    """
    head: Row = {}
    rows: dict[int, Row] = {}
    for file in files:
        if file.exists() and not file.is_file():
            raise ValueError(f"{file} is not a regular file")
        lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not lines:
            continue
        if not all(isinstance(line, dict) for line in lines) or not all("index" in line for line in lines[1:]):
            raise ValueError(f"{file} is not a journal")
        if head and lines[0] != head:
            raise ValueError(f"{file}: another run's journal; want: {json.dumps(head)}, got: {json.dumps(lines[0])}")
        head = lines[0]
        rows.update((row["index"], row) for row in lines[1:])
    return head, [rows[i] for i in sorted(rows)]


def judge_all(
    work: Callable[[int], Row], count: int, head: Row, options: Options, wrong: Callable[[Row], bool]
) -> tuple[list[Row], bool]:
    """The outcomes so far, in order, and whether they are all of this part. Prints a bar with how many are ``wrong``.

    A row is what ``work`` returned with its ``index``; of a judgement that took too long or ended its process
    {"index", "failed": why}, which ``wrong`` gets, too. Raises ValueError for a journal of something else.
    """
    head = {**head, "count": count}
    rows: dict[int, Row] = {}
    journal = options.journal
    if journal is not None and options.resume and journal.exists():
        found, kept = read_journals([journal])
        if found and found != head:
            raise ValueError(f"{journal}: another run's; want: {json.dumps(head)}, got: {json.dumps(found)}")
        rows = {row["index"]: row for row in kept}
    out = None
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        out = journal.open("w")  # a torn last line goes
        print(*map(json.dumps, [head, *rows.values()]), sep="\n", file=out, flush=True)
    mine = range(options.part[0] - 1, count, options.part[1])
    missing = [i for i in mine if i not in rows]
    bad = sum(map(wrong, rows.values()))
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    try:
        for row in _spread(work, missing, options.jobs, options.seconds, until):
            rows[row["index"]] = row
            bad += wrong(row)
            if out is not None:
                print(json.dumps(row), file=out, flush=True)
            _progress(sum(i in rows for i in mine), len(mine), bad)
    finally:
        if out is not None:
            out.close()
    return [rows[i] for i in sorted(rows)], all(i in rows for i in mine)


def _progress(done: int, count: int, wrong: int) -> None:
    bar = "#" * (40 * done // count)
    end = "\n" if done == count or (not sys.stderr.isatty() and done % 50 == 0) else ""
    if sys.stderr.isatty() or end:
        print(f"\r[{bar:40}] {done} of {count}, {wrong} wrong", end=end, file=sys.stderr, flush=True)


def _worker(pipe: Connection, work: Callable[[int], Row], parent: int) -> None:
    while True:
        while not pipe.poll(5.0):
            if os.getppid() != parent:  # it was killed, and could not end this process
                return
        index = pipe.recv()
        try:
            row = work(index)
        except Exception:
            row = {"failed": traceback.format_exc()}
        pipe.send({"index": index, **row})


class _Worker:
    def __init__(self, work: Callable[[int], Row]) -> None:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_worker, args=(theirs, work, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
        self.index: int | None = None
        self.began = 0.0

    def begin(self, index: int) -> None:
        self.index, self.began = index, time.monotonic()
        self.pipe.send(index)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _spread(
    work: Callable[[int], Row], indices: list[int], jobs: int, seconds: float, until: float | None
) -> Iterator[Row]:
    """The rows, as they come."""
    left = list(reversed(indices))
    workers = [_Worker(work) for _ in range(min(jobs, len(left)))]
    try:
        while True:
            now = time.monotonic()
            if until is not None and now >= until:
                return
            for w in workers:
                if w.index is None and left:
                    w.begin(left.pop())
            busy = [w for w in workers if w.index is not None]
            if not busy:
                return
            ends = min(w.began + seconds for w in busy)
            ready = wait([w.pipe for w in busy], max(min(ends, until or ends) - now, 0.0))
            for w in busy:
                row: Row | None = None
                if w.pipe in ready:
                    try:
                        row = w.pipe.recv()
                        w.index = None
                    except (EOFError, ConnectionError):
                        w.process.join()
                        row = {"index": w.index, "failed": f"its process ended with {w.process.exitcode}"}
                elif time.monotonic() >= w.began + seconds:
                    row = {"index": w.index, "failed": f"it took longer than {seconds:g} s"}
                if row is None:
                    continue
                if w.index is not None:  # it is not to be asked again
                    w.end()
                    workers[workers.index(w)] = _Worker(work)
                yield row
    finally:
        for w in workers:
            w.end()
