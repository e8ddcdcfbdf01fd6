"""CPUs and memory beside the GPUs: what others leave of a node bounds what a plan gives there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, decided, on

from ones.policies.caps import final
from ones.policies.crowding import Crowding, beyond, with_crowded, without_useless
from ones.policies.guard import History, Limits, check
from ones.policies.model import Assignment, Job, JobId, Node, Placement, Plan, Problem, Take
from ones.policies.moves import Move
from ones.policies.registry import make, names
from ones.policies.reserve import reserve
from ones.policies.rigid import PlainJob
from ones.policies.round import Decided
from ones.slurm_ext.cpus_and_memory import CpusAndMemory, held_of_nodes, left_of_node
from ones.slurm_ext.limits import NO_LIMITS, Partition, SiteLimits
from ones.slurm_ext.snapshot import JobRecord, NodeRecord

PLAIN = [name for name in names() if ":" not in name or name == "gavel:max_min_fairness_perf"]
ONE_A_GPU = Take(gpu=1.0)


def nodes(cpus: Mapping[str, float], *, count: int = 2) -> list[Node]:
    """Nodes of 4 GPUs with so many CPUs left by others; 16 where nothing is said."""
    return [replace(node, cpus=cpus.get(node.name, 16.0)) for node in a_cluster(count, 4)]


def wants(id_: int, sizes: str, there: list[Node], **more: Any) -> Job:
    requested = more.pop("requested", int(sizes.split("-", maxsplit=1)[0]))
    return a_job(id_, sizes, requested=requested, nodes=there, **({"cpus": ONE_A_GPU} | more))


def there(found: Decided) -> dict[int, dict[str, int]]:
    held = {job.id: job.placement for job in found.problem.jobs if job.placement is not None}
    for move in found.verdict.allowed:
        held.pop(move.job, None)
        if move.target is not None:
            held[move.job] = move.target
    return {int(id_): dict(placement.gpus_on) for id_, placement in held.items()}


@pytest.mark.parametrize("policy", PLAIN)
@pytest.mark.parametrize("short", ["cpus", "memory"])
def test_nobody_is_put_beside_who_has_all_cpus_or_all_memory(policy: str, short: str) -> None:
    """n1 has three free GPUs, and nothing beside them."""
    hosts = [
        replace(node, taken=1, **{short: 0.0}) if node.name == "n1" else node
        for node in a_cluster(2, 4)
    ]
    takes: dict[str, Any] = {"cpus": None, short: ONE_A_GPU}
    jobs = [wants(job, "1-4", hosts, requested=2, **takes) for job in (1, 2, 3)]
    found = there(decided(a_problem(jobs, hosts), policy))
    assert found, "n2 is free"
    assert all("n1" not in on for on in found.values())


@pytest.mark.parametrize("policy", PLAIN)
def test_a_job_gets_no_more_gpus_of_a_node_than_the_cpus_there_suffice_for(policy: str) -> None:
    hosts = nodes({"n1": 2.0, "n2": 2.0})
    jobs = [wants(job, "1-4", hosts, requested=2) for job in (1, 2)]
    placed = there(decided(a_problem(jobs, hosts), policy))
    assert placed, "two GPUs of each node can be had"
    assert all(gpus <= 2 for on in placed.values() for gpus in on.values())


@pytest.mark.parametrize("policy", PLAIN)
def test_a_running_job_is_not_stopped_for_gpus_that_it_could_not_have(policy: str) -> None:
    hosts = nodes({"n1": 0.0})
    hosts[0] = replace(hosts[0], taken=1)
    runs = wants(1, "1-8", hosts, requested=4, placement=on(n2=4))
    waits = wants(2, "4", hosts)
    found = decided(a_problem([runs, waits], hosts, left={1: 50_000.0, 2: 60_000.0}), policy)
    for move in found.verdict.allowed:
        assert move.target is None or "n1" not in move.target.nodes


@pytest.mark.parametrize("policy", ["ones", "srtf", "gavel:max_min_fairness_perf"])
def test_two_jobs_are_not_put_where_their_cpus_are_too_few_together(policy: str) -> None:
    """Each takes 8 CPUs a GPU: two GPUs of a node of 16, and none is left beside them."""
    hosts = nodes({})
    jobs = [wants(job, "2", hosts, cpus=Take(gpu=8.0)) for job in (1, 2)]
    found = there(decided(a_problem(jobs, hosts), policy))
    assert sorted(name for on in found.values() for name in on) == ["n1", "n2"]


def test_of_two_that_crowd_each_other_out_the_one_ahead_in_slurms_order_has_the_node() -> None:
    hosts = nodes({}, count=1)
    late = wants(2, "2", hosts, cpus=Take(gpu=8.0), priority=9)
    problem = a_problem([wants(1, "2", hosts, cpus=Take(gpu=8.0)), late], hosts)
    plan = Plan({job.id: Assignment(on(n1=2), None, "") for job in problem.jobs})
    assert beyond(problem, plan) == {1: {"n1": 0}}


def test_who_finds_no_other_node_waits_and_is_told_why() -> None:
    hosts = nodes({}, count=1)
    jobs = [wants(job, "2", hosts, cpus=Take(gpu=8.0)) for job in (1, 2)]
    found = decided(a_problem(jobs, hosts), "ones")
    assert [len(on) for on in there(found).values()] == [1]
    (idle,) = found.plan.idle.values()
    assert idle.endswith("others hold the CPUs or the memory beside GPUs of n1")


def test_a_job_stays_where_it_runs_though_it_was_reckoned_to_need_more() -> None:
    """Slurm rounds to cores, and knows of CPUs that tasks share: what runs has what it needs."""
    hosts = nodes({"n1": 4.0}, count=1)
    job = wants(1, "4", hosts, cpus=Take(gpu=2.0), placement=on(n1=4))
    problem = a_problem([job], hosts)
    assert with_crowded(problem) == problem
    assert there(decided(problem, "ones")) == {1: {"n1": 4}}


def test_where_nothing_is_counted_nothing_changes() -> None:
    hosts = a_cluster(2, 4)
    problem = a_problem([wants(1, "1-8", hosts)], hosts)
    assert with_crowded(problem) is problem
    assert without_useless(problem) is problem
    assert beyond(problem, decided(problem, "ones").plan) == {}


def test_gpus_that_nobody_could_have_are_no_capacity() -> None:
    """Else sizes would be chosen as if n1 had two more GPUs than it can give."""
    hosts = nodes({"n1": 2.0})
    jobs = [wants(1, "1-8", hosts), wants(2, "1-8", hosts, cpus=Take(gpu=2.0))]
    shown = without_useless(with_crowded(a_problem(jobs, hosts)))
    assert [node.taken for node in shown.nodes] == [2, 0]


def test_the_guard_refuses_the_last_of_those_that_crowd_a_node() -> None:
    hosts = nodes({}, count=1)
    problem = a_problem([wants(job, "2", hosts, cpus=Take(gpu=8.0)) for job in (1, 2)], hosts)
    starts = [Move(kind="start", job=JobId(job), target=on(n1=2), batch=None) for job in (1, 2)]
    verdict = check(starts, problem, History(), Limits(min_gain=None))
    assert [move.job for move in verdict.allowed] == [1]
    assert [one.reason for one in verdict.refused] == [
        "node n1 has not the CPUs or the memory free that it needs"
    ]


def test_a_job_that_is_left_out_of_the_plan_keeps_its_cpus() -> None:
    """It is in nobody's sight; what it holds beside its GPUs is."""

    class Fails:
        """Fails as long as it sees job 1."""

        name = "fails"

        def plan(self, problem: Problem, memory: object, rng: Any) -> tuple[Plan, object]:
            if any(job.id == 1 for job in problem.jobs):
                raise ValueError("job 1")
            return make("fifo").plan(problem, memory, rng)

    hosts = nodes({}, count=1)
    first = wants(1, "1", hosts, cpus=Take(gpu=16.0), placement=on(n1=1))
    problem = a_problem([first, wants(2, "2", hosts)], hosts)
    found = decided(problem, Fails())
    assert set(found.left_out) == {1}
    assert there(found) == {1: {"n1": 1}}


def test_what_holds_gpus_for_a_live_job_takes_cpus_for_these() -> None:
    """The job has a CPU a GPU there, as on its first node, whatever that node's number is."""
    hosts = nodes({})
    job = wants(
        1, "1-8", hosts, cpus=Take(node=4.0, spread=True), placement=on(n1=2), keeps=on(n1=2)
    )
    used = Crowding.of(hosts, [job], {JobId(1): on(n1=2, n2=3)}).used
    assert used == {"n1": (4.0, 0.0), "n2": (6.0, 0.0)}


@given(data=st.data(), policy=st.sampled_from(["ones", "fifo", "srtf", "sia", "tiresias"]))
def test_no_node_is_ever_given_more_than_it_has(data: st.DataObject, policy: str) -> None:
    count = data.draw(st.integers(1, 4))
    hosts = [
        replace(
            node,
            cpus=float(data.draw(st.integers(0, 16))),
            memory=float(data.draw(st.sampled_from([0, 8, 64]))),
            taken=data.draw(st.integers(0, 2)),
        )
        for node in a_cluster(count, 4)
    ]
    jobs = []
    free = {node.name: node.gpus - node.taken for node in hosts}
    for id_ in range(1, data.draw(st.integers(1, 6)) + 1):
        takes = Take(
            node=float(data.draw(st.integers(0, 2))), gpu=float(data.draw(st.integers(0, 6)))
        )
        memory = data.draw(st.sampled_from([None, Take(gpu=4.0)]))
        name = data.draw(st.sampled_from(sorted(free)))
        placement: Placement | None = None
        if free[name] and data.draw(st.booleans()):
            placement, free[name] = Placement.of({name: 1}), free[name] - 1
        jobs.append(wants(id_, "1-4", hosts, cpus=takes, memory=memory, placement=placement))
    found = decided(a_problem(jobs, hosts), policy)
    held = {JobId(id_): Placement.of(on) for id_, on in there(found).items()}
    before = {job.id: job.placement for job in jobs}
    full = Crowding.of(found.problem.nodes, found.problem.jobs, held).full()
    for id_, placement in held.items():
        had = before[id_]
        came = dict(placement.gpus_on)
        for name, gpus in had.gpus_on if had else ():
            came[name] = came.get(name, 0) - gpus
        assert not {name for name, gpus in came.items() if gpus > 0} & full
    assert final(found.problem, found.plan).keys() >= {id_ for id_ in held if before[id_]} - set(
        found.plan.idle
    )


def room_for(
    *waiting: PlainJob, jobs: list[Job], hosts: list[Node]
) -> dict[str, tuple[int, float]]:
    """Node -> GPUs taken and CPUs left, once plain jobs that wait are given room."""
    found = reserve(hosts, jobs, waiting, owed={one.id for one in waiting})
    return {node.name: (node.taken, node.cpus) for node in found}


def a_plain(gpus: int, cpus: float, **more: Any) -> PlainJob:
    there = frozenset({"n1", "n2"})
    return PlainJob(id=JobId(9), submitted=0.0, gpus=gpus, nodes=there, cpus=cpus, **more)


def test_elastic_jobs_give_back_the_gpus_that_go_with_the_cpus_of_a_plain_one() -> None:
    """It wants one GPU, of which one is free, and 8 CPUs, of which 4 are: 16 less 3 times 4."""
    hosts = nodes({}, count=1)
    grown = wants(1, "1-4", hosts, cpus=Take(gpu=4.0), placement=on(n1=3))
    assert room_for(a_plain(1, 8.0), jobs=[grown], hosts=hosts) == {"n1": (2, 8.0)}
    assert room_for(a_plain(1, 4.0), jobs=[grown], hosts=hosts) == {"n1": (1, 12.0)}


def test_no_gpus_are_kept_for_a_plain_job_whose_cpus_others_hold() -> None:
    """Slurm would not start it: they would stand empty."""
    hosts = nodes({"n1": 4.0}, count=1)
    assert room_for(a_plain(1, 8.0), jobs=[], hosts=hosts) == {"n1": (0, 4.0)}


def test_a_plain_job_goes_where_its_cpus_are() -> None:
    hosts = nodes({"n1": 4.0})
    assert room_for(a_plain(2, 8.0), jobs=[], hosts=hosts) == {"n1": (0, 4.0), "n2": (2, 8.0)}


def test_a_plain_job_without_gpus_gets_the_cpus_that_elastic_jobs_have_grown_into() -> None:
    hosts = nodes({}, count=1)
    grown = wants(1, "1-4", hosts, cpus=Take(gpu=4.0), placement=on(n1=4))
    assert room_for(a_plain(0, 8.0), jobs=[grown], hosts=hosts) == {"n1": (2, 8.0)}
    assert room_for(a_plain(0, 17.0), jobs=[grown], hosts=hosts) == {"n1": (0, 16.0)}


def test_on_several_nodes_it_gets_its_share_on_each_or_nothing() -> None:
    hosts = nodes({"n1": 6.0})
    two = a_plain(0, 12.0, least_nodes=2)
    assert room_for(two, jobs=[], hosts=hosts) == {"n1": (0, 0.0), "n2": (0, 10.0)}
    assert room_for(replace(two, cpus=14.0), jobs=[], hosts=hosts) == {
        "n1": (0, 6.0),
        "n2": (0, 16.0),
    }


def test_cpus_that_are_promised_to_one_plain_job_are_not_promised_to_another() -> None:
    hosts = nodes({}, count=1)
    first = a_plain(1, 12.0, priority=2)
    second = replace(a_plain(1, 8.0, priority=1), id=JobId(10))
    assert room_for(first, second, jobs=[], hosts=hosts) == {"n1": (1, 4.0)}


def test_elastic_jobs_keep_what_they_asked_for_whatever_cpus_a_plain_one_lacks() -> None:
    """Rigid they would hold these CPUs as well."""
    hosts = nodes({}, count=1)
    as_asked = wants(1, "1-4", hosts, requested=3, cpus=Take(gpu=4.0), placement=on(n1=3))
    found = reserve(hosts, [as_asked], [a_plain(1, 8.0)], claimed={JobId(1)})
    assert [(node.taken, node.cpus) for node in found] == [(0, 16.0)]


def a_node(**more: Any) -> NodeRecord:
    given = {"gpus": 4, "cpus": 16, "cpus_used": 12, "memory": 1000, "memory_used": 900} | more
    return NodeRecord(
        name="n1", states=frozenset({"MIXED"}), partitions=frozenset({"gpu"}), **given
    )


def a_record(**more: Any) -> JobRecord:
    text = dict.fromkeys(("user", "account", "partition", "qos"), "x")
    return JobRecord(id=1, name="j", state="RUNNING", **text, **more)


def test_what_is_left_of_a_node_is_what_others_have_not() -> None:
    ours = a_record(gpus_on={"n1": 2, "n2": 2}, cpus=8, tres="cpu=8,mem=800M,gres/gpu=4")
    held = held_of_nodes([ours])
    assert left_of_node(a_node(), held, NO_LIMITS) == CpusAndMemory(cpus=8.0, memory=500.0)
    assert left_of_node(a_node(), {}, NO_LIMITS) == CpusAndMemory(cpus=4.0, memory=100.0)


@pytest.mark.parametrize(
    "limits",
    [
        SiteLimits(shares_out_cpus=False),
        SiteLimits(partitions={"gpu": Partition(name="gpu", oversubscribes=True)}),
    ],
)
def test_cpus_that_several_jobs_can_have_are_not_counted(limits: SiteLimits) -> None:
    assert left_of_node(a_node(), {}, limits) == CpusAndMemory(cpus=np.inf, memory=100.0)


def test_of_a_node_that_says_neither_nothing_is_known() -> None:
    silent = a_node(cpus=0, memory=0)
    assert left_of_node(silent, {}, NO_LIMITS) == CpusAndMemory(cpus=np.inf, memory=np.inf)
