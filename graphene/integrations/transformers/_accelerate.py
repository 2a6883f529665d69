"""accelerate(model) and restore(model)."""

from __future__ import annotations

import copyreg
import weakref
from collections import Counter
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin

from graphene import _core
from graphene.integrations.transformers import (
    _generate,
    _heads,
    _interface,
    _left,
    _loss,
    _measure,
    _packing,
    _padding,
    _passes,
)  # fmt: skip
from graphene.integrations.transformers._fused import BORDERS, HALF, LINEAR, Helpers, Joined, Rules, join
from graphene.integrations.transformers._modules import activation_of, kind_of, norm_of
from graphene.integrations.transformers._rewrite import Site, rewrite
from graphene.nn._hooks import globally_hooked

RECORD = "_graphene_accelerated"
NAME = _interface.NAME
ON_A_CPU = "on {}, PyTorch's operators are faster"
WORDS = {"torch": "left", "graphene": "one kernel", "epilogue": "in PyTorch's product", "joined": "one product"}
WORDS["two"] = "the activation by a kernel"


@dataclass
class Row:
    """A line of the table."""

    count: int
    where: str
    now: str
    why: str


@dataclass(eq=False)
class SetConfig:
    """A configuration set to Graphene's attention, its former setting, and how many records need the change."""

    config: Any
    before: Any
    records: int = 1

    def release(self) -> None:
        """One record fewer."""
        self.records -= 1
        if not self.records and self.config._attn_implementation == NAME:
            self.config._attn_implementation_internal = self.before


@dataclass
class Record:
    """The changes of ``accelerate`` to a model: ``rows`` is its table, ``attention`` the former configurations."""

    rules: Rules
    rows: list[Row] = field(default_factory=list)
    modules: list[tuple[Any, type]] = field(default_factory=list)
    attention: list[SetConfig] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    decoding: list[_generate.Decoding] = field(default_factory=list)
    passes: list[_passes.Passes] = field(default_factory=list)
    measured: list[Any] = field(default_factory=list)  # modules whose attention was measured
    model: Any = None  # a weak reference

    def __str__(self) -> str:
        cells = [("", "module", "now", "why"), *((str(r.count), r.where, r.now, r.why) for r in self.rows)]
        widths = [max(len(c[i]) for c in cells) for i in range(3)]
        lines = [f"{c[0]:>{widths[0]}}  {c[1]:<{widths[1]}}  {c[2]:<{widths[2]}}  {c[3]}".rstrip() for c in cells]
        return "\n".join(lines)

    def left_to_pytorch(self, **inputs: Any) -> str:
        """How much of a forward pass with these inputs is Graphene's and how much PyTorch's, by time on the device."""
        model = self.model()
        return "" if model is None else _left.in_words(_left.measured(model, inputs))

    def undo(self) -> None:
        """Restores everything to its former state."""
        for module, original in reversed(self.modules):
            _give_back(module, original)
        for joined in self.joined:
            joined.part()
        for held in self.attention:
            held.release()
        for module in self.measured:
            _heads.forget(module)
        for decoding in self.decoding:
            decoding.release()
        for passes in self.passes:
            passes.release()

    def __reduce__(self) -> Any:
        # A copy of the model is not accelerated: instead of a record it gets None, which making it (on a list of the
        # copy's configurations, each of which is set back for that) returns. Files need no graphene to be read.
        return list.clear, ([_SetBack(h) for h in self.attention],)


class _SetBack:
    """What becomes, in a copy, ``setattr`` of the configuration's copy."""

    def __init__(self, held: SetConfig) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return setattr, (self.held.config, "_attn_implementation_internal", self.held.before)


def accelerate(
    model: Any, *, only_faster: bool = True, pack: bool = True, record: bool = True, show: bool = True
) -> Any:
    """Replaces the parts of a model that Graphene computes faster, in place, and returns the model.

    model: a transformers model, or a module that contains some. Attention becomes "graphene". Norms, sums before norms,
    activations after linear layers and gated products become one kernel each if that is faster. This is measured in the
    call, if the model is on a GPU in fp16 or bf16. Padded batches are packed inside encoders (``pack``), whose outputs
    at padded positions are then zero, unless the model reads them. Forward passes without gradients are recorded as
    CUDA graphs (``record``) from the second of a form on, where a recorded pass gives the same in less time; a form is
    shapes, dtypes and how much of a batch is padding. Parameters and the keys of the state dict stay.
    ``show`` prints a table of what was replaced and what was left, and why; the table stays with the model as
    ``accelerated(model)``.
    ``only_faster=False`` takes Graphene's operators everywhere, on CPU tensors too, for tests. ``restore`` undoes the
    call.

    A part that ``accelerate`` replaced for another model, around this model or inside of it, belongs to that model.

    Raises LaunchError OP_ARGUMENT if ``model`` is not a module; CUDA errors while measuring.
    """
    if not isinstance(model, torch.nn.Module):
        _core.fail("OP_ARGUMENT", "accelerate takes a torch.nn.Module", [f"got:  {type(model).__name__}"],
                   "pass a model of transformers, or a module that contains some")  # fmt: skip
    restore(model)
    made = Record(Rules(everything=not only_faster), model=weakref.ref(model))
    object.__setattr__(model, RECORD, made)
    try:
        shown = _shown(model) if pack else {}
        _attentions(model, made)
        _Accelerator(made, pack, shown).run(model)
        if record:
            _passes_of(model, made)
    except BaseException:
        restore(model)
        raise
    if show:
        _say_what_is_left(model, made)
        print(made)
    return model


def _row_by_row(module: Any) -> bool:
    """Whether a module computes each row by itself: a norm or an activation."""
    return norm_of(module) is not None or activation_of(module) is not None


def _shown(model: Any) -> dict[int, str | None]:
    """Why packing an encoder would show, by its id. Models are tried as they are, before their parts change."""
    return {id(m): _padding.why_not(model, m) for m in model.modules() if _packing.why_not(m, _row_by_row) is None}


def _say_what_is_left(model: Any, record: Record) -> None:
    """Adds a row about a forward pass of usual inputs, where such a pass does nothing else and can be measured."""
    device = next((p.device for p in model.parameters()), None)
    if record.rules.everything or device is None or not _measure.possible(device):
        return
    if any(m.training or _generate.watched(m) for m in model.modules()) or globally_hooked():
        return
    try:
        given = _left.usual_inputs(model)
        if given is not None:
            inputs, size = given
            row = Row(1, f"a forward pass of {size}", "by time", record.left_to_pytorch(**inputs))
            record.rows.append(row)
    except Exception as error:  # a model may want any inputs, or more memory than there is
        torch.cuda.empty_cache()
        record.rows.append(Row(1, "a forward pass", "not measured", type(error).__name__))


def accelerated(model: Any) -> Record | None:
    """The changes of ``accelerate`` to the model; their ``str`` is the table. None without any, or after `restore`."""
    record = getattr(model, "__dict__", {}).get(RECORD)
    return record if isinstance(record, Record) else None


def restore(model: Any) -> Any:
    """Undoes ``accelerate`` and returns the model. Its weights keep their present values."""
    record = accelerated(model)
    if record is None:
        if isinstance(model, torch.nn.Module):
            _undo_for_the_gone(model)
        return model
    record.undo()
    object.__delattr__(model, RECORD)
    return model


def _undo_for_the_gone(model: Any) -> None:
    """Undoes the changes for models that contained this one and no longer exist."""
    records = {id(r): r for m in model.modules() if (r := _record_of(m)) is not None}
    for record in records.values():
        if record.model() is None:
            record.undo()


def _attentions(model: Any, record: Record) -> None:
    """Sets the attention in each configuration that a module of a model with an attention interface reads."""
    scopes = _interface.scopes(model)
    without = {i for s in scopes if _interface.why_not(type(s.model)) for i in s.configs}
    others = {id(r): r for m in model.modules() if (r := _record_of(m)) is not None and r is not record}
    held = {id(h.config): h for r in others.values() for h in r.attention}
    rows: dict[tuple[str, str, str], int] = {}
    for scope in scopes:
        where, own = scope.outermost, _interface.why_not(type(scope.model))
        before = str(scope.model.config._attn_implementation)
        device = next((p.device for p in scope.model.parameters()), None)
        known = [h.before for i in scope.configs if (h := held.get(i)) is not None]
        now, said = _heads.OURS, f"was {known[0] if known else before!r}"
        if own is not None:
            where, now = scope.inside or type(scope.model).__name__, "left"
            said = f"it has no attention interface: {own}"
        elif without & set(scope.configs):
            where, now, said = type(scope.model).__name__, "left", "one without an attention interface reads the same"
        elif before != NAME and not record.rules.everything and not (device and _measure.possible(device)):
            now, said = "left", ON_A_CPU.format("cpu" if device is None else device.type)
        else:
            for i, config in scope.configs.items():
                if i in held:
                    if held[i] not in record.attention:
                        held[i].records += 1
                        record.attention.append(held[i])
                elif config._attn_implementation != NAME:
                    held[i] = SetConfig(config, config._attn_implementation)
                    config._attn_implementation_internal = NAME
                    record.attention.append(held[i])
            ours = any(i in held for i in scope.configs)  # what was set to Graphene's by hand stays that
            if ours and not record.rules.everything and device is not None and _measure.possible(device):
                modules = [m for m in scope.modules if hasattr(m, "is_causal")]
                told, now, times = _heads.choose(modules, scope.model.dtype, device)
                record.measured += told
                said += f"; {times}" if times else ""
        rows[where, now, said] = rows.get((where, now, said), 0) + scope.attentions
    for (where, now, said), count in rows.items():
        if count or now == "left" or len(rows) == 1:
            record.rows.append(Row(count, f"{where}: attention", now, said))


def _passes_of(model: Any, record: Record) -> None:
    """Records forward passes of the outermost models, or says why not."""
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, PreTrainedModel) or id(module) in inside:
            continue
        inside |= {id(m) for m in module.modules()}
        if any(_record_of(m) not in (None, record) for m in module.modules()):
            continue  # parts of it belong to another call, which may have recorded its passes
        why = _passes.unfit(module)
        said = "from the second of a form on, without gradients, where that is faster"
        row = Row(1, f"{type(module).__name__}: forward passes", "left" if why else "recorded", why or said)
        record.rows.append(row)
        if why is None:
            _record_passes(module, record, row)


def _record_passes(module: Any, record: Record, row: Row) -> None:
    def refused(why: str) -> None:
        row.now, row.why = "left", why

    original = type(module)
    passes = _passes.Passes(module, _passes.names_of(original.forward), refused)
    record.passes.append(passes)
    record.modules.append((module, original))
    module.__class__ = _subclass(original, _passes.methods(original, passes) | {"_graphene_record": record})


def _record_of(module: Any) -> Record | None:
    """The record whose class this module has."""
    record: Record | None = getattr(type(module), "_graphene_record", None)
    return record


class _Accelerator:
    def __init__(self, record: Record, pack: bool, shown: dict[int, str | None]) -> None:
        self.record, self.rules, self.pack, self.shown = record, record.rules, pack, shown
        self.norms: dict[type, str] = {}
        self.helpers = Helpers(self.rules, self.norms, activation_of)
        self.classes: dict[Any, Any] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.times: dict[tuple[Any, ...], Any] = {}
        self.loaded: set[tuple[int, Any]] = set()

    def run(self, model: Any) -> None:
        everything = []
        for module in model.modules():
            if _record_of(module) in (None, self.record):
                everything.append(module)
                continue
            self.note(type(module).__name__, "left", "accelerate replaced it already, for a model around it or in it")
            if (kind := norm_of(module)) is not None:
                self.norms[type(module)] = kind
        inside = {id(n) for m in everything for n in self.fused_norms(m)}
        for module in everything:
            if "forward" in module.__dict__:
                self.note(type(module).__name__, "left", "something else replaced its forward")
                continue
            if norm_of(module) is not None:
                self.norm(module, id(module) in inside)
        for module in everything:
            if "forward" not in module.__dict__ and not isinstance(module, PreTrainedModel):
                self.methods(module)
        inner: set[int] = set()  # modules inside of an encoder are not encoders
        for module in everything:
            if "forward" in module.__dict__ or isinstance(module, PreTrainedModel) or id(module) in inner:
                continue
            if self.encoder(module):
                inner |= {id(m) for m in module.modules()}
        for (where, now, why), count in self.counts.items():
            self.record.rows.append(Row(count, where, now, why))
        for module in everything:
            if isinstance(module, PreTrainedModel) and isinstance(module, GenerationMixin):
                self.loss(module)
                self.generation(module)

    def note(self, where: str, now: str, why: str) -> None:
        self.counts[where, now, why] += 1

    def replace(self, module: Any, key: Any, methods: dict[str, Any]) -> None:
        """Gives the module a class with other methods and the same name."""
        original = type(module)
        if (original, key) not in self.classes:
            self.classes[original, key] = _subclass(original, methods | {"_graphene_record": self.record})
        self.record.modules.append((module, original))
        module.__class__ = self.classes[original, key]

    # Norms.

    def fused_norms(self, module: Any) -> list[Any]:
        """The norms that this module's methods call with a sum."""
        found = self.rewrites(module)
        return [getattr(module, s.modules[0]) for r in found.values() for s in r.sites if s.kind == "add_norm"]

    def norm(self, module: Any, with_sum: bool) -> None:
        kind, original = norm_of(module), type(module)
        assert kind is not None
        helpers = self.helpers

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = helpers.norm(self, args[0]) if len(args) == 1 and not kwargs else None
            return original.forward(self, *args, **kwargs) if done is None else done

        self.replace(module, "norm", {"forward": forward})
        self.norms[type(module)] = kind
        if not with_sum:
            now, why = self.decide(("norm", module.weight.shape[0]), module.weight, kind)
            self.note(f"{original.__name__}({module.weight.shape[0]})", now, why)

    # Methods.

    def rewrites(self, module: Any) -> dict[str, Any]:
        """The methods of a module that have patterns, rewritten."""
        children = {n: kind_of(m) for n, m in module.named_children()}
        kinds = {n: k for n, k in children.items() if k is not None}
        if isinstance(module, PreTrainedModel):
            return {}
        cls = next(c for c in type(module).__mro__ if "_graphene_original" not in vars(c))
        key = ("rewrites", cls, tuple(sorted(kinds.items())))
        if key not in self.classes:
            self.classes[key] = {n: r for n, f in _methods(cls).items() if (r := rewrite(f, kinds)) is not None}
        return dict(self.classes[key])

    def methods(self, module: Any) -> None:
        found = self.rewrites(module)
        if not found:
            return
        where = type(module).__name__
        key = tuple((n, id(r)) for n, r in found.items())
        original, helpers = type(module), self.helpers

        def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
            out = original._apply(self, *args, **kwargs)
            helpers.moved(self)
            return out

        self.replace(module, key, {n: r.make(helpers) for n, r in found.items()} | {"_apply": moved})
        for r in found.values():
            for site in r.sites:
                text, key, weight, norm = self.describe(module, site)
                now, why = self.decide(key, weight, norm)
                if site.kind == "linears" and now != "left":
                    now, why = self.join(module, site.modules, key, now, why)
                self.note(f"{where}: {text}", now, why)
                if site.kind == "gated":
                    self.products(where, module, (site.modules[0], site.modules[2]))

    def products(self, where: str, module: Any, names: tuple[str, ...]) -> None:
        """Joins the products of a gate and of what it gates, if one product is faster."""
        layers = [getattr(module, n) for n in names]
        if any(type(m) is not torch.nn.Linear for m in layers):
            return
        key = ("linears", _extents(layers[0])[0], tuple(_extents(m)[1] for m in layers))
        now, why = self.decide(key, layers[0].weight, "")
        if now != "left":
            now, why = self.join(module, names, key, now, why)
        self.note(f"{where}: {', '.join(f'{n}(x)' for n in names)}", now, why)

    def join(self, module: Any, names: tuple[str, ...], key: tuple[Any, ...], now: str, why: str) -> tuple[str, str]:
        """Joins the weights of linear layers that read the same tensor."""
        layers = tuple(getattr(module, n) for n in names)
        held = {id(m) for j in self.helpers.joined.values() for m in j.modules}
        if any(id(m) in held for m in layers):  # a weight lies next to one other
            return "left", "one of them is joined already"
        joined = join(layers, key)
        if joined is None:
            return "left", "their weights cannot lie next to each other"
        self.record.joined.append(joined)
        self.helpers.joined[id(layers[0])] = joined
        return now, why

    def describe(self, module: Any, site: Site) -> tuple[str, Any, Any, str]:
        """A description, the measured part, a weight whose dtype and device it has, and the norm."""
        parts = [getattr(module, n) for n in site.modules]
        if site.kind == "add_norm":
            (norm,) = parts
            return f"{site.modules[0]}(a + b)", ("add_norm", norm.weight.shape[0]), norm.weight, self.norms[type(norm)]
        if site.kind == "linear_act":
            linear, act = parts
            rows, columns = _extents(linear)
            name = activation_of(act)
            return f"{site.modules[1]}({site.modules[0]}(x))", ("linear_act", rows, columns, name), linear.weight, ""
        if site.kind == "linears":
            text = ", ".join(f"{n}(x)" for n in site.modules)
            widths = tuple(_extents(m)[1] for m in parts)
            return text, ("linears", _extents(parts[0])[0], widths), parts[0].weight, ""
        if site.kind == "rotary":
            assert site.turn is not None
            weight = parts[0].weight if parts else next(module.parameters())
            width = parts[0].weight.shape[0] if parts else int(getattr(module, "head_dim", 64))
            given = ", ".join(f"{n}(x)" for n in site.modules) or "q, k"
            return f"{site.function}({given})", ("rotary", width, site.turn.pairs, bool(parts)), weight, ""
        if site.kind == "act_mul":
            weight = next(module.parameters())
            return f"{site.modules[0]}(a) * b", ("act_mul", activation_of(parts[0])), weight, ""
        gate, act, up = parts
        text = f"{site.modules[1]}({site.modules[0]}(x)) * {site.modules[2]}(x)"
        return text, ("gated", _extents(up)[1], activation_of(act)), gate.weight, ""

    def decide(self, key: tuple[Any, ...], weight: Any, norm: str) -> tuple[str, str]:
        """Measures the ways of a part once. Returns the way that is taken, and why, in words."""
        if self.rules.everything:
            return "graphene", "only_faster=False"
        if not _measure.possible(weight.device):
            return "left", ON_A_CPU.format(weight.device.type)
        if weight.dtype not in HALF:
            return "left", f"{weight.dtype} is not half precision"
        if (key, norm) not in self.times:
            self.times[key, norm] = times = _measure.choose(key, weight.dtype, weight.device, norm)
            self.rules.measured[key] = tuple(_measure.best(times.get(rows, {})) for rows in _measure.ROWS)
        now = _in_words(self.rules.measured[key])
        why = "; ".join(
            f"{rows} rows: " + ", ".join(f"{n} {us:.1f}" for n, us in found.items()) + " us"
            for rows, found in self.times[key, norm].items()
        )
        return now, why or "there is no memory to measure it"

    # Encoders.

    def encoder(self, module: Any) -> bool:
        """Packs padded batches inside an encoder, or says why not; False for a module that is not an encoder."""
        why = _packing.why_not(module, _row_by_row)
        if why == "":
            return False
        original, always, loaded = type(module), self.rules.everything, self.loaded
        where = f"{original.__name__}: padded batches"
        if why is None:
            why = self.shown[id(module)] if self.pack else "pack=False"
        if why is not None:
            self.note(where, "left", why)
            return True

        def forward(self: Any, hidden_states: Any, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
            packed = _packing.pack(self, always, hidden_states, attention_mask, args, kwargs)
            if packed is None:
                return original.forward(self, hidden_states, attention_mask, *args, **kwargs)
            if hidden_states.is_cuda and not self.training and (id(self), hidden_states.dtype) not in loaded:
                loaded.add((id(self), hidden_states.dtype))
                with torch.no_grad():  # loads what the capture of a CUDA graph, where nothing is packed, will launch
                    original.forward(self, hidden_states, attention_mask, *args, **kwargs)
            taken = _packing.take(packed, hidden_states)
            out = original.forward(self, taken, None, *args, **kwargs, **_packing.arguments(packed))
            if isinstance(out, torch.Tensor):
                return _packing.put_back(packed, out, hidden_states.shape)
            out["last_hidden_state"] = _packing.put_back(packed, out[0], hidden_states.shape)
            return out

        self.replace(module, "packing", {"forward": forward})
        device = next(module.parameters()).device
        if not always and not _measure.possible(device):
            self.note(where, "left", ON_A_CPU.format(device.type))
            return True
        part = f"from {_packing.SAVED_ROWS} rows and {_packing.SAVED_PART:.0%} of padding on"
        self.note(where, "packed inside", "only_faster=False" if always else part)
        return True

    # Heads of language models.

    def loss(self, model: Any) -> None:
        """Takes the loss of logits that are not converted to fp32 first."""
        if not _loss.computed(model):
            return
        self.replace(model, "loss", _loss.methods(self.rules.everything))
        device, dtype = next((p.device for p in model.parameters()), torch.device("cpu")), model.dtype
        where = f"{type(model).__name__}: the loss of labels"
        if self.rules.everything or (_measure.possible(device) and dtype in HALF):
            self.record.rows.append(Row(1, where, "one kernel", "the logits are read as they are"))

    def generation(self, model: Any) -> None:
        """Records the decoding steps of ``generate()``, or says why not."""
        why, said = _generate.unfit(model), f"from {_generate.LEAST} new tokens on, over a static cache"
        now = "steps recorded" if why is None else "left"
        row = Row(1, f"{type(model).__name__}: generate()", now, said if why is None else why)
        self.record.rows.append(row)
        if not _generate.on_one_gpu(model):
            return

        def refused(why: str) -> None:
            row.now, row.why = "left", why

        decoding = _generate.Decoding(refused)
        self.record.decoding.append(decoding)
        weakref.finalize(model, decoding.release)
        self.replace(model, ("generate", id(decoding)), _generate.methods(type(model), decoding))


def _in_words(ways: tuple[str, ...]) -> str:
    """The ways for few, more and many rows, in words."""
    said = ""
    for way, following, border in zip(ways, ways[1:], BORDERS, strict=False):
        if way != following:
            said += f"{WORDS[way]} below {border} rows, then "
    return said + WORDS[ways[-1]]


def _extents(linear: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    rows, columns = linear.weight.shape
    return (columns, rows) if type(linear) is LINEAR[0] else (rows, columns)


def _methods(cls: type) -> dict[str, FunctionType]:
    """The methods of a class and its bases, up to PyTorch's and transformers' general ones."""
    found: dict[str, FunctionType] = {}
    for c in cls.__mro__:
        if c.__module__.startswith("torch.") or c.__module__ == "transformers.modeling_layers" or c is object:
            continue
        for name, f in vars(c).items():
            if isinstance(f, FunctionType) and not name.startswith("__"):
                found.setdefault(name, f)
    return found


def _give_back(module: Any, original: type) -> None:
    """Gives a module its former class, and so a class that something, such as a parametrization, derived since."""
    cls = type(module)
    if "_graphene_original" in vars(cls):
        module.__class__ = original
        return
    bases = tuple(original if "_graphene_original" in vars(b) else b for b in cls.__bases__)
    if bases != cls.__bases__:
        cls.__bases__ = bases


def _subclass(original: Any, methods: dict[str, Any]) -> Any:
    """A class of the same name, whose copies and pickles have the original class."""
    first = getattr(original, "_graphene_original", original)

    def reduce(self: Any, protocol: Any) -> Any:
        state = object.__reduce_ex__(self, protocol)[2:]
        return (copyreg._reconstructor, (first, object, None), *state)  # type: ignore[attr-defined]

    names = {"__module__": first.__module__, "__qualname__": first.__qualname__, "_graphene_original": first}
    return type(first.__name__, (original,), names | methods | {"__reduce_ex__": reduce})
