"""Random live resizes in a row on the container cluster, with parts of ONES killed in between.

usage: scripts/soak-live [--resizes N] [--seed S] [--json]

One job after the other trains, and each is asked for one random size after the other: sometimes
for two at once, during a checkpoint, or when its last steps are near. Every few resizes onesd, an
agent, a satellite's ones-run, a satellite's job or the job's own ones-run is killed.

It counts, and exits with 1 unless all but the pauses are 0:

    hangs               a size that was not reached in time, or a training that stood still
    lost_samples        of a finished epoch, in no committed step
    repeated_samples    of one epoch, in more than one committed step, or twice in one
    leftovers           satellites or launchers that outlived their job

A step counts when a worker committed it. One that was lost in a crash is done again, and counts
then. Where a job was requeued, its later run counts from the checkpoint on, and the earlier one
up to there. A job whose own ones-run was killed ends with that; its last epoch need not be whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402
from conftest import Cluster  # noqa: E402
from steering import Steering  # noqa: E402
from test_live import BATCH, SAMPLES, Live  # noqa: E402

SIZES = (1, 2, 3, 4, 6, 8)
EPOCHS = 150
PATIENCE = 120.0  # seconds for a size to be reached, whatever was killed
FAULTS = ("onesd", "agent", "satellite's ones-run", "satellite's job", "ones-run")
FAULT_EVERY = 4  # resizes, on the average
SHARE_OF_BASE = 0.15  # of the faults: it costs a job each time
AGENT = "/opt/ones/bin/ones-agent"


@dataclass(slots=True)
class Found:
    """What a soak comes to."""

    resizes: int = 0
    jobs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    lost: int = 0
    repeated: int = 0
    hangs: int = 0
    leftovers: int = 0

    def __str__(self) -> str:
        return json.dumps(self.as_json(), indent=1)

    def as_json(self) -> dict[str, Any]:
        later = quantiles(self.pauses, n=20)[-1] if len(self.pauses) > 1 else None
        return {
            "resizes": self.resizes,
            "jobs": self.jobs,
            "faults": dict(sorted(self.faults.items())),
            "pauses": len(self.pauses),
            "pause_median_s": median(self.pauses) if self.pauses else None,
            "pause_p95_s": later,
            "lost_samples": self.lost,
            "repeated_samples": self.repeated,
            "hangs": self.hangs,
            "leftovers": self.leftovers,
        }

    @property
    def good(self) -> bool:
        return not (self.lost or self.repeated or self.hangs or self.leftovers)


class HangError(Exception):
    """Something that was to come didn't."""


class Soak:
    """One run of it."""

    def __init__(self, cluster: Cluster, resizes: int, seed: int) -> None:
        self.live = Live(Steering(cluster))
        self.cluster = cluster
        self.random = random.Random(seed)
        self.wanted = resizes
        self.found = Found()
        self._seen: dict[tuple[int, int], float] = {}  # job and generation -> pause

    def run(self) -> Found:
        self.live.steering.prepare()
        self.live.start()
        while self.found.resizes < self.wanted and self.found.hangs < 3:
            self.found.jobs += 1
            self.train()
        self.found.pauses = list(self._seen.values())
        self.live.steering.prepare()
        return self.found

    def train(self) -> None:
        """One job from its start to its end."""
        self.cluster.run("ctl", "rm -f /run/ones/asked.json")
        job = self.live.submit(str(EPOCHS))
        try:
            self.until(lambda: self.live.workers(job) == 1, f"job {job} training")
            while self.found.resizes < self.wanted and self.runs(job):
                self.resize(job)
        except HangError as hang:
            self.found.hangs += 1
            say(f"HANG: {hang}")
            self.explain(job)
        self.finish(job)

    def resize(self, job: int) -> None:
        size = self.random.choice(SIZES)
        self.found.resizes += 1
        how = self.random.choice(["alone", "alone", "twice", "checkpoint", "late"])
        fault = self.random.random() < 1 / FAULT_EVERY
        say(f"{self.found.resizes}: job {job} to {size}, {how}")
        if how == "late":
            self.near_the_end(job)
        self.live.ask_for(job, size)
        if how == "twice":
            time.sleep(self.random.uniform(0.5, 6.0))
            size = self.random.choice(SIZES)
            self.live.ask_for(job, size)
        if how == "checkpoint":
            time.sleep(self.random.uniform(0.0, 4.0))
            self.cluster.run("ctl", f"scancel --signal=USR1 {job}", check=False)
        if fault:
            time.sleep(self.random.uniform(0.0, 8.0))
            self.break_something(job)
        self.until(
            lambda: not self.runs(job) or self.live.workers(job) == size == self.held(job),
            f"job {job} with {size} GPUs",
        )
        self.take_pauses(job)

    def near_the_end(self, job: int) -> None:
        """Wait for the last steps, if they are not far."""
        total = EPOCHS * SAMPLES
        with contextlib.suppress(HangError):
            if total - self.samples(job) < 40 * BATCH:
                self.until(
                    lambda: not self.runs(job) or total - self.samples(job) < 6 * BATCH, "its end"
                )

    def break_something(self, job: int) -> None:
        kind = self.random.choice(FAULTS[:-1])
        if self.random.random() < SHARE_OF_BASE:
            kind = FAULTS[-1]
        satellites = self.live.satellites()
        if kind.startswith("satellite") and not satellites:
            kind = "onesd"
        self.found.faults[kind] += 1
        say(f"   killed: {kind}")
        match kind:
            case "onesd":
                self.live.steering.kill()
                self.live.start(ready=False)
            case "agent":
                node = self.random.choice(["n1", "n2"])
                self.cluster.run(node, "pkill -KILL -f '[b]in/ones-agent'", check=False)
                again = ["docker", "exec", "--detach", f"{self.cluster.name}-{node}", AGENT]
                subprocess.run(again, check=True)
            case "satellite's ones-run":
                victim = self.random.choice(satellites)
                node = self.live.steering.slurm(victim, "nodelist")
                kill = "pkill -KILL -u alice -o -f '[r]untime.launcher --join'"
                if node:
                    self.cluster.run(node, kill, check=False)
            case "satellite's job":
                self.cluster.run("ctl", f"scancel {self.random.choice(satellites)}", check=False)
            case _:
                host = self.live.steering.slurm(job, "batchhost")
                if host:
                    self.cluster.run(host, "pkill -KILL -o -f '[o]nes-run --live'", check=False)

    def finish(self, job: int) -> None:
        """End what is left of the job, and look at what it has done and left behind."""
        ended = self.live.steering.state(job)
        self.cluster.run("ctl", f"scancel {job}", check=False)
        with contextlib.suppress(HangError):
            self.until(lambda: not self.runs(job), f"job {job} gone")
        if not self.gone():
            self.found.leftovers += 1
            say(f"LEFT OVER: satellites {self.live.satellites()}")
            self.explain(job)
        lost, repeated = judge(self.live.account(job), complete=ended == "COMPLETED")
        if lost or repeated:
            say(f"SAMPLES of job {job} ({ended}): {lost} lost, {repeated} repeated")
        self.found.lost += lost
        self.found.repeated += repeated

    def gone(self) -> bool:
        """Whether neither satellites nor launchers are left, in the time that they have."""
        launchers = "pgrep -u alice -f 'runtime.launcher|[o]nes-run' || true"
        with contextlib.suppress(HangError):
            self.until(
                lambda: (
                    not self.live.satellites()
                    and not any(self.cluster.run(n, launchers).stdout for n in ("n1", "n2"))
                ),
                "nothing left over",
                within=40.0,
            )
            return True
        return False

    def take_pauses(self, job: int) -> None:
        status = self.live.status(job)
        for change in (status or {}).get("resizes", ()):
            if change["pause"] is not None and change["before"]:
                self._seen[job, change["generation"]] = change["pause"]

    def samples(self, job: int) -> int:
        told = [one for one in self.live.steering.ask("jobs")["jobs"] if one["job"] == job]
        return int(told[0]["samples"] or 0) if told else 0

    def held(self, job: int) -> int:
        """GPUs of the job and its satellites, as Slurm says."""
        jobs = [job, *self.live.satellites()]
        return sum(self.live.steering.gpus(each) for each in jobs)

    def runs(self, job: int) -> bool:
        return self.live.steering.state(job) in ("PENDING", "RUNNING")

    def until(self, condition: Any, what: str, *, within: float = PATIENCE) -> None:
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                raise HangError(f"{what}: not within {within:.0f} s")
            time.sleep(0.3)

    def explain(self, job: int) -> None:
        """All that may tell what went wrong."""
        for command in (
            "squeue; onesctl jobs; tail -n 25 /var/log/ones/onesd.log",
            f"tail -n 30 /home/alice/{job}.out /home/alice/ones-checkpoints/{job}/live/*.out",
        ):
            done = self.cluster.run("ctl", command, check=False)
            say(done.stdout + done.stderr)
        say(json.dumps(self.live.status(job)))


def judge(lines: Iterable[Mapping[str, Any]], *, complete: bool) -> tuple[int, int]:
    """Samples lost and repeated, by what the workers wrote before and after each step."""
    steps: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        steps.setdefault(int(line["at"]), []).append(line)
    lost = repeated = 0
    epochs: dict[int, Counter[int]] = {}
    for at, written in steps.items():
        last = max(line["restarts"] for line in written)
        mine = [line for line in written if line["restarts"] == last]
        done = [line for line in mine if line["committed"]]
        if not done:
            continue
        ids = Counter(number for line in done for number in line["ids"])
        size = min(BATCH, SAMPLES - at % SAMPLES)
        if ids.total() < size:
            # Who was killed in between has committed it with the others, of whom it was one.
            known = {line["pid"] for line in done}
            workers = {line["workers"] for line in done}
            ids.update(
                number
                for line in mine
                if not line["committed"] and line["pid"] not in known and line["workers"] in workers
                for number in line["ids"]
            )
        epochs.setdefault(at // SAMPLES, Counter()).update(ids)
    last_epoch = max(epochs, default=0)
    for epoch, seen in epochs.items():
        repeated += sum(times - 1 for times in seen.values())
        if complete or epoch < last_epoch:
            lost += SAMPLES - len(seen)
    return lost, repeated


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak-live", description=__doc__.splitlines()[0])
    parser.add_argument("--resizes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse_args()
    cluster = Cluster(os.environ.get("ONES_CLUSTER_NAME", "ones-soak"))
    script = HERE.parents[1] / "scripts/cluster"
    ours = not cluster.running()
    if ours:
        subprocess.run([script, "up"], check=True, stdout=sys.stderr)
    try:
        found = Soak(cluster, options.resizes, options.seed).run()
    except pytest.fail.Exception as fault:
        sys.exit(f"soak-live: error: {fault}")
    finally:
        if ours:
            subprocess.run([script, "down"], check=False)
    if options.json:
        print(found)
    else:
        for name, value in found.as_json().items():
            print(f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}")
    sys.exit(0 if found.good else 1)


if __name__ == "__main__":
    main()
