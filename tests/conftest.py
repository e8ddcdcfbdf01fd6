"""A real Slurm for the tests marked `cluster`: the containers of scripts/cluster."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from steering import Steering

ROOT = Path(__file__).resolve().parents[1]
LOADED = 3  # times as long as on a quiet machine may be waited for what is sure to come
NODES = ("ctl", "n1", "n2", "n3", "n4")
LAST_WORDS = """
squeue --all; sinfo --Node; timeout 5 onesctl status; timeout 5 onesctl jobs
tail -n 60 /var/log/ones/onesd.log
sacct --allusers --allocations --duplicates --starttime=now-30minutes \
    --format=jobid,user%8,state%20,exitcode,submit,start,end,restarts,nodelist | tail -n 20
tail -n 20 $(ls -t $(find /home -name '*.out' -newermt '-30 minutes') | head -n 2)
tail -n 40 /var/log/slurm/slurmctld.log; tail -n 10 /var/log/slurm/slurmdbd.log
"""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed here; scripts/test runs this in the cluster's image")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """A test that fails on a cluster tells what the cluster and onesd were at."""
    report = (yield).get_result()
    given = getattr(item, "funcargs", {}).values()
    found = (getattr(one, "cluster", one) for one in given)
    cluster = next((one for one in found if isinstance(one, Cluster)), None)
    if report.when == "call" and report.failed and cluster is not None:
        said = cluster.run("ctl", LAST_WORDS, check=False)
        report.sections.append((f"{cluster.name} when it failed", said.stdout + said.stderr))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Runs commands in the containers of one cluster."""

    name: str

    def run(
        self,
        node: str,
        command: Sequence[str] | str,
        user: str | None = None,
        *,
        timeout: float = 180,
        check: bool = True,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, or a line of shell, on a node as root or as a user in his home.

        With `check` a failure fails the test and shows what the command said.
        """
        if isinstance(command, str):
            command = ["bash", "-c", command]
        options = ["--interactive"] if stdin is not None else []
        if user is not None:
            options += ["--user", user, "--workdir", f"/home/{user}", "--env", f"USER={user}"]
        done = subprocess.run(
            ["docker", "exec", *options, f"{self.name}-{node}", *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            input=stdin,
        )
        if check and done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            pytest.fail(f"on {node}: {' '.join(command)}: exit {done.returncode}: {said}")
        return done

    def reconfigure(self) -> None:
        """`scontrol reconfigure`; where slurmctld does not come back, it is started anew.

        That of 24.11.5 was seen to wait for its slurmscriptd for ever, with nobody else at work.
        """
        asked = "timeout 60 scontrol reconfigure && timeout 60 scontrol ping"
        if self.run("ctl", asked, check=False).returncode != 0:
            self.run("ctl", "pkill -KILL -x slurmctld; sleep 1; /usr/sbin/slurmctld")
            there = "timeout 20 scontrol ping"
            self.eventually(
                lambda: self.run("ctl", there, check=False).returncode == 0,
                within=60,
                what="slurmctld again",
            )

    def running(self) -> bool:
        try:
            names = subprocess.run(
                ["docker", "ps", "--filter", f"label=ones.cluster={self.name}", "--quiet"],
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            ).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return False
        return len(names) == len(NODES)

    @staticmethod
    def eventually(condition: Callable[[], bool], *, within: float, what: str) -> None:
        """Wait until the condition holds; fail the test, naming it, when it does not in time.

        `within` is what a quiet machine may need, in seconds; a loaded one has three times as long.
        Each look is a `docker exec`, so that long waits look less often: four clusters that look
        ten times a second take a quarter of two cores from the jobs that they wait for.
        """
        limit, pause = LOADED * within, 0.1
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"after {limit:.0f} s still not: {what}")
            time.sleep(pause)
            pause = min(0.4, 1.1 * pause)


def cluster_name() -> str:
    """That of the tests of this process: those that run side by side have a cluster each."""
    name = os.environ.get("ONES_CLUSTER_NAME", "ones-test")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return f"{name}-{worker}" if worker else name


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster $ONES_CLUSTER_NAME (ones-test), brought up and taken down unless it was up."""
    with cluster_up(cluster_name()) as here:
        yield here


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """onesd on that cluster, of which nothing is left before and after the test."""
    from steering import Steering  # of tests/cluster, which only its own tests find

    steering = Steering(cluster)
    steering.prepare()
    yield steering
    steering.prepare()


@contextmanager
def cluster_up(name: str) -> Iterator[Cluster]:
    """A cluster of that name, brought up and taken down unless it was up."""
    here = Cluster(name)
    if here.running():
        yield here
        return
    script, environment = ROOT / "scripts/cluster", {**os.environ, "ONES_CLUSTER_NAME": name}
    try:
        done = subprocess.run(
            [script, "up"], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            unable = f"no Slurm in containers: {last}"
            if os.environ.get("CI"):
                pytest.fail(unable)
            pytest.skip(f"{unable}; nothing that needs a real Slurm was tested")
        yield here
    finally:
        subprocess.run([script, "down"], env=environment, capture_output=True, check=False)
