"""Kernels that work row by row (normalisations, softmax) as a tunable: threads of a row, and where it is kept."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphene import dtypes
from graphene.errors import GrapheneError, VerifyError
from graphene.kernels import NormConfig, RowTile, SoftmaxConfig, layernorm_kernel, rmsnorm_kernel, softmax_kernel
from graphene.kernels._arguments import FLOATS, align, choice, size
from graphene.kernels._row_tiles import select_tile
from graphene.report import occupancy
from graphene.tune import recorded
from graphene.tune.autotune import from_record, tune
from graphene.tune.device import of_arch, require_cuda
from graphene.tune.matmul import shape_class
from graphene.tune.tunable import Tunable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene.kernel import Kernel
    from graphene.tune.device import Device

__all__ = ["ROWS", "RowProblem", "with_record"]

EPS = 1e-5
PART_ELEMENTS = 1 << 26
IN_FLIGHT_BYTES = 32 << 10  # of a multiprocessor, that keep its share of memory busy
BLOCK_US, VECTOR_US = 1.5, 0.1  # of a block from start to end, and for each vector of a thread
KINDS = ("layernorm", "rmsnorm", "softmax")


@dataclass(frozen=True)
class RowProblem:
    """Rows of `width` elements that are normalised.

    ``kind``: "layernorm", "rmsnorm" or "softmax". ``dtype``: "fp16", "bf16" or "fp32". ``align_bytes``: of addresses
    and row strides. ``dense_bytes``: of addresses, where rows have no gaps; else 0. Raises VerifyError KERNEL_ARGUMENT.
    """

    kind: str
    rows: int
    width: int
    dtype: str = "fp16"
    align_bytes: int = 16
    dense_bytes: int = 0

    def __post_init__(self) -> None:
        n = "RowProblem"
        choice(n, "kind", self.kind, KINDS)
        choice(n, "dtype", self.dtype, FLOATS)
        size(n, "rows", self.rows, least=0)
        size(n, "width", self.width)
        elem_bytes = int(getattr(dtypes, self.dtype).bits) // 8
        align(n, "align_bytes", self.align_bytes, elem_bytes)
        if self.dense_bytes != 0:
            align(n, "dense_bytes", self.dense_bytes, elem_bytes)

    @property
    def vector(self) -> int:
        """Elements of the widest vectors that begin every row."""
        return math.gcd(self.row_bytes, self.align_bytes, 16) * self.width // self.row_bytes

    @property
    def dense(self) -> int:
        """Elements of vectors where rows begin anywhere; 0 where they begin with whole vectors, or may have gaps."""
        size = self.row_bytes // self.width
        dense = math.gcd(self.dense_bytes, 16) // size if self.dense_bytes else 0
        return dense if dense > self.vector and self.width >= 256 else 0

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self.width * int(getattr(dtypes, self.dtype).bits) // 8

    def __str__(self) -> str:
        return f"{self.kind} {self.rows}x{self.width} {self.dtype}"


def _candidates(p: RowProblem, device: Device) -> Iterator[RowTile]:
    vector = p.dense or p.vector
    narrow = [t for t in (1, 2, 4, 8, 16) if t * vector >= p.width // 4]
    for threads in (
        *narrow,
        128,
        256,
        64,
        512,
        320,
        32,
        96,
        160,
        192,
        384,
        640,
        768,
        1024,
    ):  # of equals the first is taken
        for keep, rows, evict, unroll in (
            *(("registers", r, e, 4) for r in (1, 2, 4, 8, 16, 32) for e in ("default", "no_allocate")),
            *(("shared", 1, e, u) for e in ("default", "evict_last") for u in (4, 2, 8)),
            ("memory", 1, "default", 4), ("memory", 1, "default", 8),
        ):  # fmt: skip
            try:
                yield RowTile(p.width, threads, rows, vector, keep, evict, unroll=unroll, dense=p.dense)
            except VerifyError:
                continue  # no tile: a block of parts of warps, say


def _predict(t: RowTile, p: RowProblem, device: Device) -> tuple[float, str] | str:
    if t.width != p.width or t.dense != p.dense or (p.dense or p.vector) % t.vector:
        return f"a tile for rows of {t.width} elements in vectors of {t.vector}"
    if t.threads > 32 and t.threads * t.vector >= 2 * t.width:
        return f"{t.threads} threads for {t.width // t.vector} vectors: half of them would have none"
    each = math.ceil(t.part / (t.threads * t.vector)) * t.vector  # elements of a thread
    registers = 28 + each * (2 if t.keep == "registers" else 1)
    if registers > 255:
        return f"about {registers} registers a thread, at most 255: it would spill"
    shared = p.row_bytes if t.keep == "shared" else 0
    if shared + 1024 > device.shared_bytes:
        return f"a row of {p.row_bytes} bytes does not fit into {device.shared_bytes} bytes of shared memory"
    threads = t.threads * t.rows
    found = occupancy(device.arch, threads, shared + 128, registers)
    resident = found.blocks_per_sm if found is not None else 1
    if resident == 0:
        return f"{threads} threads of about {registers} registers are more than a multiprocessor has"
    blocks = math.ceil(p.rows / t.rows)
    held = t.rows * p.row_bytes if t.keep != "memory" else t.threads * 64
    waves = blocks / (device.sm_count * resident)
    busy = min(1.0, resident * held / IN_FLIGHT_BYTES)
    traffic = p.rows * p.row_bytes * (2 if t.keep != "memory" else 2.6)  # what is read again is partly in the L2 cache
    us = traffic / (device.dram_bytes * device.sm_count * device.clock_ghz * 1e3 * busy)
    vectors = math.ceil(t.width / (t.threads * t.vector))
    us = max(us, math.ceil(waves) * (BLOCK_US + VECTOR_US * vectors)) + 2.0
    return us, f"{waves:.2f} waves of {resident} blocks an SM, {busy:.0%} of what keeps memory busy is on its way"


def _config(t: RowTile, p: RowProblem) -> NormConfig | SoftmaxConfig:
    dtype = getattr(dtypes, p.dtype)
    return SoftmaxConfig(t, dtype) if p.kind == "softmax" else NormConfig(t, dtype, beta=p.kind == "layernorm")


def _build(t: RowTile, p: RowProblem) -> Kernel:
    config = _config(t, p)
    if isinstance(config, SoftmaxConfig):
        return softmax_kernel(config)
    return layernorm_kernel(config) if p.kind == "layernorm" else rmsnorm_kernel(config)


def _unusable(t: RowTile, p: RowProblem, device: Device) -> str | None:
    verdict = _predict(t, p, device)
    _config(t, p)  # what no kernel takes is refused here, with a code
    return verdict if isinstance(verdict, str) else None


def _arguments(p: RowProblem, where: str = "cuda") -> Sequence[Any]:
    """Random rows; the result is what no kernel leaves there."""
    torch: Any = require_cuda("tuning rows") if where == "cuda" else importlib.import_module("torch")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[p.dtype]
    x = torch.randn(p.rows, p.width, device=where).to(dtype)
    columns = [torch.randn(p.width, device=where).to(dtype) for _ in range(KINDS[::-1].index(p.kind))]
    return [x, *columns, torch.full_like(x, float("nan")), *([EPS] if columns else [])]


def _parts(p: RowProblem) -> Iterator[slice]:
    """All rows, some at a time: fp64 of all of them at once may be more than fits."""
    step = max(1, PART_ELEMENTS // p.width)
    return (slice(i, i + step) for i in range(0, p.rows, step))


def _reference(p: RowProblem, arguments: Sequence[Any]) -> Any:
    """All rows of the result, by PyTorch in fp64, rounded to fp32."""
    import torch

    functional = torch.nn.functional
    g, b = (arguments[i].double() if i < len(arguments) - 2 else None for i in (1, 2))
    want = torch.empty_like(arguments[0], dtype=torch.float32)
    for rows in _parts(p):
        x = arguments[0][rows].double()
        if p.kind == "softmax":
            want[rows] = torch.softmax(x, -1)
        elif p.kind == "rmsnorm":
            want[rows] = functional.rms_norm(x, (p.width,), g, EPS)
        else:
            want[rows] = functional.layer_norm(x, (p.width,), g, b, EPS)
    return want


def _verify(p: RowProblem, arguments: Sequence[Any], want: Any = None) -> str | None:
    """Compares each row with that of ``want``, the reference; a NaN is wrong."""
    want = _reference(p, arguments) if want is None else want
    y = arguments[-1] if p.kind == "softmax" else arguments[-2]
    bound = {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 2e-5}[p.dtype]
    lengths = want.norm(dim=-1)
    lengths = lengths.clamp_min(0.5 * float(lengths.mean()))  # a row of hardly anything is as exact as the others
    for rows in _parts(p):
        error = float(((y[rows].float() - want[rows]).norm(dim=-1) / lengths[rows]).max())
        if not error <= bound:
            return f"relative error {error:.1e} of a row, at most {bound:.1e}"
    return None


def _key(p: RowProblem) -> tuple[str, str]:
    """The dtype and shape class: the number of rows to the nearest power of two or half above, the exact width."""
    dense = f" dense {p.dense}" if p.dense else ""
    return p.dtype, f"{p.kind} {shape_class(p.rows)}x{p.width} vectors of {p.vector}{dense}"


def _text(t: RowTile) -> str:
    evict = f", {t.evict}" if t.evict != "default" else ""
    rows = f"{t.rows} rows of " if t.rows > 1 else ""
    loops = f", {t.unroll} parts at once" if t.keep != "registers" else ""
    return f"{rows}{t.threads} threads, vectors of {t.vector}, kept in {t.keep}{evict}{loops}"


def _selected(p: RowProblem, device: Device) -> RowTile:
    """What is taken without a record."""
    dtype, columns = getattr(dtypes, p.dtype), KINDS[::-1].index(p.kind)
    return select_tile(p.rows, p.width, dtype, 1, columns, p.align_bytes, device.shared_bytes, p.dense_bytes)


def with_record(selected: RowTile, p: RowProblem, device: str, shared_bytes: int) -> RowTile:
    """The tile of the record of a problem's shape class on a device, else ``selected``.

    fp16 and bf16 are equally fast: either takes the other's record. A record that is no tile for these rows is not
    believed: it warns once, with the code of what is wrong. With ``GRAPHENE_TUNE=1`` a class without a record is tuned;
    where that fails, it warns and ``selected`` is taken.
    """
    dtype, shape = _key(p)
    alike = (dtype, *({"fp16", "bf16"} - {dtype} if dtype != "fp32" else ()))
    found = (recorded.find(device, ROWS.name, ROWS.version, d, shape) for d in alike)
    record = next(filter(None, found), None)
    where = replace(of_arch("sm_90a"), name=device, shared_bytes=shared_bytes)
    if record is not None:
        return from_record(ROWS, p, where, record) or selected
    if os.environ.get("GRAPHENE_TUNE") != "1":
        return selected
    try:
        return tune(ROWS, p).best
    except Exception as e:
        code = "" if isinstance(e, GrapheneError) else "   [TUNE_FAILED]"
        recorded.warn_once(f"{p} could not be tuned: {e}{code}")
        return selected


ROWS: Tunable[RowProblem, RowTile] = Tunable(
    "rows",
    RowTile,
    _candidates,
    _predict,
    _build,
    _arguments,
    _key,
    version=2,
    verify=_verify,
    text=_text,
    alike=lambda t: (t.keep, t.rows, t.threads),
    incumbent=_selected,
    reference=_reference,
    unusable=_unusable,
)
