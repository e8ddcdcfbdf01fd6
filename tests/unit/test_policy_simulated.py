"""Policies, estimator and guard together over a job mix, on a cluster of a few lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from policy_builders import a_cluster
from virtual_cluster import Life, Script, VirtualCluster

from ones.policies.guard import Limits
from ones.policies.model import Node
from ones.policies.registry import make


def half_used() -> list[Node]:
    """Four nodes of two types; a plain job holds two GPUs of the first."""
    first, *others = a_cluster(4, 4, types=("v100", "k80"))
    return [replace(first, taken=2), *others]


def a_mix() -> list[Script]:
    """Four jobs of different lengths, then a burst of three short ones."""
    return [
        Script(id=1, submit=0, length=150, requested=8, sizes="2,4,8", name="a"),
        Script(id=2, submit=15, length=150, requested=4, sizes="4,8", name="b"),
        Script(id=3, submit=20, length=100, requested=4, sizes="2,4", name="c"),
        Script(id=4, submit=22, length=60, requested=2, sizes="1-4", name="d"),
        *(
            Script(id=5 + i, submit=70 + 2 * i, length=20, requested=4, sizes="4", name="e")
            for i in range(3)
        ),
    ]


def run(policy: str, *, seed: int = 1) -> dict[int, Life]:
    limits = Limits(grace=15, exempt=20, max_resizes_per_hour=60)
    return VirtualCluster(half_used(), make(policy), limits, seed=seed).run(a_mix())


def mean_completion(lives: dict[int, Life]) -> float:
    return float(np.mean([(life.ended or 1e9) - life.script.submit for life in lives.values()]))


def test_ones_ends_jobs_sooner_than_srtf_and_fifo() -> None:
    fifo, srtf, ones = (mean_completion(run(name)) for name in ("fifo", "srtf", "ones"))
    assert ones < 0.8 * fifo
    assert ones < srtf


def test_jobs_grow_shrink_are_preempted_and_come_back() -> None:
    done = [move for life in run("ones").values() for move in life.moves]
    assert {"grow", "shrink", "preempt", "resume"} <= set(done)
    assert len(done) < 4 * len(a_mix()), "churn"


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = run("ones", seed=4), run("ones", seed=4)
    assert [life.sizes for life in one.values()] == [life.sizes for life in other.values()]


def test_fifo_moves_nobody() -> None:
    assert {move for life in run("fifo").values() for move in life.moves} == {"start"}
