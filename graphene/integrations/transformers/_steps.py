"""The decoding steps of ``generate()`` as CUDA graphs over a static cache.

The first step of a form runs unrecorded, the second is recorded. It and the third run both ways, and their results must
agree, or nothing is recorded for this cache again. Inputs are copied into tensors that stay, so a form is their names,
shapes and dtypes, and what else a step depends on: which sliding windows of the cache are full.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import EncoderDecoderCache, StaticCache, StaticLayer, StaticSlidingWindowLayer
from transformers.generation.utils import GenerationMixin
from transformers.utils.generic import ModelOutput

from graphene.integrations.transformers import _masks

SAME = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # the distance of what must agree, by its norm
NEXT = "_graphene_next"  # the name of the inputs of a step that differs from the one before it by its token alone
FORMS = 8  # as many forms are recorded for a cache
PROOFS = 2  # as many steps of a form run both ways
# Results that some models give unasked: transformers' loop reads them where generate() returns them, and nowhere else.
UNREAD = {"hidden_states", "decoder_hidden_states", "encoder_hidden_states", "attentions", "decoder_attentions"}
ENCODER = "encoder_outputs."  # the beginning of names of what an encoder gave: the same tensors in each step of a call


class Layer(StaticLayer):  # type: ignore[misc]
    """A layer of a static cache. The layers of a recorded step share its position, which grows at its end."""

    at: Any = None
    filled = 0  # of a cache's first layer: as many positions are written, which the device counts, too

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Writes keys and values of the next positions, and returns those of all positions."""
        if self.at is None or key_states.shape[-2] != 1:
            keys, values = super().update(key_states, value_states, *args, **kwargs)
            self.filled += key_states.shape[-2]
            return keys, values
        self.keys.index_copy_(2, self.at, key_states)
        self.values.index_copy_(2, self.at, value_states)
        return self.keys, self.values

    def reset(self) -> None:
        """Empties it."""
        super().reset()
        self.filled = 0

    def take(self, other: Any, written: int) -> None:
        """Takes what a shorter layer holds, of which the first positions are written."""
        self.filled = written
        _take(self, other, written)


class Window(StaticSlidingWindowLayer):  # type: ignore[misc]
    """A layer of a window in a static cache. A full one makes no tensor of numbers, which cannot be recorded.

    ``at``: while a step is recorded, the position on the device. A model that makes masks and positions itself would
    have the recorded step repeat a number.
    """

    at: Any = None

    def get_seq_length(self) -> Any:
        """How many positions were written."""
        return super().get_seq_length() if self.at is None else self.at

    def get_mask_sizes(self, query_length: int) -> Any:
        """How many keys a mask has, and the position of the first one."""
        keys, first = super().get_mask_sizes(query_length)
        return keys, first if self.at is None or not first else self.at - (keys - query_length)

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Writes keys and values of the next positions, and returns those of the window and the next positions."""
        if key_states.shape[-2] != 1 or not self.is_initialized or self.cumulative_length_int < self.max_cache_len:
            keys, values = super().update(key_states, value_states, *args, **kwargs)
            return keys, values
        self.cumulative_length_int += 1
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            held.copy_(torch.cat((held[:, :, 1:], new), -2))
        return self.keys, self.values

    def take(self, other: Any, written: int) -> None:
        """Takes what a layer holds whose window was cut to its cache's length, and has not moved yet."""
        self.cumulative_length_int = written
        _take(self, other, written)


def _take(layer: Any, other: Any, positions: int) -> None:
    """Copies the first positions of another layer."""
    if other.is_initialized:
        layer.lazy_initialization(other.keys, other.values)
        layer.keys[:, :, :positions].copy_(other.keys[:, :, :positions])
        layer.values[:, :, :positions].copy_(other.values[:, :, :positions])
        layer.cumulative_length.fill_(positions)


class GraphOfLaunches:
    """Launches recorded by a CUDA graph, which reads and writes the tensors that it was recorded with.

    ``pool``: memory that graphs share whose results are copied before another one of them runs.
    """

    def __init__(self, run: Callable[[], Any], pool: Any = None) -> None:
        self.graph, here, side = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self.graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                self.result = run()
            finally:
                self.graph.capture_end()
        here.wait_stream(side)

    def replay(self) -> None:
        """Launches everything again."""
        self.graph.replay()


def new_cache(config: Any, length: int, encoded: int | None = None) -> StaticCache | EncoderDecoderCache | None:
    """A static cache for a model's configuration; None if its layers keep something else than keys and values.

    ``encoded``: how many states of an encoder the layers read, too; None without an encoder.
    """
    cache = StaticCache(config=config, max_cache_len=length)
    if not cache.layers or any(type(n) not in (StaticLayer, StaticSlidingWindowLayer) for n in cache.layers):
        return None
    for layer in cache.layers:
        layer.__class__ = Layer if type(layer) is StaticLayer else Window
    if encoded is None:
        return cache
    across = StaticCache(config=config, max_cache_len=encoded)
    across.layers = [StaticLayer(encoded) for _ in across.layers]  # a window is one of the decoder's own positions
    return EncoderDecoderCache(cache, across)


class Form(NamedTuple):
    """What a step depends on apart from the values of its tensors, and these tensors by name."""

    key: tuple[Any, ...]
    tensors: dict[str, Any]


class RecordedStep:
    """A recorded step. ``tensors``: what it reads."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        self.recorded: Any = None
        self.inputs: dict[str, Any] = {}  # what it was recorded with: a graph holds no memory that was made before it
        self.proofs = 0
        self.encoder: dict[str, Any] = {}  # what was copied from this call's encoder
        masks = [n for n, t in self.tensors.items() if n.startswith("attention_mask") and t.dtype == torch.bool]
        rest = set(self.tensors) - {"input_ids", "position_ids", *masks}
        self.mask = masks[0] if len(masks) == 1 and not rest else None  # the mask, if it and the tokens are all
        self.grows = True  # whether each step saw what the one before it saw, and its own key

    def fill(self, tensors: dict[str, Any], proof: bool = False) -> None:
        """Copies a call's tensors."""
        if proof and self.proofs and self.mask is not None:
            seen, now = self.tensors[self.mask], tensors[self.mask]
            more = now & ~seen
            self.grows = self.grows and bool((seen <= now).all() and (more.sum(-1) == 1).all())
        for name, t in tensors.items():
            if not name.startswith(ENCODER):
                self.tensors[name].copy_(t)
            elif self.encoder.get(name) is not t:
                self.encoder[name] = t
                self.tensors[name].copy_(t)


class RecordedSteps:
    """The steps of a model over one cache: called in place of the model."""

    def __init__(self, model: Any, cache: StaticCache | EncoderDecoderCache, length: int) -> None:
        self._model, self.cache, self.length = weakref.ref(model), cache, length
        self.encodes = isinstance(cache, EncoderDecoderCache)
        self.own: StaticCache = cache.self_attention_cache if self.encodes else cache  # that of the decoder's positions
        self.sort()
        update = "_update_model_kwargs_for_generation"  # of some models it reads more
        self.unread = getattr(type(model), update, None) is getattr(GenerationMixin, update)
        self.ids = "decoder_input_ids" if self.encodes else "input_ids"
        self.record: Callable[[Callable[[], Any]], Any] = GraphOfLaunches
        self.known: dict[tuple[Any, ...], RecordedStep | None] = {}  # None: it ran once
        self.current: RecordedStep | None = None  # that of this call, if its next step differs by its token alone
        self.why: str | None = None  # why nothing is recorded any more
        self.positions: Any = None
        self.beams: Any = None  # which sequence each one goes on from, as the recorded order reads it
        self.order: Any = None  # recorded: gives each sequence the keys and values of the one that it goes on from

    def model(self, **inputs: Any) -> Any:
        """The model's result by a call of its own."""
        model = self._model()
        assert model is not None
        return model(**inputs)

    def reset(self) -> None:
        """Empties the cache for another sequence."""
        self.cache.reset()
        self.current = None
        for step in self.known.values():
            if step is not None:
                step.encoder = {}

    def sort(self) -> None:
        """Lists the layers that hold all positions, and those of a window."""
        self.full = [n for n in self.own.layers if type(n) is Layer]
        self.sliding = [n for n in self.own.layers if isinstance(n, StaticSlidingWindowLayer)]

    def make_room(self) -> None:
        """Makes the cache longer if it has no place for another token, and lets its steps be recorded again.

        A search ends before that, unless criteria of the caller let it go on: a write past the end kills the process.
        """
        written = self.full[0].filled if self.full else max(n.cumulative_length_int for n in self.sliding)
        model = self._model()
        if written < self.length or model is None:
            return
        longer = new_cache(model.config.get_text_config(decoder=True), 2 * self.length)
        assert longer is not None
        for i, (old, new) in enumerate(zip(self.own.layers, longer.layers, strict=True)):
            if new.max_cache_len > old.max_cache_len:
                new.take(old, written)
                self.own.layers[i] = new
        self.length *= 2
        self.known, self.current, self.positions, self.order = {}, None, None, None
        self.sort()

    def __call__(self, **inputs: Any) -> Any:
        """The model's result for inputs of ``generate()``."""
        if NEXT in inputs:
            return self.next(*inputs[NEXT])
        form = None if self.why else self.form(inputs)
        if form is None or torch.is_grad_enabled():
            return self.model(**inputs)
        if form.key not in self.known:
            if len(self.known) < FORMS:
                self.known[form.key] = None
            return self.model(**inputs)
        step = self.known[form.key]
        if step is None:
            step = self.recording(form, inputs)
            if step is None:
                return self.model(**inputs)
            self.known[form.key] = step
        if step.proofs < PROOFS:
            return self.proof(step, form, inputs)
        return self.replay(step, form)

    def next(self, ids: Any, positions: Any, padding: Any) -> Any:
        """The result of a recorded step after another one, for the tokens so far, their positions and their mask."""
        step = self.current
        assert step is not None
        assert step.mask is not None
        step.tensors["input_ids"].copy_(ids[:, -1:])
        if "position_ids" in step.tensors:
            step.tensors["position_ids"].copy_(positions[..., -1:])
        step.tensors[step.mask].select(-1, padding.shape[1] - 1).fill_(True)
        step.recorded.replay()
        self.full[0].filled += 1
        return step.recorded.result

    def replay(self, step: RecordedStep, form: Form) -> Any:
        """The result of a recorded step."""
        step.fill(form.tensors, proof=step.proofs < PROOFS)
        step.recorded.replay()
        if step.proofs >= PROOFS and step.mask is not None and step.grows and not self.sliding:
            self.current = step
        for layer in self.sliding:
            layer.cumulative_length_int += 1
        for layer in self.full[:1]:
            layer.filled += 1
        return step.recorded.result

    def form(self, inputs: dict[str, Any]) -> Form | None:
        """The form of a step; None for other calls."""
        ids = inputs.get(self.ids)
        if ids is None or ids.shape[-1] != 1 or not self.own.is_initialized:
            return None
        if inputs.get("past_key_values") is not self.cache:
            return None
        if isinstance(self.cache, EncoderDecoderCache) and not all(self.cache.is_updated.values()):
            return None
        key: list[Any] = [tuple(n.cumulative_length_int >= n.max_cache_len for n in self.sliding)]
        tensors: dict[str, Any] = {}
        for name, value in _flat(inputs):
            if value is self.cache:
                continue
            if isinstance(value, _masks.Mask):
                facts = _masks.facts_of(value)
                if facts is None or facts.seen is None:
                    return None
                tensors[name] = facts.seen
                key.append((name, "mask", tuple(value.shape), value.dtype))
            elif type(value) is torch.Tensor:
                tensors[name] = value
                key.append((name, tuple(value.shape), value.dtype, value.device))
            elif value is None or isinstance(value, (bool, int, float, str)):
                key.append((name, value))
            else:
                return None
        return Form(tuple(key), tensors)

    def share(self) -> None:
        """Makes the layers' positions parts of one tensor."""
        if self.positions is None and self.full:
            self.positions = torch.stack([n.cumulative_length for n in self.full])
            for layer, own in zip(self.full, self.positions.unbind(), strict=True):
                layer.cumulative_length = own

    def recording(self, form: Form, inputs: dict[str, Any]) -> RecordedStep | None:
        """Records a step of this form; None where that is not possible, and then never again."""
        self.share()
        step, layers = RecordedStep(form.tensors), self.full
        held = _with(inputs, step.tensors)
        if self.encodes and held.get("decoder_attention_mask") is None:
            # Without one BART's kin make one of as many tokens as there are, and wait for the device to say how many.
            ids = held[self.ids]
            held["decoder_attention_mask"] = torch.ones(ids.shape[0], self.length, dtype=torch.long, device=ids.device)
        step.inputs = held
        before = [n.cumulative_length_int for n in self.sliding]

        def run() -> Any:
            for layer, at in zip(layers, () if self.positions is None else self.positions.split(1), strict=True):
                layer.at = at
            for layer in self.sliding:
                layer.at = None if self.positions is None else self.positions[0]
            try:
                with _masks.for_steps(True):  # an encoder-decoder makes its masks itself
                    out = self.model(**held)
            finally:
                for layer in (*layers, *self.sliding):
                    layer.at = None
            if self.positions is not None:
                self.positions.add_(1)
            return out

        try:
            step.recorded = self.record(run)
            out = step.recorded.result
            given = {"logits", "past_key_values"} | ({"encoder_last_hidden_state"} if self.encodes else set())
            if self.unread:
                given |= UNREAD
            other = {n for n, v in out.items() if v is not None} - given
            if not other and out.get("past_key_values") in (None, self.cache):
                return step
            self.why = f"its steps return {', '.join(sorted(other)) or 'another cache'}"
        except Exception as error:  # what a model does in a step may be anything
            said = str(error).strip().splitlines()
            self.why = f"a step cannot be recorded: {said[0] if said else type(error).__name__}"
        finally:
            for layer, number in zip(self.sliding, before, strict=True):
                layer.cumulative_length_int = number
        return None

    def reorder(self, beams: Any) -> None:
        """Gives sequence i the keys and values of sequence beams[i], in place: recorded steps read them there.

        What an encoder's states became is the same for all beams of a sequence, and stays.
        """
        held = [t for n in self.own.layers for t in (n.keys, n.values)]
        if self.beams is None:
            self.beams = beams.clone()
        else:
            self.beams.copy_(beams)

        def run() -> None:
            for t in held:
                t.copy_(t.index_select(0, self.beams))

        if self.order is None and self.why is None and any(self.known.values()):  # steps can be recorded
            self.order = self.record(run)
        if self.order is None:
            run()
        else:
            self.order.replay()

    def proof(self, step: RecordedStep, form: Form, inputs: dict[str, Any]) -> Any:
        """Runs a step both ways and compares their logits."""
        kept = [[n.keys.clone(), n.values.clone(), n.cumulative_length.clone()] for n in self.own.layers]
        numbers, filled = [n.cumulative_length_int for n in self.sliding], [n.filled for n in self.full]

        def back() -> None:
            for layer, tensors in zip(self.own.layers, kept, strict=True):
                for now, before in zip((layer.keys, layer.values, layer.cumulative_length), tensors, strict=True):
                    now.copy_(before)
            for layer, number in zip(self.sliding, numbers, strict=True):
                layer.cumulative_length_int = number
            for layer, number in zip(self.full, filled, strict=True):
                layer.filled = number

        want = self.model(**inputs).logits.float()
        back()
        out = self.replay(step, form)
        distance = float((out.logits.float() - want).norm() / want.norm())
        if distance <= SAME.get(out.logits.dtype, SAME[torch.float32]):  # not for NaN
            step.proofs += 1
            return out
        self.why = f"a recorded step differed from one that was not, by {distance:.1e}"
        self.known.clear()
        back()
        return self.model(**inputs)


def _flat(inputs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The inputs by name, those of a dictionary of masks by theirs."""
    found: list[tuple[str, Any]] = []
    for name, value in inputs.items():
        if isinstance(value, dict):
            found += [(f"{name}.{n}", v) for n, v in value.items()]
        else:
            found.append((name, value))
    return found


def _with(inputs: dict[str, Any], tensors: dict[str, Any], around: str = "") -> dict[str, Any]:
    """The inputs with other tensors in their places."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        held = tensors.get(around + name)
        if isinstance(value, dict):
            inner = _with(value, tensors, f"{around}{name}.")
            made[name] = type(value)(**inner) if isinstance(value, ModelOutput) else inner
        elif held is None:
            made[name] = value
        elif isinstance(value, _masks.Mask):
            facts = _masks.MaskFacts(None, value.shape[-1], seen=held)
            made[name] = _masks.Mask(facts, tuple(value.shape), value.device, value.dtype)
        else:
            made[name] = held
    return made
