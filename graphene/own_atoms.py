"""Instructions of one's own with a meaning of one's own: entries of kind "Spec", and inline PTX in one line.

Such an entry works on registers of one thread. What it computes is a function of NumPy arrays, one row for each thread
that executes it. The simulator calls the function, and so does every check; a GPU executes the text.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import Tensor
from graphene.atoms import MEANINGS, define_atom
from graphene.dtypes import RF
from graphene.registers import let
from graphene.specs import _record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ptx"]

_INSTRUCTION = re.compile(r"(?<![\w.%])[a-z][\w.]*(?=\s)")


def ptx(
    text: str,
    outs: Tensor | Sequence[Tensor],
    *ins: Any,
    means: Callable[..., Any],
    arch: str = "sm_70+",
    name: str | None = None,
) -> None:
    """Inline PTX on registers, in one line.

    ``gr.ptx("lop3.b32 %0, %1, %2, %3, 0x96;", d, a, b, c, means=lambda a, b, c: a ^ b ^ c)``

    `outs` are the registers that the text writes, one tensor or several; `ins`, registers or expressions, those that it
    reads. ``%0``, ``%1``, ... number them all, the outputs first. A tensor is one register or one mode of several: then
    ``{%0}`` are all of its registers and ``%0[1]`` is one; two 16-bit or four 8-bit elements share a register of 32
    bits. The text must not touch memory, and all threads of a warp execute it or not as they come to it.

    `means`: a function of NumPy arrays, one for each input, of shape [threads] or [threads, elements], that returns the
    outputs' arrays, of the same shapes and of exactly the outputs' types. Types that NumPy lacks are float32, or int8
    and uint8 of integers. `arch`: the architectures that have the instruction. `name`: the entry's name in the kernel's
    text, by default one that is made from the instruction and its text. A kernel that is parsed from its text needs the
    entry: call ``gr.ptx`` or ``gr.define_atom`` before.

    Raises TypeError for operands of another kind; SelectError ATOM_TEXT, ATOM_SYNTAX, ATOM_DEFINITION for a text that
    names no operand or an operand that there is not. Running a kernel raises SimulationError CHECK_MEANS for a meaning
    whose results do not fit.
    """
    if not isinstance(text, str):
        raise TypeError(f"ptx: the text must be a string, got {text!r}")
    if not callable(means):
        raise TypeError(f"ptx: means= must be a function of arrays, got {means!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"ptx: name= must be a string, got {name!r}")
    results = list(outs) if isinstance(outs, (list, tuple)) else [outs]
    operands = [x if isinstance(x, Tensor) else let(_core.unique_name("given"), x) for x in ins]
    described = [_operand(f"{'o' if i < len(results) else 'i'}{i}", t) for i, t in enumerate([*results, *operands])]

    def hole(m: re.Match[str]) -> str:
        if m[1] is None:
            return "%%"
        if int(m[1]) >= len(described):
            _core.fail("ATOM_TEXT", f"ptx: the text names %{m[1]}, and there are {len(described)} operands",
                       [f"got: {text}"], "the outputs are numbered first, then the inputs")  # fmt: skip
        return f"${described[int(m[1])]['name']}"

    fields = {
        "kind": "Spec",
        "arch": arch,
        "out": [o | {"access": "write"} for o in described[: len(results)]],
        "in_": described[len(results) :],
        "ptx": re.sub(r"%%|%(\d+)?", lambda m: "%%" if m[0] == "%%" else hole(m), text.strip()),
        "doc": "Is a kernel's own PTX.",
        "source": "PTX ISA, as its author read it",
    }
    _record("Spec", results, operands, None, _entry(text, fields, means, name))


def _operand(name: str, t: Any) -> dict[str, Any]:
    if not isinstance(t, Tensor) or t.memory != RF or t.is_fragment or len(t.levels) > 1 or len(t.shape) > 1:
        raise TypeError(f"ptx: an operand must be a thread's own registers, one or one mode of them, got {t!r}")
    values = int(t.shape[0]) if t.levels and t.shape else 1
    if t.dtype.name == "pred" or values * t.dtype.bits % 16:
        _core.fail("ATOM_DEFINITION", f"ptx: {t.dtype} that fills no register", [f"got: {t}"],
                   "convert it: gr.cast(x, gr.u32), or gr.where of a predicate")  # fmt: skip
    pattern = f"[{values}].{t.dtype}.RF" if values > 1 else f"[].{t.dtype}.RF"
    return {"name": name, "pattern": pattern, "tile": f"e{values}" if values > 1 else ""}


def _entry(text: str, fields: dict[str, Any], means: Callable[..., Any], name: str | None) -> str:
    """The name of the entry that is this text with this meaning, which is defined unless it is there."""
    found = _INSTRUCTION.search(text)
    stamp = hashlib.sha256(repr(fields).encode()).hexdigest()[:8]
    base = name if name is not None else f"ptx.{found[0].rstrip('.') if found else 'text'}.{stamp}"
    own, number = base, 1
    while own in MEANINGS and not (_TEXTS.get(own) == stamp and _same(MEANINGS[own], means)):
        number += 1
        own = f"{base}.{number}"
    if own not in MEANINGS:
        define_atom(name=own, means=means, **fields)
        _TEXTS[own] = stamp
    return own


_TEXTS: dict[str, str] = {}


def _same(f: Any, g: Any) -> bool:
    """Whether two functions are one, or lambdas of one place without surroundings."""
    if f is g:
        return True
    code = [getattr(x, "__code__", None) for x in (f, g)]
    plain = all(getattr(x, "__closure__", 0) is None and getattr(x, "__defaults__", 0) is None for x in (f, g))
    return plain and code[0] is not None and code[0] == code[1]
