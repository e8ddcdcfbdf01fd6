"""The image to try things on: one container that is a whole cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]


def _docker(*words: str) -> str:
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=True, timeout=120
    ).stdout


@pytest.fixture
def tried(cluster: Cluster) -> Iterator[str]:
    """A container of the image, by the words that the script prints."""
    built = subprocess.run(
        [ROOT / "scripts/package", "--as", "image"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    words = built.stdout.split()
    assert words[:2] == ["docker", "run"]
    name = f"{cluster.name}-tried"
    options = [word for word in words[2:] if word not in ("--interactive", "--tty")]
    _docker("run", "--detach", "--name", name, *options)
    yield name
    _docker("rm", "--force", "--volumes", name)


def test_one_container_runs_an_elastic_job_and_makes_room_for_a_plain_one(
    cluster: Cluster, tried: str
) -> None:
    def alice(line: str) -> str:
        return _docker("exec", "--user", "alice", tried, "bash", "-lc", f"cd; {line}")

    def gpus(job: str) -> int:
        told = json.loads(alice("onesctl jobs --json"))["jobs"]
        return next((each["gpus"] for each in told if str(each["job"]) == job), 0)

    cluster.eventually(
        lambda: "#sign-in=" in _docker("logs", tried), within=180, what="a link to the page"
    )
    options = "--parsable --gpus={0} --ntasks={0}"
    example = "/home/examples/train_digits.sbatch"
    elastic = alice(f"sbatch --elastic=1-8 {options.format(2)} {example} --epochs=200").strip()
    cluster.eventually(lambda: gpus(elastic) == 8, within=180, what="all of the node for it")
    plain = alice(f"sbatch {options.format(4)} --wrap 'sleep 5'").strip()
    cluster.eventually(
        lambda: alice(f"sacct -X -n -o State -j {plain}").strip() == "COMPLETED",
        within=180,
        what="room for the plain job",
    )
    assert 1 <= gpus(elastic) <= 8
