"""What each of two processes of DistributedDataParallel does.

A process that is started finds this module by its name, which does not depend on how pytest imports a file of tests.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import networks
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import graphene.integrations.transformers as integration

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
