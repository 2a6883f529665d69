"""Kernels that execute every entry of the registry once, many entries of one signature in each.

The same kernels are compiled for each architecture and, on a GPU, run beside the simulator: equal bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reference import TABLE

import graphene as gr
from graphene import _core

THREADS = 32
PACKED = ("i4", "u4", "fp4e2m1")  # elements that share bytes: a thread has two at least
SHOWN = {4: "u4", 8: "u8", 16: "fp16", 32: "fp32", 64: "fp64"}  # the type that stands for a class of bits
CALLS = {"UnaryPointwise": gr.unary, "BinaryPointwise": gr.binary, "TernaryPointwise": gr.ternary}


@dataclass
class Case:
    """One kernel: `entries` in the order of its outputs; `inputs` and `outputs` are (dtype, values per thread)."""

    name: str
    kernel: gr.Kernel
    entries: list[gr.Atom]
    inputs: list[tuple[str, int]]
    outputs: list[tuple[str, int]]
    small: bool = False  # inputs must be small integers: sums are then exact
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name


def dtype_of(o: gr.AtomOperand) -> str:
    if len(o.dtypes) == 1:
        return o.dtypes[0]
    return SHOWN[getattr(gr, o.dtypes[0]).bits]


def arg(call: Any, name: str, dtype: str, values: int, blocks: int = 1) -> gr.Tensor:
    return call(name, [THREADS * blocks, values], getattr(gr, dtype), align_bytes=16)


def own(t: gr.Tensor, thread: Any, values: int) -> gr.Tensor:
    return t[thread, 0] if values == 1 else t[thread, :]


def registers(name: str, dtype: str, values: int) -> gr.Tensor:
    r = gr.alloc(name, [values], getattr(gr, dtype), gr.RF)
    return r[0] if values == 1 else r


def copy(dst: gr.Tensor, src: gr.Tensor, atom: Any = None) -> None:
    gr.move(dst, src, atom=atom)


def pointwise(atoms: list[gr.Atom], name: str, blocks: int = 1) -> Case:
    first = atoms[0]
    times = 2 if any(dtype_of(o) in PACKED and o.values == 1 for o in first.operands.values()) else 1
    ins = [(dtype_of(o), times * o.values) for n, o in first.operands.items() if n not in first.outputs]
    out = first.operands[first.outputs[0]]
    outs = [(dtype_of(out), times * out.values)] * len(atoms)
    update = out.access == "update"
    with gr.Kernel("conformance") as kernel:
        given = [*ins, *([outs[0]] if update else [])]
        xs = [arg(gr.input, f"x{i}", d, n, blocks) for i, (d, n) in enumerate(given)]
        ys = [arg(gr.output, f"y{i}", d, n, blocks) for i, (d, n) in enumerate(outs)]
        grid, threads = gr.blocks(blocks), gr.threads(THREADS)
        (b,), (t,) = grid.indices(), threads.indices()
        t = t + b * THREADS
        rs = [registers(f"r{i}", d, n) for i, (d, n) in enumerate(ins)]
        for r, x, (_, n) in zip(rs, xs, ins, strict=False):
            copy(r, own(x, t, n))
        for i, atom in enumerate(atoms):
            d, n = outs[i]
            result = registers(f"d{i}", d, n)
            if atom.kind == "MatMul":
                accumulate = "accumulate" not in atom.attrs
                if accumulate:
                    copy(result, own(xs[-1], t, n))
                gr.matmul(result, *rs, atom=atom, accumulate=accumulate)
            else:
                for j in range(times):
                    one = [r[j] if times > 1 else r for r in (result, *rs)]
                    more = {"table": TABLE} if "table" in atom.attrs else {}
                    CALLS[atom.kind](atom.attrs["op"][0], *one, atom=atom, **more)
            copy(own(ys[i], t, n), result)
    return Case(name, kernel, atoms, [*ins, *([outs[0]] if update else [])], outs)


def moves(atom: gr.Atom) -> Case:
    """global -> registers -> (shared -> registers ->) global, the entry at its place among default moves."""
    o, i = atom.operands[atom.outputs[0]], atom.operands["src"]
    dtype, n, way = dtype_of(o), o.values, (o.memories[0], i.memories[0])
    times, n = (2, 2) if dtype in PACKED and n == 1 else (1, n)
    with gr.Kernel("conformance") as kernel:
        x, y = arg(gr.input, "x0", dtype, n), arg(gr.output, "y0", dtype, n)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        r, s = registers("r", dtype, n), registers("s", dtype, n)
        copy(r, own(x, t, n), atom if way == ("RF", "GL") else None)
        if "SH" in way:
            shared = gr.alloc("shared", [THREADS, n], getattr(gr, dtype), gr.SH)
            copy(own(shared, t, n), r, atom if way[0] == "SH" else None)
            gr.barrier()
            copy(s, own(shared, t, n), atom if way[1] == "SH" else None)
        elif way == ("RF", "RF"):
            for j in range(times):
                copy(s[j] if times > 1 else s, r[j] if times > 1 else r, atom)
        else:
            s = r
        copy(own(y, t, n), s, atom if way[0] == "GL" else None)
    return Case(atom.name, kernel, [atom], [(dtype, n)], [(dtype, n)])


def exchanges(atom: gr.Atom) -> Case:
    """Each block of a cluster stores what the other one was given, which comes by the entry through shared memory."""
    o, stores = atom.operands[atom.outputs[0]], atom.operands[atom.outputs[0]].memories == ["DSM"]
    dtype, n = dtype_of(o), o.values
    with gr.Kernel("conformance") as kernel:
        x, y = (arg(call, name, dtype, n, 2) for call, name in ((gr.input, "x0"), (gr.output, "y0")))
        blocks, threads = gr.blocks(2, cluster=2), gr.threads(THREADS)
        (c, rank), (t,) = blocks.indices(), threads.indices()
        r, s = registers("r", dtype, n), registers("s", dtype, n)
        shared = own(gr.alloc("shared", [THREADS, n], getattr(gr, dtype), gr.SH), t, n)
        copy(r, own(x, t + rank * THREADS, n))
        gr.barrier(on=blocks[c])
        copy(shared.of(1 - rank) if stores else shared, r, atom if stores else None)
        gr.barrier(on=blocks[c])
        copy(s, shared if stores else shared.of(1 - rank), None if stores else atom)
        gr.barrier(on=blocks[c])
        copy(own(y, t + (1 - rank) * THREADS, n), s)
    return Case(atom.name, kernel, [atom], [(dtype, n)], [(dtype, n)])


def async_copies(atom: gr.Atom) -> Case:
    """global -> shared by the entry, then as by the other moves."""
    o = atom.operands["dst"]
    dtype, n = dtype_of(o), o.values
    with gr.Kernel("conformance") as kernel:
        x, y = arg(gr.input, "x0", dtype, n), arg(gr.output, "y0", dtype, n)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        shared = gr.alloc("shared", [THREADS, n], getattr(gr, dtype), gr.SH)
        r = registers("r", dtype, n)
        copy(own(shared, t, n), own(x, t, n), atom)
        _core.record_sync("commit", None, atom.name, {})
        _core.record_sync("wait", None, atom.name, {"pending": 0})
        gr.barrier()
        copy(r, own(shared, t, n))
        copy(own(y, t, n), r)
    return Case(atom.name, kernel, [atom], [(dtype, n)], [(dtype, n)])


def reductions(atom: gr.Atom) -> Case:
    """A number of each lane, reduced over the warp; every lane stores the result."""
    dtype, of = dtype_of(atom.operands["d"]), dtype_of(atom.operands["s"])
    with gr.Kernel("conformance") as kernel:
        x, y = arg(gr.input, "x0", of, 1), arg(gr.output, "y0", dtype, 1)
        gr.blocks(1)
        warp = gr.threads(THREADS)
        (t,) = warp.indices()
        r, d = registers("r", of, 1), registers("d", dtype, 1)
        copy(r, own(x, t, 1))
        gr.reduce(atom.attrs["op"][0], d, r, axis=0, on=warp, atom=atom)
        copy(own(y, t, 1), d)
    return Case(atom.name, kernel, [atom], [(of, 1)], [(dtype, 1)])


def updates(atom: gr.Atom, place: gr.Tensor, r: gr.Tensor, scope: str, old: gr.Tensor, expected: Any) -> None:
    """The entry at a place; `old` gets what was there, if the entry gives it."""
    attrs = {"combine": atom.attrs["combine"][0], "atomic": f"relaxed.{scope}"}
    ins = [r, expected()] if "expected" in atom.operands else [r]
    outs = [place, old] if "old" in atom.operands else [place]
    _core.record_spec("Move", outs, ins, attrs, None, atom.name, "")


def atomics(atom: gr.Atom) -> Case:
    """Numbers of each lane, combined with elements of the lane's own; y1 is what was there, if the entry gives it.

    A compare-and-swap expects what is there in even lanes, in odd ones what it would write.
    """
    o = atom.operands["dst"]
    dtype, n = dtype_of(o), o.values
    outputs = [(dtype, n)] * len(atom.outputs)
    with gr.Kernel("conformance") as kernel:
        x, y = arg(gr.input, "x0", dtype, n), arg(gr.inout, "y0", dtype, n)
        y1 = arg(gr.output, "y1", dtype, n) if len(atom.outputs) > 1 else None
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        r, old, s = (registers(name, dtype, n) for name in ("r", "old", "s"))
        copy(r, own(x, t, n))
        copy(s, own(y, t, n))

        def expected() -> gr.Tensor:
            e = registers("e", dtype, n)
            with gr.if_(t % 2 == 0):
                copy(e, s)
            with gr.else_():
                copy(e, r)
            return e

        if o.memories == ["SH"]:
            shared = gr.alloc("shared", [THREADS, n], getattr(gr, dtype), gr.SH)
            copy(own(shared, t, n), s)
            updates(atom, own(shared, t, n), r, "cta", old, expected)
            copy(s, own(shared, t, n))
            copy(own(y, t, n), s)
        else:
            updates(atom, own(y, t, n), r, "cta", old, expected)
        if y1 is not None:
            copy(own(y1, t, n), old)
    return Case(atom.name, kernel, [atom], [(dtype, n)], outputs)


def contended(atom: gr.Atom, blocks: int) -> Case:
    """Numbers of each lane, combined with four rows that all lanes share: those of all blocks, or of one in turn."""
    o = atom.operands["dst"]
    dtype, n = dtype_of(o), o.values
    shared = o.memories == ["SH"]
    scope = "cta" if shared else "gpu"
    with gr.Kernel("contended") as kernel:
        x = arg(gr.input, "x0", dtype, n, blocks)
        y = gr.inout("y0", [4 * (blocks if shared else 1), n], getattr(gr, dtype), align_bytes=16)
        grid, threads = gr.blocks(blocks), gr.threads(THREADS)
        (b,), (t,) = grid.indices(), threads.indices()
        r, s, old = (registers(name, dtype, n) for name in ("r", "s", "old"))
        copy(r, own(x, t + b * THREADS, n))
        if shared:
            rows = gr.alloc("rows", [4, n], getattr(gr, dtype), gr.SH)
            with gr.if_(t < 4):
                copy(s, own(y, t + b * 4, n))
                copy(own(rows, t, n), s)
            gr.barrier()
            updates(atom, own(rows, t % 4, n), r, scope, old, lambda: r)
            gr.barrier()
            with gr.if_(t < 4):
                copy(s, own(rows, t, n))
                copy(own(y, t + b * 4, n), s)
        else:
            updates(atom, own(y, t % 4, n), r, scope, old, lambda: r)
    return Case(atom.name, kernel, [atom], [(dtype, n)], [(dtype, n)])


def inits(atom: gr.Atom) -> Case:
    dtype = dtype_of(atom.operands["dst"])
    n = 2 if dtype in PACKED else 1
    with gr.Kernel("conformance") as kernel:
        y = arg(gr.output, "y0", dtype, n)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        r = registers("r", dtype, n)
        for j in range(n):
            gr.init(r[j] if n > 1 else r, 3, atom=atom)
        copy(own(y, t, n), r)
    return Case(atom.name, kernel, [atom], [], [(dtype, n)])


def shuffles(atom: gr.Atom) -> Case:
    o = atom.operands["d"]
    dtype, n, width = dtype_of(o), o.values, atom.thread_count
    with gr.Kernel("conformance") as kernel:
        x, y = arg(gr.input, "x0", dtype, n), arg(gr.output, "y0", dtype, n)
        gr.blocks(1)
        threads = gr.threads(THREADS)
        (t,) = threads.indices()
        groups = threads.tile(width)
        g, _ = groups.indices()
        r, d = registers("r", dtype, n), registers("d", dtype, n)
        copy(r, own(x, t, n))
        gr.shfl(d, r, mode=atom.attrs["mode"][0], arg=1, on=groups[g], atom=atom)
        copy(own(y, t, n), d)
    return Case(atom.name, kernel, [atom], [(dtype, n)], [(dtype, n)])


def matrix_loads(atom: gr.Atom) -> Case:
    """A whole fragment through shared memory, rows padded so that every matrix has its own banks."""
    bits = int(re.findall(r"\.b(\d+)\.RF", str(atom.operands["dst"].pattern))[0])
    name, dtype = {8: ("m16n8k32.s32.s8", gr.i8), 16: ("m16n8k16.f32.f16", gr.fp16), 32: ("m16n8k8.f32.tf32", gr.fp32)}[
        bits
    ]
    mma, columns, trans = gr.atom(f"mma.{name}"), 256 // bits, ".trans" in atom.name
    with gr.Kernel("conformance") as kernel:
        x = gr.input("x0", gr.row_major(16, columns), dtype, align_bytes=16)
        y = gr.output("y0", gr.row_major(16, columns), dtype, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(THREADS)
        s = gr.alloc("s", gr.Layout((16, columns), (columns * 3 // 2, 1)), dtype, gr.SH)
        gr.move(s, x, on=threads, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
        gr.barrier()
        r = gr.fragment("r", [16, columns], dtype, mma.a, on=threads)
        kn = "/kn" in atom.name
        gr.move(r.T if kn != trans else r, s.T if kn else s, atom=atom.name)
        gr.move(y, r, atom="st.global.b32")
    return Case(atom.name, kernel, [atom], [], [], shapes=[(16, columns), (16, columns)])


def matrix_stores(atom: gr.Atom) -> Case:
    """A fragment, loaded element by element, stored through padded shared memory."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    trans = ".trans" in atom.name
    with gr.Kernel("conformance") as kernel:
        x = gr.input("x0", gr.row_major(16, 16), gr.fp16, align_bytes=16)
        y = gr.output("y0", gr.row_major(16, 16), gr.fp16, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(THREADS)
        s = gr.alloc("s", gr.Layout((16, 16), (24, 1)), gr.fp16, gr.SH)
        r = gr.fragment("r", [16, 16], gr.fp16, mma.a, on=threads)
        gr.move(r, x, atom="ld.global.b16")
        kn = "/kn" in atom.name
        gr.move(s.T if kn else s, r.T if kn != trans else r, atom=atom.name)
        gr.barrier()
        gr.move(y, s, on=threads, atom=("ld.shared.v4.b32", "st.global.v4.b32"))
    return Case(atom.name, kernel, [atom], [], [], shapes=[(16, 16), (16, 16)])


def groups(atom: gr.Atom, threads: gr.ThreadTensor) -> gr.ThreadTensor:
    """The collectives among 32 threads, numbered along two dimensions: tiles of one output."""
    if atom.thread_count == THREADS:
        return threads
    tiled = threads.tile([gr.Layout(atom.threads)])
    return tiled.reshape(0, gr.Layout((2, THREADS // atom.thread_count // 2)))


def matrix_multiplies(atom: gr.Atom, steps: int = 1, scale: int = 1, **attrs: Any) -> Case:
    """C plus `steps` products, every operand loaded element by element; `scale` tiles along each dimension."""
    a_type, b_type, d_type = (dtype_of(atom.operands[o]) for o in "abd")
    extent = dict(zip(atom.operands["a"].axes, atom.operands["a"].extents, strict=True))
    extent |= dict(zip(atom.operands["b"].axes, atom.operands["b"].extents, strict=True))
    accumulate = "accumulate" not in atom.attrs
    split = (1, 1) if atom.thread_count == THREADS else (2, THREADS // atom.thread_count // 2)
    m, n, k = (extent[x] * s for x, s in zip("mnk", (scale * split[0], scale * split[1], 1), strict=True))
    types = [getattr(gr, t) for t in (a_type, b_type, d_type)]
    loads = [f"ld.global.b{t.bits}" for t in types]
    with gr.Kernel("conformance") as kernel:
        a = gr.input("x0", gr.row_major(m, k * steps), types[0])
        b = gr.input("x1", gr.row_major(n, k * steps), types[1])
        c = gr.input("x2", gr.row_major(m, n), types[2])
        y = gr.output("y0", gr.row_major(m, n), types[2])
        gr.blocks(1)
        group = groups(atom, gr.threads(THREADS))
        qm, qn = (0, 0) if split == (1, 1) else group.indices()[0]
        one = group if split == (1, 1) else group[qm, qn]
        ra = gr.fragment("ra", [m // split[0], k], types[0], atom.a, on=one)
        rb = gr.fragment("rb", [n // split[1], k], types[1], atom.b, on=one)
        acc = gr.fragment("acc", [m // split[0], n // split[1]], types[2], atom.c, on=one)
        gr.move(acc, c.tile([m // split[0], n // split[1]])[qm, qn], atom=loads[2])
        for s in range(steps):
            gr.move(ra, a.tile([m // split[0], k])[qm, s], atom=loads[0])
            gr.move(rb, b.tile([n // split[1], k])[qn, s], atom=loads[1])
            gr.matmul(acc, ra, rb.T, atom=atom, accumulate=accumulate, **attrs)
        gr.move(y.tile([m // split[0], n // split[1]])[qm, qn], acc, atom=loads[2].replace("ld", "st"))
    return Case(atom.name, kernel, [atom], [], [], small=True, shapes=[tuple(t.shape) for t in kernel.ir.args])


def of_agents(atom: gr.Atom) -> bool:
    """What works beside the threads, but for `cp.async`: tests/hopper has it."""
    return atom.done in ("group:wgmma", "group:bulk", "mbarrier:bar")


def cases(atoms: list[gr.Atom]) -> Iterator[Case]:
    """Every entry in exactly one case, but for barriers, which the others use."""
    groups: dict[tuple[Any, ...], list[gr.Atom]] = {}
    for atom in atoms:
        if atom.kind == "Sync" or of_agents(atom):
            continue
        if atom.kind == "Init":
            yield inits(atom)
        elif atom.kind == "Shfl":
            yield shuffles(atom)
        elif atom.kind == "Reduction":
            yield reductions(atom)
        elif "combine" in atom.attrs:
            yield atomics(atom)
        elif atom.kind == "Move":
            if atom.done.startswith("group"):
                yield async_copies(atom)
            else:
                store = atom.operands[atom.outputs[0]].memories == ["SH"]
                collective = matrix_stores if store else matrix_loads
                one = exchanges if any(o.memories == ["DSM"] for o in atom.operands.values()) else moves
                yield collective(atom) if atom.thread_count > 1 else one(atom)
        elif atom.thread_count > 1:
            yield matrix_multiplies(atom, steps=2, scale=2)
        else:
            out = atom.operands[atom.outputs[0]]
            key = (atom.kind, atom.arch, out.access, *((dtype_of(o), o.values) for o in atom.operands.values()))
            groups.setdefault(key, []).append(atom)
    for members in groups.values():
        for i in range(0, len(members), 32):
            part = members[i : i + 32]
            yield pointwise(part, f"{part[0].name}...{part[-1].name}")
