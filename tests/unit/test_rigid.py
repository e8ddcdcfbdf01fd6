"""The queue in which every elastic job is rigid, and the room that plain jobs get by it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on, unusable

from ones.daemon.onesd.deciding import Question, answer
from ones.policies.guard import History, Limits
from ones.policies.model import Job, JobId, Node, Problem, Shape
from ones.policies.registry import make
from ones.policies.reserve import reserve
from ones.policies.rigid import Claim, PlainJob, Rigid, place_of, step

NODES = a_cluster(2, 4)
NAMES = frozenset(node.name for node in NODES)


def plain(id_: int, gpus: int = 4, **more: object) -> PlainJob:
    fields = {"submitted": float(id_), "nodes": NAMES, "limit": 600.0}
    return PlainJob(id=JobId(id_), gpus=gpus, **(fields | more))  # type: ignore[arg-type]


def elastic(id_: int, requested: int = 4, **more: object) -> Job:
    fields = {"time_limit": 3600.0}
    return a_job(id_, requested=requested, nodes=NODES, **(fields | more))  # type: ignore[arg-type]


def at(now: float, *jobs: Job, left: float = 400.0, nodes: list[Node] | None = None) -> Problem:
    lengths = {int(job.id): left for job in jobs}
    return a_problem(list(jobs), nodes or NODES, now=now, left=lengths)


def claims(rigid: Rigid) -> set[int]:
    return {int(id_) for id_ in rigid.claims}


def room(problem: Problem, *waiting: PlainJob, **more: object) -> list[int]:
    found = reserve(problem.nodes, problem.jobs, waiting, **more)  # type: ignore[arg-type]
    return [node.taken for node in sorted(found, key=lambda node: node.name)]


class TestTheRigidQueue:
    def test_at_first_who_runs_has_started_at_its_request(self) -> None:
        big = elastic(1, 8, placement=on(n1=2))
        rigid = step(None, at(1000.0, big), [])
        assert rigid.claims[big.id].placement == on(n1=4, n2=4)

    def test_a_plain_job_that_would_run_by_now_is_owed_its_gpus(self) -> None:
        grown = elastic(1, 4, placement=on(n1=4, n2=4))
        waits = plain(2)
        assert step(None, at(1000.0, grown), [waits]).owed([waits]) == {2}

    def test_one_that_would_still_wait_is_not(self) -> None:
        full = elastic(1, 8, placement=on(n1=1))
        waits = plain(2)
        assert step(None, at(1000.0, full), [waits]).owed([waits]) == set()

    def test_one_that_runs_is_owed_nothing(self) -> None:
        runs = plain(2, placement=on(n1=4), started=900.0)
        rigid = step(None, at(1000.0), [runs])
        assert claims(rigid) == {2}
        assert rigid.owed([runs]) == set()

    def test_the_better_priority_goes_first_and_the_other_is_backfilled_where_it_is_short(
        self,
    ) -> None:
        runs = plain(1, placement=on(n1=4), started=900.0, limit=300.0)  # to 1200
        wide = plain(2, 8, shapes=(Shape(2, 4),), priority=9)
        for limit, starts in ((100.0, {1, 3}), (500.0, {1})):
            short = plain(3, limit=limit)
            before = step(None, at(950.0), [runs])
            assert claims(step(before, at(1000.0), [runs, wide, short])) == starts

    def test_an_elastic_job_that_waits_stands_in_the_order_too(self) -> None:
        ahead, behind = elastic(1, 8, priority=9), elastic(1, 8, priority=0)
        waits = plain(2, priority=5)
        before = Rigid()
        assert claims(step(before, at(1000.0, ahead), [waits])) == {1}
        assert claims(step(before, at(1000.0, behind), [waits])) == {2}

    def test_an_elastic_job_runs_there_as_long_as_it_would_take_at_its_request(self) -> None:
        small = elastic(1, 8, placement=on(n1=1), started=1000.0)
        waits = plain(2)
        rigid = step(None, at(1000.0, small), [waits])
        whole = rigid.requests[small.id].whole
        assert whole is not None
        soon, late = 1000.0 + whole - 1, 1000.0 + whole
        rigid = step(rigid, at(soon, small), [waits])
        assert rigid.owed([waits]) == set()
        rigid = step(rigid, at(late, small), [waits])
        assert rigid.owed([waits]) == {2}
        assert rigid.through == {1}
        # It does not begin there again.
        assert claims(step(rigid, at(late + 60, small), [waits])) == {2}

    def test_who_ends_sooner_in_truth_goes_on_there(self) -> None:
        fast = elastic(1, 4, placement=on(n1=4, n2=4), started=1000.0)
        rigid = step(None, at(1000.0, fast), [])
        assert claims(step(rigid, at(1060.0), [])) == {1}
        assert claims(step(rigid, at(9000.0), [])) == set()

    def test_an_elastic_job_that_has_failed_leaves(self) -> None:
        runs, fast = (
            plain(1, placement=on(n2=4), started=900.0),
            elastic(2, placement=on(n1=4), started=1000.0),
        )
        before = step(None, at(1000.0, fast), [runs])
        assert claims(before) == {1, 2}
        after = step(before, at(1060.0), [], failed={JobId(1), fast.id})
        assert claims(after) == set()
        assert after.ended_sooner([]) == []
        assert claims(step(before, at(1060.0), [])) == {2}

    def test_what_who_has_ended_sooner_would_hold_is_known_of_elastic_jobs_alone(self) -> None:
        fast = elastic(1, 4, placement=on(n1=4, n2=4), started=1000.0)
        stays, runs = elastic(2, 2), plain(3, 2, placement=on(n2=2), started=900.0)
        before = step(None, at(1000.0, fast, stays), [runs])
        after = step(before, at(1060.0, stays), [runs])
        assert claims(after) == {1, 2, 3}
        assert after.ended_sooner([stays]) == [(NAMES, 4)]

    def test_who_was_cancelled_while_it_waited_leaves(self) -> None:
        runs, waits = plain(1, 8, placement=on(n1=4, n2=4), started=900.0), plain(2)
        rigid = step(None, at(1000.0), [runs, waits])
        assert set(rigid.requests) == {1, 2}
        assert set(step(rigid, at(1060.0), [runs]).requests) == {1}

    def test_a_job_without_end_keeps_nobody_waiting_for_a_sum(self) -> None:
        forever = plain(1, placement=on(n1=4), started=0.0, limit=inf)
        wide, narrow = plain(2, 8, shapes=(Shape(2, 4),), priority=9), plain(3)
        assert claims(step(None, at(1000.0), [forever, wide, narrow])) == {1, 3}

    def test_nodes_that_are_down_hold_nobody(self) -> None:
        nodes = [NODES[0], unusable(NODES[1])]
        waits = plain(2, 8, shapes=(Shape(2, 4),))
        assert step(None, at(1000.0, nodes=nodes), [waits]).owed([waits]) == set()


@pytest.mark.parametrize(("executed", "moves"), [(0.0, ["preempt"]), (600.0, [])])
def test_nobody_is_stopped_for_the_turn_of_who_was_stopped_before(
    executed: float, moves: list[str]
) -> None:
    """The policy has stopped it for a shorter one; in Slurm's queue its turn has long come."""
    claimed = elastic(1, 8, sizes="8", queued=True, executed=executed)
    shorter = elastic(2, 8, sizes="8", placement=on(n1=4, n2=4), started=900.0)
    question = Question(
        problem=a_problem([claimed, shorter], NODES, left={1: 90000.0, 2: 2000.0}),
        history=History(),
        limits=Limits(),
        plain=(),
        rigid=Rigid({claimed.id: Claim(0.0, on(n1=4, n2=4))}),
    )
    found = answer(question, make("ones"), None, np.random.default_rng(0))
    assert found.rigid is not None
    assert claimed.id in found.rigid.claims
    assert [move.kind for move in found.moves] == moves


class TestRoom:
    def test_it_is_made_beyond_the_requests_of_those_ahead(self) -> None:
        grown = elastic(1, 2, priority=9, placement=on(n1=4, n2=4))
        assert room(at(0.0, grown), plain(2, 4)) == [4, 0]
        assert room(at(0.0, replace(grown, requested=8)), plain(2, 4)) == [0, 0]

    def test_it_is_made_in_a_form_that_the_job_can_have(self) -> None:
        """Three GPUs here and one there are no use to who needs four on one node, or two on two."""
        first = elastic(1, 1, placement=on(n1=1, n2=3))
        even = plain(2, 4, shapes=(Shape(1, 4), Shape(2, 2)))
        assert room(at(0.0, first), even) == [4, 0]
        held = plain(3, 1, shapes=(Shape(1, 1),))
        problem = at(0.0, nodes=[replace(NODES[0], taken=1), replace(NODES[1], taken=3)])
        assert room(problem, even) == [1, 3]
        assert room(problem, held) != [1, 3]

    def test_those_who_run_keep_what_they_have_of_their_requests(self) -> None:
        behind = elastic(1, 8, placement=on(n1=4, n2=4))
        assert room(at(0.0, behind), plain(2, 4, priority=5)) == [0, 0]
        assert room(at(0.0, replace(behind, requested=4)), plain(2, 4, priority=5)) == [4, 0]

    def test_what_is_owed_is_not_given_by_those_who_would_run_as_well(self) -> None:
        runs, waits = elastic(1, 8, placement=on(n1=4, n2=4)), plain(2, 4, priority=5)
        assert room(at(0.0, runs), waits, owed={waits.id}) == [4, 0]
        assert room(at(0.0, runs), waits, owed={waits.id}, claimed={runs.id}) == [0, 0]

    def test_what_one_elastic_job_leaves_to_another_is_not_owed_to_a_plain_one(self) -> None:
        """A long job was stopped for a shorter one, which would not run by now."""
        stopped, runs = elastic(1, 4), elastic(3, 4, placement=on(n1=4))
        rest, waits = elastic(4, 4, placement=on(n2=4)), plain(2, 4, priority=5)
        problem = at(0.0, stopped, runs, rest)
        assert room(problem, waits, owed={waits.id}, claimed={stopped.id}) == [4, 0]
        assert room(problem, waits, owed={waits.id}, claimed={stopped.id, rest.id}) == [0, 0]

    def test_what_is_owed_is_not_given_of_what_elastic_jobs_have_of_each_other(self) -> None:
        """One holds what another, which waits for it, would hold by now."""
        grown, stopped = elastic(1, 1, placement=on(n1=4)), elastic(2, 3)
        waits = plain(3, 8, shapes=(Shape(2, 4),), priority=5)
        problem = at(0.0, grown, stopped)
        both = {grown.id, stopped.id}
        assert room(problem, waits, owed={waits.id}, claimed=both) == [0, 0]
        assert room(problem, waits, owed={waits.id}, claimed={grown.id}) == [0, 0]
        small = plain(3, 4, priority=5)
        assert room(problem, small, owed={small.id}, claimed=both) == [0, 4]

    @pytest.mark.parametrize("owed", [False, True])
    def test_what_who_has_ended_sooner_would_hold_is_for_other_elastic_jobs(
        self, owed: bool
    ) -> None:
        grown = elastic(1, 4, placement=on(n1=4, n2=4))
        waits = plain(2, 4, priority=5)
        more = {"owed": {waits.id} if owed else set(), "claimed": {grown.id}}
        assert room(at(0.0, grown), waits, **more) == [4, 0]
        assert room(at(0.0, grown), waits, ended=[(NAMES, 4)], **more) == [0, 0]

    def test_those_that_would_run_by_now_keep_their_request_wherever_they_stand(self) -> None:
        behind = elastic(1, 8, placement=on(n1=4, n2=4))
        waits = plain(2, 4, priority=5)
        assert room(at(0.0, behind), waits, claimed={behind.id}) == [0, 0]

    def test_what_is_owed_is_given_in_any_case_and_first(self) -> None:
        ahead = elastic(1, 8, priority=9, placement=on(n1=4, n2=4))
        waits, other = plain(2, 4), plain(3, 8, shapes=(Shape(2, 4),), priority=7)
        assert room(at(0.0, ahead), waits, other, owed={waits.id}) == [4, 0]

    def test_it_is_of_the_jobs_own_form_or_not_made_at_all(self) -> None:
        nodes = [replace(node, taken=2) for node in NODES]
        problem = at(0.0, nodes=nodes)
        assert room(problem, plain(2, 4)) == [2, 2]  # --gpus=4 goes on one node
        assert room(problem, plain(2, 4, shapes=(Shape(2, 2),), least_nodes=2)) == [4, 4]
        assert room(problem, plain(2, 4, least_nodes=2)) == [4, 4]

    def test_it_is_made_where_elastic_jobs_hold_least(self) -> None:
        job = elastic(1, 2, placement=on(n1=3, n2=1))
        assert room(at(0.0, job), plain(2, 4, priority=5)) == [0, 4]

    def test_elastic_jobs_on_other_nodes_do_not_count(self) -> None:
        there = replace(elastic(1, 4, priority=9), nodes=frozenset({"n2"}))
        here = plain(2, 4, nodes=frozenset({"n1"}))
        assert room(at(0.0, there), here) == [4, 0]

    def test_among_equals_the_one_that_slurm_foretells_first_goes_first(self) -> None:
        one, two = (
            plain(2, 8, shapes=(Shape(2, 4),), expected=900.0),
            plain(3, 8, shapes=(Shape(2, 4),), expected=100.0),
        )
        nodes = [NODES[0], replace(NODES[1], taken=4)]
        small = plain(4, 4, expected=500.0)
        assert room(at(0.0, nodes=nodes), one, two, small) == [4, 4]

    def test_nobody_is_given_more_than_there_is(self) -> None:
        waits = [plain(id_, 4, priority=id_) for id_ in range(2, 9)]
        assert room(at(0.0), *waits, owed={one.id for one in waits}) == [4, 4]


class TestWhatElasticJobsKeep:
    @pytest.mark.parametrize("seed", range(40))
    def test_plain_jobs_get_what_is_beyond_those_ahead_of_them(self, seed: int) -> None:
        """However many there are: each elastic job is asked in turn what it keeps."""
        rng = Random(seed)
        nodes = a_cluster(4, 4)
        halves = [frozenset({"n1", "n2"}), frozenset({"n3", "n4"}), frozenset({"n1", "n4"})]

        def any_order() -> dict[str, Any]:
            order = {"tier": rng.randint(0, 1), "priority": rng.randint(0, 2)}
            return {**order, "submitted": float(rng.randint(0, 9))}

        ours = [
            replace(
                elastic(number, rng.randint(1, 4), **any_order()),
                nodes=rng.choice(halves),
                placement=rng.choice([None, on(n1=2), on(n3=4)]),
                startable=rng.random() < 0.7,
            )
            for number in range(1, 6)
        ]
        claimed = {job.id for job in ours if rng.random() < 0.3}
        waits = plain(10, rng.randint(1, 4), nodes=rng.choice(halves), **any_order())
        owed = {waits.id} if rng.random() < 0.3 else set()

        def held(job: Job) -> int:
            return 0 if job.placement is None else job.placement.gpus

        def kept(job: Job) -> int:
            ahead = (held(job) or job.startable) and place_of(job) < waits.place
            whole = job.id in claimed or ahead
            return job.requested if whole else min(job.requested, held(job))

        ended = [(rng.choice(halves), rng.randint(1, 4)) for _ in range(rng.randint(0, 2))]
        there = [job for job in ours if not job.nodes.isdisjoint(waits.nodes)]
        over = sum(gpus for nodes, gpus in ended if not nodes.isdisjoint(waits.nodes))
        near = sum(map(kept, there)) + over
        if owed:
            would_run = sum(job.requested for job in there if job.id in claimed) + over
            near = min(sum(map(held, there)), would_run)
        fits = sum(4 for node in nodes if node.name in waits.nodes) - near >= waits.gpus
        found = reserve(nodes, ours, [waits], owed=owed, claimed=claimed, ended=ended)
        assert sum(node.taken for node in found) == (waits.gpus if fits else 0)
