"""Where a checkout without a build, such as the current folder, hides the installed package, the latter is used."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable

_HERE = os.path.dirname(os.path.abspath(__file__))


def installed_copy(here: str, path: Iterable[str]) -> str | None:
    """The first folder `graphene` on `path` that has the extension, other than `here`; or None."""
    for entry in path:
        folder = os.path.join(os.path.abspath(entry), "graphene")
        if os.path.realpath(folder) == os.path.realpath(here):
            continue
        if any(os.path.exists(os.path.join(folder, "_core" + s)) for s in importlib.machinery.EXTENSION_SUFFIXES):
            return folder
    return None


def message(here: str) -> str:
    """The text of the ImportError where no copy is installed."""
    return (
        f"graphene's extension module is not built in {here}, and no installed copy is on sys.path: run "
        f"`pip install .` in {os.path.dirname(here)}, or build it in place (CONTRIBUTING.md)"
    )


if importlib.util.find_spec("graphene._core") is None:
    _found = installed_copy(_HERE, sys.path)
    if _found is None:
        raise ImportError(message(_HERE))
    sys.modules["graphene"].__path__[:] = [_found]
