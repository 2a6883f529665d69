"""A kernel is a value: copied and pickled as its JSON."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import graphene as gr
from graphene.kernels import gemm_sm80


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_a_copy_is_equal(copied: Any) -> None:
    kernel = gemm_sm80()
    other = copied(kernel)
    assert other == kernel
    assert other is not kernel
    assert other.to_json(locations=True) == kernel.to_json(locations=True)
    assert other.cuda_source("sm_80") == kernel.cuda_source("sm_80")


def test_what_is_being_recorded_has_no_copy() -> None:
    with gr.Kernel("k") as kernel, pytest.raises(gr.VerifyError, match="KERNEL_UNRECORDED"):
        copy.deepcopy(kernel)


@pytest.mark.parametrize("device", [None, -1, "x", 2**40, 1.5])
def test_a_device_is_a_number(device: Any) -> None:
    with pytest.raises(gr.LaunchError) as e:
        gemm_sm80().load(device)
    assert str(e.value).splitlines() == [
        "a CUDA device is named by its number   [LAUNCH_DEVICE]",
        f"  got: {device!r}",
        "  fix: load(0) is the first one",
    ]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_has_no_pickle_says_so_in_every_protocol(protocol: int) -> None:
    """Protocols 0 and 1 ended the process."""
    tensor = gr.tensor("T", [4, 8], gr.fp16)
    for thing in (gr.sym("N"), tensor, gr.atom("mma.m16n8k16.f32.f16")):
        with pytest.raises(TypeError, match=f"cannot pickle '.*{type(thing).__name__}' object"):
            pickle.dumps(thing, protocol)
    for thing in (gr.Layout((4, 8), (8, 1)), gr.Swizzle(3, 3, 3), gr.fp16, gr.SH, gemm_sm80()):
        assert pickle.loads(pickle.dumps(thing, protocol)) == thing


def test_a_kernel_without_a_name_says_so() -> None:
    kernel = gr.Kernel.__new__(gr.Kernel)
    assert repr(kernel) == "<graphene.Kernel without a name>"
    assert not hasattr(kernel, "other")
    for use in (str, copy.copy, pickle.dumps, lambda k: k.name, lambda k: k.check(), lambda k: k(1)):
        with pytest.raises(gr.VerifyError, match="a kernel that was made without its name") as e:
            use(kernel)
        assert e.value.code == "KERNEL_UNRECORDED"
