"""What an operator sets of Gavel's rounds; the same words in a policy's name and a configuration.

In a name a mapping is written `weights=physics=2+chemistry=1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from ones.policies.model import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How the rounds of one Gavel policy go."""

    entities: str = "account"  # who shares the cluster: "account", or "none" for every job alike
    inside: str = "fairness"  # how an account's jobs share what it gets: "fairness" or "fifo"
    weights: Mapping[str, float] = field(default_factory=dict)  # of accounts; 1 where not named
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU and hour, by type
    slo: float = 0.0  # deadline = submission + so many times the job's length; 0: none is set
    stretch: float = 0.0
    """Long jobs' deadline is at so many times the least makespan of all, too; 0: it is not."""
    hold: float = 10.0
    """A running job gives way to one that is owed so many of its restart costs more than itself."""
    refresh: Seconds = 3600.0  # the optimum is sought anew at least this often
    max_wait: Seconds = inf  # as published; a daemon sets its own

    def __post_init__(self) -> None:
        if self.entities not in ("account", "none"):
            raise ValueError(f"its setting entities is account or none, not '{self.entities}'")
        if self.inside not in ("fairness", "fifo"):
            raise ValueError(f"its setting inside is fairness or fifo, not '{self.inside}'")
        for what, values in (("weights", self.weights), ("prices", self.prices)):
            for key, value in values.items():
                if not (isfinite(value) and value > 0):
                    raise ValueError(f"its setting {what}: {key}: {value:g} is not above 0")
        if not (isfinite(self.slo) and isfinite(self.hold) and min(self.slo, self.hold) >= 0):
            raise ValueError("its settings slo and hold must be finite and not below 0")
        if self.stretch and not (isfinite(self.stretch) and self.stretch >= 1):
            raise ValueError("its setting stretch must be 1 or more: times the least makespan")
        if not self.refresh > 0 or self.max_wait < 0:
            raise ValueError("its settings refresh and max_wait must be above 0")


def mapping(text: str) -> Mapping[str, float]:
    """`physics=2+chemistry=1`. Raises ValueError."""
    read: dict[str, float] = {}
    for part in text.split("+"):
        key, sign, value = part.partition("=")
        if not key or not sign or key in read:
            raise ValueError(text)
        read[key] = float(value)
    return read
