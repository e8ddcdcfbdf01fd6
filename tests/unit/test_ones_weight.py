from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.model import Job, Problem
from ones.policies.ones_options import Options, build
from ones.policies.ones_settings import Settings
from ones.policies.ones_weight import LATEST, weights
from ones.policies.registry import make


def of(problem: Problem, **chosen: float) -> list[float]:
    """Each job's weight, by its own expectation."""
    settings = Settings(**chosen)
    return weights(options_of(problem), settings, np.ones(len(problem.jobs))).tolist()


def options_of(problem: Problem) -> Options:
    return build(problem, problem.jobs, {}, Settings())


def guessed(problem: Problem) -> Problem:
    outlooks = {id_: replace(one, guessed=True) for id_, one in problem.outlooks.items()}
    return replace(problem, outlooks=outlooks)


def alike(left: Mapping[int, float], **more: object) -> Problem:
    """Jobs of one user and name that differ in what they are thought to have left."""
    return a_problem([a_job(id_, name="train", **more) for id_ in left], left=dict(left))


def test_of_two_jobs_alike_the_earlier_counts_more_though_a_little_more_is_left_of_it() -> None:
    first, second = of(alike({1: 1100.0, 2: 1000.0}))
    assert first > second
    first, second = of(alike({1: 1100.0, 2: 1000.0}), first_come=0)
    assert first < second


def test_a_job_known_to_be_far_shorter_counts_more_than_an_earlier_one() -> None:
    first, second = of(alike({1: 3000.0, 2: 1000.0}))
    assert first < second


def test_a_guess_puts_no_job_before_an_earlier_one_of_its_family() -> None:
    """Twice what each has done: by that the one that got furthest is the longest."""
    assert np.all(np.diff(of(guessed(alike({1: 8000.0, 2: 4000.0, 3: 10.0})))) < 0)
    assert np.all(np.diff(of(guessed(alike({1: 8000.0, 2: 4000.0, 3: 10.0})), first_come=0)) > 0)


def test_a_guess_tells_nothing_of_who_comes_first_among_jobs_of_different_names() -> None:
    first, second = of(guessed(a_problem([a_job(1), a_job(2)], left={1: 8000.0, 2: 4000.0})))
    assert first < second


def test_who_is_behind_an_equal_share_counts_more() -> None:
    jobs = [a_job(1), a_job(2, waited=5000.0)]
    first, second = of(a_problem(jobs), first_come=0)
    assert second > 2 * first
    first, second = of(a_problem(jobs), first_come=0, fairness=0)
    assert second == pytest.approx(first)


def late(job: Job, *, sharing: int = 4) -> float:
    """How late a job is among so many on 16 GPUs."""
    others = [a_job(10 + number) for number in range(sharing - 1)]
    return float(options_of(a_problem([job, *others])).lateness[0])


def test_a_newcomer_is_not_late() -> None:
    assert late(replace(a_job(1), waited=0.0)) < 1.0 + 1e-9


def test_the_same_wait_makes_a_job_later_the_larger_its_share_would_have_been() -> None:
    waited = a_job(1, "1-16", waited=600.0)
    assert late(waited, sharing=2) > late(waited, sharing=8) > late(waited, sharing=64) > 0.0


def test_below_its_least_size_a_job_has_its_share_in_turns() -> None:
    waited = a_job(1, "8", requested=8, waited=600.0)
    assert late(waited, sharing=4) < late(waited, sharing=2)


def test_a_job_that_gets_nowhere_does_not_count_ever_more() -> None:
    weight = [of(a_problem([a_job(1, waited=age), a_job(2)]))[0] for age in (1e6, 1e9)]
    assert weight[0] == weight[1] <= LATEST * of(a_problem([a_job(1), a_job(2)]))[0] * (1 + 1e-9)


def test_a_job_without_a_node_that_can_hold_it_is_not_late() -> None:
    large = a_job(1, "64", nodes=a_cluster(16), waited=600.0, placement=None)
    assert options_of(a_problem([large, a_job(2, placement=on(n1=2))])).lateness[0] == 1.0


def test_settings_out_of_range_are_refused_by_name() -> None:
    for setting in ("first_come=-1", "fairness=5"):
        with pytest.raises(ValueError, match="first_come, fairness and makespan are 0 to 4"):
            make(f"ones:{setting}")
