"""How ONES searches and what it strives for; every addition to the paper can be switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ones.policies.model import MAX_WAIT, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The knobs of ONES. The defaults are what its tables are measured with."""

    objective: Literal["flow", "sruf"] = "flow"
    """`sruf` is the paper's score: the GPU-seconds that the scheduled jobs still need, of schedules
    that leave no GPU unused. `flow`, the default, values what a job is given by its speed-up times
    a weight that falls with its remaining work: it also counts who waits, so that it is the mean
    completion time that falls."""
    exponent: float = 0.2  # of the remaining work in a job's weight, in `flow`
    rank_share: float = 0.5  # how much its rank by remaining work counts beside that
    rank_power: float = 0.5  # p of heSRPT's weights by rank: speed-up is taken to be size ** p
    first_come: float = 0.3
    """ln of a ratio of sizes within which the earlier of two jobs counts as the smaller: estimates
    hardly tell such jobs apart, and taking turns keeps both waiting. A guess of their length tells
    jobs of one user and name apart at no ratio. 0: sizes alone count, whatever they rest on."""
    fairness: float = 1.0
    """How much it counts in a job's weight how late it is: finish-time fairness rho (Themis §3.2),
    the time from its submission to its end over that on an equal share of the cluster."""
    makespan: float = 0.0
    """How much it counts in the weight of a job that accepts one size only, and takes longer than
    half of the least makespan, that it must begin in time for all to end soon; once no more jobs
    come. 0: the longest are left to the end, which is best for the mean."""
    goodput: bool = True  # batches and sizes by throughput times statistical efficiency
    batch_limits: bool = False
    """The paper's four rules for every job; otherwise only for jobs whose noise scale is unknown,
    because with the noise scale a batch that is too large is seen to be so."""
    charge_restarts: bool = True  # in the score; they are paid in any case
    least_charge: Seconds = 20.0
    """What a change is charged in the score, or a round if that is shorter, where the change itself
    takes less, as live resizes do: a small gain is none when the next plan takes it back."""
    horizon: Seconds | None = None  # over which a restart is charged; None: as events come
    exact: bool = True  # the best sizes by knapsack seed the population
    population: int = 12
    generations: int = 2  # 0: no evolution
    effort: int = 400_000  # bounds generations x population x (GPUs + options): time, in effect
    mutation: float = 0.1  # chance that a job of a candidate is preempted
    finalists: int = 2  # candidates placed on real nodes
    kept: int = 8  # candidates carried to the next round
    max_wait: Seconds = MAX_WAIT  # who waited longer comes first

    def __post_init__(self) -> None:
        if self.objective not in ("flow", "sruf"):
            raise ValueError(f"its setting objective is flow or sruf, not '{self.objective}'")
        if not (0 <= self.exponent <= 4 and 0 <= self.rank_share <= 4 and 0 <= self.rank_power < 1):
            raise ValueError(
                "its settings exponent and rank_share are 0 to 4 and rank_power is 0 to below 1"
            )
        if not all(0 <= one <= 4 for one in (self.first_come, self.fairness, self.makespan)):
            raise ValueError("its settings first_come, fairness and makespan are 0 to 4")
        if min(self.population, self.finalists, self.kept) < 1 or self.generations < 0:
            raise ValueError("its settings population, finalists and kept are at least 1")
        if self.least_charge < 0:
            raise ValueError("its setting least_charge is at least 0 seconds")
        if not 0 <= self.mutation <= 1 or (self.horizon is not None and self.horizon <= 0):
            raise ValueError("its setting mutation is 0 to 1, and horizon more than 0 seconds")
