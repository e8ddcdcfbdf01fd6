"""A worker's part in the vote that is the commit.

At the end of each step every member of a generation gives the number of the generation that it has
prepared, or of the present one, and learns a step later the least and the greatest number given.
A switch takes place when both are the same new number: all members see that at the same step, and
none can switch alone. A member may take its vote back as long as it hasn't seen such a result.
"""

from __future__ import annotations

from ones.slurm_ext.runtime.live.terms import Number


class Ballot:
    """How one member votes, and what the results mean for it."""

    def __init__(self) -> None:
        self.number = Number(0)  # of the present generation
        self.prepared: Number | None = None
        self._withdrawn: Number | None = None

    @property
    def vote(self) -> Number:
        return self.number if self.prepared is None else self.prepared

    def prepare(self, number: Number) -> None:
        """The group of this generation is made."""
        if number > self.number:
            self.prepared = number

    def withdraw(self, number: Number) -> None:
        """It has been called off; what was voted before may still decide otherwise."""
        self._withdrawn = number

    def switches(self, least: int, greatest: int) -> bool:
        """Whether a result says that all switch now to what this member has prepared."""
        return self.prepared is not None and least == greatest == self.prepared

    def after_result(self) -> Number | None:
        """The generation to drop, once a result has said that there is no switch."""
        dropped, self._withdrawn = self._withdrawn, None
        if dropped is not None and self.prepared == dropped:
            self.prepared = None
        return dropped

    def entered(self, number: Number) -> None:
        """This generation is the present one."""
        self.number, self.prepared, self._withdrawn = number, None, None
