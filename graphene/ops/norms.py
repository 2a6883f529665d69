"""graphene.ops.layer_norm and rms_norm: norm(input + residual), in fp32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.ops.core import kernels as _kernels
from graphene.ops.core.checks import check_numbers, check_tensors, sizes
from graphene.ops.core.define import Arg, Defined, Definition, autocasts, cast
from graphene.ops.core.torch import Tensor, torch
from graphene.ops.core.views import divides, lies_in_rows, output, own, view
from graphene.ops.norm_gradients import check, formula, layer_gradients, rms_gradients


class Norm:
    """One of the normalisations: `kind` "layer" or "rms", `add`: also returns input + residual."""

    def __init__(self, kind: str, add: bool) -> None:
        self.kind, self.add = kind, add
        self.public = f"{kind}_norm"
        self.has_bias = kind == "layer"
        self.gradients = (layer_gradients if self.has_bias else rms_gradients).defined.forward
        # rms_norm's default of eps depends on the dtype, which a schema cannot say: there it has none.
        rest = (
            "Tensor? weight=None, Tensor? bias=None, float eps=1e-5" if self.has_bias else "Tensor? weight, float eps"
        )
        residual = ", Tensor residual" if add else ", Tensor? residual=None"
        result = "(Tensor, Tensor)" if add else "Tensor"
        # The residual comes before what has a default where it has none.
        schema = f"(Tensor input, int[] normalized_shape{residual if add else ''}, {rest}"
        schema += f"{'' if add else residual}) -> {result}"
        self.defined = Defined(
            Definition(
                f"add_{self.public}" if add else self.public, schema,
                lambda *a: self.configure(*self.named(a)), lambda *a: self.results(*self.named(a)),
                lambda *a: self.reference(*self.named(a)), lambda x, *_: int(x.numel()), self.save, self.backward,
                exact={"input": 1}, said=self.public,
            )
        )  # fmt: skip

    def named(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Input, normalized_shape, weight, bias, eps, residual: whatever the schema's order."""
        rest = list(args[2:])
        residual = rest.pop(0) if self.add else rest.pop()
        weight = rest.pop(0)
        bias = rest.pop(0) if self.has_bias else None
        return args[0], args[1], weight, bias, rest[0], residual

    def ordered(self, input: Any, shape: Any, weight: Any, bias: Any, eps: Any, residual: Any) -> tuple[Any, ...]:
        """The schema's order."""
        middle = (weight, bias, eps) if self.has_bias else (weight, eps)
        return (input, shape, residual, *middle) if self.add else (input, shape, *middle, residual)

    def results(
        self, input: Tensor, shape: Sequence[Any], weight: Tensor, bias: Tensor, eps: float, residual: Tensor
    ) -> list[tuple[Any, Any]]:
        """Shape and dtype of the results, all arguments checked."""
        return [check(self.public, input, shape, weight, bias, residual)] * (2 if self.add else 1)

    def configure(
        self, input: Arg, shape: Sequence[int], weight: Arg | None, bias: Arg | None, eps: float, residual: Arg | None
    ) -> Any:
        """The recipe of a configuration."""
        order = self.ordered("input", None, "weight", "bias", None, "residual")
        tensors = [x for x in order if x is not None]
        index = {name: i for i, name in enumerate(tensors)}
        rank, n = len(input.shape), len(shape)
        rows, columns = list(range(rank - n)), list(range(rank - n, rank))
        made = output(_kernels.DTYPES.get(input.dtype, "fp32"), *([(0, d)] for d in range(rank)))
        outputs = [made] * (2 if self.add else 1)
        if 0 in input.shape:
            return _core.Recipe(outputs, len(outputs), [])
        if prod(shape) > _kernels.MOST:
            return _core.Recipe.torch(_kernels.TOO_WIDE)
        copies = 0
        for name, t in (("input", input), ("residual", residual), ("weight", weight), ("bias", bias)):
            if t is not None and not lies_in_rows(t, n):
                copies |= 1 << index[name]
        if copies:
            return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")
        width, bytes_ = prod(shape), input.item_bytes
        align, dense = divides(16, width * bytes_), 16
        for t in (input, residual):
            if t is not None:
                starts = [t.strides[d] * bytes_ for d in rows if t.shape[d] != 1]
                align = divides(min(align, t.align), *starts)
                dense = min(dense, t.align) if starts[-1:] in ([], [width * bytes_]) else 0
        for t in (weight, bias):
            if t is not None:
                align, dense = min(align, t.align), min(dense, t.align)
        launches = _kernels.norm(
            _kernels.Norm(self.kind, prod(input.shape) // width, width, input.dtype, align, weight is not None,
                          bias is not None, residual is not None, self.add, eps, input.device, dense)
        )  # fmt: skip
        if isinstance(launches, str):
            return _core.Recipe.torch(launches)
        count = len(tensors)
        views = {name: view(i, own(i, *rows), own(i, *columns)) for name, i in index.items() if name != "bias"}
        for name in ("weight", "bias"):
            if name in index:
                views[name] = view(index[name], own(index[name], *range(n)))
        for i, name in enumerate(("output", "total")):
            views[name] = view(count + i, own(count + i, *rows), own(count + i, *columns))
        return _core.Recipe(
            outputs,
            len(outputs),
            [(k, [views[x] if isinstance(x, str) else x for x in xs]) for k, xs in launches.kernels],
        )

    def reference(
        self, input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float, residual: Tensor
    ) -> Any:
        """PyTorch's own, in fp32 (fp64 of fp64), rounded once."""
        f = torch.nn.functional
        wide = input.dtype if input.dtype == torch.float64 else torch.float32
        x = input.to(wide) if residual is None else input.to(wide) + residual.to(wide)
        weight, bias = (t if t is None else t.to(wide) for t in (weight, bias))
        shape = list(shape)
        y = f.layer_norm(x, shape, weight, bias, eps) if self.has_bias else f.rms_norm(x, shape, weight, eps)
        return (y.to(input.dtype), x.to(input.dtype)) if self.add else y.to(input.dtype)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """For the gradient: the arguments; mean and deviation are computed again."""
        defaults = self.defined._in_order(inputs, {})
        input, shape, weight, bias, eps, residual = self.named(defaults)
        ctx.save_for_backward(input, weight, bias, residual)
        ctx.shape, ctx.eps = tuple(shape), eps

    def backward(self, ctx: Any, g: Tensor, g_total: Tensor | None = None) -> tuple[Any, ...]:
        """By kernels; by PyTorch's operators, in fp32, where it is differentiated itself."""
        input, weight, bias, residual = ctx.saved_tensors
        columns = (weight is not None or bias is not None) and any(ctx.needs_input_grad[1:])
        given = (input, residual, g, ctx.shape, weight, g_total, ctx.eps)
        if torch.is_grad_enabled():
            gx, gw, gb = formula(self.has_bias, *given)
        else:
            gx, gw, gb = self.gradients(*given, columns)
        gx, gw, gb = (t.to(input.dtype) for t in (gx, gw, gb))
        return self.ordered(
            gx, None, None if weight is None or not columns else gw, None if bias is None or not columns else gb, None,
            None if residual is None else gx,
        )  # fmt: skip

    def check_types(self, input: Any, shape: Any, weight: Any, bias: Any, eps: Any, residual: Any) -> list[Any]:
        """The shape as a list. Raises OP_ARGUMENT for anything but a tensor or a number."""
        check_tensors(self.public, {"input": input, "weight": weight, "bias": bias, "residual": residual},
                      ("weight", "bias") if self.add else ("weight", "bias", "residual"))  # fmt: skip
        check_numbers(self.public, {"eps": eps})
        return sizes(self.public, "normalized_shape", shape)

    def __call__(self, *args: Any) -> Any:
        """Through PyTorch's dispatcher; arguments as `named` returns them."""
        input, shape, weight, bias, eps, residual = args
        shape = self.check_types(*args)
        if autocasts(input):
            input, weight, bias, residual = cast(torch.float32, input, weight, bias, residual)
        self.results(input, shape, weight, bias, eps, residual)
        return self.defined(*self.ordered(input, shape, weight, bias, eps, residual))


_layer, _add_layer = Norm("layer", add=False), Norm("layer", add=True)
_rms, _add_rms = Norm("rms", add=False), Norm("rms", add=True)
_layer_fast, _add_layer_fast = _layer.defined.core, _add_layer.defined.core
_rms_fast, _add_rms_fast = _rms.defined.core, _add_rms.defined.core
_is_compiling = torch.compiler.is_dynamo_compiling
# The machine epsilon of the type that a norm is computed in, by the dtype of its input.
_FP32_EPSILON, _EPSILON = 2.0**-23, {torch.float64: 2.0**-52}


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    return_sum: bool = False,
) -> Any:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` with x = input + residual, in fp32, rounded once.

    torch.nn.functional.layer_norm's arguments; mean and variance over the last ``len(normalized_shape)`` dimensions.
    ``weight``, ``bias``: of normalized_shape. ``residual``: of input's shape. ``return_sum``: returns (result, x), x
    in the result's dtype; without a residual x is the input. All tensors of one dtype: fp16, bf16, fp32 (fp64 on
    PyTorch's operators). Rows that do not lie one after the other are copied once. Under autocast all are converted to
    fp32, as torch.nn.functional's are.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if residual is None or not return_sum:
        if not _is_compiling():
            y = _layer_fast(input, normalized_shape, weight, bias, eps, residual)
            if y is not NotImplemented:
                return (y, input) if return_sum else y
        y = _layer(input, normalized_shape, weight, bias, eps, residual)
        return (y, input.to(y.dtype)) if return_sum else y
    if not _is_compiling():
        both = _add_layer_fast(input, normalized_shape, residual, weight, bias, eps)
        if both is not NotImplemented:
            return both
    return _add_layer(input, normalized_shape, weight, bias, eps, residual)


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    return_sum: bool = False,
) -> Any:
    """``x / sqrt(mean(x^2) + eps) * weight`` with x = input + residual, in fp32, rounded once.

    torch.nn.functional.rms_norm's arguments: ``eps`` None is the machine epsilon, here of fp32, in which the norm is
    computed, and 2^-52 of fp64. The rest is as in ``layer_norm``.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if eps is None:
        eps = _EPSILON.get(getattr(input, "dtype", None), _FP32_EPSILON)
    if residual is None or not return_sum:
        if not _is_compiling():
            y = _rms_fast(input, normalized_shape, weight, eps, residual)
            if y is not NotImplemented:
                return (y, input) if return_sum else y
        y = _rms(input, normalized_shape, weight, None, eps, residual)
        return (y, input.to(y.dtype)) if return_sum else y
    if not _is_compiling():
        both = _add_rms_fast(input, normalized_shape, residual, weight, eps)
        if both is not NotImplemented:
            return both
    return _add_rms(input, normalized_shape, weight, None, eps, residual)


def _explained_layer(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *,
    residual: Any = None, return_sum: bool = False,
) -> tuple[Defined, tuple[Any, ...]]:  # fmt: skip
    norm = _add_layer if return_sum and residual is not None else _layer
    shape = norm.check_types(input, normalized_shape, weight, bias, eps, residual)
    return norm.defined, norm.ordered(input, shape, weight, bias, eps, residual)


def _explained_rms(
    input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None, *, residual: Any = None,
    return_sum: bool = False,
) -> tuple[Defined, tuple[Any, ...]]:  # fmt: skip
    norm = _add_rms if return_sum and residual is not None else _rms
    if eps is None:
        eps = _EPSILON.get(getattr(input, "dtype", None), _FP32_EPSILON)
    shape = norm.check_types(input, normalized_shape, weight, None, eps, residual)
    return norm.defined, norm.ordered(input, shape, weight, None, eps, residual)


layer_norm.explained = _explained_layer  # type: ignore[attr-defined]
rms_norm.explained = _explained_rms  # type: ignore[attr-defined]
