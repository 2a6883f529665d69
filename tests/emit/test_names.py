"""Names that C++, CUDA and PTX keep for themselves are printed as others; NVRTC takes every kernel."""

from __future__ import annotations

import pytest

import graphene as gr

KEPT = [
    *("int", "class", "operator", "constexpr", "static_cast", "char8_t", "threadIdx", "NULL", "assert", "_", "_A"),
    *("__a", "gr_", "CUDART_VERSION", "u32", "half", "erff", "std", "co_await"),
]
# These are legal names of variables; functions with C linkage have them already.
FUNCTIONS = [
    *("main", "printf", "fma", "sqrtf", "abs", "sin", "y0", "nan", "malloc", "dim3", "size_t", "cudaError_t", "expf"),
    *("roundf", "norm", "max", "min", "umin", "va_list", "clock64"),
]


def _kernel(entry: str, **named: str) -> gr.Kernel:
    """One that has a name of every kind."""
    n = gr.sym(named.get("symbol", "n"))
    with gr.Kernel(entry) as made:
        gr.blocks(1)
        (t,) = gr.threads(4).indices()
        p = gr.param(named.get("parameter", "p"), gr.i32)
        x, y = gr.input(named.get("argument", "x"), [n], gr.fp32), gr.output("y", [4], gr.fp32)
        r = gr.alloc(named.get("register", "r"), [], gr.fp32, gr.RF)
        s = gr.alloc(named.get("shared", "s"), [4], gr.fp32, gr.SH)
        for i in gr.loop(named.get("loop", "i"), n):
            gr.move(r, x[i])
            gr.move(s[t], r)
        q = gr.scalar(named.get("scalar", "q"), 0, 0, 3)
        q.set((q.value + p) % 4)
        gr.barrier()
        gr.move(r, s[q.value])
        gr.move(y[t], r)
    return made


TEXT = ("symbol", "argument", "shared", "register", "parameter")  # kinds whose names stand bare in it
KINDS = ("symbol", "argument", "shared", "register", "loop", "scalar", "parameter")


@pytest.mark.parametrize("word", KEPT)
def test_variables_of_kept_names_compile(word: str) -> None:
    for kind in KINDS:
        if word == "_" and kind in TEXT:
            continue  # a word of the IR's own text
        assert _kernel("k", **{kind: word}).compile("sm_80").cubin, kind


@pytest.mark.parametrize("word", KEPT + FUNCTIONS)
def test_kernels_of_kept_names_compile(word: str) -> None:
    made = _kernel(word)
    assert made.name == word
    assert gr.parse(str(made)) == made
    assert made.compile("sm_80").entry != word


def test_other_names_stay_as_they_are() -> None:
    made = _kernel("norms", register="sin", shared="y0")
    assert made.compile("sm_80").entry == "norms"
    source = made.cuda_source("sm_80")
    assert "float sin;" in source
    assert "float y0[4];" in source


@pytest.mark.parametrize("word", ["1a", "a b", "a-b", "", "\u03bb", "a\nb", "a.b", "%a"])
def test_what_is_no_name(word: str) -> None:
    for kind in ("entry", *KINDS):
        if kind == "symbol" and " " in word:
            continue  # gr.sym("a b") are two
        if kind == "symbol" and "\n" in word:
            continue
        with pytest.raises(gr.GrapheneError) as e:
            _kernel(**({"entry": "k"} | {kind: word}))
        assert e.value.code in ("KERNEL_NAME", "SYM_FACTS")


def test_a_long_name_of_a_kernel() -> None:
    """NVRTC ended the process with a name of 100,000 characters."""
    assert _kernel("k" * 1024).compile("sm_80").entry == "k" * 1024
    text = str(_kernel("k"))
    for make in (lambda name: _kernel(name), lambda name: gr.parse(text.replace('"k"', f'"{name}"'))):
        with pytest.raises(gr.VerifyError, match="a kernel's name has at most 1024 characters") as e:
            make("k" * 100000)
        assert e.value.code == "KERNEL_NAME"


def test_half_of_a_surrogate_pair_in_a_name() -> None:
    with pytest.raises(gr.VerifyError) as e:
        _kernel("\ud800")
    assert e.value.code == "KERNEL_NAME"


def test_two_of_one_name() -> None:
    """Declared twice for the caller: refused. Tensors of the kernel's own are told apart in the text."""
    with pytest.raises(gr.VerifyError) as e:
        _kernel("k", argument="y")
    assert str(e.value).split(": ", 1)[1] == "the name of an argument is taken   [KERNEL_NAME]\n  got: y"
    with gr.Kernel("k") as made:
        y = gr.output("y", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(4).indices()
        first, second = (gr.alloc("r", [], gr.fp32, gr.RF) for _ in range(2))
        gr.init(first, 1)
        gr.init(second, 2)
        first[:] = first + second
        gr.move(y[t], first)
    assert gr.parse(str(made)) == made
    assert made.compile("sm_80").cubin
