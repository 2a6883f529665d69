"""What a tile says about a product's kernel for Hopper: operands, consumers, clusters, shared memory, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene import _core
from graphene.kernels.gemm.result import Result
from graphene.kernels.tma import ALIGNED_BYTES, LINE_BYTES, SHARED_BYTES

if TYPE_CHECKING:
    from graphene.dtypes import DType
    from graphene.kernels.gemm.frame import Product
    from graphene.kernels.gemm.operand import Operand

__all__ = ["KINDS", "PIECE", "SUMS", "Hopper", "Refusal", "check_tile_sm90", "refusal"]

KINDS = {"fp16": "f16", "bf16": "bf16", "i8": "s8", "fp8e4m3": "e4m3", "fp8e5m2": "e5m2"}  # as the instruction says
KINDS["fp32"] = "tf32"  # TMA rounds fp32 to it
SUMS = 208  # the most accumulators of a thread
PIECE, MOST_PIECE = 64, 112  # columns of C that are stored at once
SHARED_CUTS = 3  # if this number of blocks or more cut k, each of them adds up a part of the sums


class Refusal(NamedTuple):
    """Why there is no kernel of a tile: what is wrong, what is wanted, what is given, and what helps."""

    what: str
    want: str
    got: object
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: want {self.want}, got {self.got}"


def check_tile_sm90(product: Product) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless there is a kernel of that tile."""
    if (r := refusal(product)) is not None:
        _core.fail("KERNEL_ARGUMENT", f"gemm_sm90: {r.what}", [f"want: {r.want}", f"got: {r.got}"], r.fix)


def refusal(product: Product, shared_bytes: int = SHARED_BYTES) -> Refusal | None:
    """Why there is no kernel of a tile, on a device whose blocks have that much shared memory; None if there is."""
    t, p = product.tile, product.problem
    if p.dtype not in KINDS:
        return Refusal(f"no product of {p.dtype}", f"dtype {', '.join(KINDS)}", p.dtype, "take gemm_sm80")
    other = "" if p.dtype.startswith("fp8") else ", or take gemm_sm80"  # which has no fp8
    if product.dtype.bits != 16 and p.order != "TN":
        what = f"the instruction takes {product.dtype} along k"
        return Refusal(what, "order TN", p.order, f"copy the operand{other}")
    if t.warps not in ((4, 1), (8, 1), (1, 4), (1, 8)):
        want = "(4, 1) or (8, 1), or (1, 4) or (1, 8)"
        return Refusal("warps do not fit", want, t.warps, "take one or two warpgroups")
    if t.turns and max(t.warps) > 4:
        what = "turns need tiles of one warpgroup"
        return Refusal(what, "warps (4, 1) or (1, 4)", t.warps, "leave out turns, or halve warps")
    for name, operand in (("A", product.a), ("B", product.b)):
        if operand.align_bytes < 16:
            want = f"lines of {name} that are multiples of 16 bytes"
            return Refusal(f"TMA copies {name} by 16 bytes", want, operand.align_bytes, f"pad it{other}")
    h = Hopper(product)
    if h.rows % 64 or (h.swapped and h.rows != 64):
        want = "64 columns for each consumer" if h.swapped else "a multiple of 64 rows for each consumer"
        return Refusal("the tile does not fit its warps", want, f"tile {t.tile}, warps {t.warps}", "take another tile")
    line = LINE_BYTES * 8 // product.dtype.bits
    if t.tile[2] != line:
        return Refusal("a step of k is a line of shared memory", f"tile[2] = {line}", t.tile[2], f"take {line}")
    if h.columns > 256:
        return Refusal("the instruction has up to 256 columns", "256 or less", h.columns, "take a smaller tile")
    if h.columns % 16 and (not h.right.along_k or p.dtype == "i8"):
        want = "a multiple of 16 columns of i8 and of an operand that lies across k"
        return Refusal("the tile has half of a pair of eights", want, h.columns, "take another tile")
    if h.held > SUMS:
        want = f"at most {SUMS} for each thread"
        return Refusal("sums do not fit into registers", want, h.held, "take a smaller tile")
    if t.cluster[2] > 1 and max(t.cluster[:2]) > 1:
        what, fix = "clusters along k have no other direction", "take clusters along k, or along rows and columns"
        return Refusal(what, "cluster[2] = 1, or the others", t.cluster, fix)
    for what, operand, n, shares in (("A", h.left, h.block_rows, h.across), ("B", h.right, h.columns, h.down)):
        part = n // shares if n % shares == 0 else 0
        if shares > 1 and (part == 0 or part % 8 or (not operand.along_k and part % line)):
            want = f"a multiple of {(8 if operand.along_k else line) * shares} rows"
            return Refusal(f"blocks cannot share tiles of {what}", want, n, "take another tile")
    if t.terms_in_stages and (t.turns or h.swapped or h.blocks > 1):
        # In turns they would hold up the other consumer. A stage without a copy from another block tells nothing of
        # that block's stages.
        want = "consumers that share a tile's rows or are alone, and no cluster"
        got = f"turns={t.turns}, warps {t.warps}, cluster {t.cluster}"
        return Refusal("terms cannot come through the stages", want, got, "leave out terms_in_stages")
    if h.shared_bytes > shared_bytes:
        what, want = "tiles do not fit into shared memory", f"at most {shared_bytes} bytes"
        return Refusal(what, want, h.shared_bytes, "take fewer stages or a smaller tile")
    return None


@dataclass(frozen=True)
class Hopper:
    """What the tile of a product says about its kernel.

    Rows and columns are those of the sums in registers, from `left` and `right`, A and B. If operands change places
    (`swapped`), rows are the columns of C, from B.
    """

    product: Product

    @property
    def swapped(self) -> bool:
        """Whether A and B have changed places: a few rows of C are then the columns of the instruction."""
        return self.product.tile.warps[1] > 1

    @property
    def left(self) -> Operand:
        """The operand whose rows are the rows of the sums."""
        return self.product.b if self.swapped else self.product.a

    @property
    def right(self) -> Operand:
        """The operand whose rows are the columns of the sums."""
        return self.product.a if self.swapped else self.product.b

    @property
    def block_rows(self) -> int:
        """Rows of a stage's tile of `left`."""
        return self.product.tile.tile[1 if self.swapped else 0]

    @property
    def columns(self) -> int:
        """Rows of a stage's tile of `right`."""
        return self.product.tile.tile[0 if self.swapped else 1]

    @property
    def rows(self) -> int:
        """Rows of a consumer."""
        return self.block_rows * 4 // max(self.product.tile.warps)

    @property
    def held(self) -> int:
        """Sums of a thread of a consumer."""
        return self.rows * self.columns // 128 * (3 if self.product.problem.promote else 1)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.product.tile.turns else max(self.product.tile.warps) // 4

    @property
    def down(self) -> int:
        """Blocks of a cluster along the rows; they share tiles of `right`."""
        return self.product.tile.cluster[1 if self.swapped else 0]

    @property
    def across(self) -> int:
        """Blocks of a cluster along the columns; they share tiles of `left`."""
        return self.product.tile.cluster[0 if self.swapped else 1]

    @property
    def cuts(self) -> int:
        """Blocks of a cluster that each sum a part of k."""
        return self.product.tile.cluster[2]

    @property
    def owned(self) -> list[list[int]]:
        """The pieces of a tile that each block of those which cut k adds up and stores: side by side, one or more.

        With few blocks the first one has them all, as have those that do not cut k.
        """
        pieces = range(self.columns // self.width)
        if self.cuts < SHARED_CUTS or not (self.in_pieces or self.product.epilogue is None):
            return [list(pieces)] + [[] for _ in range(self.cuts - 1)]
        of = [j if len(pieces) <= self.cuts else j * self.cuts // len(pieces) for j in pieces]
        return [[j for j in pieces if of[j] == rank] for rank in range(self.cuts)]

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.down * self.across * self.cuts

    @property
    def stage_bytes(self) -> int:
        """Shared memory of the tiles of a step of k."""
        return (self.block_rows + self.columns) * LINE_BYTES

    @property
    def in_pieces(self) -> bool:
        """Whether the result passes through shared memory: pieces of 16-bit elements."""
        return self.product.c_type.bits == 16

    @property
    def width(self) -> int:
        """Columns of a piece of the sums that is rounded and stored at once."""
        if self.columns % PIECE == 0:
            return PIECE  # whole lines of 128 bytes, which are swizzled
        widths = [n for n in range(48, MOST_PIECE + 1, 16) if self.columns % n == 0]
        if self.cuts >= SHARED_CUTS:  # each block has a piece, or at least two blocks have some
            halves = [n for n in range(32, self.columns // 2 + 1, 8) if self.columns % n == 0]
            widths = [n for n in halves if n * self.cuts <= self.columns] or halves
        return max(widths, default=self.columns)

    @property
    def piece_bytes(self) -> int:
        """Shared memory of the pieces of all consumers."""
        return self.consumers * self.rows * self.width * 2 if self.in_pieces else 0

    @property
    def loaded(self) -> list[str]:
        """The matrices that the epilogue reads: the residual, and with beta C."""
        p = self.product.problem
        return [] if self.product.splits else ["residual"] * p.residual + ["C"] * p.beta

    @property
    def in_stages(self) -> list[str]:
        """The loaded matrix that follows a tile's operands through the stages, a piece of columns in each.

        It has the type and the lines of A's tiles. Two matrices would need two stages at once.
        """
        lines = self.left.along_k and self.left.dtype == self.product.c_type
        fits = lines and self.by_boxes and self.width == PIECE and len(self.loaded) == 1
        return self.loaded if fits and self.product.tile.terms_in_stages else []

    @property
    def fetched(self) -> list[str]:
        """The loaded matrices that consumers fetch to where the result will be."""
        return [] if self.in_stages else self.loaded

    @property
    def by_boxes(self) -> bool:
        """Whether the result and what the epilogue reads are copied by TMA."""
        c = self.product.c_type
        whole = Result.vector(c, self.product.problem.align[2]) * c.bits == 128
        return self.in_pieces and whole and not self.product.ends_inside

    @property
    def buffers(self) -> int:
        """Pieces of C that are on their way at once: all that are fetched before the sums are complete, else two."""
        pieces, each = self.columns // self.width, (1 + self.more_pieces) * self.piece_bytes
        room = SHARED_BYTES - self.beside_bytes - self.product.tile.stages * self.stage_bytes
        return max(1, min(pieces, pieces if self.by_boxes and self.fetched else 2, room // each)) if each else 1

    @property
    def more_pieces(self) -> int:
        """Pieces beside that of the result, whose place the first fetched matrix has before it."""
        return max(len(self.fetched) - 1, 0) if self.by_boxes else 0

    @property
    def kept(self) -> dict[str, tuple[DType, int]]:
        """The type and the elements of vectors that a consumer keeps in shared memory: of the bias and of scales."""
        p, (rows, columns) = self.product.problem, (self.rows, self.columns)
        if not self.by_boxes or self.product.splits:
            return {}
        rows, columns = (columns, rows) if self.swapped else (rows, columns)
        out = {"bias": (self.product.c_type, columns)} if p.bias else {}
        return out | ({"scale_a": (gr.fp32, rows), "scale_b": (gr.fp32, columns)} if p.scales == "rows" else {})

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        pieces = self.buffers * (1 + self.more_pieces) * self.piece_bytes
        return self.product.tile.stages * self.stage_bytes + pieces + self.beside_bytes

    @property
    def beside_bytes(self) -> int:
        """Shared memory beside stages and pieces: barriers, vectors, sums of other blocks, and gaps for alignment."""
        joined = (self.cuts - 1) * self.consumers * self.rows * len(self.owned[0]) * self.width * 4
        kept = sum(-(-n * t.bits // (8 * LINE_BYTES)) * LINE_BYTES for t, n in self.kept.values())
        return joined + ALIGNED_BYTES + self.consumers * kept + LINE_BYTES + self.product.tables_bytes

    @cached_property
    def atom(self) -> Any:
        """The matrix instruction of all columns."""
        return self.atom_of(self.columns)

    def atom_of(self, columns: int) -> Any:
        """The matrix instruction of a number of columns."""
        depth, sums = 256 // self.product.dtype.bits, "s32" if self.product.sums == gr.i32 else "f32"
        types = dict.fromkeys(KINDS.get(str(o.dtype), str(o.dtype)) for o in (self.left, self.right))
        return gr.atom(f"wgmma.m64n{columns}k{depth}.{sums}.{'.'.join(types)}")
