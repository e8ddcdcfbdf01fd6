"""What agents said last, and when their silence counts."""

from __future__ import annotations

import pytest

from ones.daemon.onesd.books.heard import Inbox
from ones.daemon.wire import Checkpoint, GpuSample, NodeReport, Received, Report


def from_node(*messages: Report | Checkpoint, at: float = 1.0, healthy: bool = True) -> NodeReport:
    return NodeReport(
        node="n1",
        taken=at,
        interval=2.0,
        version="0",
        gpus=(GpuSample(minor=0, uuid="G", type="v100", healthy=healthy),),
        received=tuple(Received(at=at, evidence="cgroup", message=one) for one in messages),
    )


def test_a_new_checkpoint_is_news_and_the_same_again_is_not() -> None:
    inbox = Inbox()
    report = from_node(Checkpoint(job=7, samples=10))
    assert inbox.accept(report, now=1.0)
    assert not inbox.accept(report, now=3.0)


def test_a_message_of_an_earlier_run_never_replaces_one_of_a_later_run() -> None:
    inbox = Inbox()
    inbox.accept(from_node(Report(job=7, restarts=1, samples=20), at=5.0), now=5.0)
    inbox.accept(from_node(Report(job=7, restarts=0, samples=10), at=9.0), now=9.0)
    assert inbox.reports()[7].received.message.samples == 20


def test_a_node_is_silent_until_heard_and_again_after_three_intervals() -> None:
    inbox = Inbox()
    assert inbox.silence("n1", now=0.0)
    inbox.accept(from_node(), now=0.0)
    assert not inbox.silence("n1", now=6.0)
    assert "silent" in inbox.silence("n1", now=6.1)


def test_a_lost_gpu_is_told() -> None:
    inbox = Inbox()
    inbox.accept(from_node(healthy=False), now=0.0)
    assert "GPU 0 is lost" in inbox.silence("n1", now=1.0)


@pytest.mark.parametrize(
    ("linked", "gpus", "pairs"),
    [
        ({4: (6,), 5: (), 6: (4,)}, 3, {(0, 2)}),  # numbered by their place, as Slurm does
        ({4: (6,), 5: None, 6: (4,)}, 3, None),
        ({4: (6,), 5: (), 6: (4,)}, 4, None),
        ({}, 0, set()),
    ],
)
def test_nvlink_pairs_are_known_only_where_all_gpus_are(
    linked: dict[int, tuple[int, ...] | None], gpus: int, pairs: set[tuple[int, int]] | None
) -> None:
    inbox = Inbox()
    samples = tuple(
        GpuSample(minor=minor, uuid=f"G{minor}", type="v100", linked=others)
        for minor, others in linked.items()
    )
    inbox.accept(NodeReport(node="n1", taken=1.0, interval=2.0, version="0", gpus=samples), now=1.0)
    assert inbox.links("n1", gpus=gpus) == pairs
    assert inbox.links("n2", gpus=4) is None


def test_when_a_job_said_something_is_told_by_our_own_clock() -> None:
    inbox = Inbox()
    word = Received(at=5000.0, evidence="cgroup", message=Checkpoint(job=1))
    report = NodeReport(node="n1", taken=5003.0, interval=10, version="0", received=(word,))
    assert inbox.accept(report, now=100.0)
    assert inbox.checkpoints()[1].at == 97.0
    again = NodeReport(node="n1", taken=5013.0, interval=10, version="0", received=(word,))
    assert not inbox.accept(again, now=50.0)  # our clock was set back meanwhile
    assert inbox.checkpoints()[1].at == 37.0
