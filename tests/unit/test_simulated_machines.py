"""Nodes and slurmctld of the simulated Slurm that fail and come back."""

from __future__ import annotations

import pytest
from simulated_world import a_world, running

from ones.slurm_ext.errors import SlurmUnreachable
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.world import gpus

TWO_NODES = Wants(nodes=(2, 2), tres_per_node="gres/gpu:2")


def test_a_lost_node_is_noticed_late_and_its_job_requeued_for_two_minutes_later() -> None:
    world = a_world()
    number = running(world)
    world.fail_node("n1")
    assert (world.job(number).state, world.runs(number)) == ("RUNNING", False)
    world.step(46)
    record = world.snapshot().jobs[number]
    assert (record.state, record.restarts, record.held) == ("PENDING", 1, False)
    assert world.snapshot().nodes["n1"].states == {"DOWN", "NOT_RESPONDING"}
    assert world.snapshot().nodes["n1"].gpus_used == 0
    world.step(10)
    assert world.job(number).reason == "BeginTime"
    world.step(125)
    assert world.job(number).nodes == ("n2",)
    world.return_node("n1")
    assert world.snapshot().nodes["n1"].states == {"IDLE"}


def test_a_job_that_may_not_be_requeued_ends_with_its_node() -> None:
    world = a_world()
    number = running(world, requeue=False)
    world.take_down("n1")
    assert world.job(number).state == "NODE_FAIL"


def test_with_no_kill_a_job_goes_on_without_a_further_node() -> None:
    world = a_world()
    number = running(world, wants=TWO_NODES, no_kill=True)
    world.take_down("n2")
    record = world.snapshot().jobs[number]
    assert (record.state, record.gpus_on, record.restarts) == ("RUNNING", {"n1": 2}, 0)


def test_no_job_starts_on_a_drained_node_and_those_there_go_on() -> None:
    world = a_world()
    number = running(world)
    world.drain("n1")
    assert world.snapshot().nodes["n1"].states == {"MIXED", "DRAIN"}
    other = running(world)
    assert (world.job(number).state, world.job(other).nodes) == ("RUNNING", ("n2",))
    world.resume_node("n1")
    assert world.job(running(world)).nodes == ("n1",)


def test_a_job_leaves_no_silent_node_before_slurmctld_gives_that_up() -> None:
    world = a_world()
    number = running(world)
    world.fail_node("n1")
    world.by("ones").requeuehold(number)
    world.step(20)
    assert world.job(number).flags == {"COMPLETING"}
    world.step(30)
    record = world.snapshot().jobs[number]
    assert (record.flags, record.held, record.restarts) == (frozenset(), True, 1)


def test_a_node_that_was_rebooted_has_lost_its_jobs() -> None:
    world = a_world()
    number, other = running(world), running(world, wants=gpus(4))
    world.fail_node("n1")
    world.fail_node("n2")
    world.return_node("n1", rebooted=True)
    world.return_node("n2")
    world.step(60)
    assert (world.job(number).restarts, world.job(other).restarts) == (1, 0)


def test_a_job_that_could_not_be_launched_is_held_by_slurm() -> None:
    world = a_world()
    world.spoil_launch("n1")
    number = world.submit("alice", wants=gpus(2))
    world.step(3)
    world.step(3)
    job = world.job(number)
    assert (job.state, job.held_by, job.reason) == (
        "PENDING",
        "slurm",
        "launch failed requeued held",
    )
    assert "DRAIN" in world.snapshot().nodes["n1"].states
    world.by("alice").release(number)
    world.by("alice").update(number, {"StartTime": "now"})
    world.step(3)
    assert world.job(number).nodes == ("n2",)


def test_a_preempted_job_is_put_back_where_it_may_be() -> None:
    world = a_world()
    number, other = running(world), running(world, requeue=False)
    world.preempt(number)
    world.preempt(other)
    assert world.job(number).restarts == 1
    assert world.job(other).state == "PREEMPTED"


def test_nobody_answers_while_slurmctld_is_down_and_what_was_due_is_done_after() -> None:
    world = a_world()
    number, ending = running(world), running(world, seconds=20.0)
    cluster = SimulatedCluster(world)
    world.stop_slurmctld()
    before = world.now
    with pytest.raises(SlurmUnreachable):
        cluster.snapshot()
    assert world.now == before + world.settings.silence
    with pytest.raises(SlurmUnreachable):
        world.by("alice").hold(number)
    assert cluster.runs([number])  # slurmdbd is there
    happened: list[float] = []
    world.at(world.now + 5, lambda: happened.append(world.now))
    world.step(60)
    assert happened  # jobs and people do not wait for slurmctld
    assert world.job(ending).state == "RUNNING"
    world.start_slurmctld()
    world.step(1)
    assert world.job(ending).state == "COMPLETED"
    assert world.job(number).state == "RUNNING"
