"""What kernel authors write every day: registers in a line, bits, atomics, loops that data end, scans, votes.

Every kernel goes to its text and JSON and back, through the simulator and, a few of them, through NVRTC.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest

import graphene as gr

RNG = np.random.default_rng(0)


def kernel_of(body: Callable[..., None], *arguments: tuple[str, list[int], gr.DType], threads: int = 32) -> gr.Kernel:
    """A kernel of one block: body(threads, t, arguments). Those whose name begins with y are written."""
    with gr.Kernel("k") as kernel:
        args = [(gr.inout if n[0] == "y" else gr.input)(n, s, t, align_bytes=16) for n, s, t in arguments]
        gr.blocks(1)
        group = gr.threads(threads)
        body(group, group.indices()[0], *args)
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    return kernel


def test_registers_are_declared_with_a_value() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        s = gr.let("s", r * 2 + 1)
        n = gr.let("n", t, gr.i32)
        assert (s.dtype, n.dtype, gr.let("half", 0.5, gr.fp16).dtype) == (gr.fp32, gr.i32, gr.fp16)
        s += n
        s *= 2
        y[t] = s - r

    x, y = RNG.standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    kernel_of(body, ("x", [32], gr.fp32), ("y", [32], gr.fp32))(x, y)
    assert np.array_equal(y, ((x * np.float32(2) + 1) + np.arange(32, dtype=np.float32)) * 2 - x)


def test_an_element_of_a_register_changes_in_place() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x.tile([4])[t])
        r[1] += r[0]
        r[2] -= 3
        r[3] = r[3] * r[3]
        gr.move(y.tile([4])[t], r)

    x, y = RNG.standard_normal((32, 4)).astype(np.float32), np.zeros(128, np.float32)
    kernel = kernel_of(body, ("x", [128], gr.fp32), ("y", [128], gr.fp32))
    kernel(x.ravel(), y)
    want = x.copy()
    want[:, 1] += want[:, 0]
    want[:, 2] -= 3
    want[:, 3] *= want[:, 3]
    assert np.array_equal(y.reshape(32, 4), want)
    assert str(kernel).count("<- Move") == 3  # the sum of two is moved, and nothing is assigned to itself


@pytest.mark.parametrize("move", [False, True])
def test_an_expression_is_stored(move: bool) -> None:
    def body(_: Any, t: Any, x: Any, y: Any, y1: Any) -> None:
        r = gr.load(x[t], dtype=gr.fp32)
        if move:
            gr.move(y[t], r * 2)
            gr.move(y1[t], 7)
        else:
            y[t] = r * 2
            y1[t] = 7

    x, y, y1 = RNG.standard_normal(32).astype(np.float16), np.zeros(32, np.float16), np.zeros(32, np.int32)
    kernel_of(body, ("x", [32], gr.fp16), ("y", [32], gr.fp16), ("y1", [32], gr.i32))(x, y, y1)
    assert np.array_equal(y, x * 2)
    assert (y1 == 7).all()


def test_memory_is_not_changed_in_place() -> None:
    with gr.Kernel("k"):
        y = gr.inout("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        with pytest.raises(gr.LayoutError, match="pointwise expressions work on registers") as e:
            y[t] += 1
        assert e.value.code == "POINTWISE_TYPE"
        with pytest.raises(gr.LayoutError, match="a number has no type of its own"):
            gr.let("n", 1)


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**63 + 12345, 0xDEADBEEFCAFEF00D, 2**53 + 1])
def test_constants_of_64_bits(value: int) -> None:
    def body(_: Any, t: Any, y: Any) -> None:
        y[t] = gr.let("r", t, gr.u64) ^ value

    y = np.zeros(32, np.uint64)
    kernel_of(body, ("y", [32], gr.u64))(y)
    assert [int(v) for v in y] == [t ^ value for t in range(32)]


def test_unsigned_numbers_are_negated() -> None:
    def body(_: Any, t: Any, y: Any) -> None:
        y[t] = -gr.let("r", t, gr.u32)

    y = np.zeros(32, np.uint32)
    kernel_of(body, ("y", [32], gr.u32))(y)
    assert np.array_equal(y, -np.arange(32, dtype=np.uint32))


# ---- bits


def test_words_become_elements_and_back() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        words = gr.load(x.tile([2])[t])
        halves = gr.bitcast(words, gr.fp16)
        assert halves.shape == (4,)
        for i in range(4):
            halves[i] *= 2
        y.tile([2])[t] = gr.bitcast(halves, gr.u32)

    x, y = RNG.standard_normal(128).astype(np.float16), np.zeros(64, np.uint32)
    kernel = kernel_of(body, ("x", [64], gr.u32), ("y", [64], gr.u32))
    kernel(x.view(np.uint32), y)
    assert np.array_equal(y.view(np.float16), x * 2)
    assert kernel.check().ok
    if harness.has_compiler("sm_90a"):
        assert kernel.compile("sm_90a").spill_bytes == 0


@pytest.mark.parametrize(("of", "to"), [("u8", "u32"), ("i32", "u8"), ("u8", "fp16"), ("u64", "fp16"), ("fp32", "u64")])
def test_any_width_becomes_any_other(of: str, to: str) -> None:
    n = {"u8": 8, "i32": 4, "u64": 2, "fp32": 4}[of]

    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.bitcast(gr.load(x.tile([n])[t]), getattr(gr, to))
        y.tile([int(r.size)])[t] = r

    raw = RNG.integers(0, 256, 32 * 16, np.uint8)[: 32 * n * getattr(gr, of).bits // 8]
    x = raw.view(harness_type(of))
    y = np.zeros(raw.size * 8 // getattr(gr, to).bits, harness_type(to))
    kernel_of(body, ("x", [x.size], getattr(gr, of)), ("y", [y.size], getattr(gr, to)))(x, y)
    assert np.array_equal(y.view(np.uint8), raw)


def harness_type(name: str) -> Any:
    return np.dtype({"fp16": "f2", "fp32": "f4", "u8": "u1", "i32": "i4", "u64": "u8", "u32": "u4"}[name])


def test_four_bits_unpack_through_the_bits_of_fp16() -> None:
    """The usual trick: a nibble below the exponent of 1024 is 1024 + n."""

    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        word = gr.load(x[t])
        for i in range(4):
            pair = gr.bitcast(gr.let(f"w{i}", ((word >> (4 * i)) & 0x000F000F) | 0x64006400), gr.fp16)
            for h in range(2):
                y[t, i + 4 * h] = pair[h] - 1024

    x, y = RNG.integers(0, 2**32, 32, np.uint32), np.zeros((32, 8), np.float16)
    kernel_of(body, ("x", [32], gr.u32), ("y", [32, 8], gr.fp16))(x, y)
    assert np.array_equal(y, (x[:, None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.float16))


def test_a_bitcast_beside_arithmetic_sees_the_bits() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        y[t] = gr.where(gr.bitcast(r, gr.u16) > 0x7FFF, r * -1, r)  # by the sign bit

    x, y = RNG.standard_normal(32).astype(np.float16), np.zeros(32, np.float16)
    kernel_of(body, ("x", [32], gr.fp16), ("y", [32], gr.fp16))(x, y)
    assert np.array_equal(y, np.abs(x))


# ---- atomics that give what was there


def test_places_are_handed_out_once() -> None:
    """Threads that hold an odd number append it to a list."""

    def body(_: Any, t: Any, x: Any, y: Any, y1: Any) -> None:
        r = gr.load(x[t])
        with gr.if_(r % 2 == 1):
            at = gr.atomic("add", y1[0], 1, fetch=True)
            y[gr.index(at, min=0, max=63)] = r

    x, y, y1 = RNG.integers(0, 99, 64).astype(np.int32), np.full(64, -1, np.int32), np.zeros(1, np.int32)
    kernel = kernel_of(body, ("x", [64], gr.i32), ("y", [64], gr.i32), ("y1", [1], gr.i32), threads=64)
    kernel.simulate(x, y, y1, seed=3)
    odd = x[x % 2 == 1]
    assert y1[0] == len(odd)
    assert sorted(y[: len(odd)]) == sorted(odd)
    if harness.has_compiler("sm_80"):
        kernel.compile("sm_80")


@pytest.mark.parametrize("memory", ["global", "shared"])
def test_one_thread_alone_swaps(memory: str) -> None:
    def body(_: Any, t: Any, y: Any, y1: Any) -> None:
        place = y[0]
        if memory == "shared":
            place = gr.alloc("s", [1], gr.i32, gr.SH)[0]
            with gr.if_(t == 0):
                place[...] = -1
            gr.barrier()
        old = gr.atomic("cas", place, t, expected=-1)
        y1[t] = old
        gr.barrier()
        with gr.if_(t == 0):
            y[1] = gr.load(place)

    y, won = np.array([-1, 0], np.int32), np.zeros(64, np.int32)
    kernel_of(body, ("y", [2], gr.i32), ("y1", [64], gr.i32), threads=64).simulate(y, won, seed=5)
    (winner,) = np.flatnonzero(won == -1)
    assert y[1] == winner
    assert (np.delete(won, winner) == winner).all()


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_floats(op: str) -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        gr.atomic(op, y[0], gr.load(x[t]))

    x, y = RNG.standard_normal(64).astype(np.float32), np.array([np.nan], np.float32)
    x[7] = np.nan
    kernel_of(body, ("x", [64], gr.fp32), ("y", [1], gr.fp32), threads=64)(x, y)
    assert y[0] == getattr(np, f"nan{op}")(x)


# ---- control that data decide


def test_a_branch_on_registers() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        with gr.if_((r > 0) & (r < 1)):
            y[t] = r
        with gr.else_():
            y[t] = -1
        with pytest.raises(gr.LayoutError, match="asks a condition, not a number"), gr.if_(r):
            pass

    x, y = RNG.standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    kernel_of(body, ("x", [32], gr.fp32), ("y", [32], gr.fp32))(x, y)
    assert np.array_equal(y, np.where((x > 0) & (x < 1), x, -1).astype(np.float32))


def collatz(bound: int) -> gr.Kernel:
    """y[t]: how many steps t + 1 takes to 1."""

    def body(_: Any, t: Any, y: Any) -> None:
        r, steps = gr.let("r", t + 1, gr.i32), gr.let("steps", 0, gr.i32)
        with gr.while_(lambda: r != 1, bound=bound):
            r[...] = gr.where(r % 2 == 0, r // 2, 3 * r + 1)
            steps += 1
        y[t] = steps

    return kernel_of(body, ("y", [32], gr.i32))


def test_a_loop_that_data_end() -> None:
    y = np.zeros(32, np.int32)
    kernel = collatz(200)
    kernel(y)

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert [steps(t + 1) for t in range(32)] == y.tolist()
    assert "while(" in str(kernel)
    if harness.has_compiler("sm_90a"):
        kernel.compile("sm_90a")


def test_a_loop_that_its_bound_ends() -> None:
    with pytest.raises(gr.SimulationError, match="whose condition still holds at its bound") as e:
        collatz(20)(np.zeros(32, np.int32))
    assert e.value.code == "SIM_ENDLESS_LOOP"
    assert "thread 24" in str(e.value)  # 25 takes 23 steps


def test_a_loop_over_scalars() -> None:
    def body(_: Any, t: Any, y: Any) -> None:
        s = gr.scalar("s", 1, max=64)
        with gr.while_(s.value * 2 <= t + 1, bound=6):
            s.set(s.value * 2)
        y[t] = s.value  # the largest power of two up to t + 1

    y = np.zeros(32, np.int32)
    kernel_of(body, ("y", [32], gr.i32))(y)
    assert y.tolist() == [1 << ((t + 1).bit_length() - 1) for t in range(32)]


def test_a_barrier_inside_a_loop_that_threads_leave_apart_is_refused() -> None:
    def body(_: Any, t: Any, y: Any) -> None:
        r = gr.let("r", t, gr.i32)
        with gr.while_(lambda: r > 0, bound=32):
            gr.barrier()
            r -= 1
        y[t] = r

    with pytest.raises(gr.VerifyError) as e:
        kernel_of(body, ("y", [32], gr.i32)).cuda_source("sm_90a")
    assert e.value.code == "VERIFY_BARRIER_DIVERGENT"


# ---- looking inside


def test_threads_print(capsys: pytest.CaptureFixture[str]) -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        with gr.if_(t < 2):
            gr.print("half of", r, r * 0.5, t)
        y[t] = r

    x = np.arange(32, dtype=np.float32)
    kernel = kernel_of(body, ("x", [32], gr.fp32), ("y", [32], gr.fp32))
    kernel(x, np.zeros(32, np.float32))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        "thread 0 (warp 0, lane 0) of block (0): half of 0.0 0.0 0",
        "thread 1 (warp 0, lane 1) of block (0): half of 1.0 0.5 1",
    ]
    assert lines[0].startswith("test_everyday.py:")
    assert "printf(" in kernel.cuda_source("sm_90a")
    assert not kernel.syncs()
    assert kernel.check().ok
    if harness.has_compiler("sm_90a"):
        kernel.compile("sm_90a")


def test_an_assertion_that_does_not_hold() -> None:
    def body(_: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        gr.assert_(r >= 0, "a root of", r)  # noqa: PT009
        y[t] = gr.sqrt(r)

    kernel = kernel_of(body, ("x", [32], gr.fp32), ("y", [32], gr.fp32))
    x = np.ones(32, np.float32)
    kernel(x, np.zeros(32, np.float32))
    x[5] = -2
    with pytest.raises(gr.SimulationError, match="does not hold") as e:
        kernel(x, np.zeros(32, np.float32))
    assert e.value.code == "SIM_ASSERT"
    assert "thread 5" in str(e.value)
    assert "a root of -2.0" in str(e.value)
    assert "__trap();" in kernel.cuda_source("sm_90a")


# ---- groups of threads


SCANS: dict[str, Any] = {"add": np.add, "max": np.maximum, "xor": np.bitwise_xor}


def group_of(block: gr.ThreadTensor, threads: int) -> gr.ThreadTensor:
    """All threads of the block, or the executing thread's group of so many."""
    if threads >= 32:
        return block
    groups = block.tile(threads)
    return groups[groups.indices()[0]]


@pytest.mark.parametrize("threads", [8, 32, 96])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", list(SCANS))
def test_scans(op: str, exclusive: bool, threads: int) -> None:
    def body(block: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        gr.scan(op, r, on=group_of(block, threads), exclusive=exclusive)
        y[t] = r

    n = max(32, threads)
    x, y = RNG.integers(-99, 99, n).astype(np.int32), np.zeros(n, np.int32)
    kernel = kernel_of(body, ("x", [n], gr.i32), ("y", [n], gr.i32), threads=n)
    kernel(x, y)
    for i in range(0, n, threads):
        want = SCANS[op].accumulate(x[i : i + threads])
        if exclusive:
            want = np.concatenate([[{"add": 0, "max": -(2**31), "xor": 0}[op]], want[:-1]])
        assert np.array_equal(y[i : i + threads], want)
    assert kernel.check().ok


@pytest.mark.parametrize("threads", [16, 64])
@pytest.mark.parametrize("op", ["max", "min"])
def test_the_place_of_an_extreme(op: str, threads: int) -> None:
    def body(block: Any, t: Any, x: Any, y: Any, y1: Any) -> None:
        r, at = gr.load(x[t]), gr.let("at", t, gr.i32)
        gr.allarg(op, r, at, on=group_of(block, threads))
        y[t] = r
        y1[t] = at

    n = max(32, threads)
    x = RNG.integers(-5, 5, n).astype(np.float32)
    x[3] = np.nan
    y, y1 = np.zeros(n, np.float32), np.zeros(n, np.int32)
    kernel_of(body, ("x", [n], gr.fp32), ("y", [n], gr.fp32), ("y1", [n], gr.i32), threads=n)(x, y, y1)
    for i in range(0, n, threads):
        own = slice(i, i + threads)
        assert (y1[own] == i + getattr(np, f"nanarg{op}")(x[own])).all()
        assert (y[own] == getattr(np, f"nan{op}")(x[own])).all()


def test_votes() -> None:
    def body(group: Any, t: Any, x: Any, y: Any) -> None:
        r = gr.load(x[t])
        y[t, 0] = gr.ballot(r > 2, on=group)
        same = gr.match(r, on=group)
        y[t, 1] = same
        y[t, 2] = gr.popc(same)

    x, y = RNG.integers(0, 5, 32).astype(np.int32), np.zeros((32, 3), np.uint32)
    kernel = kernel_of(body, ("x", [32], gr.i32), ("y", [32, 3], gr.u32))
    kernel(x, y)
    assert (y[:, 0] == sum(1 << i for i in range(32) if x[i] > 2)).all()
    assert [int(v) for v in y[:, 1]] == [sum(1 << i for i in range(32) if x[i] == v) for v in x]
    assert [int(v) for v in y[:, 2]] == [int((x == v).sum()) for v in x]
    if harness.has_compiler("sm_90a"):
        kernel.compile("sm_90a")


def test_every_table_of_three_bits() -> None:
    def body(group: Any, t: Any, x: Any, y: Any) -> None:
        a, b, c = (gr.load(x[t, i]) for i in range(3))
        for table in range(256):
            y[t, table] = gr.lop3(a, b, c, table)
        y[t, 256] = gr.lop3(a, b, 12, lambda a, b, c: (a & b) | c)

    x, y = RNG.integers(0, 2**32, (32, 3)).astype(np.uint32), np.zeros((32, 257), np.uint32)
    kernel = kernel_of(body, ("x", [32, 3], gr.u32), ("y", [32, 257], gr.u32))
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    kernel(x, y)
    places = [4 * (x[:, 0] >> i & 1) + 2 * (x[:, 1] >> i & 1) + (x[:, 2] >> i & 1) for i in range(32)]
    for table in range(256):
        assert (y[:, table] == sum((table >> p & 1).astype(np.uint64) << i for i, p in enumerate(places))).all()
    assert (y[:, 256] == (x[:, 0] & x[:, 1] | 12)).all()
    if harness.has_compiler("sm_90a"):
        assert kernel.compile("sm_90a").spill_bytes == 0


@pytest.mark.parametrize("table", [256, -1, True, 1.0, "and", lambda a, b, c: 0.5])
def test_tables_that_are_none(table: Any) -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        gr.threads(32)
        r = gr.let("r", 1, gr.u32)
        with pytest.raises(gr.SelectError, match="lop3: the table is an integer of eight bits") as e:
            gr.lop3(r, r, r, table)
    assert e.value.code == "ATOM_ATTR"


def test_a_table_in_a_text_is_a_byte() -> None:
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.let("r", t, gr.i32)
        y[t] = gr.lop3(r, r, r, 202)
    for other in ("256", "-1", "2.0"):
        with pytest.raises(gr.SelectError, match="table: want an integer from 0 to 255"):
            gr.parse(str(kernel).replace("table=202", f"table={other}")).cuda_source("sm_80")


EXAMPLES = ("rotary", "histogram", "row_scan", "int4_product", "convolution", "cross_entropy", "top_k", "transpose")


EVERYDAY = Path(__file__).parents[2] / "examples/14_everyday.py"


def test_the_examples_read_no_more_than_they_need() -> None:
    """The transposition has no bank conflicts; a thread of the convolution computes eight results from ten rows."""
    calls = runpy.run_path(str(EVERYDAY))["calls"]()
    assert calls["transpose"][0].report(B=1, M=128, N=128).conflicts == 0
    report = calls["convolution"][0].report(C=1, H=64, W=32)
    requests = {of: sum(r.requests for r in report.rows if r.buffer == of) for of in ("x", "w", "y")}
    assert requests == {"x": 64 // 8 * 30, "w": 64 // 8 * 9, "y": 64}


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_on_the_device(name: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    kernel, arguments = runpy.run_path(str(EVERYDAY))["calls"]()[name]
    on_device = [torch.from_numpy(a.copy()).cuda() for a in arguments]
    kernel(*arguments)
    kernel(*on_device)
    for want, got in zip(arguments, on_device, strict=True):
        assert np.allclose(got.cpu().numpy(), want, rtol=2e-3, atol=2e-3)
