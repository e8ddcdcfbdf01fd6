"""In which order the simulated Slurm starts jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ones.slurm_ext.simulated.state import State
from ones.slurm_ext.snapshot import JobRecord


@dataclass(frozen=True, slots=True)
class SimulatedOrder:
    """An Order: what each job's priority is when nobody holds it, and its partition's tier."""

    weights: Mapping[int, int]
    tiers: Mapping[str, int]
    trouble: str = ""

    @classmethod
    def of(cls, state: State) -> SimulatedOrder:
        return cls(
            {job.id: job.weight for job in state.jobs.values()},
            {name: partition.priority for name, partition in state.partitions.items()},
        )

    def priority(self, job: JobRecord, *, requested: int, waited: float) -> int | None:
        return self.weights.get(job.id)

    def tier(self, job: JobRecord) -> int:
        return self.tiers.get(job.partition, 1)
