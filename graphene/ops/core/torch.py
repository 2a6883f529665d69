"""PyTorch, and the functions of it that the C++ core calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from graphene import _core

try:
    import torch as _imported
except ImportError as e:
    _core.fail("OP_TORCH", "graphene.ops needs PyTorch", [f"why: {e}"], "install torch (docs/operators.md)")

torch: Any = _imported  # so that type checkers need not read PyTorch
if not hasattr(torch.library, "register_autograd"):
    _core.fail(
        "OP_TORCH", "graphene.ops needs a newer PyTorch", [f"got:  {torch.__version__}"], "install torch 2.4 or newer"
    )
Tensor = Any  # torch.Tensor

# c10::ScalarType's numbers, as the C interface passes element types.
NUMBERS: dict[Any, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
}


if torch.version.cuda is not None:
    _core.nvrtc_read_ahead()  # so that a first call finds the compiler's 100 MB in memory

BREAK_TAKES_TEXT = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 7)


def fail(code: str, message: str, details: Sequence[str], fix: str) -> NoReturn:
    """Raises the error of that code; PyTorch's compiler quotes it as the reason why it cannot compile the graph."""
    if torch.compiler.is_dynamo_compiling():
        graph_break(f"{message} [{code}]; {'; '.join(details)}; fix: {fix}")
    _core.fail(code, message, details, fix)


def graph_break(why: str) -> None:
    """Makes PyTorch's compiler leave the following code to Python."""
    if BREAK_TAKES_TEXT:
        torch._dynamo.graph_break(msg=why)
    else:
        torch._dynamo.graph_break()


def wide_dtype(dtype: Any) -> Any:
    """The dtype that PyTorch's operators compute in: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _hand_over() -> None:
    """Gives the core those of PyTorch's functions that answer its questions."""
    from torch.autograd import forward_ad
    from torch.utils._device import DeviceContext

    c = torch._C
    guards = getattr(getattr(c, "_dynamo", None), "guards", None)
    _core.set_torch(
        {
            "tensor": torch.Tensor,
            "parameter": torch.nn.Parameter,
            "grad_enabled": torch.is_grad_enabled,
            "dispatch_modes": c._len_torch_dispatch_stack,
            "function_modes": c._len_torch_function_stack,
            "function_mode_at": c._get_function_stack_at,
            "device_mode": DeviceContext,
            "tracing_state": c._get_tracing_state,
            "autocast": torch.is_autocast_enabled,
            "requires_grad": torch._C.TensorBase.__dict__.get("requires_grad"),
            "forward_ad": forward_ad.__dict__,
            "empty_strided": torch.empty_strided,
            "empty_strided_cuda": getattr(guards, "_empty_strided_cuda", None),
            "dtypes": NUMBERS,
            "ask_python": False,
            "plain": torch.empty(1),
            "wanting": torch.empty(1, requires_grad=True),
        }
    )


_hand_over()
