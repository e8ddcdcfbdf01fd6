"""The port that other launchers join at: whatever strangers do there, those who belong get in."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE

from ones.slurm_ext.runtime.live import joining as door
from ones.slurm_ext.runtime.live.joining import Launcher, Launchers
from ones.slurm_ext.runtime.live.link import Joining, Message, Sealed, encode
from ones.slurm_ext.runtime.live.loop import Loop

SECRET = b"s" * 32
OFFER = {"name": "8", "job": "8", "ticket": "", "slots": 2, "workers": 2}


_OVER = bytes(1)


def _peek(link: socket.socket) -> bytes:
    """What has arrived, which stays there; _OVER where nothing more will come."""
    try:
        return link.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT) or _OVER
    except BlockingIOError:
        return b""
    except ConnectionError:
        return _OVER


@dataclass
class Training:
    """A base launcher's door and loop, and what it has learnt at them."""

    loop: Loop = field(default_factory=lambda: Loop(0.001))
    came: list[Launcher] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    lost: list[Launcher] = field(default_factory=list)
    links: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.launchers = Launchers(
            self.loop,
            SECRET,
            expects=lambda ticket: True,
            came=self.came.append,
            said=lambda launcher, message: self.said.append(message),
            lost=self.lost.append,
        )
        self.port = self.launchers.open("127.0.0.1")

    def turn(self, until: Callable[[], object]) -> None:
        """Let it work until the condition holds; whatever leaves the loop ends the training."""
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end
            self.loop.once()
            self.launchers.keep_in_touch()

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            self.loop.once()
            self.launchers.keep_in_touch()

    def call(self, address: str = "127.0.0.1") -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self.port), source_address=(address, 0))
        self.links.append(link)
        return link

    def line(self, link: socket.socket) -> bytes:
        """The next line of the base; empty where it has hung up."""
        end = time.monotonic() + PATIENCE
        while b"\n" not in (peeked := _peek(link)):
            if peeked is _OVER:
                return b""
            assert time.monotonic() < end
            self.turns(1)
        return link.recv(peeked.index(b"\n") + 1)[:-1]

    def join(self, address: str = "127.0.0.1", **changes: object) -> tuple[socket.socket, Sealed]:
        """A real satellite comes in."""
        link = self.call(address)
        joining = Joining(SECRET, {**OFFER, **changes})
        link.sendall(joining.answer(self.line(link)))
        sealed = joining.admitted(self.line(link))
        assert sealed.open(self.line(link))["do"] == "home"
        return link, sealed

    def close(self) -> None:
        for link in self.links:
            link.close()


@pytest.fixture
def training() -> Iterator[Training]:
    with contextlib.closing(Training()) as made:
        yield made


def still_takes_satellites(training: Training) -> bool:
    came = len(training.came)
    link, sealed = training.join()
    link.sendall(sealed.seal({"say": "beat"}))
    said = len(training.said)
    training.turn(lambda: len(training.said) > said)
    return len(training.came) == came + 1 and training.said[-1] == {"say": "beat"}


NESTED = b"[" * 2000 + b"\n"
HOSTILE = {
    "nested arrays": NESTED,
    "nested arrays of a large line": b"[" * 100_000 + b"\n",
    "nested objects": b'{"a":' * 800 + b"\n",
    "an offer that is nested": b'{"nonce":"'
    + b"0" * 32
    + b'","a":'
    + b"[" * 900
    + b"]" * 900
    + b"}\n",
    "a huge number": b"9" * 4000 + b"\n",
    "no end": b"x" * 100_000,
    "binary": bytes(range(256)) * 8,
    "an empty line": b"\n",
    "many lines": b"\n" * 4000,
    "half a surrogate": b'{"nonce":"\\ud800000000000000000","mac":"\\ud800"}\n',
    "infinity": b'{"nonce":"0123456789abcdef","slots":Infinity,"workers":1e999,"mac":""}\n',
    "no text": b'{"nonce":7,"mac":[]}\n',
    "HTTP": b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_a_stranger_says_ends_his_own_connection_and_nothing_else(
    training: Training, data: bytes
) -> None:
    inside, sealed = training.join()
    link = training.call()
    assert training.line(link).startswith(b'{"ones"')
    with contextlib.suppress(ConnectionError):
        link.sendall(data)
    assert training.line(link) == b""
    assert training.lost == []
    inside.sendall(sealed.seal({"say": "here"}))
    training.turn(lambda: training.said == [{"say": "here"}])
    assert still_takes_satellites(training)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(["nonce", "mac", "slots", "workers", "name", "ticket"]), inner
                )
            ),
        ).map(lambda value: json.dumps(value).encode() + b"\n"),
    )
)
def test_no_bytes_of_a_stranger_reach_the_training(training: Training, data: bytes) -> None:
    link = training.call()
    link.sendall(data)
    link.shutdown(socket.SHUT_WR)
    while training.line(link):
        pass
    assert training.came == []


def test_a_line_before_the_proof_is_4_kib_at_most(training: Training) -> None:
    link = training.call()
    training.line(link)
    offer = {**OFFER, "nonce": "0" * 32, "mac": "0" * 64}
    link.sendall(b" " * 4096 + encode(offer))
    assert training.line(link) == b""


def test_a_launcher_that_has_proved_itself_may_say_more(training: Training) -> None:
    link, sealed = training.join()
    link.sendall(sealed.seal({"say": "x" * 100_000}))
    training.turn(lambda: training.said)
    assert len(training.said[0]["say"]) == 100_000


def test_strangers_who_say_nothing_do_not_keep_satellites_out(training: Training) -> None:
    for _ in range(3 * door.STRANGERS):
        training.call()
        training.turns(2)
    assert still_takes_satellites(training)


def test_one_address_does_not_take_the_places_of_others(training: Training) -> None:
    mine = training.call("127.0.0.2")
    greeting = training.line(mine)
    for _ in range(3 * door.STRANGERS):
        training.call("127.0.0.3")
        training.turns(2)
    joining = Joining(SECRET, OFFER)
    mine.sendall(joining.answer(greeting))
    assert joining.admitted(training.line(mine))


def test_many_addresses_do_not_keep_satellites_out(training: Training) -> None:
    for number in range(2 * door.STRANGERS):
        training.call(f"127.0.1.{number + 1}")
        training.turns(2)
    assert still_takes_satellites(training)


def test_who_sends_byte_by_byte_has_the_same_time_as_who_sends_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(door.time, "monotonic", lambda: now[0])
    link = training.call()
    link.setblocking(False)
    training.loop.once()
    training.loop.once()
    for _ in range(int(door.STRANGER) + 1):
        link.send(b" ")
        training.loop.once()
        training.loop.once()
        training.launchers.keep_in_touch()
        now[0] += 1.0
    training.launchers.keep_in_touch()
    monkeypatch.undo()
    assert training.line(link).startswith(b'{"ones"')
    assert training.line(link) == b""


def test_who_hangs_up_at_once_or_half_way_costs_nothing(training: Training) -> None:
    for abrupt in (False, True) * 20:
        link = training.call()
        if abrupt:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            link.sendall(b'{"nonce')
        link.close()
        training.turns(1)
    half_open = training.call()
    half_open.shutdown(socket.SHUT_RD)
    training.turns()
    assert still_takes_satellites(training)
    assert training.lost == []


def test_strangers_do_not_fill_the_job_s_log(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        training.call().sendall(b"nonsense\n")
        training.turns(3)
    told = [each for each in caplog.records if "did not join" in each.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize(
    "offer",
    [
        {"slots": "many"},
        {"slots": 0},
        {"workers": 3},
        {"slots": 10**9},
        {"name": ["a"]},
        {"slots": 1e999, "workers": 1e999},
    ],
)
def test_an_offer_that_makes_no_sense_is_refused_even_with_the_secret(
    training: Training, offer: dict[str, object]
) -> None:
    link = training.call()
    link.sendall(Joining(SECRET, {**OFFER, **offer}).answer(training.line(link)))
    assert training.line(link) == b""
    assert training.came == []


@pytest.mark.parametrize("words", [{"say": 1e999}, {"worker": []}, {"worker": 1e999}])
def test_a_launcher_that_makes_no_sense_is_lost_and_nothing_else(words: Message) -> None:
    training = Training()
    with contextlib.closing(training):
        training.launchers._said = lambda launcher, message: (
            int(message.get("worker", 1e999)) and None
        )  # type: ignore[method-assign]
        link, sealed = training.join()
        link.sendall(sealed.seal(words))
        training.turn(lambda: training.lost)
        assert len(training.lost) == 1
