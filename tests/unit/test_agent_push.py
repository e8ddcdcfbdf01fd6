"""The way to onesd, against a small server that stands for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import pytest
from agent_onesd import Controller, served

from ones.daemon.agent import push
from ones.daemon.agent.push import ControllerError, Onesd, Pusher, Unproved
from ones.daemon.munge import MungeError
from ones.daemon.wire import Heard, Lease, Live, LiveOrder, NodeReport, Received, Report


def a_report(number: float = 0) -> NodeReport:
    return NodeReport(node="n1", taken=number, interval=1, version="0")


def with_onesd(work: Callable[[Controller, Onesd], Awaitable[None]]) -> None:
    async def run() -> None:
        controller = Controller()
        async with served(controller) as onesd:
            await work(controller, onesd)

    asyncio.run(run())


def test_a_report_arrives_under_its_credential() -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        await onesd.send(a_report())
        assert controller.reports == [a_report()]

    with_onesd(work)


def test_a_lease_is_fetched_and_an_unknown_job_has_none() -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        controller.leases[7] = Lease(job=7, sizes="2-16", gpus=4)
        assert await onesd.lease(7) == controller.leases[7]
        assert await onesd.lease(8) is None

    with_onesd(work)


def test_an_answer_counts_only_if_onesd_has_signed_it_for_this_very_request() -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        order = LiveOrder(number=700, restarts=0)
        controller.changed = (Lease(job=7, batch=64, order=order),)
        controller.leases[7] = Lease(job=7, gpus=4)
        assert (await onesd.send(a_report())).leases == controller.changed
        controller.asked = "another request"
        for ask in (onesd.send(a_report()), onesd.lease(7), onesd.lease(8)):
            with pytest.raises(Unproved, match="another user has signed it"):
                await ask
        controller.signature = False
        for ask in (onesd.send(a_report()), onesd.lease(7)):
            with pytest.raises(Unproved, match="not signed"):
                await ask

    with_onesd(work)


def test_unsigned_answers_are_told_once_and_reports_still_come_every_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    learnt: list[Heard] = []

    async def work(controller: Controller, onesd: Onesd) -> None:
        pusher = Pusher(onesd, _build, interval=1, learn=learnt.append)
        controller.signature = False
        for _ in range(5):
            await pusher.push()
            assert pusher._pause() < 2
        assert len(controller.reports) == 5

    with_onesd(work)
    assert learnt == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("signal", ["KILL", "TERM", "USR1\nLD_PRELOAD=x"])
def test_a_lease_names_no_signal_but_those_that_a_job_can_be_asked_by(signal: str) -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        controller.leases[7] = Lease(job=7, checkpoint_signal=signal)  # type: ignore[arg-type]
        with pytest.raises(ControllerError, match="no lease"):
            await onesd.lease(7)

    with_onesd(work)


def test_a_message_that_cannot_be_told_keeps_no_other_from_onesd(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def said(message: Report | Live) -> Received:
        return Received(at=1.0, evidence="cgroup", message=message)

    good = said(Report(job=8))
    report = msgspec.structs.replace(
        a_report(), received=(said(Live(job=7, own={"\ud800": 1})), good)
    )

    async def work(controller: Controller, onesd: Onesd) -> None:
        for _ in range(3):
            await onesd.send(report)
        assert [one.received for one in controller.reports] == [(good,)] * 3

    with_onesd(work)
    assert [record.message.split(":")[0] for record in caplog.records] == ["job 7"]


def test_a_report_that_grows_too_long_goes_without_its_longest_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push, "MOST_REPORT", 2000)

    def said(job: int, **fields: int) -> Received:
        return Received(at=1.0, evidence="cgroup", message=Live(job=job, own=fields))

    long, short = said(7, **{f"n{number}": 1 for number in range(300)}), said(8, n1=1)
    report = msgspec.structs.replace(a_report(), received=(long, short))

    async def work(controller: Controller, onesd: Onesd) -> None:
        await onesd.send(report)
        assert controller.reports[0].received == (short,)

    with_onesd(work)


def test_a_slow_controller_does_not_hold_up_a_jobs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "LEASE_TIMEOUT", 0.1)

    async def work(controller: Controller, onesd: Onesd) -> None:
        controller.hang = 0.5
        with pytest.raises(ControllerError, match="no answer within"):
            await onesd.lease(7)

    with_onesd(work)


def test_a_refusal_is_told_in_the_controllers_words_on_one_line() -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        controller.refusal = 403
        with pytest.raises(ControllerError, match="refuses: not today") as caught:
            await onesd.send(a_report())
        assert "\n" not in str(caught.value)
        controller.refusal = 404
        with pytest.raises(ControllerError, match="takes no reports"):
            await onesd.send(a_report())

    with_onesd(work)


def test_no_munge_is_told_and_survived() -> None:
    def broken(purpose: str, subject: str, body: bytes) -> str:
        raise MungeError("munged is down")

    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(ControllerError, match="munged is down"):
                await Onesd(session, ["127.0.0.1:1"], "n1", broken).send(a_report())

    asyncio.run(work())


async def _build() -> NodeReport:
    return a_report()


def test_an_unreachable_controller_is_told_once_and_its_return_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    outcomes: list[bool] = []

    async def work(controller: Controller, onesd: Onesd) -> None:
        pusher = Pusher(
            onesd, _build, interval=1, done=lambda _report, heard: outcomes.append(heard)
        )
        controller.refusal = 500
        for _ in range(5):
            await pusher.push()
        controller.refusal = 0
        await pusher.push()
        await pusher.push()

    with_onesd(work)
    assert outcomes == [False] * 5 + [True] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_something_urgent_is_pushed_at_once_and_several_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push, "DEBOUNCE", 0.05)
    monkeypatch.setattr(push, "LEAST_GAP", 0.05)

    async def work(controller: Controller, onesd: Onesd) -> None:
        pusher = Pusher(onesd, _build, interval=600)
        running = asyncio.create_task(pusher.run())
        await asyncio.sleep(0.2)
        assert len(controller.reports) == 1
        for _ in range(5):
            pusher.soon()
        await asyncio.sleep(0.3)
        assert len(controller.reports) == 2
        running.cancel()

    with_onesd(work)


def test_reports_come_every_interval() -> None:
    async def work(controller: Controller, onesd: Onesd) -> None:
        running = asyncio.create_task(Pusher(onesd, _build, interval=0.1).run())
        await asyncio.sleep(0.5)
        assert len(controller.reports) <= 6
        async with asyncio.timeout(10):
            while len(controller.reports) < 4:
                await asyncio.sleep(0.02)
        running.cancel()

    with_onesd(work)
