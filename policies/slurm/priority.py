"""Multifactor priority: the weighted sum of factors between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ones.policies.model import Job, Node, Seconds
from ones.policies.slurm.fair_share import Member
from ones.policies.slurm.settings import Partition, SlurmSettings

LARGEST = 2**32 - 1
LEAST = 1  # 0 is that of held jobs


@dataclass(frozen=True, slots=True)
class Factors:
    """What the factors of jobs are relative to."""

    settings: SlurmSettings
    nodes: int
    gpus: int
    largest_job_factor: int  # of a partition
    qos: Mapping[str, float]  # priorities, as parts of the largest

    @classmethod
    def of(cls, settings: SlurmSettings, nodes: Sequence[Node]) -> Factors:
        most = max((one.priority for one in settings.qos), default=0)
        return cls(
            settings,
            max(len(nodes), 1),
            max(sum(node.gpus for node in nodes), 1),
            max((one.job_factor for one in settings.partitions), default=1),
            {one.name: one.priority / most if most else 0.0 for one in settings.qos},
        )

    def priority(
        self,
        job: Job,
        partition: Partition,
        fair_share: Mapping[Member, float],
        now: Seconds,
    ) -> int:
        """As `sprio` would show it for a job with as many CPUs as GPUs.

        Slurm's size factor is the mean of a job's part of all nodes and of all CPUs; GPUs stand
        for CPUs here.
        """
        rules = self.settings
        age = min(max(0.0, now - job.submitted), rules.max_age) / rules.max_age
        least_nodes = job.requested_nodes or min((shape.nodes for shape in job.shapes), default=1)
        size = (least_nodes / self.nodes + job.requested / self.gpus) / 2
        total = (
            rules.weight_age * age
            + rules.weight_fair_share * fair_share.get((job.account, job.user), 1.0)
            + rules.weight_job_size * (1.0 - size if rules.favor_small else size)
            + rules.weight_partition * partition.job_factor / max(self.largest_job_factor, 1)
            + rules.weight_qos * self.qos.get(job.qos or rules.default_qos, 0.0)
            + rules.weight_gpus * job.requested / self.gpus
            - job.nice
        )
        return int(min(max(total, LEAST), LARGEST))
