"""Instructions on integers in registers, beside the operators: bits that are counted, bytes that are chosen.

They stand in expressions, as the functions of floats do. Errors: LayoutError POINTWISE_TYPE for floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.expressions import _TERNARY, Expression, _binary, _check, _unary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["brev", "clz", "dp4a", "ffs", "mulhi", "popc", "prmt"]


def _count(op: str, doc: str) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return _unary(op, x)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = doc + " In x's type, which is an integer of 32 or 64 bits."
    return call


popc = _count("popc", "The number of bits of x that are set.")
clz = _count("clz", "The number of zero bits above the highest that is set; of 0 the width.")
ffs = _count("ffs", "The number of the lowest bit that is set, counted from 1; of 0 it is 0.")
brev = _count("brev", "The bits of x in reverse order.")


def mulhi(x: Any, y: Any) -> Expression:
    """The upper half of the product of two integers of 32 or 64 bits."""
    return _binary("mulhi", x, y)


def prmt(x: Any, y: Any, selector: Any) -> Expression:
    """Four of the eight bytes of two u32 (x's are 0 to 3, y's 4 to 7): nibble i of the selector names byte i.

    A nibble with 8 added gives the sign of the byte that it names, eight times. PTX prmt.b32.
    """
    return Expression(_TERNARY, "prmt", tuple(_check("prmt", v) for v in (x, y, selector)))


def dp4a(x: Any, y: Any, z: Any) -> Expression:
    """The four bytes of x times those of y, added to z: of i32 bytes with a sign, of u32 without. PTX dp4a."""
    return Expression(_TERNARY, "dp4a", tuple(_check("dp4a", v) for v in (x, y, z)))
