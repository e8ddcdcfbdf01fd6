"""How ones-run becomes a live job's base launcher, or joins one."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from ones.slurm_ext.runtime.environment import EnvironmentFault, Place
from ones.slurm_ext.runtime.live.base import JOIN, Base
from ones.slurm_ext.runtime.live.home import Home
from ones.slurm_ext.runtime.live.satellite import Satellite


def unable(is_python: bool) -> str:
    """Why this node can't resize live; empty where it can."""
    if not is_python:
        return "--live needs a Python script"
    if importlib.util.find_spec("torch") is None:
        return "--live needs PyTorch; install torch, or leave --live out"
    from ones.slurm_ext.runtime.live.group import supported  # noqa: PLC0415 (heavy)

    reason = supported()
    return f"{reason}; leave --live out, and jobs are resized by a restart" if reason else ""


def lead(
    run: Callable[[Place], None],
    die_with: Callable[[int], None],
    *,
    place: Place,
    workers: int,
    slots: int | None,
    folder: Path | None,
    join: Path | None,
) -> int:
    """Be the base, or one who joins it, until the job is over; its exit code."""
    slots = workers if slots is None else slots
    if slots < workers:
        raise EnvironmentFault(f"--slots is {slots}, with {workers} workers to begin with")
    home = Home(run, die_with)
    folder = folder or _folder()
    job = os.environ.get("SLURM_JOB_ID", "")
    if join is None and place.node_rank:
        join = folder / JOIN  # the other nodes of one Slurm job join the first
    if join is not None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        name = f"{job}.{node}" if place.node_rank else job or f"{node}.{os.getpid()}"
        return Satellite(home, join, name=name, job=job, slots=slots, workers=workers).run()
    host = "127.0.0.1" if place.master == "localhost" else place.master
    return Base(home, folder, host=host, slots=slots, workers=workers).run()


def _folder() -> Path:
    """Where those who join find the base: on all nodes, in a Slurm job."""
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        return Path.cwd() / "ones-checkpoints" / job / "live"
    return Path(tempfile.mkdtemp(prefix="ones-run-"))
