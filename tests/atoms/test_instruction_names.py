"""An instruction is named by its entry and by kernels, and nowhere else: no code is for one instruction alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import graphene as gr

ROOT = Path(__file__).parents[2]
ENTRIES = ROOT / "csrc/atoms/entries"
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r"//[^\n]*|R\"doc\(.*?\)doc\"", re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
OPCODE = re.compile(r"(?:^|[;{}]\s*)([a-z]\w*(?:\.\w+)+)")

# Texts for people that mention one: what they advise, an example of a name, what the assembler says.
ADVICE = {
    ("csrc/emit/atom_text.cpp", "mov.b32"): "copies a sum out of the register of the PTX text that holds it",
    ("csrc/emit/prelude.cpp", "mapa.shared"): "an address of a memory, as gr_shared",
    ("csrc/atoms/definition.cpp", "ld.global.b32"): "how a name is written",
    ("csrc/bind/atoms.cpp", "mma.m16n8k16.f32.f16.c"): "a docstring's example",
    ("csrc/lower/lower.cpp", "ld.global"): "which load to use instead",
    ("csrc/sim/interp_report.cpp", "ld.global"): "which load to use instead",
    ("csrc/sim/operands.cpp", "wgmma"): "the domain in which products of warpgroups complete",
    ("csrc/sim/operands_sync.cpp", "wgmma"): "the domain in which products of warpgroups complete",
    ("csrc/bind/sim_results.cpp", "wgmma"): "the domain in which products of warpgroups complete",
    ("csrc/runtime/nvrtc.cpp", "neg.f32"): "a program that does nothing but start the compiler",
    ("csrc/runtime/compile.cpp", "wgmma"): "what the assembler says",
    ("csrc/runtime/compile.cpp", "wgmma.mma_async"): "what the assembler says",
}
PYTHON_ADVICE = {
    ("graphene/atoms.py", "ldmatrix.x4"): "how a name is written",
    ("graphene/declare.py", "mma.c"): "how an operand is written",
    ("graphene/elsewhere.py", "mma"): "a name of another language, whose own word is told",
    ("graphene/judge/runs.py", "tanh.approx"): "whose error the meaning must state, since no simulated result shows it",
    ("graphene/integrations/torch_compile/expected.py", "wgmma"): "a decision of a plan, by which its time is expected",
    ("graphene/viz/agents.py", "cp.async.bulk"): "which line of the picture an event is on",
    ("graphene/viz/agents.py", "wgmma"): "which line of the picture an event is on",
}


def stem(word: str) -> str:
    """The opcode and its first qualifier: "cp.async", "ld.global"."""
    return ".".join(word.split(".")[:2])


def instructions() -> tuple[set[str], set[str]]:
    """The first two words of every name and opcode, and first words that mean nothing else."""
    atoms = gr.atoms().values()
    names = {a.family for a in atoms} | {op for a in atoms for op in OPCODE.findall(a.ptx)}
    alone = {n.split(".")[0] for n in names} | {"wgmma"}
    return {stem(n) for n in names if "." in n}, {
        n for n in alone if re.search(r"matrix|redux|griddep|mfma|^v_|^ds_|mma$", n)
    }


STEMS, ALONE = instructions()


def named(text: str) -> Iterator[str]:
    for word in WORD.findall(text):
        if stem(word) in STEMS or word.split(".")[0] in ALONE:
            yield word


def test_the_words_that_are_looked_for_are_those_of_the_entries() -> None:
    assert {"ld.global", "mma.sync", "cp.async", "shfl.sync", "bar.sync", "cvt.rn"} <= STEMS
    assert {"ldmatrix", "stmatrix", "redux", "griddepcontrol"} <= ALONE
    assert list(named('if (name == "ldmatrix.x4") use(red.global.add)')) == ["ldmatrix.x4", "red.global.add"]


def in_core() -> set[tuple[str, str]]:
    found = set()
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        if path.is_relative_to(ENTRIES):
            continue
        for text in LITERAL.findall(COMMENT.sub("", path.read_text())):
            found |= {(str(path.relative_to(ROOT)), word) for word in named(text)}
    return found


def test_the_core_names_no_instruction() -> None:
    assert in_core() == set(ADVICE)


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of the constants that are docstrings, or of an assignment to ``__doc__``."""
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    texts += [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and "__doc__" in ast.unparse(n.targets[0])]
    return {id(x) for text in texts for x in ast.walk(text)}


PACKAGE = ROOT / "graphene"
WRITES = ("kernels", "plan")  # a planner writes kernels
PYTHON = sorted(p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in WRITES)


def test_python_names_no_instruction_outside_of_the_kernels() -> None:
    found = set()
    for path in PYTHON:
        tree = ast.parse(path.read_text())
        documentation = docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                found |= {(str(path.relative_to(ROOT)), word) for word in named(node.value)}
    assert found == set(PYTHON_ADVICE)
