"""No simplification, bound, divisor, bit mask, decision or C text is wrong on a value that the facts allow."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import _core

Tree = tuple[Any, ...]  # ("const", 3), ("var", "x"), ("+", left, right), ("not", operand)

INT64 = range(-(2**63), 2**63)


@dataclass
class Variable:
    expr: Any
    min: int
    max: int  # of sampled values
    multiple_of: int = 1
    hi: Any = None
    definition: Any = None


def make_variables() -> dict[str, Variable]:
    """Small and unbounded ranges, multiples, negative values, loop counters below a symbolic count, coordinates."""
    out: dict[str, Variable] = {}

    def add(name: str, least: int, most: int, endless: bool = False, **facts: Any) -> Any:
        e = _core.sym_var(name, min=least, max=None if endless else most, **facts)
        out[name] = Variable(e, least, most, facts.get("multiple_of", 1), facts.get("hi"), facts.get("definition"))
        return e

    tid = add("tid", 0, 127, kind="thread")
    add("x", 0, 7)
    add("y", 0, 31)
    add("s", -20, 20)
    add("p", 1, 9)
    n = add("N", 0, 300, endless=True)
    m = add("M", 0, 320, endless=True, multiple_of=8)
    add("G", 16, 96, multiple_of=16)
    add("k", 0, 400, endless=True, kind="loop", hi=_core.ceil_div(n, 32) - 1)
    add("j", 0, 400, endless=True, kind="loop", hi=m - 1)
    add("w", 0, 3, kind="coord", definition=tid // 32)
    add("l", 0, 31, kind="coord", definition=tid % 32)
    return out


VARIABLES = make_variables()


def sample(rng: random.Random) -> dict[str, int] | None:
    """Values that meet every fact, drawn towards the ends of the ranges; None if a loop of this draw never runs."""
    env: dict[str, int] = {}
    for name, v in VARIABLES.items():
        if v.definition is not None:
            env[name] = _core.sym_evaluate(v.definition, env)
            continue
        hi = v.max if v.hi is None else min(v.max, _core.sym_evaluate(v.hi, env))
        lo, hi = -(-v.min // v.multiple_of), hi // v.multiple_of
        if hi < lo:
            return None
        env[name] = v.multiple_of * rng.choice([lo, hi, rng.randint(lo, hi), rng.randint(lo, hi)])
    return env


CONSTANTS = [0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 64, 100, 128, -1, -2, -8]
ARITHMETIC = ["+", "+", "-", "*", "*", "//", "//", "%", "%", "^", "min", "max"]
CONDITIONS = ["<", "<=", "==", "!=", ">", ">="]

leaves = st.one_of(
    st.sampled_from([("var", name) for name in VARIABLES]),
    st.sampled_from([("const", c) for c in CONSTANTS]),
)


def _extend(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    scaled = st.tuples(st.sampled_from(["*", "//", "%"]), children, leaves)
    return st.one_of(scaled, st.tuples(st.sampled_from(ARITHMETIC), children, children))


trees = st.recursive(leaves, _extend, max_leaves=12)
comparisons = st.tuples(st.sampled_from(CONDITIONS), trees, trees)
conditions = st.recursive(
    comparisons,
    lambda c: st.one_of(st.tuples(st.sampled_from(["and", "or"]), c, c), st.tuples(st.just("not"), c)),
    max_leaves=3,
)


class UndefinedError(Exception):
    """A division by zero or a value past 64 bits."""


def reference(t: Tree, env: dict[str, int]) -> int:
    """The value of a tree, by Python's own operators."""
    op = t[0]
    if op == "const":
        return int(t[1])
    if op == "var":
        return env[t[1]]
    a = reference(t[1], env)
    if op == "not":
        return int(not a)
    b = reference(t[2], env)
    if op in ("//", "%") and b == 0:
        raise UndefinedError
    value = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "^": lambda: a ^ b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "<": lambda: int(a < b),
        "<=": lambda: int(a <= b),
        ">": lambda: int(a > b),
        ">=": lambda: int(a >= b),
        "==": lambda: int(a == b),
        "!=": lambda: int(a != b),
        "and": lambda: int(a != 0 and b != 0),
        "or": lambda: int(a != 0 or b != 0),
    }[op]()
    if value not in INT64:
        raise UndefinedError
    return value


def build(t: Tree) -> Any:
    """The tree as the library builds it."""
    op = t[0]
    if op == "const":
        return t[1]
    if op == "var":
        return VARIABLES[t[1]].expr
    a = build(t[1])
    if op == "not":
        return not a if isinstance(a, bool) else ~a
    b = build(t[2])
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "^": lambda: a ^ b,
        "min": lambda: _core.sym_min(a, b),
        "max": lambda: _core.sym_max(a, b),
        "<": lambda: a < b,
        "<=": lambda: a <= b,
        ">": lambda: a > b,
        ">=": lambda: a >= b,
        "==": lambda: a == b,
        "!=": lambda: a != b,
        "and": lambda: a & b,
        "or": lambda: a | b,
    }[op]()


REFUSALS = {"SYM_OVERFLOW", "SYM_DIV_ZERO", "SYM_SIZE"}
seeds = st.integers(0, 2**32)
fast = settings(max_examples=400, deadline=None)


def refusal(e: gr.LayoutError) -> None:
    """Skips an example that may be refused; any other code is a failure."""
    assert e.code in REFUSALS
    assume(False)


def built(t: Tree) -> Any:
    try:
        return build(t)
    except gr.LayoutError as e:
        refusal(e)
    except ZeroDivisionError:
        assume(False)  # of two constants, which are Python's own


def values(t: Tree, seed: int, draws: int = 12) -> list[tuple[dict[str, int], int]]:
    """Draws of the variables with the value of the tree at each."""
    rng = random.Random(seed)
    out = []
    for _ in range(draws):
        env = sample(rng)
        if env is None:
            continue
        try:
            out.append((env, reference(t, env)))
        except UndefinedError:
            continue
    return out


@fast
@given(st.one_of(trees, conditions), seeds)
def test_the_value_survives_simplification(t: Tree, seed: int) -> None:
    e = built(t)
    for env, want in values(t, seed):
        assert _core.sym_evaluate(e, env) == want


@fast
@given(st.one_of(trees, conditions), seeds)
def test_facts_hold_for_every_value(t: Tree, seed: int) -> None:
    e = built(t)
    lo, hi = _core.sym_bounds(e)
    divisor, bits = _core.sym_divisor(e), _core.sym_possible_bits(e)
    for _, want in values(t, seed):
        assert lo is None or lo <= want
        assert hi is None or want <= hi
        assert want % divisor == 0 if divisor else want == 0
        assert bits == 2**64 - 1 or (want >= 0 and want & ~bits == 0)


@fast
@given(conditions, seeds)
def test_a_decision_holds_for_every_value(t: Tree, seed: int) -> None:
    decided = _core.sym_decide(built(t))
    assume(decided is not None)
    for _, want in values(t, seed):
        assert bool(want) == decided


def run_c(text: str, env: dict[str, int], most: list[int]) -> int:
    """C text in unbounded integers. Refuses / and % of negative operands; `most` collects the largest magnitude."""
    python = text.replace("&&", " and ").replace("||", " or ")

    def value(node: ast.AST) -> int:
        result = compute(node)
        most[0] = max(most[0], abs(result))
        return result

    def compute(node: ast.AST) -> int:
        match node:
            case ast.Expression(body=body):
                return value(body)
            case ast.Constant(value=v):
                return int(v)
            case ast.Name(id=name):
                return env[name]
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return -value(a)
            case ast.BoolOp(op=op, values=parts):
                return int((all if isinstance(op, ast.And) else any)(value(p) != 0 for p in parts))
            case ast.Compare(left=a, ops=[op], comparators=[b]):
                x, y = value(a), value(b)
                table = {ast.Lt: x < y, ast.LtE: x <= y, ast.Eq: x == y, ast.NotEq: x != y}
                return int(table[type(op)])
            case ast.Call(func=ast.Name(id=f), args=[a, b]):
                x, y = value(a), value(b)
                if f in ("gr_floor_div", "gr_mod"):
                    return x // y if f == "gr_floor_div" else x % y
                return {"gr_min": min, "gr_max": max}[f](x, y)
            case ast.BinOp(left=a, op=op, right=b):
                x, y = value(a), value(b)
                if isinstance(op, ast.Div | ast.Mod):
                    assert x >= 0, text
                    assert y > 0, text
                    return x // y if isinstance(op, ast.Div) else x % y
                table2 = {
                    ast.Add: lambda: x + y,
                    ast.Sub: lambda: x - y,
                    ast.Mult: lambda: x * y,
                    ast.BitXor: lambda: x ^ y,
                    ast.BitAnd: lambda: x & y,
                    ast.RShift: lambda: x >> y,
                }
                return table2[type(op)]()
        raise AssertionError(f"{ast.dump(node)} in {text}")

    return value(ast.parse(python, mode="eval"))


@fast
@given(st.one_of(trees, conditions), seeds)
def test_c_text_computes_the_value(t: Tree, seed: int) -> None:
    e = built(t)
    text = _core.sym_to_c(e)
    # C binds ^ & >> weaker than Python does: the text never leaves that to precedence.
    assert not re.search(r"[<>=]=? [^()]*(\([^()]*\))*[^()]* [&^] ", text)
    fits = _core.sym_fits_signed(e, 32)
    for env, want in values(t, seed):
        most = [0]
        assert run_c(text, env, most) == want
        assert not fits or most[0] < 2**31


@fast
@given(st.one_of(trees, conditions))
def test_text_reads_back_to_the_identical_expression(t: Tree) -> None:
    e = built(t)
    again = _core.sym_parse(str(int(e) if isinstance(e, bool) else e), {n: v.expr for n, v in VARIABLES.items()})
    assert _core.sym_identical(again, e), f"{again} is not {e}"


polynomials = st.recursive(
    st.one_of(st.sampled_from([("var", n) for n in "xysp"]), st.integers(-9, 9).map(lambda c: ("const", c))),
    lambda c: st.tuples(st.sampled_from("+-*"), c, c),
    max_leaves=8,
)


def expand(t: Tree) -> dict[tuple[str, ...], int]:
    """Coefficients by monomial."""
    match t:
        case ("const", c):
            return {(): c} if c else {}
        case ("var", name):
            return {(name,): 1}
    a, b = expand(t[1]), expand(t[2])
    out: dict[tuple[str, ...], int] = {}
    if t[0] == "*":
        for m, c in a.items():
            for n, d in b.items():
                key = tuple(sorted(m + n))
                out[key] = out.get(key, 0) + c * d
    else:
        for part, sign in ((a, 1), (b, 1 if t[0] == "+" else -1)):
            for m, c in part.items():
                out[m] = out.get(m, 0) + sign * c
    return {m: c for m, c in out.items() if c}


@fast
@given(polynomials, polynomials)
def test_equal_polynomials_are_identical_and_others_are_not(a: Tree, b: Tree) -> None:
    assert _core.sym_identical(build(a), build(b)) == (expand(a) == expand(b))
    difference = build(("-", ("*", a, b), ("*", b, a)))
    assert difference == 0
    assert isinstance(difference, int)


@fast
@given(trees, st.sampled_from(sorted(VARIABLES)), st.integers(0, 5), seeds)
@example(("*", ("^", ("var", "k"), ("const", -1)), ("var", "tid")), "G", 0, 0)
def test_substitution_is_evaluation_of_the_variable(t: Tree, name: str, c: int, seed: int) -> None:
    e, v = built(t), VARIABLES[name]
    assume(v.definition is None and v.hi is None)
    value = v.multiple_of * max(c, -(-v.min // v.multiple_of))
    assume(value <= v.max)
    try:
        replaced = _core.sym_substitute(e, {v.expr: value})
    except gr.LayoutError as error:
        return refusal(error)
    assert name not in map(str, _core.sym_free_vars(replaced))
    rng = random.Random(seed)
    for _ in range(8):
        env = sample(rng)
        if env is None:
            continue
        env[name] = value
        try:
            want = reference(t, env)
        except UndefinedError:
            continue
        assert _core.sym_evaluate(replaced, env) == want


@pytest.mark.parametrize("a", [-17, -8, -1, 0, 1, 7, 8, 9, 63])
@pytest.mark.parametrize("b", [-9, -8, -1, 1, 2, 8, 9])
def test_division_is_pythons(a: int, b: int) -> None:
    v = _core.sym_var("v", min=-100, max=100)
    for e, want in ((v // b, a // b), (v % b, a % b), (-v // b, -a // b), (-v % b, -a % b)):
        assert _core.sym_evaluate(e, {"v": a}) == want
        assert _core.sym_substitute(e, {v: a}) == want
