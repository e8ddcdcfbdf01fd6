"""A site that lets jobs of some accounts opt in, as docs/security.md has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pages import ROOT
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

LUA = "/etc/slurm/job_submit.lua"


def page_file() -> str:
    """The job_submit.lua of the page: for the account vision."""
    found = re.search(r"```lua\n(.*?)```", (ROOT / "docs/security.md").read_text(), re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", f"cp --preserve {LUA} /etc/slurm/ones.lua; cat > {LUA}", stdin=page_file())
    yield steering
    cluster.run("ctl", f"mv /etc/slurm/ones.lua {LUA}; touch {LUA}")
    steering.prepare()


def test_a_job_of_the_account_is_elastic(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    job = onesd.submit("alice", "--elastic=1-4", "--gpus=1", "--wrap=true")
    onesd.wait(job, ["COMPLETED"], within=30)
    assert onesd.slurm(job, "admin_comment").startswith("ONES1:")


def test_an_elastic_job_of_another_account_is_refused_and_a_plain_one_runs(onesd: Steering) -> None:
    words = ["sbatch", "--elastic=1-4", "--gpus=1", "--wrap=true"]
    done = onesd.cluster.run("ctl", words, "carol", check=False)
    assert done.returncode != 0
    assert "--elastic is for jobs of the accounts vision here" in done.stderr
    plain = onesd.submit("carol", "--gpus=1", "--wrap=true")
    onesd.wait(plain, ["COMPLETED"], within=30)


def test_an_elastic_job_is_not_moved_out_of_its_account(onesd: Steering) -> None:
    manage = ["sacctmgr", "--immediate", "--quiet"]
    onesd.cluster.run("ctl", [*manage, "add", "user", "alice", "account=language"])
    job = onesd.submit("alice", "--elastic=1-4", "--gpus=1", "--begin=now+3600", "--wrap=true")
    moved = ["scontrol", "update", f"JobId={job}", "Account=language"]
    done = onesd.cluster.run("ctl", moved, "alice", check=False)
    onesd.cluster.run("ctl", [*manage, "delete", "user", "alice", "account=language"])
    assert done.returncode != 0
    assert "an elastic job stays in one of the accounts vision here" in done.stderr
    assert onesd.slurm(job, "Account") == "vision"
