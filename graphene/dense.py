"""Elements of 6 bits without gaps: three words in memory hold sixteen of them."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import Tensor
from graphene.dtypes import RF, DType, fp6e2m3, fp6e3m2, u32
from graphene.integers import prmt
from graphene.registers import bitcast, let

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["pack_fp6", "unpack_fp6"]

TYPES = (fp6e2m3, fp6e3m2)
WORDS, GROUPS = 3, 4  # words that hold whole elements, and fours of elements in them


def unpack_fp6(words: Tensor | Sequence[Tensor], dtype: DType) -> Tensor:
    """Sixteen elements of fp6e2m3 or fp6e3m2 for every three u32, each element a byte, as registers have them.

    ``words``: registers of a thread, or a list of such, together a multiple of three u32. Bit 6 i of their bits, the
    lowest first, is the lowest of element i. ``r[:] = gr.unpack_fp6([gr.load(x[t, i]) for i in range(3)], gr.fp6e2m3)``
    also converts them. Raises LayoutError POINTWISE_TYPE.
    """
    _check("unpack_fp6", dtype in TYPES, f"elements of {dtype}", "gr.fp6e2m3 or gr.fp6e3m2")
    given: list[Any] = list(words) if isinstance(words, (list, tuple)) else [words]
    for r in given:
        _registers("unpack_fp6", r, (u32,))
    w = [r for each in given for r in _each(each)]
    want = "a multiple of three u32, which hold sixteen elements"
    _check("unpack_fp6", len(w) > 0 and len(w) % WORDS == 0, f"{len(w)} words", want)
    spread = let(_core.unique_name("fp6"), 0, u32, [GROUPS * len(w) // WORDS])
    for i in range(0, len(w), WORDS):
        # The three bytes of four elements: of one word, or of two neighbours.
        fours = (w[i], prmt(w[i], w[i + 1], 0x6543), prmt(w[i + 1], w[i + 2], 0x5432), w[i + 2] >> 8)
        for j, four in enumerate(fours):
            parts = ((four << 2 * n if n else four) & 0x3F << 8 * n for n in range(4))
            spread[GROUPS * i // WORDS + j][...] = _any(parts)
    return bitcast(spread, dtype)  # type: ignore[no-any-return]


def pack_fp6(x: Tensor) -> Tensor:
    """The words whose elements ``unpack_fp6`` returns: three u32 for every sixteen of fp6e2m3 or fp6e3m2.

    ``x``: registers of a thread, a multiple of sixteen elements. Raises LayoutError POINTWISE_TYPE.
    """
    _registers("pack_fp6", x, TYPES)
    _check("pack_fp6", x.size % (4 * GROUPS) == 0, f"{x.size} elements", "a multiple of sixteen")
    spread = _each(bitcast(x, u32))
    out = let(_core.unique_name("fp6_words"), 0, u32, [WORDS * len(spread) // GROUPS])
    for i in range(0, len(spread), GROUPS):
        a, b, c, d = (
            let(_core.unique_name("four"), _any((s >> 2 * n if n else s) & 0x3F << 6 * n for n in range(4)), u32)
            for s in spread[i : i + GROUPS]
        )
        for j, word in enumerate((a | b << 24, b >> 8 | c << 16, c >> 16 | d << 8)):
            out[WORDS * i // GROUPS + j][...] = word
    return out


def _any(parts: Iterable[Any]) -> Any:
    return functools.reduce(operator.or_, parts)


def _each(r: Tensor) -> list[Tensor]:
    return [r[i] for i in range(r.size)] if r.levels else [r]


def _registers(name: str, r: Any, types: tuple[DType, ...]) -> None:
    """Raises unless it is registers of a thread of one of the types, one or several in one mode."""
    if not isinstance(r, Tensor):
        raise TypeError(f"{name} takes registers, got {type(r).__name__}")
    own = r.memory == RF and not r.is_fragment and (not r.levels or (len(r.levels) == 1 and len(r.shape) == 1))
    want = f"private registers of {' or '.join(map(str, types))} with one mode"
    _check(name, own and r.dtype in types, str(r), want)


def _check(name: str, right: bool, got: str, want: str) -> None:
    if not right:
        _core.fail("POINTWISE_TYPE", f"{name} takes something else", [f"got: {got}", f"want: {want}"],
                   "load whole words: [gr.load(x[t, i]) for i in range(3)]")  # fmt: skip
