"""Requests and answers signed by the mechanism that authenticates Slurm itself (its AuthType)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ones.daemon import munge, sack
from ones.daemon.credentials import AuthType, Credential, CredentialError


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed a request, and for which body."""

    uid: int
    digest: str

    def covers(self, body: bytes) -> bool:
        return self.digest == hashlib.sha256(body).hexdigest()


class Mechanism(Protocol):
    """Seals in this process's name, and opens; both raise CredentialError."""

    def encode(self, payload: bytes) -> str: ...

    def decode(self, credential: str) -> Credential: ...


@dataclass(frozen=True, slots=True)
class Signatures:
    """Signs in this process's name, and tells who has signed."""

    scheme: str  # of the header Authorization
    mechanism: Mechanism

    def sign(self, purpose: str, subject: str, body: bytes) -> str:
        """A credential for one request: it fits no other purpose, subject (such as a node) or body.

        Raises CredentialError.
        """
        return self.mechanism.encode(statement(purpose, subject, body))

    def signed(self, credential: str, purpose: str, subject: str) -> Signed:
        """Whose credential it is, before the body is read.

        Raises CredentialError unless it is for this.
        """
        opened = self.mechanism.decode(credential)
        heading, _, digest = opened.payload.rpartition(b"\n")
        if heading != _heading(purpose, subject):
            raise CredentialError("the credential was signed for another request")
        return Signed(opened.uid, digest.decode("ascii", errors="replace"))

    def verify(self, credential: str, purpose: str, subject: str, body: bytes) -> Signed:
        """Open the credential of a request; raises CredentialError unless it is for this one."""
        found = self.signed(credential, purpose, subject)
        if not found.covers(body):
            raise CredentialError("the credential was signed for another request")
        return found


def signatures_of(
    auth_type: AuthType, *, once: bool = False, trusted: Collection[int] = ()
) -> Signatures:
    """Those of the mechanism. `once`: a credential opens only once, as munge's always do.

    Of root and the `trusted` users any number is remembered for that, of others a bounded one.
    """
    if auth_type == "auth/slurm":
        replays = sack.Replays({0, *trusted}) if once else None
        return Signatures("Slurm", sack.Kiosk(replays))
    return Signatures("Munge", munge)


def statement(purpose: str, subject: str, body: bytes) -> bytes:
    """What a credential is made over."""
    return _heading(purpose, subject) + f"\n{hashlib.sha256(body).hexdigest()}".encode()


def _heading(purpose: str, subject: str) -> bytes:
    if "\n" in purpose or "\n" in subject:
        raise CredentialError("a line break in what is to be signed")
    return f"{purpose}\n{subject}".encode("utf-8", errors="surrogateescape")
