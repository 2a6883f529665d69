"""Finds which models take their attention from transformers' interface, and which configurations their modules read.

Other models compute it themselves, whatever ``attn_implementation`` says. They would ignore the kernel, or add a mask
that was made for it to their scores. transformers refuses "sdpa" for most of them, but accepts any registered name.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from graphene import _core

NAME = "graphene"
PAGED = f"paged|{NAME}"  # what generate_batch makes of it

_ATTENTION = re.compile(r"^class (\w*Attention\w*)\((?:torch\.)?(?:nn\.)?Module\):", re.MULTILINE)
_ASKS = re.compile(r"ALL_ATTENTION_FUNCTIONS(?:\.get_interface\(|\.get\(|\[)")
_COMPUTES = re.compile(r"softmax\(|scaled_dot_product_attention\(")
_TABLE = re.compile(r"(\w+)\[(?:self\.)?config\._attn_implementation\]")
_BY_NAME = re.compile(r"_attn_implementation in [(\[]")
_CALL = re.compile(r"attention_interface\(\n(.*?)^ +\)$", re.MULTILINE | re.DOTALL)


_known: dict[type, str | None] = {}


def own_attention(cls: Any) -> str | None:
    """The attention of a class of models that has no attention interface, by the name of its class; None if it has one.

    Read in the modules where the class and its bases are defined.
    """
    if cls not in _known:
        _known[cls] = _own_attention(cls)
    return _known[cls]


def _own_attention(cls: Any) -> str | None:
    if getattr(cls, "_supports_attention_backend", False):
        return None  # transformers' word; what such models compute themselves beside it has masks of its own
    for base in cls.__mro__[: cls.__mro__.index(PreTrainedModel)]:
        if base.__module__.startswith("transformers.") and ".models." not in base.__module__:
            continue  # mixins
        try:
            text = inspect.getsource(sys.modules[base.__module__])
        except (OSError, TypeError, KeyError):  # typed in, not read from a file
            continue
        names = _ATTENTION.findall(text)
        if names and not _ASKS.search(text):
            return str(names[0])
        if getattr(cls, "_supports_sdpa", False):
            continue  # the same, if others in the module ask
        for name in names:
            found = re.search(rf"^class {name}\(.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
            part = found.group() if found else ""
            if _COMPUTES.search(part) and not _ASKS.search(part):
                return str(name)
    return None


def why_not(cls: Any) -> str | None:
    """Why models of a class cannot take Graphene's attention, in words; None if they can."""
    own = own_attention(cls)
    return _no_place(cls) if own is None else f"{own} asks for no attention function"


@functools.cache
def _no_place(cls: type) -> str | None:
    """The code in the file of a class of models that knows attentions by names of its own."""
    module = sys.modules[cls.__module__]
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):  # typed in, not read from a file
        return None
    bodies = {name: body for name, body in re.findall(r"^class (\w+)(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)}
    for name in _made_of(cls.__name__, bodies):
        for table in _TABLE.findall(bodies[name]):
            known = vars(module).get(table)
            if isinstance(known, dict) and NAME not in known:
                return f"{name} takes its attention from {table}, which has {', '.join(known)}"
        if _BY_NAME.search(bodies[name]):
            for call in _CALL.findall(bodies[name]):
                told = re.findall(r"^ +(\w+)=", call, re.MULTILINE)
                other = [t for t in told if t not in _taken()]
                if other:
                    return f"{name} tells attentions that it does not know by name what they see by {', '.join(other)}"
    return None


def _made_of(name: str, bodies: dict[str, str]) -> list[str]:
    """The classes that a class mentions, and those that they mention."""
    found, rest = [], [name]
    while rest:
        name = rest.pop()
        if name in bodies and name not in found:
            found.append(name)
            rest += [n for n in set(re.findall(r"\w+", bodies[name])) if n in bodies]
    return found


@functools.cache
def _taken() -> frozenset[str]:
    """The keywords that attention takes."""
    from graphene.integrations.transformers._attention import attention

    return frozenset(inspect.signature(attention).parameters) | {"position_ids", "output_attentions", "use_cache"}


def refuse_others() -> None:
    """Makes transformers refuse this attention for a model that cannot use it.

    The choice also reaches the models inside of it that read a copy of its configuration, such as T5's stacks.
    """
    original = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(original)
    def get_correct_attn_implementation(self: Any, requested_attention: Any, *args: Any, **kwargs: Any) -> Any:
        if requested_attention in (NAME, PAGED):
            check(self)
        return original(self, requested_attention, *args, **kwargs)

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    set_original = PreTrainedModel.set_attn_implementation

    @functools.wraps(set_original)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> Any:
        if attn_implementation in (NAME, PAGED):  # before anything is set
            for part in self.modules():
                if isinstance(part, PreTrainedModel):
                    _check_class(part)
            check(self)
        result = set_original(self, attn_implementation, *args, **kwargs)
        now = self.config._attn_implementation
        for part in self.modules():
            if not isinstance(part, PreTrainedModel) or type(part.config) is not type(self.config):
                continue
            if {NAME, PAGED} & {now, part.config._attn_implementation}:
                part.config._attn_implementation_internal = now
        return result

    PreTrainedModel.set_attn_implementation = set_attn_implementation


def check(model: Any) -> None:
    """Raises LaunchError OP_ARGUMENT for a model whose attention would not be Graphene's if it were asked for."""
    _check_class(model)
    _check_reach(model)


def _check_class(model: Any) -> None:
    why = why_not(type(model))
    if why is not None:
        _core.fail(
            "OP_ARGUMENT", f'{type(model).__name__} takes no attn_implementation="{NAME}"', [f"because:  {why}"],
            'load it with attn_implementation="eager"; graphene.integrations.transformers.accelerate(model) then '
            "leaves its attention and takes the rest",
        )  # fmt: skip


def _check_reach(model: Any) -> None:
    known = {id(c) for m in model.modules() if isinstance(m, PreTrainedModel) for c in _with_parts(m.config)}
    for name, module in model.named_modules():
        config = module.__dict__.get("config")
        if hasattr(module, "is_causal") and isinstance(config, PreTrainedConfig) and id(config) not in known:
            _core.fail(
                "OP_ARGUMENT", f"{type(model).__name__}'s attn_implementation does not reach all of its modules",
                [f"module:  {name}, whose configuration is another object than its model's"],
                "graphene.integrations.transformers.accelerate(model) sets each module's own",
            )  # fmt: skip


def _with_parts(config: Any) -> Iterator[Any]:
    """A configuration and those in it."""
    yield config
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield from _with_parts(part)


@dataclass
class Scope:
    """A model's modules that belong to no model inside it. ``outermost``: the name of the one around it, or its own."""

    model: Any
    outermost: str
    inside: str | None  # the name of a model around it that has no attention interface
    modules: list[Any] = field(default_factory=list)

    @property
    def configs(self) -> dict[int, Any]:
        """What its modules read, by id."""
        found = (m.__dict__.get("config") for m in self.modules)
        return {id(c): c for c in found if isinstance(c, PreTrainedConfig)}

    @property
    def attentions(self) -> int:
        """How many attention modules it has."""
        own = own_attention(type(self.model))
        return sum(hasattr(m, "is_causal") if own is None else type(m).__name__ == own for m in self.modules)


def scopes(model: Any) -> list[Scope]:
    """The scopes of every transformers model inside, and of the model itself."""
    found: list[Scope] = []
    seen: set[int] = set()

    def walk(module: Any, around: Scope | None) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if isinstance(module, PreTrainedModel):
            name = type(module).__name__
            inside = None
            if around is not None:
                inside = around.inside or (type(around.model).__name__ if why_not(type(around.model)) else None)
            around = Scope(module, name if around is None else around.outermost, inside)
            found.append(around)
        if around is not None:
            around.modules.append(module)
        for child in module.children():
            walk(child, around)

    walk(model, None)
    return found
