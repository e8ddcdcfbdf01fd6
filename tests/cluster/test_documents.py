"""The pages in docs/ are followed word for word, on a cluster without a trace of ONES."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import cluster_up
from pages import FROM_SOURCE, Typed, typed
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


def follow(cluster: Cluster, commands: list[Typed]) -> list[str]:
    """Type each command, those of n1 on every node as the page says; what they printed."""
    printed = []
    for one in commands:
        nodes = ["n1", "n2", "n3", "n4"] if one.node == "n1" else [one.node]
        for node in nodes:
            done = cluster.run(node, one.command, one.user, timeout=120)
            printed.append(f"{one.command}\n{done.stdout}{done.stderr}")
    return printed


def slurm_without_ones(cluster: Cluster) -> str:
    """What would differ if something of ours were left."""
    files = "ls /etc/slurm /etc/systemd/system /var/lib/ones /etc/ones /opt/ones/bin 2>/dev/null"
    settings = "cat /etc/slurm/plugstack.conf; scontrol show config | grep -i JobSubmitPlugins"
    return cluster.run("ctl", f"{files}; {settings}; pgrep -a ones", check=False).stdout


@pytest.fixture
def bare(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster of its own, with ONES taken off by the page's own last section."""
    with cluster_up(f"{cluster.name}-bare") as bare:
        for node in ("ctl", "n1", "n2", "n3", "n4"):
            tool, there = str(ROOT / "tests/cluster/systemctl"), f"{bare.name}-{node}"
            subprocess.run(
                ["docker", "cp", "--quiet", tool, f"{there}:/usr/bin/systemctl"], check=True
            )
            bare.run(node, "mkdir -p /etc/systemd/system; pkill -f '[o]nes-agent'; true")
        bare.run("ctl", "pkill -f '[o]nes-release'; true")
        page = typed("operators.md", FROM_SOURCE)
        follow(bare, [one for one in page if one.section.startswith("8.")])
        yield bare


def test_the_operators_page_installs_observes_enables_and_removes(bare: Cluster) -> None:
    before = slurm_without_ones(bare)
    assert "onesd" not in before
    assert "elastic" not in bare.run("ctl", "sbatch --help").stdout
    commands = typed("operators.md", FROM_SOURCE)
    install = [one for one in commands if not one.section.startswith("8.")]
    until = next(i for i, one in enumerate(install) if one.section.startswith("7."))
    follow(bare, install[:until])
    job = bare.run("ctl", "sbatch --parsable --elastic --gpus=2 --wrap 'sleep 2'", "alice").stdout
    bare.eventually(
        lambda: not bare.run("ctl", "squeue -h").stdout, within=90, what="a plain job in observe"
    )
    follow(bare, install[until:])
    bare.eventually(
        lambda: "hold yes" in bare.run("ctl", "cat /run/ones/heartbeat").stdout,
        within=90,
        what="a heartbeat that lets jobs be held",
    )
    bare.run("ctl", "sbatch --parsable --elastic --gpus=2 --wrap 'sleep 2'", "alice")
    bare.eventually(
        lambda: (
            "start" in bare.run("ctl", "onesctl plan; squeue -h -t R -O Name").stdout
            or not bare.run("ctl", "squeue -h").stdout
        ),
        within=90,
        what="a job started by onesd",
    )
    assert job.strip().isdigit()
    follow(bare, [one for one in commands if one.section.startswith("8.")])
    assert slurm_without_ones(bare) == before


@pytest.fixture
def steering(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    yield steering
    steering.prepare()


def test_the_users_page_can_be_typed_as_it_stands(steering: Steering) -> None:
    cluster = steering.cluster
    examples = f"{ROOT}/docs/examples/."  # with the dot: what is in the folder, not the folder
    subprocess.run(
        ["docker", "cp", "--quiet", examples, f"{cluster.name}-ctl:/home/examples/"], check=True
    )
    steering.start("--mode", "act", "--policy", "ones")
    commands = typed("users.md")
    assert commands
    printed = follow(cluster, commands)
    jobs = re.findall(r"Submitted batch job (\d+)", "\n".join(printed))
    assert jobs
    cluster.eventually(
        lambda: not cluster.run("ctl", "squeue -h").stdout, within=180, what="all jobs at their end"
    )
    states = cluster.run("ctl", f"sacct -X -n -P -o State -j {','.join(jobs)}").stdout.split()
    assert set(states) == {"COMPLETED"}
