"""For error codes: a kernel that causes the error, and what cures it.

Each function has the name of a code. With ``right=False`` it raises that code, with ``right=True`` nothing. The page
docs/errors.md shows them, and tests/test_causes.py runs all of them in one process.
"""

from __future__ import annotations

from typing import Any

import graphene as gr


def begin(threads: int = 32, dtype: gr.DType = gr.fp32) -> tuple[gr.Tensor, gr.Tensor, Any]:
    """One block: x is read, y is written, a number for each thread t."""
    x, y = gr.input("x", [threads], dtype), gr.output("y", [threads], dtype)
    gr.blocks(1)
    return x, y, gr.threads(threads).indices()[0]


def sym_runtime_bool(right: bool) -> None:
    """A size is known at a launch, so that Python cannot choose by it; its facts may decide."""
    n = gr.sym("n", max=64 if right else 2**20)
    if n > 100:
        raise AssertionError


def sym_runtime_int(right: bool) -> None:
    """A Python loop unrolls, which takes a number; gr.loop records a loop."""
    n = gr.sym("n")
    with gr.Kernel("k"):
        begin()
        for _ in gr.loop("i", n) if right else range(n):  # type: ignore[arg-type]
            pass


def sym_facts(right: bool) -> None:
    """No number is at least 8 and at most 4."""
    gr.sym("n", min=4 if right else 8, max=4)


def sym_div_zero(right: bool) -> None:
    """An integer expression is divided by zero."""
    gr.sym("n") // (1 if right else 0)


def layout_parse(right: bool) -> None:
    """A layout's text has a bracket that is not closed."""
    gr.Layout("(4,8):(8,1)" if right else "(4,8:(8,1)")


def layout_swizzle(right: bool) -> None:
    """Rows of 12 numbers of 16 bits are not whole chunks of 16 bytes."""
    gr.swizzle(16 if right else 12, gr.fp16)


def layout_divisibility(right: bool) -> None:
    """Panels have a multiple of 8 rows."""
    gr.panels(16 if right else 12, 64, gr.fp16)


def thread_tile(right: bool) -> None:
    """80 threads are not whole warps."""
    with gr.Kernel("k"):
        gr.threads(96 if right else 80).tile(32)


def tensor_index(right: bool) -> None:
    """The numbers of 32 elements are 0 to 31."""
    with gr.Kernel("k"):
        x, _, _ = begin()
        gr.load(x[31 if right else 32])


def tensor_reshape(right: bool) -> None:
    """A reshape keeps the number of elements."""
    gr.tensor("x", [32], gr.fp32).reshape(0, [4, 8] if right else [4, 9])


def tensor_size(right: bool) -> None:
    """No block has a gigabyte of shared memory."""
    with gr.Kernel("k"):
        gr.alloc("s", [2**10 if right else 2**28], gr.fp32, gr.SH)


def pointwise_shape(right: bool) -> None:
    """As in NumPy, sizes are equal or 1."""
    with gr.Kernel("k"):
        begin()
        r, s = gr.alloc("r", [4], gr.fp32, gr.RF), gr.alloc("s", [4 if right else 3], gr.fp32, gr.RF)
        gr.init(s, 1)
        r[:] = s + 1


def pointwise_type(right: bool) -> None:
    """A number has no type of its own; registers need one."""
    with gr.Kernel("k"):
        begin()
        gr.let("r", 1, gr.fp32 if right else None)


def reduce_fragment(right: bool) -> None:
    """A scan takes one register of each thread."""
    with gr.Kernel("k"):
        gr.blocks(1)
        group, r = gr.threads(32), gr.alloc("r", [2], gr.fp32, gr.RF)
        gr.init(r, 1)
        gr.scan("add", r[0] if right else r, on=group)


def kernel_none(right: bool) -> None:
    """Statements stand within a kernel."""
    if not right:
        gr.barrier()
    with gr.Kernel("k"):
        gr.barrier()


def kernel_nested(right: bool) -> None:
    """One kernel is recorded at a time."""
    with gr.Kernel("first"):
        if not right:
            gr.Kernel("second").__enter__()
    with gr.Kernel("second"):
        pass


def kernel_name(right: bool) -> None:
    """Two arguments have one name."""
    with gr.Kernel("k"):
        for name in ("x", "y" if right else "x"):
            gr.input(name, [32], gr.fp32)


def kernel_launch(right: bool) -> None:
    """The launch is declared once."""
    with gr.Kernel("k"):
        gr.blocks(4)
        if not right:
            gr.blocks(8)


def kernel_scope(right: bool) -> None:
    """A view that is made in a loop is gone behind it."""
    with gr.Kernel("k"):
        x, y, t = begin()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("i", 2):
            element = x[t]
            gr.move(r, element)
        gr.move(r, x[t] if right else element)
        y[t] = r


def kernel_foreign(right: bool) -> None:
    """A tensor belongs to the kernel that declared it."""
    with gr.Kernel("first"):
        other, _, _ = begin()
    with gr.Kernel("second"):
        x, y, t = begin()
        y[t] = gr.load((x if right else other)[t])


def block_not_entered(right: bool) -> None:
    """A branch that is made and never entered records nothing."""
    with gr.Kernel("k"):
        _, _, t = begin()
        branch = gr.if_(t < 3)
        if right:
            with branch:
                pass


def loop_step(right: bool) -> None:
    """A loop counts upwards."""
    with gr.Kernel("k"), gr.loop("i", 8, step=1 if right else 0):
        pass


def loop_break(right: bool) -> None:
    """The body of a recorded loop runs once in Python: to leave it early, write gr.if_ or gr.while_."""
    with gr.Kernel("k"):
        for _ in gr.loop("i", 8):
            if not right:
                break


def else_without_if(right: bool) -> None:
    """An else stands directly behind its if."""
    with gr.Kernel("k"):
        _, _, t = begin()
        with gr.if_(t < 3):
            pass
        if not right:
            gr.barrier()
        with gr.else_():
            pass


def scalar_facts(right: bool) -> None:
    """A scalar keeps the facts that it is declared with."""
    with gr.Kernel("k"):
        s = gr.scalar("s", 0, min=0, max=3)
        s.set(3 if right else 4)


def spec_group(right: bool) -> None:
    """A scan takes whole warps, or 1, 2, 4, 8 or 16 threads of one."""
    with gr.Kernel("k"):
        gr.blocks(1)
        group, r = gr.threads(64 if right else 48), gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 1)
        gr.scan("add", r, on=group)


def ir_parse(right: bool) -> None:
    """The text of a kernel has a grammar (ir_text.md)."""
    gr.parse('kernel "k" format=1\n' + ("" if right else "%1 := 3\n"))


def ir_json_syntax(right: bool) -> None:
    """JSON that is cut off."""
    with gr.Kernel("k") as kernel:
        pass
    text = kernel.to_json()
    gr.Kernel.from_json(text if right else text[:-1])


def no_atom(right: bool) -> None:
    """No instruction moves from memory to memory in one thread: go through a register."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        gr.move(y[t], gr.load(x[t]) if right else x[t])
    kernel.cuda_source("sm_80")


def atom_unknown(right: bool) -> None:
    """There is no instruction of that name."""
    gr.atom("ldmatrix.x4" if right else "ldmatrix.x5")


def atom_fact(right: bool) -> None:
    """Four numbers are loaded at once from an address that is a multiple of 16 bytes: rows of 33 do not begin there."""
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [8, 36 if right else 33], gr.fp32, align_bytes=16)
        y = gr.output("y", [8, 4], gr.fp32, align_bytes=16)
        (b,), (t,) = gr.blocks(8).indices(), gr.threads(1).indices()
        gr.move(y[b, :].tile([4])[t], gr.load(x[b, 0:4]))
    kernel.cuda_source("sm_80")


def arch_unknown(right: bool) -> None:
    """No GPU is called so."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        y[t] = gr.load(x[t])
    kernel.cuda_source("sm_90a" if right else "sm_12")


def constant_range(right: bool) -> None:
    """A u8 holds 0 to 255."""
    with gr.Kernel("k") as kernel:
        _, y, t = begin(dtype=gr.u8)
        y[t] = 255 if right else 256
    kernel.cuda_source("sm_80")


def verify_output(right: bool) -> None:
    """Something must write an output."""
    with gr.Kernel("k") as kernel:
        _, y, t = begin()
        if right:
            y[t] = 1
    kernel.cuda_source("sm_80")


def verify_read_only(right: bool) -> None:
    """An input is read alone; gr.inout is for both."""
    with gr.Kernel("k") as kernel:
        x = (gr.inout if right else gr.input)("x", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        x[t] = 1
    kernel.cuda_source("sm_80")


def verify_move_dtype(right: bool) -> None:
    """A Move copies bits: convert in registers."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin(dtype=gr.fp16)
        r = gr.load(x[t], dtype=gr.fp32)
        if not right:
            gr.move(r, x[t])
        y[t] = r
    kernel.cuda_source("sm_80")


def verify_move_shape(right: bool) -> None:
    """Both sides of a Move have one shape."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.alloc("r", [] if right else [2], gr.fp32, gr.RF)
        gr.move(r, x[t])
        y[t] = r if right else r[0]
    kernel.cuda_source("sm_80")


def verify_barrier_divergent(right: bool) -> None:
    """All threads of the block come to its barrier."""
    with gr.Kernel("k") as kernel:
        _, y, t = begin(64)
        with gr.if_(t < 16):
            if not right:
                gr.barrier()
        gr.barrier()
        y[t] = 1
    kernel.cuda_source("sm_80")


def verify_operation(right: bool) -> None:
    """Operations have the names of docs/atoms.md."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        gr.binary("add" if right else "plus", r, r, r)
        y[t] = r
    kernel.cuda_source("sm_80")


def lower_register_index(right: bool) -> None:
    """Registers have no addresses: a loop whose counter names them is unrolled."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.alloc("r", [4], gr.fp32, gr.RF)
        with gr.loop("i", 4, unroll=0 if right else 1) as i:
            gr.move(r[i], x[t])
        y[t] = r[0]
    kernel.cuda_source("sm_80")


def lower_unroll(right: bool) -> None:
    """Only a loop with constant bounds is unrolled fully."""
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        z = gr.inout("z", [n], gr.fp32)
        gr.blocks(1)
        with gr.loop("i", n, unroll=1 if right else 0) as i:
            z[i] = 1
    kernel.cuda_source("sm_80")


def lower_shared_limit(right: bool) -> None:
    """A block of sm_80 has at most 163 KiB of shared memory."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        s = gr.alloc("s", [32, 1000 if right else 1400], gr.fp32, gr.SH)
        s[t, 0] = gr.load(x[t])
        y[t] = gr.load(s[t, 0])
    kernel.cuda_source("sm_80")


def ir_undefined(right: bool) -> None:
    """The text names a value that it has not defined."""
    gr.parse(
        'kernel "k" format=1\n%1:[32:1].fp32.GL = inout "x"\n%2:[].fp32.GL = %' + ("1" if right else "3") + "[0]\n"
    )


def tensor_tile(right: bool) -> None:
    """A tile has as many modes as the tensor."""
    gr.tensor("x", [32, 32], gr.fp32).tile([8, 8] if right else [8, 8, 8])


def tensor_type(right: bool) -> None:
    """A size is positive."""
    gr.tensor("x", [32 if right else 0], gr.fp32)


def layout_rank(right: bool) -> None:
    """The layout has two modes, number 0 and 1."""
    _ = gr.Layout((4, 8))[1 if right else 2]


def verify_matmul(right: bool) -> None:
    """A product of numbers takes one of each operand."""
    with gr.Kernel("k") as kernel:
        _, y, t = begin()
        a, b, total = (gr.let(name, 1, gr.fp32, shape) for name, shape in (("a", []), ("b", [4]), ("total", [])))
        gr.matmul(total, a, b[0] if right else b)
        y[t] = total
    kernel.cuda_source("sm_80")


def verify_shfl_lane(right: bool) -> None:
    """A warp has the lanes 0 to 31."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.i32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.let("r", t, gr.i32)
        gr.shfl(r, r, "idx", 31 if right else 32, on=warp)
        y[t] = r
    kernel.cuda_source("sm_80")


def verify_collective_divergent(right: bool) -> None:
    """All lanes of a warp exchange registers, or none."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.i32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.let("r", t, gr.i32)
        with gr.if_(t < (32 if right else 16)):
            gr.shfl(r, r, "bfly", 1, on=warp)
        y[t] = r
    kernel.cuda_source("sm_80")
