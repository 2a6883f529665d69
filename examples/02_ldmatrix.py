"""One tensor instruction, `ldmatrix`: the paper's Figs. 1, 5 and 6.

    python examples/02_ldmatrix.py

A warp's threads are tiled and reshaped until each knows the row that it reads. Then the leaf matches the instruction.
The simulator runs it, and the registers hold what Fig. 1b draws.
"""

import numpy as np

import graphene as gr


def ldmatrix() -> gr.Kernel:
    """Loads a 16 x 16 fp16 tile through shared memory with one ldmatrix, and stores what each thread received."""

    def received(src: np.ndarray) -> np.ndarray:
        """In the 8 x 8 quarter (m, n), row lane // 4 and two columns from 2 * (lane % 4)."""
        return src.reshape(2, 8, 2, 4, 2).transpose(1, 3, 0, 2, 4).reshape(32, 8)

    with gr.Kernel("ldmatrix_fig1", means=received) as kernel:
        src = gr.input("src", [16, 16], gr.fp16, align_bytes=16)
        out = gr.output("out", [32, 8], gr.fp16, align_bytes=16)
        _, warp = gr.blocks(1), gr.threads(32)
        smem = gr.alloc("smem", [16, 16], gr.fp16, gr.SH)
        regs = gr.alloc("regs", [2, 4], gr.fp16, gr.RF)
        (lane,) = warp.indices()
        gr.move(smem, src, on=warp, atom=(gr.atom("ld.global.v4.b32"), gr.atom("st.shared.v4.b32")))
        gr.barrier()
        with gr.move(regs, smem, on=warp):  # Fig. 1d: Move, [16,16].fp16.SH -> [2,4].fp16.RF
            (thr_grp_m, thr_grp_n), grp_local_idx = warp.tile(8).reshape(0, gr.row_major(2, 2)).indices()
            row = smem.tile([8, 8])[thr_grp_m, thr_grp_n].tile([1, 8])[grp_local_idx, 0]
            gr.move(regs.tile([1, 2]), row, on=warp)  # the leaf: matches ldmatrix.x4
        for m in range(2):
            gr.move(out.tile([1, 4])[lane, m], regs.tile([1, 4])[m, 0])
    return kernel


def main() -> None:
    warp = gr.threads(32)
    print("Fig. 5, a warp in 2 x 2 groups of 8:", warp.tile(8).reshape(0, gr.row_major(2, 2)))
    print("Fig. 6, Volta's quad-pairs:        ", warp.tile([gr.Layout((4, 2), (1, 16))]))

    atom = gr.atoms()["ldmatrix.x4"]
    print(f"\n{atom.name}: {atom.doc}\n  {atom.ptx}")
    print(f"  dst {atom.operands['dst'].pattern}  src {atom.operands['src'].pattern}\n")

    kernel = ldmatrix()
    print(kernel)
    print(kernel.cuda_source("sm_80"))

    tile = np.arange(256, dtype=np.float16).reshape(16, 16)
    out = np.zeros((32, 8), np.float16)
    kernel(tile, out)  # the simulator runs it on NumPy arrays
    for lane in range(32):  # Fig. 1b: in each 8 x 8 quarter, row lane // 4 and two columns from 2 * (lane % 4)
        row, col = lane // 4, 2 * (lane % 4)
        want = [tile[8 * m + row, 8 * n + col + i] for m in range(2) for n in range(2) for i in range(2)]
        assert out[lane].tolist() == want
    print("thread 5 received", out[5].astype(int).tolist())


if __name__ == "__main__":
    main()
