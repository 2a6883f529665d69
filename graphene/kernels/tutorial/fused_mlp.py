"""A multi-layer perceptron in one kernel: activations never leave the chip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import function, size, small_weights

if TYPE_CHECKING:
    from collections.abc import Callable


def fused_mlp(
    L: int = 3,
    H: int = 128,
    BM: int = 128,
    WARPS: int = 8,
    act: Callable[[Any, Any], Any] = lambda x, b: gr.max(x + b, 0),
) -> gr.Kernel:
    """Y = X after X <- act(X @ W[l].T + bias[l]) for l in 0..L-1: X, Y (M,H), lists of L W (H,H) and bias (H,), fp16.

    X stays in shared memory, and W[l+1] loads while layer l computes. M is any; H % 32 == 0, BM % 64 == 0, WARPS == 8.
    Raises VerifyError KERNEL_ARGUMENT.
    """
    size("fused_mlp", "L", L)
    size("fused_mlp", "H", H, multiple_of=32)
    size("fused_mlp", "BM", BM, multiple_of=64)
    size("fused_mlp", "WARPS", WARPS, least=8, most=8)
    function("fused_mlp", "act", act)
    M = gr.sym("M")
    cp, ldsm, mma = gr.atom("cp.async.cg.16"), gr.atom("ldmatrix.x4"), gr.atom("mma.m16n8k16.f32.f16")
    sw = gr.swizzle(H, gr.fp16)

    def means(X: Any, W: list[Any], bias: list[Any]) -> Any:
        for w, b in zip(W, bias, strict=True):
            X = gr.rounded("out", act(X @ w.T, b))
        return X

    with gr.Kernel("fused_mlp", means, arguments=small_weights) as kernel:
        X = gr.input("X", gr.row_major(M, H), gr.fp16, align_bytes=16)
        W = gr.inputs(
            "W", L, gr.row_major(H, H), gr.fp16, align_bytes=16
        )  # L tensors of one type; W[l] with a run-time l
        bias = gr.inputs("bias", L, gr.Layout(H), gr.fp16, align_bytes=4)
        Y = gr.output("Y", gr.row_major(M, H), gr.fp16, align_bytes=16)
        blocks, threads = gr.blocks(gr.ceil_div(M, BM)), gr.threads(32 * WARPS)
        warps = threads.tile(32).reshape(0, gr.Layout((4, 2)))
        (bm,), ((wm, wn), _) = blocks.indices(), warps.indices()
        warp = warps[wm, wn]
        sX = gr.alloc("sX", [BM, H], gr.fp16, gr.SH, swizzle=sw)
        sW = gr.alloc("sW", [H, H], gr.fp16, gr.SH, stages=2, swizzle=sw)
        ra = gr.fragment("ra", [BM // 4, 16], gr.fp16, mma.a, on=warp, stages=2)
        rb = gr.fragment("rb", [H // 2, 16], gr.fp16, mma.b, on=warp, stages=2)
        acc = gr.fragment("acc", [BM, H], gr.fp32, mma.c, on=warps)
        out = gr.fragment("out", [BM, H], gr.fp16, mma.c, on=warps)
        rbias = acc.reduced(0, "rbias", gr.fp16)
        gr.move(sX, X.tile([BM, None])[bm, 0], on=threads, atom=cp)
        gr.move(sW[0], W[0], on=threads, atom=cp)
        gr.commit(cp)

        for l in gr.loop("l", L):
            gr.wait(cp, pending=0)
            gr.barrier()  # W[l] and X are here; stage (l+1) % 2 is free
            with gr.if_(l + 1 < L):
                gr.move(sW[(l + 1) % 2], W[l + 1], on=threads, atom=cp)
            gr.commit(cp)
            gr.init(acc, 0)
            with gr.matmul(acc, sX, sW[l % 2].T):
                for j in range(-1, H // 16):
                    if j + 1 < H // 16:
                        gr.move(ra[(j + 1) % 2], sX.tile([BM // 4, 16])[wm, j + 1], atom=ldsm)
                        gr.move(rb[(j + 1) % 2], sW[l % 2].tile([H // 2, 16])[wn, j + 1], atom=ldsm)
                    if j >= 0:
                        gr.matmul(acc[wm, wn], ra[j % 2], rb[j % 2].T, atom=mma)
            gr.move(rbias, bias[l].reshape(0, [1, H]), atom=gr.atom("ld.global.b32"))
            out[:] = act(acc, rbias)
            gr.barrier()  # all warps have read X
            gr.move(sX, out, atom=gr.atom("st.shared.b32"))

        gr.barrier()
        gr.move(
            Y.tile([BM, None])[bm, 0], sX, on=threads, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32"))
        )
    return kernel
