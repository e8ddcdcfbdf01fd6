"""Who starts where on the simulated Slurm, and what Slurm says of who does not."""

from __future__ import annotations

import pytest
from simulated_world import a_world

from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.shards import beside
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.settings import Account, PartitionSpec, Qos
from ones.slurm_ext.simulated.world import World, gpus
from ones.slurm_ext.snapshot import Reservation

MAGNETIC = frozenset({"MAGNETIC"})
EVERYWHERE = {"nodes": (4, 4), "tres_per_node": "gres/gpu:4"}


def submit(world: World, user: str = "alice", **options: object) -> int:
    return world.submit(user, **{"wants": gpus(4), **options})


def reasons(world: World, *numbers: int) -> list[str]:
    world.step(3)
    return [
        world.job(each).reason if world.job(each).state == "PENDING" else world.job(each).state
        for each in numbers
    ]


@pytest.mark.parametrize(
    ("wants", "has"),
    [
        (gpus(3), {"n1": 3}),
        (Wants(tres_per_node="gres/gpu:2", nodes=(2, 2)), {"n1": 2, "n2": 2}),
        (gpus(6, nodes=(2, 2)), {"n1": 4, "n2": 2}),
        (gpus(4, nodes=(2, 2), tres_per_node="gres/gpu:2"), {"n1": 2, "n2": 2}),
        (Wants(tres_per_task="gres/gpu:1", tasks=5, nodes=(2, 2)), {"n1": 4, "n2": 1}),
        (gpus(2, required=("n3",)), {"n3": 2}),
        (gpus(2, excluded=("n1",)), {"n2": 2}),
        (gpus(1, memory=20000), {"n1": 1}),
    ],
)
def test_a_job_has_what_it_asked_for_in_its_own_form(wants: Wants, has: dict[str, int]) -> None:
    world = a_world()
    number = submit(world, wants=wants)
    world.step(3)
    record = world.snapshot().jobs[number]
    assert (record.state, record.gpus_on) == ("RUNNING", has)
    assert record.batch_host == next(iter(has))


def test_cpus_and_memory_run_out_before_gpus() -> None:
    world = a_world()
    first = submit(world, wants=gpus(1, cpus_per_task=16, required=("n1",)))
    second = submit(world, wants=gpus(1, required=("n1",)))
    third = submit(world, wants=gpus(1, memory=32000, required=("n2",)))
    fourth = submit(world, wants=gpus(1, memory=1, required=("n2",)))
    assert reasons(world, first, second, third, fourth) == [
        "RUNNING",
        "Resources",
        "RUNNING",
        "Resources",
    ]


def test_two_jobs_meet_on_the_gpu_that_is_taken_in_part() -> None:
    world = a_world()
    shard = Wants(tres_per_node="gres/shard:1", required=("n2",))
    jobs = [submit(world, wants=shard) for _ in range(3)]
    world.step(3)
    snapshot = world.snapshot()
    assert [snapshot.jobs[each].shares["n2"] for each in jobs] == [(0,), (0,), (1,)]
    assert beside(snapshot.jobs) == {jobs[0]: {jobs[1]}, jobs[1]: {jobs[0]}}
    assert snapshot.nodes["n2"].gpus_used == 2


def test_the_higher_priority_starts_first_and_others_wait_behind_it() -> None:
    world = a_world()
    everywhere = Wants(**EVERYWHERE)
    submit(world, wants=everywhere)
    world.step(3)
    low = submit(world, wants=everywhere, priority=1)
    high = submit(world, wants=everywhere, priority=2)
    assert reasons(world, high, low) == ["Resources", "Priority"]


def test_a_job_that_names_its_nodes_makes_others_wait_for_these_only() -> None:
    world = a_world(backfill=1000.0)
    submit(world, wants=gpus(4, required=("n1",)))
    world.step(3)
    pinned = submit(world, wants=gpus(4, required=("n1",)), priority=2)
    other = submit(world, wants=gpus(4), priority=1)
    assert reasons(world, pinned, other) == ["Resources", "RUNNING"]


def test_backfill_lets_in_who_is_out_before_the_first_can_start() -> None:
    world = a_world()
    submit(world, wants=Wants(nodes=(3, 3), tres_per_node="gres/gpu:4"), time_limit=600.0)
    world.step(3)
    first = submit(world, wants=Wants(**EVERYWHERE), priority=9)
    long = submit(world, priority=2, time_limit=6000.0)
    short = submit(world, priority=1, time_limit=300.0)
    assert reasons(world, first, long, short) == ["Resources", "Priority", "RUNNING"]


def test_a_request_that_no_node_could_ever_have_is_held_by_slurm() -> None:
    world = a_world()
    number = submit(world, wants=gpus(5))
    assert reasons(world, number) == ["BadConstraints"]
    assert world.job(number).held_by == "slurm"
    world.by("ones").update(number, {"TresPerJob": "gres/gpu:4"})
    assert reasons(world, number) == ["RUNNING"]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (Qos(gpus_per_user=4), "QOSMaxGRESPerUser"),
        (Qos(gpus=4), "QOSGrpGRES"),
        (Qos(jobs_per_user=1), "QOSMaxJobsPerUserLimit"),
        (Qos(gpus_per_job=3), "QOSMaxGRESPerJob"),
        (Qos(memory_per_user=900), "QOSMaxMemoryPerUser"),
        (Account(name="vision", memory=900), "AssocGrpMemLimit"),
        (Account(name="vision", gpus=5), "AssocGrpGRES"),
        (Account(name="vision", jobs=1), "AssocGrpJobsLimit"),
        (Account(name="vision", jobs_per_user=1), "AssocMaxJobsLimit"),
    ],
)
def test_a_limit_keeps_one_job_and_nobody_behind_it(limit: Qos | Account, reason: str) -> None:
    world = a_world()
    submit(world)
    world.step(3)
    world.limit(limit)
    limited = submit(world, priority=9)
    other = submit(world, "carol", wants=Wants())
    assert reasons(world, limited, other) == [reason, "RUNNING"]


def test_licences_run_out() -> None:
    world = a_world({"licenses": {"solver": 1}})
    jobs = [submit(world, wants=gpus(1, licenses=(("solver", 1),))) for _ in range(2)]
    assert reasons(world, *jobs) == ["RUNNING", "Licenses"]
    world.finish(jobs[0])
    assert reasons(world, jobs[1]) == ["RUNNING"]


def test_a_job_longer_than_its_partition_allows_waits_for_ever() -> None:
    world = a_world({"partitions": (PartitionSpec(max_time=60.0, default_time=None),)})
    assert reasons(world, submit(world)) == ["PartitionTimeLimit"]


def test_reserved_nodes_are_for_the_users_of_the_reservation() -> None:
    world = a_world()
    res = Reservation(name="res", nodes=frozenset({"n2"}), users=frozenset({"carol"}))
    world.reserve(res)
    pinned = submit(world, wants=gpus(1, required=("n2",)))
    inside = submit(world, "carol", reservation="res")
    assert reasons(world, pinned, inside) == [
        "ReqNodeNotAvail, May be reserved for other job",
        "RUNNING",
    ]
    assert world.job(inside).nodes == ("n2",)
    with pytest.raises(SlurmError, match="Access denied to requested reservation"):
        submit(world, reservation="res")
    world.finish(inside)
    world.free_reservation("res")
    assert reasons(world, pinned) == ["RUNNING"]


def test_a_magnetic_reservation_draws_its_users_jobs() -> None:
    world = a_world()
    users = frozenset({"carol"})
    world.reserve(Reservation(name="m", nodes=frozenset({"n3"}), users=users, flags=MAGNETIC))
    number = submit(world, "carol")
    world.step(3)
    assert world.job(number).nodes == ("n3",)


def test_a_job_that_would_run_into_a_reservation_waits_and_its_own_users_wait_for_it() -> None:
    world = a_world()
    later = Reservation(
        name="later", nodes=frozenset({"n2"}), users=frozenset({"carol"}), start=world.now + 600
    )
    world.reserve(later)
    long = submit(world, wants=gpus(1, required=("n2",)), time_limit=3600.0)
    short = submit(world, wants=gpus(1, required=("n2",)), time_limit=300.0)
    inside = submit(world, "carol", reservation="later")
    assert reasons(world, long, short, inside) == [
        "ReqNodeNotAvail, May be reserved for other job",
        "RUNNING",
        "Reservation",
    ]
    world.step(700)
    assert reasons(world, inside) == ["RUNNING"]


def test_a_job_that_begins_later_waits_until_then() -> None:
    world = a_world()
    number = submit(world, begin=world.now + 50)
    assert reasons(world, number) == ["BeginTime"]
    world.step(50)
    assert reasons(world, number) == ["RUNNING"]


def test_the_same_seed_gives_the_same_world() -> None:
    def life(seed: int) -> list[tuple[float, float]]:
        world = a_world(seed=seed)
        jobs = [submit(world, seconds=30.0) for _ in range(8)]
        world.step(120)
        return [(world.job(each).started, world.job(each).ended) for each in jobs]

    assert life(1) == life(1) != life(2)
