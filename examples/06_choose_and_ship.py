"""Chooses tiles, compiles ahead of time, and launches without a compiler. This needs no GPU.

python examples/06_choose_and_ship.py [folder]     the folder keeps the cubins
"""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np

import graphene as gr
from graphene import select
from graphene.kernels import gemm_launches
from graphene.select.gemm import GEMM, GemmProblem


def main(folder: str) -> None:
    print("the thesis' rule for 2-byte elements and 48 KB:", select.thesis_block_tiles(2, 48)[0])

    problem = GemmProblem(512, 768, 1024, workspaces=False)  # one kernel, with no parts of k to add up
    selection = select.rank(GEMM, problem, select.of_arch("sm_80"), count=3)
    print(selection.table(rejected=2))

    ((kernel, arguments),) = gemm_launches(selection.best.config(problem))
    gr.precompile({"product": kernel}, folder, ["sm_80", "sm_90a"], print)

    os.environ["GRAPHENE_NVRTC"] = "/nowhere"  # from here on there is no compiler
    product = gr.load_precompiled(folder)["product"]
    print(product, "takes", ", ".join(arguments))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 128), (128, 72)))
    c = np.zeros((64, 72), np.float16)
    product(a, np.asfortranarray(b), c)  # the simulator runs arrays on the CPU; CUDA tensors would run the cubin
    print("largest error:", np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
