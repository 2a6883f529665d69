"""Accelerated networks under DistributedDataParallel: gradients of two processes, each with half of a batch.

Two processes take seconds to start, so one network is tried on a CPU, and all where there are two GPUs, or by
``python tests/integrations/test_ddp.py``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import two_processes  # noqa: E402
from torch import distributed  # noqa: E402

NETWORKS = ("bert", "llama", "gemma2")


def compare(device_type, folder, names=NETWORKS):
    torch.multiprocessing.spawn(two_processes.process, (str(folder), device_type, names), nprocs=2)
    wrong = torch.load(Path(folder) / "wrong")
    for name in names:
        eager, accelerated = wrong[name, "eager"], wrong[name, "accelerated"]
        print(f"{name}: eager {eager:.2e}, accelerated {accelerated:.2e}")
        assert accelerated <= 1.5 * eager + 1e-6, name


@pytest.fixture
def importable(monkeypatch):
    """This folder's modules, to the processes that are started."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


@pytest.mark.skipif(not distributed.is_available() or not distributed.is_gloo_available(), reason="no gloo")
def test_gradients_of_two_processes_on_a_cpu(tmp_path, importable) -> None:
    compare("cpu", tmp_path, ("llama",))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="one device")
def test_gradients_of_two_processes(tmp_path, importable) -> None:
    compare("cuda", tmp_path)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    with tempfile.TemporaryDirectory() as made:
        compare("cpu", made)
