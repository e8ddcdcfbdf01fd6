"""A round of a large cluster, made up: what the page is asked to show where much goes on."""

from __future__ import annotations

from dataclasses import replace

from fake_slurm import a_record
from policy_builders import a_cluster, a_job, a_problem

from ones.daemon.onesd.outcome import Decision, Round
from ones.policies.model import JobId, Placement
from ones.policies.prospects import Prospects
from ones.policies.words import OTHERS_GAIN_MORE
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

SIZES = {1: "1-2", 2: "2-4", 4: "4-8", 8: "8-16"}
GPUS = 4  # of a node
USERS = 200
PARTED = 32  # nodes below one leaf switch


def large_round(number: int, *, at: float, nodes: int = 1280, jobs: int = 10_000) -> Round:
    """Full nodes, the other jobs waiting; from one round to the next one job in fifty moves on."""
    cluster = [
        replace(node, name=f"n{index:04}", switches=(f"leaf{index // PARTED + 1:02}", "root"))
        for index, node in enumerate(a_cluster(nodes, GPUS))
    ]
    few = cluster[:8]  # whose shapes are those of all
    records, ours, room = {}, [], 0
    for job in range(1, jobs + 1):
        size = (1, 2, 4, 4, 8)[job % 5]
        placed = None
        if room + size <= nodes * GPUS and (size > 1 or job % 50 != number % 50):
            spread = {}
            for gpu in range(size):
                name = cluster[(room + gpu) // GPUS].name
                spread[name] = spread.get(name, 0) + 1
            placed, room = Placement.of(spread), room + size
        user = f"user{job % USERS:03}"
        account = f"account{job % 20:02}"
        held = dict(placed.gpus_on) if placed else {}
        records[job] = a_record(
            job,
            name=f"train-{job}",
            user=user,
            account=account,
            state="RUNNING" if placed else "PENDING",
            held=not placed,
            started=float(job) if placed else 0.0,
            submitted=2.0 * job,
            nodes=",".join(held),
            gpus_on=held,
        )
        one = a_job(job, SIZES[size], requested=size, nodes=few, placement=placed)
        every = frozenset(node.name for node in cluster) if job == 1 else ours[0].nodes
        ours.append(
            replace(
                one,
                name=f"train-{job}",
                user=user,
                account=account,
                nodes=every,
                submitted=2.0 * job,
            )
        )
    used = room
    described = {
        node.name: NodeRecord(
            name=node.name,
            states=frozenset({"ALLOCATED"}),
            gpu_type="a100",
            gpus=GPUS,
            gpus_used=max(0, min(GPUS, used - GPUS * index)),
        )
        for index, node in enumerate(cluster)
    }
    problem = a_problem(ours, cluster, now=at)
    return Round(
        number=number,
        at=at,
        seconds=2.0,
        outcome="a few decisions",
        snapshot=Snapshot(
            taken=at,
            jobs=records,
            nodes=described,
            switches={node.name: node.switches for node in cluster},
        ),
        jobs=problem.jobs,
        problem=problem,
        prospects=Prospects(problem, list, resizes=True),
        notes={job.id: OTHERS_GAIN_MORE for job in ours if job.placement is None},
        decisions=tuple(
            Decision(
                job=JobId(job),
                kind="start",
                gpus=0,
                target=None,
                batch=None,
                reason="it fits",
                verdict="begun",
            )
            for job in range(jobs - 50, jobs)
        ),
    )
