"""A stand-in for ones-agent's answer to the SPANK plugin: fake_agent.py SOCKET MODE."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

ANSWER = (
    b"ONES_SIZES=2-16\nONES_GPUS=4\nEVIL=1\nLD_PRELOAD=/tmp/evil.so\nONES_lower=1\nONES_=1\n"
    b"ONES_CONTROL=a\tb\nONES_NO_EQUALS\n=\n\n"
)


def main(path: str, mode: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        connection, _ = server.accept()
        with Path("/tmp/questions").open("ab") as questions:
            questions.write(connection.makefile("rb").readline())
        try:
            if mode == "answer":
                connection.sendall(ANSWER)
            elif mode == "hang":
                time.sleep(5)
            elif mode == "drip":
                for byte in b"ONES_GPUS=4\n" * 2:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.2)
            elif mode == "flood":
                connection.sendall(b"ONES_GPUS=4\n" * 100_000)
        except OSError:
            pass  # the plugin lost its patience, as it should
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
