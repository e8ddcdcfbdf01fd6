"""Messages between launchers and workers: JSON, one a line; between launchers with proof of origin.

A launcher that joins proves that it knows the job's secret, and the base proves it to the joiner,
by an HMAC over both nonces, each of which is of this connection alone; so nothing that was heard
can be said again. Every line after that carries a counter and an HMAC with a key of the connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import OnesError

LONGEST = 1 << 20  # bytes of a line
LONGEST_UNPROVEN = 4096  # of a line of somebody who has not proved himself yet
_NONCE = re.compile(r"[0-9a-f]{16,64}")
Message = dict[str, Any]


class LinkFault(OnesError):
    """What came over a link is not what it should be."""


@dataclass(frozen=True, slots=True)
class JoinFile:
    """Where a job's base launcher is, and the secret that lets others in."""

    host: str
    port: int
    control: str  # the path of the socket that takes orders
    secret: bytes

    def write(self, path: Path) -> None:
        """Write it for the eyes of its owner only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            fields = {"host": self.host, "port": self.port, "control": self.control}
            json.dump({**fields, "secret": self.secret.hex()}, file)
        draft.replace(path)

    def remove(self, path: Path) -> None:
        """Remove it, unless it is a later run's by now, or can't be reached."""
        with contextlib.suppress(LinkFault, OSError):
            if read_join_file(path).secret == self.secret:
                path.unlink()


def read_join_file(path: Path) -> JoinFile:
    """The file, if nobody else could have read or written it."""
    try:
        with path.open() as file:
            seen = os.fstat(file.fileno())
            if seen.st_uid != os.getuid():
                raise LinkFault(f"{path} belongs to user {seen.st_uid}, not to you")
            if stat.S_IMODE(seen.st_mode) & 0o077:
                raise LinkFault(f"{path} can be read by others; chmod 600 it, and restart the job")
            fields = json.load(file)
        return JoinFile(
            str(fields["host"]),
            int(fields["port"]),
            str(fields["control"]),
            bytes.fromhex(fields["secret"]),
        )
    except OSError as fault:
        raise LinkFault(f"{path}: {fault.strerror}") from None
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        raise LinkFault(f"{path} is no join file of ones-run") from None


class Lines:
    """Puts what arrives together to whole lines, none of them longer than `longest`."""

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._rest = b""

    def add(self, data: bytes) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._check(line)
            yield line
        self._check(self._rest)

    def _check(self, line: bytes) -> None:
        if len(line) > self.longest:
            raise LinkFault(f"a line of more than {self.longest} bytes")


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line. Raises LinkFault."""
    try:
        message = json.loads(line)
    except ValueError:
        raise LinkFault("a line that is no JSON") from None
    except RecursionError:
        raise LinkFault("a line that is nested too deeply") from None
    if not isinstance(message, dict):
        raise LinkFault("a line that is no message")
    return message


class Sealed:
    """One end of a connection whose every line is proved."""

    def __init__(self, key: bytes, *, ours: bytes, theirs: bytes) -> None:
        self._key = key
        self._ours, self._theirs = ours, theirs
        self._sent = 0
        self._taken = 0

    def seal(self, message: Mapping[str, Any]) -> bytes:
        body = encode(message)[:-1]
        self._sent += 1
        return self._mac(self._ours, self._sent, body).encode() + b" " + body + b"\n"

    def open(self, line: bytes) -> Message:
        """The message of the next line; a line that is repeated, left out or changed is refused."""
        mac, _, body = line.partition(b" ")
        expected = self._mac(self._theirs, self._taken + 1, body)
        if not hmac.compare_digest(mac, expected.encode()):
            raise LinkFault("a line that is not the next one of this connection")
        self._taken += 1
        return decode(body)

    def _mac(self, side: bytes, count: int, body: bytes) -> str:
        text = side + count.to_bytes(8, "big") + body
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


class Joining:
    """The joiner's half of the first three lines."""

    def __init__(self, secret: bytes, offer: Message) -> None:
        self._secret = secret
        self._offer = offer
        self._nonce = new_nonce()
        self._theirs = ""

    def answer(self, greeting: bytes) -> bytes:
        """What to say to the base's greeting."""
        self._theirs = _nonce_of(_flat(greeting))
        body = {**self._offer, "nonce": self._nonce}
        return encode({**body, "mac": _prove(self._secret, "join", self._theirs, body)})

    def admitted(self, welcome: bytes) -> Sealed:
        """The connection, if the base has proved itself as well."""
        message = _flat(welcome)
        if "error" in message:
            raise LinkFault(f"the job refuses: {message['error']}")
        body = {"nonce": self._nonce}
        if not _proved(message, _prove(self._secret, "welcome", self._theirs, body)):
            raise LinkFault("who answers doesn't know the job's secret")
        key = _session(self._secret, self._theirs, self._nonce)
        return Sealed(key, ours=b"joiner", theirs=b"base")


class Admitting:
    """The base's half of them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = new_nonce()

    def greeting(self) -> bytes:
        return encode({"ones": 1, "nonce": self._nonce})

    def admit(self, line: bytes) -> tuple[Message, bytes, Sealed]:
        """What the joiner offers, the answer to it, and the connection."""
        message = _flat(line)
        body = {name: value for name, value in message.items() if name != "mac"}
        theirs = _nonce_of(message)
        if not _proved(message, _prove(self._secret, "join", self._nonce, body)):
            raise LinkFault("who wants to join doesn't know the job's secret")
        proof = _prove(self._secret, "welcome", self._nonce, {"nonce": theirs})
        key = _session(self._secret, self._nonce, theirs)
        return body, encode({"mac": proof}), Sealed(key, ours=b"base", theirs=b"joiner")


def new_nonce() -> str:
    return secrets.token_hex(16)


def _flat(line: bytes) -> Message:
    """The message of a line whose sender has not proved himself yet. Raises LinkFault."""
    message = decode(line)
    if not all(isinstance(value, str | int) for value in message.values()):
        raise LinkFault("a greeting of other things than words and numbers")
    return message


def _nonce_of(message: Message) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or _NONCE.fullmatch(nonce) is None:
        raise LinkFault("a greeting without a nonce")
    return nonce


def _prove(secret: bytes, what: str, nonce: str, body: Message) -> str:
    text = f"{what}\n{nonce}\n{json.dumps(body, sort_keys=True)}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _proved(message: Message, proof: str) -> bool:
    mac = message.get("mac")
    return isinstance(mac, str) and mac.isascii() and hmac.compare_digest(mac, proof)


def _session(secret: bytes, base: str, joiner: str) -> bytes:
    return hmac.new(secret, f"session\n{base}\n{joiner}".encode(), hashlib.sha256).digest()
