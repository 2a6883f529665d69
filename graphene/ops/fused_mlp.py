"""graphene.ops.fused_mlp: linear layers with activations in one kernel, each layer's result rounded to the dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from graphene import _core
from graphene.errors import GrapheneError
from graphene.kernels.traced import Traced, trace
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, check_tensors, same_shape, shape_text
from graphene.ops.core.context import lower
from graphene.ops.core.define import SIMULATED, Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, target_device
from graphene.ops.core.torch import Tensor, fail, graph_break, torch, wide_dtype
from graphene.ops.core.views import contiguous, divides, merge, output, own, view
from graphene.ops.matmul import matmul, sums_again
from graphene.ops.matmul import reference as linear

if TYPE_CHECKING:
    from graphene.kernels.mlp import MlpConfig
    from graphene.kernels.mlp_sm90 import MlpSm90Config

NAME = "fused_mlp"
DEEPEST = 128  # the most layers of one kernel, whose parameters take up to 4 KiB
WIDEST = 256
Activation: TypeAlias = "str | Callable[[Any], Any] | None"


# Activations: an operator is called with a name, or with the expression that a function computes.


def _name(activation: Any) -> str:
    """The operator's argument for an activation: its name, or the expression that it computes. Raises OP_ARGUMENT."""
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
    """The expression that a function of a register computes now. It is asked at each call, since it may change."""
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
        fail("OP_ARGUMENT", f"{NAME}: an activation is not a function of one register", details,
             "pass one such as lambda x: gr.max(x, 0)")  # fmt: skip


def _is_function(name: str) -> bool:
    return name.startswith("[")


def _activation(name: str) -> Activation:
    """The activation of this name."""
    return None if name == "none" else Traced(name) if _is_function(name) else name


def _known_name(name: str) -> bool:
    try:
        return name in ("none", *ACTIVATIONS) or (_is_function(name) and bool(Traced(name).steps))
    except ValueError:
        return False


# Checks.


def check(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Any], activations: Sequence[str]) -> list[Any]:
    """The shape of the result. Raises the errors that do not depend on strides."""
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


def _of_layers(vectors: Sequence[Tensor], biased: Sequence[bool]) -> list[Any]:
    """A bias or None for each layer. PyTorch differentiates lists of tensors, but not lists with gaps."""
    following = iter(vectors)
    return [next(following, None) if has else None for has in biased]


def results(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool], activations: Sequence[str]
) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    return [(check(x, weights, _of_layers(biases, biased), activations), x.dtype)]


def types(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments. Raises OP_ARGUMENT unless they are tensors where tensors are wanted."""
    x, weights, biases, biased, _ = args
    check_tensors(NAME, {"x": x, **{f"weights[{i}]": w for i, w in enumerate(weights)}})
    given = [i for i, has in enumerate(biased) if has]
    check_tensors(NAME, {f"biases[{i}]": b for i, b in zip(given, biases, strict=True)})
    return args


# The choice of kernels, and their arguments.


@functools.lru_cache(maxsize=512)
def _kernel(config: MlpConfig | MlpSm90Config) -> Any:
    from graphene.kernels.mlp import mlp_kernel
    from graphene.kernels.mlp_sm90 import MlpSm90Config, mlp_sm90

    return mlp_sm90(config) if isinstance(config, MlpSm90Config) else mlp_kernel(config)


def configure(
    x: Arg, weights: Sequence[Arg], biases: Sequence[Arg], biased: Sequence[bool], activations: Sequence[str]
) -> Any:
    """The recipe of a configuration: one kernel for every DEEPEST layers."""
    from graphene.select.mlp import select_mlp

    widths = [x.shape[-1], *(w.shape[0] for w in weights)]
    if x.dtype not in MATMUL_DTYPES:
        return _core.Recipe.torch(f"no kernel multiplies {x.dtype} at full precision")
    if any(n > WIDEST for n in widths[1:-1]):
        return _core.Recipe.torch(f"a hidden layer is wider than {WIDEST}")
    if 0 in widths:
        return _core.Recipe.torch("a width is 0")
    rank, depth, rows = len(x.shape), len(weights), prod(x.shape[:-1])
    dtype, front = DTYPES[x.dtype], [[(0, d)] for d in range(rank - 1)]
    result = output(dtype, *front, [(depth, 0)])
    if rows == 0:
        return _core.Recipe([result], 1, [])
    across = next((x.strides[d] for d in reversed(range(rank - 1)) if x.shape[d] != 1), None)
    lines = x.strides[-1] == 1 or widths[0] == 1
    copies = 0 if lines and (across is None or across >= widths[0]) and merge(x, range(rank - 1)) else 1
    for i, t in enumerate((*weights, *biases), 1):
        dense = contiguous(t, range(len(t.shape)))
        copies |= 0 if dense and t.align >= 16 else 1 << i
    if copies:
        return _core.Recipe.copy(copies, "lines do not lie contiguous, at addresses that are multiples of 16 bytes")
    bias_of = {layer: depth + 1 + i for i, layer in enumerate(i for i, has in enumerate(biased) if has)}
    align = divides(min(16, x.align), (widths[0] if across is None else across) * x.item_bytes)
    made = depth + len(biases) + 1  # the first tensor that the recipe makes, which is the result; work spaces follow
    source, outputs, launches, first = 0, [result], [], 0
    while first < depth:
        end = min(first + DEEPEST, depth)
        out_align = divides(16, widths[end] * x.item_bytes)
        config = select_mlp(
            rows, tuple(widths[first : end + 1]), tuple(map(_activation, activations[first:end])),
            tuple(biased[first:end]), dtype=dtype, align=(align, out_align), device=target_device(x.device),
            simulated=x.device == "cpu",
        )  # fmt: skip
        if config is None:
            return _core.Recipe.torch("one layer that is wide on both sides")
        end, target = first + config.depth, made
        if end < depth:
            target = made + len(outputs)
            outputs.append(output(dtype, *front, [(end, 0)]))
        layers = range(first, end)
        given = config.operands(
            [view(1 + i, own(1 + i, 0), own(1 + i, 1)) for i in layers],
            [view(bias_of[i], own(bias_of[i], 0)) if biased[i] else None for i in layers],
        )
        matrices = [view(t, own(t, *range(rank - 1)), own(t, rank - 1)) for t in (source, target)]
        launches.append((_kernel(config), [matrices[0], *given, matrices[1]]))
        source, align, first = target, config.align[1], end
    return _core.Recipe(outputs, 1, launches)


# The reference by PyTorch's operators, and the gradient.


def by_layers(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool], activations: Sequence[str],
    layer: Callable[..., Tensor] = matmul,
) -> Tensor:  # fmt: skip
    """Layer by layer."""
    if any(map(_is_function, activations)):
        fail("OP_ARGUMENT", f"{NAME}: only kernels know a function of registers",
             ["why: no kernel takes this call, or a gradient is wanted"],
             "pass the name of an activation")  # fmt: skip
    for w, b, a in zip(weights, _of_layers(biases, biased), activations, strict=True):
        x = layer(x, w.mT, b, None if a == "none" else a, None)
    return x


def reference(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool], activations: Sequence[str]
) -> Tensor:
    """Layer by layer, by `matmul`; by PyTorch's operators if it is large and on the CPU, or empty."""
    large = x.device.type == "cpu" and cost(x, weights) > SIMULATED
    plain = large or 0 in (x.numel(), *(w.numel() for w in weights))
    return by_layers(x, weights, biases, biased, activations, linear if plain else matmul)


def cost(x: Tensor, weights: Sequence[Tensor], *_: Any) -> int:
    """The multiply-adds, or those of all its tiles of 64 rows by 32 by 32 if these are more."""
    rows = int(prod(x.shape[:-1]))
    tiles = -(-rows // 64) * sum(-(-int(w.shape[0]) // 32) * -(-int(w.shape[1]) // 32) for w in weights)
    return max(rows * sum(int(w.numel()) for w in weights), 400 * tiles)


def flops(x: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add."""
    return 2 * int(prod(x.shape[:-1])) * sum(int(w.numel()) for w in weights)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the arguments for the gradient, which computes the results between layers again."""
    x, weights, biases, biased, activations = inputs
    ctx.given, ctx.activations = tuple(biased), tuple(activations)
    ctx.save_for_backward(x, *weights, *biases)


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradient: products in the dtype, everything else in fp32."""
    depth = len(ctx.activations)
    x, *rest = ctx.saved_tensors
    weights, biases = rest[:depth], _of_layers(rest[depth:], ctx.given)
    acts = [None if a == "none" else a for a in ctx.activations]
    if any(map(_is_function, ctx.activations)):
        fail("OP_ARGUMENT", f"{NAME}: there is no gradient through a function of registers", [],
             "pass the name of an activation, or call it under torch.no_grad()")  # fmt: skip
    wide = wide_dtype(g.dtype)
    rows = prod(x.shape[:-1])
    inputs, sums = [x.reshape(rows, x.shape[-1])], []
    for w, b, a in zip(weights, biases, acts, strict=True):
        sums.append(sums_again(inputs[-1], w.mT, b))
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


FUSED_MLP = Defined(
    Definition(
        NAME, "(Tensor x, Tensor[] weights, Tensor[] biases, bool[] biased, str[] activations) -> Tensor", configure,
        results, reference, cost, save, backward, exact={"x": 1, "weights": 2, "biases": 1}, autocast=lower,
        types=types, decomposed=by_layers, flops=flops, instead="layer by layer",
    )
)  # fmt: skip


def _layers(
    weights: Any, biases: Any, activation: Any, out_activation: Any
) -> tuple[Sequence[Any], Sequence[Any], list[bool], list[str]]:
    """Weights, biases, which layers have a bias, and their activations. Raises OP_ARGUMENT."""
    if isinstance(weights, torch.nn.ParameterList):
        weights = list(weights)
    if not isinstance(weights, (list, tuple)):
        fail("OP_ARGUMENT", f"{NAME}: argument 'weights' is not a list", [f"got:  {type(weights).__name__}"],
             "pass a list of tensors (out, in)")  # fmt: skip
    depth = len(weights)
    if biases is None:
        biases, biased = [], [False] * depth
    else:
        if isinstance(biases, torch.nn.ParameterList):
            biases = list(biases)
        if not isinstance(biases, (list, tuple)):
            fail("OP_ARGUMENT", f"{NAME}: argument 'biases' is not a list", [f"got:  {type(biases).__name__}"],
                 "pass a list of tensors (out,) or None")  # fmt: skip
        biased = [b is not None for b in biases]
        if False in biased:
            biases = [b for b in biases if b is not None]
    if isinstance(activation, (list, tuple)):
        names = [_name(a) for a in activation]
        if len(names) != max(depth - 1, 0):
            fail("OP_ARGUMENT", f"{NAME}: not one activation for each hidden layer",
                 [f"want: {max(depth - 1, 0)}, and out_activation for the last layer", f"got:  {len(names)}"],
                 "pass one for all of them, or a list")  # fmt: skip
    else:
        names = [_name(activation)] * (depth - 1)
    names.append(_name(out_activation))
    return weights, biases, biased, names


@public
def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activation: Activation | Sequence[Activation] = "relu",
    out_activation: Activation = None,
) -> Tensor:
    """Linear layers with activations, ``x = act(x @ weights[i].T + biases[i])`` for every i, in one kernel.

    x is (..., in), ``weights[i]`` (out, in) as in torch.nn.Linear, ``biases[i]`` (out,) or None. ``activation`` is that
    of all layers but the last, or a list with one for each of them; ``out_activation`` is that of the last layer. An
    activation is None, a name that `matmul` knows, or a function of a register such as ``lambda x: gr.max(x, 0)``. A
    function is called every time, equal functions share a kernel, and there is no gradient through it. Sums are fp32.
    Each layer's result is rounded to the dtype, as it would be between kernels, but stays on the chip.

    One kernel computes fp16 and bf16 with hidden widths up to 256. With greater widths there is a kernel for each
    layer. PyTorch's operators compute other dtypes. Autocast converts tensors as for torch.nn.functional.linear. The
    gradient computes the layers again.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    call = FUSED_MLP.dispatched if is_compiling() else FUSED_MLP.core
    return call(x, *_layers(weights, biases, activation, out_activation))
