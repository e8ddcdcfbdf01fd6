"""Jobs that share GPUs of the simulated Slurm, by what a site has learnt of such jobs before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from served_page import SITE, ServedPage
from simulated_world import NODES

from ones.daemon.config import SharingConfig
from ones.daemon.wire import GpuSample

GPUS = 16  # of all nodes
CARD = 16384  # MiB
USED = 4000  # MiB that a job has needed of it
MIB = 2**20
FAMILIES = (("nobody", "resnet50"), ("alice", "whisper"), ("daemon", "dlrm"), ("bob", "vit-b"))
STEP = 0.5  # seconds, alone
BESIDE = ((0.96, 0.93), (0.91, 0.88), (0.94, 0.97), (0.97, 0.31))  # of it, the two of each pair


def a_page_where_gpus_are_shared(folder: Path) -> ServedPage:
    """Not served yet."""
    users = {**SITE["users"], "bob": "vision"}
    allow = SharingConfig(allow=True)
    return ServedPage(folder, policy="liquid", sharing=allow, site={"users": users})


def share_gpus(page: ServedPage) -> None:
    """Every GPU has a job, and some have two, whose speeds were measured since; one of these pairs
    did so badly that it was separated."""
    work = page.work
    work.again = True
    work.says = {"batch": 64, "step_seconds": STEP, "total_samples": 10**6, "gpus": 1}
    work.gpus = tuple(
        GpuSample(
            minor=minor,
            uuid=str(minor),
            type=NODES[0].gpu_type,
            memory_total=CARD * MIB,
            memory_used=USED * MIB,
            utilization=0.4,
        )
        for minor in range(GPUS // len(NODES))
    )
    for number in range(GPUS + len(BESIDE)):
        user, name = FAMILIES[number % len(FAMILIES)]
        job = work.submit(1, user, name=name, elastic="1-4")
        known: dict[str, Any] = {"job": job, "restarts": 0, "at": 1.0, "user": "", "account": ""}
        known |= {"family": "", "nodes": 1, "gpus": 1, "shared": 0, "resized": 0, "card": CARD}
        # As if it had run alone before: nobody shares of whom nothing is known.
        work.store.put("needs", [known | {"gpu_memory": USED, "busy": 1.2, "samples": 3}])
    met = work.onesd.service.books.pairs.view
    work.live(300, until=lambda: len(met()) == len(BESIDE))
    for pair, speeds in zip(met()[::-1], BESIDE, strict=True):
        for which, speed in zip(("first", "second"), speeds, strict=True):
            work.said_by[pair[which]] = {"step_seconds": STEP / speed}
    work.live(300, until=lambda: all(None not in pair["measured"] for pair in met()))
    work.live(300, until=lambda: any(pair["ended"] is not None for pair in met()))
    page.page.changed()
