"""As causes.py: errors of what lies beyond a kernel: installations, files, tunings; and texts of the IR."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from causes_running import doubled

import graphene as gr
from graphene import _core
from graphene.kernels import RowTile
from graphene.select.rows import ROWS


def elsewhere(program: str, **environment: str) -> None:
    """Runs a program in a process with these environment variables, and raises the error that it ends with."""
    program = f"import graphene as gr\ntry:\n    {program}\nexcept gr.GrapheneError as e:\n    print(e.code)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if done.stdout:
        _core.fail(done.stdout.strip(), "the program failed")


def edited(before: str, after: str) -> object:
    """The binary of a kernel out of a folder of precompiled ones, of which the manifest was edited by hand."""
    with tempfile.TemporaryDirectory() as folder:
        gr.precompile({"doubled": doubled()}, folder, archs=["sm_80"])
        (manifest,) = Path(folder).glob("*.manifest.json")
        checksum, table = _core.sha256(manifest.read_bytes()), Path(folder) / "kernels.json"
        manifest.write_text(manifest.read_text().replace(before, after))
        table.write_text(table.read_text().replace(checksum, _core.sha256(manifest.read_bytes())))
        return gr.load_precompiled(folder)["doubled"].binary("sm_80")


def ir_operands(right: bool) -> None:
    """Threads of one dimension have one coordinate."""
    text = str(doubled())
    gr.parse(text if right else text.replace("(@t,) =", "(@t, @u) ="))


def tune_failed(right: bool) -> None:
    """A record of a tuning names the fields of a configuration."""
    config = ROWS.to_json(RowTile(64, 32))
    ROWS.from_json(config if right else config | {"colour": "red"})


def launch_manifest(right: bool) -> None:
    """A manifest is read by the version of Graphene that wrote it, or a later one."""
    edited('"schema": 1', '"schema": 1' if right else '"schema": 99')


def sym_parse(right: bool) -> None:
    """Sizes of a launch stand in a manifest as expressions."""
    edited("n//8", "n//8" if right else "n//")


def compile_nvrtc(right: bool) -> None:
    """What GRAPHENE_NVRTC names is NVRTC's library, or a folder that holds it."""
    path = {} if right else {"GRAPHENE_NVRTC": "/nowhere"}
    elsewhere("from causes_running import doubled; doubled().compile('sm_80')", GRAPHENE_CACHE="0", **path)


def launch_no_driver(right: bool) -> None:
    """A GPU takes NVIDIA's driver (in a container: --gpus all); the simulator does not."""
    use = "check(n=8)" if right else "load(0)"
    elsewhere(f"from causes_running import doubled; doubled().{use}", GRAPHENE_CUDA_DRIVER="/nowhere/libcuda.so.1")


def op_torch(right: bool) -> None:
    """The operators work on PyTorch's tensors: pip install torch."""
    elsewhere(("" if right else "import sys; sys.modules['torch'] = None; ") + "gr.ops.matmul")


def launch_map(right: bool) -> None:
    """A tensor map describes rows with at least one element."""
    M, N = gr.sym("M"), gr.sym("N", multiple_of=8)
    with gr.Kernel("k") as kernel:
        x = gr.input("x", gr.row_major(M, N), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(M, 64), gr.fp16, align_bytes=16)
        (b,), warp = gr.blocks(gr.ceil_div(M, 8)).indices(), gr.threads(32)
        s, full = gr.alloc("s", [8, 64], gr.fp16, gr.SH), gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x.tile([8, 64])[b, 0], atom="tma.load", done=full[0])
            full[0].wait(0)
            gr.move(y.tile([8, 64])[b, 0], s, atom="tma.store")
            gr.commit("tma.store")
            gr.wait("tma.store", 0)
    memory = np.zeros(2048, np.float16)
    first = -memory.ctypes.data // 2 % 8  # of the elements at multiples of 16 bytes
    x, y = (memory[first + at :][: 16 * n].reshape(16, n) for at, n in ((0, 8 if right else 0), (128, 64)))
    kernel.simulate(x, y, arch="sm_90a")
