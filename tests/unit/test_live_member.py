"""A worker hears launchers of other versions, and does not go deaf on one that it can't read."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys

from ones.slurm_ext.runtime.live.link import encode
from ones.slurm_ext.runtime.live.member import Made, Member
from ones.slurm_ext.runtime.live.terms import Offer

PROPOSAL = {
    "do": "propose",
    "name": "ones-2",
    "store": ["n1", 40000],
    "offer": {
        "number": 2,
        "rank": 2,
        "size": 4,
        "sources": [0, 1],
        "receivers": [2, 3],
        "batch": None,
        "at_once": False,
    },
}
WORKER = """
import socket, sys, time
from ones.slurm_ext.runtime.live.member import Member
Member(socket.socket(fileno=int(sys.argv[1])), lambda offer, name, store: None)
time.sleep(60)
"""


def test_a_launcher_of_a_version_without_sharded_models_is_understood() -> None:
    """Such a launcher says nothing of a worker's place among all that are involved."""
    launcher, worker = socket.socketpair()
    offers: queue.Queue[Offer] = queue.Queue()

    def make(offer: Offer, name: str, store: tuple[str, int]) -> Made | None:
        offers.put(offer)
        return None

    Member(worker, make)
    launcher.sendall(encode(PROPOSAL))
    offer = offers.get(timeout=30)
    assert (offer.rank, offer.size, offer.place, offer.involved) == (2, 4, 2, 4)
    launcher.close()


def test_a_worker_that_cannot_read_its_launcher_ends_and_says_why() -> None:
    launcher, worker = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(worker.fileno())],
        pass_fds=[worker.fileno()],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        launcher.sendall(encode({"do": "propose", "offer": {"number": 2}}))
        _, said = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "what the launcher says can't be read: KeyError('rank')" in said


def test_whatever_making_a_group_raises_is_told_to_the_launcher() -> None:
    """Its thread ended without a word, and the others waited for it for ever."""
    launcher, worker = socket.socketpair()
    launcher.settimeout(30)

    def make(offer: Offer, name: str, store: tuple[str, int]) -> Made | None:
        raise AttributeError("no such thing in this PyTorch")

    Member(worker, make)
    launcher.sendall(encode(PROPOSAL))
    said = b""
    while b"failed" not in said:
        piece = launcher.recv(4096)
        assert piece, "the worker has gone without a word"
        said += piece
    assert b"no such thing in this PyTorch" in said
    launcher.close()
