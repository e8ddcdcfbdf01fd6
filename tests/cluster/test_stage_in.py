"""Data on a job's nodes before it starts, on a real Slurm; and what happens when they are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

NODES = ("n1", "n2", "n3", "n4")
SHOW = "echo staged:$ONES_STAGE_IN; cat $ONES_STAGE_IN/first; date +%s.%N"
BOUNDS = "/etc/ones/ones.d/stage.toml"


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    bound(steering, "")
    cluster.run("ctl", "rm -rf data; mkdir data; echo content > data/first", "alice")
    yield steering
    steering.prepare()
    bound(steering, "")


def bound(onesd: Steering, text: str) -> None:
    """What staging may take of the nodes' disks."""
    for node in NODES:
        onesd.cluster.run(node, f"mkdir -p /etc/ones/ones.d; cat > {BOUNDS}", stdin=text)


def blocked(onesd: Steering, seconds: int) -> int:
    """A plain job on all GPUs, for so long at most."""
    job = onesd.submit(
        "bob", "--nodes=4", "--gpus-per-node=4", "--time=2", f"--wrap=sleep {seconds}"
    )
    onesd.wait(job, ["RUNNING"], within=20)
    return job


def staged(onesd: Steering, source: str = "data", gpus: int = 4, script: str = SHOW) -> int:
    return onesd.submit(
        "alice", f"--elastic={gpus}", f"--gpus={gpus}", f"--stage-in={source}", f"--wrap={script}"
    )


def stage_job(onesd: Steering, job: int) -> int:
    """The stage-in job that a job's mark names."""
    mark = onesd.slurm(job, "admin_comment")
    return int(mark.rpartition(";stage=")[2])


def output(onesd: Steering, job: int) -> str:
    onesd.wait(job, ["COMPLETED"], within=90)
    return onesd.cluster.run("ctl", f"cat /home/alice/{job}.out").stdout


def explained(onesd: Steering, job: int) -> str:
    return onesd.cluster.run("ctl", f"onesctl job {job}", "alice").stdout


def folders(onesd: Steering, job: int) -> list[str]:
    """The nodes that still have a folder of a stage-in job."""
    test = f"test -e /var/spool/ones-stage/{job}"
    return [node for node in NODES if onesd.cluster.run(node, test, check=False).returncode == 0]


def test_data_are_staged_while_other_jobs_hold_the_gpus_and_removed_at_the_end(
    onesd: Steering,
) -> None:
    onesd.start("--policy", "fifo")
    blocker = blocked(onesd, 90)
    job = staged(onesd)
    stage = stage_job(onesd, job)
    onesd.wait(stage, ["COMPLETED"], within=40)
    assert onesd.state(blocker) == "RUNNING"
    assert onesd.state(job) == "PENDING"
    assert "gpu" not in onesd.slurm(stage, "tres-alloc")
    assert onesd.slurm(stage, "UserName") == "alice"
    where = onesd.slurm(stage, "NodeList")
    onesd.cluster.run("ctl", f"scancel {blocker}")
    said = output(onesd, job)
    assert f"staged:/var/spool/ones-stage/{stage}/data\ncontent\n" in said
    assert onesd.slurm(job, "NodeList") == where
    assert "staged" in explained(onesd, job)
    onesd.cluster.eventually(
        lambda: not folders(onesd, stage), within=150, what="the staged data removed"
    )


def test_a_job_of_two_nodes_has_its_data_on_both(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    job = staged(onesd, "data:corpus", 8, "srun --ntasks-per-node=1 cat $ONES_STAGE_IN/first")
    assert output(onesd, job) == "content\ncontent\n"
    assert len(folders(onesd, stage_job(onesd, job))) == 2


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--stage-in=missing", "--stage-in: missing: No such file or directory"),
        ("--stage-in=secret", "--stage-in: secret: can't be read: Permission denied"),
        ("--stage-in=/dev/null", "--stage-in: /dev/null: neither a file nor a folder"),
        ("--stage-in=data:../up", "'../up' is no name for the data"),
        ("--stage-in=data:", "'' is no name for the data"),
    ],
)
def test_a_source_that_can_not_be_staged_is_refused_in_one_line_and_submits_nothing(
    onesd: Steering, option: str, line: str
) -> None:
    onesd.cluster.run("ctl", "touch secret; chmod 000 secret", "alice")
    words = ["sbatch", "--elastic=4", "--gpus=4", option, "--wrap=true"]
    done = onesd.cluster.run("ctl", words, "alice", check=False)
    assert done.returncode != 0
    assert line in done.stderr.splitlines()[0]
    assert onesd.cluster.run("ctl", "squeue -h").stdout == ""


def test_without_elastic_or_outside_sbatch_it_is_refused(onesd: Steering) -> None:
    for program, why in (
        (["sbatch", "--gpus=4", "--wrap=true"], "needs --elastic"),
        (["srun", "--gpus=4", "true"], "needs --elastic"),
        (["srun", "--gpus=4", "--elastic=4", "true"], "is for batch jobs"),
    ):
        command = [program[0], "--stage-in=data", *program[1:]]
        done = onesd.cluster.run("ctl", command, "alice", check=False)
        assert done.returncode != 0
        assert why in done.stderr
    asked = ["sbatch", "--test-only", "--elastic=4", "--gpus=4", "--stage-in=data", "--wrap=true"]
    onesd.cluster.run("ctl", asked, "alice", check=False)
    assert onesd.cluster.run("ctl", "squeue -h").stdout == ""


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ("[staging]\nmost_gib = 0.000001\n", "more than the 1e-06 GiB that may be staged"),
        ("[staging]\nkeep_free = 0.999\n", "do not fit into /var/spool/ones-stage"),
    ],
)
def test_data_that_do_not_fit_are_not_staged_and_the_job_starts_and_says_so(
    onesd: Steering, bounds: str, why: str
) -> None:
    bound(onesd, bounds)
    onesd.cluster.run("ctl", "head -c 2000000 /dev/urandom > data/large", "alice")
    onesd.start("--policy", "fifo")
    job = staged(onesd)
    said = output(onesd, job)
    assert "staged:\n" in said
    assert why in explained(onesd, job)
    if onesd.slurm(job, "NodeList") == onesd.slurm(stage_job(onesd, job), "NodeList"):
        assert f"{why}" in said
    else:
        assert "ones: --stage-in: the data were not staged in on this node" in said


def test_a_copy_that_fails_leaves_nothing_and_the_job_starts_and_says_so(onesd: Steering) -> None:
    onesd.cluster.run("ctl", "head -c 999 /dev/urandom > data/z; chmod 000 data/z", "alice")
    onesd.start("--policy", "fifo")
    job = staged(onesd)
    said = output(onesd, job)
    assert "staged:\n" in said
    assert "ONES_STAGE_IN is not set" in said
    assert "data/z: Permission denied" in explained(onesd, job)
    for node in folders(onesd, stage_job(onesd, job)):
        kept = onesd.cluster.run(
            node, f"ls -A /var/spool/ones-stage/{stage_job(onesd, job)}"
        ).stdout
        assert kept == ".fault\n"


def test_a_copy_that_takes_too_long_is_ended_and_the_job_starts(onesd: Steering) -> None:
    bound(onesd, "[staging]\nmost_rate = 0.1\n")
    onesd.cluster.run("ctl", "head -c 20000000 /dev/zero > data/large", "alice")
    onesd.configure("round = 2.0\n[guard]\ngrace_time = 3.0\n[staging]\npatience = 6.0\n")
    onesd.start("--policy", "fifo")
    job = staged(onesd)
    stage = stage_job(onesd, job)
    assert "staged:\n" in output(onesd, job)
    assert "late: not done in 6 s" in explained(onesd, job)
    onesd.wait(stage, ["CANCELLED"], within=20)


def test_without_onesd_the_job_is_a_plain_one_and_its_stage_in_job_does_not_linger(
    onesd: Steering,
) -> None:
    job = staged(onesd)
    stage = stage_job(onesd, job)
    assert "staged:\n" in output(onesd, job)
    onesd.wait(stage, ["CANCELLED"], within=30)


def test_a_job_held_for_an_onesd_that_dies_starts_without_its_data(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    blocker = blocked(onesd, 100)
    onesd.cluster.run("ctl", f"scontrol update JobId={blocker} TimeLimit=600")  # nothing foretold
    job = staged(onesd)
    stage = stage_job(onesd, job)
    onesd.kill()
    onesd.wait(stage, ["CANCELLED"], within=60)
    onesd.cluster.run("ctl", f"scancel {blocker}")
    assert "staged:\n" in output(onesd, job)


def test_without_a_default_partition_the_users_choice_takes_the_stage_in_job(
    onesd: Steering,
) -> None:
    run = onesd.cluster.run
    (name,) = run("ctl", "sinfo --noheader --format=%P | grep '[*]'").stdout.split()
    partition = name.rstrip("*")
    sbatch = "sbatch --parsable --elastic=2 --gpus=2 --stage-in=data"
    run("ctl", f"scontrol update PartitionName={partition} Default=NO")
    try:
        submitted = run(
            "ctl", f"SBATCH_PARTITION={partition} {sbatch} --wrap='{SHOW}'", "alice"
        ).stdout
    finally:
        run("ctl", f"scontrol update PartitionName={partition} Default=YES")
    job = int(submitted)
    stage = stage_job(onesd, job)
    assert onesd.slurm(stage, "Partition") == partition
    run("ctl", f"scancel {job} {stage}")
