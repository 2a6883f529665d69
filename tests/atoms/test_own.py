"""Instructions with a meaning of one's own: inline PTX, and entries of kind Spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr


def with_ptx(text: str, means: Any, of: str = "u32", to: str = "u32", count: int = 1, **how: Any) -> gr.Kernel:
    """y = text(x, x) for `count` numbers of a thread."""
    narrow, wide = getattr(gr, of), getattr(gr, to)
    with gr.Kernel("own", means=how.pop("promise", None)) as kernel:
        x, y = gr.input("x", [32, count], narrow), gr.output("y", [32, count], wide)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        a, r = (gr.alloc(n, [count] if count > 1 else [], d, gr.RF) for n, d in (("a", narrow), ("r", wide)))
        for i in range(count):
            gr.move(a[i] if count > 1 else a, x[t, i])
        gr.ptx(text, r, a, a, means=means, **how)
        for i in range(count):
            gr.move(y[t, i], r[i] if count > 1 else r)
    return kernel


def test_a_line_of_ptx_is_simulated_and_printed() -> None:
    def means(x: Any) -> Any:
        return x ^ x >> 3

    kernel = with_ptx("{.reg .b32 t; shr.u32 t, %1, 3; xor.b32 %0, %2, t;}", lambda a, b: a >> 3 ^ b, promise=means)
    x, y = np.arange(32, dtype=np.uint32).reshape(32, 1) * 0x01234567, np.zeros((32, 1), np.uint32)
    kernel(x, y)
    np.testing.assert_array_equal(y, means(x))
    assert kernel.check().ok
    assert "xor.b32 %0, %1, t;}" in kernel.cuda_source("sm_80")
    wrong = with_ptx("xor.b32 %0, %1, %2;", lambda a, b: a ^ b, promise=means)
    assert not wrong.check().ok


def test_its_text_names_the_entry() -> None:
    kernel = with_ptx("add.u32 %0, %1, %2;", lambda a, b: a + b)
    (name,) = set(re.findall(r"ptx\.add\.u32\.[0-9a-f]{8}", str(kernel)))
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    gr.parse(str(kernel)).lowered("sm_80")
    unknown = gr.parse(str(kernel).replace(name, "ptx.add.u32.00000000"))
    with pytest.raises(gr.SelectError) as e:
        unknown.lowered("sm_80")
    assert e.value.code == "ATOM_UNKNOWN"


def test_one_text_with_another_meaning_is_another_entry() -> None:
    def entry(means: Callable[..., Any]) -> str:
        return re.findall(r"ptx\.sub\.u32[.0-9a-f]*", str(with_ptx("sub.u32 %0, %1, %2;", means)))[0]

    same = [entry(lambda a, b: a - b) for _ in range(2)]
    assert same[0] == same[1]
    assert entry(lambda a, b: b - a) == f"{same[0]}.2"
    assert entry(lambda a, b: b - a + 1) == f"{same[0]}.3"


@pytest.mark.parametrize("of", ["fp16", "bf16", "fp8e4m3", "i8", "fp64"])
def test_types_that_numpy_has_or_lacks(of: str) -> None:
    seen: list[Any] = []

    def means(a: Any, b: Any) -> Any:
        seen.append(a)
        return a

    kernel = with_ptx("// %0 %1 %2;", means, of, of, 4 if of in ("fp8e4m3", "i8") else 2 if "16" in of else 1)
    (x, y) = (np.zeros((32, int(t.shape[1])), {"bf16": "u2", "fp8e4m3": "u1"}.get(of, getattr(gr, of).array_name))
              for t in kernel.ir.args)  # fmt: skip
    x[:] = np.arange(32)[:, None]
    kernel(x, y)
    np.testing.assert_array_equal(x, y)
    assert seen[0].dtype == {"bf16": "float32", "fp8e4m3": "float32"}.get(of, x.dtype)
    assert seen[0].shape == ((32,) if x.shape[1] == 1 else x.shape)


@pytest.mark.parametrize(
    ("means", "told"),
    [
        (lambda a, b: a.astype(np.int64), "want: uint32 of shape [32]\n  got: int64 of shape [32]"),
        (lambda a, b: a[:3], "got: uint32 of shape [3]"),
        (lambda a, b: 3, "got: 3"),
        (lambda a, b: (a, b), "want: 1, one for each output"),
    ],
)
def test_results_that_do_not_fit_are_refused(means: Any, told: str) -> None:
    with pytest.raises(gr.SimulationError) as e:
        with_ptx("or.b32 %0, %1, %2;", means)(np.zeros((32, 1), np.uint32), np.zeros((32, 1), np.uint32))
    assert e.value.code == "CHECK_MEANS"
    assert told in str(e.value)


def test_a_number_that_the_type_lacks_is_refused() -> None:
    kernel = with_ptx("mov.b16 %0, %1; // %2;", lambda a, b: a + np.float32(2.0**-20), "bf16", "bf16")
    with pytest.raises(gr.SimulationError, match="want: numbers of bf16"):
        kernel(np.full((32, 1), 0x3F80, np.uint16), np.zeros((32, 1), np.uint16))


def test_an_error_of_the_function_is_named_and_kept() -> None:
    def means(a: Any, b: Any) -> Any:
        raise ZeroDivisionError("mine")

    kernel = with_ptx("and.b32 %0, %1, %2;", means)
    with pytest.raises(gr.SimulationError, match="raises ZeroDivisionError: mine") as e:
        kernel(np.zeros((32, 1), np.uint32), np.zeros((32, 1), np.uint32))
    assert e.value.code == "CHECK_MEANS"
    assert isinstance(e.value.__context__, ZeroDivisionError)


def test_what_was_never_written_makes_the_result_undefined() -> None:
    with gr.Kernel("undefined") as kernel:
        y = gr.output("y", [32], gr.u32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        a, r = gr.alloc("a", [], gr.u32, gr.RF), gr.alloc("r", [], gr.u32, gr.RF)
        gr.ptx("not.b32 %0, %1;", r, a, means=lambda a: ~a)
        gr.move(y[t], r)
    with pytest.raises(gr.SimulationError) as e:
        kernel(np.zeros(32, np.uint32))
    assert e.value.code == "SIM_UNDEFINED"


def test_several_results_and_an_updated_operand() -> None:
    gr.define_atom(
        name="own.add_and_count", kind="Spec", arch="sm_70+",
        out=[{"name": "d", "pattern": "[].u32.RF", "access": "update"},
             {"name": "p", "pattern": "[].pred.RF", "access": "write"}],
        in_=[{"name": "a", "pattern": "[].u32.RF"}], cxx="$d += $a; $p = $d == $a;",
        means=lambda a, d: (d + a, d + a == a), doc="Adds and compares.", source="CUDA C++: +=",
    )  # fmt: skip
    with gr.Kernel("several") as kernel:
        x, y = gr.input("x", [32], gr.u32), gr.output("y", [32], gr.u32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        a, d = gr.load(x[t]), gr.let("d", t % 2, gr.u32)
        p = gr.alloc("p", [], gr.pred, gr.RF)
        gr.spec([d, p], [a], atom="own.add_and_count")
        gr.move(y[t], gr.where(p, 0, d))
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    kernel(x, y)
    np.testing.assert_array_equal(y, np.where(x % 2 == 0, 0, x + 1))
    assert "d += x_value; p = d == x_value;" in kernel.cuda_source("sm_80")


def test_a_decomposition_is_held_to_its_spec() -> None:
    def decomposed(text: str, means: Any) -> gr.CheckResult:
        with gr.Kernel("decomposed") as kernel:
            x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            a, r = gr.load(x[t]), gr.alloc("r", [], gr.fp32, gr.RF)
            with gr.binary("add", r, a, a):
                gr.ptx(text, r, a, means=means)
            gr.move(y[t], r)
        return kernel.check()

    assert decomposed("add.f32 %0, %1, %1;", lambda a: a + a).ok
    assert [e.code for e in decomposed("mul.f32 %0, %1, %1;", lambda a: a * a).errors] == ["CHECK_PROMISE"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"out": [{"name": "d", "pattern": "[].u32.GL", "access": "write"}]}, "ATOM_DEFINITION"),
        ({"out": [{"name": "d", "pattern": "[].b32.RF", "access": "write"}]}, "ATOM_DEFINITION"),
        ({"threads": "[32]"}, "ATOM_DEFINITION"),
        ({"is_default": True}, "ATOM_DEFINITION"),
        ({"means": None}, None),
        ({"kind": "Init", "means": len}, None),
    ],
)
def test_wrong_entries_are_refused(how: dict[str, Any], code: str | None) -> None:
    fields: dict[str, Any] = {
        "name": "own.wrong", "kind": "Spec", "arch": "sm_70+",
        "out": [{"name": "d", "pattern": "[].u32.RF", "access": "write"}],
        "ptx": "mov.u32 $d, 0;", "means": lambda: None, "doc": "Is wrong.", "source": "PTX ISA",
    } | how  # fmt: skip
    with pytest.raises(gr.SelectError if code else TypeError) as e:
        gr.define_atom(**fields)
    assert code is None or e.value.code == code  # type: ignore[attr-defined]


def test_wrong_operands_of_ptx_are_refused() -> None:
    with gr.Kernel("wrong"):
        x = gr.input("x", [32], gr.u32)
        r = gr.alloc("r", [], gr.u32, gr.RF)
        with pytest.raises(TypeError, match="a thread's own registers"):
            gr.ptx("mov.u32 %0, %1;", r, x, means=len)
        with pytest.raises(TypeError, match="means= must be a function"):
            gr.ptx("mov.u32 %0, 0;", r, means=3)  # type: ignore[arg-type]
        with pytest.raises(gr.SelectError, match="pred that fills no register"):
            gr.ptx("mov.u32 %0, %1;", r, gr.alloc("p", [], gr.pred, gr.RF), means=len)
        with pytest.raises(gr.SelectError, match="names %2, and there are 2 operands"):
            gr.ptx("add.u32 %0, %1, %2;", r, r, means=len)
        with pytest.raises(gr.SelectError, match="never names operand"):
            gr.ptx("mov.u32 %0, 0;", r, r, means=len)


@pytest.mark.parametrize(
    ("means", "text"), [(lambda a: 1 // 0, "raises ZeroDivisionError"), (lambda: 1, "raises TypeError")]
)
def test_a_meaning_that_raises_is_an_error_of_the_kernel(means: Any, text: str) -> None:
    with gr.Kernel("moved", means=lambda x: x) as kernel:
        x, y = gr.input("x", [32], gr.u32), gr.output("y", [32], gr.u32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.u32, gr.RF)
        gr.ptx("mov.b32 %0, %1;", r, gr.load(x[t]), means=means)
        gr.move(y[t], r)
    with pytest.raises(gr.SimulationError, match=text) as e:
        kernel(np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert e.value.code == "CHECK_MEANS"
    assert kernel.check().errors[0].code == "CHECK_MEANS"
