"""The tracing builder: what it records, what it refuses, and where it says the problem is."""

import time

import pytest

import graphene as gr
from graphene import _core

SIZE = gr.sym("SIZE")


def simple_gemm(m=1024, n=1024, k=1024):
    with gr.Kernel("simple_gemm") as kernel:
        A = gr.input("A", gr.col_major(m, k), gr.fp16)
        B = gr.input("B", gr.col_major(k, n), gr.fp16)
        C = gr.inout("C", gr.col_major(m, n), gr.fp16)
        blocks, threads = gr.blocks(m // 128, n // 128), gr.threads(16, 16)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            bm, bn = blocks.indices()
            tm, tn = threads.indices()
            with gr.loop("k", k) as kk, gr.loop("m", 8) as mm, gr.loop("n", 8) as nn:
                a = A.tile([128, None])[bm, 0].tile([8, None])[tm, 0][mm, kk]
                b = B.tile([None, 128])[0, bn].tile([None, 8])[0, tn][kk, nn]
                c = C.tile([128, 128])[bm, bn].tile([8, 8])[tm, tn][mm, nn]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    return kernel, (a, b, c)


def test_figure_8_offsets_are_the_papers():
    _, (a, b, c) = simple_gemm()
    bm, bn = (
        _core.sym_var(n, "coord", definition=_core.sym_var(d, "block", max=7), max=7)
        for n, d in (("bm", "bid.x"), ("bn", "bid.y"))
    )
    tid = _core.sym_var("tid", "thread", max=255)
    tm = _core.sym_var("tm", "coord", definition=tid % 16, max=15)
    tn = _core.sym_var("tn", "coord", definition=tid // 16, max=15)
    k, m, n = (_core.sym_var(x, "loop", max=e - 1) for x, e in (("k", 1024), ("m", 8), ("n", 8)))
    paper = {
        a: (bm * 128) + ((tm * 8) + (m + (k * 1024))),
        b: (bn * 131072) + ((tn * 8192) + (k + (n * 1024))),
        c: ((bm * 128) + (bn * 131072)) + (((tm * 8) + (tn * 8192)) + (m + (n * 1024))),
    }
    for t, want in paper.items():
        assert str(t.offset) == str(want)
        assert _core.sym_identical(t.offset, want)
        assert t.bounds == []


def test_recording_is_cheap():
    simple_gemm()
    best = min(_timed(simple_gemm) for _ in range(5))
    assert best < 0.01


def _timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def test_names_come_from_the_assignment():
    with gr.Kernel("k"):
        blocks, threads = gr.blocks(4, 4), gr.threads(128)
        warps = threads.tile(32).reshape(0, gr.Layout((2, 2)))
        (bm, bn), ((wm, wn), lane) = blocks.indices(), warps.indices()
        assert [str(x) for x in (bm, bn, wm, wn, lane)] == ["@bm", "@bn", "@wm", "@wn", "@lane"]
        (row,) = threads.indices()
        assert str(row) == "@row"
        (
            first,
            second,
        ) = blocks.indices()
        assert (str(first), str(second)) == ("@first", "@second")
        pair = blocks.indices()
        assert [str(x) for x in pair] == ["@pair0", "@pair1"]
        bm, _ = blocks.indices()
        assert (str(bm), str(_)) == ("@bm_1", "@b1")
        assert [str(x) for x in blocks.indices(names=["x", "y"])] == ["@x", "@y"]
        assert [str(x) for x in [*blocks.indices()]] == ["@b0", "@b1_1"]


def test_names_are_unique():
    M = gr.sym("M")
    with gr.Kernel("k"):
        gr.input("A", gr.row_major(M, 8), gr.fp16)
        for name, want in (("k", "k"), ("k", "k_1"), ("M", "M_1"), ("tid", "tid_1"), ("k_1", "k_1_1")):
            with gr.loop(name, 4) as k:
                assert str(k) == want


def test_a_view_is_recorded_where_it_is_made():
    with gr.Kernel("k"):
        A = gr.input("A", [8, 8], gr.fp16)
        with gr.loop("i", 8) as i:
            row = A[i, :]
            assert str(row) == "%2:[8].fp16.GL"
    assert str(A[0, :]) == "[8].fp16.GL"  # closed: a free-standing view


# Default groups.


class C16x8:
    tv = gr.Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    tile = "m16,n8"
    label = "mma.c"


def test_loops_know_their_bounds():
    n = gr.sym("n", min=1, max=100)
    with gr.Kernel("k"):
        gr.input("A", gr.row_major(n), gr.fp16)
        for k in gr.loop("k", n, start=4, step=4):
            assert _core.sym_bounds(k) == (4, 96)
            assert _core.sym_divisor(k) == 4
            assert (k < n) is True
            assert (k >= 4) is True


def test_for_and_with_record_the_same():
    kernels = []
    for form in ("for", "with"):
        with gr.Kernel("k") as kernel:
            A = gr.input("A", [8], gr.fp16)
            r = gr.alloc("r", [], gr.fp16, gr.RF)
            if form == "for":
                for i in gr.loop("i", 8):
                    gr.move(r, A[i])
            else:
                with gr.loop("i", 8) as i:
                    gr.move(r, A[i])
            gr.move(r, A[0])
        kernels.append(kernel)
    assert kernels[0] == kernels[1]
    assert str(kernels[0]) == str(kernels[1])


def test_arguments_and_symbols_are_in_order():
    M, N, K = gr.sym("M N K")
    with gr.Kernel("k") as kernel:
        gr.input("A", gr.row_major(M, K), gr.fp16)
        gr.output("C", gr.Layout((M, N), (N, 1)), gr.fp32)
    assert [t.name for t in kernel.ir.args] == ["A", "C"]
    assert [str(s) for s in kernel.ir.symbols] == ["M", "K", "N"]
    assert str(kernel.ir.grid) == "#3:[1].block"
    assert str(kernel.ir.block) == "#4:[1].thread"


def raises(code, make):
    """The error's text, without the file:line it must start with."""
    with pytest.raises(gr.GrapheneError) as e:
        make()
    assert e.value.code == code, str(e.value)
    d = e.value.diagnostics[0]
    assert d["file"] == __file__, str(e.value)
    return str(e.value).split(": ", 1)[1]


def test_errors_say_where():
    with gr.Kernel("k"):
        A = gr.input("A", [8, 8], gr.fp16)
        with pytest.raises(gr.LayoutError) as e:
            A[8, 0]
    here = test_errors_say_where.__code__.co_firstlineno + 4
    assert str(e.value) == (
        f"test_builder.py:{here}: an index past the end   [TENSOR_INDEX]\n"
        "  tensor: [8,8:8,1].fp16.GL\n  mode 0: want 0 to 7\n  got: 8\n"
        "  fix: index one that there is, or leave out the threads that have none: gr.if_(...)"
    )


def test_outside_of_a_kernel():
    for call, make in {
        "gr.input()": lambda: gr.input("A", [8], gr.fp16),
        "gr.alloc()": lambda: gr.alloc("A", [8], gr.fp16, gr.SH),
        "gr.loop()": lambda: gr.loop("k", 8).__enter__(),
        "a spec": lambda: gr.move(gr.tensor("A", [8], gr.fp16), gr.tensor("B", [8], gr.fp16)),
        "barrier": gr.barrier,
    }.items():
        with pytest.raises(gr.VerifyError) as e:
            make()
        assert str(e.value) == (
            f"{call} needs an open kernel   [KERNEL_NONE]\n  fix: call it inside `with gr.Kernel(name) as kernel:`"
        )


def test_a_kernel_inside_a_kernel():
    def make():
        with gr.Kernel("outer"):
            gr.Kernel("inner").__enter__()

    assert raises("KERNEL_NESTED", make) == (
        "a kernel inside a kernel   [KERNEL_NESTED]\n  open: outer\n  got: inner\n"
        "  fix: build one kernel after the other"
    )
    with gr.Kernel("after"):  # the failed ones are not open any more
        pass


def test_a_failed_kernel_is_no_kernel():
    kernel = gr.Kernel("k")
    with pytest.raises(ZeroDivisionError), kernel:
        raise ZeroDivisionError
    with pytest.raises(gr.VerifyError, match="KERNEL_UNRECORDED"):
        kernel.ir  # noqa: B018
    with gr.Kernel("k"):
        pass


def test_break_is_an_error():
    def make():
        with gr.Kernel("k"):
            for _ in gr.loop("k", 8):
                break
            gr.barrier()

    assert raises("LOOP_BREAK", make) == (
        "the loop k was left before its end   [LOOP_BREAK]\n"
        "  a recorded loop runs its body once, to record it; break and return have no meaning there\n"
        "  fix: use gr.if_() inside the loop, or a bound of the loop"
    )

    def at_the_end():
        with gr.Kernel("k"):
            for _ in gr.loop("k", 8):
                break

    assert raises("LOOP_BREAK", at_the_end).startswith("the loop k was left before its end")


def test_a_python_if_on_a_runtime_value():
    def branch(k):
        if k > 3:
            pass

    with gr.Kernel("k"):
        with gr.loop("k", 8) as k, pytest.raises(gr.LayoutError) as e:
            branch(k)
    assert e.value.code == "SYM_RUNTIME_BOOL"


def test_scopes():
    def view():
        with gr.Kernel("k"):
            A = gr.input("A", [8, 8], gr.fp16)
            r = gr.alloc("r", [8], gr.fp16, gr.RF)
            with gr.loop("i", 8) as i:
                row = A[i, :]
            gr.move(r, row)

    assert raises("KERNEL_SCOPE", view) == (
        "a tensor used outside of the block that made it   [KERNEL_SCOPE]\n  input: %3:[8].fp16.GL of A\n"
        "  fix: make it before the block is entered"
    )

    def counter():
        with gr.Kernel("k"):
            A = gr.input("A", [8, 8], gr.fp16)
            with gr.loop("i", 8) as i:
                pass
            A[i, :]

    assert raises("KERNEL_SCOPE", counter) == (
        "the counter i is used outside of the block that made it   [KERNEL_SCOPE]\n  in: i"
    )

    def branch():
        with gr.Kernel("k"):
            A = gr.input("A", [8, 8], gr.fp16)
            n = gr.param("n", gr.i32)
            with gr.if_(n > 3):
                row = A[1, :]
            with gr.else_():
                row[0]

    assert raises("KERNEL_SCOPE", branch).startswith("a tensor used outside of the block that made it")


def test_expressions_stay_in_their_block():
    """`x = x + 1` in a block makes a new expression, whose value behind the block would not depend on the block."""

    def rebound(block, inside=False, again=False):
        with gr.Kernel("k") as kernel:
            x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            value, kept = gr.load(x[t]), gr.let("kept", 0.0, gr.fp32)
            with block(t):
                value = value + 1
                if inside:
                    kept[...] = value
                    with gr.if_(t < 4):
                        kept[...] = value * 2  # a block inside of it
                if again:
                    value = gr.let("again", value)
            y[t] = kept if inside else value * 2 if again else gr.exp(value) * 2
        return kernel

    for block in (lambda t: gr.if_(t < 8), lambda t: gr.loop("i", 4), lambda t: gr.while_(lambda: t < 0, bound=2)):
        assert raises("KERNEL_SCOPE", lambda block=block: rebound(block)) == (
            "an expression used outside of the block that made it   [KERNEL_SCOPE]\n  got: add(x_value, 1)\n"
            '  fix: keep it in registers: r = gr.let("r", ...) before the block, r[...] = expression inside of it'
        )
        assert rebound(block, inside=True).lowered("sm_80") is not None
        assert raises("KERNEL_SCOPE", lambda block=block: rebound(block, again=True)).startswith(
            "a tensor used outside"
        )
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        twice = gr.load(x[t]) * 2
        with gr.if_(t >= 0):
            y[t] = twice
    assert kernel.check().ok


def test_other_kernels():
    with gr.Kernel("one"):
        A = gr.input("A", [8], gr.fp16)
        threads = gr.threads(32)
        (t,) = threads.indices()

    def tensor():
        with gr.Kernel("two"):
            r = gr.alloc("r", [8], gr.fp16, gr.RF)
            gr.move(r, A)

    assert raises("KERNEL_FOREIGN", tensor) == (
        "a tensor that is not of this kernel   [KERNEL_FOREIGN]\n  input: %1:[8].fp16.GL of A\n"
        "  fix: declare it with gr.input, gr.output, gr.inout, gr.alloc or gr.fragment inside this kernel"
    )

    def group():
        with gr.Kernel("two"):
            gr.barrier(on=threads)

    assert raises("KERNEL_FOREIGN", group) == (
        "threads that are not of this kernel   [KERNEL_FOREIGN]\n  barrier of: #2:[32].thread\n"
        "  fix: start from gr.blocks() and gr.threads() of this kernel"
    )

    def coordinate():
        with gr.Kernel("two"):
            B = gr.input("B", [32], gr.fp16)
            B[t]

    assert raises("KERNEL_FOREIGN", coordinate) == (
        "the coordinate t is not of this kernel   [KERNEL_FOREIGN]\n  in: @t"
    )


def test_names():
    def twice():
        with gr.Kernel("k"):
            gr.input("A", [8], gr.fp16)
            gr.input("A", [8], gr.fp16)

    assert raises("KERNEL_NAME", twice) == "the name of an argument is taken   [KERNEL_NAME]\n  got: A"

    def symbol():
        with gr.Kernel("k"):
            gr.input("A", gr.row_major(gr.sym("M")), gr.fp16)
            gr.input("B", gr.row_major(gr.sym("M", multiple_of=8)), gr.fp16)

    assert raises("KERNEL_NAME", symbol) == "the name of a symbol is taken   [KERNEL_NAME]\n  got: M"

    def word():
        with gr.Kernel("k"):
            gr.input("a b", [8], gr.fp16)

    assert raises("KERNEL_NAME", word) == (
        "the name of an argument must be an identifier and no word of the IR   [KERNEL_NAME]\n  got: a b"
    )


def test_specs_are_entered_where_they_are_made():
    def later():
        with gr.Kernel("k"):
            A = gr.input("A", [8], gr.fp16)
            r = gr.alloc("r", [8], gr.fp16, gr.RF)
            s = gr.move(r, A)
            gr.barrier()
            with s:
                pass

    assert raises("SPEC_ENTER", later) == (
        "a spec is entered where it is made   [SPEC_ENTER]\n"
        "  fix: write `with gr.move(...):`, with nothing between the call and the `with`"
    )

    def again():
        with gr.Kernel("k"):
            A = gr.input("A", [8], gr.fp16)
            r = gr.alloc("r", [8], gr.fp16, gr.RF)
            s = gr.move(r, A)
            with s:
                pass
            with s:
                pass

    assert raises("SPEC_ENTER", again) == "the spec is decomposed already   [SPEC_ENTER]"


def test_else_follows_if():
    def alone():
        with gr.Kernel("k"), gr.else_():
            pass

    assert raises("ELSE_WITHOUT_IF", alone) == (
        "else_() must follow an if_() block   [ELSE_WITHOUT_IF]\n  fix: put nothing between the two blocks"
    )

    def twice():
        with gr.Kernel("k"):
            n = gr.param("n", gr.i32)
            with gr.if_(n > 0):
                gr.barrier()
            with gr.else_():
                pass
            with gr.else_():
                pass

    raises("ELSE_WITHOUT_IF", twice)


def test_loop_steps():
    def zero():
        with gr.Kernel("k"), gr.loop("k", 8, step=0):
            pass

    assert raises("LOOP_STEP", zero) == (
        "the step of a loop must be known to be positive   [LOOP_STEP]\n  got: 0\n"
        "  fix: count upwards, and give a symbol the fact min=1"
    )


def test_launches_are_declared_once():
    def twice():
        with gr.Kernel("k"):
            gr.threads(32)
            gr.threads(64)

    assert raises("KERNEL_LAUNCH", twice) == (
        "threads() is declared already, by a call or by the first statement   [KERNEL_LAUNCH]\n"
        "  declared: [32].thread\n"
        "  fix: declare it once, before the statements; tile and reshape the one there is"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gr.alloc("t", [8], gr.fp16, gr.GL), "global memory is not allocated inside a kernel"),
        (
            lambda: gr.alloc("t", [gr.sym("M")], gr.fp16, gr.SH),
            "a kernel's own tensors have constant sizes and strides",
        ),
        (lambda: gr.alloc("t", [0], gr.fp16, gr.SH), "a size must be positive"),
        (lambda: gr.alloc("t", gr.Layout(8, -1), gr.fp16, gr.SH), "a stride is negative"),
        (lambda: gr.alloc("t", [8], gr.fp16, gr.SH, align_bytes=24), "an alignment must be a power of two"),
        (lambda: gr.alloc("t", [8], gr.fp16, gr.RF, align_bytes=16), "registers have neither swizzle nor alignment"),
        (lambda: gr.alloc("t", [8], gr.fp16, gr.SH, stages=-1), "the number of stages must be positive"),
    ],
)
def test_allocations(make, message):
    def inside():
        with gr.Kernel("k"):
            make()

    assert raises("TENSOR_TYPE", inside).startswith(message + "   [TENSOR_TYPE]")


def test_fragments_must_fit():
    def shape():
        with gr.Kernel("k"):
            warps = gr.threads(64).tile(32)
            gr.fragment("acc", [40, 16], gr.fp32, C16x8, on=warps[0])

    assert raises("FRAGMENT_SHAPE", shape) == (
        "the group and the atom's tile do not divide the fragment   [FRAGMENT_SHAPE]\n"
        "  fragment: [40,16] of mma.c, tile [16,8]\n  on: [32].thread\n  tv: ((4,8),(2,2)):((32,1),(16,8))\n"
        "  fix: make each size a multiple of the tile's times the number of the group's outer members"
    )

    def group():
        with gr.Kernel("k"):
            gr.fragment("acc", [64, 16], gr.fp32, C16x8, on=gr.threads(64))

    assert raises("FRAGMENT_GROUP", group) == (
        "the group's innermost levels are not the threads of the atom   [FRAGMENT_GROUP]\n"
        "  fragment: [64,16] of mma.c, tile [16,8]\n  on: [64].thread\n  tv: ((4,8),(2,2)):((32,1),(16,8))\n"
        "  fix: tile the threads so that the innermost level has 32 members"
    )


def test_deep_nesting():
    with gr.Kernel("deep"):
        A = gr.input("A", [2] * 2, gr.fp16)
        blocks = [gr.loop(f"i{n}", 2) for n in range(300)]
        counters = [b.__enter__() for b in blocks]
        t = A[counters[0], counters[-1]]
        r = gr.alloc("r", [], gr.fp16, gr.RF)
        gr.move(r, t)
        for b in reversed(blocks):
            b.__exit__(None, None, None)


def test_python_types():
    with pytest.raises(gr.LayoutError, match="a dtype must be one of"):
        gr.tensor("A", [8], "fp16")
    with pytest.raises(TypeError, match="a thread tensor"), gr.Kernel("k"):
        gr.barrier(on=3)
    with pytest.raises(TypeError, match="an output must be a tensor"), gr.Kernel("k"):
        gr.move(3, 4)


def test_scalars_keep_their_facts():
    with gr.Kernel("k"):
        s = gr.scalar("s", 0, max=3)
        s.set((s.value + 1) % 4)
        u = gr.scalar("u", 0)
        u.set(u.value + 8)
        assert _core.sym_bounds(s.value) == (0, 3)

    def negative():
        with gr.Kernel("k"):
            gr.scalar("s", -1)

    assert raises("SCALAR_FACTS", negative) == (
        "a value that breaks the facts of the scalar   [SCALAR_FACTS]\n  want: 0 <= s\n  got: -1\n"
        "  fix: declare the scalar with the facts it has: gr.scalar(name, value, min=..., max=...)"
    )

    def grows():
        with gr.Kernel("k"):
            s = gr.scalar("s", 0, max=24, multiple_of=8)
            s.set(s.value + 32)

    assert raises("SCALAR_FACTS", grows).splitlines()[1:3] == ["  want: 0 <= s <= 24, a multiple of 8", "  got: s + 32"]

    def odd():
        with gr.Kernel("k"):
            gr.scalar("s", 4, multiple_of=8)

    raises("SCALAR_FACTS", odd)


def test_a_counter_does_not_rely_on_a_scalar():
    with gr.Kernel("k"):
        A = gr.input("A", [64], gr.fp16)
        n = gr.scalar("n", 0, max=64)
        with gr.loop("i", n.value) as i:
            n.set(0)  # i < n does not hold any more
            assert _core.sym_decide(i < n.value) is None
            assert A[i].bounds == []  # i < 64 does


def test_default_groups():
    with gr.Kernel("k") as kernel:
        A = gr.input("A", [128, 128], gr.fp32)
        gr.blocks(4)
        warps = gr.threads(256).tile(32).reshape(0, gr.Layout((2, 4)))
        (wm, wn), _ = warps.indices()
        warp = warps[wm, wn]
        acc = gr.fragment("acc", [128, 128], gr.fp32, C16x8, on=warps)
        part = gr.fragment("part", [64, 32], gr.fp32, C16x8, on=warp)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.move(acc, A):
            pass
        with gr.binary("add", acc[wm, wn], acc[wm, wn], part):
            pass
        gr.move(r, A[0, 0])
        gr.move(r, A[0, 0], on=warp)
    specs = [line.strip() for line in str(kernel).splitlines() if "<<<" in line]
    assert [line.split("<<<")[1].split(">>>")[0] for line in specs] == [
        f"[].block, {str(warps).split(':')[0]}",
        f"[].block, {str(warp).split(':')[0]}",
        "[].block, [].thread",
        f"[].block, {str(warp).split(':')[0]}",
    ]
    assert gr.parse(str(kernel)) == kernel


def test_one_block_is_the_default_of_a_grid_of_one():
    with gr.Kernel("k") as kernel:
        A = gr.input("A", [8], gr.fp32)
        gr.blocks(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, A[0])
    assert "<- Move<<<#2, [].thread>>>" in str(kernel)


def test_tensors_are_not_iterable():
    t = gr.tensor("A", [64, 64], gr.fp16).tile([16, 64])  # t[4, 0], t[5, 0], ... are empty tiles
    for thing in (t, gr.threads(32)):
        with pytest.raises(TypeError, match="not iterable"):
            iter(thing)
        with pytest.raises(TypeError, match="not iterable"):
            list(thing)


def test_public_names_are_documented():
    import inspect

    for name in gr.__all__:
        thing = getattr(gr, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name
        if inspect.isclass(thing) and thing.__module__.startswith("graphene") and not issubclass(thing, Exception):
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
                    said = (member.__doc__ or "").strip() or f"``{attribute}``" in (thing.__doc__ or "")
                    assert said, f"{name}.{attribute}"  # of a record its class says what its fields are
    assert set(gr.__all__) <= set(dir(gr))


def test_a_kernel_that_is_closed_takes_no_more_statements():
    with gr.Kernel("k"):
        x, r = gr.input("x", [4], gr.fp32), gr.alloc("r", [], gr.fp32, gr.RF)
        late = gr.move(r, x[0])

    def enter():
        with late:
            pass

    assert raises("KERNEL_CLOSED", enter) == "the kernel of this statement is closed   [KERNEL_CLOSED]"


def test_a_block_that_is_left_open():
    def make():
        with gr.Kernel("k"):
            gr.loop("i", 3).__enter__()

    assert raises("KERNEL_OPEN", make) == (
        "a block of the kernel is still open   [KERNEL_OPEN]\n  kernel: k\n"
        "  fix: leave loops and specs before the kernel ends"
    )
