"""graphene.ops.fused_mlp, rnn_cell, lstm_cell and graphene.nn on CPU tensors: values, gradients, compiled graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

ns, nn, F = torch.ops.graphene, torch.nn, torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
}  # fmt: skip
TYPES = [torch.float16, torch.bfloat16]
ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        torch.manual_seed(1)
        yield


def layers(widths: list[int], dtype: Any = torch.float16, grad: bool = False) -> tuple[list[Any], list[Any]]:
    shapes = list(zip(widths[1:], widths, strict=False))
    weights = [(torch.randn(n, k) * 1.4 / k**0.5).to(dtype).requires_grad_(grad) for n, k in shapes]
    return weights, [torch.randn(n).to(dtype).requires_grad_(grad) for n, _ in shapes]


def want(x: Any, weights: Any, biases: Any, acts: list[Any]) -> Any:
    """Sums in float64, each layer's result rounded."""
    dtype = weights[0].dtype
    for w, b, a in zip(weights, biases, acts, strict=True):
        z = x.double() @ w.double().T
        x = ACTIVATIONS[a](z if b is None else z + b.double()).to(dtype)
    return x


def close(got: Any, ref: Any) -> None:
    """Within two units of the last place of the largest: a sum in fp32 may round another way."""
    assert got.shape == ref.shape
    assert got.dtype == ref.dtype
    assert (got.double() - ref.double()).abs().max() <= 2 * ULP[got.dtype] * ref.double().abs().max()


def rounded_once(got: Any, ref: Any) -> None:
    assert ((got.double() - ref).abs() <= 0.51 * ULP[got.dtype] * ref.abs() + 1e-5).all()


# Perceptrons


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("widths", [[20, 40, 40, 7], [64, 48, 48, 48, 90], [16, 16], [9, 33, 5], [130, 32, 1]])
def test_perceptrons(dtype: Any, widths: list[int]) -> None:
    weights, biases = layers(widths, dtype)
    x = torch.randn(2, 5, widths[0]).to(dtype)
    hidden = len(weights) - 1
    close(ops.fused_mlp(x, weights, biases), want(x, weights, biases, ["relu"] * hidden + [None]))
    biases[-1] = None
    got = ops.fused_mlp(x, weights, biases, "gelu", "tanh")
    close(got, want(x, weights, biases, ["gelu"] * hidden + ["tanh"]))
    close(ops.fused_mlp(x[0, 0], weights), want(x[0, 0], weights, [None] * len(weights), ["relu"] * hidden + [None]))
    assert "the simulator runs\n  kernel fused_mlp" in ops.explain(ops.fused_mlp, x, weights, biases)


def test_an_activation_for_each_layer() -> None:
    acts = [a for a in ACTIVATIONS if a is not None]
    weights, biases = layers([20] * (len(acts) + 2))
    x = torch.randn(6, 20).half()
    close(ops.fused_mlp(x, weights, biases, acts), want(x, weights, biases, [*acts, None]))
    same = ops.fused_mlp(x, weights, biases, lambda v: gr.where(v < 0, 0, v))
    assert torch.equal(same, ops.fused_mlp(x, weights, biases))


def test_tensors_of_any_layout() -> None:
    weights, biases = layers([24, 32, 8])
    acts = ["relu", None]
    wide = torch.randn(24, 40).half()
    for x in (wide.T[:, :24], wide[:, 3:27], wide[:, 8:32], wide[::2, :24], wide[:1, :24].expand(5, 24), wide[:0, :24]):
        close(ops.fused_mlp(x, weights, biases), want(x, weights, biases, acts)) if len(x) else None
        assert ops.fused_mlp(x, weights, biases).shape == (len(x), 8)
    others = [weights[0].T.contiguous().T, torch.randn(8, 33).half()[:, 1:]]
    unaligned = [torch.randn(33).half()[1:], biases[1]]
    close(ops.fused_mlp(wide[:, :24], others, unaligned), want(wide[:, :24], others, unaligned, acts))


def test_a_call_that_is_known_looks_at_its_tensors() -> None:
    """They may hold something else by then, and be something else."""
    weights, biases = layers([12, 20, 5])
    acts = ["relu", None]
    x = torch.randn(6, 12).half()
    for _ in range(3):
        close(ops.fused_mlp(x, weights, biases), want(x, weights, biases, acts))
        weights[0].normal_()
        x = torch.randn(6, 12).half()
    weights[0].data = torch.randn(20, 24).half()[:, ::2]  # no lines that a kernel reads
    close(ops.fused_mlp(x, weights, biases), want(x, weights, biases, acts))
    weights[0].data = torch.randn(24, 12).half()
    with pytest.raises(gr.GrapheneError, match=r"'biases\[0\]' has the wrong shape"):
        ops.fused_mlp(x, weights, biases)
    weights[0].data, weights[1].data, biases[0].data = (torch.randn(*s).half() for s in ((24, 12), (5, 24), (24,)))
    for _ in range(2):
        close(ops.fused_mlp(x, weights, biases), want(x, weights, biases, acts))
    weights[0].data = torch.randn(24, 12)
    with pytest.raises(gr.GrapheneError, match="OP_DTYPE"):
        ops.fused_mlp(x, weights, biases)


def test_what_no_single_kernel_takes() -> None:
    wide, biases = layers([8, 300, 8])
    x = torch.randn(3, 8).half()
    close(ops.fused_mlp(x, wide, biases), want(x, wide, biases, ["relu", None]))
    assert "layer by layer (a hidden layer is wider than 256)" in ops.explain(ops.fused_mlp, x, wide, biases)
    deep, biases = layers([16] * 131)
    x = torch.randn(3, 16).half()
    close(ops.fused_mlp(x, deep, biases, "tanh"), want(x, deep, biases, ["tanh"] * 129 + [None]))
    for dtype in (torch.float32, torch.float64):
        weights, biases = layers([8, 16, 4], dtype)
        x = torch.randn(3, 8, dtype=dtype)
        ref = F.linear(F.linear(x, weights[0], biases[0]).relu(), weights[1], biases[1])
        torch.testing.assert_close(ops.fused_mlp(x, weights, biases), ref)
    assert ops.fused_mlp(torch.randn(3, 0).half(), *layers([0, 4])).shape == (3, 4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_perceptrons(activation: str | None) -> None:
    weights, biases = layers([12, 20, 20, 5], grad=True)
    x = torch.randn(2, 3, 12).half().requires_grad_()
    y = ops.fused_mlp(x, weights, [biases[0], None, biases[2]], activation)
    g = torch.randn_like(y)
    y.backward(g)
    wide = [t.detach().double().requires_grad_() for t in (x, *weights, *biases)]
    z, act = wide[0], ACTIVATIONS[activation]
    z = act(F.linear(z, wide[1], wide[4]))
    z = F.linear(act(F.linear(z, wide[2])), wide[3], wide[6])
    z.backward(g.double())
    for t, ref in zip((x, *weights, *biases), wide, strict=True):
        if ref.grad is None:
            assert t.grad is None
            continue
        assert (t.grad.double() - ref.grad).norm() <= 2e-3 * ref.grad.norm()


def test_perceptrons_are_operators_of_pytorch() -> None:
    weights, biases = layers([12, 20, 5], grad=True)
    x = torch.randn(6, 12).half().requires_grad_()
    torch.library.opcheck(ns.fused_mlp.default, (x, weights, biases[1:], [False, True], ["relu", "none"]))
    plain = [t.detach() for t in (x, *weights)]
    torch.library.opcheck(ns.fused_mlp_forward.default, (plain[0], plain[1:], [], [False] * 2, ["gelu", "tanh"]))
    compiled = torch.compile(lambda t: ops.fused_mlp(t, weights, biases) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ops.fused_mlp(x, weights, biases) * 2)
    compiled(x).sum().backward()
    eager = torch.autograd.grad((ops.fused_mlp(x, weights, biases) * 2).sum(), [x, *weights])
    for t, g in zip([x, *weights], eager, strict=True):
        assert torch.equal(t.grad, g)
    grad = torch.func.grad(lambda t: (ops.fused_mlp(t, weights, biases) * 2).float().sum())(x)
    assert (grad - eager[0]).norm() <= 2e-3 * eager[0].norm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap says that it loops
        mapped = torch.vmap(lambda t, w: ops.fused_mlp(t, [w, plain[2]]), (0, None))(plain[0][:, None], plain[1])
        assert torch.equal(mapped[:, 0], ops.fused_mlp(plain[0], plain[1:]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.fused_mlp(torch.randn(2, 12), [w.float() for w in plain[1:]]).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda x, w, b: ops.fused_mlp(x, []), "OP_ARGUMENT", "there are no layers"),
        (lambda x, w, b: ops.fused_mlp(x, w[0]), "OP_ARGUMENT", "argument 'weights' is not a list"),
        (lambda x, w, b: ops.fused_mlp(x, [w[0], 3]), "OP_ARGUMENT", "argument 'weights[1]' is not a torch.Tensor"),
        (lambda x, w, b: ops.fused_mlp(x, w, b[:1]), "OP_ARGUMENT", "not one of 'biases' for each layer"),
        (lambda x, w, b: ops.fused_mlp(x, w, b, "rellu"), "OP_ARGUMENT", 'no activation is called "rellu"'),
        (lambda x, w, b: ops.fused_mlp(x, w, 3), "OP_ARGUMENT", "argument 'biases' is not a list"),
        (lambda x, w, b: ops.fused_mlp(x, w, b, {}), "OP_ARGUMENT", "no activation is called"),
        (lambda x, w, b: ops.fused_mlp(x, w, b, [["relu"]]), "OP_ARGUMENT", "no activation is called"),
        (lambda x, w, b: ops.fused_mlp(x, w, b, ["relu"] * 2), "OP_ARGUMENT", "not one activation for each hidden"),
        (lambda x, w, b: ops.fused_mlp(x, w[1:]), "OP_SHAPE", "argument 'weights[0]' has the wrong shape"),
        (lambda x, w, b: ops.fused_mlp(x, w, b[::-1]), "OP_SHAPE", "argument 'biases[0]' has the wrong shape"),
        (lambda x, w, b: ops.fused_mlp(x[0, 0], w), "OP_SHAPE", "argument 'x' has no dimensions"),
        (lambda x, w, b: ops.fused_mlp(x, [w[0], w[1].float()]), "OP_DTYPE", "argument 'weights[1]' has another dtype"),
        (lambda x, w, b: ops.fused_mlp(x.int(), w), "OP_DTYPE", "argument 'x' has a dtype that it does not take"),
        (lambda x, w, b: ops.fused_mlp(x, [w[0], w[1].to("meta")]), "OP_DEVICE", "'weights[1]' is on another device"),
    ],
)
def test_wrong_arguments_of_perceptrons(call: Callable[..., Any], code: str, message: str) -> None:
    weights, biases = layers([12, 20, 5])
    with pytest.raises(gr.GrapheneError, match=code) as e:
        call(torch.randn(3, 12).half(), weights, biases)
    assert f"fused_mlp: {message}" in str(e.value) or message in str(e.value)


def test_no_gradient_through_a_function_of_registers() -> None:
    weights, biases = layers([12, 20, 5], grad=True)
    y = ops.fused_mlp(torch.randn(3, 12).half(), weights, biases, lambda v: gr.max(v, 0))
    with pytest.raises(gr.GrapheneError, match="there is no gradient through a function of registers"):
        y.sum().backward()


# Recurrent cells


def parameters(cell: Any, dtype: Any, grad: bool = False) -> list[Any]:
    """Rounded, and the cell itself in float64 with them."""
    cell.double()
    rounded = {n: p.detach().to(dtype) for n, p in cell.state_dict().items()}
    cell.load_state_dict({n: p.double() for n, p in rounded.items()})
    return [
        None if n not in rounded else rounded[n].requires_grad_(grad)
        for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("batch", "size", "hidden", "bias"), [(5, 12, 20, True), (33, 21, 17, True), (1, 40, 24, False)]
)
def test_cells(dtype: Any, batch: int, size: int, hidden: int, bias: bool) -> None:
    x, h, c = (torch.randn(batch, n).to(dtype) for n in (size, hidden, hidden))
    for act in ("tanh", "relu"):
        cell = nn.RNNCell(size, hidden, bias, act)
        p = parameters(cell, dtype)
        rounded_once(ops.rnn_cell(x, h, *p, act), cell(x.double(), h.double()))
        assert "the simulator runs" in ops.explain(ops.rnn_cell, x, h, *p, act)
    cell = nn.LSTMCell(size, hidden, bias)
    p = parameters(cell, dtype)
    for got, ref in zip(ops.lstm_cell(x, h, c, *p), cell(x.double(), (h.double(), c.double())), strict=True):
        rounded_once(got, ref)
    assert "kernel lstm_cell" in ops.explain(ops.lstm_cell, x, h, c, *p)


def test_cells_of_any_layout() -> None:
    """The paper's cell: more states than units; lines at strides; columns, which are copied."""
    wide = torch.randn(40, 60).half()
    x, h = wide[:5, 3:27], wide.T[:5, :40]
    w, u, b = torch.randn(16, 24).half(), torch.randn(40, 16).half().T, torch.randn(17).half()[1:]
    got = ops.rnn_cell(x, h, w, u, None, b, "relu")
    rounded_once(got, (x.double() @ w.double().T + h.double() @ u.double().T + b.double()).relu())
    said = ops.explain(ops.rnn_cell, x, h, w, u, None, b, "relu")
    assert "h is copied first" in said
    assert "input is copied" not in said
    assert ops.rnn_cell(x[:0], h[:0], w, u).shape == (0, 16)


def test_gradients_of_cells() -> None:
    for make, op, states in ((nn.LSTMCell, ops.lstm_cell, 2), (nn.RNNCell, ops.rnn_cell, 1)):
        cell = make(12, 20)
        p = parameters(cell, torch.float16, grad=True)
        t = [torch.randn(5, n).half().requires_grad_() for n in (12, 20, 20)[: states + 1]]
        out = op(*t, *p)
        out = out if states == 2 else (out,)
        g = [torch.randn_like(o) for o in out]
        torch.autograd.backward(out, g)
        wide = [x.detach().double().requires_grad_() for x in t]
        ref = cell(wide[0], tuple(wide[1:])) if states == 2 else (cell(*wide),)
        torch.autograd.backward(ref, [x.double() for x in g])
        for x, y in zip([*t, *p], [*wide, *(cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)], strict=True):
            assert (x.grad.double() - y.grad).norm() <= 2e-3 * y.grad.norm()
        torch.autograd.backward(op(*t, *p)[0].sum())  # of h alone


def test_autocast_converts_what_it_converts_for_torch() -> None:
    weights, biases = layers([12, 20, 5], torch.float32)
    cell = gr.nn.LSTMCell(12, 20)
    x = torch.randn(5, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = [t.bfloat16() for t in (x, *weights, *biases)]
        assert torch.equal(ops.fused_mlp(x, weights, biases), ops.fused_mlp(narrow[0], narrow[1:3], narrow[3:]))
        assert ops.fused_mlp(x.half(), [w.half() for w in weights]).dtype == torch.bfloat16
        assert cell(x)[0].dtype == torch.bfloat16
        assert ops.fused_mlp(x.double(), [w.double() for w in weights]).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_cells_without_a_batch(dtype: Any) -> None:
    """As torch.nn's cells take them."""
    p = parameters(nn.LSTMCell(12, 20), dtype, grad=True)
    x, h, c = (torch.randn(n).to(dtype).requires_grad_() for n in (12, 20, 20))
    want = ops.lstm_cell(x[None], h[None], c[None], *p)
    got = ops.lstm_cell(x, h, c, *p)
    assert all(torch.equal(a, b[0]) for a, b in zip(got, want, strict=True))
    got[0].sum().backward()
    assert x.grad.shape == (12,)
    q = [t[:20] for t in p]
    assert torch.equal(ops.rnn_cell(x, h, *q), ops.rnn_cell(x[None], h[None], *q)[0])
    assert "lstm_cell" in ops.explain(ops.lstm_cell, x, h, c, *p)


def test_cells_are_operators_of_pytorch() -> None:
    p = parameters(nn.LSTMCell(12, 20), torch.float16, grad=True)
    x, h, c = (torch.randn(5, n).half().requires_grad_() for n in (12, 20, 20))
    torch.library.opcheck(ns.lstm_cell.default, (x, h, c, *p))
    torch.library.opcheck(ns.rnn_cell.default, (x, h, p[0][:20], p[1][:20], None, p[3][:20], "tanh"))
    compiled = torch.compile(lambda *t: ops.lstm_cell(*t)[0] * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, h, c, *p), ops.lstm_cell(x, h, c, *p)[0] * 2)


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda x, h, p: ops.lstm_cell(x, h, h[:, :9], *p), "OP_SHAPE", "lstm_cell: argument 'c' has the wrong shape"),
        (lambda x, h, p: ops.lstm_cell(x, h[:2], h, *p), "OP_SHAPE", "lstm_cell: argument 'h' has the wrong shape"),
        (lambda x, h, p: ops.lstm_cell(x, h, h, p[0][:9], *p[1:]), "OP_SHAPE", "argument 'w_ih' has the wrong shape"),
        (lambda x, h, p: ops.lstm_cell(x, h, h, p[0], p[0]), "OP_SHAPE", "argument 'w_hh' has the wrong shape"),
        (
            lambda x, h, p: ops.lstm_cell(x[0], h, h, *p),
            "OP_SHAPE",
            "lstm_cell: argument 'h' has a batch, and the input has none",
        ),
        (lambda x, h, p: ops.lstm_cell(x[None], h, h, *p), "OP_SHAPE", "lstm_cell: argument 'input' is not a matrix"),
        (lambda x, h, p: ops.lstm_cell(x, h, h.float(), *p), "OP_DTYPE", "argument 'c' has another dtype"),
        (lambda x, h, p: ops.lstm_cell(x, h, None, *p), "OP_ARGUMENT", "argument 'c' is not a torch.Tensor"),
        (lambda x, h, p: ops.rnn_cell(x, h, *p, "hard"), "OP_ARGUMENT", 'no activation is called "hard"'),
        (lambda x, h, p: ops.rnn_cell(x, h, *p, max), "OP_ARGUMENT", "argument 'activation' is not a string or None"),
    ],
)
def test_wrong_arguments_of_cells(call: Callable[..., Any], code: str, message: str) -> None:
    p = parameters(nn.LSTMCell(12, 20), torch.float16)
    with pytest.raises(gr.GrapheneError, match=code) as e:
        call(torch.randn(5, 12).half(), torch.randn(5, 20).half(), p)
    assert message in str(e.value)


# Modules


def test_a_sequential_becomes_one_kernel() -> None:
    sequential = nn.Sequential(
        nn.Linear(12, 20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 20, bias=False), nn.Identity(), nn.SiLU(),
        nn.Linear(20, 3), nn.Sigmoid(),
    ).half()  # fmt: skip
    fused = gr.nn.FusedMLP(sequential).eval()
    x = torch.randn(4, 5, 12).half()
    close(fused(x), sequential.double()(x.double()).half())
    sequential.half()
    assert list(fused.state_dict()) == list(sequential.state_dict())
    assert fused[0].weight is sequential[0].weight
    other = gr.nn.FusedMLP(*gr.nn.FusedMLP(sequential))
    other.load_state_dict(sequential.state_dict())
    torch.manual_seed(3)
    dropped = fused.train()(x)
    torch.manual_seed(3)
    assert torch.equal(dropped, sequential.train()(x))
    fused.eval()(x).sum().backward()
    assert sequential[0].weight.grad.abs().sum() > 0


def test_a_perceptron_of_widths() -> None:
    net = gr.nn.FusedMLP.of_widths([12, 20, 20, 3], nn.SiLU, nn.Tanh, bias=False, dtype=torch.float16)
    x = torch.randn(4, 12).half()
    plain = nn.Sequential(*net).double()
    ref = plain(x.double())
    close(net.half()(x), ref.half())
    assert [type(m).__name__ for m in net] == ["Linear", "SiLU", "Linear", "SiLU", "Linear", "Tanh"]


@pytest.mark.parametrize("modules", [[nn.ReLU()], [nn.Linear(3, 3), nn.ReLU(), nn.ReLU()], [nn.Conv2d(3, 3, 3)], []])
def test_modules_that_are_no_perceptron(modules: list[Any]) -> None:
    with pytest.raises(gr.GrapheneError, match="OP_ARGUMENT"):
        gr.nn.FusedMLP(*modules)


@pytest.mark.parametrize("shape", [(5, 12), (12,)])
def test_cells_have_the_arguments_and_results_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).half()
    state = torch.randn(*shape[:-1], 20).half()
    for ours, theirs, hx in ((gr.nn.LSTMCell, nn.LSTMCell, (state, state)), (gr.nn.RNNCell, nn.RNNCell, state)):
        cell, ref = ours(12, 20, dtype=torch.float16), theirs(12, 20, dtype=torch.float16)
        ref.load_state_dict(cell.state_dict())
        ref.double()
        wide = tuple(t.double() for t in hx) if isinstance(hx, tuple) else hx.double()
        for got, want_ in ((cell(x), ref(x.double())), (cell(x, hx), ref(x.double(), wide))):
            pairs = zip(got, want_, strict=True) if isinstance(got, tuple) else [(got, want_)]
            for a, b in pairs:
                assert a.shape == b.shape
                rounded_once(a, b)


@pytest.mark.parametrize("hx", [torch.zeros(2, 5), (torch.zeros(2, 5),)], ids=["tensor", "one"])
def test_a_cell_wants_both_states(hx: Any) -> None:
    with pytest.raises(gr.LaunchError, match="LSTMCell: argument 'hx' is not a pair") as e:
        gr.nn.LSTMCell(3, 5)(torch.zeros(2, 3), hx)
    assert e.value.code == "OP_ARGUMENT"
