"""Tables of measured figures in pages: what stands between `<!-- figures FILE: TABLE -->` and `<!-- end -->`.

FILE is one of benchmarks/results without its ".json", TABLE what the rows of the table say; a second name behind "/" is
the peer whose ratio to graphene's form (`of=NAME`, or "graphene") is the last column.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
MARK = re.compile(r"(<!-- figures (\w+): (.+?)(?: / (.+?)(?: of=(\w+))?)? -->\n).*?(<!-- end -->)", re.DOTALL)
UNITS = {"tflops": "TFLOP/s", "us": "us", "ms": "ms"}  # in the order they are looked for


def number(x: float) -> str:
    """Three digits: 7.36, 43.4, 252, 1278."""
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def table(file: str, name: str, against: str | None, own: str | None) -> str:
    """A table of Markdown: a row for every case, a column for every peer.

    Raises KeyError where no row is of that table, or the peer of the ratio is not there.
    """
    rows: list[dict[str, Any]] = [
        r for r in json.loads((RESULTS / f"{file}.json").read_text())["rows"] if r["table"] == name
    ]
    unit = next(u for u in UNITS if any(u in r for r in rows)) if rows else ""
    cases: dict[str, dict[str, float]] = {}
    for r in rows:
        cases.setdefault(r["case"], {})[r["peer"]] = float(r[unit])
    peers = list(dict.fromkeys(p for by_peer in cases.values() for p in by_peer))
    if own not in peers or against not in (None, *peers):
        raise KeyError(f"{file}: {name} has no {own} or no {against}; it has {peers}")
    head = [f"{name}, {UNITS[unit]}", *peers, *([f"ratio to {against}"] if against else [])]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for case, by_peer in cases.items():
        cells = [case, *(number(by_peer[p]) if p in by_peer else "-" for p in peers)]
        if against:
            pair = (by_peer.get(own or ""), by_peer.get(against))
            faster = None if None in pair else pair[0] / pair[1] if unit == "tflops" else pair[1] / pair[0]  # type: ignore[operator]
            cells.append("-" if faster is None else f"{faster:.2f} x")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """The page with its tables as the files say."""
    return MARK.sub(lambda m: m[1] + table(m[2], m[3], m[4], m[5] or "graphene") + m[6], page)
