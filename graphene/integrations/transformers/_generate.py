"""``generate()`` of an accelerated model: where that is safe, it decodes over a static cache by recorded steps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerationMixin

from graphene.integrations.transformers import _masks, _measure
from graphene.integrations.transformers._heads import layer_config
from graphene.integrations.transformers._steps import NEXT, RecordedSteps, new_cache
from graphene.nn._hooks import globally_hooked

LEAST = 16  # new tokens from which on steps are recorded: four of them take longer for that
MEMORY = 0.25  # the part of free memory that the cache may take
ROUND = 64  # lengths of caches are multiples of this, so that other calls can use them, too
BEAMS = (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, *BEAMS)


class Decoding:
    """The cache of a model, kept from one call of ``generate()`` to the next, and its recorded steps."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say  # told why no step of this model is recorded any more
        self.lock = threading.Lock()
        self.steps: RecordedSteps | None = None
        self.made_for: Any = None  # what the steps were recorded with
        self.refused: str | None = None  # why no step of this model is recorded
        self.thread: int | None = None  # that of the call which uses the cache
        self.taken = False  # whether that call uses it

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of ``generate()``. Another call at the same time, or inside of it, goes on without."""
        if not self.lock.acquire(blocking=False):
            yield
            return
        self.thread, self.taken = threading.get_ident(), False
        try:
            yield
        finally:
            if self.steps is not None and self.steps.why is not None:
                self.refused = self.steps.why
                self.say(self.refused)
                self.steps = self.made_for = None
            self.thread, self.taken = None, False
            self.lock.release()

    @contextmanager
    def search(self) -> Iterator[None]:
        """One search of a call, which may have several, one after another, as Whisper's calls for long sounds do."""
        used = self.mine and self.taken
        try:
            yield
        finally:
            if used:
                self.taken = False

    def release(self) -> None:
        """Frees the cache and the recorded steps."""
        self.steps = self.made_for = None

    @property
    def mine(self) -> bool:
        """Whether this thread's call may use the cache."""
        return self.thread == threading.get_ident()

    def uses(self, cache: Any) -> bool:
        """Whether this thread's call decodes over this cache."""
        return self.mine and self.taken and self.steps is not None and cache is self.steps.cache

    def cache_for(self, model: Any, config: Any, kwargs: dict[str, Any], mode: Any, batch: int, length: int) -> Any:
        """An empty cache for a call of ``generate()``; None where transformers should make one."""
        if not self.mine or self.taken or self.refused is not None or why_not(model, config, kwargs, mode, length):
            return None
        batch *= max(config.num_beams or 1, config.num_return_sequences or 1)
        encoded = kwargs["encoder_outputs"][0].shape[1] if model.config.is_encoder_decoder else None
        made_for = (batch, encoded, torch.is_inference_mode_enabled(), _parts(model))
        if self.steps is None or self.made_for != made_for or self.steps.length < length:
            self.steps = self.made_for = None
            rounded = -(-length // ROUND) * ROUND
            cache = _fitting(model, batch, rounded, encoded)
            if cache is None:
                return None
            self.steps, self.made_for = RecordedSteps(model, cache, rounded), made_for
        self.steps.reset()
        self.taken = True
        return self.steps.cache


def why_not(model: Any, config: Any, kwargs: dict[str, Any], mode: Any, length: int) -> str | None:
    """Why a call of ``generate()`` keeps transformers' way; None if its steps may be recorded."""
    own = unfit(model)
    if own is not None:
        return own
    if mode not in MODES:
        return "it is no greedy search, no sampling and no search of beams"
    if mode in BEAMS and hasattr(model, "_reorder_cache"):
        return "its model has a way of its own to order beams"
    if kwargs.get("past_key_values") is not None or config.use_cache is False or config.is_assistant:
        return "it brings a cache, or wants none"
    if config.cache_implementation not in (None, "static") or config.prefill_chunk_size is not None:
        return "it wants another cache"
    if config.compile_config is not None or config.disable_compile:
        return "it says how steps are compiled"
    if config.return_dict_in_generate or config.output_attentions or config.output_hidden_states:
        return "it returns the cache or what layers compute"
    if model.config.is_encoder_decoder:
        prompt = kwargs.get("decoder_attention_mask")
        before = 1 if prompt is None else prompt.shape[-1]
    else:
        prompt = kwargs.get("attention_mask", kwargs.get("input_ids"))
        before = length if prompt is None else prompt.shape[-1]
    if length + 1 - before < LEAST:
        return f"it asks for fewer than {LEAST} tokens"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on"
    return None


def unfit(model: Any) -> str | None:
    """Why no call of this model records steps; None if some may."""
    if not getattr(model, "_can_compile_fullgraph", False):
        return "transformers does not know it to run over a static cache"
    if getattr(model, "hf_quantizer", None) is not None or hasattr(model, "hf_device_map"):
        return "it is quantized or spread over devices"
    if model.training:
        return "it is in training mode"
    if not on_one_gpu(model):
        return "it is not on one GPU"
    if globally_hooked() or any(watched(m) for m in model.modules()):
        return "something hooks into its modules, or replaced their forward"
    return None


def on_one_gpu(model: Any) -> bool:
    """Whether all parameters are on the same GPU."""
    devices = {p.device for p in model.parameters()}
    return len(devices) == 1 and _measure.possible(next(iter(devices)))


def watched(module: Any) -> bool:
    """Whether more than a module's class says what its call does."""
    own = module.__dict__
    if "forward" in own or own["_forward_pre_hooks"]:
        return True
    # transformers leaves hooks in place that are at rest unless a call returns hidden states or weights.
    return any(h.__module__ != "transformers.utils.output_capturing" for h in own["_forward_hooks"].values())


def _parts(model: Any) -> tuple[Any, ...]:
    """What recorded steps read: the addresses of parameters and buffers, and how modules compute."""
    tensors = [*model.parameters(), *model.buffers()]
    where = tuple((t.data_ptr(), t.dtype) for t in tensors)
    return where, tuple(map(id, model.modules())), model.config._attn_implementation


def _fitting(model: Any, batch: int, length: int, encoded: int | None) -> Any:
    """A new cache if it takes little of the free memory."""
    config = model.config.get_text_config(decoder=True)
    try:
        cache = new_cache(config, length, encoded)
    except (AttributeError, KeyError, TypeError, ValueError):  # configurations that static caches do not know
        return None
    if cache is None:
        return None
    parts = [cache] if encoded is None else [cache.self_attention_cache, cache.cross_attention_cache]
    elems = sum(n.max_cache_len * _position_elems(config, i) for part in parts for i, n in enumerate(part.layers))
    return cache if batch * elems * model.dtype.itemsize <= MEMORY * _free(model.device) else None


def _position_elems(config: Any, layer: int) -> int:
    """Elements of the keys and values of a position in a layer."""
    of_layer = layer_config(config, layer)
    heads = getattr(of_layer, "num_key_value_heads", None) or of_layer.num_attention_heads
    width = getattr(of_layer, "head_dim", None) or getattr(of_layer, "d_kv", None)
    return int(2 * heads * (width or of_layer.hidden_size // of_layer.num_attention_heads))


def _free(device: Any) -> float:
    if device.type != "cuda":
        return float("inf")
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


class Searching:
    """A model while it searches with beams: a call of it is a recorded step, and its cache is ordered in place."""

    def __init__(self, model: Any, steps: RecordedSteps) -> None:
        self._model, self._steps = model, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: Any) -> Any:
        return self._steps(**inputs)

    def _reorder_cache(self, cache: Any, beams: Any) -> Any:
        self._steps.reorder(beams)
        return cache


def methods(original: Any, decoding: Decoding) -> dict[str, Any]:
    """The methods of a class of models that generate, with recorded steps."""

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with decoding.call():
            return original.generate(self, *args, **kwargs)

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: Any, generation_mode: Any, batch_size: Any, length: Any
    ) -> Any:
        cache = decoding.cache_for(self, generation_config, model_kwargs, generation_mode, batch_size, length)
        if cache is not None:
            model_kwargs["past_key_values"] = cache
            return None
        return original._prepare_cache_for_generation(
            self, generation_config, model_kwargs, generation_mode, batch_size, length
        )

    def _valid_auto_compile_criteria(self: Any, model_kwargs: Any, generation_config: Any) -> Any:
        if decoding.uses(model_kwargs.get("past_key_values")):
            return True
        return original._valid_auto_compile_criteria(self, model_kwargs, generation_config)

    def get_compiled_call(self: Any, compile_config: Any) -> Any:
        if decoding.mine and decoding.taken:
            return decoding.steps
        return original.get_compiled_call(self, compile_config)

    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        with decoding.search():
            return original._sample(self, *args, **kwargs)

    def _beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        with decoding.search():
            steps = decoding.steps if decoding.mine and decoding.taken else None
            return original._beam_search(self if steps is None else Searching(self, steps), *args, **kwargs)

    names = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "create_masks_for_generate")
    plain = all(getattr(original, n, None) is getattr(GenerationMixin, n, None) for n in names)

    def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps = decoding.steps if decoding.uses(kwargs.get("past_key_values")) else None
        if steps is not None:
            steps.make_room()
        if plain and steps is not None and steps.current is not None and len(args) == 1:
            mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
            one = kwargs.get("next_sequence_length") == 1 and not kwargs.get("is_first_iteration")
            if one and mask is not None and (positions is not None) == ("position_ids" in steps.current.tensors):
                return {NEXT: (args[0], positions, mask)}
        with _masks.for_steps(decoding.uses(kwargs.get("past_key_values"))):
            return original.prepare_inputs_for_generation(self, *args, **kwargs)

    made = (generate, _prepare_cache_for_generation, _valid_auto_compile_criteria, get_compiled_call,
            _sample, _beam_search, prepare_inputs_for_generation)  # fmt: skip
    named = {f.__name__: f for f in made}
    # transformers reads signatures to know which arguments a model takes.
    return {name: functools.wraps(getattr(original, name))(f) for name, f in named.items()}
