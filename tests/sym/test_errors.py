"""What goes wrong says so: the texts verbatim, and no input that crashes or hangs."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import _core

M, N = gr.sym("M N")
BIG = 2**63 - 1

TEXTS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: bool(M < N),
        "the truth of M < N is known only when the kernel runs   [SYM_RUNTIME_BOOL]\n"
        "  asked by: a Python if, while, assert, and, or, not, in, min() or max() while the kernel is being built\n"
        "  fix: gr.if_(condition) for statements, gr.where(condition, a, b) for values, gr.min / gr.max for the "
        "smaller or larger value, & | ~ to join conditions",
    ),
    (
        lambda: range(M * 2),
        "the value of M*2 is known only when the kernel runs   [SYM_RUNTIME_INT]\n"
        "  asked by: int(), range() or an index that must be a Python integer\n"
        "  fix: gr.loop(name, stop) in place of range(stop)",
    ),
    (lambda: M // 0, "division of M by zero   [SYM_DIV_ZERO]"),
    (lambda: (M + 1) % (N - N), "remainder of M + 1 by zero   [SYM_DIV_ZERO]"),
    (
        lambda: _core.sym_evaluate(4 // M, {"M": 0}),
        "the divisor of 4//M is zero   [SYM_DIV_ZERO]",
    ),
    (lambda: M + 2**63, "a Python integer leaves the 64-bit range   [SYM_OVERFLOW]"),
    (lambda: (M + BIG) + 1, "a sum or product of symbolic integers leaves the 64-bit range   [SYM_OVERFLOW]"),
    (lambda: (M * BIG) * 2, "a sum or product of symbolic integers leaves the 64-bit range   [SYM_OVERFLOW]"),
    (
        lambda: _core.sym_evaluate(M * N, {"M": 2**40, "N": 2**40}),
        "the value of M*N leaves the 64-bit range   [SYM_OVERFLOW]",
    ),
    (
        lambda: gr.sym("M", min=5, max=4),
        "the facts of M contradict each other   [SYM_FACTS]\n  bounds: min 5 is above max 4",
    ),
    (
        lambda: gr.sym("M", min=1, max=7, multiple_of=8),
        "the facts of M contradict each other   [SYM_FACTS]\n  bounds: no multiple of 8 from 1 to 7",
    ),
    (
        lambda: gr.sym("M", multiple_of=0),
        "the facts of M contradict each other   [SYM_FACTS]\n  multiple_of: want at least 1, got 0",
    ),
    (lambda: gr.sym("M N M"), "the symbol M is named twice   [SYM_FACTS]"),
    (lambda: gr.sym(" "), 'no symbol is named   [SYM_FACTS]\n  fix: gr.sym("M N")'),
    (
        lambda: gr.sym("M 2N"),
        '"2N" cannot name a symbol   [SYM_FACTS]\n'
        "  fix: letters, digits and _, not starting with a digit; and, or, not, min, max are taken",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), TEXTS, ids=[re.sub(r"\n.*", "", t) for _, t in TEXTS])
def test_error_texts(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(gr.LayoutError) as e:
        wrong()
    assert str(e.value) == text


PARSE = [
    ("", "want an integer, a name or '(', got the end of the text at offset 0"),
    ("M +", "want an integer, a name or '(', got the end of the text at offset 3"),
    ("M + )", "want an integer, a name or '(', got ')' at offset 4"),
    ("(M", "want ')', got the end of the text at offset 2"),
    ("M N", "want an operator or the end, got 'N' at offset 2"),
    ("M / 2", "want an operator or the end, got '/' at offset 2"),
    ("Q*2", "unknown name 'Q' at offset 0"),
    ("min(M, ", "want an integer, a name or '(', got the end of the text at offset 7"),
    ("min(M; N)", "want ',' or ')', got ';' at offset 5"),
    ("3M", "want an operator after an integer, got 'M' at offset 1"),
    ("M < N < 3", "comparisons do not chain: write 'and' between them, at offset 6"),
    ("M and", "want an integer, a name or '(', got the end of the text at offset 5"),
    ("1 + \n é", "want an integer, a name or '(', got '\\xc3' at offset 6"),
    ("(" * 400, "nested more than 100 deep at offset 100"),
]


@pytest.mark.parametrize(("text", "message"), PARSE)
def test_malformed_text_gives_the_offset(text: str, message: str) -> None:
    with pytest.raises(gr.LayoutError) as e:
        _core.sym_parse(text, {"M": M, "N": N})
    assert e.value.code == "SYM_PARSE"
    assert e.value.diagnostics[0]["message"] == message


def test_text_by_hand() -> None:
    names = {"M": M, "N": N}
    read = lambda text: _core.sym_parse(text, names)  # noqa: E731
    assert read("2 * (M+3)") == M * 2 + 6
    assert str(read("M > N")) == "N < M"
    assert str(read("not M >= N or M == 3")) == "M < N or M == 3"
    assert read("-7 // 2") == -4
    assert read("-7 % 3") == 2
    assert read("- - 3") == 3
    assert read("7 ^ 2 + 1") == 4
    assert read("max(1, 5, M - M)") == 5
    assert read("-9223372036854775808") == -(2**63)
    with pytest.raises(gr.LayoutError, match=r"integer at offset 4 leaves the 64-bit range   \[SYM_OVERFLOW\]"):
        read("1 + 9223372036854775808")


def test_no_text_crashes_or_hangs() -> None:
    rng = random.Random(7)
    pieces = [
        "M",
        "N",
        "0",
        "1",
        "8",
        "(",
        ")",
        "+",
        "-",
        "*",
        "//",
        "%",
        "^",
        "<",
        "<=",
        "==",
        "!=",
        " and ",
        " or ",
        "not ",
    ]
    pieces += ["min(", "max(", ",", "9223372036854775807", "\x00", "é", "M%N", "(M+N)", " "]
    outcomes: dict[str, int] = {}
    for _ in range(20000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 14)))
        try:
            _core.sym_parse(text, {"M": M, "N": N})
            outcomes["ok"] = outcomes.get("ok", 0) + 1
        except gr.LayoutError as e:
            outcomes[str(e.code)] = outcomes.get(str(e.code), 0) + 1
    assert set(outcomes) == {"ok", "SYM_PARSE", "SYM_OVERFLOW", "SYM_DIV_ZERO"}
    assert outcomes["ok"] > 300


@pytest.mark.parametrize(
    "step",
    [
        lambda e, i: (e % (1000 + i)) * 3 + N,
        lambda e, i: (e ^ (M * i + 3)) % 1009 + (N ^ e),
        lambda e, i: gr.min(e * 2, N * i + M) + 1,
        lambda e, i: (e + N) // (M + i) + e,
        lambda e, i: e * (M + N + 1),
        lambda e, i: e * e,
        lambda e, i: e + M % (i + 2),
        lambda e, i: gr.max(e, N * i + M * (1000 - i)),
        lambda e, i: (e * M == N + i) & (M + i > N),
    ],
)
def test_growth_without_end_is_refused(step: Callable[[Any, int], Any]) -> None:
    e = [M + 1]

    def grow() -> None:
        for i in range(1, 100000):
            made = step(e[0], i)
            e[0] = made if isinstance(made, gr.IntExpr) else M

    with pytest.raises(gr.LayoutError) as error:
        grow()
    assert error.value.code in ("SYM_SIZE", "SYM_OVERFLOW")
    assert len(str(e[0])) > 0


def test_mixing_with_other_types() -> None:
    assert M + np.int64(3) == M + 3
    assert np.int32(3) * M == M * 3
    assert isinstance(np.int64(3) + M, gr.IntExpr)
    assert M + True == M + 1
    assert (M == None) is False  # noqa: E711
    assert (M != "M") is True
    assert M in [M, N]
    for op in (operator.add, operator.floordiv, operator.lt, operator.xor):
        with pytest.raises(TypeError):
            op(M, 1.5)
        with pytest.raises(TypeError):
            op("a", M)
    for op in (operator.truediv, operator.and_, operator.lshift, operator.pow):
        with pytest.raises(TypeError):
            op(M, 3)
    for quotient in (lambda: M / 2, lambda: 2 / M, lambda: M / 2.0, lambda: M / N):
        with pytest.raises(TypeError, match=r"write a // b, which rounds down, or gr\.ceil_div"):
            quotient()
    with pytest.raises(TypeError, match="~ negates a condition; M is not one"):
        operator.invert(M)


def test_known_values_are_python_ints() -> None:
    for value in (M - M, M * 0, (M * 8) % 8, M // M):
        assert type(value) is int
    assert type(M == M) is bool
    assert int(gr.sym("F", min=5, max=5)) == 5
    assert [10, 20][gr.sym("F", min=1, max=1)] == 20


def test_identity_and_hash() -> None:
    assert hash(gr.sym("M")) == hash(M)
    assert {M: 1, N: 2}[gr.sym("M")] == 1
    assert {M + 1: 1}[1 + M] == 1
    other = gr.sym("M", multiple_of=8)
    assert isinstance(other == M, gr.IntExpr)
    assert repr(M + 1) == str(M + 1) == f"{M + 1}" == "M + 1"
    with pytest.raises(AttributeError):
        M.value = 3
