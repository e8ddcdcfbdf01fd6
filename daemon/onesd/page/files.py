"""Serves the files that browsers are given: small enough to be kept in memory, packed."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass

from aiohttp import web

from ones.daemon.web import files

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
FIRST = "index.html"


@dataclass(frozen=True, slots=True)
class _File:
    packed: bytes
    plain: bytes
    kind: str
    tag: str


class Files:
    """Serves them to anybody: they hold nothing of the cluster."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        for name in files.names():
            kind = _TYPES.get(name.rpartition(".")[2])
            if kind is not None:
                plain = files.read(name)
                tag = hashlib.sha256(plain).hexdigest()[:32]
                self._files[name] = _File(gzip.compress(plain, mtime=0), plain, kind, tag)

    async def serve(self, request: web.Request) -> web.Response:
        """The file that is named, or the page itself."""
        found = self._files.get(request.match_info.get("name", FIRST))
        if found is None:
            raise web.HTTPNotFound(reason="no such file")
        # Asked for again each time, so that a page of an older onesd never mixes with newer files.
        headers = {"Cache-Control": "no-cache", "ETag": f'"{found.tag}"', "Vary": "Accept-Encoding"}
        if f'"{found.tag}"' in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = found.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"], body = "gzip", found.packed
        return web.Response(body=body, content_type=found.kind, charset="utf-8", headers=headers)
