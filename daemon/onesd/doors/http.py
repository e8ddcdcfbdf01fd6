"""The doors of onesd: a unix socket for onesctl, TCP for agents, remote onesctl and Prometheus.

On the unix socket the kernel names the peer; on TCP a credential over the request does, which is
opened before a body is waited for, and before anything in it is looked at. Nothing that is asked
here runs in the event loop or in the threads of the rounds: agents, administrators, users and
credentials have their own, so that none waits for the other, and none of them for a Slurm that
hangs.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ones.daemon.config import ConfigError
from ones.daemon.credentials import CredentialError
from ones.daemon.descriptors import for_visitors
from ones.daemon.onesd.audit import Audit
from ones.daemon.onesd.books import needs
from ones.daemon.onesd.doors import connections, views, where
from ones.daemon.onesd.doors.askers import AgentRequest, Askers, Peer, trusted
from ones.daemon.onesd.doors.connections import Connections, address_of
from ones.daemon.onesd.doors.failures import Failures, Handler
from ones.daemon.onesd.doors.listening import Listening
from ones.daemon.onesd.doors.orders import Order, Orders, Source, decoded, only
from ones.daemon.onesd.doors.sessions import Sessions
from ones.daemon.onesd.doors.workers import Bodies, Workers
from ones.daemon.onesd.forecast.process import Forecaster
from ones.daemon.onesd.refresh import Refresher
from ones.daemon.onesd.service import Service
from ones.daemon.signatures import signatures_of
from ones.daemon.wire import (
    AGENT_PURPOSE,
    CREDENTIAL,
    HEARD_PURPOSE,
    LEASE_PURPOSE,
    MOST_REPORT,
    NODE_REPORT,
    Heard,
    Live,
    Report,
    answer_to,
)
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
MOST_BODIES = 64 * 2**20  # bytes of all bodies together
RUNS_FRESH = 5.0  # seconds for which a job's runs are not read from Slurm's accounting again
RUNS_PATIENCE = 2.0  # seconds that a view waits for them
View = Callable[[Peer, bytes], Any]


class _Link(msgspec.Struct):
    digest: str


_LINK = msgspec.json.Decoder(_Link)


def _number_of(agent_user: str) -> int:
    try:
        return pwd.getpwnam(agent_user).pw_uid
    except (KeyError, ValueError):  # ValueError: a NUL in it
        raise ConfigError(f"agent_user: this host knows no user {agent_user!r}") from None


class Api:
    """The HTTP application; every view reads the controller's last published round."""

    def __init__(self, controller: Service) -> None:
        self._controller = controller
        self._config = controller.config
        doors = self._config.daemon
        allowed = [ipaddress.ip_network(n) for n in doors.allow]
        self._connections = Connections(for_visitors(connections.MOST), allowed=allowed)
        agents = frozenset({os.geteuid(), _number_of(self._config.agent_user)})
        self.askers = Askers(
            signatures_of(self._config.auth_type, once=True, trusted=agents),
            agents,
            controller.operators,
            Bodies(MOST_BODIES),
        )
        self._reports = Workers("reports", threads=4, waiting=512)
        self._questions = Workers("questions", threads=4, waiting=64)
        self._orders = Workers("questions of administrators", threads=2, waiting=64)
        self.lives = Workers("questions about one job", threads=16, waiting=64)  # wait for sacct
        self._scrapes = Workers("questions of Prometheus", threads=1, waiting=8)
        self._forecasts = Workers("forecasts", threads=1, waiting=4)
        self._forecaster = Forecaster()
        self._metrics_apart: Listening | None = None
        self.audit = Audit()
        self.failures = Failures(self.audit)
        self.orders = Orders(controller, self.audit)
        self.sessions = Sessions(link=self._config.page.link, session=self._config.page.session)
        self.page_url = ""  # where the page is served
        self.no_page = "this onesd serves no page; see [page] of its configuration"
        self.runs: Refresher[int] = Refresher(
            "sacct",
            controller.refresh_runs,
            fresh=RUNS_FRESH,
            patience=RUNS_PATIENCE,
        )

    async def serve(self, *, only_here: bool = False) -> web.AppRunner:
        """Open all doors, or only that for users of this host; the caller cleans the runner up.

        Raises OnesError.
        """
        doors, path = self._config.daemon, Path(self._config.socket)
        host, port = self._config.controller_address
        app = web.Application(middlewares=[self.failures.as_json])
        app.add_routes(self._routes())
        if not doors.metrics:
            app.add_routes([web.get("/metrics", self._metrics)])
        app.on_cleanup.append(self._close)
        listening = Listening(app, self._connections)
        await listening.runner.setup()
        try:
            if not only_here:
                await listening.tcp(doors.address, port, key="controller")
            if doors.metrics:
                await self._open_metrics(doors.metrics)
            await listening.unix(path)
        except OnesError:
            await listening.runner.cleanup()
            raise
        tcp = "" if only_here else f" and on port {port} of {doors.address} (as {host})"
        log.info("listening on %s%s", path, tcp)
        return listening.runner

    def _routes(self) -> list[web.RouteDef]:
        one, view = self._controller, self._view
        return [
            web.post("/v1/agent", self._agent),
            web.get("/v1/lease/{job:[0-9]{1,9}}", self._lease),
            web.get("/v1/status", view(lambda peer, _: views.status(one, only(peer)))),
            web.get("/v1/jobs", view(lambda peer, _: views.jobs(one, only(peer)))),
            web.get("/v1/jobs/{job:[0-9]{1,9}}", self._job),
            web.get("/v1/explain/{job:[0-9]{1,9}}", self._explain),
            web.get("/v1/nodes", view(lambda _peer, _: views.nodes(one))),
            web.get("/v1/plan", view(lambda peer, _: views.plan(one, only(peer)))),
            web.post("/v1/estimate", view(self._estimate)),
            web.post("/v1/where", self._where),
            web.get("/v1/report/needs", view(lambda peer, _: views.report_needs(one, only(peer)))),
            web.get("/v1/sharing", view(lambda peer, _: views.sharing(one, only(peer)))),
            web.get("/v1/policy", view(lambda _peer, _: views.policy(one))),
            web.post("/v1/policy", self._order(self.orders.choose_policy)),
            web.post("/v1/pause", self._order(self.orders.pause)),
            web.post("/v1/resume", self._order(self.orders.resume)),
            web.post("/v1/handover", self._order(self.orders.hand_over)),
            web.post("/v1/page", self._offer),
            web.get("/v1/role", self._role),
        ]

    async def _open_metrics(self, address: str) -> None:
        app = web.Application(middlewares=[self.failures.as_json])
        app.add_routes([web.get("/metrics", self._metrics)])
        listening = self._metrics_apart = Listening(app, self._connections)
        await listening.runner.setup()
        host, _, port = address.rpartition(":")
        await listening.tcp(host.strip("[]"), int(port), key="metrics` in `[daemon]")

    async def _close(self, _: web.Application) -> None:
        if self._metrics_apart is not None:
            await self._metrics_apart.runner.cleanup()
        self.askers.close()
        self._forecaster.close()
        asked = self._questions, self._orders, self.lives, self._scrapes, self._forecasts
        for workers in (self._reports, *asked):
            workers.close()

    async def _agent(self, request: web.Request) -> web.Response:
        def hear(asked: AgentRequest) -> tuple[int, bytes]:
            return 200, msgspec.json.encode(self._hear(asked.node, asked.body))

        return await self._to_agent(request, AGENT_PURPOSE, hear, most=MOST_REPORT)

    async def _lease(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]

        def tell(_: AgentRequest) -> tuple[int, bytes]:
            lease = self._controller.lease(int(job))
            if lease is None:
                error = {"error": f"job {job} is not elastic, or not known yet"}
                return 404, msgspec.json.encode(error)
            # Orders come with answers to reports only.
            return 200, msgspec.json.encode(msgspec.structs.replace(lease, order=None))

        return await self._to_agent(request, LEASE_PURPOSE, tell, most=0)

    async def _to_agent(
        self,
        request: web.Request,
        purpose: str,
        answer: Callable[[AgentRequest], tuple[int, bytes]],
        *,
        most: int,
    ) -> web.Response:
        """Status and body of the answer, under our own credential, which fits this answer to this
        very request only."""
        async with self.askers.agent(request, purpose, most=most) as asked:

            def work() -> tuple[int, bytes, str]:
                asked.prove()
                status, body = answer(asked)
                signed = answer_to(self.askers.credential_of(request), body)
                try:
                    return status, body, self.askers.seal(HEARD_PURPOSE, asked.node, signed)
                except CredentialError as fault:
                    reason = str(fault).splitlines()[0]
                    raise web.HTTPServiceUnavailable(reason=reason) from None

            try:
                status, body, credential = await self._reports.run(work)
            finally:
                if asked.proved:
                    self._connections.proved(request.transport)
        return web.Response(
            body=body,
            status=status,
            content_type="application/json",
            headers={CREDENTIAL: credential},
        )

    def _hear(self, node: str, body: bytes) -> Heard:
        report = decoded(body, NODE_REPORT)
        if report.node != node:
            raise ValueError(f"the report of node {report.node!r} is signed for node {node!r}")
        self._controller.hear(report)
        jobs = {
            received.message.job
            for received in report.received
            if isinstance(received.message, Live)
            or (isinstance(received.message, Report) and received.message.tunes)
        }
        leases = [
            lease for job in sorted(jobs) if (lease := self._controller.lease(job)) is not None
        ]
        staged, at = self._controller.staged()
        return Heard(leases=tuple(leases), staged=staged, staged_at=at)

    def _view(self, view: View) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            return await self._ask(request, view)

        return answer

    async def _ask(
        self, request: web.Request, view: View, workers: Workers | None = None
    ) -> web.Response:
        """The answer to anybody's question; the view runs in a thread, one of these `workers`."""
        async with self.askers.anybody(request) as question:
            if workers is None:
                workers = self._orders if trusted(question.uid) else self._questions

            def work() -> bytes:
                return msgspec.json.encode(view(self.askers.peer(question.uid), question.body))

            answer = await workers.run(work)
        return web.Response(body=answer, content_type="application/json")

    async def _job(self, request: web.Request) -> web.Response:
        number = int(request.match_info["job"])
        return await self._ask(
            request,
            lambda peer, _: views.job(self._controller, number, only(peer), self.runs.refresh),
            self.lives,
        )

    async def _explain(self, request: web.Request) -> web.Response:
        number = int(request.match_info["job"])
        return await self._ask(
            request, lambda peer, _: views.explain(self._controller, number, only(peer))
        )

    def _estimate(self, peer: Peer, body: bytes) -> views.Json:
        return views.estimate(self._controller, decoded(body, needs.QUESTION), only(peer))

    async def _where(self, request: web.Request) -> web.Response:
        """A forecast: a few wait for the one process that makes them, the others are refused."""

        def view(peer: Peer, body: bytes) -> views.Json:
            asked = decoded(body, where.QUESTION)
            return where.where(self._controller, self._forecaster.ask, peer, asked)

        return await self._ask(request, view, self._forecasts)

    def _order(self, order: Order) -> Handler:
        async def carried_out(request: web.Request) -> web.Response:
            source = Source(address_of(request.transport))
            return await self._ask(request, lambda peer, body: order(peer, body, source))

        return carried_out

    async def _offer(self, request: web.Request) -> web.Response:
        """A link to the page, for him who asks; see sessions."""

        def offer(peer: Peer, body: bytes) -> views.Json:
            if not self.page_url:
                raise ValueError(self.no_page)
            self.sessions.offer(peer.uid, decoded(body, _LINK).digest)
            source = address_of(request.transport)
            self.audit.did("link", uid=peer.uid, source=source, user=peer.name)
            return {"url": self.page_url, "lasts": self.sessions.link}

        return await self._ask(request, offer)

    async def _role(self, _: web.Request) -> web.Response:
        """Anybody may know who acts: a standby tells it, too."""
        told = {"role": "active", **(views.controllers(self._controller) or {})}
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        text = await self._scrapes.run(lambda: generate_latest(self._controller.metrics.registry))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
