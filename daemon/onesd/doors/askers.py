"""Who asks onesd something: proved by the kernel or a credential, how often he may, as what."""

from __future__ import annotations

import os
import pwd
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from ones.daemon.credentials import CredentialError
from ones.daemon.onesd.doors.connections import uid_of
from ones.daemon.onesd.doors.workers import Bodies, Workers, is_there
from ones.daemon.onesd.operators import Operators
from ones.daemon.pace import Paces
from ones.daemon.signatures import Signatures, Signed
from ones.daemon.wire import CTL_PURPOSE, NODE
from ones.slurm_ext.errors import OnesError

MOST_QUESTION = 65536  # bytes of a body, but for an agent's report
MOST_OF_ONE_USER = 4  # questions of one user at once
RATE, BURST = 5.0, 30.0  # questions of one user a second in the long run, and at once


class NotAllowed(OnesError):
    """He who asks may not; `uid` is who it is."""

    def __init__(self, uid: int, reason: str) -> None:
        super().__init__(reason)
        self.uid = uid


class Unproved(OnesError):
    """Nothing proves who asks."""


class TooFast(OnesError):
    """One user asks too often."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks."""

    uid: int
    name: str
    admin: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody asks, read whole and proved to be his."""

    uid: int
    body: bytes


@dataclass(slots=True)
class AgentRequest:
    """What claims to come from a node's agent, read whole."""

    node: str
    body: bytes
    _covered: bytes  # that its credential is to be signed for
    _opened: Callable[[], Signed]
    _signed: Signed | None = None
    proved: bool = False

    def prove(self) -> None:
        """Raises Unproved or NotAllowed; in a thread, since it may wait for munged."""
        _must_cover(self._signed or self._opened(), self._covered)
        self.proved = True


class Askers:
    """Proves who asks, before it waits for what, and before anything comes of it."""

    def __init__(
        self,
        signatures: Signatures,
        agents: frozenset[int],
        operators: Operators,
        bodies: Bodies,
    ) -> None:
        self._signatures = signatures
        self._agents = agents
        self._operators = operators
        self._bodies = bodies
        self._seals = Workers("credentials", threads=4, waiting=512)
        self._paces = Paces(rate=RATE, burst=BURST)
        self._asking: Counter[int] = Counter()

    def close(self) -> None:
        self._seals.close()

    @asynccontextmanager
    async def agent(
        self, request: web.Request, purpose: str, *, most: int
    ) -> AsyncIterator[AgentRequest]:
        """An agent's request, which is proved where it is answered: in one thread, for thousands.

        A body that has yet to come is waited for only if the credential is an agent's; else this
        raises Unproved or NotAllowed.
        """
        node = request.headers.get(NODE, "")
        if not node:
            raise Unproved(f"no node's name in the header {NODE}")
        opening = self._opening(request, purpose, node)

        def opened() -> Signed:
            signed = opening()
            if signed.uid not in self._agents:
                raise NotAllowed(signed.uid, f"uid {signed.uid} is no ones-agent here")
            return signed

        signed = None if is_there(request) else await self._seals.run(opened)
        async with self._bodies.of(request, most) as body:
            covered = request.match_info["job"].encode() if request.method == "GET" else body
            yield AgentRequest(node, body, covered, opened, signed)

    @asynccontextmanager
    async def anybody(self, request: web.Request) -> AsyncIterator[Question]:
        """A question of anybody, of whom few are under way. Raises Unproved or TooFast."""
        signed, uid = None, uid_of(request.transport)
        if uid is None:
            subject = f"{request.method} {request.path}"
            signed = await self._seals.run(self._opening(request, CTL_PURPOSE, subject))
            uid = signed.uid
        async with self.known(request, uid) as question:
            if signed is not None:
                _must_cover(signed, question.body)
            yield question

    @asynccontextmanager
    async def known(self, request: web.Request, uid: int) -> AsyncIterator[Question]:
        """A question of a user who is proved already. Raises TooFast."""
        if not trusted(uid):
            if self._asking[uid] >= MOST_OF_ONE_USER:
                raise TooFast(f"{MOST_OF_ONE_USER} questions of yours are being answered already")
            if not self._paces.take(uid, time.monotonic()):
                raise TooFast(f"more than {RATE:g} questions a second; ask again in a while")
        self._asking[uid] += 1
        try:
            async with self._bodies.of(request, MOST_QUESTION) as body:
                yield Question(uid, body)
        finally:
            self._asking[uid] -= 1
            if not self._asking[uid]:
                del self._asking[uid]

    def peer(self, uid: int) -> Peer:
        """The user, and whether he may steer; may wait for a name service, and for Slurm."""
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        return Peer(uid, name, trusted(uid) or self._operators.include(name))

    def seal(self, purpose: str, subject: str, body: bytes) -> str:
        """Our own credential; in a thread. Raises CredentialError."""
        return self._signatures.sign(purpose, subject, body)

    def credential_of(self, request: web.Request) -> str:
        """The credential of a request, or ''."""
        scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
        return credential if scheme == self._signatures.scheme else ""

    def _opening(self, request: web.Request, purpose: str, subject: str) -> Callable[[], Signed]:
        """What opens the request's credential, in a thread. Both raise Unproved."""
        credential = self.credential_of(request)
        if not credential:
            wanted = self._signatures.scheme.lower()
            raise Unproved(f"no {wanted} credential in the request (auth_type)")

        def opened() -> Signed:
            try:
                return self._signatures.signed(credential, purpose, subject)
            except CredentialError as fault:
                raise Unproved(str(fault).splitlines()[0]) from None

        return opened


def trusted(uid: int) -> bool:
    """Whether it is root or our own user, who may everything at any time."""
    return uid in (0, os.geteuid())


def _must_cover(signed: Signed, body: bytes) -> None:
    if not signed.covers(body):
        raise Unproved("the credential was signed for another request")
