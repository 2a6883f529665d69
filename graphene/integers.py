"""Instructions on integers in registers, beside the operators: bits that are counted, bytes that are chosen.

They stand in expressions, as the functions of floats do. Errors: LayoutError POINTWISE_TYPE for floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.expressions import _TERNARY, Expression, _binary, _check, _unary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["brev", "clz", "dp4a", "ffs", "lop3", "mulhi", "popc", "prmt"]


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


def lop3(x: Any, y: Any, z: Any, table: int | Callable[[int, int, int], int]) -> Expression:
    """Any function of the bits of three i32 or u32, in one instruction: each bit is bit 4 x + 2 y + z of the table.

    ``gr.lop3(x, y, z, lambda a, b, c: (a & b) | c)`` is ``gr.lop3(x, y, z, 0xEA)``: a function of 0xF0, 0xCC and 0xAA
    makes the table. PTX lop3.b32. Raises SelectError ATOM_ATTR for a table that does not fit into eight bits.
    """
    if callable(table):
        made = table(0xF0, 0xCC, 0xAA)
        number = made & 0xFF if isinstance(made, int) else made
    else:
        number = table
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 0xFF:
        _core.fail("ATOM_ATTR", "lop3: the table is an integer of eight bits, or a function of three integers",
                   ["want: 0 to 255", f"got:  {number!r}"],
                   "write it as a function: lambda a, b, c: (a & b) | c")  # fmt: skip
    return Expression(_TERNARY, "lop3", tuple(_check("lop3", v) for v in (x, y, z)), None, {"table": number})
