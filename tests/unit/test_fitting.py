"""Which of many moves lacks room, or is of use to nobody: the same however it is worked out."""

from __future__ import annotations

from random import Random

import pytest
from policy_builders import a_cluster, a_job, a_problem

from ones.policies.fitting import Together, grows
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
