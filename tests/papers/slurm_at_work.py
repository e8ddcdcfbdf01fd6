"""The simulated Slurm of scripts/benchmark-doors, with its people and jobs, as a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from busy_cluster import BusyCluster
from slurm_apart import SlurmDoor

from ones.daemon.wire import Lease, NodeReport
from ones.slurm_ext.simulated.cluster import SimulatedCluster

INTERVAL = 10.0  # seconds between two reports of an agent
ROUND = 15.0
PAUSE = 0.25
FIRST_ROUNDS = 2  # before more plain jobs come than there is room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the agents of all nodes are to report next, as JSON; `full`: all jobs have come."""

    reports: dict[str, bytes]
    full: bool


def work(
    path: Path, *, nodes: int, jobs: int, seed: int, users: Sequence[str], pipe: Connection
) -> None:
    """Until the other end of the pipe is closed. Through it go the reports that agents are to make,
    and come the leases that onesd has answered with."""
    cluster = BusyCluster(
        nodes=nodes, jobs=jobs, seed=seed, interval=INTERVAL, users=users, now=time.time() - 60.0
    )
    world, one = cluster.world, threading.Lock()
    leases: dict[int, Lease] = {}
    reports: dict[str, NodeReport] = {}
    world.state.operators.update(users[:1])
    world.new_jobs_are_held(lambda: True)
    plain = cluster.begin(
        hear=lambda report: reports.update({report.node: report}), lease=leases.get
    )
    door = SlurmDoor(path, SimulatedCluster(world), one)
    full, reported, changed = False, 0.0, time.time()
    pipe.send(Said(reports={}, full=False))
    try:
        while True:
            with one:
                world.advance(max(world.now, time.time()))
                cluster.trainings.signals()
                if not full and door.calls["order"] >= FIRST_ROUNDS:
                    cluster.fill(plain)
                    full, changed = True, time.time()
                if full and time.time() - changed > ROUND:
                    cluster.some_change()
                    changed = time.time()
                due = time.time() - reported > INTERVAL
                if due:
                    cluster.trainings.report()
            if due:
                reported = time.time()
                told = {node: msgspec.json.encode(report) for node, report in reports.items()}
                pipe.send(Said(reports=told, full=full))
            while pipe.poll():
                leases.update(pipe.recv())
            time.sleep(PAUSE)
    except (EOFError, BrokenPipeError):
        return
