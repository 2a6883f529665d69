"""`python -m graphene compile`: kernels compiled ahead of time, into a folder or into the cache."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphene._syntax import parsed

EXAMPLE = "python -m graphene compile 'gemm_sm80(BM=128, BN=256)' small=gemm_sm80 --arch sm_80 --arch sm_90a -o folder"


_PACKAGE, _STDLIB = str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"]


class KernelSyntaxError(ValueError):
    """A name of a kernel that cannot be read; the text says what was expected."""


class _Names(dict[str, Any]):
    """What may be named, with where it comes from beside this package: a file or a module."""

    place = ""


def _value(node: ast.expr, names: _Names) -> Any:
    """Literals, names that are known, their attributes, and calls of them: what an argument may be."""
    if isinstance(node, ast.Name):
        if node.id not in names:
            has = f"what {names.place} defines, " if names.place else ""
            raise KernelSyntaxError(
                f"{node.id!r} is not known: {has}dtypes, epilogues and what graphene.kernels exports are"
            )
        return names[node.id]
    if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
        return getattr(_value(node.value, names), node.attr)
    if isinstance(node, ast.Call):
        if any(k.arg is None for k in node.keywords):
            raise KernelSyntaxError("** is not understood here")
        function = _value(node.func, names)
        return function(
            *(_value(a, names) for a in node.args), **{str(k.arg): _value(k.value, names) for k in node.keywords}
        )
    if isinstance(node, ast.Tuple | ast.List):
        values = [_value(x, names) for x in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        raise KernelSyntaxError(
            f"{text!r} is neither a literal nor a call: write a function in a file of yours"
        ) from None


def _factory(text: str, names: _Names) -> tuple[str, _Names]:
    """Of "module:function..." or "file.py:function...": the expression, and the names it may use."""
    place, colon, rest = text.partition(":")
    if not colon or "(" in place:
        return text, names
    sys.path.insert(0, "")
    try:
        own = runpy.run_path(place) if place.endswith(".py") else vars(importlib.import_module(place))
    finally:
        sys.path.remove("")
    found = _Names(names | own)
    found.place = place
    return rest, found


def _raised_at(e: BaseException) -> str | None:
    """The line of the user's own code that an exception comes from; None where this package raised it by itself."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{e.filename}:{e.lineno}"
    beside = (_PACKAGE, "<frozen")
    own = [
        f
        for f in traceback.extract_tb(e.__traceback__)
        if not f.filename.startswith(beside) and (not f.filename.startswith(_STDLIB) or "-packages" in f.filename)
    ]
    return f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else None


def read_kernels(text: str) -> list[Any]:
    """The kernels that a word of the command line names.

    ``gemm_sm80``, ``gemm_sm80(BM=128, epilogue=linear("gelu", bias=True))``: a function of graphene.kernels;
    ``gemm_launches(select_gemm(4096, 4096, 4096))``: one that returns several, with their arguments or without;
    ``package.module:function(...)`` and ``file.py:function(...)``: one of your own, or a kernel there; ``file.gir``,
    ``file.json``: a kernel's text. Raises KernelSyntaxError for text that cannot be read, and what the function raises.
    """
    import graphene as gr
    from graphene import kernels
    from graphene.kernels import epilogues

    if text.endswith((".gir", ".json")):
        content = Path(text).read_text()
        return [gr.parse(content) if text.endswith(".gir") else gr.Kernel.from_json(content)]
    names = _Names({n: getattr(gr, n) for n in gr.__all__ if isinstance(getattr(gr, n), gr.DType)})
    for module in (epilogues, kernels):
        names.update({n: getattr(module, n) for n in module.__all__})
    expression, names = _factory(text, names)
    try:
        tree = parsed(expression, "eval").body
    except SyntaxError as e:
        raise KernelSyntaxError(f"{expression!r} is neither a function nor a call of one: {e.msg}") from e
    made = _value(tree, names)
    if callable(made) and not isinstance(made, gr.Kernel):
        made = made()
    found = [getattr(x, "kernel", x) for x in made] if isinstance(made, list | tuple) else [made]
    if not found or not all(isinstance(k, gr.Kernel) for k in found):
        raise KernelSyntaxError(f"{text!r} is not a kernel but {type(made).__name__}")
    return found


def compile_kernels(words: Sequence[str], archs: Sequence[str], folder: str | None) -> int:
    """Compiles the kernels; with `folder`, writes them there, else only the cache is warmed. Returns the status."""
    import graphene as gr

    kernels: dict[str, gr.Kernel] = {}
    for word in words:
        head, equals, tail = word.partition("=")
        named = equals != "" and head.isidentifier()
        try:
            found = read_kernels(tail if named else word)
        except gr.GrapheneError as e:
            print(f"{word}: {e}", file=sys.stderr)
            return 1
        except Exception as e:
            if not isinstance(e, KernelSyntaxError) and (at := _raised_at(e)) is not None:
                print(f"{word}: {type(e).__name__}: {e}\n  at {at}", file=sys.stderr)
                return 1
            print(f"{word}: {e}\nfor example: {EXAMPLE}", file=sys.stderr)
            return 2
        for i, kernel in enumerate(found):
            name = kernel.name if not named else head if len(found) == 1 else f"{head}_{i}"
            if name in kernels:
                print(f"two kernels are called {name}: name one, as in other={word}", file=sys.stderr)
                return 2
            kernels[name] = kernel
    wanted = [a for text in archs for a in text.split(",") if a]
    try:
        if folder is None:
            for name, kernel in kernels.items():
                for arch in wanted:
                    b = kernel.compile(arch)
                    print(f"{name} for {arch}: {'was cached' if b.from_cache else f'{b.compile_ms:.0f} ms'}")
        else:
            files = gr.precompile(kernels, folder, wanted, print)
            print(f"{len(files)} files in {folder}: graphene.load_precompiled({folder!r})")
    except gr.GrapheneError as e:
        print(e, file=sys.stderr)
        return 1
    return 0
