"""A stand-in for munge: a credential says who sealed it, and anybody may seal as anybody."""

from __future__ import annotations

import base64
import json
import os
import secrets

import pytest

from ones.daemon import munge
from ones.daemon.credentials import Credential
from ones.daemon.signatures import statement


def encode(payload: bytes, *, ttl: int = 60, socket: str | None = None) -> str:
    return encode_as(os.geteuid(), payload)


def encode_as(uid: int, payload: bytes) -> str:
    fields = {"uid": uid, "once": secrets.token_hex(8), "payload": payload.hex()}
    return base64.b64encode(json.dumps(fields).encode()).decode()


def decode(credential: str, *, socket: str | None = None) -> Credential:
    try:
        fields = json.loads(base64.b64decode(credential))
    except ValueError:
        raise munge.MungeError("Invalid credential format", 8) from None
    return Credential(fields["uid"], 0, bytes.fromhex(fields["payload"]), 0)


def sign_as(uid: int, purpose: str, subject: str, body: bytes) -> str:
    return encode_as(uid, statement(purpose, subject, body))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process."""
    monkeypatch.setattr(munge, "encode", encode)
    monkeypatch.setattr(munge, "decode", decode)
