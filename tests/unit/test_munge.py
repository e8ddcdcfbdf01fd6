"""Credentials of a real, private munged."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ones.daemon import munge, systemd
from ones.daemon.credentials import CredentialError
from ones.daemon.munge import MungeError
from ones.daemon.signatures import Signatures


@pytest.fixture(scope="module")
def munged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a munged with a key of its own."""
    program = shutil.which("munged", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("munged is missing and CI must have it; apt-get install munge")
        pytest.skip("munged is missing; apt-get install munge")
    folder = tmp_path_factory.mktemp("munge")
    folder.chmod(0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    path = folder / "socket"
    running = subprocess.Popen(
        [
            program,
            "--foreground",
            "--force",
            f"--socket={path}",
            f"--key-file={key}",
            f"--pid-file={folder / 'pid'}",
            f"--log-file={folder / 'log'}",
            f"--seed-file={folder / 'seed'}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            if path.exists():
                break
            if running.poll() is not None:
                break
            time.sleep(0.05)
        assert path.exists(), f"munged did not start: {(folder / 'log').read_text()}"
        yield str(path)
    finally:
        running.terminate()
        running.wait(10)


def test_a_credential_names_its_sender_and_carries_its_payload(munged: str) -> None:
    opened = munge.decode(munge.encode(b"\0payload\xff", socket=munged), socket=munged)
    assert opened.payload == b"\0payload\xff"
    assert (opened.uid, opened.gid) == (os.geteuid(), os.getegid())
    assert abs(opened.encoded_at - time.time()) < 30


def test_an_empty_payload_stays_empty(munged: str) -> None:
    assert munge.decode(munge.encode(b"", socket=munged), socket=munged).payload == b""


def test_a_credential_opens_once(munged: str) -> None:
    credential = munge.encode(b"x", socket=munged)
    munge.decode(credential, socket=munged)
    with pytest.raises(MungeError, match="Replayed credential"):
        munge.decode(credential, socket=munged)


def test_a_credential_expires(munged: str) -> None:
    credential = munge.encode(b"x", ttl=1, socket=munged)
    time.sleep(2.1)
    with pytest.raises(MungeError, match=r"Expired credential.*clocks"):
        munge.decode(credential, socket=munged)


@pytest.mark.parametrize(
    "forged", ["", "MUNGE:AwQ:", "nonsense", "MUNGE:\0:", "MUNGE:é:", "A" * 9999]
)
def test_what_is_no_credential_is_refused_in_one_line(munged: str, forged: str) -> None:
    with pytest.raises(MungeError) as caught:
        munge.decode(forged, socket=munged)
    assert "\n" not in str(caught.value)


def test_a_tampered_credential_is_refused(munged: str) -> None:
    credential = munge.encode(b"payload", socket=munged)
    middle = len(credential) // 2
    other = "A" if credential[middle] != "A" else "B"
    with pytest.raises(MungeError):
        munge.decode(credential[:middle] + other + credential[middle + 1 :], socket=munged)


def _over(munged: str) -> Signatures:
    encode, decode = (partial(work, socket=munged) for work in (munge.encode, munge.decode))
    return Signatures("Munge", SimpleNamespace(encode=encode, decode=decode))


def test_a_request_is_verified(munged: str) -> None:
    signatures = _over(munged)
    credential = signatures.sign("purpose", "n1", b"body")
    opened = signatures.verify(credential, "purpose", "n1", b"body")
    assert opened.uid == os.geteuid()


@pytest.mark.parametrize(
    ("purpose", "subject", "body"),
    [("other", "n1", b"body"), ("purpose", "n2", b"body"), ("purpose", "n1", b"bodx")],
)
def test_a_credential_fits_no_other_request(
    munged: str, purpose: str, subject: str, body: bytes
) -> None:
    signatures = _over(munged)
    credential = signatures.sign("purpose", "n1", b"body")
    with pytest.raises(CredentialError, match="another request"):
        signatures.verify(credential, purpose, subject, body)


def test_no_line_break_can_shift_what_is_signed(munged: str) -> None:
    with pytest.raises(CredentialError, match="line break"):
        _over(munged).sign("purpose", "n1\nn2", b"")


def test_a_missing_munged_is_told_with_the_next_step(munged: str, tmp_path: Path) -> None:
    with pytest.raises(MungeError, match="start munged"):
        munge.encode(b"x", socket=str(tmp_path / "none"))


def test_a_missing_library_is_told_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge, "LIBRARY", "libmunge-not-here.so.2")
    munge._library.cache_clear()
    try:
        with pytest.raises(MungeError, match="install munge"):
            munge.encode(b"x")
    finally:
        munge._library.cache_clear()


def test_systemd_is_told_where_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        systemd.notify("READY=1")
        assert door.recv(100) == b"READY=1"


def test_without_systemd_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.notify("READY=1")
