"""graphene.ops.scaled_matmul: products of fp8 and int8 by scales of tensors or rows, as torch._scaled_mm has them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.ops.core.activations import ACTIVATIONS, activate
from graphene.ops.core.checks import check_devices, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import KernelCalls, target_device
from graphene.ops.core.torch import NUMBERS, Tensor, fail, torch
from graphene.ops.core.views import ONE, contiguous, divides, output, own, recipe, view
from graphene.ops.matmul import Matrix, add_workspaces

if TYPE_CHECKING:
    from graphene.kernels.gemm.problem import GemmProblem, GemmTile

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
RESULTS = (torch.bfloat16, torch.float16, torch.float32)
TYPES = {
    t.array_name: t.name for t in (dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.i8, dtypes.fp16, dtypes.bf16, dtypes.fp32)
}
A, B, SCALE_A, SCALE_B, BIAS, _, RESIDUAL, C = range(8)  # the tensors of a call; the last is the result
_NAMES = {number: str(dtype).removeprefix("torch.") for dtype, number in NUMBERS.items()}
_SIMULATED_TILE_US = 3000  # of 64 x 64 results, and as much again for 128 k of them


def result_dtype(a: Any, out_dtype: Any) -> Any:
    """The result's dtype: a's if it is fp8 and none is named, as torch._scaled_mm has it, and fp32 for int8."""
    if out_dtype is not None:
        return out_dtype
    return torch.float32 if a == torch.int8 else a


def results(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    out_dtype: Any,
    use_fast_accum: bool,
    activation: str | None,
    residual: Tensor | None,
) -> list[tuple[Any, Any]]:
    """Checks everything that does not depend on strides."""
    n = "scaled_matmul"
    given = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias, "residual": residual}
    check_devices(n, given | {"scale_result": scale_result})
    whole = a.dtype == torch.int8
    for name, t in (("a", a), ("b", b)):
        known = [torch.int8] if whole else [*FP8, torch.int8] if name == "a" else [*FP8]
        if t.dtype not in known:
            fail("OP_DTYPE", f"{n}: argument '{name}' has a dtype that it does not take",
                 ["want: " + ", ".join(map(str, known)), f"got:  {t.dtype}"], "convert it")  # fmt: skip
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        fail("OP_SHAPE", f"{n}: a and b are not matrices of one k",
             [f"a: {shape_text(a.shape)}", f"b: {shape_text(b.shape)}"], "pass (M,K) and (K,N)")  # fmt: skip
    rows, columns = a.shape[0], b.shape[1]
    check_scale_shapes(scale_a, scale_b, rows, columns)
    to = result_dtype(a.dtype, out_dtype)
    if not isinstance(to, torch.dtype) or (to not in RESULTS and (whole or to not in FP8)):
        types = ", ".join(map(str, (*RESULTS, *(() if whole else FP8))))
        fail("OP_DTYPE", f"{n}: argument 'out_dtype' is not a type of a result", [f"want: {types}", f"got:  {to}"],
             "pass one of them")  # fmt: skip
    if scale_result is not None and to not in FP8:
        fail("OP_ARGUMENT", f"{n}: 'scale_result' is for results of fp8", [f"got:  out_dtype {to}"], "leave it out")
    if scale_result is not None and (scale_result.dtype != torch.float32 or prod(scale_result.shape) != 1):
        fail("OP_SHAPE", f"{n}: argument 'scale_result' is not a number", ["want: one element of torch.float32",
             f"got:  {shape_text(scale_result.shape)} {scale_result.dtype}"], "pass one number")  # fmt: skip
    of_terms = RESULTS if to in FP8 else (to,)
    terms: list[tuple[str, Any, list[Any]]] = [("bias", bias, [columns]), ("residual", residual, [rows, columns])]
    for name, t, shape in terms:
        if t is not None and t.dtype not in of_terms:
            fail("OP_DTYPE", f"{n}: argument '{name}' has another dtype than the result",
                 ["want: " + ", ".join(map(str, of_terms)), f"got:  {t.dtype}"],
                 f"convert it: {name}.to(...)")  # fmt: skip
        if t is not None and not same_shape(t.shape, shape):
            fail("OP_SHAPE", f"{n}: argument '{name}' has the wrong shape",
                 [f"want: {shape_text(shape)}", f"got:  {shape_text(t.shape)}"], "pass it in that shape")  # fmt: skip
    if activation is not None and activation not in ACTIVATIONS:
        names = ", ".join(f'"{x}"' for x in ACTIVATIONS)
        fail("OP_ARGUMENT", f'{n}: no activation is called "{activation}"', [f"known: None, {names}"],
             "pass one of them")  # fmt: skip
    return [([rows, columns], to)]


def check_scale_shapes(scale_a: Tensor, scale_b: Tensor, rows: Any, columns: Any) -> None:
    """Raises OP_DTYPE, OP_SHAPE unless both are a number, or one for each row of a and one for each column of b."""
    for name, t in (("scale_a", scale_a), ("scale_b", scale_b)):
        if t.dtype != torch.float32:
            fail("OP_DTYPE", f"scaled_matmul: argument '{name}' is no fp32",
                 ["want: torch.float32", f"got:  {t.dtype}"], f"convert it: {name}.float()")  # fmt: skip
    if prod(scale_a.shape) == 1 and prod(scale_b.shape) == 1:
        return
    if not same_shape(scale_a.shape, [rows, 1]) or not same_shape(scale_b.shape, [1, columns]):
        fail("OP_SHAPE", "scaled_matmul: the scales fit neither tensors nor rows",
             [f"want: one element each, or [{rows},1] and [1,{columns}]",
              f"got:  {shape_text(scale_a.shape)} and {shape_text(scale_b.shape)}"],
             "pass a number for each tensor, or one for each row of a and each column of b")  # fmt: skip


def tile_of(p: GemmProblem, where: str) -> GemmTile:
    """How a product is computed on a device; the simulator computes whole tiles."""
    from graphene.kernels.gemm.problem import GemmTile
    from graphene.select.gemm import choose

    if where == "cpu":
        pad = (p.align[0] < 16, p.align[1] < 16)
        return GemmTile((64, 64, 128), (4, 1), 2, pad=pad, kernel="gemm_sm90")
    return choose(p, target_device(where))


def transposed(b: Arg, ks: int, columns: int) -> Any:
    """The kernel that copies b, whose lines run along its columns, to lines along k."""
    from graphene.kernels.transpose import TransposeConfig, transpose_kernel

    def vector(n: int) -> int:
        return divides(min(16, b.align), n, b.strides[0]) if n is columns else divides(16, n)

    return transpose_kernel(TransposeConfig(getattr(dtypes, TYPES[b.dtype]), vector(columns), vector(ks)))


def configure(
    a: Arg,
    b: Arg,
    scale_a: Arg,
    scale_b: Arg,
    bias: Arg | None,
    scale_result: Arg | None,
    out_dtype: int | None,
    use_fast_accum: bool,
    activation: str | None,
    residual: Arg | None,
) -> Any:
    """The recipe of a configuration."""
    from graphene.kernels.gemm.problem import GemmProblem
    from graphene.kernels.gemm.whole import gemm_launches, workspace_sizes
    from graphene.kernels.tma import MOST_TILES
    from graphene.select.sm90_time import has_wgmma

    (m, k), n = a.shape, b.shape[1]
    whole = a.dtype == "int8"
    to = _NAMES[out_dtype] if out_dtype is not None else "float32" if whole else a.dtype
    terms = {"bias": bias, "residual": residual, "scale_result": scale_result}
    if TYPES[to].startswith("fp8") and (given := [n for n, t in terms.items() if t is not None]):
        return _core.Recipe.torch(f"no kernel stores results of fp8 with {', '.join(given)}")
    if a.device != "cpu" and not has_wgmma(target_device(a.device)):
        return _core.Recipe.torch("the kernels need instructions that sm_90a alone has")
    if k == 0:
        return _core.Recipe.torch("there is nothing to sum: K is 0")
    outputs = [output(TYPES[to], [(A, 0)], [(B, 1)])]
    if 0 in (m, n):
        return _core.Recipe(outputs, 1, [])
    if max(m, n, k) > MOST_TILES:
        return _core.Recipe.torch(f"no kernel counts sizes of more than {MOST_TILES}")
    ma, mb = Matrix(A, a, 0, 1), Matrix(B, b, 0, 1)
    mc = Matrix(C, Arg((m, n), (n, 1), to, a.device, 128), 0, 1)
    mr = None if residual is None else Matrix(RESIDUAL, residual, 0, 1)
    by_rows = prod(scale_a.shape) > 1 or prod(scale_b.shape) > 1

    copies = 0 if ma.contiguous_along(1, 0) else 1 << A
    if not (mb.contiguous_along(0, 1) or mb.contiguous_along(1, 0)):
        copies |= 1 << B
    for i, s in ((SCALE_A, scale_a), (SCALE_B, scale_b)) if by_rows else ():
        if not contiguous(s, [0, 1]) or s.align < 16:
            copies |= 1 << i
    if mr is not None and not mr.contiguous_along(1, 0):
        copies |= 1 << RESIDUAL
    if bias is not None and bias.strides[0] != 1 and n > 1:
        copies |= 1 << BIAS
    if copies:
        return _core.Recipe.copy(copies, "an operand lies in no order that a kernel reads")

    turns_b = not mb.contiguous_along(0, 1)
    align_b = divides(16, k) if turns_b else mb.align(16, 0, 1)
    align_c = mc.align(16, 1, 0) if mr is None else min(mc.align(16, 1, 0), mr.align(16, 1, 0))
    if bias is not None:
        align_c = min(align_c, divides(min(16, bias.align), n * bias.item_bytes))
    problem = GemmProblem(
        m, n, k, None, TYPES[a.dtype], "TN", (ma.align(16, 1, 0), align_b, align_c),
        bias=bias is not None, residual=residual is not None, activation=activation, out=TYPES[to],
        b_dtype=TYPES[b.dtype], scales="rows" if by_rows else "tensor", promote=not (use_fast_accum or whole),
    )  # fmt: skip
    tile = tile_of(problem, a.device)
    calls = KernelCalls(
        [(x.kernel, list(x.arguments)) for x in gemm_launches(problem, tile)], workspace_sizes(problem, tile)
    )
    b_lies = B
    if turns_b:
        calls.kernels.insert(0, (transposed(b, k, n), ["B in columns", "B in lines"]))
        b_lies = C + 1 + len(calls.workspaces)
    views = {
        "A": view(A, own(A, 0), own(A, 1)),
        "B": view(B, own(B, 0), own(B, 1)) if not turns_b else view(b_lies, own(b_lies, 1), own(b_lies, 0)),
        "B.T": view(B, own(B, 1), own(B, 0)) if not turns_b else view(b_lies, own(b_lies, 0), own(b_lies, 1)),
        "B in columns": view(B, ONE, own(B, 0), own(B, 1)),
        "B in lines": view(b_lies, ONE, own(b_lies, 0), own(b_lies, 1)),
        "C": view(C, own(C, 0), own(C, 1)),
        "scale_a": view(SCALE_A, own(SCALE_A, 0) if by_rows else ONE),
        "scale_b": view(SCALE_B, own(SCALE_B, 1) if by_rows else ONE),
    }
    add_workspaces(calls, C + 1, {"m": [(A, 0)], "n": [(B, 1)], "k": [(A, 1)]}, outputs, views)
    if turns_b:
        outputs.append(output(TYPES[b.dtype], [(B, 1)], [(B, 0)]))
    if bias is not None:
        views["bias"] = view(BIAS, own(BIAS, 0))
    if mr is not None:
        views["residual"] = view(RESIDUAL, own(RESIDUAL, 0), own(RESIDUAL, 1))
    return recipe(outputs, 1, calls.kernels, views)


def is_torchs(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, to: Any) -> bool:
    """Whether torch._scaled_mm computes this product on a GPU: since sm_89, of lines of 16 bytes along k."""
    if not a.is_cuda or a.dtype == torch.int8 or torch.version.cuda is None or {a.dtype, b.dtype} == {FP8[1]}:
        return False
    along_k = a.stride(1) == 1 and b.stride(0) == 1 and a.stride(0) >= a.shape[1] and b.stride(1) >= b.shape[0]
    lines = (*a.shape, *b.shape, a.stride(0), b.stride(1))[1:]
    by_rows = prod(scale_a.shape) > 1 or prod(scale_b.shape) > 1
    capability = torch.cuda.get_device_capability(a.device)
    return (
        along_k
        and min(a.shape) > 0
        and all(n % 16 == 0 for n in lines)
        and (bias is None or bias.dtype != torch.float32)
        and capability >= ((9, 0) if by_rows else (8, 9))
        and not (by_rows and (to in FP8 or not (scale_a.is_contiguous() and scale_b.is_contiguous())))
    )


def reference(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    scale_result: Tensor | None,
    out_dtype: Any,
    use_fast_accum: bool,
    activation: str | None,
    residual: Tensor | None,
) -> Tensor:
    """The same in fp32, rounded once; sums of int8 in fp64, where they are exact.

    What is too large for fp8 is its largest number.

    On a GPU it is torch._scaled_mm where that takes the call.
    """
    to = result_dtype(a.dtype, out_dtype)
    if activation is None and residual is None and is_torchs(a, b, scale_a, scale_b, bias, to):
        return torch._scaled_mm(a, b, scale_a, scale_b, bias, scale_result, to, use_fast_accum)
    wide = torch.float64 if a.dtype == torch.int8 else torch.float32
    x = torch.matmul(a.to(wide), b.to(wide)).to(torch.float32)
    x = (
        x * scale_a * scale_b
        if prod(scale_a.shape) > 1 or prod(scale_b.shape) > 1
        else x * (scale_a.reshape(()) * scale_b.reshape(()))
    )
    x = activate(x if bias is None else x + bias.to(torch.float32), activation)
    x = x if residual is None else x + residual.to(torch.float32)
    if to not in FP8:
        return x.to(to)
    x = x if scale_result is None else x * scale_result.reshape(())
    most = torch.finfo(to).max
    return x.clamp(-most, most).to(to)


def cost(a: Tensor, b: Tensor, *_: Any) -> int:
    """The multiply-adds, or the time of simulating whole tiles if it is more."""
    (m, k), n = a.shape, b.shape[1]
    tiles = -(-m // 64) * -(-n // 64)
    return int(max(m * n * k, tiles * _SIMULATED_TILE_US * (1 + -(-k // 128))))


def flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add."""
    return int(2 * a.shape[0] * a.shape[1] * b.shape[1])


SCALED = Defined(
    Definition(
        "scaled_matmul",
        "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, "
        "ScalarType? out_dtype=None, bool use_fast_accum=False, str? activation=None, Tensor? residual=None) -> Tensor",
        configure,
        results,
        reference,
        cost,
        choices={"activation": ACTIVATIONS},
        without_gradient=("a", "b", "scale_a", "scale_b", "bias", "scale_result", "residual"),
        flops=flops,
    )
)


@public
def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """``act(scale_a * scale_b * (a @ b) + bias) + residual``, rounded once: torch._scaled_mm by the same arguments.

    a (M,K) and b (K,N) are float8_e4m3fn or float8_e5m2, each of them, or both int8. ``scale_a`` and ``scale_b`` are
    fp32: a number each, or (M,1) and (1,N), one for each row of a and each column of b. ``out_dtype`` is bfloat16,
    float16, float32, or for fp8 also a type of fp8, multiplied by ``scale_result``; None is a's own, for int8 float32.
    Results of fp8 that are too large, or infinite, become its largest number. (PyTorch's operator on a CPU divides by
    ``scale_result``, and has infinite results of e5m2.)
    ``bias`` (N,) and ``residual`` (M,N) have the result's dtype; ``activation`` is as in ``matmul``.

    Kernels (sm_90a) read operands along k: a row by row, b column by column, as ``weight.t()`` lies. Other orders are
    copied first. Tensor cores keep 14 bits of sums of fp8. With ``use_fast_accum`` all of k is summed so; without it
    sums of 128 k are added up in fp32. Sums of int8 are exact. PyTorch's operators compute results of fp8 with a bias,
    a residual or ``scale_result``, and calls on other devices: torch._scaled_mm where it can, else in fp32. Autocast
    converts nothing, and there is no gradient.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return (SCALED.dispatched if is_compiling() else SCALED.core)(
        a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, activation, residual
    )
