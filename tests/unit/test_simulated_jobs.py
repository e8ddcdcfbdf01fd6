"""Jobs of the simulated Slurm: their lives, and who holds them in truth."""

from __future__ import annotations

import pytest
from simulated_world import a_world, running

from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.satellites import attach
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.submission import SatelliteOf
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.staging import stages


def test_an_elastic_job_is_marked_and_held_for_onesd_while_the_heartbeat_says_so() -> None:
    world = a_world()
    number = world.submit("alice", wants=gpus(4, of="v100"), elastic="1-8")
    job = world.job(number)
    mark = Mark.read(job.admin_comment)
    assert (mark.sizes.most, mark.request, mark.held, mark.gpu_type) == (8, 4, True, "v100")
    assert (job.held_by, job.reason, job.record().priority) == ("submission", "JobHeldUser", 0)
    world.new_jobs_are_held(lambda: False)
    free = world.job(world.submit("alice", wants=gpus(4), elastic="1-8"))
    assert (free.held_by, Mark.read(free.admin_comment).held) == ("", False)


def test_an_elastic_job_that_its_user_holds_is_not_held_for_onesd() -> None:
    world = a_world()
    job = world.job(world.submit("alice", wants=gpus(4), elastic="1-8", hold=True))
    assert (job.held_by, Mark.read(job.admin_comment).held) == ("user", False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"array": 3, "stage_in": 7}, "job array"),
        ({"requeue": False}, "--no-requeue"),
        ({"wants": gpus(4, required=("n1",))}, "--nodelist=n1"),
        ({"wants": Wants()}, "no GPUs"),
        ({"elastic": "5-8"}, "asks for 4 GPUs"),
    ],
)
def test_what_onesd_cannot_move_is_refused_at_submission(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(SlurmError, match=words):
        a_world().submit("alice", **{"wants": gpus(4), "elastic": "1-8", **options})


def test_a_job_starts_in_its_time_and_ends_with_its_work() -> None:
    world = a_world()
    number = world.submit("alice", wants=gpus(2), seconds=50.0)
    world.step(0.15)
    assert world.job(number).record().flags == {"CONFIGURING"}
    world.step(2)
    assert world.job(number).record().flags == frozenset()
    world.step(60)
    record = world.job(number).record()
    assert (record.state, record.nodes, record.gpus_on) == ("COMPLETED", "n1", {})
    assert record.ended - record.started == pytest.approx(50, abs=2)
    world.step(301)
    assert number not in world.snapshot().jobs


@pytest.mark.parametrize(
    ("outcome", "state"), [(0, "COMPLETED"), (3, "FAILED"), ("OUT_OF_MEMORY", "OUT_OF_MEMORY")]
)
def test_a_job_ends_as_it_is_told(outcome: int | str, state: str) -> None:
    world = a_world()
    number = running(world)
    world.finish(number, outcome)
    assert world.job(number).record().state == state
    assert world.job(number).record().flags == {"COMPLETING"}
    world.step(1)
    assert world.job(number).record().flags == frozenset()
    assert world.snapshot().nodes["n1"].gpus_used == 0


def test_a_job_ends_at_its_time_limit_but_for_the_time_it_was_suspended() -> None:
    world = a_world()
    number = running(world, time_limit=60.0)
    world.by("root").suspend(number)
    world.step(100)
    assert world.job(number).state == "SUSPENDED"
    world.by("root").resume(number)
    world.step(50)
    assert world.job(number).state == "RUNNING"
    world.step(15)
    assert world.job(number).state == "TIMEOUT"


def test_a_requeued_job_is_back_in_the_queue_once_nothing_of_it_runs() -> None:
    world = a_world()
    number = running(world, deaf=True)
    before = world.job(number).submitted
    world.by("ones").requeuehold(number)
    record = world.job(number).record()
    assert (record.state, record.flags, record.restarts) == ("PENDING", {"COMPLETING"}, 1)
    assert (record.submitted, record.nodes, record.gpus_on) == (before, "n1", {})
    assert world.snapshot().nodes["n1"].gpus_used == 2
    world.step(7)
    record = world.job(number).record()
    assert (record.flags, record.nodes, record.reason) == (
        frozenset(),
        "",
        "job requeued in held state",
    )
    assert record.submitted > before
    assert record.eligible == pytest.approx(record.submitted + 121, abs=1)
    assert world.job(number).held_by == "ones"


def test_a_start_in_the_second_of_the_last_stop_fails() -> None:
    world = a_world(completing=(0.1, 0.1), start=(0.1, 0.1))
    number = running(world)
    world.advance(2000.0)
    world.by("ones").requeuehold(number)
    world.step(0.2)
    ones = world.by("ones")
    ones.update(number, {"StartTime": "now"})
    ones.release(number)
    world.step(2)
    assert world.job(number).state == "FAILED"


def test_a_persons_hold_stays_his_in_truth_though_onesd_holds_the_job_too() -> None:
    world = a_world()
    number = world.submit("alice", wants=gpus(2), hold=True)
    world.by("ones").hold(number)
    assert (world.job(number).held_by, world.job(number).reason) == ("user", "JobHeldAdmin")
    world.by("ones").release(number)
    deed = world.state.deeds[-1]
    assert (deed.by, deed.what, deed.held_by) == ("ones", "release", "user")


def test_an_owners_hold_of_what_an_administrator_holds_leaves_no_trace() -> None:
    world = a_world()
    number = world.submit("alice", wants=gpus(2))
    world.by("ones").hold(number)
    world.by("alice").hold(number)
    assert world.job(number).held_by == "ones"
    with pytest.raises(SlurmError, match=f"Access/permission denied for job {number}"):
        world.by("alice").release(number)


def test_an_administrators_comment_leaves_the_mark_and_an_empty_one_takes_it_away() -> None:
    world = a_world()
    number = world.submit("alice", wants=gpus(2), elastic="1-4")
    mark = world.job(number).admin_comment
    world.by("root").update(number, {"AdminComment": "see ticket 7"})
    assert world.job(number).admin_comment == f"{mark} see ticket 7"
    with pytest.raises(SlurmError, match="Access/permission denied"):
        world.by("ones").update(number, {"AdminComment": "x"})
    world.by("root").update(number, {"AdminComment": ""})
    assert not world.job(number).record().marked


def test_signals_are_written_down_for_who_plays_the_jobs() -> None:
    world = a_world()
    number = running(world)
    world.by("ones").signal(number, "USR1", script=True)
    (sent,) = world.state.signals
    assert (sent.job, sent.restarts, sent.signal, sent.script) == (number, 0, "USR1", True)
    world.by("ones").signal(number, "USR1", script=False)
    assert len(world.state.signals) == 1  # it has no steps that could hear it


def test_a_satellite_is_its_bases_and_holds_gpus_for_it() -> None:
    world = a_world()
    world.new_jobs_are_held(lambda: False)
    base = running(world, elastic="1-8")
    tie = SatelliteOf(base=base, restarts=0, order=100)
    satellite = running(world, satellite=tie, wants=gpus(2, required=("n2",)))
    record = attach(world.snapshot()).jobs[base]
    assert record.held_on == {"n1": 2, "n2": 2}
    assert world.job(satellite).time_limit <= 3600
    with pytest.raises(SlurmError, match="no elastic job of this number running"):
        world.submit("bob", satellite=tie)


def test_a_stage_in_job_is_told_by_its_mark() -> None:
    world = a_world()
    stage = world.submit("alice", staging=True, hold=True)
    number = world.submit("alice", wants=gpus(2), elastic="1-4", stage_in=stage)
    assert stages(world.job(stage).record())
    assert Mark.read(world.job(number).admin_comment).stage == stage


def test_the_tasks_of_an_array_are_marked_as_such() -> None:
    world = a_world()
    first = world.submit("alice", wants=gpus(1), array=3)
    records = world.snapshot().jobs
    assert [record.array_job for record in records.values()] == [first] * 3


def test_job_ids_go_round_and_pass_over_those_in_use() -> None:
    world = a_world(first_id=1, last_id=3, min_job_age=10.0)
    kept = running(world)
    others = [world.submit("alice", wants=gpus(1), seconds=1.0) for _ in range(2)]
    assert [kept, *others] == [1, 2, 3]
    world.step(30)
    assert world.submit("bob", wants=gpus(1)) == 2


def test_a_dependency_keeps_a_job_until_the_other_has_ended_well() -> None:
    world = a_world()
    first = running(world)
    second = world.submit("alice", wants=gpus(1), dependency=f"afterok:{first}")
    third = world.submit("alice", wants=gpus(1), dependency=f"afternotok:{first}")
    world.step(3)
    assert world.job(second).reason == world.job(third).reason == "Dependency"
    world.finish(first)
    world.step(5)
    assert world.job(second).state == "RUNNING"
    assert world.job(third).reason == "DependencyNeverSatisfied"
