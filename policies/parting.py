"""Pairs on one GPU that must not go on: who of both goes, and what else then has to wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ones.policies.model import JobId, Problem, Seconds
from ones.policies.moves import Move
from ones.policies.sharing import riders

PATIENCE = 120.0  # seconds in which a job that joined another should have reported


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPair:
    """Two jobs that share a GPU now."""

    first: JobId
    second: JobId
    since: Seconds
    parted: str = ""  # why they must not go on; empty: they may


def partings(problem: Problem, pairs: Iterable[OpenPair], moving: Collection[JobId]) -> list[Move]:
    """The moves that end pairs which must not go on: the one that came later goes.

    The other one goes in its place if that one can't be moved, and has had time to say that it
    can. Nothing is done as long as one of both is being moved.
    """
    jobs = {job.id: job for job in problem.jobs}
    second = riders(problem)
    moves = []
    for pair in pairs:
        both = [pair.first, pair.second]
        if not pair.parted or not {*both}.isdisjoint(moving):
            continue
        both.sort(key=lambda id_: id_ not in second)
        if problem.now - pair.since < PATIENCE:
            del both[1:]
        for id_ in both:
            if id_ in jobs and not jobs[id_].fixed:
                other = pair.second if id_ == pair.first else pair.first
                reason = f"separated from job {other}: {pair.parted}"
                moves.append(Move(job=id_, kind="preempt", reason=reason))
                break
    return moves


def without_parted(moves: Sequence[Move], gone: Sequence[Move]) -> list[Move]:
    """The moves to begin: partings, and the plan's as far as they don't need who is parted."""
    leaving = {move.job for move in gone}
    kept = [move for move in moves if move.job not in leaving and move.beside not in leaving]
    return [*gone, *kept]
