"""Architectures of transformers on Graphene's attention and by accelerate, against eager.

    python tests/integrations/architectures.py [--testers CHECKOUT] [--dtype float32] [--json FILE] [NAME ...]

Without more, models are made of transformers' own configurations, shrunk: what cannot be made or run so is counted,
not judged. ``--testers``: a checkout of transformers' repository (https://github.com/huggingface/transformers, at the
tag of the installed version), whose tests hold a tester for every architecture, with a small configuration and inputs;
the packages that tests import and do not need for these are left out. Ends with 1 if anything is wrong.

Each model is judged in a forward pass, its gradients, a pass in training mode, ``set_attn_implementation`` there and
back, a copy, ``accelerate`` and ``restore``. Right is what is near to eager, or to transformers' default where that
differs from eager itself: at queries that see no key, and for boolean masks, which eager adds as numbers. In 16 bits it
is what is near to the same model's results in fp32, or at most twice as far off as eager (or the default) in 16 bits.
A refusal is right where the model is made or told to take the attention.
"""

from __future__ import annotations

import copy
import importlib
import importlib.machinery
import inspect
import itertools
import json
import random
import sys
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from parts import arguments, begin
from transformers import AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import graphene.integrations.transformers as integration
from graphene.errors import LaunchError

# fp32: ours against eager's, relative to the largest number of an output; gradients relative to a parameter's norm.
NEAR = {"float32": (5e-4, 2e-3), "float16": (2e-2, 1e-1), "bfloat16": (1e-1, 4e-1)}
LEFT_OUT = ("past_key_values", "cache", "loss_dict", "attentions")


@dataclass
class Case:
    """A model to be made, and what it is called with."""

    name: str
    make: Callable[[str | None], Any]  # of the attention's name
    inputs: Callable[[Any], dict[str, Any]]  # of the model


@dataclass
class Verdict:
    """What was found: ``kind`` is one of "right", "refused", "wrong", "unmade"."""

    name: str
    kind: str
    why: str = ""
    errors: dict[str, float] = field(default_factory=dict)


def seed(n: int) -> None:
    """Sets every generator that models and testers draw from."""
    random.seed(n)
    torch.manual_seed(n)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(n)


def tensors(x: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in an output, with their names."""
    if isinstance(x, torch.Tensor):
        yield path, x
    elif hasattr(x, "items"):
        for k, v in x.items():
            yield from tensors(v, f"{path}.{k}")
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            yield from tensors(v, f"{path}[{i}]")


def results(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a forward pass gives in floating point."""
    seed(0)
    out = model(**copy.deepcopy(inputs))
    found = {p: t for p, t in tensors(out) if t.is_floating_point() and not any(s in p for s in LEFT_OUT)}
    return found


def forward(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The same without a graph."""
    with torch.no_grad():
        return {p: t.detach().double() for p, t in results(model, inputs).items()}


def gradients(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of the sum of all results, weighted at random."""
    model.zero_grad()
    parts = [t for t in results(model, inputs).values() if t.requires_grad]
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(t.shape, generator=draw) for t in parts]
    total = sum((torch.where(t.isfinite(), t, 0).float() * w).sum() for t, w in zip(parts, weights, strict=True))
    if isinstance(total, torch.Tensor):
        total.backward()
    found = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def apart(want: dict[str, Any], got: dict[str, Any]) -> float:
    """The largest difference, relative to the largest number of each; inf for another form."""
    if set(want) != set(got):
        return float("inf")
    worst = 0.0
    for name, a in want.items():
        b = got[name]
        finite = a.isfinite()
        if a.shape != b.shape or not torch.equal(finite, b.isfinite()):
            return float("inf")
        if finite.any():
            worst = max(worst, float((a - b)[finite].abs().max() / a[finite].abs().max().clamp_min(1e-3)))
    return worst


def apart_by_norm(want: dict[str, Any], got: dict[str, Any], least: float = 1e-4) -> float:
    """The same of gradients: those of a parameter that hardly matters are next to the largest, `least` of it."""
    if set(want) != set(got):
        return float("inf")
    worst = 0.0
    largest = max((float(g.abs().max()) for g in want.values() if g.numel()), default=0.0)
    for name, g in want.items():
        error = float((g - got[name]).norm() / max(float(g.norm()), least * largest, 1e-9)) if g.numel() else 0.0
        worst = max(worst, error if error == error else float("inf"))
    return worst


@dataclass
class Reference:
    """A model that another is compared with, and what it gives in fp32, of the same weights and inputs."""

    model: Any
    inputs: dict[str, Any]
    exact: Any
    exact_inputs: dict[str, Any]
    want: dict[str, Any]
    noise: float = 0.0  # how far the model itself is off

    def far(self, got: dict[str, Any], near: float) -> float:
        """How far a result is off, in units of what is near."""
        return apart(self.want, got) / max(near, 2 * self.noise)

    def far_in_gradients(self, ours: Any, near: float) -> float | None:
        """The same of gradients; None where this model gives none, or none that are finite."""
        try:
            own = gradients(self.model, self.inputs)
            want = own if self.exact is self.model else gradients(self.exact, self.exact_inputs)
        except Exception:  # what it cannot do is not asked
            return None
        if not all(t.isfinite().all() for t in (*self.want.values(), *own.values(), *want.values())):
            return None  # what is left out of the sum is not the same, or fp16 is too narrow
        got = gradients(ours, self.inputs)
        # A bias of keys has no gradient but what rounding leaves of terms that cancel.
        least = 1e-4 if self.exact is self.model else 1e-2
        return apart_by_norm(want, got, least) / max(near, 2 * apart_by_norm(want, own, least))


def cast(x: dict[str, Any], to: Any) -> dict[str, Any]:
    """Inputs with their numbers in a type."""
    return {k: v.to(to) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in x.items()}


def judge(case: Case, dtype: str = "float32") -> Verdict:
    """Tries a model in every way."""
    near, near_gradient = NEAR[dtype]
    narrow = getattr(torch, dtype)

    def make(how: str | None) -> Any:
        seed(1)
        return case.make(how).to(narrow).eval()

    def refer(model: Any, inputs: dict[str, Any]) -> Reference:
        if narrow == torch.float32:
            return Reference(model, inputs, model, inputs, forward(model, inputs))
        exact, exact_inputs = copy.deepcopy(model).float(), cast(inputs, torch.float32)
        want = forward(exact, exact_inputs)
        return Reference(model, inputs, exact, exact_inputs, want, apart(want, forward(model, inputs)))

    try:
        eager = make("eager")
        weights = copy.deepcopy(eager.state_dict())
        seed(0)
        inputs = cast(case.inputs(eager), narrow)  # once: testers draw from generators of their own, too
        first = refer(eager, inputs)
    except Exception as error:  # transformers' own: a package that is not here, a configuration that says too little
        return Verdict(case.name, "unmade", f"{type(error).__name__}: {error}"[:200])
    if first.noise == float("inf"):
        return Verdict(case.name, "unmade", f"its numbers leave the range of {dtype}")
    references = [first]
    try:
        default = make(None)
        default.load_state_dict(weights)
        second = refer(default, inputs)
        references += [second] if second.noise < float("inf") else []
    except Exception:  # eager is enough
        pass
    found = Verdict(case.name, "right")
    step = "made"

    def note(named: str, error: float) -> None:
        found.errors[named] = error
        if not error <= 1:
            found.kind, found.why = "wrong", f"{found.why} {named}: {error:.2g}".strip()

    def compare(named: str, got: dict[str, Any]) -> None:
        note(named, min(r.far(got, near) for r in references))

    try:
        try:
            ours = make("graphene")
        except LaunchError as error:
            found.kind, found.why = "refused", str(error).splitlines()[1].strip()
            ours = None
        if ours is not None:
            ours.load_state_dict(weights)
            step = "forward"
            compare(step, forward(ours, inputs))
            step = "gradients"
            for reference in references:
                error = reference.far_in_gradients(ours, near_gradient)
                if error is None or error <= 1:
                    break
            if error is not None:
                note(step, error)
            step = "training"
            _train(eager, ours, inputs)
            step = "set"
            told = make("eager")
            told.load_state_dict(weights)
            try:
                told.set_attn_implementation("graphene")
            except LaunchError:  # its modules read copies of the configuration
                told = None
            if told is not None:
                compare(step, forward(told, inputs))
                step = "copy"
                compare(step, forward(copy.deepcopy(told), inputs))
                step = "set back"
                told.set_attn_implementation("eager")
                compare(step, forward(told, inputs))
        step = "accelerate"
        integration.accelerate(eager, only_faster=False, pack=False, show=False)
        compare(step, forward(eager, inputs))
        step = "restore"
        integration.restore(eager)
        compare(step, forward(eager, inputs))
    except Exception as error:  # whatever it is, it is wrong
        said = traceback.format_exception(error)
        found.kind, found.why = "wrong", f"{found.why} {step}: {''.join(said[-2:])[-500:]}".strip()
    return found


def _train(eager: Any, ours: Any, inputs: dict[str, Any]) -> None:
    """Runs a copy in training mode, which changes a batch norm's statistics; dropout: only that it runs."""
    try:
        results(copy.deepcopy(eager).train(), inputs)
    except Exception:  # what eager cannot do is not asked
        return
    results(copy.deepcopy(ours).train(), inputs)


# Small models of transformers' own configurations.

# What a number of a configuration becomes: the first part of its name that is found here says it.
SMALL = (
    ("vocab", 99), ("max_position", 64), ("n_positions", 64), ("max_source", 64), ("max_target", 64),
    ("key_value_heads", 2), ("kv_heads", 2), ("head_dim", 16), ("num_heads", 2), ("attention_heads", 2), ("n_head", 2),
    ("v_head", 16), ("nope", 8), ("rope_head", 8), ("d_kv", 16), ("dim_head", 16), ("lora_rank", 16),
    ("hidden_layers", 2), ("_layers", 2), ("n_layer", 2), ("num_layers", 2), ("decoder_layers", 2),
    ("experts_per_tok", 2), ("top_k", 2), ("n_group", 1), ("topk_group", 1), ("n_shared_experts", 1), ("expert", 4),
    ("intermediate", 64), ("ffn", 64), ("d_ff", 64), ("d_inner", 64), ("mlp_dim", 64),
    ("projection_dim", 32), ("hidden_size", 32), ("hidden_dim", 32), ("d_model", 32), ("n_embd", 32), ("embed", 32),
    ("width", 32), ("image_size", 16), ("patch_size", 4), ("sliding_window", 5), ("window", 4),
)  # fmt: skip


def shrink(config: Any) -> Any:
    """A configuration of the same class with small numbers, parts of it included."""
    values = dict(config.to_dict())
    small: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, bool) or key.endswith(("token_id", "token_index", "_id")):
            continue
        if isinstance(value, int) and value > 1:
            size = next((n for part, n in SMALL if part in key), None)
            if size is not None and size < value:
                small[key] = size
    for key in type(config).sub_configs:
        part = getattr(config, key, None)
        if isinstance(part, PreTrainedConfig):
            small[key] = shrink(part)
    layers = next((small[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if k in small), None)
    kinds = values.get("layer_types")
    if layers is not None and isinstance(kinds, list):
        ends = list(dict.fromkeys(kinds))[:layers]
        small["layer_types"] = (ends + kinds)[:layers]
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(values.get(key), int) and values[key] >= 99:
            small[key] = 1
    taken = inspect.signature(type(config).__init__).parameters
    plain = {k: v for k, v in small.items() if k in taken or hasattr(config, k)}
    return type(config)(**plain)


def of_configurations(names: list[str]) -> Iterator[Case]:
    """A model of each configuration that ``AutoModel`` knows."""
    for name in names or sorted(CONFIG_MAPPING.keys()):

        def make(how: str | None, name: str = name) -> Any:
            config = shrink(CONFIG_MAPPING[name]())
            model = AutoModel.from_config(config, attn_implementation=how)
            if sum(p.numel() for p in model.parameters()) > 30e6:
                raise ValueError("it stays large")
            return model

        yield Case(name, make, given)


def given(model: Any) -> dict[str, Any]:
    """Inputs of three rows, one of them short, for a model that takes tokens or an image."""
    takes = inspect.signature(model.forward).parameters
    config = model.config.get_text_config()
    inputs: dict[str, Any] = {}
    if "input_ids" in takes:
        vocabulary = min(getattr(config, "vocab_size", 99) or 99, 99)
        inputs["input_ids"] = torch.randint(5, vocabulary, (3, 11))
        if "attention_mask" in takes:
            inputs["attention_mask"] = (
                torch.arange(11)[None] < torch.tensor([[11], [8], [7]])
            ).long()  # windows of 5 see a token
        if "decoder_input_ids" in takes:
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :7]
    if "pixel_values" in takes and ("input_ids" not in takes or model.config is not config):
        vision = getattr(model.config, "vision_config", model.config)
        side = getattr(vision, "image_size", 16)
        rows, columns = side if isinstance(side, (list, tuple)) else (side, side)
        inputs["pixel_values"] = torch.randn(3, getattr(vision, "num_channels", 3), rows, columns)
    if not inputs:
        raise ValueError(f"takes {', '.join(list(takes)[:4])}")
    return inputs


# transformers' testers.


class _Absent:
    """Finds packages that tests import and that are not here: they hold whatever is asked of them."""

    names = (
        "datasets",
        "librosa",
        "pandas",
        "requests",
        "timeout_decorator",
        "parameterized",
        "fetch_hub_objects_for_ci",
    )

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in self.names or name.startswith("utils."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> Any:
        if spec.name == "parameterized":
            module = types.ModuleType(spec.name)

            def leave_out(*_: Any, **__: Any) -> Any:
                return lambda f: f

            leave_out.expand = leave_out  # type: ignore[attr-defined]
            module.parameterized = leave_out  # type: ignore[attr-defined]
            module.parameterized_class = leave_out  # type: ignore[attr-defined]
            return module
        module = mock.MagicMock()
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        """There is nothing in it."""


def of_testers(checkout: Path, names: list[str]) -> Iterator[Case | Verdict]:
    """The models of every tester in a checkout of transformers."""
    sys.path.insert(0, str(checkout))
    sys.meta_path.append(_Absent())  # type: ignore[arg-type]
    for path in sorted(checkout.glob("tests/models/*/test_modeling_*.py")):
        name = path.parent.name
        if names and name not in names:
            continue
        try:
            module = importlib.import_module(".".join(path.relative_to(checkout).with_suffix("").parts))
        except Exception as error:  # a package that is not here
            yield Verdict(name, "unmade", f"{type(error).__name__}: {error}"[:200])
            continue
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and getattr(cls, "all_model_classes", ()):
                yield from _of_tester(name, cls)


def _of_tester(name: str, cls: Any) -> Iterator[Case | Verdict]:
    if not any(b.__name__ == "ModelTesterMixin" for b in cls.__mro__):
        return
    try:
        test = cls.__new__(cls)
        unittest.TestCase.__init__(test, next(m for m in dir(cls) if m.startswith("test")))
        test.setUp()
    except Exception as error:
        yield Verdict(name, "unmade", f"{type(error).__name__}: {error}"[:200])
        return
    for model in cls.all_model_classes:

        def make(how: str | None, model: Any = model) -> Any:
            seed(0)
            config, _ = test.model_tester.prepare_config_and_inputs_for_common()
            seed(1)
            return model._from_config(copy.deepcopy(config), attn_implementation=how)

        def inputs(made: Any, model: Any = model) -> dict[str, Any]:
            seed(0)
            _, inputs = test.model_tester.prepare_config_and_inputs_for_common()
            inputs = dict(test._prepare_for_class(inputs, model))
            for key, value in inputs.items():  # a first query sees a key: eager gives one that sees none their mean
                if key.endswith("attention_mask") and isinstance(value, torch.Tensor) and value.dim() == 2:
                    inputs[key] = value.clone()
                    inputs[key][:, 0] = 1
            return inputs

        yield Case(f"{name}: {model.__name__}", make, inputs)


def main() -> int:
    """Judges all, prints what is not right and how many are."""
    parser = arguments(__doc__)
    parser.add_argument("--testers", type=Path, help="a checkout of transformers' repository")
    parser.add_argument("--dtype", default="float32", choices=NEAR)
    parser.add_argument("--json", type=Path)
    args, chosen = begin(parser)
    cases = of_testers(args.testers, args.names) if args.testers else of_configurations(args.names)
    found, start = [], time.perf_counter()
    for case in itertools.islice(cases, chosen.start, None, chosen.step):
        verdict = case if isinstance(case, Verdict) else judge(case, args.dtype)
        found.append(verdict)
        if verdict.kind != "right":
            print(f"{verdict.kind:8} {verdict.name}: {verdict.why}", flush=True)
    count = {kind: sum(v.kind == kind for v in found) for kind in ("right", "refused", "unmade", "wrong")}
    print(", ".join(f"{n} {kind}" for kind, n in count.items()), f"in {time.perf_counter() - start:.0f} s")
    if args.json:
        args.json.write_text(json.dumps([vars(v) for v in found], indent=1))
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
