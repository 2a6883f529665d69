"""Operators as kernels of PyTorch's dispatcher, through its C interface, with a stub for the driver.

test_boxed.py runs this file in a process whose $GRAPHENE_CUDA_DRIVER names the stub: kernels are "launched" on CPU
tensors, for which they are registered here.
"""

from __future__ import annotations

import gc
import struct
from typing import Any

import pytest
import stub_cuda
import torch
from launching import Kernel, one

from graphene import _core
from graphene.ops.core import torch as _torch  # noqa: F401  hands PyTorch's functions over

library = torch.library.Library("graphene_boxed", "DEF")
ns = torch.ops.graphene_boxed
HALF = torch.float16
PARAMS = [
    ("x", "Tensor", [], 1), ("other", "Tensor?", [], 0), ("scale", "float", [], 0), ("mode", "str?", ["up", "down"], 0),
    ("shape", "int[]", [], 0), ("dtype", "ScalarType?", [], 0), ("flag", "bool", [], 0), ("count", "int", [], 0),
]  # fmt: skip
SCHEMA = (
    "(Tensor x, Tensor? other=None, float scale=1.5, str? mode=None, int[] shape=[], ScalarType? dtype=None, "
    "bool flag=False, int count=3) -> (Tensor, Tensor)"
)
asked: list[tuple[Any, ...]] = []
referred: list[tuple[Any, ...]] = []
kernels: list[Kernel] = []
listed: Any = None


def configure_lists(y: Any, xs: Any, given: Any, names: Any) -> Any:
    asked.append((y, xs, given, names))
    if names == ("torch",):
        return _core.Recipe.torch("torch")
    if mask := sum(2 << i for i, x in enumerate(xs) if x[1][-1] != 1):
        return _core.Recipe.copy(mask, "columns")
    n = len(xs)

    def whole(i: int) -> Any:
        return i, tuple((((i, d),), (d,)) for d in range(2))

    outputs = [("fp16", [[(0, d)] for d in range(2)])]
    return _core.Recipe(outputs, 1, [(listed, [whole(0), [whole(1 + i) for i in range(n)], whole(n + 1)])])


def configure(*args: Any) -> Any:
    asked.append(args)
    x, other, scale, mode = args[:4]
    if mode == "down":
        return _core.Recipe.torch("down")
    if scale < 0:
        raise ZeroDivisionError("no negative scale")
    if x[1][-1] != 1:
        return _core.Recipe.copy(1, "columns")
    n = len(x[0])
    whole = [(((0, d),), (d,)) for d in range(n)]
    views = [(0, whole), (2, whole), (3, whole), *([(1, whole)] if other is not None else []), scale]
    outputs = [("fp16", [[(0, d)] for d in range(n)]), ("fp32", [[(0, d)] for d in range(n)])]
    return _core.Recipe(outputs, 2, [(kernels[0 if other is None else 1], views)])


def reference(x: Any, *rest: Any, **named: Any) -> Any:
    referred.append((x, rest, named))
    return x * 2, x.float() * 3


op = _core.Operator("boxed", PARAMS, 2, configure)
library.define("boxed" + SCHEMA)
library.define("own" + SCHEMA)
library.impl("own", reference, "CompositeExplicitAutograd")
into = _core.Operator(
    "into", [("x", "Tensor", [], 0), ("out", "Tensor(a!)", [], 0)], 0,
    lambda x, out: _core.Recipe([], 0, [(kernels[2], [(0, [(((0, 0),), (0,))]), (1, [(((1, 0),), (0,))])])]),
)  # fmt: skip
library.define("into(Tensor x, Tensor(a!) out) -> ()")
assert op.register("graphene_boxed", "boxed", "own", "CPU") == ""
assert into.register("graphene_boxed", "into", "own", "CPU") == ""
LISTS = [("y", "Tensor", [], 0), ("xs", "Tensor[]", [], 0), ("given", "bool[]", [], 0), ("names", "str[]", [], 0)]
LISTS_SCHEMA = "(Tensor y, Tensor[] xs, bool[] given, str[] names) -> Tensor"
lists = _core.Operator("lists", LISTS, 1, configure_lists)
library.define("lists" + LISTS_SCHEMA)
library.define("lists_own" + LISTS_SCHEMA)
library.impl("lists_own", lambda y, *rest: referred.append(rest) or y * 2, "CompositeExplicitAutograd")
assert lists.register("graphene_boxed", "lists", "lists_own", "CPU") == ""


@pytest.fixture(autouse=True)
def built(make: Any) -> None:
    global listed
    if not kernels:
        pair = make.tensor("fp16", "M 64", "64 1", count=2)
        out = {"Y": make.tensor("fp16", "M 64", "64 1"), "X": pair, "Z": make.tensor("fp16", "M 64", "64 1", "write")}
        listed = Kernel(make(kernel="listed", symbols=["M"], **out))
        tensors = {"X": make.tensor("fp16", "M 64", "ld 1"), "Y": make.tensor("fp16", "M 64", "64 1", "write"),
                   "Z": make.tensor("fp32", "M 64", "64 1", "write")}  # fmt: skip
        more = {"O": make.tensor("fp16", "M 64", "ld 1")}
        scale = {"scale": make.scalar("fp32")}
        kernels.append(Kernel(make(kernel="boxed", symbols=["M", "ld"], **tensors, **scale)))
        kernels.append(Kernel(make(kernel="boxed2", symbols=["M", "ld"], **tensors, **more, **scale)))
        kernels.append(
            Kernel(make(kernel="into", X=make.tensor("fp16", "64", "1"), Y=make.tensor("fp16", "64", "1", "write")))
        )
    asked.clear()
    referred.clear()
    stub_cuda.param_sizes(8, 8, 8, 4, 8, 8)


def addresses() -> tuple[Any, ...]:
    return struct.unpack("<QQQfqq", b"".join(one(stub_cuda.take_launches())["params"]))


def test_a_call_launches_on_pytorchs_tensors() -> None:
    x = torch.ones(5, 64, dtype=HALF)
    for _ in range(3):
        y, z = ns.boxed(x)
        assert addresses() == (x.data_ptr(), y.data_ptr(), z.data_ptr(), 1.5, 5, 64)
        assert (y.shape, y.dtype, z.shape, z.dtype) == (x.shape, HALF, x.shape, torch.float32)
        assert y.is_contiguous()
    assert asked == [(((5, 64), (64, 1), "float16", "cpu", asked[0][0][4]), None, 1.5, None, (), None, False, 3)]


def test_every_kind_of_argument() -> None:
    x, other = torch.ones(6, 64, dtype=HALF), torch.ones(6, 64, dtype=HALF)
    stub_cuda.param_sizes(8, 8, 8, 8, 4, 8, 8)
    for _ in range(2):
        y, z = ns.boxed(x, other, 2.5, "up", [7, 8], torch.float32, True, -4)
        got = struct.unpack("<QQQQfqq", b"".join(one(stub_cuda.take_launches())["params"]))
        assert got == (x.data_ptr(), y.data_ptr(), z.data_ptr(), other.data_ptr(), 2.5, 6, 64)
    assert len(asked) == 1
    assert asked[0][2:] == (2.5, "up", (7, 8), 6, True, -4)
    assert asked[0][1][:3] == ((6, 64), (64, 1), "float16")


def test_a_view_is_copied_and_the_copy_freed() -> None:
    x = torch.arange(64 * 7, dtype=torch.float32).to(HALF).view(64, 7).T
    y, z = ns.boxed(x)
    at, *_, rows, ld = addresses()
    assert at not in (x.data_ptr(), y.data_ptr(), z.data_ptr())
    assert (rows, ld) == (7, 64)


def test_what_is_pytorchs_gets_the_arguments() -> None:
    x = torch.ones(5, 64, dtype=HALF)
    y, z = ns.boxed(x, x, 2.0, "down", [1, 2], torch.float16, True, 9)
    assert torch.equal(y, x * 2)
    assert torch.equal(z, x.float() * 3)
    assert referred[0][1] == (x, 2.0, "down", [1, 2], torch.float16, True, 9)
    assert stub_cuda.take_launches() == []


def test_errors_keep_their_text() -> None:
    x = torch.ones(5, 64, dtype=HALF)
    with pytest.raises(RuntimeError, match="no negative scale"):
        ns.boxed(x, scale=-1.0)
    with pytest.raises(RuntimeError, match=r'boxed: no mode is called "sideways"   \[OP_ARGUMENT\]'):
        ns.boxed(x, mode="sideways")
    with pytest.raises(RuntimeError, match=r"\[LAUNCH_SHAPE\]"):
        ns.boxed(torch.ones(5, 65, dtype=HALF))
    stub_cuda.fail("cuLaunchKernel", 700)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        ns.boxed(x)
    stub_cuda.fail("cuLaunchKernel", 0)
    ns.boxed(x)


def test_types_without_kernels_are_named() -> None:
    ns.boxed(torch.ones(5, 64, dtype=torch.complex64), mode="down")
    assert asked[0][0][2] == "torch type 9"


def test_in_place() -> None:
    stub_cuda.param_sizes(8, 8)
    x, out = torch.ones(64, dtype=HALF), torch.ones(64, dtype=HALF)
    assert ns.into(x, out) is None
    assert struct.unpack("<QQ", b"".join(one(stub_cuda.take_launches())["params"])) == (x.data_ptr(), out.data_ptr())
    with pytest.raises(RuntimeError, match=r"\[OP_OUT\]"):
        ns.into(x, x)


def test_lists() -> None:
    stub_cuda.param_sizes(8, 16, 8, 8)
    y, *xs = (torch.ones(5, 64, dtype=HALF) for _ in range(3))
    for _ in range(2):
        z = ns.lists(y, xs, [True, False], ["relu", "text"])
        got = struct.unpack("<QQQQq", b"".join(one(stub_cuda.take_launches())["params"]))
        assert got == (y.data_ptr(), xs[0].data_ptr(), xs[1].data_ptr(), z.data_ptr(), 5)
    assert len(asked) == 1
    assert [x[:3] for x in asked[0][1]] == [((5, 64), (64, 1), "float16")] * 2
    assert asked[0][2:] == ((True, False), ("relu", "text"))
    columns = torch.ones(64, 5, dtype=HALF).T
    ns.lists(y, [xs[0], columns], [], [])
    got = struct.unpack("<QQQQq", b"".join(one(stub_cuda.take_launches())["params"]))
    assert got[1] == xs[0].data_ptr()
    assert got[2] not in (xs[1].data_ptr(), columns.data_ptr())
    assert torch.equal(ns.lists(y, xs, [True], ["torch"]), y * 2)
    assert referred == [(xs, [True], ["torch"])]


def test_nothing_is_leaked_or_freed_twice() -> None:
    def use() -> None:
        x = torch.ones(5, 64, dtype=HALF)
        for _ in range(50):
            ns.boxed(x, x, 2.5, "up", [7, 8], torch.float32)
            ns.boxed(x.view(64, 5).T, None, 2.5, "up")
            ns.boxed(x, x, 2.5, "down", [7, 8], torch.float32)
            with pytest.raises(RuntimeError):
                ns.boxed(x, x, -1.0, "up", [7, 8])
            ns.lists(x, [x, x], [True], ["torch"])
        referred.clear()
        asked.clear()
        stub_cuda.take_launches()

    def tensors() -> int:
        gc.collect()
        return sum(type(o) is torch.Tensor for o in gc.get_objects())

    def resident() -> int:
        pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115
        return pages * 4096

    stub_cuda.param_sizes(8, 8, 8)
    use()
    before, memory = tensors(), resident()
    for _ in range(20):
        use()
    assert tensors() == before
    assert resident() - memory < 4 << 20  # a leaked (5, 64) tensor a call would be 2.5 MB and more


def test_without_the_gil() -> None:
    """Autograd's threads call kernels, and so does whoever released it."""
    import threading

    results: list[Any] = []

    def call() -> None:
        results.extend(ns.boxed(torch.ones(5, 64, dtype=HALF)) for _ in range(20))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 80
