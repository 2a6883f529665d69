"""What torch.utils.flop_counter.FlopCounterMode counts for operators: a multiply-add is two, as of PyTorch's own.

Attention counts all scores, whatever a mask hides, as PyTorch's does; packed sequences count their own ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from graphene.ops.attention.backward import gradients, gradients_varlen
from graphene.ops.attention.forward import _attention, _attention_lse, _varlen, _varlen_lse
from graphene.ops.core.define import SPACE
from graphene.ops.core.torch import Tensor, torch
from graphene.ops.fused_mlp import NAME as MLP
from graphene.ops.matmul import _matmul, _matmul_out, _sums, result_shape
from graphene.ops.recurrent import _lstm, _rnn


def _product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return int(2 * prod(result_shape(a.shape, b.shape)) * a.shape[-1])


def _mlp_layers(x: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    return 2 * int(prod(x.shape[:-1])) * sum(int(w.numel()) for w in weights)


def _cell(input: Tensor, h: Tensor, *rest: Tensor, **_: Any) -> int:
    matrices = [w for w in rest if isinstance(w, torch.Tensor) and w.dim() == 2][-2:]  # behind lstm_cell's c
    return int(2 * input.shape[0] * sum(w.numel() for w in matrices))


def _scores(products: int, skipped: int) -> Callable[..., int]:
    """Counts `products` products for each score; `skipped` arguments come before q, k and v."""

    def count(*args: Any, **_: Any) -> int:
        q, k = args[skipped : skipped + 2]
        return int(2 * products * q.numel() * k.shape[1])

    return count


def _packed_scores(products: int, skipped: int) -> Callable[..., int]:
    def count(*args: Any, **_: Any) -> int:
        q, _k, _v, *starts = args[skipped : skipped + 5]
        longest = args[skipped + 5 : skipped + 7]
        each = q.shape[1] * q.shape[2]
        if any(t.device.type == "meta" or isinstance(t, torch._subclasses.FakeTensor) for t in starts):
            return int(2 * products * each * prod(longest) * (starts[0].shape[0] - 1))
        lengths = [[b - a for a, b in pairwise(t.tolist())] for t in starts]
        return int(2 * products * each * sum(m * n for m, n in zip(*lengths, strict=True)))

    return count


def _register() -> None:
    from torch.utils import flop_counter

    forward, backward = 2, 5  # the latter with the scores again
    defined: list[tuple[str, Callable[..., int]]] = [
        (_matmul.definition.name, _product),
        (_matmul_out.definition.name, _product),
        (_sums.definition.name, _product),
        (MLP, _mlp_layers),
        *((cell.defined.definition.name, _cell) for cell in (_rnn, _lstm)),
        *((x.defined.definition.name, _scores(forward, 0)) for x in (_attention, _attention_lse)),
        *((x.defined.definition.name, _packed_scores(forward, 0)) for x in (_varlen, _varlen_lse)),
        (gradients.defined.definition.name, _scores(backward, 3)),
        (gradients_varlen.defined.definition.name, _packed_scores(backward, 3)),
    ]
    space = getattr(torch.ops, SPACE)
    for name, formula in defined:
        packets = [getattr(space, name), getattr(space, name + "_forward")]
        flop_counter.register_flop_formula(packets, get_raw=True)(formula)


_register()
