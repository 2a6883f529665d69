"""torch.ops.graphene, where PyTorch finds operators by name, perhaps before a file defines or a call registers them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from graphene.ops.core.torch import torch

SPACE = "graphene"


_lock = threading.RLock()  # of the thread that registers, or makes the object of a name
_active = False


@contextlib.contextmanager
def registering() -> Iterator[None]:
    """A context of one thread, in which the namespace has what is registered so far, and no more: PyTorch asks."""
    global _active
    with _lock:
        before, _active = _active, True
        try:
            yield
        finally:
            _active = before


def find_by(register: Callable[[str], None]) -> None:
    """Makes `torch.ops.graphene` call a function where it lacks a name. The function registers what has the name."""
    namespace = getattr(torch.ops, SPACE)

    class Operators(type(namespace)):  # type: ignore[misc]
        """PyTorch's class of namespaces, which looks for more."""

        __module__ = type(namespace).__module__  # a saved program spells operators by it

        def __getattr__(self, name: str) -> Any:
            with _lock:  # the object of a name is one for all threads
                if not _active and not name.startswith("__"):
                    register(name)
                return self.__dict__[name] if name in self.__dict__ else super().__getattr__(name)

    namespace.__class__ = Operators
