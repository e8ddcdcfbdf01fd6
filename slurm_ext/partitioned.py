"""In which of its partitions a job may be started now, and on which nodes that is.

Slurm starts a job in one of the partitions that it names, on nodes of that one alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from ones.slurm_ext.limits import Partition
from ones.slurm_ext.reserved import Open
from ones.slurm_ext.snapshot import JobRecord, Snapshot
from ones.slurm_ext.whereabouts import Whereabouts

STARTS_NOTHING = frozenset({"DOWN", "INACTIVE"})  # DRAIN takes no new jobs, and starts those it has


def opened_to(
    job: JobRecord,
    nodes: frozenset[str],
    where: Whereabouts,
    partitions: Mapping[str, Partition],
) -> Open:
    """Of these nodes, which are of any partition of the job's, those among which it may start.

    Of several partitions it is one that has all that the others have, or else the first with a
    free GPU; a job that runs stays in the one that it runs in.
    """
    names = [name for name in job.partition.split(",") if name]
    shut = {name: why for name in names if (why := _shut(job, name, partitions.get(name)))}
    there = [where.part(nodes, name) for name in names if name not in shut]
    if not there:
        return Open(nodes=frozenset(), closed="; ".join(shut.values()))
    together = there[0] if len(there) == 1 else frozenset[str]().union(*there)
    here = frozenset(job.gpus_on)
    if here:
        return Open(nodes=next((one for one in there if here <= one), together))
    if together in there:
        return Open(nodes=together)
    return Open(nodes=next((one for one in there if _vacant(one, where.snapshot)), there[0]))


def _shut(job: JobRecord, name: str, partition: Partition | None) -> str:
    """Why Slurm starts no job like this in the partition; '' where it may, or nobody knows."""
    if partition is None:
        return ""
    if partition.state in STARTS_NOTHING:
        return f"partition {name} is {partition.state}: Slurm starts no jobs in it"
    for what, value, (allowed, denied) in (
        ("account", job.account, partition.accounts),
        ("QOS", job.qos, partition.qualities),
    ):
        if value and (value in denied or (allowed and value not in allowed)):
            return f"partition {name} is not for {what} {value}"
    return ""


def _vacant(names: frozenset[str], snapshot: Snapshot) -> bool:
    return any(snapshot.nodes[name].gpus > snapshot.nodes[name].gpus_used for name in names)
