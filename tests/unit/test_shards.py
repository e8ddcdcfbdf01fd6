"""Shards of GPUs: what a job asks for, who holds which, and when a move to one can go on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fake_slurm import FakeSlurm, a_record

from ones.policies.model import Placement, Shape
from ones.slurm_ext.actions import Reshape
from ones.slurm_ext.actuator import Actuator, JobChanged, reshape_fields
from ones.slurm_ext.elastic import elastic_jobs, gpu_nodes
from ones.slurm_ext.layout import cannot_share, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.moves import Evidence, MoveLimits, MoveRecord, advance, leaving
from ones.slurm_ext.shards import alone, beside, gpus_held, half, holders
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot

MARK = "ONES1:sizes=1-16;request=4;held=1"
ONE = Shape(1, 1)
ON_N1 = Placement.of({"n1": 1})
NODE = NodeRecord(
    name="n1",
    states=frozenset({"IDLE"}),
    gpu_type="v100",
    gpus=4,
    gpus_used=2,
    shards_per_gpu=2,
    partitions=frozenset({"gpu"}),
)


def on_a_share(number: int, gpu: int = 0, **changes: object) -> JobRecord:
    fields = {
        "state": "RUNNING",
        "held": False,
        "nodes": "n1",
        "gpus_on": {"n1": 1},
        "shares": {"n1": (gpu,)},
        "tres_per_job": "",
        "tres_per_node": "gres/shard:1",
        "started": 1500.0,
    }
    return a_record(number, **(fields | changes))


@pytest.mark.parametrize(
    ("asked", "shared", "again"),
    [
        (
            {"tres_per_job": "gres/gpu:v100:4"},
            {"TresPerNode": "gres/shard:1", "TresPerJob": ""},
            {"TresPerNode": "gres/gpu:v100:2"},
        ),
        (
            {"tres_per_job": "", "tres_per_node": "gres/nvme:1,gres/gpu:4"},
            {"TresPerNode": "gres/nvme:1,gres/shard:1"},
            {"TresPerNode": "gres/nvme:1,gres/gpu:2"},
        ),
        (
            {"tres_per_job": "", "tres_per_task": "cpu=2,gres/gpu:v100=1", "tasks": 4},
            {"TresPerNode": "gres/shard:1", "TresPerTask": "cpu=2"},
            {"TresPerNode": "gres/gpu:v100:2"},
        ),
    ],
)
def test_every_form_asks_for_a_shard_and_for_gpus_again(
    asked: dict[str, object], shared: dict[str, str], again: dict[str, str]
) -> None:
    kind = ";type=v100" if "v100" in str(asked) else ""
    job = a_record(**asked, admin_comment=f"{MARK};tasks=4;nodes=1{kind}")
    mark = Mark.read(job.admin_comment)
    fields = reshape_fields(job, layout_of(job, mark), ONE, cpus_per_gpu=0, shards=1)
    assert {key: fields.get(key) for key in shared} == shared
    names = {
        "TresPerJob": "tres_per_job",
        "TresPerNode": "tres_per_node",
        "TresPerTask": "tres_per_task",
    }
    changed = {names[key]: fields[key] for key in names if key in fields}
    job = replace(job, **changed)  # type: ignore[arg-type]
    assert layout_of(job, mark).gpu_type == ("v100" if kind else "")
    back = reshape_fields(job, layout_of(job, mark), Shape(1, 2), cpus_per_gpu=0)
    assert {key: back.get(key) for key in again} == again
    assert "shard" not in json.dumps(back)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"tres_per_job": "gres/gpu:v100:4"}, "its mark does not say which type"),
        ({"tres_per_job": "gres/gpu:v100:4", "admin_comment": f"{MARK};type=v100"}, ""),
        ({"cpus_per_gpu": "gres/gpu:2"}, "CPUs or memory per GPU"),
    ],
)
def test_a_job_that_could_not_have_its_own_gpu_again_does_not_share(
    changes: dict[str, object], why: str
) -> None:
    job = a_record(**changes)
    found = cannot_share(job, Mark.read(job.admin_comment))
    assert why in found
    assert bool(why) == bool(found)


def test_only_one_gpu_can_be_shared() -> None:
    slurm = FakeSlurm(a_record())
    with pytest.raises(JobChanged, match="only one GPU"):
        Actuator(slurm.cluster).perform(Reshape(1, 0, Placement.of({"n1": 2}), shards=1))
    assert slurm.written == []
    after = Actuator(slurm.cluster).perform(Reshape(1, 0, ON_N1, shards=1))
    assert after is not None
    assert (after.tres_per_node, after.tres_per_job) == ("gres/shard:1", "")


def test_who_is_with_whom_is_read_from_the_gpus() -> None:
    jobs = {job.id: job for job in (on_a_share(1), on_a_share(2), on_a_share(3, gpu=1))}
    assert holders(jobs) == {("n1", 0): (1, 2), ("n1", 1): (3,)}
    assert beside(jobs) == {1: {2}, 2: {1}}
    assert alone(jobs) == {"n1": {3}}
    assert gpus_held(jobs.values()) == {"n1": 2}
    assert [half(replace(NODE, shards_per_gpu=each)) for each in (0, 1, 2, 3, 8)] == [0, 0, 1, 0, 4]


def test_plain_jobs_gpus_are_taken_and_a_pair_takes_one_gpu() -> None:
    plain = on_a_share(4, gpu=1, admin_comment="")
    jobs = {job.id: job for job in (on_a_share(1), on_a_share(2), plain)}
    snapshot = Snapshot(taken=2000.0, jobs=jobs, nodes={"n1": NODE}, switches={})
    elastic, ignored = elastic_jobs(snapshot)
    assert not ignored
    assert {job.id: (job.share, job.beside) for job in elastic} == {1: (True, 2), 2: (True, 1)}
    (node,) = gpu_nodes(snapshot, elastic_jobs(snapshot)[0])
    assert (node.taken, node.shares) == (1, True)


def test_one_beside_a_plain_job_knows_that_it_is_not_alone() -> None:
    jobs = {job.id: job for job in (on_a_share(1), on_a_share(2, admin_comment=""))}
    snapshot = Snapshot(taken=2000.0, jobs=jobs, nodes={"n1": NODE}, switches={})
    (job,) = elastic_jobs(snapshot)[0]
    assert (job.share, job.beside) == (True, 2)


def start(**more: object) -> MoveRecord:
    fields = {"kind": "start", "restarts": 0, "begun_at": 0.0, "target": ON_N1, "shards": 1}
    return MoveRecord(id=1, job=1, **(fields | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("move", "half_taken", "free", "goes"),
    [
        (start(), {}, 1, True),
        (start(), {}, 0, False),
        (start(), {"n1": frozenset({7})}, 1, False),
        (start(beside=7), {"n1": frozenset({7})}, 0, True),
        (start(beside=7), {"n1": frozenset({8})}, 1, False),
        (start(beside=7), {"n1": frozenset({7, 8})}, 1, False),
        (start(beside=7), {}, 1, False),
    ],
)
def test_a_job_goes_to_a_shared_gpu_only_where_slurm_can_choose_no_other(
    move: MoveRecord, half_taken: dict[str, frozenset[int]], free: int, *, goes: bool
) -> None:
    evidence = Evidence(now=1.0, free={"n1": free}, half_taken=half_taken)
    following = advance(move, a_record(), evidence, MoveLimits())
    assert isinstance(following.action, Reshape) == goes
    if goes:
        assert following.action == Reshape(1, 0, ON_N1, shards=1)
    assert MoveRecord.from_json(following.move.to_json()) == following.move


def test_who_leaves_a_shared_gpu_frees_none() -> None:
    jobs = {job.id: job for job in (on_a_share(1), on_a_share(2), on_a_share(3, gpu=1))}
    preempts = [
        MoveRecord(id=number, job=number, kind="preempt", restarts=0, begun_at=0.0)
        for number in jobs
    ]
    assert leaving(preempts, jobs) == {"n1": 1}
    whole = start(kind="resize", shards=0)
    evidence = Evidence(now=1.0, ready=True, free={"n1": 0}, shared=True)
    assert advance(whole, on_a_share(1), evidence, MoveLimits()).action is None
    evidence = replace(evidence, shared=False)
    assert advance(whole, on_a_share(1), evidence, MoveLimits()).action is not None


def test_a_job_that_runs_with_shards_instead_of_its_gpu_is_said_to() -> None:
    move = start(shards=0, step="starting")
    following = advance(move, on_a_share(1), Evidence(now=1.0), MoveLimits())
    assert following.move.outcome == "changed: the job runs with shards of a GPU"
