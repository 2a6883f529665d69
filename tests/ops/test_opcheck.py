"""torch.library.opcheck of every operator: dtypes, strides, odd sizes, empty tensors, with gradients and without.

It compares schemas, fake tensors' sizes and strides, autograd's registration, and compiled graphs with eager calls. The
last, which takes seconds, is done for two cases of each operator here, for all by ``python -m tests.ops.test_opcheck``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphene import ops  # noqa: E402
from graphene.ops.core.define import defined  # noqa: E402
from tests.ops.cpu_cases import quiet, r  # noqa: E402

__all__ = ["quiet"]

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
Args = tuple[Any, ...]


def heads_first(*shape: int, dtype: Any = F16) -> Any:
    """(batch, seq, heads, dim) of a (batch, heads, seq, dim) tensor, as models have it."""
    b, s, h, d = shape
    return r(b, h, s, d, dtype=dtype).transpose(1, 2)


def holes(*shape: int, dtype: Any = F16) -> Any:
    """Every other element."""
    return r(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]


def once(n: int, *shape: int, dtype: Any = F16) -> Any:
    """The same rows n times, without memory of their own."""
    return r(*shape, dtype=dtype).expand(n, *shape)


def matmuls() -> list[Args]:
    return [
        (r(5, 24), r(24, 16), r(16), "gelu", r(5, 16)),
        (r(5, 24, dtype=F32), r(24, 16, dtype=F32), None, "relu", None, True),
        (r(7, 3, dtype=F32), r(5, 3, dtype=F32).T, r(5, dtype=F32), "silu", None),
        (once(3, 5, 8), r(3, 8, 4)),
        (r(2, 1, 5, 8, dtype=F64), r(3, 8, 7, dtype=F64), None, "relu"),
        (r(8), r(8, 5), None, "tanh"),
        (r(4, 8), r(8), r(1)),
        (r(8), r(8)),
        (r(0, 8), r(8, 5), r(5)),
        (r(4, 0), r(0, 5), r(5), "sigmoid"),
        (holes(5, 7, dtype=BF16), holes(7, 6, dtype=BF16), None, "gelu_tanh"),
    ]


def sums() -> list[Args]:
    return [
        (r(5, 24), r(24, 16), r(16, dtype=F32)),
        (r(5, 3, dtype=F64), r(7, 3, dtype=F64).T, r(7, dtype=F64)),
        (r(3, 8).T, r(3, 4)),
        (r(0, 8), r(8, 5)),
    ]


def outs() -> list[Args]:
    return [
        (r(5, 24), r(24, 16), r(16), "gelu", r(5, 16), r(5, 16)),
        (r(5, 24), r(24, 16), None, None, None, r(16, 5).T),
        (r(2, 5, 8, dtype=F32), r(8, 6, dtype=F32), r(6, dtype=F32), "relu", None, r(2, 5, 12, dtype=F32)[..., :6]),
    ]


def layer_norms() -> list[Args]:
    return [
        (r(5, 40), [40], r(40), r(40), 1e-5, r(5, 40)),
        (r(2, 3, 4, dtype=F32).transpose(0, 1), [2, 4], r(4, 2, dtype=F32).T, None),
        (once(3, 5, dtype=F64), [5], None, r(5, dtype=F64), 1e-3),
        (holes(2, 3, 7, dtype=BF16), [7], r(7, dtype=BF16)),
        (r(0, 8), [8], r(8), r(8)),
    ]


def rms_norms() -> list[Args]:
    given = [(x, shape, rest[0] if rest else None, 1e-6, rest[3] if len(rest) > 3 else None)
             for x, shape, *rest in layer_norms()]  # fmt: skip
    return [*given, (r(3, 40), [40], r(40), 1e-6, r(3, 40), 1.0)]


def added(cases: list[Args], weights: int) -> list[Args]:
    """The same with a residual that lies otherwise."""
    none = [None] * weights
    return [(x, shape, torch.randn_like(x).mT.contiguous().mT, *(*rest, *none)[:weights], 1e-5)
            for x, shape, *rest in cases]  # fmt: skip


def norm_gradients() -> list[Args]:
    def one(x: Any, n: int, weight: bool, residual: bool, total: bool, columns: bool) -> Args:
        shape = list(x.shape[-n:])
        like = [torch.randn_like(x) if wanted else None for wanted in (residual, True, total)]
        return (x, like[0], like[1], shape, r(*shape, dtype=x.dtype) if weight else None, like[2], 1e-5, columns)

    return [
        one(r(5, 40), 1, True, True, True, True),
        one(r(2, 3, 4, dtype=F32).transpose(0, 1), 2, True, False, True, True),
        one(once(3, 5, dtype=F64), 1, False, False, False, False),
        one(holes(2, 3, 7, dtype=BF16), 1, True, False, False, True),
        one(r(0, 8), 1, True, False, False, True),
    ]


def softmaxes() -> list[Args]:
    return [
        (r(5, 40), -1), (r(5, 40), 0, F32), (r(2, 3, 4, dtype=F32).transpose(0, 2), 1), (once(3, 5, dtype=F64), -1),
        (holes(3, 7, dtype=BF16), 1, F16), (r(0, 8), 1), (r(8, 0), 1), (r(dtype=F32), 0), (torch.arange(6), 0, F32),
    ]  # fmt: skip


def gates() -> list[Args]:
    return [
        (r(5, 32)[:, :16], r(5, 32)[:, 16:], "silu"), (r(7, 5, dtype=F32).T, r(5, 7, dtype=F32), "gelu"),
        (once(3, 5, dtype=F64),), (holes(3, 7, dtype=BF16), once(3, 7, dtype=BF16), "tanh"), (r(), r(), "relu"),
        (r(0, 8), r(0, 8), None), (r(6, 4, dtype=F32).T, None, "sigmoid"), (r(6, 4, dtype=F32).T, None, None),
    ]  # fmt: skip


def cells(gates: int, dtype: Any, biases: bool, transposed: bool = False) -> Args:
    batch, inputs, hidden = 3, 5, 8
    x, states = r(batch, inputs, dtype=dtype), [r(batch, hidden, dtype=dtype) for _ in range(2 if gates == 4 else 1)]
    if transposed:
        x, states = r(inputs, batch, dtype=dtype).T, [r(hidden, batch, dtype=dtype).T for _ in states]
    b = [r(gates * hidden, dtype=dtype) if biases else None for _ in range(2)]
    args = (x, *states, r(gates * hidden, inputs, dtype=dtype), r(gates * hidden, hidden, dtype=dtype), *b)
    return args if gates == 4 else (*args, "relu" if biases else None)


def nets() -> list[Args]:
    return [
        (r(5, 8), [r(16, 8), r(6, 16)], [r(16)], [True, False], ["gelu", "none"]),
        (r(2, 3, 8, dtype=F32).transpose(0, 1), [r(8, 16, dtype=F32).T], [r(16, dtype=F32)], [True], ["silu"]),
        (once(3, 8), [r(300, 8), r(5, 300)], [], [False, False], ["relu", "tanh"]),
        (r(0, 8), [r(16, 8)], [], [False], ["none"]),
        (r(4, 0, dtype=F64), [r(3, 0, dtype=F64)], [r(3, dtype=F64)], [True], ["sigmoid"]),
    ]


def attentions() -> list[Args]:
    def one(q: Any, k: Any, v: Any, mask: Any, bias: Any, *numbers: Any) -> Args:
        return (q, k, v, mask, bias, *numbers)

    plain = False, -1, -1, None, 0.0
    return [
        one(r(1, 9, 2, 16), r(1, 12, 1, 16), r(1, 12, 1, 16), torch.rand(1, 12) < 0.6, None, True, -1, -1, 0.1, 0.0),
        one(heads_first(2, 5, 4, 12), heads_first(2, 6, 2, 12), heads_first(2, 6, 2, 12), None, r(5, 6), *plain),
        one(*(heads_first(1, 6, 2, 8, dtype=F32) for _ in range(3)), torch.rand(1, 1, 6, 6) < 0.8, None,
            False, 2, 1, None, 5.0),
        one(*(r(2, 3, 1, 5, dtype=F64) for _ in range(3)), None, None, True, -1, -1, -0.5, 0.0),
        one(once(2, 5, 2, 8, dtype=BF16), holes(2, 4, 2, 8, dtype=BF16), once(2, 4, 2, 8, dtype=BF16), None, None,
            *plain),
        one(r(1, 0, 2, 8), r(1, 4, 2, 8), r(1, 4, 2, 8), None, None, *plain),
        one(r(1, 3, 2, 8), r(1, 0, 2, 8), r(1, 0, 2, 8), None, None, *plain),
        one(r(0, 3, 2, 8), r(0, 4, 2, 8), r(0, 4, 2, 8), None, None, *plain),
        one(r(1, 3, 0, 8, dtype=F32), r(1, 4, 0, 8, dtype=F32), r(1, 4, 0, 8, dtype=F32), None, None, *plain),
    ]  # fmt: skip


def packed() -> list[Args]:
    def one(dtype: Any, dim: int, places_q: list[int], places_k: list[int], *numbers: Any, lies: Any = r) -> Args:
        q, k, v = (lies(n[-1] + 1, h, dim, dtype=dtype) for n, h in ((places_q, 4), (places_k, 2), (places_k, 2)))
        cu = [torch.tensor(x, dtype=torch.int32) for x in (places_q, places_k)]
        return (q, k, v, *cu, 8, 8, *numbers)

    return [
        one(F16, 16, [0, 5, 9], [1, 5, 13], True, -1, -1, 0.1, 0.0),
        one(F32, 6, [0, 3, 3, 6], [0, 4, 5, 5], False, 2, -1, None, 3.0, lies=holes),
        one(F64, 5, [0], [0], False, -1, -1, None, 0.0),
        one(F16, 12, [0, 3], [0, 0], False, -1, -1, None, 0.0),
    ]


def attention_gradients(cases: list[Args], varlen: bool = False) -> list[Args]:
    out = []
    for args in cases:
        q, scale = args[0], args[0].shape[-1] ** -0.5
        rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
        wide = F64 if q.dtype == F64 else F32
        front = (torch.randn_like(q), r(*rows, dtype=wide), r(*rows, dtype=F32))
        rest = () if varlen else (None if args[4] is None else r(*rows, dtype=F32),)
        out.append((*front, *args[:-5], *rest, front[2] if len(out) % 2 else None, *args[-5:-2], scale, args[-1]))
    return out


def deltas() -> list[Args]:
    return [
        (r(1, 5, 2, 16), r(1, 5, 2, 16, dtype=F32), None),
        (heads_first(2, 5, 3, 12), r(2, 5, 3, 12, dtype=F32), r(2, 3, 5, dtype=F32)),
        (r(5, 3, 7, dtype=F64), once(5, 3, 7, dtype=F64), None),
        (r(0, 3, 8), r(0, 3, 8, dtype=F32), r(3, 0, dtype=F32)),
    ]  # fmt: skip


CASES: dict[str, Callable[[], list[Args]]] = {
    "matmul": matmuls,
    "matmul_sums": sums,
    "matmul_out": outs,
    "layer_norm": layer_norms,
    "rms_norm": rms_norms,
    "add_layer_norm": lambda: added(layer_norms(), 2),
    "add_rms_norm": lambda: added(layer_norms(), 1),
    "layer_norm_backward": norm_gradients,
    "rms_norm_backward": norm_gradients,
    "softmax": softmaxes,
    "gated": gates,
    "rnn_cell": lambda: [cells(1, F16, True), cells(1, F32, False, True), cells(1, F64, True)],
    "lstm_cell": lambda: [cells(4, F16, True), cells(4, F32, False, True), cells(4, F64, True)],
    "fused_mlp": nets,
    "attention": attentions,
    "attention_lse": attentions,
    "attention_varlen": packed,
    "attention_varlen_lse": packed,
    "attention_training": attentions,
    "attention_varlen_training": packed,
    "attention_backward": lambda: attention_gradients(attentions()),
    "attention_varlen_backward": lambda: attention_gradients(packed(), varlen=True),
    "attention_delta": deltas,
}
# An operator's own file of tests may name its cases.
for _path in sorted(Path(__file__).parent.glob("test_*.py")):
    if "\nOPCHECK = " in _path.read_text():
        CASES |= importlib.import_module(f"tests.ops.{_path.stem}").OPCHECK
# Graphs are compiled of what users' calls put into them; kernels and PyTorch's way are what these calls run.
CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # PyTorch's check of schemas cannot compare tensors of them
SUFFIXES = ("_forward", "_reference", "")
# Operators with a gradient of their own; those that only have a node that says that there is none are left out.
DIFFERENTIABLE = {
    name for name, op in defined.items() if op.definition.backward is not None and not op.definition.part_of
}


def registered() -> set[str]:
    names = torch._C._dispatch_get_all_op_names()
    return {n.split("::")[1] for n in names if n.startswith("graphene::")}


ops.register()
OURS = registered()  # when tests are collected: some define operators of their own as they run


def test_no_operator_is_left_out() -> None:
    assert {name + suffix for name in CASES for suffix in SUFFIXES} == OURS


def wanting(args: Any) -> Any:
    """The same values in leaves that want a gradient, as they lie."""

    def one(x: Any) -> Any:
        if isinstance(x, list):
            return [one(y) for y in x]
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.detach().requires_grad_()

    return tuple(one(x) for x in args)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", CASES)
def test_opcheck(name: str, suffix: str) -> None:
    if name + suffix not in OURS:
        pytest.skip("no such operator")
    check(name, suffix, compiled=2)


def check(name: str, suffix: str, compiled: int) -> None:
    op = getattr(torch.ops.graphene, name + suffix).default
    for i, args in enumerate(CASES[name]()):
        given = wanting(args) if suffix == "" and name in DIFFERENTIABLE else args
        checks = CHECKS[: 2 if suffix else 4 if i < compiled else 3]
        checks = checks[1:] if any(isinstance(t, torch.Tensor) and t.dtype in FP8 for t in args) else checks
        torch.library.opcheck(op, given, test_utils=checks)


if __name__ == "__main__":
    for operator in sorted(registered()):
        ending = next(x for x in SUFFIXES if operator.endswith(x) and operator.removesuffix(x) in CASES)
        check(operator.removesuffix(ending), ending, compiled=100)
        print(operator, "passes")
