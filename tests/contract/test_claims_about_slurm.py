"""What the simulated Slurm says of Slurm, held against the real one in the same words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from any_slurm import AnySlurm, quiet
from slurm_jobs import Slurm, slurm_with_a_heartbeat

__all__ = ["quiet", "slurm_with_a_heartbeat"]  # the fixtures `quiet` and `slurm`
AGREED = ""


def running(slurm: AnySlurm, *options: str, user: str = "alice") -> int:
    number = slurm.submit(*options, user=user)
    slurm.wait(number, "RUNNING")
    return number


def scontrol(slurm: AnySlurm, number: int, *words: str, by: str = "root") -> str:
    return slurm.by(by, "scontrol", *words, str(number))


def update(slurm: AnySlurm, number: int, *fields: str, by: str = "root") -> str:
    return slurm.by(by, "scontrol", "update", f"JobId={number}", *fields)


def reason_is(slurm: AnySlurm, number: int, reason: str) -> None:
    what = f"job {number} waits for {reason}"
    slurm.eventually(lambda: slurm.facts(number).reason == reason, within=15, what=what)


def is_out(slurm: AnySlurm, number: int) -> None:
    """Once nothing of its last run is left, a job has no nodes."""
    slurm.eventually(lambda: slurm.facts(number).nodes == "", within=15, what="it is out")


def test_a_hold_of_a_running_job_strikes_when_it_is_requeued(quiet: AnySlurm) -> None:
    number = running(quiet, "--gpus=1")
    assert scontrol(quiet, number, "hold") == AGREED
    assert (quiet.state(number), quiet.facts(number).held) == ("RUNNING", True)
    assert scontrol(quiet, number, "requeue") == AGREED
    is_out(quiet, number)
    job = quiet.facts(number)
    assert (job.state, job.held, job.reason) == ("PENDING", True, "JobHeldAdmin")
    assert "Access/permission denied" in scontrol(quiet, number, "release", by="alice")


def test_an_owner_can_release_what_a_requeue_holds_and_no_administrators_hold(
    quiet: AnySlurm,
) -> None:
    number = running(quiet, "--gpus=1")
    assert scontrol(quiet, number, "requeuehold", "incomplete") == AGREED
    is_out(quiet, number)
    job = quiet.facts(number)
    assert (job.state, job.held, job.restarts) == ("PENDING", True, 1)
    assert job.reason == "job requeued in held state"
    assert scontrol(quiet, number, "hold") == AGREED
    assert quiet.facts(number).reason == "job requeued in held state"
    assert "Access/permission denied" in scontrol(quiet, number, "release", by="alice")
    assert scontrol(quiet, number, "hold", by="alice") == AGREED  # and changes nothing
    assert "Access/permission denied" in scontrol(quiet, number, "release", by="alice")
    assert scontrol(quiet, number, "uhold") == AGREED
    assert scontrol(quiet, number, "release", by="alice") == AGREED
    assert not quiet.facts(number).held


def test_an_administrators_hold_takes_the_place_of_the_owners(quiet: AnySlurm) -> None:
    number = quiet.submit("--gpus=1", "--hold")
    assert quiet.facts(number).reason == "JobHeldUser"
    assert scontrol(quiet, number, "hold") == AGREED
    assert quiet.facts(number).reason == "JobHeldAdmin"
    assert "Access/permission denied" in scontrol(quiet, number, "release", by="alice")
    assert scontrol(quiet, number, "release") == AGREED
    quiet.wait(number, "RUNNING")


def test_a_requeue_of_a_pending_job_does_nothing(quiet: AnySlurm) -> None:
    number = quiet.submit("--gpus=1", "--hold")
    assert scontrol(quiet, number, "requeuehold", "incomplete") == AGREED
    assert quiet.facts(number).reason == "JobHeldUser"
    assert f"Job is pending execution for job {number}" in scontrol(quiet, number, "requeue")
    assert quiet.facts(number).restarts == 0


def test_a_requeued_job_begins_two_minutes_late_but_for_an_update(quiet: AnySlurm) -> None:
    number = running(quiet, "--gpus=1")
    assert scontrol(quiet, number, "requeue") == AGREED
    is_out(quiet, number)
    reason_is(quiet, number, "BeginTime")
    assert scontrol(quiet, number, "release") == AGREED
    reason_is(quiet, number, "BeginTime")
    time.sleep(1)  # in the second in which its last run was stopped, the next one would fail
    assert update(quiet, number, "StartTime=now") == AGREED
    quiet.wait(number, "RUNNING")
    assert quiet.facts(number).restarts == 1


@pytest.fixture
def told_to_wait_shortly(slurm: Slurm) -> Iterator[Slurm]:
    """Slurm with SchedulerParameters=requeue_delay=3 besides."""
    conf = "/etc/slurm/slurm.conf"
    slurm.clean()
    slurm.root("cp", "-p", conf, f"{conf}.before")
    slurm.root("sed", "-i", "/^SchedulerParameters/s/$/,requeue_delay=3/", conf)
    slurm.cluster.reconfigure()
    yield slurm
    slurm.root("mv", f"{conf}.before", conf)
    slurm.cluster.reconfigure()
    slurm.clean()


@pytest.mark.cluster
def test_slurm_may_be_told_how_long_a_requeued_job_waits(told_to_wait_shortly: Slurm) -> None:
    slurm = told_to_wait_shortly
    number = running(slurm, "--gpus=1")
    assert scontrol(slurm, number, "requeue") == AGREED
    reason_is(slurm, number, "BeginTime")
    job = slurm.job(number)
    waits = job["eligible_time"]["number"] - job["submit_time"]["number"]
    assert waits < 10 if slurm.requeue_delay else waits > 100


def test_an_ended_job_is_not_touched_but_revived_by_a_requeue(quiet: AnySlurm) -> None:
    number = running(quiet, "--gpus=1")
    assert quiet.by("alice", "scancel", str(number)) == AGREED
    quiet.wait(number, "CANCELLED")
    for words in (scontrol(quiet, number, "hold"), update(quiet, number, "NumNodes=1-1")):
        assert f"Job has already finished for job {number}" in words
    assert scontrol(quiet, number, "requeuehold", "incomplete") == AGREED
    assert quiet.state(number) == "CANCELLED"
    assert scontrol(quiet, number, "requeue") == AGREED
    quiet.wait(number, "PENDING")
    assert quiet.facts(number).restarts == 1


def test_a_job_that_failed_is_put_back_held_by_a_requeue_of_jobs_that_have_ended(
    quiet: AnySlurm,
) -> None:
    number = running(quiet, "--gpus=1")
    quiet.fail(number)
    quiet.wait(number, "FAILED")
    assert scontrol(quiet, number, "requeuehold", "incomplete", by="ones") == AGREED
    assert quiet.state(number) == "FAILED"
    assert scontrol(quiet, number, "requeuehold", by="ones") == AGREED
    quiet.wait(number, "PENDING")
    facts = quiet.facts(number)
    assert (facts.restarts, facts.held, facts.nodes) == (1, True, "")
    assert scontrol(quiet, number, "release", by="alice") == AGREED
    assert update(quiet, number, "StartTime=now", by="ones") == AGREED
    quiet.wait(number, "RUNNING")


def test_others_may_do_nothing_to_a_job(quiet: AnySlurm) -> None:
    number = running(quiet, "--gpus=1")
    assert "Invalid user id for job" in scontrol(quiet, number, "hold", by="bob")
    assert "Invalid user id for job" in update(quiet, number, "ReqNodeList=n1", by="bob")
    assert "Access/permission denied" in scontrol(quiet, number, "requeue", by="bob")
    assert "Access/permission denied" in quiet.by("bob", "scancel", str(number))
    assert "Access/permission denied" in update(quiet, number, "AdminComment=x", by="alice")
    assert quiet.state(number) == "RUNNING"


def test_an_operator_writes_the_comment_of_a_job_and_others_do_not(quiet: AnySlurm) -> None:
    runs = running(quiet, "--gpus=1")
    waits = quiet.submit("--gpus=1", "--hold")
    for number in (runs, waits):
        before = quiet.facts(number)
        said = "ONES: 62% done, 4 GPUs, next 8"
        assert update(quiet, number, f"Comment={said}", by="ones") == AGREED
        assert quiet.facts(number) == replace(before, comment=said)
        assert "Invalid user id for job" in update(quiet, number, "Comment=x", by="bob")
    assert quiet.facts(runs).comment == said


def test_a_job_that_is_not_known_can_be_cancelled_and_nothing_else(quiet: AnySlurm) -> None:
    assert quiet.by("root", "scancel", "99999") == AGREED
    assert "Invalid job id specified for job 99999" in scontrol(quiet, 99999, "hold")
    assert "Invalid job id specified" in update(quiet, 99999, "NumNodes=1")


def test_a_signal_that_slurm_refuses_is_seen_and_one_to_a_job_that_has_ended_is_nothing(
    quiet: AnySlurm,
) -> None:
    runs = running(quiet, "--gpus=1")
    assert quiet.signal("ones", runs) == AGREED
    assert "Access/permission denied" in quiet.signal("bob", runs)
    waits = quiet.submit("--gpus=1", "--hold")
    assert "Job can not be altered now" in quiet.signal("ones", waits)
    assert quiet.by("alice", "scancel", str(runs)) == AGREED
    quiet.wait(runs, "CANCELLED")
    assert quiet.signal("ones", runs) == quiet.signal("ones", 99999) == AGREED


def test_a_running_job_gives_nodes_back_but_not_its_first(quiet: AnySlurm) -> None:
    number = running(quiet, "-N2", "--gpus-per-node=1")
    assert quiet.facts(number).nodes == "n[1-2]"
    assert "Invalid node name specified" in update(quiet, number, "NodeList=n2")
    # Slurm tells a job's records apart by the second of submission or resize: one has one record.
    time.sleep(1)
    assert update(quiet, number, "NodeList=n1") == AGREED
    assert (quiet.facts(number).nodes, quiet.facts(number).gres) == ("n1", ["gpu:v100:1"])
    quiet.eventually(
        lambda: any(run.before for run in quiet.runs(number)), within=15, what="the accounting"
    )
    (run,) = quiet.runs(number)
    assert (run.nodes, run.gpus, [(held.nodes, held.gpus) for held in run.before]) == (
        "n1",
        1,
        [("n[1-2]", 2)],
    )


def test_a_shape_for_a_running_job_is_refused_and_takes_nodes_all_the_same(
    quiet: AnySlurm,
) -> None:
    number = running(quiet, "-N2", "--gpus-per-node=1")
    said = update(quiet, number, "NumNodes=1-1", "NumTasks=1", "ReqNodeList=n1", "StartTime=now")
    assert f"Job is no longer pending execution for job {number}" in said
    assert (quiet.state(number), quiet.facts(number).nodes) == ("RUNNING", "n1")


def test_a_shape_that_no_node_has_is_held_by_slurm_until_it_changes(quiet: AnySlurm) -> None:
    number = quiet.submit("--gpus=1", "--hold")
    shape = ("NumNodes=1-1", "NumTasks=1", "TresPerNode=gres/gpu:{0}", "TresPerJob=gres/gpu:{0}")
    assert update(quiet, number, *(field.format(9) for field in shape)) == AGREED
    assert scontrol(quiet, number, "release") == AGREED
    reason_is(quiet, number, "BadConstraints")
    assert quiet.facts(number).held
    assert update(quiet, number, *(field.format(1) for field in shape)) == AGREED
    quiet.wait(number, "RUNNING")


def test_bad_words_in_an_update_change_nothing(quiet: AnySlurm) -> None:
    number = quiet.submit("--gpus=1", "--hold")
    for field, words in (
        ("ReqNodeList=nx", "Invalid node name specified"),
        ("Partition=foo", "Invalid partition name specified"),
        ("Account=foo", "Invalid account or account/partition combination specified"),
        ("TresPerNode=gres/gpu:v100:1", "Invalid GRES specification"),
    ):
        assert words in update(quiet, number, field)
    assert (quiet.facts(number).required, quiet.facts(number).tres_per_node) == ("", "")


def test_a_job_pinned_to_a_node_without_cpus_waits_for_resources_and_blocks_nobody(
    quiet: AnySlurm,
) -> None:
    running(quiet, "-w", "n1", "-c16", user="bob")
    number = quiet.submit("--gpus=1", "-w", "n1")
    reason_is(quiet, number, "Resources")
    running(quiet, "--gpus=1")


def test_a_suspended_job_keeps_its_gpus_and_shows_as_held(quiet: AnySlurm) -> None:
    number = running(quiet, "--gpus=2")
    by_owner = scontrol(quiet, number, "suspend", by="alice")
    if quiet.owners_suspend:
        assert by_owner == AGREED
    else:
        assert "Access/permission denied" in by_owner
        assert scontrol(quiet, number, "suspend") == AGREED
    job = quiet.facts(number)
    assert (job.state, job.held, job.gres) == ("SUSPENDED", True, ["gpu:v100:2"])
    assert scontrol(quiet, number, "resume") == AGREED
    assert not quiet.facts(number).held
    assert "Job is not suspended" in scontrol(quiet, number, "resume")
