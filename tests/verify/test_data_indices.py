"""Which integers read from data are the same in every thread: branches on them may hold collectives and barriers."""

from __future__ import annotations

import pytest

import graphene as gr


def kernel(role, per_thread: bool) -> gr.Kernel:
    with gr.Kernel("k") as k:
        counts = role("counts", [64], gr.i32)
        (b,), (t,) = gr.blocks(2).indices(), gr.threads(64).indices()
        with gr.loop("i", gr.index(counts[t if per_thread else b], 0, 9)):
            gr.barrier()
    return k


def test_what_all_threads_read_alike_may_steer_barriers() -> None:
    kernel(gr.input, per_thread=False).lowered("sm_80")


@pytest.mark.parametrize(("role", "per_thread"), [(gr.input, True), (gr.inout, False)])
def test_what_threads_read_each_or_may_write_does_not(role, per_thread: bool) -> None:
    with pytest.raises(gr.VerifyError, match="VERIFY_BARRIER_DIVERGENT"):
        kernel(role, per_thread).lowered("sm_80")
