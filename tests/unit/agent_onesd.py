"""A small HTTP server that stands for onesd before an agent."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from aiohttp import web

from ones.daemon.agent.push import Onesd
from ones.daemon.wire import CREDENTIAL, HEARD_PURPOSE, Heard, Lease, NodeReport, answer_to


def seal(purpose: str, subject: str, body: bytes) -> str:
    return f"{purpose}|{subject}|{hashlib.sha256(body).hexdigest()}"


def trust(credential: str, purpose: str, subject: str, body: bytes) -> bool:
    return credential == seal(purpose, subject, body)


class Controller:
    """Stands for onesd: checks credentials, keeps reports, and refuses or hangs when told to."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.leases: dict[int, Lease] = {}
        self.changed: tuple[Lease, ...] = ()  # told with every answer to a report
        self.staged_at = 0.0
        self.signature = True  # whether answers are signed
        self.asked = ""  # the credential of the request that they answer, instead of the true one
        self.refusal = 0
        self.hang = 0.0

    async def report(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._check(request, "ones-agent-report", body)
        await asyncio.sleep(self.hang)
        if self.refusal:
            return web.json_response({"error": "not\ntoday"}, status=self.refusal)
        self.reports.append(msgspec.json.decode(body, type=NodeReport))
        heard = Heard(leases=self.changed, staged_at=self.staged_at)
        return self._answer(request, msgspec.json.encode(heard))

    async def lease(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        self._check(request, "ones-lease", job.encode())
        await asyncio.sleep(self.hang)
        if int(job) not in self.leases:
            return self._answer(request, b'{"error":"not known"}', status=404)
        return self._answer(request, msgspec.json.encode(self.leases[int(job)]))

    def _answer(self, request: web.Request, answer: bytes, *, status: int = 200) -> web.Response:
        asked = self.asked or request.headers["Authorization"].partition(" ")[2]
        signed = {CREDENTIAL: seal(HEARD_PURPOSE, "n1", answer_to(asked, answer))}
        return web.Response(body=answer, status=status, headers=signed if self.signature else None)

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
        yield Onesd(session, [f"127.0.0.1:{port}"], "n1", seal, trust)
    await runner.cleanup()
