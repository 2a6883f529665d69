"""Kernels that work row by row: every row stays in the registers of its threads while it is reduced and computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene.errors import VerifyError
from graphene.plan.form import none
from graphene.plan.graph import REDUCTIONS, Axis, Graph, Output, Value
from graphene.plan.product_tiles import size_of, vector_bytes
from graphene.plan.product_time import moved
from graphene.select.model import LAUNCH_US
from graphene.select.row_tiles import select_tile

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.select.device import Device

__all__ = ["RowForm", "decide"]

TYPES = ("fp16", "bf16", "fp32")
MOST_ELEMS = 64  # of a row in the registers of one thread
MOST_THREADS = 1024


@dataclass(eq=False)
class RowForm:
    """What a graph of rows computes: reductions in the order in which they are needed, then results."""

    outputs: list[Output]
    rows: Axis
    width: Axis
    inputs_: list[Value]
    reductions: list[Value]
    kept: list[Value] = field(default_factory=list)  # elements that were reduced, and are needed again
    threads: int = 32
    block_rows: int = 1
    vector: int = 8
    expected_us: float = 0.0
    bound: str = "memory"

    def inputs(self) -> list[Value]:
        """The inputs, in the order of the graph."""
        return self.inputs_

    @property
    def runs(self) -> int:
        """Vectors of a row that a thread has."""
        assert self.width.size is not None
        return math.ceil(self.width.size / (self.threads * self.vector))

    @property
    def whole(self) -> bool:
        """Whether threads hold exactly the row's elements."""
        return self.runs * self.threads * self.vector == self.width.size

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Two blocks of rows and one more row."""
        del sizes
        small = {self.rows.symbol: 2 * self.block_rows + 1}
        return ({}, small) if self.rows.size is None else (small, {})


def read(g: Graph) -> RowForm:
    """Reads a graph of rows. Raises SelectError PLAN_NONE where it is not one."""
    reductions: list[Value] = []
    inputs: list[Value] = []
    for o in g.outputs:
        for v in o.value.walk():
            if v.op == "input" and v not in inputs:
                inputs.append(v)
            if v.op in REDUCTIONS and "axis" in v.more and v not in reductions:
                reductions.append(v)
            if v.op == "round":
                none(f"{v.line}: a value that is rounded before it is computed with", fix="results are rounded once")
    matrices = [o.axes for o in g.outputs if len(o.axes) == 2] + [
        v.more["stored"] for v in inputs if len(v.more["stored"]) == 2
    ]
    if not matrices or any(
        len(set(x)) > 2 for x in [*(o.axes for o in g.outputs), *(v.more["stored"] for v in inputs)]
    ):
        none("rows are planned for matrices with two axes", fix="make one axis of those that count rows")
    rows, width = matrices[0]
    if width.size is None:
        none(f"the width {width.name} of rows is needed when the kernel is made")
    for v in reductions:
        if v.more["axis"] is not width:
            none(f"{v.line}: a reduction along {v.more['axis'].name}; rows lie along {width.name}")
    for name, stored, dtype in [(v.name, v.more["stored"], v.more["dtype"]) for v in inputs] + [
        (o.name, o.axes, o.dtype) for o in g.outputs
    ]:
        if stored not in ((rows, width), (width,), (rows,)):
            want = f"want: ({rows.name}, {width.name}), ({rows.name}) or ({width.name})"
            none(f"{name} is stored in another order", want, f"got: ({', '.join(a.name for a in stored)})")
        if str(dtype) not in TYPES:
            none(f"{name} has elements of {dtype}", f"want: one of {', '.join(TYPES)}")
    for o in g.outputs:
        if o.axes == (width,):
            none(f"{o.name} is the same for all rows")
    form = RowForm(list(g.outputs), rows, width, sorted(inputs, key=lambda v: v.number), reductions)
    form.kept = [v.args[0] for v in reductions if v.args[0].op != "input" and _again(form, v)]
    return form


def _again(form: RowForm, reduction: Value) -> bool:
    """Whether the elements that a reduction takes are needed by something else."""
    element, uses = reduction.args[0], 0
    seen: set[int] = set()
    stack = [o.value for o in form.outputs]
    while stack:
        v = stack.pop()
        if v.number in seen:
            continue
        seen.add(v.number)
        uses += sum(a is element for a in v.args)
        stack.extend(v.args)
    return uses > 1 or any(o.value is element for o in form.outputs)


def _unbounded(reduction: Value) -> bool:
    """Whether exponentials are summed that no maximum bounds."""
    powers = [v for v in reduction.args[0].walk() if v.op in ("exp", "exp2")]
    return reduction.op in ("sum", "mean") and any(
        not any(x.op == "max" and "axis" in x.more for x in v.args[0].walk()) for v in powers
    )


def decide(d: Decisions, g: Graph, sizes: dict[str, int], device: Device) -> RowForm:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    form = read(g)
    width, rows = form.width.size or 1, size_of(form.rows, sizes)
    wide = [(v.name, v.more["stored"], v.more["dtype"]) for v in form.inputs_] + [
        (o.name, o.axes, o.dtype) for o in form.outputs
    ]
    wide = [x for x in wide if form.width in x[1]]
    most = min(16 // (t.bits // 8) for _, _, t in wide)
    vectors: dict[Any, float | str] = {}
    for v in (8, 4, 2, 1):
        vectors[v] = (
            16 / v if v <= most and width % v == 0 else f"{v} elements do not divide {width}, or are over 16 bytes"
        )
    form.vector = d.take(
        "vector", vectors, lambda v: f"elements at once; the most that 16 bytes and {width} allow", "relative"
    )
    matrices = [t for _, axes, t in wide if len(axes) == 2]
    try:
        usual = select_tile(rows, width, matrices[0], tensors=max(1, sum(len(v.axes) == 2 for v in form.inputs_)),
                            columns=sum(v.more["stored"] == (form.width,) for v in form.inputs_))  # fmt: skip
    except VerifyError:
        usual = None
    options: dict[Any, float | str] = {}
    for threads in (1, 2, 4, 8, 16, 32, *range(64, MOST_THREADS + 1, 32)):
        each = math.ceil(width / (threads * form.vector)) * form.vector
        if each > MOST_ELEMS:
            options[threads] = f"{each} elements a thread, at most {MOST_ELEMS}"
        elif threads > 1 and (threads - 1) * form.vector >= width:
            options[threads] = "threads without elements"
        else:
            measured = usual is not None and usual.keep == "registers" and usual.threads == threads
            options[threads] = 0.0 if measured else 1.0 + abs(math.log2(max(each, 1) / 16))
    why = "threads of a row; as measured for the library's rows of this width, else about 16 elements each"
    form.threads = d.take("threads", options, lambda _: why, "relative")
    d.made["threads"].alternatives = sorted(
        (a for a in d.made["threads"].alternatives if not isinstance(a[1], str)), key=lambda a: a[1])[:6]  # fmt: skip
    least = max(1, 32 // form.threads)
    choices: dict[Any, float | str] = {}
    for n in (1, 2, 4, 8, 16, 32):
        together = n * form.threads
        if together % 32 or together > MOST_THREADS:
            choices[n] = f"{together} threads are not whole warps, at most {MOST_THREADS}"
        elif form.threads > 32 and n > 1:
            choices[n] = "a block of several rows needs threads of one warp for each"
        else:
            choices[n] = abs(math.log2(together / 128)) + (0 if n == least or n < 2 * rows else 8)
    form.block_rows = d.take("rows", choices, lambda v: f"rows of a block, {v * form.threads} threads", "relative")
    for i, r in enumerate(form.reductions):
        how = "lanes exchange it" if form.threads <= 32 else "lanes exchange it, and warps meet in shared memory"
        kept = "; its elements stay in registers" if r.args[0] in form.kept else ""
        d.put(f"s{i}.where", "registers", f"{r.op} along {form.width.name}: {how}{kept}")
    if any(_unbounded(r) for r in form.reductions):
        d.put("p.range", "as given", "without a maximum, exponentials that are summed may leave the range of fp32")
    total = moved([(v.axes, v.more["dtype"]) for v in form.inputs_] + [(o.axes, o.dtype) for o in form.outputs], sizes)
    form.expected_us = total / device.dram_bytes / device.sm_count / device.clock_ghz / 1e3 + LAUNCH_US
    for name, axes, dtype in wide:
        if vector_bytes(axes[-1], dtype.bits // 8) * 8 < form.vector * dtype.bits:
            none(f"lines of {name} that vectors of {form.vector} elements do not divide")
    return form
