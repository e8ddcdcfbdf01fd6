"""Run on the controller as root: rounds of onesd on this Slurm, as one line of JSON.

Arguments: how many nodes, jobs and rounds, a seed, and the reader (see choose_reader). Users submit
jobs that sleep, three in ten elastic, some before and more after these. Between two rounds one job
in fifty changes: half of these end, as many are submitted. Agents report before each round, and
tell of a checkpoint whenever a move waits for one. slurmctld's CPU is read from /proc, in such
changes without onesd and with it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Literal, cast

from slurmctld_load import Rpcs, Watched

from ones.daemon.config import Config
from ones.daemon.onesd import heartbeat
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.wire import Checkpoint, GpuSample, NodeReport, Received, Report
from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.slurm import Slurm
from ones.slurm_ext.snapshot import JobRecord

USERS = ("alice", "bob", "carol", "dave")
GPUS = 8  # of a node
ELASTIC = 0.3  # of the jobs
PLAIN_GPUS = 0.6  # of the GPUs, which plain jobs hold when the elastic ones come
CHANGING = 0.02  # of the jobs, from one round to the next
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16)
WARM, WITHOUT = 4, 4  # rounds before those that are measured; intervals without onesd
SETTLED = 1.0  # seconds that a round takes to act when the first rush is over
MOST_WARM = 40  # rounds until then
ROUND = 15.0
STEPS = ("observe", "estimate", "decide", "check", "act", "record")
JOB = "#!/bin/sh\ntrap '' USR1 USR2\nexec sleep 1000000\n"
BATCH = 64  # samples for each GPU
ReaderName = Literal["auto", "pyslurm", "commands"]
HEARTBEAT = Path("/run/ones/heartbeat")


class Laboratory:
    """The users, the agents and the onesd of this cluster."""

    def __init__(
        self, folder: Path, *, nodes: int, jobs: int, seed: int, reader: ReaderName
    ) -> None:
        self.nodes, self.jobs = nodes, jobs
        self._names = [f"g{number:04}" for number in range(1, nodes + 1)]
        self._rng = Random(seed)
        self._samples: dict[int, float] = {}
        self.rounds = 0
        self.metrics = Metrics()
        commands = Commands(timeout=120.0)
        self.slurm = Slurm(commands, choose_reader(reader, commands))
        self.onesd = assemble(
            Config(mode="act", policy="ones", round=ROUND, seed=seed),
            self.slurm,
            Store(folder / "ones.sqlite"),
            clock=time.time,
            metrics=self.metrics,
        )
        self._script = Path("/tmp/laboratory.sh")
        self._script.write_text(JOB)
        self._script.chmod(0o755)

    def beat(self, stop: threading.Event) -> None:
        """onesd is alive, so that elastic jobs are held for it."""
        while not stop.is_set():
            snapshot = self.onesd.service.published.snapshot
            heartbeat.write(HEARTBEAT, now=time.time(), hold=True, acts=True, snapshot=snapshot)
            stop.wait(heartbeat.BEAT)

    def fill(self) -> None:
        """Plain jobs run, then elastic ones come, and then more plain ones than there is room."""
        elastic = round(ELASTIC * self.jobs)
        first, asked = [], 0
        while len(first) < self.jobs - elastic and asked < PLAIN_GPUS * self.nodes * GPUS:
            first.append(self._rng.choice(SIZES))
            asked += first[-1]
        self._submit([(size, False) for size in first])
        self._submit([(self._rng.choice(SIZES), True) for _ in range(elastic)])
        left = self.jobs - elastic - len(first)
        self._submit([(self._rng.choice(SIZES), False) for _ in range(left)])

    def change(self) -> None:
        """One job in fifty: as many come as end."""
        changing = max(2, round(CHANGING * self.jobs))
        answer = ["squeue", "--noheader", "--partition=lab", "--states=RUNNING", "--format=%A"]
        running = subprocess.run(answer, capture_output=True, text=True, check=True).stdout.split()
        gone = self._rng.sample(sorted(running), min(len(running), changing // 2))
        if gone:
            subprocess.run(["scancel", *gone], check=False)  # one may have ended by itself
        coming = [
            (self._rng.choice(SIZES), self._rng.random() < ELASTIC)
            for _ in range(changing - changing // 2)
        ]
        self._submit(coming)

    def _submit(self, wanted: Sequence[tuple[int, bool]]) -> None:
        """So many GPUs each, and whether it is elastic; the users submit side by side."""
        lines: dict[str, list[str]] = {user: [] for user in USERS}
        for gpus, elastic in wanted:
            name = f"train{self._rng.randrange(40)}"
            flag = f"--elastic=1-{min(4 * gpus, 32)}" if elastic else ""
            lines[USERS[self._rng.randrange(len(USERS))]].append(
                f"sbatch --quiet --partition=lab --gpus={gpus} --ntasks={gpus} --time=1-0"
                f" --output=/dev/null --chdir=/tmp --job-name={name} {flag} {self._script}"
            )

        def by(user: str) -> None:
            command = ["runuser", "-u", user, "--", "bash", "-e"]
            text = "\n".join(lines[user])
            subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)

        with ThreadPoolExecutor(len(USERS)) as pool:
            list(pool.map(by, USERS))

    def report(self, *, saved: frozenset[int] = frozenset()) -> None:
        """What all agents say; those of the jobs that are `saved` also of a checkpoint."""
        now = time.time()
        on: dict[str, list[JobRecord]] = {name: [] for name in self._names}
        for record in self.onesd.service.published.snapshot.jobs.values():
            if record.state == "RUNNING":
                for name in record.gpus_on:
                    if name in on:
                        on[name].append(record)
        for name, records in on.items():
            holders = [one.id for one in records for _ in range(one.gpus_on[name])]
            words: list[Received] = []
            for record in records:
                if record.marked and name == min(record.gpus_on):
                    words += self._words(record, now, saved)
            samples = tuple(
                GpuSample(
                    minor=minor,
                    uuid=f"{name}-{minor}",
                    type="a100",
                    utilization=0.9 if minor < len(holders) else 0.0,
                    memory_used=2**34 if minor < len(holders) else 0,
                    memory_total=80 * 2**30,
                    jobs=(holders[minor],) if minor < len(holders) else (),
                )
                for minor in range(GPUS)
            )
            self.onesd.service.hear(
                NodeReport(
                    node=name,
                    taken=now,
                    interval=ROUND,
                    version="0",
                    gpus=samples,
                    received=tuple(words),
                )
            )

    def _words(self, record: JobRecord, now: float, saved: frozenset[int]) -> list[Received]:
        gpus = sum(record.gpus_on.values())
        batch, local = BATCH * gpus, 0.05 + 0.002 * (record.id % 50)
        step = local * (1.0 + 0.03 * (record.id % 7) * (gpus - 1) ** 0.5)
        done = self._samples.get(record.id, 0.0) + batch / step * ROUND
        self._samples[record.id] = done
        total = 10**6 * (1 + record.id % 40)
        said = Report(
            job=record.id,
            restarts=record.restarts,
            samples=int(min(done, 0.95 * total)),
            step_seconds=step,
            batch=batch,
            gpus=gpus,
            total_samples=total,
            epoch_samples=total // 10,
            resumed_seconds=5.0,
        )
        words: list[Report | Checkpoint] = [said]
        if record.id in saved:
            words.append(Checkpoint(job=record.id, restarts=record.restarts, samples=said.samples))
        return [Received(at=now, evidence="cgroup", message=word) for word in words]

    def interval(self) -> None:
        """Until the next round: ticks for the moves under way."""
        end = time.monotonic() + ROUND
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.onesd.rounds.tick_interval()))
            if moves := self.onesd.service.open_moves():
                self.report(saved=frozenset(move.job for move in moves))
            self.onesd.rounds.tick()

    def one_round(self) -> dict[str, float]:
        """Seconds that it took in all and by step; CPU of onesd, and of the programs it called."""
        self.report()
        began, own, programs = time.monotonic(), time.process_time(), _of_programs()
        self.onesd.rounds.round()
        self.rounds += 1
        value = self.metrics.registry.get_sample_value
        return {
            "round": time.monotonic() - began,
            "own": time.process_time() - own,
            "programs": _of_programs() - programs,
            **{step: value("ones_round_step_seconds", {"step": step}) or 0.0 for step in STEPS},
        }


def _of_programs() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    nodes, jobs, rounds, seed = (int(word) for word in sys.argv[1:5])
    reader = cast(ReaderName, sys.argv[5])
    stop, found = threading.Event(), list[dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="ones-laboratory-") as folder:
        site = Laboratory(Path(folder), nodes=nodes, jobs=jobs, seed=seed, reader=reader)
        site.one_round()
        beats = threading.Thread(target=site.beat, args=(stop,), daemon=True)
        beats.start()
        time.sleep(heartbeat.BEAT)
        site.fill()
        for number in range(MOST_WARM):
            took = site.one_round()
            site.interval()
            if number >= WARM and took["act"] < SETTLED:
                break

        quiet = Watched()
        for _ in range(WITHOUT):
            site.change()
            time.sleep(ROUND)
        without = quiet.share()
        site.one_round()
        site.interval()
        busy = Watched()
        for _ in range(rounds):
            site.change()
            busy.look()
            found.append(site.one_round())
            busy.look()
            site.interval()
        busy.look()
        shares = without, busy.share()
        stop.set()
        beats.join()
    print(json.dumps(figures(site, found, shares, busy.rpcs())))


def figures(
    site: Laboratory,
    found: Sequence[dict[str, float]],
    shares: tuple[float, float],
    rpcs: Rpcs,
) -> dict[str, object]:
    """Seconds are of time, but for those of CPU; steps are [median, worst]."""

    def both(key: str) -> list[float]:
        seconds = [one[key] for one in found]
        return [round(median(seconds), 3), round(max(seconds), 3)]

    published = site.onesd.service.published
    held = [job for job in published.snapshot.jobs.values() if job.gpus_on]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "reader": site.slurm.name,
        "nodes": site.nodes,
        "gpus": site.nodes * GPUS,
        "jobs": len(published.snapshot.jobs),
        "elastic": len(published.jobs),
        "running": len(held),
        "rounds": len(found),
        "warm": site.rounds - len(found),
        "round_median_s": both("round")[0],
        "round_worst_s": both("round")[1],
        "steps": {step: both(step) for step in STEPS},
        "cpu_of_onesd": both("own"),
        "cpu_of_programs": both("programs"),
        "slurmctld_share": round(shares[1] - shares[0], 3),
        "slurmctld_without": round(shares[0], 3),
        "rpcs": rpcs,
        "memory_mib": round(peak / 1024),
    }


if __name__ == "__main__":
    main()
