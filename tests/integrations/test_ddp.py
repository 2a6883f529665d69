"""Accelerated networks under DistributedDataParallel: gradients of two processes, each with half of a batch.

Two processes take seconds to start, so one network is tried on a CPU, and all where there are two GPUs, or by
``python tests/integrations/test_ddp.py``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
from torch import distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402

NETWORKS = ("bert", "llama", "gemma2")
WIDE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 256}
QUIET = {"bert": {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}}
STEPS = 3


def network(name, how, dtype, device):
    model = networks.network(name, "eager", dtype, causal_lm=True, device=device, **(WIDE | QUIET.get(name, {})))
    if how == "accelerated":
        integration.accelerate(model, show=False, only_faster=False)
    return model.train()


def gradients(model, inputs, calls):
    """All gradients after some steps, which move no weight: they are added up, and exchanged in the last step."""
    for step in range(STEPS):
        alone = calls is not model and step < STEPS - 1
        with calls.no_sync() if alone else contextlib.nullcontext():
            calls(**inputs, labels=inputs["input_ids"]).loss.backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def process(rank, folder, device_type, names):
    """One of the two; the first says what it found."""
    gpu = device_type == "cuda"
    device, dtype = torch.device(device_type, rank if gpu else None), torch.bfloat16 if gpu else torch.float32
    torch.set_num_threads(1)
    if gpu:
        torch.cuda.set_device(device)
    store = distributed.FileStore(str(Path(folder) / "store"), 2)
    distributed.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=2)
    whole = networks.batch(rows=4, length=32, device=device)
    half = {"input_ids": whole["input_ids"][2 * rank : 2 * rank + 2]}
    wrong = {}
    for name in names:
        model = network(name, "eager", torch.float32, device)
        exact = gradients(model, whole, model)
        for how in ("eager", "accelerated"):
            model = network(name, how, dtype, device)
            parallel = DistributedDataParallel(model, device_ids=[rank] if gpu else None)
            wrong[name, how] = ((gradients(model, half, parallel) - exact).norm() / exact.norm()).item()
    if rank == 0:
        torch.save(wrong, Path(folder) / "wrong")
    distributed.destroy_process_group()


def compare(device_type, folder, names=NETWORKS):
    torch.multiprocessing.spawn(process, (str(folder), device_type, names), nprocs=2)
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
