"""Who may join a live job: those who can read its secret, and nobody who has only listened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ones.slurm_ext.runtime.live.link import (
    Admitting,
    JoinFile,
    Joining,
    Lines,
    LinkFault,
    decode,
    encode,
    read_join_file,
)

SECRET = b"s" * 32
OFFER = {"name": "8", "job": "8", "slots": 2, "workers": 2}


def a_join_file(folder: Path) -> Path:
    path = folder / "join.json"
    JoinFile("n1", 4711, "/run/control.sock", SECRET).write(path)
    return path


def test_a_join_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = a_join_file(tmp_path / "live")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_join_file(path) == JoinFile("n1", 4711, "/run/control.sock", SECRET)


def test_a_join_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = a_join_file(tmp_path)
    path.chmod(0o640)
    with pytest.raises(LinkFault, match="can be read by others; chmod 600 it"):
        read_join_file(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_join_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = a_join_file(tmp_path)
    os.chown(path, 12345, -1)
    with pytest.raises(LinkFault, match="belongs to user 12345, not to you"):
        read_join_file(path)


def test_a_file_that_is_no_join_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    path.write_text("{}")
    path.chmod(0o600)
    with pytest.raises(LinkFault, match="is no join file of ones-run"):
        read_join_file(path)


def test_both_sides_prove_themselves_and_talk() -> None:
    admitting, joining = Admitting(SECRET), Joining(SECRET, OFFER)
    offer, welcome, base = admitting.admit(joining.answer(admitting.greeting()))
    assert {name: offer[name] for name in OFFER} == OFFER
    joiner = joining.admitted(welcome)
    for message in ({"do": "start"}, {"do": "beat"}):
        assert joiner.open(base.seal(message).strip()) == message
        assert base.open(joiner.seal(message).strip()) == message


def test_without_the_secret_nobody_is_admitted() -> None:
    admitting, joining = Admitting(SECRET), Joining(b"x" * 32, OFFER)
    with pytest.raises(LinkFault, match="doesn't know the job's secret"):
        admitting.admit(joining.answer(admitting.greeting()))


def test_an_offer_that_was_changed_on_the_way_is_refused() -> None:
    admitting, joining = Admitting(SECRET), Joining(SECRET, OFFER)
    message = decode(joining.answer(admitting.greeting()))
    with pytest.raises(LinkFault, match="doesn't know the job's secret"):
        admitting.admit(encode({**message, "slots": 1000}))


def test_an_offer_of_another_connection_is_refused() -> None:
    heard = Joining(SECRET, OFFER).answer(Admitting(SECRET).greeting())
    with pytest.raises(LinkFault, match="doesn't know the job's secret"):
        Admitting(SECRET).admit(heard)


def test_a_base_that_does_not_know_the_secret_is_not_believed() -> None:
    real, joining = Admitting(SECRET), Joining(SECRET, OFFER)
    joining.answer(real.greeting())
    with pytest.raises(LinkFault, match="doesn't know the job's secret"):
        joining.admitted(encode({"mac": "0" * 64}))


def test_what_is_said_twice_left_out_or_changed_is_refused() -> None:
    admitting, joining = Admitting(SECRET), Joining(SECRET, OFFER)
    _, welcome, base = admitting.admit(joining.answer(admitting.greeting()))
    joiner = joining.admitted(welcome)
    first, second = base.seal({"do": "a"}).strip(), base.seal({"do": "b"}).strip()
    with pytest.raises(LinkFault, match="not the next one"):
        joiner.open(second)
    assert joiner.open(first) == {"do": "a"}
    with pytest.raises(LinkFault, match="not the next one"):
        joiner.open(first)
    with pytest.raises(LinkFault, match="not the next one"):
        joiner.open(second.replace(b'"b"', b'"c"'))
    with pytest.raises(LinkFault, match="not the next one"):
        base.open(second)  # its own words, sent back
    assert joiner.open(second) == {"do": "b"}


def test_lines_come_in_any_pieces_and_have_an_end() -> None:
    lines = Lines()
    assert list(lines.add(b"one\ntw")) == [b"one"]
    assert list(lines.add(b"o\n\nthree")) == [b"two", b""]
    with pytest.raises(LinkFault, match="a line of more than 1048576 bytes"):
        list(lines.add(b"x" * (1 << 21)))


@pytest.mark.parametrize("line", [b"", b"nonsense", b"[1]", b"7", b"[" * 99_999, b"9" * 9999])
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(LinkFault):
        decode(line)
