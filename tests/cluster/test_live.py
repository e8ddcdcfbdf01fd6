"""Jobs that are resized live on a real Slurm: satellites come and go, and training goes on."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

SAMPLES, BATCH = 500, 96  # of an epoch and of a step, in counted_digits.py
EPOCHS = 80
LONG = 140  # epochs: a busy machine needs a minute until a worker has joined
POINTS = (3, 7)  # of a live move: written down, and ordered
IN_A_HURRY = """
round = 2.0
[agent]
interval = 1.0
[guard]
grace_time = 3.0
live_grace_time = 1.0
"""
SETTINGS = f"""{IN_A_HURRY}
[moves]
checkpoint_timeout = 30.0
live_timeout = 180.0
"""


@dataclass
class Live:
    """onesd with a policy that does as a file says, and jobs that can be resized live."""

    steering: Steering
    environment: str = "/opt/ones"  # the folder of the Python environment that trains

    @property
    def cluster(self) -> Cluster:
        return self.steering.cluster

    def start(self, *options: str, ready: bool = True, settings: str = SETTINGS) -> None:
        self.cluster.run("ctl", "cat > /etc/ones/ones.d/test.toml", stdin=settings)
        self.steering.start_steered(*options, policy="asked", ready=ready)

    def submit(
        self,
        *words: str,
        gpus: int = 1,
        sizes: str = "1-8",
        user: str = "alice",
        options: Sequence[str] = (),
    ) -> int:
        launched = ("--live", "/home/jobs/counted_digits.py", *words)
        return self.launch(*launched, gpus=gpus, sizes=sizes, user=user, options=options)

    def launch(
        self,
        *words: str,
        gpus: int,
        sizes: str = "1-8",
        user: str = "alice",
        options: Sequence[str] = (),
    ) -> int:
        """Submit a job that runs ones-run with these words on each of its nodes."""
        asked = [f"--elastic={sizes}", f"--gpus=v100:{gpus}", f"--ntasks={gpus}", *options]
        script = ["/home/jobs/launched.sbatch", self.environment, *words]
        return self.steering.submit(user, *asked, *script)

    def resize(self, job: int, gpus: int, *, within: float = 120) -> None:
        self.steering.want(job, gpus)
        self.has(job, gpus, within=within)

    def resize_with_onesd_killed(
        self, job: int, gpus: int, there: Callable[[], bool] = lambda: True
    ) -> None:
        """The same with onesd killed in the midst of the move; `there`: Slurm has it so."""
        for point in POINTS:
            self.steering.kill()
            self.steering.want(job, gpus)
            self.start("--die-at", str(point), ready=False)

            def over() -> bool:
                there_now = self.workers(job) == gpus and there()
                return there_now or not self.steering.alive()

            self.cluster.eventually(over, within=90, what=f"point {point} reached")
            assert self.steering.state(job) == "RUNNING", f"after point {point}"
            if self.steering.alive():
                break
        self.steering.kill()
        self.start()
        self.has(job, gpus)

    def has(self, job: int, gpus: int, *, within: float = 120) -> None:
        """Wait until Slurm and the training both say so."""

        def so() -> bool:
            told = [one for one in self.steering.ask("jobs")["jobs"] if one["job"] == job]
            return bool(told) and told[0]["gpus"] == gpus == self.workers(job)

        self.cluster.eventually(so, within=within, what=f"job {job} with {gpus} GPUs")

    def workers(self, job: int, user: str = "alice") -> int:
        """How many train, by their own launcher's word."""
        status = self.status(job, user)
        return int(status["workers"]) if status else 0

    def status(self, job: int, user: str = "alice") -> dict[str, Any] | None:
        """What the job's launcher says of itself; None where it doesn't answer."""
        order = f"/opt/ones/bin/ones-order status /home/{user}/ones-checkpoints/{job}/live"
        node = self.steering.slurm(job, "batchhost")
        done = self.cluster.run(node, order, user, check=False) if node else None
        if done is None or done.returncode != 0:
            return None
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def satellites(self) -> list[int]:
        """Jobs that are alive and are satellites."""
        lines = self.cluster.run("ctl", "squeue -h -O jobid:12,admin_comment:80").stdout
        found = [line.split() for line in lines.splitlines()]
        return [int(words[0]) for words in found if words[-1].startswith("ONES1S:")]

    def none_left(self, *, within: float = 20) -> None:
        self.cluster.eventually(
            lambda: not self.satellites(), within=within, what="no satellite left"
        )

    def account(self, job: int, user: str = "alice") -> list[dict[str, Any]]:
        """What the workers wrote: each step that they committed, and their samples of it."""
        return [line for line in self.notes(job, user) if "ids" in line]

    def notes(self, job: int, user: str = "alice") -> list[dict[str, Any]]:
        """All that the workers wrote down: their steps and their checkpoints."""
        text = self.cluster.run("ctl", f"cat /home/{user}/seen-{job}/*", check=False).stdout
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


@pytest.fixture
def live(cluster: Cluster) -> Iterator[Live]:
    steering = Steering(cluster)
    steering.prepare()
    yield Live(steering)
    steering.prepare()


def charged(cluster: Cluster, jobs: list[int]) -> float:
    """GPU-seconds by sacct."""
    listed = ",".join(map(str, jobs))
    command = f"sacct -D -X -n -P -o ElapsedRaw,AllocTRES -j {listed}"
    total = 0.0
    for line in cluster.run("ctl", command).stdout.splitlines():
        seconds, tres = line.split("|")
        gpus = [part.split("=")[1] for part in tres.split(",") if part.startswith("gres/gpu=")]
        total += int(seconds) * int(gpus[0]) if gpus else 0
    return total


def check_account(lines: list[dict[str, Any]], epochs: int) -> None:
    """Every sample of every epoch was seen exactly once."""
    lines = [line for line in lines if line["committed"]]
    for epoch in range(epochs):
        seen = Counter(number for line in lines if line["epoch"] == epoch for number in line["ids"])
        assert seen == Counter(range(SAMPLES)), f"epoch {epoch}"


def test_a_job_goes_from_1_to_4_to_2_to_8_to_3_gpus_and_no_survivor_is_restarted(
    live: Live,
) -> None:
    live.start()
    job = live.submit(str(LONG))
    live.has(job, 1)
    for gpus in (4, 2, 8, 3):
        live.resize(job, gpus)
    assert [one["job"] for one in live.steering.ask("jobs")["jobs"]] == [job]
    live.steering.wait(job, ["COMPLETED"], within=300)
    live.none_left()

    lines = [line for line in live.account(job) if line["committed"]]
    check_account(lines, LONG)
    assert {line["workers"] for line in lines} >= {1, 2, 3, 4, 8}
    # Each process trains without a gap from its first step to its last.
    starts = sorted({line["at"] for line in lines})
    steps: dict[str, list[int]] = {}
    for line in lines:
        steps.setdefault(line["worker"], []).append(starts.index(line["at"]))
    for worker, mine in steps.items():
        assert all(later == earlier + 1 for earlier, later in pairwise(sorted(mine))), worker
    always = [worker for worker, mine in steps.items() if len(mine) == len(starts)]
    assert len(always) == 1  # the one of the job's own GPU

    life = live.steering.ask("job", str(job))
    assert len(life["runs"]) == 1
    moves = [(move["kind"], move["outcome"]) for move in life["moves"] if move["kind"] == "live"]
    assert moves == [("live", "done")] * 4
    parts = [part["satellite"] for part in life["satellites"]]
    assert {part["state"] for part in life["satellites"]} == {"COMPLETED"}
    assert life["gpu_seconds"] == charged(live.cluster, [job, *parts]) > 0

    # The same outside Slurm, where nothing resizes it; nor is it held to a GPU's pace there.
    plain = f"/opt/ones/bin/ones-run --live --workers=1 /home/jobs/counted_digits.py {LONG}"
    live.cluster.run("n2", plain, "alice", timeout=120)
    losses = [live.steering.result("alice", each)["loss"] for each in (job, 0)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.fixture
def limited(live: Live, cluster: Cluster) -> Iterator[Live]:
    """alice may have 3000 MiB."""
    enforce = "sed -i 's/^AccountingStorageEnforce=.*/AccountingStorageEnforce={}/'"
    enforce += " /etc/slurm/slurm.conf"
    limit = "sacctmgr -i modify qos normal set MaxTRESPerUser=mem={}"
    cluster.run("ctl", enforce.format("limits,qos"))
    cluster.reconfigure()
    cluster.run("ctl", limit.format(3000))
    yield live
    live.steering.prepare()
    cluster.run("ctl", limit.format(-1))
    cluster.run("ctl", enforce.format("associations"))
    cluster.reconfigure()


def test_a_live_job_grows_within_the_memory_of_its_user(limited: Live) -> None:
    """1000 MiB of its node for one GPU: who holds three more for it asks for 3000 there."""
    limited.start(settings=f"{SETTINGS}[slurm]\nlimits_every = 2.0\n")
    job = limited.submit("1000", options=["--mem=1000"])
    limited.has(job, 1)
    limited.steering.want(job, 4)
    for _ in range(10):
        assert limited.workers(job) <= 3
        states = [limited.steering.state(satellite) for satellite in limited.satellites()]
        assert "PENDING" not in states
    limited.resize(job, 3)

    def outcomes() -> set[str]:
        return {move["outcome"] for move in limited.steering.ask("job", str(job))["moves"]}

    # The job is as large as it was to be a moment before onesd writes down that it is.
    limited.cluster.eventually(lambda: "" not in outcomes(), within=30, what="its moves' ends")
    assert outcomes() == {"done"}


def test_a_live_job_grows_though_a_wider_job_waits_before_its_satellites(live: Live) -> None:
    live.start()
    job = live.submit("1000")
    live.has(job, 1)
    wide = live.steering.submit("bob", "-N4", "--gres=gpu:4", "--wrap=sleep 3000")
    live.cluster.eventually(
        lambda: live.steering.slurm(wide, "Reason") == "Resources",
        within=60,
        what="a job that waits for all nodes",
    )
    live.resize(job, 4)
    assert live.steering.state(wide) == "PENDING"


def test_nobody_else_gets_into_a_job_and_what_the_job_does_not_know_is_cancelled(
    live: Live,
) -> None:
    live.start()
    job = live.submit("1000")
    live.resize(job, 2)
    claim = ["sbatch", f"--comment=ones-satellite:{job}.0.900", "--gres=gpu:1", "--wrap=sleep 300"]
    refused = live.cluster.run("ctl", claim, "bob", check=False)
    assert refused.returncode != 0
    assert f"a satellite of job {job}: you have no elastic job" in refused.stderr
    secret = f"cat /home/alice/ones-checkpoints/{job}/live/join.json"
    assert live.cluster.run("n2", secret, "bob", check=False).returncode != 0
    # Its own user may ask for one; the job does not know it, so it goes.
    done = live.cluster.run("ctl", [*claim[:1], "--parsable", *claim[1:]], "alice")
    stray = int(done.stdout)
    assert stray in live.satellites()
    live.cluster.eventually(
        lambda: stray not in live.satellites(), within=60, what="the stray satellite cancelled"
    )
    live.has(job, 2)
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()


def test_killed_in_the_midst_of_a_live_move_onesd_goes_on_with_it(live: Live) -> None:
    """tests/simulation/test_kills.py goes through every point."""
    live.start()
    job = live.submit("1000")
    live.has(job, 1)
    live.resize(job, 4)
    live.resize_with_onesd_killed(job, 2)  # one satellite takes the place of another
    outcomes = [move["outcome"] for move in live.steering.ask("job", str(job))["moves"]]
    assert set(outcomes) == {"done"}
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()


def test_satellites_end_with_their_job_though_onesd_is_dead(live: Live) -> None:
    live.start()
    job = live.submit("1000")
    live.has(job, 1)
    live.resize(job, 6)
    assert len(live.satellites()) >= 2
    live.steering.kill()
    live.cluster.run("n1", "pkill -KILL -u alice -f '[o]nes-run --live'")
    live.steering.wait(job, ["FAILED", "COMPLETED", "CANCELLED"], within=30)
    live.none_left(within=15)


def test_a_lost_satellite_costs_its_workers_only_and_is_in_the_record(live: Live) -> None:
    live.start()
    job = live.submit("1000")
    live.has(job, 1)
    live.resize(job, 6)
    live.steering.kill()
    live.steering.want(job, 1)  # or it would grow again
    victim = live.satellites()[0]
    live.cluster.run("ctl", ["scancel", "--signal=KILL", "--full", str(victim)])
    live.cluster.eventually(
        lambda: 1 <= live.workers(job) < 6 and victim not in live.satellites(),
        within=30,
        what="the training without it",
    )
    live.start()
    live.has(job, 1)
    parts = live.steering.ask("job", str(job))["satellites"]
    assert {part["state"] for part in parts if part["satellite"] == victim} == {"CANCELLED"}
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()


def test_where_the_jobs_own_gpus_must_go_it_is_restarted_and_its_satellites_leave(
    live: Live,
) -> None:
    live.start()
    job = live.submit(str(EPOCHS), gpus=2)
    live.has(job, 2)
    live.resize(job, 4)
    live.resize(job, 1)  # fewer than its own allocation
    live.none_left()
    life = live.steering.ask("job", str(job))
    assert len(life["runs"]) == 2
    assert [move["kind"] for move in life["moves"]] == ["start", "live", "resize"]
    live.steering.wait(job, ["COMPLETED"], within=300)
    last = max(int(line["at"]) for line in live.account(job))
    assert last < EPOCHS * SAMPLES
    assert live.steering.result("alice", job)["samples"] == EPOCHS * SAMPLES


def test_the_example_of_the_documents_is_resized_live(live: Live) -> None:
    copy = ["docker", "cp", "--quiet", "docs/examples/.", f"{live.cluster.name}-ctl:/home/jobs/"]
    subprocess.run(copy, check=True)
    live.start()
    options = ["--elastic=1-8", "--gpus=v100:1", "--ntasks=1"]
    script = "/home/jobs/train_digits.py --epochs=100000"
    wrap = f"--wrap=srun /opt/ones/bin/ones-run --live {script}"
    job = live.steering.submit("alice", *options, wrap)
    live.has(job, 1)
    live.resize(job, 3)
    live.resize(job, 2)
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()


def test_a_policy_that_knows_nothing_of_it_grows_a_live_job_without_a_restart(live: Live) -> None:
    live.cluster.run("ctl", "cat > /etc/ones/ones.d/test.toml", stdin=SETTINGS)
    live.steering.start("--policy", "ones")
    job = live.submit("1000", sizes="1-4")
    live.cluster.eventually(lambda: live.workers(job) > 2, within=90, what="the job grown")

    def grown() -> bool:
        """onesd hears of it with the agent's next report."""
        moves = live.steering.ask("job", str(job))["moves"]
        return ("live", "done") in [(move["kind"], move["outcome"]) for move in moves]

    live.cluster.eventually(grown, within=60, what="the move done")
    assert len(live.steering.ask("job", str(job))["runs"]) == 1
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()
