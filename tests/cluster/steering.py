"""What the tests of onesd on a real Slurm share: starting it, submitting jobs, waiting."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Cluster

JOBS = Path(__file__).parent / "jobs"
IMPATIENT = """
round = 2.0
[guard]
grace_time = 3.0
[moves]
checkpoint_timeout = 30.0
"""


@dataclass
class Steering:
    """onesd on the controller of a cluster, with a fresh history, and the jobs it steers."""

    cluster: Cluster
    jobs: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # nodes

    def prepare(self) -> None:
        """Nothing of an earlier test is left."""
        self.kill()
        while self.lost:
            self._find_again(self.lost.pop())
        subprocess.run(
            ["docker", "cp", "--quiet", str(JOBS), f"{self.cluster.name}-ctl:/home/"], check=True
        )
        self.cluster.run("ctl", "squeue -h -o %A | sort -u | xargs -r scancel")
        self.cluster.run(
            "ctl", "rm -rf /var/lib/ones/ones.* /run/ones/*; mkdir -p /etc/ones/ones.d"
        )
        self.configure(IMPATIENT)
        self.cluster.eventually(
            lambda: not self.cluster.run("ctl", "squeue -h").stdout,
            within=30,
            what="no jobs",
        )

    def lose(self, node: str) -> None:
        """Freeze a node and have Slurm hold it for down; until the next `prepare`."""
        freeze = ["docker", "pause", f"{self.cluster.name}-{node}"]
        # Where processes of it are just being made, the kernel freezes nothing.
        self.cluster.eventually(
            lambda: subprocess.run(freeze, check=False).returncode == 0,
            within=60,
            what=f"{node} frozen",
        )
        self.lost.append(node)
        time.sleep(3)  # an answer of the node's that is under way would bring it back
        self.cluster.run("ctl", f"scontrol update NodeName={node} State=DOWN Reason=test")

    def requeued_without_delay(self, job: int, *, within: float = 60) -> None:
        """Have a job that Slurm requeues within so many seconds start again at once.

        Slurm lets it wait for two minutes, for what may be left of its last run. In the second in
        which that was stopped slurmd would refuse the next one ("Job credential revoked").
        """
        self.wait(job, ["PENDING"], within=within)
        time.sleep(1)
        self.cluster.run("ctl", f"scontrol update JobId={job} StartTime=now")

    def _find_again(self, node: str) -> None:
        subprocess.run(["docker", "unpause", f"{self.cluster.name}-{node}"], check=True)
        back = f"scontrol update NodeName={node} State=RESUME"
        self.cluster.run("ctl", back, check=False)  # refused where it is back already
        left = "pgrep slurmstepd"
        self.cluster.eventually(
            lambda: not self.cluster.run(node, left, check=False).stdout,
            within=60,
            what=f"nothing left on {node}",
        )

    def configure(self, text: str) -> None:
        """What the next start of onesd finds over the cluster's configuration."""
        self.cluster.run("ctl", "cat > /etc/ones/ones.d/test.toml", stdin=text)

    def start(self, *options: str, program: str = "onesd", ready: bool = True) -> None:
        command = (
            f"runuser -u ones -- {program} {' '.join(options)} >> /var/log/ones/onesd.log 2>&1"
        )
        subprocess.run(
            ["docker", "exec", "--detach", f"{self.cluster.name}-ctl", "sh", "-c", command],
            check=True,
        )
        if ready:
            self.cluster.eventually(self.ready, within=30, what="onesd ready with all agents heard")

    def start_steered(self, *options: str, policy: str = "seesaw", ready: bool = True) -> None:
        """The same daemon with a policy of ours: `seesaw` never leaves a job at its size."""
        program = "/opt/ones/bin/python /home/jobs/steered_onesd.py"
        self.start(*options, "--", "--policy", policy, program=program, ready=ready)

    def want(self, job: int, gpus: int, *, instead_of: int | None = None) -> None:
        """What the steered daemon's policy `asked` is to give the job; it stops the other one."""
        asked = {str(job): gpus} | ({} if instead_of is None else {str(instead_of): 0})
        put = "cat > /run/ones/asked.new; mv /run/ones/asked.new /run/ones/asked.json"
        self.cluster.run("ctl", put, stdin=json.dumps(asked))

    def ready(self) -> bool:
        """Whether onesd has had its first round, misses nothing, and Slurm holds jobs for it."""
        if self.cluster.run("ctl", "test -e /run/ones/heartbeat", check=False).returncode != 0:
            return False
        done = self.cluster.run("ctl", "onesctl status --json", check=False)
        if done.returncode != 0:
            return False
        status = json.loads(done.stdout)
        return not status["problems"] and status["round"]["number"] > 0

    def alive(self) -> bool:
        found = self.cluster.run("ctl", "pgrep -u ones -f 'onesd' ", check=False)
        return bool(found.stdout.split())

    def kill(self, number: str = "KILL") -> None:
        self.cluster.run("ctl", f"pkill -{number} -u ones -f onesd", check=False)
        self.cluster.eventually(lambda: not self.alive(), within=15, what="onesd gone")

    def submit(self, user: str, *words: str) -> int:
        command = ["sbatch", "--parsable", "--output=/home/%u/%j.out", *words]
        job = int(self.cluster.run("ctl", command, user).stdout.split(";")[0])
        self.jobs.append(job)
        return job

    def counting(
        self, user: str, sizes: str, gpus: int, total: int, *more: str, name: str = "counting"
    ) -> int:
        """Submit a job that only counts samples, 40 a second on one GPU."""
        options = [f"--elastic={sizes}"] if sizes else []
        options += [f"--gpus={gpus}", f"--ntasks={gpus}", f"--job-name={name}"]
        script = ["/home/jobs/counting.sbatch", str(total), "40", *more]
        return self.submit(user, *options, *script)

    def ask(self, *words: str, user: str | None = None) -> Any:
        return json.loads(self.cluster.run("ctl", ["onesctl", *words, "--json"], user).stdout)

    def settle(self, *, within: float, rounds: int = 5) -> None:
        """Wait until for so many rounds, one after the other, nothing is planned nor under way."""
        last: list[int] = []  # the last round in which something was

        def settled() -> bool:
            plan = self.ask("plan")
            number = plan["round"]["number"]
            if plan["decisions"] or self.ask("status")["jobs"]["moving"] or not last:
                last[:] = [number]
            return bool(number - last[0] >= rounds)

        self.cluster.eventually(settled, within=within, what="quiet plans")

    def slurm(self, job: int | str, column: str) -> str:
        """One squeue column of a job, or of the task ARRAY_INDEX."""
        command = f"squeue -h -t all -j {job} -O {column}:200"
        return self.cluster.run("ctl", command, check=False).stdout.strip()

    def state(self, job: int | str) -> str:
        return self.slurm(job, "State")

    def gpus(self, job: int | str) -> int:
        """GPUs that Slurm says the job holds."""
        text = self.slurm(job, "tres-alloc")
        found = [part.split("=")[1] for part in text.split(",") if part.startswith("gres/gpu=")]
        return int(found[0]) if found and self.state(job) == "RUNNING" else 0

    def wait(self, job: int | str, states: Sequence[str], within: float) -> None:
        """Wait for a state that takes so many seconds at most on a quiet machine."""
        self.cluster.eventually(
            lambda: self.state(job) in states,
            within=within,
            what=f"job {job} {'/'.join(states)}",
        )

    def result(self, user: str, job: int) -> dict[str, Any]:
        text = self.cluster.run("ctl", f"cat /home/{user}/result-{job}.json").stdout
        found: dict[str, Any] = json.loads(text)
        return found
