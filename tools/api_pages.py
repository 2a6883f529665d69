"""The pages of docs/api: one directive of mkdocstrings for every public name, grouped by what a reader looks for.

A name is in the group that lists its module; a public name that no group takes is an error, so that the reference is
complete. The names are filled in when the site is built, by the hook at the end: a new name changes no page.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any, NamedTuple


class Group(NamedTuple):
    """A page: its file, title, introduction, and the modules whose public names it shows."""

    file: str
    title: str
    about: str
    modules: tuple[str, ...]


GROUPS = (
    Group(
        "kernel",
        "Kernels and arguments",
        "A kernel, what it is declared with, and what it can be asked.",
        (
            "kernel",
            "declare",
            "forms",
            "check",
            "simulate",
            "watched",
            "recorded",
            "report",
            "dtypes",
            "sym",
            "references",
            "promise",
            "launches",
        ),
    ),
    Group("layouts", "Layouts", "CuTe's layout algebra ([explained](../layouts.md)).", ("layout",)),
    Group(
        "specs",
        "Specs, expressions, control",
        "What is written inside of a kernel ([explained](../language.md)).",
        (
            "specs",
            "expressions",
            "integers",
            "registers",
            "dense",
            "combined",
            "ordered",
            "indexed",
            "control",
            "barriers",
            "_core",
        ),
    ),
    Group(
        "atoms",
        "Instructions",
        "The registry of atomic specs, and how one is added ([explained](../add_an_instruction.md)).",
        ("atoms", "own_atoms"),
    ),
    Group("kernels", "Ready kernels", "`graphene.kernels`: functions from a configuration to a kernel.", ("kernels",)),
    Group(
        "ops",
        "Operators and modules",
        "`graphene.ops` and `graphene.nn` ([explained](../operators.md)).",
        ("ops", "nn"),
    ),
    Group(
        "huggingface",
        "Hugging Face",
        "`graphene.integrations.transformers` ([explained](../huggingface.md)).",
        ("integrations.transformers",),
    ),
    Group(
        "select",
        "Selection and tuning",
        "`graphene.select`: which kernel serves a problem, on what tile ([explained](../tuning.md)).",
        ("select",),
    ),
    Group(
        "planning",
        "Planning",
        "`graphene.plan`: kernels from a few lines of operators ([explained](../planner.md)).",
        ("plan", "integrations.torch_compile"),
    ),
    Group(
        "runtime",
        "Ahead of time",
        "Precompiled kernels and the cache's archives ([explained](../runtime.md)).",
        ("precompiled", "archive", "timings"),
    ),
    Group("viz", "Pictures", "`graphene.viz`: SVG that notebooks show.", ("viz",)),
    Group("errors", "Errors", "Every exception carries a stable code ([all codes](../errors.md)).", ("errors",)),
)
# Packages whose own `__all__` is their page; other modules are shown by what `graphene` itself exports of them.
PACKAGES = ("timings", "plan", "kernels", "ops", "nn", "integrations.transformers", "select", "viz")
# What `kernel.check()` and its like return, which users name in annotations only.
RESULTS = {
    "check": ("CheckError", "CheckResult", "Mutant"),
    "recorded": ("Statement", "StatementTensor"),
    "simulate": ("SimulationStats", "Sync"),
    "watched": ("Step", "Steps", "Watched", "Wrote"),
    "report": ("AccessRow", "Occupancy", "Report", "WidthLimit"),
}


def listed(module: str) -> list[str]:
    """The names of a module's ``__all__``, read from its source where they stand there: the site needs no PyTorch."""
    folder = Path(__file__).resolve().parents[1] / "graphene"
    file = folder.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    for node in ast.parse(file.read_text()).body if file.exists() else ():
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                break
    return list(getattr(importlib.import_module(f"graphene.{module}"), "__all__", ()))


def own_names(module: str) -> set[str]:
    """What a module defines: its ``__all__``, else what says that it is from there."""
    if names := listed(module):
        return set(names)
    m = importlib.import_module(f"graphene.{module}")
    return {n for n, x in vars(m).items() if getattr(x, "__module__", "") == m.__name__}


def exported() -> dict[str, list[str]]:
    """Module below ``graphene`` -> the names that ``graphene`` exports of it."""
    package = importlib.import_module("graphene")
    modules = sorted({m for g in GROUPS for m in g.modules} - {"_core", *PACKAGES})
    known = {m: own_names(m) for m in modules}
    out: dict[str, list[str]] = {}
    for name in package.__all__:
        owner = next((m for m, names in known.items() if name in names), None)
        if owner is None:
            owner = "viz" if name == "svg" else "_core" if hasattr(package._core, name) else ""
        if not owner:
            raise KeyError(f"no page of docs/api takes graphene.{name}: add its module to a group")
        out.setdefault(owner, []).append(name)
    return out


def public(module: str, names: dict[str, list[str]]) -> list[str]:
    """Dotted public names of a module."""
    if module in PACKAGES:
        of_package = listed(module)
        top = names.get(module, [])
        return [*(f"graphene.{n}" for n in top), *(f"graphene.{module}.{n}" for n in of_package if n not in top)]
    results = [f"graphene.{module}.{n}" for n in RESULTS.get(module, ())]
    return [*(f"graphene.{n}" for n in names.get(module, [])), *results]


@functools.cache
def api_pages() -> dict[str, str]:
    """File name under docs/ -> text, as the site has it."""
    names = exported()
    index = [
        "# API reference",
        "",
        "The pages are made from the docstrings; `help(gr.move)` shows the same. Kernels are written with the names of",
        "`import graphene as gr`; the other packages are imported where they are needed.",
        "",
        "| page | holds |",
        "|---|---|",
    ]
    out: dict[str, str] = {}
    for g in GROUPS:
        shown = [n for m in g.modules for n in public(m, names)]
        body = [f"# {g.title}", "", g.about, ""]
        for name in shown:
            body += [f"::: {name}", ""]
        out[f"api/{g.file}.md"] = "\n".join(body)
        links = ", ".join(f"[`{n.rpartition('.')[2]}`]({g.file}.md#{n})" for n in shown)
        index.append(f"| [{g.title}]({g.file}.md) | {links} |")
    out["api/index.md"] = "\n".join(index) + "\n"
    return out


def stubs() -> dict[str, str]:
    """File name under docs/ -> text, as the repository has it: what the page is about."""
    note = "The names are filled in from the docstrings when the site is built (`tools/api_pages.py`)."
    out = {f"api/{g.file}.md": f"# {g.title}\n\n{g.about}\n\n{note}\n" for g in GROUPS}
    return out | {"api/index.md": f"# API reference\n\n{note}\n"}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs' hook: a page's text before it is read."""
    return api_pages().get(page.file.src_uri, markdown)
