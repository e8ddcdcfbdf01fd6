"""What is answered where a question can't be, and which refusals are written down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from ones.daemon.onesd.audit import Audit
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.askers import NotAllowed, TooFast, Unproved
from ones.daemon.onesd.doors.connections import address_of
from ones.daemon.onesd.doors.workers import Busy
from ones.daemon.onesd.terms import TermsError
from ones.slurm_ext.errors import OnesError, Superseded, in_a_line

LONGEST_REFUSAL = 1000  # characters of what is said of a question that can't be read
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Failures:
    """Turns what a handler raises into one line of JSON, with the status that it means."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @web.middleware
    async def as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as fault:
            return error(fault.reason, fault.status)
        except Unproved as fault:
            self._refused(request, None, fault)
            return error(str(fault), 401)
        except NotAllowed as fault:
            self._refused(request, fault.uid, fault)
            return error(str(fault), 403)
        except views.NotKnown as fault:
            return error(str(fault), 404)
        except TooFast as fault:
            return error(str(fault), 429)
        except (Busy, TermsError) as fault:
            return error(str(fault), 503)
        except Superseded as fault:
            return waiting(str(fault), None)
        except (msgspec.DecodeError, ValueError) as fault:
            said = str(fault).splitlines() or ["it makes no sense"]
            return error(in_a_line(said[0], longest=LONGEST_REFUSAL), 400)

    def _refused(self, request: web.Request, uid: int | None, fault: OnesError) -> None:
        what, source = f"{request.method} {request.path[:100]}", address_of(request.transport)
        self._audit.refused(uid=uid, source=source, what=what, why=str(fault))


def waiting(reason: str, active: str | None) -> web.Response:
    """Of an onesd that does not act: whoever asked is to ask the others."""
    return error(reason, 503, active=active)


def error(reason: str, status: int, **more: str | None) -> web.Response:
    """One line that says what is wrong."""
    body = msgspec.json.encode({"error": reason, **more})
    return web.Response(body=body, status=status, content_type="application/json")
