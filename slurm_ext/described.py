"""A job that is not there, as its sbatch options describe it: what its record in Slurm would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from ones.policies.sizes import LONGEST_TEXT, Sizes, in_gpus
from ones.slurm_ext.errors import OnesError, in_a_line
from ones.slurm_ext.limits import Partition
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import MARK, JobRecord, Snapshot
from ones.slurm_ext.tres import gpus_by_type

Word = Annotated[str, msgspec.Meta(max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
Count = Annotated[int, msgspec.Meta(ge=0, le=65536)]


class NoSuchJob(OnesError):
    """A description that makes no elastic job, in one line."""


class Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sbatch is told of an elastic job; empty or 0: nothing."""

    sizes: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] = ""  # of --elastic
    name: Text = ""
    account: Word = ""
    partition: Text = ""
    qos: Word = ""
    reservation: Text = ""
    features: Text = ""  # of --constraint
    excluded: Text = ""  # of --exclude, a hostlist
    gpus: Word = ""  # of --gpus, [TYPE:]COUNT
    gpus_per_node: Word = ""  # of --gpus-per-node
    gpus_per_task: Word = ""  # of --gpus-per-task
    gres: Word = ""
    nodes: Count = 0
    most_nodes: Count = 0
    tasks: Count = 0
    tasks_per_node: Count = 0
    time_limit: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # seconds

    def asks(self) -> tuple[int, str]:
        """The GPUs of its own request on its fewest nodes, and their type, as job_submit.lua counts
        them. Raises NoSuchJob."""
        for text, times in (
            (f"gpu:{self.gpus}" if self.gpus else "", 1),
            (f"gpu:{self.gpus_per_node}" if self.gpus_per_node else self.gres, self._nodes()),
            (f"gpu:{self.gpus_per_task}" if self.gpus_per_task else "", self._tasks()),
        ):
            types = gpus_by_type(text)
            if len(types) > 1:
                raise NoSuchJob("it asks for two types of GPU, but an elastic job runs on one")
            for kind, count in types.items():
                return count * times, kind
        raise NoSuchJob(
            "it asks for no GPUs; say how many it would have without --elastic, e.g. --gpus=4"
        )

    def _nodes(self) -> int:
        if self.nodes or not (self.tasks and self.tasks_per_node):
            return max(1, self.nodes)
        return -(-self.tasks // self.tasks_per_node)

    def _tasks(self) -> int:
        return self.tasks or self._nodes() * max(1, self.tasks_per_node)

    def record(
        self, number: int, *, user: str, now: float, partitions: Mapping[str, Partition]
    ) -> JobRecord:
        """Its record, held for onesd as job_submit.lua would have it. Raises NoSuchJob."""
        gpus, kind = self.asks()
        text = self.sizes or f"1-{gpus}"
        try:
            sizes = Sizes.parse(text)
        except ValueError as fault:
            raise NoSuchJob(f"--elastic: {fault}") from None
        if gpus not in sizes:
            raise NoSuchJob(
                f"--elastic={in_a_line(text)}: the job itself asks for {in_gpus(gpus)}, which"
                " is not one of these sizes"
            )
        nodes = self._nodes()
        where = self.partition or default_partition(partitions)
        typed = f";type={kind}" if kind else ""
        return JobRecord(
            id=number,
            name=self.name,
            user=user,
            account=self.account,
            partition=where,
            qos=self.qos,
            state="PENDING",
            reason="JobHeldUser",
            held=True,
            submitted=now,
            eligible=now,
            time_limit=self._limit(where, partitions),
            nodes_wanted=(nodes, max(nodes, self.most_nodes)),
            tasks=self._tasks(),
            tasks_per_node=self.tasks_per_node,
            tres_per_job=f"gres/gpu:{self.gpus}" if self.gpus else "",
            tres_per_node=f"gres/gpu:{self.gpus_per_node}" if self.gpus_per_node else self.gres,
            tres_per_task=f"gres/gpu:{self.gpus_per_task}" if self.gpus_per_task else "",
            tres=f"node={nodes},gres/gpu={gpus}",
            features=self.features,
            excluded_nodes=self.excluded,
            reservation=self.reservation,
            requeue=True,
            admin_comment=(
                f"{MARK}sizes={sizes};request={gpus};held=1;tasks={self.tasks};nodes={nodes}{typed}"
            ),
        )

    def _limit(self, where: str, partitions: Mapping[str, Partition]) -> float | None:
        if self.time_limit is not None:
            return self.time_limit
        walls = [partitions[name].wall for name in where.split(",") if name in partitions]
        return min((wall for wall in walls if wall is not None), default=None)


def default_partition(partitions: Mapping[str, Partition]) -> str:
    """That of jobs that name none; all, where Slurm has none or it is not known."""
    found = [one.name for one in partitions.values() if one.default]
    return ",".join(found or partitions)


def described(record: JobRecord) -> Described:
    """A waiting elastic job as its options were. Raises ValueError where its mark can't be read."""
    mark = Mark.read(record.admin_comment)
    per_job, per_task = gpus_by_type(record.tres_per_job), gpus_by_type(record.tres_per_task)
    typed = f"{mark.gpu_type}:" if mark.gpu_type else ""
    own = not (per_job or per_task) and bool(gpus_by_type(record.tres_per_node))
    return Described(
        sizes=str(mark.sizes),
        name=record.name[:1024],
        account=record.account,
        partition=record.partition,
        qos=record.qos,
        reservation=record.reservation,
        features=record.features,
        excluded=record.excluded_nodes,
        gpus="" if own or per_task else f"{typed}{mark.request}",
        gpus_per_task=f"{typed}{sum(per_task.values())}" if per_task and not per_job else "",
        gres=f"gpu:{typed}{mark.request // (mark.nodes or 1)}" if own else "",
        nodes=mark.nodes or 0,
        tasks=mark.tasks or 0,
        tasks_per_node=record.tasks_per_node,
        time_limit=record.time_limit or None,
    )


def beside(snapshot: Snapshot, record: JobRecord) -> Snapshot:
    """The snapshot with this job in it."""
    return replace(snapshot, jobs={**snapshot.jobs, record.id: record})
