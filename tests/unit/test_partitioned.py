"""In which of its partitions a job may start, and what a partition's state does to plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import a_record
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.slurm_ext.elastic import elastic_jobs
from ones.slurm_ext.limits import Partition, SiteLimits
from ones.slurm_ext.limits_reading import Faults, partitions_in
from ones.slurm_ext.partitioned import opened_to
from ones.slurm_ext.simulated.settings import PartitionSpec
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot
from ones.slurm_ext.whereabouts import Whereabouts

PARTITIONS = {"n1": "a", "n2": "a b", "n3": "b", "n4": "b"}
ALL = frozenset(PARTITIONS)


def a_snapshot(used: dict[str, int] | None = None, also: str = "") -> Snapshot:
    nodes = {
        name: NodeRecord(
            name=name,
            states=frozenset({"IDLE"}),
            gpu_type="v100",
            gpus=4,
            gpus_used=(used or {}).get(name, 0),
            partitions=frozenset(f"{inside} {also}".split()),
        )
        for name, inside in PARTITIONS.items()
    }
    return Snapshot(taken=2000.0, jobs={}, nodes=nodes, switches={})


def opened(job: JobRecord, *partitions: Partition, **more: Any) -> str:
    known = {each.name: each for each in partitions}
    found = opened_to(job, ALL, Whereabouts(a_snapshot(**more)), known)
    return found.closed or " ".join(sorted(found.nodes))


def a_waiting(partition: str = "a,b", **changes: Any) -> JobRecord:
    return a_record(partition=partition, **changes)


def test_a_job_is_planned_on_nodes_of_one_of_its_partitions() -> None:
    assert opened(a_waiting()) == "n1 n2"
    assert opened(a_waiting("b,a")) == "n2 n3 n4"
    assert opened(a_waiting(), used={"n1": 4, "n2": 4}) == "n2 n3 n4"


def test_a_partition_with_all_nodes_of_the_others_is_enough() -> None:
    assert opened(a_waiting("a,all"), also="all") == "n1 n2 n3 n4"


def test_a_running_job_stays_in_the_partition_that_it_runs_in() -> None:
    runs = a_waiting(state="RUNNING", gpus_on={"n3": 2})
    assert opened(runs) == "n2 n3 n4"


def test_of_partitions_that_start_nothing_none_is_chosen() -> None:
    down = Partition(name="a", state="DOWN")
    assert opened(a_waiting(), down) == "n2 n3 n4"
    assert opened(a_waiting("a"), down) == "partition a is DOWN: Slurm starts no jobs in it"
    assert opened(a_waiting("a"), replace(down, state="DRAIN")) == "n1 n2"
    assert "INACTIVE" in opened(a_waiting("a"), replace(down, state="INACTIVE"))


def test_a_partition_that_is_not_for_the_account_or_qos_is_not_chosen() -> None:
    others = Partition(name="a", accounts=(frozenset({"biology"}), frozenset()))
    assert opened(a_waiting(), others) == "n2 n3 n4"
    assert opened(a_waiting("a"), others) == "partition a is not for account vision"
    denied = Partition(name="a", qualities=(frozenset(), frozenset({"normal"})))
    assert opened(a_waiting("a"), denied) == "partition a is not for QOS normal"


def test_states_and_lists_of_partitions_are_read() -> None:
    line = (
        "PartitionName=a AllowGroups=ALL AllowAccounts=vision,bio AllowQos=ALL DenyQos=slow"
        " MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-2] State=DOWN\n"
    )
    found = partitions_in(line, Faults())["a"]
    assert found.state == "DOWN"
    assert found.accounts == ({"vision", "bio"}, frozenset())
    assert found.qualities == (frozenset(), {"slow"})


def test_where_a_job_has_all_of_its_nodes_only_sizes_of_whole_nodes_are_used() -> None:
    (whole,) = partitions_in("PartitionName=a OverSubscribe=EXCLUSIVE\n", Faults()).values()
    (shared,) = partitions_in("PartitionName=a OverSubscribe=NO\n", Faults()).values()

    def sizes(job: JobRecord, partition: Partition) -> set[tuple[int, int]]:
        snapshot = replace(a_snapshot(), jobs={job.id: job})
        jobs, ignored = elastic_jobs(snapshot, limits=SiteLimits(partitions={"a": partition}))
        if ignored:
            raise ValueError(ignored[job.id])
        assert not jobs[0].fixed
        return {(shape.nodes, shape.gpus_per_node) for shape in jobs[0].shapes}

    job = a_waiting("a", admin_comment="ONES1:sizes=1-8;request=4;held=1;tasks=0;nodes=1")
    assert (1, 2) in sizes(job, shared)
    assert sizes(job, whole) == {(1, 4), (2, 4)}
    with pytest.raises(ValueError, match="none of its sizes is of nodes with 4 GPUs"):
        sizes(replace(job, admin_comment="ONES1:sizes=1-2;request=2;held=1"), whole)


def test_jobs_of_a_partition_that_is_down_wait_and_running_ones_are_left_running() -> None:
    at_work = AtWork(a_world({"partitions": (PartitionSpec(),)}), policy="ones")
    runs = at_work.submit(2)
    at_work.live(120)
    assert at_work.job(runs).state == "RUNNING"
    state = at_work.world.state
    state.partitions["gpu"] = replace(state.partitions["gpu"], state="DOWN")
    at_work.live(75)  # limits are read once a minute
    restarts = at_work.job(runs).restarts
    waits = at_work.submit(2, user="bob")
    at_work.live(120)
    said = {int(job.id): job.fixed for job in at_work.onesd.rounds.published.jobs}
    assert said[waits] == "partition gpu is DOWN: Slurm starts no jobs in it"
    assert at_work.outcomes(waits) == []
    assert (at_work.job(runs).state, at_work.job(runs).restarts) == ("RUNNING", restarts)
    state.partitions["gpu"] = replace(state.partitions["gpu"], state="UP")
    at_work.world.state.wake()
    at_work.live(100, until=lambda: at_work.job(waits).state == "RUNNING")
    assert at_work.job(waits).state == "RUNNING"
