"""The simulated Slurm as onesd sees it, and the gate at which calls go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from simulated_world import a_world

from ones.policies.model import Placement
from ones.slurm_ext.actions import GiveBack, Release, RequeueHold, Reshape
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.cluster import Cluster, NodeSize
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.gate import (
    PASS,
    Altered,
    Call,
    Hang,
    Late,
    Lose,
    Refuse,
    Stale,
    Twice,
    Verdict,
)
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.world import World, gpus


@dataclass
class Once:
    """Does this to the next call of this name."""

    name: str
    verdict: Verdict
    calls: list[Call] = field(default_factory=list)

    def judge(self, call: Call) -> Verdict:
        self.calls.append(call)
        if call.name != self.name:
            return PASS
        self.name = ""
        return self.verdict


def held(world: World) -> int:
    return world.submit("alice", wants=gpus(4), elastic="1-8")


def at_the_gate(world: World, name: str, verdict: Verdict) -> tuple[Cluster, Once]:
    gate = Once(name, verdict)
    return SimulatedCluster(world, gate), gate


def test_a_job_is_moved_by_the_actuator_and_nothing_is_lost() -> None:
    world = a_world()
    number = held(world)
    actuator = Actuator(SimulatedCluster(world))
    for restarts, target in enumerate(({"n1": 4}, {"n2": 2, "n3": 2}, {"n4": 1})):
        if restarts:
            actuator.perform(RequeueHold(number, restarts - 1))
            world.step(3)
        actuator.perform(Reshape(number, restarts, Placement.of(target)))
        actuator.perform(Release(number, restarts))
        world.step(3)
        assert world.snapshot().jobs[number].gpus_on == target
    runs = SimulatedCluster(world).runs([number])
    assert [(run.ordinal, run.state, run.gpus) for run in runs] == [
        (0, "REQUEUED", 4),
        (1, "REQUEUED", 4),
        (2, "RUNNING", 1),
    ]


def test_what_a_run_gave_back_is_in_the_accounting_a_moment_later() -> None:
    world = a_world()
    world.new_jobs_are_held(lambda: False)
    wants = Wants(nodes=(2, 2), tres_per_node="gres/gpu:2")
    number = world.submit("alice", wants=wants, elastic="1-8")
    world.step(10)
    cluster = SimulatedCluster(world)
    Actuator(cluster).perform(GiveBack(number, 0, ("n2",)))
    assert cluster.runs([number])[0].gpus == 4
    world.step(2)
    (run,) = cluster.runs([number])
    assert (run.gpus, run.nodes, [(part.gpus, part.nodes) for part in run.before]) == (
        2,
        "n1",
        [(4, "n[1-2]")],
    )


def test_the_same_snapshot_is_served_until_something_changes() -> None:
    world = a_world()
    number = held(world)
    world.step(5)
    cluster = SimulatedCluster(world)
    first, second = cluster.snapshot(), cluster.snapshot()
    assert first.jobs is second.jobs and first.nodes is second.nodes
    cluster.hold(number)
    third = cluster.snapshot()
    assert third.jobs[number].reason == "JobHeldAdmin"
    assert first.jobs[number].reason == "JobHeldUser"


def test_what_is_refused_is_not_done() -> None:
    world = a_world()
    number = held(world)
    cluster, gate = at_the_gate(world, "hold", Refuse("Unspecified error"))
    with pytest.raises(SlurmError, match="Unspecified error"):
        cluster.hold(number)
    assert world.job(number).held_by == "submission"
    assert gate.calls == [Call("hold", (number,), True)]


def test_what_is_lost_is_done() -> None:
    world = a_world()
    number = held(world)
    cluster, _ = at_the_gate(world, "release", Lose())
    with pytest.raises(SlurmUnreachable):
        cluster.release(number)
    assert not world.job(number).held


def test_what_is_late_strikes_later_whatever_has_happened_since() -> None:
    world = a_world()
    number = held(world)
    cluster, _ = at_the_gate(world, "hold", Late(60.0, waited=20.0))
    before = world.now
    with pytest.raises(SlurmUnreachable):
        cluster.hold(number)
    assert world.now == before + 20
    cluster.release(number)
    world.step(10)
    assert world.job(number).state == "RUNNING"
    world.step(35)
    assert (world.job(number).held, world.job(number).held_by) == (True, "ones")


def test_what_hangs_takes_its_time_and_is_not_done() -> None:
    world = a_world()
    number = held(world)
    cluster, _ = at_the_gate(world, "release", Hang(20.0))
    before = world.now
    with pytest.raises(SlurmUnreachable):
        cluster.release(number)
    assert (world.now, world.job(number).held) == (before + 20, True)


def test_what_is_done_twice_is_answered_once() -> None:
    world = a_world()
    world.new_jobs_are_held(lambda: False)
    number = held(world)
    world.step(5)
    cluster, _ = at_the_gate(world, "requeue_hold", Twice())
    cluster.requeue_hold(number)
    world.step(3)
    assert world.job(number).restarts == 1


def test_a_snapshot_may_be_stale_or_altered() -> None:
    world = a_world()
    number = held(world)
    cluster, gate = at_the_gate(world, "", PASS)
    old = cluster.snapshot()
    cluster.hold(number)
    world.step(1)
    gate.name, gate.verdict = "snapshot", Stale()
    stale = cluster.snapshot()
    assert (stale.jobs, stale.taken) == (old.jobs, world.now)
    gate.name = "snapshot"
    gate.verdict = Altered(lambda found: replace(found, jobs={}))
    assert cluster.snapshot().jobs == {}
    assert cluster.snapshot().jobs[number].reason == "JobHeldAdmin"


def test_details_sizes_and_operators_are_read() -> None:
    world = a_world()
    wants = gpus(2, memory=4000, cpus_per_gpu=3)
    number = world.submit("alice", wants=wants, steps=True, memory_used=300.0, seconds=20.0)
    cluster = SimulatedCluster(world)
    details = cluster.job(number)
    assert details is not None
    assert (details.memory_per_node, details.cpus_per_gpu) == (4000, 3)
    assert cluster.job(99) is None
    assert not cluster.has_steps(number)
    world.step(3)
    assert cluster.has_steps(number)
    assert cluster.node_sizes()["n1"] == NodeSize(cpus=16, memory=32000)
    assert cluster.operators() == {"ones", "root"}
    world.step(60)
    (usage,) = cluster.usage([number])
    assert (usage.cpus, usage.memory, usage.memory_asked) == (6, 300.0, 4000.0)
