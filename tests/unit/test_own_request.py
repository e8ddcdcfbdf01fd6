"""A job that is let go asks for what its owner asked for, and begins when its owner says."""

from __future__ import annotations

from typing import Any

import pytest
from fake_slurm import FakeSlurm, a_record
from simulated_onesd import AtWork
from simulation.pending import pending
from test_elastic import a_cluster

from ones.daemon import release
from ones.daemon.onesd.doors import waiting
from ones.policies.guard import Move
from ones.policies.model import JobId, Placement, Shape
from ones.slurm_ext.actions import Restore
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.own_request import own_shape, to_put_back
from ones.slurm_ext.simulated.gate import PASS, Call, Refuse, Verdict
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.whereabouts import Whereabouts


def shrunk(at: AtWork, *, request: int = 8, to: int = 1) -> int:
    """A job that onesd has resized, and then stopped for others: it is held."""
    job = at.running(count=request)
    node = at.job(job).nodes[0]
    target = Placement.of({node: to})
    at.move(Move(job=JobId(job), kind="resize", target=target, reason="a test"))
    at.live(14, until=lambda: at.job(job).gpus == to)
    assert at.job(job).gpus == to
    at.preempt(job)
    for second in range(1, 14):  # without a round
        at.second(second)
    assert at.job(job).held
    return job


def filled(at: AtWork) -> list[int]:
    busy = [at.world.submit("bob", wants=gpus(4)) for _ in range(4)]
    at.world.step(3)
    return busy


def ones_release(at: AtWork) -> None:
    """What ones-release does once onesd is gone."""
    written = release.holds_in(at.store._db, at.world.now)
    ones = at.world.by("ones")
    for record in at.world.snapshot().jobs.values():
        job = pending(record)
        if release.why_release(job, written.of(record.id), moves_too=True):
            ones.update(record.id, {**written.own(job), **release.terms(job)})
            ones.release(record.id)


def test_once_onesd_is_gone_a_job_that_it_shrank_runs_at_its_own_request() -> None:
    at = AtWork()
    job = shrunk(at)
    ones_release(at)
    at.alone(30)
    assert (at.job(job).state, at.job(job).gpus, len(at.job(job).nodes)) == ("RUNNING", 8, 2)


def test_a_job_that_was_to_start_larger_runs_at_its_own_request_once_onesd_is_gone() -> None:
    at = AtWork()
    busy = filled(at)
    job = at.submit(2)
    at.live(31)
    node = at.job(busy[0]).nodes[0]
    at.world.finish(busy[0])
    at.alone(3)
    target = Placement.of({node: 4})
    at.move(Move(job=JobId(job), kind="start", target=target, reason="a test"))
    at.door.judge = lambda call: Refuse("not now") if call.name == "release" else PASS
    at.second(1)
    assert (at.job(job).held, at.job(job).wants.tres_per_job) == (True, "gres/gpu:4")
    ones_release(at)
    at.alone(30)
    assert (at.job(job).state, at.job(job).gpus) == ("RUNNING", 2)


@pytest.mark.parametrize("refused", [False, True])
def test_onesd_itself_lets_a_job_go_at_its_own_request(refused: bool) -> None:
    """Where Slurm refuses that, it is let go all the same."""
    at = AtWork()
    job = shrunk(at)

    def judge(call: Call) -> Verdict:
        shapes = call.name == "update" and "NumNodes" in call.arguments[1]  # type: ignore[operator]
        return Refuse("Requested node configuration is not available") if shapes else PASS

    if refused:
        at.door.judge = judge
    record = at.cluster.snapshot().jobs[job]
    own = to_put_back(record, Whereabouts(at.cluster.snapshot()))
    assert own == Shape(2, 4)
    at.onesd.moves.restarts.let_go(record, "as a plain job: a test", own=own)
    at.alone(150)  # where nothing was written, Slurm lets a requeued job wait
    assert (at.job(job).state, at.job(job).gpus) == ("RUNNING", 1 if refused else 8)


def test_a_job_is_put_into_slurms_queue_at_its_own_request() -> None:
    at = AtWork()
    job = shrunk(at)
    filled(at)
    snapshot = at.cluster.snapshot()
    queueing = at.onesd.moves.queueing
    queueing.decide(snapshot, into={JobId(job)}, out=())
    queueing.go_on(snapshot, ())
    record = at.cluster.snapshot().jobs[job]
    assert not record.held
    assert (record.tres_per_job, record.nodes_wanted) == ("gres/gpu:8", (2, 2))


def test_what_slurm_will_not_have_at_its_own_request_is_not_put_into_its_queue() -> None:
    at = AtWork()
    job = shrunk(at)
    at.door.judge = lambda call: Refuse("no") if call.name == "update" else PASS
    snapshot = at.cluster.snapshot()
    at.onesd.moves.queueing.decide(snapshot, into={JobId(job)}, out=())
    at.onesd.moves.queueing.go_on(snapshot, ())
    assert at.job(job).held


@pytest.mark.parametrize(
    ("changes", "mark", "own"),
    [
        ({"tres_per_job": "gres/gpu:1", "tres_per_node": "gres/gpu:1"}, "nodes=1", Shape(1, 4)),
        ({"tres_per_job": "gres/gpu:1", "tres_per_node": "gres/gpu:1"}, "nodes=2", Shape(2, 2)),
        (
            {
                "tres_per_job": "gres/gpu:4",
                "tres_per_node": "gres/gpu:2",
                "nodes_wanted": (2, 2),
                "tasks": 2,
            },
            "nodes=1",
            Shape(1, 4),
        ),
        ({"tres_per_job": "", "tres_per_node": "gres/shard:1"}, "nodes=1", Shape(1, 4)),
        ({"tres_per_job": "", "tres_per_node": "gres/gpu:4"}, "nodes=1", None),
        ({}, "nodes=1", None),
        ({"nodes_wanted": (2, 4)}, "nodes=2", None),
        ({"tres_per_job": "gres/gpu:v100:1,gres/gpu:k80:1"}, "nodes=1", None),
    ],
    ids=["smaller", "of two nodes", "spread", "shares", "by node", "untouched", "range", "types"],
)
def test_only_who_asks_for_something_else_is_put_back(
    changes: dict[str, Any], mark: str, own: Shape | None
) -> None:
    comment = f"ONES1:sizes=1-8;request=4;held=1;tasks=0;{mark}"
    job = a_record(admin_comment=comment, **changes)
    assert to_put_back(job, Whereabouts(a_cluster(job))) == own


def test_a_request_that_no_nodes_could_hold_is_not_given_back() -> None:
    job = a_record(admin_comment="ONES1:sizes=1-64;request=64;held=1;tasks=0;nodes=1")
    assert own_shape(job, Whereabouts(a_cluster(job))) is None


def test_a_shape_is_put_back_in_one_update_while_the_job_is_locked() -> None:
    slurm = FakeSlurm(a_record(tres_per_job="gres/gpu:1", required_nodes="n1"))
    Actuator(slurm.cluster).perform(Restore(1, 0, Shape(1, 4)))
    assert slurm.written == [
        "scontrol hold 1",
        "scontrol update JobId=1 NumNodes=1-1 NumTasks=1 NumCPUs=1 MinCPUsNode=1"
        " TresPerNode=gres/gpu:4 TresPerJob=gres/gpu:4 ReqNodeList= StartTime=now",
    ]


def test_a_job_that_somebody_has_released_is_not_put_back() -> None:
    slurm = FakeSlurm(a_record(held=False, reason="Priority"))
    with pytest.raises(JobChanged, match="no longer held"):
        Actuator(slurm.cluster).perform(Restore(1, 0, Shape(1, 4)))
    assert slurm.written == []


def later(at: AtWork, job: int) -> None:
    """As its owner's `scontrol update StartTime=now+1day`."""
    at.world.by("alice").update(job, {"StartTime": "now+86400"})


def test_a_job_whose_owner_has_it_begin_tomorrow_waits_until_then() -> None:
    at = AtWork()
    busy = filled(at)
    job = at.submit()
    at.live(40)
    later(at, job)
    for one in busy:
        at.world.finish(one)
    at.live(60)
    assert at.job(job).state == "PENDING"
    assert at.job(job).begin > at.world.now + 86000
    last = at.onesd.rounds.published
    (planned,) = last.jobs
    assert waiting.Waits(last, at.world.now).why(planned, None).startswith("it begins at ")
    at.alone(86400)
    at.live(60)
    assert at.job(job).state == "RUNNING"


def test_a_job_that_is_let_go_begins_when_its_owner_says_all_the_same() -> None:
    at = AtWork()
    job = shrunk(at)
    later(at, job)
    ones_release(at)
    at.alone(600)
    assert (at.job(job).state, at.job(job).reason) == ("PENDING", "BeginTime")


def test_slurms_own_wait_after_a_requeue_is_not_the_owners() -> None:
    at = AtWork()
    job = shrunk(at)
    assert at.job(job).begin > at.world.now + 60
    at.live(30)
    assert at.job(job).state == "RUNNING"
