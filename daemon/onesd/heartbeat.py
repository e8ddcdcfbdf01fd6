"""The heartbeat file: by it job_submit.lua knows whether onesd is there to start what it holds."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

from ones.slurm_ext.snapshot import Snapshot

LIFETIME = 30  # seconds for which one beat speaks
BEAT = 2.0  # seconds between beats


def write(
    path: Path,
    *,
    now: float,
    hold: bool,
    acts: bool,
    snapshot: Snapshot | None,
    takeover: float = 0.0,
) -> None:
    """Write one beat by rename, so that a reader sees the old or the new one, whole.

    It speaks for `takeover` seconds longer, in which another onesd takes over.
    """
    lines = [
        "ones-heartbeat 1",
        f"time {now:.0f}",
        f"lifetime {LIFETIME + takeover:.0f}",
        f"hold {'yes' if hold else 'no'}",
        # While we move jobs, ones-release leaves those that we hold for a move alone.
        f"acts {'yes' if acts else 'no'}",
    ]
    totals: dict[str, Counter[str]] = {}
    for node in snapshot.nodes.values() if snapshot else ():
        for partition in node.partitions:
            if node.gpus:
                totals.setdefault(partition, Counter())[node.gpu_type] += node.gpus
    for partition, types in sorted(totals.items()):
        listed = ",".join(f"{kind}={gpus}" for kind, gpus in sorted(types.items()))
        lines.append(f"partition {partition} {types.total()} {listed}")
    # Of our own name: two hosts may write at once, of which one doesn't know yet that it is over.
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.new")
    beside.write_text("\n".join(lines) + "\n")
    beside.chmod(0o644)
    beside.replace(path)
