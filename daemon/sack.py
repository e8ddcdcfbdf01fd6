"""Credentials of auth/slurm, over the socket of Slurm's auth and cred kiosk.

slurmctld, slurmdbd, slurmd and sackd each open such a socket where auth/slurm is in use. Whoever
connects is known by the kernel, as with munged, and gets a token (a JSON web token under slurm.key)
that names his uid and covers what he hands in. The protocol is that of Slurm's own clients
(src/common/sack_api.c), the same from 23.11 to 26.05; the key never leaves Slurm's daemons.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Collection
from typing import Annotated

import msgspec

from ones.daemon.credentials import TTL, Credential, CredentialError

SOCKETS = ("/run/slurm/sack.socket", "/run/slurmctld/sack.socket", "/run/slurmdbd/sack.socket")
PATIENCE = 5.0  # seconds for an answer
MOST_TOKEN = 8000  # characters: what fits into a header
MOST_OF_ONE = 1024  # credentials of one user that are remembered at once
STEP = 2.0  # seconds by which a clock that is set back differs from one that drifts

_VERSION = 42 << 8  # of Slurm 24.11's protocol; the kiosk takes any
_CREATE, _VERIFY = 64001, 64002
_ANY_UID = 2**32 - 1  # whoever gets the credential may verify it
_NONCE = 16  # bytes: or two like requests within a second would have one and the same token
_UID = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class SackError(CredentialError):
    """Slurm's kiosk refused, or is not there."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"auth/slurm: {reason}")


class Replays:
    """Which credentials have been opened; those from before its own first second open never.

    Of users, `trusted` ones apart, it remembers so many at once and refuses more. May be used by
    any thread.
    """

    def __init__(self, trusted: Collection[int] = (0,)) -> None:
        self._trusted = frozenset(trusted)
        self._since = int(time.time())
        self._ahead = time.time() - time.monotonic()
        self._lock = threading.Lock()
        self._seen: dict[int, set[bytes]] = {}
        self._before: dict[int, set[bytes]] = {}
        self._turned = time.monotonic()

    def take(self, token: str, uid: int, issued: int) -> None:
        """Raises SackError unless it is the first time."""
        digest = hashlib.sha256(token.encode()).digest()
        with self._lock:
            if issued < self._earliest():
                raise SackError("the credential is older than this onesd; ask again")
            # A token holds from a TTL before its date to one after it.
            if time.monotonic() - self._turned > 2 * TTL:
                self._seen, self._before = {}, self._seen
                self._turned = time.monotonic()
            seen = self._seen.setdefault(uid, set())
            if digest in seen or digest in self._before.get(uid, ()):
                raise SackError("replayed credential; each request needs one of its own")
            if uid not in self._trusted and len(seen) >= MOST_OF_ONE:
                raise SackError(f"more than {MOST_OF_ONE} credentials of uid {uid} at once")
            seen.add(digest)

    def _earliest(self) -> int:
        """The first second of which credentials may be.

        Where the clock has been set back, as after a start before the time was known, it is the
        second of that: or all would be refused until the clock is where it was. munged knows no
        better what it had opened before, either.
        """
        ahead = time.time() - time.monotonic()
        if ahead < self._ahead - STEP:
            self._since = min(self._since, int(time.time() - STEP))
        self._ahead = ahead
        return self._since


class _Claims(msgspec.Struct, frozen=True):
    """What a token of the kiosk claims, as far as we ask."""

    uid: _UID
    gid: _UID
    iat: int
    context: str
    payload: Annotated[str, msgspec.Meta(max_length=MOST_TOKEN)]


_CLAIMS = msgspec.json.Decoder(_Claims)


class Kiosk:
    """Slurm's, on this host. With `replays` each credential opens once."""

    def __init__(self, replays: Replays | None = None) -> None:
        self._replays = replays

    def encode(self, payload: bytes) -> str:
        """Seal a payload in this process's name. Raises SackError."""
        data = secrets.token_bytes(_NONCE) + payload
        request = struct.pack(f"!II{len(data)}s", _ANY_UID, len(data), data)
        with _connected() as link:
            answer = _asked(link, _CREATE, request)
        # A string as Slurm packs it: its length with the NUL that ends it, then both.
        if len(answer) < 5 or struct.unpack("!I", answer[:4])[0] != len(answer) - 4:
            raise SackError("Slurm made no credential; its daemon on this host has logged why")
        return answer[4:].rstrip(b"\0").decode("ascii", errors="replace")

    def decode(self, credential: str) -> Credential:
        """Open a credential; raises SackError unless Slurm finds it genuine, fresh and unused."""
        sealed = credential.encode("ascii", errors="replace") + b"\0"
        if len(sealed) > MOST_TOKEN or credential.count(".") != 2 or b"\0" in sealed[:-1]:
            raise SackError("the credential is not one")
        with _connected() as link:
            answer = _asked(link, _VERIFY, struct.pack("!I", len(sealed)) + sealed)
        if answer != b"\0\0\0\0":
            raise SackError(
                "Slurm does not take this credential; both hosts need the same slurm.key, and"
                " clocks that agree"
            )
        # Signed by Slurm's key: what it says is Slurm's word.
        try:
            claims = _CLAIMS.decode(_base64(credential.split(".")[1]))
            payload = _base64(claims.payload)
        except (msgspec.DecodeError, binascii.Error, ValueError) as fault:
            raise SackError(f"the credential is not understood: {fault}") from None
        if claims.context != "sack" or len(payload) < _NONCE:
            raise SackError("the credential was made for another purpose")
        if abs(time.time() - claims.iat) > TTL:
            raise SackError("expired credential; the clocks of both hosts must agree")
        if self._replays is not None:
            self._replays.take(credential, claims.uid, claims.iat)
        return Credential(claims.uid, claims.gid, payload[_NONCE:], claims.iat)


def _base64(text: str) -> bytes:
    """Of either alphabet, with padding or without. Raises ValueError."""
    bare = text.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)


def _connected() -> socket.socket:
    """To the first of Slurm's daemons here that answers. Raises SackError."""
    for path in SOCKETS:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(PATIENCE)
        try:
            link.connect(path)
        except OSError:
            link.close()
            continue
        return link
    raise SackError(
        f"none of {', '.join(SOCKETS)} answers; start sackd, slurmd or slurmctld here, or set"
        " auth_type to what `scontrol show config` says of AuthType"
    )


def _asked(link: socket.socket, question: int, body: bytes) -> bytes:
    """All that the kiosk says before it hangs up; nothing where it refuses. Raises SackError."""
    header = struct.pack("!HII", _VERSION, 8 + len(body), question)
    answer = b""
    end = time.monotonic() + PATIENCE
    try:
        link.sendall(header + body)
        while len(answer) <= MOST_TOKEN and (piece := link.recv(MOST_TOKEN)):
            answer += piece
            if time.monotonic() > end:
                raise TimeoutError
    except TimeoutError:
        raise SackError(
            f"Slurm's daemon on this host has not answered for {PATIENCE:g} s"
        ) from None
    except OSError as fault:
        raise SackError(f"Slurm's daemon here: {fault.strerror}") from None
    return answer
