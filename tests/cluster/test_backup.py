"""slurmctld killed with moves under way: its backup knows nothing of the last seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backing import Backed, backed

pytestmark = pytest.mark.cluster

SAMPLES = 24000
MOVES = "SELECT kind, outcome FROM moves WHERE job = {} AND kind != 'start' ORDER BY id"
OPEN = "SELECT count(*) FROM moves WHERE job = {} AND open"


@pytest.fixture
def pair() -> Iterator[Backed]:
    with backed() as pair:
        yield pair


def test_a_job_that_the_backup_slurmctld_takes_for_failed_goes_on(pair: Backed) -> None:
    """It knows nothing of the requeue, and hears that the script has ended.

    On a busy machine the script, or our second requeue, may be quicker than that: then it goes on
    without ever having been taken for failed. tests/unit/test_lapse.py leaves no such choice.
    """
    counting = "LINGERS=3 exec bash /home/jobs/counting.sbatch 4000 40"
    shape = ["--elastic=2,4", "--gpus=2", "--ntasks=2"]
    job = pair.onesd.submit("alice", *shape, f"--wrap={counting}")
    pair.onesd.wait(job, ["RUNNING"], within=60)
    pair.kill_after_requeue(job, seconds=0.0, unsaved=True)
    pair.wait_for_backup()
    pair.onesd.wait(job, ["RUNNING"], within=90)
    pair.onesd.wait(job, ["COMPLETED"], within=400)
    assert pair.onesd.result("alice", job)["samples"] == 4000


def test_a_move_goes_on_whatever_the_backup_slurmctld_has_forgotten_of_it(pair: Backed) -> None:
    job = pair.onesd.counting("alice", "2,4", 2, SAMPLES)
    pair.onesd.wait(job, ["RUNNING"], within=60)
    for seconds in (0.0, 1.0, 3.0):  # it is being stopped; shaped; it has just been started
        pair.kill_after_requeue(job, seconds=seconds)
        pair.wait_for_backup()
        other = pair.onesd.submit("bob", "--elastic=1", "--gpus=1", "--wrap=sleep 2")
        pair.onesd.wait(other, ["COMPLETED"], within=90)
        pair.wait_for_the_job(job, ["RUNNING"], within=90)
        pair.start_primary()
    pair.wait_for_the_job(job, ["COMPLETED"], within=400)
    assert pair.onesd.result("alice", job)["samples"] == SAMPLES
    pair.cluster.eventually(
        lambda: pair.asked(OPEN.format(job)) == [[0]], within=20, what="its moves' ends"
    )
    moves = pair.asked(MOVES.format(job))
    done = [kind for kind, outcome in moves if outcome == "done"]
    # Each resize is one restart: none was made twice, none is missing. Where Slurm itself failed a
    # start that it had forgotten, that is another one, and so is the resize that it ended.
    restarts = int(pair.onesd.slurm(job, "RestartCnt"))
    assert len(done) <= restarts <= len(done) + 2 * pair.repaired, moves
    assert len(done) >= 3, moves
