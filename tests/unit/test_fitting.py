"""Which of many moves lacks room, or is of use to nobody: the same however it is worked out."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies import caps as caps_module
from ones.policies import fitting
from ones.policies.caps import exceeded, gives_back, taken
from ones.policies.fitting import Fault, Together, grows
from ones.policies.forecast import by_id
from ones.policies.model import Cap, JobId, Placement, Problem, Take
from ones.policies.moves import Move
from ones.policies.sharing import occupied

NODES = a_cluster(4, 4)


def somewhere(rng: Random) -> Placement:
    names = rng.sample([node.name for node in NODES], rng.randint(1, 2))
    return Placement.of(dict.fromkeys(names, rng.randint(1, 4)))


def too_many_moves(rng: Random, *, pairs: bool, caps: bool) -> tuple[Problem, list[Move]]:
    """More than the nodes have room for."""
    jobs = [
        a_job(
            number,
            nodes=NODES,
            placement=somewhere(rng) if rng.random() < 0.5 else None,
            share=pairs and rng.random() < 0.3,
            beside=JobId(rng.randint(1, 9)) if pairs and rng.random() < 0.3 else None,
        )
        for number in range(1, 9)
    ]
    takes = {job.id: Take(gpu=1.0) for job in jobs if rng.random() < 0.7}
    cap = Cap(words="QOS normal allows 6 GPUs", left=6.0, takes=takes)
    problem = a_problem(jobs, NODES, caps=(cap,) if caps else ())
    moves = []
    for job in rng.sample(jobs, 6):
        target = somewhere(rng) if job.placement is None or rng.random() < 0.7 else None
        moves.append(
            Move(
                job=job.id,
                kind="preempt" if target is None else "resize" if job.placement else "start",
                target=target,
                gain=rng.choice([-10.0, 100.0]),
                beside=JobId(rng.randint(1, 9)) if pairs and rng.random() < 0.2 else None,
            )
        )
    return problem, moves


@pytest.mark.parametrize("seed", range(80))
def test_taking_a_move_back_comes_to_the_same_as_leaving_it_out(seed: int) -> None:
    rng = Random(seed)
    problem, moves = too_many_moves(rng, pairs=seed % 3 == 0, caps=seed % 2 == 0)
    together = Together(problem, moves)
    for _ in range(len(moves)):
        anew = Together(problem, together.moves)
        assert together.overfull() == anew.overfull()
        assert together.over_a_cap() == anew.over_a_cap()
        assert together.pointless(1.0) == anew.pointless(1.0)
        together.without(rng.choice(together.moves).job)
    assert together.overfull() is together.pointless(1.0) is None


@pytest.mark.parametrize("seed", range(80))
def test_a_move_is_pointless_if_the_others_have_room_where_it_leaves(seed: int) -> None:
    problem, moves = too_many_moves(Random(seed), pairs=False, caps=False)
    jobs = by_id(problem.jobs)

    def of_use(move: Move) -> bool:
        """By all that all nodes hold once the others are moved, and this one is not."""
        job = jobs[move.job]
        if job.placement is None or grows(move, job) or (move.target and move.gain > 0):
            return True
        held = {one.id: one.placement for one in problem.jobs if one.placement is not None}
        for other in moves:
            if other is not move:
                held.pop(other.job, None)
                held |= {other.job: other.target} if other.target else {}
        used = occupied(held, {})
        full = {node.name for node in problem.nodes if used[node.name] > node.gpus}
        after = dict(move.target.gpus_on) if move.target else {}
        return any(
            after.get(name, 0) < gpus and name in full for name, gpus in job.placement.gpus_on
        )

    found = Together(problem, moves).pointless(1.0)
    assert (found and found[0]) == next((move for move in moves if not of_use(move)), None)


def some_caps(rng: Random, problem: Problem) -> Problem:
    """Several, on all that caps can be on, some of them exceeded by what is held already."""
    each = (Take(gpu=0.1), Take(each=1.0), Take(node=2.0, gpu=1 / 3), Take(once=0.7))
    live = [
        replace(job, keeps=job.placement) if job.placement and rng.random() < 0.3 else job
        for job in problem.jobs
    ]
    return replace(
        problem,
        jobs=tuple(live),
        caps=tuple(
            Cap(
                words=f"cap {number}",
                left=rng.choice([-1.0, 0.3, 1.0, 2.0, 4.0, 9.0]),
                takes={
                    job.id: rng.choice((*each, Take(node=1.1, spread=True)))
                    for job in rng.sample(live, rng.randint(1, 8))
                },
                gpu_type=rng.choice(["", "", "v100", "k80"]),
            )
            for number in range(rng.randint(1, 5))
        ),
    )


def held_after(problem: Problem, moves: list[Move]) -> dict[JobId, Placement]:
    held = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    for move in moves:
        held.pop(move.job, None)
        held |= {move.job: move.target} if move.target else {}
    return held


def over_a_cap(problem: Problem, moves: list[Move]) -> Fault | None:
    """By all that all jobs take, added up anew."""
    jobs = by_id(problem.jobs)
    for cap in exceeded(problem, held_after(problem, moves)):
        for move in reversed(moves):
            job, to = jobs[move.job], move.target
            if to is None or to == job.placement or gives_back(job, to):
                continue
            if taken(cap, job, to, problem.by_name):
                return move, cap.words
    return None


def pointless(problem: Problem, moves: list[Move]) -> Move | None:
    """By all that all nodes hold, and all jobs take, without the move."""
    jobs = by_id(problem.jobs)
    for move in moves:
        job = jobs[move.job]
        if job.placement is None or grows(move, job) or (move.target and move.gain > 0):
            continue
        after = held_after(problem, moves)
        without = held_after(problem, [other for other in moves if other is not move])
        used = occupied(without, {})
        full = {node.name for node in problem.nodes if used[node.name] > node.gpus}
        has = dict(move.target.gpus_on) if move.target else {}
        frees = any(has.get(name, 0) < n and name in full for name, n in job.placement.gpus_on)
        if not frees and len(exceeded(problem, without)) <= len(exceeded(problem, after)):
            return move
    return None


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_taken_back_caps_are_counted_as_if_added_up_anew(seed: int) -> None:
    rng = Random(seed)
    problem, moves = too_many_moves(rng, pairs=False, caps=False)
    problem = some_caps(rng, problem)
    together = Together(problem, moves)
    while moves:
        assert together.over_a_cap() == over_a_cap(problem, moves)
        found = together.pointless(1.0)
        assert (found and found[0]) == pointless(problem, moves)
        fault = together.overfull() or together.over_a_cap() or found
        gone = fault[0] if fault else rng.choice(moves)
        moves = [move for move in moves if move is not gone]
        together.without(gone.job)
        assert together.moves == moves


def test_what_a_cap_costs_grows_with_the_moves_and_no_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cap over all jobs; each of them is stopped for nobody, and one after the other isn't."""
    asked: list[JobId] = []

    def counted(cap: Cap, job: Any, *rest: Any) -> float:
        asked.append(job.id)
        return taken(cap, job, *rest)

    monkeypatch.setattr(caps_module, "taken", counted)
    monkeypatch.setattr(fitting, "taken", counted)
    nodes = a_cluster(100, 4)
    jobs = [
        a_job(number, nodes=nodes, placement=on(**{f"n{number}": 4})) for number in range(1, 101)
    ]
    cap = Cap(words="account lab", left=400.0, takes={job.id: Take(gpu=1.0) for job in jobs})
    moves = [Move(job=job.id, kind="preempt", gain=-10.0) for job in jobs]
    together = Together(a_problem(jobs, nodes, caps=(cap,)), moves)
    while (fault := together.over_a_cap() or together.pointless(1.0)) is not None:
        together.without(fault[0].job)
    assert together.moves == []
    assert len(asked) <= 5 * len(jobs)
