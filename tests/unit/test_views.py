"""What onesd tells of one job: its runs, satellites, requests and last report."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from policy_builders import a_cluster, a_job, a_problem, an_outlook
from standing_onesd import NoCluster

from ones.daemon.config import Config
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.outcome import NOTHING, Decision, Round
from ones.daemon.onesd.round import Rounds
from ones.daemon.onesd.service import Service
from ones.daemon.wire import GpuSample, NodeReport
from ones.policies.forecast import seconds_left_on
from ones.policies.guard import Move
from ones.policies.model import Placement
from ones.policies.pace import Ends
from ones.policies.prospects import Prospects, Release
from ones.slurm_ext.accounting import Run
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.snapshot import JobRecord, NodeRecord

HERS, HIS = 7, 8
SLOW = "job {} runs at 30% of its speed alone, expected 90%"


@pytest.fixture
def onesd() -> Onesd:
    store = Store(":memory:")
    jobs = {"account": "lab", "sizes": "1-4", "requested": 2, "submitted": 100.0}
    store.put(
        "jobs",
        [
            {**jobs, "job": HERS, "name": "train", "user": "ana", "state": "RUNNING", "family": ""},
            {**jobs, "job": HIS, "name": "other", "user": "bob", "state": "PENDING", "family": ""},
        ],
    )
    run = {"job": HERS, "gpus": 2, "nodes": "n1"}
    store.put(
        "runs",
        [
            {**run, "ordinal": 0, "started": 200.0, "ended": 300.0, "state": "REQUEUED"},
            {**run, "ordinal": 1, "started": 400.0, "ended": None, "state": "RUNNING"},
        ],
    )
    given = {"job": HERS, "ordinal": 1}
    store.put(
        "shrinks",
        [
            {**given, "until": 500.0, "nodes": "n[1-3]", "gpus": 6},
            {**given, "until": 600.0, "nodes": "n[1-2]", "gpus": 4},
        ],
    )
    satellite = {"base": HERS, "restarts": 1, "ordered": 0, "state": "RUNNING"}
    store.put("satellites", [{**satellite, "job": 9, "started": 700.0, "nodes": "n4", "gpus": 1}])
    store.put(
        "fills",
        [
            {"job": HERS, "restarts": 0, "at": 190.0, "memory": 512, "why": "3 runs"},
            {"job": HERS, "restarts": 1, "at": 390.0, "cpus": 3, "why": "4 runs"},
        ],
    )
    lost = {"job": HERS, "restarts": 1, "generation": 3, "at": 650.0, "lost": 1}
    store.put("recoveries", [{**lost, "source": "memory", "samples": 0, "steps": 0}])
    store.put("reports", [{"job": HERS, "restarts": 1, "at": 800.0, "report": '{"samples": 5}'}])
    cluster = cast(Cluster, NoCluster())
    return assemble(Config(), cluster, store, clock=lambda: 1000.0)


@pytest.fixture
def service(onesd: Onesd) -> Service:
    return onesd.service


def test_a_job_s_life_is_told_with_all_that_it_held(service: Service) -> None:
    told = views.job(service, HERS, "ana", lambda _: 0.0)
    assert told["job"] == {
        **{"job": HERS, "name": "train", "user": "ana", "account": "lab", "sizes": "1-4"},
        **{"requested": 2, "submitted": 100.0, "state": "RUNNING", "ended": None, "family": ""},
        **{"restarts": 0, "fixed": "", "report": {"samples": 5}},
    }
    first, second = told["runs"]
    assert (first["run"], first["elapsed"], first["reason"]) == (0, 100.0, "started by Slurm")
    assert (second["elapsed"], second["state"], second["nodes"]) == (600.0, "RUNNING", "n1")
    assert second["earlier"] == [
        {"until": 500.0, "nodes": "n[1-3]", "gpus": 6, "why": "n3 was lost"},
        {"until": 600.0, "nodes": "n[1-2]", "gpus": 4, "why": "n2 was lost"},
    ]
    (satellite,) = told["satellites"]
    assert (satellite["satellite"], satellite["run"], satellite["elapsed"]) == (9, 1, 300.0)
    assert told["gpu_seconds"] == 2 * 100 + 6 * 100 + 4 * 100 + 2 * 400 + 1 * 300
    (recovery,) = told["recoveries"]
    assert (recovery["run"], recovery["at"], recovery["source"]) == (1, 650.0, "memory")
    assert recovery["words"].startswith("lost 1 worker; went on from replicas")
    assert told["requests"] == [
        {
            **{"job": HERS, "restarts": 0, "at": 190.0, "memory": 512, "memory_asked": None},
            **{"cpus": None, "why": "3 runs"},
            "words": "onesd asked for 512 MiB of memory on each node"
            " (the job itself said none): 3 runs",
        },
        {
            **{"job": HERS, "restarts": 1, "at": 390.0, "memory": None, "memory_asked": None},
            **{"cpus": 3, "why": "4 runs"},
            "words": "onesd asked for 3 CPUs on each node (the job itself said none): 4 runs",
        },
    ]


def test_before_the_first_round_nothing_is_said_of_its_age(service: Service) -> None:
    problems = views.status(service, None)["problems"]
    assert problems == ["no round has ended yet: the first one is under way"]
    lines = views.explain(service, HERS, None)["lines"]
    assert lines[1:] == ["no round has ended yet: nothing can be said of it"]


def explained(service: Service, rounds: Rounds, *, points: int, guessed: bool = True) -> str:
    job, nodes = a_job(HERS, "1-2"), a_cluster(1, 2)
    outlook = replace(an_outlook(), points=points, guessed=guessed)
    problem = replace(a_problem([job], nodes), outlooks={job.id: outlook})
    rounds.published = Round(
        **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": "", "snapshot": NOTHING},
        jobs=(job,),
        problem=problem,
    )
    return str(views.explain(service, HERS, None)["lines"][-1])


def test_a_guess_is_told_as_one(onesd: Onesd) -> None:
    line = explained(onesd.service, onesd.rounds, points=0)
    assert "1000 samples to go of 1111 (a guess: it does not say how many in all)" in line
    assert "its speed is a guess" in line
    line = explained(onesd.service, onesd.rounds, points=3)
    assert "its speed from 3 measurements" in line
    told = '{"samples": 5, "total_samples": 9}'
    onesd.service.books.store.write("UPDATE reports SET report = ?", told)
    line = explained(onesd.service, onesd.rounds, points=3, guessed=False)
    assert "1000 samples to go of 1111, its speed" in line
    onesd.service.books.store.write("DELETE FROM reports")
    line = explained(onesd.service, onesd.rounds, points=3, guessed=False)
    assert "1000 samples to go of 1111, as jobs of its user and name took or declare" in line
    assert "(a guess: it has not reported)" in explained(onesd.service, onesd.rounds, points=3)


def test_a_waiting_job_s_note_says_what_would_have_to_change(onesd: Onesd) -> None:
    """Whatever the policy says beyond "others make more of the GPUs" is kept."""
    waiting = a_job(HERS, "2", nodes=a_cluster(1, 4))
    nodes = [replace(node, taken=4) for node in a_cluster(1, 4)]
    ends = Release(job=812, left=600.0, gpus_on=(("n1", 4),), at_limit=False)
    problem = a_problem([waiting], nodes)
    record = JobRecord(
        **{"id": HERS, "name": "x", "user": "ana", "account": "lab", "partition": "gpu"},
        **{"qos": "normal", "state": "PENDING"},
    )
    for reason, begins in (
        ("other jobs make more of the GPUs now", "needs 2 GPUs"),
        ("QOS normal allows 4 GPUs a user", "QOS normal allows 4 GPUs a user; needs 2 GPUs"),
    ):
        onesd.rounds.published = Round(
            **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": ""},
            snapshot=replace(NOTHING, jobs={HERS: record}),
            jobs=(waiting,),
            problem=problem,
            notes={waiting.id: reason},
            prospects=Prospects(problem, lambda: [ends], resizes=True),
        )
        (listed,) = views.jobs(onesd.service, None)["jobs"]
        assert listed["waits_for"] == {"gpus": 2, "job": 812, "at": 1590.0}
        expected = f"{begins} on one node; the first come free when job 812 ends, about "
        assert listed["note"].startswith(expected)
        assert len(listed["note"]) == len(expected) + len("14:20")
        assert listed["note"] in views.explain(onesd.service, HERS, None)["lines"]


def test_what_a_job_has_used_of_its_time_limit_is_of_all_that_it_has_held(service: Service) -> None:
    """Of two GPUs asked for; more count no more, and what satellites hold counts with the rest."""
    record = JobRecord(
        **{"id": HERS, "name": "x", "user": "ana", "account": "lab", "partition": "gpu"},
        **{"qos": "normal", "state": "RUNNING", "restarts": 1, "started": 400.0},
        gpus_on={"n1": 1},
    )
    past = service.books.jobs.pasts([record], now=1000.0)[HERS]
    assert (past.submitted, past.executed, past.waited) == (100.0, 700.0, 200.0)
    # The first run, six and then four GPUs, one for 100 s, and another node's for 300 s as well.
    assert past.limit_used == 100 + 100 + 100 + 50 + 300
    waiting = replace(record, state="PENDING", restarts=2, started=0.0, gpus_on={})
    past = service.books.jobs.pasts([waiting], now=1000.0)[HERS]
    assert past.limit_used == 100 + 150  # the accounting knows no end of the second run yet


def test_a_job_that_waits_in_slurm_itself_is_told_by_slurms_reason(onesd: Onesd) -> None:
    job = a_job(HERS, "2", startable=False)
    record = JobRecord(
        **{"id": HERS, "name": "x", "user": "ana", "account": "lab", "partition": "gpu"},
        **{"qos": "normal", "state": "PENDING", "reason": "Dependency"},
    )
    onesd.rounds.published = Round(
        **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": ""},
        snapshot=replace(NOTHING, jobs={HERS: record}),
        jobs=(job,),
        notes={job.id: "waits for a reason of its own"},
    )
    (listed,) = views.jobs(onesd.service, None)["jobs"]
    assert listed["note"] == "waits in Slurm itself (Dependency), not for onesd"


def test_an_end_stands_beside_that_of_the_rigid_job(onesd: Onesd) -> None:
    job = a_job(HERS, "1-2", placement=Placement.of({"n1": 1}))
    problem = replace(a_problem([job], a_cluster(1, 2)), outlooks={job.id: an_outlook()}, now=990.0)
    left = seconds_left_on(problem, job, Placement.of({"n1": 1}))
    record = JobRecord(
        **{"id": HERS, "name": "x", "user": "ana", "account": "lab", "partition": "gpu"},
        **{"qos": "normal", "state": "RUNNING"},
    )

    def shown(rigid_ends: float) -> tuple[float, str]:
        ends = Ends(problem, None)
        ends.rigid = {job.id: rigid_ends}
        onesd.rounds.published = Round(
            **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": ""},
            snapshot=replace(NOTHING, jobs={HERS: record}),
            jobs=(job,),
            problem=problem,
            ends=ends,
        )
        (listed,) = views.jobs(onesd.service, None)["jobs"]
        lines = views.explain(onesd.service, HERS, None)["lines"]
        return listed["gained"], next(line for line in lines if "were no job" in line)

    gained, line = shown(990.0 + left + 1800.0)
    assert gained == pytest.approx(1800.0)
    assert "00:30:00 sooner than were no job elastic (on 2 GPUs, about " in line
    gained, line = shown(990.0 + left - 600.0)
    assert gained == pytest.approx(-600.0)
    assert "00:10:00 later than were no job elastic" in line
    assert "later than were no job elastic (on 2 GPUs, by now)" in shown(990.0)[1]

    # An absurd report gives an absurd end: nobody is told of it, and nobody else's view fails.
    outlooks = {job.id: an_outlook(remaining=1e25)}
    problem = replace(problem, outlooks=outlooks)
    assert shown(990.0 + 1800.0)[0] is None
    ends = Ends(problem, None)
    ends.rigid = {job.id: 1e25}
    onesd.rounds.published = replace(onesd.rounds.published, problem=problem, ends=ends)
    lines = views.explain(onesd.service, HERS, None)["lines"]
    assert not any("were no job" in line for line in lines)


def test_gpus_that_are_held_and_do_nothing_are_counted(onesd: Onesd) -> None:
    node = NodeRecord(name="n1", states=frozenset({"MIXED"}), gpus=4, gpus_used=3)
    onesd.rounds.published = Round(
        **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": ""},
        snapshot=replace(NOTHING, nodes={"n1": node}),
    )
    assert views.nodes(onesd.service)["nodes"][0]["idle"] is None
    gpus = tuple(
        GpuSample(minor=minor, uuid=f"GPU-{minor}", type="v100", utilization=used)
        for minor, used in enumerate((0.9, 0.01, 0.0, None))
    )
    report = NodeReport(node="n1", taken=990.0, interval=10.0, version="0", gpus=gpus)
    onesd.service.hear(report)
    assert views.nodes(onesd.service)["nodes"][0]["idle"] == 1  # of the last nothing is known


def test_costs_that_were_not_measured_are_called_assumed(onesd: Onesd) -> None:
    line = explained(onesd.service, onesd.rounds, points=0)
    assert "a restart costs 10 s" in line
    config = onesd.service.policy.config
    assumed = msgspec.structs.replace(config.estimator, restart_seconds=10.0)
    onesd.service.policy.config = msgspec.structs.replace(config, estimator=assumed)
    line = explained(onesd.service, onesd.rounds, points=0)
    assert "a restart is assumed to cost 10 s" in line
    sizes = views.explain(onesd.service, HERS, None)["sizes"]
    assert [size["note"] for size in sizes] == ["a guess", "a guess"]


def test_an_explanation_ends_with_the_latest_request(service: Service) -> None:
    lines = views.explain(service, HERS, None)["lines"]
    assert lines[0] == "job 7 (train): RUNNING, sizes 1-4"


@pytest.mark.parametrize("number", [HIS, 12345])
def test_other_people_s_jobs_and_unknown_ones_are_refused_alike(
    service: Service, number: int
) -> None:
    with pytest.raises(views.NotKnown, match=f"job {number} is not one of your elastic jobs"):
        views.job(service, number, "ana", lambda _: 0.0)


def test_runs_of_an_earlier_job_of_the_same_number_are_not_its(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after slurmctld has lost its state, and slurmdbd has not."""
    own = Run(job=HERS, ordinal=0, started=200.0, ended=300.0, state="x", nodes="n1", gpus=1)
    old = replace(own, ordinal=5, started=50.0, ended=90.0)
    found = SimpleNamespace(runs=lambda jobs: [old, own])
    monkeypatch.setattr(service.books.jobs, "_cluster", found)
    assert service.books.jobs.refresh_runs([HERS])
    kept = service.books.store.rows("SELECT started FROM runs WHERE job = ?", HERS)
    assert 50.0 not in {row["started"] for row in kept}
    assert 200.0 in {row["started"] for row in kept}


def test_of_a_pair_with_anothers_job_a_user_is_told_his_half(service: Service) -> None:
    pair = {"at": 900.0, "node": "n1", "gpu": 0, "parted": f"slow: {SLOW.format(HIS)}"}
    for which, job in (("first", HERS), ("second", HIS)):
        pair |= {which: job, f"{which}_restarts": 0, f"{which}_batch": 64.0}
        pair |= {f"{which}_family": "f", f"{which}_expected": 0.9, f"{which}_speed": 0.3}
    service.books.store.put("pairs", [pair])
    (hers,) = views.sharing(service, "ana")["pairs"]
    assert (hers["first"], hers["second"]) == (HERS, None)
    assert (hers["expected"], hers["measured"]) == ([0.9, None], [0.3, None])
    assert hers["parted"] == "another user's job runs slower than expected"
    assert str(HIS) not in str(hers | {"since": None})
    (whole,) = views.sharing(service, None)["pairs"]
    assert whole["second"] == HIS
    assert whole["parted"] == SLOW.format(HIS)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("shares its GPU with job 8", "shares its GPU with another user's job"),
        ("shares its GPU with job 7", "shares its GPU with job 7"),
        (
            "shares the GPU of job 8: 96% and 93% of their speeds expected",
            "shares the GPU of another user's job: 96% of its speed expected",
        ),
        (
            "shares the GPU of job 7: 96% and 93% of their speeds expected",
            "shares the GPU of job 7: 96% and 93% of their speeds expected",
        ),
        (
            f"separated from job 8: {SLOW.format(HIS)}",
            "separated from another user's job: another user's job runs slower than expected",
        ),
        (
            f"separated from job 8: {SLOW.format(HERS)}",
            f"separated from another user's job: {SLOW.format(HERS)}",
        ),
        (
            "job 7 ran out of memory beside job 8",
            "job 7 ran out of memory beside another user's job",
        ),
        ("job 8 comes first", "another user's job comes first"),
        (
            "shares its GPU with job 8; needs 2 GPUs; the first come free when job 8 ends",
            "shares its GPU with another user's job; needs 2 GPUs;"
            " the first come free when job 8 ends",
        ),
        ("job 8 is ahead of it and waits for its GPUs",) * 2,
        ("job 8 has waited 00:40:00 and comes first",) * 2,
        ("its data are being staged in by job 8 on n1",) * 2,
    ],
)
def test_of_another_s_job_on_a_shared_gpu_no_number_and_no_speed_is_told(
    onesd: Onesd, reason: str, told: str
) -> None:
    service = onesd.service
    gpu = Placement.of({"n1": 1})
    job = replace(a_job(HERS, "1", placement=gpu), user="ana")
    move = Move(job=job.id, kind="preempt", reason=reason)
    record = JobRecord(
        **{"id": HERS, "name": "x", "user": "ana", "account": "lab", "partition": "gpu"},
        **{"qos": "normal", "state": "RUNNING"},
    )
    onesd.rounds.published = Round(
        **{"number": 1, "at": 990.0, "seconds": 1.0, "outcome": ""},
        snapshot=replace(NOTHING, jobs={HERS: record}),
        jobs=(job,),
        decisions=(Decision.of(move, job, "begun"),),
        notes={job.id: reason},
    )
    journal = {"job": HERS, "kind": "preempt", "restarts": 0, "outcome": "done", "beside": HIS}
    service.books.store.put(
        "moves",
        [
            {"job": HERS, "kind": "preempt", "at": 900.0, "outcome": "done", "open": 0}
            | {"record": json.dumps({**journal, "reason": reason})}
        ],
    )

    def said(whose: str | None) -> list[str]:
        (listed,) = views.jobs(service, whose)["jobs"]
        (decided,) = views.plan(service, whose)["decisions"]
        life = views.job(service, HERS, whose, lambda _: 0.0)
        (moved,) = life["moves"]
        assert moved["beside"] == (HIS if whose is None else None)
        assert life["runs"][0]["reason"].endswith(f"preempted: {moved['reason']}")
        lines = views.explain(service, HERS, whose)["lines"]
        explained = lines[1].removeprefix("preempt: ").removesuffix("; begun")
        return [listed["note"], decided["reason"], moved["reason"], explained]

    assert said("ana") == [told] * 4
    assert said(None) == [reason] * 4
