"""What this package cannot be imported beside, or in: importing then raises an error that says so.

GraphQL's package of the same name installs into the same folder. In a sub-interpreter the core would wait for its own
lock for ever.
"""

from __future__ import annotations

import contextlib
import importlib
import os

_HERE = os.path.dirname(os.path.abspath(__file__))


def graphql_remains(folder: str = _HERE) -> str | None:
    """A path that shows that GraphQL's `graphene` is installed in the folder of this package, or None."""
    marker = os.path.join(folder, "types", "objecttype.py")
    if os.path.exists(marker):
        return marker
    parent = os.path.dirname(folder)
    try:
        with os.scandir(parent) as entries:
            for e in entries:
                if e.name.startswith("graphene-") and e.name.endswith((".dist-info", ".egg-info")):
                    return e.path
    except OSError:
        pass
    return None


def message(found: str) -> str:
    """The text of the ImportError for what graphql_remains() found."""
    return (
        f"GraphQL's package `graphene` is installed beside this one ({found}), and both write the same files. "
        "An environment can hold only one of them: `pip uninstall -y graphene graphene-ir`, then install the one you "
        "want (`pip install graphene-ir` is this one, the GPU compiler)."
    )


def in_subinterpreter() -> bool:
    """Whether this is not the process's first interpreter."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, before
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() != interpreters.get_main())
    return False


if in_subinterpreter():
    raise ImportError(
        "graphene cannot be imported in a sub-interpreter: import it in the process's first one (for mod_wsgi: "
        "`WSGIApplicationGroup %{GLOBAL}`)"
    )
if _found := graphql_remains():
    raise ImportError(message(_found))
