from __future__ import annotations

from dataclasses import replace

import pytest
from fake_slurm import MARK, FakeSlurm, a_record

from ones.policies.model import Placement
from ones.slurm_ext.actions import (
    GiveBack,
    Hold,
    Release,
    Request,
    RequeueHold,
    Reshape,
    Revive,
    Signal,
)
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable

TWO_BY_TWO = Placement.of({"n1": 2, "n2": 2})


def running(**changes: object) -> FakeSlurm:
    job = a_record(state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4}, started=1500.0)
    return FakeSlurm(replace(job, **changes))


def held(**changes: object) -> FakeSlurm:
    return FakeSlurm(a_record(**changes))


def test_a_job_without_steps_is_signalled_in_its_script() -> None:
    slurm = running()
    Actuator(slurm.cluster).perform(Signal(1, 0, "USR1"))
    assert slurm.written == ["scancel --ctld --signal=USR1 --batch 1"]


def test_a_job_with_steps_is_signalled_in_these_alone() -> None:
    slurm = running()
    slurm.steps = ("batch", "extern", "0")
    Actuator(slurm.cluster).perform(Signal(1, 0, "USR2"))
    assert slurm.written == ["scancel --ctld --signal=USR2 1"]


@pytest.mark.parametrize("action", [Signal(1, 0, "USR1"), RequeueHold(1, 0), Hold(1, 0)])
def test_a_job_that_did_not_opt_in_is_never_touched(action: Signal | RequeueHold | Hold) -> None:
    slurm = running(admin_comment="a site's own comment")
    with pytest.raises(JobChanged, match="not marked"):
        Actuator(slurm.cluster).perform(action)
    assert slurm.written == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"restarts": 1}, "restarted 1 times, not 0"),
        ({"state": "COMPLETED"}, "completed"),
        ({"flags": frozenset({"COMPLETING"})}, "running completing"),
        ({"state": "PENDING"}, "pending"),
    ],
)
def test_a_job_that_changed_since_the_decision_is_left_alone(
    changes: dict[str, object], words: str
) -> None:
    slurm = running(**changes)
    for action in (Signal(1, 0, "USR1"), RequeueHold(1, 0)):
        with pytest.raises(JobChanged, match=words):
            Actuator(slurm.cluster).perform(action)
    assert slurm.written == []


def test_a_job_that_slurm_forgot_is_reported_so() -> None:
    slurm = running()
    slurm.known = False
    with pytest.raises(JobChanged, match="not known"):
        Actuator(slurm.cluster).perform(RequeueHold(1, 0))


def test_a_requeued_job_comes_back_held() -> None:
    slurm = running()
    job = Actuator(slurm.cluster).perform(RequeueHold(1, 0))
    assert job is not None
    assert (job.state, job.held, job.restarts) == ("PENDING", True, 1)
    assert slurm.written == ["scontrol requeuehold incomplete 1"]


def test_a_job_that_slurm_takes_for_failed_comes_back_held() -> None:
    slurm = running(state="FAILED")
    job = Actuator(slurm.cluster).perform(Revive(1, 0))
    assert job is not None
    assert (job.state, job.held, job.restarts) == ("PENDING", True, 1)
    assert slurm.written == ["scontrol requeuehold 1"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "RUNNING"}, "is running"),
        ({"state": "CANCELLED"}, "is cancelled"),
        ({"state": "FAILED", "flags": frozenset({"COMPLETING"})}, "is failed completing"),
    ],
)
def test_only_a_job_that_has_failed_is_put_back(changes: dict[str, object], words: str) -> None:
    slurm = running(**changes)
    with pytest.raises(JobChanged, match=words):
        Actuator(slurm.cluster).perform(Revive(1, 0))
    assert slurm.written == []


def test_a_shape_is_written_in_one_update_after_the_job_is_locked() -> None:
    slurm = held()
    job = Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))
    assert job is not None
    assert slurm.written == [
        "scontrol hold 1",
        "scontrol update JobId=1 NumNodes=2-2 NumTasks=2 NumCPUs=2 MinCPUsNode=1"
        " TresPerNode=gres/gpu:2 TresPerJob=gres/gpu:4 ReqNodeList=n[1-2] StartTime=now",
    ]


@pytest.mark.parametrize(
    ("changes", "mark", "fields"),
    [
        (
            {"tres_per_job": "", "tres_per_node": "gres/gpu:v100:4,gres/nvme:1", "tasks": 4},
            "tasks=4;nodes=1",
            "NumNodes=2-2 NumTasks=4 NumCPUs=4 MinCPUsNode=2"
            " TresPerNode=gres/nvme:1,gres/gpu:v100:2",
        ),
        (
            {"tres_per_job": "gres/gpu:v100:4", "cpus_per_task": 8},
            "tasks=1;nodes=1",
            "NumNodes=2-2 NumTasks=2 NumCPUs=16 MinCPUsNode=8"
            " TresPerNode=gres/gpu:v100:2 TresPerJob=gres/gpu:v100:4",
        ),
        (
            {"tres_per_job": "", "tres_per_task": "cpu=3,gres/gpu=1", "cpus_per_task": 3},
            "tasks=4;nodes=1",
            "NumNodes=2-2 NumTasks=4 NumCPUs=12",
        ),
    ],
)
def test_the_shape_keeps_the_form_the_type_and_the_tasks_of_the_request(
    changes: dict[str, object], mark: str, fields: str
) -> None:
    slurm = held(admin_comment=f"ONES1:sizes=1-8;request=4;held=1;{mark}", **changes)
    Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))
    pinned = f"scontrol update JobId=1 {fields} ReqNodeList=n[1-2] StartTime=now"
    assert slurm.written == ["scontrol hold 1", pinned]


def test_cpus_asked_per_gpu_follow_the_gpus() -> None:
    slurm = held()
    slurm.cpus_per_tres = "gres/gpu:6"
    Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))
    assert "NumCPUs=24 MinCPUsNode=12" in slurm.written[1]


def test_excluded_nodes_are_the_users_and_stay() -> None:
    slurm = held(excluded_nodes="n4")
    Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))
    assert "ExcNodeList" not in slurm.written[1]


def test_a_job_that_starts_under_our_hands_is_not_reshaped() -> None:
    slurm = held()

    def owner_is_quicker(command: str) -> None:
        if command == "scontrol hold 1":
            slurm.user_releases()
            slurm.pass_time(1)

    slurm.before = owner_is_quicker
    with pytest.raises(JobChanged, match="running"):
        Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))
    assert slurm.written == ["scontrol hold 1", "scontrol release 1"]
    assert slurm.job.state == "RUNNING"
    assert not slurm.job.held, "its next requeue would hold it for ever"


def test_a_shape_that_its_tasks_do_not_fit_is_refused() -> None:
    mark = "ONES1:sizes=1-8;request=4;held=1;tasks=2;nodes=1"
    slurm = held(tres_per_job="", tres_per_task="gres/gpu:2", tasks=2, admin_comment=mark)
    with pytest.raises(JobChanged, match="tasks would not fit"):
        Actuator(slurm.cluster).perform(Reshape(1, 0, Placement.of({"n1": 3})))
    assert slurm.written == []


def test_an_update_that_slurm_answers_but_does_not_do_is_an_error() -> None:
    slurm = held()
    slurm._update = lambda fields: None  # type: ignore[method-assign]
    with pytest.raises(SlurmError, match=r"Slurm agreed, but it has nodes .1, 1., not .2, 2."):
        Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO))


def test_release_is_safe_to_repeat() -> None:
    slurm = held()
    for _ in range(2):
        job = Actuator(slurm.cluster).perform(Release(1, 0))
        assert job is not None
        assert not job.held
    assert slurm.written == ["scontrol release 1"]


def test_a_job_that_is_held_again_loses_its_pinned_nodes() -> None:
    slurm = held(held=False, required_nodes="n[1-2]")
    job = Actuator(slurm.cluster).perform(Hold(1, 0))
    assert job is not None
    assert (job.held, job.required_nodes) == (True, "")
    assert slurm.locked
    assert MARK in job.admin_comment


def test_a_controller_that_is_down_is_not_taken_for_a_job_that_is_gone() -> None:
    slurm = running()

    def goes_down(command: str) -> None:
        slurm.down = slurm.down or "requeuehold" in "".join(slurm.written)

    slurm.before = goes_down
    with pytest.raises(SlurmUnreachable):
        Actuator(slurm.cluster).perform(RequeueHold(1, 0))
    assert slurm.job.held


def test_cpus_that_were_left_out_are_asked_for_by_task() -> None:
    slurm = held()
    Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO, Request(cpus=3)))
    assert (
        "NumNodes=2-2 NumTasks=2 NumCPUs=6 MinCPUsNode=3 CpusPerTask=3 TresPerNode=gres/gpu:2"
        in slurm.written[1]
    )


def test_memory_that_slurm_agreed_to_but_did_not_take_is_a_failure() -> None:
    slurm = held()
    with pytest.raises(SlurmError, match="asks for 0 MiB of each node, not 2000"):
        Actuator(slurm.cluster).perform(Reshape(1, 0, TWO_BY_TWO, Request(memory=2000)))


def on_three(**changes: object) -> FakeSlurm:
    nodes = {"n1": 2, "n2": 2, "n3": 2}
    return running(nodes="n[1-3]", gpus_on=nodes, batch_host="n1", **changes)


def test_nodes_are_given_back_by_naming_those_that_stay() -> None:
    slurm = on_three()
    after = Actuator(slurm.cluster).perform(GiveBack(1, 0, ("n2",)))
    assert slurm.written == ["scontrol update JobId=1 NodeList=n[1,3]"]
    assert after is not None
    assert after.nodes == "n[1,3]"
    Actuator(slurm.cluster).perform(GiveBack(1, 0, ("n2",)))  # done already
    assert len(slurm.written) == 1


@pytest.mark.parametrize(
    ("changes", "nodes", "words"),
    [
        ({}, ("n1",), "can't give back its first node n1"),
        ({}, ("n1", "n2", "n3"), "can't give back its first node n1"),
        ({"restarts": 1}, ("n2",), "restarted 1 times, not 0"),
        ({"state": "PENDING"}, ("n2",), "pending"),
        ({"flags": frozenset({"COMPLETING"})}, ("n2",), "running completing"),
        ({"admin_comment": ""}, ("n2",), "not marked"),
    ],
)
def test_the_first_node_and_those_of_another_run_are_not_given_back(
    changes: dict[str, object], nodes: tuple[str, ...], words: str
) -> None:
    slurm = on_three(**changes)
    with pytest.raises(JobChanged, match=words):
        Actuator(slurm.cluster).perform(GiveBack(1, 0, nodes))
    assert slurm.written == []


def test_a_node_that_slurm_only_says_it_has_taken_back_is_an_error() -> None:
    slurm = on_three()
    slurm.deaf = True
    with pytest.raises(SlurmError, match=r"Slurm agreed, but the job has n\[1-3\]"):
        Actuator(slurm.cluster).perform(GiveBack(1, 0, ("n2",)))
