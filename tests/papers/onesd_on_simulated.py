"""onesd as a process, on a simulated Slurm in another one: CONFIG SLURM ROUNDS.

Its doors, its database and its loops are its own. What stands in: the Slurm at the socket SLURM,
and the signature of a credential, since there is no munged that would seal for 10,000 hosts. When
each round began and ended is written into the file ROUNDS.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "unit")]

import sealing  # noqa: E402
from slurm_apart import SlurmAfar  # noqa: E402

from ones.daemon import munge  # noqa: E402
from ones.daemon.onesd import main as onesd  # noqa: E402
from ones.daemon.onesd.round import Rounds  # noqa: E402

config, slurm, rounds = sys.argv[1:]
munge.encode, munge.decode = sealing.encode, sealing.decode
onesd.choose_reader = lambda *_: None  # type: ignore[assignment]
onesd.Slurm = lambda *_: SlurmAfar(Path(slurm))  # type: ignore[assignment,misc]
_round = Rounds.round


def told(self: Rounds) -> None:
    began = time.monotonic()
    try:
        _round(self)
    finally:
        with Path(rounds).open("a") as log:
            log.write(f"{began} {time.monotonic()}\n")


Rounds.round = told  # type: ignore[method-assign]
onesd.main(["--config", config])
