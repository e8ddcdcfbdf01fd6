"""Random live resizes in a row on the container cluster, with parts of ONES killed in between.

usage: scripts/soak-live [--sharded] [--resizes N] [--seed S] [--json]

One job after the other trains, and each is asked for one random size after the other: for one, for
two in a row, or with checkpoints being written all the time. Each job is held up in one of its last
three steps until a change is under way there. At every third resize something is killed.

It counts, and exits with 1 unless all but the pauses are 0:

    hangs               a size not reached in time, a training that stood still, a job that failed
    lost_samples        of a finished epoch, in no committed step
    repeated_samples    of one epoch, in more than one committed step, or twice in one
    leftovers           satellites or launchers that outlived their job by more than a round
    fallbacks           returns to a checkpoint although a worker was left that had the state

A resize counts when it was reached, or the job came to its end meanwhile; not when its ones-run was
killed. `exercised` says what really happened, by the accounts that the workers themselves wrote;
in a soak of 100 resizes and more it is a fault when anything is missing there.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "sharded")]

import pytest  # noqa: E402
from conftest import Cluster  # noqa: E402
from soak_account import Account, Task, account_of  # noqa: E402
from soak_faults import ENDS_JOB, Deck, Faults  # noqa: E402
from soak_found import Found  # noqa: E402
from soak_training import BACK, PLAIN, ROUNDING, SHARDED, Training, digests  # noqa: E402
from steering import Steering  # noqa: E402
from test_live import BATCH, SAMPLES, Live  # noqa: E402
from trainings import apart  # noqa: E402

SIZES = (1, 2, 3, 4, 6, 8)
EPOCHS = 70
KINDS = ("alone", "alone", "twice", "during a checkpoint")
ROUND = 2.0  # seconds
LOOK = 0.4  # seconds between two looks: each costs the cluster's own machine something
A_NODE = 4  # GPUs
OWN = (1, 1, 2, 2 * A_NODE)  # GPUs of a job's own; of two nodes it can give back the second
FAULT_EVERY = 3  # resizes
SETTINGS = """
round = {round}
[agent]
interval = 0.5
[guard]
grace_time = 3.0
live_grace_time = 0.5
[moves]
checkpoint_timeout = 30.0
live_timeout = {live_timeout}
"""


class HangError(Exception):
    """Something that was to come didn't."""


@dataclass(frozen=True, slots=True)
class Look:
    """The jobs as Slurm has them now."""

    state: str = ""
    host: str = ""
    gpus: int = 0  # of the job and its satellites
    satellites: dict[int, str] = field(default_factory=dict)  # that run, and where
    left: tuple[int, ...] = ()  # satellites that aren't gone altogether
    at_gate: bool = False

    @property
    def lives(self) -> bool:
        return self.state in ("PENDING", "RUNNING")


class Soak:
    """One run of it."""

    def __init__(self, cluster: Cluster, training: Training, resizes: int, seed: int) -> None:
        self.live = Live(Steering(cluster), training.environment)
        self.training = training
        self.cluster = cluster
        self.random = random.Random(seed)
        self.wanted = resizes
        self.found = Found()
        self.kinds = Deck(KINDS, self.random)
        self.faults = Faults(self.live, self.random)
        self.found.faults = self.faults.done
        self._pauses: dict[tuple[int, int], float] = {}  # of a job's generation
        self._until_fault = FAULT_EVERY
        self._alone: list[float] = []  # the norms of what one process comes to
        self._recovered: dict[tuple[int, int], str] = {}  # as pauses

    def run(self) -> Found:
        self.live.steering.prepare()
        self.cluster.run("ctl", "rm -rf /home/alice/*gate-* /home/alice/seen-*")
        if self.training.sharded:
            self.cluster.run("n4", self.training.alone(EPOCHS), "alice")
            (self._alone,) = digests(self.live.notes(0))
        timeout = self.training.live_timeout
        self.live.start(settings=SETTINGS.format(round=ROUND, live_timeout=timeout))
        while self.found.resizes < self.wanted and self.found.hangs < 3:
            self.found.jobs += 1
            self.train()
        self.found.pauses = list(self._pauses.values())
        self.found.recovered.update(self._recovered.values())
        self.live.steering.prepare()
        return self.found

    def train(self) -> None:
        """One job from its start to its end."""
        self.cluster.run("ctl", "rm -f /run/ones/asked.json")
        gpus = self.random.choice(OWN)
        words = self.training.words(EPOCHS, self.random)
        job = self.live.submit(*words, gpus=gpus, options=("--no-kill",))
        total = EPOCHS * SAMPLES
        last = total - SAMPLES % BATCH - BATCH * self.random.choice([0, 1, 2, 2, 3])
        self.cluster.run("ctl", f"echo {last} > gate-{job}", "alice")
        say(f"job {job}: {gpus} GPUs of its own, held at {last} of {total}")
        killed, windows = "", []
        losses = self.losses
        try:
            self.wait(job, lambda look: look.gpus == self.workers(job) == gpus)
            least, size = min(gpus, A_NODE), gpus
            while self.found.resizes < self.wanted and self.look(job).lives:
                began = time.time()
                size, killed, kind = self.resize(job, least, size)
                if killed not in ENDS_JOB:
                    self.found.resizes += 1
                    self.found.asked[kind] += 1
                if kind == "during a checkpoint":
                    windows.append((began, time.time()))
        except HangError as hang:
            self.found.hangs += 1
            say(f"HANG: {hang}")
            self.explain(job)
        self.finish(job, killed, windows, self.losses - losses)

    @property
    def losses(self) -> int:
        """Kills after which a checkpoint may have to be read."""
        return self.faults.losses if self.training.sharded else self.faults.total_losses

    def resize(self, job: int, least: int, now: int) -> tuple[int, str, str]:
        """Ask for another size, and wait for it; the size, what was killed, how it was asked."""
        size = self.random.choice([size for size in SIZES if size >= least and size != now])
        kind = self.kinds.deal()
        say(f"{self.found.resizes + 1}: job {job} from {now} to {size}, {kind}")
        due: list[tuple[float, str]] = []
        if kind == "twice":
            due.append((self.random.uniform(0.3, 5.0), "ask"))
        self._until_fault -= 1
        if not self._until_fault:
            self._until_fault = FAULT_EVERY
            due.append((self.random.uniform(0.0, 5.0), "kill"))
        due.sort()
        gate = self.random.uniform(0.0, self.training.gate)
        began, killed, held_since = time.monotonic(), "", 0.0
        self.live.steering.want(job, size)
        while True:
            look, now_s = self.look(job), time.monotonic()
            if not look.lives:
                return size, killed, kind
            if look.at_gate:
                held_since = held_since or now_s
                if now_s - held_since > gate:
                    self.cluster.run("ctl", f"rm -f /home/alice/gate-{job}")
            reached = look.gpus == size and self.is_at(job, size)
            if due and (reached or now_s - began > due[0][0]):
                _, what = due.pop(0)
                if what == "ask":
                    others = [each for each in SIZES if each >= least and each != size]
                    size = self.random.choice(others)
                    say(f"   no, to {size}")
                    self.live.steering.want(job, size)
                else:
                    killed = self.faults.strike(job, look.host, look.satellites)
                    say(f"   killed: {killed}")
                    time.sleep(0.5)
                began = began if due else time.monotonic()
            elif reached:
                self.take_pauses(job)
                return size, killed, kind
            if kind == "during a checkpoint":
                self.cluster.run("ctl", f"scancel --signal=USR1 {job}", check=False)
            if now_s - began > self.training.patience:
                raise HangError(f"job {job} with {size} GPUs: not in time")
            time.sleep(LOOK)

    def finish(
        self, job: int, killed: str, windows: Iterable[tuple[float, float]], losses: int
    ) -> None:
        """End what is left of the job, and look at what it has done and left behind."""
        self.cluster.run("ctl", f"rm -f /home/alice/gate-{job}; scancel {job}", check=False)
        with contextlib.suppress(HangError):
            self.wait(job, lambda look: not look.lives)
        self.wait_until_gone(job)
        state = self.live.steering.state(job)
        notes = self.live.notes(job)
        last = EPOCHS * SAMPLES - SAMPLES % BATCH
        # Workers may also be killed when they have done all steps, and nothing is left to go on.
        trained = any(note.get("committed") and note["at"] == last for note in notes)
        if state == "FAILED" and killed not in ENDS_JOB and not (killed and trained):
            self.found.hangs += 1
            say(f"FAILED: job {job}")
            self.explain(job)
        self.found.completed += state == "COMPLETED"
        copies = self.training.sharded
        task = Task(epochs=EPOCHS, samples=SAMPLES, batch=BATCH, copies=copies)
        account = account_of(notes, task, complete=trained)
        self.judge(job, account, losses)
        if copies and state == "COMPLETED":
            self.compare(job, digests(notes))
        written = [note["time"] for note in notes if "checkpoint" in note]
        self.found.changes["during a checkpoint"] += sum(
            any(began <= at <= ended for at in written) for began, ended in windows
        )

    def judge(self, job: int, account: Account, losses: int) -> None:
        found = self.found
        found.lost += account.lost
        found.repeated += account.repeated
        found.changes.update(account.changes)
        found.standstill = max(found.standstill, account.standstill)
        if account.lost or account.repeated:
            say(f"SAMPLES of job {job}: {account.lost} lost, {account.repeated} repeated")
        found.undone += account.gone_back
        if any(steps > BACK for steps in account.gone_back):
            found.unequal += 1
            say(f"WENT FAR BACK: job {job}: {account.gone_back} steps")
        if account.standstill > self.training.standstill:
            found.hangs += 1
            say(f"STOOD STILL: job {job} for {account.standstill:.1f} s")
        if account.strands - 1 > losses:
            found.fallbacks += account.strands - 1 - losses
            say(f"FELL BACK: job {job}: {account.strands} strands, {losses} times all were killed")
            self.explain(job)

    def compare(self, job: int, came_to: list[list[float]]) -> None:
        """All workers have the same parameters, those of a run by one process."""
        differ = max((apart(each, self._alone) for each in came_to), default=1.0)
        self.found.apart = max(self.found.apart, differ)
        if differ > ROUNDING or any(each != came_to[0] for each in came_to):
            self.found.unequal += 1
            say(f"UNEQUAL: job {job}: {differ:.1e} apart from one process's; {came_to}")

    def wait_until_gone(self, job: int) -> None:
        """Neither satellites nor launchers are left, in the time that they have."""
        launchers = "pgrep -u alice -f 'runtime.launcher|[o]nes-run' || true"
        ended = time.monotonic()
        late = False
        while self.look(job).left or any(
            self.cluster.run(node, launchers).stdout for node in ("n1", "n2")
        ):
            took = time.monotonic() - ended
            if took > ROUND + self.training.seen_late and not late:
                late = True
                self.found.leftovers += 1
                say(f"LEFT OVER after {took:.1f} s: {self.look(job).left}")
                self.explain(job)
            if took > self.training.patience:
                self.cluster.run("ctl", "squeue -h -o %A | xargs -r scancel --signal=KILL")
                break
            time.sleep(LOOK)
        self.found.ends.append(time.monotonic() - ended)

    def is_at(self, job: int, size: int) -> bool:
        status = self.live.status(job)
        return status is not None and status["settled"] and status["workers"] == size

    def workers(self, job: int) -> int:
        return self.live.workers(job)

    def take_pauses(self, job: int) -> None:
        status = self.live.status(job)
        for change in (status or {}).get("resizes", ()):
            if change["pause"] is not None and change["before"]:
                self._pauses[job, change["generation"]] = change["pause"]
            if "recovery" in change:
                self._recovered[job, change["generation"]] = change["recovery"]["source"]

    def look(self, job: int) -> Look:
        columns = "jobid:12,state:14,batchhost:20,tres-alloc:200,admin_comment:80"
        gates = f"cd /home/alice; test -e gate-{job} && test -e at-gate-{job} && echo held"
        command = f"squeue -h -t all -O {columns}; {gates} || true"
        gpus, state, host, satellites, left = 0, "", "", {}, []
        lines = self.cluster.run("ctl", command).stdout.splitlines()
        for words in (line.split() for line in lines):
            if len(words) < 3 or not words[0].isdecimal():
                continue
            number, tied = int(words[0]), f"ONES1S:base={job};" in words[-1]
            if number == job:
                state = words[1]
                host = words[2] if words[2].startswith("n") else ""
            if tied and words[1] in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
                left.append(number)
            if words[1] == "RUNNING" and (tied or number == job):
                found = [part for part in words[3].split(",") if part.startswith("gres/gpu=")]
                gpus += sum(int(part.split("=")[1]) for part in found)
                if tied:
                    satellites[number] = words[2]
        return Look(state, host, gpus, satellites, tuple(left), "held" in lines)

    def wait(self, job: int, so: Callable[[Look], bool]) -> None:
        end = time.monotonic() + self.training.patience
        while not so(self.look(job)):
            if time.monotonic() > end:
                raise HangError(f"job {job}: {self.look(job)} is not as it was to become")
            time.sleep(LOOK)

    def explain(self, job: int) -> None:
        """All that may tell what went wrong."""
        for command in (
            "squeue; onesctl jobs; tail -n 25 /var/log/ones/onesd.log",
            f"tail -n 30 /home/alice/{job}.out /home/alice/ones-checkpoints/{job}/live/*.out",
        ):
            done = self.cluster.run("ctl", command, check=False)
            say(done.stdout + done.stderr)
        say(json.dumps(self.live.status(job)))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak-live", description=__doc__.splitlines()[0])
    parser.add_argument("--resizes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharded", action="store_true", help="models that are cut over workers")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse_args()
    cluster = Cluster(os.environ.get("ONES_CLUSTER_NAME", "ones-soak"))
    script = HERE.parents[1] / "scripts/cluster"
    ours = not cluster.running()
    if ours:
        subprocess.run([script, "up"], check=True, stdout=sys.stderr)
    try:
        training = SHARDED if options.sharded else PLAIN
        found = Soak(cluster, training, options.resizes, options.seed).run()
    except pytest.fail.Exception as fault:
        sys.exit(f"soak-live: error: {fault}")
    finally:
        if ours:
            subprocess.run([script, "down"], check=False)
    if options.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        for name, value in found.as_json().items():
            print(f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}")
    if found.missing:
        say(f"soak-live: error: never happened: {', '.join(found.missing)}")
    sys.exit(0 if found.good else 1)


if __name__ == "__main__":
    main()
