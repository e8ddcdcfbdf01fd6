"""ones-order: gives a live job an order, as a resize from outside does."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.base import JOIN
from ones.slurm_ext.runtime.live.link import Lines, Message, decode, encode, read_join_file
from ones.slurm_ext.runtime.version import SayVersion


class OrderFault(OnesError):
    """An order was refused, or could not be given."""


def order(folder: Path, message: Message, *, timeout: float = 900.0) -> dict[str, Any]:
    """Give an order to the job whose folder this is; its answer, once it is carried out."""
    if not (folder / JOIN).exists():
        raise OrderFault(
            f"there is no {folder / JOIN}; name the folder of a job under ones-run --live that runs"
            " (ones-checkpoints/JOBID/live, or its --folder), and wait until it has begun"
        )
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


def parser() -> argparse.ArgumentParser:
    """What ones-order is told."""
    found = argparse.ArgumentParser(
        prog="ones-order",
        description="Give an order to a job that ones-run --live has started; print its answer.",
        epilog="Example: ones-order resize ones-checkpoints/1234/live --workers=4",
    )
    found.add_argument("--version", action=SayVersion, nargs=0, help="say which version this is")
    orders = found.add_subparsers(dest="op", metavar="ORDER", required=True)

    def add(op: str, about: str) -> argparse.ArgumentParser:
        made = orders.add_parser(op, help=about, description=f"{about.capitalize()}.")
        made.add_argument("folder", metavar="FOLDER", type=Path, help="where others find the job")
        return made

    add("status", "say generation, members, samples and the pause of each resize")
    resize = add("resize", "have this many workers train, and wait until they do")
    resize.add_argument("--workers", type=int, required=True, metavar="N", help="how many")
    retire = add("retire", "have the workers of one launcher leave, and it end")
    retire.add_argument("home", metavar="NAME", help="the launcher, as status names it")
    for each in (resize, retire):
        each.add_argument("--batch", type=int, metavar="B", help="samples of a step from then on")
    return found


def main(words: Sequence[str] | None = None) -> None:
    said = vars(parser().parse_args(words))
    folder = said.pop("folder")
    message = {key: value for key, value in said.items() if value is not None}
    try:
        print(json.dumps(order(folder, message), indent=1))
    except OnesError as fault:
        sys.exit(f"ones-order: error: {fault}")
