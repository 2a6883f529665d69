"""Masks as ``graphene.ops.attention`` takes them, made where transformers makes its own.

A mask function of transformers says which keys a query sees. Most functions combine a causal order, a sliding window
and padding. These are passed on as ``MaskFacts``, which cost no memory, and no time for the keys that they rule out.

Read by a model, a mask is the one of transformers' "eager": (batch, 1, queries, keys) in floating point, added to the
scores, and None if eager has none. Models concatenate, slice and compare masks, and all of them know that form. The
facts stand beside the mask's values, which are written out only when something other than attention reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only
from transformers import masking_utils as hf
from transformers.utils.import_utils import is_tracing

_steps = threading.local()  # whether masks of one query are made for recorded steps: numbers would be recorded, too


@contextmanager
def for_steps(recorded: bool) -> Iterator[None]:
    """Makes masks of one query for recorded steps, whose values alone say what is seen."""
    before, _steps.recorded = getattr(_steps, "recorded", False), recorded
    try:
        yield
    finally:
        _steps.recorded = before


# Devices on which a mask that hides nothing was left out, as it cannot be where its values are not looked at.
dropped: set[str] = set()


class MaskFacts(NamedTuple):
    """Which keys are seen. ``padding`` (batch, keys) bool: True for keys that are not padding; None without padding.

    ``keys``: how many keys, from the first on, any query sees. The last query stands at the last of them.
    ``causal``: a query sees no key after its own. ``window``: it sees its own key and the ``window - 1`` before it or,
    if not causal, ``window`` keys on either side of its own. ``seen`` (batch, 1, queries, keys) bool: if not None, it
    alone says what is seen.
    """

    padding: Any
    keys: int
    causal: bool = False
    window: int | None = None
    seen: Any = None

    def hide_nothing(self, keys: int) -> bool:
        """Whether every query sees all of `keys` keys. (Tuples are not compared: a compiler cannot compare tensors.)"""
        unseen = self.padding is not None or self.causal or self.window is not None or self.seen is not None
        return not unseen and self.keys == keys


def written(facts: MaskFacts, shape: tuple[int, int, int, int], device: Any, dtype: Any) -> Any:
    """The mask of these facts, (batch, 1, queries, keys), to be added."""
    seen = _seen(facts, shape, device) if facts.seen is None else facts.seen
    zero = torch.zeros((), dtype=dtype, device=device)
    return torch.where(seen, zero, torch.finfo(dtype).min).expand(shape)


def _seen(facts: MaskFacts, shape: tuple[int, int, int, int], device: Any) -> Any:
    _, _, queries, keys = shape
    column = torch.arange(keys, device=device)
    row = (torch.arange(queries, device=device) + (facts.keys - queries))[:, None]
    seen = (column < facts.keys)[None]
    if facts.causal:
        seen = column <= row
    if facts.window is not None:
        seen = seen & (column > row - facts.window if facts.causal else (row - column).abs() <= facts.window)
    seen = seen[None, None]
    if facts.padding is not None:
        hidden = keys - facts.padding.shape[1]
        seen = seen & torch.nn.functional.pad(facts.padding, (0, hidden))[:, None, None]
    return seen


class Mask(torch.Tensor):  # type: ignore[misc]
    """A mask (batch, 1, queries, keys) of facts, written out when an operator reads it."""

    _graphene_facts: MaskFacts | None
    _written: Any

    @staticmethod
    def __new__(cls, facts: MaskFacts | None, shape: tuple[int, int, int, int], device: Any, dtype: Any) -> Mask:
        """Makes a mask that is not written out yet."""
        mask: Mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask._graphene_facts, mask._written = facts, None
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    def plain(self) -> Any:
        """The mask as a tensor like any other."""
        if self._written is None:
            assert self._graphene_facts is not None
            self._written = written(self._graphene_facts, self.shape, self.device, self.dtype)
        return self._written

    def shared(self) -> Any:
        """The same for what may write to it, or to a view of it: the facts may then hold no longer."""
        plain = self.plain()
        self._graphene_facts = None
        return plain

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operator gets the mask written out."""
        aliases = any(a.alias_info is not None for a in func._schema.arguments)
        args, kwargs = tree_map_only(cls, cls.shared if aliases else cls.plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    # torch.compile takes it apart: inside, it is written out.
    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        self.plain()
        return ["_written"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], _: Any, size: Any, stride: Any) -> Any:
        plain = inner["_written"]
        mask = Mask(None, size, plain.device, plain.dtype)
        mask._written = plain
        return mask

    def __repr__(self, **_: Any) -> str:
        return repr(self.plain())

    def tolist(self) -> Any:
        """Its numbers."""
        return self.plain().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """An array of them."""
        return self.plain().numpy(force=force)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.plain().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().contiguous().__reduce_ex__(protocol)


def facts_of(mask: Any) -> MaskFacts | None:
    """What is known of a mask, if it was made here and is as it was made."""
    facts: MaskFacts | None = getattr(mask, "_graphene_facts", None)
    return facts


class Tokens(NamedTuple):
    """The keys that are not padding: of each sequence (batch,) int32 on the device, and numbers about all of them.

    ``rows``: how many keys of all sequences; ``longest``: of the one that has most; in a recorded pass both are bounds.
    ``first``: whether the first key of every sequence is a token. ``full``: whether there is no padding. ``pays``:
    whether that many rows are worth packing; None where that follows from ``rows``, which are exact.
    """

    lengths: Any
    rows: int
    longest: int
    first: bool
    full: bool
    pays: bool | None = None


def tokens(padding: Any) -> Tokens:
    """Counts a mask (batch, keys); waits for the device, unless it did for this mask or the numbers are known."""
    seen: Tokens | None = getattr(padding, "_graphene_tokens", None)
    if seen is not None:
        return seen
    told: Callable[[Any], Tokens] | None = getattr(_steps, "tokens", None)
    return counted(padding) if told is None else told(padding)


def counted(padding: Any) -> Tokens:
    """Counts a mask (batch, keys) bool; waits for the device."""
    lengths = padding.sum(-1, dtype=torch.int32)
    *each, first = torch.cat([lengths, padding[:, :1].all()[None].to(torch.int32)]).tolist()
    total = sum(each)
    return Tokens(lengths, total, max(each, default=0), bool(first), total == padding.numel())


@contextmanager
def known(told: Callable[[Any], Tokens]) -> Iterator[None]:
    """Takes numbers of tokens from what is told, without waiting, so that launches can be recorded meanwhile."""
    before, _steps.tokens = getattr(_steps, "tokens", None), told
    try:
        yield
    finally:
        _steps.tokens = before


def are_known() -> bool:
    """Whether numbers of tokens are known without waiting."""
    return getattr(_steps, "tokens", None) is not None


class Pattern(NamedTuple):
    """Which keys a query sees, padding apart. ``window``: keys after q - window; if not causal |q - key| <= window."""

    causal: bool
    window: int | None


def pattern_of(mask_function: Callable[..., Any]) -> Pattern | None:
    """The pattern that a mask function of transformers is made of; None where it is anything else."""
    if mask_function is hf.causal_mask_function:
        return Pattern(True, None)
    if mask_function is hf.bidirectional_mask_function:
        return Pattern(False, None)
    if torch.compiler.is_compiling():  # which follows no closures
        return None
    parts = _parts(mask_function)
    causal = hf.causal_mask_function in parts
    rest = [p for p in parts if p not in (hf.causal_mask_function, hf.bidirectional_mask_function)]
    if len(rest) != 1:
        return None
    overlay = hf.sliding_window_overlay if causal else hf.sliding_window_bidirectional_overlay
    window = _closure(rest[0]).get("sliding_window")
    if not isinstance(window, int) or rest[0].__code__ is not overlay(window).__code__:
        return None
    return Pattern(causal, window)


def _told(rest: dict[str, Any], bidirectional: bool) -> Pattern | None:
    """The pattern of a sliding window, by the other arguments of a mask; None where they do not say it.

    transformers allows "sdpa" to leave a mask out only where nothing but the window and padding stands in it. A size
    is that of a window, or of chunks, which have a setting of their own.
    """
    config, size = rest.get("config"), rest.get("local_size")
    causal = bool(rest.get("allow_is_causal_skip", False))
    if size is None or causal == bidirectional or getattr(config, "attention_chunk_size", None) is not None:
        return None
    return Pattern(causal, size) if getattr(config, "sliding_window", None) == size else None


def _parts(mask_function: Callable[..., Any]) -> list[Any]:
    """The functions of which this is the intersection."""
    if getattr(mask_function, "__code__", None) is not hf.and_masks().__code__:
        return [mask_function]
    return [p for inner in _closure(mask_function)["mask_functions"] for p in _parts(inner)]


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    return {} if code is None else {n: c.cell_contents for n, c in zip(code.co_freevars, cells, strict=True)}


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = hf.causal_mask_function,
    attention_mask: Any = None,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    **rest: Any,
) -> Any:
    """What transformers calls for ``attn_implementation="graphene"``: a mask (batch, 1, queries, keys), or None.

    The arguments are those of ``transformers.masking_utils.eager_mask``; ``attention_mask`` (batch, keys) bool.
    """
    shape, dtype = (batch_size, 1, q_length, kv_length), rest.get("dtype", torch.float32)
    ask: dict[str, Any] = dict(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, device=device, use_vmap=rest.get("use_vmap", False),
    )  # fmt: skip
    if q_length == 1 and getattr(_steps, "recorded", False):
        if isinstance(kv_offset, torch.Tensor):  # of a full window, which moves: seen from its first key it does not
            at = torch.arange(kv_length, device=device) + kv_offset
            ask["attention_mask"] = None if attention_mask is None else attention_mask.index_select(-1, at)
            ask |= {"q_offset": q_offset - kv_offset, "kv_offset": 0}
        seen = hf.sdpa_mask(**ask, allow_is_causal_skip=False)
        return Mask(MaskFacts(None, kv_length, seen=seen), shape, device, dtype)
    # What generate() makes for a compiled step of one query is an argument of what is compiled: a plain tensor.
    step = q_length == 1 and isinstance(q_offset, torch.Tensor)
    if torch.jit.is_tracing() or step:
        return hf.eager_mask(**ask, dtype=dtype)
    pattern, facts = pattern_of(mask_function), None
    if pattern is None and torch.compiler.is_compiling() and not ask["use_vmap"]:
        pattern = _told(rest, allow_is_bidirectional_skip)
    if pattern is not None:
        facts = _facts(pattern, q_length, kv_length, q_offset, kv_offset, attention_mask, device)
    if facts is None:
        facts = MaskFacts(None, kv_length, seen=hf.sdpa_mask(**ask, allow_is_causal_skip=False))
    elif allow_is_bidirectional_skip and facts.hide_nothing(kv_length):
        return None
    if not torch.compiler.is_compiling():
        return Mask(facts, shape, device, dtype)
    made = written(facts, shape, device, dtype)  # which the compiler leaves out where nobody reads it
    made._graphene_facts = facts
    return made


def _facts(
    pattern: Pattern, q_length: int, kv_length: int, q_offset: Any, kv_offset: int, padding: Any, device: Any
) -> MaskFacts | None:
    """The facts, or None where these do not say everything."""
    causal, window = pattern
    padding = hf.prepare_padding_mask(padding, kv_length, kv_offset)
    tracing = is_tracing(padding)
    keys = kv_length
    if window is not None and not torch.compiler.is_compiling() and window >= kv_length:
        window = None  # it rules nothing out (a compiler would be told a bound of a length that may vary)
    if causal or window is not None:
        if isinstance(q_offset, torch.Tensor):  # of a static cache
            if tracing:
                return None
            q_offset = int(q_offset)
        first = q_offset - kv_offset  # the first query's place among the keys
        if first < 0 or first + q_length > kv_length or (not causal and q_length != kv_length):
            return None
        keys = first + q_length  # seen by nobody: those after the last query
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + keys]
        if not tracing or are_known():
            seen = tokens(padding)
            if seen.full:
                padding = None
                dropped.add(str(device))
            else:
                padding._graphene_tokens = seen  # packing asks again
    return MaskFacts(padding, keys, causal, window)
