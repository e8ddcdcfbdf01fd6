"""What would become of one job, were it submitted now: the round's own decisions, rolled forward.

The present jobs do what is left of their work at the speeds believed of them, others come as they
have come lately, and the policy in force decides in between, as it will: whoever is long gets what
those that come leave him, so that without them every forecast of a busy cluster is far too early.
Like `deciding` it knows no clock, file, socket or Slurm; what it may spend is counted by whoever
calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, isfinite, log
from statistics import NormalDist, fmean, median

import numpy as np

from ones.daemon.onesd.deciding import Answer, Question, answer
from ones.estimator.assess import ENOUGH, Knowledge, Priors, assess
from ones.estimator.experience import Experience
from ones.estimator.speed import SCALING, AssumedSpeed, LearntSpeed
from ones.policies.forecast import seconds_left_as_requested, seconds_left_on
from ones.policies.guard import HOUR, History
from ones.policies.model import (
    Floats,
    Ints,
    Job,
    JobId,
    Node,
    Outlook,
    Placement,
    Policy,
    Problem,
    Seconds,
    Segment,
)
from ones.policies.moves import Move
from ones.policies.rigid import PlainJob
from ones.policies.timetable import Request, Timetable

DRAWS = 7  # the first as believed, the others with lengths drawn as wide as they are known
QUANTILES = (
    0.5,
    0.85,
    0.15,
    0.7,
    0.3,
    0.95,
    0.05,
)  # of the job's own length, in each draw: alike everywhere
GUESSED = 0.7  # standard deviation of ln(length) where nothing tells it
MOST_ROUNDS = 2000  # of one draw
LONGEST_STEP = 40  # rounds that one stands for, while nothing happens
DETAIL = 40  # of the time foreseen so far, a step is this part at least
LEAST_WATCHED: Seconds = 1200.0  # that arrivals must have been watched before they count
ENOUGH_ENDED = 3  # plain jobs that have ended, before it counts how much of their limit they took
FARTHEST: Seconds = 90 * 86400.0
TRANSIENT = (" under way", "it is completing", "it is configuring", "it has not yet said")
LEAST = 1e-4  # of a job's progress, at either end
STANDARD = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A job that is not there, or waits: what would become of it is the question."""

    job: Job
    length: Seconds | None = None  # at the size that it asks for; None: what is known here
    spread: float | None = None  # standard deviation of ln(length); None: what is known here


@dataclass(frozen=True, slots=True)
class Came:
    """An elastic job that came lately, with its outlook; or another one, with how long it took."""

    job: Job | PlainJob
    outlook: Outlook | None = None
    seconds: Seconds | None = None  # None: it has not ended


@dataclass(frozen=True, slots=True)
class Lately:
    """Who came since a time, in the order in which they came."""

    since: Seconds
    came: tuple[Came, ...] = ()


@dataclass(frozen=True, slots=True)
class Length:
    """How long a job takes at the size that it asks for, and what tells it."""

    seconds: Seconds
    spread: float  # standard deviation of its logarithm
    told: str  # in words
    guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is foreseen of a job; times are seconds from the round that it begins with."""

    start: Seconds | None = None  # None: it runs already, or no start is foreseen
    end: Seconds | None = None  # None: no end is foreseen
    gpus: int = 0  # at first
    nodes: tuple[str, ...] = ()  # at first
    resizes: int = 0
    at_limit: bool = False  # whether it is its time limit that ends it
    why: str = ""  # why no end is foreseen
    ends: tuple[Seconds | None, ...] = ()  # one of each draw; `end` is their geometric mean


def with_newcomer(
    question: Question,
    newcomer: Newcomer,
    experience: Experience,
    *,
    lately: Lately,
    priors: Priors,
    knowledge: Knowledge,
) -> tuple[Question, Length]:
    """The round's question with the job among its jobs, and what is believed of its length."""
    job, problem = newcomer.job, question.problem
    known = problem.outlooks.get(job.id)
    if known is None:
        known = assess(
            now=problem.now,
            nodes=problem.nodes,
            jobs=[job],
            experience=experience,
            round_seconds=problem.round_seconds,
            priors=replace(priors, job_seconds=_typical(problem, lately, priors)),
            knowledge=knowledge,
        ).outlooks[job.id]
    jobs = tuple(one for one in problem.jobs if one.id != job.id)
    problem = replace(problem, jobs=(*jobs, job), outlooks={**problem.outlooks, job.id: known})
    whole = seconds_left_as_requested(problem, job)
    spread = _spread(known) if newcomer.spread is None else newcomer.spread
    length = Length(whole, spread, *_basis(known))
    if newcomer.length is not None and 0 < whole < inf:
        length = Length(newcomer.length, spread, "as it was asked", guessed=False)
        known = _scaled(known, newcomer.length / whole)
        problem = replace(problem, outlooks={**problem.outlooks, job.id: known})
    return replace(question, problem=problem), length


def _basis(outlook: Outlook) -> tuple[str, bool]:
    if outlook.guessed:
        return "a guess: no job of its user and name has told", True
    speed = "" if outlook.points else "; its speed is a guess"
    return f"as jobs of its user and name took or declare{speed}", False


def _typical(problem: Problem, lately: Lately, priors: Priors) -> Seconds:
    """How long a job of which nothing is known lasts at its requested size: as those that came.

    Not as those that are there: the long ones are there for longer.
    """
    known = [
        _whole(problem, one.job, one.outlook)
        for one in lately.came
        if isinstance(one.job, Job)
        and one.outlook is not None
        and not one.outlook.guessed
        and one.outlook.points
    ]
    finite = [seconds for seconds in known if 0 < seconds < inf]
    return median(finite) if len(finite) >= ENOUGH else priors.job_seconds


def _whole(problem: Problem, job: Job, outlook: Outlook) -> Seconds:
    """From its beginning to its end at the size that it asks for."""
    begun = _from_its_beginning(outlook)
    return seconds_left_as_requested(replace(problem, outlooks={job.id: begun}), job)


def forecast(
    question: Question,
    job: JobId,
    policy: Policy,
    memory: object,
    *,
    lately: Lately,
    seed: Sequence[int],
    generator: Callable[[Sequence[int]], np.random.Generator],
    wake: Seconds | None = None,
    spent: Callable[[], float] = lambda: 0.0,
    most: float = inf,
    draws: int = DRAWS,
    spread: float = GUESSED,
) -> Forecast:
    """What becomes of the job among the others, over some draws of what nobody knows.

    `lately`: who has come, of whom others are taken to come again. `spread`: standard deviation of
    ln(length) of the job itself.
    `wake`: from an event to the round for it; None: rounds wait for their time. `spent` counts what
    this has cost, of which there is `most`: no draw is begun that would go beyond it.
    """
    found: Forecast | None = None
    ends: list[Seconds | None] = []
    starts: list[Seconds] = []
    for draw in range(draws):
        begun = spent()
        rng = generator([*seed, draw])
        drawn = (
            question
            if draw == 0
            else _drawn(question, job, spread * STANDARD.inv_cdf(QUANTILES[draw]), rng)
        )
        course = _Course.of(drawn, job, policy, memory=memory, rng=rng, wake=wake)
        course.expect(lately)
        one = course.run(lambda: spent() > most)
        if found is None:
            found = one
        elif course.cut:
            break
        ends.append(one.end)
        starts += [] if one.start is None else [one.start]
        if one.end is None or spent() + (spent() - begun) > most:
            break
    assert found is not None, "the first draw is always made"
    known = [max(1.0, end) for end in ends if end is not None]
    return replace(
        found,
        start=median(starts) if starts else None,
        end=exp(fmean(log(end) for end in known)) if found.end is not None else None,
        ends=tuple(ends),
    )


def _drawn(question: Question, which: JobId, own: float, rng: np.random.Generator) -> Question:
    """The question with every job's length drawn; `own`: ln of how many times as long the job is,
    which is the same wherever it is asked."""
    problem, outlooks = question.problem, {}
    for job in problem.jobs:
        outlook = problem.outlooks.get(job.id)
        if outlook is None:
            continue
        times = own if job.id == which else float(rng.standard_normal()) * _spread(outlook)
        outlooks[job.id] = _scaled(outlook, exp(times))
    return replace(question, problem=replace(problem, outlooks=outlooks))


def _spread(outlook: Outlook) -> float:
    """Standard deviation of ln(seconds to go), as far as the outlook tells it."""
    total = outlook.alpha + outlook.beta
    mean = outlook.alpha / total
    length = GUESSED
    if not outlook.guessed and outlook.processed > 0:
        # What is left is (1 - p) / p of what is done.
        deviation = (mean * (1.0 - mean) / (total + 1.0)) ** 0.5
        length = min(GUESSED, deviation / max(mean * (1.0 - mean), LEAST))
    elif not outlook.guessed:
        length = min(GUESSED, 1.0 / max(outlook.alpha, 1.0) ** 0.5 * 0.3)
    return float(min((length**2 + outlook.speed_error**2) ** 0.5, 1.0))


def _scaled(outlook: Outlook, times: float) -> Outlook:
    """So many times as much still to do."""
    return replace(
        outlook,
        remaining=outlook.remaining * times,
        segments=tuple(replace(one, samples=one.samples * times) for one in outlook.segments),
    )


def _advanced(outlook: Outlook, share: float) -> Outlook:
    """That share of what is left has been done."""
    done = outlook.remaining * share
    processed, remaining = outlook.processed + done, max(outlook.remaining - done, 1e-9)
    mean = min(max(processed / (processed + remaining), LEAST), 1.0 - LEAST)
    strength = max(outlook.alpha + outlook.beta, 1.0 / min(mean, 1.0 - mean))
    return replace(
        outlook,
        processed=processed,
        remaining=remaining,
        alpha=mean * strength,
        beta=(1.0 - mean) * strength,
        segments=_from(outlook.segments, share),
    )


def _from(segments: Sequence[Segment], share: float) -> tuple[Segment, ...]:
    """What is left of them once that share of all their samples is done, from the front."""
    gone = share * sum(one.samples for one in segments)
    left = []
    for one in segments:
        done = min(gone, one.samples)
        gone -= done
        if one.samples > done:
            left.append(replace(one, samples=one.samples - done))
    return tuple(left) or tuple(segments[-1:])


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is expected of a job of unknown speed once it has run: it scales as jobs do."""

    sample_seconds: Seconds  # at the size that it asks for
    requested: int
    most: int  # GPUs beyond which nothing is promised, until it has run on more
    factors: Mapping[str, float]

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        size = np.minimum(np.asarray(gpus, dtype=np.float64), self.most) / self.requested
        scale = self.sample_seconds * self.factors.get(gpu_type, 1.0)
        seconds = scale * np.asarray(global_batch, dtype=np.float64) / size**SCALING
        return np.asarray(seconds + 0.0 * np.asarray(nodes), dtype=np.float64)


def _met(outlook: Outlook, gpus: int) -> Outlook:
    """After some work on so many GPUs: as the estimator does, twice as many are thought of next."""
    speed = outlook.speed
    if isinstance(speed, AssumedSpeed):
        most = max(2 * gpus, speed.requested)
        shown = _Shown(speed.sample_seconds, speed.requested, most, speed.factors)
        return replace(outlook, speed=shown, points=1)
    if isinstance(speed, _Shown) and speed.most < 2 * gpus:
        return replace(outlook, speed=replace(speed, most=2 * gpus))
    if isinstance(speed, LearntSpeed) and speed.most < 2 * gpus:
        return replace(outlook, speed=replace(speed, most=2 * gpus, _errors={}, _answers={}))
    return outlook


@dataclass(slots=True, kw_only=True)
class _Course:
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
    ) -> _Course:
        problem = question.problem
        course = cls(
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
                course.pauses[job.id] = problem.outlooks[job.id].restart_cost
        there = course.jobs[which].placement
        course.start, course.first = (0.0, there) if there is not None else (None, None)
        return course

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
                self.outlooks[id_] = _from_its_beginning(one.outlook)
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
        goes_live = outlook.live_cost is not None and job.goes_live(target)
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
        one = self.jobs[job]
        limit = inf if one.time_left is None else one.time_left
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
                self.outlooks[id_] = _advanced(self.outlooks[id_], min(share, 1.0 - 1e-9))
                self.left[id_] -= worked
                met = _met(self.outlooks[id_], job.placement.gpus)
                if met is not self.outlooks[id_]:
                    self.outlooks[id_] = met
                    self._foresee(id_)
            self.jobs[id_] = replace(
                job,
                executed=job.executed + passes,
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
            limit = self.jobs[id_].time_left
            self.at_limit = limit is not None and limit < self.left[id_]
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
            found = table.earliest(
                Request(
                    id=one.id,
                    place=one.place,
                    gpus=one.gpus,
                    nodes=one.nodes,
                    shapes=one.forms(nodes),
                    limit=one.limit,
                    one_type=False,
                    began=None,
                    whole=None,
                ),
                until=self.now,
            )
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
                self.nodes[name] = replace(node, taken=taken)


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


def _from_its_beginning(outlook: Outlook) -> Outlook:
    whole = outlook.processed + outlook.remaining
    begun = _scaled(outlook, whole / outlook.remaining)
    strength = 1.0 / LEAST
    return replace(begun, processed=0.0, alpha=LEAST * strength, beta=(1.0 - LEAST) * strength)


def _settled(job: Job) -> Job:
    """The job once what is under way is done; who waits in Slurm's own queue waits for the plan."""
    fixed = "" if any(word in job.fixed for word in TRANSIENT) else job.fixed
    return replace(job, fixed=fixed, queued=False)
