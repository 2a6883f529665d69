"""Kernels with optional arguments: one recording for each set of arguments that a call gives."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.declare import FORM_DECLARATIONS, FormDeclarations
from graphene.judge.signature import Signature
from graphene.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from graphene.check import CheckResult

__all__ = ["Forms", "FormsChecked", "forms"]

_MOST = 5  # optional arguments: 32 forms


class FormsChecked(dict[frozenset[str], "CheckResult"]):
    """The results of ``check()`` by the optional arguments that a form has. It is true if all of them are."""

    @property
    def ok(self) -> bool:
        """Whether no form has an error."""
        return all(r.ok for r in self.values())

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        lines = [f"with {', '.join(sorted(given)) or 'none'}: {result!r}" for given, result in self.items()]
        return "\n".join(lines)


class Forms:
    """A kernel whose optional arguments may be None at a call; ``gr.forms`` makes it."""

    def __init__(self, record: Callable[[], Kernel]) -> None:
        self._record = record
        self.__module__ = getattr(record, "__module__", None) or __name__
        self.__qualname__ = getattr(record, "__qualname__", type(self).__qualname__)
        self._kept: dict[frozenset[str], Kernel] = {}
        self._optional: tuple[str, ...] = ()
        full = self._recorded(frozenset())
        self._name = full.name
        self._names = tuple(a.name for a in Signature.of(full).arguments)
        if not self._optional:
            _core.fail("KERNEL_ARGUMENT", f"the kernel {self._name} has no optional argument", [],
                       "declare one by optional=True, or call the kernel itself")  # fmt: skip
        if len(self._optional) > _MOST:
            _core.fail("KERNEL_ARGUMENT", f"the kernel {self._name} has {len(self._optional)} optional arguments",
                       [f"want: at most {_MOST}, for {2**_MOST} forms"], "record some forms apart")  # fmt: skip
        self._kept[frozenset(self._optional)] = full

    def _recorded(self, absent: frozenset[str]) -> Kernel:
        declared = FormDeclarations(absent)
        token = FORM_DECLARATIONS.set(declared)
        try:
            kernel = self._record()
        finally:
            FORM_DECLARATIONS.reset(token)
        if not isinstance(kernel, Kernel):
            _core.fail("KERNEL_ARGUMENT", "a function under @gr.forms returns the kernel that it records",
                       [f"got: {type(kernel).__name__}"], "end it with `return kernel`")  # fmt: skip
        self._optional = tuple(dict.fromkeys([*self._optional, *declared.optional]))
        return kernel

    @property
    def name(self) -> str:
        """The kernel's name, which all forms have."""
        return self._name

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the optional arguments, in the order of declaration."""
        return self._optional

    def form(self, *given: str) -> Kernel:
        """The kernel that has these optional arguments and no others. Raises VerifyError KERNEL_ARGUMENT."""
        wrong = [n for n in given if n not in self._optional]
        if wrong:
            _core.fail("KERNEL_ARGUMENT", f"the kernel {self._name} has no optional argument {wrong[0]!r}",
                       [f"optional: {', '.join(self._optional)}"])  # fmt: skip
        has = frozenset(given)
        if has not in self._kept:
            self._kept[has] = self._recorded(frozenset(self._optional) - has)
        return self._kept[has]

    def _chosen(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Kernel, tuple[Any, ...], dict[str, Any]]:
        if len(args) > len(self._names):
            return self.form(*self._optional), args, named  # which says how many it takes
        given = dict(zip(self._names, args, strict=False))
        has = [n for n in self._optional if given.get(n, named.get(n)) is not None]
        absent = set(self._optional) - set(has)
        kept = tuple(x for n, x in given.items() if n not in absent)
        return self.form(*has), kept, {n: x for n, x in named.items() if n not in absent or x is not None}

    def __call__(self, *args: Any, **named: Any) -> None:
        """Runs the form that has the arguments which are not None, as that kernel's own call."""
        kernel, args, named = self._chosen(args, named)
        kernel(*args, **named)

    def simulate(self, *args: Any, arch: str | None = None, seed: int = 0, **named: Any) -> None:
        """Runs that form on the simulator, as ``Kernel.simulate``."""
        kernel, args, named = self._chosen(args, named)
        kernel.simulate(*args, arch=arch, seed=seed, **named)

    def kernels(self) -> Iterable[Kernel]:
        """Every form, the one without optional arguments first."""
        return (self.form(*given) for given in self._sets())

    def _sets(self) -> Iterator[tuple[str, ...]]:
        for n in range(len(self._optional) + 1):
            yield from itertools.combinations(self._optional, n)

    def check(self, *args: Any, arch: str | None = None, seed: int = 0, **sizes: int) -> FormsChecked:
        """``Kernel.check`` of every form; with ``args``, one call, of the form that it runs.

        A size counts for the forms that have it.
        """
        if args:
            kernel, kept, _ = self._chosen(args, {})
            has = frozenset(self._optional) & {a.name for a in Signature.of(kernel).arguments}
            return FormsChecked({has: kernel.check(*kept, arch=arch, seed=seed, **sizes)})
        out = FormsChecked()
        sizes_of = {given: _sizes_of(self.form(*given)) for given in self._sets()}
        everywhere = set().union(*sizes_of.values())
        for given, its in sizes_of.items():
            own = {s: v for s, v in sizes.items() if s in its or s not in everywhere}
            out[frozenset(given)] = self.form(*given).check(arch=arch, seed=seed, **own)
        return out

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where a decorated function stands, else by the function that records it."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (Forms, (self._record,))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Kernel, name):
            given = ", ".join(repr(n) for n in self._optional)
            raise AttributeError(f"{self._name} has optional arguments, and each form has its own {name}: "
                                 f"take one, kernel.form({given}).{name}")  # fmt: skip
        raise AttributeError(f"'Forms' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<graphene.Forms {self._name}: optional {', '.join(self._optional)}>"


def _sizes_of(kernel: Kernel) -> set[str]:
    signature = Signature.of(kernel)
    return {*signature.symbols, *(p.name for p in signature.scalars)}


def forms(record: Callable[[], Kernel]) -> Forms:
    """A kernel with optional arguments, from a function that records it: ``@gr.forms``.

    In the function, ``gr.input("bias", [n], gr.fp32, optional=True)``, and so ``output``, ``inout`` and ``param``, is
    None where the form at hand lacks the argument. What Python leaves out then, by ``if bias is not None:``, is no part
    of that form. The function is called once for each form, when a call first needs it, and records the same kernel
    each time but for that. A call that gives None, or nothing, for an optional argument runs the form without it.

    ``check()`` checks all forms. A meaning takes an optional argument with the default None. There are at most five
    optional arguments. Raises VerifyError KERNEL_ARGUMENT for more, for none, and for what
    is not such a function.
    """
    if not callable(record):
        _core.fail("KERNEL_ARGUMENT", "gr.forms takes a function that records a kernel",
                   [f"got: {type(record).__name__}"], "put @gr.forms over the function")  # fmt: skip
    if isinstance(record, (Kernel, Forms)):
        _core.fail("KERNEL_ARGUMENT", "gr.forms takes a function that records a kernel, not the kernel",
                   [f"got: {record!r}"], "decorate a function that declares arguments with optional=True and returns "
                   "the kernel")  # fmt: skip
    with contextlib.suppress(ValueError):  # a function of another language has no signature
        needed = [p.name for p in inspect.signature(record).parameters.values()
                  if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
        if needed:
            _core.fail("KERNEL_ARGUMENT", "gr.forms calls the function that it is given without arguments",
                       [f"needed: {', '.join(needed)}"],
                       "bind them: gr.forms(functools.partial(record, ...))")  # fmt: skip
    return Forms(record)
