"""The examples of docs/examples as jobs of a real Slurm, the samples of their steps counted."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from steering import JOBS, Steering

if TYPE_CHECKING:
    from conftest import Cluster

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 1500  # of an epoch of the examples


@dataclass
class Recipes:
    """onesd with a policy that does as a file says, and the examples with their steps counted."""

    steering: Steering
    environment: str  # the folder of the Python environment that has the frameworks

    @property
    def cluster(self) -> Cluster:
        return self.steering.cluster

    @property
    def path(self) -> str:
        return f"{self.environment}/bin:/opt/ones/bin:/usr/bin:/bin"

    def submit(self, example: str, *words: str, sizes: str, gpus: int, **variables: str) -> int:
        # Not by --export, with which slurmd would ask the node for the user's login environment.
        setting = [f"{name}={value}" for name, value in ({"PATH": self.path} | variables).items()]
        options = [f"--elastic={sizes}", f"--gpus={gpus}", f"--ntasks={gpus}"]
        command = ["env", *setting, "sbatch", "--parsable", "--output=/home/%u/%j.out", *options]
        script = f"/home/recipes/{example}.sbatch"
        return int(self.cluster.run("ctl", [*command, script, *words], "alice").stdout)

    def resize(self, job: int, gpus: int, *, steps: int = 3, within: float = 120) -> None:
        """Have the job run at this size, and wait until it has done steps there."""
        self.steering.want(job, gpus)

        def trained() -> bool:
            at_size = [line for line in self.account(job) if line["workers"] == gpus]
            return len(at_size) >= steps * gpus

        self.cluster.eventually(trained, within=within, what=f"job {job} training on {gpus} GPUs")

    def reported(self, job: int) -> dict[str, Any]:
        """What ONES says of a running job, once it knows something."""
        found: dict[str, Any] = {}

        def told() -> bool:
            found.update(*(one for one in self.steering.ask("jobs")["jobs"] if one["job"] == job))
            return bool(found.get("samples_per_second")) and found["loss"] is not None

        self.cluster.eventually(told, within=30, what=f"progress of job {job}")
        return found

    def account(self, job: int, user: str = "alice") -> list[dict[str, Any]]:
        """What the workers wrote: their samples of each step."""
        text = self.cluster.run("ctl", f"cat /home/{user}/seen-{job}/*", check=False).stdout
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def lasting(self, job: int) -> list[dict[str, Any]]:
        """The lines of steps that were not done again, by a later run from its checkpoint."""
        lines = self.account(job)
        begins: dict[int, int] = {}
        for line in lines:
            run = line["restarts"]
            begins[run] = min(line["at"], begins.get(run, line["at"]))
        return [
            line
            for line in lines
            if all(line["at"] < at for run, at in begins.items() if run > line["restarts"])
        ]

    def ends(self, job: int, *, sizes: list[int], within: float = 180) -> None:
        """The job completes, having run at these sizes and no others."""
        self.steering.wait(job, ["COMPLETED"], within=within)
        life: dict[str, Any] = self.steering.ask("job", str(job))
        assert [run["gpus"] for run in life["runs"]] == sizes
        assert {move["outcome"] for move in life["moves"]} == {"done"}


def needs_environment(cluster: Cluster, environment: str, layer: str) -> None:
    """Skips the test where the cluster's image lacks the environment; fails where `layer`, the
    variable that has it built, is set.
    """
    if cluster.run("ctl", f"test -x {environment}/bin/python", check=False).returncode:
        missing = f"the image has no {environment}: set {layer}=1"
        if os.environ.get(layer) == "1":
            pytest.fail(missing)
        pytest.skip(missing)


def counted_examples(cluster: Cluster, environment: str, layer: str) -> Cluster:
    """A cluster with the examples in /home/recipes, as they are and with their steps counted."""
    needs_environment(cluster, environment, layer)
    subprocess.run(["docker", "cp", "--quiet", str(JOBS), f"{cluster.name}-ctl:/home/"], check=True)
    cluster.run("ctl", "rm -rf /home/recipes; mkdir /home/recipes")
    to = f"{cluster.name}-ctl:/home/recipes/"
    for source in (f"{ROOT}/docs/examples", *map(str, (ROOT / "docs/examples").glob("*.sbatch"))):
        subprocess.run(["docker", "cp", "--quiet", source, to], check=True)
    counted = "for each in examples/*.py; do cp /home/jobs/counted.py $(basename $each); done"
    cluster.run("ctl", f"cd /home/recipes && {counted}")
    return cluster


def each_sample_once(lines: list[dict[str, Any]], epochs: int) -> None:
    for epoch in range(epochs):
        seen = Counter(number for line in lines if line["epoch"] == epoch for number in line["ids"])
        assert seen == Counter(range(SAMPLES)), f"epoch {epoch}"
