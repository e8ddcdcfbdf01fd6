"""In which order the moves to and from shared GPUs are begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ones.policies.model import Job, JobId
from ones.policies.moves import Move
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.shards import alone
from ones.slurm_ext.snapshot import Snapshot


def host_of(move: Move, jobs: Mapping[JobId, Job]) -> JobId:
    """Of a pair to be, the one on whose GPU it will be: who is there already, else the older."""
    assert move.beside is not None, "only who shares a GPU has a host"

    def order(id_: JobId) -> tuple[bool, float, JobId]:
        job = jobs[id_]
        return job.placement != move.target, job.submitted, id_

    return min((move.job, move.beside), key=order)


def waits_for(
    move: Move, snapshot: Snapshot, jobs: Mapping[JobId, Job], moving: Sequence[MoveRecord]
) -> str:
    """Why a move to a shared GPU is not begun yet; empty: it can be.

    First the host gets one half of a GPU to itself, then the other job follows. A node has one of
    them at a time, because Slurm alone chooses the GPU.
    """
    if move.beside is None or move.target is None:
        return ""
    (node,) = move.target.nodes
    other = next(
        (one for one in moving if one.shards and one.target and node in one.target.nodes), None
    )
    if other is not None:
        return f"job {other.job} is on its way to a shared GPU of {node}"
    halves = alone(snapshot.jobs).get(node, frozenset()) - {int(move.job)}
    if halves == {int(move.beside)}:
        return ""
    if halves:
        return f"job {min(halves)} is alone on a shared GPU of {node}"
    host = host_of(move, jobs)
    return "" if host == move.job else f"job {host} comes first"
