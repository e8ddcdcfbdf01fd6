"""Carries moves of one job out. Run on the controller it prints how each ended, as JSON.

Arguments: the job, the seconds a start may take, and moves such as `resize@n1:2,n2:2` or `preempt`;
`start@n1:1/1` asks for one shard of a GPU, `start@n1:1/1+7` beside job 7. The job is taken to
confirm each checkpoint at once, from when its script has begun: before, the signal would end it.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ones.policies.model import Placement
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.moves import Evidence, MoveLimits, MoveRecord, advance
from ones.slurm_ext.shards import alone, beside
from ones.slurm_ext.slurm import Slurm
from ones.slurm_ext.snapshot import JobRecord


class Carrier:
    """Does what onesd's mover does with one move after the other."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        has_begun: Callable[[JobRecord], bool],
    ) -> None:
        self._cluster = cluster
        self._actuator = Actuator(cluster)
        self._clock = clock
        self._sleep = sleep
        self._has_begun = has_begun

    def outcomes(self, job: int, moves: Sequence[str], *, start_timeout: float) -> list[str]:
        """How each of the moves ended."""
        found = []
        for text in moves:
            kind, _, parts = text.partition("@")
            parts, _, other = parts.partition("+")
            parts, _, shards = parts.partition("/")
            share = {"shards": int(shards or 0), "beside": int(other) if other else None}
            gpus_on = {
                node: int(gpus)
                for node, gpus in (part.split(":") for part in parts.split(",") if part)
            }
            target = Placement.of(gpus_on) if gpus_on else None
            limits = MoveLimits(start_timeout=start_timeout)
            found.append(self._carry_out(job, kind, target, limits, **share))
        return found

    def _carry_out(
        self,
        job: int,
        kind: str,
        target: Placement | None,
        limits: MoveLimits,
        **share: int | None,
    ) -> str:
        present = self._cluster.snapshot().jobs[job]
        end = self._clock() + 60
        while kind != "start" and not self._has_begun(present) and self._clock() < end:
            self._sleep(0.1)
        begun = self._clock()
        move = MoveRecord(
            id=1,
            job=job,
            kind=kind,
            restarts=present.restarts,
            target=target,
            begun_at=begun,
            **share,
        )
        while not move.outcome and self._clock() < begun + 60:
            snapshot = self._cluster.snapshot()
            now = self._clock()
            free = {node.name: node.gpus - node.gpus_used for node in snapshot.nodes.values()}
            evidence = Evidence(
                now=now,
                checkpoint_at=now,
                ready=True,
                free=free,
                half_taken=alone(snapshot.jobs),
                shared=job in beside(snapshot.jobs),
            )
            record = snapshot.jobs.get(job)
            for _ in range(8):
                following = advance(move, record, evidence, limits)
                move = following.move
                if following.action is None:
                    break
                try:
                    record = self._actuator.perform(following.action)
                except JobChanged as fault:
                    print(fault, file=sys.stderr)
                    break
                move = following.done
            self._sleep(0.1)
        return move.outcome


def has_printed(job: JobRecord) -> bool:
    """Whether its present run has, as the script of slurm_jobs.py does once it can be signalled."""
    output = Path(f"/home/{job.user}/{job.id}.out")
    return output.exists() and f"run {job.restarts} " in output.read_text()


if __name__ == "__main__":
    commands = Commands()
    carrier = Carrier(Slurm(commands, CommandReader(commands)), time.time, time.sleep, has_printed)
    job, start_timeout, *moves = sys.argv[1:]
    print(json.dumps(carrier.outcomes(int(job), moves, start_timeout=float(start_timeout))))
