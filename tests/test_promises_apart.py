"""Promises are written apart from kernels: no function serves both, so a mistake in one is not made by the other.

The meanings of the library's kernels are the functions of `reference*.py`, and the ones that `means=` and `read=`
name. What they call in graphene/kernels, and what that calls, is called by no function that records statements.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "graphene/kernels"
Named = tuple[str, str]  # a module, and a function or a constant at its top


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


TREES = {module_of(p): ast.parse(p.read_text()) for p in sorted(KERNELS.rglob("*.py")) if p.name != "__init__.py"}


def named(tree: ast.AST, without: Collection[int] = (), calls: bool = False) -> Iterator[str]:
    """The names that a tree reads, and those of a module with its name before; but no parts whose id is left out."""
    left = [tree]
    while left:
        node = left.pop()
        if id(node) in without:
            continue
        named = node.func if calls and isinstance(node, ast.Call) else node if not calls else None
        if isinstance(named, ast.Name) and isinstance(named.ctx, ast.Load):
            yield named.id
        elif isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
            yield f"{named.value.id}.{named.attr}"
        left += ast.iter_child_nodes(node)


def homes(module: str) -> dict[str, Named]:
    """What a name at the top of a module stands for, where that lies in graphene/kernels."""
    found: dict[str, Named] = {}
    for node in TREES[module].body:
        if isinstance(node, ast.ImportFrom):
            for a in node.names:
                if f"{node.module}.{a.name}" in TREES:
                    other = f"{node.module}.{a.name}"
                    found |= {f"{a.asname or a.name}.{name}": (other, name) for name in tops(other)}
                elif node.module in TREES:
                    found[a.asname or a.name] = (str(node.module), a.name)
    return found | {name: (module, name) for name in tops(module)}


def tops(module: str) -> dict[str, ast.AST]:
    """The functions, classes and constants at the top of a module."""
    made: dict[str, ast.AST] = {}
    for node in TREES[module].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(name, ast.Name):
                        made[name.id] = node
    return made


HOMES = {m: homes(m) for m in TREES}
TOPS = {m: tops(m) for m in TREES}


def is_reference(module: str) -> bool:
    return module.rpartition(".")[2].startswith("reference")


def meant(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions that say what kernels, specs and approximate functions mean."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (k.value for k in node.keywords if k.arg in ("means", "read"))
            yield from node.args[1:2] if ast.unparse(node.func) == "gr.Kernel" else ()
            yield from node.args if ast.unparse(node.func) == "gr.approximately" else ()
        elif isinstance(node, ast.Dict):
            yield from (v for k, v in zip(node.keys, node.values, strict=True) if k and ast.unparse(k) == "'means'")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("means", "TWO_PRODUCTS"):
            yield node.value


def drawn(tree: ast.AST) -> set[str]:
    """The functions that make arguments for checks: data are no statements, whoever computed them."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "gr.Arguments"]
    return {name for call in calls for name in named(call)}


def functions(tree: ast.AST, names: set[str]) -> list[ast.AST]:
    """The functions of these names, wherever they are defined."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]


def meanings(module: str) -> list[ast.AST]:
    """The expressions and functions of a module that are meanings."""
    tree = TREES[module]
    if is_reference(module):
        return [tree]
    said = list(meant(tree))
    return [*said, *functions(tree, {name for expression in said for name in named(expression)})]


def used(module: str, trees: list[ast.AST], without: Collection[int] = (), calls: bool = False) -> set[Named]:
    """What these trees read of the tops of modules of graphene/kernels."""
    return {HOMES[module][n] for tree in trees for n in named(tree, without, calls) if n in HOMES[module]}


def promises() -> set[Named]:
    """The functions at the tops of modules that meanings call, directly or not."""
    left = [x for m in TREES for x in used(m, meanings(m))]
    found: set[Named] = set()
    while left:
        module, name = left.pop()
        if (module, name) not in found and isinstance(TOPS[module].get(name), ast.FunctionDef):
            found.add((module, name))
            left += used(module, [TOPS[module][name]])
    return found


PROMISES = promises()
# What both may call, and why a mistake there cannot make both wrong alike.
SHARED = {
    ("epilogues", "pointwise"): "says whether a function returned one value for each element, and returns that",
    ("rows.norm", "exact_mean"): "says how exact a mean is to be, not what it is",
    ("mlp", "runs_of"): "says which arguments belong to which layers",
    ("mlp", "lines_of"): "is in the name of the tensor that holds a result between layers",
    ("mlp", "up"): "a multiple, in that name",
    ("mlp_sm90", "runs_of"): "says which arguments belong to which layers",
}
# Constants of files with kernels that meanings read: how arguments lie in memory, and which types there are.
CONSTANTS = {("attention.workspace", "PANEL"), ("attention.workspace", "ROWS"), ("gemm.problem", "FP8"),
             ("gemm.problem", "TYPES"), ("gemm.weights", "CHUNK"), ("gemm.weights", "PACKED_ROWS"),
             ("gemm.result", "PROMOTED"), ("recurrent", "TWO_PRODUCTS")}  # fmt: skip


def short(of: Named) -> Named:
    return of[0].removeprefix("graphene.kernels."), of[1]


def own(module: str) -> list[ast.AST]:
    """All of a module that belongs to meanings."""
    return [*meanings(module), *(TOPS[m][n] for m, n in PROMISES if m == module)]


def test_meanings_are_found() -> None:
    known = {("attention.reference", "visible"), ("gemm.result", "combined"), ("recurrent", "meaning"),
             ("reference_activations", "ended"), ("rows.softmax", "_softmax")}  # fmt: skip
    assert known <= set(map(short, PROMISES))


def test_no_function_serves_a_meaning_and_a_kernel() -> None:
    both: dict[Named, set[str]] = {}
    for module, tree in TREES.items():
        if is_reference(module) or module.endswith(".usual_arguments"):
            continue
        without = {id(x) for x in [*own(module), *functions(tree, drawn(tree))]}
        for x in used(module, [tree], without, calls=True) & PROMISES:
            both.setdefault(short(x), set()).add(module)
    assert {x: sorted(modules) for x, modules in both.items() if x not in SHARED} == {}
    assert not SHARED.keys() - both.keys(), "these are not shared any more"


def test_no_constant_of_a_kernel_is_in_a_meaning() -> None:
    """A wrong digit of a constant that both read would be right for the check."""
    read = {
        short(x)
        for m in TREES
        for x in used(m, own(m))
        if not is_reference(x[0]) and isinstance(TOPS[x[0]].get(x[1]), ast.Assign | ast.AnnAssign)
    }
    assert read == CONSTANTS
