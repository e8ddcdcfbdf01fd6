"""No job waits for ever for an onesd that does not know it, and no person's hold is lifted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_builders import a_job
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.onesd.books.holds import HoldsBook
from ones.policies.model import JobId, Placement
from ones.policies.moves import Move
from ones.slurm_ext.holding import (
    CLOCK_SKEW,
    Hold,
    Known,
    Waits,
    held_for_onesd,
    in_doubt,
    left_pinned,
)
from ones.slurm_ext.simulated.gate import PASS, Altered, Call, Late, Refuse, Verdict
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.snapshot import Snapshot

ADMIN = "root"


@dataclass
class Nth:
    """Does this to calls of one name while it is `on`."""

    name: str
    verdict: Verdict
    times: int = 1
    calls: list[Call] = field(default_factory=list)

    def __call__(self, call: Call) -> Verdict:
        if call.name != self.name or not self.times:
            return PASS
        self.times -= 1
        self.calls.append(call)
        return self.verdict


def without(**parts: Any) -> Altered:
    return Altered(lambda snapshot: replace(snapshot, **parts))


def crowd(at_work: AtWork) -> list[int]:
    """Plain jobs that take all CPUs and no GPU, on all nodes."""
    wants = Wants(nodes=(1, 1), tasks=1, cpus_per_task=16)
    found = [at_work.world.submit("bob", wants=wants) for _ in at_work.world.state.nodes]
    at_work.world.step(5)
    return found


def starting(at_work: AtWork, *, many: int = 1) -> list[int]:
    """Jobs of which onesd has released the first onto a node where it does not start: somebody has
    taken the CPUs there since it looked."""

    def before(snapshot: Snapshot) -> Snapshot:
        nodes = {name: replace(node, cpus_used=0) for name, node in snapshot.nodes.items()}
        return replace(snapshot, nodes=nodes)

    crowd(at_work)
    jobs = [at_work.submit() for _ in range(many)]
    at_work.door.judge = Nth("snapshot", Altered(before), times=10**6)
    at_work.live(60, until=lambda: at_work.step_of(jobs[0]) == "starting")
    at_work.door.judge = lambda _call: PASS
    assert at_work.job(jobs[0]).wants.required
    return jobs


def end_all_of(at_work: AtWork, user: str) -> None:
    for job in list(at_work.world.state.alive()):
        if job.user == user:
            at_work.world.by(user).cancel(job.id)


def test_a_job_held_and_released_by_its_user_as_it_starts_is_not_left_on_its_node() -> None:
    at_work = AtWork()
    (job,) = starting(at_work)
    at_work.world.by("alice").uhold(job)
    at_work.live(60)
    assert at_work.job(job).held_by == "user", "his hold is his"
    at_work.world.by("alice").release(job)
    at_work.live(10)
    end_all_of(at_work, "bob")
    at_work.world.take_down(
        at_work.job(job).wants.required[0] if at_work.job(job).wants.required else "n1"
    )
    at_work.live(900, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).state == "RUNNING"


def test_ones_that_release_pins_are_let_go_of_at_no_restart_too() -> None:
    waits = Waits(reason="Resources", restarts=0, submitted=100.0)
    pinned = Known(hold=Hold(0, released=True, freed=True, pinned=True, at=150.0))
    assert left_pinned(waits, pinned, held=False, required_nodes="n1")
    assert not left_pinned(waits, Known(), held=False, required_nodes="n1")
    assert not left_pinned(waits, pinned, held=True, required_nodes="n1")
    assert not left_pinned(waits, pinned, held=False, required_nodes="")
    unfit = replace(waits, reason="BadConstraints")  # its user has excluded the node since
    assert left_pinned(unfit, pinned, held=True, required_nodes="n1")
    assert not left_pinned(replace(waits, reason="None"), pinned, held=False, required_nodes="n1")


def test_what_was_written_before_a_job_was_submitted_is_of_another_of_its_number() -> None:
    at_work = AtWork()
    book = HoldsBook(at_work.store)
    job = at_work.submit()
    now = at_work.world.now
    book.keep(job, 0, released=True, now=now - CLOCK_SKEW - 1)
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


def test_a_clock_that_was_wrong_for_a_while_makes_no_job_another() -> None:
    at_work = AtWork(mode="observe")
    job = at_work.submit()
    at_work.live(30)
    at_work.world.by("ones").hold(job)
    book = HoldsBook(at_work.store)
    book.keep(job, 0, released=False, now=at_work.world.now - 800.0)
    at_work.config = at_work.config.__class__(mode="act", policy="fifo")
    at_work.reborn()
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


def test_a_hold_of_ours_is_found_again_by_a_new_database_whose_clock_is_behind() -> None:
    at_work = AtWork()
    job = at_work.running()
    at_work.world.by("root").requeue(job)
    at_work.world.step(5)
    at_work.world.by("ones").hold(job)
    at_work.offset = -300.0
    at_work.reborn(forgetful=True)
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


def test_a_users_requeuehold_is_his_though_the_clock_was_wrong_as_the_database_was_made() -> None:
    at_work = AtWork()
    job = at_work.running()
    at_work.reborn(forgetful=True)
    at_work.live(30)
    at_work.store.set_fact("holds_since", at_work.world.now + 700.0)
    at_work.world.by("alice").requeuehold(job)
    at_work.live(300)
    assert at_work.job(job).held_by == "user"


def test_who_holds_a_job_is_written_down_where_an_earlier_database_was_lost() -> None:
    at_work = AtWork()
    job = at_work.running()
    at_work.world.by("alice").requeuehold(job)
    at_work.world.step(200)
    at_work.world.by("alice").release(job)
    at_work.world.by("alice").uhold(job)
    at_work.reborn(forgetful=True)
    at_work.live(30)
    at_work.world.by(ADMIN).hold(job)
    at_work.live(300)
    assert at_work.job(job).held_by == "administrator"


def test_an_answer_from_before_our_hold_does_not_make_it_anothers() -> None:
    at_work = AtWork()
    book = HoldsBook(at_work.store)
    job = at_work.submit()
    at_work.live(20, until=lambda: at_work.job(job).state == "RUNNING")
    at_work.world.by("root").requeue(job)
    at_work.world.step(3)
    before = at_work.cluster.snapshot()
    assert not before.jobs[job].held
    now = at_work.world.now
    book.keep(job, 1, released=False, now=now)
    book.take(before, (), now=now + 2)
    assert not book.of([job], now=now + 2).rows[job].released
    book.take(before, (), now=now + 60)
    assert book.of([job], now=now + 60).rows[job].released


def test_an_administrators_hold_after_a_start_that_never_began_is_his() -> None:
    at_work = AtWork()
    for _ in at_work.world.state.nodes:
        at_work.world.submit("bob", wants=gpus(4), seconds=300.0)
    at_work.live(5)
    job = at_work.submit()
    at_work.onesd.moves.begin(
        Move(job=JobId(job), kind="start", target=Placement.of({"n1": 4})),
        {JobId(job): a_job(job)},
        at_work.cluster.snapshot(),
        by="a test",
    )
    at_work.live(120)
    assert at_work.onesd.moves.open() == []
    at_work.world.by("root").hold(job)
    at_work.live(900)
    assert at_work.job(job).held_by == "administrator"


def test_a_waiting_job_that_may_not_be_requeued_any_more_runs_as_a_plain_one() -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.world.by("alice").update(job, {"Requeue": "0"})
    at_work.live(30)
    assert at_work.job(job).state == "RUNNING"
    assert at_work.job(job).held_by == ""


@pytest.mark.parametrize("command", ["requeue_hold", "hold"])
def test_a_hold_that_strikes_after_nobody_answered_it_is_known_for_ours(command: str) -> None:
    """Slurm did it long after onesd had given up."""
    at_work = AtWork(policy="ones")
    if command == "hold":
        (job,) = starting(at_work)
        at_work.door.judge = Nth("hold", Late(200.0, waited=20.0), times=1000)
        at_work.live(200)
        at_work.door.judge = lambda _call: PASS
        end_all_of(at_work, "bob")
    else:
        job = at_work.running()
        at_work.door.judge = Nth("requeue_hold", Late(550.0, waited=20.0), times=1000)
        at_work.preempt(job)
        gave_up = "failed: Slurm did not requeue the job"
        at_work.live(500, until=lambda: gave_up in at_work.outcomes(job))
        assert at_work.job(job).state == "RUNNING"
        at_work.door.judge = lambda _call: PASS
    at_work.live(2000)
    assert at_work.job(job).state == "RUNNING"
    assert not at_work.job(job).held


def test_a_number_that_is_used_again_is_another_job() -> None:
    at_work = AtWork(a_world(first_id=7, last_id=7))
    first = at_work.running()
    at_work.world.finish(first)
    at_work.live(400, until=lambda: first not in at_work.world.state.jobs)
    again = at_work.submit()
    assert again == first
    at_work.live(60)
    assert at_work.job(again).state == "RUNNING"
    (row,) = at_work.store.rows("SELECT submitted, ended FROM jobs WHERE job = ?", again)
    assert row["ended"] is None
    assert row["submitted"] > 1100


def test_a_number_that_was_used_again_while_onesd_was_away_is_another_job() -> None:
    at_work = AtWork(a_world(first_id=7, last_id=7))
    first = at_work.running()
    at_work.world.finish(first)
    at_work.alone(400)
    assert at_work.submit() == first
    at_work.reborn()
    at_work.live(60)
    assert at_work.job(first).state == "RUNNING"


def test_a_job_that_had_ended_and_is_requeued_is_alive_again() -> None:
    at_work = AtWork()
    job = at_work.running()
    at_work.world.finish(job, 1)
    at_work.live(30)
    at_work.world.by("alice").requeue(job)
    at_work.live(200)
    assert at_work.job(job).state == "RUNNING"
    (row,) = at_work.store.rows("SELECT ended, submitted FROM jobs WHERE job = ?", job)
    assert row["ended"] is None
    assert row["submitted"] == 1000.0


@pytest.mark.parametrize("many", [1, 60])
def test_an_answer_without_jobs_concludes_nothing(many: int) -> None:
    at_work = AtWork()
    jobs = starting(at_work, many=many)
    at_work.door.judge = Nth("snapshot", without(jobs={}), times=3)
    at_work.live(5)
    assert any("leaves out job" in line for line in at_work.failures)
    assert at_work.outcomes(jobs[0]) == [""]
    assert at_work.store.rows("SELECT * FROM jobs WHERE ended IS NOT NULL") == []
    end_all_of(at_work, "bob")
    at_work.live(300, until=lambda: at_work.job(jobs[0]).state == "RUNNING")
    assert at_work.job(jobs[0]).state == "RUNNING"


def test_a_missing_job_that_can_not_be_read_stops_no_round_and_is_not_over() -> None:
    at_work = AtWork()
    odd = at_work.running()
    gone = Altered(
        lambda seen: replace(seen, jobs={key: job for key, job in seen.jobs.items() if key != odd})
    )

    def judge(call: Call) -> Verdict:
        if call.name == "job" and call.arguments == (odd,):
            return Refuse("its answer is not JSON")
        return gone if call.name == "snapshot" else PASS

    at_work.door.judge = judge
    other = at_work.submit()
    at_work.live(60)
    assert (at_work.failures, at_work.job(other).state) == ([], "RUNNING")
    (row,) = at_work.store.rows("SELECT ended FROM jobs WHERE job = ?", odd)
    assert row["ended"] is None
    assert "not JSON" in at_work.onesd.rounds.published.snapshot.unread[f"job {odd}"]


def test_jobs_that_slurm_forgot_while_onesd_was_away_have_ended() -> None:
    at_work = AtWork()
    jobs = [at_work.submit(1, elastic="1") for _ in range(16)]
    jobs += [at_work.submit(1, elastic="1") for _ in range(30)]
    at_work.live(60)
    for job in jobs:
        at_work.world.by("alice").cancel(job)
    at_work.alone(1000)
    at_work.reborn()
    at_work.live(20)
    assert at_work.failures == []
    assert at_work.store.rows("SELECT * FROM jobs WHERE ended IS NULL") == []


def test_a_hold_that_nobody_can_tell_whose_it_is_is_left_and_named() -> None:
    at_work = AtWork()
    (job,) = starting(at_work)
    at_work.live(
        300, until=lambda: not at_work.step_of(job) and at_work.job(job).reason == "JobHeldAdmin"
    )
    end_all_of(at_work, "bob")
    at_work.reborn(forgetful=True)
    at_work.live(60)
    assert at_work.job(job).state == "PENDING"
    assert "nobody can tell" in at_work.onesd.rounds.published.doubts[job]


def test_an_administrators_hold_of_a_new_job_needs_no_words() -> None:
    at_work = AtWork()
    at_work.live(2)
    job = at_work.submit()
    at_work.world.by(ADMIN).hold(job)
    at_work.live(60)
    assert at_work.job(job).held_by == "administrator"
    assert at_work.onesd.rounds.published.doubts == {}


@pytest.mark.parametrize("lost", ["all", "gpus"])
def test_no_job_is_let_go_because_slurm_lists_no_nodes_for_a_while(lost: str) -> None:
    def change(snapshot: Snapshot) -> Snapshot:
        bare = {name: replace(node, gpus=0) for name, node in snapshot.nodes.items()}
        return replace(snapshot, nodes=bare if lost == "gpus" else {})

    at_work = AtWork()
    crowd(at_work)
    job = at_work.submit()
    at_work.door.judge = Nth("snapshot", Altered(change), times=10**6)
    at_work.live(300)
    assert at_work.job(job).held_by == "submission"


def test_a_job_that_fits_no_node_for_minutes_is_let_go_as_a_plain_one() -> None:
    at_work = AtWork()
    job = at_work.world.submit("alice", wants=gpus(4, features="nvlink"), elastic="1-8")
    at_work.live(60)
    assert at_work.job(job).held_by == "submission"
    at_work.live(120)
    assert at_work.job(job).held_by in ("", "slurm")


def test_a_held_job_whose_mark_was_taken_away_is_named() -> None:
    at_work = AtWork()
    for _ in at_work.world.state.nodes:
        at_work.world.submit("bob", wants=gpus(4))
    at_work.world.step(5)
    job = at_work.submit()
    at_work.live(2)
    at_work.world.by(ADMIN).update(job, {"AdminComment": ""})
    at_work.live(60)
    assert "no longer marked" in at_work.onesd.rounds.published.doubts[job]
    assert at_work.job(job).held
    (row,) = at_work.store.rows("SELECT ended FROM jobs WHERE job = ?", job)
    assert row["ended"] is None


def test_an_administrators_hold_after_a_lost_node_is_his() -> None:
    at_work = AtWork(admission="slurm")
    at_work.world.new_jobs_are_held(lambda: False)
    at_work.live(2)
    job = at_work.running()
    at_work.world.take_down(at_work.job(job).nodes[0])
    at_work.world.step(3)
    at_work.world.by(ADMIN).hold(job)
    at_work.live(300)
    assert at_work.job(job).held_by == "administrator"


def test_a_users_requeuehold_is_his() -> None:
    at_work = AtWork(admission="slurm")
    at_work.world.new_jobs_are_held(lambda: False)
    at_work.live(2)
    job = at_work.running()
    at_work.world.by("alice").requeuehold(job)
    at_work.live(300)
    assert at_work.job(job).held_by == "user"


def test_a_requeued_and_held_job_is_ours_where_the_database_was_lost() -> None:
    at_work = AtWork()
    job = at_work.running()
    at_work.world.by("ones").requeuehold(job)
    at_work.world.step(5)
    at_work.reborn(forgetful=True)
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


def test_a_user_who_releases_his_job_and_holds_it_later_keeps_it_held() -> None:
    at_work = AtWork(mode="observe")
    crowd(at_work)
    blocked = at_work.submit(4)
    at_work.world.by("alice").release(blocked)
    at_work.live(20)
    at_work.world.by("alice").uhold(blocked)
    at_work.config = at_work.config.__class__(mode="act", policy="fifo")
    at_work.reborn()
    at_work.live(120)
    assert at_work.job(blocked).held_by == "user"


def test_a_hold_that_came_before_our_withdrawal_is_its_users() -> None:
    at_work = AtWork()
    (job,) = starting(at_work)
    at_work.door.judge = Nth("hold", Late(1e6), times=10**6)  # killed before it was sent
    at_work.live(120, until=lambda: at_work.step_of(job) == "withdrawing")
    at_work.world.by("alice").uhold(job)
    at_work.door.judge = lambda _call: PASS
    end_all_of(at_work, "bob")
    at_work.reborn()
    at_work.live(120)
    assert at_work.job(job).held_by == "user"
    assert at_work.job(job).state == "PENDING"


WORDS = st.sampled_from(
    ["JobHeldUser", "JobHeldAdmin", "job_requeued_in_held_state", "BadConstraints", "launch failed"]
)
HELD = st.builds(
    Waits,
    reason=WORDS,
    restarts=st.integers(0, 3),
    submitted=st.just(100.0),
    held_at_submission=st.booleans(),
)
ROWS = st.none() | st.builds(
    Hold,
    restarts=st.integers(0, 3),
    released=st.booleans(),
    freed=st.booleans(),
    pinned=st.booleans(),
    at=st.just(100.0),
)


@given(job=HELD, hold=ROWS)
def test_a_hold_that_is_written_down_as_lifted_is_never_ours_again(
    job: Waits, hold: Hold | None
) -> None:
    known = Known(hold=hold)
    counts = hold is not None and hold.counts(job.restarts)
    if hold is not None and counts and hold.released:
        assert not held_for_onesd(job, known)
    if job.reason == "JobHeldAdmin" and (hold is None or not counts):
        assert not held_for_onesd(job, known)


@given(job=HELD, hold=ROWS, lost=st.booleans())
def test_what_is_in_doubt_is_left_alone(job: Waits, hold: Hold | None, *, lost: bool) -> None:
    known = Known(hold=hold, lost=lost)
    assert not (in_doubt(job, known) and held_for_onesd(job, known))
