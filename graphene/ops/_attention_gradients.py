"""The gradients of attention as operators of their own."""

from __future__ import annotations

from typing import Any

from graphene import _core
from graphene.ops import _attention_torch as plain
from graphene.ops._define import Arg, Defined, Definition
from graphene.ops._torch import Tensor, torch

_NUMBERS = "bool causal, int left, int right, float scale, float softcap"
_FRONT = "(Tensor grad, Tensor delta, Tensor lse, Tensor q, Tensor k, Tensor v, "
_EXTRAS = "Tensor? mask, Tensor? bias, "
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "


class Gradients:
    """Of q, k and v (`varlen`: packed), from those of the result and the log-sum-exp."""

    def __init__(self, varlen: bool) -> None:
        self.varlen = varlen
        schema = _FRONT + (_PACKED if varlen else _EXTRAS) + _NUMBERS + ") -> (Tensor, Tensor, Tensor)"
        self.defined = Defined(
            Definition(
                "attention_varlen_backward" if varlen else "attention_backward", schema, self.configure,
                lambda *args: [(t.shape, t.dtype) for t in args[3:6]], self.reference,
                lambda _g, _d, _l, q, k, *_: int(q.numel()) * int(k.shape[-3]),
                exact={"q": 2, "k": 2, "v": 2},
            )
        )  # fmt: skip

    def configure(self, *args: Any) -> Any:
        """The recipe of a configuration."""
        q: Arg = args[3]
        return _core.Recipe.torch(f"no kernel for the gradient of attention of {q.dtype}")

    def reference(self, *args: Any) -> Any:
        """PyTorch's operators."""
        return plain.backward_varlen(*args[:8], *args[10:]) if self.varlen else plain.backward(*args)

    def __call__(self, g: Tensor, g_lse: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Any, ...]:
        """The gradients; `rest` are the arguments of attention."""
        wide = torch.float64 if out.dtype == torch.float64 else torch.float32
        if g is None:
            g, delta = torch.zeros_like(out), torch.zeros_like(lse, dtype=wide)
        else:
            delta = (g.to(wide) * out.to(wide)).sum(-1).transpose(-1, -2)
        if g_lse is not None:
            delta = delta - g_lse
        made: tuple[Any, ...] = self.defined.forward(g, delta, lse, *rest)
        return made


gradients, gradients_varlen = Gradients(False), Gradients(True)
