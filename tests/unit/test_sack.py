"""Slurm's auth and cred kiosk as ONES asks it; against slurmd's own in the cluster tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.daemon import sack
from ones.daemon.credentials import TTL, CredentialError
from ones.daemon.sack import Kiosk, Replays, SackError
from ones.daemon.signatures import Signatures, signatures_of

KEY = b"slurm.key"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(**claims: object) -> str:
    """As Slurm's daemons make it: a JSON web token under the cluster's key."""
    now = int(time.time())
    said = {"iat": now, "exp": now + 60, "context": "sack", "uid": 1000, "gid": 1000, **claims}
    signed = _encoded(b'{"alg":"HS256","typ":"JWT"}') + "." + _encoded(json.dumps(said).encode())
    return signed + "." + _encoded(hmac.digest(KEY, signed.encode(), "sha256"))


class _Slurmd(socketserver.BaseRequestHandler):
    """What slurmd does at its kiosk, in the protocol of Slurm's src/plugins/auth/slurm/sack.c."""

    def handle(self) -> None:
        _version, length, question = struct.unpack("!HII", self._read(10))
        body = self._read(length - 8)
        if question == 64001:
            _restricted, size = struct.unpack("!II", body[:8])
            data = base64.b64encode(body[8 : 8 + size]).decode()
            peer = self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _pid, uid, gid = struct.unpack("3i", peer)
            made = token(payload=data, uid=uid, gid=gid).encode() + b"\0"
            self.request.sendall(struct.pack("!I", len(made)) + made)
        elif question == 64002:
            heading, _, mac = body[4:].rstrip(b"\0").decode().rpartition(".")
            if mac == _encoded(hmac.digest(KEY, heading.encode(), "sha256")):
                self.request.sendall(bytes(4))

    def _read(self, size: int) -> bytes:
        data: bytes = self.request.recv(size, socket.MSG_WAITALL)
        return data


@pytest.fixture(autouse=True)
def slurmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = str(tmp_path / "sack.socket")
    monkeypatch.setattr(sack, "SOCKETS", (str(tmp_path / "none"), path))
    with socketserver.ThreadingUnixStreamServer(path, _Slurmd) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield
        server.shutdown()


def test_a_credential_names_its_sender_and_carries_its_payload() -> None:
    opened = Kiosk().decode(Kiosk().encode(b"\0payload\xff"))
    assert opened.payload == b"\0payload\xff"
    assert (opened.uid, opened.gid) == (os.geteuid(), os.getegid())
    assert abs(opened.encoded_at - time.time()) < 30


def test_two_like_requests_have_a_credential_each() -> None:
    assert Kiosk().encode(b"x") != Kiosk().encode(b"x")


def test_what_slurm_does_not_take_is_refused() -> None:
    good = Kiosk().encode(b"x")
    heading, claims, mac = good.split(".")
    other = json.loads(base64.urlsafe_b64decode(claims + "==")) | {"uid": 4242}
    with pytest.raises(SackError, match=r"does not take.*slurm\.key"):
        Kiosk().decode(f"{heading}.{_encoded(json.dumps(other).encode())}.{mac}")


@pytest.mark.parametrize(
    "forged", ["", "a.b", "a.b.c", "a.\0.c", "a.é.c", "." * 9999, "..", "a.b.c.d"]
)
def test_what_is_no_credential_is_refused_in_one_line(forged: str) -> None:
    with pytest.raises(SackError) as caught:
        Kiosk().decode(forged)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iat": int(time.time()) - 200}, "expired"),
        ({"iat": int(time.time()) + 2000}, "expired"),
        ({"context": "auth"}, "another purpose"),
        ({"payload": ""}, "another purpose"),
        ({"payload": "*"}, "not understood"),
        ({"uid": -1}, "not understood"),
        ({"uid": "root"}, "not understood"),
    ],
)
def test_a_token_of_slurm_that_is_none_of_ours_is_refused(
    claims: dict[str, Any], reason: str
) -> None:
    said = {"payload": base64.b64encode(bytes(16)).decode(), **claims}
    with pytest.raises(SackError, match=reason):
        Kiosk().decode(token(**said))


def test_onesd_opens_a_credential_once() -> None:
    kiosk = Kiosk(Replays())
    sealed = kiosk.encode(b"x")
    kiosk.decode(sealed)
    with pytest.raises(SackError, match="replayed"):
        kiosk.decode(sealed)


def test_a_credential_from_before_onesd_was_started_opens_never() -> None:
    replays = Replays()
    now = int(time.time())
    with pytest.raises(SackError, match="older than this onesd"):
        replays.take("earlier", 0, now - 2)
    replays.take("since", 0, now)


def test_one_user_fills_no_memory_and_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sack, "MOST_OF_ONE", 3)
    replays = Replays()
    later = int(time.time()) + 5
    for number in range(3):
        replays.take(str(number), 1000, later)
    with pytest.raises(SackError, match="more than 3 credentials of uid 1000"):
        replays.take("3", 1000, later)
    replays.take("3", 1001, later)
    for number in range(5):
        replays.take(f"agent {number}", 0, later)


def test_agents_of_another_user_than_root_are_kept_out_as_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sack, "MOST_OF_ONE", 3)
    replays = Replays({0, 977})
    for number in range(5):
        replays.take(f"agent {number}", 977, int(time.time()) + 5)


def test_a_clock_that_is_set_back_refuses_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host that starts before it knows the time."""
    ahead = [3600.0]
    clock = time.time
    monkeypatch.setattr(sack.time, "time", lambda: clock() + ahead[0])
    replays = Replays()
    replays.take("before", 0, int(sack.time.time()))
    ahead[0] = 0.0
    now = int(clock())
    replays.take("after", 0, now)
    with pytest.raises(SackError, match="replayed"):
        replays.take("after", 0, now)
    with pytest.raises(SackError, match="older than this onesd"):
        replays.take("long before", 0, now - 60)


def test_what_was_opened_is_remembered_for_as_long_as_it_holds() -> None:
    replays = Replays()
    later = int(time.time()) + 5
    replays.take("first", 0, later)
    for _ in range(2):  # in the first span of two TTLs, and in the next
        with pytest.raises(SackError, match="replayed"):
            replays.take("first", 0, later)
        replays._turned -= 2 * TTL + 1
    replays.take("second", 0, later)
    assert not any(replays._before.values())


def test_a_request_is_signed_and_fits_no_other() -> None:
    signatures: Signatures = signatures_of("auth/slurm")
    sealed = signatures.sign("purpose", "n1", b"body")
    assert signatures.verify(sealed, "purpose", "n1", b"body").uid == os.geteuid()
    assert signatures.signed(sealed, "purpose", "n1").digest == hashlib.sha256(b"body").hexdigest()
    with pytest.raises(CredentialError, match="another request"):
        signatures.verify(sealed, "purpose", "n2", b"body")


def test_no_daemon_of_slurm_is_told_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sack, "SOCKETS", ("/nowhere/sack.socket",))
    with pytest.raises(SackError, match=r"start sackd, slurmd or slurmctld here.*auth_type"):
        Kiosk().encode(b"x")


def test_a_daemon_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "silent")
    monkeypatch.setattr(sack, "SOCKETS", (path,))
    monkeypatch.setattr(sack, "PATIENCE", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(SackError, match="has not answered"):
            Kiosk().encode(b"x")
