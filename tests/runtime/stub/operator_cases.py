"""Operators called directly, seen through a stub of the driver and of PyTorch's functions.

test_launcher.py runs this file in a process whose $GRAPHENE_CUDA_DRIVER names the stub; a process loads one driver.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_cuda
from launching import Kernel, one, tensor

import graphene as gr
from graphene import _core


class Dtype:
    """A dtype as PyTorch has them: one object each."""


HALF, SINGLE = Dtype(), Dtype()
modes = SimpleNamespace(grad=False, dispatch=0, function=0, tracing=None, autocast=False, device=0)
forward_ad: dict[str, Any] = {"_current_level": -1}
made: list[Any] = []


class Parameter:
    pass


def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: str = "current") -> Any:
    at = 0x7000_0000 + 0x100_0000 * len(made)
    made.append((shape, strides, dtype, device))
    index = modes.device if device == "current" else int(device[-1])
    return tensor("fp16" if dtype is HALF else "fp32", *shape, at=at, strides=strides, device=(2, index))


@pytest.fixture(autouse=True)
def torch_names() -> None:
    made.clear()
    start = {"grad": False, "dispatch": 0, "function": 0, "tracing": None, "autocast": False, "device": 0}
    for name, value in start.items():
        setattr(modes, name, value)
    forward_ad["_current_level"] = -1
    _core.set_torch(
        {
            "tensor": stub_cuda.Tensor, "parameter": Parameter, "grad_enabled": lambda: modes.grad,
            "dispatch_modes": lambda: modes.dispatch, "function_modes": lambda: modes.function,
            "function_mode_at": None, "device_mode": None,
            "tracing_state": lambda: modes.tracing, "autocast": lambda: modes.autocast, "requires_grad": None,
            "forward_ad": forward_ad, "empty_strided": lambda shape, strides, dtype, device: empty(
                shape, strides, dtype, device), "empty_strided_cuda": empty, "dtypes": {HALF: 5, SINGLE: 6},
            "ask_python": True,
        }
    )  # fmt: skip


class Scaled:
    """y = factor * x over rows, x (..., N), N built into the kernel; rows that do not merge are copied."""

    def __init__(self, make: Any) -> None:
        self.make, self.asked = make, []
        self.kernels: dict[int, Kernel] = {}
        self.op = _core.Operator(
            "scaled", [("x", "Tensor", [], 1), ("factor", "float", [], 0), ("mode", "str?", ["up", "down"], 0),
                       ("extra", "Tensor?", [], 0)], 1, self.configure,
        )  # fmt: skip

    def configure(self, x: tuple[Any, ...], factor: float, mode: str | None, extra: Any) -> Any:
        self.asked.append((x, factor, mode, extra))
        shape, strides = x[:2]
        if mode == "down":
            return _core.Recipe.torch("no kernel scales down")
        if strides[-1] != 1:
            return _core.Recipe.copy(1, "columns")
        n = shape[-1]
        if n not in self.kernels:
            make = self.make
            self.kernels[n] = Kernel(make(
                kernel="scaled", symbols=["M", "ld"], X=make.tensor("fp16", f"M {n}", "ld 1", align=4),
                Y=make.tensor("fp16", f"M {n}", f"{n} 1", "write", align=16), factor=make.scalar("fp32"),
                grid=["M", 1, 1],
            ))  # fmt: skip
        rank = len(shape)
        rows = (tuple((0, d) for d in range(rank - 1)), tuple(range(rank - 1)))
        view = (0, (rows, (((0, rank - 1),), (rank - 1,))))
        out = ("fp16", [[(0, d)] for d in range(rank)])
        result = (2, (rows, (((0, rank - 1),), (rank - 1,))))
        return _core.Recipe([out], 1, [(self.kernels[n], [view, result, factor])])


@pytest.fixture
def scaled(make: Any) -> Scaled:
    stub_cuda.param_sizes(8, 8, 4, 8, 8)
    return Scaled(make)


def test_a_form_is_checked_once_and_a_class_configured_once(scaled: Scaled) -> None:
    for round_ in range(3):
        y = scaled.op(tensor("fp16", 20, 64), 2.0, None, None)
        assert isinstance(y, stub_cuda.Tensor)
        got = one(stub_cuda.take_launches())
        out = 0x7000_0000 + 0x100_0000 * round_
        assert b"".join(got["params"]) == struct.pack("<QQfqq", 0x10000, out, 2.0, 20, 64)
        assert got["grid"] == (20, 1, 1)
    assert made == [((20, 64), (64, 1), HALF, "current")] * 3
    assert (scaled.op.configured, scaled.op.forms, len(scaled.asked)) == (1, 1, 1)
    assert scaled.asked[0] == (((20, 64), (64, 1), "float16", "cuda:0", 128), 2.0, None, None)
    scaled.op(tensor("fp16", 22, 64), 2.0, None, None)  # another form of the class: no Python, its own sizes
    assert one(stub_cuda.take_launches())["params"][3] == struct.pack("<q", 22)
    assert (scaled.op.configured, scaled.op.forms) == (1, 2)
    scaled.op(tensor("fp16", 20, 64, at=0x10010), 2.0, None, None)  # aligned to 16 bytes, as far as kernels care
    assert one(stub_cuda.take_launches())["params"][0] == struct.pack("<Q", 0x10010)
    assert (scaled.op.configured, scaled.op.forms) == (1, 3)
    scaled.op(tensor("fp16", 20, 64, at=0x50000), 2.0, None, None)  # another address, the same form
    assert one(stub_cuda.take_launches())["params"][0] == struct.pack("<Q", 0x50000)
    assert scaled.op.forms == 3


def test_what_a_configuration_is(scaled: Scaled) -> None:
    """Every one of these asks again: nothing of another configuration may be used."""
    calls = [
        (tensor("fp16", 5, 64), 2.0), (tensor("fp16", 5, 64), 3.0), (tensor("fp16", 5, 65, strides=(66, 1)), 2.0),
        (tensor("fp16", 500, 64), 2.0), (tensor("fp16", 1, 64), 2.0), (tensor("fp16", 5, 64, strides=(72, 1)), 2.0),
        (tensor("fp16", 5, 64, at=0x10004), 2.0), (tensor("fp16", 2, 5, 64), 2.0),
        (tensor("fp16", 5, 64, strides=(0, 1)), 2.0),
    ]  # fmt: skip
    for i, (x, factor) in enumerate(calls):
        scaled.op(x, factor, None, None)
        assert len(scaled.asked) == i + 1
    stub_cuda.take_launches()
    for x, factor in calls:
        scaled.op(x, factor, None, None)
    assert len(scaled.asked) == len(calls)
    rows = [struct.unpack("<q", x["params"][3])[0] for x in stub_cuda.take_launches()]
    assert rows == [5, 5, 5, 500, 1, 5, 5, 10, 5]


def test_views_merge_only_what_lies_one_after_the_other(scaled: Scaled) -> None:
    scaled.op(tensor("fp16", 2, 5, 64), 1.0, None, None)
    stub_cuda.take_launches()
    with pytest.raises(gr.InternalError):  # a recipe that is wrong about its configuration
        scaled.op(tensor("fp16", 2, 5, 64, strides=(1000, 64, 1)), 1.0, None, None)
    scaled.op(tensor("fp16", 2, 1, 64, strides=(128, 7, 1)), 1.0, None, None)  # a single row lies anywhere
    assert struct.unpack("<qq", b"".join(one(stub_cuda.take_launches())["params"][3:])) == (2, 128)


def test_a_kernel_that_does_not_take_the_sizes_is_replaced(scaled: Scaled) -> None:
    """Extents before the last are known by class alone: a kernel of another size refuses, and is not used."""

    def pinned(x: Any, *rest: Any) -> Any:
        m = x[0][0]
        make = scaled.make
        kernel = Kernel(make(kernel=f"k{m}", X=make.tensor("fp16", f"{m} 64", "64 1")))
        scaled.asked.append(m)
        return _core.Recipe([], 0, [(kernel, [(0, ((((0, 0),), (0,)), (((0, 1),), (1,))))])])

    stub_cuda.param_sizes(8)
    op = _core.Operator("pinned", [("x", "Tensor", [], 1)], 0, pinned)
    for m in (20, 21, 20, 21, 22):
        assert op(tensor("fp16", m, 64)) is None
    assert scaled.asked == [20, 21, 22]


def test_streams_devices_and_contexts(scaled: Scaled) -> None:
    stub_cuda.set_stream(1, 0x77)
    x = tensor("fp16", 5, 64, device=(2, 1))
    scaled.op(x, 2.0, None, None)
    got = one(stub_cuda.take_launches())
    assert (got["stream"], got["context"]) == (0x77, 0xC1)
    assert [m[3] for m in made] == ["current", "cuda:1"]  # not the current device: asked for by name
    assert struct.unpack("<Q", got["params"][1]) == (0x7100_0000,)
    modes.device = 1
    scaled.op(x, 2.0, None, None)
    assert [m[3] for m in made[2:]] == ["current"]


def test_what_the_dispatcher_must_see(scaled: Scaled) -> None:
    x = tensor("fp16", 5, 64)

    def ours() -> bool:
        done = scaled.op(x, 2.0, None, None) is not NotImplemented
        assert len(stub_cuda.take_launches()) == int(done)
        return done

    assert ours()
    for name, value in {"dispatch": 1, "function": 2, "tracing": "state", "autocast": True}.items():
        was = getattr(modes, name)
        setattr(modes, name, value)
        assert not ours(), name
        setattr(modes, name, was)
    forward_ad["_current_level"] = 0
    assert not ours()
    forward_ad["_current_level"] = -1
    modes.grad = True  # the stub's tensors do not say whether they want gradients: the cautious answer
    assert not ours()
    modes.grad = False
    assert ours()


def test_tensors_that_are_not_plain(scaled: Scaled) -> None:
    class Sub(stub_cuda.Tensor):
        pass

    array = np.zeros((5, 64), np.float16)
    others = [Sub(0x10000, (5, 64), (64, 1), (2, 16), (2, 0)), array, None, 3, tensor("fp16", 5, 64, device=(1, 0)),
              tensor("fp16", 5, 64, device=(99, 0)), tensor("fp16", 5, 64, at=0)]  # fmt: skip
    for x in others:
        assert scaled.op(x, 2.0, None, None) is NotImplemented
    assert stub_cuda.take_launches() == []
    assert scaled.asked == []


def test_copies_and_what_is_torchs(scaled: Scaled) -> None:
    assert scaled.op(tensor("fp16", 5, 64), 2.0, "down", None) is NotImplemented
    assert scaled.op(tensor("fp16", 5, 64), 2.0, "up", None) is not NotImplemented
    stub_cuda.take_launches()
    with pytest.raises(AttributeError, match="contiguous"):  # the stub's tensors cannot be copied: it was asked for
        scaled.op(tensor("fp16", 64, 5, strides=(1, 64)), 2.0, None, None)
    assert stub_cuda.take_launches() == []


def test_arguments(scaled: Scaled) -> None:
    x = tensor("fp16", 5, 64)
    with pytest.raises(TypeError, match="scaled takes 4 arguments, all by position, got 1"):
        scaled.op(x)
    with pytest.raises(TypeError, match="by position"):
        scaled.op(x, 2.0, None, extra=None)
    for bad, want in (((x, 2.0, "sideways", None), 'no mode is called "sideways"'),
                      ((x, "2", None, None), "argument 'factor' is not a number"),
                      ((x, 2.0, 1, None), "argument 'mode' is not a string or None")):  # fmt: skip
        with pytest.raises(gr.LaunchError) as e:
            scaled.op(*bad)
        assert e.value.code == "OP_ARGUMENT"
        assert want in str(e.value)
    assert stub_cuda.take_launches() == []


def test_errors_of_configuring_reach_the_caller_and_are_not_remembered(scaled: Scaled) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("while configuring")

    op = _core.Operator("broken", [("x", "Tensor", [], 0)], 1, broken)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="while configuring"):
            op(tensor("fp16", 5, 64))
    assert op.configured == 2
    assert op.forms == 0


def test_capture(scaled: Scaled) -> None:
    stub_cuda.set_stream(0, 0x5)
    stub_cuda.set_capturing(0x5)
    x = tensor("fp16", 5, 64)
    with pytest.raises(gr.LaunchError) as e:
        scaled.op(x, 2.0, None, None)
    assert e.value.code == "LAUNCH_CAPTURE"
    stub_cuda.set_capturing(None)
    scaled.op(x, 2.0, None, None)
    stub_cuda.set_capturing(0x5)
    scaled.op(x, 2.0, None, None)
    scaled.op(tensor("fp16", 6, 64), 2.0, None, None)  # a new form of a loaded kernel
    assert len(stub_cuda.take_launches()) == 3


def test_a_written_argument_may_not_share_memory(make: Any) -> None:
    stub_cuda.param_sizes(8, 8)
    kernel = Kernel(make(kernel="into", X=make.tensor("fp16", "64", "1"), Y=make.tensor("fp16", "64", "1", "write")))
    whole = [(0, ((((0, 0),), (0,)),)), (1, ((((1, 0),), (0,)),))]
    op = _core.Operator(
        "into", [("x", "Tensor", [], 0), ("out", "Tensor(a!)", [], 0)], 0,
        lambda x, out: _core.Recipe([], 0, [(kernel, whole)]),
    )  # fmt: skip
    op(tensor("fp16", 64), tensor("fp16", 64, at=0x20000))
    assert len(stub_cuda.take_launches()) == 1
    for at in (0x10000, 0x10000 + 64):
        with pytest.raises(gr.LaunchError) as e:
            op(tensor("fp16", 64), tensor("fp16", 64, at=at))
        assert str(e.value) == (
            "into: arguments 'out' and 'x' share memory   [OP_OUT]\n  out: [64:1]\n  x: [64:1]\n"
            "  fix: pass another tensor: arguments are read while the result is written"
        )
    assert stub_cuda.take_launches() == []


@pytest.mark.parametrize(
    ("shape", "strides", "apart"),
    [((4, 64), (0, 1), False), ((4, 64), (63, 1), False), ((4, 64), (64, 1), True), ((1, 64), (0, 1), True),
     ((64, 4), (1, 64), True), ((2, 2, 64), (64, 64, 1), False), ((2, 2, 64), (128, 64, 1), True),
     ((0, 4), (0, 0), True), ((2, 64), (1, 2), True), ((2, 64), (1, 1), False)],
)  # fmt: skip
def test_elements_of_a_written_argument_lie_apart(shape: Any, strides: Any, apart: bool) -> None:
    op = _core.Operator("into", [("out", "Tensor(a!)", [], 0)], 0, lambda out: _core.Recipe([], 0, []))
    for _ in range(2):
        if apart:
            op(tensor("fp16", *shape, strides=strides))
            continue
        with pytest.raises(gr.LaunchError) as e:
            op(tensor("fp16", *shape, strides=strides))
        text = [",".join(map(str, x)) for x in (shape, strides)]
        assert str(e.value) == (
            f"into: argument 'out' has several elements at one address   [OP_OUT]\n  out: [{text[0]}:{text[1]}]\n"
            "  fix: pass a tensor whose elements lie apart, or leave out= out"
        )


def test_elements_lie_apart_where_all_addresses_differ() -> None:
    """The search over strides against counting, for tensors small enough."""
    op = _core.Operator("into", [("out", "Tensor(a!)", [], 0)], 0, lambda out: _core.Recipe([], 0, []))
    random = np.random.default_rng(5)
    met = 0
    for _ in range(400):
        rank = int(random.integers(1, 5))
        shape = tuple(int(n) for n in random.integers(1, 6, rank))
        strides = tuple(int(s) for s in random.integers(-12, 40, rank))
        addresses = sum(np.arange(n).reshape([-1] + [1] * (rank - 1 - d)) * strides[d] for d, n in enumerate(shape))
        apart = len(np.unique(addresses)) == np.prod(shape)
        met += not apart
        try:
            op.check(tensor("fp16", *shape, strides=strides))
        except gr.LaunchError:
            assert not apart, (shape, strides)
        else:
            assert apart, (shape, strides)
    assert 50 < met < 350


def test_driver_errors(scaled: Scaled) -> None:
    scaled.op(tensor("fp16", 5, 64), 2.0, None, None)
    stub_cuda.fail("cuLaunchKernel", 700)
    with pytest.raises(gr.LaunchError, match="the launch failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        scaled.op(tensor("fp16", 5, 64), 2.0, None, None)


def test_a_copy_that_would_change_nothing_is_pytorchs() -> None:
    op = _core.Operator("far", [("x", "Tensor", [], 1)], 0, lambda x: _core.Recipe.copy(1, "rows are far apart"))
    assert op(tensor("fp16", 5, 64)) is NotImplemented
    with pytest.raises(AttributeError, match="contiguous"):  # columns, and an address that no copy has
        op(tensor("fp16", 64, 5, strides=(1, 64)))
    with pytest.raises(AttributeError, match="contiguous"):
        op(tensor("fp16", 5, 64, at=0x1002))


def test_sizes_that_a_kernel_does_not_count_are_pytorchs(make: Any) -> None:
    stub_cuda.param_sizes(8, 4)

    def configure(x: Any) -> Any:
        kernel = Kernel(make(kernel="low", symbols=[make.symbol("M", max=99)], X=make.tensor("fp16", "M 1", "1 1")))
        return _core.Recipe([], 0, [(kernel, [(0, [(((0, 0),), (0,)), (((0, 1),), (1,))])])])

    op = _core.Operator("low", [("x", "Tensor", [], 1)], 0, configure)
    assert op(tensor("fp16", 99, 1)) is None
    assert op(tensor("fp16", 100, 1)) is NotImplemented


@pytest.mark.parametrize("dim", [1, -2])
def test_the_extent_of_a_dimension_that_an_argument_names_is_known(make: Any, dim: int) -> None:
    asked: list[Any] = []

    def configure(x: Any, d: int) -> Any:
        asked.append(x[0])
        return _core.Recipe.torch("no kernel")

    op = _core.Operator("along", [("x", "Tensor", [], "dim"), ("dim", "int", [], 0)], 0, configure)
    shapes = [(20, 33, 4), (20, 35, 4), (21, 33, 4)]
    for shape in shapes:
        assert op(tensor("fp16", *shape), dim) is NotImplemented
    assert asked == shapes[:2]
    with pytest.raises(ValueError, match="no int that names a dimension is called dim"):
        _core.Operator("along", [("x", "Tensor", [], "dim"), ("dim", "float", [], 0)], 0, configure)


def test_more_blocks_than_a_grid_has_are_pytorchs(make: Any) -> None:
    stub_cuda.param_sizes(8, 8)
    asked: list[int] = []

    def configure(x: Any) -> Any:
        asked.append(x[0][0])
        kernel = Kernel(make(kernel="tall", symbols=["M"], X=make.tensor("fp16", "M 1", "1 1"), grid=[1, "M", 1]))
        return _core.Recipe([], 0, [(kernel, [(0, [(((0, 0),), (0,)), (((0, 1),), (1,))])])])

    op = _core.Operator("tall", [("x", "Tensor", [], 1)], 0, configure)
    for _ in range(2):
        assert op(tensor("fp16", 65536, 1)) is NotImplemented
        assert op(tensor("fp16", 65535, 1)) is None
    assert asked == [65536, 65535]


def test_many_forms(scaled: Scaled) -> None:
    """More than are remembered: the oldest are forgotten, none is mistaken for another."""
    for m in range(1, 5000):
        scaled.op(tensor("fp16", m, 64, at=0x100_0000), 2.0, None, None)
        assert one(stub_cuda.take_launches())["grid"][0] == m
        made.clear()
    assert scaled.op.forms <= 4096
    assert scaled.op.configured < 60  # four classes to a factor of two


def test_lists(make: Any) -> None:
    """A list of tensors is one parameter of its kernel; strings and bools belong to the configuration."""
    asked: list[Any] = []
    kernels: dict[int, Kernel] = {}

    def configure(xs: Any, given: Any, names: Any, y: Any) -> Any:
        asked.append(([x[0] for x in xs], given, names, y[0]))
        n = len(xs)
        if n not in kernels:
            listed = make.tensor("fp16", "M 1", "1 1", count=n)
            kernels[n] = Kernel(make(kernel=f"of{n}", symbols=["M"], Y=make.tensor("fp16", "M 1", "1 1"), X=listed))

        def whole(i: int) -> Any:
            return i, tuple((((i, d),), (d,)) for d in range(2))

        return _core.Recipe([], 0, [(kernels[n], [whole(n), [whole(i) for i in range(n)]])])

    params = [("xs", "Tensor[]", [], 0), ("given", "bool[]", [], 0), ("names", "str[]", [], 0), ("y", "Tensor", [], 0)]
    op = _core.Operator("listed", params, 0, configure, lambda *args: args)
    y, at = tensor("fp16", 5, 1, at=0x90000), (0x10000, 0x20000, 0x30000)
    for n in (3, 2, 3):
        stub_cuda.param_sizes(8, 8 * n, 8)
        xs = [tensor("fp16", 5, 1, at=a) for a in at[:n]]
        for given in (xs, tuple(xs)):
            assert op(given, [True, False], ("relu", "a text of its own"), y) is None
            got = one(stub_cuda.take_launches())["params"]
            assert struct.unpack(f"<{n + 2}Q", b"".join(got)) == (0x90000, *at[:n], 5)
    assert asked == [([(5, 1)] * n, (True, False), ("relu", "a text of its own"), (5, 1)) for n in (3, 2)]
    for given, names in (([True, True], ("relu",)), ([True, True], ("tanh",)), ([True, False], ("tanh",))):
        op(xs, given, names, y)
        assert asked[-1][1:3] == (tuple(given), names)
    assert op.configured == 5
    taken = stub_cuda.take_launches()
    for wrong in (xs[0], [xs[0], None], [*xs, 3], [tensor("fp16", 5, 1, device=(1, 0))]):
        assert op(wrong, [], [], y) == (wrong, [], [], y)
    assert op(xs, [1], [], y) == (xs, [1], [], y)
    many = [xs[0]] * 264
    assert op(many, [], [], y) == (many, [], [], y)  # more tensors than a call may have
    assert (len(taken), stub_cuda.take_launches()) == (3, [])
    with pytest.raises(ValueError, match="that writes an argument takes no lists"):
        _core.Operator("written", [("xs", "Tensor[]", [], 0), ("out", "Tensor(a!)", [], 0)], 0, configure)


def test_items_of_lists_are_copied(make: Any) -> None:
    stub_cuda.param_sizes(16, 8)
    kernel = Kernel(make(kernel="pair", symbols=["M"], X=make.tensor("fp16", "M 8", "8 1", count=2)))

    def configure(xs: Any) -> Any:
        if mask := sum(1 << i for i, x in enumerate(xs) if x[1][-1] != 1):
            return _core.Recipe.copy(mask, "columns")
        views = [(i, tuple((((i, d),), (d,)) for d in range(2))) for i in range(2)]
        return _core.Recipe([], 0, [(kernel, [views])])

    op = _core.Operator("pairs", [("xs", "Tensor[]", [], 0)], 0, configure)
    rows, columns = tensor("fp16", 4, 8), tensor("fp16", 4, 8, strides=(1, 4))
    assert op([rows, rows]) is None
    with pytest.raises(AttributeError, match="contiguous"):  # the stub's tensors cannot be copied: it was asked for
        op([rows, columns])
    assert len(stub_cuda.take_launches()) == 1
