"""The loss of causal language models in place of transformers' own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="pip install torch brings it")
transformers: Any = pytest.importorskip("transformers", minversion="5", reason="pip install transformers brings it")
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from graphene.integrations.transformers import (  # noqa: E402
    _loss,
    accelerate,
    accelerated,
    causal_lm_loss,
    restore,
)

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("more", ["", "items", "items as a tensor", "shifted"])
def test_it_is_the_loss_of_transformers(dtype: Any, more: str) -> None:
    logits, labels = (3 * torch.randn(2, 7, 50)).to(dtype), torch.randint(0, 50, (2, 7))
    labels[0, 3] = -100
    options: dict[str, Any] = {"vocab_size": 50}
    if more.startswith("items"):
        options["num_items_in_batch"] = 9 if more == "items" else torch.tensor(9)
    if more == "shifted":
        options["shift_labels"] = labels
    found = []
    for loss in (causal_lm_loss, ForCausalLMLoss):
        x = logits.clone().requires_grad_()
        value = loss(x, labels, **options)
        found.append((value, *torch.autograd.grad(value, x)))
    (got, g), (want, exact) = found
    assert got.dtype == torch.float32
    assert torch.allclose(got, want, rtol=1e-5)
    assert torch.allclose(g.float(), exact.float(), rtol=2.0**-6, atol=1e-5)


def test_a_model_takes_it() -> None:
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(0, 40, (2, 6))
    want = model(tokens, labels=tokens).loss
    model.loss_function = causal_lm_loss
    assert torch.allclose(model(tokens, labels=tokens).loss, want, rtol=1e-5)


def _llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def _gradients(model: Any, tokens: Any) -> list[Any]:
    loss = model(tokens, labels=tokens).loss
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def test_accelerate_takes_it(monkeypatch: Any) -> None:
    """Until something sets another loss, or the model is restored; copies have transformers' own."""
    called = []
    real = _loss.causal_lm_loss
    monkeypatch.setattr(_loss, "causal_lm_loss", lambda *a, **k: (called.append(1), real(*a, **k))[1])
    model, tokens = _llama(), torch.randint(0, 40, (2, 6))
    want = _gradients(model, tokens)
    accelerate(model, only_faster=False, show=False)
    assert [r.now for r in accelerated(model).rows if "the loss" in r.where] == ["one kernel"]
    for got, exact in zip(_gradients(model, tokens), want, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-5)
    assert called == [1]
    assert torch.allclose(copy.deepcopy(model)(tokens, labels=tokens).loss, want[0])
    model.loss_function = lambda *a, **k: torch.tensor(7.0)
    assert model(tokens, labels=tokens).loss == 7
    assert restore(model)(tokens, labels=tokens).loss == 7
    del model._loss_function
    assert torch.allclose(model(tokens, labels=tokens).loss, want[0])
    assert called == [1]


def test_what_keeps_its_loss() -> None:
    """On a CPU all models do; everywhere one whose loss was set, and one without a head of words."""
    model = accelerate(_llama(), show=False)
    assert not [r for r in accelerated(model).rows if "the loss" in r.where]
    model = _llama()
    model.loss_function = ForCausalLMLoss
    accelerate(model, only_faster=False, show=False)
    assert model.loss_function is ForCausalLMLoss
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaModel(config)
    assert not _loss.computed(model)
