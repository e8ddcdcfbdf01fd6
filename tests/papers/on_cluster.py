"""What measurements on the container cluster share: the cluster, clocks read in jobs, tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

from conftest import Cluster  # noqa: E402
from steering import Steering  # noqa: E402


@contextmanager
def standing() -> Iterator[Cluster]:
    """A cluster of its own, or the running one that $ONES_CLUSTER_NAME names."""
    cluster = Cluster(os.environ.get("ONES_CLUSTER_NAME", "ones-bench"))
    script = ROOT / "scripts/cluster"
    environment = {**os.environ, "ONES_CLUSTER_NAME": cluster.name}
    was_up = cluster.running()
    if not was_up:
        subprocess.run([script, "up"], env=environment, check=True)
    try:
        yield cluster
    finally:
        if not was_up:
            subprocess.run([script, "down"], env=environment, check=True)


@contextmanager
def steered() -> Iterator[Steering]:
    """A cluster as of `standing`, without jobs before and after."""
    with standing() as cluster:
        onesd = Steering(cluster)
        onesd.prepare()
        yield onesd
        onesd.prepare()


def on_controller(
    cluster: Cluster, name: str, *arguments: str, user: str = "root", timeout: float
) -> str:
    """What a program of this folder printed there; it may import slurmctld_load."""
    folder, module = "/tmp/measuring", "slurmctld_load.py"
    there = f"mkdir -p {folder} && cat > {folder}/{module}"
    cluster.run("ctl", there, stdin=(HERE / module).read_text())
    python = ["env", f"PYTHONPATH={folder}", "/opt/ones/bin/python", "-", *arguments]
    program = (HERE / name).read_text()
    command = ["runuser", "-u", user, "--", *python]
    return cluster.run("ctl", command, stdin=program, timeout=timeout).stdout


def clock(onesd: Steering, user: str, name: str, *, within: float = 120.0) -> float:
    """The time that a job wrote into a file of its user's home."""
    path = f"/home/{user}/{name}"
    read: list[str] = []

    def there() -> bool:
        read[:] = onesd.cluster.run("ctl", f"cat {path}", check=False).stdout.split()
        return bool(read)

    Cluster.eventually(there, within=within, what=path)
    return float(read[0])


def table(title: str, arms: Sequence[str], pairs: Sequence[Sequence[float]]) -> None:
    """Print the pairs and their medians, the differences among them."""
    print(f"| {title} | {' | '.join(arms)} | difference |")
    print("|---" * (len(arms) + 2) + "|")
    for number, pair in enumerate(pairs, start=1):
        print(
            f"| {number} | {' | '.join(f'{x:.1f} s' for x in pair)} | {pair[-1] - pair[0]:.1f} s |"
        )
    column: Callable[[int], float] = lambda arm: median(pair[arm] for pair in pairs)  # noqa: E731
    difference = median(pair[-1] - pair[0] for pair in pairs)
    medians = " | ".join(f"{column(arm):.1f} s" for arm in range(len(arms)))
    print(f"| **median of {len(pairs)}** | {medians} | {difference:.1f} s |")
