"""A block's work, warp by warp: the events of ``kernel.simulate(..., trace=True)`` and their picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from graphene._core import TraceEvent
from graphene.viz.agents import draw_agents, has_agents
from graphene.viz.grid import shade

__all__ = ["Trace", "TraceEvent", "draw_timeline"]

_FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_INK, _SOFT = "#1f2430", "#7a8190"
_FILL = {"barrier": "#f2c14e", "wait": "#f29e4e", "commit": "#d9dde5", "in flight": "#b9d7f2"}
_ROW, _FLIGHT, _LEFT = 18.0, 8.0, 92.0
_DASHED = ' stroke="#c0392b" stroke-dasharray="3,2"'
_COLUMNS, _MOST = 4, 20  # of the legend: how wide, and how many lines of Python it names


@dataclass(frozen=True, repr=False)
class Trace:
    """The work of the first block of a simulation. It shows what waits for what, not how long it takes on a device."""

    name: str
    events: tuple[TraceEvent, ...]

    @property
    def warps(self) -> int:
        """How many warps took part."""
        return 1 + max((e.warp for e in self.events), default=-1)

    @property
    def steps(self) -> int:
        """The last step of any warp."""
        return max((e.end for e in self.events), default=0)

    def __repr__(self) -> str:
        return f"<Trace of {self.name}: {self.warps} warps, {self.steps} steps, {len(self.events)} events>"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.warps} warps, {self.steps} steps"]
        for e in sorted(self.events, key=lambda e: (e.warp, e.start, e.kind == "in flight")):
            what = e.atom if e.kind == "leaf" else e.kind + (f" {e.domain}" if e.domain else "")
            times = f" x{e.count}" if e.count > 1 else ""
            lines.append(f"warp {e.warp}  {e.start}-{e.end}  {what}{times}  {e.where}")
        return "\n".join(lines)

    def timeline(
        self,
        path: str | Path | None = None,
        *,
        width: float | None = None,
        block: int = 0,
        steps: tuple[float, float] | None = None,
    ) -> str:
        """The picture as SVG text, which is also written to `path` if that is given.

        Where agents copy or multiply (TMA, ``wgmma``) there is a lane for each role, agent and stage, and for whose
        turn it is, of one `block` of the cluster; ``steps=(first, last)`` draws a part. Otherwise it is
        ``draw_timeline``. `width`: in pixels. Raises ValueError for a block that did not run.
        """
        blocks = 1 + max((e.block for e in self.events), default=0)
        if not 0 <= block < blocks:
            raise ValueError(f"block={block}: the trace has {blocks} blocks")
        if has_agents(self.events):
            text = draw_agents(self.name, self.events, width or 1100.0, block, steps)
        else:
            text = draw_timeline(self, width or 900.0)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def _repr_svg_(self) -> str | None:
        return self.timeline() if len(self.events) <= 20_000 else None


def _tooltip(e: TraceEvent) -> str:
    what = e.atom or e.kind
    if e.kind == "in flight":
        what = f"{e.count} {e.domain} copies in flight" + ("" if e.landed else ", not waited for")
    elif e.kind != "leaf":
        what = f"{e.kind} {e.domain}".strip()
    times = f", {e.count} times" if e.kind == "leaf" and e.count > 1 else ""
    return f"{what}{times}\nwarp {e.warp}, steps {e.start} to {e.end}\n{e.where}\n{e.text}"


def draw_timeline(trace: Trace, width: float = 900.0) -> str:
    """A trace as SVG: a row for each warp, and below it a thin row for each group of copies that is in flight.

    Leaves of one Python line have one colour. Barriers and waits are orange, copies in flight are blue (dashed if
    nothing waits for them), and a legend below explains the colours. Browsers show each event's statement when the
    pointer rests on it.
    """
    scale = (width - _LEFT - 10) / max(trace.steps, 1)
    colours: dict[str, str] = {}
    body: list[str] = []
    y = 34.0
    for warp in range(trace.warps):
        mine = [e for e in trace.events if e.warp == warp]
        body.append(f'<text x="8" y="{y + 13:g}" font-size="11" fill="{_INK}">warp {warp}</text>')
        for e in mine:
            if e.kind == "in flight":
                continue
            fill = _FILL.get(e.kind) or colours.setdefault(e.where, shade(len(colours)))
            body.append(_bar(e, _LEFT + e.start * scale, y, (e.end - e.start) * scale, _ROW, fill))
        y += _ROW + 2
        lanes: list[int] = []  # the step at which each row of flights is free again
        for e in sorted((e for e in mine if e.kind == "in flight"), key=lambda e: e.start):
            lane = next((i for i, free in enumerate(lanes) if free <= e.start), len(lanes))
            lanes[lane : lane + 1] = [e.end]
            top = y + lane * (_FLIGHT + 1)
            body.append(_bar(e, _LEFT + e.start * scale, top, (e.end - e.start) * scale, _FLIGHT, _FILL[e.kind]))
        y += len(lanes) * (_FLIGHT + 1) + 5
    legend, y = _legend(trace, colours, y + 8, width)
    title = escape(f"{trace.name}: {trace.warps} warps, {trace.steps} steps", quote=False)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{y + 6:g}" '
        f'viewBox="0 0 {width:g} {y + 6:g}" font-family="{_FONT}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="8" y="20" font-size="13.5" fill="{_INK}">{title}</text>'
        f'<text x="{width - 10:g}" y="20" font-size="10.5" fill="{_SOFT}" text-anchor="end">'
        "steps of each warp, not time</text>"
        f"{''.join(body)}{legend}</svg>"
    )


def _legend(trace: Trace, colours: dict[str, str], y: float, width: float) -> tuple[str, float]:
    """The legend of a picture's colours, below `y`, and where it ends."""
    atoms: dict[str, list[str]] = {where: [] for where in colours}
    for e in trace.events:
        if e.where in atoms and e.kind == "leaf" and e.atom not in atoms[e.where]:
            atoms[e.where].append(e.atom)
    names = {w: a[0] + " ..." * (len(a) > 1) + f", line {w.rpartition(':')[2]}" for w, a in atoms.items()}
    entries = [(colours[where], "", name) for where, name in list(names.items())[:_MOST]]
    if len(names) > _MOST:
        entries.append(("#ffffff", "", f"and {len(names) - _MOST} more lines"))
    kinds = {e.kind for e in trace.events}
    entries += [(fill, "", kind) for kind, fill in _FILL.items() if kind in kinds]
    if any(not e.landed for e in trace.events if e.kind == "in flight"):
        entries.append((_FILL["in flight"], _DASHED, "never waited for"))
    out = []
    for i, (fill, dashed, text) in enumerate(entries):
        x, top = 8 + i % _COLUMNS * (width - 16) / _COLUMNS, y + i // _COLUMNS * 16
        out.append(f'<rect x="{x:g}" y="{top:g}" width="12" height="10" fill="{fill}"{dashed}/>')
        out.append(f'<text x="{x + 17:g}" y="{top + 9:g}" font-size="10.5" fill="{_INK}">{escape(text)}</text>')
    return "".join(out), y + 16 * -(-len(entries) // _COLUMNS)


def _bar(e: TraceEvent, x: float, y: float, width: float, height: float, fill: str) -> str:
    dashed = _DASHED if not e.landed else ""
    return (
        f"<g><title>{escape(_tooltip(e), quote=False)}</title>"
        f'<rect x="{x:.2f}" y="{y:g}" width="{max(width - 0.3, 0.4):.2f}" height="{height:g}" fill="{fill}"{dashed}/>'
        "</g>"
    )
