"""What a job takes of each TRES at the size that it has, and at any other.

Of memory Slurm's columns (24.11, 26.05) show an amount and not whether it is of each node or CPU,
and the total of a job that waits is that of its submission, whatever size it was given since. So
what its user said counts, as job_submit.lua has kept it, and of one that runs what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ones.policies.model import Take
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import PER_NODE, Layout, gpus_wanted, layout_of
from ones.slurm_ext.limits import Partition, SiteLimits
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import HOLDING, NOT_KNOWN, JobRecord
from ones.slurm_ext.tres import gpus_in, licenses_in, memory_in

CPU, MEMORY, NODES, GPUS = "cpu", "mem", "node", "gres/gpu"
JOBS = "jobs"  # counted beside what Slurm calls TRES
LICENSE = "license/"  # and a name
Of = Literal["node", "cpu", "gpu"]


def asked_by(record: JobRecord, limits: SiteLimits) -> Asked:
    """The request of a job that opted in. Raises ValueError where it can't be given other sizes."""
    mark = Mark.read(record.admin_comment)
    partition = limits.partitions.get(record.partition.partition(",")[0])
    return Asked(record, mark, layout_of(record, mark), partition)


@dataclass(frozen=True, slots=True)
class Asked:
    """A job's request, whose form it keeps at every size, and its partition with what that adds."""

    record: JobRecord
    mark: Mark
    layout: Layout
    partition: Partition | None = None

    def take(self, tres: str) -> Take | None:
        """How much of it the job takes, by nodes and GPUs; None where that is not known."""
        if tres == JOBS:
            return Take(each=1.0)
        if tres == NODES:
            return Take(node=1.0)
        if tres == GPUS or tres.startswith(f"{GPUS}:"):
            return Take(gpu=1.0)
        if tres == CPU:
            return self._cpus()
        if tres == MEMORY:
            return self._memory()
        if tres.startswith(LICENSE):
            count = (licenses_in(self.record.licenses) or {}).get(tres.removeprefix(LICENSE))
            return Take(once=float(count)) if count else None
        return None

    def by_node(self) -> Take | None:
        """The memory of one node that Slurm holds against its partition's MaxMemPerNode: not that
        for GPUs, nor that of CPUs of which it is not said how many a node has."""
        of, record = self.memory_of(), self.record
        open_ended = self.layout.form == "per_task" and not record.tasks_per_node
        return None if of == "gpu" or (of == "cpu" and open_ended) else self._memory()

    def memory_of(self) -> Of:
        """Of what it asks for so much memory."""
        record, said = self.record, "memory" not in self.mark.left_out
        if record.memory_per_gpu.startswith("gres"):
            return "gpu"
        if self.mark.memory is not None:
            return "node"
        by_default = self._default_per_gpu()
        if not said and by_default and record.memory in (0, by_default):
            return "gpu"
        if said and record.memory_per_gpu:
            return "cpu"  # what Slurm shows is its partition's default, which is of a GPU
        if record.memory_of:
            return "cpu" if record.memory_of == "cpu" else "node"
        if said:
            return "cpu" if record.memory else "node"
        default = self.partition.memory_per_cpu if self.partition is not None else 0
        return "cpu" if record.memory and record.memory == default else "node"

    def _cpus(self) -> Take:
        record, layout = self.record, self.layout
        wants = gpus_wanted(record)
        if record.cpus_per_gpu and wants:
            # Before Slurm has looked for nodes, the total may be that of the tasks alone.
            return Take(gpu=max(record.cpus / wants, gpus_in(record.cpus_per_gpu)))
        if layout.gpus_per_task == PER_NODE:
            return Take(node=float(record.cpus_per_task), spread=True)
        return Take(gpu=record.cpus_per_task / layout.gpus_per_task)

    def _memory(self) -> Take | None:
        total = memory_in(self.record.tres)
        if not total or self.record.memory_of == NOT_KNOWN:
            return None  # without a total, memory is none of what nodes are shared out by
        of = self.memory_of()
        unit = {
            "node": Take(node=1.0, spread=True),
            "cpu": self._cpus(),
            "gpu": Take(gpu=1.0),
        }[of]
        each = self._each(of, unit, total)
        return replace(unit, node=unit.node * each, gpu=unit.gpu * each) if each else None

    def _each(self, of: Of, unit: Take, total: int) -> float:
        """MiB for each unit; 0 where that is not known."""
        record = self.record
        if record.state in HOLDING:
            gpus, nodes = sum(record.gpus_on.values()), len(expand(record.nodes))
            holds = unit.node * nodes + unit.gpu * gpus
            return total / holds if holds else 0.0
        if of == "gpu":
            return float(gpus_in(record.memory_per_gpu) or self._default_per_gpu())
        if record.memory_per_gpu:
            # Slurm shows its partition's default instead of what the job asks for.
            return float(self.mark.memory or 0) if of == "node" else 0.0
        if of == "node":
            return float(record.memory or total / (self.mark.nodes or 1))
        return float(record.memory)

    def _default_per_gpu(self) -> int:
        shown = gpus_in(self.record.memory_per_gpu)
        return shown or (self.partition.memory_per_gpu if self.partition is not None else 0)
