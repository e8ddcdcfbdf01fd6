"""Everything that a round decides, as one pure function; onesd and replays call the same.

It knows no clock, file, socket or Slurm: whoever calls it observes before, and acts afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from ones.policies.caps import too_large
from ones.policies.guard import History, Limits, Refused
from ones.policies.model import Job, JobId, Node, Pairs, Placement, Plan, Policy, Problem, Seconds
from ones.policies.moves import Move
from ones.policies.pace import in_time, with_dues
from ones.policies.parting import OpenPair, partings, without_parted
from ones.policies.renewal import renewals
from ones.policies.reserve import reserve
from ones.policies.rigid import PlainJob, Rigid, place_of, step
from ones.policies.round import Decided, decide
from ones.policies.shapes import own_forms
from ones.policies.vacancy import Ends, vacancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a waiting job's data have to say to its start."""

    note: str = ""  # why it waits for its data; empty: they are there
    to_begin: bool = False  # whether its stage-in job is still to be let run
    only_on: frozenset[str] = frozenset()  # the nodes with its data; empty: any


@dataclass(frozen=True, slots=True)
class StageIn:
    """Where a job's data go, and how soon its GPUs there are foretold to be free."""

    nodes: tuple[str, ...]
    left: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that a round decides by."""

    problem: Problem  # as estimated: nothing kept, gated or paired yet
    history: History
    limits: Limits
    strictness: float = 0.0  # how far Slurm's priority counts within a tier; see Problem
    plain: Sequence[PlainJob] | None = None
    """Jobs outside our hands that hold GPUs or wait for them; None: there never are any."""
    without_gpus: Sequence[PlainJob] = ()
    """Jobs outside our hands that need no GPU, and wait for CPUs or memory of GPU nodes."""
    rigid: Rigid | None = None  # the last answer's
    failed: frozenset[JobId] = frozenset()
    """Elastic jobs that have ended without being done: cancelled, failed, at their time limits."""
    gates: Mapping[JobId, Gate] = field(default_factory=dict)
    staged: Mapping[JobId, tuple[str, ...]] = field(default_factory=dict)
    """Waiting jobs whose data are, or will be, on these nodes."""
    ends: Mapping[str, Ends] = field(default_factory=dict)
    """Node -> when jobs outside our hands give GPUs back, at their time limits."""
    lead: Seconds = 0.0  # how long before its GPUs are free a job's data may be brought in
    pairs: Pairs = field(default_factory=dict)  # who may share a GPU
    together: Sequence[OpenPair] = ()  # the pairs that do
    moving: frozenset[JobId] = frozenset()  # jobs with a move under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the round comes to, before anything is done about it."""

    problem: Problem  # with the jobs that may not be moved marked as fixed
    plan: Plan
    moves: tuple[Move, ...]  # to begin, in order
    refused: tuple[Refused, ...]
    stage_ins: Mapping[JobId, StageIn]  # of jobs whose stage-in job may run now
    left_out: Mapping[JobId, str]  # jobs that no plan could be made with, with why
    fault: str  # why everything stays as it is; empty: it was decided
    memory: object  # for the policy's next round
    rigid: Rigid | None = None  # what Slurm would have done by now, were elastic jobs rigid
    from_slurm: frozenset[JobId] = frozenset()
    """Jobs that lose theirs, because they keep a plain job waiting whose turn it is by now."""
    to_slurm: frozenset[JobId] = frozenset()
    """Waiting jobs that get a place in Slurm's own queue; plain jobs behind them would go first."""
    capped: Mapping[JobId, str] = field(default_factory=dict)
    """Jobs that got less than the policy wanted for them, and the site's limit that says so."""


def answer(question: Question, policy: Policy, memory: object, rng: np.random.Generator) -> Answer:
    """Room for plain jobs, gates, the policy's plan, the guard, partings, stage-ins."""
    rigid, nodes, due = _room(question)
    back = _in_the_way(question, rigid)
    problem = replace(
        question.problem,
        nodes=nodes,
        jobs=tuple(
            # Whose turn it is in Slurm's queue has its room there.
            replace(job, startable=False)
            if job.id in due
            else gated(job, question.gates.get(job.id))
            for job in question.problem.jobs
        ),
        pairs=question.pairs,
        strictness=question.strictness,
    )
    limits = question.limits
    if limits.max_slowdown is not None:
        problem = with_dues(problem, rigid)
        problem = in_time(problem, limits.max_slowdown, max_wait=limits.max_wait)
    waiting = frozenset(job for job, gate in question.gates.items() if gate.to_begin)
    drawn = rng.bit_generator.state if waiting else {}
    decided = _decided(problem, question, policy, memory, rng)
    begin: Mapping[JobId, StageIn] = {}
    if waiting:
        # Where would they start if their data were there? The same question, with the same draws.
        rng.bit_generator.state = drawn
        ready = replace(problem, jobs=tuple(_startable(job, waiting) for job in problem.jobs))
        shadow = _decided(ready, question, policy, memory, rng)
        starts = {
            move.job: move.target
            for move in shadow.verdict.allowed
            if move.kind == "start" and move.target is not None
        }
        begin = stage_ins(ready, waiting, starts, question)
    gone = partings(problem, question.together, question.moving)
    moves = without_parted(decided.verdict.allowed, gone)
    if limits.renew_runs:
        moving = question.moving.union(move.job for move in moves)
        moves = [*moves, *renewals(problem, moving)]
    notes = {job: gate.note for job, gate in question.gates.items() if gate.note}
    return Answer(
        problem=decided.problem,
        plan=replace(decided.plan, idle={**decided.plan.idle, **notes}),
        moves=tuple(moves),
        refused=decided.verdict.refused,
        stage_ins=begin,
        left_out=decided.left_out,
        fault=decided.fault,
        memory=decided.memory,
        rigid=rigid,
        from_slurm=back,
        to_slurm=_to_queue(decided, question) - back,
        capped=decided.capped,
    )


def _in_the_way(question: Question, rigid: Rigid | None) -> frozenset[JobId]:
    """Elastic jobs that wait, or would, in Slurm's queue before a plain one that is owed its GPUs,
    and aren't owed any themselves: Slurm would keep nodes for them."""
    if rigid is None:
        return frozenset()
    plain = question.plain or ()
    owed = rigid.owed(plain)
    waiting = {job.nodes for job in plain if job.id in owed}
    return frozenset(
        job.id
        for job in question.problem.jobs
        if job.placement is None
        and job.id not in rigid.claims
        and any(not job.nodes.isdisjoint(nodes) for nodes in waiting)
    )


def _to_queue(decided: Decided, question: Question) -> frozenset[JobId]:
    """Who waits, is not started now, and would be passed by plain jobs that are behind it.

    Held, a job has no place in Slurm's queue.
    """
    started = {move.job for move in decided.verdict.allowed}
    last: dict[frozenset[str], tuple[float, ...]] = {}  # nodes -> who is last in line there
    for one in question.plain or ():
        if one.placement is None:
            last[one.nodes] = max(one.place, last.get(one.nodes, one.place))
    return frozenset(
        job.id
        for job in decided.problem.jobs
        if job.startable
        and job.placement is None
        and not job.queued
        and not job.fixed
        and job.id not in started
        and job.id not in decided.capped
        and job.id not in question.gates
        and job.id not in question.moving
        and any(
            place_of(job) < place and not job.nodes.isdisjoint(nodes)
            for nodes, place in last.items()
        )
    )


def _room(question: Question) -> tuple[Rigid | None, tuple[Node, ...], frozenset[JobId]]:
    """The nodes with room for plain jobs in Slurm's order, and with what they are owed; and the
    jobs in Slurm's queue that are given room as plain ones, because it is their turn."""
    problem, plain = question.problem, question.plain
    if plain is None:
        return None, problem.nodes, frozenset()
    rigid = step(question.rigid, problem, plain, failed=question.failed)
    # Who has run was stopped for others' sake: to stop them for it again would go on for ever.
    queued = [job for job in problem.jobs if job.queued and not job.executed]
    turns = [job for job in queued if job.id in rigid.claims]
    # What Slurm would not start at its request, for a limit, may have less of us meanwhile.
    limited = too_large(problem, turns)
    due = frozenset(job.id for job in turns if job.id not in limited)
    ours = [_as_plain(job) for job in problem.jobs if job.id in due]
    nodes = reserve(
        problem.nodes,
        [job for job in problem.jobs if job.id not in due],
        [*(job for job in plain if job.placement is None), *ours, *question.without_gpus],
        owed=rigid.owed([*plain, *ours]),
        claimed=rigid.claims.keys(),
        ended=rigid.ended_sooner(problem.jobs),
    )
    return rigid, tuple(nodes), due


def _as_plain(job: Job) -> PlainJob:
    return PlainJob(
        id=job.id,
        submitted=job.submitted,
        gpus=job.requested,
        nodes=job.nodes,
        tier=job.tier,
        priority=job.priority,
        shapes=() if job.uneven else own_forms(job.shapes, job.requested, job.requested_nodes),
        least_nodes=max(1, job.requested_nodes),
        limit=inf if job.time_limit is None else job.time_limit,
    )


def _decided(
    problem: Problem,
    question: Question,
    policy: Policy,
    memory: object,
    rng: np.random.Generator,
) -> Decided:
    return decide(problem, policy, memory, rng, history=question.history, limits=question.limits)


def gated(job: Job, gate: Gate | None) -> Job:
    """A job that waits for its data isn't started; one whose data are there starts with them."""
    if gate is None:
        return job
    if gate.note:
        return replace(job, startable=False)
    there = job.nodes & gate.only_on
    shapes = tuple(shape for shape in job.shapes if shape.nodes <= len(there))
    return replace(job, nodes=there, shapes=shapes) if there and shapes else job


def _startable(job: Job, which: frozenset[JobId]) -> Job:
    return replace(job, startable=job.startable or job.id in which)


def stage_ins(
    problem: Problem,
    waiting: frozenset[JobId],
    starts: Mapping[JobId, Placement],
    question: Question,
) -> dict[JobId, StageIn]:
    """Where the job would start now, or where its GPUs are foretold to be free soon enough."""
    found: dict[JobId, StageIn] = {}
    for job, nodes in question.staged.items():
        problem = _seated(problem, job, nodes)
    for waiter in [job for job in problem.jobs if job.id in waiting]:
        if waiter.id in starts:
            found[waiter.id] = StageIn(starts[waiter.id].nodes, 0.0)
        else:
            soon = vacancy(problem, waiter, question.ends)
            if soon is None or soon[0] > question.lead:
                continue
            found[waiter.id] = StageIn(soon[1], soon[0])
        problem = _seated(problem, waiter.id, found[waiter.id].nodes)
    return found


def _seated(problem: Problem, which: JobId, nodes: Sequence[str]) -> Problem:
    """The problem with a waiting job on its nodes: others are foretold to come after it."""
    jobs = tuple(
        replace(job, placement=Placement.of(dict.fromkeys(nodes, job.requested // len(nodes))))
        if job.id == which and job.placement is None and 0 < len(nodes) <= job.requested
        else job
        for job in problem.jobs
    )
    return replace(problem, jobs=jobs)
