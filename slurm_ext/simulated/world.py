"""A cluster with Slurm on it, on a virtual clock: whoever has it plays its users and its faults.

What jobs do is not Slurm's business: a run ends when its `seconds` are over, or when `finish` says
so; signals are only written down. All that happens follows from the calls and the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ones.slurm_ext.simulated import machines, reserving
from ones.slurm_ext.simulated.job import Job, Wants
from ones.slurm_ext.simulated.lifecycle import end, requeue
from ones.slurm_ext.simulated.people import Person
from ones.slurm_ext.simulated.recovery import Saved, go_back, save
from ones.slurm_ext.simulated.scheduling import watch
from ones.slurm_ext.simulated.settings import Account, NodeSpec, Qos, Settings, Site
from ones.slurm_ext.simulated.state import Listener, State
from ones.slurm_ext.simulated.submission import Request
from ones.slurm_ext.snapshot import Reservation, Snapshot

DEFAULTS = Settings()
FOUR_NODES = Site(nodes=tuple(NodeSpec(name=f"n{number}") for number in range(1, 5)))


def gpus(count: int, *, of: str = "", **others: Any) -> Wants:
    """`--gpus=[TYPE:]COUNT`."""
    return Wants(tres_per_job=f"gres/gpu:{of}:{count}" if of else f"gres/gpu:{count}", **others)


class World:
    """The cluster. `state` has all of it, for who checks invariants."""

    def __init__(
        self,
        site: Site = FOUR_NODES,
        settings: Settings = DEFAULTS,
        *,
        rng: Random,
        now: float = 1_000_000.0,
        listener: Listener | None = None,
    ) -> None:
        self.state = State(site, settings, rng, now=now)
        self.settings = settings
        if listener is not None:
            self.state.listener = listener
        self._switches = {spec.name: spec.switches for spec in site.nodes if spec.switches}
        watch(self.state)

    @property
    def now(self) -> float:
        return self.state.now

    def step(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.state.advance(self.state.now + seconds)

    def advance(self, until: float) -> None:
        """Let the time pass until then."""
        self.state.advance(until)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have this done at that time: what jobs and people do by themselves."""
        self.state.outside(time, action)

    def snapshot(self) -> Snapshot:
        """What Slurm says now, whoever may read it."""
        jobs, nodes = self.state.job_records(), self.state.node_records()
        return Snapshot(
            taken=self.now,
            jobs=jobs,
            nodes=nodes,
            switches=self._switches,
            reservations=dict(self.state.reservations),
            booted=f"{self.state.booted:.0f}",
        )

    def job(self, number: int) -> Job:
        """The job in truth. Raises KeyError where Slurm has forgotten it."""
        return self.state.jobs[number]

    def by(self, user: str) -> Person:
        """The user at the command line."""
        return Person(self.state, user)

    def submit(self, user: str, **options: Any) -> int:
        """`sbatch` with the fields of a Request."""
        return self.by(user).submit(Request(**options))

    def new_jobs_are_held(self, holds: Callable[[], bool]) -> None:
        """What onesd's heartbeat tells job_submit.lua."""
        self.state.holds_new_jobs = holds

    def runs(self, number: int) -> bool:
        """Whether processes of the job are there to do anything, whatever slurmctld believes."""
        job = self.state.jobs.get(number)
        if job is None or job.state != "RUNNING" or job.flags or job.absent:
            return False
        return all(self.state.nodes[name].answers for name in job.parts)

    def finish(self, number: int, outcome: int | str = 0) -> None:
        """The running job's batch script ends with this exit code, or the job as Slurm's word.

        An exit code below 0: of this signal.
        """
        job = self.state.jobs.get(number)
        if job is None or job.state != "RUNNING" or job.flags or job.absent:
            return
        if isinstance(outcome, int):
            job.exit_code, job.exit_signal = max(0, outcome), max(0, -outcome)
            outcome = "FAILED" if outcome else "COMPLETED"
        if self.state.down:
            self.state.at(self.now, partial(self._finish_later, job, job.run, outcome))
        else:
            end(self.state, job, outcome)

    def _finish_later(self, job: Job, run: int, outcome: str) -> None:
        if job.run == run and job.state == "RUNNING" and not job.flags:
            end(self.state, job, outcome)

    def preempt(self, number: int) -> None:
        """Slurm stops the running job for another one, and puts it back where it may."""
        job = self.job(number)
        if job.state != "RUNNING" or job.flags:
            return
        if job.requeue:
            requeue(self.state, job, why="PREEMPTED")
        else:
            end(self.state, job, "PREEMPTED")

    def fail_node(self, name: str) -> None:
        """The node is gone; slurmctld sees so when it was silent for SlurmdTimeout."""
        machines.fail_node(self.state, name)

    def take_down(self, name: str, why: str = "an administrator's word") -> None:
        """`scontrol update NodeName=... State=DOWN`."""
        machines.take_down(self.state, name, why)

    def return_node(self, name: str, *, rebooted: bool = False) -> None:
        """The node answers again; where it was rebooted, the jobs that ran there are gone."""
        machines.return_node(self.state, name, rebooted=rebooted)

    def spoil_launch(self, name: str) -> None:
        """The next job that starts on the node is put back, held, and the node is drained."""
        self.state.bad_launchers.add(name)

    def drain(self, name: str, why: str = "an administrator's word") -> None:
        """`scontrol update NodeName=... State=DRAIN`."""
        machines.drain(self.state, name, why)

    def resume_node(self, name: str) -> None:
        """`scontrol update NodeName=... State=RESUME`."""
        machines.resume(self.state, name)

    def stop_slurmctld(self) -> None:
        """Nobody answers; jobs run on."""
        self.state.down = True

    def save_state(self) -> Saved:
        """What slurmctld writes into its StateSaveLocation now."""
        return save(self.state)

    def start_slurmctld(self, saved: Saved | None = None) -> None:
        """It is back, or its backup is, with all it knew, or what was `saved`, and catches up."""
        if saved is not None:
            go_back(self.state, saved)
        self.state.restart()

    def reserve(self, reservation: Reservation) -> None:
        """`scontrol create reservation`, or an update of one. Raises SlurmError."""
        reserving.reserve(self.state, reservation)

    def free_reservation(self, name: str) -> None:
        """`scontrol delete reservation`."""
        reserving.free(self.state, name)

    def limit(self, *limits: Qos | Account) -> None:
        """`sacctmgr modify`: these limits from now on."""
        for each in limits:
            if isinstance(each, Qos):
                self.state.qos[each.name] = each
            else:
                self.state.accounts[each.name] = each
        self.state.wake()
