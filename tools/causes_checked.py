"""As causes.py: errors of statements and kernels that are found when a kernel is recorded, verified or lowered."""

from __future__ import annotations

from causes import begin

import graphene as gr


def kernel_closed(right: bool) -> None:
    """A kernel is recorded once."""
    kernel = gr.Kernel("k")
    with kernel:
        begin()
    with gr.Kernel("again") if right else kernel:
        begin()


def kernel_unrecorded(right: bool) -> None:
    """A kernel is used when its block is left."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
        if not right:
            kernel.cuda_source("sm_80")
    kernel.cuda_source("sm_80")


def kernel_open(right: bool) -> None:
    """A loop is entered by `with`, which also leaves it."""
    with gr.Kernel("k"):
        x, y, t = begin()
        if right:
            with gr.loop("i", 3):
                y[t] = gr.load(x[t])
        else:
            gr.loop("i", 3).__enter__()


def spec_enter(right: bool) -> None:
    """A spec is decomposed where it is made."""
    with gr.Kernel("k"):
        x, _, t = begin()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        if right:
            with gr.spec(r, [x]):
                gr.move(r, x[t])
        else:
            late = gr.spec(r, [x])
            gr.move(r, x[t])
            with late:
                pass


def kernel_argument(right: bool) -> None:
    """A meaning is a function."""
    gr.Kernel("k", means=(lambda x: x) if right else "x")  # type: ignore[arg-type]


def ring_stages(right: bool) -> None:
    """A ring has stages."""
    with gr.Kernel("k"):
        begin()
        gr.ring("q", 3 if right else 0)


def verify_grid(right: bool) -> None:
    """The second and the third dimension of a grid are short."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [70000], gr.fp32)
        row = (gr.blocks(70000) if right else gr.blocks(1, 70000)).indices()[-1]
        gr.threads(1)
        y[row] = gr.let("r", 1, gr.fp32)
    kernel.cuda_source("sm_80")


def verify_symbol(right: bool) -> None:
    """A launch reads sizes off the arguments."""
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [n if right else 64], gr.fp32)
        (b,) = gr.blocks(n).indices()
        gr.threads(1)
        y[b] = gr.let("r", 1, gr.fp32)
    kernel.cuda_source("sm_80")


def verify_exit(right: bool) -> None:
    """A block leaves a kernel as a whole; some of its threads are kept from a part by gr.if_."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        if right:
            with gr.if_(t < 16):
                y[t] = gr.load(x[t])
        else:
            gr.exit_if(t < 16)
            y[t] = gr.load(x[t])
    kernel.cuda_source("sm_80")


def verify_operands(right: bool) -> None:
    """A spec of no kind is decomposed, or names an instruction of one's own."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        if right:
            with gr.spec(y, [x]):
                y[t] = r
        else:
            gr.spec(y, [x])
    kernel.cuda_source("sm_80")


def verify_reduction(right: bool) -> None:
    """A reduction is over a mode that the input has."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r, total = gr.alloc("r", [4], gr.fp32, gr.RF), gr.alloc("total", [], gr.fp32, gr.RF)
        r[:] = gr.load(x[t])
        with gr.reduce("add", total, r, axis=0 if right else 1):
            total[:] = r[0] + r[1] + r[2] + r[3]
        y[t] = total
    kernel.cuda_source("sm_80")


def verify_shfl(right: bool) -> None:
    """Lanes exchange registers."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r, other = gr.load(x[t]), gr.alloc("other", [], gr.fp32, gr.RF)
        gr.shfl(other, r if right else x[t], "bfly", 1, on=warp)
        y[t] = other
    kernel.cuda_source("sm_80")


def atom_register(right: bool) -> None:
    """Registers have no addresses: what thread takes which one is not known when code is made."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.alloc("r", [4], gr.fp32, gr.RF)
        r[:] = gr.load(x[t])
        y[t] = r[0 if right else t % 4]
    kernel.cuda_source("sm_80")


def collective_shape(right: bool) -> None:
    """A copy's sides have one shape."""
    with gr.Kernel("k"):
        gr.blocks(1)
        threads = gr.threads(32)
        x, s = gr.input("x", [32, 16], gr.fp32), gr.alloc("s", [32, 16 if right else 8], gr.fp32, gr.SH)
        gr.move(s, x, on=threads, atom=("ld.global.b32", "st.shared.b32"))


def collective_atom(right: bool) -> None:
    """A copy through registers names a load and a store."""
    with gr.Kernel("k"):
        gr.blocks(1)
        threads = gr.threads(32)
        x, s = gr.input("x", [32, 16], gr.fp32), gr.alloc("s", [32, 16], gr.fp32, gr.SH)
        gr.move(s, x, on=threads, atom=("ld.global.b32", "st.shared.b32") if right else "st.shared.b32")


def collective_vector(right: bool) -> None:
    """A tile has at least as many bytes as are copied at once."""
    with gr.Kernel("k"):
        gr.blocks(1)
        threads = gr.threads(32)
        n = 64 if right else 2
        x, s = gr.input("x", [n], gr.fp32, align_bytes=16), gr.alloc("s", [n], gr.fp32, gr.SH)
        gr.move(s, x, on=threads, atom="cp.async.cg.16")


def lower_vector_edge(right: bool) -> None:
    """A size that is a multiple of a vector's length cuts no vector."""
    n = gr.sym("n", multiple_of=4 if right else 2)
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [n], gr.fp32, align_bytes=16), gr.output("y", [n], gr.fp32, align_bytes=16)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 128)).indices(), gr.threads(32).indices()
        gr.move(y.tile([128])[b].tile([4])[t], gr.load(x.tile([128])[b].tile([4])[t]))
    kernel.cuda_source("sm_80")


def lower_unroll_size(right: bool) -> None:
    """Long loops are loops in the code, too."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        with gr.loop("i", 100000, unroll=1 if right else 0):
            r += 1
        y[t] = r
    kernel.cuda_source("sm_80")


def atom_definition(right: bool) -> None:
    """The definition of an instruction says what it does, and where that is written."""
    gr.define_atom(
        name="own.copy", kind="Move", arch="sm_70+", is_default=False,
        out=[{"name": "d", "pattern": "[].b32.RF", "access": "write"}], in_=[{"name": "s", "pattern": "[].b32.RF"}],
        ptx="mov.b32 $d, $s;", doc="Copies a register.", source="PTX ISA: mov" if right else "",
    )  # fmt: skip


def atom_text(right: bool) -> None:
    """An instruction's text names all of its operands."""
    gr.define_atom(
        name="own.other_copy", kind="Move", arch="sm_70+", is_default=False,
        out=[{"name": "d", "pattern": "[].b32.RF", "access": "write"}], in_=[{"name": "s", "pattern": "[].b32.RF"}],
        ptx="mov.b32 $d, $s;" if right else "mov.b32 $d, 0;", doc="Copies a register.", source="PTX ISA: mov",
    )  # fmt: skip


def atom_syntax(right: bool) -> None:
    """A pattern is sizes, an element type and memories."""
    gr.define_atom(
        name="own.third_copy", kind="Move", arch="sm_70+", is_default=False,
        out=[{"name": "d", "pattern": "[].b32.RF" if right else "b32.RF", "access": "write"}],
        in_=[{"name": "s", "pattern": "[].b32.RF"}], ptx="mov.b32 $d, $s;", doc="Copies a register.",
        source="PTX ISA: mov",
    )  # fmt: skip


def atom_overlap(right: bool) -> None:
    """A second instruction for a leaf is reached by its name."""
    gr.define_atom(
        name="own.move", kind="Move", arch="sm_70+", is_default=not right,
        out=[{"name": "d", "pattern": "[].b32.RF", "access": "write"}], in_=[{"name": "s", "pattern": "[].b32.RF"}],
        ptx="mov.b32 $d, $s;", doc="Copies a register.", source="PTX ISA: mov",
    )  # fmt: skip


def atom_attr(right: bool) -> None:
    """A move has the attributes of its kind."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t], **({"cache": "cg"} if right else {"caching": "cg"}))
    kernel.cuda_source("sm_80")


def ir_json_value(right: bool) -> None:
    """JSON of a kernel is what to_json gives."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
    gr.Kernel.from_json(kernel.to_json() if right else "[1, 2]")


def ir_format(right: bool) -> None:
    """A format's version is one that this package reads."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
    text = kernel.to_json()
    gr.Kernel.from_json(text if right else text.replace('"graphene_ir":1', '"graphene_ir":99'))
