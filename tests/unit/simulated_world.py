"""Worlds of the simulated Slurm for the tests: four nodes of four GPUs, and onesd's heartbeat."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site
from ones.slurm_ext.simulated.world import World, gpus

NODES = tuple(NodeSpec(name=f"n{number}", shards_per_gpu=2) for number in range(1, 5))
USERS = {"alice": "vision", "bob": "vision", "carol": "language"}


def a_world(site: dict[str, Any] | None = None, *, seed: int = 1, **settings: Any) -> World:
    """Slurm's delays as on the container cluster; new elastic jobs are held for onesd."""
    quick = Settings(backfill=2.0, kill_wait=5.0, slurmd_timeout=30.0)
    cluster = Site(nodes=NODES, users=USERS)
    world = World(
        replace(cluster, **(site or {})), replace(quick, **settings), rng=Random(seed), now=1000.0
    )
    world.new_jobs_are_held(lambda: True)
    return world


def running(world: World, user: str = "alice", **options: object) -> int:
    """A job of theirs that Slurm has just started."""
    number = world.submit(user, **{"wants": gpus(2), **options})
    world.step(3)
    assert world.job(number).state == "RUNNING"
    return number
