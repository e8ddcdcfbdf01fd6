"""Runs from which the network of policy `drl` learns: replays of workloads drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import process_time

import numpy as np
from completion_times import EVEN, read

from ones.daemon.replay.simulation import World, replay
from ones.daemon.replay.workload import Workload
from ones.policies.drl import STOP, Drl, chosen_by
from ones.policies.drl_network import Network
from ones.policies.model import Floats, Ints, JobId, Node, Problem, Seconds
from ones.policies.optimus import Optimus

JOBS = 40
FORESIGHT: Seconds = 3600.0  # time by which what comes of a choice counts e times less


@dataclass(frozen=True, slots=True)
class Trip:
    """One run: its choices, and the mean time of its jobs."""

    features: Floats  # [R, FEATURES] rows of all choices, one after the other
    counts: Ints  # [C] rows of each
    actions: Ints  # [C] which row was taken
    ahead: Floats  # [C] job seconds to come, those further off counting less
    times: Floats  # [C] when
    mean: Seconds


def drawn(seed: int) -> tuple[Workload, World]:
    """A workload and its world."""
    rng = np.random.default_rng([seed, 5])
    pool = [job for number in EVEN for job in read("pollux/workloads", number).jobs]
    nodes = int(rng.choice([4, 8, 16]))
    load = float(rng.uniform(0.5, 2.0))
    gaps = rng.exponential(180.0 * 16 / nodes / load, JOBS)  # 20 an hour on 16 nodes, times load
    jobs = [
        replace(pool[int(rng.integers(len(pool)))], submitted=float(at), name=f"job-{number}")
        for number, at in enumerate(np.cumsum(gaps))
    ]
    restart, pace = (30.0, 60.0) if rng.random() < 0.5 else (2.0, 20.0)
    cluster = tuple(Node(name=f"n{i:02d}", gpu_type="aws", gpus=4) for i in range(nodes))
    return Workload(tuple(jobs), ()), World(
        nodes=cluster, round_seconds=max(pace, 60.0), restart_seconds=restart, seed=seed
    )


@dataclass(slots=True)
class Notes:
    """What is chosen in a run: by the network, or as a policy would have it that is its teacher."""

    network: Network
    rng: np.random.Generator
    teacher: Optimus | None = None
    rows: list[Floats] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    times: list[Seconds] = field(default_factory=list)
    taught_at: Seconds = -1.0
    wanted: dict[JobId, int] = field(default_factory=dict)  # GPUs, as the teacher has it
    held: dict[JobId, int] = field(default_factory=dict)  # GPUs, after the steps so far

    def choose(self, problem: Problem, steps: Sequence[tuple[JobId, int]], features: Floats) -> int:
        if self.teacher is None:
            action = chosen_by(self.network, features, self.rng)
        else:
            action = self._as_taught(problem, steps)
        self.rows.append(features.astype(np.float32))
        self.actions.append(action)
        self.times.append(problem.now)
        return action

    def _as_taught(self, problem: Problem, steps: Sequence[tuple[JobId, int]]) -> int:
        """A step towards the teacher's sizes, those that free GPUs first; else to stop."""
        if self.taught_at != problem.now and self.teacher is not None:
            plan, _ = self.teacher.plan(problem, None, self.rng)
            self.taught_at = problem.now
            self.wanted = {job: one.placement.gpus for job, one in plan.assignments.items()}
            self.held = {job.id: job.placement.gpus if job.placement else 0 for job in problem.jobs}
        for number, (job, after) in enumerate(steps, 1):
            wanted, now = self.wanted.get(job, 0), self.held[job]
            if min(now, wanted) <= after <= max(now, wanted) and after != now:
                self.held[job] = after
                return number
        return STOP


def trip(network: Network, task: tuple[int, int], taught: bool = False) -> Trip:
    """A run of the workload of one seed, with draws of another."""
    seed, draws = task
    workload, world = drawn(seed)
    notes = Notes(network, np.random.default_rng(task), Optimus() if taught else None)
    policy = Drl(network=network, choose=notes.choose)
    done = replay(workload, policy, replace(world, seed=draws), clock=process_time)
    spans = [(job.trace.submitted, job.finished or 0.0) for job in done.jobs]
    return Trip(
        features=np.concatenate(notes.rows),
        counts=np.array([len(one) for one in notes.rows]),
        actions=np.array(notes.actions),
        ahead=job_seconds(np.array(notes.times), np.array(spans)),
        times=np.array(notes.times),
        mean=float(np.mean([end - begin for begin, end in spans])),
    )


def job_seconds(times: Floats, spans: Floats) -> Floats:
    """[C] at each time, what is still to come of all jobs' time in the system, where a second t
    ahead counts exp(-t / FORESIGHT)."""
    begins = np.maximum(spans[:, 0][None], times[:, None])
    ends = np.maximum(spans[:, 1][None], begins)
    far = (
        np.exp(-(begins - times[:, None]) / FORESIGHT),
        np.exp(-(ends - times[:, None]) / FORESIGHT),
    )
    return np.asarray(FORESIGHT * (far[0] - far[1]).sum(axis=1))
