"""The doors of onesd: a unix socket for onesctl, TCP for agents, remote onesctl and Prometheus.

On the unix socket the kernel names the peer; on TCP a munge credential over the request does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ones.daemon import munge, needs, views
from ones.daemon.controller import Controller
from ones.daemon.wire import (
    AGENT_PURPOSE,
    CREDENTIAL,
    CTL_PURPOSE,
    HEARD_PURPOSE,
    LEASE_PURPOSE,
    Heard,
    Live,
    NodeReport,
    Report,
)
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
MAX_BODY = 16 * 2**20
LONGEST_NAME = 1000  # of a policy, with its settings
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks."""

    uid: int
    name: str
    admin: bool


class Api:
    """The HTTP application; every view reads the controller's last published round."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._config = controller.config
        self._agents = {os.geteuid(), pwd.getpwnam(self._config.agent_user).pw_uid}

    async def serve(self) -> web.AppRunner:
        """Open both doors; the caller cleans the runner up. Raises OnesError."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/v1/agent", self._agent),
                web.get("/v1/lease/{job:[0-9]{1,9}}", self._lease),
                web.get("/v1/status", self._status),
                web.get("/v1/jobs", self._jobs),
                web.get("/v1/jobs/{job:[0-9]{1,9}}", self._job),
                web.get("/v1/explain/{job:[0-9]{1,9}}", self._explain),
                web.get("/v1/nodes", self._nodes),
                web.get("/v1/plan", self._plan),
                web.post("/v1/estimate", self._estimate),
                web.get("/v1/report/needs", self._report_needs),
                web.get("/v1/sharing", self._sharing),
                web.get("/v1/policy", self._policy),
                web.post("/v1/policy", self._choose_policy),
                web.post("/v1/pause", self._pause),
                web.post("/v1/resume", self._resume),
                web.get("/metrics", self._metrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        path = Path(self._config.socket)
        host, port = self._config.controller_address
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()
        except OSError as fault:
            await runner.cleanup()
            raise OnesError(
                f"can't listen on port {port}: {fault.strerror or fault}; end what holds it,"
                " or name another with `controller`"
            ) from None
        try:
            path.unlink(missing_ok=True)
            await web.UnixSite(runner, str(path)).start()
            path.chmod(0o666)  # the kernel tells who connects; each view decides what he may see
        except OSError as fault:
            await runner.cleanup()
            raise OnesError(
                f"can't listen on {path}: {fault.strerror or fault}; name another with `socket`"
            ) from None
        log.info("listening on %s and on port %d (as %s)", path, port, host)
        return runner

    async def _agent(self, request: web.Request) -> web.Response:
        body = await request.read()
        report = msgspec.json.decode(body, type=NodeReport)
        self._trusted_agent(request, AGENT_PURPOSE, report.node, body)
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
        heard = Heard(leases=tuple(leases), staged=staged, staged_at=at)
        if not any(lease.order for lease in leases):
            return _json(heard)
        answer = msgspec.json.encode(heard)
        try:
            credential = await asyncio.to_thread(munge.sign, HEARD_PURPOSE, report.node, answer)
        except munge.MungeError as fault:
            raise web.HTTPServiceUnavailable(reason=str(fault).splitlines()[0]) from None
        headers = {CREDENTIAL: credential}
        return web.Response(body=answer, content_type="application/json", headers=headers)

    async def _lease(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        self._trusted_agent(
            request, LEASE_PURPOSE, request.headers.get("Ones-Node", ""), job.encode()
        )
        lease = self._controller.lease(int(job))
        if lease is None:
            return _json({"error": f"job {job} is not elastic, or not known yet"}, status=404)
        # Orders come with answers to reports only, and signed.
        return _json(msgspec.structs.replace(lease, order=None))

    def _trusted_agent(self, request: web.Request, purpose: str, node: str, body: bytes) -> None:
        uid = self._verified(request, purpose, node, body)
        if uid not in self._agents:
            raise web.HTTPForbidden(reason=f"uid {uid} is no ones-agent here")

    def _verified(self, request: web.Request, purpose: str, subject: str, body: bytes) -> int:
        scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Munge":
            raise web.HTTPUnauthorized(reason="no munge credential in the request")
        try:
            return munge.verify(credential, purpose, subject, body).uid
        except munge.MungeError as fault:
            raise web.HTTPUnauthorized(reason=str(fault).splitlines()[0]) from None

    async def _peer(self, request: web.Request) -> Peer:
        transport = request.transport
        sock = transport.get_extra_info("socket") if transport else None
        if sock is not None and sock.family == socket.AF_UNIX:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            uid = struct.unpack("3i", raw)[1]
        else:
            body = await request.read()
            uid = self._verified(request, CTL_PURPOSE, f"{request.method} {request.path}", body)
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        admin = uid in (0, os.geteuid()) or await asyncio.to_thread(
            self._controller.operators.include, name
        )
        return Peer(uid, name, admin)

    async def _admin(self, request: web.Request) -> Peer:
        peer = await self._peer(request)
        if not peer.admin:
            raise web.HTTPForbidden(
                reason=f"{peer.name} is not an operator of this cluster; ask one (Slurm AdminLevel)"
            )
        return peer

    async def _status(self, request: web.Request) -> web.Response:
        await self._peer(request)
        return _json(views.status(self._controller))

    async def _jobs(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        return _json(views.jobs(self._controller, _only(peer)))

    async def _sharing(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        return _json(views.sharing(self._controller, _only(peer)))

    async def _job(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        number = int(request.match_info["job"])
        return _json(await asyncio.to_thread(views.job, self._controller, number, _only(peer)))

    async def _explain(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        number = int(request.match_info["job"])
        return _json(await asyncio.to_thread(views.explain, self._controller, number, _only(peer)))

    async def _nodes(self, request: web.Request) -> web.Response:
        await self._peer(request)
        return _json(views.nodes(self._controller))

    async def _plan(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        return _json(views.plan(self._controller, _only(peer)))

    async def _policy(self, request: web.Request) -> web.Response:
        await self._peer(request)
        return _json(views.policy(self._controller))

    async def _choose_policy(self, request: web.Request) -> web.Response:
        peer = await self._admin(request)
        body = json.loads(await request.read() or b"{}")
        name = body.get("policy") if isinstance(body, dict) else ""
        if not (name is None or (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME)):
            raise ValueError("policy: the name of a policy, or null for the configuration's")
        self._controller.choose_policy(peer.name, name)
        return _json(views.policy(self._controller))

    async def _estimate(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        question = msgspec.json.decode(await request.read(), type=needs.Question)
        return _json(
            await asyncio.to_thread(views.estimate, self._controller, question, _only(peer))
        )

    async def _report_needs(self, request: web.Request) -> web.Response:
        peer = await self._peer(request)
        return _json(await asyncio.to_thread(views.report_needs, self._controller, _only(peer)))

    async def _pause(self, request: web.Request) -> web.Response:
        peer = await self._admin(request)
        body = json.loads(await request.read() or b"{}")
        reason = str(body.get("reason", ""))[:200] if isinstance(body, dict) else ""
        self._controller.pause(peer.name, reason)
        return _json({"ok": True})

    async def _resume(self, request: web.Request) -> web.Response:
        peer = await self._admin(request)
        self._controller.resume(peer.name)
        return _json({"ok": True})

    async def _metrics(self, _: web.Request) -> web.Response:
        text = generate_latest(self._controller.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _only(peer: Peer) -> str | None:
    """Whose jobs he may see: None for all."""
    return None if peer.admin else peer.name


def _json(answer: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer), status=status, content_type="application/json"
    )


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as fault:
        return _json({"error": fault.reason}, status=fault.status)
    except views.NotKnown as fault:
        return _json({"error": str(fault)}, status=404)
    except (msgspec.DecodeError, ValueError) as fault:
        return _json({"error": str(fault).splitlines()[0]}, status=400)
