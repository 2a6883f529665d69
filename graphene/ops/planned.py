"""The operator of planned kernels: what `graphene.compile` puts in place of a region of a model's graph.

The plan is an argument, as the text of its JSON. So a graph that PyTorch's compiler keeps in its cache says everything
that another process needs to make the kernel again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.dtypes import torch_type
from graphene.ops.core.activations import ACTIVATIONS, activate
from graphene.ops.core.checks import check_devices, check_tensors, shape_text
from graphene.ops.core.define import Arg, Defined, Definition
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import contiguous, output, own, view
from graphene.plan.graph import Axis, Graph, Value
from graphene.plan.planned import Plan

NAME = "planned"


@functools.lru_cache(4096)
def graph_of(text: str) -> Graph:
    """The graph of a plan's JSON. Raises VerifyError PLAN_GRAPH."""
    import json

    try:
        data = json.loads(text)["graph"]
    except (ValueError, TypeError, KeyError, RecursionError):
        fail("PLAN_GRAPH", f"{NAME}: argument 'plan' is not the JSON of a plan", [f"got: {text[:60]!r}"],
             "pass plan.json()")  # fmt: skip
    g = Graph.from_json(data)
    if any(a not in {x for v in g.inputs for x in v.axes} for o in g.outputs for a in o.axes):
        fail("PLAN_GRAPH", f"{NAME}: a result has an axis that no input has, as in convolutions",
             [f"got: {', '.join(a.name for o in g.outputs for a in o.axes)}"], "call the plan itself")  # fmt: skip
    return g


@functools.lru_cache(1024)
def plan_of(text: str) -> Plan:
    """The plan itself, which is made again with every decision pinned."""
    return Plan.from_json(text)


def _sizes(tensors: Sequence[Any], plan: Sequence[str]) -> tuple[Graph, dict[Axis, tuple[int, int]]]:
    """The graph, and for each axis the (tensor, dimension) that has it. Raises OP_ARGUMENT, OP_SHAPE, OP_DTYPE."""
    if len(plan) != 1:
        fail("OP_ARGUMENT", f"{NAME}: argument 'plan' is one text", [f"got: {len(plan)}"], "pass [plan.json()]")
    g = graph_of(plan[0])
    if len(tensors) != len(g.inputs):
        want = f"want: {', '.join(v.name for v in g.inputs)}"
        fail("OP_ARGUMENT", f"{NAME}: not as many tensors as the plan's inputs", [want, f"got:  {len(tensors)}"],
             "pass a tensor for each")  # fmt: skip
    at: dict[Axis, tuple[int, int]] = {}
    for i, (v, t) in enumerate(zip(g.inputs, tensors, strict=True)):
        if t.dtype != torch_type(str(v.more["dtype"])):
            fail("OP_DTYPE", f"{NAME}: input {v.name} has a dtype that it does not take",
                 [f"want: {v.more['dtype']}", f"got:  {t.dtype}"], "convert it")  # fmt: skip
        stored = v.more["stored"]
        sizes = [tensors[at[a][0]].shape[at[a][1]] if a.size is None and a in at else a.size for a in stored]
        fits = len(stored) == len(t.shape) and all(n is None or n == x for n, x in zip(sizes, t.shape, strict=True))
        if not fits:
            want = shape_text([a.name if n is None else n for a, n in zip(stored, sizes, strict=True)])
            fail("OP_SHAPE", f"{NAME}: input {v.name} has the wrong shape",
                 [f"want: {want}", f"got:  {shape_text(t.shape)}"], "pass it as the plan stores it")  # fmt: skip
        for d, a in enumerate(stored):
            at.setdefault(a, (i, d))
    return g, at


def results(first: Tensor, rest: Sequence[Tensor], plan: Sequence[str]) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    tensors = [first, *rest]
    g, at = _sizes(tensors, plan)
    check_devices(NAME, {v.name: t for v, t in zip(g.inputs, tensors, strict=True)})
    (out,) = g.outputs
    return [([tensors[at[a][0]].shape[at[a][1]] for a in out.axes], torch_type(str(out.dtype)))]


def types(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments. Raises OP_ARGUMENT unless they are tensors where tensors are wanted."""
    first, rest, _ = args
    check_tensors(NAME, {"first": first, **{f"rest[{i}]": t for i, t in enumerate(rest)}})
    return args


def configure(first: Arg, rest: Sequence[Arg], plan: Sequence[str]) -> Any:
    """The recipe of a configuration: the plan's kernel."""
    given = [first, *rest]
    g = graph_of(plan[0])
    at: dict[Axis, tuple[int, int]] = {}
    for i, v in enumerate(g.inputs):
        for d, a in enumerate(v.more["stored"]):
            at.setdefault(a, (i, d))
    (out,) = g.outputs
    made = output(str(out.dtype), *([at[a]] for a in out.axes))
    if any(0 in t.shape for t in given):
        return _core.Recipe([made], 1, [])
    copies = sum(1 << i for i, t in enumerate(given) if not contiguous(t, range(len(t.shape))) or t.align < 16)
    if copies:
        return _core.Recipe.copy(copies, "elements do not lie one after the other, at a multiple of 16 bytes")
    views = [view(i, *(own(i, d) for d in range(len(t.shape)))) for i, t in enumerate(given)]
    views.append(view(len(given), *(own(len(given), d) for d in range(len(out.axes)))))
    return _core.Recipe([made], 1, [(plan_of(plan[0]).kernel(), views)])


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        **{name: functools.partial(activate, activation=name) for name in ACTIVATIONS},
        "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log,
        "log2": torch.log2, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "rcp": torch.reciprocal, "erf": torch.erf,
        "add": torch.add, "sub": torch.sub,
        "mul": torch.mul, "div": torch.div, "max": torch.maximum, "min": torch.minimum, "lt": torch.lt,
        "le": torch.le, "eq": torch.eq, "where": torch.where,
    }  # fmt: skip


def reference(first: Tensor, rest: Sequence[Tensor], plan: Sequence[str]) -> Tensor:
    """The graph by PyTorch's operators, in fp32, rounded where the graph says so."""
    g = graph_of(plan[0])
    named = {v.number: t for v, t in zip(g.inputs, [first, *rest], strict=True)}
    functions = _functions()
    values: dict[int, Tensor] = {}
    (out,) = g.outputs

    def spread(v: Value, to: tuple[Axis, ...]) -> Tensor:
        x = values[v.number]
        return x.reshape([x.shape[v.axes.index(a)] if a in v.axes else 1 for a in to])

    for v in out.value.walk():
        if v.op == "input":
            x = named[v.number].float().permute([v.more["stored"].index(a) for a in v.axes])
        elif v.op == "number":
            x = torch.tensor(v.more["value"], dtype=torch.float32, device=first.device)
        elif v.op == "round":
            x = values[v.args[0].number].to(torch_type(str(v.more["dtype"]))).float()
        elif v.op == "dot":
            letters = {a: chr(97 + i) for i, a in enumerate({a for y in v.args for a in y.axes})}
            ins = ",".join("".join(letters[a] for a in y.axes) for y in v.args)
            x = torch.einsum(f"{ins}->{''.join(letters[a] for a in v.axes)}", *(values[y.number] for y in v.args))
        elif "axis" in v.more:
            d = v.args[0].axes.index(v.more["axis"])
            y = values[v.args[0].number]
            x = y.sum(d) if v.op == "sum" else y.mean(d) if v.op == "mean" else getattr(torch, f"a{v.op}")(y, d)
        else:
            x = functions[v.op](*(spread(y, v.axes) for y in v.args))
        values[v.number] = x
    order = [out.value.axes.index(a) for a in out.axes]
    made: Tensor = values[out.value.number].permute(order).to(torch_type(str(out.dtype)))
    return made


def products(first: Tensor, rest: Sequence[Tensor], plan: Sequence[str]) -> int:
    """Multiply-adds."""
    g, at = _sizes([first, *rest], plan)
    tensors, total = [first, *rest], 0
    for v in g.outputs[0].value.walk():
        if v.op == "dot":
            of = {a for y in v.args for a in y.axes}
            total += prod(int(tensors[at[a][0]].shape[at[a][1]]) for a in of)
    return total


def cost(first: Tensor, rest: Sequence[Tensor], plan: Sequence[str]) -> int:
    """The multiply-adds, or the elements if there are no products."""
    return max(products(first, rest, plan), int(first.numel()))


def flops(first: Tensor, rest: Sequence[Tensor], plan: Sequence[str], *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add."""
    return 2 * products(first, rest, plan)


PLANNED = Defined(
    Definition(NAME, "(Tensor first, Tensor[] rest, str[] plan) -> Tensor", configure, results, reference, cost,
               types=types, said="planned", flops=flops)
)  # fmt: skip
