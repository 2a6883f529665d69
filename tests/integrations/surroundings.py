"""What tests of accelerate without attention's kernels share."""

from __future__ import annotations

import attention_reference
import networks
import pytest
import torch

import graphene.integrations.transformers as integration
from graphene import ops

ALL = [*networks.ENCODERS, *networks.DECODERS]
HALF = torch.float16


@pytest.fixture(autouse=True)
def by_definition(monkeypatch):
    """Attention in fp64: what is tested is what surrounds it."""
    monkeypatch.setattr(ops, "attention", attention_reference.attention, raising=False)
    monkeypatch.setattr(ops, "attention_varlen", attention_reference.attention_varlen, raising=False)


def states(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def everywhere(model, **more):
    return integration.accelerate(model, only_faster=False, show=False, **more)
