"""One guard for all policies: they propose moves, it lets pass or refuses each with a reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ones.policies.caps import SLACK, gives_back, present, taken
from ones.policies.crowding import against
from ones.policies.fitting import Together, grows
from ones.policies.forecast import by_id, move_cost, seconds_left_on
from ones.policies.model import MAX_WAIT, Job, JobId, Problem, Seconds
from ones.policies.moves import Move
from ones.policies.pace import behind
from ones.policies.placement import Room
from ones.policies.words import lasting

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operator allows, whatever the policy."""

    grace: Seconds = 60.0  # a run lasts at least this long before its job may be moved
    exempt: Seconds = 120.0  # a job this near its time limit is left to end
    max_resizes_per_hour: int = 12  # per job, preemptions included
    min_gain: float | None = 1.0
    """A resize must gain this many times its cost, cost included; None leaves it to the policy
    whether a move pays, and the guard sees to everybody's safety alone."""
    live_grace: Seconds = 15.0  # between two resizes of a job that needs no restart for them
    max_live_resizes_per_hour: int = 60
    max_wait: Seconds = MAX_WAIT  # who waited longer is started first and never preempted again
    renew_runs: bool = True
    """Whether who has had fewer GPUs than it asked for is restarted before its time limit."""
    max_slowdown: float | None = None
    """No elastic job takes more than so many times as long as its rigid run, from its submission to
    its end, as far as it can be foreseen; None: some may."""

    def __post_init__(self) -> None:
        if self.max_resizes_per_hour < 1:
            raise ValueError("max_resizes_per_hour must be at least 1")
        if self.max_live_resizes_per_hour < 1:
            raise ValueError("max_live_resizes_per_hour must be at least 1")
        times = (self.grace, self.live_grace, self.exempt, self.min_gain or 0.0, self.max_wait)
        if min(times) < 0:
            raise ValueError("grace, exempt, min_gain and max_wait must not be negative")
        if self.max_slowdown is not None and not self.max_slowdown >= 1:
            raise ValueError("max_slowdown must be at least 1")


@dataclass(frozen=True, slots=True)
class History:
    """When each job was resized or preempted, as far back as an hour."""

    moved: Mapping[JobId, Sequence[Seconds]] = field(default_factory=dict)
    live: Mapping[JobId, Sequence[Seconds]] = field(default_factory=dict)
    """The same of resizes that needed no restart."""

    def within_an_hour(self, job: JobId, now: Seconds) -> int:
        return sum(1 for at in self.moved.get(job, ()) if now - HOUR < at <= now)

    def live_within_an_hour(self, job: JobId, now: Seconds) -> int:
        return sum(1 for at in self.live.get(job, ()) if now - HOUR < at <= now)


@dataclass(frozen=True, slots=True)
class Refused:
    """A move that isn't carried out."""

    move: Move
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The moves that may be carried out, in order, and the others with the reason against each."""

    allowed: tuple[Move, ...]
    refused: tuple[Refused, ...]


def freeze(problem: Problem, history: History, limits: Limits) -> Problem:
    """The problem with each job fixed that `check` would refuse to move, so that plans avoid it."""
    reasons = {
        job.id: reason
        for job in problem.jobs
        if not job.fixed
        and job.placement is not None
        and (reason := _unmovable(problem, job, history, limits))
    }
    reasons |= _too_much_together(problem, reasons)
    return replace(
        problem,
        jobs=tuple(
            replace(job, fixed=reasons[job.id]) if job.id in reasons else job
            for job in problem.jobs
        ),
    )


def _too_much_together(problem: Problem, fixed: Collection[JobId]) -> dict[JobId, str]:
    """Who must stay because all that could be stopped would give a limit away together.

    Whoever has least of its request may move first.
    """
    lacking = [cap.lacks for cap in problem.caps]
    found: dict[JobId, str] = {}
    able = [
        job
        for job in problem.jobs
        if job.id in problem.awaited
        and job.placement is not None
        and job.keeps is None
        and not job.fixed
        and job.id not in fixed
    ]
    able.sort(key=_has_of_its_request)
    for job in able:
        if reason := _gives_back(problem, job, lacking):
            found[job.id] = reason
    return found


def _has_of_its_request(job: Job) -> tuple[bool, float, JobId]:
    """Those that have more come first: they may be stopped whatever they give back."""
    has = job.placement.gpus if job.placement is not None else 0
    return has <= job.requested, has / job.requested, job.id


def one_first(problem: Problem, limits: Limits) -> Problem:
    """The problem with only the first of the jobs that have waited too long and compete for nodes;
    the others count as if they had not.

    To a policy all of them are equal, and `check` starts none before the one that has waited
    longest: a plan that starts another one first starts nobody.
    """
    late = _starving(problem, limits)
    late.sort(key=_place_in_line)
    first: set[tuple[frozenset[str], int]] = set()  # where, and of which tier, somebody is first
    behind: set[JobId] = set()
    for job in late:
        if any(tier >= job.tier and not nodes.isdisjoint(job.nodes) for nodes, tier in first):
            behind.add(job.id)
        else:
            first.add((job.nodes, job.tier))
    if not behind:
        return problem
    return replace(
        problem,
        jobs=tuple(
            replace(job, waited=limits.max_wait) if job.id in behind else job
            for job in problem.jobs
        ),
    )


def kept_waiting(verdict: Verdict, problem: Problem, limits: Limits) -> bool:
    """Whether a job that has waited too long is not started although the plan would have it."""
    jobs = by_id(problem.jobs)
    starts = (one.move.job for one in verdict.refused if one.move.kind == "start")
    return any(id_ in jobs and _starved(jobs[id_], limits) for id_ in starts)


def _starved(job: Job, limits: Limits) -> bool:
    """Whether it waits for nothing but GPUs, and has for too long."""
    waits = job.placement is None and job.startable and not job.fixed
    return waits and job.waited > limits.max_wait


def _starving(problem: Problem, limits: Limits) -> list[Job]:
    """Who has waited too long for GPUs that the jobs of the problem could make room for.

    For others none are kept: as long as a node is down, or has jobs outside our hands, whoever
    needs it would keep all its nodes idle, and start no sooner.
    """
    late = [job for job in problem.jobs if _starved(job, limits)]
    empty = Room.of(problem.nodes) if late else None
    return [job for job in late if empty is not None and empty.holds(job)]


def _place_in_line(job: Job) -> tuple[float, ...]:
    """Who has waited longest is first."""
    return -job.waited, job.submitted, job.id


def check(moves: Sequence[Move], problem: Problem, history: History, limits: Limits) -> Verdict:
    """Sort the moves into allowed and refused; what is allowed fits together without the rest.

    A refused move takes with it the moves that needed its GPUs, and the ones that would only have
    made room for it.
    """
    jobs = by_id(problem.jobs)
    started = {move.job for move in moves if move.kind == "start"}
    starving = [job for job in _starving(problem, limits) if job.id not in started]
    refused: dict[JobId, str] = {}
    lacking = [cap.lacks for cap in problem.caps]
    for move in moves:
        job = jobs.get(move.job)
        if job is None:
            refused[move.job] = "it did not opt in, or has ended"
        elif reason := (
            _against(move, job, problem, history, limits)
            or _spared(move, job, moves, jobs, limits)
            or _starves(move, job, starving)
            or _opens(move, job, problem, lacking)
        ):
            refused[move.job] = reason
    together = Together(problem, [move for move in moves if move.job not in refused])
    while (
        fault := together.overfull() or together.over_a_cap() or together.pointless(limits.min_gain)
    ) is not None:
        move, refused[move.job] = fault
        together.without(move.job)
    return Verdict(
        tuple(together.moves),
        tuple(Refused(move, refused[move.job]) for move in moves if move.job in refused),
    )


def in_turn(verdict: Verdict, problem: Problem) -> Verdict:
    """The verdict without moves for which a limit of the site has no room before others are done.

    Slurm counts what a job holds until it has given it back, and what one is about to get.
    """
    if not problem.caps:
        return verdict
    jobs, now, nodes = by_id(problem.jobs), [], problem.by_name
    for cap in problem.caps:
        now.append(sum(present(cap, jobs[id_], nodes) for id_ in cap.takes if id_ in jobs))
    allowed, refused = [], [*verdict.refused]
    for move in verdict.allowed:
        job, why = jobs[move.job], ""
        more: dict[int, float] = {}
        if move.target is not None and move.kind != "tune" and not gives_back(job, move.target):
            for at in problem.caps_of.get(job.id, ()):
                cap = problem.caps[at]
                has, wants = present(cap, job, nodes), taken(cap, job, move.target, nodes)
                more[at] = max(0.0, wants - has)
                if wants and now[at] - has + wants > cap.left + SLACK:
                    why = f"{cap.words}; waits until others have made way"
        if why:
            refused.append(Refused(move, why))
            continue
        for at, add in more.items():
            now[at] += add
        allowed.append(move)
    return Verdict(tuple(allowed), tuple(refused))


def _unmovable(problem: Problem, job: Job, history: History, limits: Limits) -> str:
    """Why a running job may not be moved now, whatever for; empty: it may."""
    age = problem.now - job.started if job.started is not None else None
    # The run of a job that is resized live began long ago perhaps; its last resize counts as well.
    latest = max(history.live.get(job.id, ()), default=None)
    if latest is not None and problem.now - latest < limits.live_grace:
        return f"resized live {lasting(problem.now - latest)} ago"
    if job.stays and job.keeps is None:
        return job.stays
    if reason := _lost_if_stopped(problem, job):
        return reason
    grace = limits.grace if job.keeps is None else limits.live_grace
    if age is not None and age < grace:
        return f"in grace for {lasting(grace - age)} more"
    if job.time_left is not None and job.time_left < limits.exempt:
        return f"its time limit ends it in {lasting(job.time_left)}"
    if job.keeps is None and (
        history.within_an_hour(job.id, problem.now) >= limits.max_resizes_per_hour
    ):
        return f"moved {limits.max_resizes_per_hour} times within the hour"
    if history.live_within_an_hour(job.id, problem.now) >= limits.max_live_resizes_per_hour:
        return f"resized live {limits.max_live_resizes_per_hour} times within the hour"
    return ""


def _lost_if_stopped(problem: Problem, job: Job) -> str:
    """Why a job that has no more than it asked for would not come back: what it gives back of a
    limit is enough for one that waits for just that, and Slurm starts it at once.
    """
    if job.id not in problem.awaited or job.keeps is not None or job.placement is None:
        return ""
    return _given_away(problem, job, [cap.lacks for cap in problem.caps])


def _given_away(problem: Problem, job: Job, lacking: Sequence[float]) -> str:
    """The cap of which the job, stopped, gives back what one that waits for it still lacks, in
    words; empty: none.

    What it has beyond its request isn't its own. Of licences it has as many at any size.
    """
    as_asked = job.placement is not None and job.placement.gpus <= job.requested
    for cap, lacks in zip(problem.caps, lacking, strict=True):
        own = cap.awaited and (take := cap.takes.get(job.id)) and (as_asked or take.once)
        if own and present(cap, job, problem.by_name) > lacks - SLACK:
            return cap.awaited
    return ""


def _opens(move: Move, job: Job, problem: Problem, lacking: list[float]) -> str:
    """Why the stop of this job, together with those before it, would give a limit away; empty:
    it would not."""
    stops = move.kind == "preempt" or (move.kind == "resize" and not job.goes_live(move.target))
    if not stops or job.id not in problem.awaited:
        return ""
    return _gives_back(problem, job, lacking)


def _gives_back(problem: Problem, job: Job, lacking: list[float]) -> str:
    """As `_given_away`; where it gives nothing away, what it gives back is `lacking` no more."""
    if reason := _given_away(problem, job, lacking):
        return reason
    for at, cap in enumerate(problem.caps):
        if job.id in cap.takes:
            lacking[at] -= present(cap, job, problem.by_name)
    return ""


def _against(move: Move, job: Job, problem: Problem, history: History, limits: Limits) -> str:
    """What speaks against this move alone; empty: nothing."""
    if move.kind == "tune":
        return "" if job.placement == move.target else "it is not running there"
    if job.fixed:
        return f"it is fixed: {job.fixed}"
    if (move.kind == "start") != (job.placement is None):
        return "it is running already" if move.kind == "start" else "it is not running"
    if reason := _unpromised(move, job) or _shut(move, job):
        return reason
    if move.target is not None and (reason := against(job, move.target)):
        return reason
    if move.kind == "start":
        return "" if job.startable else "it waits for a reason of its own"
    if reason := _unmovable(problem, job, history, limits):
        return reason
    restarts = job.keeps is not None and not job.goes_live(move.target)
    if restarts and (reason := _unmovable(problem, replace(job, keeps=None), history, limits)):
        return reason
    if move.kind == "preempt" and job.stays:
        return job.stays
    if not grows(move, job) and (reason := behind(problem, job, move.target, limits.max_slowdown)):
        return reason
    if limits.min_gain is None:
        return ""
    outlook = problem.outlooks.get(job.id)
    if outlook is None or job.placement is None:
        return "nothing is known of its speed yet"
    cost = move_cost(job, outlook, move.target)
    what = "a restart" if restarts or job.keeps is None else "a live resize"
    if grows(move, job):
        if move.gain < (limits.min_gain - 1.0) * cost:
            return f"would end {lasting(move.gain)} sooner; {what} costs {lasting(cost)}"
        return ""
    left = seconds_left_on(problem, job, job.placement)
    if left < limits.min_gain * cost:
        return f"about {lasting(left)} to its end; {what} costs {lasting(cost)}"
    return ""


def _unpromised(move: Move, job: Job) -> str:
    """Why no allocation of Slurm's can be what a start or a restart needs; empty: one can."""
    if move.target is None or move.target.shape is not None or job.uneven:
        return ""
    # A new batch alone brings nobody and sends nobody away: where it needs a move, it is a restart.
    if move.kind == "resize" and move.target != job.placement and job.goes_live(move.target):
        return ""
    parts = [f"{gpus} GPUs on {node}" for node, gpus in move.target.gpus_on[:1]]
    parts += [f"{gpus} on {node}" for node, gpus in move.target.gpus_on[1:]]
    return f"no allocation can promise {', '.join(parts)}"


def _shut(move: Move, job: Job) -> str:
    """Where a move asks Slurm for GPUs that it starts nothing of the job on; empty: nowhere."""
    if move.target is None or not job.closed:
        return ""
    has = dict(job.placement.gpus_on) if job.goes_live(move.target) and job.placement else {}
    wants = (name for name, gpus in move.target.gpus_on if gpus > has.get(name, 0))
    shut = sorted(job.closed.intersection(wants))
    return f"it could not be started again on {shut[0]}, which is reserved" if shut else ""


def _spared(
    move: Move, job: Job, moves: Sequence[Move], jobs: Mapping[JobId, Job], limits: Limits
) -> str:
    """Who has waited long enough is not preempted again, unless it is for a higher tier."""
    if move.kind != "preempt" or job.waited <= limits.max_wait or job.placement is None:
        return ""
    own = set(job.placement.nodes)
    for other in moves:
        taker, target = jobs.get(other.job), other.target
        outranks = taker is not None and taker.tier > job.tier
        if outranks and target is not None and not own.isdisjoint(target.nodes):
            return ""
    return f"it has waited {lasting(job.waited)} in all and is not preempted again"


def _starves(move: Move, job: Job, starving: Sequence[Job]) -> str:
    """GPUs are kept for a job that has waited too long, as long as the plan doesn't start it."""
    if move.target is None or (job.placement is not None and not grows(move, job)):
        return ""
    for other in starving:
        ahead = _place_in_line(other) < _place_in_line(job) and other.tier >= job.tier
        if ahead and not other.nodes.isdisjoint(move.target.nodes):
            return f"job {other.id} has waited {lasting(other.waited)} and comes first"
    return ""
