"""graphene.ops.grouped_matmul: products of groups whose sizes stand in memory, as mixtures of experts have them."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.ops.core.checks import check_devices, check_dtypes, readable, same_shape, shape_text
from graphene.ops.core.context import lower
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, target_device
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import contiguous, output, own, recipe, view
from graphene.ops.matmul import Matrix

if TYPE_CHECKING:
    from graphene.kernels.gemm.grouped import GroupedConfig

A, B, OFFSETS, C = range(4)  # the tensors of a call; the last is the result
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def results(a: Tensor, b: Tensor, offsets: Tensor) -> list[tuple[Any, Any]]:
    """The result's shape and dtype, all arguments checked."""
    n = "grouped_matmul"
    check_devices(n, {"a": a, "b": b, "offsets": offsets})
    check_dtypes(n, {"a": a, "b": b}, FLOATS)
    if offsets.dtype != torch.int32:
        fail("OP_DTYPE", f"{n}: argument 'offsets' has a dtype that it does not take",
             ["want: torch.int32", f"got:  {offsets.dtype}"],
             "convert it: offsets.to(torch.int32)")  # fmt: skip
    if a.dim() != 2 or b.dim() not in (2, 3) or a.shape[1] != b.shape[-2]:
        fail("OP_SHAPE", f"{n}: a and b are not matrices of one k",
             [f"a: {shape_text(a.shape)}", f"b: {shape_text(b.shape)}"],
             "pass (T,K) and (E,K,N), or (M,T) and (T,N)")  # fmt: skip
    groups = b.shape[0] if b.dim() == 3 else None
    if offsets.dim() != 1 or (groups is not None and not same_shape(offsets.shape, [groups])) or offsets.shape[0] == 0:
        fail("OP_SHAPE", f"{n}: argument 'offsets' has the wrong shape",
             [f"want: [{'E, 1 or more' if groups is None else groups}], the end of each group",
              f"got:  {shape_text(offsets.shape)}"], "pass torch.cumsum of the groups' sizes")  # fmt: skip
    return [([a.shape[0], b.shape[2]] if groups is not None else [offsets.shape[0], a.shape[0], b.shape[1]], a.dtype)]


def ends(a: Tensor, b: Tensor, offsets: Tensor) -> None:
    """Raises OP_ARGUMENT unless the groups lie inside of a, one after another. Only CPU tensors are looked at."""
    if not readable(offsets):
        return
    places, most = offsets.tolist(), a.shape[0 if b.dim() == 3 else 1]
    if any(i > j for i, j in itertools.pairwise([0, *places, most])):
        fail("OP_ARGUMENT", "grouped_matmul: argument 'offsets' does not say where groups end",
             [f"want: places from 0 to {most} that do not decrease", f"got:  {places}"],
             "pass torch.cumsum of the groups' sizes")  # fmt: skip


def reference(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """The same by PyTorch's operators, in fp32 (fp64 for fp64), rounded once; it reads the offsets."""
    wide = wide_dtype(a.dtype)
    ends = [0, *offsets.tolist()]
    pairs = list(itertools.pairwise(ends))
    if b.dim() == 2:
        return torch.stack([a[:, i:j].to(wide) @ b[i:j].to(wide) for i, j in pairs]).to(a.dtype)
    y = torch.zeros(a.shape[0], b.shape[2], dtype=a.dtype, device=a.device)
    for e, (i, j) in enumerate(pairs):
        y[i:j] = (a[i:j].to(wide) @ b[e].to(wide)).to(a.dtype)
    return y


def cost(a: Tensor, b: Tensor, offsets: Tensor) -> int:
    """The multiply-adds of whole tiles, or the time of looking for them if it is more."""
    groups, (m, k), n = int(offsets.shape[0]), a.shape, int(b.shape[-1])
    across = -(-n // 32)
    tiles = (-(-int(m) // 32) + groups) * across if b.dim() == 3 else -(-int(m) // 32) * across * groups
    return int(tiles * max(32 * 32 * k // (1 if b.dim() == 3 else groups), 2000))


@functools.cache
def _kernel(config: GroupedConfig) -> Any:
    from graphene.kernels.gemm.grouped import grouped_kernel

    return grouped_kernel(config)


def configure(a: Arg, b: Arg, offsets: Arg) -> Any:
    """The recipe of a configuration."""
    from graphene.kernels.gemm.grouped import GroupedConfig
    from graphene.select.group_tiles import select_grouped

    if a.dtype not in MATMUL_DTYPES:
        return _core.Recipe.torch(f"no kernel multiplies groups of {a.dtype}")
    along_k, groups = len(b.shape) == 2, offsets.shape[0]
    (m, k), n = a.shape, b.shape[-1]
    front = [[(OFFSETS, 0)]] if along_k else []
    outputs = [output(DTYPES[a.dtype], *front, [(A, 0)], [(B, len(b.shape) - 1)])]
    if 0 in (m, n):
        return _core.Recipe(outputs, 1, [])
    if k == 0 or groups > MOST_BLOCKS_YZ:
        return _core.Recipe.torch("there is nothing to sum: K is 0" if k == 0 else "more groups than a grid has blocks")
    rank = len(b.shape)
    ma, mb = Matrix(A, a, 0, 1), Matrix(B, b, rank - 2, rank - 1)
    copies = 0 if contiguous(offsets, [0]) else 1 << OFFSETS
    b_as_nk = not along_k and mb.contiguous_along(rank - 2, rank - 1) and not mb.contiguous_along(rank - 1, rank - 2)
    if along_k and not ma.contiguous_along(0, 1):
        return _core.Recipe.torch("groups along k are multiplied from columns of a that lie contiguous")
    if not along_k and not ma.contiguous_along(1, 0):
        copies |= 1 << A
    if not b_as_nk and not mb.contiguous_along(rank - 1, rank - 2):
        copies |= 1 << B
    if copies:
        return _core.Recipe.copy(copies, "an operand lies in no order that a kernel reads")
    made = Arg((m, n), (n, 1), a.dtype, a.device, 128)
    lines = (rank - 2, rank - 1) if b_as_nk else (rank - 1, rank - 2)
    align = (
        ma.align(16, *((0, 1) if along_k else (1, 0))),
        mb.align(16, *lines),
        Matrix(C, made, 0, 1).align(16, 1, 0),
    )
    dtype = getattr(dtypes, DTYPES[a.dtype])
    if a.device == "cpu":  # the simulator computes whole tiles
        config = GroupedConfig(dtype, along_k, b_as_nk, align, (32, 32, 32), (2, 1), 2)
    else:
        config = select_grouped(m, n, groups, dtype, along_k=along_k, b_as_nk=b_as_nk, align=align,
                                device=target_device(a.device))  # fmt: skip
    views = {
        "A": view(A, own(A, 0), own(A, 1)),
        "B": view(B, *(own(B, d) for d in range(rank))),
        "offsets": view(OFFSETS, own(OFFSETS, 0)),
        "C": view(C, *(own(C, d) for d in range(3 if along_k else 2))),
    }
    return recipe(outputs, 1, [(_kernel(config), ["A", "B", "offsets", "C"])], views)


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves the operands."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradients, which are products of groups themselves."""
    a, b, offsets = ctx.saved_tensors
    of_a = of_b = None
    if b.dim() == 3:
        if ctx.needs_input_grad[0]:
            of_a = GROUPED(g, b.transpose(1, 2), offsets)
        if ctx.needs_input_grad[1]:
            of_b = GROUPED(a.contiguous().T, g, offsets)
    else:
        if ctx.needs_input_grad[0]:
            of_a = GROUPED(b, g.transpose(1, 2), offsets).T
        if ctx.needs_input_grad[1]:
            of_b = GROUPED(a.T, g, offsets)
    return of_a, of_b, None


def flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add, all rows and all of k counted as belonging to one group."""
    return int(2 * a.shape[0] * a.shape[1] * b.shape[-1])


GROUPED = Defined(
    Definition("grouped_matmul", "(Tensor a, Tensor b, Tensor offsets) -> Tensor", configure, results, reference, cost,
               save, backward, autocast=lower, values=ends, flops=flops)
)  # fmt: skip


@public
def grouped_matmul(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """``a[rows of e] @ b[e]`` for each group e of rows, in fp32, rounded once: torch._grouped_mm with offsets.

    a is (T,K), its rows sorted by group, b (E,K,N), and ``offsets`` (E,) of int32 says where each group ends: they
    ascend, and group e has the rows from offsets[e - 1], the first one from 0, to offsets[e]. The result is (T,N); rows
    behind the last group are 0. With b (T,N) and a (M,T) groups are parts of k, and the result is (E,M,N).

    The offsets stay on the device: nothing waits for them. Kernels (sm_80) compute fp16 and bf16. They read b by rows
    or columns, and for groups along k an a whose columns are contiguous, as that of a transposed matrix. PyTorch's
    operators compute other calls, and read the offsets. Gradients are products of groups, too.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE; OP_ARGUMENT for offsets on a CPU that leave a or decrease.
    """
    return (GROUPED.dispatched if is_compiling() else GROUPED.core)(a, b, offsets)
