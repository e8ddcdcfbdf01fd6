"""What docs/benchmarks/gavel.md claims of rounds, on the smaller of Gavel's real traces."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest
from gavel_traces import LEARNING, ORACLE, SHARED, Cell, outcome, workload
from throughputs import types

from ones.daemon.replay.figures import Figures

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(
        not SHARED.is_dir(), reason="Gavel's traces and throughputs are not beside the checkout"
    ),
]
SMALL = Cell(
    policy="", trace="minimize_makespan", jobs=100, load=inf, cluster=(8, 16, 24)
)  # of which Gavel's own simulator has been run
# Average completion time and makespan in hours, by Gavel's simulator with 4 GPUs a server.
GAVEL = {
    "max_min_fairness_perf": (9.91, 19.03),
    "max_min_fairness_water_filling_perf": (9.90, 19.11),
    "finish_time_fairness_perf": (10.09, 19.56),
    "min_total_duration_perf": (17.72, 17.98),
    "fifo_perf": (11.18, 25.19),
}


@cache
def figures(policy: str, families: str = ORACLE, restart_seconds: float = 0.0) -> Figures:
    cell = replace(SMALL, policy=policy, restart_seconds=restart_seconds)
    return outcome(cell, families=families).figures


@pytest.mark.parametrize(
    ("policy", "restart_seconds"),
    [
        ("max_min_fairness", 0.0),
        ("max_min_fairness", 30.0),
        ("max_min_fairness_water_filling", 0.0),
        ("min_total_duration", 0.0),
        ("min_total_duration", 30.0),
        ("finish_time_fairness", 0.0),
        ("fifo", 0.0),
        ("shortest_job_first", 0.0),
    ],
)
def test_who_knows_the_gpu_types_is_faster(policy: str, restart_seconds: float) -> None:
    agnostic = figures(policy, restart_seconds=restart_seconds)
    aware = figures(f"{policy}_perf", restart_seconds=restart_seconds)
    assert aware.average_jct_s < agnostic.average_jct_s / 1.05
    assert aware.makespan_s < agnostic.makespan_s / 1.1
    assert aware.cost is not None
    assert agnostic.cost is not None
    assert aware.cost < agnostic.cost


@pytest.mark.parametrize("policy", GAVEL)
def test_rounds_are_no_worse_than_gavels_own(policy: str) -> None:
    average, makespan = GAVEL[policy]
    ours = figures(policy)
    assert ours.average_jct_s / 3600 < 1.01 * average
    assert ours.makespan_s / 3600 < 1.05 * makespan


def test_the_makespan_is_near_what_no_schedule_can_beat() -> None:
    ours = figures("min_total_duration_perf")
    assert ours.utilisation > 0.97
    assert ours.makespan_s / 3600 < 18.0


@pytest.mark.parametrize(
    "policy", ["max_min_fairness", "max_min_fairness_water_filling", "finish_time_fairness"]
)
def test_learnt_speeds_keep_most_of_what_true_ones_give(policy: str) -> None:
    agnostic, true = figures(policy), figures(f"{policy}_perf")
    learnt = figures(f"{policy}_perf", LEARNING)
    assert learnt.average_jct_s < 1.1 * true.average_jct_s
    assert learnt.average_jct_s < 0.95 * agnostic.average_jct_s


def test_arrivals_are_stretched_to_the_load() -> None:
    sparse, dense = (
        workload(Cell(policy="", trace="generated", jobs=50, load=load)).jobs for load in (0.5, 1.0)
    )
    assert sparse[-1].submitted == pytest.approx(2 * dense[-1].submitted)
    assert [job.application for job in sparse] == [job.application for job in dense]


def test_completed_throughputs_are_as_uncertain_as_they_say() -> None:
    table = types(2, strangers=False, repeats=2, rng=np.random.default_rng(1))
    completed, factor = table["completed"], table["factor a type"]
    assert completed.spread < 0.9 * factor.spread
    assert 0.45 < completed.inside(0.5) < 0.65
    assert 0.84 < completed.inside(0.9) < 0.95
