"""GraphQL's package of the same name installs into the same folder; importing then raises an error that says so."""

from __future__ import annotations

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


if _found := graphql_remains():
    raise ImportError(message(_found))
