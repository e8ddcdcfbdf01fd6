"""One kept HTTP connection to onesd, on which one question is asked after the other."""

from __future__ import annotations

import asyncio
import re

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
PATIENCE = 10.0  # seconds, as an agent's


class Line(asyncio.Protocol):
    """Opened when it is first needed, and again where the other end has closed it."""

    def __init__(
        self, *, port: int = 0, path: str = "", host: str = "127.0.0.1", own: str = "127.0.0.1"
    ) -> None:
        """To a port of this host, from this address of it, or to a unix socket."""
        self._port, self._path, self._host, self._own = port, path, host, own
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._heard = bytearray()
        self.opened = 0  # how often

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises OSError or TimeoutError."""
        try:
            async with asyncio.timeout(PATIENCE):
                if self._transport is None or self._transport.is_closing():
                    await self._open()
                assert self._transport is not None, "it is open"
                self._answer = asyncio.get_running_loop().create_future()
                self._heard.clear()
                self._transport.write(request)
                return await self._answer
        except TimeoutError:
            self.close()
            raise

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self.opened += 1
        if self._path:
            await loop.create_unix_connection(lambda: self, self._path)
        else:
            await loop.create_connection(
                lambda: self, self._host, self._port, local_addr=(self._own, 0)
            )

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, body = bytes(self._heard).partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        whole = bool(end) and length is not None and len(body) >= int(length[1])
        if whole and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(fault or ConnectionResetError("closed"))


class Stream(asyncio.Protocol):
    """The changes that a page hears of; `times` is when each message had come whole."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.times: list[float] = []
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.open = True
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        # A message ends with an empty line, and then the end of its chunk.
        text = self._tail + data
        if text.endswith(b"\n\n\r\n") and b'"own":' in text:
            self.times.append(asyncio.get_running_loop().time())
            self._tail = b""
        else:
            self._tail = text[-4:] if b'"own":' not in text else b'"own":' + text[-4:]

    def connection_lost(self, fault: Exception | None) -> None:
        self.open = False
