"""Registers in one line: declared with a value, loaded, stored, seen as another type.

Each call records the statements that one would write by hand: an allocation in registers, an assignment, a Move.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import IntExpr, Tensor
from graphene._refused import refuse
from graphene.declare import alloc
from graphene.dtypes import RF, DType, u32
from graphene.errors import LayoutError
from graphene.expressions import Expression, _nodes, _whole, plain, where
from graphene.specs import _record, move
from graphene.unknown import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["bitcast", "let", "load"]


def _shape_of(value: Any) -> list[int]:
    """The shape that a value of registers has: NumPy's broadcasting of its operands."""
    shape: list[int] = []
    for kind, *rest in _nodes(value):
        if kind != "tensor":
            continue
        if rest[0].is_fragment:
            _core.fail("POINTWISE_SHAPE", "registers of a fragment's shape must be declared on its threads",
                       [f"got: {rest[0].name}"], "declare it: gr.fragment(..., on=group)")  # fmt: skip
        own = [int(n) for n in rest[0].shape] if rest[0].levels else []
        longer, shorter = (own, shape) if len(own) > len(shape) else (shape, own)
        padded = [1] * (len(longer) - len(shorter)) + shorter
        shape = [m if n == 1 else n for n, m in zip(longer, padded, strict=True)]
    return shape


def _is_value(x: Any) -> bool:
    return isinstance(x, (Expression, int, float, IntExpr))


def let(name: str, value: Any, dtype: DType | None = None, shape: Sequence[int] | None = None) -> Tensor:
    """Registers of the executing thread that hold a value: a number, an integer, or an expression on registers.

    By default they have the expression's type, in which it is computed, and its shape. A number, or an integer such as
    a coordinate, needs `dtype`. Raises LayoutError POINTWISE_TYPE, POINTWISE_SHAPE; VerifyError KERNEL_NAME.
    """
    value = plain(value)
    if not (_is_value(value) or isinstance(value, Tensor)):
        raise TypeError(f"let: a value must be registers, an expression or a number, got {type(value).__name__}")
    of = dtype if dtype is not None else _core.expression_type(_nodes(value))
    if of is None:
        _core.fail("POINTWISE_TYPE", "a number has no type of its own", [f"got: {value!r}"],
                   f'say which it is to have: gr.let("{name}", {value!r}, gr.fp32)')  # fmt: skip
    register = alloc(name, _shape_of(value) if shape is None else shape, of, RF)
    _core.record_pointwise(register, _nodes(value))
    return register


def load(x: Tensor, dtype: DType | None = None, name: str | None = None, **attrs: Any) -> Tensor:
    """Registers of the executing thread that hold what a tensor in memory does: one element, or a few neighbours.

    `dtype`: the type that the values are converted to. Further keywords are those of gr.move, such as ``fill=`` of what
    lies outside of a partial tile. Raises LayoutError TENSOR_SIZE; lowering raises SelectError NO_ATOM where no
    instruction loads that many elements.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"load takes a tensor, got {type(x).__name__}")
    if not (dtype is None or isinstance(dtype, DType)):
        raise TypeError(f"a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got {dtype!r}")
    if not (name is None or isinstance(name, str)):
        raise TypeError(f"names must be a string, got {name!r}")
    own = name or _core.unique_name(f"{x.name or 'x'}_value")
    shape = list(x.shape) if x.levels else []
    register = alloc(own, shape, x.dtype, RF)
    move(register, x, **attrs)
    return register if dtype is None or dtype == x.dtype else let(_core.unique_name(own), register, dtype)


def bitcast(x: Any, dtype: DType) -> Any:
    """The same bits as another type.

    Of one width it is an expression, element by element: of the bits of an fp32 as a u32, for example. Registers of
    another width are regrouped, the first element lowest, as new registers: one u32 becomes two fp16 or four u8, four
    u8 become one u32. They must be a thread's own, with one mode at most, and fill whole words of 32 bits. Raises
    LayoutError POINTWISE_TYPE.
    """
    if not isinstance(dtype, DType):
        raise TypeError(f"a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got {dtype!r}")
    if not isinstance(x, (Tensor, Expression)):
        raise TypeError(f"bitcast takes registers or an expression, got {type(x).__name__}")
    if isinstance(x, Expression):
        of = _core.expression_type(_nodes(x))
        if of is None or of.bits == dtype.bits:
            return Expression("UnaryPointwise", "bitcast", (x,), dtype)
        x = let(_core.unique_name("bits"), x)
    if x.dtype.bits == dtype.bits:
        return Expression("UnaryPointwise", "bitcast", (x,), dtype)
    count = math.prod(int(n) for n in x.shape) if x.levels else 1
    bits = count * x.dtype.bits
    if x.is_fragment or x.memory != RF or len(x.levels) > 1 or (x.levels and len(x.shape) > 1) or bits % 32:
        _core.fail(
            "POINTWISE_TYPE", "a bitcast to another width of something else than whole words of registers",
            [f"got: {x}", f"want: private registers with one mode, a multiple of 32 bits (here {bits}), to {dtype}"],
            "load them together: gr.load(t.tile([4])[i])",
        )  # fmt: skip
    word = max(x.dtype.bits, dtype.bits, 32)
    if word not in (x.dtype.bits, dtype.bits):  # through words
        return bitcast(bitcast(x, u32), dtype)
    if bits % word:
        _core.fail("POINTWISE_TYPE", f"a bitcast of {bits} bits to elements of {word}", [f"got: {x}"], "")
    n = bits // dtype.bits
    name = _core.unique_name(f"{x.name}_bits")
    out = alloc(name, [n] if n > 1 else [], dtype, RF)
    for i in range(bits // word):
        parts = [_part(t, i, word // t.dtype.bits) for t in (out, x)]
        _record("UnaryPointwise", parts[0], (parts[1],), None, op="bitcast")
    return out


def _part(t: Tensor, i: int, elems: int) -> Tensor:
    if not t.levels or (elems > 1 and t.size == elems):
        return t
    return t[i] if elems == 1 else t.tile([elems])[i]


def condition(value: Any, what: str) -> Any:
    """A condition for control flow: a comparison of registers is read into an integer, any other is not changed."""
    if not isinstance(value, (Tensor, Expression)):
        return value
    of = _core.expression_type(_nodes(value))
    if of is None or of.name != "pred":
        _core.fail("POINTWISE_TYPE", f"{what} asks a condition, not a number", [f"got: {value!r}"],
                   "compare it: x != 0")  # fmt: skip
    shape = _shape_of(value)
    if any(n != 1 for n in shape):
        _core.fail("POINTWISE_SHAPE", f"{what} asks one condition for each thread", [f"got: {value!r}"],
                   "combine them first, by & or |")  # fmt: skip
    held = let(_core.unique_name("holds"), where(value, 1, 0), _core.dtype("i32"))
    return _core.record_index(held[(0,) * len(shape)] if shape else held, 0, 1, 1) != 0


def _assign(self: Tensor, key: Any, value: Any) -> None:
    """``t[:] = value`` or ``t[i] = value``: pointwise leaves to registers, a Move to or from memory."""
    value = plain(value)
    if value is None:
        refuse("POINTWISE_TYPE", "an assignment of nothing", [f"to: {self}"],
               "what returns None changes its own operands: assign those; gr.atomic(..., fetch=True) returns what was "
               "there")  # fmt: skip
    if not (_is_value(value) or isinstance(value, Tensor)):
        raise TypeError(
            f"an assignment: an operand must be registers, an expression or a number, got {type(value).__name__}"
        )
    place = self if _whole(key) else self[key]
    outside = place.memory != RF or (isinstance(value, Tensor) and value.memory != RF)
    if not outside:
        _core.record_pointwise(place, _nodes(value))
    elif isinstance(value, Tensor) and value.dtype != place.dtype and value.memory == RF:
        move(place, let(_core.unique_name("value"), value, place.dtype))
    else:
        move(place, value)


def _bool(self: Tensor) -> bool:
    """Raises LayoutError SYM_RUNTIME_BOOL, because a tensor's values are known only when the kernel runs."""
    refuse(
        "SYM_RUNTIME_BOOL",
        "a tensor has no truth value in Python",
        [f"got: {self}"],
        "use gr.where to choose elements, `with gr.if_(x != 0):` to branch, or `is None` to ask whether there is a "
        "tensor",
    )


def _coords(self: Tensor) -> tuple[Any, ...]:
    """The logical coordinates of the executing thread's own elements of a fragment, one integer per dimension.

    They stand in pointwise expressions that are assigned to a tensor of this shape:
    ``S[:] = gr.where(col <= last, S, -gr.inf)``. Raises LayoutError TENSOR_VALUES for other tensors.
    """
    return _core.fragment_coordinates(self)


def _valid(self: Tensor) -> Any:
    """Whether an element of a fragment belongs to the tensor, since a TV layout may reach past the end.

    The result is True if all do, else a condition for `where`. Raises LayoutError TENSOR_VALUES for other tensors.
    """
    return _core.fragment_valid(self)


def _reduced(self: Tensor, axis: int, name: str, dtype: DType | None = None, lanes: bool = False) -> Tensor:
    """Declares a fragment with one value per row (``axis=1``) or column (``axis=0``), on the threads that own them.

    Its extent along `axis` is 1, or with ``lanes=True`` the number of threads along it, one partial value per lane. It
    broadcasts against this fragment. Raises LayoutError REDUCE_FRAGMENT; VerifyError KERNEL_NONE, KERNEL_NAME.
    """
    return _core.reduced_fragment(self, axis, name, dtype, lanes)


def _updating(op: str) -> Callable[[Tensor, Any], Tensor]:
    operator = vars(Expression)[f"__{op}__"]

    def update(self: Tensor, other: Any) -> Tensor:
        _core.record_pointwise(self, _nodes(operator(self, other)))
        return self

    update.__name__ = update.__qualname__ = f"__i{op}__"
    update.__doc__ = "Records the assignment to these registers, whole."
    return update


def _install() -> None:
    operators = [n for n in vars(Expression) if n.startswith("__")]
    own = {
        "__init__",
        "__bool__",
        "__repr__",
        "__hash__",
        "__slots__",
        "__doc__",
        "__module__",
        "__getitem__",
        *METHODS,
    }
    for name in set(operators) - own:
        setattr(Tensor, name, vars(Expression)[name])
    for name, method in METHODS.items():
        setattr(Tensor, name, method)
    for op in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
        setattr(Tensor, f"__i{op}__", _updating(op))
    methods = {"__bool__": _bool, "coords": _coords, "valid": _valid, "reduced": _reduced}
    for name, function in methods.items():
        setattr(Tensor, name, function)


_view = Tensor.__getitem__


def _item(self: Tensor, key: Any) -> Tensor:
    """``t[i]``. Raises LayoutError TENSOR_INDEX where an index is a value of data, or no integer."""
    try:
        return _view(self, key)
    except (TypeError, LayoutError) as error:
        if isinstance(error, LayoutError) and error.code != "POINTWISE_TYPE":
            raise
        for k in key if isinstance(key, tuple) else (key,):
            if isinstance(k, Tensor):
                what = f"gr.index({k.name or 'r'}{'[...]' if k.levels or k.memory != RF else ''}, min=0, max=...)"
                refuse("TENSOR_INDEX", "a value of data is no index", [f"got: {k} of {k.name}", f"of: {self}"],
                       f"read it into an integer: {what}")  # fmt: skip
            if isinstance(k, Expression):
                refuse("TENSOR_INDEX", "a value of data is no index", [f"got: {k!r}", f"of: {self}"],
                       "read it into an integer: gr.index(..., min=0, max=...)")  # fmt: skip
        if "want an int or an IntExpr" not in str(error):
            raise
        refuse("TENSOR_INDEX", "an index is an integer, a symbolic one or a slice", [str(error), f"of: {self}"],
               "index by a number, a coordinate or gr.index(...)")  # fmt: skip


_item.__doc__ = _view.__doc__  # the core's, which says what each kind of index gives
setattr(Tensor, "__getitem__", _item)  # noqa: B010
setattr(Tensor, "__setitem__", _assign)  # noqa: B010  (the stub declares it)
_install()
