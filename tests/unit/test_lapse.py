"""slurmctld comes back with what it had saved: nobody is held for ever, no move is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_slurm import FakeSlurm, a_record
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.onesd.books.controller import Controller
from ones.daemon.onesd.books.store import Store
from ones.daemon.release import PendingJob, write_release
from ones.policies.model import JobId, Placement
from ones.policies.moves import Move
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.lapse import SETTLING, Lapse, put_back, started
from ones.slurm_ext.moves import Kind, MoveLimits, MoveRecord, Step
from ones.slurm_ext.simulated.gate import PASS, Refuse
from ones.slurm_ext.simulated.recovery import Saved
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.snapshot import Snapshot

LAPSE = Lapse(answered=0.0, noticed=5.0)


def at_work() -> AtWork:
    return AtWork(a_world(missed_after=(900.0, 900.0)))


def backup(onesd: AtWork, saved: Saved, *, after: int = 5) -> None:
    """slurmctld is killed, and so many seconds later its backup has what was saved."""
    onesd.world.stop_slurmctld()
    onesd.live(after)
    onesd.world.start_slurmctld(saved)


def resize(onesd: AtWork, job: int, gpus: int) -> None:
    target = Placement.of({"n2": gpus})
    onesd.move(Move(job=JobId(job), kind="resize", target=target, reason="a test"))


def test_a_start_that_slurm_has_forgotten_is_made_again() -> None:
    onesd = at_work()
    job = onesd.submit()
    saved = onesd.world.save_state()
    onesd.live(60, until=lambda: onesd.world.runs(job))
    backup(onesd, saved)
    assert onesd.job(job).reason == "JobHeldUser"
    onesd.live(60)
    assert onesd.world.runs(job)


def test_a_start_under_way_that_slurm_has_forgotten_is_gone_on_with() -> None:
    onesd = at_work()
    job = onesd.submit()
    saved = onesd.world.save_state()
    onesd.live(60, until=lambda: onesd.step_of(job) == "starting")
    backup(onesd, saved, after=2)
    onesd.live(30)
    assert onesd.world.runs(job)
    assert onesd.outcomes(job) == ["done"]


@pytest.mark.parametrize("step", ["stopped", "starting", ""])
def test_a_stop_that_slurm_has_forgotten_is_made_again_and_the_move_goes_on(step: str) -> None:
    onesd = at_work()
    job = onesd.running(count=2)
    resize(onesd, job, 4)
    onesd.live(60, until=lambda: onesd.step_of(job) == "asked")
    saved = replace_run(onesd, job)
    onesd.live(60, until=lambda: onesd.job(job).restarts == 1 and onesd.step_of(job) == step)
    backup(onesd, saved, after=90)
    assert (onesd.job(job).state, onesd.job(job).restarts) == ("RUNNING", 0)
    onesd.live(120)
    assert onesd.world.runs(job)
    assert onesd.outcomes(job)[:2] == ["done", "done"]
    assert onesd.job(job).restarts == 1 and onesd.job(job).nodes == ("n2",)


@pytest.mark.parametrize("kind", ["resize", "preempt"])
def test_a_job_that_slurm_takes_for_failed_because_it_has_forgotten_our_stop_goes_on(
    kind: str,
) -> None:
    onesd = AtWork(a_world(completing=(3.0, 3.0), missed_after=(900.0, 900.0)))
    job = onesd.running(count=2)
    if kind == "resize":
        resize(onesd, job, 4)
    else:
        onesd.preempt(job)
    onesd.live(60, until=lambda: onesd.step_of(job) == "asked")
    saved = replace_run(onesd, job)
    onesd.live(60, until=lambda: bool(onesd.job(job).flags))
    backup(onesd, saved)
    onesd.alone(8)
    assert onesd.job(job).state == "FAILED"
    onesd.live(120)
    assert onesd.world.runs(job)
    assert onesd.job(job).restarts == 1
    assert onesd.outcomes(job)[:2] == ["done", "done"]


def test_a_job_that_fails_by_itself_while_it_is_being_stopped_stays_so() -> None:
    onesd = at_work()
    job = onesd.running(count=2)
    resize(onesd, job, 4)
    onesd.live(60, until=lambda: onesd.step_of(job) == "asked")
    onesd.door.judge = lambda call: Refuse("try again") if call.name == "requeue_hold" else PASS
    onesd.live(20, until=lambda: onesd.step_of(job) == "stopping")
    onesd.world.finish(job, 1)
    onesd.live(30)
    assert onesd.job(job).state == "FAILED"
    assert onesd.outcomes(job)[-1] == "abandoned: the job has ended (FAILED)"


def test_a_job_that_failed_before_slurmctld_was_killed_stays_so() -> None:
    move, limits = a_move("resize", "stopping"), MoveLimits()
    lapse = Lapse(answered=100.0, noticed=110.0)
    failed = a_record(state="FAILED", held=False, ended=90.0)
    assert put_back(move, failed, lapse, now=111.0, limits=limits) == move
    later = put_back(move, replace(failed, ended=109.0), lapse, now=111.0, limits=limits)
    assert later.forgotten


@pytest.mark.parametrize("kind", ["resize", "preempt"])
@pytest.mark.parametrize("step", ["asked", "stopping", "stopped", "starting", ""])
@pytest.mark.parametrize("before", ["its start", "its release"])
def test_a_stop_of_a_run_whose_start_slurm_has_forgotten_leaves_nobody_held(
    kind: str, step: str, before: str
) -> None:
    """Slurm went back further than the move: to before the run that it was to end."""
    onesd = at_work()
    job = onesd.submit(2)
    saved = onesd.world.save_state()
    if before == "its start":
        onesd.live(60, until=lambda: not onesd.job(job).held)
        saved = onesd.world.save_state()
        assert not saved.jobs[job].held
    onesd.live(60, until=lambda: onesd.world.runs(job))
    onesd.live(12)
    if kind == "resize":
        resize(onesd, job, 4)
    else:
        onesd.preempt(job)
    onesd.live(60, until=lambda: onesd.step_of(job) == step)
    onesd.confirms = step != "asked"
    backup(onesd, saved)
    assert onesd.job(job).restarts == 0
    onesd.confirms = True
    onesd.live(100)
    assert onesd.world.runs(job)
    assert onesd.onesd.moves.open() == []


def replace_run(onesd: AtWork, job: int) -> Saved:
    """What is saved now, with the job still in its run."""
    saved = onesd.world.save_state()
    assert saved.jobs[job].restarts == 0
    return saved


def test_a_release_of_the_last_seconds_is_ours_to_repeat_and_no_other() -> None:
    onesd = at_work()
    job = onesd.running()
    onesd.preempt(job)
    onesd.live(60, until=lambda: onesd.job(job).held)
    saved = onesd.world.save_state()
    onesd.live(200, until=lambda: onesd.world.runs(job))
    backup(onesd, saved)
    onesd.live(60)
    assert onesd.world.runs(job)


def test_a_release_by_ones_release_that_slurm_has_forgotten_is_repeated_by_onesd() -> None:
    onesd = at_work()
    plain = [onesd.world.submit("bob", wants=gpus(4)) for _ in range(4)]
    onesd.world.step(5)
    job = onesd.submit()
    onesd.live(30)
    saved = onesd.world.save_state()
    record = onesd.cluster.snapshot().jobs[job]
    onesd.world.by("ones").release(job)
    released = PendingJob(job, 0, 0, record.reason, "", record.admin_comment)
    write_release(onesd.store._db, released, onesd.world.now)
    onesd.alone(5)
    onesd.reborn()
    backup(onesd, saved)
    onesd.world.finish(plain[0])
    onesd.live(90)
    assert onesd.world.runs(job)


def test_who_holds_a_job_later_than_that_holds_it_himself() -> None:
    onesd = at_work()
    job = onesd.submit()
    other = onesd.running(count=4, user="bob")
    onesd.live(60, until=lambda: onesd.world.runs(job))
    onesd.live(200)
    onesd.world.by("root").requeuehold(job)
    onesd.live(30)
    backup(onesd, onesd.world.save_state())
    onesd.live(120)
    assert onesd.job(job).held and onesd.job(job).held_by == "administrator"
    assert onesd.world.runs(other)


def test_a_job_with_fewer_restarts_than_before_is_no_other_job() -> None:
    onesd = at_work()
    job = onesd.running()
    saved = onesd.world.save_state()
    onesd.world.by("alice").requeue(job)
    onesd.live(30)
    known = onesd.store.row("SELECT restarts, submitted FROM jobs WHERE job = ?", job)
    assert known is not None and known["restarts"] == 1
    backup(onesd, saved)
    onesd.live(30)
    assert onesd.outcomes(job) == ["done"]  # its history is still there


def test_a_job_that_got_the_number_of_a_lost_one_is_another_job() -> None:
    onesd = at_work()
    saved = onesd.world.save_state()
    lost = onesd.running(count=4)
    backup(onesd, saved)
    again = onesd.submit(2)
    assert again == lost
    onesd.live(60)
    assert onesd.world.runs(again)
    (row,) = onesd.store.rows("SELECT requested FROM jobs WHERE job = ?", again)
    assert row["requested"] == 2


def test_a_new_start_of_slurmctld_is_told_for_a_while_also_to_an_onesd_that_is_new() -> None:
    def seen(booted: str) -> Snapshot:
        return Snapshot(taken=0.0, jobs={}, nodes={}, switches={}, booted=booted)

    store = Store(":memory:")
    book = Controller(store)
    book.take(seen("1"), now=100.0)
    book.take(seen(""), now=110.0)  # it could not be told
    assert book.lapse(now=110.0) is None
    book.take(seen("2"), now=130.0)
    for each in (book, Controller(store)):
        lapse = each.lapse(now=131.0)
        assert lapse is not None
        assert lapse.undoes(50.0) and not lapse.undoes(30.0) and not lapse.undoes(131.0)
        assert each.lapse(now=130.0 + SETTLING) is None


def a_move(kind: Kind, step: Step) -> MoveRecord:
    """Of job 1, which asks for n1 once it is shaped."""
    target = Placement.of({"n1": 4})
    return MoveRecord(id=1, job=1, kind=kind, restarts=0, target=target, begun_at=0.0, step=step)


def test_nodes_that_make_no_sense_are_none_that_a_move_gave_the_job() -> None:
    move, limits = a_move("resize", "starting"), MoveLimits()
    job = a_record(restarts=1, held=False, reason="Resources", required_nodes="n1")
    assert put_back(move, job, LAPSE, now=5.0, limits=limits) == move
    odd = put_back(move, replace(job, required_nodes="n["), LAPSE, now=5.0, limits=limits)
    assert (odd.step, odd.queued, odd.deadline) == ("stopped", True, 5.0 + limits.start_timeout)


def test_a_job_that_somebody_released_before_its_start_is_not_held_for_that() -> None:
    move, limits = a_move("start", "begun"), MoveLimits()
    assert put_back(move, a_record(held=False), LAPSE, now=5.0, limits=limits) == move
    queued = replace(move, queued=True)
    assert put_back(queued, a_record(held=False), LAPSE, now=5.0, limits=limits).queued


def test_a_start_of_a_wait_that_slurm_has_forgotten_is_over() -> None:
    move, limits = replace(a_move("start", "starting"), restarts=2), MoveLimits()
    held = a_record(restarts=1, reason="job requeued in held state")
    back = put_back(move, held, LAPSE, now=5.0, limits=limits)
    assert back.outcome.startswith("abandoned: Slurm went back") and back.holds
    owners = replace(held, reason="JobHeldUser")
    assert not put_back(move, owners, LAPSE, now=5.0, limits=limits).holds
    running = a_record(restarts=1, state="RUNNING", held=False, reason="None")
    assert not put_back(move, running, LAPSE, now=5.0, limits=limits).holds


SDIAG = """\
*******************************************************
sdiag output at Tue Nov 24 03:23:57 2026 (1795490637)
Data since      Tue Nov 24 03:21:47 2026 (1795490507)
*******************************************************
"""


class Printed:
    """Slurm's programs, which print this, or fail so."""

    def __init__(self, answer: str | SlurmError) -> None:
        self.answer = answer

    def run(self, program: str, *_words: str, timeout: float | None = None) -> str:
        assert program == "sdiag"
        if isinstance(self.answer, SlurmError):
            raise self.answer
        return self.answer


def test_when_slurmctld_began_is_told_by_its_statistics() -> None:
    assert started(Printed(SDIAG)) == "1795490507"  # type: ignore[arg-type]
    for unknown in ("", "Data since (null)", SlurmError("sdiag", "Access denied")):
        assert started(Printed(unknown)) == ""  # type: ignore[arg-type]
    with pytest.raises(SlurmUnreachable):
        started(Printed(SlurmUnreachable("sdiag", "nobody")))  # type: ignore[arg-type]


class Changing(FakeSlurm):
    """Slurm whose backup takes over between two questions."""

    since = 1
    reads = 0

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        if program == "sdiag":
            return f"Data since   a day ({self.since})\n"
        if program == "squeue":
            self.reads += 1
        return ""


def test_jobs_are_read_again_where_another_slurmctld_answers_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Changing(a_record())
    cluster = slurm.cluster
    empty = Snapshot(taken=0.0, jobs={}, nodes={}, switches={})
    reader = replace_reader(cluster, empty, slurm, monkeypatch)
    assert (cluster.snapshot().booted, reader) == ("1", [1])
    slurm.since = 2
    assert (cluster.snapshot().booted, reader) == ("2", [1, 1, 1])
    assert (cluster.snapshot().booted, reader) == ("2", [1, 1, 1, 1])


def replace_reader(
    cluster: object, found: Snapshot, slurm: Changing, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """One that counts how often it is asked."""
    read: list[int] = []

    def snapshot() -> Snapshot:
        read.append(1)
        return replace(found)

    monkeypatch.setattr(cluster._reader, "snapshot", snapshot)  # type: ignore[attr-defined]
    return read
