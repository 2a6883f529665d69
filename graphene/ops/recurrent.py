"""graphene.ops.rnn_cell and lstm_cell: a step of a recurrent network in one kernel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, check_tensors, same_shape, shape_text
from graphene.ops.core.context import lower
from graphene.ops.core.define import Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, target_device
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import divides, output, own, recipe, view

if TYPE_CHECKING:
    from graphene.kernels.recurrent import CellConfig
    from graphene.kernels.recurrent_sm90 import CellSm90Config


@functools.lru_cache(maxsize=512)
def _kernel(config: CellConfig | CellSm90Config) -> Any:
    from graphene.kernels.recurrent import recurrent_cell
    from graphene.kernels.recurrent_sm90 import CellSm90Config, cell_sm90

    return cell_sm90(config) if isinstance(config, CellSm90Config) else recurrent_cell(config)


def flops(input: Tensor, h: Tensor, *rest: Tensor, **_: Any) -> int:
    """Two operations for each multiply-add."""
    matrices = [w for w in rest if isinstance(w, torch.Tensor) and w.dim() == 2][-2:]  # the last two; c comes before
    return int(2 * input.shape[0] * sum(w.numel() for w in matrices))


class CellOperator:
    """One of the two operators: `gates` is 1 or 4. Arguments: input, h, c if there are four gates, weights, biases."""

    def __init__(self, gates: int) -> None:
        self.gates = gates
        self.public = "lstm_cell" if gates == 4 else "rnn_cell"
        self.names = ["input", "h", *(["c"] if gates == 4 else []), "w_ih", "w_hh", "b_ih", "b_hh"]
        tensors = [f"Tensor{'?' if n.startswith('b_') else ''} {n}" for n in self.names]
        schema = f"({', '.join(tensors)}{', str? activation' if gates == 1 else ''}) -> "
        schema += "(Tensor, Tensor)" if gates == 4 else "Tensor"
        self.defined = Defined(
            Definition(self.public, schema, self.configure, self.results, self.reference, self.cost, self.save,
                       self.backward, choices={"activation": ACTIVATIONS} if gates == 1 else {}, autocast=lower,
                       flops=flops)
        )  # fmt: skip

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """The tensors by name."""
        return dict(zip(self.names, args, strict=False))

    def results(self, *args: Any) -> list[tuple[Any, Any]]:
        """Checks everything that does not depend on strides."""
        t = self.named(args)
        check_devices(self.public, t)
        check_dtypes(self.public, t, FLOATS)

        def want(name: str, shape: list[Any], why: str) -> None:
            if t[name] is not None and not same_shape(t[name].shape, shape):
                fail("OP_SHAPE", f"{self.public}: argument '{name}' has the wrong shape",
                     [f"want: {shape_text(shape)}, {why}", f"got:  {shape_text(t[name].shape)}"],
                     "pass tensors as torch.nn's cells have them")  # fmt: skip

        for name in ("input", "h", "w_ih", "w_hh"):
            if len(t[name].shape) != 2:
                fail("OP_SHAPE", f"{self.public}: argument '{name}' is not a matrix",
                     ["want: two dimensions", f"got:  {shape_text(t[name].shape)}"], "pass (batch, size)")  # fmt: skip
        batch, rows = t["input"].shape[0], t["w_ih"].shape[0]
        units = rows // self.gates if self.gates == 1 else t["h"].shape[1]
        want("h", [batch, t["h"].shape[1]], "of the input's batch")
        want(
            "w_ih", [self.gates * units, t["input"].shape[1]], "a row for each gate of each hidden unit, by input size"
        )
        want("w_hh", [self.gates * units, t["h"].shape[1]], "a row for each gate of each hidden unit, by hidden size")
        want("b_ih", [self.gates * units], "one for each row of the weights")
        want("b_hh", [self.gates * units], "one for each row of the weights")
        if self.gates == 4:
            want("c", [batch, units], "as h")
        elif args[-1] is not None and args[-1] not in ACTIVATIONS:
            known = ", ".join(f'"{x}"' for x in ACTIVATIONS)
            fail("OP_ARGUMENT", f'{self.public}: no activation is called "{args[-1]}"',
                 [f"known: None, {known}"], "pass one of them")  # fmt: skip
        return [([batch, units], t["input"].dtype)] * (2 if self.gates == 4 else 1)

    def configure(self, *args: Any) -> Any:
        """The recipe of a configuration."""
        from graphene.select.recurrent import select_cell

        t = self.named(args)
        x, h, w, u = (t[n] for n in ("input", "h", "w_ih", "w_hh"))
        if x.dtype not in MATMUL_DTYPES:
            return _core.Recipe.torch(f"no kernel multiplies {x.dtype} at full precision")
        units = w.shape[0] // self.gates
        if 0 in (*x.shape, *h.shape, *w.shape):
            return _core.Recipe.torch("a size is 0")
        copies = 0
        for i, name in enumerate(self.names):
            a = t[name]
            if a is None:
                continue
            lines = len(a.shape) == 2 and a.shape[0] > 1 and a.strides[0] < a.shape[1]
            if lines or (a.strides[-1] != 1 and a.shape[-1] > 1):
                copies |= 1 << i
        if copies:
            return _core.Recipe.copy(copies, "lines do not lie contiguous")

        def align(*many: Any) -> int:
            n = 16
            for a in many:
                if a is not None:
                    across = a.strides[0] * 2 if len(a.shape) == 2 and a.shape[0] > 1 else 0
                    n = divides(min(n, a.align), a.shape[-1] * 2, across)
            return n

        biases = [n for n in ("b_ih", "b_hh") if t[n] is not None]
        across = divides(align(t.get("c"), *(t[n] for n in biases)), units * 2)
        config = select_cell(
            x.shape[0], units, gates=self.gates,
            activation=args[-1] if self.gates == 1 else None, biases=len(biases), dtype=DTYPES[x.dtype],
            align=(align(x), align(h), align(w), align(u), across), device=target_device(x.device),
            simulated=x.device == "cpu",
        )  # fmt: skip
        place = {n: i for i, n in enumerate(self.names)}
        views = {n: view(i, *(own(i, d) for d in range(len(t[n].shape)))) for n, i in place.items() if t[n] is not None}
        n = len(self.names)
        made = ["h_new", "c_new"] if self.gates == 4 else ["h_new"]
        views |= {name: view(n + i, own(n + i, 0), own(n + i, 1)) for i, name in enumerate(made)}
        first = ["input", "h", *(["c"] if self.gates == 4 else []), "w_ih", "w_hh", *biases]
        hidden = (place["c"], 1) if self.gates == 4 else (place["w_ih"], 0)
        outputs = [output(DTYPES[x.dtype], [(0, 0)], [hidden]) for _ in made]
        return recipe(outputs, len(made), [(_kernel(config), [*first, *made])], views)

    def cost(self, *args: Any) -> int:
        """The multiply-adds, or those of all its tiles of 32 rows and 32 units by 32 if these are more."""
        t = self.named(args)
        batch, units = t["input"].shape[0], t["w_ih"].shape[0] // self.gates
        tiles = -(-batch // 32) * -(-units // 32) * self.gates
        steps = -(-t["input"].shape[1] // 32) + -(-t["h"].shape[1] // 32)
        return int(max(batch * (t["w_ih"].numel() + t["w_hh"].numel()), tiles * (400 + 200 * steps)))

    def sums(self, t: dict[str, Any]) -> Tensor:
        """The unrounded sums that the gates take."""
        wide = wide_dtype(t["input"].dtype)
        z = t["input"].to(wide) @ t["w_ih"].to(wide).mT + t["h"].to(wide) @ t["w_hh"].to(wide).mT
        for name in ("b_ih", "b_hh"):
            if t[name] is not None:
                z = z + t[name].to(wide)
        return z

    def reference(self, *args: Any) -> Any:
        """The same by PyTorch's operators."""
        t = self.named(args)
        z, dtype = self.sums(t), t["input"].dtype
        if self.gates == 1:
            return activate(z, args[-1]).to(dtype)
        i, f, g, o = z.chunk(4, 1)
        c = torch.sigmoid(f) * t["c"].to(z.dtype) + torch.sigmoid(i) * torch.tanh(g)
        return (torch.sigmoid(o) * torch.tanh(c)).to(dtype), c.to(dtype)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves the arguments for the gradient, which computes the gates again."""
        ctx.save_for_backward(*inputs[: len(self.names)])
        ctx.activation = inputs[-1] if self.gates == 1 else None

    def backward(self, ctx: Any, g: Tensor, g_c: Tensor | None = None) -> tuple[Any, ...]:
        """The gradient: products in the dtype, everything else in fp32."""
        t = self.named(ctx.saved_tensors)
        z, dtype = self.sums(t), t["input"].dtype
        dc = None
        if self.gates == 1:
            g = g.to(z.dtype)
            dz = g if ctx.activation is None else slope(z, ctx.activation, g)
        else:
            i, f, o = (torch.sigmoid(z.chunk(4, 1)[k]) for k in (0, 1, 3))
            a, c = torch.tanh(z.chunk(4, 1)[2]), t["c"].to(z.dtype)
            new = torch.tanh(f * c + i * a)
            g = torch.zeros_like(new) if g is None else g.to(z.dtype)
            d = g * o * (1 - new * new)
            d = d if g_c is None else d + g_c.to(z.dtype)
            dz = torch.cat([d * a * i * (1 - i), d * c * f * (1 - f), d * i * (1 - a * a), g * new * o * (1 - o)], 1)
            dc = (d * f).to(dtype)
        db = dz.sum(0).to(dtype)
        dz = dz.to(dtype)
        of = {"input": dz @ t["w_ih"], "h": dz @ t["w_hh"], "c": dc, "w_ih": dz.mT @ t["input"], "w_hh": dz.mT @ t["h"],
              "b_ih": db, "b_hh": db}  # fmt: skip
        return tuple(None if t[n] is None else of[n] for n in self.names) + ((None,) if self.gates == 1 else ())

    def batched(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a call without a batch as a batch of one. Raises OP_ARGUMENT, OP_SHAPE."""
        t = self.named(args)
        check_tensors(self.public, t, ("b_ih", "b_hh"))
        rows = [n for n in self.names[:3] if n in ("input", "h", "c")]
        for name in rows:
            if t[name].dim() != 1:
                fail("OP_SHAPE", f"{self.public}: argument '{name}' has a batch, and the input has none",
                     ["want: one dimension", f"got:  {shape_text(t[name].shape)}"],
                     "pass (size,) for all of them, or (batch, size)")  # fmt: skip
        return (*(t[n].unsqueeze(0) for n in rows), *args[len(rows) :])

    def call(self, *args: Any) -> Any:
        """Calls the operator directly, else through PyTorch's dispatcher; a row without a batch is a batch of one."""
        if getattr(args[0], "ndim", 2) == 1:
            made = self.call(*self.batched(args))
            return tuple(y.squeeze(0) for y in made) if self.gates == 4 else made.squeeze(0)
        return (self.defined.dispatched if is_compiling() else self.defined.core)(*args)


RNN, LSTM = CellOperator(1), CellOperator(4)


@public
def rnn_cell(
    input: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    activation: str | None = "tanh",
) -> Tensor:
    """``act(input @ w_ih.T + b_ih + h @ w_hh.T + b_hh)``: one kernel, both products summed in fp32, rounded once.

    input is (batch, in), h (batch, hidden), w_ih (units, in), w_hh (units, hidden), and biases are (units,). In a
    network units equals hidden. Without a batch, with input (in,) and h (hidden,), the result is (units,).
    ``activation`` is as in `matmul`; torch.nn.RNNCell has "tanh" and "relu". A kernel of this package computes fp16 and
    bf16, PyTorch's operators fp32 and fp64.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return RNN.call(input, h, w_ih, w_hh, b_ih, b_hh, activation)


@public
def lstm_cell(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The step of torch.nn.LSTMCell in one kernel: the next (h, c). Gates and states are fp32, rounded once.

    input is (batch, in), h and c are (batch, hidden), w_ih (4*hidden, in), w_hh (4*hidden, hidden), and biases
    (4*hidden,), with rows in torch's order i, f, g, o. Without a batch, input is (in,), and h, c and the results are
    (hidden,). A kernel of this package computes fp16 and bf16, PyTorch's operators fp32 and fp64.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    h_new, c_new = LSTM.call(input, h, c, w_ih, w_hh, b_ih, b_hh)
    return h_new, c_new
