"""Whatever people and machines do, the simulated Slurm keeps its books."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from simulated_world import a_world

from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.shards import gpus_held
from ones.slurm_ext.simulated.job import ALIVE, Wants
from ones.slurm_ext.simulated.settings import Qos
from ones.slurm_ext.simulated.world import World, gpus

WANTS = (
    gpus(1),
    gpus(4),
    gpus(6, nodes=(2, 2)),
    Wants(tres_per_node="gres/gpu:2", nodes=(1, 3)),
    Wants(tres_per_node="gres/shard:1"),
    Wants(tres_per_task="gres/gpu:1", tasks=3, memory=9000),
    Wants(cpus_per_task=12),
)
PEOPLE = ("alice", "bob", "root", "ones")


def something_happens(world: World, rng: Random) -> None:
    number = rng.choice([*world.state.jobs, 12345])
    person = world.by(rng.choice(PEOPLE))
    node = rng.choice([*world.state.nodes])
    shape = {
        "NumNodes": "1-1",
        "ReqNodeList": node,
        "TresPerNode": "gres/gpu:2",
        "StartTime": "now",
    }
    deeds = {
        "hold": lambda: person.hold(number),
        "uhold": lambda: person.uhold(number),
        "release": lambda: person.release(number),
        "requeue": lambda: person.requeue(number),
        "requeuehold": lambda: person.requeuehold(number, incomplete=rng.random() < 0.8),
        "suspend": lambda: person.suspend(number),
        "resume": lambda: person.resume(number),
        "cancel": lambda: person.cancel(number),
        "shrink": lambda: person.update(number, {"NodeList": "n1"}),
        "shape": lambda: person.update(number, shape),
        "finish": lambda: world.finish(number, rng.choice([0, 1, "OUT_OF_MEMORY"])),
        "preempt": lambda: number in world.state.jobs and world.preempt(number),
        "fail node": lambda: world.fail_node(node),
        "node down": lambda: world.take_down(node),
        "return node": lambda: world.return_node(node, rebooted=rng.random() < 0.5),
        "drain": lambda: world.drain(node),
        "resume node": lambda: world.resume_node(node),
        "spoil": lambda: world.spoil_launch(node),
        "limit": lambda: world.limit(Qos(gpus_per_user=rng.choice([None, 3]))),
        "slurmctld": world.start_slurmctld if world.state.down else world.stop_slurmctld,
    }
    with suppress(SlurmError):
        deeds[rng.choice([*deeds])]()


def check(world: World) -> None:
    """Who holds what, told by the jobs and by the nodes, is the same; and no held job runs up."""
    snapshot = world.snapshot()
    by_job: Counter[tuple[str, int]] = Counter()
    for job in world.state.jobs.values():
        assert job.record() == job._reported()
        assert job.parts == {} or job.state in ALIVE or job.flags
        assert bool(job.held) == bool(job.held_by) or job.state not in ALIVE
        for name, part in job.parts.items():
            assert job.id in world.state.nodes[name].jobs
            by_job.update((name, index) for index in part.gpus)
    assert not by_job or max(by_job.values()) == 1
    completing = any(job.flags == {"COMPLETING"} for job in world.state.jobs.values())
    held = gpus_held(snapshot.jobs.values())
    for name, node in world.state.nodes.items():
        parts = [job.parts[name] for job in world.state.jobs.values() if name in job.parts]
        assert node.cpus == node.spec.cpus - sum(part.cpus for part in parts) >= 0
        assert node.memory == node.spec.memory - sum(part.memory for part in parts) >= 0
        assert len(node.jobs) == len(parts)
        used = snapshot.nodes[name].gpus_used
        assert used == held.get(name, 0) or (completing and used >= held.get(name, 0))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_what_is_held_adds_up(seed: int) -> None:
    rng = Random(seed)
    world = a_world(seed=seed, min_job_age=60.0, last_id=60)
    world.new_jobs_are_held(lambda: rng.random() < 0.5)
    for _ in range(600):
        if rng.random() < 0.3:
            with suppress(SlurmError):
                world.submit(
                    rng.choice(("alice", "bob")),
                    wants=rng.choice(WANTS),
                    elastic=rng.choice((None, "1-8")),
                    seconds=rng.uniform(1, 300),
                    time_limit=rng.choice((60.0, 600.0)),
                    requeue=rng.random() < 0.8,
                    no_kill=rng.random() < 0.3,
                    deaf=rng.random() < 0.2,
                )
        something_happens(world, rng)
        world.step(rng.choice((0.05, 1.0, 20.0)))
        check(world)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_adds_up_when_slurmctld_goes_back_to_what_it_saved(seed: int) -> None:
    rng = Random(seed)
    world = a_world(seed=seed, min_job_age=60.0, last_id=60)
    saved = world.save_state()
    for _ in range(400):
        if rng.random() < 0.5:
            with suppress(SlurmError):
                world.submit("alice", wants=rng.choice(WANTS), seconds=rng.uniform(1, 60))
        if rng.random() < 0.1:
            saved = world.save_state()
        something_happens(world, rng)
        world.step(rng.choice((0.05, 1.0, 5.0)))
        if rng.random() < 0.05:
            world.stop_slurmctld()
            world.step(rng.choice((1.0, 30.0)))
            world.start_slurmctld(saved)
            saved = world.save_state()
        check(world)


def test_once_all_is_well_again_all_jobs_that_nobody_holds_come_to_an_end() -> None:
    rng = Random(7)
    world = a_world(seed=7)
    for _ in range(400):
        with suppress(SlurmError):
            world.submit("alice", wants=rng.choice(WANTS), seconds=30.0)
        something_happens(world, rng)
        world.step(1.0)
    world.start_slurmctld()
    world.limit(Qos())
    world.state.bad_launchers.clear()
    for node in world.state.nodes:
        world.return_node(node)
        world.resume_node(node)
    for job in world.state.alive():
        if job.state == "SUSPENDED":
            world.by("root").resume(job.id)
        if job.state == "PENDING":
            world.by("root").update(
                job.id, {"ReqNodeList": "", "TresPerNode": job.wants.tres_per_node}
            )
            world.by("root").release(job.id)
    world.step(20000)
    assert [job.reason for job in world.state.alive() if job.reason != "BadConstraints"] == []
