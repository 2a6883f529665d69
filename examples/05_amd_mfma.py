"""A 64x32 product by AMD's batched matrix instruction, on the simulator and as HIP C++.

    python examples/05_amd_mfma.py

`mfma.f32.32x32x1f32` multiplies two batches at once: C[b,i,j] += A[b,i] * B[b,j], both 32x32, spread over a wave of 64
lanes. With row 32 b + i of A in batch b, and B in both batches, the two products are the upper and lower half of one
64x32 product. The kernel states this, and `kernel.check()` holds it to what the spec says.

Source of the register maps: "Tensorization of Warp Level Primitives", a discussion of TensorIR.
"""

import numpy as np

import graphene as gr

M, N = 64, 32
ARCH = "gfx90a"


def mfma_64x32(K: int = 8) -> gr.Kernel:
    """C += A @ B; A is 64xK and B is Kx32, fp32 and row-major. One wave."""
    mfma = gr.atom("mfma.f32.32x32x1f32")
    with gr.Kernel("mfma_64x32", means=lambda A, B, C: C + A @ B) as kernel:
        A = gr.input("A", [M, K], gr.fp32)
        B = gr.input("B", [K, N], gr.fp32)
        C = gr.inout("C", [M, N], gr.fp32)
        gr.blocks(1)
        wave = gr.threads(64)
        (lane,) = wave.indices()
        a = gr.alloc("a", [], gr.fp32, gr.RF)  # warpA[lane] <=> A[lane / 32, lane % 32]
        b = gr.alloc("b", [], gr.fp32, gr.RF)  # warpB[lane] <=> B[lane / 32, lane % 32]
        c = gr.alloc("c", [32], gr.fp32, gr.RF)  # warpC[x][lane] <=> C[x / 16, ..., lane % 32]

        def element(x: int) -> gr.Tensor:
            """The place of the lane's accumulator x."""
            return C[x // 16 * 32 + x % 16 // 4 * 8 + x % 4 + lane // 32 * 4, lane % 32]

        with gr.matmul(C, A, B, on=wave):
            for x in range(32):
                gr.move(c[x], element(x))
            with gr.loop("k", K) as k:
                gr.move(a, A[lane, k])
                gr.move(b, B[k, lane % 32])
                gr.matmul(c, a, b, on=wave, atom=mfma)
            for x in range(32):
                gr.move(element(x), c[x])
    return kernel


def main() -> None:
    """Runs the kernel on random numbers, checks its promise, and prints the instruction as the compiler sees it."""
    kernel = mfma_64x32()
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, 8), np.float32), rng.standard_normal((8, N), np.float32)
    c = np.zeros((M, N), np.float32)
    kernel(a, b, c)
    print("largest difference from NumPy:", np.abs(c - a @ b).max())
    print(kernel.check())
    source = kernel.cuda_source(ARCH)
    print("\n".join(source[source.index("#pragma") :].splitlines()[:12]))


if __name__ == "__main__":
    main()
