"""The paper's Fig. 8: a simple but complete matrix product, from Python to a running kernel.

    python examples/03_simple_gemm.py [M N K]

Builds the kernel, prints its IR and the CUDA C++ that it becomes, runs it (on the GPU if there is one, else on the
simulator, and says which), and compares the result with NumPy.
"""

import argparse

import numpy as np

import graphene as gr


def meaning(A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """C + A @ B as one sum of K + 1 terms, since every step of the kernel rounds C, too."""
    return np.sum(np.concatenate([C[:, :, None], A[:, None, :] * B.T], axis=2), axis=2)


def simple_gemm(M: int = 1024, N: int = 1024, K: int = 1024) -> gr.Kernel:
    """C += A @ B, one __hfma per thread and k; column-major operands; M and N multiples of 128."""
    with gr.Kernel("simple_gemm", means=meaning, sums=gr.fp16) as kernel:
        A = gr.input("A", gr.col_major(M, K), gr.fp16)
        B = gr.input("B", gr.col_major(K, N), gr.fp16)
        C = gr.inout("C", gr.col_major(M, N), gr.fp16)
        blocks, threads = gr.blocks(M // 128, N // 128), gr.threads(16, 16)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            bm, bn = blocks.indices()
            tm, tn = threads.indices()
            with gr.loop("k", K) as k, gr.loop("m", 8) as m, gr.loop("n", 8) as n:
                a = A.tile([128, None])[bm, 0].tile([8, None])[tm, 0][m, k]
                b = B.tile([None, 128])[0, bn].tile([None, 8])[0, tn][k, n]
                c = C.tile([128, 128])[bm, bn].tile([8, 8])[tm, tn][m, n]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    return kernel


def on_gpu() -> bool:
    """Whether torch sees a CUDA device here."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def run(kernel: gr.Kernel, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, str]:
    """C after the kernel, and where it ran: NumPy arrays on the simulator, CUDA tensors on the GPU."""
    if not on_gpu():
        stats = kernel.simulate(a, b, c)
        return c, f"the simulator ({stats.lane_ops:,} lane operations, {stats.accesses:,} accesses, every one checked)"
    import torch

    ta, tb, tc = (torch.from_numpy(x.T.copy()).cuda().t() for x in (a, b, c))  # column-major, as the arrays are
    kernel(ta, tb, tc)
    torch.cuda.synchronize()
    return tc.cpu().numpy(), torch.cuda.get_device_name()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = 1024 if on_gpu() else 128  # the simulator does about 0.2 G lane operations a second
    parser.add_argument("sizes", nargs="*", type=int, default=[size, size, size], metavar="M N K")
    sizes = parser.parse_args().sizes
    if len(sizes) != 3 or sizes[0] % 128 or sizes[1] % 128 or min(sizes) < 1:
        parser.error(f"want M N K, positive, M and N multiples of 128; got {sizes}")
    M, N, K = sizes

    kernel = simple_gemm(M, N, K)
    print(kernel)
    print(kernel.cuda_source("sm_90a"))

    rng = np.random.default_rng(0)
    a, b, c = (np.asfortranarray(rng.standard_normal(shape).astype(np.float16)) for shape in ((M, K), (K, N), (M, N)))
    want = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    got, where = run(kernel, a, b, c)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    print(f"ran on {where}")
    print(f"C += A @ B, {M} x {N} x {K}: relative error against float64 {error:.1e} (fp16 accumulation, K steps)")
    # Each of the K roundings to fp16 is off by at most 2^-11 of a partial sum; errors add up like a random walk.
    assert error < 2**-11 * np.sqrt(K), error


if __name__ == "__main__":
    main()
