"""The recipes of docs/recipes.md on a real Slurm: resized by restart, and not a sample lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from example_jobs import SAMPLES, Recipes, counted_examples, each_sample_once
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

EPOCHS = 9
ENVIRONMENT = "/opt/recipes"
PATH = f"{ENVIRONMENT}/bin:/opt/ones/bin:/usr/bin:/bin"

RESULT = """
import json, sys, submitit
print(json.dumps(submitit.SlurmJob("submitit", sys.argv[1]).result()))
"""


@pytest.fixture
def examples(cluster: Cluster) -> Cluster:
    return counted_examples(cluster, ENVIRONMENT, "ONES_CLUSTER_RECIPES")


@pytest.fixture
def recipes(examples: Cluster) -> Iterator[Recipes]:
    steering = Steering(examples)
    steering.prepare()
    steering.start_steered(policy="asked")
    yield Recipes(steering, ENVIRONMENT)
    steering.prepare()


def check(recipes: Recipes, job: int, *, sizes: list[int], files: bool = True) -> None:
    """Move a job through these sizes; then it has seen each sample of each epoch once."""
    for gpus in sizes:
        recipes.resize(job, gpus)
    told = recipes.reported(job)
    assert (told["gpus"], told["total_samples"]) == (sizes[-1], EPOCHS * SAMPLES)
    recipes.ends(job, sizes=sizes)
    each_sample_once(recipes.lasting(job), EPOCHS)
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
    recipes.steering.requeued_without_delay(job, within=30)
    recipes.steering.wait(job, ["COMPLETED"], within=180)
    lines = recipes.lasting(job)
    each_sample_once(lines, EPOCHS)
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
