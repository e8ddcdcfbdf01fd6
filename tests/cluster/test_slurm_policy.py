"""The policy `slurm` of replays, held against a real slurmctld with the same jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from slurm_decisions import Decisions
from slurm_peer import Agreement, last_decay, on_slurm, recipe, replayed, scheduling

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster
JOBS = int(os.environ.get("ONES_SLURM_POLICY_JOBS", "24"))
SEED = 1


def test_jobs_start_in_a_replay_as_they_start_on_slurm(cluster: Cluster) -> None:
    """Two accounts of two users, two partitions, a QOS with a limit, fair share that decays."""
    with scheduling(cluster):
        ran = on_slurm(cluster, recipe(JOBS, SEED))
        counted = last_decay(cluster)
    found = Agreement.of(ran, replayed(ran, counted=counted))
    assert found.mean_error < 0.05, found
    decided = Decisions.of(ran, counted=counted)
    assert decided.differing <= 0.1 * decided.jobs, decided
