"""The gradients of layer_norm and rms_norm as operators of their own: of rows and, summed over rows, of columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.ops.core import kernels as _kernels
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, same_shape, shape_text
from graphene.ops.core.define import SIMULATED, Arg, Defined, Definition
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import Extent, divides, lies_in_rows, output, own, recipe, view


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
    """Of x (and as much of the residual), the factor and the addend, in fp32 (fp64 of fp64), by PyTorch's operators.

    `total`: the gradient of x + residual itself.
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


class Gradients:
    """Of one of the normalisations, `kind` "layer" or "rms"."""

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
        """Elements, or what blocks take: threads of a long row, and rows of threads over columns, exchange sums."""
        n, width = int(x.numel()), prod(shape)
        if n == 0 or n > SIMULATED:
            return n
        of_columns = 0
        if rest[-1]:
            threads, vector, parts = _kernels.norm_columns(n // width, width)
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
        """The formula."""
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
        if prod(shape) > _kernels.MOST:
            return _core.Recipe.torch(_kernels.TOO_WIDE)
        rank, n = len(x.shape), len(shape)
        rows, across = list(range(rank - n)), list(range(rank - n, rank))
        given = (x, residual, g, weight, total)
        copies = 0
        for i, t in enumerate(given):
            if t is not None and not lies_in_rows(t, n):
                copies |= 1 << i
        if copies:
            return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")
        width, bytes_ = prod(shape), x.item_bytes
        align = divides(16, width * bytes_)
        for t in given:
            if t is not None:
                starts = [t.strides[d] * bytes_ for d in range(len(t.shape) - n) if t.shape[d] != 1]
                align = divides(min(align, t.align), *starts)
        problem = _kernels.Norm(
            self.kind, prod(x.shape) // width, width, x.dtype, align, weight is not None, False,
            residual is not None, total is not None, eps, x.device,
        )  # fmt: skip
        found = _kernels.norm_gradients(problem, columns)
        if isinstance(found, str):
            return _core.Recipe.torch(found)
        name = _kernels.DTYPES[x.dtype]
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


layer_gradients, rms_gradients = Gradients("layer"), Gradients("rms")
