"""A package's names are read from their files when they are first asked for, so that importing the package reads none.

The package's own file says where they are, in the imports under ``if TYPE_CHECKING:``, which type checkers and tools
read, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import CodeType, ModuleType
from typing import Any

_homes: dict[str, dict[str, str]] = {}


def _imports(package: str) -> dict[str, str]:
    """The file of each name that a package imports for type checkers, as a module's name."""
    loader: Any = getattr(importlib.util.find_spec(package), "loader", None)
    source = loader.get_source(package)
    if source is None:  # compiled files alone are installed, as in programs that are bundled with their Python
        return _compiled_imports(loader.get_code(package))
    # The text is cut into lines and words, which takes a tenth of the time of a syntax tree; a test compares both.
    found: dict[str, str] = {}
    inside, module = False, ""
    for line in source.splitlines():
        if line and not line[0].isspace():
            inside = line.startswith("if TYPE_CHECKING:")
        if not inside:
            continue
        words = line.partition("#")[0].replace("(", " ").replace(")", " ")
        front, imports, names = words.partition(" import ")
        if imports:
            module = front.split()[-1]  # behind "from"
        for name in (names if imports else words).split(","):
            if module and name.strip():
                found[name.split()[-1]] = module  # behind "as", if there is one
    return found


def _compiled_imports(code: CodeType) -> dict[str, str]:
    """The same, read from the package's compiled code."""
    import dis

    found: dict[str, str] = {}
    module, imported, end = "", False, -1
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname.startswith("LOAD_") and step.argval == "TYPE_CHECKING":
            end = next(x.argval for x in steps[i:] if "JUMP" in x.opname)  # behind the block
        if step.offset >= end:
            continue
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif imported and step.opname.startswith("STORE_"):
            found[step.argval] = module
        imported = step.opname == "IMPORT_FROM"
    return found


def homes(package: str) -> dict[str, str]:
    """The module of each of a package's names."""
    if package not in _homes:
        _homes[package] = _imports(package)
    return _homes[package]


def attribute(package: str, name: str) -> Any:
    """The package's attribute of that name: a name of one of its files, or a file. Raises AttributeError."""
    if name in homes(package):
        value = getattr(importlib.import_module(homes(package)[name]), name)
    elif name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
        value = importlib.import_module(f"{package}.{name}")
    else:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    setattr(sys.modules[package], name, value)
    return value


class Hiding(ModuleType):
    """A package in which a name hides the file that is called so: ``ops.matmul`` is the function of `ops/matmul.py`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in homes(self.__name__):
            if not hasattr(value, name):  # it is the folder of the file
                return
            value = getattr(value, name)
        super().__setattr__(name, value)
