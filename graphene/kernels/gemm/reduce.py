"""Adds up the parts of a product's sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import choice, element, flags, function
from graphene.kernels.epilogues import pointwise
from graphene.kernels.gemm.operand import access, matrix
from graphene.kernels.gemm.problem import RESULTS, SCALES, check_scales
from graphene.kernels.gemm.result import add_scaled, combined, parts_added, scale_arguments, undefined_where_unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["IN_TURN", "gemm_reduce"]

IN_TURN = 16  # parts of k that one thread adds up; of more, eight warps of a block add up some each


def gemm_reduce(
    epilogue: Callable[..., Any] = lambda x: x,
    *,
    sums: DType = gr.fp32,
    out: DType = gr.fp16,
    align: int = 16,
    batched: bool = False,
    bias: bool = False,
    residual: bool = False,
    alpha: bool = False,
    beta: bool = False,
    scales: str | None = None,
    groups: int = 1,
) -> gr.Kernel:
    """Ends a product of gemm_sm80 with `split_k`: C = epilogue(alpha * sum of W[s] + beta * C, bias, residual).

    ``scales``: as gemm_sm90 has them; sums are multiplied by them before all else. ``groups``: 1, 2, 4 or 8 warps
    add up neighbouring parts each, and then their sums are added, which suits many parts of few elements.

    W (S,M,columns) has the type `sums`, fp32 or i32, and C takes its first N columns. Its lines begin at multiples of
    16 bytes. The parts are added in order, so the result does not depend on when they were computed, and it is rounded
    once. The other arguments, their order, `align` and the rest are those of gemm_sm80. A thread computes four
    neighbours. Raises VerifyError KERNEL_ARGUMENT.
    """
    element("gemm_reduce", "sums", sums, ("fp32", "i32"))
    element("gemm_reduce", f"out, of sums {sums},", out, RESULTS["i8" if sums == gr.i32 else "fp8e4m3"])
    flags("gemm_reduce", "batched, bias, residual, alpha, beta", (batched, bias, residual, alpha, beta), 5)
    choice("gemm_reduce", "align", align, tuple(w for w in (16, 8, 4, 2, 1) if 8 * w >= out.bits))
    function(
        "gemm_reduce", "epilogue", epilogue, ["x", *(n for n, on in (("bias", bias), ("residual", residual)) if on)]
    )
    choice("gemm_reduce", "groups", groups, (1, 2, 4, 8))
    if scales is not None:
        choice("gemm_reduce", "scales", scales, SCALES)
    check_scales("gemm_reduce", out, alpha or beta or scales is not None)
    width = 4
    batch, S, M, N = [gr.sym("batch")] if batched else [], gr.sym("S", min=1), gr.sym("M"), gr.sym("N")
    vector = min(align, width * out.bits // 8)
    multiple = max(vector * 8 // out.bits, 1)

    def reduced(
        W: Any, C: Any, bias: Any = None, residual: Any = None, alpha: Any = None, beta: Any = None,
        scale_a: Any = None, scale_b: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        x = parts_added(W)["C"][..., : C.shape[-1]]
        return {"C": combined(x, epilogue, C, bias, residual, alpha, beta, scale_a, scale_b)}

    def wide_enough(s: dict[str, int]) -> None:
        s["columns"] = max(s["columns"], -(-s["N"] // width) * width)

    sensible = gr.Arguments(undefined_where_unused, wide_enough)
    with gr.Kernel("gemm_reduce", means=reduced, arguments=sensible) as kernel:
        columns, N = gr.sym("columns", multiple_of=width), gr.sym("N", multiple_of=multiple)
        W = matrix(gr.input, "W", (M, columns), [S, *batch], sums, 16)
        arguments = []
        factors = scale_arguments(scales, (M, N))
        if bias:
            arguments.append(gr.input("bias", gr.Layout(N), out, align_bytes=vector))
        if residual:
            arguments.append(matrix(gr.input, "residual", (M, N), batch, out, vector))
        C = matrix(gr.inout if beta else gr.output, "C", (M, N), batch, out, vector)
        factor, factor_c = (gr.param(n, gr.fp32) if on else None for n, on in (("alpha", alpha), ("beta", beta)))
        rows = 8 // groups
        across, down = gr.ceil_div(N, 32 * width), gr.ceil_div(M, rows)
        blocks, threads = gr.blocks(down, across, batch[0] if batched else 1), gr.threads(32, 8)
        gr.start_kernels()  # the next kernel's blocks may start as soon as there is room
        gr.wait_kernels()  # W comes from the kernel before this one
        (by, bx, z), (tx, ty) = blocks.indices(), threads.indices()
        row, column = by * rows + ty % rows, bx * 32 + tx
        acc, part = (gr.alloc(n, [width], sums, gr.RF) for n in ("acc", "part"))

        def mine(t: Any) -> Any:  # four neighbours of a matrix like C
            return (t[z, :, :] if batched else t).tile([1, width])[row, column][0, :]

        def loaded(name: str, t: Any) -> Any:
            r = gr.alloc(name, [width], out, gr.RF)
            gr.move(r, t, atom=access("ld.global", vector))
            return r

        def scale(name: str, t: Any, length: int) -> Any:
            r = gr.alloc(name, [length], gr.fp32, gr.RF)
            gr.move(r, t, atom=access("ld.global", 4))
            return r

        inside, group, each = (row < M) & (column < gr.ceil_div(N, width)), ty // rows, gr.ceil_div(S, groups)
        first, parts = (group * each, gr.max(0, gr.min(each, S - group * each))) if groups > 1 else (0, S)

        def add_parts() -> None:
            gr.init(acc, 0)
            for s in gr.loop("s", parts, unroll=16):
                gr.move(
                    part, mine(W[first + s, :, :, :] if batched else W[first + s, :, :]), atom=access("ld.global", 16)
                )
                acc[:] = acc + part

        if groups > 1:
            held = gr.alloc("held", [groups, rows, 32 * width], sums, gr.SH)

            def of_group(g: Any) -> Any:
                return held[g, ty % rows, :].tile([width])[tx]

            with gr.if_(inside):
                add_parts()
                gr.move(of_group(group), acc, atom=access("st.shared", 16))
            gr.barrier()
        with gr.if_(inside & (group == 0) if groups > 1 else inside):
            if groups == 1:
                add_parts()
            for g in range(1, groups):
                gr.move(part, of_group(g), atom=access("ld.shared", 16))
                acc[:] = part + acc
            x = gr.cast(acc, gr.fp32) if sums == gr.i32 != out else acc
            if scales == "tensor":
                x = x * (scale("of_a", factors[0], 1) * scale("of_b", factors[1], 1))
            elif scales == "rows":
                x = (
                    x
                    * scale("of_a", factors[0].tile([1])[row], 1)
                    * scale("of_b", factors[1].tile([width])[column], width)
                )
            x = x * factor if alpha else x
            if beta:
                x = add_scaled(x, loaded("old", mine(C)), factor_c)
            terms = []
            if bias:
                terms.append(loaded("rbias", arguments[0].tile([width])[column]))
            if residual:
                terms.append(loaded("extra", mine(arguments[-1])))
            rounded = gr.alloc("rounded", [width], out, gr.RF)
            rounded[:] = pointwise(epilogue, x, *terms)
            gr.move(mine(C), rounded, atom=access("st.global", vector))
    return kernel
