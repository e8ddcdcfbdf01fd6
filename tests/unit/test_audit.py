"""Every move stands in the audit log: whose job, who decided on it, why, and how it came out."""

from __future__ import annotations

import logging

import pytest
from simulated_onesd import AtWork

from ones.policies.model import JobId, Placement
from ones.policies.moves import Move


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ones.audit")


def audited(caplog: pytest.LogCaptureFixture, event: str, job: int) -> list[str]:
    start = f"audit event={event} job={job} "
    return [
        record.message.removeprefix(start)
        for record in caplog.records
        if record.name == "ones.audit" and record.message.startswith(start)
    ]


def test_a_start_is_told_with_its_user_policy_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_work = AtWork(policy="fifo")
    job = at_work.submit(user="alice")
    at_work.live(30)
    (begun,) = audited(caplog, "move", job)
    assert begun.startswith("user=alice kind=start by=fifo id=1 had=nothing to=")
    assert ' why="' in begun
    assert audited(caplog, "moved", job) == ["kind=start id=1 outcome=done"]


def test_a_resize_is_told_with_what_the_job_had_and_gets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.live(60)
    had = at_work.onesd.rounds.published.jobs[0].placement
    assert had is not None
    node = had.nodes[0]
    target = Placement.of({node: 1})
    at_work.move(Move(job=JobId(job), kind="resize", target=target, reason="a\nevent=pause"))
    at_work.live(200, until=lambda: len(audited(caplog, "moved", job)) > 1)
    begun = audited(caplog, "move", job)[1]
    held = ", ".join(f"{gpus} on {name}" for name, gpus in had.gpus_on)
    assert f'kind=resize by="a test" id=2 had="{held}" to="1 on {node}"' in begun
    assert begun.endswith(r'why="a\nevent=pause"'), "a reason stays within its quotes"
    assert audited(caplog, "moved", job)[1].startswith("kind=resize id=2 outcome=")


def test_jobs_that_are_let_go_as_plain_ones_are_told(caplog: pytest.LogCaptureFixture) -> None:
    at_work = AtWork()
    job = at_work.submit()
    record = at_work.cluster.snapshot().jobs[job]
    at_work.onesd.moves.restarts.let_go(record, "as a plain job: a test")
    at_work.onesd.moves.restarts.take_back(at_work.cluster.snapshot().jobs[job], "a test")
    assert audited(caplog, "release", job) == ['user=alice why="as a plain job: a test"']
    assert audited(caplog, "hold", job) == ['user=alice why="a test"']
