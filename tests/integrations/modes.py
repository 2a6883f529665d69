"""Architectures of transformers in each way of use, against eager: prefill, padding, generation, training, compiled.

    python tests/integrations/modes.py [--ways generate beams] [--part 1/2] [NAME ...]

Models are made of transformers' own configurations, shrunk, in fp32. Each is tried with Graphene's attention alone, and
accelerated. Operators are computed by their formulas, so that a difference is the integration's. Right is what is near
to eager, or to transformers' default where that differs from eager: Moshi's eager attention sees the future. Under
autocast it is what is near to the results in fp32, or at most twice as far off as eager (or the default) is. What eager
itself cannot do is not asked. Ends with 1 if a number is wrong, or something is raised.
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import architectures
import by_formula
import pytest
import tape
import torch
from parts import arguments, begin
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import graphene.integrations.transformers as integration
from graphene.errors import LaunchError
from graphene.integrations.transformers import _generate, _measure, _passes, _steps

KINDS = (
    (AutoModelForSeq2SeqLM, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    (AutoModelForSpeechSeq2Seq, modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
    (AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    (AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    (AutoModelForImageClassification, modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
)
ASK = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
NEAR = 5e-4
LENGTH = 12


def network(name: str, how: str | None = "eager") -> Any:
    """A small model of an architecture, with a head."""
    config = architectures.shrink(CONFIG_MAPPING[name]())
    for part in (config, config.get_text_config()):
        for key in [k for k in vars(part) if "dropout" in k or k.endswith(("pdrop", "layerdrop"))]:
            setattr(part, key, 0.0)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    head = next((h for h, names in KINDS if name in names), None)
    if head is None:
        raise ValueError("it has no head that is asked for here")
    if head is AutoModelForMaskedLM and name in KINDS[3][1] and getattr(config, "is_decoder", None) is None:
        head = AutoModelForCausalLM
    torch.manual_seed(1)
    model = head.from_config(config, attn_implementation=how)
    if sum(p.numel() for p in model.parameters()) > 30e6:
        raise ValueError("it stays large")
    with torch.no_grad():
        for p in model.parameters():  # norms that are not the identity, and logits that differ
            p.add_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.02))
    return model.eval()


def inputs_of(model: Any, side: str = "full", rows: int = 3) -> dict[str, Any]:
    """A batch; ``side``: where rows are padded."""
    draw = torch.Generator().manual_seed(2)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        high, wide = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(rows, getattr(model.config, "num_channels", 3), high, wide, generator=draw)}
    if model.main_input_name == "input_features":
        positions = getattr(model.config, "max_source_positions", 64)
        bins = getattr(model.config, "num_mel_bins", 80)
        return {"input_features": torch.randn(rows, bins, 2 * positions, generator=draw)}
    vocabulary = min(model.config.get_text_config().vocab_size, 99)
    ids = torch.randint(5, vocabulary, (rows, LENGTH), generator=draw)
    found = {"input_ids": ids}
    if side != "full":
        at, size = torch.arange(LENGTH)[None], torch.tensor([LENGTH, 5, 8])[:rows, None]
        found["attention_mask"] = (at < size if side == "right" else at >= LENGTH - size).long()
    return found


def far(want: Any, got: Any, where: Any = None) -> float:
    """The largest difference, relative to the largest number."""
    if where is not None:
        want, got = want[where], got[where]
    if want.shape != got.shape:
        return float("inf")
    error = float((want - got).abs().max() / want.abs().max().clamp_min(1e-3))
    return error if error == error else float("inf")


def more(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What an encoder and decoder wants besides."""
    if not model.config.is_encoder_decoder:
        return inputs
    ids = torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(5))
    return inputs | {"decoder_input_ids": ids}


def forward(model: Any) -> dict[str, Any]:
    """Logits of a full batch and of padded ones, where there is no padding."""
    found = {}
    for side in ("full", "right", "left"):
        inputs = inputs_of(model, side)
        if side != "full" and "attention_mask" not in inputs:
            continue
        with torch.no_grad():
            logits = model(**more(model, inputs)).logits
        plain = side == "full" or model.config.is_encoder_decoder or logits.dim() != 3
        found[side] = logits if plain else logits[inputs["attention_mask"].bool()]
    return found


def passes(model: Any) -> dict[str, Any]:
    """Logits of several passes of a form, with other tokens each time, and other rows that are padded."""
    found = {}
    for side in ("full", "right", "left"):
        inputs = inputs_of(model, side)
        if side != "full" and "attention_mask" not in inputs:
            continue
        for turn in range(4):
            given = {n: t.roll(turn, 0) for n, t in inputs.items()}
            if "input_ids" in given:
                given["input_ids"] = 5 + (given["input_ids"] + turn) % 40
            with torch.no_grad():
                logits = model(**more(model, given)).logits
            plain = side == "full" or model.config.is_encoder_decoder or logits.dim() != 3
            found[f"{side} {turn}"] = logits if plain else logits[given["attention_mask"].bool()]
    return found


def generated(model: Any, **ask: Any) -> dict[str, Any]:
    """Tokens of a full batch and of a padded one."""
    found = {}
    decoder = not model.config.is_encoder_decoder
    for side in ("full", "left" if decoder else "right"):
        inputs = inputs_of(model, side)
        if side != "full" and "attention_mask" not in inputs:
            continue
        torch.manual_seed(4)
        found[side] = model.generate(**inputs, **(ASK | ask))
        torch.manual_seed(4)
        found[f"{side} again"] = model.generate(**inputs, **(ASK | ask))
    return found


def training(model: Any, checkpoint: bool = False, autocast: bool = False) -> dict[str, Any]:
    """The loss of two batches, and the gradients that add up."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.zero_grad()
    found = {}
    for side in ("full", "right"):
        inputs = inputs_of(model, side)
        if side != "full" and "attention_mask" not in inputs:
            continue
        labels = inputs.get("input_ids", torch.tensor([0, 1, 0]))
        if "attention_mask" in inputs and not model.config.is_encoder_decoder:
            labels = labels.masked_fill(inputs["attention_mask"] == 0, -100)
        if "input_features" in inputs:
            labels = torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(5))
        torch.manual_seed(6)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**inputs, labels=labels).loss
        loss.backward()
        found[f"loss {side}"] = loss.detach()[None]
    found |= {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found


def compiled(model: Any) -> dict[str, Any]:
    """Logits under torch.compile, in one graph."""
    found = {}
    for side in ("full", "right"):
        inputs = inputs_of(model, side)
        if side != "full" and "attention_mask" not in inputs:
            continue
        torch.compiler.reset()
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            logits = call(**more(model, inputs)).logits
        plain = side == "full" or model.config.is_encoder_decoder or logits.dim() != 3
        found[side] = logits if plain else logits[inputs["attention_mask"].bool()]
    torch.compiler.reset()
    return found


def exported(model: Any) -> dict[str, Any]:
    """Logits by torch.export, with a batch and a length that are symbols."""
    inputs = inputs_of(model, "right")
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=4, max=48)
    if "input_ids" not in inputs or model.config.is_encoder_decoder:
        raise ValueError("tokens alone are asked for")
    shapes = {n: {0: batch, 1: length} for n in inputs}
    program = torch.export.export(model, (), inputs | {"use_cache": False}, dynamic_shapes=shapes | {"use_cache": None})
    two = {n: t[:2, :9] for n, t in inputs.items()}
    with torch.no_grad():
        return {"three": program.module()(**inputs, use_cache=False).logits[inputs["attention_mask"].bool()],
                "two": program.module()(**two, use_cache=False).logits[two["attention_mask"].bool()]}  # fmt: skip


STATIC = {"cache_implementation": "static", "disable_compile": True}
WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "forward": forward,
    "passes": passes,
    "generate": generated,
    "static": lambda m: generated(m, **STATIC),
    "beams": lambda m: generated(m, num_beams=3),
    "static beams": lambda m: generated(m, num_beams=3, **STATIC),
    "sample": lambda m: generated(m, do_sample=True, top_k=20),
    "several": lambda m: generated(m, do_sample=True, num_return_sequences=2),
    "training": training,
    "checkpoints": lambda m: training(m, checkpoint=True),
    "autocast": lambda m: training(m, autocast=True),
    "compiled": compiled,
    "exported": exported,
}
NEAR_BY_WAY = {"training": 2e-3, "checkpoints": 2e-3, "compiled": 1e-3}
# Eager that is further off under autocast took another expert for some token, and so may any other form of the model.
SETTLED = 0.15


def as_on_a_gpu(patch: Any) -> None:
    """Records decoding steps and forward passes, by a tape in place of a CUDA graph."""
    patch.setattr(_measure, "possible", lambda device: True)
    patch.setattr(_measure, "choose", lambda *_: {})
    patch.setattr(_passes, "quicker", lambda *_: True)
    patch.setattr(_steps, "GraphOfLaunches", tape.Recorded)


class Reference:
    """What a form of a model is compared with: the results of a model in a way of use, and what is near to them."""

    def __init__(self, model: Any, way: str) -> None:
        self.found = WAYS[way](copy.deepcopy(model))
        self.right, self.near = self.found, NEAR_BY_WAY.get(way, NEAR)
        if way == "autocast":
            self.right = WAYS["training"](copy.deepcopy(model))
            noise = max(far(v, self.found[k]) for k, v in self.right.items() if matters(v))
            if noise > SETTLED:
                raise ValueError(f"under autocast it is off by {noise:.2g} itself")
            self.near = max(NEAR, 2 * noise)

    def wrong(self, got: dict[str, Any]) -> list[tuple[str, str]]:
        """What is missing or differs: each result of tokens, and the first of numbers."""
        if set(got) != set(self.found):
            return [("", f"{sorted(set(got) ^ set(self.found))[:4]} are missing or more")]
        wrong = []
        for key, value in self.right.items():
            if value.dtype == torch.int64:
                if not torch.equal(value, got[key]):
                    wrong.append((key, f"{int((value != got[key]).sum())} of {value.numel()} tokens"))
            elif matters(value) and not far(value, got[key]) <= self.near:
                return [*wrong, (key, f"{far(value, got[key]):.2g}")]
        return wrong


def matters(value: Any) -> bool:
    """Whether a result is more than what rounding leaves of terms that cancel."""
    return float(value.abs().max()) > 1e-4


def by_default(name: str, eager: Any, way: str) -> Reference | None:
    """The same of the attention that transformers takes where it is told none; None where that is eager or fails."""
    try:
        model = network(name, None)
        model.load_state_dict(eager.state_dict())
        return None if model.config._attn_implementation == "eager" else Reference(model, way)
    except Exception:  # eager is enough
        return None


def judge(name: str, ways: list[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with an architecture, by the way of use."""
    try:
        eager = network(name)
    except Exception as error:
        yield "made", f"not made: {type(error).__name__}: {error}"[:150]
        return
    for way in ways:
        try:
            want = Reference(eager, way)
        except Exception as error:  # not asked
            yield way, f"not asked: {type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        default = None
        for form in ("attention", "accelerated", "recorded"):
            steps = way != "passes"
            if form == "recorded" and steps and not getattr(eager, "_can_compile_fullgraph", False):
                continue
            if form == "recorded" and way not in RECORDED:
                continue
            try:
                with pytest.MonkeyPatch.context() as patch:
                    by_formula.use(patch)
                    if form == "recorded":
                        as_on_a_gpu(patch)
                        tape.Recorded.made = []
                    model = copy.deepcopy(eager)
                    if form == "attention":
                        try:
                            model.set_attn_implementation("graphene")
                        except LaunchError:
                            continue
                    else:
                        integration.accelerate(model, only_faster=False, show=False)
                    got = WAYS[way](model)
                    if form == "recorded":
                        record = integration.accelerated(model)
                        refused = None
                        if not steps:
                            refused = ", ".join(sorted({w for p in record.passes for w in p.refused.values()}))
                        elif not record.decoding:
                            refused = "no decoding"
                        else:
                            refused = record.decoding[0].refused
                        if refused or not tape.Recorded.made:
                            yield f"{way} {form}", f"left: {refused or _generate.unfit(model)}"
            except Exception as error:  # whatever it is, it is wrong
                frames = traceback.format_exception(error)
                yield f"{way} {form}", f"wrong: {''.join(frames[-3:])[-700:]}"
                continue
            wrong = want.wrong(got)
            if wrong:
                default = default or by_default(name, eager, way)
            if default and not default.wrong(got):
                wrong = []
            yield from ((f"{way} {form} {key}".strip(), f"wrong: {why}") for key, why in wrong)


RECORDED = ("generate", "beams", "sample", "passes")


def main() -> int:
    """Judges all that are named, or all that there are."""
    parser = arguments(__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args, chosen = begin(parser)
    names = args.names or sorted({n for _, names in KINDS for n in names if n in CONFIG_MAPPING})
    wrong = 0
    for name in names[chosen]:
        start = time.perf_counter()
        for way, said in judge(name, args.ways):
            wrong += said.startswith("wrong")
            print(f"{name}: {way}: {said}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
