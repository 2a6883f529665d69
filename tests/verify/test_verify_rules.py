"""Every rule has a kernel that breaks it; the message is part of the interface."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

import graphene as gr
from graphene import _core

HERE = Path(__file__).name
CASES: list[tuple[Callable[[], gr.Kernel], str]] = []


def breaks(expected: str) -> Callable[[Callable[[], gr.Kernel]], Callable[[], gr.Kernel]]:
    """The kernel must be refused with exactly this text; FILE:N stands for a line of this file."""

    def add(build: Callable[[], gr.Kernel]) -> Callable[[], gr.Kernel]:
        CASES.append((build, dedent(expected).strip("\n")))
        return build

    return add


def message(kernel: gr.Kernel, arch: str = "sm_80") -> str:
    with pytest.raises(gr.GrapheneError) as caught:
        _core.lower(kernel.ir, arch)
    return re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(caught.value))


def private(name: str, shape: object = (), dtype: object = gr.fp32) -> gr.Tensor:
    return gr.alloc(name, list(shape) if isinstance(shape, tuple) else shape, dtype, gr.RF)


@breaks("""
    a grid is at most 65535 blocks along its second and third dimension   [VERIFY_GRID]
        #2:[1,70000:1,1].block
      got: 70000 along dimension 1
      fix: put the largest dimension first
""")
def too_many_rows_of_blocks() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [1], gr.fp32)
        gr.blocks(1, 70000)
        gr.threads(1)
        gr.init(private("r"), 0)
        r = private("s")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
    a grid is at most 2147483647 blocks along its first dimension   [VERIFY_GRID]
        #2:[2147483648].block
      got: 2147483648 along dimension 0
      fix: give each block more to do
""")
def too_many_blocks() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [1], gr.fp32)
        gr.blocks(2**31)
        gr.threads(1)
        r = private("s")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


def exchange(mode: str, arg: object, lanes: int = 32) -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        th = gr.threads(32)
        (t,) = th.indices()
        r = private("r", (), gr.fp32)
        gr.init(r, 0)
        gr.shfl(r, r, mode, arg, on=th.tile(lanes)[t // lanes])  # type: ignore[arg-type]
    return kernel


@pytest.mark.parametrize(
    ("mode", "arg", "lanes", "fits"),
    [
        *((m, a, 32, 0 <= a < 32) for m in ("idx", "bfly", "up", "down") for a in (-1, 0, 31, 32, 2**40)),
        ("bfly", 4, 8, True),
        ("bfly", 8, 8, False),
        ("up", 8, 8, False),
        ("idx", 8, 8, True),
        ("idx", None, 32, False),
    ],
)
def test_exchanges_stay_inside_of_their_group(mode: str, arg: int | None, lanes: int, fits: bool) -> None:
    """The instruction takes the low five bits of the lane: another lane than was named."""
    if fits:
        _core.lower(exchange(mode, arg, lanes).ir, "sm_80")
        return
    with pytest.raises(gr.GrapheneError) as e:
        _core.lower(exchange(mode, arg, lanes).ir, "sm_80")
    assert e.value.code in ("VERIFY_SHFL_LANE", "ATOM_ATTR")


@breaks("""
    FILE:N: an exchange with a lane that the group does not have   [VERIFY_SHFL_LANE]
        %3:[].fp32.RF <- Shfl<<<#1:[1].block, #5:[32].thread>>>(%3:[].fp32.RF, arg=40, mode="bfly")
      want: arg from 0 to 31
      got: 40
""")
def a_lane_past_the_warp() -> gr.Kernel:
    return exchange("bfly", 40)


@breaks("""
    FILE:N: an exchange with a lane that the group does not have   [VERIFY_SHFL_LANE]
        %3:[].fp32.RF <- Shfl<<<#1:[1].block, [].thread>>>(%3:[].fp32.RF, arg=1, mode="up")
      want: arg from 0 to 0
      got: 1
      fix: say which threads exchange: on=, a warp of 32
""")
def an_exchange_that_names_no_warp() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(32)
        r = private("r", (), gr.fp32)
        gr.init(r, 0)
        gr.shfl(r, r, "up", 1)
    return kernel


@breaks("""
    a size that no argument tells   [VERIFY_SYMBOL]
      kernel: k
      symbol: n
      want: an argument with n (or a multiple of it, plus a constant) as a size or stride
      fix: declare an argument with this size, or pass it as gr.param
""")
def a_size_that_no_argument_tells() -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [1], gr.fp32)
        gr.blocks(n)
        gr.threads(1)
        r = private("r")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
    FILE:N: an output that nothing writes   [VERIFY_OUTPUT]
        %1:[1].fp32.GL
      output: x
      fix: write it in a leaf, or declare it as gr.input
""")
def an_output_that_nothing_writes() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.output("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
    return kernel


@breaks("""
    FILE:N: an input is written   [VERIFY_READ_ONLY]
        %5:[].fp32.GL <- Move<<<#2:[1].block, [].thread>>>(%4:[].fp32.RF)
      input: x
      fix: declare it with gr.inout or gr.output
""")
def a_written_input() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = private("r")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
    FILE:N: a generic Spec needs a decomposition   [VERIFY_OPERANDS]
        %1:[1].fp32.GL <- Spec<<<#2:[1].block, [].thread>>>()
      fix: enter it with `with`, or use a built-in kind for a leaf
""")
def a_generic_spec_as_a_leaf() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.inout("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        gr.spec(x, [])
    return kernel


@breaks("""
    FILE:N: shapes that do not multiply   [VERIFY_MATMUL]
        %3:[4,2:2,1].fp32.GL <- MatMul<<<#4:[1].block, [].thread>>>(%1:[4,8:8,1].fp32.GL, %2:[2,8:8,1].fp32.GL)
      want: [M,N] += [M,K] @ [K,N]
      got: [4,2] += [4,8] @ [2,8]
      fix: pass %2 as .T
""")
def matrices_that_do_not_multiply() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4, 8], gr.fp32), gr.input("b", [2, 8], gr.fp32)
        c = gr.inout("c", [4, 2], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        with gr.matmul(c, a, b):
            gr.matmul(c[0, 0], a[0, 0], b[0, 0])
    return kernel


@breaks("""
    FILE:N: a Move between different shapes   [VERIFY_MOVE_SHAPE]
        %2:[8,4:4,1].fp32.GL <- Move<<<#3:[1].block, [].thread>>>(%1:[4,8:8,1].fp32.GL)
      want: [8,4]
      got: [4,8]
      fix: pass %1 as .T
""")
def a_move_between_shapes() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4, 8], gr.fp32), gr.output("b", [8, 4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = private("r")
        with gr.move(b, a):
            gr.move(r, a[0, 0])
            gr.move(b[0, 0], r)
    return kernel


@breaks("""
    FILE:N: a Move between types of different sizes   [VERIFY_MOVE_DTYPE]
        %5:[].fp16.RF <- Move<<<#3:[1].block, [].thread>>>(%7:[].fp32.GL)
      destination: fp16, 16 bits
      source: fp32, 32 bits
      fix: a Move preserves bits: convert in registers (gr.load(source, dtype)), or assign: destination[...] = r
""")
def a_move_that_would_convert() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4], gr.fp32), gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r, s = private("r", (), gr.fp16), private("s")
        gr.move(r, a[0])
        gr.init(s, 0)
        gr.move(b[0], s)
    return kernel


@breaks("""
    FILE:N: shapes that do not broadcast   [VERIFY_POINTWISE]
        %6:[4].fp32.RF <- BinaryPointwise<+><<<#2:[1].block, [].thread>>>(%4:[4].fp32.RF, %5:[3].fp32.RF)
      want: inputs that broadcast to [4]
      got: [4], [3]
""")
def operands_that_do_not_broadcast() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, y, z = private("x", (4,)), private("y", (3,)), private("z", (4,))
        with gr.binary("add", z, x, y):
            for i in range(4):
                gr.binary("add", z[i], x[i], y[min(i, 2)])
        gr.move(b[0], z[0])
    return kernel


@breaks("""
    FILE:N: an axis that the input does not have   [VERIFY_REDUCTION]
        %5:[].fp32.RF <- Reduction<+><<<#2:[1].block, [].thread>>>(%4:[4].fp32.RF, axis=1)
      want: 0 to 0
      got: 1
""")
def an_axis_that_does_not_exist() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, z = private("x", (4,)), private("z")
        with gr.reduce("add", z, x, axis=1):
            gr.binary("add", z, x[0], x[1])
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: a result of the wrong shape   [VERIFY_REDUCTION]
        %5:[8].fp32.RF <- Reduction<+><<<#2:[1].block, [].thread>>>(%4:[4,8:8,1].fp32.RF, axis=1)
      want: [4] or [4,1]
      got: [8]
""")
def a_reduction_of_the_wrong_shape() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, z = private("x", (4, 8)), private("z", (8,))
        with gr.reduce("add", z, x, axis=1):
            gr.binary("add", z[0], x[0, 0], x[0, 1])
        gr.move(b[0], z[0])
    return kernel


@breaks("""
    FILE:N: a Shfl exchanges registers   [VERIFY_SHFL]
        %5:[].fp32.RF <- Shfl<<<#2:[1].block, [].thread>>>(%6:[].fp32.SH, arg=1, mode="bfly")
      fix: load elements of memory into registers first, or exchange them by shared memory and a barrier
""")
def an_exchange_through_memory() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(32)
        s, z = gr.alloc("s", [1], gr.fp32, gr.SH), private("z")
        gr.shfl(z, s[0], "bfly", 1)
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: threads that are only a part of those that get here   [VERIFY_SUBSET]
        barrier(#6)
      group: #6:[32].thread
      fix: put it inside `with gr.only(group):`
""")
def a_subset_outside_of_only() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        z = private("z")
        gr.init(z, 0)
        gr.barrier(on=warps[0])
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: a barrier that not all of its threads reach   [VERIFY_BARRIER_DIVERGENT]
        barrier()
      barrier: of the whole block
      inside: if(@t < 32)  at FILE:N
      fix: move it out of the branch, or name the threads: gr.barrier(on=group)
""")
def a_barrier_in_a_branch() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = (threads := gr.threads(64)).indices()
        z = private("z")
        gr.init(z, 0)
        with gr.if_(t < 32):
            gr.barrier()
            gr.barrier(on=threads.tile(32)[t // 32])
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: a barrier that not all of its threads reach   [VERIFY_BARRIER_DIVERGENT]
        barrier()
      barrier: of the whole block
      inside: for(i=0; i < @t; i += 1)  at FILE:N
      fix: move it out of the branch, or name the threads: gr.barrier(on=group)
""")
def a_barrier_in_a_loop_of_threads() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        z = private("z")
        gr.init(z, 0)
        with gr.loop("i", t):
            gr.barrier()
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: threads that work together must get here together   [VERIFY_COLLECTIVE_DIVERGENT]
        %13:[2,2:4,2].[1,2:4,1].fp16.RF <- Move<<<#2:[1].block, #14:[32].thread>>>(%9:[1,8:16,1].fp16.SH)
      group: #14:[32].thread
      inside: if(@lane < 16)  at FILE:N
      fix: move it out of the branch, or branch on something that is the same in the whole group
""")
def a_collective_in_a_branch() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(64)
        w, lane = (warps := threads.tile(32)).indices()
        s = gr.alloc("s", [16, 16], gr.fp16, gr.SH)
        r, z = private("r", (2, 4), gr.fp16), private("z")
        gr.init(z, 0)
        row = s.tile([1, 8])[lane // 2, lane % 2]
        with gr.only(warps[0]):  # whole warps: fine
            gr.move(r.tile([1, 2]), row, on=warps[w])
        with gr.if_(lane < 16):
            gr.move(r.tile([1, 2]), row, on=warps[w])
        gr.move(b[0], z)
    return kernel


@breaks("""
    FILE:N: exit_if must be the same for the whole block   [VERIFY_EXIT]
        exit_if(@t < 3)
      condition: @t < 3
      fix: use gr.if_ around the rest for a part of the threads
""")
def an_exit_of_some_threads() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        z = private("z")
        gr.init(z, 0)
        gr.exit_if(t < 3)
        gr.move(b[0], z)
    return kernel


def of_stream(place: str) -> gr.Kernel:
    """A kernel that waits for those before it at some place."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [64], gr.fp32), gr.output("y", [64], gr.fp32)
        blocks, threads = gr.blocks(1), gr.threads(64)
        (t,) = threads.indices()
        r = private("r")
        if place == "in a branch":
            with gr.if_(t < 64 * x.shape[0]), gr.if_(t < 3):
                gr.wait_kernels()
        if place == "in a loop":
            with gr.loop("i", 2):
                gr.wait_kernels()
        if place == "behind an exit":
            gr.exit_if(blocks.indices()[0] > 0)
        if place == "behind a load":
            gr.move(r, x[t])
        if place == "behind a store":
            gr.init(r, 0)
            gr.move(y[t], r)
        if place == "in a spec":
            with gr.spec([y], [x], on=(blocks, threads)):
                gr.init(r, 0)
                gr.wait_kernels()
                gr.move(r, x[t])
        elif not place.startswith("in a"):
            gr.wait_kernels()
        gr.move(r, x[t])
        gr.start_kernels()
        gr.move(y[t], r)
    return kernel


@breaks("""
    FILE:N: not every thread waits for the kernels before this one   [VERIFY_WAIT]
        wait_kernels()
      within: if(@t < 3) at FILE:N
      fix: let gr.wait_kernels() follow gr.blocks() and gr.threads()
""")
def a_wait_for_kernels_by_some_threads() -> gr.Kernel:
    return of_stream("in a branch")


@breaks("""
    FILE:N: the kernels before this one are waited for too late   [VERIFY_WAIT]
        wait_kernels()
      before it: %5:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.GL) at FILE:N
      fix: let gr.wait_kernels() follow gr.blocks() and gr.threads()
""")
def a_wait_for_kernels_behind_a_load() -> gr.Kernel:
    return of_stream("behind a load")


@pytest.mark.parametrize("place", ["behind an exit", "behind a store", "in a loop"])
def test_a_wait_for_kernels_comes_first_and_in_every_thread(place: str) -> None:
    assert "[VERIFY_WAIT]" in message(of_stream(place))


@pytest.mark.parametrize("place", ["first", "in a spec"])
def test_a_wait_for_kernels_stands_before_all_accesses(place: str) -> None:
    _core.lower(of_stream(place).ir, "sm_90a")


@breaks("""
    the kernel declares no blocks   [VERIFY_LAUNCH]
      kernel: k
      fix: call gr.blocks(...) in the kernel
""")
def text_without_a_launch() -> gr.Kernel:
    return gr.parse('kernel "k" format=1\n')


@breaks("""
    FILE:N: an operation that Shfl does not have   [VERIFY_OPERATION]
        %1:[].fp32.RF <- Shfl<<<#2:[1].block, #3:[32].thread>>>(%1:[].fp32.RF, arg=1, mode="around")
      want: idx, up, down, bfly
      got: around
""")
def operation_that_does_not_exist() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        r = private("r")
        gr.blocks(1)
        gr.shfl(r, r, "around", 1, on=gr.threads(32))
    return kernel


@pytest.mark.parametrize(("build", "expected"), CASES, ids=[b.__name__ for b, _ in CASES])
def test_message(build: Callable[[], gr.Kernel], expected: str) -> None:
    assert message(build()) == expected


def test_every_problem_is_reported_at_once() -> None:
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [4], gr.fp32)
        gr.output("y", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r, h = private("r"), private("h", (), gr.fp16)
        gr.move(h, x[0])
        gr.move(x[1], r)
    with pytest.raises(gr.VerifyError) as caught:
        _core.verify(kernel.ir)
    codes = [d["code"] for d in caught.value.diagnostics]
    assert codes == ["VERIFY_OUTPUT", "VERIFY_MOVE_DTYPE", "VERIFY_READ_ONLY"]
    assert all(d["file"] == __file__ for d in caught.value.diagnostics)


def test_the_rules_have_names_and_docs() -> None:
    rules = _core.verify_rules()
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.doc.endswith(".") for rule in rules)


def test_a_part_of_the_threads_is_reported_once_with_what_decomposes_it() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        threads = gr.threads(64)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 1.0)
        gr.allreduce("add", r, on=threads.tile(32)[0])
    with pytest.raises(gr.VerifyError) as e:
        kernel.cuda_source("sm_80")
    assert [d["code"] for d in e.value.diagnostics] == ["VERIFY_SUBSET"]
