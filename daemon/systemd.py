"""A word to systemd: ready, alive, stopping."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Tell systemd a state such as READY=1; without systemd (no NOTIFY_SOCKET) do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
        door.setblocking(False)
        try:
            door.sendto(state.encode(), address)
        except OSError:
            return  # systemd's watchdog notices what it doesn't hear
