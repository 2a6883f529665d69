"""An operator is a schema and a function from a configuration to a recipe; everything else follows from them.

``define`` registers with PyTorch, for an operator ``name``:

- ``graphene::name_forward``: the operator itself. Its CUDA kernel is C++ behind PyTorch's stable C interface; compiled
  graphs without gradients hold it.
- ``graphene::name``: the same with a gradient. Autograd costs a call some microseconds even where none is wanted, which
  is why it is an operator of its own.
- ``graphene::name_reference``: PyTorch's operators, for what no kernel takes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphene import _core
from graphene.errors import LaunchError
from graphene.ops.core.torch import NUMBERS, fail, torch

SPACE = "graphene"
# A definition's `cost` up to which CPU tensors run on the simulator: some quarter of a second.
SIMULATED = 1 << 18

_library = torch.library.Library(SPACE, "FRAGMENT")


class CpuWarning(UserWarning):
    """An operator was called on CPU tensors, which no GPU kernel runs on."""


class Arg(NamedTuple):
    """A tensor argument as a configuration sees it: sizes in elements, ``align`` (up to 128) in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "float16"
    device: str  # "cuda:0"
    align: int

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}.get(self.dtype, 1)


@dataclass(frozen=True)
class Definition:
    """What an operator is.

    ``schema``: PyTorch's, without the name. ``configure``: the arguments, tensors as ``Arg``, -> ``_core.Recipe``.
    ``results``: the arguments, tensors as such (perhaps fake) -> (shape, dtype) of each result; raises for arguments
    that do not fit. ``reference``: the operator in PyTorch's own. ``cost``: of a call on CPU tensors, its multiply-adds
    or elements or, if that is more, about how many microseconds simulating its kernels takes, whole tiles and blocks.
    ``save``, ``backward``: as ``torch.library.register_autograd`` takes them. ``choices``: what a string may be.
    ``exact``: of a tensor, which extents a kernel is built for: how many of its last ones, or the argument that names
    the dimension. ``said``: its name in messages. ``part_of``: the function of graphene.ops whose gradient it computes.
    """

    name: str
    schema: str
    configure: Callable[..., Any]
    results: Callable[..., Sequence[tuple[Sequence[int], Any]]]
    reference: Callable[..., Any]
    cost: Callable[..., int]
    save: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None
    choices: dict[str, Sequence[str]] = field(default_factory=dict)
    exact: dict[str, int | str] = field(default_factory=dict)
    said: str = ""
    part_of: str = ""

    @functools.cached_property
    def params(self) -> list[tuple[str, str, list[str], int | str]]:
        """Name, type, choices and exact extents of every argument, in order."""
        inside = self.schema[1 : self.schema.index(") ->")]
        out = []
        for part in filter(lambda p: p.strip() != "*", inside.split(", ")):
            kind, name = part.split("=")[0].split()
            kind = "int[]" if kind.endswith("int[]") else kind
            out.append((name, kind, list(self.choices.get(name, ())), self.exact.get(name, 0)))
        return out

    @property
    def returned(self) -> int:
        """Number of results."""
        return self.schema.split("->")[1].count("Tensor")


class Defined:
    """An operator that is registered: call it with all arguments by position."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        d = definition
        self.core = _core.Operator(d.said or d.name, d.params, d.returned, self._configure)
        self._tensors = [i for i, p in enumerate(definition.params) if p[1].startswith("Tensor")]
        self._writes = any("!" in p[1] for p in definition.params)
        self._returns = definition.returned > 0
        self._register()
        namespace = getattr(torch.ops, SPACE)
        self.forward = getattr(namespace, definition.name + "_forward").default
        self.differentiable = getattr(namespace, definition.name).default

    def _configure(self, *args: Any) -> Any:
        """Called by the core for the first call of a configuration."""
        d = self.definition
        given = [Arg(*a) if i in self._tensors and a is not None else a for i, a in enumerate(args)]
        try:
            d.results(*(_stand_in(a, p[1]) for a, p in zip(given, d.params, strict=True)))
        except LaunchError as e:
            if e.code != "OP_DTYPE":
                raise
            return _core.Recipe.torch(str(e))  # under autocast they are converted; else that way ends in this error
        if (reason := unsupported_device(given)) is not None:
            return _core.Recipe.torch(reason)
        with _core.Stage("choose"):
            return d.configure(*given)

    def _register(self) -> None:
        d = self.definition
        reference = d.name + "_reference"
        _library.define(reference + d.schema)
        _library.impl(reference, self._reference, "CompositeExplicitAutograd")
        tags = (torch.Tag.pt2_compliant_tag,)
        torch.library.register_fake(f"{SPACE}::{reference}", self._fake, lib=_library)
        for name in (d.name + "_forward", d.name):
            _library.define(name + d.schema, tags=tags)
            _library.impl(name, self._on_cpu, "CPU")
            torch.library.register_fake(f"{SPACE}::{name}", self._fake, lib=_library)
            missing = self.core.register(SPACE, name, reference, "CUDA")
            if missing:  # an older PyTorch: the same kernels through Python
                _library.impl(name, self._on_cuda, "CUDA")
        if not self._writes:
            torch.library.register_autograd(f"{SPACE}::{d.name}", self._backward, setup_context=d.save, lib=_library)

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        d = self.definition
        given = next((g for g in gradients if g is not None), None)
        if given is None:  # nothing that is differentiated depends on the results
            return (None,) * len(d.params)
        if d.backward is None:
            fail("OP_ARGUMENT", f"{d.said or d.name}: there is no gradient through this operator",
                 [f"why: it is a part of {self.public}, for calls that are not differentiated"],
                 f"differentiate graphene.ops.{d.part_of or d.name}, or what PyTorch has of it")  # fmt: skip
        with no_autocast(given):
            return d.backward(ctx, *gradients)

    def __call__(self, *args: Any) -> Any:
        """Through PyTorch's dispatcher: what the direct way does not take."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not self._writes and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return self._function.apply(*args) if transforming() else self.differentiable(*args)
        if not torch.compiler.is_compiling() and _has_tangent(tensors):
            return self._function.apply(*args)  # which says that there is no forward derivative
        return self.forward(*args)

    @functools.cached_property
    def _function(self) -> Any:
        """The operator with its gradient for torch.func, which takes no registered ones."""
        d, forward = self.definition, self.forward

        save = d.save or (lambda ctx, inputs, output: None)
        methods = {"forward": lambda *args: forward(*args), "setup_context": save, "backward": self._backward}
        body = {name: staticmethod(f) for name, f in methods.items()}
        return type("Function", (torch.autograd.Function,), body | {"generate_vmap_rule": True})

    # The implementations.

    def _fake(self, *args: Any, **named: Any) -> Any:
        args = self._in_order(args, named)
        like = next(a for a in args if isinstance(a, torch.Tensor))
        made = [like.new_empty(shape, dtype=dtype) for shape, dtype in self.definition.results(*args)]
        return _packed(made)

    def _reference(self, *args: Any, **named: Any) -> Any:
        args = self._in_order(args, named)
        self.definition.results(*args)  # raises what a kernel would
        with torch._C._AutoDispatchBelowAutograd(), no_autocast(next(a for a in args if isinstance(a, torch.Tensor))):
            made = self.definition.reference(*args)
        return _packed([_row_major(t) for t in (made if isinstance(made, tuple) else (made,) if self._returns else ())])

    def _on_cuda(self, *args: Any, **named: Any) -> Any:
        args = self._in_order(args, named)
        plan, args = self._plan(args)
        if plan["outcome"] == "torch":
            return self._reference(*args)
        return self._execute(plan, args)

    def _on_cpu(self, *args: Any, **named: Any) -> Any:
        args = self._in_order(args, named)
        if self.definition.cost(*args) > SIMULATED:
            if self._writes:
                self.core.check(*args)
            say_once(self.public, PYTORCH, TOO_LARGE)
            return self._reference(*args)
        plan, args = self._plan(args)
        if plan["outcome"] == "torch":
            say_once(self.public, PYTORCH, plan["reason"])
            return self._reference(*args)
        say_once(self.public, SIMULATOR)
        return self._execute(plan, args)

    @property
    def public(self) -> str:
        """What a user called: the function, or its gradient."""
        d = self.definition
        return f"the gradient of graphene.ops.{d.part_of}" if d.part_of else f"graphene.ops.{d.said or d.name}"

    def _in_order(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position; PyTorch leaves defaults at the end out."""
        if len(args) == len(self.definition.params):
            return args
        names = [p[0] for p in self.definition.params]
        rest = [named.get(n, self._defaults[n]) for n in names[len(args) :]]
        return (*args, *rest)

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        schema = getattr(getattr(torch.ops, SPACE), self.definition.name).default._schema
        return {a.name: a.default_value for a in schema.arguments}

    def _plan(self, args: tuple[Any, ...]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """What the call does, and its arguments, copied where that is needed."""
        for _ in range(3):
            plan = self.core.plan(*args)
            if plan["outcome"] != "copy":
                return plan, args
            copied = list(args)
            for i in plan["copies"]:
                given = args[self._tensors[i]]
                copy = given.contiguous()
                copied[self._tensors[i]] = copy.clone() if copy is given else copy  # aligned, at least
            args = tuple(copied)
        raise AssertionError(f"{self.definition.name}: no kernel takes what has been copied")

    def _execute(self, plan: dict[str, Any], args: tuple[Any, ...]) -> Any:
        """Runs a plan's kernels: by the simulator on CPU tensors."""
        sources = [args[i] for i in self._tensors]
        like = next(t for t in sources if t is not None)
        made = [torch.empty(shape, dtype=DTYPES[dtype], device=like.device) for dtype, shape in plan["outputs"]]
        sources += made
        for kernel, views in plan["launches"]:
            kernel(*(_view(sources, v) if isinstance(v, tuple) else v for v in views))
        return _packed(made[: plan["returned"]])

    def explain(self, *args: Any) -> str:
        """What a call with these arguments does, in words."""
        d = self.definition
        d.results(*args)
        plan, copied = self._plan(args)
        lines = [f"{d.name}: {_where(self, plan, copied)}"]
        names = [d.params[i][0] for i in self._tensors]
        for i, index in enumerate(self._tensors):
            if copied[index] is not args[index]:
                lines.append(f"  {names[i]} is copied first, row-major")
        names += [f"result {i}" if i < plan.get("returned", 0) else "work space" for i in range(8)]
        for kernel, views in plan.get("launches", ()):
            lines.append(f"  kernel {kernel.name}")
            for v in views:
                if isinstance(v, tuple):
                    shape, strides = ",".join(map(str, v[1])), ",".join(map(str, v[2]))
                    lines.append(f"    {names[v[0]]} as [{shape}:{strides}]")
        return "\n".join(lines)


DTYPES: dict[str, Any] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32,
}

SIMULATOR, PYTORCH, TOO_LARGE = "the simulator", "PyTorch's operators", "too large for the simulator"
_said: set[tuple[str, str]] = set()
# Files whose lines are not the user's.
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(x)) + os.sep for x in (_core.__file__, torch.__file__))


def say_once(public: str, way: str, reason: str = "") -> None:
    """Warns, once for a function and a way to run it, at the line that called it: what runs CPU tensors."""
    if (public, way) in _said:
        return
    _said.add((public, way))
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    why = f" ({reason})" if reason else ""
    warnings.warn(f"{public} on CPU tensors: run by {way}{why}", CpuWarning, stacklevel=level)


def _where(op: Defined, plan: dict[str, Any], args: tuple[Any, ...]) -> str:
    on_cpu = next(a for a in args if isinstance(a, torch.Tensor)).device.type == "cpu"
    if plan["outcome"] == "torch":
        return f"PyTorch's operators ({plan['reason']})"
    if on_cpu and op.definition.cost(*args) > SIMULATED:
        return f"{PYTORCH} ({TOO_LARGE}); on a GPU:"
    return "the simulator runs" if on_cpu else "launches"


def _packed(made: Sequence[Any]) -> Any:
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)


def _row_major(made: Any) -> Any:
    """The tensor as kernels and fake tensors have it, whatever order PyTorch's operators gave it."""
    shape, strides, dense = made.shape, made.stride(), 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != dense:
            return made.new_empty(shape).copy_(made)
        dense *= max(n, 1)
    return made


def _view(sources: Sequence[Any], view: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Any:
    source, shape, strides = view
    tensor = sources[source]
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset())


def transforming() -> bool:
    """Whether torch.func transforms the call. While PyTorch compiles it, the graph is what is transformed."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def _has_tangent(tensors: Sequence[Any]) -> bool:
    from torch.autograd import forward_ad

    if getattr(forward_ad, "_current_level", -1) < 0:
        return False
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


class _StandIn(NamedTuple):
    """As much of a tensor as its checks look at."""

    shape: tuple[int, ...]
    dtype: Any
    device: str

    def dim(self) -> int:
        return len(self.shape)


def _stand_in(value: Any, kind: str) -> Any:
    if isinstance(value, Arg):
        return _StandIn(value.shape, getattr(torch, value.dtype, value.dtype), value.device)
    if kind == "ScalarType?" and value is not None:
        return next(dtype for dtype, number in NUMBERS.items() if number == value)
    return value


def written(out: Any) -> Any:
    """The tensor itself; from now on a gradient that was to be computed from what it held is an error."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(out)
    return out


def autocasts(tensor: Any) -> bool:
    """Whether autocast is enabled where a tensor lies: torch.nn.functional's functions convert their arguments then."""
    device = tensor.device.type
    return device in ("cpu", "cuda") and bool(torch.is_autocast_enabled(device))


def no_autocast(tensor: Any) -> Any:
    """A context in which PyTorch's operators take the types they are given: the conversions have been made."""
    return torch.autocast(tensor.device.type, enabled=False) if autocasts(tensor) else contextlib.nullcontext()


def cast(to: Any, *tensors: Any) -> list[Any]:
    """What autocast converts, converted: floating-point tensors but fp64."""
    narrow = (torch.float16, torch.bfloat16, torch.float32)
    return [t.to(to) if t is not None and t.dtype in narrow else t for t in tensors]


@functools.cache
def _why_not(device: str) -> str | None:
    if torch.version.cuda is None:
        return "this PyTorch is not built for CUDA"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"the kernels need sm_80, {device} is sm_{major}{minor}"


def unsupported_device(args: Sequence[Any]) -> str | None:
    """Why no kernel runs where the tensors are, or None."""
    device = next(a.device for a in args if isinstance(a, Arg))
    return _why_not(device) if device.startswith("cuda") else None


def explain(function: Callable[..., Any], *args: Any, **named: Any) -> str:
    """What a call of an operator does: which kernel on which views, or PyTorch's operators and why.

    ``explain(graphene.ops.matmul, a, b, bias)``; nothing is run. Raises what the call would raise.
    """
    bind = getattr(function, "explained", None)
    if bind is None:
        fail("OP_ARGUMENT", "explain takes a function of graphene.ops", [f"got:  {function!r}"],
             "as in explain(graphene.ops.matmul, a, b)")  # fmt: skip
    op, arguments = bind(*args, **named)
    return str(op.explain(*arguments))
