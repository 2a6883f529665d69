"""Whether a model reads what its encoder gives at padded positions: heads that take a position, or a mean, do.

A packed encoder gives zeros there. So the model is tried on a few tokens: once as it is, and once with other numbers at
the padded positions of the encoder's result. What a user reads must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from graphene.integrations.transformers import _left
from graphene.nn._hooks import globally_hooked

LENGTH, TOKENS = 8, 5  # of both sequences, and of the second without padding
FAR = 8.0  # the size of the other numbers, of states whose size is about 1
NEAR = 1e-3  # relative to the largest number of a result
FIRST_WORD = 5  # tokens below it often have a meaning of their own

Found = list[tuple[str, Any]]


def why_not(model: Any, encoder: Any) -> str | None:
    """Why packing this encoder would show in the results of a model around it; None where it does not.

    Each model of transformers around the encoder is asked. Where none is, only the caller reads what the encoder gives.
    """
    around = [m for m in model.modules() if isinstance(m, PreTrainedModel) and any(e is encoder for e in m.modules())]
    for m in reversed(around):
        said = _asked(m, encoder)
        if said is not None:
            return f"{type(m).__name__} {said}"
    return None


def _asked(model: Any, encoder: Any) -> str | None:
    given = inputs(model)
    if given is None:
        return "takes inputs that are not known: whether it reads padded positions was not tried"
    if any(_is_hooked(m) for m in model.modules()) or globally_hooked():
        return "has hooks: whether it reads padded positions was not tried"
    seen = given["attention_mask"].bool()
    try:
        with _at_rest(model), torch.no_grad():
            want = _results(model, given)
            with _other_padding(encoder, seen):
                got = _results(model, given)
    except Exception as error:  # a model may want any inputs
        return f"was not tried on padded positions: {type(error).__name__}"
    for (name, a), (_, b) in zip(want, got, strict=True):
        if a.dim() > 2 and a.shape[:2] == seen.shape:  # states or scores of each position
            a, b = a[seen], b[seen]
        if a.shape != b.shape or (a - b).abs().max() > NEAR * a.abs().max():
            return f"reads padded positions for its {name}"
    return None


def inputs(model: Any) -> dict[str, Any] | None:
    """Two sequences of tokens, the second of them padded; None for a model that takes something else."""
    given = _left.usual_inputs(model)
    if given is None or "input_ids" not in given[0]:
        return None
    made, text = dict(given[0]), model.config.get_text_config()
    ids = made["input_ids"][:2, :LENGTH] % max(text.vocab_size - FIRST_WORD, 1) + min(FIRST_WORD, text.vocab_size - 1)
    if ids.shape[1] != LENGTH:
        return None
    seen = torch.ones_like(ids)
    seen[1, TOKENS:] = 0
    for sequence, last in zip(ids, (LENGTH, TOKENS), strict=True):
        for name, at in (("pad_token_id", slice(last, None)), ("eos_token_id", slice(last - 1, last))):
            token = getattr(text, name, None)
            if isinstance(token, int) and 0 <= token < text.vocab_size:
                sequence[at] = token
    if "decoder_input_ids" in made:
        made["decoder_input_ids"] = ids.clone()
    return made | {"input_ids": ids, "attention_mask": seen}


def _results(model: Any, given: dict[str, Any]) -> Found:
    """The results in floating point, with their names."""
    return [(n, t.float()) for n, t in _tensors(model(**given), "result") if t.is_floating_point() and t.numel()]


def _tensors(x: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(x, torch.Tensor):
        yield name, x
    elif isinstance(x, Mapping):
        for n, part in x.items():
            yield from _tensors(part, str(n))
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from _tensors(part, name)


def _is_hooked(module: Any) -> bool:
    return bool("forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks)


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """Without dropout, and without statistics that a pass in training mode changes."""
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def _other_padding(encoder: Any, seen: Any) -> Iterator[None]:
    """Other numbers where the result of the encoder is one of padding."""

    def changed(module: Any, args: Any, out: Any) -> Any:
        states = out if isinstance(out, torch.Tensor) else out[0]
        signs = torch.arange(states.shape[-1], device=states.device) % 2 * 2 - 1
        other = torch.where(seen[..., None], states, (FAR * signs).to(states.dtype))
        if isinstance(out, torch.Tensor):
            return other
        out["last_hidden_state"] = other
        return out

    handle = encoder.register_forward_hook(changed)
    try:
        yield
    finally:
        handle.remove()
