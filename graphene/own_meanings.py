"""What entries of kind "Spec" compute, for the simulator: their functions of arrays, held to the operands' types."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphene import _core
from graphene.atoms import MEANINGS
from graphene.errors import GrapheneError
from graphene.judge.formats import decode, encode, is_float, nearest, storage

__all__ = ["evaluate"]


def evaluate(atom: str, threads: int, ins: list[Any], outs: list[Any]) -> list[bytes]:
    """The simulator's call: operands are (type, elements of a thread, 64 bits for each), outputs lack the bits."""
    means = MEANINGS.get(atom)
    if means is None:
        _core.fail("CHECK_MEANS", f"nobody has said what {atom} computes", [], "define it with means=")
    given = [_array(dtype, _bits(bits), threads, values) for dtype, values, bits in ins]
    try:
        with np.errstate(all="ignore"):
            got = means(*given)
    except GrapheneError:
        raise
    except Exception as error:
        takes = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in given)
        _core.fail("CHECK_MEANS", f"the meaning of {atom} raises {type(error).__name__}: {error}",
                   [f"given: {takes or 'nothing'}"], "write a function of one array for each input")  # fmt: skip
    results = list(got) if isinstance(got, tuple) else [got]
    if len(results) != len(outs):
        _core.fail("CHECK_MEANS", f"the meaning of {atom} returns {len(results)} arrays",
                   [f"want: {len(outs)}, one for each output"], "return them as a tuple")  # fmt: skip
    return [_checked(atom, i, x, dtype, (threads, values) if values > 1 else (threads,))
            for i, (x, (dtype, values)) in enumerate(zip(results, outs, strict=True))]  # fmt: skip


def _bits(data: bytes) -> Any:
    return np.frombuffer(data, np.uint64)


def _type_of(dtype: str) -> Any:
    """What NumPy calls the type of arrays that a meaning takes and returns."""
    if dtype in ("i4", "u4"):
        return np.dtype("int8" if dtype == "i4" else "uint8")
    t = _core.dtype(dtype)
    held = t.in_numpy and not (is_float(dtype) and t.array_name == "uint8")
    return np.dtype(t.array_name) if held else np.dtype(np.float32)


def _array(dtype: str, bits: Any, threads: int, values: int) -> Any:
    kind, of = storage(dtype), _type_of(dtype)
    held = bits.astype(f"u{kind.itemsize}").view(kind)
    x = held if kind == of and dtype not in ("i4", "u4") else decode(held, dtype).astype(of)
    return x.reshape(threads, values) if values > 1 else x


def _checked(atom: str, number: int, x: Any, dtype: str, shape: tuple[int, ...]) -> bytes:
    def refuse(want: str, got: str) -> None:
        _core.fail("CHECK_MEANS", f"the meaning of {atom} does not fit output {number}, of {dtype}",
                   [f"want: {want}", f"got: {got}"], "convert what it returns: x.astype(...)")  # fmt: skip

    of = _type_of(dtype)
    if not isinstance(x, (np.ndarray, np.generic)) or x.dtype != of or np.shape(x) != shape:
        got = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, (np.ndarray, np.generic)) else repr(x)[:60]
        refuse(f"{of} of shape {list(shape)}", got)
    x = np.ascontiguousarray(x)
    kind = storage(dtype)
    if kind == of and dtype not in ("i4", "u4"):
        bits = x.reshape(-1).view(f"u{kind.itemsize}")
    else:
        wide = x.reshape(-1).astype(np.float64 if is_float(dtype) else np.int64)
        code = encode(wide, dtype)
        same = decode(code, dtype) == wide if not is_float(dtype) else (nearest(wide, dtype) == wide) | np.isnan(wide)
        if not np.all(same):
            refuse(f"numbers of {dtype}", f"{wide[~same][0]:g}")
        bits = code.view(f"u{kind.itemsize}")
    return bytes(bits.astype(np.uint64).tobytes())
