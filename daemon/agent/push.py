"""The way to onesd: leases fetched, full reports pushed, each under a credential."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

import aiohttp
import msgspec

from ones.daemon.credentials import CredentialError
from ones.daemon.signatures import Signatures, signatures_of
from ones.daemon.wire import (
    AGENT_PURPOSE,
    CREDENTIAL,
    HEARD,
    HEARD_PURPOSE,
    LEASE,
    LEASE_PURPOSE,
    MOST_REPORT,
    NODE,
    Heard,
    Lease,
    NodeReport,
    Received,
    answer_to,
)
from ones.slurm_ext.errors import OnesError, in_a_line

log = logging.getLogger(__name__)
LEASE_TIMEOUT = 0.7  # slurmstepd waits for 1 s and then starts the job without us
PUSH_TIMEOUT = 10.0
DEBOUNCE = 0.2  # seconds in which several urgent things become one push
LEAST_GAP = 0.5  # seconds between two pushes, however urgent
MOST_BACKOFF = 3  # intervals between two attempts to reach a controller that is silent
JITTER = 0.1  # of the interval, so that a cluster's agents don't speak as one
STRANGE = "takes no reports; is it another program, or of another release?"
MOST_LEFT_OUT = 1000  # jobs that are named for it
MOST_ANSWER = 2**20  # bytes
CONNECT = 3.0  # seconds for which a host that is gone is waited for, where there is another
_MUNGE = signatures_of("auth/munge")

Sign = Callable[[str, str, bytes], str]  # purpose, subject, body -> credential
# credential, purpose, subject, body -> whether onesd has signed it. Raises CredentialError.
Trust = Callable[[str, str, str, bytes], bool]


class ControllerError(OnesError):
    """onesd can't be reached or refuses us."""


class Waits(ControllerError):
    """It is onesd, and another one acts."""


class Unproved(ControllerError):
    """Something answers, and nothing proves that it is onesd: nothing it says counts."""


class Onesd:
    """The controller, as an agent sees it; of several, the one that acts."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        controllers: Sequence[str],
        node: str,
        sign: Sign = _MUNGE.sign,
        trust: Trust | None = None,
        *,
        scheme: str = _MUNGE.scheme,
    ) -> None:
        self._session = session
        self._controllers = tuple(controllers)
        self._acts = 0  # the one that answered last, which is asked first
        self._node = node
        self._sign = sign
        self._scheme = scheme
        self._trust = trust if trust is not None else signed_by({0, os.geteuid()}, _MUNGE)
        self._left_out: set[int] = set()  # jobs of whose words onesd can't be told

    async def send(self, report: NodeReport) -> Heard:
        """Push a report; what onesd says to it. Raises ControllerError."""
        body = self._encoded(report)
        answer = await self._ask("POST", "/v1/agent", AGENT_PURPOSE, body, signed=body)
        if answer is None:
            raise _fault(self._controller, STRANGE)
        try:
            return HEARD.decode(answer)
        except msgspec.DecodeError as fault:
            raise _fault(
                self._controller, f"answers what this agent does not understand: {fault}"
            ) from None

    def _encoded(self, report: NodeReport) -> bytes:
        """The report as it travels, without what a job said that can't be told, or is too long."""
        try:
            body = msgspec.json.encode(report)
            if len(body) <= MOST_REPORT:
                return body
        except ValueError:
            pass
        told: list[tuple[int, Received]] = []
        for received in report.received:
            try:
                told.append((len(msgspec.json.encode(received)), received))
            except ValueError as fault:
                self._leave_out(received, str(fault))
        room = MOST_REPORT // 2
        kept = []
        for size, received in sorted(told, key=lambda one: one[0]):
            room -= size + 1
            if room >= 0:
                kept.append(received)
            else:
                self._leave_out(received, "the node's report is too long with it")
        return msgspec.json.encode(msgspec.structs.replace(report, received=tuple(kept)))

    def _leave_out(self, received: Received, why: str) -> None:
        job = received.message.job
        if job not in self._left_out and len(self._left_out) < MOST_LEFT_OUT:
            self._left_out.add(job)
            log.warning("job %d: what it reported is not passed on: %s", job, why)

    async def lease(self, job: int) -> Lease | None:
        """What onesd gave the job, None where it knows nothing of it; raises ControllerError."""
        path, subject = f"/v1/lease/{job}", str(job).encode()
        try:
            async with asyncio.timeout(LEASE_TIMEOUT):
                answer = await self._ask("GET", path, LEASE_PURPOSE, None, signed=subject)
        except TimeoutError:
            raise _fault(self._controller, f"no answer within {LEASE_TIMEOUT} s") from None
        if answer is None:
            return None
        try:
            lease = LEASE.decode(answer)
            return msgspec.structs.replace(lease, order=None)
        except msgspec.DecodeError as fault:
            raise _fault(self._controller, f"answers what is no lease: {fault}") from None

    @property
    def _controller(self) -> str:
        return self._controllers[self._acts]

    async def _ask(
        self, method: str, path: str, purpose: str, body: bytes | None, *, signed: bytes
    ) -> bytes | None:
        """One request to the onesd that acts: the answer that it has signed; None for a 404 of its
        own. The others are tried in turn; where none acts, the fault of the first one is raised, or
        of the first that does not wait."""
        faults: list[ControllerError] = []
        for _ in self._controllers:
            asked = self._acts
            try:
                return await self._ask_one(
                    self._controllers[asked], method, path, purpose, body, signed=signed
                )
            except ControllerError as fault:
                faults.append(fault)
                if self._acts == asked:  # no other question has gone on meanwhile
                    self._acts = (asked + 1) % len(self._controllers)
        raise next((fault for fault in faults if not isinstance(fault, Waits)), faults[0])

    async def _ask_one(
        self,
        controller: str,
        method: str,
        path: str,
        purpose: str,
        body: bytes | None,
        *,
        signed: bytes,
    ) -> bytes | None:
        try:
            credential = await asyncio.to_thread(self._sign, purpose, self._node, signed)
        except CredentialError as fault:
            raise ControllerError(str(fault)) from None
        headers = {"Authorization": f"{self._scheme} {credential}", NODE: self._node}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"http://{controller}{path}"
        connect = CONNECT if len(self._controllers) > 1 else None
        patience = aiohttp.ClientTimeout(total=PUSH_TIMEOUT, sock_connect=connect)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=patience, allow_redirects=False
            ) as answer:
                text = await _whole(answer.content)
                status, reason = answer.status, answer.reason
                seal = answer.headers.get(CREDENTIAL, "")
        except TimeoutError:
            raise _fault(controller, f"no answer within {PUSH_TIMEOUT:g} s") from None
        except (aiohttp.ClientError, OSError) as fault:
            raise _fault(controller, f"can't be reached: {fault}") from None
        if len(text) > MOST_ANSWER:
            raise _fault(controller, f"answers with more than {MOST_ANSWER} bytes")
        if status not in (200, 404):
            raise _refusal(controller, text, reason)
        if status == 404 and not seal:
            raise _fault(controller, STRANGE)
        await self._must_be_onesds(controller, credential, text, seal)
        return text if status == 200 else None

    async def _must_be_onesds(self, controller: str, asked: str, answer: bytes, seal: str) -> None:
        """Raises Unproved unless onesd has signed this answer to this very request."""
        if not seal:
            raise Unproved(f"an answer of {controller} is not signed; it is left out")
        try:
            good = await asyncio.to_thread(
                self._trust, seal, HEARD_PURPOSE, self._node, answer_to(asked, answer)
            )
            doubt = "" if good else "another user has signed it; see controller_user"
        except CredentialError as fault:
            doubt = " ".join(str(fault).split())[:200]
        if doubt:
            raise Unproved(f"an answer of {controller} is left out: {doubt}")


class Pusher:
    """Pushes a full report every interval, at once when asked to, for ever.

    A report that gets lost costs nothing: the next one says it all again. So nothing is queued.
    """

    def __init__(
        self,
        onesd: Onesd,
        build: Callable[[], Awaitable[NodeReport]],
        *,
        interval: float,
        done: Callable[[NodeReport, bool], None] = lambda _report, _heard: None,
        learn: Callable[[Heard], None] = lambda _heard: None,
    ) -> None:
        self._onesd = onesd
        self._build = build
        self._interval = interval
        self._done = done
        self._learn = learn
        self._urgent = asyncio.Event()
        self._failures = 0
        self._told = ""

    def soon(self) -> None:
        """Something happened that onesd should not wait an interval for."""
        self._urgent.set()

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            pushed_at = time.monotonic()
            await self.push()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._urgent.wait()
                gap = LEAST_GAP - (time.monotonic() - pushed_at)
                await asyncio.sleep(max(DEBOUNCE, gap))
            except TimeoutError:
                pass

    async def push(self) -> None:
        """One report; a failure is told once, until it changes or ends."""
        self._urgent.clear()
        report = await self._build()
        try:
            heard = await self._onesd.send(report)
        except ControllerError as fault:
            # Whoever answers without proof may have passed the report on: onesd, most likely, whose
            # user this node doesn't know. So no report comes later for it.
            self._failures += not isinstance(fault, Unproved)
            if str(fault) != self._told:
                self._told = str(fault)
                log.warning("%s; trying again", fault)
            self._done(report, False)
            return
        if self._told:
            log.info("onesd hears us again, after %d attempts", max(1, self._failures))
        self._failures, self._told = 0, ""
        self._learn(heard)
        self._done(report, True)

    def _pause(self) -> float:
        backoff = min(MOST_BACKOFF, max(1, self._failures))
        return self._interval * backoff * (1 + JITTER * (2 * random.random() - 1))


def signed_by(uids: Collection[int], signatures: Signatures) -> Trust:
    """Trust in what, as these signatures tell, one of these users has signed."""

    def trust(credential: str, purpose: str, subject: str, body: bytes) -> bool:
        return signatures.verify(credential, purpose, subject, body).uid in uids

    return trust


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """An answer, read until it is too long."""
    found = b""
    while len(found) <= MOST_ANSWER and (piece := await content.read(MOST_ANSWER + 1 - len(found))):
        found += piece
    return found


def _refusal(controller: str, text: bytes, reason: str | None) -> ControllerError:
    """In the controller's own words, where it has any."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    said = str(answer.get("error", ""))[:200] if isinstance(answer, dict) else ""
    waits = isinstance(answer, dict) and "active" in answer
    return _fault(controller, f"refuses: {said or reason}", Waits if waits else ControllerError)


def _fault(
    controller: str, what: str, kind: type[ControllerError] = ControllerError
) -> ControllerError:
    return kind(in_a_line(" ".join(f"onesd at {controller} {what}".split()), longest=300))
