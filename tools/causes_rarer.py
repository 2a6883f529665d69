"""As causes.py: errors that are met more rarely, of texts, pictures, barriers, instructions of one's own and plans."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from causes import begin
from causes_running import doubled

import graphene as gr
from graphene.arrange import choose
from graphene.check import CheckResult


def sym_size(right: bool) -> None:
    """An index that grows in a Python loop has no end; registers hold what changes."""
    at = gr.sym("n") + 1
    for i in range(5 if right else 10_000):
        at = gr.max(at, at // (i + 2) + gr.sym("m") * i)


def layout_limit(right: bool) -> None:
    """A shape is nested a few levels deep."""
    shape: Any = 4
    for _ in range(3 if right else 100_000):
        shape = (shape,)
    gr.Layout(shape)


def layout_picture(right: bool) -> None:
    """A picture has plain integers."""
    gr.svg(gr.Layout((8 if right else gr.sym("m"), 4)))


def thread_not_injective(right: bool) -> None:
    """With a stride of 0 all 32 threads are one, of which no thread knows its own number."""
    with gr.Kernel("k"):
        gr.threads(32).reshape(0, gr.Layout(32, 1 if right else 0)).indices()


def tensor_rank(right: bool) -> None:
    """A matrix has two dimensions to swap, a row of it has one."""
    with gr.Kernel("k"):
        x = gr.input("x", [4, 8], gr.fp32)
        assert (x if right else x[0, :]).T.shape == (8, 4)


def ir_number(right: bool) -> None:
    """A kernel's text has numbers that tensors, threads and loops can have."""
    text = str(doubled())
    gr.parse(text if right else text.replace("[8].thread", "[8000000000000000000000].thread"))


def ir_depth(right: bool) -> None:
    """Blocks of statements are nested up to 400 deep: a loop spares most of them."""

    def branch(depth: int, t: Any) -> None:
        with gr.if_(t < 30):
            if depth > 1:
                branch(depth - 1, t)

    with gr.Kernel("k"):
        branch(3 if right else 401, begin()[2])


def ir_duplicate(right: bool) -> None:
    """A text defines each name once."""
    lines = str(doubled()).splitlines()
    own = next(i for i, line in enumerate(lines) if "<- Allocate" in line or ".RF" in line)
    gr.parse("\n".join(lines if right else [*lines[: own + 1], lines[own], *lines[own + 1 :]]))


def ir_type_mismatch(right: bool) -> None:
    """A view has the type of what it is a view of."""
    text = str(doubled())
    gr.parse(text if right else text.replace(".fp32.GL", ".fp16.GL", 1))


def atom_tv(right: bool) -> None:
    """Between them, an instruction's threads hold each element of a tile."""
    operand = {"pattern": "[2].fp32.RF", "tile": "e2", "tv": "1:0;2:1"}
    gr.define_atom(
        name=f"docs.negate_two_{right}", kind="UnaryPointwise", arch="sm_70+", attrs={"op": ["neg"]},
        out=[{"name": "d", "access": "write", **operand, "tv": "1:0;2:1" if right else "1:0;2:0"}],
        in_=[{"name": "s", **operand}], ptx="neg.f32 $d[0], $s[0]; neg.f32 $d[1], $s[1];", is_default=False,
        doc="Negates two.", source="this page",
    )  # fmt: skip


def collective_fragment(right: bool) -> None:
    """Registers have no addresses: a Python loop unrolls, so that each of its rounds names other ones."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        a = gr.fragment("a", [32, 16], gr.fp16, gr.atom("mma.m16n8k16.f32.f16").a, on=gr.threads(32))
        s = gr.alloc("s", [32, 16], gr.fp16, gr.SH)
        for i in range(2) if right else gr.loop("i", 2):
            gr.move(a.tile([16, None])[i, 0], s.tile([16, None])[i, 0], atom="ldmatrix.x4")
    kernel.cuda_source("sm_80")


def plan_limit(right: bool) -> None:
    """Of twelve choices that all depend on each other, a table would have millions of entries."""
    names = range(3 if right else 12)
    pairs = [((i, j), lambda a, b: a ^ b) for i in names for j in range(i)]
    choose(dict.fromkeys(names, range(4)), pairs)


def plan_pin(right: bool) -> None:
    """A decision is pinned to one of its values."""
    choose({"tile": [64, 128]}, [(("tile",), lambda t: t)], pin={"tile": 64 if right else 96})


def plan_none(right: bool) -> None:
    """Some combination of values has a cost that is not infinite."""
    choose({"tile": [64, 128]}, [(("tile",), lambda t: t if right else np.inf)])


def plan_graph(right: bool) -> None:
    """A cost is a function of decisions that there are."""
    choose({"tile": [64, 128]}, [(("tile" if right else "warps",), lambda t: t)])


def verify_barrier(right: bool) -> None:
    """A barrier in shared memory is declared once, before the loop that uses it."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
        for _ in range(1) if right else gr.loop("i", 3):
            gr.mbarrier("full", 1, arrivals=1)
    kernel.cuda_source("sm_90a")


def verify_cluster(right: bool) -> None:
    """A barrier of blocks is one of the whole own cluster."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [4], gr.fp32)
        blocks = gr.blocks(4, cluster=2)
        c, r = blocks.indices()
        gr.threads(1)
        y[2 * c + r] = gr.let("one", 1, gr.fp32)
        gr.barrier(on=blocks[c] if right else blocks[c][r])
    kernel.cuda_source("sm_90a")


def verify_launch(right: bool) -> None:
    """A kernel says how many blocks it has, and a text of one, too."""
    text = str(doubled()).splitlines()
    gr.parse("\n".join(text if right else text[:1])).cuda_source("sm_80")


def verify_registers(right: bool) -> None:
    """A role's registers are a multiple of 8."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warpgroups = gr.threads(256).tile(128)
        with gr.only(warpgroups[0]):
            gr.setmaxnreg(40 if right else 100)
        with gr.only(warpgroups[1]):
            gr.setmaxnreg(40)
    kernel.cuda_source("sm_90a")


def verify_subset(right: bool) -> None:
    """The barrier of one warp stands where only this warp comes."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        with gr.only(warps[0]) if right else gr.only(warps):
            gr.barrier(warps[0])
    kernel.cuda_source("sm_80")


def verify_wait(right: bool) -> None:
    """Nothing is read before the kernels before this one have ended."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        if right:
            gr.wait_kernels()
        r = gr.load(x[t])
        if not right:
            gr.wait_kernels()
        y[t] = r
    kernel.cuda_source("sm_90a")


def lower_over(right: bool) -> None:
    """Memory that is used again has the size of what lies there, and behind it lies something else."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
        a, b = (gr.alloc(n, [64], gr.fp32, gr.SH) for n in "ab")
        gr.alloc("both", [128], gr.fp32, gr.SH, over=[a, b])
        gr.alloc("again", [64 if right else 65], gr.fp32, gr.SH, over=[a])
    kernel.cuda_source("sm_80")


def lower_barriers(right: bool) -> None:
    """A block has 16 barriers, its own among them; a barrier within a warp needs none."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        pairs = gr.threads(1024).tile(32 if right else 64)
        for i in range(16):
            with gr.only(pairs[i]):
                gr.barrier(pairs[i])
    kernel.cuda_source("sm_80")


def lower_box(right: bool) -> None:
    """What one copy brings to shared memory lies there as it lies in the tensor: rows side by side."""
    with gr.Kernel("k") as kernel:
        x = gr.input("x", gr.row_major(64, 64), gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", gr.Layout((8, 64), (64 if right else 72, 1)), gr.fp16, gr.SH)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x.tile([8, 64])[0, 0], atom="tma.load", done=full[0])
        full[0].wait(0)
    kernel.cuda_source("sm_90a")


def lower_form(right: bool) -> None:
    """A product of a warpgroup reads operands as a swizzle or a cut into core matrices lays them out."""
    wgmma, swizzle = gr.atom("wgmma.m64n64k16.f32.f16"), {"swizzle": gr.swizzle(16, gr.fp16)} if right else {}
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        threads = gr.threads(128)
        a, b = (gr.alloc(n, [64, 16], gr.fp16, gr.SH, **swizzle) for n in "ab")
        sums = gr.fragment("sums", [64, 64], gr.fp32, wgmma.c, on=threads)
        gr.fence(wgmma)
        gr.matmul(sums, a, b.T, on=threads, atom=wgmma, accumulate=False)
        gr.commit(wgmma)
        gr.wait(wgmma, pending=0)
    kernel.cuda_source("sm_90a")


def lower_partial(right: bool) -> None:
    """Lanes that act together are all there, or none: tiles divide what they cut."""
    own = {"tile": "l32", "tv": "32:1;1:0"}
    gr.define_atom(
        name=f"docs.together_{right}", arch="sm_70+", threads="[32]", converge=32, guard="branch",
        out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write", **own}],
        in_=[{"name": "s", "pattern": "[].fp32.SH", **own}], ptx="ld.shared.b32 $d, [$s];", is_default=False,
        doc="Loads together.", source="this page",
    )  # fmt: skip
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s, r = gr.alloc("s", [32 if right else 20], gr.fp32, gr.SH), gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, s.tile([32])[0][t], on=warp, atom=f"docs.together_{right}")
        y[t] = r
    kernel.cuda_source("sm_80")


def ambiguous_atom(right: bool) -> None:
    """Two instructions of one's own do the same; a spec names the one that it wants."""
    for name in ("one", "two"):
        operand = {"pattern": "[2].fp32.RF", "tile": "e2"}
        if f"docs.negate/{name}" not in gr.atoms():
            gr.define_atom(
                name=f"docs.negate/{name}", kind="UnaryPointwise", arch="sm_70+", attrs={"op": ["neg"]},
                out=[{"name": "d", "access": "write", **operand}], in_=[{"name": "s", **operand}],
                ptx="neg.f32 $d[0], $s[0]; neg.f32 $d[1], $s[1];", is_default=False, doc="Two.", source="this page",
            )  # fmt: skip
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.let("r", 1, gr.fp32, [2])
        gr.unary("neg", r, r, atom="docs.negate/one" if right else "docs.negate")
        y[t] = r[0] + gr.load(x[t])
    kernel.cuda_source("sm_80")


def sim_unsupported(right: bool) -> None:
    """The simulator runs an operation on one's own registers; here a thread would also have its neighbours'."""
    two = {"pattern": "[2].fp32.RF", "tile": "e32", "tv": "32:1;2:0"}
    if "docs.negate_together" not in gr.atoms():
        gr.define_atom(
            name="docs.negate_together", kind="UnaryPointwise", arch="sm_70+", threads="[32]", converge=32,
            attrs={"op": ["neg"]}, out=[{"name": "d", "access": "write", **two}], in_=[{"name": "s", **two}],
            ptx="neg.f32 $d[0], $s[0];", is_default=False, doc="Negates.", source="this page",
        )  # fmt: skip
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.let("r", 1, gr.fp32, [2])
        if right:
            gr.unary("neg", r[0], r[0])
        else:
            gr.unary("neg", r, r, on=warp, atom="docs.negate_together")
        y[t] = r[0]
    kernel(np.zeros(32, np.float32))


def verify_pointwise(right: bool) -> None:
    """The inputs of an operation broadcast to its output."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r, s = gr.let("r", 1, gr.fp32, [4]), gr.let("s", 1, gr.fp32, [4 if right else 3])
        if right:
            r += s
        else:
            gr.binary("add", r, r, s)
        y[t] = r[0] + gr.load(x[t])
    kernel.cuda_source("sm_80")


def sim_phase(right: bool) -> None:
    """All threads wait until a barrier in shared memory is there, before one of them arrives at it."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin(64)
        full = gr.mbarrier("full", 1, arrivals=64)
        if right:
            gr.barrier()
        full[0].arrive()
        full[0].wait(0)
        y[t] = gr.load(x[t])
    kernel.simulate(np.ones(64, np.float32), np.zeros(64, np.float32), arch="sm_90a")


def check_frame(right: bool) -> CheckResult:
    """A decomposition writes what its spec names among its outputs."""
    with gr.Kernel("k") as kernel:
        x, y, other = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32), gr.inout("other", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        with gr.move(y, x, on=warp):
            r = gr.load(x[t])
            y[t] = r
            if not right:
                other[t] = r
        other[t] = gr.load(x[t])
    return kernel.check()


def check_promise(right: bool) -> CheckResult:
    """A decomposition does what its spec says: here it copies."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        with gr.move(y, x, on=warp):
            y[t] = gr.load(x[t if right else 31 - t])
    return kernel.check()


def check_distribution(right: bool) -> CheckResult:
    """From one time to the next, the same thread's registers have the same elements of a tile."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [2, 32], gr.fp32), gr.output("y", [2, 32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.alloc("r", [1], gr.fp32, gr.RF)
        for i in gr.loop("i", 2):
            with gr.move(r, x[i, :], on=warp):
                gr.move(r[0], x[i, t if right else t * (1 - i) + (31 - t) * i])
            y[i, t] = r[0]
    return kernel.check()


def compile_source(right: bool) -> None:
    """The compiler reads the text of an instruction of one's own."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.ptx("neg.f32 %0, %1;" if right else "negate.f32 %0, %1;", r, gr.load(x[t]), means=lambda a: -a)
        y[t] = r
    kernel.compile("sm_80")


def compile_arch(right: bool) -> None:
    """NVRTC compiles for NVIDIA's GPUs; for others there is source code."""
    doubled().compile("sm_80" if right else "gfx90a")


def cache_archive(right: bool) -> None:
    """An archive holds kernels of the architectures that the cache has."""
    doubled().compile("sm_80")
    with tempfile.TemporaryDirectory() as folder:
        gr.export_cache(Path(folder) / "kernels.zip", ["sm_80" if right else "sm_72"])


def precompiled(right: bool) -> None:
    """A folder of precompiled kernels has a table of contents."""
    with tempfile.TemporaryDirectory() as folder:
        if right:
            gr.precompile({"doubled": doubled()}, folder, archs=["sm_80"])
        gr.load_precompiled(folder)


def precompiled_arch(right: bool) -> None:
    """A kernel was precompiled for the architectures that were named then."""
    with tempfile.TemporaryDirectory() as folder:
        gr.precompile({"doubled": doubled()}, folder, archs=["sm_80"])
        gr.load_precompiled(folder)["doubled"].binary("sm_80" if right else "sm_120")


def tune_no_candidate(right: bool) -> None:
    """The choice of tiles knows the devices since sm_70."""
    gr.select.of_arch("sm_90a" if right else "sm_35")


def launch_stream(right: bool) -> None:
    """The simulator runs what NumPy holds, without a stream of a GPU."""
    x = np.ones(8, np.float32)
    doubled()(x, np.zeros_like(x), stream=None if right else 7)


def sim_in_flight(right: bool) -> None:
    """Sums that a warpgroup's product writes are read after a wait for it."""
    wgmma, swizzle = gr.atom("wgmma.m64n64k16.f32.f16"), gr.swizzle(16, gr.fp16)
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [64, 64], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(128)
        a, b = (gr.alloc(n, [64, 16], gr.fp16, gr.SH, swizzle=swizzle) for n in "ab")
        (t,) = threads.indices()
        for s in (a, b):
            for i in range(8):
                s[t // 2, t % 2 * 8 + i] = 1
        gr.fence("async.shared")
        gr.barrier()
        sums = gr.fragment("sums", [64, 64], gr.fp32, wgmma.c, on=threads)
        gr.fence(wgmma)
        gr.matmul(sums, a, b.T, on=threads, atom=wgmma, accumulate=False)
        gr.commit(wgmma)
        if right:
            gr.wait(wgmma, pending=0)
        gr.move(y, sums, atom="st.global.v2.b32")
        if not right:
            gr.wait(wgmma, pending=0)
    kernel.simulate(np.zeros((64, 64), np.float32), arch="sm_90a")


def sim_transaction(right: bool) -> None:
    """A phase expects as many bytes as its copies bring."""
    with gr.Kernel("k") as kernel:
        x = gr.input("x", gr.row_major(8, 64), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(8, 64), gr.fp16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [8, 64], gr.fp16, gr.SH, align_bytes=128)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s if right else s[0:4, :]])
            gr.move(s, x, atom="tma.load", done=full[0])
        full[0].wait(0)
        for i in range(8):
            for j in range(2):
                y[i, j * 32 + t] = gr.load(s[i, j * 32 + t])
    kernel.simulate(np.ones((8, 64), np.float16), np.zeros((8, 64), np.float16), arch="sm_90a")


def check_operand_changed(right: bool) -> CheckResult:
    """While a warp multiplies, no other warp writes its operands."""
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [2, 32], gr.fp32), gr.inout("b", [2, 32], gr.fp32)
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        w, t = warps.indices()
        s = gr.alloc("s", [2, 32], gr.fp32, gr.SH)
        s[w, t] = gr.load(a[w, t])
        gr.barrier()
        with gr.matmul(b[w, :], s[w, :], a[w, :], on=warps[w]):
            r = gr.load(s[w, t])
            gr.barrier()
            if not right:
                s[1 - w, t] = 2
            gr.barrier()
            gr.load(s[w, t])
            gr.matmul(b[w, t], r, a[w, t])
    return kernel.check()


def lower_swizzle(right: bool) -> None:
    """An instruction of one's own takes neighbours that a swizzle leaves side by side."""
    if "docs.sum_of_pair" not in gr.atoms():
        gr.define_atom(
            name="docs.sum_of_pair", kind="Reduction", arch="sm_75+",
            out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write", "via": "lvalue"}],
            in_=[{"name": "a", "pattern": "[2:1].fp32.SH", "tile": "e2", "via": "lvalue"}],
            attrs={"op": ["add"], "axis": ["*const"]}, cxx="$d = $a[0] + $a[1];", is_default=False,
            doc="Adds two neighbours.", source="this page",
        )  # fmt: skip
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        s = gr.alloc("s", [64], gr.fp32, gr.SH, swizzle=gr.Swizzle(3, 1 if right else 0, 3))
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        s[t] = gr.load(x[t])
        s[32 + t] = gr.load(x[t])
        gr.barrier()
        gr.reduce("add", r, s.tile([2])[t], axis=0, atom="docs.sum_of_pair")
        y[t] = r
    kernel.cuda_source("sm_80")


def launch_null(right: bool) -> None:
    """An array with elements has an address."""

    class Foreign:
        def __init__(self, address: int) -> None:
            self.__array_interface__ = {"shape": (8,), "typestr": "<f4", "data": (address, False), "version": 3}

    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    doubled()(Foreign(x.ctypes.data if right else 0), y)
