"""kernel.statements(): what a kernel consists of, as data; nobody reads the printed form for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import graphene as gr
from graphene._core import StatementTensor
from graphene.recorded import every

PACKAGE = Path(gr.__file__).parent
# Mutants of a kernel are changes of its text, line by line, which is then parsed: they have to read it.
READ_TEXT = {"testing/mutate.py"}
# What only the text of the IR has: "%1", "#4", an arrow, a spec's brackets, an allocation, a kernel's head.
OF_THE_TEXT = re.compile(r'<- |<<<|\[[%#]+\]|%\(?\\w|Allocate\(|^\^?kernel "')
NAMES = {"e", "s", "w", "sync", "event", "statement", "step", "wrote"}  # what has such a text
# Methods that take a text apart.
MATCHES = {"compile", "match", "search", "fullmatch", "findall", "finditer", "sub"}
APART = {"startswith", "endswith", "split", "splitlines", "partition", "removeprefix", "removesuffix", "find", "index"}


def ringed() -> gr.Kernel:
    with gr.Kernel("ringed") as kernel:
        x, y = gr.input("x", [4, 32], gr.fp32), gr.output("y", [4, 32], gr.fp32)
        eps = gr.param("eps", gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH, stages=2)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        at = gr.scalar("at", 0, max=1)
        with gr.loop("k", 4) as k:
            gr.move(s[at.value][t], x[k, t])
            gr.barrier()
            gr.move(r, s[at.value][31 - t])
            gr.unary("neg", r, r)
            gr.binary("max", r, r, eps)
            with gr.if_(k < 3):
                gr.move(y[k, t], r)
            with gr.else_():
                gr.move(y[k, t], r)
            at.set((at.value + 1) % 2)
    return kernel


def test_statements_say_what_the_text_says() -> None:
    kernel = ringed()
    found = list(every(kernel.statements()))
    # Every line of the text, in its order; what is no statement stands before the first, and braces close bodies.
    lines = [x.strip().removesuffix(" {").removesuffix(" collective") for x in str(kernel).splitlines()]
    texts = [s.text for s in found]
    assert [x for x in lines[lines.index(texts[0]) :] if x not in ("}", "} else")] == texts
    assert len({s.id for s in found}) == len(found)
    assert {s.where.rsplit("/", 1)[-1].split(":")[0] for s in found} == {"test_statements.py"}


def test_statements_name_tensors_and_instructions() -> None:
    found = list(every(ringed().statements()))
    first = next(s for s in found if s.kind == "spec")
    assert (first.what, first.operands, first.op) == ("Move", ("x",), "")
    assert first.outs == (StatementTensor("s", "SH", "fp32"),)
    assert first.ins == (StatementTensor("x", "GL", "fp32"),)
    most = next(s for s in found if s.op == "max")
    assert (most.what, most.operands) == ("BinaryPointwise", ("r", "eps"))
    assert [s.what for s in found if s.kind == "sync"] == ["barrier"]
    assert [s.outs[0].name for s in found if s.kind == "allocate"] == ["s", "r"]
    assert "at = (at + 1)%2" in {s.named for s in found if s.kind == "assign"}
    branch = next(s for s in found if s.kind == "if")
    assert [[s.outs[0].name for s in b if s.kind == "spec"] for b in (branch.body, branch.otherwise)] == [["y"], ["y"]]


def parsed_text(tree: ast.AST) -> Iterator[int]:
    """Lines where a file has patterns of the printed IR, or takes the text of a statement apart."""
    for n in ast.walk(tree):
        wrong = False
        if isinstance(n, ast.Call) and _name(n.func) in MATCHES:
            strings = [x.value for x in ast.walk(n) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
            wrong = any(OF_THE_TEXT.search(x) for x in strings)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in APART:
            wrong |= _of_ir(n.func.value)
        if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn)):
            wrong |= any(_of_ir(x) for x in n.comparators)
        if wrong:
            yield n.lineno


def _name(function: ast.AST) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _of_ir(x: ast.AST) -> bool:
    """Whether this is the text of a statement, of an event or of a kernel."""
    if isinstance(x, ast.Call) and _name(x.func) == "str" and x.args:
        return _name(x.args[0]) == "kernel"
    return isinstance(x, ast.Attribute) and x.attr in ("text", "statement") and _name(x.value) in NAMES


def test_the_check_sees_what_it_looks_for() -> None:
    for wrong in ('if e.text.startswith("sync("): pass', '"release=" in sync.text', 're.findall(r"%(\\w+)", line)',
                  "x = str(kernel).splitlines()", "re.match(r'kernel \"([^\"]+)\"', text)"):  # fmt: skip
        assert list(parsed_text(ast.parse(wrong))), wrong


def test_no_file_reads_the_printed_ir() -> None:
    found = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if list(parsed_text(ast.parse(p.read_text())))}
    assert found == READ_TEXT
