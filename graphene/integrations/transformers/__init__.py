"""Models of Hugging Face's transformers on Graphene's kernels. docs/huggingface.md says what runs where.

After ``import graphene.integrations.transformers`` models take ``attn_implementation="graphene"``::

    model = AutoModel.from_pretrained(name, attn_implementation="graphene")

and ``accelerate(model)`` also replaces the parts around attention that were measured to be faster::

    accelerate(model)   # prints what it replaced and what it left, and why; restore(model) undoes it

``model.loss_function = causal_lm_loss`` computes the loss of a causal language model without a copy of its logits.

A model whose attention does not come from transformers' interface raises OP_ARGUMENT when it is made.

The package needs transformers 5.
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from graphene.integrations.transformers import _paged
from graphene.integrations.transformers._accelerate import accelerate, accelerated, restore
from graphene.integrations.transformers._attention import attention
from graphene.integrations.transformers._interface import NAME, PAGED, refuse_others
from graphene.integrations.transformers._loss import causal_lm_loss
from graphene.integrations.transformers._masks import mask

AttentionInterface.register(NAME, attention)
AttentionInterface.register(PAGED, _paged.attention)
AttentionMaskInterface.register(NAME, mask)
refuse_others()

__all__ = ["NAME", "accelerate", "accelerated", "attention", "causal_lm_loss", "mask", "restore"]
