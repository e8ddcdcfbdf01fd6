"""Events of a real Slurm: they bring rounds forward, and their loss delays nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

HOOK = "/usr/local/libexec/ones/ones-event"
SLOW = "round = 300.0\n[guard]\ngrace_time = 3.0\n"


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    steering.configure(SLOW)
    yield steering
    steering.prepare()


def rounds(onesd: Steering) -> int:
    return int(onesd.ask("status")["round"]["number"])


def sources(onesd: Steering) -> set[str]:
    """What onesd has heard of since it started."""
    ask = "from urllib.request import urlopen; print(urlopen('http://localhost:7667/metrics').read().decode())"
    text = onesd.cluster.run("ctl", ["/opt/ones/bin/python", "-c", ask]).stdout
    return {
        line.split('"')[1]
        for line in text.splitlines()
        if line.startswith("ones_events_total") and float(line.split()[-1]) > 0
    }


def plain(onesd: Steering, *words: str) -> int:
    """A job of all GPUs that Slurm starts itself."""
    whole = ["--nodes=4", "--gpus-per-node=4", "--job-name=plain"]
    return onesd.submit("bob", *whole, *words)


def test_with_rounds_of_minutes_the_next_job_starts_right_after_one_ends(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    blocker = plain(onesd, "--wrap=sleep 300")
    onesd.wait(blocker, ["RUNNING"], within=20)
    waiting = onesd.counting("alice", "4", 4, 300)
    onesd.cluster.run("ctl", "sleep 5")  # events of the start are served
    assert onesd.state(waiting) == "PENDING"
    onesd.cluster.run("ctl", f"scancel {blocker}")
    onesd.wait(waiting, ["RUNNING", "COMPLETED"], within=30)


def test_with_the_hook_gone_an_agents_word_brings_the_round(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    blocker = plain(onesd, "--wrap=sleep 300")
    onesd.wait(blocker, ["RUNNING"], within=20)
    waiting = onesd.counting("alice", "4", 4, 300)
    onesd.cluster.run("ctl", f"mv {HOOK} {HOOK}.away; printf '#!/bin/sh\\n' > {HOOK}")
    onesd.cluster.run("ctl", f"chmod 755 {HOOK}; sleep 5")
    try:
        onesd.cluster.run("ctl", f"scancel {blocker}")
        onesd.wait(waiting, ["RUNNING", "COMPLETED"], within=30)
        assert "agent" in sources(onesd)
        assert "epilog" not in sources(onesd)
    finally:
        onesd.cluster.run("ctl", f"mv {HOOK}.away {HOOK}")


def test_a_storm_of_events_makes_few_rounds(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    before = rounds(onesd)
    onesd.cluster.run("ctl", f"end=$((SECONDS + 8)); while ((SECONDS < end)); do {HOOK}; done")
    assert 1 <= rounds(onesd) - before <= 9


@pytest.mark.parametrize("daemon", ["none", "dead", "hung"])
def test_the_hook_ends_well_within_a_second_whatever_the_daemon_does(
    onesd: Steering, daemon: str
) -> None:
    if daemon != "none":
        onesd.start("--policy", "fifo")
    if daemon == "dead":
        onesd.kill()
    if daemon == "hung":
        onesd.cluster.run("ctl", "pkill -STOP -u ones -f onesd")
    try:
        begun = time.monotonic()
        for _ in range(5):
            onesd.cluster.run("ctl", f"for i in $(seq 100); do {HOOK} || exit 1; done", "bob")
        assert (time.monotonic() - begun) / 500 < 1.0
        job = onesd.submit("bob", "--gpus=1", "--wrap=true")
        onesd.wait(job, ["COMPLETED"], within=20)
    finally:
        onesd.cluster.run("ctl", "pkill -CONT -f onesd", check=False)


def test_events_can_be_turned_off(onesd: Steering) -> None:
    onesd.configure(f"{SLOW}[events]\nwake = false\n")
    onesd.start("--policy", "fifo")
    before = rounds(onesd)
    onesd.cluster.run("ctl", f"{HOOK}; sleep 4")
    assert rounds(onesd) == before


def test_an_ended_job_is_told_of_in_the_nodes_report(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    job = onesd.submit("bob", "--gpus=1", "--wrap=sleep 4")
    onesd.wait(job, ["COMPLETED"], within=30)
    wanted = {"epilog", "prolog", "agent"}
    onesd.cluster.eventually(
        lambda: wanted <= sources(onesd), within=15, what=f"events of {json.dumps(sorted(wanted))}"
    )
