"""Every operator on tensors of other kinds and under PyTorch's modes and transforms: its result, or a coded error."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402


def h(*shape: int) -> Any:
    return torch.randn(shape).half()


def starts(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def f8(*shape: int) -> Any:
    return torch.randn(shape).to(torch.float8_e4m3fn)


def bytes_of(*shape: int) -> Any:
    return torch.randint(0, 16, shape, dtype=torch.uint8)


CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "attention": lambda: (h(1, 2, 8, 64), h(1, 2, 8, 64), h(1, 2, 8, 64)),
    "attention_varlen": lambda: (*(h(8, 2, 64) for _ in range(3)), starts(0, 3, 8), starts(0, 3, 8), 5, 5),
    "attention_paged": lambda: (
        h(2, 1, 2, 64), h(4, 16, 2, 64), h(4, 16, 2, 64), torch.zeros(2, 2, dtype=torch.int32), starts(3, 9),
    ),
    "cross_entropy": lambda: (h(4, 64), torch.arange(4)),
    "fused_mlp": lambda: (h(4, 64), [h(64, 64)], [h(64)]),
    "gated": lambda: (h(4, 128),),
    "grouped_matmul": lambda: (h(8, 64), h(2, 64, 64), starts(3, 8)),
    "layer_norm": lambda: (h(4, 64), (64,), h(64), h(64)),
    "log_softmax": lambda: (h(4, 64), -1),
    "lstm_cell": lambda: (h(2, 32), h(2, 32), h(2, 32), h(128, 32), h(128, 32), h(128), h(128)),
    "matmul": lambda: (h(8, 64), h(64, 32), h(32), "relu"),
    "quantized_linear": lambda: (h(3, 512), ops.pack_weights(bytes_of(64, 512)), h(4, 64), bytes_of(4, 64), h(64)),
    "rms_norm": lambda: (h(4, 64), (64,), h(64)),
    "rnn_cell": lambda: (h(2, 32), h(2, 32), h(32, 32), h(32, 32), h(32), h(32)),
    "rotary": lambda: (h(1, 2, 8, 64), h(1, 2, 8, 64), h(1, 2, 64), h(1, 2, 64)),
    "scaled_matmul": lambda: (f8(16, 64), f8(32, 64).T, torch.tensor(1.0), torch.tensor(1.0)),
    "softmax": lambda: (h(4, 64), -1),
}  # fmt: skip
# An operator's own file of tests may name its call.
for _path in sorted(Path(__file__).parent.glob("test_*.py")):
    if "\nCALL = " in _path.read_text():
        CALLS |= importlib.import_module(f"tests.ops.{_path.stem}").CALL


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CpuWarning, and of prototypes of PyTorch
        torch.manual_seed(3)
        yield


def test_every_operator_has_a_call() -> None:
    others = {"explain", "pack_awq", "pack_gptq", "pack_weights", "unpack_weights"}
    assert {name for name in ops.__all__ if name.islower()} - others == set(CALLS)


def each(change: Callable[[Any], Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(lambda a: change(a) if isinstance(a, torch.Tensor) else a, args)


def same(got: Any, want: Any) -> None:
    got, want = tree_leaves(got), tree_leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        torch.testing.assert_close(g.detach().double(), w.detach().double(), rtol=2e-3, atol=2e-3)


def apart(t: Any) -> Any:
    base = torch.zeros([2 * n for n in t.shape], dtype=t.dtype)
    view = base[tuple(slice(None, None, 2) for _ in t.shape)]
    view.copy_(t)
    return view


def shifted(t: Any) -> Any:
    view = torch.zeros(t.numel() + 3, dtype=t.dtype)[3:].view(t.shape)
    view.copy_(t)
    return view


def odd(t: Any) -> Any:
    """The same elements from an address which their size does not divide."""
    room = bytearray(1 + t.numel() * t.element_size())
    room[1:] = bytes(t.contiguous().view(-1).view(torch.uint8).tolist())
    return torch.frombuffer(room, dtype=t.dtype, offset=1, count=t.numel()).view(t.shape)


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    held: Any

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, strides=held.stride())
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda a: a.held if isinstance(a, Wrapper) else a, (args, kwargs or {}))
        return f(*args, **kwargs)


KINDS: dict[str, Callable[[Any], Any]] = {
    "every second element": apart,
    "three elements on": shifted,
    "an odd address": odd,
    "subclass": lambda t: t.as_subclass(Subclass),
    "wrapper": Wrapper,
    "negated twice": lambda t: torch._neg_view(-t) if t.dtype == torch.float16 else t,
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(name: str, kind: str) -> None:
    args, f = CALLS[name](), getattr(ops, name)
    same(f(*each(KINDS[kind], args)), f(*args))


@pytest.mark.parametrize("name", CALLS)
def test_modes(name: str) -> None:
    args, f = CALLS[name](), getattr(ops, name)
    want = f(*args)
    with torch.inference_mode():
        same(f(*each(torch.clone, args)), want)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        same(f(*args), want)
    finally:
        torch.use_deterministic_algorithms(before)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        same(f(*args), want)
        with torch.autocast("cpu", torch.float16):
            assert [t.shape for t in tree_leaves(f(*args))] == [t.shape for t in tree_leaves(want)]
    got = tree_leaves(f(*each(lambda t: t.to("meta"), args)))
    assert [(t.shape, t.dtype, t.is_meta) for t in got] == [(t.shape, t.dtype, True) for t in tree_leaves(want)]


@pytest.mark.parametrize("name", CALLS)
def test_compiled_whole(name: str) -> None:
    args, f = CALLS[name](), getattr(ops, name)
    torch.compiler.reset()
    same(torch.compile(lambda *given: f(*given), backend="eager", fullgraph=True)(*args), f(*args))


def test_values_are_looked_at_when_a_compiled_graph_runs() -> None:
    zero = torch.full((4, 64), 128, dtype=torch.uint8)
    for name, at, wrong in (
        ("grouped_matmul", 2, starts(3, 9)),
        ("quantized_linear", 3, zero),
        ("attention_varlen", 3, starts(0, 9, 8)),
    ):
        f = getattr(ops, name)
        compiled = torch.compile(lambda *given, f=f: f(*given), backend="eager", fullgraph=True)
        args = CALLS[name]()
        assert code_of(lambda c=compiled, a=args: c(*a)) is None
        for call in (f, compiled):
            assert code_of(lambda c=call, a=args, at=at, w=wrong: c(*a[:at], w, *a[at + 1 :])) == "OP_ARGUMENT"


def first(name: str, args: tuple[Any, ...]) -> tuple[Callable[[Any], Any], Any]:
    """The operator as a function of its first argument, or of its first scale, and that argument."""
    floats = (torch.float16, torch.float32)
    at = next(i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.dtype in floats)
    return lambda x: getattr(ops, name)(*args[:at], x, *args[at + 1 :]), args[at]


def total(made: Any) -> Any:
    return tree_leaves(made)[0].float().sum()


def code_of(call: Callable[[], Any]) -> str | None:
    """The code of the error, or None if there is none."""
    try:
        call()
    except gr.LaunchError as e:
        return e.code
    return None


@pytest.mark.parametrize("name", CALLS)
def test_transforms(name: str) -> None:
    f, x = first(name, CALLS[name]())
    stacked = torch.stack([x, x * 0.5])
    same(torch.func.vmap(f)(stacked), tree_map(lambda a, b: torch.stack([a, b]), f(x), f(x * 0.5)))
    with pytest.raises(gr.LaunchError, match="there is no forward-mode derivative") as jvp:
        torch.func.jvp(f, (x,), (torch.ones_like(x),))
    assert jvp.value.code == "OP_ARGUMENT"
    with forward_ad.dual_level(), pytest.raises(gr.LaunchError, match="there is no forward-mode derivative"):
        f(forward_ad.make_dual(x, torch.ones_like(x)))

    leaf = x.detach().clone().requires_grad_()
    refused = code_of(lambda: total(f(leaf)).backward())
    assert refused in (None, "OP_ARGUMENT")
    if refused is not None:  # an argument without gradient
        return
    same(torch.func.grad(lambda a: total(f(a)))(x), leaf.grad)
    for reentrant in (False, True):
        again = x.detach().clone().requires_grad_()
        total(checkpoint(f, again, use_reentrant=reentrant)).backward()
        same(again.grad, leaf.grad)


@pytest.mark.parametrize("name", CALLS)
def test_sizes_of_zero_and_no_modes(name: str) -> None:
    f, x = first(name, CALLS[name]())
    shapes = [(), *([0 if i == d else n for i, n in enumerate(x.shape)] for d in range(x.dim()))]
    for shape in shapes:
        assert code_of(lambda s=shape: f(torch.zeros(s, dtype=x.dtype))) in (None, "OP_SHAPE", "OP_ARGUMENT")
    quantized = torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)
    for odd in (x.to_sparse(), torch.nested.nested_tensor([x.reshape(-1)]), quantized):
        with pytest.raises(gr.LaunchError):
            f(odd)
