"""The recipes of docs/recipes.md on a real Slurm: resized by restart, and not a sample lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from steering import JOBS, Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 1500  # of an epoch of the examples
EPOCHS = 9
PATH = "/opt/recipes/bin:/opt/ones/bin:/usr/bin:/bin"

RESULT = """
import json, sys, submitit
print(json.dumps(submitit.SlurmJob("submitit", sys.argv[1]).result()))
"""


@dataclass
class Recipes:
    """onesd with a policy that does as a file says, and the examples with their steps counted."""

    steering: Steering

    @property
    def cluster(self) -> Cluster:
        return self.steering.cluster

    def submit(self, example: str, *words: str, sizes: str, gpus: int, **variables: str) -> int:
        # Not by --export, with which slurmd would ask the node for the user's login environment.
        setting = [f"{name}={value}" for name, value in ({"PATH": PATH} | variables).items()]
        options = [f"--elastic={sizes}", f"--gpus={gpus}", f"--ntasks={gpus}"]
        command = ["env", *setting, "sbatch", "--parsable", "--output=/home/%u/%j.out", *options]
        script = f"/home/recipes/{example}.sbatch"
        return int(self.cluster.run("ctl", [*command, script, *words], "alice").stdout)

    def resize(self, job: int, gpus: int, *, steps: int = 3) -> None:
        """Have the job run at this size, and wait until it has done steps there."""
        self.steering.want(job, gpus)

        def trained() -> bool:
            at_size = [line for line in self.account(job) if line["workers"] == gpus]
            return len(at_size) >= steps * gpus

        self.cluster.eventually(trained, within=120, what=f"job {job} training on {gpus} GPUs")

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

    def ends(self, job: int, *, sizes: list[int]) -> None:
        """The job completes, having run at these sizes and no others."""
        self.steering.wait(job, ["COMPLETED"], within=180)
        life: dict[str, Any] = self.steering.ask("job", str(job))
        assert [run["gpus"] for run in life["runs"]] == sizes
        assert {move["outcome"] for move in life["moves"]} == {"done"}


@pytest.fixture
def examples(cluster: Cluster) -> Cluster:
    """A cluster with the examples in /home/recipes, as they are and with their steps counted."""
    if cluster.run("ctl", "test -x /opt/recipes/bin/python", check=False).returncode:
        missing = "the image has no Lightning and the like: set ONES_CLUSTER_RECIPES=1"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    subprocess.run(["docker", "cp", "--quiet", str(JOBS), f"{cluster.name}-ctl:/home/"], check=True)
    cluster.run("ctl", "rm -rf /home/recipes; mkdir /home/recipes")
    to = f"{cluster.name}-ctl:/home/recipes/"
    for source in (f"{ROOT}/docs/examples", *map(str, (ROOT / "docs/examples").glob("*.sbatch"))):
        subprocess.run(["docker", "cp", "--quiet", source, to], check=True)
    counted = "for each in examples/*.py; do cp /home/jobs/counted.py $(basename $each); done"
    cluster.run("ctl", f"cd /home/recipes && {counted}")
    return cluster


@pytest.fixture
def recipes(examples: Cluster) -> Iterator[Recipes]:
    steering = Steering(examples)
    steering.prepare()
    steering.start_steered(policy="asked")
    yield Recipes(steering)
    steering.prepare()


def each_sample_once(lines: list[dict[str, Any]]) -> None:
    for epoch in range(EPOCHS):
        seen = Counter(number for line in lines if line["epoch"] == epoch for number in line["ids"])
        assert seen == Counter(range(SAMPLES)), f"epoch {epoch}"


def check(recipes: Recipes, job: int, *, sizes: list[int], files: bool = True) -> None:
    """Move a job through these sizes; then it has seen each sample of each epoch once."""
    for gpus in sizes:
        recipes.resize(job, gpus)
    told = recipes.reported(job)
    assert (told["gpus"], told["total_samples"]) == (sizes[-1], EPOCHS * SAMPLES)
    recipes.ends(job, sizes=sizes)
    each_sample_once(recipes.lasting(job))
    if files:
        result = recipes.steering.result("alice", job)
        assert (result["samples"], result["gpus"]) == (EPOCHS * SAMPLES, sizes[-1])


@pytest.mark.parametrize("example", ["lightning_digits", "accelerate_digits"])
def test_with_our_loader_each_sample_is_seen_once_at_any_sizes(
    recipes: Recipes, example: str
) -> None:
    job = recipes.submit(example, f"--epochs={EPOCHS}", sizes="1-4", gpus=2)
    check(recipes, job, sizes=[2, 3, 1])


def test_a_trainer_goes_on_at_sizes_that_divide_its_batch(recipes: Recipes) -> None:
    job = recipes.submit("trainer_digits", f"--epochs={EPOCHS}", sizes="1,2,4", gpus=2)
    check(recipes, job, sizes=[2, 4, 1])


def test_a_function_that_submitit_has_pickled_goes_on_at_another_size(recipes: Recipes) -> None:
    command = ["env", f"PATH={PATH}", "python", "/home/recipes/submitit_digits.py"]
    done = recipes.cluster.run("ctl", [*command, f"--epochs={EPOCHS}"], "alice")
    job = int(done.stdout)
    check(recipes, job, sizes=[2, 3, 1], files=False)
    # Its own result is what submitit gives to whoever waits for the job.
    result = recipes.cluster.run("ctl", [*command[:3], "-c", RESULT, str(job)], "alice")
    assert json.loads(result.stdout)["samples"] == EPOCHS * SAMPLES


def test_submitits_own_signal_has_the_job_start_again_from_its_checkpoint(recipes: Recipes) -> None:
    command = ["env", f"PATH={PATH}", "python", "/home/recipes/submitit_digits.py"]
    done = recipes.cluster.run("ctl", [*command, f"--epochs={EPOCHS}"], "alice")
    job = int(done.stdout)
    recipes.resize(job, 2)
    recipes.resize(job, 1)
    recipes.cluster.run("ctl", ["scancel", "--signal=USR2", str(job)], "alice")
    recipes.steering.wait(job, ["PENDING"], within=30)
    # Slurm would wait for two minutes.
    at_once = ["scontrol", "update", f"job={job}", "StartTime=now"]
    recipes.cluster.run("ctl", at_once, "alice")
    recipes.steering.wait(job, ["COMPLETED"], within=180)
    lines = recipes.lasting(job)
    each_sample_once(lines)
    begins = [min(line["at"] for line in lines if line["restarts"] == run) for run in (0, 2)]
    assert begins[0] == 0 < begins[1]


@pytest.mark.parametrize("example", ["lightning", "trainer", "accelerate", "submitit"])
def test_without_slurm_and_ones_the_example_learns_by_itself(
    examples: Cluster, example: str
) -> None:
    command = ["env", "PATH=/opt/recipes/bin", "python"]
    script = f"/home/recipes/examples/{example}_digits.py"
    done = examples.run("n4", [*command, script, "--epochs=2"], "alice", timeout=120)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["samples"] == 2 * SAMPLES
    assert result["gpus"] == 1
