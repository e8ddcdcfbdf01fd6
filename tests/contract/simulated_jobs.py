"""The simulated Slurm in the place of the container cluster: the same nodes, users and commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from random import Random

import pytest
from facts import Facts
from make_moves import Carrier

from ones.slurm_ext.accounting import Run
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job, Part, Wants
from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import Reservation

SITE = Site(
    nodes=tuple(
        NodeSpec(
            name=f"n{number}",
            gpu_type="v100" if number < 3 else "k80",
            shards_per_gpu=2,
            switches=("s1" if number < 3 else "s2", "s0"),
        )
        for number in range(1, 5)
    ),
    users={"alice": "vision", "bob": "vision", "carol": "language"},
)
SETTINGS = Settings(backfill=2.0, kill_wait=5.0, slurmd_timeout=30.0)  # as in slurm.conf
TEXTS = {"--gres": "tres_per_node", "--gpus-per-node": "tres_per_node", "--gpus": "tres_per_job"}
NUMBERS = {
    "-n": "tasks",
    "-c": "cpus_per_task",
    "--ntasks-per-node": "tasks_per_node",
    "--cpus-per-gpu": "cpus_per_gpu",
    "--mem-per-gpu": "memory_per_gpu",
}


class SimulatedSlurm:
    """What users, onesd and administrators do, as `slurm_jobs.Slurm` has it."""

    owners_suspend = False  # as of Slurm 24.11

    def __init__(self) -> None:
        self.world = World(SITE, SETTINGS, rng=Random(1), listener=self._hear)
        self.world.new_jobs_are_held(lambda: True)
        self._cluster = SimulatedCluster(self.world)
        self._printed: dict[tuple[int, int], list[str]] = {}

    def submit(self, *options: str, user: str = "alice") -> int:
        wants, others = read_options(options)
        return self.world.submit(user, wants=wants, **others)

    def move(self, job: int, *moves: str, start_timeout: float = 20) -> list[str]:
        world = self.world
        carrier = Carrier(self._cluster, lambda: world.now, world.step, lambda _: True)
        return carrier.outcomes(job, moves, start_timeout=start_timeout)

    def facts(self, number: int) -> Facts:
        job = self.world.job(number)
        return Facts(
            state=job.state,
            reason=job.reason,
            held=job.record().held,
            restarts=job.restarts,
            nodes=job.record().nodes,
            required=job.record().required_nodes,
            tres_per_node=job.wants.tres_per_node,
            comment=job.comment,
            gres=[self._gres(name, part) for name, part in job.parts.items()],
        )

    def _gres(self, name: str, part: Part) -> str:
        spec = self.world.state.nodes[name].spec
        if not part.shards:
            return f"gpu:{spec.gpu_type}:{len(part.gpus)}"
        taken = dict(part.shards)
        each = (f"{taken.get(gpu, 0)}/{spec.shards_per_gpu}" for gpu in range(spec.gpus))
        return f"shard:{sum(taken.values())}({','.join(each)})"

    def state(self, number: int) -> str:
        job = self.world.job(number)
        return min(job.flags, default=job.state)  # as squeue shows it

    def wait(self, number: int, state: str) -> None:
        self.eventually(lambda: self.state(number) == state, within=20, what=f"job {number}")

    def eventually(self, condition: Callable[[], bool], *, within: float, what: str) -> None:
        until = self.world.now + within
        while not condition():
            if self.world.now > until:
                pytest.fail(f"after {within:.0f} s still not: {what}")
            self.world.step(0.1)

    def printed(self, number: int, *, run: int) -> list[str]:
        self.eventually(lambda: (number, run) in self._printed, within=20, what="it has printed")
        return self._printed[number, run]

    def reserve(
        self, name: str, nodes: str, users: str, *, begins: int = 0, ends: int = 3600, flags: str
    ) -> str:
        now = self.world.now
        new = Reservation(
            name=name,
            nodes=frozenset(expand(nodes)),
            users=frozenset(users.split(",")),
            start=now + begins,
            end=now + ends,
            flags=frozenset(filter(None, flags.upper().split(","))),
        )
        try:
            self.world.reserve(new)
        except SlurmError as fault:
            return fault.reason
        return ""

    def reservations(self) -> Mapping[str, Reservation]:
        return self._cluster.snapshot().reservations

    def reservation_of(self, number: int) -> str:
        return self.world.job(number).record().reservation

    def runs(self, number: int) -> list[Run]:
        return self._cluster.runs([number])

    def by(self, user: str, *command: str) -> str:
        try:
            self._run(user, command)
        except SlurmError as fault:
            return fault.reason
        return ""

    def fail(self, number: int) -> None:
        self.world.finish(number, 1)

    def signal(self, user: str, number: int) -> str:
        try:
            self.world.by(user).signal(number, "USR1", script=True)
        except SlurmError as fault:
            return fault.reason
        return ""

    def _run(self, user: str, command: Sequence[str]) -> None:
        person = self.world.by(user)
        match command:
            case ("scancel", number):
                person.cancel(int(number))
            case ("scontrol", "update", which, *fields):
                number = which.removeprefix("JobId=")
                person.update(int(number), dict(field.split("=", 1) for field in fields))
            case ("scontrol", "requeuehold", "incomplete", number):
                person.requeuehold(int(number))
            case ("scontrol", "requeuehold", number):
                person.requeuehold(int(number), incomplete=False)
            case ("scontrol", word, number):
                getattr(person, word)(int(number))

    def _hear(self, what: str, job: Job) -> None:
        if what == "started":
            self._printed[job.id, job.restarts] = lines_of(job)


def read_options(options: Sequence[str]) -> tuple[Wants, dict[str, object]]:
    """Those of sbatch that the claims use."""
    wants: dict[str, object] = {}
    others: dict[str, object] = {}
    words = iter(options)
    for word in words:
        if word == "-w":
            wants["required"] = expand(next(words))
            continue
        if word == "--hold":
            others["hold"] = True
            continue
        if word.startswith("-t"):
            others["time_limit"] = 60.0 * int(word[2:])
            continue
        name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if name in TEXTS:
            wants[TEXTS[name]] = "gres/" + (value if "--gres" in name else f"gpu:{value}")
        elif name == "--gpus-per-task":
            wants["tres_per_task"] = f"gres/gpu:{value}"
        elif name in NUMBERS:
            wants[NUMBERS[name]] = int(value)
        elif name == "-N":
            wants["nodes"] = (int(value), int(value))
        elif name == "--reservation":
            others["reservation"] = value
        elif name == "--elastic":
            others["elastic"] = value
        else:
            raise AssertionError(f"not an option that is known here: {word}")
    return Wants(**wants), others


def lines_of(job: Job) -> list[str]:
    """What the script and the tasks of a run would print."""
    parts = job.parts
    tasks = _folded([part.tasks for part in parts.values()])
    cpus = _folded([part.cpus for part in parts.values()])
    lines = [f"run {job.restarts} {job.record().nodes} tasks={tasks} cpus={cpus}"]
    for name, part in parts.items():
        seen = [*part.gpus, *(index for index, _ in part.shards)]
        own = len(seen) // part.tasks if job.wants.tres_per_task and part.gpus else len(seen)
        for task in range(part.tasks):
            shown = seen[task * own : (task + 1) * own] if own < len(seen) else seen
            lines.append(f"{len(lines) - 1} {name} {','.join(map(str, shown))}")
    return lines


def _folded(counts: list[int]) -> str:
    """As Slurm writes counts of several nodes: 2(x3),1."""
    groups = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
