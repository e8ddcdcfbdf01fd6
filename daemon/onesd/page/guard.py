"""What every request to the page has to look like, and what every answer says to the browser."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

from ones.daemon.config import PageConfig
from ones.daemon.onesd.doors.failures import Handler

PROOF = "Ones-Proof"  # the header that only our own page can send: no other site's may set it
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Server": "onesd",
}


class Guard:
    """Knows under which names the page is served.

    A name that is not ours could be another site's that was pointed at our address. On loopback
    the port is free, because it is another one behind `ssh -L`.
    """

    def __init__(self, config: PageConfig) -> None:
        self._tls = bool(config.certificate)
        self._site = urlsplit(config.url)
        self._address = config.address.lower()
        host = self._address.rpartition(":")[0].strip("[]")
        self._loopback = ipaddress.ip_address(host).is_loopback

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "").lower()
        if not self._is_ours(host):
            raise web.HTTPMisdirectedRequest(
                reason="the page is not served under that host name; see url in [page]"
            )
        elsewhere = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        # Whoever comes from elsewhere, by a link in a mail say, only ever gets the page itself.
        if elsewhere and (request.path, request.method) != ("/", "GET"):
            raise web.HTTPForbidden(reason="asked for by another site")
        if request.method not in ("GET", "HEAD") and not self._same_origin(request, host):
            raise web.HTTPForbidden(reason="asked for by another site")
        return await handler(request)

    async def sign(self, _: web.Request, response: web.StreamResponse) -> None:
        """Set the headers of every answer, just before it is sent."""
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self._loopback and name in ("localhost", "127.0.0.1", "[::1]"):
            return True
        return host in (self._address, self._site.netloc) and bool(host)

    def _same_origin(self, request: web.Request, host: str) -> bool:
        origin = request.headers.get("Origin", "")
        if self._site.netloc == host:
            return origin == f"{self._site.scheme}://{host}"
        return origin == f"{'https' if self._tls else 'http'}://{host}"
