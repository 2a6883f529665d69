"""The gradients of layer_norm and rms_norm as operators of their own: of rows and, summed over rows, of columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.ops import _kernels
from graphene.ops._define import Arg, Defined, Definition
from graphene.ops._torch import Tensor, torch
from graphene.ops._views import Extent, divides, lies_in_rows, output, own, recipe, view


def formula(
    centred: bool, x: Tensor, g: Tensor, shape: Sequence[int], weight: Tensor, total: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, the factor and the addend, in fp32 (fp64 of fp64), by PyTorch's operators; `total`: of x itself."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    dims = list(range(-len(shape), 0))
    n, g = x.to(wide), g.to(wide)
    if centred:
        n = n - n.mean(dims, keepdim=True)
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
                "(Tensor x, Tensor grad, int[] normalized_shape, Tensor? weight, Tensor? grad_sum, float eps, "
                "bool columns) -> (Tensor, Tensor, Tensor)",
                self.configure, self.results, self.reference, lambda x, *_: int(x.numel()), exact={"x": 1},
            )
        )  # fmt: skip

    def results(
        self, x: Tensor, g: Tensor, shape: Sequence[int], weight: Tensor, total: Tensor, eps: float, columns: bool
    ) -> list[tuple[Any, Any]]:
        """Gradients of x, of the factor and the addend; the last two are empty unless they are wanted."""
        one = (list(shape) if columns else [0], x.dtype)
        return [(x.shape, x.dtype), one, one]

    def reference(
        self, x: Tensor, g: Tensor, shape: Sequence[int], weight: Tensor, total: Tensor, eps: float, columns: bool
    ) -> Any:
        """The formula."""
        dx, *of_columns = formula(self.centred, x, g, list(shape), weight, total, eps)
        return (dx, *(t if columns else t.new_empty(0) for t in of_columns))

    def configure(
        self, x: Arg, g: Arg, shape: Sequence[int], weight: Arg | None, total: Arg | None, eps: float, columns: bool
    ) -> Any:
        """The recipe of a configuration."""
        if 0 in x.shape or g.dtype != x.dtype:
            return _core.Recipe.torch("there is nothing to normalise" if 0 in x.shape else "gradients of another dtype")
        rank, n = len(x.shape), len(shape)
        rows, across = list(range(rank - n)), list(range(rank - n, rank))
        given = (("x", x), ("grad", g), ("weight", weight), ("total", total))
        copies = 0
        for i, (_, t) in enumerate(given):
            if t is not None and not lies_in_rows(t, n):
                copies |= 1 << i
        if copies:
            return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")
        width, bytes_ = prod(shape), x.item_bytes
        align = divides(16, width * bytes_)
        for _, t in given:
            if t is not None:
                starts = [t.strides[d] * bytes_ for d in range(len(t.shape) - n) if t.shape[d] != 1]
                align = divides(min(align, t.align), *starts)
        problem = _kernels.Norm(
            self.kind, prod(x.shape) // width, width, x.dtype, align, weight is not None, False, False,
            total is not None, eps, x.device,
        )  # fmt: skip
        found = _kernels.norm_gradients(problem, columns)
        if isinstance(found, str):
            return _core.Recipe.torch(found)
        name = _kernels.DTYPES[x.dtype]
        row_extents: list[Extent] = [(0, d) for d in rows] or [(-1, 1)]
        column_extents: list[Extent] = [(0, d) for d in across]
        outputs = [output(name, *([(0, d)] for d in range(rank)))]
        outputs += [output(name, *([(0, d)] if columns else [(-1, 0)] for d in (across if columns else [0])))] * 2
        views = {"x": view(0, own(0, *rows), own(0, *across)), "grad": view(1, own(1, *rows), own(1, *across))}
        views["weight"], views["total"] = view(2, own(2, *range(n))), view(3, own(3, *rows), own(3, *across))
        views["dx"] = view(4, own(4, *rows), own(4, *across))
        for i, name_ in enumerate(("dweight", "dbias")):
            views[name_] = view(5 + i, own(5 + i), own(5 + i, *range(n)))
        sizes: dict[str, list[Extent]] = {"rows": row_extents, "width": column_extents}
        for i, (what, (dtype, extents)) in enumerate(found.workspaces.items()):
            outputs.append(output(dtype, *(sizes[s] if isinstance(s, str) else [(-1, s)] for s, _ in extents)))
            views[what] = view(7 + i, *(own(7 + i, d) for d in range(len(extents))))
        return recipe(outputs, 3, found.kernels, views)


layer_gradients, rms_gradients = Gradients("layer"), Gradients("rms")
