"""The sockets of onesd's doors."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web

from ones.daemon.descriptors import BACKLOG
from ones.daemon.onesd.doors.connections import Connections
from ones.daemon.onesd.doors.failures import Handler
from ones.daemon.strangers import quiet
from ones.slurm_ext.errors import OnesError

LONGEST_HEADER = 8190  # bytes of one header, or of the request's first line
MOST_HEADERS = 32
BUFFER = 2**16  # bytes of a body that are read ahead
LINGER = 2.0  # seconds in which the rest of a refused body is thrown away
ENDING = 5.0  # seconds for answers under way when onesd is told to end; systemd waits for 90


class Listening:
    """One HTTP application on any number of sockets, whose connections count."""

    def __init__(self, app: web.Application, connections: Connections) -> None:
        app.middlewares.insert(0, self._timed)
        # Bodies are taken as they come: one that unpacks to more than it is could fill the memory.
        self.runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet(__name__),
            handle_signals=False,
            shutdown_timeout=ENDING,
            auto_decompress=False,
            keepalive_timeout=3600.0,  # connections have times of their own
            lingering_time=LINGER,
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            max_headers=MOST_HEADERS,
            read_bufsize=BUFFER,
        )
        self._connections = connections
        self._servers: list[asyncio.Server] = []
        self._request: Any = None  # what makes a request of what was read: aiohttp's own
        app.on_shutdown.append(self._close)

    async def tcp(
        self, host: str, port: int, *, key: str, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen on TCP; the port that it is. Raises OnesError that names the key of the
        configuration."""
        loop, make = asyncio.get_running_loop(), self._connections.guarded(self._protocol)
        try:
            server = await loop.create_server(make, host, port, backlog=BACKLOG, ssl=tls)
        except OSError as fault:
            raise OnesError(
                f"can't listen on port {port}: {fault.strerror or fault}; end what holds it,"
                f" or name another with `{key}`"
            ) from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def unix(self, path: Path) -> None:
        """Listen on a socket that every user of this host may connect to; raises OnesError."""
        loop, make = asyncio.get_running_loop(), self._connections.guarded(self._protocol)
        try:
            path.unlink(missing_ok=True)
            server = await loop.create_unix_server(make, str(path), backlog=BACKLOG)
            self._servers.append(server)
            path.chmod(0o666)  # the kernel tells who connects; each view decides what he may see
        except OSError as fault:
            raise OnesError(
                f"can't listen on {path}: {fault.strerror or fault}; name another with `socket`"
            ) from None

    def _protocol(self) -> asyncio.Protocol:
        server = self.runner.server
        assert server is not None, "the runner is set up"
        if self._request is None:
            self._request, server.request_factory = server.request_factory, self._understood
        return server()

    def _understood(self, message: Any, *more: Any) -> web.BaseRequest:
        """The request, without what it expects beyond HTTP's 100-continue: aiohttp itself would
        answer with that, before any handler of ours, and fail where it is no text."""
        if message.headers.get(hdrs.EXPECT, "100-continue").lower() != "100-continue":
            headers = message.headers.copy()
            headers.popall(hdrs.EXPECT)
            message = message._replace(headers=headers)
        request: web.BaseRequest = self._request(message, *more)
        return request

    async def _close(self, _: web.Application) -> None:
        for server in self._servers:
            server.close()

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        self._connections.begin(transport)
        try:
            return await handler(request)
        finally:
            self._connections.end(transport)
