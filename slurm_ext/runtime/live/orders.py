"""Giving orders to a live job: what a resize from outside calls.

python -m ones.slurm_ext.runtime.live.orders FOLDER '{"op": "resize", "workers": 4}'
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.base import JOIN
from ones.slurm_ext.runtime.live.link import Lines, Message, decode, encode, read_join_file


class OrderFault(OnesError):
    """An order was refused, or could not be given."""


def order(folder: Path, message: Message, *, timeout: float = 900.0) -> dict[str, Any]:
    """Give an order to the job whose folder this is; its answer, once it is carried out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        try:
            link.connect(read_join_file(folder / JOIN).control)
            link.sendall(encode(message))
            lines, found = Lines(), list[bytes]()
            while not found:
                data = link.recv(1 << 16)
                if not data:
                    raise OrderFault(f"{folder}: the job has ended")
                found += lines.add(data)
        except OSError as fault:
            raise OrderFault(f"{folder}: the job does not answer: {fault}") from None
    answer = decode(found[0])
    if not answer.get("ok"):
        raise OrderFault(str(answer.get("error", "refused, and no reason given")))
    return answer


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m ones.slurm_ext.runtime.live.orders FOLDER JSON")
    try:
        print(json.dumps(order(Path(sys.argv[1]), decode(sys.argv[2].encode())), indent=1))
    except OnesError as fault:
        sys.exit(f"ones-run: error: {fault}")


if __name__ == "__main__":
    main()
