"""The page's door: signing in, what a page is told, and what operators may do there."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from ones.daemon.config import PageConfig
from ones.daemon.descriptors import for_visitors
from ones.daemon.onesd.doors import connections, views
from ones.daemon.onesd.doors.askers import Unproved
from ones.daemon.onesd.doors.connections import Connections, address_of
from ones.daemon.onesd.doors.failures import Handler
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.doors.listening import Listening
from ones.daemon.onesd.doors.orders import Order, Source, decoded, only
from ones.daemon.onesd.doors.workers import Workers
from ones.daemon.onesd.page.broadcast import MOST_PAGES, Broadcast, Reader
from ones.daemon.onesd.page.files import Files
from ones.daemon.onesd.page.guard import PROOF, Guard
from ones.daemon.onesd.page.parts import Json
from ones.daemon.onesd.page.sharing import sharing
from ones.daemon.onesd.service import Service
from ones.daemon.web.readable import MOST, all_readable
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
MOST_CONNECTIONS = MOST_PAGES + 124
BEAT = 15.0  # seconds without news after which a page is told that onesd is there
PATIENCE = 30.0  # seconds in which a page has to take a message
LONGEST_SECRET = 200  # characters
SIGN_IN = "not signed in, or not any more; run `onesctl web` and open the link that it prints"


class _SignIn(msgspec.Struct):
    secret: str


_SIGN_IN = msgspec.json.Decoder(_SignIn)


class Page:
    """Serves the page beside the doors of `api`. `changed` is called after each round."""

    def __init__(self, api: Api, service: Service) -> None:
        self._api = api
        self._service = service
        self._config = service.config.page
        self._broadcast = Broadcast(
            service, lambda uid: api.askers.peer(uid).admin, awaited=lambda: api.sessions.awaited
        )
        api.sessions.offered = self._broadcast.expect
        self._questions = Workers("questions of pages", threads=2, waiting=MOST_PAGES)
        self._connections: Connections | None = None
        self._runner: web.AppRunner | None = None
        name = hashlib.sha256(f"{service.config.controller} {self._config.address}".encode())
        # Cookies know no ports: two clusters behind `ssh -L` must not share a name.
        self._cookie = f"{'__Host-' if self._config.certificate else ''}ones-{name.hexdigest()[:8]}"

    async def open(self) -> None:
        """Listen. Where that is not possible there is no page, and onesd goes on without."""
        if not self._config.address:
            return
        try:
            port = await self._listen()
        except OnesError as fault:
            self._api.no_page = f"the page is not served: {fault}"
            log.error("no page for browsers: %s", fault)
            return
        host = self._config.address.rpartition(":")[0]
        scheme = "https" if self._config.certificate else "http"
        self._api.page_url = self._config.url or f"{scheme}://{host}:{port}"
        log.info("the page is served at %s; onesctl web prints a link", self._api.page_url)

    async def close(self) -> None:
        await self._broadcast.close()
        self._questions.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def changed(self) -> None:
        """A round has ended; may be called from any thread."""
        if self._runner is not None:
            self._broadcast.changed()

    async def _listen(self) -> int:
        guard, files = Guard(self._config), Files()
        middlewares = [self._api.failures.as_json, guard.check]
        app = web.Application(middlewares=middlewares)
        app.on_response_prepare.append(guard.sign)
        orders = self._api.orders
        app.add_routes(
            [
                web.get("/", files.serve),
                web.get("/static/{name}", files.serve),
                web.post("/sign-in", self._sign_in),
                web.post("/sign-out", self._sign_out),
                web.get("/data/state", self._state),
                web.get("/data/changes", self._changes),
                web.get("/data/job/{job:[0-9]{1,9}}", self._job),
                web.get("/data/sharing", self._sharing),
                web.post("/do/pause", self._order(orders.pause)),
                web.post("/do/resume", self._order(orders.resume)),
                web.post("/do/policy", self._order(orders.choose_policy)),
            ]
        )
        most = for_visitors(connections.MOST + MOST_CONNECTIONS) - for_visitors(connections.MOST)
        # Of one address there may be as many as of all: that of a proxy, or of ssh.
        self._connections = Connections(max(32, most), of_one=max(32, most))
        listening = Listening(app, self._connections)
        await listening.runner.setup()
        host, _, port = self._config.address.rpartition(":")
        try:
            found = await listening.tcp(
                host.strip("[]"), int(port), key="address` in `[page]", tls=_tls(self._config)
            )
        except OnesError:
            await listening.runner.cleanup()
            raise
        self._runner = listening.runner
        self._broadcast.start()
        return found

    async def _sign_in(self, request: web.Request) -> web.Response:
        body = await _short_body(request)
        secret = decoded(body, _SIGN_IN).secret
        opened = self._api.sessions.begin(secret) if len(secret) <= LONGEST_SECRET else None
        if opened is None:
            raise Unproved(
                "this link can't be used (any more): it holds for a while, and once;"
                " run `onesctl web` again"
            )
        source = address_of(request.transport)
        self._api.audit.did("sign-in", uid=opened.uid, source=source)
        response = _json({"proof": opened.proof})
        response.set_cookie(
            self._cookie,
            opened.cookie,
            max_age=int(self._api.sessions.session),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=bool(self._config.certificate) or self._config.url.startswith("https:"),
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        await _short_body(request)
        if self._whose(request) is not None:
            self._api.sessions.end(request.cookies.get(self._cookie, ""))
        response = _json({"ok": True})
        response.del_cookie(self._cookie, path="/")
        return response

    def _whose(self, request: web.Request) -> int | None:
        cookie, proof = request.cookies.get(self._cookie, ""), request.headers.get(PROOF, "")
        return self._api.sessions.whose(cookie, proof)

    async def _state(self, request: web.Request) -> web.Response:
        if (uid := self._whose(request)) is None:
            return self._stranger()
        async with self._api.askers.known(request, uid):
            peer = await self._questions.run(lambda: self._api.askers.peer(uid))
            body = await self._broadcast.state(only(peer))
        headers = {"Content-Encoding": "gzip"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, for as long as the page listens and its session lasts."""
        if (uid := self._whose(request)) is None:
            return self._stranger()
        async with self._api.askers.known(request, uid):
            peer = await self._questions.run(lambda: self._api.askers.peer(uid))
        transport = request.transport
        assert transport is not None and self._connections is not None, "it is connected"
        reader = self._broadcast.enter(uid, only(peer), transport.abort)
        try:
            response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
            response.content_type = "text/event-stream"
            await response.prepare(request)
            self._connections.stays(transport)
            hello = {"user": peer.name, "operator": peer.admin}
            await response.write(b"data: " + msgspec.json.encode({"hello": hello}) + b"\n\n")
            while self._whose(request) is not None:
                if not await self._tell(reader, response):
                    return response
            await response.write(b'data: {"ended":true}\n\n')
            await response.write_eof()
        except TimeoutError:
            transport.abort()
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._broadcast.leave(reader)
        return response

    async def _tell(self, reader: Reader, response: web.StreamResponse) -> bool:
        """The next news, or that there is none; whether there will be more. Raises TimeoutError
        where nobody takes it."""
        try:
            message = await asyncio.wait_for(reader.waiting.get(), BEAT)
        except TimeoutError:
            message = b": nothing new\n\n"
        if message is None:
            return False
        async with asyncio.timeout(PATIENCE):
            await response.write(message)
        return True

    async def _job(self, request: web.Request) -> web.Response:
        number = int(request.match_info["job"])

        def life(whose: str | None) -> Json:
            found = views.job(self._service, number, whose, self._api.runs.refresh)
            told = views.explain(self._service, number, whose)
            both = {"lines": told["lines"], "speeds": told["sizes"]}
            return {**_latest(found), **both, "now": self._service.clock()}

        return await self._told(request, life, self._api.lives)

    async def _sharing(self, request: web.Request) -> web.Response:
        return await self._told(
            request, lambda whose: sharing(self._service, whose), self._questions
        )

    async def _told(
        self, request: web.Request, view: Callable[[str | None], Json], workers: Workers
    ) -> web.Response:
        """What a page asks for beside the stream, as its user may see it; None: an operator."""
        if (uid := self._whose(request)) is None:
            return self._stranger()

        def work() -> bytes:
            return msgspec.json.encode(all_readable(view(only(self._api.askers.peer(uid)))))

        async with self._api.askers.known(request, uid):
            body = await workers.run(work)
        return web.Response(body=body, content_type="application/json")

    def _order(self, order: Order) -> Handler:
        async def carried_out(request: web.Request) -> web.Response:
            if (uid := self._whose(request)) is None:
                return self._stranger()
            source = Source(address_of(request.transport), "page")
            async with self._api.askers.known(request, uid) as question:

                def work() -> Any:
                    return order(self._api.askers.peer(uid), question.body, source)

                answer = await self._questions.run(work)
            self._broadcast.changed()
            return _json(answer)

        return carried_out

    def _stranger(self) -> web.Response:
        response = _json({"error": SIGN_IN})
        response.set_status(401)
        return response


def _latest(life: Json) -> Json:
    """A job's life with no more of each list than a page is sent: of what came first least."""
    cut = {}
    for name in ("moves", "runs"):  # oldest first
        if len(life[name]) > MOST:
            cut[name] = life[name][-MOST:]
    if not cut:
        return life
    note = f"of its {' and '.join(cut)} the last {MOST} are shown; onesctl job has all"
    notes = filter(None, (life["meta"].get("note"), note))
    return {**life, **cut, "meta": {**life["meta"], "note": "; ".join(notes)}}


async def _short_body(request: web.Request) -> bytes:
    """Of somebody who has proved nothing yet. Raises web.HTTPException."""
    try:
        async with asyncio.timeout(10.0):
            body = await request.content.read(4097)
            while len(body) <= 4096 and not request.content.at_eof():
                body += await request.content.read(4097)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="the body did not come in time") from None
    if len(body) > 4096:
        raise web.HTTPRequestEntityTooLarge(4096, len(body))
    return body


def _json(answer: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _tls(config: PageConfig) -> ssl.SSLContext | None:
    """Raises OnesError."""
    if not config.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.certificate, config.key or None)
    except OSError as fault:
        raise OnesError(
            f"page.certificate: {config.certificate}: {fault.strerror or fault}; it must be a PEM"
            " file that onesd's user can read, with its key in it or in page.key"
        ) from None
    return context
