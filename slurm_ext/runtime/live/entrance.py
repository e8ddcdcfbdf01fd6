"""How ones-run becomes a live job's base launcher, or joins one."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ones.slurm_ext.runtime.environment import (
    TICKET,
    EnvironmentFault,
    Place,
    read_environment,
)
from ones.slurm_ext.runtime.live.base import JOIN, Base
from ones.slurm_ext.runtime.live.home import Home
from ones.slurm_ext.runtime.live.satellite import Satellite
from ones.slurm_ext.runtime.live.submitting import Ours


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
    words: tuple[str, ...],
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
        ticket = os.environ.get(TICKET, "")
        offer = {"name": name, "job": job, "ticket": ticket, "slots": slots, "workers": workers}
        return Satellite(home, join, offer).run()
    host = "127.0.0.1" if place.master == "localhost" else place.master
    base = Base(home, folder, host=host, slots=slots, workers=workers)
    environment = read_environment(os.environ)
    if environment.job is not None and environment.socket:
        join = (folder / JOIN).absolute()
        launcher = (sys.executable, "-m", "ones.slurm_ext.runtime.launcher")
        ours = Ours(
            job=environment.job,
            restarts=environment.restarts,
            gpus=workers,
            command=(*launcher, f"--join={join}", *words),
            log=join.with_name("satellite-%j.out"),
        )
        base.serve(environment.socket, ours, dict(os.environ))
    return base.run()


def _folder() -> Path:
    """Where those who join find the base: on all nodes, in a Slurm job."""
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        return Path.cwd() / "ones-checkpoints" / job / "live"
    return Path(tempfile.mkdtemp(prefix="ones-run-"))
