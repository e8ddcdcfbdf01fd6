"""Two onesd on one shared folder: one acts, the other waits, says so, and takes over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sealing
from click.testing import CliRunner, Result
from onesd_process import Daemon
from patience import eventually
from prometheus_server import free_port

from ones.daemon.agent.push import ControllerError, Onesd
from ones.daemon.config import Config, ConfigError, load_config
from ones.daemon.ctl.client import Unreachable, Way, ask, roles
from ones.daemon.ctl.main import main
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.standing_by import open_store
from ones.daemon.onesd.terms import Record, Term, Terms
from ones.daemon.presence import read_paths
from ones.daemon.wire import NodeReport

HOSTS = ("127.0.0.1", "127.0.0.2")  # both are this host's


class Pair:
    """onesd on two hosts, each with a folder of its own and one that both see."""

    def __init__(self, folder: Path) -> None:
        self.shared = folder / "shared"
        (self.shared / "terms").mkdir(parents=True)
        port = free_port()
        self.addresses = [f"{host}:{port}" for host in HOSTS]
        self.configs = []
        self.daemons: list[Daemon | None] = [None, None]  # the latest of each host
        self._started: list[Daemon] = []
        for number, host in enumerate(HOSTS):
            own = folder / f"ctl{number + 1}"
            own.mkdir()
            other = self.addresses[1 - number]
            config = own / "ones.toml"
            config.write_text(
                f'controller = "{self.addresses[number]}"\nsocket = "{own}/onesd.sock"\n'
                f'store = "{self.shared}/ones.sqlite"\nheartbeat = "{self.shared}/heartbeat"\n'
                f'policy = "fifo"\nround = 0.2\n[slurm]\nreader = "commands"\n'
                f'[daemon]\naddress = "{host}"\n[page]\naddress = ""\n'
                f'[events]\nsocket = "{own}/events.sock"\n'
                f'[standby]\ncontrollers = ["{other}"]\ntakeover = 10\n'
            )
            self.configs.append(config)

    def start(self, number: int) -> Daemon:
        config = self.configs[number]
        self.daemons[number] = daemon = Daemon(config.parent, config)
        self._started.append(daemon)
        return daemon

    def role(self, number: int) -> Any:
        """What the onesd of that host says of its role, or None."""
        return roles(Way(self.configs[number]))[self.addresses[number]]

    def acts(self, number: int) -> bool:
        said = self.role(number)
        return bool(said) and said["role"] == "active"

    def waits(self, number: int) -> bool:
        said = self.role(number)
        return bool(said) and said["role"] == "standby" and bool(said["active"])

    def onesctl(self, number: int, *words: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.configs[number]), *words])

    def end(self) -> None:
        for daemon in self._started:
            daemon.process.kill()
            daemon.process.wait()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The first acts, the second waits."""
    sealing.stand_in(monkeypatch)
    pair = Pair(tmp_path)
    pair.start(0)
    try:
        eventually(lambda: pair.acts(0))
        pair.start(1)
        eventually(lambda: pair.waits(1))
        yield pair
    finally:
        pair.end()


def test_a_killed_onesd_is_followed_by_the_standby_with_all_that_it_knew(pair: Pair) -> None:
    paused = pair.onesctl(0, "pause", "a test")
    assert paused.exit_code == 0, paused.output
    daemon = pair.daemons[0]
    assert daemon is not None
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    eventually(lambda: pair.acts(1))
    status = json.loads(pair.onesctl(0, "status", "--json").stdout)
    assert status["paused"]
    assert status["controllers"] == {"active": pair.addresses[1], "term": 2}
    pair.start(0)
    eventually(lambda: pair.waits(0))


def test_one_that_was_stopped_wakes_up_as_a_standby(pair: Pair) -> None:
    daemon, other = pair.daemons
    assert daemon is not None
    assert other is not None
    daemon.process.send_signal(signal.SIGSTOP)
    eventually(lambda: pair.acts(1) and other.calls("squeue") > 1)
    before = (pair.shared / "heartbeat").stat().st_mtime_ns
    eventually(lambda: (pair.shared / "heartbeat").stat().st_mtime_ns > before)
    daemon.process.send_signal(signal.SIGCONT)
    eventually(lambda: pair.waits(0))
    assert pair.acts(1)
    assert "another onesd has taken over" in daemon.log.read_text()


def test_a_standby_reads_nothing_of_slurm_and_says_who_acts(pair: Pair) -> None:
    standby = pair.daemons[1]
    assert standby is not None
    assert standby.calls("squeue") == standby.calls("scontrol") == 0
    answer = pair.onesctl(1, "status")
    assert answer.exit_code == 0, answer.output
    assert f"standby of {os.uname().nodename}; ask onesd at {pair.addresses[0]}" in answer.stderr
    first, second = pair.addresses
    assert f"{first} active (term 1)" in answer.stdout
    assert f"{second} standby" in answer.stdout
    alone = Way(socket=pair.configs[1].parent / "onesd.sock")
    with pytest.raises(Unreachable, match=f"standby of .*; ask onesd at {first}"):
        ask(alone, "GET", "/v1/status")


def test_a_handover_ends_once_the_other_one_acts(pair: Pair) -> None:
    answer = pair.onesctl(1, "handover")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout == f"{pair.addresses[1]} acts now, in term 2\n"
    eventually(lambda: pair.waits(0))
    assert pair.onesctl(0, "handover").exit_code == 0
    daemon = pair.daemons[1]
    assert daemon is not None
    eventually(lambda: pair.waits(1))
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    refused = pair.onesctl(0, "handover")
    assert refused.exit_code == 1
    assert "no standby answers" in refused.stderr
    assert pair.acts(0)


def test_one_that_is_told_to_end_leaves_its_place_and_a_database_that_is_read(pair: Pair) -> None:
    daemon = pair.daemons[0]
    assert daemon is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait() == 0
    eventually(lambda: pair.acts(1))
    assert read_paths(pair.configs[0])["store"] == pair.shared / "ones.2.sqlite"


def test_agents_find_the_one_that_acts(pair: Pair) -> None:
    def trust(credential: str, *_: object) -> bool:
        return bool(sealing.decode(credential).payload)

    async def report(order: list[str]) -> tuple[str, ...]:
        async with aiohttp.ClientSession() as session:
            onesd = Onesd(session, order, "n1", trust=trust)
            number = 1.0
            await onesd.send(NodeReport(node="n1", taken=number, interval=1, version="0"))
            return tuple(order)

    asyncio.run(report(pair.addresses))
    asyncio.run(report(pair.addresses[::-1]))
    with pytest.raises(ControllerError, match=r"can't be reached"):
        asyncio.run(report(["127.0.0.1:1", pair.addresses[1]]))


def test_a_second_onesd_of_one_host_ends_at_once(pair: Pair) -> None:
    again = pair.start(0)
    assert again.process.wait() == 1
    assert "another onesd holds" in again.log.read_text()


def test_one_that_knows_nothing_of_the_others_does_not_act_beside_them(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    config = tmp_path / "ones.toml"
    config.write_text(
        f'store = "{tmp_path}/ones.sqlite"\nsocket = "{tmp_path}/onesd.sock"\npolicy = "fifo"\n'
    )
    alone = Daemon(tmp_path, config)
    assert alone.process.wait() == 1
    assert "terms: other hosts have an onesd on this database; name them" in alone.log.read_text()
    assert not (tmp_path / "ones.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('controllers = ["ctl2"]', "'ctl2' is not HOST:7667"),
        ('controllers = ["ctl2:7668"]', "every onesd listens on the port"),
        ('controllers = ["ctl1:7667"]', "is named twice"),
        ('controllers = ["ctl2:7667"]', "must be in the folder of `store` (/var/lib/ones)"),
        ("takeover = 1", ">= 2"),
    ],
)
def test_a_standby_that_can_not_be_is_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "ones.toml"
    path.write_text(f'controller = "ctl1:7667"\n[standby]\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert named in str(caught.value)


def test_the_release_reads_the_database_of_the_last_term_that_has_one(tmp_path: Path) -> None:
    config, terms = tmp_path / "ones.toml", tmp_path / "terms"
    config.write_text(f'store = "{tmp_path}/ones.sqlite"\n[standby]\ncontrollers = ["ctl2:7667"]\n')
    assert read_paths(config)["store"] == tmp_path / "ones.sqlite"
    terms.mkdir()
    for number, text in ((1, "ones.1.sqlite"), (2, "../../etc/passwd"), (3, "ones.3.sqlite")):
        (terms / f"{number:010}").write_text(json.dumps({"store": text}))
    (terms / "0000000004").write_text("{")
    Store(tmp_path / "ones.1.sqlite", shared=True).close()
    assert read_paths(config)["store"] == tmp_path / "ones.1.sqlite"
    config.write_text(f'store = "{tmp_path}/ones.sqlite"\n')
    assert read_paths(config)["store"] == tmp_path / "ones.sqlite"


def test_a_folder_that_keeps_an_old_database_keeps_nobody_from_taking_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(store=str(tmp_path / "ones.sqlite"))
    terms = Terms(tmp_path / "terms")
    terms.folder.mkdir()
    record = Record(host="ctl", address="ctl:6950", store="ones.9.sqlite")
    (tmp_path / "ones.3.sqlite").touch()

    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "ones.3.sqlite":
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    open_store(config, terms, Term(terms, 9, record)).close()
    assert f"databases of earlier terms stay in {tmp_path}: Operation not permitted" in caplog.text
