"""What the language says means one thing: in the text, in the simulator, on the device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import graphene as gr

# ---- shifts

TYPES = {"s32": (gr.i32, np.int32, "int"), "u32": (gr.u32, np.uint32, "unsigned")}
TYPES |= {"s64": (gr.i64, np.int64, "long long"), "u64": (gr.u64, np.uint64, "unsigned long long")}


def shifts(op: str, p: str) -> gr.Kernel:
    dtype = TYPES[p][0]
    with gr.Kernel("shifts") as kernel:
        x, n, y = gr.input("x", [32], dtype), gr.input("n", [32], dtype), gr.output("y", [32], dtype)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        a, b, c = (gr.alloc(s, [], dtype, gr.RF) for s in "abc")
        gr.move(a, x[t])
        gr.move(b, n[t])
        gr.binary(op, c, a, b)
        gr.move(y[t], c)
    return kernel


def operands(p: str) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.dtype(TYPES[p][1])
    bits = 8 * dtype.itemsize
    amounts = [0, 1, 5, bits - 1, bits, bits + 1, 2 * bits, 2 ** (bits - 1) - 1, -1 % 2**bits, 2 ** (bits - 1)]
    if bits == 64:
        amounts += [2**32, 2**32 + 1]
    n = np.resize(np.array(amounts, f"u{dtype.itemsize}").view(dtype), 32)
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 32).astype(np.int64).view(np.uint64) * np.uint64(2**31 + 5)
    return x.astype(f"u{dtype.itemsize}").view(dtype), n


def shifted(op: str, x: int, n: int, bits: int, signed: bool) -> int:
    """As PTX shl and shr: all bits are out where the amount is the width or more, a negative one counts as huge."""
    n = min(n % 2**bits, bits)
    return x << n if op == "shl" else x >> n


@pytest.mark.parametrize("op", ["shl", "shr"])
@pytest.mark.parametrize("p", TYPES)
def test_shifts_by_the_width_or_more_are_defined_in_the_simulator_and_in_the_text(
    op: str, p: str, tmp_path: Path
) -> None:
    kernel, (x, n), y = shifts(op, p), operands(p), np.zeros(32, TYPES[p][1])
    kernel.simulate(x, n, y)
    bits = 8 * x.itemsize
    unsigned = np.dtype(f"u{x.itemsize}")
    want = [shifted(op, int(a), int(b), bits, x.dtype.kind == "i") % 2**bits for a, b in zip(x, n, strict=True)]
    assert np.array_equal(y.view(unsigned), np.array(want, unsigned))

    if shutil.which("g++") is None:
        pytest.skip("no g++")
    text = gr.atoms()[f"{op}.{p}"].cxx.replace("$d", "d").replace("$a", "a").replace("$b", "b")
    values = ", ".join(
        f"{{({TYPES[p][2]}){int(a) % 2**bits}ull, ({TYPES[p][2]}){int(b) % 2**bits}ull}}"
        for a, b in zip(x, n, strict=True)
    )
    names = "".join(f"using {c}{s[1:]} = {TYPES[s][2]};" for s in TYPES for c in ("u" if s[0] == "u" else "i"))
    program = tmp_path / "shift.cpp"
    program.write_text(
        f"#include <cstdio>\n{names}\nint main() {{ static const {TYPES[p][2]} v[][2] = {{{values}}};\n"
        f"for (auto& x : v) {{ auto a = x[0], b = x[1], d = a; {text}\n"
        'std::printf("%llu\\n", (unsigned long long)d); } }\n'
    )
    flags = ["-fsanitize=shift", "-fno-sanitize-recover=all"]
    subprocess.run(["g++", "-std=c++17", "-O1", *flags, str(program), "-o", str(tmp_path / "shift")], check=True)
    out = subprocess.run([tmp_path / "shift"], check=True, capture_output=True, text=True).stdout.split()
    assert [int(s) % 2**bits for s in out] == want


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["shl", "shr"])
@pytest.mark.parametrize("p", TYPES)
def test_the_device_shifts_as_the_simulator(op: str, p: str) -> None:
    torch = pytest.importorskip("torch")
    kernel, (x, n), y = shifts(op, p), operands(p), np.zeros(32, TYPES[p][1])
    kernel.simulate(x, n, y)
    device = [
        torch.from_numpy(v.view(f"i{v.itemsize}")).view(getattr(torch, v.dtype.name)).cuda()
        for v in (x, n, np.zeros_like(y))
    ]
    kernel(*device)
    got = device[2].view(getattr(torch, f"int{8 * y.itemsize}")).cpu().numpy()
    assert np.array_equal(got, y.view(got.dtype))


# ---- facts of scalars


@pytest.mark.parametrize(
    ("n", "facts", "ok"),
    [(4, {"max": 12}, True), (5, {"max": 12}, False), (5, {"max": 16, "multiple_of": 4}, True), (5, {"max": 99}, True)],
)
def test_facts_of_scalars_hold_while_the_kernel_runs(n: int, facts: dict[str, int], ok: bool) -> None:
    with gr.Kernel("walk") as kernel:
        size = gr.sym("N")
        y = gr.output("y", [size], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.scalar("s", 0, **facts)
        with gr.loop("i", size) as i:
            s.set(i * 4)
        v = gr.alloc("v", [], gr.i32, gr.RF)
        v[:] = s.value
        with gr.if_(t < size):
            gr.move(y[t], v)
    out = np.zeros(n, np.int32)
    if ok:
        kernel.simulate(out)
        assert (out == 4 * n - 4).all()
        return
    with pytest.raises(gr.SimulationError) as error:
        kernel.simulate(out)
    assert error.value.code == "SIM_FACT"
    lines = str(error.value).splitlines()
    assert "a value of the scalar s breaks its facts" in lines[0]
    assert lines[2:4] == ["  want: 0 to 12", "  got: 16"]


# ---- subnormal numbers


def exponential(atom: str) -> gr.Kernel:
    with gr.Kernel("exponential") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        a = gr.alloc("a", [], gr.fp32, gr.RF)
        gr.move(a, x[t])
        gr.unary("exp2", a, a, atom=atom)
        gr.move(y[t], a)
    return kernel


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("name", ["mine.ftz.f32", "mine.f32"])
def test_an_entry_says_itself_whether_it_flushes(name: str, flush: bool) -> None:
    name = f"{name}.{flush}"
    gr.define_atom(
        name=name, kind="UnaryPointwise", arch="sm_80+", is_default=False,
        attrs={"op": ["exp2"]} | ({"ftz": ["true"]} if flush else {}),
        out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write"}], in_=[{"name": "s", "pattern": "[].fp32.RF"}],
        ptx="ex2.approx.f32 $d, $s;", doc="2 to the power of a number.", source="PTX ISA",
    )  # fmt: skip
    x, y = np.full(32, -130, np.float32), np.zeros(32, np.float32)
    exponential(name).simulate(x, y)
    assert (y == (0 if flush else np.float32(2.0**-130))).all()


def test_a_wait_for_products_where_there_is_none() -> None:
    with gr.Kernel("waits", means=lambda x: x) as kernel:
        x, y = gr.input("x", [128], gr.fp32), gr.output("y", [128], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(128).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[t])
        gr.commit("wgmma.m64n8k16.f32.f16")
        gr.wait("wgmma.m64n8k16.f32.f16", pending=0)
        gr.move(y[t], r)
    assert kernel.check().ok
