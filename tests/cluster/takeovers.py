"""The active onesd killed again and again while moves are under way, and followed by the standby.

usage: scripts/benchmark-takeover [--kills N] [--seed S] [--takeover SECONDS] [--json]

Four jobs on the container cluster are resized without end. The active onesd is killed at a moment
drawn by chance: its process on ctl, and in turn its whole host, which is ctl2 (slurmctld is on
ctl). It is started again as the standby. In the end the last database and Slurm's counts of
restarts say, of all moves:

    under way   begun before a kill, and not ended at it
    lost        of these: not carried to their end
    doubled     restarts of a job beyond those of its resizes
    takeover    seconds from a kill to the end of the first round of the one that follows

It ends with 1 unless lost and doubled are 0 and every job still runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402
from conftest import Cluster  # noqa: E402
from standing import Pair, pair_on  # noqa: E402
from steering import Steering  # noqa: E402

USERS = ("alice", "bob", "carol", "dave")
ENDLESS = 10**8  # samples
DELAY = 3.0  # seconds within which a kill comes, once a move is under way
# However long a machine takes to start onesd anew, no move's time is over by then.
PATIENT = """
[guard]
max_resizes_per_hour = 100000
[moves]
checkpoint_timeout = 600.0
requeue_timeout = 600.0
start_timeout = 600.0
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of the active onesd."""

    at: float
    what: str  # process or host


@dataclass(slots=True)
class Found:
    """What the kills came to."""

    takeover: float  # as configured, seconds
    kills: list[Kill] = field(default_factory=list)
    moves: list[tuple[int, float, float | None, str]] = field(default_factory=list)
    """Job, begun, ended, outcome."""
    rounds: list[tuple[float, float]] = field(default_factory=list)  # begun, seconds
    restarts: dict[int, int] = field(default_factory=dict)  # by job, as Slurm counts them
    resizes: dict[int, int] = field(default_factory=dict)  # by job, as the journal has them
    gone: list[int] = field(default_factory=list)  # jobs that run no more

    def under_way(self, kill: Kill) -> list[str]:
        """What became of the moves that were under way at a kill; '' for those not ended."""
        return [
            outcome if ended is not None else ""
            for _, begun, ended, outcome in self.moves
            if begun <= kill.at and (ended is None or ended > kill.at)
        ]

    def seconds(self, kill: Kill) -> float:
        """From a kill to the end of the next round."""
        return min(begun + took for begun, took in self.rounds if begun > kill.at) - kill.at

    def row(self, what: str) -> dict[str, Any]:
        """Of the kills of that kind; all of them for 'all'."""
        kills = [kill for kill in self.kills if what in (kill.what, "all")]
        outcomes = [outcome for kill in kills for outcome in self.under_way(kill)]
        times = [self.seconds(kill) for kill in kills]
        return {
            "takeovers": len(kills),
            "under_way": len(outcomes),
            "lost": sum(outcome != "done" for outcome in outcomes),
            "median": round(median(times), 1) if times else None,
            "worst": round(max(times), 1) if times else None,
        }

    @property
    def doubled(self) -> int:
        """Restarts that belong to no resize."""
        return sum(max(0, self.restarts[job] - self.resizes[job]) for job in self.restarts)

    @property
    def missing(self) -> int:
        """Resizes without a restart."""
        return sum(max(0, self.resizes[job] - self.restarts[job]) for job in self.restarts)

    @property
    def good(self) -> bool:
        whole = not (self.doubled or self.missing or self.gone)
        return whole and self.row("all")["lost"] == 0

    def as_json(self) -> dict[str, Any]:
        return {
            "takeover_configured": self.takeover,
            **{what: self.row(what) for what in ("process", "host", "all")},
            "moves": len(self.moves),
            "doubled": self.doubled,
            "resizes_without_restart": self.missing,
            "jobs_gone": self.gone,
        }


class Takeovers:
    """Kills, and what is counted of them."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair = pair
        self._chance = random.Random(seed)
        self._found = Found(takeover=pair.takeover)
        self._jobs: list[int] = []

    def run(self, kills: int) -> Found:
        """Raises pytest.fail.Exception where something does not come to pass."""
        onesd, pair = self._pair.onesd, self._pair
        self._jobs = [onesd.counting(user, "2,4", 2, ENDLESS) for user in USERS]
        for number in range(1, kills + 1):
            onesd.cluster.eventually(lambda: pair.moving() > 0, within=60, what="a move under way")
            time.sleep(self._chance.uniform(0.0, DELAY))
            self._kill()
            say(f"kill {number} of {kills}: {self._found.kills[-1].what}")
        onesd.cluster.run("ctl", "onesctl policy set fifo")  # which resizes nobody
        onesd.cluster.eventually(
            lambda: self._pair.moving() == 0, within=120, what="all moves at their end"
        )
        self._count()
        return self._found

    def _kill(self) -> None:
        pair = self._pair
        active = pair.active()
        other = "ctl" if active == "ctl2" else "ctl2"
        if active == "ctl2":
            pair.kill_host()
        else:
            pair.signal(active, "KILL")
        what = "host" if active == "ctl2" else "process"
        self._found.kills.append(Kill(time.time(), what))
        pair.wait_for(other, "active")
        if active == "ctl2":
            pair.start_host()
        pair.start(active)
        pair.wait_for(active, "standby")

    def _count(self) -> None:
        pair, found = self._pair, self._found
        moves = pair.asked("SELECT job, at, ended, outcome, kind FROM moves ORDER BY id")
        found.moves = [(job, at, ended, outcome) for job, at, ended, outcome, _ in moves]
        found.rounds = [(at, took) for at, took in pair.asked("SELECT at, seconds FROM rounds")]
        for job in self._jobs:
            found.restarts[job] = int(pair.onesd.slurm(job, "RestartCnt"))
            found.resizes[job] = sum(
                kind == "resize" and outcome == "done"
                for whose, _, _, outcome, kind in moves
                if whose == job
            )
            if pair.onesd.state(job) != "RUNNING":
                found.gone.append(job)


def table(found: Found) -> str:
    """In Markdown."""
    head = ("killed", "takeovers", "moves under way", "lost", "median takeover", "worst")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for what in ("process", "host", "all"):
        row = found.row(what)
        seconds = (f"{row[key]} s" for key in ("median", "worst"))
        cells = (what, row["takeovers"], row["under_way"], row["lost"], *seconds)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append("")
    restarts, resizes = sum(found.restarts.values()), sum(found.resizes.values())
    lines.append(
        f"{resizes} resizes of {len(found.restarts)} jobs, {restarts} restarts: {found.doubled}"
        f" doubled, {found.missing} without a restart; {len(found.gone)} jobs gone;"
        f" takeover = {found.takeover:g}"
    )
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmark-takeover", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--takeover", type=float, default=5.0, help="[standby] takeover, seconds")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args(words)
    cluster = Cluster(os.environ.get("ONES_CLUSTER_NAME", "ones-takeover"))
    script = HERE.parents[1] / "scripts/cluster"
    ours = not cluster.running()
    if ours:
        environment = {**os.environ, "ONES_CLUSTER_NAME": cluster.name}
        subprocess.run([script, "up"], check=True, stdout=sys.stderr, env=environment)
    steering = Steering(cluster)
    try:
        steering.prepare()
        with pair_on(steering, takeover=options.takeover, more=PATIENT) as pair:
            found = Takeovers(pair, options.seed).run(options.kills)
        steering.prepare()
    except pytest.fail.Exception as fault:
        sys.exit(f"benchmark-takeover: error: {fault}")
    finally:
        if ours:
            subprocess.run([script, "down"], check=False, env=environment)
    print(json.dumps(found.as_json(), indent=1) if options.json else table(found))
    sys.exit(0 if found.good else 1)


if __name__ == "__main__":
    main()
