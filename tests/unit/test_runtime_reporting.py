"""What a worker tells the agent, and that it never waits for one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listening_agent import ListeningAgent

from ones.daemon.wire import Checkpoint, Report
from ones.slurm_ext.runtime.meter import Meter
from ones.slurm_ext.runtime.reporting import RETRY, Reporter


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ListeningAgent]:
    fake = ListeningAgent(tmp_path / "agent.sock")
    yield fake
    fake.down()


def a_reporter(tmp_path: Path) -> Reporter:
    return Reporter(str(tmp_path / "agent.sock"), job=42, restarts=1)


def test_reports_have_the_shape_that_the_agent_reads(tmp_path: Path, agent: ListeningAgent) -> None:
    agent.up()
    reporter = a_reporter(tmp_path)
    reporter.report({"samples": 640, "loss": 0.5, "step_seconds": None, "checkpoints": True})
    assert agent.wait_for(1) == [Report(job=42, restarts=1, samples=640, loss=0.5)]
    reporter.confirm(samples=640, path="/here")
    assert agent.wait_for(2)[1] == Checkpoint(job=42, restarts=1, samples=640, path="/here")
    reporter.close()


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path, agent: ListeningAgent) -> None:
    agent.up()
    reporter = a_reporter(tmp_path)
    reporter.report({"samples": 1, "loss": float("nan")})
    assert agent.wait_for(1) == [Report(job=42, restarts=1, samples=1)]
    reporter.close()


def test_what_no_report_can_hold_is_left_out_with_one_line(
    tmp_path: Path, agent: ListeningAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.up()
    reporter = a_reporter(tmp_path)
    unfit: Any = np.float32(0.5)
    for samples in (1, 2):
        reporter.report({"samples": samples, "accuracy": unfit})
        agent.wait_for(samples)
    reporter.confirm(samples=2, path="/here")
    assert agent.wait_for(3) == [
        Report(job=42, restarts=1, samples=1),
        Report(job=42, restarts=1, samples=2),
        Checkpoint(job=42, restarts=1, samples=2, path="/here"),
    ]
    reporter.close()
    assert [record.message for record in caplog.records] == [
        "ones: reports leave out accuracy, which is a float32 and no plain number or text"
    ]


def test_without_an_agent_nothing_waits_and_nothing_fails(tmp_path: Path) -> None:
    begun = time.monotonic()
    reporter = a_reporter(tmp_path)
    for samples in range(100):
        reporter.report({"samples": samples})
    reporter.close()
    assert time.monotonic() - begun < 100 * RETRY / 2


def test_a_confirmation_waits_for_an_agent_that_is_away(
    tmp_path: Path, agent: ListeningAgent
) -> None:
    reporter = a_reporter(tmp_path)
    reporter.confirm(samples=7, path="/here")
    time.sleep(0.1)
    agent.up()
    assert agent.wait_for(1) == [Checkpoint(job=42, restarts=1, samples=7, path="/here")]
    reporter.close()


def test_the_last_report_is_sent_before_the_end(tmp_path: Path, agent: ListeningAgent) -> None:
    agent.up()
    reporter = a_reporter(tmp_path)
    reporter.report({"samples": 9})
    reporter.close()
    assert len(agent.taken) == 1


def test_the_last_word_keeps_what_a_report_that_has_not_gone_out_has_measured(
    tmp_path: Path, agent: ListeningAgent
) -> None:
    agent.up()
    reporter = a_reporter(tmp_path)
    with reporter._wake:
        reporter.report({"samples": 9, "loss": 0.5, "checkpoints": True})
        reporter.close({"samples": 9, "loss": None, "checkpoints": False}, patience=0.0)
    assert agent.wait_for(1) == [Report(job=42, restarts=1, samples=9, loss=0.5, checkpoints=False)]


def test_a_refusal_is_said_once(
    tmp_path: Path, agent: ListeningAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.refuse = True
    agent.up()
    reporter = a_reporter(tmp_path)
    for count in (1, 2, 3):
        reporter.report({"samples": count})
        agent.wait_for(count)
    reporter.close()
    assert [record.message for record in caplog.records] == [
        "ones: the agent refuses this job's reports: not your job"
    ]


def test_the_meter_leaves_out_the_first_step_and_what_lies_between_epochs() -> None:
    now = [100.0]
    meter = Meter(started=90.0, seconds=5, clock=lambda: now[0], wall=lambda: now[0])
    meter.resume()
    now[0] = 103.0
    meter.step(loss=4.0)
    for _ in range(2):
        now[0] += 0.5
        meter.step(loss=1.0)
    now[0] += 60
    assert meter.due
    meter.resume()
    now[0] += 0.5
    meter.step(loss=2.0)
    measured = meter.read()
    assert measured.step_seconds == pytest.approx(0.5)
    assert measured.resumed_seconds == pytest.approx(13)
    assert measured.loss == pytest.approx(2)
    assert meter.read().loss is None


class OnGpu:
    """A number whose reading would wait for a GPU."""

    def __init__(self, value: float) -> None:
        self.value, self.read = value, 0

    def __float__(self) -> float:
        self.read += 1
        return self.value


def test_an_accuracy_of_any_kind_is_read_once_a_report_and_becomes_a_plain_number() -> None:
    meter = Meter(started=0, seconds=5)
    accuracies = [OnGpu(0.5), OnGpu(0.75)]
    for accuracy in accuracies:
        meter.step(accuracy=accuracy)
    assert [each.read for each in accuracies] == [0, 0]
    measured = meter.read()
    assert (type(measured.accuracy), measured.accuracy) == (float, 0.75)
    assert [each.read for each in accuracies] == [0, 1]
    meter.step(accuracy=np.float32(0.25))
    assert type(meter.read().accuracy) is float
    assert meter.read().accuracy is None
