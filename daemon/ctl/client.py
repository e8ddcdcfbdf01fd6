"""How onesctl reaches onesd: the unix socket on its host, else munge-signed HTTP from anywhere."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ones.daemon import munge
from ones.daemon.config import Config, load_config
from ones.daemon.wire import CTL_PURPOSE
from ones.slurm_ext.errors import OnesError

TIMEOUT = 30.0


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
    """One question to onesd, its JSON answer.

    Raises Unreachable, NotAllowed or Refused, and ConfigError.
    """
    config = way.settings()
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    local = Path(config.socket)
    connection: http.client.HTTPConnection
    if local.exists() or way.socket is not None:
        connection, where = _UnixConnection(local, timeout), str(local)
    else:
        host, port = config.controller_address
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
        where = f"{host}:{port}"
        signed = munge.sign(CTL_PURPOSE, f"{method} {path}", data)
        headers["Authorization"] = f"Munge {signed}"
    try:
        connection.request(method, path, body=data, headers=headers)
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, http.client.HTTPException) as fault:
        raise Unreachable(
            f"onesd does not answer at {where} ({fault}); is it running? systemctl status onesd"
        ) from None
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        raise Unreachable(f"what answers at {where} is not onesd") from None
    if reply.status in (401, 403):
        raise NotAllowed(answer.get("error", "not allowed"))
    if reply.status != 200:
        raise Refused(answer.get("error", f"onesd answered {reply.status}"))
    if note := answer.get("meta", {}).get("note"):
        click.echo(f"onesctl: note: {' '.join(str(note).split())}", err=True)
    return answer
