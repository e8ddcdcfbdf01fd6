"""Slurm itself behind the seam: written to by its programs, read by them or by PySlurm."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ones.slurm_ext.accounting import Run, runs_of
from ones.slurm_ext.cluster import JobDetails, NodeSize
from ones.slurm_ext.command_reader import read_jobs, read_reservations
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.job_json import job_record
from ones.slurm_ext.lapse import started
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.limits_reading import read_limits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.priority_reader import PriorityReader
from ones.slurm_ext.snapshot import Reader, Snapshot
from ones.slurm_ext.tres import gpus_in
from ones.slurm_ext.usage import Usage, usage_of

SIGNAL_TIMEOUT = 10.0
SIGNAL_REFUSED = "Kill job error on job id"  # of scancel
MOST_TASKS = 10_000  # remembered
STEERING = frozenset({"Operator", "Administrator"})  # Slurm's levels of those who may
_NOT_OURS = frozenset({"batch", "extern", "interactive"})


class Slurm:
    """The cluster that the commands reach."""

    def __init__(self, commands: Commands, reader: Reader) -> None:
        self._commands = commands
        self._reader = reader
        self._tasks: dict[int, str] = {}  # of arrays, among the jobs that were read one by one
        self._priorities = PriorityReader(commands, time.monotonic)
        self._started = ""  # when the slurmctld that answered last began to

    @property
    def name(self) -> str:
        return self._reader.name

    def snapshot(self) -> Snapshot:
        snapshot = self._reader.snapshot()
        before, now = self._started, started(self._commands)
        if before and now and now != before:
            # What was read may be what the slurmctld before said.
            snapshot = self._reader.snapshot()
        self._started = now or before
        unread = dict(snapshot.unread)
        reservations = read_reservations(self._commands, unread)
        return replace(snapshot, reservations=reservations, unread=unread, booted=now)

    def job(self, number: int) -> JobDetails | None:
        found = read_jobs(self._commands, [number])
        raw = next((raw for raw in found if raw["job_id"] == number), None)
        self._tasks.pop(number, None)
        if raw is None:
            return None
        details = _details(raw)
        if details.record.array_job:
            if len(self._tasks) >= MOST_TASKS:
                self._tasks.clear()  # whoever writes to a job has just read it
            self._tasks[number] = f"{details.record.array_job}_{details.record.array_task}"
        return details

    def _named(self, number: int) -> str:
        """The job to Slurm's programs, which take the number of one task for its whole array."""
        return self._tasks.get(number, str(number))

    def has_steps(self, number: int) -> bool:
        text = self._commands.run(
            "squeue",
            "--noheader",
            "--steps",
            f"--jobs={self._named(number)}",
            "--Format=StepID:200",
        )
        steps = {line.strip().rpartition(".")[2] for line in text.splitlines()} - {""}
        return bool(steps - _NOT_OURS)

    def runs(self, jobs: Iterable[int]) -> list[Run]:
        return runs_of(self._commands, jobs)

    def usage(self, jobs: Iterable[int]) -> list[Usage]:
        return usage_of(self._commands, jobs)

    def node_sizes(self) -> Mapping[str, NodeSize]:
        text = self._commands.run("sinfo", "--noheader", "--Node", "--format=%N|%c|%m")
        found = [line.strip().split("|") for line in text.splitlines()]
        try:
            return {name: NodeSize(cpus=int(cpus), memory=int(mib)) for name, cpus, mib in found}
        except ValueError:
            raise SlurmError("sinfo", "its answer is not a node's name, CPUs and memory") from None

    def order(self) -> Order:
        return self._priorities.order()

    def limits(self) -> SiteLimits:
        return read_limits(self._commands)

    def operators(self) -> frozenset[str]:
        text = self._commands.run("sacctmgr", "-nP", "show", "user", "format=user,adminlevel")
        pairs = [line.split("|") for line in text.splitlines()]
        return frozenset(pair[0] for pair in pairs if len(pair) == 2 and pair[1] in STEERING)

    def update(self, number: int, fields: Mapping[str, str]) -> None:
        said = (f"{name}={value}" for name, value in fields.items())
        self._commands.write("scontrol", "update", f"JobId={self._named(number)}", *said)

    def hold(self, number: int) -> None:
        self._commands.write("scontrol", "hold", self._named(number))

    def release(self, number: int) -> None:
        self._commands.write("scontrol", "release", self._named(number))

    def requeue_hold(self, number: int) -> None:
        # `incomplete`: without it a job that has ended meanwhile would be run again.
        self._commands.write("scontrol", "requeuehold", "incomplete", self._named(number))

    def revive(self, number: int) -> None:
        self._commands.write("scontrol", "requeuehold", self._named(number))

    def signal(self, number: int, signal: str, *, script: bool) -> None:
        # `--ctld`: without it scancel has all jobs told to it before it signals one, and gives no
        # answer for minutes on one that was just requeued. With it a refusal ends with status 0.
        words = ("--ctld", f"--signal={signal}", *(["--batch"] if script else []))
        timeout = min(SIGNAL_TIMEOUT, self._commands.timeout)
        self._commands.write(
            "scancel", *words, self._named(number), timeout=timeout, refusal=SIGNAL_REFUSED
        )

    def cancel(self, number: int) -> None:
        self._commands.write("scancel", self._named(number))


def _details(raw: Mapping[str, Any]) -> JobDetails:
    memory = raw["memory_per_node"]
    comment = raw.get("comment")
    return JobDetails(
        record=job_record(raw),
        cpus_per_gpu=gpus_in(raw["cpus_per_tres"]),
        memory_per_node=memory["number"] if memory["set"] else None,
        comment=comment if isinstance(comment, str) else "",
    )
