"""The simulated slurmctld goes back to what it had saved, and its nodes to what that says."""

from __future__ import annotations

from simulated_world import a_world, running

from ones.slurm_ext.simulated.world import World, gpus


def go_back(world: World, saved: object) -> None:
    world.stop_slurmctld()
    world.step(10)
    world.start_slurmctld(saved)  # type: ignore[arg-type]


def test_jobs_submitted_since_are_gone_and_their_numbers_given_again() -> None:
    world = a_world()
    told = []
    world.state.listener = lambda what, job: told.append((what, job.id))
    kept = running(world, user="bob")
    saved = world.save_state()
    lost = running(world, user="bob")
    go_back(world, saved)
    assert set(world.snapshot().jobs) == {kept}
    assert told[-2:] == [("stopped", lost), ("forgotten", lost)]
    assert running(world, user="bob") == lost


def test_a_job_started_since_waits_as_before_and_its_processes_are_killed() -> None:
    world = a_world()
    held = world.submit("alice", wants=gpus(4), elastic="1-4")
    saved = world.save_state()
    world.by("ones").release(held)
    world.step(3)
    assert world.runs(held)
    go_back(world, saved)
    record = world.snapshot().jobs[held]
    assert (record.state, record.reason, record.held) == ("PENDING", "JobHeldUser", True)
    assert not world.runs(held)
    assert world.snapshot().nodes["n1"].gpus_used == 0


def test_a_job_stopped_since_is_taken_for_running_until_its_node_says_otherwise() -> None:
    world = a_world(missed_after=(60.0, 60.0))
    number = running(world, user="bob")
    saved = world.save_state()
    world.by("ones").requeuehold(number)
    world.step(5)
    assert world.job(number).restarts == 1
    go_back(world, saved)
    record = world.snapshot().jobs[number]
    assert (record.state, record.restarts, record.gpus_on) == ("RUNNING", 0, {"n1": 2})
    assert not world.runs(number)
    world.finish(number)
    assert world.job(number).state == "RUNNING"
    world.step(65)
    record = world.snapshot().jobs[number]
    assert (record.state, record.restarts, record.held) == ("PENDING", 1, False)


def test_a_job_that_was_being_requeued_is_taken_for_failed() -> None:
    world = a_world(completing=(3.0, 3.0), missed_after=(60.0, 60.0))
    number = running(world, user="bob")
    saved = world.save_state()
    world.by("ones").requeuehold(number)
    go_back(world, saved)
    world.step(8)
    record = world.snapshot().jobs[number]
    assert (record.state, record.restarts, record.gpus_on) == ("FAILED", 0, {})


def test_what_ran_all_the_while_runs_on_with_what_was_said_of_it_forgotten() -> None:
    world = a_world()
    number = running(world, user="bob", seconds=60.0)
    saved = world.save_state()
    world.by("bob").update(number, {"Comment": "later"})
    world.step(3)
    go_back(world, saved)
    assert world.runs(number)
    assert world.job(number).comment == ""
    world.step(60)
    assert world.job(number).state == "COMPLETED"


def test_a_job_that_was_leaving_its_node_leaves_it_once_more() -> None:
    world = a_world(completing=(2.0, 2.0))
    number = running(world, user="bob")
    world.by("bob").cancel(number)
    saved = world.save_state()
    assert world.job(number).flags
    world.step(5)
    assert not world.job(number).flags
    go_back(world, saved)
    assert world.job(number).flags
    world.step(5)
    assert world.snapshot().nodes["n1"].gpus_used == 0


def test_it_says_when_it_was_started() -> None:
    world = a_world()
    before = world.snapshot().booted
    world.stop_slurmctld()
    world.step(10)
    world.start_slurmctld()
    assert before != world.snapshot().booted == "1010"
