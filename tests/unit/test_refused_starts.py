"""A start that Slurm refuses ends at once, is remembered, and keeps nobody else waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_slurm import a_record
from policy_builders import a_cluster, a_job, on
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.config import EstimatorConfig
from ones.daemon.onesd.books.starts import FailedStarts, Refusal, without_refused
from ones.daemon.onesd.books.store import Store
from ones.policies.model import Shape
from ones.slurm_ext.simulated.gate import PASS, Call, Refuse, Verdict
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.settings import Qos
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.snapshot import JobRecord, Reservation, Snapshot
from ones.slurm_ext.waits import about


def nobody_tells_limits(call: Call) -> Verdict:
    """As where sacctmgr is down, or Slurm has a limit of a kind that is not read."""
    return Refuse("no answer") if call.name == "limits" else PASS


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("", ""),
        ("None", ""),
        ("Priority", ""),
        ("Resources", ""),
        ("BeginTime", ""),
        ("Prolog", ""),
        ("ReqNodeNotAvail, May be reserved for other job", "nodes"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "nodes"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", "nodes"),
        ("NodeDown", "nodes"),
        ("BadConstraints", "nodes"),
        ("QOSMaxGRESPerUser", "size"),
        ("AssocGrpGRES", "size"),
        ("QOSGrpCpuLimit", "size"),
        ("QOSMaxNodePerJobLimit", "size"),
        ("PartitionNodeLimit", "size"),
        ("QOSGrpJobsLimit", "job"),
        ("AssocMaxJobsLimit", "job"),
        ("QOSGrpCpuMinutesLimit", "job"),
        ("Licenses", "job"),
        ("Reservation", "job"),
        ("ReservationDeleted", "job"),
        ("PartitionTimeLimit", "job"),
        ("Dependency", "job"),
        ("JobArrayTaskLimit", "job"),
        ("SomethingNew", "job"),
    ],
)
def test_what_a_reason_is_about(reason: str, what: str) -> None:
    assert about(reason) == what


def test_jobs_of_a_reservation_that_has_not_begun_leave_the_gpus_to_others() -> None:
    at_work = AtWork()
    later = at_work.world.now + 7200
    at_work.world.reserve(
        Reservation(
            name="class", nodes=frozenset({"n1"}), users=frozenset({"bob"}), start=later, end=9e9
        )
    )
    booked = [at_work.submit(user="bob", reservation="class") for _ in range(8)]
    at_work.live(30)
    others = [at_work.submit(seconds=300.0) for _ in range(3)]
    said = {int(job.id): job.fixed for job in at_work.onesd.rounds.published.jobs}
    assert said[booked[0]].startswith("its reservation class begins at ")
    at_work.live(60)
    assert [at_work.job(job).state for job in others] == ["RUNNING"] * 3
    assert all(at_work.job(job).state == "PENDING" for job in booked)
    assert [at_work.outcomes(job) for job in booked] == [[]] * 8


def test_jobs_kept_off_by_somebody_elses_reservation_leave_the_gpus_to_others() -> None:
    at_work = AtWork()
    names = frozenset(at_work.world.state.nodes)
    at_work.world.reserve(
        Reservation(
            name="soon", nodes=names, users=frozenset({"carol"}), start=at_work.world.now + 1800
        )
    )
    long = [at_work.submit(user="bob", time_limit=7200.0) for _ in range(8)]
    at_work.live(60)
    short = [at_work.submit(time_limit=900.0, seconds=300.0) for _ in range(4)]
    at_work.live(120)
    assert all(at_work.job(job).started for job in short)
    assert all(at_work.job(job).state == "PENDING" for job in long)


def test_a_start_that_slurm_refuses_is_withdrawn_at_once_and_tried_smaller() -> None:
    at_work = AtWork(a_world({"qos": (Qos(gpus_per_user=2),)}))
    at_work.door.judge = nobody_tells_limits
    job = at_work.submit(4)
    at_work.live(150, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).state == "RUNNING"
    assert at_work.job(job).gpus <= 2
    assert "(QOSMaxGRESPerUser); held" in at_work.outcomes(job)[0]


def test_a_node_without_cpus_is_left_alone_for_a_while_and_another_taken() -> None:
    at_work = AtWork()
    cpus = Wants(nodes=(1, 1), tasks=1, cpus_per_task=16)
    at_work.world.submit("bob", wants=cpus)
    at_work.world.step(5)
    job = at_work.submit(4)
    at_work.live(240, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).state == "RUNNING"
    assert len(at_work.outcomes(job)) <= 2


class Unread(AtWork):
    """Nodes are as far as onesd knows of them: nobody tells it of their CPUs."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy=policy)
        read = self.cluster.snapshot

        def snapshot() -> Snapshot:
            found = read()
            nodes = {name: replace(node, cpus=0) for name, node in found.nodes.items()}
            return replace(found, nodes=nodes)

        self.cluster.snapshot = snapshot  # type: ignore[method-assign]


def test_a_size_that_slurm_gives_nowhere_is_tried_smaller() -> None:
    """As with what is asked of sockets, or of scratch space, which is not read."""
    at_work = Unread("ones")
    job = at_work.world.submit("alice", wants=gpus(2, cpus_per_gpu=8), elastic="1-8")
    at_work.live(300, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).gpus in (1, 2)
    assert len(at_work.outcomes(job)) <= 4


def test_a_job_that_slurm_gives_no_more_goes_back_to_what_it_had() -> None:
    at_work = Unread("ones")
    at_work.says = {"samples": 1, "step_seconds": 0.5, "batch": 64, "total_samples": 10**7}
    others = [at_work.world.submit("bob", wants=gpus(4)) for _ in range(3)]
    others.append(at_work.world.submit("bob", wants=gpus(2)))
    at_work.world.step(3)
    wants = gpus(2, cpus_per_gpu=6)  # with 16 CPUs a node 4 GPUs have none
    job = at_work.world.submit("alice", wants=wants, elastic="2,4,8", time_limit=86400.0)
    at_work.live(200)
    assert at_work.job(job).gpus == 2
    for other in others:
        at_work.world.finish(other)
    at_work.live(600)
    ran = [second for second in range(300) if at_work.live(1) or at_work.job(job).gpus >= 2]
    assert len(ran) > 270, at_work.outcomes(job)


def test_a_job_that_runs_is_not_barred_from_where_it_runs() -> None:
    at_work = AtWork()
    job = at_work.submit(4)
    book = at_work.onesd.service.books.starts
    for node in ("n1", "n2"):
        book.failed(job, on(**{node: 4}), "Resources", now=at_work.world.now)
    at_work.live(100, until=lambda: at_work.job(job).state == "RUNNING")
    at_work.live(2)
    (node,) = at_work.job(job).nodes
    barred = {row["what"] for row in at_work.store.rows("SELECT what FROM failed_starts")}
    assert barred == {"node n1", "node n2"} - {f"node {node}"}


def test_each_refusal_bars_for_twice_as_long_up_to_an_hour() -> None:
    book = FailedStarts(Store(":memory:"))
    spans = []
    now = 1000.0
    for _ in range(9):
        book.failed(7, on(n1=4), "Dependency", now=now)
        (refusal,) = book.barred(now=now).get(7, ())
        spans.append(refusal.until - now)
        now = refusal.until + 15
        assert book.barred(now=now).get(7, ()) == ()
    assert spans == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def a_snapshot(*jobs: JobRecord) -> Snapshot:
    return Snapshot(taken=0.0, jobs={job.id: job for job in jobs}, nodes={}, switches={})


def test_what_a_rule_forbids_is_tried_again_when_a_job_that_counts_has_ended() -> None:
    book = FailedStarts(Store(":memory:"))
    mine = a_record(7)
    runs = {"state": "RUNNING", "gpus_on": {"n1": 4}, "nodes": "n1"}
    own, other = a_record(8, **runs), a_record(9, user="bob", **runs)
    book.take(a_snapshot(mine, own, other), now=990.0)
    book.failed(7, on(n1=4), "QOSMaxGRESPerUser", now=1000.0)
    assert book.barred(now=1000.0 + 3000.0).get(7, ()) != ()
    book.take(a_snapshot(mine, own), now=1300.0)
    assert book.barred(now=1300.0).get(7, ()) != (), "bob's jobs do not count"
    book.take(a_snapshot(mine), now=1400.0)
    assert book.barred(now=1400.0).get(7, ()) == ()


def test_a_task_beyond_its_arrays_limit_is_tried_again_when_a_task_of_it_has_ended() -> None:
    book = FailedStarts(Store(":memory:"))
    runs = {"state": "RUNNING", "gpus_on": {"n1": 4}, "nodes": "n1"}
    mine = a_record(7, array_job=5, array_task="0")
    own, other = a_record(8, array_job=5, array_task="1", **runs), a_record(9, **runs)
    book.take(a_snapshot(mine, own, other), now=990.0)
    book.failed(7, on(n1=4), "JobArrayTaskLimit", now=1000.0)
    book.take(a_snapshot(mine, own), now=1300.0)
    assert book.barred(now=4000.0).get(7, ()) != ()
    book.take(a_snapshot(mine), now=1400.0)
    assert book.barred(now=1400.0).get(7, ()) == ()


def test_what_a_rule_forbids_rests_for_a_while_whatever_changes() -> None:
    book = FailedStarts(Store(":memory:"))
    runs = a_record(8, state="RUNNING", gpus_on={"n1": 4}, nodes="n1")
    book.take(a_snapshot(a_record(7), runs), now=990.0)
    book.failed(7, on(n1=4), "AssocGrpGRES", now=1000.0)
    book.take(a_snapshot(a_record(7)), now=1001.0)
    assert [one.until for one in book.barred(now=1002.0).get(7, ())] == [1060.0]


def test_what_a_rule_forbids_is_tried_again_when_the_rules_are_others() -> None:
    book = FailedStarts(Store(":memory:"))
    book.failed(7, on(n1=4), "Licenses", now=1000.0)
    book.failed(8, on(n1=4), "Resources", now=1000.0)
    book.limits_changed(now=1010.0)
    assert book.barred(now=1010.0).get(7, ()) == ()
    assert [one.what for one in book.barred(now=1010.0).get(8, ())] == ["node"]


def test_a_job_that_was_stopped_for_a_size_goes_back_to_what_it_ran_with() -> None:
    book = FailedStarts(Store(":memory:"))
    job = a_job(7, "1-8", nodes=a_cluster(2, 4))
    book.failed(7, on(n1=4, n2=2), "QOSMaxGRESPerUser", now=1000.0, ran=2)
    less, note = without_refused(job, book.barred(now=1001.0).get(7, ()))
    assert ({shape.gpus for shape in less.shapes}, less.startable, note) == ({2}, True, "")
    ran = a_record(7, state="RUNNING", gpus_on={"n1": 2}, nodes="n1")
    book.take(a_snapshot(ran), now=1010.0)
    running = a_job(7, "1-8", nodes=a_cluster(2, 4), placement=on(n1=2))
    less, _ = without_refused(running, book.barred(now=1010.0).get(7, ()))
    assert max(shape.gpus for shape in less.shapes) == 4, "6 were refused"
    book.failed(7, on(n1=2), "QOSMaxGRESPerUser", now=1020.0)
    less, _ = without_refused(job, book.barred(now=1020.0).get(7, ()))
    assert {shape.gpus for shape in less.shapes} == {1}


def test_a_job_that_grew_into_a_limit_nobody_knew_of_runs_on_at_its_size() -> None:
    """A running job was stopped to grow, met the limit, and was started on the same for ever."""
    at_work = AtWork(
        a_world({"qos": (Qos(gpus_per_user=3),)}),
        policy="ones",
        estimator=EstimatorConfig(restart_seconds=1.0),
    )
    at_work.door.judge = nobody_tells_limits
    at_work.says = {"samples": 1000, "total_samples": 10**7}
    at_work.says |= {"step_seconds": 0.5, "batch": 64, "gpus": 2}
    job = at_work.submit(1, seconds=9000.0)
    at_work.live(600)
    refused = [one for one in at_work.outcomes(job) if "does not start" in one]
    assert len(refused) == 1
    assert "QOSMaxGRESPerUser" in refused[0]
    assert at_work.job(job).state == "RUNNING"
    assert at_work.job(job).gpus in (2, 3)
    moves = at_work.onesd.service.books.journal.of_job(job)
    first, grown, back = [sum(each["target"].values()) for each in moves[:3]]
    assert first == back <= 3 < grown, "it began within the limit, and is back at what it had"


def test_who_was_refused_on_two_nodes_waits_before_he_tries_a_third() -> None:
    book = FailedStarts(Store(":memory:"))
    book.failed(7, on(n1=4), "ReqNodeNotAvail", now=1000.0)
    book.failed(7, on(n2=4), "ReqNodeNotAvail", now=1010.0)
    barred = {(one.what, one.node): one.until for one in book.barred(now=1015.0).get(7, ())}
    assert barred == {("node", "n1"): 1060.0, ("node", "n2"): 1250.0, ("job", ""): 1070.0}


def test_a_limit_on_sizes_is_found_by_halves() -> None:
    book = FailedStarts(Store(":memory:"))
    for many, least in ((16, 16), (15, 8), (7, 4), (3, 2)):
        book.failed(7, on(n1=many), "QOSMaxGRESPerUser", now=1000.0)
        assert book.barred(now=1000.0).get(7, ())[0].gpus == least


def test_a_clock_set_back_bars_nothing_for_longer_than_an_hour() -> None:
    book = FailedStarts(Store(":memory:"))
    book.failed(7, on(n1=4), "Resources", now=90_000.0)
    assert book.barred(now=1000.0).get(7, ()) == ()


def test_what_was_refused_is_taken_from_the_job_and_the_rest_left() -> None:
    nodes = a_cluster(2, 4)
    job = a_job(1, "1-8", nodes=nodes)
    node = Refusal(what="node", node="n1", gpus=4, reason="Resources", until=2000.0)
    less, note = without_refused(job, (node,))
    assert less.nodes == {"n2"}
    assert max(shape.nodes for shape in less.shapes) == 1
    assert (less.startable, note) == (True, "")
    size = Refusal(what="size", gpus=2, reason="QOSMaxGRESPerUser", until=2000.0)
    less, note = without_refused(job, (size,))
    assert less.shapes == (Shape(1, 1),)
    whole = Refusal(what="job", gpus=2, reason="Licenses", until=2000.0)
    less, note = without_refused(job, (whole,))
    assert not less.startable
    assert note.startswith("Slurm did not start it (Licenses); tried again after ")


def test_a_job_for_which_nothing_is_left_says_why_and_until_when() -> None:
    nodes = a_cluster(2, 4)
    job = a_job(1, "1-8", nodes=nodes)
    every = tuple(
        Refusal(what="node", node=node.name, gpus=4, reason="Resources", until=until)
        for node, until in zip(nodes, (2000.0, 3000.0), strict=True)
    )
    less, note = without_refused(job, every)
    assert not less.startable
    assert "(Resources)" in note


def test_a_job_that_runs_keeps_what_it_has_and_does_not_go_where_it_was_refused() -> None:
    running = a_job(1, "1-8", nodes=a_cluster(2, 4), placement=on(n1=4))
    size = Refusal(what="size", gpus=2, reason="QOSMaxGRESPerUser", until=2000.0)
    nodes = [Refusal(what="node", node=n, gpus=2, reason="", until=2000.0) for n in ("n1", "n2")]
    less, note = without_refused(running, (size, *nodes))
    assert (less.nodes, set(less.shapes)) == ({"n1"}, {Shape(1, 1), Shape(1, 4)})
    assert (less.startable, note) == (True, "")


def test_gpus_free_for_one_user_are_not_kept_for_another_at_his_limit() -> None:
    at_work = AtWork(a_world({"qos": (Qos(jobs_per_user=1),)}))
    mine = [at_work.submit(4, seconds=4000.0) for _ in range(6)]
    at_work.live(60)
    theirs = at_work.world.submit("bob", wants=gpus(4), elastic="1-8", seconds=60.0)
    at_work.live(60)
    assert sum(at_work.job(job).state == "RUNNING" for job in mine) == 1
    assert theirs not in at_work.world.state.jobs or at_work.job(theirs).started > 0
