"""The matrix product of graphene.kernels as a tunable: tiles, warps, stages, parts of K, padded copies."""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from graphene.errors import GrapheneError
from graphene.kernels._arguments import flags, size, sizes
from graphene.kernels.gemm import TYPES, GemmConfig, check_product, gemm_launches, run_gemm
from graphene.kernels.gemm_select import BYTES_PER_US, PART_US, SLOWER, copies_spill, select_gemm, splits
from graphene.tune import recorded
from graphene.tune.autotune import from_record, tune
from graphene.tune.device import of_arch, require_cuda
from graphene.tune.matmul import shape_class
from graphene.tune.tiles import MatmulShape, Tile, estimate, impossible, judge
from graphene.tune.tunable import Tunable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene._core import Binary
    from graphene.tune.device import Device

__all__ = ["GEMM", "GemmProblem", "GemmTile", "gemm_key", "with_record"]

UNWRITTEN = -0x5A5A5A5A  # instead of NaN, for integers
PART_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class GemmProblem:
    """One product C = act(A @ B + bias) + residual, (M,K) by (K,N); the fields are those of ``select_gemm``.

    Raises VerifyError KERNEL_ARGUMENT.
    """

    m: int
    n: int
    k: int
    batch: int | None = None
    dtype: str = "fp16"
    order: str = "TN"
    align: tuple[int, int, int] = (16, 16, 16)
    bias: bool = False
    residual: bool = False
    activation: str | None = None
    workspaces: bool = True

    def __post_init__(self) -> None:
        n = "GemmProblem"
        align = check_product(n, self.dtype, None, self.order, self.align, self.activation)
        fields: dict[str, Any] = {x: size(n, x, getattr(self, x), least=0) for x in ("m", "n", "k")}
        batch = None if self.batch is None else size(n, "batch", self.batch, least=0)
        for name, value in (fields | {"align": align, "batch": batch}).items():
            object.__setattr__(self, name, value)
        for name in ("bias", "residual", "workspaces"):
            flags(n, name, (getattr(self, name),), 1)

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch is not None else ""
        act = f" {self.activation}" if self.activation else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.order} {self.dtype}{act}"


@dataclass(frozen=True)
class GemmTile:
    """What a record keeps of a GemmConfig: the choices that do not belong to the problem.

    Raises VerifyError KERNEL_ARGUMENT: a record may have been written by hand.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    group: int = 1
    pad: tuple[bool, bool] = (False, False)
    split_k: int = 1

    def __post_init__(self) -> None:
        n = "GemmTile"
        fields: dict[str, Any] = {
            "tile": sizes(n, "tile", self.tile, 3),
            "warps": sizes(n, "warps", self.warps, 2, 1, 32),
            "pad": flags(n, "pad", self.pad, 2),
            "stages": size(n, "stages", self.stages, least=2, most=32),
            "group": size(n, "group", self.group),
            "split_k": size(n, "split_k", self.split_k, most=65535),
        }
        for name, value in fields.items():  # JSON knows lists only
            object.__setattr__(self, name, value)
        for i, rows in enumerate(("tile[0]", "tile[1]")):
            size(n, rows, self.tile[i], multiple_of=16 * self.warps[i])

    def config(self, p: GemmProblem) -> GemmConfig:
        """The configuration of a problem."""
        return GemmConfig(
            **asdict(self), order=p.order, dtype=p.dtype, align=p.align, batched=p.batch is not None, bias=p.bias,
            residual=p.residual, activation=p.activation,
        )  # fmt: skip

    @property
    def as_tile(self) -> Tile:
        """The same as the model of time sees it."""
        (bm, bn, bk), (down, across) = self.tile, self.warps
        return Tile(bm, bn, bk, bm // down, bn // across, self.stages, self.split_k)

    def __str__(self) -> str:
        padded = "".join(n for n, p in zip("AB", self.pad, strict=True) if p)
        return str(self.as_tile) + (f", {padded} padded" if padded else "")


@functools.lru_cache(64)
def _shape(p: GemmProblem) -> MatmulShape:
    item = TYPES[p.dtype].bits // 8
    rate = {1: 2.0, 2: 1.0, 4: 0.5}[item]
    return MatmulShape(p.m, p.n, p.k, p.batch or 1, item, 4 if p.dtype == "i8" else item, 32 // item, rate)


def _pads(p: GemmProblem) -> list[tuple[bool, bool]]:
    narrow = (p.align[0] < 16, p.align[1] < 16)
    return [(False, False), narrow] if p.workspaces and any(narrow) else [(False, False)]


def _candidates(p: GemmProblem, device: Device) -> Iterator[GemmTile]:
    shape = _shape(p)
    line = 128 // shape.element_bytes
    for bm in (128, 256, 192, 64, 96, 32):  # of equals the first is taken
        for bn in (128, 256, 192, 64, 96, 32):
            blocks = -(-p.m // bm) * -(-p.n // bn) * shape.batch
            parts = splits(p.m, p.n, p.k, shape.batch, bm, bn, line, device.sm_count) if p.workspaces else [1]
            parts = [s for s in parts if s == 1 or blocks * s <= 2 * device.sm_count]
            group = 8 if min(p.m // bm, p.n // bn) >= 16 else 1
            for warps in ((2, 2), (2, 4), (4, 2), (1, 4), (4, 1)):
                if bm % (16 * warps[0]) or bn % (16 * warps[1]) or bm // warps[0] > 128 or bn // warps[1] > 128:
                    continue
                for bk in (line, line // 2):
                    for stages in (3, 4, 2, 5):
                        for pad in _pads(p):
                            for split in parts:
                                yield GemmTile((bm, bn, bk), warps, stages, group, pad, split)


def _predict(c: GemmTile, p: GemmProblem, device: Device) -> tuple[float, str] | str:
    shape, tile = _shape(p), c.as_tile
    if (reason := judge(tile, shape, device)) is not None:
        return reason
    if (parts := c.split_k * shape.batch) > 65535:
        return f"{parts} parts of products, of which a grid has 65535"
    worst = min(16 if padded else a for padded, a in zip(c.pad, p.align[:2], strict=True))
    if worst < 4 and tile.bm * tile.bn > 64 * 64:
        return f"lines of {worst} bytes pass through registers, which leave no room for {tile.bm}x{tile.bn} sums"
    if worst >= 4 and copies_spill(tile.bm, tile.bn, tile.bk * shape.element_bytes, c.warps, worst):
        return f"copies of {worst} bytes take so many registers that sums would spill"
    e = estimate(tile, shape, device)
    us = e.us * SLOWER[worst]
    for padded, lines in zip(c.pad, (p.m, p.n), strict=True):
        if padded:
            us += 1.7 + shape.batch * lines * p.k * shape.element_bytes * 2 / BYTES_PER_US
    if c.split_k > 1:
        us += c.split_k * PART_US + shape.batch * p.m * p.n * (8 * c.split_k + 2) / BYTES_PER_US
    waves = f"{e.waves:.2f} waves of {e.blocks_per_sm} blocks an SM"
    return us, f"{waves}, tensor cores {e.busy:.0%} busy, bound by {e.bound}"


def _unusable(c: GemmTile, p: GemmProblem, device: Device) -> str | None:
    if (reason := impossible(c.as_tile, _shape(p), device)) is None:
        gemm_launches(c.config(p))  # what has no kernel is refused here, with a code
    return reason


def _estimated(p: GemmProblem, device: Device) -> GemmTile:
    """What select_gemm takes without a record."""
    c = select_gemm(
        p.m, p.n, p.k, batch=p.batch, dtype=p.dtype, order=p.order, align=p.align, bias=p.bias, residual=p.residual,
        activation=p.activation, sms=device.sm_count, shared_bytes=device.shared_bytes, workspaces=p.workspaces,
    )  # fmt: skip
    return GemmTile(c.tile, c.warps, c.stages, c.group, c.pad, c.split_k)


class _Run:
    """The kernels of a configuration behind one call; workspaces are allocated once."""

    def __init__(self, config: GemmConfig, p: GemmProblem) -> None:
        self._config, self._problem = config, p
        self._launches = gemm_launches(config)
        self._kept: dict[tuple[tuple[int, ...], str], Any] = {}

    def compile(self, arch: str) -> Binary:
        """Compiles all of them; returns the one with the most registers, the product."""
        return max((x.kernel.compile(arch) for x in self._launches), key=lambda b: b.registers)

    def __call__(self, a: Any, b: Any, c: Any, *terms: Any) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]

        types = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8,
                 "i32": torch.int32}  # fmt: skip

        def empty(shape: tuple[int, ...], dtype: str) -> Any:
            if (shape, dtype) not in self._kept:
                self._kept[shape, dtype] = a.new_empty(shape, dtype=types[dtype])
            return self._kept[shape, dtype]

        rest = list(terms)
        bias = rest.pop(0) if self._problem.bias else None
        residual = rest.pop(0) if self._problem.residual else None
        run_gemm(self._config, a, b, c, bias, residual, empty=empty)


def _arguments(p: GemmProblem, where: str = "cuda") -> Sequence[Any]:
    """Random operands; the result is what no product leaves there."""
    torch: Any = require_cuda("tuning a product") if where == "cuda" else importlib.import_module("torch")
    types = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8}
    front = [] if p.batch is None else [p.batch]

    def matrix(rows: int, columns: int, row_major: bool) -> Any:
        shape = [*front, rows, columns] if row_major else [*front, columns, rows]
        if p.dtype == "i8":
            t = torch.randint(-128, 128, shape, device=where, dtype=torch.int8)
        else:
            t = torch.randn(shape, device=where).to(types[p.dtype])
        return t if row_major else t.transpose(-1, -2)

    a, b = matrix(p.m, p.k, p.order[0] == "T"), matrix(p.k, p.n, p.order[1] == "T")
    out = torch.int32 if p.dtype == "i8" else types[p.dtype]
    c = torch.full([*front, p.m, p.n], UNWRITTEN if p.dtype == "i8" else float("nan"), device=where, dtype=out)
    terms = []
    if p.bias:
        terms.append(torch.randn(p.n, device=where).to(out))
    if p.residual:
        terms.append(torch.randn(c.shape, device=where).to(out))
    return [a, b, c, *terms]


def _rows(p: GemmProblem) -> Iterator[slice]:
    """All rows of C, a part at a time: fp64 of all of them at once may be more than fits."""
    step = max(1, PART_ELEMENTS // max(p.n * (p.batch or 1), 1))
    return (slice(i, i + step) for i in range(0, p.m, step))


def _reference(p: GemmProblem, arguments: Sequence[Any]) -> Any:
    """All of the result, epilogue included, by PyTorch in fp64; rounded to fp32, of integers exact."""
    import torch

    from graphene.ops.core.activations import activate

    a, b, c = arguments[:3]
    terms = list(arguments[3:])
    bias = terms.pop(0) if p.bias else None
    residual = terms.pop(0) if p.residual else None
    want = torch.empty(c.shape, device=c.device, dtype=torch.int32 if p.dtype == "i8" else torch.float32)
    wide = b.double()
    for rows in _rows(p):
        x = a[..., rows, :].double() @ wide
        x = activate(x if bias is None else x + bias.double(), p.activation)
        x = x if residual is None else x + residual[..., rows, :].double()
        want[..., rows, :] = x.to(torch.int64) if p.dtype == "i8" else x
    return want


def _verify(p: GemmProblem, arguments: Sequence[Any], want: Any = None) -> str | None:
    """Compares all of the result with ``want``, the reference; a NaN is wrong."""
    want, c = _reference(p, arguments) if want is None else want, arguments[2]
    if p.dtype == "i8":
        wrong = sum(int((c[..., rows, :] != want[..., rows, :]).sum()) for rows in _rows(p))
        return f"{wrong} of {c.numel()} integers are wrong" if wrong else None
    bound = {"fp16": 2.0**-9, "bf16": 2.0**-6, "fp32": 2.0**-8}[p.dtype]
    scale = max(float(want.abs().max()), 1e-9) if want.numel() else 1.0
    for rows in _rows(p) if want.numel() else ():
        error = float((c[..., rows, :].float() - want[..., rows, :]).abs().max()) / scale
        if not error <= bound:
            return f"relative error {error:.1e}, at most {bound:.1e}"
    return None


def gemm_key(p: GemmProblem) -> tuple[str, str]:
    """The dtype and shape class of a product: sizes to the nearest power of two or half above, order, alignment."""
    m, n, k, batch = (shape_class(x) for x in (p.m, p.n, p.k, p.batch or 1))
    align = "x".join(map(str, p.align))
    work = "" if p.workspaces else " no workspaces"
    return p.dtype, f"{batch} of {m}x{n}x{k} {p.order} align {align}{work}"


def with_record(
    estimated: GemmConfig,
    sizes: tuple[int, int, int],
    batch: int | None,
    workspaces: bool,
    device: str,
    sms: int,
    shared_bytes: int,
) -> GemmConfig:
    """The configuration of the record of a product's shape class on a device, else ``estimated``.

    A record is of a class of sizes, not of these: where the model expects it to take a tenth longer than ``estimated``
    (a last wave with few blocks, say), that is taken. fp16 and bf16 are equally fast: either takes the other's record.
    With ``GRAPHENE_TUNE=1`` a class without a record is tuned. Where that fails, and where a record is no configuration
    of a kernel, it warns once and ``estimated`` is taken.
    """
    c = estimated
    problem = GemmProblem(*sizes, batch, c.dtype, c.order, c.align, workspaces=workspaces)
    dtype, shape = gemm_key(problem)
    alike = ("fp16", "bf16") if dtype in ("fp16", "bf16") else (dtype,)
    found = {d: recorded.find(device, GEMM.name, GEMM.version, d, shape) for d in alike}
    record = found[dtype] or next(filter(None, found.values()), None)
    if record is None and os.environ.get("GRAPHENE_TUNE") != "1":
        return c
    where = replace(of_arch("sm_90a"), name=device, sm_count=sms, shared_bytes=shared_bytes)
    tile: GemmTile | None
    if record is None:
        try:
            tile = tune(GEMM, problem).best
        except Exception as e:
            code = "" if isinstance(e, GrapheneError) else "   [TUNE_FAILED]"
            recorded.warn_once(f"{problem} could not be tuned: {e}{code}")
            return c
    elif (tile := from_record(GEMM, problem, where, record)) is None:
        return c
    expected = _predict(tile, problem, where)
    other = _predict(GemmTile(c.tile, c.warps, c.stages, c.group, c.pad, c.split_k), problem, where)
    if isinstance(expected, str) or (not isinstance(other, str) and expected[0] > 1.1 * other[0]):
        return c
    return replace(c, **asdict(tile))


GEMM: Tunable[GemmProblem, GemmTile] = Tunable(
    "gemm",
    GemmTile,
    _candidates,
    _predict,
    lambda config, p: _Run(config.config(p), p),
    _arguments,
    gemm_key,
    version=1,
    verify=_verify,
    incumbent=_estimated,
    reference=_reference,
    unusable=_unusable,
    alike=lambda c: (c.tile[:2], c.pad, c.split_k),
)
