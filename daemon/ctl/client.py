"""How onesctl reaches onesd: the unix socket on its host, else signed HTTP from anywhere."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ones.daemon.config import Config, load_config
from ones.daemon.signatures import Signatures, signatures_of
from ones.daemon.wire import CTL_PURPOSE
from ones.slurm_ext.errors import OnesError

TIMEOUT = 30.0
ROLE = "/v1/role"
CONNECT = 3.0  # seconds for which a host that is gone is waited for, where there is another


class Unreachable(OnesError):
    """onesd does not answer."""


class NotAllowed(OnesError):
    """onesd knows who asks, and refuses."""


class Refused(OnesError):
    """onesd can't do what was asked."""


@dataclass(frozen=True, slots=True)
class Way:
    """How onesd is reached, as the command line says."""

    config: Path | None = None  # None: $ONES_CONF, else /etc/ones/ones.toml
    socket: Path | None = None  # of an onesd on this host, whatever the configuration says

    def settings(self) -> Config:
        """Raises ConfigError."""
        return load_config(self.config) if self.socket is None else Config(socket=str(self.socket))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("onesd", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def asks(method: str, path: str, body: object = None) -> Any:
    """One question of the command that runs, and onesd's answer. Raises as `ask` does."""
    way: Way = click.get_current_context().obj
    return ask(way, method, path, body)


def ask(way: Way, method: str, path: str, body: object = None, *, timeout: float = TIMEOUT) -> Any:
    """One question to onesd, its JSON answer; of several onesd, to the one that acts.

    Raises Unreachable, NotAllowed or Refused, and ConfigError.
    """
    config = way.settings()
    return _asked(config, _doors(way, config), (method, path, body), timeout)


def ask_at(
    config: Config, addresses: str, method: str, path: str, body: object, *, timeout: float
) -> Any:
    """The same of another cluster's onesd, by HOST:PORT; of several, to the one that acts."""
    return _asked(config, [*addresses.split(",")], (method, path, body), timeout)


def _asked(
    config: Config, doors: list[Path | str], question: tuple[str, str, object], timeout: float
) -> Any:
    method, path, body = question
    data, faults = b"" if body is None else json.dumps(body).encode(), list[Unreachable]()
    several, signatures = len(doors) > 1, signatures_of(config.auth_type)
    for door in doors:
        try:
            status, answer = _exchange(
                door, method, path, data, timeout, signatures=signatures, several=several
            )
        except Unreachable as fault:
            faults.append(fault)
            continue
        if status == 503 and "active" in answer:
            faults.append(Unreachable(f"onesd at {door}: {answer.get('error', 'it waits')}"))
            continue
        if faults and path == "/v1/status":
            click.echo(f"onesctl: note: {faults[0]}", err=True)
        return _taken(status, answer)
    raise faults[0] if len(faults) == 1 else Unreachable("; ".join(map(str, faults)))


def roles(way: Way) -> dict[str, Any]:
    """HOST:PORT of each onesd of the configuration -> what it says of its role, or None.

    Raises ConfigError.
    """
    found: dict[str, Any] = {}
    config = way.settings()
    signatures = signatures_of(config.auth_type)
    for address in config.controllers:
        try:
            status, answer = _exchange(
                address, "GET", ROLE, b"", CONNECT, signatures=signatures, several=True
            )
        except Unreachable:
            status, answer = 0, None
        found[address] = answer if status == 200 else None
    return found


def _doors(way: Way, config: Config) -> list[Path | str]:
    """A socket on this host, or HOST:PORT, in the order in which they are tried."""
    local = Path(config.socket)
    if way.socket is not None:
        return [local]
    others: list[Path | str] = list(config.controllers)
    if not local.exists():
        return others
    return [local, *others] if config.standby.controllers else [local]


def _exchange(
    door: Path | str,
    method: str,
    path: str,
    data: bytes,
    timeout: float,
    *,
    signatures: Signatures,
    several: bool,
) -> tuple[int, dict[str, Any]]:
    """The status and what was said. `several`: one that is gone is not waited for. Raises
    Unreachable."""
    headers = {"Content-Type": "application/json"}
    connection: http.client.HTTPConnection
    patience = CONNECT if several else timeout
    if isinstance(door, Path):
        connection = _UnixConnection(door, patience)
    else:
        host, _, port = door.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=patience)
        if path != ROLE:  # which anybody is told
            signed = signatures.sign(CTL_PURPOSE, f"{method} {path}", data)
            headers["Authorization"] = f"{signatures.scheme} {signed}"
    try:
        connection.connect()
        connection.sock.settimeout(timeout)
        connection.request(method, path, body=data, headers=headers)
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, http.client.HTTPException) as fault:
        raise Unreachable(
            f"onesd does not answer at {door} ({fault}); is it running? systemctl status onesd"
        ) from None
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"what answers at {door} is not onesd")
    return reply.status, answer


def _taken(status: int, answer: dict[str, Any]) -> Any:
    if status in (401, 403):
        raise NotAllowed(answer.get("error", "not allowed"))
    if status != 200:
        raise Refused(answer.get("error", f"onesd answered {status}"))
    if note := answer.get("meta", {}).get("note"):
        click.echo(f"onesctl: note: {' '.join(str(note).split())}", err=True)
    return answer
