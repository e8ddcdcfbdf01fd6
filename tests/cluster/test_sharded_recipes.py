"""The recipes that shard parameters, on a real Slurm: resized by restart, to the same loss.

Needs the image of scripts/test-recipes.
"""

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

EPOCHS = 6
ENVIRONMENT = "/opt/sharded"
SIZES = [2, 4, 3]
PATIENCE = 400  # seconds: four workers on two cores take a minute to import what they need


@pytest.fixture
def recipes(cluster: Cluster) -> Iterator[Recipes]:
    examples = counted_examples(cluster, ENVIRONMENT, "ONES_CLUSTER_SHARDED")
    steering = Steering(examples)
    steering.prepare()
    steering.start_steered(policy="asked")
    yield Recipes(steering, ENVIRONMENT)
    steering.prepare()


def alone(recipes: Recipes, script: str, *words: str) -> float:
    """The loss that the example comes to with two workers of one node, without Slurm and ONES."""
    path = f"PATH={recipes.path}"
    command = ["env", path, "ones-run", "--workers=2", f"/home/recipes/{script}", *words]
    done = recipes.cluster.run("n4", command, "alice", timeout=300)
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return float(json.loads(told[-1])["loss"])


@pytest.mark.parametrize(
    "words",
    [
        ("fsdp2_digits.py",),
        ("lightning_fsdp2_digits.py",),
        ("accelerate_fsdp2_digits.py",),
        ("deepspeed_digits.py", "--stage=1"),
        ("deepspeed_digits.py", "--stage=2"),
        ("deepspeed_digits.py", "--stage=3"),
    ],
    ids=" ".join,
)
def test_a_sharded_training_goes_on_at_any_sizes_and_comes_to_the_same_loss(
    recipes: Recipes, words: tuple[str, ...]
) -> None:
    words = (*words, f"--epochs={EPOCHS}")
    slow = {"ONES_COUNTED_PAUSE": "0.3"}  # or it would have ended before it is resized
    job = recipes.submit("sharded_digits", *words, sizes="1-4", gpus=SIZES[0], **slow)
    for gpus in SIZES:
        recipes.resize(job, gpus, within=PATIENCE)
    recipes.ends(job, sizes=SIZES, within=PATIENCE)
    each_sample_once(recipes.lasting(job), EPOCHS)
    result = recipes.steering.result("alice", job)
    assert (result["samples"], result["gpus"]) == (EPOCHS * SAMPLES, SIZES[-1])
    assert result["loss"] == pytest.approx(alone(recipes, *words), rel=1e-5)
