"""Tests marked `gpu` are skipped, with the reason, where there is no CUDA device."""

import functools
import gc
import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each core has a process already: threads of NumPy and PyTorch would wait for one another, busily.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


os.environ.setdefault("GRAPHENE_SHIPPED", "0")  # tests judge what this source and this compiler make


@functools.cache
def why_no_gpu():
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") is not None and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


def pytest_collection_finish():
    """What all tests are made of lives until the end, so that nothing is gained by looking through it again and again:
    without it, garbage collection took a tenth of the tests' time.
    """
    gc.collect()
    gc.freeze()
