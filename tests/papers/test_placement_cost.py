"""The figures that docs/benchmarks/liquid.md claims of placements, on fewer cases each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from placement_cost import LARGE, SMALL, WAYS, tried
from placement_world import Measured, Setting, SitedJob, arrivals, replayed, tree

from ones.policies.model import JobId, Placement
from ones.policies.network.exact import exact
from ones.policies.network.topology import Topology
from ones.policies.shapes import realisable

PACKER = "subtree, best of five orders"


def test_the_packer_is_within_a_few_percent_of_the_least_there_is() -> None:
    _, kind = SMALL[0]
    ratios = []
    for seed in range(8):
        batch = kind.case(seed)
        _, least = exact(batch)
        found = tried(batch, WAYS[PACKER])
        assert not found.left_out
        assert found.score >= least - 1e-6
        ratios.append(found.score / least)
    assert np.median(ratios) == pytest.approx(1.0, abs=1e-6)
    assert np.mean(ratios) < 1.1


@pytest.mark.parametrize("size", [0, 1, 2])
def test_the_packer_beats_every_baseline_and_liquids_best_fit_by_far(size: int) -> None:
    batch = LARGE[size].case(0)
    found = tried(batch, WAYS[PACKER])
    assert not found.left_out
    rivals = ("random", "spread", "pack", "Slurm's tree plugin", "best fit (Liquid, immediate)")
    assert found.score < 0.5 * min(tried(batch, WAYS[name]).score for name in rivals)


def test_jobs_run_and_end_sooner_than_with_the_best_baseline() -> None:
    setting = Setting(factors=(1.0,), load=0.95, seed=0, jobs=60)
    ours = replayed("liquid", setting, warm=False)
    slurm = replayed("liquid:placement=slurm:mode=immediate", setting, warm=False)
    assert ours.execution < 0.95 * slurm.execution
    assert ours.completion < 0.95 * slurm.completion


def test_a_job_takes_as_long_as_was_measured_and_longer_over_higher_switches() -> None:
    nodes = tree(32, gpus=4, leaf=8, domain=16)
    trace = arrivals(Setting(factors=(1.0,), load=0.7, seed=0))[0]
    trace = replace(trace, application=Measured("vgg16", 3, 1.0), requested=3)
    job = SitedJob(
        id=JobId(1),
        trace=trace,
        shapes=realisable(trace.application.sizes, [4] * 32),
        nodes=frozenset(),
        topology=Topology.of(nodes),
        factors=(1.0, 2.0, 4.0),
    )

    def seconds(*at: int) -> float:
        names = [nodes[one].name for one in at]
        job.placement = Placement.of({name: names.count(name) for name in names})
        timed = job.step_seconds()
        assert timed is not None
        return 1000 * timed[0]

    assert seconds(0, 0, 0) == pytest.approx(510)
    assert seconds(0, 0, 1) == pytest.approx(767)
    assert seconds(0, 1, 2) == pytest.approx(810)
    assert seconds(0, 0, 8) == pytest.approx(510 + 2 * 257)
    assert seconds(0, 0, 16) == pytest.approx(510 + 4 * 257)
