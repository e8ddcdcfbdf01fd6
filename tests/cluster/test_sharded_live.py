"""A transformer of 100 million parameters, cut over GPUs of two nodes and resized on a real Slurm.

Takes half an hour, and needs the image of `scripts/test-sharded --on-slurm`. What each change cost
is printed: `-rP` shows it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from example_jobs import needs_environment
from steering import Steering
from test_live import IN_A_HURRY, Live

SHARDED = Path(__file__).resolve().parents[1] / "sharded"
sys.path.append(str(SHARDED))

from trainings import Seen, apart, counting  # noqa: E402

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

ENVIRONMENT = "/opt/sharded"
EPOCHS, SAMPLES, BATCH = 2, 100, 8
TRAINING = (
    *("/home/jobs/train.py", "--width=768", "--layers=14", "--pause=8"),
    *(f"--epochs={EPOCHS}", f"--samples={SAMPLES}", f"--batch={BATCH}"),
)
ROUNDING = 1e-3  # relative: a sum over workers is summed in another order for each size
PATIENCE = 900.0  # seconds: two cores import, build and train all of it
FOLDER = "/home/alice/sharded"
SETTINGS = f"""{IN_A_HURRY}
[moves]
checkpoint_timeout = 600.0
requeue_timeout = 300.0
start_timeout = 300.0
live_timeout = 600.0
"""


@dataclass
class Large:
    """Trainings of it on a cluster, and what their workers have written."""

    live: Live
    folder: Path

    def start(self, name: str, *options: str, gpus: int, words: Sequence[str] = ()) -> int:
        """Submit it; while it is slow it waits for a while after each step."""
        self.live.cluster.run("ctl", f"touch {FOLDER}/slow-{name}", "alice")
        written = (f"--seen={FOLDER}/{name}", f"--slow={FOLDER}/slow-{name}")
        words = (*words, *TRAINING, *written, *options)
        return self.live.launch(*words, gpus=gpus)

    def ends(self, job: int, name: str) -> None:
        self.live.cluster.run("ctl", f"rm {FOLDER}/slow-{name}", "alice")
        self.live.steering.wait(job, ["COMPLETED", "FAILED"], within=PATIENCE)
        assert self.live.steering.state(job) == "COMPLETED"
        self.live.none_left()

    def trains(self, name: str, gpus: int) -> None:
        """Wait until there has been a step of so many workers, none of them absent, at the end."""

        def so() -> bool:
            steps = self.seen().every_step(name)
            last = max((step.before for step in steps), default=0)
            sizes = [step.workers for step in steps if step.before == last]
            return sizes == [gpus] * gpus

        self.live.cluster.eventually(so, within=PATIENCE, what=f"{name} with {gpus} workers")

    def seen(self) -> Seen:
        subprocess.run(
            ["docker", "cp", "--quiet", f"{self.live.cluster.name}-ctl:{FOLDER}/.", self.folder],
            check=True,
        )
        return Seen(self.folder)

    def pids(self, job: int) -> dict[str, int]:
        status = self.live.status(job)
        assert status is not None
        return {each["slot"]: each["pid"] for each in status["members"]}


@pytest.fixture(scope="module")
def large(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    needs_environment(cluster, ENVIRONMENT, "ONES_CLUSTER_SHARDED")
    steering = Steering(cluster)
    steering.prepare()
    script = [str(SHARDED / "train.py"), f"{cluster.name}-ctl:/home/jobs/"]
    subprocess.run(["docker", "cp", "--quiet", *script], check=True)
    cluster.run("ctl", f"rm -rf {FOLDER}; mkdir {FOLDER}", "alice")
    live = Live(steering, ENVIRONMENT)
    live.start(settings=SETTINGS)
    yield Large(live, tmp_path_factory.mktemp("seen"))
    steering.prepare()


@pytest.fixture(scope="module")
def alone(large: Large) -> dict[str, Any]:
    """The same training by one process of one node, without Slurm and ONES."""
    command = [f"{ENVIRONMENT}/bin/python", *TRAINING, f"--seen={FOLDER}/alone"]
    large.live.cluster.run("n4", command, "alice", timeout=2 * PATIENCE)
    seen = large.seen()
    (result,) = seen.results("alone")
    return {**result, "losses": seen.losses("alone")}


def is_the_same(large: Large, name: str, alone: dict[str, Any]) -> None:
    """Samples, losses and parameters are those of a training that was never resized."""
    seen = large.seen()
    steps = [step for same in counting(seen.every_step(name)).values() for step in same]
    numbers = sorted((step.epoch, number) for step in steps for number in step.numbers)
    assert numbers == [(epoch, each) for epoch in range(EPOCHS) for each in range(SAMPLES)]
    losses: dict[int, float] = {}
    for step in steps:
        losses[step.before] = losses.get(step.before, 0.0) + step.loss
    assert losses.keys() == alone["losses"].keys()
    loss = apart([losses[at] for at in sorted(losses)], list(alone["losses"].values()))
    results = seen.results(name)
    assert all(result["digest"] == results[0]["digest"] for result in results)
    parameters = apart(results[0]["digest"], alone["digest"])
    print(f"{name}: losses {loss:.1e} and parameters {parameters:.1e} apart from one process's")
    assert loss < ROUNDING
    assert parameters < ROUNDING
    assert (results[0]["samples"], results[0]["rate"]) == (alone["samples"], alone["rate"])


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [("fsdp-live", (), (2, 4, 3, 8, 2)), ("hsdp-live", ("--shards=2",), (2, 4, 6, 2))],
    ids=["fsdp", "hsdp"],
)
def test_it_is_resized_live_and_nobody_is_restarted(
    large: Large, alone: dict[str, Any], name: str, options: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    job = large.start(name, *options, gpus=sizes[0], words=["--live"])
    large.live.has(job, sizes[0], within=PATIENCE)
    for gpus in sizes[1:]:
        large.trains(name, large.live.workers(job))
        before = large.pids(job)
        large.live.resize(job, gpus, within=PATIENCE)
        present = large.pids(job)
        kept = before.keys() & present.keys()
        assert len(kept) >= sizes[0]
        assert all(before[slot] == present[slot] for slot in kept)
    large.trains(name, sizes[-1])
    status = large.live.status(job)
    assert status is not None
    large.ends(job, name)
    changes = [change for change in status["resizes"] if change["before"]]
    for change in changes:
        sent = f"{change['moved'] / 1e6:.0f} MB sent of at least {change['least'] / 1e6:.0f}"
        size = f"{change['before']} to {change['workers']}"
        print(f"{name}: {size}: paused for {change['pause']:.2f} s, {sent}")
        assert change["moved"] == change["least"]
        assert "recovery" not in change
    is_the_same(large, name, alone)
    life = large.live.steering.ask("job", str(job))
    assert len(life["runs"]) == 1
    # The workers of the job's own GPUs were in every step.
    steps = large.seen().steps(name)
    count = -(-SAMPLES // BATCH) * EPOCHS
    assert sum(len(mine) == count for mine in steps.values()) == sizes[0]


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [("fsdp-restart", (), (2, 4, 3, 8, 2)), ("hsdp-restart", ("--shards=2",), (4, 6, 2))],
    ids=["fsdp", "hsdp"],
)
def test_it_is_resized_by_restart(
    large: Large, alone: dict[str, Any], name: str, options: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    job = large.start(name, *options, gpus=sizes[0])
    for gpus in sizes:
        large.live.steering.want(job, gpus)
        large.trains(name, gpus)
    large.ends(job, name)
    is_the_same(large, name, alone)
    for before, after, seconds in large.seen().pauses(name):
        print(f"{name}: {before} to {after}: paused for {seconds:.1f} s")
    life = large.live.steering.ask("job", str(job))
    assert [run["gpus"] for run in life["runs"]] == list(sizes)
