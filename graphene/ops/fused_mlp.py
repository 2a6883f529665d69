"""graphene.ops.fused_mlp: linear layers with activations in one kernel, each layer's result rounded to the dtype.

An operator of lists of tensors, which the core's direct way does not take: its kernel is launched from Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

from graphene.errors import GrapheneError, LaunchError
from graphene.kernels.mlp import MlpConfig, mlp_kernel, runs_of
from graphene.kernels.traced import Traced, trace
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, check_tensors, same_shape, shape_text
from graphene.ops.core.define import (
    PYTORCH,
    SIMULATED,
    SIMULATOR,
    SPACE,
    TOO_LARGE,
    Arg,
    _has_tangent,
    _library,
    autocasts,
    cast,
    say_once,
    transforming,
    unsupported_device,
)
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, device
from graphene.ops.core.torch import Tensor, fail, graph_break, torch
from graphene.ops.matmul import _sums_again, matmul
from graphene.ops.matmul import reference as linear
from graphene.select.mlp import select_mlp

NAME = "fused_mlp"
PUBLIC = "graphene.ops.fused_mlp"
DEEPEST = 128  # layers of one kernel: its parameters are up to 4 KiB
WIDEST = 256
Activation: TypeAlias = "str | Callable[[Any], Any] | None"


def _name(activation: Any) -> str:
    """What an operator is called with for an activation: its name, or what it computes. Raises OP_ARGUMENT."""
    if activation is None:
        return "none"
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return activation
    if callable(activation):
        return _computed(activation)
    known = ", ".join(f'"{x}"' for x in ACTIVATIONS)
    fail("OP_ARGUMENT", f'{NAME}: no activation is called "{activation}"',
         [f"known: None, {known}, a function of registers"], "pass one of them")  # fmt: skip
    raise AssertionError


def _computed(function: Callable[[Any], Any]) -> str:
    """What a function of a register computes now, every time it is given: it may have changed."""
    if torch.compiler.is_dynamo_compiling():
        graph_break(f"{NAME}: what a function of registers computes is found by calling it")
        return str(torch._dynamo.disable(_text_of)(function))
    return _text_of(function)


def _text_of(function: Callable[[Any], Any]) -> str:
    try:
        return trace(function).text
    except GrapheneError:
        raise
    except Exception as e:
        details = [f"why: {type(e).__name__}: {e}", f"got: {function!r}"]
        fail("OP_ARGUMENT", f"{NAME}: an activation is no function of one register", details,
             "pass one such as lambda x: gr.max(x, 0)")  # fmt: skip


def _is_function(name: str) -> bool:
    return name.startswith("[")


def _activation(name: str) -> Activation:
    """The activation of a name."""
    return None if name == "none" else Traced(name) if _is_function(name) else name


def _known_name(name: str) -> bool:
    try:
        return name in ("none", *ACTIVATIONS) or (_is_function(name) and bool(Traced(name).steps))
    except ValueError:
        return False


# Checks.


def check(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activations: Sequence[str]) -> list[Any]:
    """The shape of the result. Raises what does not depend on strides."""
    if not weights:
        fail("OP_ARGUMENT", f"{NAME}: there are no layers", ["want: at least one weight", "got:  none"],
             "pass a list of weights")  # fmt: skip
    named = {"x": x, **{f"weights[{i}]": w for i, w in enumerate(weights)}}
    named |= {f"biases[{i}]": b for i, b in enumerate(biases) if b is not None}
    check_devices(NAME, named)
    check_dtypes(NAME, named, FLOATS)
    for what, n in (("biases", len(biases)), ("activations", len(activations))):
        if n != len(weights):
            fail("OP_ARGUMENT", f"{NAME}: not one of '{what}' for each layer",
                 [f"want: {len(weights)}", f"got:  {n}"], "pass as many as weights, None for none")  # fmt: skip
    if len(x.shape) == 0:
        fail("OP_SHAPE", f"{NAME}: argument 'x' has no dimensions", [], "pass rows: (..., width)")
    width = x.shape[-1]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        if len(w.shape) != 2 or w.shape[1] != width:
            fail("OP_SHAPE", f"{NAME}: argument 'weights[{i}]' has the wrong shape",
                 [f"want: [out,{width}], as what comes into this layer", f"got:  {shape_text(w.shape)}"],
                 "pass weights as torch.nn.Linear has them, (out, in)")  # fmt: skip
        width = w.shape[0]
        if b is not None and not same_shape(b.shape, [width]):
            fail("OP_SHAPE", f"{NAME}: argument 'biases[{i}]' has the wrong shape",
                 [f"want: [{width}], one for each row of its weights", f"got:  {shape_text(b.shape)}"],
                 "pass a vector")  # fmt: skip
    for a in activations:
        if not torch.compiler.is_dynamo_compiling() and not _known_name(a):
            fail("OP_ARGUMENT", f'{NAME}: no activation is called "{a}"', ["known: " + ", ".join(ACTIVATIONS)],
                 "pass one of them")  # fmt: skip
    return [*x.shape[:-1], width]


# The kernels.


class Plan(NamedTuple):
    """A kernel and the layers of each of its lists."""

    kernel: Any
    lists: tuple[tuple[int, int, bool], ...]  # first layer, end, whether they have biases
    result: int  # width


@functools.lru_cache(maxsize=512)
def _kernel(config: MlpConfig) -> Any:
    return mlp_kernel(config)


def _magnitude(rows: int) -> int:
    """Rows by size, as far as a choice depends on them: eight steps to a factor of two."""
    bits = max(rows.bit_length() - 4, 0)
    return -(-rows >> bits) << bits if rows > 0 else 0


@functools.lru_cache(maxsize=4096)
def plan(
    rows: int, widths: tuple[int, ...], activations: tuple[str, ...], biases: tuple[bool, ...], dtype: str,
    align: tuple[int, int], place: str,
) -> Plan | str:  # fmt: skip
    """What runs this many layers in one kernel, or the reason why no kernel does."""
    if dtype not in MATMUL_DTYPES:
        return f"no kernel multiplies {dtype} at full precision"
    if any(n > WIDEST for n in widths[1:-1]):
        return f"a hidden layer is wider than {WIDEST}"
    if 0 in widths:
        return "a width is 0"
    sms, shared_bytes, _ = device(place)
    config = select_mlp(
        rows, widths, tuple(map(_activation, activations)), biases, dtype=DTYPES[dtype], align=align, sms=sms,
        shared_bytes=shared_bytes, simulated=place == "cpu",
    )  # fmt: skip
    if config is None:
        return "one layer that is wide on both sides"
    lists = tuple((r.first, r.first + r.layers, r.bias) for r in runs_of(config))
    return Plan(_kernel(config), lists, widths[-1])


def _address_align(address: int, stride_bytes: int) -> int:
    n = 16
    while (address | stride_bytes) % n:
        n //= 2
    return n


def _read(t: Tensor) -> Tensor:
    """A weight or bias as the kernel reads it: copied unless it is contiguous and aligned."""
    t = t.detach()
    if not t.is_contiguous():
        return t.contiguous()
    return t.clone() if t.data_ptr() % 16 else t


def _run(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activations: tuple[str, ...],
    explain: bool = False,
) -> Any:
    """The result, by kernels; a text: why there are none. `explain`: what would run instead of running it."""
    if len(weights) > DEEPEST:
        at = DEEPEST
        first = _run(x, weights[:at], biases[:at], activations[:at], explain)
        if isinstance(first, str) and not explain:
            return first
        rest = _run(x if explain else first, weights[at:], biases[at:], activations[at:], explain)
        return f"{first}\n{rest}" if explain else rest
    widths = (weights[0].shape[1], *(w.shape[0] for w in weights))
    shape = (*x.shape[:-1], widths[-1])
    flat = x.detach().reshape(-1, widths[0]) if x.numel() else x.detach().reshape(prod(x.shape[:-1]), widths[0])
    rows = flat.shape[0]
    if (flat.stride(1) != 1 and widths[0] > 1) or (rows > 1 and flat.stride(0) < widths[0]):
        flat = flat.contiguous()
    across = flat.stride(0) if rows > 1 else widths[0]
    align = _address_align(flat.data_ptr(), across * x.element_size())
    out_align = _address_align(0, widths[-1] * x.element_size())
    device = "cpu" if x.device.type == "cpu" else str(x.device)
    given, dtype = tuple(b is not None for b in biases), str(x.dtype).removeprefix("torch.")
    found = plan(
        _magnitude(rows), widths, activations, given, dtype, (align, out_align), device,
    )  # fmt: skip
    if isinstance(found, str) or explain:
        return found if isinstance(found, str) else _said(found, activations)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    if rows == 1:
        flat = flat.as_strided((1, widths[0]), (widths[0], 1))
    lists: list[Any] = []
    for first, end, bias in found.lists:
        lists.append([_read(w) for w in weights[first:end]])
        if bias:
            lists.append([_read(b) for b in biases[first:end] if b is not None])
    found.kernel(flat, *lists, y.view(rows, widths[-1]))
    return y


# A call that launched one kernel on tensors as they lie, by who the tensors are and how x lies. What else the kernel
# needs of them, a launch checks every time: shapes, types, devices, strides, alignment.
_known: dict[tuple[Any, ...], tuple[Plan, int, tuple[int, ...]]] = {}


def _key(x: Tensor, weights: Any, biases: Any, activation: Any, out_activation: Any) -> tuple[Any, ...] | None:
    """None for arguments that cannot be told by identity."""
    if type(weights) is not list or not (biases is None or type(biases) is list) or type(x) is not torch.Tensor:
        return None
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if isinstance(activation, list):
        activation = tuple(_computed(a) if callable(a) else a for a in activation)
    elif callable(activation):
        activation = _computed(activation)
    if callable(out_activation):
        out_activation = _computed(out_activation)
    tensors = tuple(map(id, weights)), None if biases is None else tuple(map(id, biases))
    return (*tensors, activation, out_activation, x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15)


def _remember(key: tuple[Any, ...], x: Tensor, weights: list[Any], biases: list[Any], names: list[str]) -> None:
    """Keeps what the call did, if the next one can do it again without a look at its arguments."""
    k, rows = weights[0].shape[1], prod(x.shape[:-1])
    lies = x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= k)
    apart = any(t is not None and (t.data_ptr() % 16 or not t.is_contiguous()) for t in (*weights, *biases))
    on_gpu = x.device.type == "cuda" and _refused(str(x.device)) is None
    small = x.device.type == "cpu" and cost(x, weights) <= SIMULATED
    if not lies or apart or rows < 2 or len(weights) > DEEPEST or not (on_gpu or small):
        return
    align = _address_align(x.data_ptr(), x.stride(-2) * x.element_size())
    found = plan(
        _magnitude(rows), (k, *(w.shape[0] for w in weights)), tuple(names), tuple(b is not None for b in biases),
        str(x.dtype).removeprefix("torch."), (align, _address_align(0, weights[-1].shape[0] * x.element_size())),
        "cpu" if x.device.type == "cpu" else str(x.device),
    )  # fmt: skip
    if not isinstance(found, str):
        if len(_known) >= 1024:
            _known.clear()
        _known[key] = found, rows, (*x.shape[:-1], found.result)


def _again(known: tuple[Plan, int, tuple[int, ...]], x: Tensor, weights: Any, biases: Any) -> Tensor:
    """A call like the one that is known."""
    found, rows, shape = known
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    lists: list[Any] = []
    for first, end, bias in found.lists:
        lists.append([w.detach() if w.requires_grad else w for w in weights[first:end]])
        if bias:
            lists.append([b.detach() if b.requires_grad else b for b in biases[first:end]])
    found.kernel(x.detach().view(rows, -1) if x.dim() != 2 else x.detach(), *lists, y.view(rows, -1))
    return y


def _said(found: Plan, activations: tuple[str, ...]) -> str:
    return f"  kernel {found.kernel.name}, {len(activations)} layers"


def reference(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Any], activations: Sequence[str]) -> Tensor:
    """Layer by layer, by PyTorch's operators."""
    for w, b, a in zip(weights, biases, activations, strict=True):
        if _is_function(a):
            fail("OP_ARGUMENT", f"{NAME}: a function of registers is known to kernels only",
                 ["why: no kernel takes this call, or a gradient is wanted"],
                 "pass the name of an activation")  # fmt: skip
        x = linear(x, w.mT, b, None if a == "none" else a, None)
    return x


def _layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Any], activations: Sequence[str]) -> Tensor:
    """Layer by layer, by matmul of ours: for what is too wide."""
    if any(map(_is_function, activations)) or 0 in (x.numel(), *(w.numel() for w in weights)):
        return reference(x, weights, biases, activations)
    for w, b, a in zip(weights, biases, activations, strict=True):
        x = matmul(x, w.mT, b, None if a == "none" else a)
    return x


def forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Any], activations: Sequence[str]) -> Tensor:
    """The operator."""
    check(x, weights, biases, activations)
    if x.device.type == "cpu":
        if cost(x, weights) > SIMULATED:
            say_once(PUBLIC, PYTORCH, TOO_LARGE)
            return reference(x, weights, biases, activations)
    elif _refused(str(x.device)) is not None:
        return reference(x, weights, biases, activations)
    made = _run(x, weights, biases, tuple(activations))
    if isinstance(made, str):
        return _layers(x, weights, biases, activations)
    if x.device.type == "cpu":
        say_once(PUBLIC, SIMULATOR)
    return made


@functools.cache
def _refused(device: str) -> str | None:
    return unsupported_device([Arg((), (), "float16", device, 16)])


def cost(x: Tensor, weights: Sequence[Tensor]) -> int:
    """Multiply-adds, or what tiles of 64 rows by 32 by 32 take of them."""
    rows = int(prod(x.shape[:-1]))
    tiles = -(-rows // 64) * sum(-(-int(w.shape[0]) // 32) * -(-int(w.shape[1]) // 32) for w in weights)
    return max(rows * sum(int(w.numel()) for w in weights), 400 * tiles)


# Registration, and the gradient.


def _of_layers(vectors: Sequence[Tensor], biased: Sequence[bool]) -> list[Any]:
    """A bias or None for each layer. PyTorch differentiates lists of tensors, but none with holes."""
    following = iter(vectors)
    return [next(following, None) if has else None for has in biased]


def _registered(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool], activations: Sequence[str]
) -> Tensor:
    return forward(x, weights, _of_layers(biases, biased), activations)


def _fake(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool], activations: Sequence[str]
) -> Tensor:
    return x.new_empty(check(x, weights, _of_layers(biases, biased), activations))


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """For the gradient: the arguments; what comes between layers is computed again."""
    x, weights, biases, biased, activations = inputs
    ctx.given, ctx.activations = tuple(biased), tuple(activations)
    ctx.save_for_backward(x, *weights, *biases)


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """Products in the dtype, everything else in fp32."""
    depth = len(ctx.activations)
    x, *rest = ctx.saved_tensors
    weights, biases = rest[:depth], _of_layers(rest[depth:], ctx.given)
    acts = [None if a == "none" else a for a in ctx.activations]
    if any(map(_is_function, ctx.activations)):
        fail("OP_ARGUMENT", f"{NAME}: there is no gradient through a function of registers", [],
             "pass the name of an activation, or call it under torch.no_grad()")  # fmt: skip
    wide = torch.float64 if g.dtype == torch.float64 else torch.float32
    rows = prod(x.shape[:-1])
    inputs, sums = [x.reshape(rows, x.shape[-1])], []
    for w, b, a in zip(weights, biases, acts, strict=True):
        sums.append(_sums_again(inputs[-1], w.mT, b))
        inputs.append(activate(sums[-1], a).to(x.dtype))
    g = g.reshape(rows, g.shape[-1])
    of_weights: list[Any] = [None] * depth
    of_biases: list[Any] = []
    for i in range(depth - 1, -1, -1):
        g = g.to(wide)
        if (act := acts[i]) is not None:
            g = slope(sums[i], act, g)
        if ctx.given[i]:
            of_biases.insert(0, g.sum(0).to(x.dtype))
        g = g.to(x.dtype)
        of_weights[i] = g.mT @ inputs[i]
        g = g @ weights[i]
    return g.reshape(x.shape), of_weights, of_biases, None, None


SCHEMA = "(Tensor x, Tensor[] weights, Tensor[] biases, bool[] biased, str[] activations) -> Tensor"
for _operator in (NAME + "_forward", NAME):
    _library.define(_operator + SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_operator, _registered, "CPU")
    _library.impl(_operator, _registered, "CUDA")
    torch.library.register_fake(f"{SPACE}::{_operator}", _fake, lib=_library)
torch.library.register_autograd(f"{SPACE}::{NAME}", backward, setup_context=save, lib=_library)


def _must_be_seen(tensors: Sequence[Any]) -> bool:
    """Whether something traces, dispatches or differentiates the call."""
    c = torch._C
    if torch.compiler.is_compiling() or c._len_torch_dispatch_stack() or c._len_torch_function_stack():
        return True
    if c._functorch.peek_interpreter_stack() is not None or c._get_tracing_state() is not None:
        return True
    if tensors[0].device.type not in ("cpu", "cuda"):
        return True
    plain = (torch.Tensor, torch.nn.Parameter)
    if any(type(t) not in plain for t in tensors) or _has_tangent(tensors):
        return True
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _arguments(
    x: Any, weights: Any, biases: Any, activation: Any, out_activation: Any
) -> tuple[Any, list[Any], list[Any], list[str]]:
    if isinstance(weights, torch.nn.ParameterList):
        weights = list(weights)
    if not isinstance(weights, (list, tuple)):
        fail("OP_ARGUMENT", f"{NAME}: argument 'weights' is no list", [f"got:  {type(weights).__name__}"],
             "pass a list of tensors (out, in)")  # fmt: skip
    depth = len(weights)
    if isinstance(biases, torch.nn.ParameterList):
        biases = list(biases)
    if biases is not None and not isinstance(biases, (list, tuple)):
        fail("OP_ARGUMENT", f"{NAME}: argument 'biases' is no list", [f"got:  {type(biases).__name__}"],
             "pass a list of tensors (out,) or None")  # fmt: skip
    biases = [None] * depth if biases is None else list(biases)
    check_tensors(NAME, {"x": x, **{f"weights[{i}]": w for i, w in enumerate(weights)}})
    check_tensors(
        NAME, {f"biases[{i}]": b for i, b in enumerate(biases)}, tuple(f"biases[{i}]" for i in range(len(biases)))
    )
    if isinstance(activation, (list, tuple)):
        names = [_name(a) for a in activation]
        if len(names) != max(depth - 1, 0):
            fail("OP_ARGUMENT", f"{NAME}: not one activation for each hidden layer",
                 [f"want: {max(depth - 1, 0)}, and out_activation for the last layer", f"got:  {len(names)}"],
                 "pass one for all of them, or a list")  # fmt: skip
    else:
        names = [_name(activation)] * (depth - 1)
    return x, list(weights), biases, [*names, _name(out_activation)]


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activation: Activation | Sequence[Activation] = "relu",
    out_activation: Activation = None,
) -> Tensor:
    """Linear layers with activations, ``x = act(x @ weights[i].T + biases[i])`` for every i, in one kernel.

    x (..., in); ``weights[i]`` (out, in) as torch.nn.Linear has them; ``biases[i]`` (out,) or None. ``activation``: of
    all layers but the last, or a list of one for each of those; ``out_activation``: of the last. None, a name that
    `matmul` knows, or a function of a register (such as ``lambda x: gr.max(x, 0)``: no gradient), which is called every
    time; equal ones share a kernel. Sums are fp32; each layer's result is rounded to the dtype, as it would be between
    kernels, but stays on the chip.

    Hidden widths up to 256, fp16 and bf16 on one kernel; wider ones on a kernel a layer; other dtypes on PyTorch's
    operators. Under autocast tensors are converted as torch.nn.functional.linear's are. The gradient computes the
    layers again.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    key = _key(x, weights, biases, activation, out_activation)
    try:
        known = None if key is None else _known.get(key)
    except TypeError:  # of an activation that _arguments() refuses
        known = None
    if key is not None and known is not None:
        given = weights if biases is None else [*weights, *(b for b in biases if b is not None)]
        if not _must_be_seen([x, *given]) and not autocasts(x):
            try:
                return _again(known, x, weights, biases)
            except LaunchError:  # the tensors are others by now
                del _known[key]
    x, weights, biases, names = _arguments(x, weights, biases, activation, out_activation)
    tensors = [x, *weights, *(b for b in biases if b is not None)]
    if autocasts(x):
        to = torch.get_autocast_dtype(x.device.type)
        x, *weights = cast(to, x, *weights)
        biases = list(cast(to, *biases))
        tensors = [x, *weights, *(b for b in biases if b is not None)]
    if not _must_be_seen(tensors):
        y = forward(x, weights, biases, names)
        if key is not None and not autocasts(x):
            _remember(key, x, weights, biases, names)
        return y
    check(x, weights, biases, names)
    if transforming() or (not torch.compiler.is_compiling() and _has_tangent(tensors)):
        return _layers(x, weights, biases, names)  # operators whose gradients torch.func knows
    space = getattr(torch.ops, SPACE)
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    call = space.fused_mlp.default if wanted else space.fused_mlp_forward.default
    return call(x, weights, [b for b in biases if b is not None], [b is not None for b in biases], names)


class _Explained:
    """What `explain` asks."""

    @staticmethod
    def explain(x: Tensor, weights: Any, biases: Any, activations: Any) -> str:
        check(x, weights, biases, activations)
        on_cpu = x.device.type == "cpu"
        reason = None if on_cpu else _refused(str(x.device))
        if reason is not None or (on_cpu and cost(x, weights) > SIMULATED):
            return f"{NAME}: PyTorch's operators ({reason or 'too large for the simulator'})"
        said = _run(x, weights, biases, tuple(activations), explain=True)
        if said.startswith("  kernel"):
            return f"{NAME}: {'the simulator runs' if on_cpu else 'launches'}\n{said}"
        return f"{NAME}: layer by layer ({said})"


fused_mlp.explained = lambda x, weights, biases=None, activation="relu", out_activation=None: (  # type: ignore[attr-defined]
    _Explained, _arguments(x, weights, biases, activation, out_activation),
)  # fmt: skip
