"""Nodes that Slurm powers down while they are idle, and wakes for a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_onesd import AtWork

from ones.slurm_ext.snapshot import NodeRecord, Snapshot


class InStates(AtWork):
    """Slurm says so of all its nodes beside, or of the idle ones only; no agent reports."""

    def __init__(self, *states: str, idle: bool = True, policy: str = "fifo") -> None:
        super().__init__(policy=policy)
        self.states, self.idle = frozenset(states), idle
        self.mute = set(self.world.state.nodes)
        read = self.cluster.snapshot

        def snapshot() -> Snapshot:
            found = read()
            return replace(
                found, nodes={name: self._seen(node) for name, node in found.nodes.items()}
            )

        self.cluster.snapshot = snapshot  # type: ignore[method-assign]

    def _seen(self, node: NodeRecord) -> NodeRecord:
        spared = self.idle and node.gpus_used
        return node if spared else replace(node, states=node.states | self.states)

    def node(self, name: str = "n1") -> NodeRecord:
        return self.cluster.snapshot().nodes[name]


@pytest.mark.parametrize("heard", [False, True])
def test_an_elastic_job_wakes_a_node_as_any_other_job_does(heard: bool) -> None:
    at_work = InStates("POWERED_DOWN")
    if heard:  # the agents reported while the nodes were up
        at_work.mute, off = set(), at_work.mute
        at_work.live(60)
        at_work.mute = off
    at_work.live(600)
    assert at_work.onesd.service.unusable(at_work.node()) == ""
    job = at_work.submit(2)
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


@pytest.mark.parametrize("state", ["POWERED_DOWN", "POWERING_UP"])
def test_an_agent_that_sleeps_with_its_node_is_not_missed(state: str) -> None:
    at_work = InStates(state)
    at_work.live(600)
    metrics = at_work.onesd.service.metrics.registry
    assert metrics.get_sample_value("ones_agents_silent") == 0.0
    assert metrics.get_sample_value("ones_nodes_unusable") == 0.0


def test_a_node_that_is_awake_is_used_once_its_agent_reports() -> None:
    at_work = InStates("POWERED_DOWN")
    at_work.live(60)
    at_work.states = frozenset()
    assert "no ones-agent" in at_work.onesd.service.unusable(at_work.node())
    at_work.mute = set()
    at_work.live(31)
    assert not at_work.onesd.service.unusable(at_work.node())


@pytest.mark.parametrize("state", ["POWERING_DOWN", "REBOOT_ISSUED", "UNKNOWN", "INVALID_REG"])
def test_nothing_new_goes_to_a_node_that_slurm_starts_nothing_on(state: str) -> None:
    at_work = InStates(state)
    at_work.mute = set()
    job = at_work.submit(2)
    at_work.live(120)
    assert at_work.job(job).state == "PENDING"
    assert at_work.onesd.service.unusable(at_work.node()) == state.lower().replace("_", " ")
    at_work.states = frozenset()
    at_work.live(60)
    assert at_work.job(job).state == "RUNNING"


@pytest.mark.parametrize("policy", ["fifo", "srtf", "ones", "pollux"])
def test_what_runs_on_a_node_that_is_to_reboot_runs_on(policy: str) -> None:
    """Slurm reboots it once it is idle, so nobody is moved off it."""
    at_work = InStates(idle=False, policy=policy)
    at_work.mute = set()
    job = at_work.running(count=2, elastic="2")
    run = at_work.job(job).restarts
    at_work.states = frozenset({"REBOOT_ISSUED"})
    at_work.live(600)
    assert (at_work.job(job).state, at_work.job(job).restarts) == ("RUNNING", run)
