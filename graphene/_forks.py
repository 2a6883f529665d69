"""Forks wait until no other thread imports a module of this package, or one that its functions import.

Functions import what only they need, and NumPy does (numpy.random). A child that was made in the midst of such an
import has the module's lock, but not the thread that would release it, and waits for ever where it imports the same.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib._bootstrap as _bootstrap
import os
import sys

# Those of others stay out: what they wait for while they are imported is not known.
_AWAITED = sys.stdlib_module_names | {"graphene", "numpy"}


def _begun() -> set[str]:
    """Names of the modules that are being imported."""
    return {n for n in list(getattr(_bootstrap, "_module_locks", ())) if n.partition(".")[0] in _AWAITED}


def _finish_imports() -> None:
    """Imports what is being imported: that waits for the thread that has begun, and returns at once in that thread."""
    before: set[str] = set()
    while (names := _begun()) and names != before:  # a thread that waits no longer may have begun another one
        for name in names:
            with contextlib.suppress(Exception):  # it is told to the thread that has begun
                importlib.import_module(name)
        before = names


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports)
