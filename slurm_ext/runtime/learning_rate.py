"""How the learning rate follows the batch size, as a factor on the rate that the script sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum


class Rule(StrEnum):
    """How the rate grows with the batch size."""

    LINEAR = "linear"  # with the batch: for SGD (Goyal et al. 2017; ONES §3.2)
    SQRT = "sqrt"  # with its root: for Adam and its kin
    ADASCALE = "adascale"  # by what the gradients' noise says that it brings (Johnson et al. 2020)
    NONE = "none"  # not at all

    def factor(self, batch: int, submitted: int, noise: tuple[float, float] | None = None) -> float:
        """The factor at `batch`, for a script whose rate was chosen for `submitted`.

        `noise` is the squared norm of the gradient and its variance at `submitted`, where known.
        """
        match self:
            case Rule.ADASCALE:
                if noise is None:
                    return min(1.0, batch / submitted)
                sqr, var = noise
                return (var + sqr) / (var * submitted / batch + sqr)
            case Rule.LINEAR:
                return batch / submitted
            case Rule.SQRT:
                return math.sqrt(batch / submitted)
            case Rule.NONE:
                return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The factor on its way from one batch size's to another's, a little with every step."""

    begin: float = 1.0
    end: float = 1.0
    steps: int = 0
    done: int = 0

    @property
    def factor(self) -> float:
        if self.done >= self.steps:
            return self.end
        return self.begin + (self.end - self.begin) * self.done / self.steps

    def after_step(self) -> Ramp:
        return replace(self, done=self.done + 1) if self.done < self.steps else self

    def towards(self, factor: float, *, steps: int) -> Ramp:
        """The ramp from where this one stands to another factor.

        A lower rate is taken at once: it is the higher one that a model must get used to.
        """
        if factor == self.end:
            return self
        if factor <= self.factor:
            return Ramp(begin=factor, end=factor)
        return Ramp(begin=self.factor, end=factor, steps=steps)
