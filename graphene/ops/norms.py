"""graphene.ops.layer_norm and rms_norm: norm(input + residual), in fp32, rounded once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from graphene import _core, dtypes
from graphene.launch_views import Size
from graphene.ops.core.checks import (
    FLOATS,
    check_devices,
    check_dtypes,
    same_shape,
    shape_text,
)
from graphene.ops.core.context import to_fp32
from graphene.ops.core.define import SIMULATED, Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MOST, ROW_DTYPES, TOO_WIDE, KernelCalls, model_name, target_device
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import Extent, divides, lies_in_rows, output, own, recipe, view


@dataclass(frozen=True)
class NormProblem:
    """A normalisation over rows of ``width`` elements.

    ``align``: bytes that divide every address and row's start. ``dense``: bytes that divide every address, if there are
    no gaps between rows.
    """

    kind: str  # "layer", "rms"
    rows: int
    width: int
    dtype: str
    align: int
    weight: bool
    bias: bool
    residual: bool
    total: bool  # also store input + residual
    eps: float
    device: str
    dense: int = 0
    offset: float = 0.0  # added to the weight


@functools.cache
def _norm(kind: str, config: Any) -> Any:
    from graphene.kernels.rows.layernorm import layernorm_kernel
    from graphene.kernels.rows.rmsnorm import rmsnorm_kernel

    return (layernorm_kernel if kind == "layer" else rmsnorm_kernel)(config)


def choose(p: NormProblem) -> KernelCalls | str:
    """``norm(input + residual) * weight + bias``."""
    from graphene.select.rows import select_norm

    if p.dtype not in ROW_DTYPES:
        return f"no kernel for rows of {p.dtype}"
    config = select_norm(
        p.rows, p.width, getattr(dtypes, DTYPES[p.dtype]), align_bytes=p.align, dense_bytes=p.dense,
        shared_bytes=target_device(p.device).shared_bytes, device=model_name(p.device), kind=f"{p.kind}norm",
        gamma=p.weight, beta=p.bias, residual=p.residual, write_sum=p.total, shift=p.weight and p.offset != 0,
    )  # fmt: skip
    given = {
        "input": True,
        "residual": p.residual,
        "weight": p.weight,
        "bias": p.bias,
        "output": True,
        "total": p.total,
    }
    names: list[str | float] = [*(name for name, has in given.items() if has), p.eps, *[p.offset] * config.shift]
    return KernelCalls([(_norm(p.kind, config), names)])


@functools.cache
def _columns(config: Any) -> Any:
    from graphene.kernels.rows.norm_backward import norm_columns_kernel

    return norm_columns_kernel(config)


@functools.cache
def _reduction(config: Any) -> Any:
    from graphene.kernels.reduction import reduction_kernel

    return reduction_kernel(config)


@functools.cache
def _norm_backward(kind: str, config: Any) -> Any:
    from graphene.kernels.rows.norm_backward import layernorm_backward_kernel, rmsnorm_backward_kernel

    return (layernorm_backward_kernel if kind == "layer" else rmsnorm_backward_kernel)(config)


def columns_plan(rows: int, width: int) -> tuple[int, int, int]:
    """For the kernel that sums over rows: rows of threads in a block, elements of a thread, parts of the rows."""
    from graphene.select.rows import select_norm_columns

    config, parts = select_norm_columns(rows, width, dtypes.fp32, align_bytes=16)
    return config.rows, config.vector, parts


def choose_gradients(p: NormProblem, columns: bool) -> KernelCalls | str:
    """The gradients of input and, with `columns`, of weight and bias, for `p`, whose ``total`` may have a gradient."""
    from graphene.kernels.rows.norm import exact_mean
    from graphene.select.elements import select_reduction
    from graphene.select.rows import select_norm_backward, select_norm_columns

    if p.dtype not in ROW_DTYPES:
        return f"no kernel for rows of {p.dtype}"
    dtype, shared_bytes = getattr(dtypes, DTYPES[p.dtype]), target_device(p.device).shared_bytes
    config = select_norm_backward(
        p.rows, p.width, dtype, align_bytes=p.align, shared_bytes=shared_bytes, gamma=p.weight, residual=p.residual,
        write_sum=p.total,
    )  # fmt: skip
    centred = p.kind == "layer"
    statistics = ["mean"] * centred + ["rest"] * (centred and exact_mean(dtype)) + ["rstd"]
    inputs = ["x", "residual", "grad"] if p.residual else ["x", "grad"]
    given = (("weight", p.weight), ("total", p.total))
    names: list[str | float] = [*inputs, *(name for name, has in given if has), "dx", *statistics, p.eps]
    workspaces: dict[str, tuple[str, list[Size]]] = {name: ("fp32", [("rows", 1)]) for name in statistics}
    kernels: list[tuple[Any, list[str | float]]] = [(_norm_backward(p.kind, config), names)]
    if columns:
        options = {"centred": centred, "beta": True, "residual": p.residual}
        sums, parts = select_norm_columns(p.rows, p.width, dtype, align_bytes=p.align, **options)
        for name in ("dweight", "dbias"):
            workspaces[name + "_parts"] = ("fp32", [(parts, 1), ("width", 1)])
        kernels.append((_columns(sums), [*inputs, *statistics, "dweight_parts", "dbias_parts"]))
        last = select_reduction(parts, p.width, 0, dtype=dtypes.fp32, align_bytes=4, out_dtype=dtype)
        kernels += [(_reduction(last), [name + "_parts", name]) for name in ("dweight", "dbias")]
    return KernelCalls(kernels, workspaces)


# Gradients: operators of their own, for rows and, summed over rows, for columns.


def check(
    name: str, input: Tensor, shape: Sequence[Any], weight: Tensor, bias: Tensor, residual: Tensor
) -> tuple[Any, Any]:
    """The shape and dtype of the results. Raises OP_DEVICE, OP_DTYPE, OP_SHAPE."""
    given = {"input": input, "weight": weight, "bias": bias, "residual": residual}
    check_devices(name, given)
    check_dtypes(name, given, FLOATS)
    n = len(shape)
    if n == 0 or n > input.dim() or not same_shape(input.shape[input.dim() - n :], shape):
        fail("OP_SHAPE", f"{name}: the last extents of 'input' are not normalized_shape",
             [f"normalized_shape: {shape_text(shape)}", f"input: {shape_text(input.shape)}"],
             "pass input.shape[-1:], or of as many dimensions as are normalised together")  # fmt: skip
    for what, t in (("weight", weight), ("bias", bias)):
        if t is not None and not same_shape(t.shape, shape):
            fail("OP_SHAPE", f"{name}: argument '{what}' has the wrong shape",
                 [f"want: {shape_text(shape)}, as normalized_shape", f"got:  {shape_text(t.shape)}"],
                 "pass one number for each element of a row")  # fmt: skip
    if residual is not None and not same_shape(residual.shape, input.shape):
        fail("OP_SHAPE", f"{name}: argument 'residual' has the wrong shape",
             [f"want: {shape_text(input.shape)}, as input", f"got:  {shape_text(residual.shape)}"],
             "pass residual.expand_as(input)")  # fmt: skip
    return input.shape, input.dtype


def formula(
    centred: bool,
    x: Tensor,
    residual: Tensor,
    g: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    total: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (and equally of the residual), factor and addend, in fp32 (fp64 for fp64), by PyTorch.

    `total`: the gradient that x + residual itself receives.
    """
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    dims = list(range(-len(shape), 0))
    n, g = x.to(wide), g.to(wide)
    if residual is not None:
        n = n + residual.to(wide)
    if centred:
        n = n - n.mean(dims, keepdim=True)
        n = n - n.mean(dims, keepdim=True)  # what rounding took from the mean
    scale = torch.rsqrt((n * n).mean(dims, keepdim=True) + eps)
    n = n * scale
    gw = g if weight is None else g * weight.to(wide)
    gx = gw - n * (gw * n).mean(dims, keepdim=True)
    if centred:
        gx = gx - gw.mean(dims, keepdim=True)
    gx = gx * scale
    if total is not None:
        gx = gx + total.to(wide)
    return gx.to(x.dtype), (g * n).sum_to_size(shape).to(x.dtype), g.sum_to_size(shape).to(x.dtype)


def _copy_scattered(given: Sequence[Arg | None], dims: int) -> Any:
    """The recipe that copies tensors whose last `dims` dimensions are not a row; None if there are none."""
    copies = sum(1 << i for i, t in enumerate(given) if t is not None and not lies_in_rows(t, dims))
    if not copies:
        return None
    return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")


class NormGradients:
    """The gradient of one of the normalisations, `kind` "layer" or "rms"."""

    def __init__(self, kind: str) -> None:
        self.kind, self.centred = kind, kind == "layer"
        self.defined = Defined(
            Definition(
                f"{kind}_norm_backward",
                "(Tensor x, Tensor? residual, Tensor grad, int[] normalized_shape, Tensor? weight, Tensor? grad_sum, "
                "float eps, bool columns) -> (Tensor, Tensor, Tensor)",
                self.configure, self.results, self.reference, self.cost, exact={"x": 1}, part_of=f"{kind}_norm",
            )
        )  # fmt: skip

    def results(
        self,
        x: Tensor,
        residual: Tensor,
        g: Tensor,
        shape: Sequence[int],
        weight: Tensor,
        total: Tensor,
        eps: float,
        columns: bool,
    ) -> list[tuple[Any, Any]]:
        """Gradients of x, of the factor and the addend; the last two are empty unless they are wanted."""
        name = self.defined.definition.name
        check(name, x, shape, weight, None, residual)
        check(name, x, shape, None, None, total)
        check(name, g, shape, None, None, None)
        check_devices(name, {"x": x, "grad": g})
        if not same_shape(g.shape, x.shape):
            fail("OP_SHAPE", f"{name}: argument 'grad' has the wrong shape",
                 [f"want: {shape_text(x.shape)}, as x", f"got:  {shape_text(g.shape)}"],
                 "pass one of x's shape")  # fmt: skip
        one = (list(shape) if columns else [0], x.dtype)
        return [(x.shape, x.dtype), one, one]

    def cost(self, x: Tensor, residual: Any, g: Any, shape: Sequence[int], *rest: Any) -> int:
        """The elements, or the cost of blocks if it is more: threads of long rows and of columns exchange sums."""
        n, width = int(x.numel()), prod(shape)
        if n == 0 or n > SIMULATED:
            return n
        of_columns = 0
        if rest[-1]:
            threads, vector, parts = columns_plan(n // width, width)
            steps = -(-n // width // (threads * parts))
            of_columns = parts * -(-width // (32 * vector)) * vector * threads * (20 * threads + 5 * steps)
            of_columns += 2 * -(-width // 32) * (100 + parts)
        return max(n, (2 if width > 4096 else 1) * n + of_columns)

    def reference(
        self,
        x: Tensor,
        residual: Tensor,
        g: Tensor,
        shape: Sequence[int],
        weight: Tensor,
        total: Tensor,
        eps: float,
        columns: bool,
    ) -> Any:
        """The gradient by its formula."""
        dx, *of_columns = formula(self.centred, x, residual, g, list(shape), weight, total, eps)
        return (dx, *(t if columns else t.new_empty(0) for t in of_columns))

    def configure(
        self,
        x: Arg,
        residual: Arg | None,
        g: Arg,
        shape: Sequence[int],
        weight: Arg | None,
        total: Arg | None,
        eps: float,
        columns: bool,
    ) -> Any:
        """The recipe of a configuration."""
        if 0 in x.shape or g.dtype != x.dtype:
            return _core.Recipe.torch("there is nothing to normalise" if 0 in x.shape else "gradients of another dtype")
        if prod(shape) > MOST:
            return _core.Recipe.torch(TOO_WIDE)
        rank, n = len(x.shape), len(shape)
        rows, across = list(range(rank - n)), list(range(rank - n, rank))
        given = (x, residual, g, weight, total)
        if (copy := _copy_scattered(given, n)) is not None:
            return copy
        width, bytes_ = prod(shape), x.item_bytes
        align = divides(16, width * bytes_)
        for t in given:
            if t is not None:
                starts = [t.strides[d] * bytes_ for d in range(len(t.shape) - n) if t.shape[d] != 1]
                align = divides(min(align, t.align), *starts)
        problem = NormProblem(
            self.kind, prod(x.shape) // width, width, x.dtype, align, weight is not None, False,
            residual is not None, total is not None, eps, x.device,
        )  # fmt: skip
        found = choose_gradients(problem, columns)
        if isinstance(found, str):
            return _core.Recipe.torch(found)
        name = DTYPES[x.dtype]
        row_extents: list[Extent] = [(0, d) for d in rows] or [(-1, 1)]
        column_extents: list[Extent] = [(0, d) for d in across]
        outputs = [output(name, *([(0, d)] for d in range(rank)))]
        outputs += [output(name, *([(0, d)] if columns else [(-1, 0)] for d in (across if columns else [0])))] * 2
        matrices = {"x": 0, "residual": 1, "grad": 2, "total": 4, "dx": 5}
        views = {name_: view(i, own(i, *rows), own(i, *across)) for name_, i in matrices.items()}
        views["weight"] = view(3, own(3, *range(n)))
        for i, name_ in enumerate(("dweight", "dbias"), 6):
            views[name_] = view(i, own(i), own(i, *range(n)))
        sizes: dict[str, list[Extent]] = {"rows": row_extents, "width": column_extents}
        for i, (what, (dtype, extents)) in enumerate(found.workspaces.items(), 8):
            outputs.append(output(dtype, *(sizes[s] if isinstance(s, str) else [(-1, s)] for s, _ in extents)))
            views[what] = view(i, *(own(i, d) for d in range(len(extents))))
        return recipe(outputs, 3, found.kernels, views)


layer_gradients, rms_gradients = NormGradients("layer"), NormGradients("rms")


# The operators.


class Norm:
    """One of the normalisations: `kind` is "layer" or "rms"; with `add` it also returns input + residual."""

    def __init__(self, kind: str, add: bool) -> None:
        self.kind, self.add = kind, add
        self.public = f"{kind}_norm"
        self.has_bias = kind == "layer"
        self.gradients = (layer_gradients if self.has_bias else rms_gradients).defined
        # rms_norm's default of eps depends on the dtype, which a schema cannot say: there it has none.
        rest = (
            "Tensor? weight=None, Tensor? bias=None, float eps=1e-5" if self.has_bias else "Tensor? weight, float eps"
        )
        residual = ", Tensor residual" if add else ", Tensor? residual=None"
        result = "(Tensor, Tensor)" if add else "Tensor"
        # A residual without a default comes before the arguments with defaults.
        schema = f"(Tensor input, int[] normalized_shape{residual if add else ''}, {rest}"
        schema += f"{'' if add else residual}{'' if self.has_bias else ', float weight_offset=0.0'}) -> {result}"
        self.defined = Defined(
            Definition(
                f"add_{self.public}" if add else self.public, schema,
                lambda *a: self.configure(*self.named(a)), lambda *a: self.results(*self.named(a)),
                lambda *a: self.reference(*self.named(a)), lambda x, *_: int(x.numel()), self.save, self.backward,
                exact={"input": 1}, said=self.public, autocast=to_fp32,
            )
        )  # fmt: skip

    def named(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Input, normalized_shape, weight, bias, eps, residual, offset, from arguments in the schema's order."""
        rest = list(args[2:])
        offset = 0.0 if self.has_bias else rest.pop()
        residual = rest.pop(0) if self.add else rest.pop()
        weight = rest.pop(0)
        bias = rest.pop(0) if self.has_bias else None
        return args[0], args[1], weight, bias, rest[0], residual, offset

    def ordered(self, input: Any, shape: Any, weight: Any, bias: Any, eps: Any, residual: Any) -> tuple[Any, ...]:
        """The arguments in the schema's order, the offset None."""
        middle = (weight, bias, eps) if self.has_bias else (weight, eps)
        last = () if self.has_bias else (None,)
        return (input, shape, residual, *middle, *last) if self.add else (input, shape, *middle, residual, *last)

    def results(
        self, input: Tensor, shape: Sequence[Any], weight: Tensor, bias: Tensor, eps: float, residual: Tensor,
        offset: float,
    ) -> list[tuple[Any, Any]]:  # fmt: skip
        """Shape and dtype of the results, all arguments checked."""
        return [check(self.public, input, shape, weight, bias, residual)] * (2 if self.add else 1)

    def configure(
        self, input: Arg, shape: Sequence[int], weight: Arg | None, bias: Arg | None, eps: float, residual: Arg | None,
        offset: float,
    ) -> Any:  # fmt: skip
        """The recipe of a configuration."""
        order = self.ordered("input", None, "weight", "bias", None, "residual")
        tensors = [x for x in order if x is not None]
        index = {name: i for i, name in enumerate(tensors)}
        rank, n = len(input.shape), len(shape)
        rows, columns = list(range(rank - n)), list(range(rank - n, rank))
        made = output(DTYPES.get(input.dtype, "fp32"), *([(0, d)] for d in range(rank)))
        outputs = [made] * (2 if self.add else 1)
        if 0 in input.shape:
            return _core.Recipe(outputs, len(outputs), [])
        if prod(shape) > MOST:
            return _core.Recipe.torch(TOO_WIDE)
        given = {"input": input, "residual": residual, "weight": weight, "bias": bias}
        if (copy := _copy_scattered([given[name] for name in tensors], n)) is not None:
            return copy
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
        launches = choose(
            NormProblem(self.kind, prod(input.shape) // width, width, input.dtype, align, weight is not None,
                          bias is not None, residual is not None, self.add, eps, input.device, dense, offset)
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
        return recipe(outputs, len(outputs), launches.kernels, views)

    def reference(
        self, input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float, residual: Tensor,
        offset: float,
    ) -> Any:  # fmt: skip
        """The same by PyTorch's operators, in fp32 (fp64 for fp64), rounded once."""
        f = torch.nn.functional
        wide = input.dtype if input.dtype == torch.float64 else torch.float32
        x = input.to(wide) if residual is None else input.to(wide) + residual.to(wide)
        weight, bias = (t if t is None else t.to(wide) for t in (weight, bias))
        weight = weight if weight is None or not offset else weight + offset
        shape = list(shape)
        y = f.layer_norm(x, shape, weight, bias, eps) if self.has_bias else f.rms_norm(x, shape, weight, eps)
        return (y.to(input.dtype), x.to(input.dtype)) if self.add else y.to(input.dtype)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves the arguments for the gradient, which computes mean and deviation again."""
        input, shape, weight, bias, eps, residual, ctx.offset = self.named(inputs)
        ctx.save_for_backward(input, weight, bias, residual)
        ctx.shape, ctx.eps = tuple(shape), eps

    def backward(self, ctx: Any, g: Tensor, g_total: Tensor | None = None) -> tuple[Any, ...]:
        """The gradient by kernels, or by PyTorch's operators in fp32 if the gradient itself is differentiated."""
        input, weight, bias, residual = ctx.saved_tensors
        columns = (weight is not None or bias is not None) and any(ctx.needs_input_grad[1:])
        given = (input, residual, g, ctx.shape, weight, g_total, ctx.eps)
        if weight is not None and ctx.offset:
            given = (*given[:4], weight.to(torch.promote_types(weight.dtype, torch.float32)) + ctx.offset, *given[5:])
        if torch.is_grad_enabled() or ctx.offset:
            gx, gw, gb = formula(self.has_bias, *given)
        else:
            gx, gw, gb = self.gradients.forward(*given, columns)
        gx, gw, gb = (t.to(input.dtype) for t in (gx, gw, gb))
        return self.ordered(
            gx, None, None if weight is None or not columns else gw, None if bias is None or not columns else gb, None,
            None if residual is None else gx,
        )  # fmt: skip


LAYER, ADD_LAYER = Norm("layer", add=False).defined, Norm("layer", add=True).defined
RMS, ADD_RMS = Norm("rms", add=False).defined, Norm("rms", add=True).defined
# The machine epsilon of the type that a norm is computed in, by the dtype of its input.
_FP32_EPSILON, _EPSILON = 2.0**-23, {torch.float64: 2.0**-52}


def _no_flag(name: str, return_sum: Any) -> NoReturn:
    fail("OP_ARGUMENT", f"{name}: argument 'return_sum' is not a bool", [f"got:  {return_sum!r}"],
         "pass True or False")  # fmt: skip


@public
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

    The arguments are those of torch.nn.functional.layer_norm. Mean and variance are taken over the last
    ``len(normalized_shape)`` dimensions. ``weight`` and ``bias`` have normalized_shape, ``residual`` input's shape.
    With ``return_sum`` the result is (result, x), x in the result's dtype; without a residual x is the input. All
    tensors have one dtype: fp16, bf16 or fp32 (PyTorch's operators compute fp64). Rows that do not lie one after the
    other are copied once. Autocast converts all tensors to fp32, as for torch.nn.functional.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if return_sum is not True and return_sum is not False:  # here: each call that Python makes costs every call
        _no_flag("layer_norm", return_sum)
    if residual is not None and return_sum:
        return (ADD_LAYER.dispatched if is_compiling() else ADD_LAYER.core)(
            input, normalized_shape, residual, weight, bias, eps
        )
    y = (LAYER.dispatched if is_compiling() else LAYER.core)(input, normalized_shape, weight, bias, eps, residual)
    return (y, input.to(y.dtype)) if return_sum else y


@public
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    return_sum: bool = False,
    weight_offset: float = 0.0,
) -> Any:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` with x = input + residual, in fp32, rounded once.

    The arguments are those of torch.nn.functional.rms_norm. ``eps`` None is the machine epsilon: that of fp32, in which
    the norm is computed, and 2^-52 for fp64. With a ``weight_offset``, such as the 1 of networks whose weights are near
    0, PyTorch's operators compute the gradient. The rest is as in ``layer_norm``.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if eps is None:
        eps = _EPSILON.get(getattr(input, "dtype", None), _FP32_EPSILON)
    if return_sum is not True and return_sum is not False:  # here: each call that Python makes costs every call
        _no_flag("rms_norm", return_sum)
    if residual is not None and return_sum:
        return (ADD_RMS.dispatched if is_compiling() else ADD_RMS.core)(
            input, normalized_shape, residual, weight, eps, weight_offset
        )
    y = (RMS.dispatched if is_compiling() else RMS.core)(input, normalized_shape, weight, eps, residual, weight_offset)
    return (y, input.to(y.dtype)) if return_sum else y
