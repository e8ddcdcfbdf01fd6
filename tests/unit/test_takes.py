"""What a job takes of CPUs, memory and licences at another size, by the form of its request."""

from __future__ import annotations

from typing import Any

import pytest
from fake_slurm import a_record

from ones.policies.caps import of_shape
from ones.policies.model import Shape, Take
from ones.slurm_ext.limits import Partition, SiteLimits
from ones.slurm_ext.takes import asked_by

GPU = "gres/gpu"
MARK = "ONES1:sizes=1-8;request=2;held=1"
BY_GPU = "tasks=2;nodes=1"  # one task a GPU


def taken(of: str, /, partition: Partition | None = None, **changes: Any) -> Take | None:
    values: dict[str, Any] = {"tres_per_job": f"{GPU}:2", "admin_comment": MARK}
    record = a_record(1, **(values | {"tres": "cpu=2,mem=4000M,node=1,gres/gpu=2"} | changes))
    known = {"gpu": partition} if partition is not None else {}
    return asked_by(record, SiteLimits(partitions=known)).take(of)


def marked(words: str) -> str:
    return f"{MARK};{words}"


@pytest.mark.parametrize(
    ("changes", "take"),
    [
        ({}, Take(node=1.0, spread=True)),
        ({"cpus_per_task": 4}, Take(node=4.0, spread=True)),
        ({"tasks": 2, "cpus_per_task": 3}, Take(gpu=3.0)),
        ({"cpus_per_gpu": "gres/gpu:5", "cpus": 10}, Take(gpu=5.0)),
        ({"memory_per_gpu": "gres/gpu:500", "cpus": 8}, Take(node=1.0, spread=True)),
    ],
)
def test_cpus_follow_the_jobs_form(changes: dict[str, Any], take: Take) -> None:
    assert taken("cpu", **changes) == take


@pytest.mark.parametrize(
    ("words", "changes", "take"),
    [
        ("mem=2000;cpu=no", {"memory": 2000}, Take(node=2000.0, spread=True)),
        (f"{BY_GPU};mem=yes;cpu=no", {"memory": 300, "tasks": 2}, Take(gpu=300.0)),
        ("mem=yes;cpu=no", {"memory": 300, "cpus_per_task": 4}, Take(node=1200.0, spread=True)),
        ("mem=yes;cpu=no", {"memory": 900, "memory_per_gpu": "gres/gpu:900"}, Take(gpu=900.0)),
        # --mem=0: all that a node has, as Slurm counts it at submission
        (f"{BY_GPU};mem=0;cpu=no", {"tres": "mem=62.50G"}, Take(node=64000.0, spread=True)),
        ("tasks=2;nodes=2;mem=0;cpu=no", {"tres": "mem=62.50G"}, Take(node=32000.0, spread=True)),
    ],
)
def test_memory_follows_what_its_user_asked_for(
    words: str, changes: dict[str, Any], take: Take
) -> None:
    """The total is that of the job's submission, however it was reshaped since."""
    assert taken("mem", admin_comment=marked(words), **changes) == take


@pytest.mark.parametrize(
    ("partition", "changes", "take"),
    [
        (Partition(name="gpu", memory_per_cpu=500), {"memory": 500}, Take(gpu=500.0)),
        (Partition(name="gpu"), {"memory": 500}, Take(node=500.0, spread=True)),
        (Partition(name="gpu"), {"memory": 500, "memory_of": "cpu"}, Take(gpu=500.0)),
        (
            Partition(name="gpu", memory_per_cpu=500),
            {"memory": 640},  # as onesd itself has filled it in
            Take(node=640.0, spread=True),
        ),
        (
            Partition(name="gpu", memory_per_gpu=700),
            {"memory": 0, "tres": "mem=32000M"},  # before Slurm has tried it
            Take(gpu=700.0),
        ),
        (
            Partition(name="gpu", memory_per_gpu=700),
            {"memory": 700, "memory_of": "node", "memory_per_gpu": "gpu:700"},
            Take(gpu=700.0),
        ),
    ],
)
def test_memory_of_which_its_user_said_nothing_is_as_the_partition_has_it(
    partition: Partition, changes: dict[str, Any], take: Take
) -> None:
    comment = marked(f"{BY_GPU};mem=no;cpu=no")
    assert taken("mem", partition, admin_comment=comment, tasks=2, **changes) == take


def test_where_slurm_shows_a_default_instead_of_what_was_asked_for_it_is_not_known() -> None:
    """It shows that of GPUs for every job that it has tried to start once (24.11)."""
    shown: dict[str, Any] = {"memory": 700, "memory_per_gpu": "gpu:700", "tasks": 2}
    assert taken("mem", admin_comment=marked(f"{BY_GPU};mem=yes;cpu=no"), **shown) is None
    by_node = taken("mem", admin_comment=marked(f"{BY_GPU};mem=5000;cpu=no"), **shown)
    assert by_node == Take(node=5000.0, spread=True)
    running: dict[str, Any] = {"state": "RUNNING", "nodes": "n1", "gpus_on": {"n1": 2}}
    told = running | shown | {"memory_of": "node", "cpus": 2, "tres": "cpu=2,mem=600M,node=1"}
    assert taken("mem", admin_comment=marked(f"{BY_GPU};mem=yes;cpu=no"), **told) == Take(gpu=300.0)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("mem=2000;cpu=no", {"memory": 700, "memory_per_gpu": "gpu:700"}),
        ("mem=yes;cpu=no", {"memory": 700, "memory_per_gpu": "gpu:700"}),
        ("mem=yes;cpu=no", {"memory": 2048, "memory_per_gpu": "gres/gpu:2048"}),
        ("mem=no;cpu=no", {"memory": 1000, "memory_of": "cpu"}),
    ],
)
def test_what_a_running_job_holds_is_what_its_own_shape_takes(
    words: str, changes: dict[str, Any]
) -> None:
    running: dict[str, Any] = {"state": "RUNNING", "nodes": "n[1-2]", "gpus_on": {"n1": 4, "n2": 4}}
    running |= {"tasks": 8, "cpus": 8, "tres": "cpu=8,mem=16G,node=2,gres/gpu=8"}
    take = taken("mem", admin_comment=marked(f"{BY_GPU};{words}"), **(running | changes))
    assert take is not None
    assert of_shape(take, Shape(2, 4)) == 16384.0


def test_memory_that_slurm_does_not_count_is_no_part_of_it() -> None:
    assert taken("mem", tres="cpu=2,node=1,gres/gpu=2", memory=2000) is None


def test_licences_are_the_same_at_every_size() -> None:
    assert taken("license/matlab", licenses="ansys,matlab:3") == Take(once=3.0)
    assert taken("license/ansys", licenses="ansys,matlab:3") == Take(once=1.0)
    assert taken("license/maple", licenses="ansys,matlab:3") is None
    assert taken("license/matlab", licenses="matlab:1|ansys:1") is None
