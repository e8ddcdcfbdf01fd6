"""The figures that docs/benchmarks/policies.md claims, on one workload each."""

from __future__ import annotations

import json

import pytest
from completion_times import SHARED, Cell, outcome, published, run

from ones.estimator.experience import Experience

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(
        not SHARED.is_dir(), reason="the published workloads are not beside the checkout"
    ),
]


def test_tiresias_ends_every_job_in_the_published_second() -> None:
    done = run(Cell(policy="tiresias", workload=6), Experience())
    ours = {job.trace.name: round((job.finished or 0) - job.trace.submitted) for job in done.jobs}
    listed = json.loads((SHARED / "pollux" / "results-tiresias.json").read_text())
    assert ours == listed["by_load"]["1.0"]["workload-6"]["jct_s"]


def test_ones_beats_pollux_without_history_and_without_a_leak() -> None:
    found = outcome(Cell(policy="ones", workload=6))
    peer = published("pollux", 6)
    assert 0.72 < found.mean / peer.mean < 0.92
    assert found.p99 < 1.1 * peer.p99
    assert found.makespan < 1.15 * peer.makespan
