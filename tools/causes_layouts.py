"""As causes.py: errors of symbols, layouts, threads, tensors and fragments, where they are declared."""

from __future__ import annotations

import graphene as gr


def sym_overflow(right: bool) -> None:
    """Sizes, strides and what is computed of them fit 64 bits."""
    gr.sym("n", max=2**40) * (2**20 if right else 2**62) * 4


def layout_bounds(right: bool) -> None:
    """Coordinates count from zero."""
    gr.crd2idx((3 if right else 4, 0), gr.Layout((4, 8), (8, 1)).shape, (8, 1))


def layout_compose(right: bool) -> None:
    """The second layout's modes do not carry into each other inside of a mode of the first."""
    gr.composition("(4,3):(3,1)", "(2,2):(1,2)" if right else "(2,2):(3,3)")


def layout_congruent(right: bool) -> None:
    """Each size has its stride."""
    gr.Layout((4, 8), (8, 1) if right else (8, 1, 32))


def layout_coord(right: bool) -> None:
    """A coordinate has a number for each mode."""
    gr.Layout((4, 8), (8, 1))((1, 2) if right else (1, 2, 3))


def layout_injective(right: bool) -> None:
    """An inverse asks of a layout that each offset belongs to one coordinate."""
    gr.left_inverse(gr.Layout((4, 8), (8, 1) if right else (1, 1)))


def layout_size(right: bool) -> None:
    """A size is not negative."""
    gr.Layout(4 if right else -4, 1)


def thread_shape(right: bool) -> None:
    """A block has 1024 threads at most."""
    with gr.Kernel("k"):
        gr.threads(1024 if right else 2048)


def thread_reshape(right: bool) -> None:
    """Threads in another shape are as many."""
    with gr.Kernel("k"):
        gr.threads(32).reshape(0, gr.Layout((4, 8 if right else 4)))


def thread_index(right: bool) -> None:
    """A group of tiled threads is named by one number for each dimension."""
    with gr.Kernel("k"):
        groups = gr.threads(64).tile(32)
        groups[1] if right else groups[2]


def tensor_window(right: bool) -> None:
    """A window of shared memory begins at an index that is known not to be negative."""
    with gr.Kernel("k"):
        gr.alloc("s", [64], gr.fp32, gr.SH).window(gr.sym("n", min=0 if right else -8, max=48), 16)


def fragment_shape(right: bool) -> None:
    """The tile of an instruction divides the fragment."""
    with gr.Kernel("k"):
        gr.fragment("acc", [16, 16 if right else 12], gr.fp32, gr.atom("mma.m16n8k16.f32.f16").c, on=gr.threads(32))


def fragment_group(right: bool) -> None:
    """The instruction's threads are the innermost ones of the group."""
    with gr.Kernel("k"):
        gr.fragment("acc", [16, 8], gr.fp32, gr.atom("mma.m16n8k16.f32.f16").c, on=gr.threads(32 if right else 16))


def inputs_index(right: bool) -> None:
    """A list of arguments is used by one of its members."""
    with gr.Kernel("k"):
        x = gr.inputs("x", 4, [32], gr.fp32)
        (x[1] if right else x).tile([8])


def pointwise_owner(right: bool) -> None:
    """Threads compute with what they hold themselves; gr.move exchanges elements before."""
    with gr.Kernel("k"):
        gr.blocks(1)
        warp, mma = gr.threads(32), gr.atom("mma.m16n8k16.f32.f16")
        a = gr.fragment("a", [16, 8], gr.fp32, mma.c, on=warp)
        b = gr.fragment("b", [16, 8], gr.fp32, mma.c if right else gr.tv("32:4", "4:1"), on=warp)
        a[:] = a + b


def layout_fact(right: bool) -> None:
    """Sizes and strides of an access that is counted are constants."""
    gr.count_access([32 if right else gr.sym("n")], gr.tv("32:1", "1:0"), gr.fp16)


def layout_tv(right: bool) -> None:
    """Threads and values name elements of the tile."""
    gr.count_access([64], gr.tv("32:1", "2:32" if right else "4:32"), gr.fp16)


def tensor_values(right: bool) -> None:
    """Coordinates of elements belong to fragments."""
    with gr.Kernel("k"):
        gr.blocks(1)
        c = gr.fragment("c", [16, 8], gr.fp32, gr.atom("mma.m16n8k16.f32.f16").c, on=gr.threads(32))
        (c if right else gr.input("x", [16, 8], gr.fp32)).coords()


def relayout(right: bool) -> None:
    """A move between fragments converts nothing; an assignment does."""
    with gr.Kernel("k"):
        gr.blocks(1)
        warp, mma = gr.threads(32), gr.atom("mma.m16n8k16.f32.f16")
        a = gr.fragment("a", [16, 16], gr.fp32, mma.c, on=warp)
        b = gr.fragment("b", [16, 16], gr.fp32 if right else gr.fp16, mma.c, on=warp)
        gr.move(a, b)
