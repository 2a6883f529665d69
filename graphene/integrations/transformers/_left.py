"""How much of a forward pass is left to PyTorch, by time on the device."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

AHEAD = 50_000_000  # cycles for which the device waits at first, so that it does not wait for the host later
WAITED_S = 0.004  # the host waited in an operator that took so long: the device has nothing to do then, and waits again
BATCH, LENGTH = 8, 512
NAMED = 4  # as many of PyTorch's other operators are named
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_addmm_activation", "_scaled_mm", "_grouped_mm")


class Times(TorchDispatchMode):  # type: ignore[misc]
    """Times of operators by their names, while they run. Graphene's names begin with "graphene."."""

    def __init__(self, on_gpu: bool) -> None:
        super().__init__()
        self.on_gpu = on_gpu
        self.spans: list[tuple[str, Any, Any]] = []

    def now(self) -> Any:
        """A point in time, on the device if there is one."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator between two points in time; views take none."""
        if func.is_view:
            return func(*args, **(kwargs or {}))
        start, began = self.now(), time.perf_counter()
        out = func(*args, **(kwargs or {}))
        waited = time.perf_counter() - began > WAITED_S
        name = func._schema.name.replace("::", ".").removeprefix("aten.")
        self.spans.append((name, start, self.now()))
        if waited and self.on_gpu:
            torch.cuda._sleep(AHEAD)
        return out

    def by_name(self) -> Counter[str]:
        """Milliseconds of each operator."""
        found: Counter[str] = Counter()
        if self.on_gpu:
            torch.cuda.synchronize()
        for name, start, end in self.spans:
            found[name] += start.elapsed_time(end) if self.on_gpu else (end - start) * 1e3
        return found


def measured(model: Any, inputs: dict[str, Any]) -> Counter[str]:
    """Milliseconds of the operators of a forward pass, by their names, after one that loads its kernels."""
    on_gpu = next(model.parameters()).is_cuda
    with torch.no_grad():
        model(**inputs)
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(AHEAD)
        with Times(on_gpu) as times:
            model(**inputs)
    return Counter(times.by_name())


def in_words(times: Counter[str]) -> str:
    """The shares of Graphene, of PyTorch's products and attention, and of its other operators."""
    parts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for name, ms in times.items():
        if name.startswith("graphene.") and not name.endswith("_reference"):
            parts["Graphene"] += ms
        elif name in _PRODUCTS:
            parts["PyTorch's products"] += ms
        elif "scaled_dot_product" in name:
            parts["PyTorch's attention"] += ms
        else:
            others[name] += ms
    total = max(sum(times.values()), 1e-9)
    said = [f"{name} {ms / total:.0%}" for name, ms in parts.items()]
    rest = ", ".join(f"{name} {ms / total:.0%}" for name, ms in others.most_common(NAMED) if ms >= 0.005 * total)
    return ", ".join([*said, f"its other operators {sum(others.values()) / total:.0%}"]) + (
        f" ({rest})" if rest else ""
    )


def usual_inputs(model: Any) -> tuple[dict[str, Any], str] | None:
    """Inputs of a model of tokens or images, and their size in words; None for others."""
    if not isinstance(model, PreTrainedModel):
        return None
    config, device = model.config, model.device
    takes = inspect.signature(model.forward).parameters
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if "logits_to_keep" in takes:
        more["logits_to_keep"] = 1
    generator = torch.Generator().manual_seed(0)
    text = config.get_text_config()
    if model.main_input_name == "input_ids" and isinstance(getattr(text, "vocab_size", None), int):
        length = min(LENGTH, int(getattr(text, "max_position_embeddings", None) or LENGTH) - 2)
        ids = torch.randint(0, text.vocab_size, (BATCH, length), generator=generator).to(device)
        if config.is_encoder_decoder and "decoder_input_ids" in takes:
            more["decoder_input_ids"] = ids[:, : length // 4]
        return {"input_ids": ids, **more}, f"{BATCH} x {length} tokens"
    if model.main_input_name == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        size = (BATCH, getattr(config, "num_channels", 3), config.image_size, config.image_size)
        pixels = torch.randn(size, generator=generator).to(device, model.dtype)
        return {"pixel_values": pixels, **more}, f"{BATCH} images of {config.image_size} x {config.image_size}"
    return None
