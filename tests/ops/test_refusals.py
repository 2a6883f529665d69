"""What graphene.ops refuses, in what words."""

from __future__ import annotations

import itertools
import math
import operator
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import quiet, r, want  # noqa: E402, F401

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.ops.core.torch import BREAK_TAKES_TEXT  # noqa: E402


@pytest.mark.parametrize("n", [8, 80])  # on the simulator, and by PyTorch's operators
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_out_lies_apart_from_itself_and_from_arguments(n: int, dtype: Any) -> None:
    """By one rule wherever it runs: blocks run in any order, and read while others write."""
    both = r(n, 3 * n, dtype=dtype)
    a, b, beside = both[:, :n], r(n, n, dtype=dtype), both[:, n : 2 * n]
    before, flat = a.clone(), r(2 * n * n, dtype=dtype)
    assert ops.matmul(a, b, out=beside) is beside  # interleaved, not shared
    torch.testing.assert_close(beside.double(), want(before, b), rtol=2e-3, atol=2e-2)
    cases = {
        "a": (a, b, None, a), "b": (a, b, None, b), "residual": (a, b, b, b), "bias": (a, b, None, a),
        "part": (a, b, None, both[:, n - 1 : 2 * n - 1]),
    }  # fmt: skip
    for name, (x, y, residual, out) in cases.items():
        if name == "residual":
            x, y = r(n, n, dtype=dtype), r(n, n, dtype=dtype)
        bias = a[0] if name == "bias" else None
        kept = out.clone()
        with pytest.raises(gr.LaunchError) as e:
            ops.matmul(x, y, bias, residual=residual, out=out)
        assert e.value.code == "OP_OUT"
        other = "a" if name in ("part", "bias") else name
        assert f"matmul: arguments 'out' and '{other}' share memory   [OP_OUT]\n  out: [{n},{n}:" in str(e.value)
        assert torch.equal(out, kept)
    row, strides = r(1, n, dtype=dtype), ((n - 1, 1), (1, 1), (0, 1))
    for out in (row.expand(n, n), row.mT.expand(n, n), *(flat.as_strided((n, n), s) for s in strides)):
        with pytest.raises(gr.LaunchError) as e:
            ops.matmul(a, b, out=out)
        assert str(e.value) == (
            f"matmul: argument 'out' has several elements at one address   [OP_OUT]\n"
            f"  out: [{n},{n}:{out.stride(0)},{out.stride(1)}]\n"
            "  fix: pass a tensor whose elements lie apart, or leave out= out"
        )


def test_gradients_from_what_out_has_replaced_are_refused() -> None:
    a, b, leaf = r(8, 8), r(8, 8), r(8, 8).requires_grad_()
    for dtype in (torch.float16, torch.float32):
        kept = r(8, 8, dtype=dtype)
        y = ops.matmul(leaf.to(dtype), kept, activation="relu")
        ops.matmul(a.to(dtype), b.to(dtype), out=kept)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def attend(**named: Any) -> Any:
    return ops.attention(*[torch.arange(256.0).sin().half().view(1, 8, 2, 16)] * 3, **named)


def pack(most: Any) -> Any:
    starts = torch.tensor([0, 8], dtype=torch.int32)
    return ops.attention_varlen(*[torch.arange(256.0).sin().half().view(8, 2, 16)] * 3, starts, starts, most, 8)


def test_what_counts_as_a_number() -> None:
    x = r(8, 16)
    for dim in (np.int64(1), np.uint8(1), np.array(1), torch.tensor(1), torch.tensor(1, dtype=torch.uint8)):
        assert torch.equal(ops.softmax(x, dim), ops.softmax(x, 1))
        assert ops.explain(ops.softmax, x, dim) == ops.explain(ops.softmax, x, 1)
    for eps in (2**63, 2**64 - 1, 2**70, np.float32(2.0**63), Fraction(2**63)):  # no less than what signed words hold
        assert ops.layer_norm(x, 16, eps=eps).abs().max() < 1e-6
    for window in ((10**400, 10**400), (2**63, 2**62), (-1, -1), (2**31, 2**40)):
        assert torch.equal(attend(window=window), attend())
    assert torch.equal(attend(window=(10**400, 0)), attend(causal=True))
    assert torch.equal(pack(torch.tensor(8)), pack(np.int64(8)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_any_number_of_dimensions(dtype: Any) -> None:
    """Up to PyTorch's own 64, whatever part of them is normalised."""
    for rank in (7, 8, 9, 12, 40, 64):
        shape = [1] * (rank - 3) + [2, 3, 4]
        x, n = r(*shape, dtype=dtype), shape[1:]
        w = r(*n, dtype=dtype)
        near = {"rtol": 2e-3, "atol": 2e-3}
        got = ops.layer_norm(x, n, w, w, residual=x, return_sum=True)
        torch.testing.assert_close(got[0], torch.nn.functional.layer_norm(x + x, n, w, w), **near)
        torch.testing.assert_close(got[1], x + x)
        torch.testing.assert_close(ops.rms_norm(x, n, w, 1e-5), torch.nn.functional.rms_norm(x, n, w, 1e-5), **near)
        torch.testing.assert_close(ops.softmax(x, -2), torch.softmax(x, -2), **near)
        torch.testing.assert_close(ops.gated(x, x), x * x, **near)
        torch.testing.assert_close(ops.matmul(x, x.mT, residual=x @ x.mT), 2 * (x @ x.mT), rtol=2e-3, atol=2e-2)
        out = torch.empty(*shape[:-1], 3, dtype=dtype)
        torch.testing.assert_close(ops.matmul(x, x.mT, out=out), x @ x.mT, rtol=2e-3, atol=2e-2)
        leaf = x.clone().requires_grad_()
        ops.layer_norm(leaf, n, w).sum().backward()
        assert leaf.grad.shape == x.shape
        torch.testing.assert_close(ops.fused_mlp(x, [r(4, 4, dtype=dtype) * 0]), x * 0)


def test_out_of_any_strides_whose_elements_lie_apart() -> None:
    """By all addresses, not by whether each stride steps over what lies below."""
    a, b = r(2, 4), r(4, 3)
    out = torch.zeros(20).half().as_strided((2, 3), (3, 2))  # at 0, 2, 4, 3, 5, 7
    assert ops.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, ops.matmul(a, b))
    flat, seen = torch.zeros(40), {True: 0, False: 0}
    for strides in itertools.product(range(7), repeat=3):
        for shape in ((2, 2, 2), (2, 3, 2), (3, 2, 4)):
            out = flat.as_strided(shape, strides)
            places = {sum(map(operator.mul, at, strides)) for at in itertools.product(*map(range, shape))}
            apart = len(places) == out.numel()
            seen[apart] += 1
            if apart:
                ops.matmul(torch.ones(*shape[:2], 5), torch.ones(shape[0], 5, shape[2]), out=out)
                assert (out == 5).all()
            else:
                with pytest.raises(gr.LaunchError, match="argument 'out' has several elements at one address"):
                    ops.matmul(torch.ones(*shape[:2], 5), torch.ones(shape[0], 5, shape[2]), out=out)
    assert min(seen.values()) > 100


def test_out_of_strides_that_take_too_long_to_decide() -> None:
    u = [0, 1]  # Conway and Guy's sets, of which no two subsets have one sum, though all numbers are near each other
    while len(u) <= 24:
        u.append(2 * u[-1] - u[-1 - round(math.sqrt(2 * (len(u) - 1)))])
    strides = [u[-1] - x for x in u[:-1]]
    out = torch.empty(1 + sum(strides), dtype=torch.float16).as_strided((2,) * 24, strides)
    with pytest.raises(gr.LaunchError) as e:
        ops.matmul(r(1).expand(*(2,) * 23, 1), r(1, 2), out=out)
    assert str(e.value) == (
        "matmul: argument 'out' has strides of which it takes too long to know whether elements lie apart   [OP_OUT]\n"
        f"  out: [{','.join(['2'] * 24)}:{','.join(map(str, strides))}]\n"
        "  fix: pass a tensor whose elements lie apart, or leave out= out"
    )


ERRORS = [
    (lambda: ops.matmul(r(8, 16), r(16, 24, dtype=torch.float32)), "OP_DTYPE",
     "matmul: argument 'b' has another dtype; nothing is promoted   [OP_DTYPE]\n  want: torch.float16, as 'a'\n"
     "  got:  torch.float32\n  fix: convert one of them: b.to(torch.float16)"),
    (lambda: ops.matmul(torch.ones(3, 3).long(), torch.ones(3, 3).long()), "OP_DTYPE",
     "matmul: argument 'a' has a dtype that it does not take   [OP_DTYPE]\n"
     "  want: torch.float16, torch.bfloat16, torch.float32, torch.float64\n  got:  torch.int64\n  fix: convert it"),
    (lambda: ops.matmul(r(8, 15), r(16, 24)), "OP_SHAPE",
     "matmul: a's columns are not as many as b's rows   [OP_SHAPE]\n  a: [8,15]\n  b: [16,24]\n"
     "  fix: transpose an operand, or pass another one"),
    (lambda: ops.matmul(r(2, 8, 16), r(3, 16, 24)), "OP_SHAPE", "matmul: the batch dimensions do not broadcast"),
    (lambda: ops.matmul(r(1)[0], r(3)), "OP_SHAPE", "matmul: an operand has no dimensions"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), r(23)), "OP_SHAPE",
     "matmul: argument 'bias' has the wrong shape   [OP_SHAPE]\n  want: [24], one for each column of the result\n"
     "  got:  [23]\n  fix: pass a vector"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), residual=r(24)), "OP_SHAPE",
     "matmul: argument 'residual' has the wrong shape   [OP_SHAPE]\n  want: [8,24], as the result\n  got:  [24]\n"
     "  fix: pass residual.expand(...), which copies nothing"),
    (lambda: ops.matmul(r(8, 16), r(16, 24).to("meta")), "OP_DEVICE",
     "matmul: argument 'b' is on another device   [OP_DEVICE]\n  want: cpu, as 'a'\n  got:  meta\n"
     "  fix: move all arguments to one device"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), activation="swish"), "OP_ARGUMENT",
     'matmul: no activation is called "swish"   [OP_ARGUMENT]\n'
     '  known: None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"\n  fix: pass one of them'),
    (lambda: ops.matmul(r(8, 16), 3), "OP_ARGUMENT",
     "matmul: argument 'b' is not a torch.Tensor   [OP_ARGUMENT]\n  got:  int\n  fix: pass a torch.Tensor"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=r(8, 23)), "OP_OUT",
     "matmul: argument 'out' is not like the result   [OP_OUT]\n  want: [8,24] torch.float16\n"
     "  got:  [8,23] torch.float16\n  fix: pass a tensor of that shape and dtype, or leave out= out"),
    (lambda: ops.matmul(r(8, 16, grad=True), r(16, 24), out=r(8, 24)), "OP_OUT",
     "matmul: there is no gradient through out=   [OP_OUT]\n  fix: leave out= out, or call it under torch.no_grad()"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=torch.empty(8, 24)), "OP_OUT", "  got:  [8,24] torch.float32\n"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=r(8, 24).to("meta")), "OP_DEVICE",
     "matmul: argument 'out' is on another device"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=torch.view_as_complex(r(8, 24, 2)).conj().imag), "OP_OUT",
     "matmul: argument 'out' is a view that PyTorch negates when it is read   [OP_OUT]\n"
     "  fix: pass out.resolve_neg(), or leave out= out"),
    (lambda: torch.vmap(lambda x: ops.matmul(x, x, out=torch.empty(8, 8)))(r(2, 8, 8, dtype=torch.float32)), "OP_OUT",
     "matmul: there is no out= under torch.vmap and torch.func   [OP_OUT]\n  fix: leave out= out"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), activation=torch.relu), "OP_ARGUMENT",
     "matmul: argument 'activation' is not a string or None   [OP_ARGUMENT]\n  got:  builtin_function_or_method\n"
     "  fix: pass a string or None"),
    (lambda: ops.matmul(r(8, 16).to_sparse(), r(16, 24)), "OP_ARGUMENT",
     "matmul: argument 'a' is not a dense tensor   [OP_ARGUMENT]\n  got:  torch.sparse_coo\n"
     "  fix: pass a dense one; to_dense() and to_padded_tensor() make one"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), r(24).to_sparse()), "OP_ARGUMENT",
     "matmul: argument 'bias' is not a dense tensor"),
    (lambda: ops.softmax(r(8, 16, dtype=torch.float32).to_mkldnn(), 0), "OP_ARGUMENT", "  got:  torch._mkldnn\n"),
    (lambda: ops.layer_norm(torch.nested.nested_tensor([r(8, 16), r(9, 16)]), 16), "OP_ARGUMENT",
     "layer_norm: argument 'input' is not a dense tensor   [OP_ARGUMENT]\n  got:  a nested tensor\n"),
    (lambda: ops.softmax(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), 0), "OP_DTYPE", "torch.qint8"),
    (lambda: ops.matmul(torch.ones(8, 8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8)), "OP_DTYPE",
     "  want: torch.float16, torch.bfloat16, torch.float32, torch.float64\n  got:  torch.int8\n"),
    (lambda: ops.layer_norm(r(8, 16), 16.0), "OP_ARGUMENT",
     "layer_norm: argument 'normalized_shape' is not an integer or a sequence of them   [OP_ARGUMENT]\n  got:  float\n"
     "  fix: pass an integer or a sequence of them"),
    (lambda: ops.rms_norm(r(8, 16), None), "OP_ARGUMENT", "rms_norm: argument 'normalized_shape' is not an integer"),
    (lambda: ops.rms_norm(r(8, 16), (8, "16")), "OP_ARGUMENT", "rms_norm: argument 'normalized_shape' is not an int"),
    (lambda: ops.layer_norm(r(8, 16), ()), "OP_SHAPE", "  normalized_shape: []\n"),
    (lambda: ops.layer_norm(r(8, 16), -16), "OP_SHAPE", "  normalized_shape: [-16]\n"),
    (lambda: ops.layer_norm(r(8, 16), 16, eps=None), "OP_ARGUMENT",
     "layer_norm: argument 'eps' is not a number   [OP_ARGUMENT]\n  got:  NoneType\n  fix: pass a number"),
    (lambda: ops.rms_norm(r(8, 16), 16, eps="1"), "OP_ARGUMENT", "rms_norm: argument 'eps' is not a number"),
    (lambda: ops.softmax(r(8, 16), None), "OP_ARGUMENT",
     "softmax: argument 'dim' is not an integer   [OP_ARGUMENT]\n  got:  NoneType\n  fix: pass an integer"),
    (lambda: ops.softmax(r(8, 16), 1.0), "OP_ARGUMENT", "softmax: argument 'dim' is not an integer"),
    *((lambda dim=dim: ops.softmax(r(8, 16), dim), "OP_ARGUMENT",
       f"softmax: argument 'dim' is not an integer   [OP_ARGUMENT]\n  got:  {type(dim).__name__}\n")
      for dim in (torch.tensor(1.5), torch.tensor([1.7]), torch.tensor([1]), torch.tensor(True), torch.zeros(2), True,
                  np.array(1.5), np.zeros(2), np.array([1]), np.float32(1), int)),
    (lambda: ops.softmax(r(8, 16), 10**400), "OP_ARGUMENT",
     "softmax: argument 'dim' is not an integer of 64 bits   [OP_ARGUMENT]\n  got:  int\n"),
    (lambda: ops.softmax(r(8, 16), -(2**63) - 1), "OP_ARGUMENT", "argument 'dim' is not an integer of 64 bits"),
    (lambda: ops.softmax(r(8, 16), 2**62), "OP_ARGUMENT", "softmax: argument 'dim' is not a dimension of 'input'"),
    (lambda: ops.layer_norm(r(8, 16), 16, eps=10**400), "OP_ARGUMENT",
     "layer_norm: argument 'eps' is not a number of 64 bits   [OP_ARGUMENT]\n  got:  int\n"
     "  fix: pass a number of 64 bits"),
    (lambda: ops.rms_norm(r(8, 16), 16, eps=-(10**5000)), "OP_ARGUMENT", "argument 'eps' is not a number of 64 bits"),
    (lambda: ops.rms_norm(r(8, 16), 16, eps=Fraction(10**400)), "OP_ARGUMENT", "argument 'eps' is not a number of 64"),
    (lambda: ops.layer_norm(r(8, 16), 10**5000), "OP_ARGUMENT",
     "argument 'normalized_shape' is not an integer of 64 bits or a sequence of them   [OP_ARGUMENT]\n  got:  int\n"),
    (lambda: ops.rms_norm(r(8, 16), [8, 2**63]), "OP_ARGUMENT", "argument 'normalized_shape' is not an integer of 64"),
    (lambda: ops.explain(ops.layer_norm, r(8, 16), 16, eps=10**400), "OP_ARGUMENT", "is not a number of 64 bits"),
    (lambda: attend(scale=10**400), "OP_ARGUMENT", "attention: argument 'scale' is not a number of 64 bits"),
    (lambda: attend(softcap=10**400), "OP_ARGUMENT", "attention: argument 'softcap' is not a number of 64 bits"),
    (lambda: attend(window=(-(10**5000), 0)), "OP_ARGUMENT", "attention: argument 'window' means nothing"),
    (lambda: attend(dropout_p=10**5000), "OP_ARGUMENT", "argument 'dropout_p' is not a number of 64 bits"),
    (lambda: attend(dropout_p=None), "OP_ARGUMENT", "argument 'dropout_p' is not a number"),
    (lambda: attend(dropout_p=r(3)), "OP_ARGUMENT", "attention: argument 'dropout_p' is not a number"),
    (lambda: attend(dropout_p=np.zeros(3)), "OP_ARGUMENT", "attention: argument 'dropout_p' is not a number"),
    (lambda: ops.cross_entropy(r(3, 16), torch.arange(3), reduction=np.zeros(3)), "OP_ARGUMENT",
     "cross_entropy: argument 'reduction' is not known"),
    (lambda: attend(return_lse="no"), "OP_ARGUMENT", "argument 'return_lse' is not a bool"),
    (lambda: pack(most=10**400), "OP_ARGUMENT", "argument 'max_seqlen_q' is not an integer of 64 bits"),
    (lambda: pack(most=torch.tensor(8.0)), "OP_ARGUMENT", "argument 'max_seqlen_q' is not an integer   [OP_ARGUMENT]"),
    (lambda: ops.softmax(r(8, 16), 0, "float32"), "OP_DTYPE", "softmax: argument 'dtype' is not a floating-point type"),
    (lambda: ops.log_softmax(r(8, 16), 0, np.zeros(4)), "OP_DTYPE", "argument 'dtype' is not a floating-point type"),
    (lambda: ops.rms_norm(r(8, 16), 16, return_sum=r(3)), "OP_ARGUMENT", "argument 'return_sum' is not a bool"),
    (lambda: ops.layer_norm(r(8, 16), 16, return_sum=1), "OP_ARGUMENT", "argument 'return_sum' is not a bool"),
    (lambda: ops.layer_norm([1.0], 1), "OP_ARGUMENT", "layer_norm: argument 'input' is not a torch.Tensor"),
    (lambda: ops.layer_norm(r(8, 16), (15,)), "OP_SHAPE",
     "layer_norm: the last extents of 'input' are not normalized_shape   [OP_SHAPE]\n  normalized_shape: [15]\n"
     "  input: [8,16]\n  fix: pass input.shape[-1:], or of as many dimensions as are normalised together"),
    (lambda: ops.rms_norm(r(8, 16), 16, r(15)), "OP_SHAPE", "rms_norm: argument 'weight' has the wrong shape"),
    (lambda: ops.layer_norm(r(8, 16), 16, residual=r(16)), "OP_SHAPE", "pass residual.expand_as(input)"),
    (lambda: ops.layer_norm(r(8, 16), 16, r(16, dtype=torch.float32)), "OP_DTYPE", "nothing is promoted"),
    (lambda: ops.softmax(r(8, 16), 2), "OP_ARGUMENT",
     "softmax: argument 'dim' is not a dimension of 'input'   [OP_ARGUMENT]\n  want: -2 to 1\n  got:  2\n"
     "  fix: pass one of its dimensions"),
    (lambda: ops.softmax(r(8, 16), 1, torch.int32), "OP_DTYPE",
     "softmax: argument 'dtype' is not a floating-point type"),
    (lambda: ops.softmax(torch.ones(3).long(), 0), "OP_DTYPE", "softmax: argument 'input' has a dtype"),
    (lambda: ops.explain(len), "OP_ARGUMENT", "explain takes a function of graphene.ops"),
    (lambda: ops.explain(ops.matmul, r(8, 16), None), "OP_ARGUMENT", "matmul: argument 'b' is not a torch.Tensor"),
    (lambda: ops.explain(ops.matmul, r(8, 16), r(16, 8), None, 3), "OP_ARGUMENT", "'activation' is not a string"),
    (lambda: ops.explain(ops.softmax, r(8, 16), "q"), "OP_ARGUMENT", "softmax: argument 'dim' is not an integer"),
    (lambda: ops.explain(ops.layer_norm, r(8, 16), 16, eps="q"), "OP_ARGUMENT", "layer_norm: argument 'eps' is not a"),
    (lambda: ops.explain(ops.rms_norm, None, 16), "OP_ARGUMENT", "rms_norm: argument 'input' is not a torch.Tensor"),
    (lambda: ops.explain(ops.gated, r(8, 16), 3), "OP_ARGUMENT", "gated: argument 'up' is not a torch.Tensor or None"),
    (lambda: ops.explain(ops.attention, r(1, 8, 2, 16), None, None), "OP_ARGUMENT", "attention: argument 'k' is not"),
    (lambda: ops.explain(ops.rnn_cell, None, None, None, None), "OP_ARGUMENT", "rnn_cell: argument 'input' is not"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), ERRORS, ids=[f"{i}-{e[1]}" for i, e in enumerate(ERRORS)])
def test_errors(call: Callable[[], Any], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        call()
    assert e.value.code == code
    assert text in str(e.value)


COMPILED = [
    (lambda x: ops.matmul(x, x), "OP_SHAPE", "matmul: a's columns are not as many as b's rows"),
    (lambda x: ops.matmul(x, x.float().T), "OP_DTYPE", "matmul: argument 'b' has another dtype"),
    (lambda x: ops.matmul(x, x.T, None, "swish"), "OP_ARGUMENT", 'matmul: no activation is called "swish"'),
    (lambda x: ops.layer_norm(x, (7,)), "OP_SHAPE", "layer_norm: the last extents of 'input' are not"),
    (lambda x: ops.softmax(x, 9), "OP_ARGUMENT", "softmax: argument 'dim' is not a dimension of 'input'"),
    (lambda x: ops.softmax(x, "x"), "OP_ARGUMENT", "softmax: argument 'dim' is not an integer"),
    (lambda x: ops.attention(x, x, x), "OP_SHAPE", "attention: "),
]


@pytest.mark.skipif(not BREAK_TAKES_TEXT, reason="this PyTorch's compiler takes no reasons")
@pytest.mark.parametrize(("call", "code", "text"), COMPILED)
def test_errors_in_compiled_graphs(call: Callable[[Any], Any], code: str, text: str) -> None:
    x = r(8, 16)
    with pytest.raises(torch._dynamo.exc.Unsupported) as whole:
        torch.compile(call, fullgraph=True, backend="eager")(x)
    assert f"[{code}]" in str(whole.value)
    assert text in str(whole.value)
    with pytest.raises(gr.LaunchError) as parts:
        torch.compile(call, backend="eager")(x)
    assert parts.value.code == code
    assert text in str(parts.value)


def test_without_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport graphene as gr\n"
        "try: gr.ops\nexcept gr.LaunchError as e: print(e.code, str(e).splitlines()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OP_TORCH graphene.ops needs PyTorch   [OP_TORCH]\n"
