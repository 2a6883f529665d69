"""Tests marked `gpu` are skipped, with the reason, where there is no CUDA device."""

import functools

import pytest


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
