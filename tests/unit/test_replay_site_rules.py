"""A site's rules in a replay with plain jobs: who waits for a limit needs no room; rules broken."""

from __future__ import annotations

from typing import Any

from replay_builders import a_trace_job, a_world

from ones.daemon.replay.broken_rules import broken_rules
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.simulation import Run, replay
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.registry import Site, make
from ones.policies.sizes import Sizes
from ones.policies.slurm.settings import (
    Association,
    Bounds,
    Partition,
    Qos,
    Reservation,
    SlurmSettings,
)

LIMITED = SlurmSettings(qos=(Qos(name="normal", bounds=Bounds(gpus_per_user=4)),))


def a_job(name: str, gpus: int, seconds: float, **changes: Any) -> TraceJob:
    sizes = Sizes(tuple(changes.pop("sizes", (gpus,))))
    return a_trace_job(
        name,
        requested=gpus,
        batch=None,
        sizes=sizes,
        application=Recorded(name=name, gpus=gpus, seconds=seconds, sizes=sizes),
        declared=False,
        opted_in=len(sizes.counts) > 1,
        time_limit=2 * seconds,
        **changes,
    )


def run(settings: SlurmSettings, *jobs: TraceJob, known: bool = True) -> Run:
    """Under `ones`, to which the rules are known or not."""
    site = Site(slurm=settings)
    return replay(
        Workload(jobs),
        make("ones"),
        a_world(rules=settings if known else None),
        clock=lambda: 0.0,
        scheduler=make("slurm", site=site),
    )


def rules(settings: SlurmSettings, *jobs: TraceJob, known: bool = True) -> list[str]:
    return [one.rule for one in broken_rules(run(settings, *jobs, known=known), settings)]


SHORT = SlurmSettings(
    qos=(Qos(name="normal", bounds=Bounds(memory_per_user=4000.0)),), licenses=(("matlab", 3),)
)


def test_memory_and_licences_bound_elastic_jobs_as_they_bound_plain_ones() -> None:
    """Memory grows with an elastic job's GPUs, its licences are always the same."""
    jobs = (
        a_job("plain", 2, 9000.0, memory=2000.0, user="ann"),
        a_job("grows", 1, 9000.0, sizes=(1, 2, 4), memory=1000.0, user="ann"),
        a_job("two", 2, 9000.0, sizes=(2, 4), licenses=(("matlab", 2),), user="eve"),
        a_job("waits", 2, 900.0, sizes=(2, 4), licenses=(("matlab", 2),), user="bob"),
    )
    _, grows, two, waits = run(SHORT, *jobs).jobs
    assert max(gpus for at, gpus in grows.sizes if at < 9000.0) == 2
    assert waits.started is not None
    assert two.finished is not None
    assert waits.started >= two.finished
    assert rules(SHORT, *jobs) == []
    broken = rules(SHORT, *jobs, known=False)
    assert any(rule.startswith("qos normal: memory_per_user is 4000") for rule in broken)
    assert "licences of matlab: 4, of 3" in broken


def test_a_plain_job_that_waits_for_a_limit_takes_no_room_from_elastic_jobs() -> None:
    elastic, _, waits = run(
        LIMITED,
        a_job("grows", 4, 3000.0, sizes=(1, 2, 4), user="eve"),
        a_job("first", 4, 9000.0),
        a_job("waits", 4, 100.0, submitted=10.0),
    ).jobs
    assert elastic.sizes == [(0.0, 4), (elastic.finished, 0)]
    assert waits.started == 9000.0


def test_nor_does_one_of_which_slurm_says_for_a_while_that_others_are_ahead() -> None:
    settings = SlurmSettings(
        associations=(Association(account="small", bounds=Bounds(grp_gpus=4)),),
    )
    *_, waits, _, elastic = run(
        settings,
        a_job("limited", 4, 9000.0, account="small"),
        a_job("other", 6, 9000.0, user="bob"),
        a_job("wide", 16, 9000.0, user="bob", submitted=5.0),
        a_job("waits", 4, 100.0, account="small", submitted=10.0),
        a_job("tiny", 2, 100.0, account="small", submitted=10.0),
        a_job("comes", 4, 3000.0, sizes=(1, 2, 4), user="eve", submitted=20.0),
    ).jobs
    assert [gpus for _, gpus in elastic.sizes] == [4, 0]
    assert waits.started == 9000.0


def test_under_a_limit_that_a_plain_job_waits_for_nobody_grows_beyond_his_request() -> None:
    """Or the plain job would wait for longer than with rigid ones."""
    settings = SlurmSettings(
        associations=(Association(account="small", bounds=Bounds(grp_gpus=8)),),
    )
    _, waits, one, other = run(
        settings,
        a_job("first", 2, 2000.0, account="small"),
        a_job("waits", 8, 100.0, account="small", submitted=10.0),
        a_job("one", 2, 3000.0, sizes=(1, 2, 4), account="small", submitted=20.0),
        a_job("other", 1, 600.0, sizes=(1, 2, 4), account="small", submitted=400.0),
    ).jobs
    assert [gpus for _, gpus in one.sizes] == [2, 0]
    assert [gpus for _, gpus in other.sizes] == [1, 0]
    assert waits.started == one.finished


def test_plain_jobs_of_slurm_break_no_rule() -> None:
    assert rules(LIMITED, a_job("a", 4, 100.0), a_job("b", 4, 100.0)) == []


def test_an_elastic_job_that_grows_beyond_a_limit_breaks_it() -> None:
    grows = a_job("grows", 2, 6000.0, sizes=(2, 4, 8))
    said = {"qos normal: gpus_per_user is 4, and it has 8"}
    assert set(rules(LIMITED, grows, known=False)) == said
    assert rules(LIMITED, grows) == []
    account = SlurmSettings(
        associations=(Association(account="lab", bounds=Bounds(grp_gpus=4)),),
    )
    said = {"account lab: grp_gpus is 4, and it has 8"}
    assert set(rules(account, grows, known=False)) == said
    assert rules(account, grows) == []


def test_what_plain_jobs_hold_counts_towards_a_limit() -> None:
    grows = a_job("grows", 1, 3000.0, sizes=(1, 2, 4))
    elastic, _ = run(LIMITED, grows, a_job("plain", 2, 9000.0)).jobs
    assert {gpus for _, gpus in elastic.sizes} <= {0, 1, 2}


def test_an_elastic_job_on_reserved_nodes_breaks_the_reservation() -> None:
    grows = a_job("grows", 2, 6000.0, sizes=(2, 4, 8, 16))
    two = frozenset({"n1", "n2"})
    settings = SlurmSettings(reservations=(Reservation(name="class", nodes=two, start=900.0),))
    assert "reservation class" in rules(settings, grows, known=False)
    assert rules(settings, grows) == []


def test_an_elastic_job_of_a_reservation_runs_in_it_and_waits_for_it() -> None:
    one = frozenset({"n1"})
    settings = SlurmSettings(
        reservations=(Reservation(name="class", nodes=one, start=900.0, end=90000.0),)
    )
    (job,) = run(settings, a_job("in", 2, 600.0, sizes=(1, 2, 4), reservation="class")).jobs
    assert job.started is not None
    assert 900.0 <= job.started <= 960.0
    assert {name for _, to in job.places if to for name in to.nodes} == {"n1"}


def test_an_elastic_job_stays_in_its_partition() -> None:
    half = frozenset({"n1", "n2"})
    settings = SlurmSettings(partitions=(Partition(name="half", nodes=half),))
    job = a_job("grows", 2, 6000.0, sizes=(2, 4, 8, 16), partition="half")
    done = run(settings, job)
    assert broken_rules(done, settings) == []
    assert max(gpus for _, gpus in done.jobs[0].sizes) == 8
