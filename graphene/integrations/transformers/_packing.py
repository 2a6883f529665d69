"""Padded batches as packed ones inside an encoder, whose rows are the tokens that are not padding.

What an encoder computes between its attentions it computes row by row, so rows that are padding can be left out, and
attention takes sequences of different lengths. They are put back after the last layer: outputs there are zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain, repeat
from operator import contains, itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers.pytorch_utils import Conv1D
from transformers.utils import output_capturing
from transformers.utils.import_utils import is_tracing

from graphene.integrations.transformers import _measure
from graphene.integrations.transformers._interface import NAME
from graphene.integrations.transformers._masks import are_known, facts_of, tokens
from graphene.nn._hooks import globally_hooked

# Fewer rows saved than this, or a smaller part, do not make up for finding them.
SAVED_ROWS, SAVED_PART = 512, 0.1

_ROWWISE = (torch.nn.Linear, Conv1D, torch.nn.LayerNorm, torch.nn.Dropout, torch.nn.Identity)
_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")


class Packed(NamedTuple):
    """Where the rows of a packed batch come from.

    ``end``: None, or the number of the batch's rows where ``rows`` may be more than there are tokens, as in a recorded
    pass: rows from there on are of no sequence, and copies of some row stand in them.
    """

    rows: Any  # (total,) int64: of the batch's rows
    ends: Any  # (batch + 1,) int32: where sequences begin and end
    longest: int
    end: int | None = None


def why_not(module: Any, known: Any) -> str | None:
    """Why the layers of this module cannot work on packed rows; None if they can, "" if it is not an encoder at all.

    ``known``: whether a module is a norm or an activation.
    """
    parameters = list(inspect.signature(type(module).forward).parameters)
    if parameters[1:3] != ["hidden_states", "attention_mask"]:
        return ""
    lists = [m for m in module.children() if isinstance(m, torch.nn.ModuleList)]
    attentions = [m for m in module.modules() if hasattr(m, "is_causal")]
    config = config_of(module)
    if len(lists) != 1 or not attentions or config is None:
        return ""
    if any(m.is_causal for m in attentions) or getattr(config, "is_decoder", False):
        return "it is a decoder"
    if getattr(config, "chunk_size_feed_forward", 0):
        return "chunk_size_feed_forward is set"
    for m in module.modules():
        leaf = next(m.children(), None) is None
        if leaf and not isinstance(m, (*_ROWWISE, torch.nn.ModuleList)) and not known(m):
            return f"{type(m).__name__} may look at more than one row"
        if not leaf and next(m.parameters(recurse=False), None) is not None:
            return f"{type(m).__name__} has weights of its own"
    return None


def config_of(module: Any) -> Any:
    """The configuration of an encoder, or of its attentions."""
    return next((m.config for m in module.modules() if hasattr(m, "config")), None)


def has_tensors(x: Any) -> bool:
    """Whether an argument is or holds tensors, rotations of each position for one, which may have a row a token."""
    if isinstance(x, Mapping):
        x = x.values()
    elif not isinstance(x, (list, tuple, set)):
        return isinstance(x, torch.Tensor)
    return any(has_tensors(e) for e in x)


def pack(module: Any, always: bool, hidden: Any, mask: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """How to pack this call's batch, or None where it does not pay or would show."""
    if not always and not _measure.possible(hidden.device):
        return None
    facts = facts_of(mask)
    if facts is None or facts.padding is None or facts.causal or facts.window is not None:
        return None
    if is_tracing(hidden) and not are_known():
        return None
    mask = facts.padding
    if hidden.dim() != 3 or mask.shape != hidden.shape[:2]:
        return None
    if any(has_tensors(a) for a in args) or kwargs.get("past_key_values") is not None:
        return None
    if any(has_tensors(a) and n != "position_ids" for n, a in kwargs.items()):
        return None
    if (
        output_capturing._active_collector.get()
        or kwargs.get("output_attentions")
        or kwargs.get("output_hidden_states")
    ):
        return None
    seen, count = tokens(mask), mask.numel()
    if not seen.first:  # heads read position 0, whatever stands there
        return None
    if not always and not (pays(seen.rows, count) if seen.pays is None else seen.pays):
        return None
    if seen.full or not seen.rows or not _unseen(module):
        return None
    ends = torch.nn.functional.pad(seen.lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = torch.nonzero_static(mask.reshape(-1), size=seen.rows, fill_value=count)[:, 0]
    return Packed(rows, ends, seen.longest, count if seen.pays is not None else None)


def pays(total: int, count: int) -> bool:
    """Whether the rows that packing saves make up for finding those of ``total`` tokens among ``count``."""
    return count - total >= max(SAVED_ROWS, SAVED_PART * count)


class _Inside(NamedTuple):
    """The modules inside an encoder: as long as their children are these, it need not be walked through again."""

    children: tuple[Any, ...]
    parents: list[dict[str, Any]]  # of children by name
    attributes: list[dict[str, Any]]
    attentions: list[Any]


_inside: WeakKeyDictionary[Any, _Inside] = WeakKeyDictionary()
_FORWARD = itemgetter("_forward_hooks")
_OTHERS = itemgetter("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _unseen(module: Any) -> bool:
    """Whether only Graphene's attention, without dropout, would see that the rows inside are packed."""
    known = _inside.get(module)
    if known is None or tuple(chain.from_iterable(p.values() for p in known.parents)) != known.children:
        everything = list(module.modules())
        parents = [m._modules for m in everything if m._modules]
        known = _Inside(
            tuple(chain.from_iterable(p.values() for p in parents)),
            [m._modules for m in everything],
            [m.__dict__ for m in everything[1:]],
            [m for m in everything if hasattr(m, "is_causal") and hasattr(m, "config")],
        )
        _inside[module] = known
    if globally_hooked() or any(map(contains, known.attributes, repeat("forward"))):
        return False
    if any(chain.from_iterable(map(_OTHERS, known.attributes))):
        return False
    if any(_looks(h) for hooks in map(_FORWARD, known.attributes) if hooks for h in hooks.values()):
        return False
    configs = [m.config for m in known.attentions]
    if any(c._attn_implementation != NAME for c in configs):
        return False
    return not (module.training and any(getattr(c, n, 0) for c in configs for n in _DROPOUTS))


def _looks(hook: Any) -> bool:
    """Whether a hook is one that sees every call: those of transformers sleep where no states are asked for."""
    return bool(getattr(hook, "__module__", None) != output_capturing.__name__)


def arguments(packed: Packed) -> dict[str, Any]:
    """The arguments of attention for packed rows, by transformers' names."""
    ends, longest = packed.ends, packed.longest
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def take(packed: Packed, hidden: Any) -> Any:
    """(batch, length, width) -> (1, total, width)."""
    rows = packed.rows if packed.end is None else packed.rows.clamp(max=packed.end - 1)
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, rows)[None]


def put_back(packed: Packed, hidden: Any, shape: Any) -> Any:
    """(1, total, width) -> (batch, length, width), zero where there was padding."""
    count = shape[0] * shape[1]
    out = hidden.new_zeros(count + (packed.end is not None), hidden.shape[-1])  # behind them: rows of no sequence
    return out.index_copy(0, packed.rows, hidden[0])[:count].view(shape[0], shape[1], -1)
