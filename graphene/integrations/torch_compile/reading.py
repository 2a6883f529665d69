"""A part of an FX graph of aten operators as a graph of graphene.plan.

Tensors are read as matrices: all dimensions before the last one are rows. A region computes one matrix of rows m and
columns n by products along k; what is read beside them is such a matrix, a vector along one of its axes, or a number.
What cannot be read so is `UnfitError`, which names the node whose operands cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from graphene import dtypes, plan
from graphene.ops.core.torch import torch
from graphene.plan.graph import Axis, Graph, Output, Value, as_value

aten, prims = torch.ops.aten, torch.ops.prims
Node = Any  # torch.fx.Node

DTYPES = {torch.float16: dtypes.fp16, torch.bfloat16: dtypes.bf16, torch.float32: dtypes.fp32}
LONGEST_LATER = 128  # of the sum of a product of a product


class UnfitError(Exception):
    """An operator whose operands no plan can read: ``node``."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(why)
        self.node = node


def tensor(node: Any) -> Any:
    """The (fake) tensor of a node, or None."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def extent(size: Any) -> Any:
    """A size as an integer, or as the expression of a symbolic one; asking for it guards nothing."""
    return size if isinstance(size, int) else size.node.expr


def rows_of(shape: Sequence[Any]) -> Any:
    """The number of rows: of elements before the last dimension."""
    return math.prod(extent(d) for d in shape[:-1])


def _lead(shape: Sequence[Any]) -> list[Any]:
    """Dimensions before the last one, without those of one element in front."""
    lead = [extent(d) for d in shape[:-1]]
    while lead and lead[0] == 1:
        lead.pop(0)
    return lead


def is_dense(x: Any) -> bool:
    """Whether a tensor is row-major."""
    dense: Any = 1
    for n, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if extent(n) != 1 and extent(stride) != dense:
            return False
        dense = dense * extent(n)
    return True


# Operators by what they compute. NaN: aten.relu hands it on, so it is a choice between the value and 0.
UNARY: dict[Any, Callable[[Value], Value]] = {
    aten.exp.default: plan.exp, aten.exp2.default: plan.exp2, aten.log.default: plan.log,
    aten.log2.default: plan.log2, aten.sqrt.default: plan.sqrt, aten.rsqrt.default: plan.rsqrt,
    aten.reciprocal.default: plan.rcp, aten.neg.default: lambda x: -x, aten.abs.default: plan.abs,
    aten.erf.default: plan.erf, aten.tanh.default: plan.tanh, aten.sigmoid.default: plan.sigmoid,
    aten.silu.default: plan.silu, aten.relu.default: lambda x: plan.where(x < 0.0, 0.0, x),
}  # fmt: skip
BINARY: dict[Any, Callable[[Any, Any], Value]] = {
    aten.add.Tensor: lambda x, y: x + y, aten.sub.Tensor: lambda x, y: x - y, aten.mul.Tensor: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y, aten.add.Scalar: lambda x, y: x + y, aten.sub.Scalar: lambda x, y: x - y,
    aten.mul.Scalar: lambda x, y: x * y, aten.div.Scalar: lambda x, y: x / y,
}  # fmt: skip
POWERS: dict[float, Callable[[Value], Value]] = {
    2: lambda x: x * x, 3: lambda x: x * x * x, 0.5: plan.sqrt, -0.5: plan.rsqrt, -1: plan.rcp,
}  # fmt: skip
REDUCTIONS = {aten.mean.dim: plan.mean, aten.sum.dim_IntList: plan.sum}
VIEWS = {
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.expand.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.clone.default,
}  # fmt: skip
CONVERSIONS = {prims.convert_element_type.default, aten._to_copy.default}
PRODUCTS = {aten.mm.default, aten.addmm.default}
POINTWISE = {*UNARY, *BINARY, *CONVERSIONS, aten.gelu.default, aten.pow.Tensor_Scalar}


def is_read(node: Any) -> bool:
    """Whether an operator can be a part of a region, as far as its name and the type of its result say."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return False
    known = node.target in POINTWISE or node.target in VIEWS or node.target in REDUCTIONS or node.target in PRODUCTS
    x = tensor(node)
    return known and x is not None and x.dtype in DTYPES and x.dim() > 0


def is_transposed(node: Node) -> bool:
    """Whether the node swaps the dimensions of a matrix."""
    if node.op != "call_function":
        return False
    if node.target is aten.permute.default:
        return [d % 2 for d in node.args[1]] == [1, 0] and len(node.args[1]) == 2
    return node.target is aten.t.default and tensor(node).dim() == 2


class Leaf:
    """An input of a region: a node, and how its tensor becomes the plan's: "as is", "transposed", or its shape."""

    def __init__(self, node: Node, way: Any) -> None:
        self.node, self.way = node, way


class Reader:
    """Reads the nodes `inside` as the plan's graph whose output is `out`. Raises UnfitError."""

    def __init__(self, out: Node, inside: set[Node]) -> None:
        self.out, self.inside = out, inside
        x = tensor(out)
        self.rows = rows_of(x.shape)
        self.sizes: dict[str, int] = {}
        if isinstance(self.rows, int):
            self.m: Axis = plan.axes(m=self.rows)
        else:
            self.m = plan.axes(m="M")
            self.sizes["m"] = hint_of(x.shape)
        self.dtype: Any = None
        self._axes: dict[tuple[str, int], Axis] = {}
        self._values: dict[tuple[Node, Axis], Value] = {}
        self._leaves: dict[tuple[Node, str], Value] = {}
        self.leaves: list[Leaf] = []
        self.products: list[Node] = []
        self.graph = Graph("region")
        self.n = self.axis("n", self._size(x.shape[-1], out))

    def read(self) -> Graph:
        """The graph."""
        value = self.value(self.out, self.n)
        x = tensor(self.out)
        if set(value.axes) != {self.m, self.n}:
            raise UnfitError(self.out, "the result is no matrix")
        self.graph.outputs.append(Output("O", value, (self.m, self.n), DTYPES[x.dtype]))
        self.graph.name = self.name()
        return self.graph

    def name(self) -> str:
        """A name that says what is computed, such as "norm_linear2_silu_mul"."""
        statistics, words, behind = False, list[str](), set[int]()
        for v in self.graph.outputs[0].value.walk():
            statistics = statistics or v.op in ("mean", "sum")
            if v.op == "dot" or any(a.number in behind for a in v.args):
                behind.add(v.number)
                word = "relu" if v.op == "where" else v.op
                words += [word] * (word not in ("dot", "round", "lt", *words))
        count = len(self.products) if len(self.products) > 1 else ""
        return "_".join([*["norm"] * statistics, f"linear{count}", *words[:4]])

    def axis(self, name: str, size: int) -> Axis:
        """The axis of a role and a size."""
        if (name, size) not in self._axes:
            same = [n for n, _ in self._axes if n == name]
            made: Axis = plan.axes(**{f"{name}{len(same) or ''}": size})
            self._axes[name, size] = made
        return self._axes[name, size]

    def _size(self, size: Any, node: Node) -> int:
        if not isinstance(size, int):
            raise UnfitError(node, f"columns of a symbolic size, {size}")
        if size < 2:
            raise UnfitError(node, "a single column")
        return size

    def value(self, node: Any, columns: Axis) -> Value:
        """A node's tensor, whose last dimension is the axis `columns`."""
        if not isinstance(node, torch.fx.Node):
            return as_value(node)
        key = (node, columns)
        if key not in self._values:
            if node in self.inside:
                self._values[key] = self._operator(node, columns)
            else:
                self._values[key] = self._leaf(node, columns)
        return self._values[key]

    def _operator(self, node: Node, columns: Axis) -> Value:
        target, x = node.target, tensor(node)
        if extent(x.shape[-1]) not in (1, columns.size) or rows_of(x.shape) not in (1, self.rows):
            raise UnfitError(node, f"a tensor of shape {list(x.shape)} among matrices of other rows or columns")
        try:
            if target in PRODUCTS:
                return self._product(node, columns)
            if target in REDUCTIONS:
                return self._reduction(node, columns)
            if target in VIEWS:
                return self._view(node, columns)
            return self._pointwise(node, columns)
        except UnfitError as e:
            if e.node in self.inside and e.node is not node:
                raise
            raise UnfitError(node, str(e)) from None

    def _pointwise(self, node: Node, columns: Axis) -> Value:
        target, args, named = node.target, node.args, dict(node.kwargs)
        for a in node.all_input_nodes:
            y = tensor(a)
            if y is None or y.dtype not in DTYPES:
                raise UnfitError(node, f"an operand of type {getattr(y, 'dtype', None)}")
        if target in CONVERSIONS:
            return self._operand(args[0], node, columns)
        if target in UNARY:
            return UNARY[target](self._operand(args[0], node, columns))
        if target is aten.gelu.default:
            how = plan.gelu_tanh if named.get("approximate", "none") == "tanh" else plan.gelu
            return how(self._operand(args[0], node, columns))
        if target is aten.pow.Tensor_Scalar:
            if args[1] not in POWERS:
                raise UnfitError(node, f"the power {args[1]}")
            return POWERS[args[1]](self._operand(args[0], node, columns))
        if set(named) - {"alpha"} or not all(isinstance(a, (torch.fx.Node, int, float)) for a in args):
            raise UnfitError(node, "arguments that are not read")
        x, y = (self._operand(a, node, columns) for a in args[:2])
        if (alpha := named.get("alpha", args[2] if len(args) > 2 else 1)) != 1:
            y = y * alpha
        if target is aten.div.Tensor and (gate := _silu(x, y)) is not None:
            return gate
        if target is aten.mul.Tensor:
            gate = _gelu(x, y)
            gate = _gelu(y, x) if gate is None else gate
            if gate is not None:
                return gate
        return BINARY[target](x, y)

    def _operand(self, node: Any, user: Node, columns: Axis) -> Value:
        """An operand whose rows, if it has them, are those of the operator's result."""
        v = self.value(node, columns)
        has_rows = isinstance(node, torch.fx.Node) and self.m in v.axes
        if has_rows and _lead(tensor(node).shape) != _lead(tensor(user).shape):
            raise UnfitError(user, "an operand that is repeated along some of the rows")
        return v

    def _view(self, node: Node, columns: Axis) -> Value:
        x, y = tensor(node), tensor(node.args[0])
        if y is None or y.dim() == 0 or x.dim() == 0 or x.dtype != y.dtype:
            raise UnfitError(node, "a view of no matrix")
        last, before = extent(x.shape[-1]), extent(y.shape[-1])
        expands = node.target is aten.expand.default
        if last != before and not (expands and before == 1):
            raise UnfitError(node, "a view that cuts or joins columns")
        if rows_of(x.shape) != rows_of(y.shape) and not (expands and not _lead(y.shape)):
            raise UnfitError(node, "a view with other rows")
        return self.value(node.args[0], columns)

    def _reduction(self, node: Node, columns: Axis) -> Value:
        args, x = node.args, tensor(node.args[0])
        dims = args[1] if len(args) > 1 else None
        keeps = len(args) > 2 and args[2] is True
        if dims is None or len(dims) != 1 or dims[0] % x.dim() != x.dim() - 1 or not keeps or node.kwargs:
            raise UnfitError(node, "a reduction of another kind than of rows")
        if extent(x.shape[-1]) != columns.size:
            raise UnfitError(node, "a reduction of a single column")
        how: Callable[..., Value] = REDUCTIONS[node.target]
        return how(self.value(args[0], columns), columns)

    def _product(self, node: Node, columns: Axis) -> Value:
        *bias, a, b = node.args if node.target is aten.mm.default else node.args[:3]
        if node.kwargs or len(node.args) > len(bias) + 2:
            raise UnfitError(node, "a product that is scaled")
        x = tensor(a)
        if x.dtype not in (torch.float16, torch.bfloat16):
            raise UnfitError(node, f"operands of {x.dtype}")
        if self.dtype not in (None, x.dtype):
            raise UnfitError(node, "products of two types")
        self.dtype = x.dtype
        later = self.reaches_product(a)
        k = self.axis("r" if later else "k", self._size(x.shape[1], node))
        left = self.value(a, k)
        if later:
            left = left.round(DTYPES[x.dtype])
        self.products.append(node)
        made = plan.dot(left, self._right(b, k, columns), k)
        if bias:
            made = made + self._operand(bias[0], node, columns)
        return made

    def reaches_product(self, node: Any) -> bool:
        """Whether a product of the region is an operand, or what an operand is computed from."""
        stack = [node]
        while stack:
            n = stack.pop()
            if n in self.inside:
                if n.target in PRODUCTS:
                    return True
                stack += n.all_input_nodes
        return False

    def _right(self, node: Node, k: Axis, columns: Axis) -> Value:
        """The right operand of a product, as it lies in memory."""
        if is_transposed(node) and is_dense(tensor(node.args[0])):
            return self._input(node.args[0], "W", (columns, k), "as is")
        if not is_dense(tensor(node)) and _across(tensor(node)):
            return self._input(node, "W", (columns, k), "transposed")
        return self._input(node, "W", (k, columns), "as is")

    def _leaf(self, node: Node, columns: Axis) -> Value:
        x = tensor(node)
        if x is None or x.dtype not in DTYPES or x.dim() == 0:
            raise UnfitError(node, "an operand that is not a tensor of fp16, bf16 or fp32 with dimensions")
        role = "X" if columns is not self.n else "R"
        last, rows = extent(x.shape[-1]), rows_of(x.shape)
        if last == columns.size and x.dim() > 1 and rows == self.rows:
            if x.dim() == 2 and role == "X" and is_transposed(node) and is_dense(tensor(node.args[0])):
                return self._input(node.args[0], role, (columns, self.m), "as is")
            return self._input(node, role, (self.m, columns), "as is" if x.dim() == 2 else [-1, last])
        if last == columns.size and rows == 1:
            return self._input(node, "G" if role == "X" else "B", (columns,), "as is" if x.dim() == 1 else [last])
        if last == 1 and x.dim() > 1 and rows == self.rows:
            return self._input(node, "S", (self.m,), [-1])
        raise UnfitError(node, f"an operand of shape {list(x.shape)} beside matrices")

    def _input(self, node: Node, role: str, stored: tuple[Axis, ...], way: Any) -> Value:
        key = (node, f"{[a.name for a in stored]}{way}")
        if key not in self._leaves:
            taken = sum(v.name.rstrip("0123456789") == role for v in self.graph.inputs)
            self._leaves[key] = self.graph.input(f"{role}{taken or ''}", stored, DTYPES[tensor(node).dtype])
            self.leaves.append(Leaf(node, way))
        return self._leaves[key]


def _across(x: Any) -> bool:
    """Whether a matrix is column-major."""
    return bool(x.dim() == 2 and extent(x.stride(0)) == 1 and extent(x.stride(1)) == extent(x.shape[0]))


def _is(v: Value, op: str, number: float) -> bool:
    """Whether a value is ``op(something, number)``."""
    return v.op == op and v.args[1].op == "number" and math.isclose(v.args[1].more["value"], number, rel_tol=1e-12)


def _silu(x: Value, y: Value) -> Value | None:
    """silu(x), where y is 1 + exp(-x): what PyTorch decomposes it to."""
    if not _is(y, "add", 1) or y.args[0].op != "exp":
        return None
    (inner,) = y.args[0].args
    return plan.silu(x) if inner.op == "neg" and inner.args[0] is x else None


def _gelu(x: Value, y: Value) -> Value | None:
    """gelu(z), where x is z / 2 and y is 1 + erf(z / sqrt 2): what PyTorch decomposes it to."""
    if not _is(x, "mul", 0.5) or not _is(y, "add", 1) or y.args[0].op != "erf":
        return None
    (inner,) = y.args[0].args
    return plan.gelu(x.args[0]) if _is(inner, "mul", math.sqrt(0.5)) and inner.args[0] is x.args[0] else None


def hint_of(shape: Sequence[Any]) -> int:
    """The number of rows in the example that is compiled for, of a symbolic shape."""
    return math.prod(d if isinstance(d, int) else int(d.node.hint or 1) for d in shape[:-1])
