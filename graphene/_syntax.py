"""Python's syntax trees, made in any thread.

Law: what ``ast.parse`` says of a text does not depend on what other threads do meanwhile. Python 3.11 counts the depth
of all threads' trees in one place, and raises ``SystemError`` where another thread parses while the first one collects
garbage (https://github.com/python/cpython/issues/106905). It counts anew for every tree, so the text is parsed again.
"""

from __future__ import annotations

import ast
from typing import Literal, overload

__all__ = ["parsed"]

_TRIES = 100  # each fails for another thread that parses at the same moment


@overload
def parsed(text: str, mode: Literal["eval"]) -> ast.Expression: ...
@overload
def parsed(text: str, mode: Literal["exec"]) -> ast.Module: ...
def parsed(text: str, mode: str) -> ast.AST:
    """The syntax tree of a text.

    Raises:
        SyntaxError: The text is none of Python.

    """
    for _ in range(_TRIES):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:
            continue
    return ast.parse(text, mode=mode)
