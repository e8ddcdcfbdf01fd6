"""The doors of a standby: the same sockets, at which it says who acts, and nothing else."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ones.daemon.config import Config
from ones.daemon.descriptors import for_visitors
from ones.daemon.onesd.doors import connections
from ones.daemon.onesd.doors.connections import Connections
from ones.daemon.onesd.doors.failures import waiting
from ones.daemon.onesd.doors.listening import Listening
from ones.daemon.onesd.metrics import Roles
from ones.daemon.onesd.terms import Candidate
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)


class StandbyDoors:
    """Answers who acts, to anybody; all else is refused with that."""

    def __init__(self, config: Config, candidate: Candidate) -> None:
        self._config = config
        self._candidate = candidate
        self._registry = CollectorRegistry()
        Roles(self._registry, controllers=len(config.controllers)).standby()
        allowed = [ipaddress.ip_network(each) for each in config.daemon.allow]
        self._connections = Connections(for_visitors(connections.MOST), allowed=allowed)

    async def serve(self) -> web.AppRunner:
        """Open them; the caller cleans the runner up. Raises OnesError."""
        doors = self._config.daemon
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/role", self._role),
                web.get("/metrics", self._metrics),
                web.route("*", "/{other:.*}", self._refuse),
            ]
        )
        listening = Listening(app, self._connections)
        await listening.runner.setup()
        try:
            port = self._config.controller_address[1]
            await listening.tcp(doors.address, port, key="controller")
            if doors.metrics:
                host, _, port_text = doors.metrics.rpartition(":")
                await listening.tcp(host.strip("[]"), int(port_text), key="metrics` in `[daemon]")
            await listening.unix(Path(self._config.socket))
        except OnesError:
            await listening.runner.cleanup()
            raise
        return listening.runner

    async def _role(self, _: web.Request) -> web.Response:
        seen = self._candidate.seen
        told = {
            "role": "standby",
            "active": seen.record.address if seen is not None else None,
            "term": seen.number if seen is not None else 0,
        }
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        text = generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _refuse(self, _: web.Request) -> web.Response:
        seen = self._candidate.seen
        if seen is None:
            return waiting("this onesd waits for its first term", None)
        record = seen.record
        said = f"standby of {record.host}; ask onesd at {record.address}"
        return waiting(said, record.address)
