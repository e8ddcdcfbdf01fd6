"""A stand-in for ones-agent's answer to the SPANK plugin: fake_agent.py SOCKET MODE.

/tmp/questions has a line for each question, and /tmp/endings one for each: who ended the answer.
"""

from __future__ import annotations

import socket
import sys
import time
from itertools import cycle, islice
from pathlib import Path

ANSWER = (
    b"ONES_SIZES=2-16\nONES_GPUS=4\nEVIL=1\nLD_PRELOAD=/tmp/evil.so\nONES_lower=1\nONES_=1\n"
    b"ONES_CONTROL=a\tb\nONES_NO_EQUALS\n=\n\n"
)

# Seconds that an answer lasts unless the plugin, whose own bound is one second, hangs up on it.
PATIENCE = 60.0


def answer(connection: socket.socket, mode: str) -> bool:
    """Answer in this way; whether the plugin was there to the end of it."""
    connection.settimeout(PATIENCE)
    try:
        if mode == "answer":
            connection.sendall(ANSWER)
        elif mode == "hang":
            return connection.recv(1) != b""
        elif mode == "drip":
            for byte in islice(cycle(b"ONES_GPUS=4\n"), int(PATIENCE / 0.2)):
                connection.sendall(bytes([byte]))
                time.sleep(0.2)
        elif mode == "flood":
            connection.sendall(b"ONES_GPUS=4\n" * 100_000)
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def main(path: str, mode: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        connection, _ = server.accept()
        with Path("/tmp/questions").open("ab") as questions:
            questions.write(connection.makefile("rb").readline())
        ending = "agent\n" if answer(connection, mode) else "plugin\n"
        with Path("/tmp/endings").open("a") as endings:
            endings.write(ending)
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
