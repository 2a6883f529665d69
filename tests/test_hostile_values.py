"""Hostile values given to every public function: an error of a kind that is meant, in bounded time; no crash.

``python tests/test_hostile_values.py SEED COUNT`` runs more of them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pickle
import pickletools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr


class EvilInt(int):
    def __index__(self) -> int:
        raise ZeroDivisionError

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = lambda self, other: 1 // 0  # type: ignore[assignment]


class EvilStr(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        raise ZeroDivisionError


class Raises:
    def __index__(self) -> int:
        raise ZeroDivisionError

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise ZeroDivisionError

    __iter__ = __dlpack__ = __dlpack_device__ = __getattr__ = __array__  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Lies:
    def __index__(self) -> Any:
        return "no"

    def __array__(self, *args: Any, **named: Any) -> Any:
        return 5

    def __dlpack__(self, **named: Any) -> Any:
        return object()

    def __dlpack_device__(self) -> Any:
        return (10**30, "x")

    shape = (-1, 10**30)
    dtype = "float99"

    def __len__(self) -> int:
        return 3


def values() -> list[Any]:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    deep: Any = 1
    for _ in range(3000):
        deep = (deep,)
    wide: Any = (1,)
    for _ in range(16):  # not more, since pybind11 shows whole what fits no overload
        wide = (wide, wide)
    return [
        *(None, True, 0, 1, -1, 2, 7, 64, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 1.5, math.nan, math.inf),
        *("", "x", "\ud800", "a\0", "(4,2):(1,4)", "[" * 5000, "sm_80", "mma.m16n8k16.f32.f16", b"x"),
        *((), [], (1, 2), [4, 8], (1, (2, 3)), cyclic, deep, {}, {"a": 1}, object(), object, print, lambda *a: 1),
        *(EvilInt(5), EvilStr("sm_80"), Raises(), Lies(), np.zeros(4, np.float32), np.zeros((2, 2), object)),
        *(np.float32(1), gr.fp16, gr.fp32, gr.SH, gr.RF, gr.GL, gr.Layout(8, 2), gr.Layout((4, 8), (8, 1))),
        *(gr.Swizzle(3, 3, 3), gr.sym("N"), gr.sym("M", min=1, max=8), gr.tensor("T", [4, 8], gr.fp16)),
        *(iter([]), wide, gr.inf, 2.0**70),
    ]


def use(target: Any, name: str, *args: Any) -> Any:
    found = getattr(target, name)
    return found(*args) if callable(found) else found


SPECIAL = ("__getitem__", "__call__", "__add__", "__mul__", "__floordiv__", "__mod__", "__enter__", "__len__", "__eq__")
MEANT = (gr.GrapheneError, TypeError, ZeroDivisionError)
FILES = {"export_cache", "import_cache", "precompile", "load_precompiled", "Kernel", "Precompiled"}
LEFT_OUT = FILES | {"Launches", "FormsChecked"}  # a list, a dict: what Python's own methods raise
NAMES = sorted(n for n in gr.__all__ if callable(getattr(gr, n)) and n not in LEFT_OUT and not n.endswith("Error"))
OWN = "graphene"
# How the messages begin that are ours, and NumPy's on arrays that it is given.
VALUES = ("a reference needs", "inputs needs", "setting an array element", "operands could not be broadcast")
VALUES += ("max() ", "min() ", "object __array__ method")  # Python's own of a list that is empty, and NumPy's


class Attack:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool: list[Any] = []
        self.odd: Counter[tuple[str, str]] = Counter()
        self.values = values()

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            result = work()
            with contextlib.suppress(*MEANT):
                repr(result)
            return result
        except MEANT as e:
            if isinstance(e, gr.GrapheneError) and e.code in ("INTERNAL", None):
                self.odd[name, str(e)[:200]] += 1
        except RecursionError:
            pass  # of a repr in a message, Python's own
        except ValueError as e:
            if not str(e).startswith(VALUES) and name != "svg":  # of a path
                self.odd[name, f"ValueError: {e}"[:200]] += 1
        except OSError as e:
            if name != "svg":  # a path that cannot be written
                self.odd[name, f"{type(e).__name__}: {e}"[:200]] += 1
        except Exception as e:
            self.odd[name, f"{type(e).__name__}: {e}"[:200]] += 1
        finally:
            if (took := time.monotonic() - began) > 5:
                self.odd[name, f"took {took:.1f} s"] += 1
        return None

    def step(self) -> None:
        self.pool = self.pool[-30:]
        if self.pool and self.rng.random() < 0.4:
            target = self.rng.choice(self.pool)
            methods = [m for m in dir(type(target)) if not m.startswith("_") or m in SPECIAL]
            name = self.rng.choice(methods or ["__repr__"])
            of = f"{type(target).__name__}.{name}"
            function = partial(use, target, name)
        else:
            of = name = self.rng.choice(NAMES)
            function = getattr(gr, name)
        args = self.rng.choices(self.values + self.pool, k=self.rng.choice([0, 1, 1, 2, 2, 3, 4]))
        result = self.call(of, lambda: function(*args))
        if type(result).__module__.startswith(OWN) and not isinstance(result, tuple):
            self.pool.append(result)

    def kernel(self) -> None:
        with gr.Kernel("k") as k:
            self.pool += [gr.input("X", [64, 64], gr.fp16), gr.output("Y", [64], gr.fp32), gr.blocks(2), gr.threads(64)]
            self.pool += [gr.alloc("s", [64], gr.fp16, gr.SH), gr.alloc("r", [4], gr.fp16, gr.RF)]
            for _ in range(self.rng.randrange(1, 8)):
                self.step()
        for use in (str, lambda: k.to_json(), lambda: k.cuda_source("sm_80")):
            self.call("Kernel", lambda use=use: use(k) if use is str else use())

    def run(self, count: int) -> Counter[tuple[str, str]]:
        for _ in range(count):
            if self.rng.random() < 0.5:
                self.step()
            else:
                self.call("Kernel", self.kernel)
        return self.odd


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy's, 1 / 0
def test_hostile_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pictures take paths
    began = time.monotonic()
    for seed in range(4):
        assert Attack(seed).run(700) == Counter()
    assert time.monotonic() - began < 60


PLANS: dict[str, Any] = {
    "matrices": (gr.plan.matrices, (16, 64, gr.fp16)), "vectors": (gr.plan.vectors, (16, 64, gr.fp16, 128, 16)),
    "fragments": (gr.plan.fragments, (16, 64, gr.atom("mma.m16n8k16.f32.f16").c.tv, (16, 8), 2, False)),
    "swizzle": (gr.plan.swizzle, (16, 64, gr.fp16, [gr.plan.matrices(16, 64, gr.fp16)], 8)),
    "slots": (gr.plan.slots, (["a", "b"], [("a", "b", 1, 0)], ["a"])),
    "pack": (gr.plan.pack, ({"a": gr.plan.Alive(16, 0, 1)}, 1000)),
    "alive": (lambda *of: gr.plan.pack({"a": gr.plan.Alive(*of)}), (16, 0, 1, 16)),
    "layouts": (gr.plan.layouts, ({"a": [1, 2]}, [(["a"], lambda a: a)], None, 100)),
    "costs": (lambda found: gr.plan.layouts({"a": [1, 2]}, [(["a"], lambda a: found)]), (1,)),
    "axes": (lambda n: gr.plan.axes(m=n), (4,)), "Plan.from_json": (gr.plan.Plan.from_json, ("{}",)),
    "count_access": (gr.count_access, (gr.Layout((8, 8), (8, 1)), gr.Layout((32, 2), (2, 1)), gr.fp16, None)),
}  # fmt: skip
# How Python's own messages read, which name no argument of ours.
OF_PYTHON = ("object is not", "not iterable", "incompatible function", "unsupported operand", "values to unpack",
             "cannot unpack", "has no len", "unhashable", "not supported between", "int() argument")  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_hostile_values_of_plans(name: str) -> None:
    function, given = PLANS[name]
    began = time.monotonic()
    for i in range(len(given)):
        for value in values():
            caught: Exception | None = None
            try:
                function(*given[:i], value, *given[i + 1 :])
            except (ZeroDivisionError, RecursionError):
                continue  # of the values themselves
            except (gr.GrapheneError, TypeError) as e:
                caught = e
            assert not any(text in str(caught) for text in OF_PYTHON), str(caught)
            assert getattr(caught, "code", "") not in ("INTERNAL", None)
    assert time.monotonic() - began < 20


def _graph() -> Any:
    m, n, k = gr.plan.axes(m="M", n=64, k=64)
    with gr.plan.graph("g") as g:
        x, y = g.input("x", (m, k), gr.fp16), g.input("y", (n, k), gr.fp16)
        g.output("o", gr.plan.relu(gr.plan.dot(x, y, k)), [m, n], gr.fp16)
    return g


def test_hostile_values_of_decisions_and_arrays() -> None:
    """Each decision is pinned to each value; the others are those of a graph's other functions."""
    g = _graph()
    plan, square = g.plan("sm_80", m=16), np.zeros((64, 64), np.float16)
    calls: list[Callable[[Any], Any]] = [partial(lambda d, v: g.plan("sm_80", {d: v}, m=16), d) for d in plan.decisions]
    calls += [
        plan.why,
        lambda v: g.plan("sm_80", v, m=16),
        lambda v: g.evaluate(v),
        lambda v: gr.plan.measure(v, "sm_80"),
    ]
    calls += [lambda v: g.evaluate({"x": v, "y": square})]
    for call in calls:
        for value in values():
            caught: Exception | None = None
            try:
                call(value)
            except (ZeroDivisionError, RecursionError):
                continue  # of the values themselves
            except (gr.GrapheneError, TypeError) as e:
                caught = e
            assert not any(text in str(caught) for text in OF_PYTHON if "input x" not in str(caught)), str(caught)
            assert getattr(caught, "code", "") not in ("INTERNAL", None)


def test_pickled_graphs_and_plans() -> None:
    """Also in a process whose own values have the same numbers."""
    g = _graph()
    plan = g.plan("sm_80", m=16)
    for of in (pickle.loads, lambda data: copy.deepcopy(pickle.loads(data))):
        assert of(pickle.dumps(g)).to_json() == g.to_json()
        again = of(pickle.dumps(plan))
        assert (again.source(), again.sizes) == (plan.source(), plan.sizes)
    g.inputs[1].more["of"] = "x"  # two readings of one array
    assert pickle.loads(pickle.dumps(g)).to_json() == g.to_json()


def _fills_memory(data: bytes) -> bool:
    """Whether Python's own reader makes a table of some gigabytes, because a place in it has a number as large."""
    try:
        return any(op.name in ("LONG_BINPUT", "PUT") and arg > 2**20 for op, arg, _ in pickletools.genops(data))
    except Exception:
        return False


def test_mutated_pickles() -> None:
    """Whatever the bytes are, loading them raises Python's errors or coded ones, or makes what can be shown."""
    with gr.Kernel("k") as k:
        gr.blocks(1), gr.threads(32)
        gr.barrier()
    given = [k, gr.Layout((4, 8), (8, 1)), gr.Swizzle(1, 1, 1), gr.fp16, gr.SH, _graph()]
    rng, loaded = random.Random(2), 0
    for _ in range(1500):
        data = bytearray(pickle.dumps(rng.choice(given), rng.choice([2, 4])))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 45, 48, 57, 255, rng.randrange(256)])
        if _fills_memory(bytes(data)):
            continue
        try:
            found = pickle.loads(bytes(data))
        except gr.GrapheneError as e:
            found = e
        except Exception:  # Python's own of a stream that is no pickle
            continue
        assert getattr(found, "code", "") != "INTERNAL", found
        str(found), repr(found)
        loaded += 1
    assert loaded > 50


def _paths(x: Any, at: tuple[Any, ...] = ()) -> Any:
    yield at
    for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
        yield from _paths(x[key], (*at, key))


@pytest.mark.parametrize("of", ["Graph", "Plan"])
def test_mutated_json_of_plans(of: str) -> None:
    """Parts that are missing, of another kind, or of another place: the graph is planned, or refused by a code."""
    cls, g = getattr(gr.plan, of), _graph()
    document = json.dumps((g if of == "Graph" else g.plan("sm_80", m=16)).to_json())
    places, rng = [p for p in _paths(json.loads(document)) if p], random.Random(3)
    bad = [None, -1, 0, 2**70, 1.5, "", [], {}, True, "\ud800", [[[]]], {"op": "x"}, math.nan, "dot", ["m"], 10**400]
    refused: Counter[Any] = Counter()
    for _ in range(3000 if of == "Graph" else 400):
        changed = json.loads(document)
        *way, last = rng.choice(places)
        holder, other = changed, json.loads(document)
        for key in way:
            holder = holder[key]
        for key in rng.choice(places):
            other = other[key]
        if rng.random() < 0.25:
            del holder[last]
        else:
            holder[last] = rng.choice([rng.choice(bad), other])
        try:
            found = cls.from_json(changed)
            assert of == "Plan" or found.plan("sm_80", **{a.name: 16 for a in found.axes() if a.size is None})
        except gr.GrapheneError as e:
            refused[e.code] += 1
    assert set(refused) <= {"PLAN_GRAPH", "PLAN_PIN", "PLAN_NONE", "ARCH_UNKNOWN"}, refused
    assert refused["PLAN_GRAPH"] > 50
    with pytest.raises(gr.VerifyError, match="PLAN_GRAPH"):
        cls.from_json("[" * 100_000)


def _in_kernel(body: Callable[..., Any]) -> None:
    with gr.Kernel("k"):
        x, threads = gr.input("x", [64], gr.fp32), gr.threads(64)
        (t,) = threads.indices()
        body(gr.load(x[t]), x[t], threads)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda r, x, on: gr.load(x, dtype=np.zeros(4)), "a dtype must be"),
        (lambda r, x, on: gr.load(x, name=np.zeros(4)), "names must be a string"),
        (lambda r, x, on: gr.atomic("add", x, 1, fetch=np.zeros(4)), "fetch must be True or False"),
        (lambda r, x, on: gr.scan("add", r, on, exclusive=np.zeros(4)), "exclusive must be True or False"),
        (lambda r, x, on: gr.sort(r, on, descending=np.zeros(4)), "descending must be True or False"),
        (lambda r, x, on: gr.sort(r, on, values=r), "values is a list of registers"),
        (lambda r, x, on: gr.print("\ud800", r), "a text must be of Unicode's characters"),
        (lambda r, x, on: gr.sqrt(r, ftz=np.zeros(4)), "ftz must be True or False"),
        (lambda r, x, on: gr.ptx("mov.b32 %0, %1;", r, r, means=abs, name=[]), "ptx: name= must be a string"),
        (lambda r, x, on: gr.fmod(np.zeros(4, object), r), "gr.fmod takes numbers"),
    ],
)
def test_types_of_arguments_are_named(body: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        _in_kernel(body)


def test_a_message_shows_no_more_than_is_read() -> None:
    many: Any = (1,)
    for _ in range(60):
        many = (many, many)
    with pytest.raises(TypeError, match="names must be a string, got a tuple of very many parts"):
        gr.sym(many)


def test_extremes_of_nothing_and_families_of_nothing() -> None:
    with pytest.raises(TypeError, match=r"gr\.max needs at least one value"):
        gr.max()
    with pytest.raises(TypeError, match="atoms, one or more"):
        gr.AtomFamily("a", ())


if __name__ == "__main__":
    for (what, text), times in Attack(int(sys.argv[1])).run(int(sys.argv[2])).most_common():
        print(times, what, text)
