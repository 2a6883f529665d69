"""The online softmax of rows of scores in registers: weights, their sums, and the maxima that they are relative to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.attention.problem import FAR, LAZY, LAZY_FP8, negative

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.attention.problem import Scores

__all__ = ["OnlineSoftmax"]


class OnlineSoftmax:
    """Of each row of a fragment S: `m`, the maximum so far, `l`, each lane's share of the sum of weights relative to
    it, and `alpha`, by which sums for the maximum before shrink.

    `lazy`: sums shrink only where a maximum has grown by more than 2^8. `training`: also the very maximum, `best`.
    `up`: weights are larger by 2 to this power, as a narrow type needs them.
    """

    def __init__(self, scores: Scores, S: gr.Tensor, lazy: bool, training: bool, up: int = 0) -> None:
        self.scores, self.lazy, self.up, self.most_rise = scores, lazy, up, LAZY_FP8 if up else LAZY
        self.m, self.m_old, self.alpha, self.mb, self.top, self.rise = (
            S.reduced(1, n) for n in ("m", "m_old", "alpha", "mb", "top", "rise")
        )
        self.l = S.reduced(1, "l", lanes=True)
        self.best = S.reduced(1, "best") if training else None  # the maximum, from which `lazy` lets m differ
        self.flags = S.reduced(1, "flags", gr.i32)
        self.over, self.far = (gr.alloc(n, [], gr.i32, gr.RF) for n in ("over", "far"))
        self.most = gr.alloc("most", [], gr.fp32, gr.RF)

    def begin(self) -> None:
        """No key has been seen."""
        for t, v in ((self.m, -gr.inf), (self.l, 0), (self.mb, 0), (self.far, 0)):
            gr.init(t, v)
        if self.best is not None:
            gr.init(self.best, -gr.inf)

    def weigh(self, S: gr.Tensor, first: bool = False, shrink: Callable[[], None] | None = None) -> None:
        """S = exp2(S - m), and their sums. `first`: nothing was summed before. `shrink` shrinks what else was summed;
        without it, that is due later, where `over`.
        """
        m, top, factor = self.m, self.top, self.scores.factor
        gr.reduce("max", top, S, axis=1)  # own values, then shfl.bfly over the row's four lanes
        if self.best is not None:
            self.best[:] = gr.max(self.best, top)
        if first:
            m[:] = top
            self.shift(S, first)
        elif self.lazy:
            self.rise[:] = top - m  # NaN for a row that has seen no key yet, and the maximum ignores it
            self.most[:] = gr.where(self.far > 0, gr.inf, -gr.inf)
            gr.reduce("max", self.most, self.rise.values, axis=0, accumulate=True)
            self.over[:] = gr.where(self.most * factor > self.most_rise, 1, 0)
            if shrink is None:
                self.alpha[:] = 1
            with gr.if_(gr.index(self.over, 0, 1) > 0):
                self.flags[:] = gr.where(self.rise * factor > self.most_rise, 1, 0)
                self.m_old[:] = m
                m[:] = gr.where(self.flags > 0, top, m)
                self.shift(S, first, shrink)
        else:
            self.m_old[:] = m
            m[:] = gr.max(m, top)
            self.shift(S, first, shrink)
        S[:] = gr.exp2(self.less(S), ftz=True)
        gr.reduce("add", self.l, S, axis=1, accumulate=True)  # own values only: l keeps the lanes apart

    def shift(self, S: gr.Tensor, first: bool, shrink: Callable[[], None] | None = None) -> None:
        """Makes sums relative to a new maximum `mb`, which is rounded, but the same for all of them.

        A thread with scores beyond ``FAR`` subtracts their maximum before it scales them, because the product of scale
        and maximum would lose more digits than exponents can. It comes here with every tile.
        """
        m, m_old, factor, shift, far = self.m, self.m_old, self.scores.factor, self.top, self.far
        shift[:] = gr.where(m == -gr.inf, 0, m)  # a row that sees no key gives 0, not NaN
        if self.scores.a.prescaled:
            self.mb[:] = self.raised(-shift)
            if not first:
                self.alpha[:] = gr.exp2(self.less(m_old) - self.up if self.up else self.less(m_old), ftz=True)
        else:
            if not first:
                self.alpha[:] = gr.where(far + gr.where(m_old == -gr.inf, 1, 0) > 0, self.up, self.less(m_old))
            self.flags[:] = gr.where(gr.max(shift, -shift) * factor > FAR, 1, 0)
            gr.reduce("max", far, self.flags.values, axis=0, accumulate=True)
            self.mb[:] = self.raised(gr.where(far > 0, 0, -factor * shift))
            shift[:] = gr.where(far > 0, shift, 0)
            if not first:
                self.alpha[:] = gr.exp2(self.less(m_old - shift) - self.alpha, ftz=True)
        if not first:
            self.l[:] = self.l * self.alpha
            if shrink is not None:
                shrink()
        if not self.scores.a.prescaled:
            with gr.if_(gr.index(far, 0, 1) > 0):
                S[:] = S - shift

    def raised(self, x: Any) -> Any:
        """Exponents of weights that are larger by 2 to the power `up`."""
        return x + self.up if self.up else x

    def logarithm(self, total: gr.Tensor) -> Any:
        """The logarithm of a sum of weights as if they were no larger."""
        return gr.log2(total) - self.up if self.up else gr.log2(total)

    def less(self, x: Any) -> Any:
        """Scores relative to the maximum."""
        return x + self.mb if self.scores.a.prescaled else gr.fma(x, self.scores.factor, self.mb)

    def lse(self, total: gr.Tensor) -> Any:
        """The log-sum-exp, from the sum of a row's exponentials; -inf, if no key was seen."""
        known = gr.fma(self.m, self.scores.factor, self.logarithm(total)) * math.log(2)
        return gr.where(total == 0, -gr.inf, known)

    def rest(self, total: gr.Tensor, lse: gr.Tensor) -> Any:
        """What the LSE lacks of the logarithm of the sum, with scores that are scaled one by one."""
        return gr.where(total == 0, 0, self.m + negative(lse) + gr.log2(total))

    def multiplied(self, S: gr.Tensor, total: gr.Tensor) -> Any:
        """The sum of the exponentials with the largest one as it was multiplied by values, rounded to 16 bits.

        Where a probability is close to one, the quotient of both sums loses that rounding, and so does the gradient.
        """
        assert self.best is not None
        largest, rounded = S.reduced(1, "largest"), S.reduced(1, "P", self.scores.a.dtype)
        shift = 0 if self.scores.a.prescaled else gr.where(self.far > 0, self.m, 0)
        largest[:] = gr.where(total == 0, 0, gr.exp2(self.less(self.best - shift), ftz=True))
        rounded[:] = largest
        return total - (largest - rounded)
