"""What ``kernel.report()`` returns: bank conflicts and sectors of every memory access, registers, occupancy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from html import escape
from typing import TYPE_CHECKING

from graphene import _core
from graphene._core import AgentWork, BarrierPhases, WidthLimit
from graphene.errors import CompileError
from graphene.simulate import check_sizes

if TYPE_CHECKING:
    from graphene.recorded import Recorded

__all__ = ["AccessRow", "AgentWork", "BarrierPhases", "Occupancy", "Report", "WidthLimit", "occupancy", "report"]


_REGISTERS = 65536
_REGISTER_UNIT = 256  # per warp
_PARTITIONS = 4  # parts of a multiprocessor, which get the warps in turn


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel fit a multiprocessor, and what limits it.

    ``limits``: how many blocks each resource alone would allow, by name ("threads", "blocks", "registers", "shared");
    registers are missing if they are not known. ``limited_by``: the names of the resources that allow the fewest.
    ``share``: resident warps divided by those that a multiprocessor can hold.
    """

    blocks_per_sm: int
    warps_per_sm: int
    share: float
    limits: dict[str, int]
    limited_by: tuple[str, ...]

    def __str__(self) -> str:
        by = " and ".join(self.limited_by)
        return f"{self.blocks_per_sm} blocks, {self.warps_per_sm} warps an SM ({self.share:.0%}), limited by {by}"


def occupancy(arch: str, threads: int, shared_bytes: int, registers: int | None) -> Occupancy | None:
    """Occupancy of blocks of `threads` threads with `shared_bytes` of shared memory and `registers` a thread.

    None for an architecture whose multiprocessor is not known. Source: the occupancy calculator of the CUDA toolkit.
    """
    sm = _core.find_architecture(arch)
    if sm is None or sm.warps == 0:
        return None
    warps = -(-threads // 32)
    limits = {"threads": sm.warps // warps, "blocks": sm.blocks}
    if registers is not None and registers > 0:
        per_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        held = _REGISTERS // per_warp // _PARTITIONS * _PARTITIONS
        limits["registers"] = held // warps
    each = -(-(shared_bytes + sm.reserved_bytes) // sm.shared_unit) * sm.shared_unit
    if each > 0:
        limits["shared"] = sm.sm_shared_bytes // each
    blocks = min(limits.values())
    by = tuple(name for name, n in limits.items() if n == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / sm.warps, limits, by)


@dataclass(frozen=True)
class AccessRow:
    """One memory operand of one IR statement, over all blocks that ran.

    ``memory``: "GL" or "SH". ``op``: "load", "store", or "copy to"/"copy from" of an asynchronous copy.
    ``vector_bytes``: contiguous bytes of one lane. ``requests``: warp instructions (several if a lane's values lie
    apart). In shared memory, ``wavefronts`` are passes over the banks, ``conflicts`` the passes beyond the least
    possible number, and ``ways`` the most words of one bank that one pass asked for. In global memory, ``sectors`` are
    pieces of 32 bytes that were touched, and ``ideal_sectors`` those that the bytes would fill. ``limits``: why
    ``vector_bytes`` is less than 16; empty if it is not.
    """

    where: str
    text: str
    atom: str
    buffer: str
    memory: str
    op: str
    vector_bytes: int
    requests: int
    lanes: int
    bytes: int
    wavefronts: int
    conflicts: int
    ways: int
    sectors: int
    ideal_sectors: int
    limits: tuple[WidthLimit, ...]

    @property
    def efficiency(self) -> float:
        """The least possible number of wavefronts or sectors, divided by the number that the access takes."""
        if self.memory == "SH":
            return (self.wavefronts - self.conflicts) / self.wavefronts if self.wavefronts else 1.0
        return self.ideal_sectors / self.sectors if self.sectors else 1.0


_COLUMNS = ("where", "op", "buffer", "atom", "bytes", "requests", "conflicts", "sectors", "")
_AGENT_COLUMNS = ("where", "agent", "from -> to", "atom", "count", "bytes", "flops", "to blocks")
_BARRIER_COLUMNS = ("barrier", "", "stages", "arrivals a phase", "phases")


@dataclass(frozen=True, repr=False)
class Report:
    """The work of the memory system for a kernel.

    ``rows``: its memory accesses in textual order. ``agents``: what TMA copies and ``wgmma`` multiplies beside the
    threads, which is not a part of ``rows``; ``barriers``: the phases of mbarriers and named barriers. ``blocks`` of
    ``grid_blocks`` ran; in a large grid these are the first, middle and last ones. ``registers``, ``spill_bytes``: per
    thread, None without a compiler. ``shared_bytes``, ``threads``: per block.
    """

    name: str
    arch: str
    rows: tuple[AccessRow, ...]
    sizes: dict[str, int]
    blocks: int
    grid_blocks: int
    threads: int
    shared_bytes: int
    registers: int | None
    spill_bytes: int | None
    occupancy: Occupancy | None
    agents: tuple[AgentWork, ...] = ()
    barriers: tuple[BarrierPhases, ...] = ()

    @property
    def loaded_bytes(self) -> int:
        """What TMA loads; what several blocks receive counts once."""
        return sum(a.bytes for a in self.agents if a.what == "load")

    @property
    def stored_bytes(self) -> int:
        """What TMA stores."""
        return sum(a.bytes for a in self.agents if a.what == "store")

    @property
    def flops(self) -> int:
        """The operations of products of warpgroups; a multiply-add counts two."""
        return sum(a.flops for a in self.agents)

    @property
    def lines(self) -> tuple[AccessRow, ...]:
        """The lines of the table: rows of one Python line that do the same are taken together."""
        out: dict[tuple[object, ...], AccessRow] = {}
        for r in self.rows:
            key = (r.where, r.op, r.buffer, r.atom, r.vector_bytes, r.where == "" and r.text)
            if (o := out.get(key)) is None:
                out[key] = r
                continue
            sums = ("requests", "lanes", "bytes", "wavefronts", "conflicts", "sectors", "ideal_sectors")
            limits = tuple(dict.fromkeys((*o.limits, *r.limits)))
            added = {name: getattr(o, name) + getattr(r, name) for name in sums}
            out[key] = replace(o, ways=max(o.ways, r.ways), limits=limits, **added)
        return tuple(out.values())

    @property
    def conflicts(self) -> int:
        """Bank conflicts of all accesses together: wavefronts beyond the least possible number."""
        return sum(r.conflicts for r in self.rows)

    @property
    def narrow(self) -> tuple[AccessRow, ...]:
        """Those of ``lines`` that take less than 16 bytes a thread at once; their ``limits`` say why."""
        return tuple(r for r in self.lines if r.vector_bytes < 16)

    def _head(self) -> list[str]:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        registers = "registers unknown" if self.registers is None else f"{self.registers} registers"
        if self.spill_bytes:
            registers += f", {self.spill_bytes} bytes spilled"
        return [
            f"{self.name} on {self.arch}" + (f" with {sizes}" if sizes else ""),
            f"{self.threads} threads, {registers}, {self.shared_bytes} bytes of shared memory",
            str(self.occupancy) if self.occupancy is not None else "occupancy unknown",
            f"{self.blocks} of {self.grid_blocks} blocks ran",
            *self._agents_head(),
        ]

    def _agents_head(self) -> list[str]:
        if not self.agents:
            return []
        text = f"TMA loads {self.loaded_bytes} bytes and stores {self.stored_bytes}"
        if shared := sum(a.bytes for a in self.agents if a.what == "load" and a.blocks > 1):
            text += f"; several blocks receive {shared} of the loaded ones, which count once"
        if self.flops and self.loaded_bytes:
            text += f"; products have {self.flops} flops, {self.flops / self.loaded_bytes:.0f} for each byte loaded"
        return [text]

    def _agents_table(self) -> list[tuple[str, ...]]:
        out: dict[tuple[str, ...], list[int]] = {}
        for a in self.agents:
            key = (a.where, a.what, f"{a.source} -> {a.target}", a.atom, str(a.blocks) if a.blocks > 1 else "")
            sums = out.setdefault(key, [0, 0, 0])
            for i, n in enumerate((a.count, a.bytes, a.flops)):
                sums[i] += n
        return [(*key[:4], str(n), str(b), str(f) if f else "", key[4]) for key, (n, b, f) in out.items()]

    def _barriers_table(self) -> list[tuple[str, ...]]:
        kind = {True: "named barrier", False: "mbarrier"}
        return [(b.name, kind[b.named], str(b.stages), str(b.arrivals), str(b.phases)) for b in self.barriers]

    def _table(self) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = []
        for r in self.lines:
            if r.memory == "SH":
                conflicts = f"{r.conflicts}" + (f" ({r.ways}-way)" if r.ways > 1 else "")
                figures = (conflicts, "")
            else:
                figures = ("", f"{r.sectors} of {r.ideal_sectors}")
            narrow = "narrow: " + ", ".join(dict.fromkeys(x.what for x in r.limits)) if r.limits else ""
            out.append((r.where, r.op, r.buffer, r.atom, str(r.vector_bytes), str(r.requests), *figures, narrow))
        return out

    def __repr__(self) -> str:
        ran = f"{self.blocks} of {self.grid_blocks} blocks"
        return f"<Report of {self.name} for {self.arch}: {len(self.rows)} accesses, {ran}>"

    def __str__(self) -> str:
        tables = [(_COLUMNS, self._table()), (_AGENT_COLUMNS, self._agents_table())]
        tables.append((_BARRIER_COLUMNS, self._barriers_table()))
        parts = [_aligned([head, *rows]) for head, rows in tables if rows or (head is _COLUMNS and not self.agents)]
        return "\n".join(["\n".join(self._head()), *("\n" + p for p in parts)])

    def why_narrow(self) -> str:
        """For every access of less than 16 bytes a thread: what limits it, in words."""
        out = []
        for r in self.narrow:
            out.append(f"{r.where}: {r.op} of {r.buffer}, {r.vector_bytes} bytes a thread")
            out += [f"  {x.what}: {x.text}" for x in r.limits] or ["  nothing does: use a wider atom"]
        return "\n".join(out)

    def _repr_html_(self) -> str:
        cells = "".join(f"<th>{escape(c)}</th>" for c in _COLUMNS)
        agents = "".join(_html(head, table) for head, table in (
            (_AGENT_COLUMNS, self._agents_table()), (_BARRIER_COLUMNS, self._barriers_table())) if table)  # fmt: skip
        rows = []
        for r, row in zip(self.lines, self._table(), strict=True):
            bad = r.efficiency < 1
            title = escape("\n".join([r.text, *(x.text for x in r.limits)]), quote=True)
            style = ' style="background:#fde8e8"' if bad else ""
            rows.append(f'<tr title="{title}"{style}>' + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>")
        head = "<br>".join(escape(line) for line in self._head())
        return f"<div>{head}<table><tr>{cells}</tr>{''.join(rows)}</table>{agents}</div>"


def _aligned(table: list[tuple[str, ...]]) -> str:
    width = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, width, strict=True)).rstrip() for row in table)


def _html(head: tuple[str, ...], table: list[tuple[str, ...]]) -> str:
    lines = [f"<tr>{''.join(f'<{tag}>{escape(c)}</{tag}>' for c in row)}</tr>"
             for tag, row in (("th", head), *(("td", row) for row in table))]  # fmt: skip
    return f"<table>{''.join(lines)}</table>"


def _row(access: _core.Access) -> AccessRow:
    return AccessRow(**{f.name: getattr(access, f.name) for f in fields(AccessRow)})


def report(
    kernel: Recorded, args: tuple[object, ...], arch: str | None, all_blocks: bool, sizes: dict[str, int]
) -> Report:
    """Counts what every memory access costs, without a GPU. The compiler counts registers where NVRTC is found.

    ``args``: a call, which gives sizes and integers. ``sizes``: values of the kernel's symbols; with both, ``args``
    only give the sizes that ``sizes`` leave open. ``all_blocks``: all blocks of a large grid run. Raises
    SimulationError SIM_ARGUMENT for sizes that the symbols' facts exclude, and the simulator's errors if the data of a
    call decide addresses; VerifyError and SelectError as lowering does.
    """
    check_sizes(sizes)
    program = kernel.lowered(arch)
    call = () if sizes else args
    if args:
        sizes = {**_core.argument_sizes(program, args), **sizes}
    found = _core.report(program, sizes, all_blocks, call)
    registers = spill = None
    try:
        binary = kernel.compile(program.arch)
        registers, spill = binary.registers, binary.spill_bytes
    except CompileError:
        pass
    return Report(
        kernel.name,
        program.arch,
        tuple(_row(r) for r in found.rows),
        found.sizes,
        found.blocks,
        found.grid_blocks,
        program.block_threads,
        program.shared_bytes,
        registers,
        spill,
        occupancy(program.arch, program.block_threads, program.shared_bytes, registers),
        found.agents,
        found.barriers,
    )
