"""graphene.ops.matmul: act(a @ b + bias) + residual, in fp32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, same_shape, shape_text
from graphene.ops.core.context import lower, transforming, written
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, KernelCalls, target_device
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import Dim, Extent, broadcast, divides, merge, output, own, recipe, view

if TYPE_CHECKING:
    from graphene.kernels.gemm.problem import GemmProblem, GemmTile

_SIMULATED_TILE = 32
A, B, BIAS, RESIDUAL, C = range(5)  # the tensors of a call; the fifth is the result, or `out`


# Shapes.


def result_shape(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The shape of torch.matmul's result. Raises OP_SHAPE."""

    def wrong(why: str, fix: str) -> None:
        fail("OP_SHAPE", f"matmul: {why}", [f"a: {shape_text(a)}", f"b: {shape_text(b)}"], fix)

    if not a or not b:
        wrong("an operand has no dimensions", "pass at least vectors; for scalars there is torch.mul")
    k, k_b = a[-1], b[-1] if len(b) == 1 else b[-2]
    if k != k_b:
        wrong("a's columns are not as many as b's rows", "transpose an operand, or pass another one")
    rows, columns = list(a[-2:-1]), list(b[-1:]) if len(b) > 1 else []
    batch_a, batch_b = list(a[:-2]), list(b[:-2])
    batch: list[Any] = []
    for i in range(1, max(len(batch_a), len(batch_b)) + 1):
        x = batch_a[-i] if i <= len(batch_a) else 1
        y = batch_b[-i] if i <= len(batch_b) else 1
        if x != y and x != 1 and y != 1:
            wrong("the batch dimensions do not broadcast", "each pair of them is equal, or one of them is 1")
        batch.insert(0, y if x == 1 else x)
    return batch + rows + columns


def check_bias(bias: Tensor, b: Tensor) -> None:
    """Raises OP_SHAPE unless the bias has one element for each column."""
    columns = 1 if b.dim() == 1 else b.shape[-1]
    if not same_shape(bias.shape, [columns]):
        fail("OP_SHAPE", "matmul: argument 'bias' has the wrong shape",
             [f"want: [{columns}], one for each column of the result", f"got:  {shape_text(bias.shape)}"],
             "pass a vector")  # fmt: skip


def results(
    a: Tensor, b: Tensor, bias: Tensor, activation: str | None, residual: Tensor, allow_tf32: bool = False
) -> list[tuple[Any, Any]]:
    """Checks everything that does not depend on strides."""
    given = {"a": a, "b": b, "bias": bias, "residual": residual}
    check_devices("matmul", given)
    check_dtypes("matmul", given, FLOATS)
    shape = result_shape(a.shape, b.shape)
    if activation is not None and activation not in ACTIVATIONS:
        known = ", ".join(f'"{x}"' for x in ACTIVATIONS)
        fail("OP_ARGUMENT", f'matmul: no activation is called "{activation}"', [f"known: None, {known}"],
             "pass one of them")  # fmt: skip
    if bias is not None:
        check_bias(bias, b)
    if residual is not None and not same_shape(residual.shape, shape):
        fail("OP_SHAPE", "matmul: argument 'residual' has the wrong shape",
             [f"want: {shape_text(shape)}, as the result", f"got:  {shape_text(residual.shape)}"],
             "pass residual.expand(...), which copies nothing")  # fmt: skip
    return [(shape, a.dtype)]


def results_out(
    a: Tensor, b: Tensor, bias: Tensor, activation: str | None, residual: Tensor, out: Tensor, allow_tf32: bool = False
) -> list[Any]:
    """Checks the arguments of matmul, and `out`."""
    [(shape, dtype)] = results(a, b, bias, activation, residual)
    check_devices("matmul", {"a": a, "out": out})
    if out.dtype != dtype or not same_shape(out.shape, shape):
        fail("OP_OUT", "matmul: argument 'out' is not like the result",
             [f"want: {shape_text(shape)} {dtype}", f"got:  {shape_text(out.shape)} {out.dtype}"],
             "pass a tensor of that shape and dtype, or leave out= out")  # fmt: skip
    return []


# The choice of kernels.


def tile_of(p: GemmProblem, where: str) -> GemmTile:
    """How a product is computed on a device."""
    from graphene.kernels.gemm.problem import GemmTile
    from graphene.select.gemm import choose

    if where == "cpu":  # the simulator computes whole tiles
        return GemmTile((32, 32, 32), (2, 2), 2)
    return choose(p, target_device(where))


def launches_of(p: GemmProblem, where: str) -> KernelCalls:
    """The kernels of act(A @ B + bias) + residual on a device, and their workspaces."""
    from graphene.kernels.gemm.whole import gemm_launches, workspace_sizes

    tile = tile_of(p, where)
    launches = [(x.kernel, list(x.arguments)) for x in gemm_launches(p, tile)]
    return KernelCalls(launches, workspace_sizes(p, tile))


# Configurations.


class Matrix:
    """An operand or result as a matrix, rows by columns, of its last two dimensions (None: a vector lacks it)."""

    def __init__(self, index: int, arg: Arg, rows: int | None, columns: int | None) -> None:
        self.index, self.arg = index, arg
        self.rows, self.columns = rows, columns
        self.batch = list(range(len(arg.shape) - (rows is not None) - (columns is not None)))

    def size(self, dim: int | None) -> int:
        """The extent of a dimension, 1 for None."""
        return 1 if dim is None else self.arg.shape[dim]

    def stride(self, dim: int | None) -> int | None:
        """The stride, or None for a dimension of one element, whose stride means nothing."""
        return None if dim is None or self.arg.shape[dim] == 1 else self.arg.strides[dim]

    def contiguous_along(self, inner: int | None, outer: int | None) -> bool:
        """Whether lines along `inner` are contiguous and do not overlap."""
        across = self.stride(outer)
        return self.stride(inner) in (1, None) and (across is None or across >= self.size(inner))

    def align(self, limit: int, inner: int | None, outer: int | None) -> int:
        """The largest number of bytes that divides the address, every line's start and its length."""
        bytes_ = self.arg.item_bytes
        strides = [self.stride(d) or 0 for d in [outer, *self.batch]]
        return divides(min(limit, self.arg.align), self.size(inner) * bytes_, *(s * bytes_ for s in strides))

    def view(self, batched: bool, batch: Sequence[Extent], dims: Sequence[int | None], fold: bool) -> Any:
        """The kernel's argument: the batch (broadcast if the operand has none), then `dims`."""
        last = [own(self.index) if d is None else own(self.index, d) for d in dims]
        if fold:  # the batch belongs to the rows
            rows = [d for d in (dims[0],) if d is not None]
            last[0] = own(self.index, *self.batch, *rows)
        if not batched:
            return view(self.index, *last)
        mine = [d for d in self.batch if self.arg.shape[d] != 1]
        front: Dim = own(self.index, *self.batch) if mine else broadcast(batch)
        return view(self.index, front, *last)


def configure(
    a: Arg,
    b: Arg,
    bias: Arg | None,
    activation: str | None,
    residual: Arg | None,
    allow_tf32: bool = False,
    out: Arg | None = None,
    made_as: str | None = None,
    result: int = C,
) -> Any:
    """The recipe of a configuration. `made_as`: the type of the result, tensor `result` of the call, if not a's."""
    from graphene.kernels.gemm.problem import GemmProblem

    if a.dtype not in MATMUL_DTYPES and not (allow_tf32 and a.dtype == "float32"):
        return _core.Recipe.torch(f"no kernel multiplies {a.dtype} at full precision")
    shape = result_shape(a.shape, b.shape)
    na, nb = len(a.shape), len(b.shape)
    ma = Matrix(A, a, na - 2 if na > 1 else None, na - 1)
    mb = Matrix(B, b, nb - 2 if nb > 1 else 0, nb - 1 if nb > 1 else None)
    m, k, n = ma.size(ma.rows), ma.size(ma.columns), mb.size(mb.columns)
    if k == 0:
        return _core.Recipe.torch("there is nothing to sum: K is 0")

    # The result, and which arguments give its extents.
    batch_shape = shape[: len(shape) - (na > 1) - (nb > 1)]
    batch: list[Extent] = []
    for i in range(len(batch_shape), 0, -1):
        source = next((x for x in (ma, mb) if len(x.batch) >= i and x.arg.shape[x.batch[-i]] == batch_shape[-i]), ma)
        batch.append((source.index, source.batch[-i]))
    rows: list[Extent] = [] if ma.rows is None else [(A, ma.rows)]
    columns: list[Extent] = [] if mb.columns is None else [(B, mb.columns)]
    dims = [[e] for e in [*batch, *rows, *columns]]
    made_as = made_as or a.dtype
    outputs = [output(DTYPES[made_as], *dims)] if out is None else []
    if 0 in shape:
        return _core.Recipe(outputs, len(outputs), [])
    made = Arg(tuple(shape), tuple(prod(shape[i + 1 :]) for i in range(len(shape))), made_as, a.device, 128)
    row = len(batch) if rows else None
    column = len(shape) - 1 if columns else None
    mc = Matrix(result, out or made, row, column)
    mr = None if residual is None else Matrix(RESIDUAL, residual, row, column)
    results_ = [x for x in (mc, mr) if x is not None]

    # Operands that no variant of the kernel can read in place.
    copies = 0
    for x, inner, outer in ((ma, ma.columns, ma.rows), (mb, mb.columns, mb.rows)):
        if not (x.contiguous_along(inner, outer) or x.contiguous_along(outer, inner)):
            copies |= 1 << x.index
    if mr is not None and not mr.contiguous_along(column, row):
        copies |= 1 << RESIDUAL
    if bias is not None and bias.strides[0] != 1 and n > 1:
        copies |= 1 << BIAS
    if not mc.contiguous_along(column, row):
        return _core.Recipe.torch("no kernel writes columns of `out` that do not lie contiguous")

    # If the batch of a continues its rows and b is one matrix, all is one matrix; else it is a batch of matrices.
    everyone = [x for x in (ma, mb, *results_)]
    batched = prod(batch_shape) > 1
    continues = all(merge(x.arg, [*x.batch, *([] if x.rows is None else [x.rows])]) for x in (ma, *results_))
    whole = prod(mb.size(d) for d in mb.batch) == 1 and prod(ma.size(d) for d in ma.batch) == prod(batch_shape)
    fold = batched and whole and continues and ma.contiguous_along(ma.columns, ma.rows)
    if fold:
        batched = False
        m *= prod(batch_shape)
    if batched:
        for x in everyone:
            sizes = [x.size(d) for d in x.batch]
            if prod(sizes) not in (1, prod(batch_shape)):
                return _core.Recipe.torch("both operands repeat over different batch dimensions")
            if not merge(x.arg, x.batch):
                if x is mc:
                    return _core.Recipe.torch("the batch dimensions of `out` are not one dimension")
                copies |= 1 << x.index
    if copies:
        return _core.Recipe.copy(copies, "an operand lies in no order that a kernel reads")

    a_k = ma.contiguous_along(ma.columns, ma.rows)
    b_n = mb.contiguous_along(mb.columns, mb.rows)
    c_align = mc.align(16, column, row)
    for x in (mr,) if mr is not None else ():
        c_align = min(c_align, x.align(16, column, row))
    if bias is not None:
        c_align = min(c_align, divides(min(16, bias.align), n * bias.item_bytes))
    problem = GemmProblem(
        m, n, k, (prod(batch_shape) if batched else None), DTYPES[a.dtype],
        order=("T" if a_k else "N") + ("T" if b_n else "N"),
        align=(ma.align(16, *((ma.columns, ma.rows) if a_k else (ma.rows, ma.columns))),
               mb.align(16, *((mb.columns, mb.rows) if b_n else (mb.rows, mb.columns))), c_align),
        bias=bias is not None, residual=residual is not None, activation=activation,
        out=None if made_as == a.dtype else DTYPES[made_as],
    )  # fmt: skip
    found = launches_of(problem, a.device)
    views = {
        "A": ma.view(batched, batch, (ma.rows, ma.columns), fold),
        "A.T": ma.view(batched, batch, (ma.columns, ma.rows), False),
        "B": mb.view(batched, batch, (mb.rows, mb.columns), False),
        "B.T": mb.view(batched, batch, (mb.columns, mb.rows), False),
        "C": mc.view(batched, batch, (row, column), fold),
    }
    one: list[Extent] = [(-1, 1)]
    extents_of: dict[str, list[Extent]] = {
        "batch": batch, "m": (batch if fold else []) + (rows or one), "n": columns or one, "k": [(A, na - 1)],
    }  # fmt: skip
    add_workspaces(found, result + 1, extents_of, outputs, views)
    if bias is not None:
        views["bias"] = view(BIAS, own(BIAS, 0))
    if mr is not None:
        views["residual"] = mr.view(batched, batch, (row, column), fold)
    return recipe(outputs, 1 if out is None else 0, found.kernels, views)


def configure_out(
    a: Arg, b: Arg, bias: Arg | None, activation: str | None, residual: Arg | None, out: Arg, allow_tf32: bool = False
) -> Any:
    """The recipe of a configuration that writes to `out`."""
    return configure(a, b, bias, activation, residual, allow_tf32, out)


def add_workspaces(
    found: KernelCalls, first: int, extents_of: dict[str, list[Extent]], outputs: list[Any], views: dict[str, Any]
) -> None:
    """Adds the kernels' workspaces, tensors `first` and so on of a call, to the outputs, and their views.

    ``extents_of``: where sizes m, n, k and batch come from.
    """
    for space, (name, (dtype, extents)) in enumerate(found.workspaces.items(), first):
        spec = [_rounded(extents_of[s] if isinstance(s, str) else [(-1, s)], multiple) for s, multiple in extents]
        outputs.append(output(dtype, *spec))
        whole = [own(space, d) for d in range(len(spec))]
        views[name] = view(space, *whole)
        views[name + ".T"] = view(space, *whole[:-2], whole[-1], whole[-2])
        views[name + ".C"] = view(space, *whole[:-1], (tuple(extents_of["n"]), (len(spec) - 1,)))


def _rounded(extents: list[Extent], multiple: int) -> list[Any]:
    """The product of extents, rounded up to a multiple."""
    return [(*e, multiple) for e in extents]


# The reference by PyTorch's operators, and the gradient.


def _with_bias(z: Tensor, bias: Tensor, wide: Any) -> Tensor:
    """The sums with a bias, of the product's shape, which is a number for two vectors."""
    if bias is None:
        return z
    return z + (bias.reshape(()) if z.dim() == 0 else bias).to(wide)


def reference(
    a: Tensor, b: Tensor, bias: Tensor, activation: str | None, residual: Tensor, allow_tf32: bool = False
) -> Tensor:
    """The same in fp32 (fp64 for fp64), rounded once; on a GPU a plain product is PyTorch's in its dtype."""
    if bias is None and activation is None and residual is None and (a.is_cuda or a.dtype in FLOATS[2:]):
        return torch.matmul(a, b)
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    z = activate(_with_bias(torch.matmul(a.to(wide), b.to(wide)), bias, wide), activation)
    if residual is not None:
        z = z + residual.to(wide)
    return z.to(a.dtype)


def reference_out(
    a: Tensor, b: Tensor, bias: Tensor, activation: str | None, residual: Tensor, out: Tensor, allow_tf32: bool = False
) -> None:
    """The same, written to `out`."""
    out.copy_(reference(a, b, bias, activation, residual))


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the operands for the gradient, and no intermediate result."""
    a, b, bias, activation, residual, allow_tf32 = inputs
    ctx.save_for_backward(a, b, bias)
    ctx.activation, ctx.residual, ctx.allow_tf32 = activation, residual is not None, allow_tf32


def sums_again(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """The unrounded argument of the activation: a @ b + bias."""
    wide = wide_dtype(a.dtype)
    bias = None if bias is None else bias.to(wide)
    if not torch.is_grad_enabled():
        return SUMS.forward(a, b, bias)
    return _with_bias(torch.matmul(a.to(wide), b.to(wide)), bias, wide)


def _multiplied(x: Tensor, y: Tensor, allow_tf32: bool) -> Tensor:
    """The product of a gradient: by this package where its kernels have wgmma, as cuBLAS has; else by PyTorch."""
    from graphene.select.sm90_time import has_wgmma

    own = x.is_cuda and torch.cuda.is_available() and not transforming() and has_wgmma(target_device(str(x.device)))
    return MATMUL(x, y, None, None, None, allow_tf32) if own else torch.matmul(x, y)


def _product_of_shape(x: Tensor, y: Tensor, shape: Sequence[Any], allow_tf32: bool) -> Tensor:
    """The product in a shape that may lack batch dimensions: it sums over those, too."""
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    wanted = [1] * (len(batch) + 2 - len(shape)) + list(shape[:-2])
    summed = [i for i, (n, w) in enumerate(zip(batch, wanted, strict=True)) if w == 1 and n != 1]
    if summed:
        kept = [i for i in range(len(batch)) if i not in summed]
        m, k, n = len(batch), len(batch) + 1, prod(batch[i] for i in summed) * x.shape[-1]
        front = [batch[i] for i in kept]
        x = x.expand(*batch, *x.shape[-2:]).permute(*kept, m, *summed, k).reshape(*front, x.shape[-2], n)
        y = y.expand(*batch, *y.shape[-2:]).permute(*kept, *summed, m, k).reshape(*front, n, y.shape[-1])
    return _multiplied(x, y, allow_tf32).reshape(shape)


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradient: products in the operands' dtype, everything else in fp32."""
    a, b, bias = ctx.saved_tensors
    residual = g if ctx.residual else None
    rows, columns = (a.unsqueeze(0) if a.dim() == 1 else a), (b.unsqueeze(1) if b.dim() == 1 else b)
    g = g.unsqueeze(-1) if b.dim() == 1 else g
    g = g.unsqueeze(-2) if a.dim() == 1 else g
    if ctx.activation is not None:
        g = slope(sums_again(rows, columns, bias), ctx.activation, g.to(wide_dtype(g.dtype)))
    grad_a = grad_b = grad_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = g.to(wide_dtype(g.dtype)).sum_to_size(bias.shape).to(bias.dtype)
    g = g.to(a.dtype)
    if ctx.needs_input_grad[0]:
        grad_a = _product_of_shape(g, columns.mT, rows.shape, ctx.allow_tf32).reshape(a.shape)
    if ctx.needs_input_grad[1]:
        grad_b = _product_of_shape(rows.mT, g, columns.shape, ctx.allow_tf32).reshape(b.shape)
    return grad_a, grad_b, grad_bias, None, residual, None


# The unrounded sums, for the gradient.


def results_of_sums(a: Tensor, b: Tensor, bias: Tensor) -> list[tuple[Any, Any]]:
    """Checks the arguments as matmul does; the bias has the result's type."""
    check_devices("matmul_sums", {"a": a, "b": b, "bias": bias})
    [(shape, dtype)] = results(a, b, None, None, None)
    if bias is not None:
        check_dtypes("matmul_sums", {"bias": bias}, (wide_dtype(dtype),))
        check_bias(bias, b)
    return [(shape, wide_dtype(dtype))]


def configure_sums(a: Arg, b: Arg, bias: Arg | None) -> Any:
    """The recipe of a configuration."""
    return configure(a, b, bias, None, None, made_as="float32", result=3)


def reference_of_sums(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """The sums by PyTorch's operators."""
    wide = wide_dtype(a.dtype)
    return _with_bias(torch.matmul(a.to(wide), b.to(wide)), bias, wide)


def cost(a: Tensor, b: Tensor, bias: Any = None, activation: Any = None, residual: Any = None, *more: Any) -> int:
    """The multiply-adds, or those of all its tiles of 32 by 32 by 32 if these are more."""
    shape = result_shape(a.shape, b.shape)
    m, n, k = 1 if a.dim() == 1 else a.shape[-2], 1 if b.dim() == 1 else b.shape[-1], a.shape[-1]
    batch = prod(shape[: len(shape) - (a.dim() > 1) - (b.dim() > 1)])
    rows = [Arg(tuple(t.shape), t.stride(), "", "", 1) for t in (a, residual, *more) if isinstance(t, torch.Tensor)]
    if a.dim() > 1 and prod(b.shape[:-2]) == 1 and all(merge(t, range(len(shape) - (b.dim() > 1))) for t in rows):
        m, batch = m * batch, 1  # the batch continues the rows
    tiles = batch * -(-m // _SIMULATED_TILE) * -(-n // _SIMULATED_TILE)
    return int(max(prod(shape) * k, tiles * (512 + 256 * -(-k // _SIMULATED_TILE))))


def flops(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add."""
    return int(2 * prod(result_shape(a.shape, b.shape)) * a.shape[-1])


SCHEMA = "(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, Tensor? residual=None, "
MATMUL = Defined(
    Definition("matmul", SCHEMA + "bool allow_tf32=False) -> Tensor", configure, results, reference, cost, save,
               backward, choices={"activation": ACTIVATIONS}, autocast=lower, flops=flops)
)  # fmt: skip
INTO = Defined(
    Definition("matmul_out", SCHEMA.replace("=None", "") + "Tensor(a!) out, bool allow_tf32=False) -> ()",
               configure_out, results_out, reference_out, cost, choices={"activation": ACTIVATIONS}, said="matmul",
               flops=flops)
)  # fmt: skip
SUMS = Defined(
    Definition("matmul_sums", "(Tensor a, Tensor b, Tensor? bias=None) -> Tensor", configure_sums, results_of_sums,
               reference_of_sums, cost, part_of="matmul", flops=flops)
)  # fmt: skip


@public
def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    allow_tf32: bool = False,
) -> Tensor:
    """``act(a @ b + bias) + residual``, in fp32, rounded once.

    a is (..., M, K) and b (..., K, N). Batch dimensions broadcast, and vectors count, as in torch.matmul. Kernels of
    this package compute fp16 and bf16, and with ``allow_tf32`` fp32, whose operands tensor cores round to tf32 (10 bits
    behind the point; gradients, too). Otherwise PyTorch's operators compute fp32, and fp64. Transposed and strided
    views are read in place if rows or columns are contiguous, and copied once otherwise. ``bias`` is (N,).
    ``activation`` is None, "relu", "gelu" (by erf), "gelu_tanh", "silu", "tanh" or "sigmoid". ``residual`` has the
    result's shape. ``out`` takes the result and is returned. It has the result's shape, dtype and device, and its
    elements lie apart from each other and from the arguments. There is no gradient through it, and no torch.vmap.

    Autocast converts arguments as for torch.matmul, and does not if there is ``out``.

    Raises LaunchError: OP_DTYPE (nothing is promoted), OP_SHAPE, OP_DEVICE, OP_ARGUMENT, OP_OUT.
    """
    if out is None:
        return (MATMUL.dispatched if is_compiling() else MATMUL.core)(a, b, bias, activation, residual, allow_tf32)
    (INTO.dispatched if is_compiling() else INTO.core)(a, b, bias, activation, residual, out, allow_tf32)
    return written(out)
