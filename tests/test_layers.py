"""Data flows one way through the layers: the includes of csrc/ and the imports of graphene/ prove it."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
ORDER = ["base", "sym", "layout", "plan", "ir", "atoms", "build", "verify", "lower", "emit", "sim", "runtime", "call",
         "torch", "bind"]  # fmt: skip
# Two readers of the lowered tree that know nothing of each other, and a runtime that gets source text and a manifest.
REFUSED = {("emit", "sim"), ("sim", "emit")} | {
    (reader, layer) for reader in ("runtime", "call", "torch") for layer in ORDER[2:11]
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cpp"))


def layer_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def test_every_folder_is_a_layer() -> None:
    assert {layer_of(p) for p in SOURCES} <= set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_includes_follow_the_order_of_the_layers(path: Path) -> None:
    layer = layer_of(path)
    wrong = []
    for include in INCLUDE.findall(path.read_text()):
        if include == "base/codes.def":
            continue
        assert "/" in include, f'write "{layer}/{include}", as everywhere'
        other = include.split("/")[0]
        assert other in ORDER, f"{include} is in no layer"
        if ORDER.index(other) > ORDER.index(layer) or (layer, other) in REFUSED:
            wrong.append(include)
    assert not wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_included_files_exist(path: Path) -> None:
    assert not [i for i in INCLUDE.findall(path.read_text()) if not (CSRC / i).exists()]


# Python: the folders of graphene/, the lowest first. A file imports nothing of a later line, wherever in it the import
# stands: at its top, inside of a function, for types alone, or by a name that importlib is given.
PACKAGE = ROOT / "graphene"
FLOORS = (
    ("", "judge", "viz"),  # the language: kernels are recorded, run, judged, drawn
    ("kernels",),
    ("select",),
    ("plan",),
    ("ops",),
    ("nn", "tune"),
    ("integrations", "testing"),
    ("cli",),
)
# The package's face hands on what is below it, and reads ops and nn when they are asked for; `python -m graphene` is
# the command line; kernels hands on what chooses them, which lay there once.
FACES = {("graphene", name) for name in ("nn", "ops", "plan", "select", "tune")} | {
    ("graphene.__main__", "cli"), ("graphene.kernels", "select"),
}  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def _name(function: ast.AST) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of graphene/ that a file imports, each as the file that is read. The extension is none of them."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write the whole name, as everywhere"
            names += [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Call) and _name(node.func).endswith("import_module"):
            names += [x.value for x in node.args if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    for name in names:
        found = name if name in MODULES else name.rpartition(".")[0]
        if found in MODULES and name != "graphene._core":
            yield found


ARROWS = {m: sorted(set(imported(ast.parse(p.read_text()))) - {m}) for m, p in MODULES.items()}


def folder_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") and (PACKAGE / module.split(".")[1]).is_dir() else ""


def test_every_folder_of_python_has_a_floor() -> None:
    assert {folder_of(m) for m in MODULES} == {folder for floor in FLOORS for folder in floor}


def test_python_imports_follow_the_order_of_the_floors() -> None:
    floor = {folder: i for i, folders in enumerate(FLOORS) for folder in folders}
    wrong = [
        f"{m} -> {other}"
        for m, others in ARROWS.items()
        for other in others
        if floor[folder_of(other)] > floor[folder_of(m)] and (m, folder_of(other)) not in FACES
    ]
    assert not wrong


def test_no_files_of_python_import_each_other_in_a_circle() -> None:
    left = {m: set(others) for m, others in ARROWS.items()}
    while free := {m for m, others in left.items() if not others}:  # the ground, then what stands on it alone
        left = {m: others - free for m, others in left.items() if m not in free}
    assert not left, "these import each other, or stand on such"


# One name says one thing. A class that has its name a second time belongs here, with the reason why both are right.
SAME_CLASSES: dict[str, str] = {}
# A file's name may stand once on each of the floors of a subject: its kernels, their choice, its operator. Other names
# that stand twice belong here. In folders of one floor the folder says of what. Former names (`graphene/tune`) do not
# count.
FLOORS_OF_A_SUBJECT = ("kernels", "select", "ops")
SAME_FILES = {
    "checks": "of arguments: what all operators share, what attention asks beside it",
    "measure": "measures plans; measures configurations",
    "planned": "a plan; the operator that runs its kernel",
    "problem": "what is computed: a product, attention, rows",
    "rows": "the plan of a graph over rows; the choice among the library's kernels over rows",
    "sm90": "the kernel for Hopper: of a product, of attention",
    "warm": "the command; what it does",
}


def homes_of(names: Callable[[Path], Iterator[str]]) -> dict[str, list[str]]:
    """Each name with all its places, if it has more than one."""
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for name in names(path):
            homes.setdefault(name, []).append(module)
    return {name: at for name, at in homes.items() if len(at) > 1}


def classes_of(path: Path) -> Iterator[str]:
    yield from (n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef))


def file_of(path: Path) -> Iterator[str]:
    if path.stem != "__init__" and path.parent.name != "tune":
        yield path.stem


def once_a_floor(modules: list[str]) -> bool:
    folders = [folder_of(m) for m in modules]
    return len(set(folders)) == len(folders) and set(folders) <= set(FLOORS_OF_A_SUBJECT)


def test_no_two_classes_have_one_name() -> None:
    found = homes_of(classes_of)
    assert {n: at for n, at in found.items() if n not in SAME_CLASSES} == {}
    assert set(SAME_CLASSES) <= set(found), "these have one home by now"


def test_files_of_one_name_are_of_one_subject() -> None:
    found = {n: at for n, at in homes_of(file_of).items() if not once_a_floor(at)}
    assert {n: at for n, at in found.items() if n not in SAME_FILES} == {}
    assert set(SAME_FILES) <= set(found), "these have one home by now"
