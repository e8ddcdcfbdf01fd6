"""What operators may have onesd do, by whichever door they come, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ones.daemon.onesd.audit import Audit
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.askers import NotAllowed, Peer
from ones.daemon.onesd.service import Service

LONGEST_NAME = 1000  # of a policy, with its settings
LONGEST_REASON = 200
T = TypeVar("T")


class _Pause(msgspec.Struct):
    reason: str = ""


class _Choice(msgspec.Struct):
    policy: str | None = ""


_PAUSE = msgspec.json.Decoder(_Pause)
_CHOICE = msgspec.json.Decoder(_Choice)


@dataclass(frozen=True, slots=True)
class Source:
    """Whence an order came: an address, or unix, and `page` where it was given there."""

    address: str
    door: str = ""


Order = Callable[[Peer, bytes, Source], views.Json]


class Orders:
    """Each checks who gives it, carries it out, and writes it down."""

    def __init__(self, service: Service, audit: Audit) -> None:
        self._service = service
        self._audit = audit

    def pause(self, peer: Peer, body: bytes, source: Source) -> views.Json:
        """Begin nothing any more. Raises NotAllowed, ValueError or msgspec.DecodeError."""
        _must_be_admin(peer)
        reason = decoded(body or b"{}", _PAUSE).reason[:LONGEST_REASON]
        self._service.pause(peer.name, reason)
        self._did("pause", peer, source, reason=reason)
        return {"ok": True}

    def resume(self, peer: Peer, _: bytes, source: Source) -> views.Json:
        """Begin moves again. Raises NotAllowed."""
        _must_be_admin(peer)
        self._service.resume(peer.name)
        self._did("resume", peer, source)
        return {"ok": True}

    def choose_policy(self, peer: Peer, body: bytes, source: Source) -> views.Json:
        """Decide by another policy. Raises NotAllowed, ValueError or msgspec.DecodeError."""
        _must_be_admin(peer)
        name = decoded(body or b"{}", _CHOICE).policy
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise ValueError("policy: the name of a policy, or null for the configuration's")
        self._service.choose_policy(peer.name, name)
        self._did("policy", peer, source, policy="the configuration's" if name is None else name)
        return views.policy(self._service)

    def hand_over(self, peer: Peer, _: bytes, source: Source) -> views.Json:
        """Let another onesd take over. Raises NotAllowed and ValueError."""
        _must_be_admin(peer)
        self._service.hand_over(peer.name)
        self._did("handover", peer, source)
        return {"ok": True}

    def _did(self, event: str, peer: Peer, source: Source, **fields: str) -> None:
        if source.door:
            fields["door"] = source.door
        self._audit.did(event, uid=peer.uid, source=source.address, user=peer.name, **fields)


def only(peer: Peer) -> str | None:
    """Whose jobs he may see: None for all."""
    return None if peer.admin else peer.name


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A question's body. Raises ValueError, or msgspec.DecodeError."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _must_be_admin(peer: Peer) -> None:
    if not peer.admin:
        raise NotAllowed(
            peer.uid,
            f"{peer.name} is not an operator of this cluster; ask one (Slurm AdminLevel)",
        )
