"""Problems that can't be scheduled are refused with the job and field at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gavel_builders import a_problem

from ones.policies.gavel import POLICIES, BadProblem, Entity, Problem, with_placements


@pytest.mark.parametrize(
    ("fields", "subject", "field"),
    [
        ({"gang": [1.0, 9.0]}, "job 1", "scale_factor"),
        ({"gang": [0.0, 1.0]}, "job 0", "scale_factor"),
        ({"throughput": [[1.0, 1.0], [0.0, 0.0]]}, "job 1", "throughput"),
        ({"throughput": [[1.0, np.nan], [1.0, 1.0]]}, "job 0", "throughput"),
        ({"throughput": [[1.0, 1.0], [1.0, -2.0]]}, "job 1", "throughput"),
        ({"throughput": [[1.0, 1.0], [1.0, np.inf]]}, "job 1", "throughput"),
        ({"gpus": [0.0, 0.0]}, "cluster", "cluster"),
        ({"gpus": [0.0, 4.0], "throughput": [[1.0, 0.0], [1.0, 1.0]]}, "job 0", "throughput"),
        ({"gpus": [-1.0, 4.0]}, "type type0", "cluster"),
        ({"weight": [1.0, 0.0]}, "job 1", "weight"),
        ({"weight": [np.nan, 1.0]}, "job 0", "weight"),
        ({"steps": [1.0, -1.0]}, "job 1", "steps_remaining"),
        ({"age": [1.0, np.nan]}, "job 1", "time_since_start"),
        ({"isolated": [-1.0, 0.0]}, "job 0", "cumulative_isolated_time"),
        ({"deadline": [np.inf, 0.0]}, "job 1", "slo_seconds"),
        ({"costs": [1.0, 0.0]}, "cluster", "instance_costs"),
        ({"jobs": ["a", "a"]}, "job a", "id"),
        ({"entities": (Entity("e", "fairness", 1.0, jobs=(0,)),)}, "job 1", "entity"),
        (
            {
                "entities": (
                    Entity("e", "fairness", 1.0, jobs=(0, 1)),
                    Entity("f", "fifo", 1.0, jobs=(1,)),
                )
            },
            "job 1",
            "entity",
        ),
    ],
)
def test_what_cannot_be_scheduled_is_refused_by_name(
    fields: dict[str, Any], subject: str, field: str
) -> None:
    given = {"throughput": [[1.0, 2.0], [2.0, 1.0]], "gpus": [4.0, 4.0], **fields}
    with pytest.raises(BadProblem) as fault:
        a_problem(given.pop("throughput"), given.pop("gpus"), **given)
    assert (fault.value.subject, fault.value.field) == (subject, field)


@pytest.mark.parametrize(
    ("rule", "weight", "jobs"),
    [("fairness", 1.0, ()), ("fairness", 0.0, (0,)), ("lottery", 1.0, (0,))],
)
def test_an_entity_needs_jobs_a_weight_and_a_rule(
    rule: str, weight: float, jobs: tuple[int, ...]
) -> None:
    with pytest.raises(BadProblem, match="entity e"):
        Entity("e", rule, weight, jobs=jobs)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_jobs_get_nothing_from_any_policy(name: str) -> None:
    allocation = POLICIES[name].allocate(Problem.of(np.zeros((0, 2)), np.array([1.0, 1.0])))
    assert allocation.jobs == ()
    assert allocation.shares.alone.shape == (0, 2)


def test_costs_are_asked_for_where_a_policy_needs_them() -> None:
    policy = POLICIES["max_sum_throughput_normalized_by_cost_perf"]
    with pytest.raises(BadProblem, match="instance_costs"):
        policy.allocate(a_problem([[1.0]], [1.0]))


def placed() -> Problem:
    """A single GPU job, a gang of 2 that suffers apart and one of 4 that needs two nodes."""
    together = a_problem([[1.0], [4.0], [8.0]], [4.0], gang=[1.0, 2.0, 4.0])
    return with_placements(
        together,
        np.array([[1.0], [1.0], [6.0]]),
        nodes=np.array([2]),
        gpus_per_node=np.array([2]),
    )


def test_placements_are_columns_that_draw_from_the_same_gpus() -> None:
    problem = placed()
    assert problem.columns == ("type0", "type0, spread")
    assert problem.pool.tolist() == [0, 0]
    # One GPU is never spread; four GPUs on two nodes are as close together as they can be.
    assert problem.throughput.tolist() == [[1.0, 0.0], [4.0, 1.0], [8.0, 0.0]]


def test_shares_of_the_cluster_are_counted_in_consolidated_throughput() -> None:
    assert placed().average.tolist() == [1.0, 4.0, 8.0]


def test_a_gang_that_suffers_apart_is_kept_together() -> None:
    allocation = POLICIES["max_min_fairness_perf"].allocate(placed())
    assert allocation.shares.alone[1, 0] > 0.5
    assert allocation.shares.alone[1, 1] < 1e-6


def test_a_gang_that_is_faster_apart_is_spread() -> None:
    """Measured tables hold such gangs; no order is assumed."""
    together = a_problem([[4.0]], [4.0], gang=[2.0])
    problem = with_placements(
        together, np.array([[5.0]]), nodes=np.array([2]), gpus_per_node=np.array([2])
    )
    allocation = POLICIES["max_min_fairness_perf"].allocate(problem)
    assert allocation.shares.alone == pytest.approx(np.array([[0.0, 1.0]]), abs=1e-6)


def test_jobs_can_be_kept_off_types_that_their_gang_does_not_fit_on() -> None:
    problem = a_problem([[9.0, 1.0], [1.0, 1.0]], [2.0, 4.0], gang=[4.0, 1.0]).where_it_runs()
    for name in ("max_min_fairness", "max_min_fairness_perf", "max_sum_throughput_perf"):
        allocation = POLICIES[name].allocate(problem)
        assert allocation.shares.alone[0, 0] == 0.0
        assert allocation.shares.alone[0, 1] > 0.1
