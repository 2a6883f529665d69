"""Models of Hugging Face's transformers on Graphene's kernels. docs/huggingface.md says what runs where.

After ``import graphene.integrations.transformers`` every model takes ``attn_implementation="graphene"``::

    model = AutoModel.from_pretrained(name, attn_implementation="graphene")

Needs transformers 5.
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from graphene.integrations.transformers._attention import attention
from graphene.integrations.transformers._masks import mask

NAME = "graphene"

AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)

__all__ = ["NAME", "attention", "mask"]
