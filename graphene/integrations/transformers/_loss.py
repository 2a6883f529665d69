"""The loss of causal language models, in place of transformers' own."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from graphene.integrations.transformers._fused import HALF
from graphene.ops.cross_entropy import cross_entropy


def causal_lm_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """The loss of the next tokens, in fp32, of logits that are not converted first.

    The arguments and the result are those of transformers' ``ForCausalLMLoss``, which makes a copy of the logits in
    fp32 and differentiates through it::

        model.loss_function = causal_lm_loss

    Logits (batch, seq, vocab_size) of fp16, bf16 or fp32 are read once, and in the backward pass once more, where their
    gradient is written. ``num_items_in_batch`` divides the sum of the losses; without it the result is their mean.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE.
    """
    if shift_labels is None:
        assert labels is not None, "transformers pass one of labels and shift_labels"
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = cross_entropy(logits.reshape(-1, vocab_size), target, ignore_index=ignore_index, reduction=reduction)
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def computed(model: Any) -> bool:
    """Whether a model with a head has transformers' loss of causal language models, and so may have ours."""
    if getattr(type(model), "loss_function", None) is not PreTrainedModel.loss_function or "_loss_function" in vars(
        model
    ):
        return False
    named = LOSS_MAPPING.get(getattr(model, "loss_type", None), ForCausalLMLoss)  # theirs where the name is unknown
    return model.get_output_embeddings() is not None and named is ForCausalLMLoss


def methods(everywhere: bool) -> dict[str, Any]:
    """The loss of a model's class: ours in half precision on a GPU, or ``everywhere``; one that was set stays.

    While a compiler reads it, transformers' own is left, whose parts become one kernel with what is beside them.
    """

    def loss(logits: Any, *args: Any, **kwargs: Any) -> Any:
        ours = everywhere or (logits.is_cuda and logits.dtype in HALF)
        return (causal_lm_loss if ours and not torch.compiler.is_compiling() else ForCausalLMLoss)(
            logits, *args, **kwargs
        )

    def get(self: Any) -> Any:
        given = getattr(self, "_loss_function", None)
        return loss if given is None else given

    def put(self: Any, value: Any) -> None:
        self._loss_function = value

    return {"loss_function": property(get, put)}
