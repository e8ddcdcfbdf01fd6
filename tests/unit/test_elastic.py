from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import a_record
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.model import Job, Placement, Shape
from ones.policies.sizes import Sizes
from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.elastic import (
    elastic_jobs,
    gpu_nodes,
    held_for_us,
    plain_jobs,
    stranded,
    to_release,
    waiting_without_gpus,
)
from ones.slurm_ext.holding import NO_HOLDS, Hold, Holds
from ones.slurm_ext.layout import PER_NODE, Layout, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot

TYPES = {"n1": "v100", "n2": "v100", "n3": "k80", "n4": "k80"}


def a_node(name: str, **changes: Any) -> NodeRecord:
    values: dict[str, Any] = {
        "name": name,
        "states": frozenset({"IDLE"}),
        "gpu_type": TYPES.get(name, ""),
        "gpus": 4 if name in TYPES else 0,
        "partitions": frozenset({"gpu"}),
    }
    return NodeRecord(**(values | changes))


def a_cluster(*jobs: JobRecord, **nodes: NodeRecord) -> Snapshot:
    known = {name: a_node(name) for name in ("n1", "n2", "n3", "n4", "cpu1")}
    return Snapshot(
        taken=2000.0,
        jobs={job.id: job for job in jobs},
        nodes=known | nodes,
        switches={"n1": ("s1", "s0")},
    )


def the_job(record: JobRecord, **nodes: NodeRecord) -> Job:
    jobs, ignored = elastic_jobs(a_cluster(record, **nodes))
    assert ignored == {}
    return jobs[0]


def the_reason(record: JobRecord, **nodes: NodeRecord) -> str:
    jobs, ignored = elastic_jobs(a_cluster(record, **nodes))
    assert jobs == []
    return ignored[record.id]


def marked(text: str) -> str:
    return f"ONES1:sizes=1-8;request=4;held=1;{text}"


def running(**changes: Any) -> JobRecord:
    values = {"state": "RUNNING", "held": False, "nodes": "n1", "gpus_on": {"n1": 4}}
    return a_record(**(values | {"started": 1500.0} | changes))


def test_a_mark_is_read_with_what_follows_a_space_left_aside() -> None:
    mark = Mark.read("ONES1:sizes=2-16;request=4;held=0;tasks=4;nodes=2;colour=red see ticket 7")
    sizes = Sizes.parse("2-16")
    assert mark == Mark(sizes=sizes, request=4, held=False, tasks=4, nodes=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("elastic=2-8", "does not begin with ONES1:"),
        ("ONES1:sizes=2-8;held=1", "lacks request"),
        ("ONES1:sizes=2-8;request=4;held=2", "held=2"),
        ("ONES1:sizes=8-2;request=4;held=1", "runs backwards"),
        ("ONES1:sizes=2-8;request=0;held=1", "request=0"),
        ("ONES1:sizes=2-8;request=٤;held=1", "not a count"),
        ("ONES1:sizes=2-8;sizes=2-9;request=4;held=1", "one key=value"),
        ("ONES1:sizes=2-8;;request=4;held=1", "one key=value"),
        (
            f"ONES1:sizes=2-8;request={'9' * 400};held=1",
            "request=99999999999999999999, not a count",
        ),
        ("ONES1:" + "x" * 2000, "longer than"),
    ],
)
def test_a_mark_that_is_not_whole_is_refused_with_its_fault(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Mark.read(text)
    assert Mark.parse(text) is None


@given(st.text(max_size=60))
def test_no_mark_however_odd_stops_a_round(text: str) -> None:
    jobs, ignored = elastic_jobs(a_cluster(a_record(admin_comment=f"ONES1:{text}")))
    assert len(jobs) + len(ignored) == 1


MARKED_4 = {"admin_comment": marked("tasks=4;nodes=1"), "tasks": 4, "tres_per_job": ""}


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, Layout(form="per_job")),
        ({"tres_per_job": "gres/gpu:v100:4"}, Layout(form="per_job", gpu_type="v100")),
        (
            MARKED_4 | {"tres_per_node": "gres/gpu:4"},
            Layout(form="per_node", gpus_per_task=1),
        ),
        (
            MARKED_4 | {"tres_per_node": "gres/gpu:4", "tasks_per_node": 4},
            Layout(form="per_node", gpus_per_task=1, per_node_fixed=4),
        ),
        (
            {
                "admin_comment": marked("tasks=4;nodes=4"),
                "tres_per_job": "",
                "tres_per_node": "gres/gpu:1",
                "nodes_wanted": (4, 4),
            },
            Layout(form="per_node", per_node_fixed=1),
        ),
        (
            MARKED_4 | {"tres_per_task": "cpu=2,gres/gpu:k80=2", "tasks": 2},
            Layout(form="per_task", gpu_type="k80", gpus_per_task=2),
        ),
        (
            MARKED_4 | {"tres_per_task": "gres/gpu=1", "tasks_per_node": 2},
            Layout(form="per_task", gpus_per_task=1, per_node_fixed=2),
        ),
    ],
)
def test_the_form_of_a_request_is_recognised(changes: dict[str, Any], layout: Layout) -> None:
    job = a_record(**changes)
    assert layout_of(job, Mark.read(job.admin_comment)) == layout


AS_SUBMITTED = {"admin_comment": marked("tasks=0;nodes=1"), "tres_per_job": "gres/gpu:4"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": 4}, "its 4 tasks are of Slurm's own reckoning"),
        (
            {"tasks": 4, "tres_per_task": "gres/gpu=1"},
            "asks by --gpus and --gpus-per-task at once",
        ),
        (
            {
                "admin_comment": marked("tasks=4;nodes=1"),
                "tasks": 4,
                "tres_per_task": "gres/gpu:1",
            },
            "asks by --gpus and --gpus-per-task at once",
        ),
    ],
    ids=["per GPU", "per task", "per task, with -n"],
)
def test_tasks_that_could_not_be_kept_are_no_reason_to_guess(
    changes: dict[str, Any], words: str
) -> None:
    """At one GPU, one task per GPU looks like one per node, and no mark would tell them apart."""
    job = a_record(**(AS_SUBMITTED | changes))
    with pytest.raises(ValueError, match=words):
        layout_of(job, Mark.read(job.admin_comment))


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": 1},
        {"tasks": 2, "nodes_wanted": (2, 2)},  # started on two nodes
        {"tasks": 4, "tres_per_node": "gres/gpu:1", "nodes_wanted": (4, 4)},  # reshaped by us
        {"tasks": 4, "tres_per_node": "gres/gpu:1", "nodes_wanted": (2, 2)},  # and gave two back
        {"tasks": 2},  # gave back one of two
    ],
)
def test_one_task_per_node_is_read_as_such_at_every_size(changes: dict[str, Any]) -> None:
    job = a_record(**(AS_SUBMITTED | changes))
    assert layout_of(job, Mark.read(job.admin_comment)).gpus_per_task == PER_NODE


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_ntasks_per_gpu_is_kept_from_size_to_size(gpus: int) -> None:
    now = {"tres_per_job": f"gres/gpu:{gpus}", "tres_per_node": f"gres/gpu:{gpus}", "tasks": gpus}
    job = a_record(**(now | {"admin_comment": marked("tasks=4;nodes=1")}))
    layout = layout_of(job, Mark.read(job.admin_comment))
    assert layout.tasks_per_node(Shape(2, 4)) == 4


def test_one_task_per_gpu_is_remembered_at_one_gpu() -> None:
    """There a job has one task, one node and one GPU: only the mark tells what it was."""
    at_one = {"tres_per_job": "gres/gpu:1", "tres_per_node": "gres/gpu:1", "tasks": 1}
    per_gpu = a_record(**(at_one | {"admin_comment": marked("tasks=4;nodes=1")}))
    per_node = a_record(**(at_one | {"admin_comment": marked("tasks=1;nodes=1")}))
    assert layout_of(per_gpu, Mark.read(per_gpu.admin_comment)).gpus_per_task == 1
    assert layout_of(per_node, Mark.read(per_node.admin_comment)).gpus_per_task == PER_NODE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"admin_comment": marked("tasks=3;nodes=1")}, "3 tasks for 4 GPUs on 1 nodes"),
        ({"tres_per_job": "gres/gpu:a:2,gres/gpu:b:2"}, "several types"),
        ({"tres_per_job": ""}, "asks for no GPUs"),
        ({"features": "[rack1*2&rack2*2]"}, "constraint"),
        ({"partition": "cpu"}, "no GPU node"),
        ({"dependency": "afterok:7(unfulfilled)"}, "waits for afterok:7"),
        ({"admin_comment": "ONES1:sizes=17;request=17;held=1"}, "none of its sizes 17"),
    ],
)
def test_a_waiting_job_that_can_not_be_given_shapes_must_run_as_a_plain_one(
    changes: dict[str, Any], words: str
) -> None:
    record = a_record(**changes)
    assert words in the_reason(record)
    snapshot = a_cluster(record)
    assert to_release(snapshot, elastic_jobs(snapshot)[1], NO_HOLDS) == [1]


def test_a_running_job_that_can_not_be_given_shapes_is_planned_around() -> None:
    job = the_job(running(admin_comment=marked("tasks=3;nodes=1"), tasks=3))
    assert job.placement == Placement.of({"n1": 4})
    assert "3 tasks for 4 GPUs" in job.fixed


def test_a_waiting_job_has_the_shapes_of_its_sizes_on_one_type_of_gpu() -> None:
    job = the_job(a_record())
    assert job.shapes[0] == Shape(1, 1)
    assert Shape(2, 3) in job.shapes
    assert Shape(2, 4) in job.shapes
    assert all(shape.nodes <= 2 for shape in job.shapes), "never over two types"
    assert job.startable
    assert (job.requested, str(job.sizes), job.placement) == (4, "1-16", None)


def test_gpus_per_task_are_spread_over_whole_nodes_only() -> None:
    job = the_job(a_record(**(MARKED_4 | {"tres_per_task": "gres/gpu=1"})))
    assert set(job.shapes) == {Shape(1, 1), Shape(1, 2), Shape(1, 3), Shape(1, 4), Shape(2, 4)}


def test_nodes_follow_type_partition_exclusion_and_features() -> None:
    nvlink = a_node("n2", features=frozenset({"nvlink", "big"}))
    assert the_job(a_record(tres_per_job="gres/gpu:v100:4")).nodes == {"n1", "n2"}
    assert the_job(a_record(excluded_nodes="n[1-3]")).nodes == {"n4"}
    assert the_job(a_record(features="nvlink&big"), n2=nvlink).nodes == {"n2"}
    assert the_job(a_record(features="nvlink|absent"), n2=nvlink).nodes == {"n2"}
    assert the_job(a_record(partition="cpu,gpu")).nodes == set(TYPES)


PER_GPU_8 = {"cpus_per_gpu": "gres/gpu:8", "cpus": 32}
PER_GPU_12G = {"memory_per_gpu": "gres/gpu:12000", "tres": "cpu=4,mem=48000M,gres/gpu=4"}
PER_NODE_20G = {"memory": 20000, "memory_of": "node", "tres": "cpu=1,mem=20000M,node=1"}


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        (PER_GPU_8, 2),
        ({"cpus_per_task": 6, "tasks": 4, "admin_comment": marked("tasks=4;nodes=1")}, 2),
        ({"cpus_per_task": 16, "admin_comment": marked("tasks=1;nodes=1")}, 4),
        (PER_GPU_12G, 2),
        (PER_NODE_20G, 4),
    ],
)
def test_sizes_for_which_no_node_has_the_cpus_or_the_memory_are_none(
    changes: dict[str, Any], most: int
) -> None:
    small = {name: a_node(name, cpus=16, memory=32000) for name in TYPES}
    job = the_job(a_record(**changes), **small)
    assert {shape.gpus_per_node for shape in job.shapes} == set(range(1, most + 1))
    assert job.nodes == set(TYPES)


def test_nodes_that_have_the_cpus_for_none_of_its_sizes_are_not_for_it() -> None:
    poor = {name: a_node(name, cpus=4) for name in ("n1", "n3", "n4")}
    job = the_job(a_record(**PER_GPU_8), **poor, n2=a_node("n2", cpus=32))
    assert job.nodes == {"n2"}
    assert {(shape.nodes, shape.gpus_per_node) for shape in job.shapes} == {
        (1, each) for each in (1, 2, 3, 4)
    }
    nowhere = {name: a_node(name, cpus=4) for name in TYPES}
    assert "none of its sizes" in the_reason(a_record(**PER_GPU_8), **nowhere)


def test_a_job_keeps_the_size_that_it_runs_with_whatever_is_reckoned() -> None:
    record = running(**PER_GPU_8)
    job = the_job(record, **{name: a_node(name, cpus=16) for name in TYPES})
    assert job.placement is not None
    assert {shape.gpus_per_node for shape in job.shapes} == {1, 2, 4}
    assert [shape for shape in job.shapes if shape.gpus_per_node == 4] == [job.placement.shape]


def test_a_job_between_two_states_is_fixed() -> None:
    assert the_job(running(flags=frozenset({"COMPLETING"}))).fixed == "it is completing"
    assert the_job(running(state="SUSPENDED")).fixed == "it is suspended"
    assert "Requeue" in the_job(running(requeue=False)).fixed
    assert the_job(running()).fixed == ""


def test_time_left_counts_from_the_present_start() -> None:
    assert the_job(running()).time_left == 3100.0
    assert the_job(running(time_limit=None)).time_left is None


@pytest.mark.parametrize(
    ("changes", "row", "ours"),
    [
        ({}, None, True),  # as job_submit.lua left it
        ({"admin_comment": "ONES1:sizes=1;request=1;held=0"}, None, False),  # sbatch --hold
        ({"reason": "JobHeldAdmin"}, None, False),
        ({}, Hold(restarts=0, released=True), False),  # held again by its user
        ({"reason": "JobHeldAdmin"}, Hold(restarts=0, released=False), True),
        ({"restarts": 1}, Hold(restarts=0, released=False), True),  # preempted
        ({"restarts": 3}, Hold(restarts=0, released=False), False),  # ran since
        ({"restarts": 3, "reason": "job_requeued_in_held_state"}, None, True),  # database lost
        ({"restarts": 3, "reason": "JobHeldUser"}, None, False),
        ({"reason": "launch failed requeued held"}, Hold(restarts=0, released=False), False),
        ({"held": False}, Hold(restarts=0, released=False), False),
    ],
)
def test_whose_hold_it_is(changes: dict[str, Any], row: Hold | None, ours: bool) -> None:
    record = a_record(**changes)
    # What is written down was begun after a lost database, and after the job was queued.
    holds = Holds(rows={} if row is None else {1: row}, since=1500.0)
    assert held_for_us(record, Mark.parse(record.admin_comment), holds) is ours
    jobs, _ = elastic_jobs(a_cluster(record), holds)
    assert jobs[0].startable is ours


def test_only_jobs_that_slurm_requeued_and_can_not_start_are_stranded() -> None:
    lost = {"held": False, "restarts": 1, "required_nodes": "n1", "reason": "ReqNodeNotAvail"}
    jobs = (
        a_record(1, **lost),
        a_record(2, **lost | {"reason": "BeginTime"}),
        a_record(3, **lost | {"eligible": 2100.0}),
        a_record(4, **lost | {"flags": frozenset({"COMPLETING"})}),
        a_record(5, **lost | {"held": True}),
        a_record(6, **lost | {"restarts": 0}),
        a_record(7, **lost | {"required_nodes": ""}),
        a_record(8, **lost | {"admin_comment": ""}),
        running(id=9, restarts=1, required_nodes="n1"),
    )
    assert stranded(a_cluster(*jobs), ()) == [1]


def test_a_job_that_its_owner_requeued_does_not_go_before_all_others() -> None:
    """Slurm keeps the priority that it was put first with until it is held and released."""
    first = {"held": False, "restarts": 1, "reason": "Resources", "priority": FIRST}
    jobs = (
        a_record(1, **first),
        a_record(2, **first | {"priority": 5000}),
        a_record(3, **first | {"eligible": 2100.0}),
        running(id=4, restarts=1, priority=FIRST),
    )
    assert stranded(a_cluster(*jobs), ()) == [1]


def test_tasks_of_an_array_with_a_limit_stay_while_others_of_it_wait() -> None:
    waits = a_record(9, array_job=9, array_task="3-9%2", held=False)
    tasks = (
        running(id=10, array_job=9, array_task="0"),
        running(id=11, array_job=9, array_task="1", nodes="n2", gpus_on={"n2": 4}),
        a_record(12, array_job=9, array_task="2"),
        running(id=13, array_job=0, nodes="n3", gpus_on={"n3": 4}),
    )
    first, second, third, other = elastic_jobs(a_cluster(waits, *tasks))[0]
    assert first.fixed == second.fixed
    assert "a task that waits would get its place" in first.fixed
    assert not third.startable
    assert other.fixed == ""
    for alone in (tasks, (replace(waits, array_task="3-9"), *tasks)):
        first, _, third, _ = elastic_jobs(a_cluster(*alone))[0]
        assert (first.fixed, third.startable) == ("", True)


def test_only_a_job_that_was_once_ours_and_can_be_handled_is_stranded_in_its_form() -> None:
    unfit = {"held": True, "reason": "BadConstraints", "required_nodes": ""}
    jobs = [a_record(number, **unfit) for number in (1, 2, 3)]
    let_go = Hold(restarts=0, released=True, freed=True)
    holds = Holds(rows={1: let_go, 2: let_go})
    assert stranded(a_cluster(*jobs), (2,), holds) == [1]


def test_gpus_of_jobs_that_are_not_planned_are_taken() -> None:
    mine = running()
    other = running(id=2, admin_comment="ONES1:broken", nodes="n2", gpus_on={"n2": 2})
    used = {"n1": a_node("n1", gpus_used=4), "n2": a_node("n2", gpus_used=3)}
    cluster = a_cluster(mine, other, **used)
    nodes = {node.name: node for node in gpu_nodes(cluster, elastic_jobs(cluster)[0])}
    assert (nodes["n1"].taken, nodes["n2"].taken, nodes["n3"].taken) == (0, 3, 0)
    assert nodes["n1"].switches == ("s1", "s0")
    assert "cpu1" not in nodes


def test_plain_jobs_that_wait_for_gpus_are_counted_and_others_are_not() -> None:
    plain = {"admin_comment": "", "held": False, "reason": "Resources"}
    jobs = (
        a_record(1, **plain),
        a_record(2, **(plain | {"tres_per_job": "", "tres_per_node": "gres/gpu:k80:2"})),
        a_record(3, **(plain | {"reason": "Dependency"})),
        a_record(4, **(plain | {"tres_per_job": ""})),
        a_record(5),
        a_record(6, held=False, reason="Priority"),  # elastic, but Slurm's to start
        a_record(7, held=False, reason="Priority", required_nodes="n1"),  # a move's
    )
    waiting = plain_jobs(a_cluster(*jobs), [])
    assert [(plain.gpus, sorted(plain.nodes)) for plain in waiting] == [
        (4, ["n1", "n2", "n3", "n4"]),
        (2, ["n3", "n4"]),
        (4, ["n1", "n2", "n3", "n4"]),
    ]


def test_jobs_without_gpus_are_planned_for_where_only_gpu_nodes_can_have_them() -> None:
    """Slurm may start the others on cpu1."""
    plain = {"admin_comment": "", "held": False, "reason": "Resources", "tres_per_job": ""}
    jobs = (
        a_record(1, **plain, cpus=12, nodes_wanted=(2, 2), tres="cpu=12,mem=8G,node=2"),
        a_record(2, **(plain | {"partition": "gpu,cpu"})),
        a_record(3, **(plain | {"reason": "Dependency"})),
        a_record(4, **(plain | {"tres_per_job": "gres/gpu:1"})),
    )
    found = a_cluster(*jobs)
    of_its_own = replace(found.nodes["cpu1"], partitions=frozenset({"cpu"}))
    found = replace(found, nodes={**found.nodes, "cpu1": of_its_own})
    (one,) = waiting_without_gpus(found)
    assert (one.id, one.gpus, one.least_nodes) == (1, 0, 2)
    assert one.needs(0) == (6.0, 4096.0)
    assert waiting_without_gpus(found, None, [1]) == []
