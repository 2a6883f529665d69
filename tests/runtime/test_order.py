"""The arguments of a call stand in the order of their declaration, whatever their kind."""

from __future__ import annotations

import json

import numpy as np
import pytest

import graphene as gr


def shifted() -> gr.Kernel:
    """y[i] = x[(i + by + more) % 64]; the numbers are declared before, between and after the tensors."""
    with gr.Kernel("shifted") as kernel:
        by = gr.param("by", gr.i32)
        x = gr.input("x", [64], gr.fp32)
        more = gr.param("more", gr.i64)
        y = gr.output("y", [64], gr.fp32)
        gr.param("unused", gr.u8)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[(t + by + more) % 64])
        gr.move(y[t], r)
    return kernel


ORDER = ["by", "x", "more", "y", "unused"]


def test_positions_and_names_of_a_call() -> None:
    kernel = shifted()
    x = np.arange(64, dtype=np.float32)
    for call in (
        lambda y: kernel(3, x, 4, y, 0),
        lambda y: kernel.simulate(3, x, 4, y, 0),
        lambda y: kernel(3, x, unused=1, y=y, more=4),
        lambda y: kernel(unused=1, y=y, more=4, x=x, by=3),
    ):
        y = np.zeros(64, np.float32)
        call(y)
        assert np.array_equal(y, np.roll(x, -7))


def test_text_json_and_manifest_keep_the_order() -> None:
    kernel = shifted()
    lines = str(kernel).splitlines()[1:6]
    assert [line.rpartition(" ")[2].strip('"').partition(":")[0] for line in lines] == ORDER
    assert [a["name"] for a in json.loads(kernel.to_json())["args"]] == ORDER
    for same in (kernel, gr.parse(str(kernel)), gr.Kernel.from_json(kernel.to_json())):
        assert same == kernel
        manifest = json.loads(same.lowered("sm_80").manifest().to_json())
        assert [a["name"] for a in manifest["args"]] == ORDER


def test_another_order_is_another_kernel() -> None:
    text = str(shifted())
    lines = text.splitlines()
    lines[3], lines[4] = lines[4], lines[3]
    assert gr.parse("\n".join(lines)) != gr.parse(text)


def test_a_wrong_position_is_named() -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(gr.LaunchError) as e:
        shifted()(x, y, 3, 4, 0)
    assert str(e.value).startswith(
        "shifted: argument 'by' is not a number; nothing was launched   [LAUNCH_TYPE]\n"
        "  want: a Python number for i32\n  got:  numpy.ndarray\n"
    )
    with pytest.raises(gr.LaunchError) as e:
        shifted()(3, x, 4, y)
    assert str(e.value) == (
        "shifted: misses 'unused'; nothing was launched   [LAUNCH_ARITY]\n"
        "  signature: shifted(by, x, more, y, unused)\n  fix: pass each argument once, in this order or by name"
    )


def test_a_stream_is_for_a_gpu() -> None:
    kernel, x, y = shifted(), np.zeros(64, np.float32), np.ones(64, np.float32)
    kernel(3, x, 4, y, 0, stream=None)  # code that serves both passes what it has
    assert not y.any()
    with pytest.raises(gr.LaunchError) as e:
        kernel(3, x, 4, y, 0, stream=7)
    assert str(e.value) == (
        "shifted: stream= is where a GPU runs the kernel, and these arguments are for the simulator; nothing was "
        "launched   [LAUNCH_STREAM]\n  fix: leave stream= out, or pass CUDA tensors"
    )
