"""Satellites as onesd and the policies see them: parts of a job, and never jobs."""

from __future__ import annotations

from dataclasses import replace

from fake_slurm import a_record
from test_elastic import a_cluster, a_node

from ones.slurm_ext.elastic import elastic_jobs, gpu_nodes, plain_jobs
from ones.slurm_ext.satellites import attach, stale
from ones.slurm_ext.snapshot import JobRecord

BASE = a_record(
    id=1,
    state="RUNNING",
    held=False,
    nodes="n1",
    gpus_on={"n1": 1},
    started=1000.0,
    admin_comment="ONES1:sizes=1-8;request=1;held=0;tasks=1;nodes=1",
    tres_per_job="gres/gpu:v100:1",
)


def part(number: int, **changes: object) -> JobRecord:
    values: dict[str, object] = {
        "id": number,
        "state": "RUNNING",
        "held": False,
        "nodes": "n2",
        "gpus_on": {"n2": 2},
        "tres_per_job": "",
        "tres_per_node": "gres/gpu:v100:2",
        "admin_comment": "ONES1S:base=1;restarts=0;order=100",
    }
    return replace(BASE, **(values | changes))  # type: ignore[arg-type]


def test_a_jobs_placement_is_its_own_gpus_and_its_satellites() -> None:
    snapshot = attach(a_cluster(BASE, part(2), part(3, gpus_on={"n1": 1}, nodes="n1")))
    (job,), ignored = elastic_jobs(snapshot)
    assert ignored == {}
    assert job.placement is not None
    assert dict(job.placement.gpus_on) == {"n1": 2, "n2": 2}


def test_satellites_take_no_gpus_as_plain_jobs_do() -> None:
    nodes = {"n1": a_node("n1", gpus_used=1), "n2": a_node("n2", gpus_used=2)}
    snapshot = attach(a_cluster(BASE, part(2), **nodes))
    taken = {node.name: node.taken for node in gpu_nodes(snapshot, elastic_jobs(snapshot)[0])}
    assert taken["n1"] == taken["n2"] == 0


def test_a_satellite_that_waits_is_no_plain_job_that_waits() -> None:
    waits = part(2, state="PENDING", gpus_on={}, reason="Resources")
    assert plain_jobs(attach(a_cluster(BASE, waits)), elastic_jobs(a_cluster(BASE))[0]) == []


def test_satellites_are_stale_when_their_job_has_ended_was_requeued_or_is_anothers() -> None:
    assert stale(a_cluster(BASE, part(2))) == []
    ended = replace(BASE, state="CANCELLED")
    requeued = replace(BASE, restarts=1)
    plain = replace(BASE, admin_comment="")
    anothers = replace(BASE, user="mallory")
    for base in (ended, requeued, plain, anothers):
        snapshot = a_cluster(base, part(2))
        assert [job.id for job in stale(snapshot)] == [2]
        assert attach(snapshot).jobs[1].satellites == ()
    assert [job.id for job in stale(a_cluster(part(2)))] == [2]


def test_a_satellite_that_has_ended_is_neither_held_nor_stale() -> None:
    snapshot = a_cluster(BASE, part(2, state="COMPLETED", gpus_on={}))
    assert stale(snapshot) == []
    assert dict(attach(snapshot).jobs[1].held_on) == {"n1": 1}
