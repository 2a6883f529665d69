"""Sinks: a learned logit of each head that takes part in the softmax and has no value, so that weights shrink.

It adds one exponential to the sum of a row when all keys have been seen. Gradients of queries, keys and values need
nothing of it but the LSE, which has the sink in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.attention.problem import LOG2E, negative

if TYPE_CHECKING:
    from graphene.kernels.attention.online_softmax import OnlineSoftmax

__all__ = ["Sink"]

FAR_ABOVE = 1e30  # of a row without keys: its exponential is infinite, and that of its negative is 0


class Sink:
    """The sink of a head in the rows of a fragment S. `held`: its place in memory, in units of scores, not of log2(e).

    `above`: by how much it is above what a row's exponentials are relative to, in units of log2(e).
    """

    def __init__(self, online: OnlineSoftmax, S: gr.Tensor, held: gr.Tensor) -> None:
        self.online, self.sink, self.above = online, gr.alloc("sink", [], gr.fp32, gr.RF), S.reduced(1, "above")
        gr.move(self.sink, held)
        self.sink[:] = self.sink * LOG2E
        m, factor = online.m, online.scores.factor
        relative = gr.where(online.far > 0, online.raised(self.sink - m * factor), self.sink + online.mb)
        self.above[:] = gr.where(m == -gr.inf, FAR_ABOVE, relative)

    def share(self) -> Any:
        """What it adds to a row's sum of exponentials; inf, if that is beyond fp32: the row's weights are zeros."""
        return gr.exp2(self.above)

    def _logarithm(self, total: gr.Tensor, top: Any, behind: Any) -> Any:
        """The logarithm of both sums: of what is larger, plus that of a number near 1; `behind` is subtracted first."""
        less = gr.log2(gr.fma(total, gr.exp2(-self.above), 1))
        known = self.online.logarithm(total + self.share())
        return gr.where(self.above > 0, self.sink + behind + less, top + behind + known)

    def lse(self, total: gr.Tensor) -> Any:
        """The log-sum-exp with the sink; `total`: the sum of a row's exponentials without it."""
        return self._logarithm(total, self.online.m * self.online.scores.factor, 0) * math.log(2)

    def rest(self, total: gr.Tensor, lse: gr.Tensor) -> Any:
        """What the LSE lacks of the logarithm of the sum."""
        return gr.where(lse == -gr.inf, 0, self._logarithm(total, self.online.m, negative(lse)))
