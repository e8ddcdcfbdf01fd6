"""The way to onesd, against a small server that stands for it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web

from ones.daemon.agent import push
from ones.daemon.agent.push import ControllerError, Onesd, Pusher
from ones.daemon.munge import MungeError
from ones.daemon.wire import Lease, NodeReport


def a_report(number: float = 0) -> NodeReport:
    return NodeReport(node="n1", taken=number, interval=1, version="0")


def seal(purpose: str, subject: str, body: bytes) -> str:
    return f"{purpose}|{subject}|{hashlib.sha256(body).hexdigest()}"


class Controller:
    """Stands for onesd: checks credentials, keeps reports, and refuses or hangs when told to."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.leases: dict[int, Lease] = {}
        self.refusal = 0
        self.hang = 0.0

    async def report(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._check(request, "ones-agent-report", body)
        await asyncio.sleep(self.hang)
        if self.refusal:
            return web.json_response({"error": "not\ntoday"}, status=self.refusal)
        self.reports.append(msgspec.json.decode(body, type=NodeReport))
        return web.json_response({"ok": True})

    async def lease(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        self._check(request, "ones-lease", job.encode())
        await asyncio.sleep(self.hang)
        if int(job) not in self.leases:
            return web.json_response({"error": "not known"}, status=404)
        return web.Response(body=msgspec.json.encode(self.leases[int(job)]))

    @staticmethod
    def _check(request: web.Request, purpose: str, body: bytes) -> None:
        assert request.headers["Ones-Node"] == "n1"
        assert request.headers["Authorization"] == f"Munge {seal(purpose, 'n1', body)}"


@asynccontextmanager
async def served(controller: Controller) -> AsyncIterator[Onesd]:
    app = web.Application()
    app.router.add_post("/v1/agent", controller.report)
    app.router.add_get("/v1/lease/{job}", controller.lease)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        yield Onesd(session, f"127.0.0.1:{port}", "n1", seal)
    await runner.cleanup()


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
                await Onesd(session, "127.0.0.1:1", "n1", broken).send(a_report())

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
        await asyncio.sleep(0.8)
        running.cancel()
        assert 4 <= len(controller.reports) <= 9

    with_onesd(work)
