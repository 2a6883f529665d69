"""An operator is a schema and a function from a configuration to a recipe; everything else follows from them.

A call of a public function goes to the operator's ``core``, in C++, which launches what an earlier call of the same
form launched. Where something else must see the call (PyTorch's dispatcher, autograd, autocast, ``torch.func``,
tensors that are not plain CUDA tensors), the core hands it to ``dispatched``, which checks all arguments. Each public
function ends so, because PyTorch's compiler reads Python and no C++::

    return (GATED.dispatched if is_compiling() else GATED.core)(gate, up, activation)

``Defined`` registers with PyTorch, for an operator ``name``:

- ``graphene::name_forward``: the operator itself. Its CUDA kernel is C++ behind PyTorch's stable C interface; compiled
  graphs without gradients hold it.
- ``graphene::name``: the same with a gradient. It is an operator of its own, because autograd costs a call some
  microseconds even where no gradient is wanted.
- ``graphene::name_reference``: PyTorch's operators, for calls that no kernel takes.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from graphene import _core
from graphene.dtypes import torch_type
from graphene.errors import LaunchError
from graphene.ops.core import plans
from graphene.ops.core.checks import check_scalar, check_tensors
from graphene.ops.core.context import autocasts, has_tangent, no_autocast, transforming, wants_gradient
from graphene.ops.core.namespace import SPACE, registering
from graphene.ops.core.torch import NUMBERS, fail, torch

# The greatest `cost` for which CPU tensors run on the simulator, which then takes about a quarter of a second.
SIMULATED = 1 << 18

_library = torch.library.Library(SPACE, "FRAGMENT")
is_compiling = torch.compiler.is_dynamo_compiling


class CpuWarning(UserWarning):
    """An operator was called on CPU tensors, which a GPU kernel cannot run on."""


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
        known = _core.dtype_of_array(self.dtype)
        return 1 if known is None else known.bits // 8


@dataclass(eq=False, repr=False)  # no further methods: a first call waits for them to be made
class Definition:
    """The definition of an operator.

    ``schema``: PyTorch's schema, without the name. ``configure``: a function of the arguments, with tensors as ``Arg``,
    that returns a ``_core.Recipe``. ``results``: a function of the arguments, with tensors as such (perhaps fake), that
    returns (shape, dtype) of each result and raises for arguments that do not fit. ``reference``: the operator by
    PyTorch's operators. ``cost``: for a call on CPU tensors, its multiply-adds or elements or, if that is more, about
    how many microseconds it takes to simulate its kernels, with whole tiles and blocks. ``save``, ``backward``: as
    ``torch.library.register_autograd`` takes them. ``choices``: the values that a string may have. ``exact``: for a
    tensor, the extents that a kernel is built for, as the number of its last ones, or as the argument that names the
    dimension. ``said``: its name in messages. ``part_of``: the function of graphene.ops whose gradient it computes.

    The following fields are for operators that public functions call. ``autocast``: converts the arguments as autocast
    does (``lower``, ``to_fp32``); None converts nothing. ``types``: converts each argument to the type of the schema,
    or raises OP_ARGUMENT; None does so by the schema alone. ``values``: raises for values that compilers do not know.
    ``without_gradient``: tensors through which there is no gradient. ``with_gradient``: the operator that is called
    if a gradient is wanted; its first results are this operator's. ``decomposed``: the same by other operators, for
    torch.func, which takes no lists of tensors. ``flops``: the operations that torch.utils.flop_counter counts for the
    arguments. ``instead``: ``reference`` in words.
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
    autocast: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    types: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    values: Callable[..., None] | None = None
    without_gradient: Sequence[str] = ()
    with_gradient: Defined | None = None
    decomposed: Callable[..., Any] | None = None
    flops: Callable[..., int] | None = None
    instead: str = "PyTorch's operators"

    @functools.cached_property
    def params(self) -> list[tuple[str, str, list[str], int | str]]:
        """Name, type, choices and exact extents of every argument, in order."""
        inside = self.schema[1 : self.schema.index(") ->")]
        out = []
        for part in filter(lambda p: p.strip() != "*", inside.split(", ")):
            kind, name = part.split("=")[0].split()
            out.append((name, kind, list(self.choices.get(name, ())), self.exact.get(name, 0)))
        return out

    @property
    def returned(self) -> int:
        """Number of results."""
        return self.schema.split("->")[1].count("Tensor")


class _Explanation(BaseException):
    """Carries the answer to `explain` from the place where a call would reach PyTorch's dispatcher."""

    def __init__(self, op: Defined, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.op, self.arguments = op, arguments


class _Explaining(threading.local):
    """Whether this thread runs `explain`."""

    active = False


_explaining = _Explaining()


defined: dict[str, Defined] = {}  # the operators whose files have been read, by name


def register_named(name: str) -> bool:
    """Registers the operator that has this name in torch.ops.graphene; False if no file that was read defines it."""
    op = defined.get(name) or defined.get(name.removesuffix("_forward")) or defined.get(name.removesuffix("_reference"))
    if op is not None:
        op.register()
    return op is not None


def _count_operations(d: Definition) -> None:
    """Tells torch.utils.flop_counter how many operations the operator takes, and the counters that are counting."""
    from torch.utils import _python_dispatch, flop_counter

    packets = [getattr(getattr(torch.ops, SPACE), name) for name in (d.name, d.name + "_forward")]
    flop_counter.register_flop_formula(packets, get_raw=True)(d.flops)
    for mode in _python_dispatch._get_current_dispatch_mode_stack():  # a counter has copied the formulas
        registry = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if isinstance(registry, dict):
            registry.update({p: flop_counter.flop_registry[p] for p in packets})


class Defined:
    """A registered operator. It is called with all arguments by position."""

    def __init__(self, definition: Definition) -> None:
        self.definition = d = definition
        defined[d.name] = self
        self.params, self.called = d.params, d.said or d.name
        self.core = _core.Operator(self.called, d.params, d.returned, self._configure, self.dispatched)
        self._tensors = [i for i, p in enumerate(self.params) if p[1].startswith("Tensor")]
        self._lists = any(self.params[i][1] == "Tensor[]" for i in self._tensors)
        self._scalars = [(i, p[0], p[1]) for i, p in enumerate(self.params) if i not in self._tensors]
        self._optional = [p[0] for p in d.params if p[1] == "Tensor?"]
        self._written = next((i for i, p in enumerate(self.params) if "!" in p[1]), None)
        self._returns = d.returned > 0
        self._registered = False

    def register(self) -> None:
        """Registers the operator with PyTorch, unless that was done. Calls that the core takes need no registration."""
        with registering():
            if not self._registered:
                self._registered = True
                self._register()
                if self.definition.flops is not None:
                    _count_operations(self.definition)

    @property
    def forward(self) -> Any:
        """The operator without a gradient. PyTorch's compiler reads this, too: the namespace registers the operator."""
        return getattr(getattr(torch.ops, SPACE), self.definition.name + "_forward").default

    @property
    def differentiable(self) -> Any:
        """The operator with a gradient."""
        return getattr(getattr(torch.ops, SPACE), self.definition.name).default

    def _configure(self, *args: Any) -> Any:
        """The core calls this for the first call of a configuration."""
        given = list(args)
        for i in self._tensors:
            given[i] = [Arg(*a) for a in args[i]] if type(args[i]) is list else args[i] and Arg(*args[i])
        return self.configure(given)

    def configure(self, given: Sequence[Any]) -> Any:
        """The recipe of a configuration; tensors as ``Arg``, element types as PyTorch numbers them."""
        d = self.definition
        try:
            d.results(*(_stand_in(a, p[1]) for a, p in zip(given, self.params, strict=True)))
        except LaunchError as e:
            if e.code != "OP_DTYPE":
                raise
            return _core.Recipe.torch(str(e))  # autocast may convert them; if not, this error returns
        if (reason := no_kernel(given)) is not None:
            return _core.Recipe.torch(reason)
        device = next(a.device for a in given if isinstance(a, Arg))
        return plans.recipe(d.name, d.configure, given, self._tensors, device)

    def _given(self, args: Sequence[Any]) -> list[Any]:
        """The tensors of a call, those of lists in their order; None for an argument that is left out."""
        if not self._lists:
            return [args[i] for i in self._tensors]
        return [t for i in self._tensors for t in (args[i] if isinstance(args[i], (list, tuple)) else (args[i],))]

    def _replaced(self, args: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with other tensors in place of those that `_given` returns."""
        following, out = iter(tensors), list(args)
        for i in self._tensors:
            listed = isinstance(args[i], (list, tuple))
            out[i] = [next(following) for _ in args[i]] if listed else next(following)
        return tuple(out)

    def dispatched(self, *args: Any) -> Any:
        """Calls the operator through PyTorch's dispatcher, if the core does not take the call of a public function.

        All arguments are given by position; the public function has checked nothing yet.
        """
        d, op = self.definition, self
        args = self._of_types(args) if d.types is None else d.types(args)
        if d.autocast is not None and autocasts(args[0]):
            args = d.autocast(args)
        d.results(*args)
        if d.values is not None and not is_compiling():
            d.values(*args)
        if torch.is_grad_enabled():
            self._check_gradients(args)
            if d.with_gradient is not None and wants_gradient(self._given(args)):
                op = d.with_gradient
        if not is_compiling() and _explaining.active:
            raise _Explanation(op, args)
        if self._written is not None:
            args = self._before_writing(args)
        made = op(*args)
        if op is self:
            return made
        return made[0] if d.returned == 1 else made[: d.returned]

    def _of_types(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, each of the type that the schema says. Raises OP_ARGUMENT."""
        check_tensors(self.called, {self.params[i][0]: args[i] for i in self._tensors}, self._optional)
        out = list(args)
        for i, name, kind in self._scalars:
            out[i] = check_scalar(self.called, name, kind, args[i])
        return tuple(out)

    def _check_gradients(self, args: tuple[Any, ...]) -> None:
        """Raises OP_ARGUMENT, OP_OUT if a gradient is wanted that does not exist."""
        d = self.definition
        if self._written is not None and wants_gradient(self._given(args)):
            out = self.params[self._written][0]
            fail("OP_OUT", f"{self.called}: there is no gradient through {out}=", [],
                 f"leave {out}= out, or call it under torch.no_grad()")  # fmt: skip
        for i, p in enumerate(self.params):
            if p[0] in d.without_gradient and wants_gradient([args[i]]):
                fail("OP_ARGUMENT", f"{self.called}: there is no gradient of the {p[0]}", [], f"pass {p[0]}.detach()")

    def _before_writing(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as PyTorch reads them. Raises OP_OUT for a tensor that cannot be written."""
        assert self._written is not None
        if torch.compiler.is_compiling():
            return args
        name = self.params[self._written][0]
        if transforming():
            fail("OP_OUT", f"{self.called}: there is no {name}= under torch.vmap and torch.func", [],
                 f"leave {name}= out")  # fmt: skip
        if args[self._written].is_neg():
            fail("OP_OUT", f"{self.called}: argument '{name}' is a view that PyTorch negates when it is read", [],
                 f"pass {name}.resolve_neg(), or leave {name}= out")  # fmt: skip
        return self._replaced(args, [None if t is None else t.resolve_neg() for t in self._given(args)])

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
            if missing:  # with an older PyTorch the same kernels are called through Python
                _library.impl(name, self.on_cuda, "CUDA")
        if self._written is None:
            torch.library.register_autograd(
                f"{SPACE}::{d.name}", self._backward, setup_context=self._save, lib=_library
            )

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """What the definition saves. It gets all arguments, though PyTorch leaves out defaults at the end."""
        if self.definition.save is not None:
            self.definition.save(ctx, self._in_order(inputs, {}), output)

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        d = self.definition
        given = next((g for g in gradients if g is not None), None)
        if given is None:  # no differentiated value depends on the results
            return (None,) * len(self.params)
        if d.backward is None:
            fail("OP_ARGUMENT", f"{self.called}: there is no gradient through this operator",
                 [f"why: it is a part of {self.public}, for calls that are not differentiated"],
                 f"differentiate graphene.ops.{d.part_of or d.name}, or what PyTorch has of it")  # fmt: skip
        with no_autocast(given):
            return d.backward(ctx, *gradients)

    def _forward_derivative(self, *_: Any) -> Any:
        fail("OP_ARGUMENT", f"{self.called}: there is no forward-mode derivative",
             ["why: torch.func.jvp and torch.autograd.forward_ad ask for it"],
             "differentiate backwards: torch.func.vjp, torch.func.grad, .backward()")  # fmt: skip

    def __call__(self, *args: Any) -> Any:
        """Calls the operator through PyTorch's dispatcher, without checks."""
        decomposed = self.definition.decomposed
        tensors = [t for t in self._given(args) if t is not None]
        if self._written is None and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            if not transforming():
                return self.differentiable(*args)
            return self._function.apply(*args) if decomposed is None else decomposed(*args)
        if not torch.compiler.is_compiling() and has_tangent(tensors):
            # Through this function PyTorch asks for the forward derivative, which is an error.
            return self._function.apply(*args) if decomposed is None else decomposed(*args)
        if decomposed is not None and transforming():  # vmap has no rule for lists of tensors
            return decomposed(*args)
        return self.forward(*args)

    @functools.cached_property
    def _function(self) -> Any:
        """The operator with its gradient for torch.func, which cannot use registered gradients."""
        forward = self.forward

        methods = {"forward": lambda *args: forward(*args), "setup_context": self._save, "backward": self._backward,
                   "jvp": self._forward_derivative}  # fmt: skip
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
        self.definition.results(*args)  # raises the errors that a kernel's call would
        with torch._C._AutoDispatchBelowAutograd(), no_autocast(next(a for a in args if isinstance(a, torch.Tensor))):
            made = self.definition.reference(*args)
        return _packed([_row_major(t) for t in (made if isinstance(made, tuple) else (made,) if self._returns else ())])

    def on_cuda(self, *args: Any, **named: Any) -> Any:
        """The kernel for CUDA tensors that a PyTorch without the C interface is given."""
        args = self._in_order(args, named)
        call, args = self._described(args)
        if call.outcome == "torch":
            return self._reference(*args)
        return self._execute(call, args)

    def _on_cpu(self, *args: Any, **named: Any) -> Any:
        args = self._in_order(args, named)
        if self.definition.values is not None:
            self.definition.values(*args)
        if self.definition.cost(*args) > SIMULATED:
            if self._written is not None:
                self.core.check(*args)
            say_once(self.public, PYTORCH, TOO_LARGE)
            return self._reference(*args)
        call, args = self._described(args)
        if call.outcome == "torch":
            say_once(self.public, self.definition.instead, call.reason)
            return self._reference(*args)
        say_once(self.public, SIMULATOR)
        return self._execute(call, args)

    @property
    def public(self) -> str:
        """The name of what the user called: the function, or its gradient."""
        d = self.definition
        return f"the gradient of graphene.ops.{d.part_of}" if d.part_of else f"graphene.ops.{self.called}"

    def _in_order(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, though PyTorch leaves out defaults at the end."""
        if len(args) == len(self.params):
            return args
        names = [p[0] for p in self.params]
        rest = [named.get(n, self._defaults[n]) for n in names[len(args) :]]
        return (*args, *rest)

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        schema = getattr(getattr(torch.ops, SPACE), self.definition.name).default._schema
        return {a.name: a.default_value for a in schema.arguments}

    def _described(self, args: tuple[Any, ...]) -> tuple[_core.CallDescription, tuple[Any, ...]]:
        """What the call does, and its arguments, copied where that is needed."""
        for _ in range(3):
            call = self.core.described(*args)
            if call.outcome != "copy":
                return call, args
            copied = self._given(args)
            for i in call.copies:
                copy = copied[i].contiguous()
                copied[i] = copy.clone() if copy is copied[i] else copy  # a clone is aligned
            args = self._replaced(args, copied)
        raise AssertionError(f"{self.definition.name}: no kernel takes what has been copied")

    def _execute(self, call: _core.CallDescription, args: tuple[Any, ...]) -> Any:
        """Runs a call's kernels, on CPU tensors by the simulator."""
        sources = self._given(args)
        like = next(t for t in sources if t is not None)
        made = [torch.empty(shape, dtype=torch_type(dtype), device=like.device) for dtype, shape in call.outputs]
        sources += made
        for launch in call.launches:
            launch.kernel(*(_viewed(sources, v) for v in launch.arguments))
        return _packed(made[: call.returned])

    def explain(self, *args: Any) -> str:
        """A call with these arguments in words."""
        d = self.definition
        d.results(*args)
        with plans.described():
            call, copied = self._described(args)
        lines = [f"{d.name}: {_where(self, call, copied)}"]
        names = []
        for i in self._tensors:
            listed = isinstance(args[i], (list, tuple))
            names += [f"{self.params[i][0]}[{k}]" for k in range(len(args[i]))] if listed else [self.params[i][0]]
        for name, was, now in zip(names, self._given(args), self._given(copied), strict=True):
            if was is not now:
                lines.append(f"  {name} is copied first, row-major")
        names += [f"result {i}" if i < call.returned else "work space" for i in range(8)]
        for launch in call.launches:
            lines.append(f"  kernel {launch.kernel.name}")
            for v in launch.arguments:
                for one in v if isinstance(v, list) else [v] if isinstance(v, tuple) else []:
                    shape, strides = ",".join(map(str, one[1])), ",".join(map(str, one[2]))
                    lines.append(f"    {names[one[0]]} as [{shape}:{strides}]")
        return "\n".join(lines)


SIMULATOR, PYTORCH, TOO_LARGE = "the simulator", "PyTorch's operators", "too large for the simulator"
_said: set[tuple[str, str]] = set()
# Files whose lines do not belong to the user.
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(x)) + os.sep for x in (_core.__file__, torch.__file__))


def say_once(public: str, way: str, reason: str = "") -> None:
    """Warns at the user's line what computes CPU tensors, once for each function and each way."""
    if (public, way) in _said:
        return
    _said.add((public, way))
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    why = f" ({reason})" if reason else ""
    warnings.warn(f"{public} on CPU tensors: run by {way}{why}", CpuWarning, stacklevel=level)


def _where(op: Defined, call: _core.CallDescription, args: tuple[Any, ...]) -> str:
    on_cpu = next(a for a in args if isinstance(a, torch.Tensor)).device.type == "cpu"
    if call.outcome == "torch":
        return f"{op.definition.instead} ({call.reason})"
    if on_cpu and op.definition.cost(*args) > SIMULATED:
        return f"{PYTORCH} ({TOO_LARGE}); on a GPU:"
    return "the simulator runs" if on_cpu else "launches"


def _packed(made: Sequence[Any]) -> Any:
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)


def _row_major(made: Any) -> Any:
    """The tensor in the layout of kernels and fake tensors, whatever order PyTorch's operators gave it."""
    shape, strides, dense = made.shape, made.stride(), 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != dense:
            return made.new_empty(shape).copy_(made)
        dense *= max(n, 1)
    return made


def _viewed(sources: Sequence[Any], argument: Any) -> Any:
    """An argument of a plan's kernel: a number, a view of a tensor, or a list of views."""
    if isinstance(argument, list):
        return [_viewed(sources, view) for view in argument]
    if not isinstance(argument, tuple):
        return argument
    source, shape, strides = argument
    tensor = sources[source]
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset())


class _StandIn:
    """A stand-in for a tensor with the properties that checks look at."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: str) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    def dim(self) -> int:
        return len(self.shape)


def _stand_in(value: Any, kind: str) -> Any:
    if kind == "Tensor[]":
        return [_stand_in(a, "Tensor") for a in value]
    if isinstance(value, Arg):
        return _StandIn(value.shape, getattr(torch, value.dtype, value.dtype), value.device)
    if kind == "ScalarType?" and value is not None:
        return next(dtype for dtype, number in NUMBERS.items() if number == value)
    return value


@functools.cache
def _why_not(device: str) -> str | None:
    if torch.version.cuda is None:
        return "this PyTorch is not built for CUDA"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"the kernels need sm_80, {device} is sm_{major}{minor}"


def no_kernel(args: Sequence[Any]) -> str | None:
    """Why no kernel reads tensors on their device or at their addresses, or None."""
    tensors = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, Arg)]
    if odd := next((t.dtype for t in tensors if t.align < t.item_bytes), None):
        return f"an element of {odd} lies at an odd address"
    device = tensors[0].device
    return _why_not(device) if device.startswith("cuda") else None


_F = TypeVar("_F", bound=Callable[..., Any])
_public: list[Callable[..., Any]] = []


def public(function: _F) -> _F:
    """Marks a function that ends in a call of an operator, so that `explain` takes it."""
    _public.append(function)
    return function


def explain(function: Callable[..., Any], *args: Any, **named: Any) -> str:
    """Says in words which kernel a call of an operator runs on which views, or why PyTorch's operators compute it.

    ``explain(graphene.ops.matmul, a, b, bias)`` runs nothing. It raises what the call would raise.
    """
    op, arguments = bound(function, *args, **named)
    return op.explain(*arguments)


def bound(function: Callable[..., Any], *args: Any, **named: Any) -> tuple[Defined, tuple[Any, ...]]:
    """The operator that a call of a public function reaches, and its arguments. Nothing runs."""
    if not any(function is f for f in _public):
        fail("OP_ARGUMENT", "explain takes a function of graphene.ops", [f"got:  {function!r}"],
             "as in explain(graphene.ops.matmul, a, b)")  # fmt: skip
    from torch.utils._python_dispatch import TorchDispatchMode

    class HandsOver(TorchDispatchMode):  # type: ignore[misc]
        """A dispatch mode, under which the core hands the call over."""

        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    found: _Explanation | None = None
    _explaining.active = True
    try:
        with HandsOver():
            function(*args, **named)
    except _Explanation as e:
        found = e
    finally:
        _explaining.active = False
    assert found is not None, "a public function ends in a call of an operator"
    return found.op, found.arguments
