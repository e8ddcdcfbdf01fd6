"""One rollout: the round's own decisions, and what comes of them, from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from statistics import median

import numpy as np

from ones.daemon.onesd.deciding import Answer, Question, answer
from ones.daemon.onesd.forecast.model import Came, Forecast, Lately
from ones.daemon.onesd.forecast.outlooks import advanced, from_its_beginning, worked_on
from ones.policies.forecast import seconds_left_on
from ones.policies.guard import HOUR, History
from ones.policies.model import Job, JobId, Node, Outlook, Placement, Policy, Seconds
from ones.policies.moves import Move, is_live
from ones.policies.renewal import ended_in, limit_share
from ones.policies.rigid import PlainJob, request_of
from ones.policies.timetable import Timetable

MOST_ROUNDS = 2000  # of one rollout
LONGEST_STEP = 40  # rounds that one stands for, while nothing happens
DETAIL = 40  # of the time foreseen so far, a step is this part at least
LEAST_WATCHED: Seconds = 1200.0  # that arrivals must have been watched before they count
ENOUGH_ENDED = 3  # plain jobs that have ended, before it counts how much of their limit they took
FARTHEST: Seconds = 90 * 86400.0
TRANSIENT = (" under way", "it is completing", "it is configuring", "it has not yet said")


@dataclass(slots=True, kw_only=True)
class Rollout:
    """The cluster as it is foreseen, from round to round."""

    question: Question
    which: JobId
    policy: Policy
    memory: object
    rng: np.random.Generator
    wake: Seconds | None
    began: Seconds
    now: Seconds
    nodes: dict[str, Node]
    jobs: dict[JobId, Job]
    outlooks: dict[JobId, Outlook]
    plain: dict[JobId, PlainJob]
    moved: dict[JobId, list[Seconds]]
    live: dict[JobId, list[Seconds]]
    pauses: dict[JobId, Seconds] = field(default_factory=dict)  # still to go, of moves
    left: dict[JobId, Seconds] = field(default_factory=dict)  # of those that run, pauses apart
    coming: list[tuple[Seconds, Came]] = field(default_factory=list)  # the next one last
    again: Seconds = inf  # when they come once more
    came: int = 0  # so many by now
    quiet: int = 0  # rounds in a row in which nothing has happened
    start: Seconds | None = None
    first: Placement | None = None
    resizes: int = 0
    end: Seconds | None = None
    at_limit: bool = False
    cut: bool = False  # whether it had to be brought to an end

    @classmethod
    def of(
        cls,
        question: Question,
        which: JobId,
        policy: Policy,
        *,
        memory: object,
        rng: np.random.Generator,
        wake: Seconds | None,
    ) -> Rollout:
        problem = question.problem
        rollout = cls(
            question=question,
            which=which,
            policy=policy,
            memory=memory,
            rng=rng,
            wake=wake,
            began=problem.now,
            now=problem.now,
            nodes=dict(problem.by_name),
            jobs={job.id: _settled(job) for job in problem.jobs},
            outlooks=dict(problem.outlooks),
            plain={job.id: job for job in question.plain or ()},
            moved={job: list(times) for job, times in question.history.moved.items()},
            live={job: list(times) for job, times in question.history.live.items()},
        )
        for job in problem.jobs:
            if job.fixed.endswith(TRANSIENT[0]) and job.placement is not None:
                rollout.pauses[job.id] = problem.outlooks[job.id].restart_cost
        there = rollout.jobs[which].placement
        rollout.start, rollout.first = (0.0, there) if there is not None else (None, None)
        return rollout

    def expect(self, lately: Lately) -> None:
        """Others come as they have come lately: in that order, from any point on, and again."""
        watched = self.now - lately.since
        if watched < LEAST_WATCHED or not lately.came:
            return
        offset = float(self.rng.uniform(0.0, watched))
        self.again = watched
        self.coming = sorted(
            (
                (self.now + (one.job.submitted - lately.since - offset) % watched, one)
                for one in lately.came
            ),
            key=lambda pair: (-pair[0], -pair[1].job.id),
        )
        took = [
            one.seconds / one.job.limit
            for one in lately.came
            if isinstance(one.job, PlainJob) and one.seconds is not None and one.job.limit < inf
        ]
        if len(took) >= ENOUGH_ENDED:
            share = min(1.0, median(took))
            self.plain = {id_: _shortened(one, share, self.now) for id_, one in self.plain.items()}

    def _arrivals(self) -> bool:
        """Whoever has come by now is there; whether anybody has."""
        any_ = False
        while self.coming and self.coming[-1][0] <= self.now:
            at, one = self.coming.pop()
            self.coming.insert(0, (at + self.again, one))
            self.came += 1
            any_ = True
            id_ = JobId(self.newest + self.came)
            if isinstance(one.job, PlainJob):
                limit = one.job.limit if one.seconds is None else max(1.0, one.seconds)
                self.plain[id_] = replace(
                    one.job, id=id_, submitted=at, limit=limit, started=None, placement=None
                )
            elif one.outlook is not None:
                self.jobs[id_] = _anew(one.job, id_, at)
                self.outlooks[id_] = from_its_beginning(one.outlook)
        return any_

    @property
    def newest(self) -> int:
        """The largest number of those that were there at first."""
        numbers = [int(job.id) for job in self.question.problem.jobs]
        return max([*numbers, *(int(one.id) for one in self.question.plain or ())])

    def run(self, over: Callable[[], bool]) -> Forecast:
        """Until the job has ended, or nothing more can be said."""
        question, why = self.question, ""
        for _ in range(MOST_ROUNDS):
            if self._arrivals():
                self.quiet = 0
            self._plain_starts()
            decided = answer(self._asked(question), self.policy, self.memory, self.rng)
            self.memory = decided.memory
            question = replace(question, rigid=decided.rigid)
            changed = self._act(decided.moves)
            why = self._obstacle(decided)
            self.quiet = 0 if changed else self.quiet + 1
            if not self._to_the_next_round() or self.end is not None:
                break
            if self.now - self.began > FARTHEST:
                why = "it would take longer than can be foreseen"
                break
            if over():
                self._cut_short()
                why = why or "too much would have to be foreseen"
                break
        else:
            self._cut_short()
        return Forecast(
            start=self.start,
            end=self.end,
            gpus=self.first.gpus if self.first is not None else 0,
            nodes=self.first.nodes if self.first is not None else (),
            resizes=self.resizes,
            at_limit=self.at_limit,
            why="" if self.end is not None else why or "its end can't be foreseen",
        )

    def _asked(self, question: Question) -> Question:
        problem = replace(
            question.problem,
            now=self.now,
            nodes=tuple(self.nodes.values()),
            jobs=tuple(self.jobs.values()),
            outlooks=self.outlooks,
        )
        return replace(
            question,
            problem=problem,
            history=History(self.moved, self.live),
            plain=None if question.plain is None else tuple(self.plain.values()),
            without_gpus=(),  # nobody foretells when they end
            gates={},
            staged={},
            pairs={},
            together=(),
            moving=frozenset(),
        )

    def _obstacle(self, decided: Answer) -> str:
        """Why the job does not run now, in words."""
        job = self.jobs[self.which]
        if job.placement is not None:
            return ""
        return (
            decided.fault
            or decided.left_out.get(job.id)
            or decided.capped.get(job.id)
            or job.fixed
            or decided.plan.idle.get(job.id)
            or "no GPUs come free for it, as far as can be foreseen"
        )

    def _act(self, moves: Sequence[Move]) -> bool:
        """Carry the moves out; whether there were any."""
        for move in moves:
            job = self.jobs[move.job]
            if move.kind == "tune":
                self.jobs[job.id] = replace(job, batch=move.batch)
            else:
                self._move(job, move)
            if move.kind == "resize" and job.id == self.which:
                self.resizes += 1
            self._foresee(job.id)
        return bool(moves)

    def _move(self, job: Job, move: Move) -> None:
        outlook, target = self.outlooks[job.id], move.target
        goes_live = outlook.live_cost is not None and is_live(move, job)
        if move.kind in ("resize", "preempt"):
            times = (self.live if goes_live else self.moved).setdefault(job.id, [])
            times[:] = [*(at for at in times if self.now - HOUR < at), self.now]
        cost = outlook.restart_cost
        if goes_live and outlook.live_cost is not None:
            cost = outlook.live_cost
        keeps = job.keeps
        if keeps is None and target is not None and outlook.live_cost is not None:
            keeps = Placement(target.gpus_on[:1])
        if target is None:
            self.jobs[job.id] = replace(
                job, placement=None, started=None, time_left=None, keeps=None, batch=None
            )
            return
        self.pauses[job.id] = cost
        again = not goes_live
        self.jobs[job.id] = replace(
            job,
            placement=target,
            started=self.now if again else job.started,
            time_left=job.time_limit if again else job.time_left,
            batch=move.batch or job.batch,
            keeps=keeps,
            queued=False,
            fixed="",
        )
        if job.id == self.which and self.start is None:
            self.start, self.first = self.now - self.began, target

    def _foresee(self, job: JobId) -> None:
        """How long it still takes where it is now."""
        one = self.jobs[job]
        if one.placement is None:
            self.left.pop(job, None)
            return
        problem = replace(
            self.question.problem, jobs=(), nodes=tuple(self.nodes.values()), outlooks=self.outlooks
        )
        self.left[job] = max(1.0, seconds_left_on(problem, one, one.placement))

    def _to_the_next_round(self) -> bool:
        """Let the time pass to the next round; False where nothing would ever change."""
        for id_, job in self.jobs.items():
            if job.placement is not None and id_ not in self.left:
                self._foresee(id_)
        every = self.question.problem.round_seconds
        regular = self.now + every * min(LONGEST_STEP, 2 ** max(0, self.quiet - 1))
        event = min((self._ends_at(id_) for id_ in self.left), default=inf)
        event = min(event, min((_gives_back(one) for one in self.plain.values()), default=inf))
        event = min(event, self.coming[-1][0] if self.coming else inf)
        if event == inf and self.quiet > 2 * LONGEST_STEP.bit_length():
            return False
        following = regular
        if event < regular:
            passed = self.now + every * ceil(max(event - self.now, 1e-6) / every)
            following = passed if self.wake is None else min(passed, event + self.wake)
            self.quiet = 0
        least = max(1.0, (self.now - self.began) / DETAIL)
        self._pass(max(following, self.now + least))
        return True

    def _ends_at(self, job: JobId) -> Seconds:
        limit = ended_in(self.jobs[job], self.outlooks[job], self.now)
        return self.now + min(self.pauses.get(job, 0.0) + self.left[job], limit)

    def _pass(self, until: Seconds) -> None:
        for id_, job in list(self.jobs.items()):
            passes = until - self.now
            if job.placement is None:
                self.jobs[id_] = replace(job, waited=job.waited + passes)
                continue
            ends = self._ends_at(id_)
            if ends <= until:
                self._over(id_, ends)
                continue
            pause = min(passes, self.pauses.get(id_, 0.0))
            self.pauses[id_] = self.pauses.get(id_, 0.0) - pause
            worked = passes - pause
            if worked > 0 and isfinite(self.left[id_]):
                share = worked / self.left[id_]
                self.outlooks[id_] = advanced(self.outlooks[id_], min(share, 1.0 - 1e-9))
                self.left[id_] -= worked
                met = worked_on(self.outlooks[id_], job.placement.gpus)
                if met is not self.outlooks[id_]:
                    self.outlooks[id_] = met
                    self._foresee(id_)
            self.jobs[id_] = replace(
                job,
                executed=job.executed + passes,
                limit_used=None
                if job.limit_used is None
                else job.limit_used + passes * limit_share(job.placement.gpus, job.requested),
                time_left=None if job.time_left is None else max(0.0, job.time_left - passes),
            )
        for id_, one in list(self.plain.items()):
            if _gives_back(one) <= until:
                assert one.placement is not None, "who waits gives nothing back"
                self._take(one.placement, times=-1)
                del self.plain[id_]
        self.now = until

    def _over(self, id_: JobId, at: Seconds) -> None:
        if id_ == self.which:
            self.end = at - self.began
            limit = ended_in(self.jobs[id_], self.outlooks[id_], self.now)
            self.at_limit = limit < self.left[id_]
        del self.jobs[id_], self.outlooks[id_], self.left[id_]

    def _cut_short(self) -> None:
        """The job is taken to stay as it is."""
        self.cut = True
        if self.which in self.left:
            self.end = self._ends_at(self.which) - self.began

    def _plain_starts(self) -> None:
        """Slurm starts whom it can of the jobs outside our hands, in its own order."""
        waiting = [one for one in self.plain.values() if one.placement is None]
        if not waiting:
            return
        nodes = tuple(self.nodes.values())
        table = Timetable.of(nodes, self.now)
        table.free -= np.array([node.taken for node in table.nodes], dtype=np.int64)
        for job in self.jobs.values():
            if job.placement is not None:
                table.take(job.placement, self.now, inf)
        for one in sorted(waiting, key=lambda one: one.place):
            found = table.earliest(request_of(one, nodes), until=self.now)
            if found is None:
                continue
            placement = found[1]
            table.take(placement, self.now, inf)
            self._take(placement, times=1)
            self.plain[one.id] = replace(one, placement=placement, started=self.now)

    def _take(self, placement: Placement, *, times: int) -> None:
        for name, gpus in placement.gpus_on:
            node = self.nodes.get(name)
            if node is not None:
                taken = min(max(0, node.taken + times * gpus), node.gpus)
                node = replace(node, taken=taken)
                # What it had beside its GPUs isn't known here.
                self.nodes[name] = replace(node, cpus=inf, memory=inf) if times < 0 else node


def _gives_back(one: PlainJob) -> Seconds:
    """When a job outside our hands ends at the latest."""
    return inf if one.placement is None or one.started is None else one.started + one.limit


def _shortened(one: PlainJob, share: float, now: Seconds) -> PlainJob:
    """It takes that share of its limit, as others did; one that has taken more, a quarter more."""
    ran = 0.0 if one.started is None else now - one.started
    return replace(one, limit=min(one.limit, max(share * one.limit, 1.25 * ran, 60.0)))


def _anew(job: Job, id_: JobId, at: Seconds) -> Job:
    """One like it that is submitted then."""
    return replace(
        job,
        id=id_,
        submitted=at,
        placement=None,
        batch=None,
        started=None,
        executed=0.0,
        waited=0.0,
        time_left=None,
        due=None,
        fixed="",
        startable=True,
        queued=False,
        keeps=None,
        share=False,
        beside=None,
    )


def _settled(job: Job) -> Job:
    """The job once what is under way is done; who waits in Slurm's own queue waits for the plan."""
    fixed = "" if any(word in job.fixed for word in TRANSIENT) else job.fixed
    return replace(job, fixed=fixed, queued=False)
