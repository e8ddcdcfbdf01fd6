"""One job may never stop the others: it is left as it is, and the rest is decided."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.fifo import Fifo
from ones.policies.guard import History, Limits, freeze
from ones.policies.invariants import validate
from ones.policies.model import (
    MAX_WAIT,
    Assignment,
    Cap,
    Job,
    JobId,
    Node,
    Placement,
    Plan,
    Policy,
    Problem,
    Take,
)
from ones.policies.registry import make, names
from ones.policies.round import Decided, decide

NODES = a_cluster(2, 4)
Trap = Callable[[Problem], None]


@dataclass(frozen=True)
class Odd:
    """First come, first served, but wrong about some jobs, and put out by others."""

    wrong: frozenset[int] = frozenset()  # get a batch that they never asked for, or are moved
    stubborn: frozenset[int] = frozenset()  # get it although they are fixed
    fatal: frozenset[int] = frozenset()  # fails over them, fixed or not
    trap: Trap | None = None
    name: str = "odd"
    asked: list[int] = field(default_factory=list)

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        self.asked.append(len(problem.jobs))
        if self.trap is not None:
            self.trap(problem)
        if met := self.fatal.intersection(job.id for job in problem.jobs):
            raise KeyError(min(met))
        plan, _ = Fifo().plan(problem, None, rng)
        assignments = dict(plan.assignments)
        for job in problem.jobs:
            if job.id in self.stubborn or (job.id in self.wrong and not job.fixed):
                assignments[job.id] = Assignment(
                    job.placement or Placement.of({problem.nodes[0].name: 1}), 104, "wrong"
                )
        idle = {id_: why for id_, why in plan.idle.items() if id_ not in assignments}
        return Plan(assignments, idle), {"rounds": len(problem.jobs)}


def decided(problem: Problem, policy: Policy, memory: object = None) -> Decided:
    limits = Limits(grace=0.0, exempt=0.0, min_gain=None)
    rng = np.random.default_rng(0)
    return decide(problem, policy, memory, rng, history=History(), limits=limits)


def started(found: Decided) -> set[int]:
    return {int(move.job) for move in found.verdict.allowed if move.kind == "start"}


def singles(count: int, **more: object) -> list[Job]:
    return [
        a_job(i, "1", requested=1, nodes=NODES, **more)  # type: ignore[arg-type]
        for i in range(1, count + 1)
    ]


def test_a_waiting_job_that_spoils_the_plan_is_left_out_and_the_others_start() -> None:
    found = decided(a_problem(singles(3), NODES), Odd(wrong=frozenset({2})))
    assert started(found) == {1, 3}
    assert "job 2 keeps its own batch" in found.left_out[JobId(2)]
    assert found.fault == ""
    fixed = {int(job.id): job.fixed for job in found.problem.jobs}
    assert fixed[2].startswith("left out of the plan: plan refused: job 2")
    assert fixed[1] == fixed[3] == ""


def test_a_running_job_that_spoils_the_plan_stays_as_it_is() -> None:
    jobs = [replace(singles(1)[0], placement=on(n1=1), batch=8), *singles(3)[1:]]
    found = decided(a_problem(jobs, NODES), Odd(wrong=frozenset({1})))
    assert started(found) == {2, 3}
    assert set(found.left_out) == {JobId(1)}
    assert all(move.job != JobId(1) for move in found.verdict.allowed)


def test_forty_jobs_at_fault_are_left_out_at_once() -> None:
    policy = Odd(wrong=frozenset(range(2, 42)))
    found = decided(a_problem(singles(42), NODES), policy)
    assert started(found) == {1, 42}
    assert len(found.left_out) == 40
    assert len(policy.asked) == 2


@pytest.mark.parametrize("kind", ["stubborn", "fatal"])
def test_a_job_that_spoils_the_plan_even_while_fixed_is_kept_from_sight(kind: str) -> None:
    jobs = [replace(singles(1)[0], placement=on(n1=1), batch=8), *singles(9)[1:]]
    found = decided(a_problem(jobs, NODES), Odd(**{kind: frozenset({1})}))  # type: ignore[arg-type]
    assert started(found) == {2, 3, 4, 5, 6, 7, 8}  # its GPU is taken, and the ninth has to wait
    assert set(found.left_out) == {JobId(1)}
    assert [job.id for job in found.problem.jobs] == list(range(1, 10))
    assert found.problem.nodes == tuple(NODES)
    assert found.memory == {"rounds": 8}


def test_every_job_over_which_a_policy_fails_is_found() -> None:
    policy = Odd(fatal=frozenset({3, 4, 17}))
    found = decided(a_problem(singles(20), NODES), policy)
    assert set(found.left_out) == {3, 4, 17}
    assert "odd fails: KeyError" in found.left_out[JobId(3)]
    assert started(found) == {1, 2, 5, 6, 7, 8, 9, 10}
    assert len(policy.asked) < 40


def without_job(number: int) -> Callable[[Problem, History, Limits], Problem]:
    """A `freeze` that fails as soon as this job is there; over every problem, if it is 0."""

    def frozen(problem: Problem, history: History, limits: Limits) -> Problem:
        if number == 0 or any(job.id == number for job in problem.jobs):
            raise KeyError("n9")
        return freeze(problem, history, limits)

    return frozen


def test_a_job_whose_limits_make_no_sense_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ones.policies.round.freeze", without_job(2))
    jobs = singles(9)
    jobs[1] = replace(jobs[1], placement=on(n1=1), started=0.0)
    cap = Cap(words="QOS normal", left=7.0, takes={job.id: Take(gpu=1.0) for job in jobs})
    problem = a_problem(jobs, NODES, caps=(cap,))
    found = decided(problem, Odd())
    assert started(found) == {1, 3, 4, 5, 6, 7}  # job 2 has its GPU, and its part of the limit
    assert found.left_out == {JobId(2): "what it may have can't be told: KeyError: 'n9'"}
    assert found.fault == ""
    assert [job.id for job in found.problem.jobs] == list(range(1, 10))
    assert found.problem.jobs[1].fixed.startswith("left out of the plan: what it may have")
    assert (found.problem.nodes, found.problem.caps) == (problem.nodes, problem.caps)


def test_where_no_limits_make_sense_everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ones.policies.round.freeze", without_job(0))
    found = decided(a_problem(singles(3), NODES), Odd(), {"old": True})
    assert found.fault == "what jobs may have can't be told: KeyError: 'n9'"
    assert (found.verdict.allowed, found.left_out) == ((), {})
    assert found.memory == {"old": True}


def fails(_: Problem) -> None:
    raise ValueError("what it remembers\nmakes no sense")


def fails_over_two(problem: Problem) -> None:
    if {1, 2} <= {int(job.id) for job in problem.jobs}:
        raise ZeroDivisionError


@pytest.mark.parametrize("trap", [fails, fails_over_two])
def test_where_no_job_is_at_fault_everything_stays_and_the_fault_is_named(trap: Trap) -> None:
    jobs = [replace(singles(1)[0], placement=on(n1=1)), *singles(3)[1:]]
    memory = {"kept": [1]}
    found = decided(a_problem(jobs, NODES), Odd(trap=trap), memory)
    assert found.verdict.allowed == found.verdict.refused == ()
    assert found.plan.assignments == {}
    assert found.fault.startswith("the policy odd fails: ")
    assert "\n" not in found.fault
    assert found.left_out == {}
    assert set(found.plan.idle) == {2, 3}
    assert found.memory is memory


def test_an_overfull_node_names_no_job_so_everything_stays() -> None:
    @dataclass(frozen=True)
    class Greedy:
        name: str = "greedy"

        def plan(
            self, problem: Problem, memory: object, rng: np.random.Generator
        ) -> tuple[Plan, object]:
            here = Placement.of({"n1": 1})
            given_ = {job.id: Assignment(here, None, "all on one") for job in problem.jobs}
            return Plan(given_), {"new": True}

    found = decided(a_problem(singles(5), NODES), Greedy(), {"old": True})
    assert "node n1 would hold 5 GPUs" in found.fault
    assert found.verdict.allowed == ()
    assert found.memory == {"old": True}


def test_of_two_that_share_a_gpu_one_may_be_kept_from_sight() -> None:
    nodes = [replace(node, shares=True) for node in a_cluster(1, 1)]
    one, other = (
        a_job(
            i,
            "1",
            requested=1,
            nodes=nodes,
            placement=on(n1=1),
            share=True,
            beside=JobId(3 - i),
            started=float(i),
        )
        for i in (1, 2)
    )
    for at_fault in (1, 2):
        found = decided(a_problem([one, other], nodes), Odd(fatal=frozenset({at_fault})))
        assert set(found.left_out) <= {JobId(at_fault), JobId(3 - at_fault)}
        assert found.fault == ""
        assert found.verdict.allowed == ()


some = st.frozensets(st.integers(1, 12), max_size=4)


@settings(deadline=None)
@given(wrong=some, stubborn=some, fatal=some, running=some)
def test_whoever_is_at_fault_the_others_get_what_there_is_and_no_more(
    wrong: frozenset[int],
    stubborn: frozenset[int],
    fatal: frozenset[int],
    running: frozenset[int],
) -> None:
    homes = iter([f"n{i % 2 + 1}" for i in range(8)])
    jobs = [
        replace(job, placement=on(**{next(homes): 1}), batch=8) if job.id in running else job
        for job in singles(12)
    ]
    problem = a_problem(jobs, NODES)
    found = decided(problem, Odd(wrong, stubborn, fatal))
    assert found.fault == ""
    assert wrong | stubborn | fatal == set(found.left_out)
    validate(problem, replace(found.plan, idle={}))
    waiting = {int(job.id) for job in jobs if job.placement is None} - set(found.left_out)
    assert len(started(found)) == min(len(waiting), 8 - len(running))


def nodes_of_two_types() -> list[Node]:
    return a_cluster(2, 4, types=("v100", "k80"))


@pytest.mark.parametrize("name", names())
def test_no_policy_writes_into_the_memory_that_it_was_handed(name: str) -> None:
    """Where its plan is refused the next one is made from the same memory."""
    nodes = nodes_of_two_types()
    jobs = [a_job(i, "1-4", nodes=nodes) for i in range(1, 5)]
    policy, memory = make(name), None
    for number in range(3):
        problem = a_problem(jobs, nodes, now=1000.0 + 60.0 * number)
        before = copy.deepcopy(memory)
        rng = np.random.default_rng(number)
        plan, after = policy.plan(problem, memory, rng)
        assert memory == before
        jobs = [
            replace(job, placement=plan.assignments[job.id].placement, started=0.0)
            if job.id in plan.assignments
            else replace(job, placement=None)
            for job in jobs
        ]
        memory = after


def test_of_two_that_have_waited_too_long_both_are_started_where_there_is_room() -> None:
    jobs = [replace(job, waited=2 * MAX_WAIT - int(job.id)) for job in singles(2)]
    other = a_job(3, "1", requested=1, nodes=NODES)
    nodes = [replace(NODES[0], taken=2), replace(NODES[1], taken=4)]
    left = {1: 9000.0, 2: 9000.0, 3: 10.0}
    problem = a_problem([*jobs, other], nodes, now=3 * MAX_WAIT, left=left)
    found = decided(problem, make("ones", max_wait=MAX_WAIT))
    assert started(found) == {1, 2}


@pytest.mark.parametrize("policy", sorted(names()))
@pytest.mark.parametrize(
    "waited", [(2.5 * MAX_WAIT, 2 * MAX_WAIT), (1.5 * MAX_WAIT, 1.5 * MAX_WAIT)]
)
def test_of_two_that_have_waited_too_long_the_first_is_started(
    policy: str, waited: tuple[float, float]
) -> None:
    """The policy may make more of the other one, which nobody starts before it."""
    nodes = [replace(NODES[0], taken=3), replace(NODES[1], taken=4)]
    jobs = [replace(job, waited=since) for job, since in zip(singles(2), waited, strict=True)]
    problem = a_problem(jobs, nodes, now=3 * MAX_WAIT, left={1: 9000.0, 2: 100.0})
    found = decided(problem, make(policy, max_wait=MAX_WAIT))
    assert started(found) == {1}, found.verdict.refused
