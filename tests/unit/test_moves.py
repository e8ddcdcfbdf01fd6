from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import FakeSlurm, a_record
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.policies.model import Placement
from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.holding import STALE
from ones.slurm_ext.moves import (
    HANDOVER,
    LEAVING,
    Evidence,
    MoveLimits,
    MoveRecord,
    advance,
    awaited,
    leaving,
)
from ones.slurm_ext.snapshot import ENDED

LIMITS = MoveLimits(checkpoint_timeout=20, requeue_timeout=10, start_timeout=10)
ON_N2_N3 = Placement.of({"n2": 2, "n3": 2})


class CrashError(Exception):
    """onesd is killed here."""


class Shell:
    """What onesd does with `advance`, on a fake Slurm, with a journal that survives crashes."""

    def __init__(self, slurm: FakeSlurm, move: MoveRecord) -> None:
        self.slurm = slurm
        slurm.before = self.point  # it may die between any two commands of one action, too
        self.journal = move.to_json()
        self.confirms = True  # whether the job saves a checkpoint when asked
        self.confirmed_at: float | None = None
        self.points = 0
        self.crash_at: int | None = None
        self.log: list[str] = []

    @property
    def move(self) -> MoveRecord:
        return MoveRecord.from_json(self.journal)

    def point(self, where: str) -> None:
        """A place at which the daemon may die."""
        self.check()
        self.points += 1
        if self.points == self.crash_at:
            raise CrashError(where)

    def check(self) -> None:
        if self.slurm.held_by == "ones" and self.slurm.job.state == "PENDING":
            assert self.move.holds, f"held without a record of it: {self.log}"

    def record(self, move: MoveRecord) -> None:
        self.point("before a write")
        self.journal = move.to_json()
        self.log.append(move.outcome or move.step)
        self.point("after a write")

    def tick(self) -> None:
        slurm, move = self.slurm, self.move
        evidence = Evidence(
            now=slurm.now, checkpoint_at=self.confirmed_at, ready=True, free=slurm.free
        )
        job = slurm.job if slurm.known else None
        for _ in range(8):
            following = advance(move, job, evidence, LIMITS)
            if following.move != move:
                self.record(following.move)
            if following.action is None:
                return
            self.point("before an action")
            try:
                job = Actuator(slurm.cluster).perform(following.action)
            except (JobChanged, SlurmError):
                return
            self.point("after an action")
            if following.done != following.move:
                self.record(following.done)
            move = following.done

    def live(self, seconds: int = 60, *, event: Callable[[int], None] = lambda _: None) -> str:
        """Tick until the move is over, coming back after each crash; returns its outcome."""
        for quarter in range(seconds * 4):
            if quarter % 4 == 0:
                event(quarter // 4)
            try:
                self.tick()
            except CrashError:
                self.crash_at = None
            self.check()
            if any("scancel" in line for line in self.slurm.written) and self.confirms:
                self.confirmed_at = self.confirmed_at or self.slurm.now
            self.slurm.pass_time(0.25)
            if self.move.outcome:
                break
        return self.move.outcome


def a_move(kind: str, **changes: Any) -> MoveRecord:
    target = None if kind == "preempt" else ON_N2_N3
    values: dict[str, Any] = {"id": 7, "job": 1, "kind": kind, "restarts": 0, "target": target}
    return MoveRecord(begun_at=2000.0, reason="a test", **(values | changes))


def a_shell(kind: str, **changes: Any) -> Shell:
    if kind == "start":
        slurm = FakeSlurm(a_record(**changes))
    else:
        nodes = {"nodes": "n1", "gpus_on": {"n1": 4}, "started": 1500.0}
        slurm = FakeSlurm(a_record(state="RUNNING", held=False, **(nodes | changes)))
    return Shell(slurm, a_move(kind))


def assert_it_is_where_it_belongs(shell: Shell) -> None:
    job, kind = shell.slurm.job, shell.move.kind
    if kind == "preempt":
        assert (job.state, job.held, job.restarts) == ("PENDING", True, 1)
        assert shell.slurm.locked
    else:
        assert (job.state, dict(job.gpus_on)) == ("RUNNING", dict(ON_N2_N3.gpus_on))
        assert job.restarts == (1 if kind == "resize" else 0)
        assert not job.held


@pytest.mark.parametrize("kind", ["start", "resize", "preempt"])
def test_a_move_brings_the_job_where_it_belongs(kind: str) -> None:
    shell = a_shell(kind)
    assert shell.live() == "done"
    assert_it_is_where_it_belongs(shell)


@pytest.mark.parametrize("kind", ["start", "resize", "preempt"])
def test_a_move_survives_a_crash_at_every_point(kind: str) -> None:
    untouched = a_shell(kind)
    untouched.live()
    assert untouched.points > 20
    for point in range(1, untouched.points + 1):
        shell = a_shell(kind)
        shell.crash_at = point
        assert shell.live() == "done", f"crash at point {point}: {shell.log}"
        assert_it_is_where_it_belongs(shell)
        assert sum("requeuehold" in line for line in shell.slurm.written) <= 1


EVENTS = (
    "cancel",
    "release",
    "hold",
    "requeue",
    "finish",
    "crowd",
    "leave",
    "down",
    "up",
    "unmark",
)


def happen(shell: Shell, event: str) -> None:
    slurm = shell.slurm
    match event:
        case "cancel":
            slurm.end("CANCELLED")
        case "finish" if slurm.job.state == "RUNNING":
            slurm.end("COMPLETED")
        case "release":
            slurm.user_releases()
        case "hold":
            slurm.user_holds()
        case "requeue":
            slurm.somebody_requeues()
        case "crowd":
            slurm.others = {"n2": min(4, max(0, slurm.free["n2"]))}
        case "leave":
            slurm.others = {}
        case "down" | "up":
            slurm.down = event == "down"
        case "unmark":
            slurm.job = replace(slurm.job, admin_comment="")


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["start", "resize", "preempt"]),
    events=st.dictionaries(st.integers(0, 25), st.sampled_from(EVENTS), max_size=4),
    crash_at=st.none() | st.integers(1, 60),
    confirms=st.booleans(),
)
def test_whatever_happens_no_job_is_lost_revived_or_held_without_a_record(
    kind: str, events: dict[int, str], crash_at: int | None, confirms: bool
) -> None:
    shell = a_shell(kind)
    shell.crash_at, shell.confirms = crash_at, confirms
    ended: list[str] = []

    def event(number: int) -> None:
        if number == 30:
            shell.slurm.down = False
        if number in events:
            happen(shell, events[number])
        if shell.slurm.job.state in ENDED:
            ended.append(shell.slurm.job.state)
        assert not ended or shell.slurm.job.state == ended[0], "a job that had ended came back"

    outcome = shell.live(150, event=event)
    assert outcome, f"never over: {shell.log}"
    job, move = shell.slurm.job, shell.move
    assert job.state != "FAILED", "started in the second of its requeue"
    if outcome == "done" and job.state not in ENDED and not events:
        assert_it_is_where_it_belongs(shell)
    if move.holds:
        assert job.held or shell.slurm.held_by != "ones"
    if shell.slurm.held_by == "ones" and job.state == "PENDING" and job.marked:
        assert move.holds


def test_a_job_that_does_not_confirm_is_left_alone() -> None:
    shell = a_shell("resize")
    shell.confirms = False
    assert shell.live() == "refused: no checkpoint confirmed within 20 s"
    assert (shell.slurm.job.state, shell.slurm.job.restarts) == ("RUNNING", 0)
    assert shell.slurm.written == ["scancel --ctld --signal=USR1 --batch 1"]


def test_a_checkpoint_from_before_the_request_confirms_nothing() -> None:
    shell = a_shell("resize")
    shell.confirms, shell.confirmed_at = False, 1990.0
    assert shell.live().startswith("refused")


def test_a_job_that_has_not_reported_is_not_asked() -> None:
    job = a_record(state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4})
    free = {"n2": 4, "n3": 4}
    following = advance(a_move("resize"), job, Evidence(now=2000, free=free), LIMITS)
    assert following.action is None
    assert following.move.outcome == "abandoned: the job has not reported in this run"


def test_a_job_is_not_stopped_before_there_is_room_for_it() -> None:
    shell = a_shell("resize")
    shell.slurm.others = {"n2": 3}
    assert shell.live() == "expired: 4 GPUs on n[2-3] did not become free; it runs on"
    assert shell.slurm.written == []


def test_a_stopped_job_notes_when_it_last_waited_for_others_to_leave() -> None:
    shell = a_shell("resize")

    def stay_a_while(second: int) -> None:
        # Somebody who was about to leave, as the job was stopped, takes its time.
        shell.slurm.others = {"n2": 3} if second < 6 and shell.slurm.job.restarts else {}

    began = shell.slurm.now
    assert shell.live(event=stay_a_while) == "done"
    assert shell.move.lacked_at is not None
    assert 4.0 < shell.move.lacked_at - began <= 6.0
    assert MoveRecord.from_json(shell.move.to_json()) == shell.move


def test_a_job_that_finds_room_waits_for_nobody() -> None:
    shell = a_shell("resize")
    assert shell.live() == "done"
    assert shell.move.lacked_at is None


def test_two_jobs_may_swap_their_nodes() -> None:
    one = a_record(1, state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4})
    two = a_record(2, state="RUNNING", held=False, nodes="n2", gpus_on={"n2": 4})
    there = a_move("resize", target=Placement.of({"n2": 4}))
    back = a_move("resize", job=2, target=Placement.of({"n1": 4}))
    coming = leaving([there, back], {1: one, 2: two})
    assert coming == {"n1": 4, "n2": 4}
    evidence = Evidence(now=2001, ready=True, free={"n1": 0, "n2": 0}, coming=coming)
    assert advance(there, one, evidence, LIMITS).move.step == "asking"


def test_a_start_that_does_not_come_is_withdrawn_and_given_back_held() -> None:
    shell = a_shell("start")
    shell.slurm.before = lambda command: (
        happen(shell, "crowd") if command.startswith("scontrol release") else None
    )
    expected = "expired: the job did not start on 4 GPUs on n[2-3] within 10 s; held"
    assert shell.live() == expected
    job = shell.slurm.job
    assert (job.state, job.held, job.required_nodes) == ("PENDING", True, "")
    assert shell.move.holds


def test_a_user_who_releases_the_job_ends_the_move() -> None:
    shell = a_shell("start")
    shell.slurm.user_releases()
    assert shell.live() == "abandoned: somebody else released the job"
    assert shell.slurm.written == []
    assert not shell.move.holds


@pytest.mark.parametrize("step", ["begun", "shaping", "shaped"])
def test_what_slurm_said_before_our_hold_is_not_somebody_elses_release(step: str) -> None:
    # onesd was killed after it had held a job in Slurm's queue; its first look is an older one.
    before = a_record(held=False, reason="Priority")
    move = a_move("start", step=step, queued=True, holds=True, deadline=2010.0)
    free = {"n2": 4, "n3": 4}
    following = advance(move, before, Evidence(now=2009.0, free=free), LIMITS)
    assert not following.move.outcome
    assert following.move.holds
    later = Evidence(now=2000.0 + STALE, free=free)
    if step != "begun":  # until Slurm has held it, it is told to once more
        gone = advance(move, before, later, LIMITS).move
        assert gone.outcome == "abandoned: somebody else released the job"


def test_a_shape_that_slurm_can_not_give_is_given_back_held() -> None:
    move = a_move("start", step="starting", deadline=2010.0)
    job = a_record(held=True, reason="BadConstraints", required_nodes="n[2-3]")
    following = advance(move, job, Evidence(now=2001), LIMITS)
    assert following.move.outcome == "failed: Slurm can't give 4 GPUs on n[2-3] here; held"
    assert following.move.holds


def test_a_job_that_started_as_it_was_withdrawn_keeps_no_hold() -> None:
    move = a_move("start", step="withdrawing", holds=True)
    ran = {"state": "RUNNING", "nodes": "n[2-3]", "gpus_on": {"n2": 2, "n3": 2}}
    job = a_record(held=True, reason="JobHeldAdmin", **ran)
    following = advance(move, job, Evidence(now=2001), LIMITS)
    assert str(following.action) == "Release(job=1, restarts=0)"
    assert (following.done.outcome, following.done.holds) == ("done", False)


def test_a_job_elsewhere_than_planned_is_said_to_be_there() -> None:
    move = a_move("start", step="starting", deadline=2010.0)
    job = a_record(state="RUNNING", held=False, nodes="n4", gpus_on={"n4": 4})
    following = advance(move, job, Evidence(now=2001), LIMITS)
    assert following.move.outcome == "changed: the job runs with 4 on n4"


def test_a_requeued_job_waits_until_its_last_run_is_over_for_good() -> None:
    move = a_move("resize", step="stopped", holds=True, deadline=2060.0)
    free = {"n2": 4, "n3": 4}
    job = a_record(restarts=1, submitted=2000.0)
    early = advance(move, job, Evidence(now=2001.4, free=free), LIMITS)
    later = advance(move, job, Evidence(now=2001.5, free=free), LIMITS)
    assert early.action is None
    assert later.move.step == "shaping"


def test_a_move_reads_back_what_it_wrote() -> None:
    move = a_move("resize", batch=256, step="asked", asked_at=2001.5, deadline=2300.0)
    assert MoveRecord.from_json(move.to_json()) == move
    with pytest.raises(ValueError, match="not a move of this version"):
        MoveRecord.from_json('{"id": 1, "target": null, "colour": "red"}')


def test_a_move_to_an_uneven_placement_is_never_made() -> None:
    with pytest.raises(ValueError, match="no allocation can promise"):
        a_move("start", target=Placement.of({"n1": 3, "n2": 1}))


def waits_to_start(reason: str, **changes: Any) -> Any:
    return a_record(held=False, reason=reason, required_nodes="n[2-3]", **changes)


def test_a_start_that_waits_behind_others_is_put_before_them() -> None:
    move = a_move("start", step="starting", deadline=2010.0)
    free = {"n2": 2, "n3": 2}
    behind = waits_to_start("Priority", priority=7)
    following = advance(move, behind, Evidence(now=2001, free=free), LIMITS)
    assert str(following.action) == "GoFirst(job=1, restarts=0)"
    assert not following.done.outcome
    first = waits_to_start("Priority", priority=FIRST)
    assert advance(move, first, Evidence(now=2001, free=free), LIMITS).action is None


def test_a_start_whose_gpus_somebody_took_is_withdrawn_before_its_time_is_over() -> None:
    limits = replace(LIMITS, start_timeout=60.0)
    move = a_move("start", step="starting", deadline=2060.0)
    job = waits_to_start("Resources")
    gone, there = {"n2": 0, "n3": 2}, {"n2": 2, "n3": 2}
    late = 2000.0 + LEAVING
    assert advance(move, job, Evidence(now=late - 1, free=gone), limits).action is None
    assert advance(move, job, Evidence(now=late + 1, free=there), limits).action is None
    following = advance(move, job, Evidence(now=late + 1, free=gone), limits)
    assert str(following.action) == "Hold(job=1, restarts=0)"
    assert following.move.step == "withdrawing"
    assert following.move.refused == "Resources"


def test_a_start_is_before_all_others_by_the_time_that_its_gpus_come_free() -> None:
    job = a_record(held=True)
    coming = Evidence(now=2001.0, free={"n2": 2}, coming={"n3": 2})
    following = advance(a_move("start"), job, coming, LIMITS)
    assert str(following.action).startswith("Reshape(job=1")
    move = a_move("start", step="starting", deadline=2010.0)
    waits = waits_to_start("Resources", priority=7)
    following = advance(move, waits, coming, LIMITS)
    assert str(following.action) == "GoFirst(job=1, restarts=0)"
    first = waits_to_start("Resources", priority=FIRST)
    late = replace(coming, now=2100.0)  # a checkpoint may take minutes
    following = advance(move, first, late, LIMITS)
    assert (following.action, following.move.outcome) == (None, "")
    # They have left, or have not: now its own time counts.
    for free in ({"n2": 2, "n3": 2}, {"n2": 2}):
        there = Evidence(now=2105.0, free=free)
        assert advance(following.move, first, there, LIMITS).action is None
    gone = Evidence(now=2100.0 + LEAVING + 1, free={"n2": 2})
    assert str(advance(following.move, first, gone, LIMITS).action) == "Hold(job=1, restarts=0)"


@pytest.mark.parametrize("nodes", ["n[3-4]", ""])
def test_a_job_that_is_first_for_some_nodes_is_not_first_for_others(nodes: str) -> None:
    """Its owner may change what it asks for as long as it waits."""
    move = a_move("start", step="starting", deadline=2010.0)
    waits = replace(waits_to_start("Resources", priority=FIRST), required_nodes=nodes)
    coming = Evidence(now=2001.0, free={"n2": 2}, coming={"n3": 2})
    following = advance(move, waits, coming, LIMITS)
    assert str(following.action) == "Hold(job=1, restarts=0)"
    held = replace(waits, held=True, reason="JobHeldAdmin", required_nodes="")
    over = advance(following.move, held, coming, LIMITS).move.outcome
    assert over.endswith("(it was told to start elsewhere); held")


def test_a_job_that_is_first_for_some_gpus_is_not_first_for_more_of_the_same_nodes() -> None:
    move = a_move("start", step="starting", deadline=2010.0)
    more = {"tres_per_job": "", "tres_per_node": "gres/gpu:8"}
    waits = replace(waits_to_start("Resources", priority=FIRST), **more)
    coming = Evidence(now=2001.0, free={"n2": 2}, coming={"n3": 2})
    following = advance(move, waits, coming, LIMITS)
    assert str(following.action) == "Hold(job=1, restarts=0)"


def test_a_job_is_stopped_once_who_gets_its_gpus_is_first_in_slurms_queue() -> None:
    runs = a_record(state="RUNNING", held=False, nodes="n3", gpus_on={"n3": 2}, started=1500.0)
    move = a_move("preempt", step="asked", asked_at=2000.0, deadline=2020.0)
    evidence = Evidence(now=2002.0, checkpoint_at=2001.0, ready=True, awaited=True)
    assert advance(move, runs, evidence, LIMITS).action is None
    there = replace(evidence, awaited=False)
    stop = "RequeueHold(job=1, restarts=0)"
    assert str(advance(move, runs, there, LIMITS).action) == stop
    # Not for ever: what it has done since its checkpoint is lost.
    tired = replace(evidence, now=2001.0 + HANDOVER)
    assert str(advance(move, runs, tired, LIMITS).action) == stop


HOLDS = {"n1": 4, "n2": 4, "n3": 4}


def stopping(number: int, kind: str, target: dict[str, int] | None, **more: Any) -> MoveRecord:
    where = Placement.of(target) if target else None
    return a_move(kind, id=number, job=number, target=where, **more)


def running(number: int, **gpus_on: int) -> Any:
    nodes = ",".join(gpus_on)
    return a_record(number, state="RUNNING", held=False, nodes=nodes, gpus_on=gpus_on)


def test_who_leaves_waits_for_those_who_need_its_gpus_and_have_no_claim_yet() -> None:
    jobs = {1: running(1, n1=4), 2: a_record(2), 3: running(3, n2=2), 4: running(4, n3=4)}
    leaves = stopping(1, "preempt", None)
    comes = stopping(2, "start", {"n1": 2})
    grows = stopping(3, "resize", {"n1": 2, "n2": 2})
    elsewhere = stopping(4, "preempt", None)
    free = {"n1": 0, "n2": 2, "n3": 0}
    everybody = [leaves, comes, grows, elsewhere]
    assert awaited(everybody, jobs, free) == {1}
    first = replace(comes, step="starting")
    assert awaited([leaves, first, grows, elsewhere], jobs, free) == {1}
    assert awaited([leaves, first, elsewhere], jobs, free) == frozenset()
    # Where there is room anyhow nobody is waited for.
    assert awaited([leaves, comes], jobs, free | {"n1": 2}) == frozenset()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "resize", "preempt"]),
            st.dictionaries(st.sampled_from(sorted(HOLDS)), st.integers(1, 4), min_size=1),
            st.dictionaries(st.sampled_from(sorted(HOLDS)), st.just(2), min_size=1),
        ),
        max_size=6,
    )
)
@settings(deadline=None)
def test_nobody_waits_for_each_other(drawn: list[Any]) -> None:
    moves, jobs = [], {}
    for number, (kind, holds, target) in enumerate(drawn, start=1):
        moves.append(stopping(number, kind, None if kind == "preempt" else target))
        jobs[number] = a_record(number) if kind == "start" else running(number, **holds)
    left = moves
    while left:
        wait = awaited(left, jobs, {})
        go = [move for move in left if move.id not in wait]
        assert go, "one of them can go on"
        left = [move for move in left if move.id in wait]
