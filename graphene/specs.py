"""Specs: what is to be computed. Each call records one. It is a leaf, which one atomic spec implements, unless it is
entered with ``with``. Then its decomposition follows, and ``kernel.check()`` holds that to what the spec promises.

`on` says who executes the spec: threads, or a pair (blocks, threads). By default that is the smallest group among its
fragments, else each thread by itself; and each block by itself. `atom` names the atomic spec; larger tiles are
decomposed for it at once. Further keywords are attributes of the kind, such as ``cache=`` of a Move or ``round=``.

Errors: VerifyError KERNEL_NONE, KERNEL_SCOPE, KERNEL_FOREIGN, ATOM_ATTR; leaves are matched when the kernel is lowered.
Source: paper section 5, Tables 1 and 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from graphene import _core
from graphene._core import Atom, IntExpr, Layout, SpecHandle, Tensor, ThreadTensor
from graphene._refused import refuse
from graphene.atoms import AtomFamily
from graphene.barriers import Mbarrier
from graphene.declare import alloc
from graphene.dtypes import RF
from graphene.expressions import Expression, _nodes
from graphene.references import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphene._core import IntLike

__all__ = ["allreduce", "binary", "init", "matmul", "move", "reduce", "shfl", "spec", "ternary", "unary"]

On: TypeAlias = "ThreadTensor | tuple[ThreadTensor, ThreadTensor] | None"
Number: TypeAlias = "Tensor | IntLike | float"


def _atom_name(atom: Any) -> str:
    if atom is None:
        return ""
    if isinstance(atom, str):
        return atom
    if isinstance(atom, (tuple, list)):
        return ",".join(_atom_name(a) for a in atom)
    if isinstance(atom, (Atom, AtomFamily)):
        return atom.name
    raise TypeError(f"atom= takes an atom, a family, a name or a list of them, got {atom!r}")


def _number(name: str, value: Any) -> float | int:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}= takes a number, got {value!r}")
    return _core.constant(value)


def _record(kind: str, outs: Any, ins: Any, on: On, atom: Any = None, means: str = "", **attrs: Any) -> SpecHandle:
    return _core.record_spec(kind, outs, ins, attrs, on, _atom_name(atom), means)


def spec(
    outs: Tensor | Sequence[Tensor],
    ins: Sequence[Number] = (),
    on: On = None,
    means: str | Callable[..., Any] = "",
    atom: Any = None,
) -> SpecHandle:
    """A generic Spec, such as the root of a kernel: it names its outputs and inputs and is decomposed by hand.

    ``kernel.check()`` holds the decomposition to `means`: a built-in kind with its attributes, "MatMul" or
    "Reduction(op=add, axis=1)"; or a function of arrays (``gr.reference``), or its name.

    `atom`: an entry of kind "Spec" (``gr.define_atom``), one's own instruction, which is the whole spec then.
    """
    if not isinstance(ins, (list, tuple)):
        raise TypeError(f"ins must be a list of operands, got {ins!r}")
    return _record("Spec", outs, list(ins), on, atom, name_of(means))


def _computed(dst: Tensor, value: Any) -> Tensor:
    """The value in registers of the destination's type and shape."""
    shape = list(dst.shape) if dst.levels else []
    register = alloc(_core.unique_name("value"), shape, dst.dtype, RF)
    _core.record_pointwise(register, _nodes(value))
    return register


def move(
    dst: Tensor,
    src: Any,
    on: On = None,
    atom: Any = None,
    tv: Layout | None = None,
    fill: float = 0.0,
    done: Mbarrier | None = None,
    to: ThreadTensor | None = None,
    **attrs: Any,
) -> SpecHandle:
    """``dst <- src`` bit by bit: equal numbers of elements, in the same order of coordinates.

    An expression on registers or a number is computed in registers first, in the type of `dst`.

    Between memories, the T threads `on` copy with an atom, or with two that go through registers. Then vector i belongs
    to thread i mod T, contiguous mode first. `tv` chooses another distribution: (thread, value) -> colexicographic
    element of the tile, with the values of one vector side by side. `fill` is the value of elements outside of a
    partial source. Asynchronous copies can only write zeros there: for another fill copy through registers, or mask
    with gr.where.

    `done`: the mbarrier of shared memory, ``full[i]``, on whose phase the copy completes. `to`: the blocks of the
    cluster that receive it (multicast), each in the same place, where it completes on the block's own barrier. Raises
    VerifyError VERIFY_BARRIER, SelectError COLLECTIVE_SHAPE, COLLECTIVE_ATOM, COLLECTIVE_VECTOR, COLLECTIVE_FRAGMENT.
    """
    attrs["fill"] = _number("fill", fill)
    if isinstance(dst, Tensor) and isinstance(src, (Expression, IntExpr, int, float)):
        src = _computed(dst, src)
    if done is not None and not isinstance(done, Mbarrier):
        raise TypeError(f"done= takes an mbarrier, one of gr.mbarrier(...), got {done!r}")
    barrier = None if done is None else done.tensor
    return _core.record_spec("Move", dst, (src,), attrs, on, _atom_name(atom), "", tv, barrier, to)


def matmul(
    out: Tensor, a: Tensor, b: Tensor, on: On = None, atom: Any = None, accumulate: Any = True, **attrs: Any
) -> SpecHandle:
    """``out[M,N] += a[M,K] @ b[K,N]``, or ``=`` with ``accumulate=False``.

    Pass an operand that is stored the other way as ``.T``. `accumulate` may be a condition that is known when the spec
    runs, ``k > 0``, for atoms that take one. Rank 0 is a fused multiply-add, rank 1 an elementwise one.
    """
    return _record("MatMul", out, (a, b), on, atom, accumulate=accumulate, **attrs)


def unary(op: str, out: Tensor, x: Number, on: On = None, atom: Any = None, **attrs: Any) -> SpecHandle:
    """``out[i] = op(x[i])``: cast, neg, abs, exp2, rsqrt, rcp, tanh, ..."""
    return _record("UnaryPointwise", out, (x,), on, atom, op=op, **attrs)


def binary(op: str, out: Tensor, x: Number, y: Number, on: On = None, atom: Any = None, **attrs: Any) -> SpecHandle:
    """``out[i] = x[i] op y[i]``: add, sub, mul, div, max, min, eq, lt, ...; comparisons write gr.pred."""
    return _record("BinaryPointwise", out, (x, y), on, atom, op=op, **attrs)


def ternary(
    op: str, out: Tensor, x: Number, y: Number, z: Number, on: On = None, atom: Any = None, **attrs: Any
) -> SpecHandle:
    """``fma`` is ``x[i] * y[i] + z[i]``, rounded once; ``where`` is ``y[i]`` if the predicate ``x[i]`` holds, else
    ``z[i]``.
    """
    return _record("TernaryPointwise", out, (x, y, z), on, atom, op=op, **attrs)


def reduce(
    op: str, out: Tensor, x: Tensor, axis: int, accumulate: bool = False, on: On = None, atom: Any = None, **attrs: Any
) -> SpecHandle:
    """``out = op over x along axis``; ``accumulate=True`` starts from the value of `out`.

    Operations are add, mul, max, min, and for integers and, or, xor. For a thread's own scalar registers, the axis
    after their last one is the group `on`: every lane gets the result of all lanes.

    A reduction of registers is decomposed at once: first a thread's own values in register order, then exchanges
    between the lanes of a row, then shared memory between warps (with barriers). For a fragment x, `out` is the
    fragment that ``x.reduced(axis, ...)`` declared; if that had ``lanes=True``, only a thread's own values are reduced.
    Raises LayoutError REDUCE_FRAGMENT.
    """
    return _record("Reduction", out, (x,), on, atom, op=op, axis=axis, accumulate=accumulate, **attrs)


def check_group(call: str, on: ThreadTensor) -> None:
    """Raises VerifyError SPEC_GROUP unless threads that are not tiled can exchange registers, all with all."""
    n = on.size if len(on.levels) == 1 and on.unit == "thread" else 0
    if not isinstance(n, int) or n < 1 or (n & (n - 1) if n < 32 else n % 32):
        fix = "pass threads before they are tiled, or one tile of them"
        if isinstance(n, int) and n > 32:
            fix = "pass a multiple of 32 threads, not tiled: those that are left over hold what changes nothing"
        refuse("SPEC_GROUP", f"gr.{call} takes whole warps, or a part of one of 1, 2, 4, 8 or 16 threads",
               [f"got: {on}"], fix)  # fmt: skip
    # Tiles begin where the executing thread says, and parts are subsets: what is left is the block.
    if 1 < n < 32 and isinstance(on.offset, int) and not on.subset:
        refuse("SPEC_GROUP", f"gr.{call} exchanges registers in whole warps, and the block has {n} threads",
               [f"got: {on}"], "declare whole warps, gr.threads(32): the threads that are left over hold what changes "
               "nothing")  # fmt: skip


def allreduce(op: str, x: Tensor, on: ThreadTensor) -> None:
    """``x = op over every thread's x`` in the group `on`; all threads get the result.

    Operations are add, mul, max, min, and for integers and, or, xor.

    x: private registers, each of which is reduced by itself. A warp or a power-of-two part of it exchanges registers
    (PTX shfl.sync.bfly). Several warps meet in shared memory, with a barrier before and after the reading. A tiled
    group is tiled by 32, or has no more threads than one tile. Raises LayoutError REDUCE_FRAGMENT, VerifyError
    VERIFY_OPERATION, SPEC_GROUP.
    """
    if isinstance(on, ThreadTensor) and len(on.levels) == 1 and on.unit == "thread":
        check_group("allreduce", on)
    _core.record_allreduce(op, x, on)


def shfl(out: Tensor, x: Tensor, mode: str, arg: IntLike, on: On = None, atom: Any = None, **attrs: Any) -> SpecHandle:
    """Each lane of `on`, a group of 2, 4, 8, 16 or 32 threads of a warp, gets another lane's value of `x`.

    `out` and `x` are registers of one size and dtype. Mode ``idx``: lane `arg`; ``up``: the lane `arg` below, ``down``:
    the lane `arg` above, where a lane that has none keeps its own; ``bfly``: lane xor `arg`. Without `on` each thread
    is a group for itself. Raises VerifyError VERIFY_SHFL, VERIFY_SHFL_LANE. Source: PTX ISA, shfl.sync.
    """
    return _record("Shfl", out, (x,), on, atom, mode=mode, arg=arg, **attrs)


def init(t: Tensor, value: float, on: On = None, atom: Any = None, **attrs: Any) -> SpecHandle:
    """Sets every element of a tensor to a number."""
    return _record("Init", t, (), on, atom, value=_number("value", value), **attrs)
