"""The page of an onesd that steers a real Slurm, in a real browser, over TLS."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("browser", "unit")]

from surfer import Surfer, a_browser  # noqa: E402

pytestmark = pytest.mark.cluster


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", "/usr/local/lib/ones-cluster/serve-page")
    yield steering
    cluster.run("ctl", "rm /etc/ones/ones.d/page.toml")
    steering.prepare()


@pytest.fixture
def browser() -> Iterator[Surfer]:
    with a_browser(trusting=True) as surfer:
        yield surfer
        assert surfer.complaints() == []


def a_link(onesd: Steering, user: str | None) -> str:
    told = onesd.cluster.run("ctl", ["onesctl", "web"], user).stdout
    found = re.search(r"https://\S+", told)
    assert found is not None, told
    return found[0]


def test_an_operator_follows_a_job_that_is_resized_and_pauses(
    onesd: Steering, browser: Surfer
) -> None:
    onesd.start_steered(policy="asked")
    job = onesd.counting("alice", "1-4", 2, 40_000, name="digits")
    onesd.want(job, 2)
    onesd.wait(job, ["RUNNING"], within=30)
    browser.open(a_link(onesd, None))
    browser.reads("(operator)", "16 in all")
    browser.go("#/queue/running")
    browser.reads("digits", "alice", "(1-4)")
    onesd.want(job, 4)
    onesd.cluster.eventually(lambda: onesd.gpus(job) == 4, within=90, what="4 GPUs")
    browser.go(f"#/job/{job}")
    browser.reads("GPUs over time", "resize", "asked for 4")
    browser.go("#/map")
    browser.reads("4 of 8 GPUs held")
    browser.go("#/steering")
    browser.type("#reason", "new switch")
    browser.click("button[type=submit]")
    browser.reads("Paused by", "new switch")
    assert "paused by root: new switch" in onesd.ask("status")["problems"]
    onesd.want(job, 1)
    browser.click("main .card > button")
    browser.reads("Resumed.")
    onesd.cluster.eventually(lambda: onesd.gpus(job) == 1, within=90, what="1 GPU")


def test_users_of_the_cluster_see_their_own_jobs_alone(onesd: Steering, browser: Surfer) -> None:
    onesd.start("--policy", "fifo")
    users = ("alice", "bob")
    jobs = {user: onesd.counting(user, "1", 1, 4000, name=f"of-{user}") for user in users}
    for job in jobs.values():
        onesd.wait(job, ["RUNNING"], within=30)
    browser.open(a_link(onesd, "alice"))
    browser.reads("alice", "16 in all")
    browser.go("#/queue")
    browser.reads("of-alice", "1 job of yours")
    browser.go(f"#/job/{jobs['bob']}")
    browser.reads(f"job {jobs['bob']} is not one of your elastic jobs")
    assert "of-bob" not in browser.run("return document.body.innerHTML")
