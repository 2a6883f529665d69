"""A graph as products with what comes before and behind them: which axes are rows, columns and sums, what is staged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.plan.graph import REDUCTIONS, Axis, Graph, Output, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dot", "Gather", "ProductForm", "StagedInput", "Statistic", "along_one_axis", "none", "product_form"]

_MATRIX_TYPES = ("fp16", "bf16")


def none(message: str, *details: str, fix: str = "") -> Any:
    """Raises SelectError PLAN_NONE."""
    _core.fail("PLAN_NONE", message, list(details), fix)


def _names(axes: Sequence[Axis]) -> str:
    return ", ".join(a.name for a in axes)


@dataclass
class StagedInput:
    """An input of which a block copies tiles to shared memory, for one side of products."""

    value: Value
    side: str  # "left": its other axis is the rows; "right": columns
    across: Axis  # that other axis

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.value.name

    def along_k(self, k: Axis) -> bool:
        """Whether k is the contiguous axis."""
        return self.value.more["stored"][-1] is k

    @property
    def batch(self) -> tuple[Axis, ...]:
        """The axes before the last two."""
        return tuple(self.value.more["stored"][:-2])


@dataclass(frozen=True)
class Gather:
    """How rows of the left operand are gathered: ``channels`` of a place lie one after the other."""

    channels: int

    def refused(self, tile: Any) -> str:
        """Why a tile cannot be gathered; empty if it can."""
        if self.channels % tile.k:
            return f"{tile.k} channels of a step do not divide {self.channels}"
        vectors = tile.m * tile.k // 8
        if vectors % tile.threads or tile.threads % (tile.k // 8):
            return f"{vectors} copies of windows are not the same for each of {tile.threads} threads"
        return ""


@dataclass
class Dot:
    """One product: its operands over (rows, k) and (k, columns); `after` are products of its rounded result."""

    value: Value
    left: Value
    right: Value
    columns: Axis

    @property
    def before(self) -> Value:
        """The left operand before it is rounded."""
        return self.left.args[0] if self.left.op == "round" else self.left


@dataclass
class Statistic:
    """A reduction along k of an expression of one side's inputs, beside the products of that side."""

    value: Value
    side: str


@dataclass(eq=False)
class ProductForm:
    """What a graph of products computes: a loop over k of products and statistics, further products, a result."""

    output: Output
    batch: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    k: Axis
    dots: list[Dot] = field(default_factory=list)
    later: list[Dot] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    staged: list[StagedInput] = field(default_factory=list)
    dtype: Any = None
    moved: int | None = None  # bytes that cross the memory once, where inputs are not stored as matrices
    gather: Gather | None = None  # where rows of the left operand are not stored as such

    @property
    def result(self) -> Value:
        """What is stored."""
        return self.output.value

    def known(self) -> set[int]:
        """Values that stand in registers before the result is computed."""
        return {d.value.number for d in (*self.dots, *self.later)} | {s.value.number for s in self.statistics}

    def beside(self) -> list[Value]:
        """Inputs of the result's expression."""
        return _leaves(self.result, self.known())

    def at(self, value: Value, side: str) -> StagedInput:
        """The staged input of a side."""
        return next(s for s in self.staged if s.value is value and s.side == side)

    def inputs(self, side: str) -> list[StagedInput]:
        """The staged inputs of a side."""
        return [s for s in self.staged if s.side == side]


def _leaves(v: Value, stop: set[int]) -> list[Value]:
    """The inputs under a value, each once, not looking into those of `stop`."""
    out: list[Value] = []
    seen: set[int] = set()

    def visit(x: Value) -> None:
        if x.number in seen or x.number in stop:
            return
        seen.add(x.number)
        if x.op == "input":
            out.append(x)
        for a in x.args:
            visit(a)

    visit(v)
    return out


def _reductions(v: Value) -> list[Value]:
    """The nearest reductions and products under a value."""
    out: list[Value] = []
    seen: set[int] = set()

    def visit(x: Value) -> None:
        if x.number in seen:
            return
        seen.add(x.number)
        if x.op == "dot" or (x.op in REDUCTIONS and "axis" in x.more):
            out.append(x)
            return
        for a in x.args:
            visit(a)

    visit(v)
    return out


def along_one_axis(g: Graph) -> None:
    """Raises SelectError PLAN_NONE where a product sums along several axes, as only convolutions do."""
    for o in g.outputs:
        for v in o.value.walk():
            if "also" in v.more:
                none(
                    f"{v.line}: a product along several axes in a kernel of other products",
                    fix="plan.dot(plan.window(...), weights, [r, s, c]) is planned where it is the only product",
                )


def product_form(g: Graph) -> ProductForm:
    """Reads a graph with products. Raises SelectError PLAN_NONE, with the place in the graph, where it is not one."""
    if len(g.outputs) != 1:
        none("a kernel of products stores one result", f"got: {', '.join(o.name for o in g.outputs)}",
             fix="make a graph for each")  # fmt: skip
    (out,) = g.outputs
    dots = [v for v in out.value.walk() if v.op == "dot"]
    if len(out.axes) < 2:
        none("a product's result needs rows and columns", f"got: [{_names(out.axes)}]", fix="keep an axis of size 1")
    *batch, rows, columns = out.axes
    inner = [v for v in dots if not any(x.op == "dot" for a in v.args for x in a.walk())]
    loops = {v.more["axis"] for v in inner}
    if len(loops) != 1:
        none(
            "products along different axes do not share a loop", f"got: {_names(sorted(loops, key=lambda a: a.number))}"
        )
    (k,) = loops
    form = ProductForm(out, tuple(batch), rows, columns, k)
    for v in dots:
        (form.dots if v in inner else form.later).append(_dot(form, v))
    for d in form.dots:
        for side, operand in (("left", d.left), ("right", d.right)):
            _stage(form, operand, side, rows if side == "left" else d.columns)
    for d in form.later:
        _later(form, d)
    for v in _statistics(form):
        _statistic(form, v)
    for v in form.beside():
        if wrong := [a for a in v.axes if a not in (*batch, rows, columns)]:
            none(f"input {v.name} beside the products has an axis that the result lacks", f"got: {_names(wrong)}")
        if any(a in v.axes for a in batch):
            none(f"input {v.name} beside the products has a batch axis", f"got: {_names(v.axes)}")
        if tuple(a for a in v.more["stored"]) not in ((rows, columns), (rows,), (columns,)):
            none(f"input {v.name} beside the products is stored in another order",
                 f"want: ({_names((rows, columns))}), ({rows.name}) or ({columns.name})",
                 f"got: ({_names(v.more['stored'])})")  # fmt: skip
    _only_pointwise(form)
    types = {str(s.value.more["dtype"]) for s in form.staged}
    if len(types) != 1 or not types <= set(_MATRIX_TYPES):
        none("operands of products have one type, fp16 or bf16", f"got: {', '.join(sorted(types))}")
    form.dtype = form.staged[0].value.more["dtype"]
    if str(out.dtype) not in (str(form.dtype), "fp32"):
        none("a result has the operands' type or fp32", f"got: {out.dtype}")
    return form


def _dot(form: ProductForm, v: Value) -> Dot:
    k, (x, y) = v.more["axis"], v.args
    others = {id(a) for a in (*form.batch, form.rows, k)}
    if form.rows not in x.axes and form.rows in y.axes:
        x, y = y, x
    columns = [a for a in y.axes if id(a) not in others]
    if form.rows in y.axes or form.rows not in x.axes or len(columns) != 1:
        none(f"{v.line}: a product of [{_names(v.args[0].axes)}] and [{_names(v.args[1].axes)}]",
             f"want: rows {form.rows.name} in one operand, and columns in the other")  # fmt: skip
    if wrong := [a for a in x.axes if a not in (*form.batch, form.rows, k)]:
        none(f"{v.line}: an operand with an axis that is neither a row, nor summed, nor the batch's",
             f"got: {_names(wrong)}")  # fmt: skip
    if columns[0] is not form.columns and columns[0].size is None:
        none(f"{v.line}: columns {columns[0].name} of an inner product need a known size")
    return Dot(v, x, y, columns[0])


def _stage(form: ProductForm, operand: Value, side: str, across: Axis) -> None:
    k = form.k
    if found := _reductions(operand):
        none(f"{found[0].line}: a statistic inside of an operand is known only behind the loop over {k.name}",
             fix="leave the rewrite scale_past_dot on, and multiply by the statistic")  # fmt: skip
    for v in operand.walk():
        if v.op == "round":
            none(f"{v.line}: a value that is rounded inside of an operand")
    for v in _leaves(operand, set()):
        own = [a for a in v.axes if a not in form.batch]
        if set(own) == {k}:
            if v.more["stored"] != (k,):
                none(f"input {v.name}, a vector along {k.name}, has a batch axis")
            if operand.op == "input":
                none(f"{operand.line}: an operand without rows", f"got: {v.name}")
            continue
        if set(own) != {k, across}:
            none(f"input {v.name} of a product's operand has other axes", f"want: {_names((across, k))}",
                 f"got: {_names(v.axes)}")  # fmt: skip
        if set(v.more["stored"][-2:]) != {k, across}:
            none(f"input {v.name} stores its batch axes behind others", f"got: {_names(v.more['stored'])}")
        if not any(s.value is v and s.side == side for s in form.staged):
            form.staged.append(StagedInput(v, side, across))


def _later(form: ProductForm, d: Dot) -> None:
    axis = d.value.more["axis"]
    if axis.size is None or axis.size % 16 or axis.size > 128:
        none(f"{d.value.line}: a product of a product along {axis.name}",
             "want: a size that is known, a multiple of 16 and at most 128", f"got: {axis!r}")  # fmt: skip
    if (
        d.columns is not form.columns
        or d.right.op != "input"
        or set(d.right.axes) - set(form.batch) != {axis, d.columns}
    ):
        none(f"{d.value.line}: the second operand of a product of a product", "want: an input over those two axes")
    if set(d.right.more["stored"][-2:]) != {axis, d.columns}:
        none(f"{d.value.line}: input {d.right.name} stores its batch axes behind others")
    if d.left.op == "round" and d.left.more["dtype"] != d.right.more["dtype"]:
        none(f"{d.value.line}: a product's result that is an operand is rounded to the operands' type",
             fix=f"write .round(gr.{d.right.more['dtype']})")  # fmt: skip
    inner = [x for x in _reductions(d.before) if x.op == "dot"]
    if any(x.number not in {y.value.number for y in form.dots} for x in inner):
        none(f"{d.value.line}: a third product in a row")


def _statistics(form: ProductForm) -> list[Value]:
    found: list[Value] = []
    for v in (form.result, *(d.before for d in form.later)):
        stack = [v]
        while stack:
            x = stack.pop()
            for r in _reductions(x):
                if r.op == "dot":
                    later = next((d for d in form.later if d.value is r), None)
                    if later is None and r.number not in {d.value.number for d in form.dots}:
                        none(f"{r.line}: a product inside of a reduction")
                elif r not in found:
                    found.append(r)
    return found


def _statistic(form: ProductForm, v: Value) -> None:
    k = form.k
    if v.more["axis"] is not k:
        none(f"{v.line}: a reduction along {v.more['axis'].name} behind products along {k.name}")
    if _reductions(v.args[0]):
        none(f"{v.line}: a statistic of what is known only behind the loop over {k.name}")
    others = {a for a in v.axes if a not in form.batch}
    side = "left" if others <= {form.rows} else "right" if others <= {form.columns} else ""
    across = form.rows if side == "left" else form.columns
    if not side:
        none(f"{v.line}: a statistic of rows and columns together", f"got: [{_names(v.axes)}]")
    for x in _leaves(v.args[0], set()):
        if set(x.axes) - set(form.batch) == {k}:
            continue
        if not any(s.value is x and s.side == side and s.across is across for s in form.staged):
            none(f"{v.line}: a statistic of {x.name}, but it is not an operand of these products")
    form.statistics.append(Statistic(v, side))


def _only_pointwise(form: ProductForm) -> None:
    known = form.known()

    def visit(x: Value) -> None:
        if x.number in known:
            return
        if x.op == "round":
            none(f"{x.line}: a value that is rounded before it is computed with", fix="only operands of products are")
        for a in x.args:
            visit(a)

    visit(form.result)
    for d in form.later:
        visit(d.before)
