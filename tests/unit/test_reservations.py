"""Reservations under a whole onesd on the simulated Slurm."""

from __future__ import annotations

import pytest
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.onesd.doors import views
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.snapshot import Reservation

ALICE = frozenset({"alice"})
POLICIES = ("fifo", "srtf", "ones", "tiresias", "liquid", "pollux", "sia", "gavel:fifo_perf")


def the_class(at_work: AtWork, **changes: object) -> Reservation:
    values: dict[str, object] = {
        "name": "class",
        "nodes": frozenset({"n1", "n2"}),
        "users": ALICE,
        "start": at_work.world.now,
        "end": at_work.world.now + 7200,
    }
    return Reservation(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_in_a_reservation_run_there_and_all_others_elsewhere(policy: str) -> None:
    at_work = AtWork(policy=policy)
    at_work.world.reserve(the_class(at_work))
    booked = [at_work.submit(2, reservation="class", seconds=400.0) for _ in range(3)]
    others = [at_work.submit(2, user="bob", seconds=400.0) for _ in range(3)]
    seen: dict[int, set[str]] = {}
    for number in range(600):
        at_work.second(number)
        for job in (*booked, *others):
            found = at_work.world.state.jobs.get(job)
            seen.setdefault(job, set()).update(found.nodes if found else ())
    assert all(seen[job] and seen[job] <= {"n1", "n2"} for job in booked)
    assert all(seen[job] and seen[job] <= {"n3", "n4"} for job in others)
    assert not [each for job in seen for each in at_work.outcomes(job) if "failed" in each]


def test_a_job_is_started_when_its_reservation_begins() -> None:
    at_work = AtWork()
    begins = at_work.world.now + 100
    at_work.world.reserve(the_class(at_work, start=begins))
    job = at_work.submit(reservation="class")
    at_work.live(90)
    assert at_work.job(job).state == "PENDING"
    at_work.live(60, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).nodes == ("n1",)
    assert at_work.job(job).started >= begins


def test_explain_says_where_and_until_when_and_status_names_one_without_nodes() -> None:
    at_work = AtWork()
    at_work.world.reserve(the_class(at_work))
    at_work.world.reserve(the_class(at_work, name="empty", nodes=frozenset()))
    job = at_work.submit(reservation="class")
    stuck = at_work.submit(reservation="empty")
    at_work.live(40)
    service = at_work.onesd.service
    lines = views.explain(service, job, None)["lines"]
    assert any(line.startswith("reservation class: n[1-2] until ") for line in lines)
    assert "its reservation empty has no nodes" in str(views.explain(service, stuck, None))
    problems = views.status(service, None)["problems"]
    assert "reservation empty has no nodes: jobs that ask for it wait" in problems
    assert at_work.job(job).state == "RUNNING"


@pytest.mark.parametrize("policy", POLICIES)
def test_no_running_job_is_stopped_that_maintenance_would_not_let_start_again(policy: str) -> None:
    at_work = AtWork(policy=policy)
    running = [at_work.submit(2, time_limit=3600.0) for _ in range(2)]
    at_work.live(120)
    assert [at_work.job(job).state for job in running] == ["RUNNING"] * 2
    repair = Reservation(
        name="repair",
        nodes=frozenset(at_work.world.state.nodes),
        users=frozenset({"root"}),
        start=at_work.world.now + 3700,
        end=at_work.world.now + 7200,
        flags=frozenset({"MAINT"}),
    )
    at_work.world.reserve(repair)
    restarts = [at_work.job(job).restarts for job in running]
    waiting = [at_work.submit(4, user="bob", time_limit=3600.0) for _ in range(4)]
    at_work.live(600)
    assert [at_work.job(job).state for job in running] == ["RUNNING"] * 2
    assert [at_work.job(job).restarts for job in running] == restarts
    assert all(at_work.job(job).state == "PENDING" for job in waiting)
    short = at_work.submit(4, user="bob", time_limit=900.0)
    at_work.live(120, until=lambda: at_work.job(short).state == "RUNNING")
    assert at_work.job(short).state == "RUNNING"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_job_stays_though_its_node_is_reserved_for_later(policy: str) -> None:
    at_work = AtWork(policy=policy)
    job = at_work.world.submit(
        "alice", wants=gpus(4), elastic="4", time_limit=3600.0, seconds=3000.0
    )
    at_work.live(120)
    (node,) = at_work.job(job).nodes
    start = at_work.job(job).started + 3700
    at_work.world.reserve(
        the_class(at_work, nodes=frozenset({node}), start=start, end=start + 600, users={"bob"})
    )
    at_work.live(600)
    assert (at_work.job(job).state, at_work.job(job).restarts) == ("RUNNING", 0)


def too_late() -> tuple[AtWork, int]:
    """A job that onesd did not start before its reservation was over, so that Slurm holds it."""
    at_work = AtWork()
    now = at_work.world.now
    at_work.world.reserve(the_class(at_work, start=now + 60, end=now + 90))
    job = at_work.submit(4, reservation="class")
    at_work.alone(120)
    at_work.live(60)
    assert at_work.job(job).reason == "Reservation class was deleted"
    assert at_work.job(job).held
    return at_work, job


def test_a_job_that_slurm_holds_since_its_reservation_is_over_is_left_to_its_user() -> None:
    at_work, job = too_late()
    at_work.world.by("alice").release(job)
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


def test_a_users_hold_on_a_job_whose_reservation_is_over_is_his() -> None:
    """It was held at submission, as one that waits for onesd is; Slurm then held it itself."""
    at_work, job = too_late()
    at_work.world.by("alice").hold(job)
    at_work.live(60)
    assert at_work.job(job).reason == "JobHeldUser"
    assert at_work.job(job).held


def test_jobs_of_a_magnetic_reservations_users_are_drawn_into_it_and_others_are_not() -> None:
    at_work = AtWork(a_world())
    at_work.world.reserve(the_class(at_work, flags=frozenset({"MAGNETIC"})))
    jobs = [at_work.submit(4, elastic="4") for _ in range(3)]
    other = at_work.submit(4, elastic="4", user="bob")
    at_work.live(60)
    places = [at_work.job(job).nodes for job in jobs]
    assert {*places[0], *places[1]} == {"n1", "n2"}
    assert places[2] in (("n3",), ("n4",))
    assert at_work.job(other).nodes in (("n3",), ("n4",))
