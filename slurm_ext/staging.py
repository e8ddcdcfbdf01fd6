"""The stage-in jobs of `sbatch --stage-in` in Slurm: telling them, letting them run, ending them.

Only job_submit.lua writes their mark. As with other jobs, each is read again before it is written
to, and after.
"""

from __future__ import annotations

from collections.abc import Sequence

from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.layout import gpus_wanted
from ones.slurm_ext.snapshot import STAGE_MARK, JobRecord


def stages(job: JobRecord) -> bool:
    """Whether this is a stage-in job. One that has GPUs, or asks for some, is none."""
    return job.admin_comment.startswith(STAGE_MARK) and not job.gpus_on and not gpus_wanted(job)


class StageJobs:
    """Writes to stage-in jobs, and to no others."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def let_run(self, job: int, *, main: JobRecord, nodes: Sequence[str]) -> None:
        """Let the held stage-in job run on these nodes, where and as whom the main job will.

        Raises SlurmError where it is not as expected, or Slurm did not do it.
        """
        before = self._read(job)
        if before is None or before.state != "PENDING" or not before.held:
            raise SlurmError(f"stage-in job {job}", "is no longer pending and held")
        if before.user != main.user:
            raise SlurmError(f"stage-in job {job}", f"is not of {main.user}, but of {before.user}")
        wanted = fold(nodes)
        terms = {
            "NumNodes": f"{len(nodes)}-{len(nodes)}",
            "NumTasks": str(len(nodes)),
            "ReqNodeList": wanted,
            "Partition": main.partition,
            "Account": main.account,
        }
        if main.reservation:
            terms["ReservationName"] = main.reservation
        try:
            self._cluster.update(job, terms)
        except SlurmError:
            # The partition may take some QOS only. Else its own is better: one for jobs with GPUs
            # may ask for some of each.
            if not main.qos or main.qos == before.qos:
                raise
            self._cluster.update(job, {"QOS": main.qos, **terms})
        after = self._read(job)
        if after is None or set(expand(after.required_nodes)) != set(nodes):
            raise SlurmError(f"scontrol update JobId={job}", f"it was not given {wanted}")
        self._cluster.release(job)

    def cancel(self, job: int) -> None:
        """End a stage-in job; nothing where it has ended. Raises SlurmError."""
        if self._read(job) is not None:
            self._cluster.cancel(job)

    def comment(self, job: int) -> str:
        """What the stage-in job said of its failure, or ''."""
        found = self._cluster.job(job)
        return "" if found is None else found.comment.partition("ones-stage-in: ")[2][:200]

    def _read(self, job: int) -> JobRecord | None:
        """The job, or None where there is none that is a stage-in job."""
        found = self._cluster.job(job)
        return found.record if found is not None and stages(found.record) else None
