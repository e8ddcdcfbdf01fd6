"""The doors of a real onesd on a simulated Slurm, of an agent, and of a live job's launcher.

Raw bytes go in at a socket. However they are, an answer comes within its time and is of bearable
size, none is a 500, nobody's handler raises, and the next one who asks properly is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from fuzz.messages import LIVE, NODE, REPORT
from fuzz.target import Target, must

TESTS = Path(__file__).resolve().parents[1]
MOST_ANSWER = 2 * 2**20
PATIENCE = 20.0  # seconds for an answer
QUIET = 0.02  # seconds after which more is not waited for before the line is closed
WAITING = 50  # one in so many who speak to an agent leaves his side open
AGAIN = 50  # inputs after which it is asked whether the door still answers
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] ([0-9]{3}) ")


class Faults(logging.Handler):
    """What was logged with a traceback: nobody's input may lead there."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.words.append(f"{record.name}: {record.exc_info[1]!r}")


@dataclass(slots=True)
class Standing:
    """A door that stands."""

    connect: Callable[[], socket.socket]
    well: Callable[[], bool]
    faults: Faults
    fed: int = 0


_standing: list[Standing] = []


def _spoken(data: bytes, complete: Callable[[bytes], bool], *, to_the_end: bool = False) -> bytes:
    """What is answered to this, on a connection of its own; `to_the_end`: by one who says at once
    that no more will come, so that nobody waits to see."""
    standing = _standing[-1]
    standing.fed += 1
    answer = b""
    with contextlib.suppress(ConnectionError), standing.connect() as link:
        link.settimeout(PATIENCE)
        link.sendall(data)
        closed = to_the_end
        if closed:
            link.shutdown(socket.SHUT_WR)
        link.settimeout(1.0 if closed else QUIET)
        until = time.monotonic() + PATIENCE
        while not complete(answer):
            must(time.monotonic() < until, "no answer in time")
            must(len(answer) < MOST_ANSWER, "an endless answer")
            try:
                piece = link.recv(1 << 16)
            except TimeoutError:
                if not closed:
                    link.shutdown(socket.SHUT_WR)
                    link.settimeout(1.0)
                    closed = True
                continue
            if not piece:
                break
            answer += piece
    if standing.fed % AGAIN == 0:
        must(standing.well(), "it answers nobody any more")
    if standing.faults.words:
        fault, standing.faults.words = standing.faults.words[0], []
        must(False, fault)
    return answer


def _parted(answer: bytes) -> tuple[bytes, bytes | None, int | None]:
    """The head of an HTTP answer, what came behind it, and how long it says that its body is."""
    head, end, rest = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    return head, rest if end else None, int(length[1]) if length else None


def _http_complete(answer: bytes) -> bool:
    head, rest, length = _parted(answer)
    if rest is None:
        return False
    return b"text/event-stream" in head or (length is not None and len(rest) >= length)


def _http(data: bytes) -> object:
    answer = _spoken(data, _http_complete)
    status = _STATUS.match(answer)
    must(not answer or status is not None, f"an answer that is no HTTP: {answer[:60]!r}")
    if status is not None:
        must(int(status[1]) not in (500, 501, 502), f"status {int(status[1])}")
        _, rest, length = _parted(answer)
        body = (rest or b"")[:length]  # there may be an answer to a second request behind it
        if int(status[1]) >= 400 and b"application/json" in answer[:2000]:
            must(len(body) <= 4096, "a long refusal")
            must(len(json.loads(body)["error"].splitlines()) <= 1, "a refusal of several lines")
    return None


@contextmanager
def onesd(*, page: bool) -> Iterator[None]:
    """onesd with its page. Its munge takes whoever says who he is."""
    for folder in ("unit", "browser"):
        if str(TESTS / folder) not in sys.path:
            sys.path.insert(0, str(TESTS / folder))
    from served_page import ServedPage

    from ones.daemon import munge
    from ones.daemon.onesd import audit
    from ones.daemon.onesd.doors import askers
    from ones.daemon.signatures import Signatures

    def signed(credential: str, *_: str) -> object:
        if not (credential.isascii() and credential.isdecimal() and len(credential) < 10):
            raise munge.MungeError("Invalid credential format", 8)
        return SimpleNamespace(uid=int(credential), covers=lambda body: True)

    faults = Faults()
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Signatures, "signed", lambda _, *asked: signed(*asked)),
        patch.object(Signatures, "sign", lambda *_: "sealed"),
        patch.object(askers, "trusted", lambda uid: True),  # paced, it would be fed for years
        patch.object(audit.Audit, "refused", lambda *_, **__: None),
        ServedPage(Path(folder)) as served,
    ):

        def connect() -> socket.socket:
            if page:
                return socket.create_connection(("127.0.0.1", served.port), PATIENCE)
            link = socket.socket(socket.AF_UNIX)
            link.connect(str(served.socket))
            return link

        def well() -> bool:
            path = b"/" if page else b"/v1/status"
            ask = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            with connect() as link:
                link.settimeout(PATIENCE)
                link.sendall(ask)
                return link.recv(64).startswith(b"HTTP/1.1 200")

        logging.disable(logging.NOTSET)
        # Only what comes with a traceback is looked at, and nothing is printed.
        quiet = ("ones", "aiohttp", "asyncio")
        for name in quiet:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(faults)
        _standing.append(Standing(connect, well, faults))
        try:
            yield
        finally:
            _standing.pop()
            for name in quiet:
                logging.getLogger(name).removeHandler(faults)
                logging.getLogger(name).propagate = True
            logging.disable(disabled)
            root.setLevel(level)


@contextmanager
def agent() -> Iterator[None]:
    """The socket that jobs report at."""
    from ones.daemon.agent import doors
    from ones.daemon.agent.attribution import Owner
    from ones.daemon.wire import Lease

    async def environment(*_: object) -> list[str]:
        return ["ONES_GPUS=4"]

    visitors = doors.Visitors(
        identify=lambda peer: Owner(7, "cgroup"),
        take=lambda peer, owner, message: Lease(job=7, batch=64),
        environment=environment,
        refused=lambda why: None,
    )
    faults, loop, ready = Faults(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder, patch.object(doors, "PENALTY", 0.0):
        path = Path(folder) / "agent.sock"

        async def serve() -> None:
            async with await doors.Door(path, visitors).open():
                ready.set()
                await stop.wait()

        def connect() -> socket.socket:
            link = socket.socket(socket.AF_UNIX)
            link.connect(str(path))
            return link

        def well() -> bool:
            with connect() as link:
                link.settimeout(PATIENCE)
                link.sendall(b"{}\n")
                return link.recv(64).startswith(b"{")

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        must(ready.wait(20), "the door does not open")
        logger = logging.getLogger("asyncio")
        logger.addHandler(faults)
        _standing.append(Standing(connect, well, faults))
        try:
            yield
        finally:
            _standing.pop()
            logger.removeHandler(faults)
            loop.call_soon_threadsafe(stop.set)
            thread.join(20)
            loop.close()


def _lines(data: bytes) -> object:
    answer = _spoken(data, lambda _: False, to_the_end=len(data) % WAITING != 0)
    must(len(answer) <= 64 * 2**10, "a long answer")
    return None


@contextmanager
def launcher() -> Iterator[None]:
    """The port of a live job, which anybody reaches."""
    from ones.slurm_ext.runtime.live.joining import Launchers
    from ones.slurm_ext.runtime.live.loop import Loop

    loop = Loop(0.001)
    launchers = Launchers(
        loop,
        b"s" * 32,
        expects=lambda ticket: True,
        came=lambda _: must(False, "somebody joined without the secret"),
        said=lambda *_: must(False, "somebody spoke without the secret"),
        lost=lambda _: None,
    )
    port = launchers.open("127.0.0.1")

    def well() -> bool:
        return True

    _standing.append(
        Standing(lambda: socket.create_connection(("127.0.0.1", port), PATIENCE), well, Faults())
    )
    _loops.append((loop, launchers))
    try:
        yield
    finally:
        _loops.pop()
        _standing.pop()
        loop._selector.close()


_loops: list[tuple[object, object]] = []


def _join(data: bytes) -> object:
    """Everything in one thread, as in the launcher: what it raises is raised here."""
    loop, launchers = _loops[-1]
    with contextlib.suppress(ConnectionError), _standing[-1].connect() as link:
        loop.once()  # type: ignore[attr-defined]
        link.settimeout(PATIENCE)
        must(link.recv(4096).startswith(b'{"ones"'), "it does not greet")
        link.sendall(data)
        for _ in range(1 + len(data) // 65536):
            loop.once()  # type: ignore[attr-defined]
        link.close()
        loop.once()  # type: ignore[attr-defined]
        loop.once()  # type: ignore[attr-defined]
    must(len(launchers._strangers) <= 2, "strangers stay")  # type: ignore[attr-defined]
    return None


def a_request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


_ASKS = ("status", "jobs", "jobs/3", "explain/3", "nodes", "plan", "report/needs", "sharing")
_WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"HTTP/1.1", b"GET ", b"POST ", b"/v1/", b"Content-Length: 5\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"Authorization: Munge 0\r\n",
        b"%0a",
        b"%ff",
    ),
    *(b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Ones-Node: n1\r\n", b"Cookie: a=b\r\n", b"Ones-Proof: x\r\n", b"Range: bytes=0-\r\n"),
)
_ORIGIN = {"Origin": "http://localhost"}

TARGETS = (
    Target(
        name="door-onesd",
        feed=_http,
        open=lambda: onesd(page=False),
        guided=False,
        seconds=5.0,
        seeds=(
            *(a_request("GET", f"/v1/{ask}") for ask in _ASKS),
            a_request("GET", "/metrics"),
            a_request("GET", "/v1/policy"),
            a_request("POST", "/v1/policy", b'{"policy": "srtf"}'),
            a_request("POST", "/v1/pause", b'{"reason": "disks"}'),
            a_request("POST", "/v1/resume", b"{}"),
            a_request("POST", "/v1/page", b'{"digest": "' + b"0" * 64 + b'"}'),
            a_request("POST", "/v1/estimate", b'{"user": "nobody", "name": "train", "gpus": 4}'),
            a_request("POST", "/v1/where", b'{"asks": {"sizes": "1-4", "name": "train"}}'),
            a_request("GET", "/v1/lease/3", Authorization="Munge 0", Ones_Node="n1"),
            a_request("POST", "/v1/agent", NODE, Authorization="Munge 0", Ones_Node="n1"),
        ),
        words=_WORDS,
        largest=16384,
    ),
    Target(
        name="door-page",
        feed=_http,
        open=lambda: onesd(page=True),
        guided=False,
        seconds=5.0,
        seeds=(
            *(a_request("GET", path) for path in ("/", "/static/page.js", "/data/state")),
            *(a_request("GET", path) for path in ("/data/changes", "/data/job/3", "/data/sharing")),
            a_request("POST", "/sign-in", b'{"secret": "0123456789"}', **_ORIGIN),
            a_request("POST", "/sign-out", b"{}", Cookie="ones-0=x", Ones_Proof="y", **_ORIGIN),
            *(
                a_request("POST", f"/do/{order}", b"{}", Cookie="a=b", Ones_Proof="x", **_ORIGIN)
                for order in ("pause", "resume", "policy")
            ),
        ),
        words=_WORDS,
        largest=16384,
    ),
    Target(
        name="door-agent",
        feed=_lines,
        open=agent,
        guided=False,
        seconds=5.0,
        seeds=(REPORT + b"\n", LIVE + b"\n" + REPORT + b"\n", b"env 7 1000\n"),
        words=(b"\n", b"env ", b"\n\n", b"{}\n"),
        largest=70_000,
    ),
    Target(
        name="door-launcher",
        feed=_join,
        open=launcher,
        guided=False,
        seconds=5.0,
        seeds=(
            b'{"name":"7","job":"7","slots":2,"workers":2,"nonce":"0123456789abcdef","mac":"0"}\n',
            b'{"ones":1,"nonce":"0123456789abcdef"}\n',
            b"0" * 64 + b' {"do":"beat"}\n',
        ),
        words=(b"\n", b"[[[[", b'"mac":'),
    ),
)
