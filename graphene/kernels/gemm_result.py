"""What becomes of the accumulators of a product: the epilogue, in registers, and the way to global memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.gemm_operand import access, matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["Result"]


class Result:
    """C (M,N) and what is combined with it: C = epilogue(alpha * acc + beta * C, bias, residual), rounded once.

    Declares the arguments bias (N,), residual (M,N), C, alpha, beta, as there are. With `parts` it is W instead of C:
    accumulators as they are, one matrix for each part of k.
    """

    def __init__(
        self,
        size: tuple[Any, Any],
        batch: list[Any],
        parts: list[Any],
        dtype: DType,
        align_bytes: int,
        has: set[str],
    ) -> None:
        self.dtype, self.batch, self.parts = dtype, batch, parts
        self.align_bytes = self.vector(dtype, align_bytes) * dtype.bits // 8
        self.matrices, self.scalars, self.bias = {}, {}, None
        if "bias" in has:
            self.bias = gr.input("bias", gr.Layout(size[1]), dtype, align_bytes=self.align_bytes)
        if "residual" in has:
            self.matrices["residual"] = matrix(gr.input, "residual", size, batch, dtype, self.align_bytes)
        name, declare = "W" if parts else "C", gr.inout if "beta" in has else gr.output
        self.matrices["C"] = matrix(declare, name, size, parts + batch, dtype, self.align_bytes)
        for factor in ("alpha", "beta"):
            if factor in has:
                self.scalars[factor] = gr.param(factor, gr.fp32)

    @staticmethod
    def vector(dtype: DType, align_bytes: int) -> int:
        """How many elements are stored at once."""
        return max(min(align_bytes, 16 if dtype.bits <= 16 else dtype.bits // 4) * 8 // dtype.bits, 1)

    def tile(self, part: Any, z: Any, at: tuple[Any, Any], sizes: list[int]) -> None:
        """From now on the tile that a block computes: of a part of k, of a member of the batch, at (bm, bn)."""
        for name, t in self.matrices.items():
            if self.parts:
                t = t[part, :, :, :] if self.batch else t[part, :, :]
            self.matrices[name] = (t[z, :, :] if self.batch else t).tile(sizes)[at]
        if self.bias is not None:
            self.bias = self.bias.tile([sizes[1]])[at[1]].reshape(0, [1, sizes[1]])

    def store(
        self, acc: Any, epilogue: Callable[..., Any] | None, tv: Any, warps: Any, threads: Any, over: list[Any]
    ) -> None:
        """Stores the accumulators that `warps` hold by `tv`, 16 rows of a warp at a time.

        Results of up to 16 bits meet in shared memory (that of `over` is free), so that whole lines are stored; of
        wider ones four lanes store a whole sector. Without an epilogue they are of the accumulators' type.
        """
        (wm, wn), _ = warps.indices()
        C, warp, (BM, BN) = self.matrices["C"], warps[wm, wn], acc.shape
        rows, cols = (n // warps.levels[0][i].size for i, n in enumerate((BM, BN)))
        pair_bytes = 2 * self.dtype.bits // 8  # a lane holds two neighbours
        narrow = min(pair_bytes, self.align_bytes)

        def mine(t: Any, i: int) -> Any:
            return t.tile([rows, cols])[wm, wn].tile([16, None])[i, 0]

        def piece(name: str) -> Any:
            return gr.fragment(name, [16, cols], self.dtype, tv, on=warp)

        if epilogue is None:
            for i in range(rows // 16):
                x = acc[wm, wn].tile([16, None])[i, 0]
                gr.move(mine(C, i), x, on=warp, atom=access("st.global", narrow))
            return
        out, terms, loaded = piece("out"), [], {}
        if self.bias is not None:
            terms.append(out.reduced(0, "rbias", self.dtype))  # the columns this thread owns
            gr.move(terms[0], self.bias.tile([1, cols])[0, wn], atom=access("ld.global", narrow))
        if "residual" in self.matrices:
            terms.append(piece("rresidual"))
            loaded["residual"] = terms[-1]
        if "beta" in self.scalars:
            loaded["C"] = piece("rC")
        to = C
        if self.dtype.bits <= 16:
            to = gr.alloc("sC", [BM, BN], self.dtype, gr.SH, swizzle=gr.swizzle(BN, self.dtype), over=over)
        for i in range(rows // 16):
            for name, registers in loaded.items():
                gr.move(registers, mine(self.matrices[name], i), atom=access("ld.global", narrow))
            x = acc[wm, wn].tile([16, None])[i, 0]
            x = gr.cast(x, gr.fp32) if acc.dtype == gr.i32 else x
            if "alpha" in self.scalars:
                x = x * self.scalars["alpha"]
            if "beta" in self.scalars:
                x = gr.fma(loaded["C"], self.scalars["beta"], x)
            out[:] = epilogue(x, *terms)
            gr.move(mine(to, i), out, atom=access("st.global", narrow) if to is C else access("st.shared", pair_bytes))
        if to is not C:
            gr.barrier()
            atoms = access("ld.shared", self.align_bytes), access("st.global", self.align_bytes)
            gr.move(C, to, on=threads, atom=atoms)
