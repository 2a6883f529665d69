"""What graphene.ops refuses, in what words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from cpu_cases import quiet, r, want  # noqa: E402, F401


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
     "matmul: argument 'out' is not as the result   [OP_OUT]\n  want: [8,24] torch.float16\n"
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
     "matmul: argument 'a' is no dense tensor   [OP_ARGUMENT]\n  got:  torch.sparse_coo\n"
     "  fix: pass a dense one; to_dense() and to_padded_tensor() make one"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), r(24).to_sparse()), "OP_ARGUMENT",
     "matmul: argument 'bias' is no dense tensor"),
    (lambda: ops.softmax(r(8, 16, dtype=torch.float32).to_mkldnn(), 0), "OP_ARGUMENT", "  got:  torch._mkldnn\n"),
    (lambda: ops.layer_norm(torch.nested.nested_tensor([r(8, 16), r(9, 16)]), 16), "OP_ARGUMENT",
     "layer_norm: argument 'input' is no dense tensor   [OP_ARGUMENT]\n  got:  a nested tensor\n"),
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
    (lambda: ops.softmax(r(8, 16), 0, "float32"), "OP_DTYPE", "softmax: argument 'dtype' is no floating-point type"),
    (lambda: ops.layer_norm([1.0], 1), "OP_ARGUMENT", "layer_norm: argument 'input' is not a torch.Tensor"),
    (lambda: ops.layer_norm(r(8, 16), (15,)), "OP_SHAPE",
     "layer_norm: the last extents of 'input' are not normalized_shape   [OP_SHAPE]\n  normalized_shape: [15]\n"
     "  input: [8,16]\n  fix: pass input.shape[-1:], or of as many dimensions as are normalised together"),
    (lambda: ops.rms_norm(r(8, 16), 16, r(15)), "OP_SHAPE", "rms_norm: argument 'weight' has the wrong shape"),
    (lambda: ops.layer_norm(r(8, 16), 16, residual=r(16)), "OP_SHAPE", "pass residual.expand_as(input)"),
    (lambda: ops.layer_norm(r(8, 16), 16, r(16, dtype=torch.float32)), "OP_DTYPE", "nothing is promoted"),
    (lambda: ops.softmax(r(8, 16), 2), "OP_ARGUMENT",
     "softmax: argument 'dim' is no dimension of 'input'   [OP_ARGUMENT]\n  want: -2 to 1\n  got:  2\n"
     "  fix: pass one of its dimensions"),
    (lambda: ops.softmax(r(8, 16), 1, torch.int32), "OP_DTYPE", "softmax: argument 'dtype' is no floating-point type"),
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
    (lambda x: ops.softmax(x, 9), "OP_ARGUMENT", "softmax: argument 'dim' is no dimension of 'input'"),
    (lambda x: ops.softmax(x, "x"), "OP_ARGUMENT", "softmax: argument 'dim' is not an integer"),
    (lambda x: ops.attention(x, x, x), "OP_SHAPE", "attention: "),
]


@pytest.mark.skipif(not ops._torch._BREAK_TAKES_TEXT, reason="this PyTorch's compiler takes no reasons")
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
