"""Jobs that wait are put into Slurm's queue, and taken out of it, a few at a time."""

from __future__ import annotations

from pathlib import Path

from fake_slurm import a_record
from onesd_builders import the_books

from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.queueing import Queueing
from ones.daemon.onesd.moves.restart import Mover
from ones.policies.model import JobId
from ones.slurm_ext.actions import Action, Hold, Release
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.moves import MoveLimits
from ones.slurm_ext.snapshot import JobRecord, Snapshot


class SlowSlurm(Actuator):
    """It does whatever it is told, and takes a second for it."""

    def __init__(self) -> None:
        self.now = 2000.0
        self.done: list[tuple[str, int]] = []

    def perform(self, action: Action) -> JobRecord | None:
        assert isinstance(action, Hold | Release)
        self.now += 1.0
        self.done.append((type(action).__name__, action.job))
        return None

    def told(self) -> list[tuple[str, int]]:
        """What it was told since this was asked last."""
        told, self.done = self.done, []
        return told


def at_work(folder: Path) -> tuple[SlowSlurm, Queueing]:
    slurm = SlowSlurm()
    books = the_books(Store(folder / "db"))
    mover = Mover(books, slurm, Metrics(), limits=MoveLimits(), clock=lambda: slurm.now)
    return slurm, Queueing(mover, lambda: slurm.now)


def seen(*jobs: JobRecord) -> Snapshot:
    return Snapshot(taken=0.0, jobs={job.id: job for job in jobs}, nodes={}, switches={})


def numbers(*jobs: int) -> set[JobId]:
    return {JobId(job) for job in jobs}


def test_what_a_round_has_no_time_for_is_done_behind_it(tmp_path: Path) -> None:
    slurm, queueing = at_work(tmp_path)
    there = seen(*(a_record(job) for job in range(1, 6)))
    queueing.decide(there, into=numbers(1, 2, 3, 4, 5), out=())
    queueing.go_on(there, (), most=0.5)
    assert slurm.told() == [("Release", 1)]
    assert queueing.left
    queueing.go_on(there, (), most=1.5)
    assert slurm.told() == [("Release", 2), ("Release", 3)]
    queueing.go_on(there, ())
    assert slurm.told() == [("Release", 4), ("Release", 5)]
    assert not queueing.left


def test_what_the_next_round_decides_counts_and_nobody_is_passed_over(tmp_path: Path) -> None:
    slurm, queueing = at_work(tmp_path)
    there = seen(*(a_record(job) for job in range(1, 6)))
    for _ in range(3):  # Slurm forgets it each time
        queueing.decide(there, into=numbers(1, 3, 5), out=())
        queueing.go_on(there, (), most=1.5)
    assert [job for _, job in slurm.told()] == [1, 3, 5, 1, 3, 5]
    queueing.decide(there, into=numbers(2, 3), out=())
    queueing.decide(there, into=(), out=())
    assert not queueing.left


def test_who_does_not_wait_any_more_as_the_round_saw_him_is_left_alone(tmp_path: Path) -> None:
    slurm, queueing = at_work(tmp_path)
    queued = a_record(4, held=False, reason="Priority")
    queueing.decide(
        seen(*(a_record(job) for job in range(1, 4)), queued), into=numbers(1, 2, 3), out=numbers(4)
    )
    now = seen(
        a_record(1, reason="JobHeldAdmin"),
        a_record(2, state="RUNNING", held=False, reason="None"),
        a_record(3),
        a_record(4, state="RUNNING", held=False, reason="None"),
    )
    queueing.go_on(now, numbers(3))
    assert slurm.told() == []
    assert not queueing.left


def test_who_waits_in_the_queue_for_another_reason_is_still_taken_out(tmp_path: Path) -> None:
    slurm, queueing = at_work(tmp_path)
    queueing.decide(seen(a_record(4, held=False, reason="Priority")), into=(), out=numbers(4))
    queueing.go_on(seen(a_record(4, held=False, reason="Resources")), ())
    assert slurm.told() == [("Hold", 4)]
