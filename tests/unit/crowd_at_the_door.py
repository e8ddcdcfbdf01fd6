"""The agent's socket with few descriptors, and a crowd before it: crowd_at_the_door.py SOCKET."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

from ones.daemon.agent import doors  # noqa: E402
from ones.daemon.agent.doors import Door, Peer, Visitors  # noqa: E402

CROWD = """
import socket, sys, time
held = []
for _ in range(300):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    held.append(one)
time.sleep(300)
"""


async def main(path: Path) -> None:
    refused: list[str] = []
    came: list[int] = []

    def peer(_: object) -> Peer:
        # The crowd comes first, as five users; who comes after it is root.
        uid = 1000 + len(came) % 5 if len(came) < 600 else 0
        came.append(uid)
        return Peer(1, uid)

    async def environment(*_: object) -> list[str]:
        return ["ONES_GPUS=4"]

    doors._peer = peer
    visitors = Visitors(
        identify=lambda _: None,
        take=lambda *_: None,
        environment=environment,
        refused=refused.append,
    )
    async with await Door(path, visitors).open():
        crowd = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", CROWD, str(path))
            for _ in range(2)
        ]
        while len(came) < 600:
            await asyncio.sleep(0.05)
        with socket.socket(socket.AF_UNIX):  # a file of our own can still be opened
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"env 7 1000\n")
            told = await reader.read()
        for one in crowd:
            one.kill()
            await one.wait()
    print(json.dumps({"environment": told.decode(), "refused": len(refused)}))


asyncio.run(main(Path(sys.argv[1])))
