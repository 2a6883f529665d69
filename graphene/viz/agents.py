"""A timeline of roles, agents and the stages between them: what a kernel with TMA and ``wgmma`` does, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from graphene._core import TraceEvent

__all__ = ["draw_agents", "has_agents"]

_FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_INK, _SOFT, _LINE = "#1f2430", "#7a8190", "#e3e6ec"
_LEFT, _RIGHT, _TOP = 118.0, 14.0, 58.0
_CHAR = 0.55  # average width of a character, in font sizes
_WARPGROUP = 4
# Of roles that multiply: while they do, and lighter while they wait for it.
_OWN = (("#3d74c6", "#c3d7f2"), ("#de7d2b", "#f8d9bd"), ("#3f9a5f", "#c5e6d0"), ("#8a5cb8", "#ded0ee"))
_GREY = ("#68738a", "#d5dae3")
_COPY, _STORE, _THREAD, _SYNC = "#2a9d8f", "#8a5cb8", "#8d97aa", "#39404f"
_STAGE_WAIT, _TURN_WAIT, _STORE_WAIT = "#fbe9b7", "#f2c14e", "#e6dcf2"
_AGENTS = ("copy", "product", "phase", "in flight")
_FILLING, _FULL, _READ = "url(#filling)", "#bfe3dd", "#e4e7ed"


def has_agents(events: Iterable[TraceEvent]) -> bool:
    """Whether agents copy or multiply in it."""
    return any(e.kind in ("copy", "product") for e in events)


@dataclass
class _TimeBar:
    """A rectangle of a lane: steps, colour, what the pointer shows, what is written in it."""

    start: float
    end: float
    fill: str
    title: str
    text: str = ""
    kind: str = ""
    part: tuple[int, int] = (0, 1)  # which of how many strips of the lane, from the top


@dataclass
class _Lane:
    label: str
    height: float
    bars: list[_TimeBar] = field(default_factory=list)
    title: str = ""
    marks: list[tuple[float, str]] = field(default_factory=list)  # steps, and what the pointer shows


@dataclass
class _Role:
    """Warps that a lane stands for; `leader` is the one that is drawn."""

    name: str
    title: str
    warps: tuple[int, ...]  # numbers in the cluster
    leader: int
    colours: tuple[str, str]


def _base(barrier: str) -> str:
    return barrier.partition("[")[0]


def _index(name: str) -> int:
    found = re.search(r"\[(\d+)\]", name)
    return int(found[1]) if found else 0


def _lines(e: TraceEvent, what: str) -> str:
    return f"{what}\nsteps {e.start} to {e.end}\n{e.where}\n{e.text}"


def _roles(events: Sequence[TraceEvent], block: int) -> list[_Role]:
    """The warps of a block by what they do. The warps of a warpgroup are one role."""
    mine: dict[int, int] = {}
    for e in events:
        if e.block == block and e.warp >= 0 and e.kind not in _AGENTS:
            mine[e.warp] = mine.get(e.warp, 0) + 1
    first = min(mine, default=0)
    groups: dict[int, list[int]] = {}
    for warp in sorted(mine):
        groups.setdefault((warp - first) // _WARPGROUP, []).append(warp)
    loads = {e.warp for e in events if e.kind == "copy" and e.barrier}
    multiplies = {e.warp for e in events if e.kind == "product"}
    deeds = {g: (bool(loads & set(w)), bool(multiplies & set(w))) for g, w in groups.items()}
    names = {(True, False): "producer", (False, True): "consumer"}
    several = {names[d] for d in names if sum(x == d for x in deeds.values()) > 1}
    split = set(names) <= set(deeds.values())
    out: list[_Role] = []
    for g, warps in groups.items():
        low, high = warps[0] - first, warps[-1] - first
        kind = names.get(deeds[g], "") if split else ""
        name = kind or (f"warp {low}" if low == high else f"warps {low}-{high}")
        if kind in several:
            name += f" {sum(deeds[k] == deeds[g] for k in groups if k < g)}"
        multiplied = sum(deeds[k][1] for k in groups if k < g)
        colours = _OWN[multiplied % len(_OWN)] if deeds[g][1] else _GREY
        leader = max(warps, key=lambda w: (mine[w], -w))
        out.append(_Role(name, f"warps {low} to {high}; drawn: {leader - first}", tuple(warps), leader, colours))
    return out


def _thread_bar(e: TraceEvent, role: _Role) -> _TimeBar:
    """What a warp does in an event, as a bar of its role's lane."""
    if e.kind == "wait":
        if e.domain == "wgmma":
            fill, kind, what = role.colours[1], "waits for products", "waits for products"
        elif e.domain:
            fill, kind, what = _STORE_WAIT, "waits for stores", f"waits for {e.domain}"
        elif e.op == "sync":
            fill, kind, what = _TURN_WAIT, "waits for its turn", f"waits at {e.barrier}"
        else:
            fill, kind, what = _STAGE_WAIT, "waits for a phase", f"waits for {e.barrier}, phase {e.phase}"
        return _TimeBar(e.start, e.end, fill, _lines(e, what), kind=kind)
    if e.kind == "barrier":
        return _TimeBar(e.start, e.end, _TURN_WAIT, _lines(e, "barrier"), kind="waits for its turn")
    if e.kind != "leaf":
        what = f"{e.kind} {e.barrier or e.domain}".strip()
        return _TimeBar(e.start, e.end, _SYNC, _lines(e, what), kind="arrives, commits, fences")
    times = f", {e.count} times" if e.count > 1 else ""
    if e.atom.startswith("wgmma"):
        return _TimeBar(e.start, e.end, role.colours[0], _lines(e, f"issues {e.atom}{times}"), kind="issues products")
    if e.atom.startswith(("tma", "bulk", "cp.async.bulk")):
        return _TimeBar(e.start, e.end, _COPY, _lines(e, f"issues {e.atom}{times}"), kind="issues copies")
    return _TimeBar(e.start, e.end, _THREAD, _lines(e, f"{e.atom}{times}"), kind="other instructions")


def _together(bars: list[_TimeBar]) -> list[_TimeBar]:
    """Bars of one kind that follow each other as one."""
    out: list[_TimeBar] = []
    for b in sorted(bars, key=lambda b: b.start):
        last = out[-1] if out else None
        if last is not None and last.kind == b.kind and last.end == b.start and "waits" not in b.kind:
            last.end = b.end
            if last.title.count("\n") < 24:
                last.title += "\n\n" + b.title
        else:
            out.append(b)
    return out


def _short(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _agents(events: Sequence[TraceEvent], role_of: dict[int, _Role]) -> list[_Lane]:
    """What TMA copies in, what the tensor cores multiply, what TMA copies out."""
    into, multiply, out = _Lane("TMA loads", 16), _Lane("tensor cores", 16), _Lane("TMA stores", 16)
    for e in events:
        by = role_of[e.warp].name if e.warp in role_of else f"warp {e.warp}, another block"
        if e.kind == "copy":
            what = f"{e.bytes} bytes " + (
                f"to {_short(e.writes)}, for {e.barrier}" if e.barrier else f"from {_short(e.reads)}"
            )
            title = f"{what}\nissued by {by} in step {e.start}, complete in step {e.end}\n"
            title += f"moves in steps {e.begin} to {e.until}\n{e.where}\n{e.text}"
            lane, fill = (into, _COPY) if e.barrier else (out, _STORE)
            label = _short(e.writes if e.barrier else e.reads)
            lane.bars.append(_TimeBar(e.begin, e.until, fill, title, label))
        elif e.kind == "product":
            title = f"{e.count} x {e.atom}: {e.flops} flops\nof {_short(e.reads)} for {by}\n"
            title += f"issued in step {e.start}, multiplies in steps {e.begin} to {e.until}\n{e.where}\n{e.text}"
            fill = role_of[e.warp].colours[0] if e.warp in role_of else _GREY[0]
            multiply.bars.append(_TimeBar(e.begin, e.until, fill, title, _short(e.reads)))
    return [lane for lane in (into, multiply, out) if lane.bars]


@dataclass
class _Use:
    start: int
    end: int
    event: TraceEvent


def _reads(events: Sequence[TraceEvent], names: set[str]) -> list[_Use]:
    """Who reads these stages, in order."""
    out = []
    for e in events:
        if not names & set(e.reads):
            continue
        agent = e.kind in ("copy", "product")
        out.append(_Use(e.begin if agent else e.start, e.until if agent else e.end, e))
    return sorted(out, key=lambda u: (u.start, u.end))


def _rings(events: Sequence[TraceEvent], role_of: dict[int, _Role]) -> list[_Lane]:
    """A lane for each mbarrier on which copies complete: what they fill is filled, full, read, then free again."""
    fills: dict[str, dict[int, list[TraceEvent]]] = {}
    freed_by: dict[str, str] = {}
    waited: dict[int, str] = {}
    for e in sorted(events, key=lambda e: e.start):
        if e.kind == "wait" and e.barrier:
            waited[e.warp] = _base(e.barrier)
        if e.kind == "copy" and e.barrier:
            fills.setdefault(e.barrier, {}).setdefault(e.phase, []).append(e)
            if waited.get(e.warp, _base(e.barrier)) != _base(e.barrier):
                freed_by[_base(e.barrier)] = waited[e.warp]
    phases = {(e.barrier, e.phase): e for e in events if e.kind == "phase"}
    counts: dict[str, int] = {}
    for barrier in fills:
        counts[_base(barrier)] = counts.get(_base(barrier), 0) + 1
    lanes = []
    order = list(dict.fromkeys(_base(b) for b in fills))
    for barrier in sorted(fills, key=lambda b: (order.index(_base(b)), _index(b))):
        rounds = sorted(fills[barrier].items())
        names = {n for _, copies in rounds for c in copies for n in c.writes}
        uses = _reads(events, names)
        buffers = _short(sorted(n.partition("[")[0] for n in names))
        lane = _Lane(f"{buffers} [{_index(barrier)}]", 15, title=f"stage of {buffers}: {barrier}")
        ends = [min(c.start for c in copies) for _, copies in rounds[1:]] + [1 << 62]
        for (number, copies), until in zip(rounds, ends, strict=True):
            start, end = min(c.start for c in copies), max(c.end for c in copies)
            over = phases.get((barrier, number))
            end = max(end, over.end if over else 0)
            fill = number * counts[_base(barrier)] + _index(barrier)
            size = sum(c.bytes for c in copies)
            lane.bars.append(_TimeBar(start, end, _FILLING, f"{barrier}, phase {number}: filled with {size} bytes\n"
                                  f"steps {start} to {end}\n{copies[0].where}", f"{fill}", "filling"))  # fmt: skip
            mine = [u for u in uses if end <= u.start < until]
            if not mine:
                continue
            first, last = min(u.start for u in mine), max(u.end for u in mine)
            if first > end:
                lane.bars.append(_TimeBar(end, first, _FULL, f"{barrier}, phase {number}: full, not read yet\n"
                                      f"steps {end} to {first}", kind="full"))  # fmt: skip
            readers: dict[str, list[_Use]] = {}
            for u in mine:
                role = role_of.get(u.event.warp)
                readers.setdefault(role.name if role else "another block", []).append(u)
            for i, (by, own) in enumerate(sorted(readers.items())):
                role = role_of.get(own[0].event.warp)
                colour = _STORE if own[0].event.kind == "copy" or not role else role.colours[0]
                begin, done = min(u.start for u in own), max(u.end for u in own)
                title = f"{barrier}, phase {number}: read by {by}\nsteps {begin} to {done}\n{own[0].event.where}"
                lane.bars.append(_TimeBar(begin, done, colour, title, f"{fill}", "being read", (i, len(readers))))
            freed = [e for e in events if e.kind == "phase" and _base(e.barrier) == freed_by.get(_base(barrier), "-")
                     and _index(e.barrier) == _index(barrier) and last <= e.end]  # fmt: skip
            if freed:
                at = min(e.end for e in freed)
                name = next(e.barrier for e in freed if e.end == at)
                lane.marks.append((at, f"{name} is over: the stage is free\nstep {at}"))
                if at > last:
                    lane.bars.append(_TimeBar(last, at, _READ, f"{barrier}, phase {number}: read, not released yet\n"
                                          f"steps {last} to {at}", kind="not released"))  # fmt: skip
        lanes.append(lane)
    return lanes


def _outputs(events: Sequence[TraceEvent], roles: list[_Role], role_of: dict[int, _Role]) -> list[_Lane]:
    """A lane for what each role writes to shared memory and an agent stores."""
    stored = {n for e in events if e.kind == "copy" and not e.barrier for n in e.reads}
    filled = {n for e in events if e.kind == "copy" and e.barrier for n in e.writes}
    lanes = []
    for name in sorted(stored - filled):
        for role in roles:
            lane = _Lane(
                f"{name}, {role.name}" if len(roles) > 1 else name, 12, title=f"{name}, written by {role.name}"
            )
            for e in events:
                if role_of.get(e.warp) is not role:
                    continue
                if e.kind == "leaf" and name in e.writes and e.warp == role.leader:
                    lane.bars.append(
                        _TimeBar(
                            e.start, e.end, role.colours[1], _lines(e, f"{role.name} writes {name}"), kind="written"
                        )
                    )
                elif e.kind == "copy" and name in e.reads:
                    title = f"{name} of {role.name} is stored\nsteps {e.begin} to {e.until}\n{e.where}"
                    lane.bars.append(_TimeBar(e.begin, e.until, _STORE, title, kind="stored"))
            if lane.bars:
                lanes.append(lane)
    return lanes


def _turns(events: Sequence[TraceEvent], roles: list[_Role]) -> list[_Lane]:
    """Named barriers at which roles take turns: a lane with whose turn it is, from its wait to its next arrival."""
    lanes: dict[str, _Lane] = {}
    for role in roles:
        began: dict[str, TraceEvent] = {}
        for e in sorted((e for e in events if e.warp == role.leader), key=lambda e: e.start):
            base = _base(e.barrier)
            if e.kind == "wait" and e.op == "sync":
                began[base] = e
            elif e.kind == "arrive" and base in began and e.start >= began[base].end:
                since = began.pop(base)
                lane = lanes.setdefault(base, _Lane(f"turn: {base}" if base != "turn" else "turn", 12))
                title = f"the turn of {role.name}\nsteps {since.end} to {e.end}\n{since.where}, {e.where}"
                lane.bars.append(_TimeBar(since.end, e.end, role.colours[0], title, role.name))
    return list(lanes.values())


def _ticks(first: float, last: float, most: int) -> list[int]:
    steps = (n * 10**i for i in range(19) for n in (1, 2, 5))
    step = next(s for s in steps if (last - first) / s <= most)
    begin = -(-int(first) // step) * step
    return list(range(begin, int(last) + 1, step))


def draw_agents(
    name: str, events: Sequence[TraceEvent], width: float, block: int, steps: tuple[float, float] | None
) -> str:
    """The SVG of ``Trace.timeline`` where agents work: lanes of roles, of agents, of stages, of turns."""
    here = [e for e in events if e.block == block]
    roles = _roles(events, block)
    role_of = {w: r for r in roles for w in r.warps}
    threads = []
    for role in roles:
        lane = _Lane(role.name, 20, title=role.title)
        own = [e for e in here if e.warp == role.leader and e.kind not in _AGENTS]
        lane.bars = _together([_thread_bar(e, role) for e in own])
        threads.append(lane)
    sections = (threads, _turns(here, roles), _agents(here, role_of), _rings(here, role_of),
                _outputs(here, roles, role_of))  # fmt: skip
    lanes = [lane for section in sections for lane in section]
    first, last = steps or (0, max((b.end for lane in lanes for b in lane.bars), default=1))
    scale = (width - _LEFT - _RIGHT) / max(last - first, 1)
    y, parts, ends = _TOP, [], []
    for section in sections:
        for lane in section:
            parts.append(_draw_lane(lane, y, first, last, scale))
            y += lane.height + 3
        ends.append(y)
        y += 8 if section else 0
    bottom = y - 4
    grid = []
    for at in _ticks(first, last, int(width / 90)):
        x = _LEFT + (at - first) * scale
        grid.append(f'<path d="M{x:.1f} {_TOP - 6:g}V{bottom:g}" stroke="{_LINE}"/>')
        grid.append(f'<text x="{x:.1f}" y="{_TOP - 10:g}" text-anchor="middle" fill="{_SOFT}">{at}</text>')
    legend, bottom = _legend(lanes, roles, bottom + 10, width)
    blocks = 1 + max((e.block for e in events), default=0)
    which = f", block {block} of a cluster of {blocks}" if blocks > 1 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{bottom:g}" '
        f'viewBox="0 0 {width:g} {bottom:g}" font-family="{_FONT}" font-size="10">\n'
        '<defs><pattern id="filling" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="5" height="5" fill="#eaf5f3"/><rect width="2" height="5" fill="#9bd0c8"/></pattern></defs>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="10" y="22" font-size="14" fill="{_INK}">{escape(name)}{which}: {last - first:g} steps</text>'
        f'<text x="{width - _RIGHT:g}" y="22" fill="{_SOFT}" text-anchor="end">'
        "Logical steps: one an instruction of a warp; agents by a stated rule. Not measured time.</text>\n"
        + "".join(grid) + "\n".join(parts) + legend + "</svg>"
    )  # fmt: skip


def _draw_lane(lane: _Lane, y: float, first: float, last: float, scale: float) -> str:
    """A lane's label and bars; what is too narrow to be seen is drawn as wide as a hair."""
    title = f"<title>{escape(lane.title, quote=False)}</title>" if lane.title else ""
    out = [
        f'<text x="{_LEFT - 8:g}" y="{y + lane.height / 2 + 3.5:g}" text-anchor="end" font-size="11" fill="{_INK}">'
        f"{title}{escape(lane.label)}</text>"
        f'<rect x="{_LEFT:g}" y="{y:g}" width="{(last - first) * scale:.1f}" height="{lane.height:g}" fill="#f7f8fa"/>'
    ]
    for b in sorted(lane.bars, key=lambda b: (b.end - b.start) * scale < 1):  # hairs on top
        start, end = max(b.start, first), min(b.end, last)
        if end <= start:
            continue
        x, wide = _LEFT + (start - first) * scale, (end - start) * scale
        strip, strips = b.part
        high = lane.height / strips
        top = y + strip * high
        out.append(f'<g><title>{escape(b.title, quote=False)}</title><rect x="{x:.2f}" y="{top:g}" '
                   f'width="{max(wide - 0.4 * (wide > 4), 0.5):.2f}" height="{high:g}" fill="{b.fill}"/>')  # fmt: skip
        size = min(high - 5, 9.5)
        if b.text and strips == 1 and len(b.text) * size * _CHAR + 3 < wide:
            dark = b.fill in (_FILLING, _FULL) or b.fill in {light for _, light in _OWN}
            out.append(f'<text x="{x + wide / 2:.1f}" y="{top + high / 2 + size * 0.36:.1f}" font-size="{size:g}" '
                       f'text-anchor="middle" fill="{_INK if dark else "#fff"}">{escape(b.text)}</text>')  # fmt: skip
        out.append("</g>")
    for at, what in lane.marks:
        if first <= at <= last:
            x = _LEFT + (at - first) * scale
            out.append(f'<g><title>{escape(what, quote=False)}</title><path d="M{x:.1f} {y:g}v{lane.height:g}" '
                       f'stroke="{_INK}" stroke-width="1"/></g>')  # fmt: skip
    return "".join(out)


def _legend(lanes: list[_Lane], roles: list[_Role], y: float, width: float) -> tuple[str, float]:
    """What the colours mean, below `y`; and where it ends."""
    used = {b.fill for lane in lanes for b in lane.bars}
    meanings = [
        (_COPY, "copies into shared memory"),
        (_STORE, "stores out of shared memory"),
        *((r.colours[0], f"{r.name}: multiplies, and reads the stage") for r in roles),
        *((r.colours[1], f"{r.name} waits for products") for r in roles),
        (_STAGE_WAIT, "waits for a stage (the phase of an mbarrier)"),
        (_TURN_WAIT, "waits for its turn, or at a barrier"),
        (_STORE_WAIT, "waits for stores"),
        (_THREAD, "other instructions"),
        (_SYNC, "arrives, commits, fences"),
        (_FILLING, "stage: being filled; the number counts fills"),
        (_FULL, "stage: full"),
        (_READ, "stage: read, not released; the stroke: free"),
    ]
    entries = [m for m in meanings if m[0] in used]
    columns = max(1, int((width - 20) / 270))
    out = []
    for i, (fill, text) in enumerate(entries):
        x, top = 10 + i % columns * (width - 20) / columns, y + i // columns * 17
        out.append(f'<rect x="{x:g}" y="{top:g}" width="13" height="11" fill="{fill}" stroke="{_LINE}"/>')
        out.append(f'<text x="{x + 19:g}" y="{top + 9.5:g}" font-size="10.5" fill="{_INK}">{escape(text)}</text>')
    return "".join(out), y + 17 * -(-len(entries) // columns) + 4
