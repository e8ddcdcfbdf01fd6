"""Jobs on the container cluster, for both readers and the actuator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Cluster
from facts import Facts
from releases import OWNERS_SUSPEND, REQUEUE_DELAY, release_of

from ones.slurm_ext.accounting import Run
from ones.slurm_ext.snapshot import Reservation

HERE = Path(__file__).parent
HEARTBEAT = "/run/ones/heartbeat"
SCRIPT = """\
#!/bin/bash
trap 'exit 0' TERM
trap 'echo asked' USR1
cpus=$SLURM_JOB_CPUS_PER_NODE
echo "run ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST tasks=$SLURM_TASKS_PER_NODE cpus=$cpus"
srun bash -c 'echo "$SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES"' 2>&1 | sort
while :; do sleep 1 & wait $!; done
"""


class Slurm:
    """What users, onesd and administrators do on the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        release = release_of(self.root("scontrol", "--version"))
        self.owners_suspend = release >= OWNERS_SUSPEND
        self.requeue_delay = release >= REQUEUE_DELAY

    def submit(self, *options: str, script: str = SCRIPT, user: str = "alice") -> int:
        command = ["sbatch", "--parsable", "--output=%j.out", "--open-mode=append", *options]
        return int(self.cluster.run("ctl", command, user, stdin=script).stdout)

    def root(self, *command: str) -> str:
        return self.cluster.run("ctl", command).stdout

    def as_ones(self, program: str, *arguments: str) -> Any:
        """Run one of the scripts beside this file with the installed package, as onesd would."""
        return self.run_by("ones", program, *arguments)

    def run_by(self, user: str, program: str, *arguments: str) -> Any:
        python = ["runuser", "-u", user, "--", "/opt/ones/bin/python", "-", *arguments]
        done = self.cluster.run(
            "ctl", python, stdin=(HERE / program).read_text(), timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def read(self, *readers: str) -> Any:
        return self.as_ones("read_slurm.py", *readers)

    def move(self, job: int, *moves: str, start_timeout: float = 20) -> Any:
        return self.as_ones("make_moves.py", str(job), str(start_timeout), *moves)

    def job(self, number: int) -> dict[str, Any]:
        """The job as Slurm's own JSON has it: not read by the code under test."""
        answer = json.loads(self.root("scontrol", "show", "job", str(number), "--json"))
        found: dict[str, Any] = answer["jobs"][0]
        return found

    def state(self, number: int) -> str:
        return self.root("squeue", "--noheader", "--states=all", f"--jobs={number}", "-o%T").strip()

    def facts(self, number: int) -> Facts:
        """The job as Slurm's own JSON has it, as far as claims are made of it."""
        job = self.job(number)
        return Facts(
            state=job["job_state"][0],
            reason=job["state_description"] or job["state_reason"],
            held=job["hold"],
            restarts=job["restart_cnt"],
            nodes=job["nodes"],
            required=job["required_nodes"],
            tres_per_node=job["tres_per_node"],
            comment=job["comment"],
            gres=[text.split("(IDX")[0] for text in job["gres_detail"]],
        )

    def by(self, user: str, *command: str) -> str:
        """What Slurm says where it refuses a user's command; '' where it agrees."""
        done = self.cluster.run("ctl", command, None if user == "root" else user, check=False)
        return "" if done.returncode == 0 else " ".join((done.stdout + done.stderr).split())

    def fail(self, number: int) -> None:
        """The running job's script comes to a bad end."""
        self.root("scancel", "--signal=ALRM", "--batch", str(number))

    def signal(self, user: str, number: int) -> str:
        """As `by`, where they run our code that signals a job's script."""
        return str(self.run_by(user, "send_signal.py", str(number)))

    def runs(self, number: int) -> list[Run]:
        """The job's runs as the accounting has them, by our reader of it."""
        script = (
            "import msgspec; from ones.slurm_ext.accounting import runs_of;"
            "from ones.slurm_ext.commands import Commands;"
            f"print(msgspec.json.encode(runs_of(Commands(), [{number}])).decode())"
        )
        text = self.root("/opt/ones/bin/python", "-c", script)
        return msgspec.json.decode(text, type=list[Run])

    def reserve(
        self, name: str, nodes: str, users: str, *, begins: int = 0, ends: int = 3600, flags: str
    ) -> str:
        """Create a reservation so many seconds from now; what Slurm says where it refuses."""
        # Slurm moves a start in the past to now, and takes any other for one to come.
        start = f"now+{begins}" if begins else "now"
        until = time.strftime("%FT%T", time.gmtime(time.time() + ends))
        words = [f"reservationname={name}", f"nodes={nodes}", f"users={users}"]
        words += [f"starttime={start}", f"endtime={until}"] + ([f"flags={flags}"] if flags else [])
        return self.by("root", "scontrol", "create", *words)

    def reservations(self) -> dict[str, Reservation]:
        """Those of our snapshots."""
        script = (
            "import msgspec; from ones.slurm_ext.choose import choose_reader;"
            "from ones.slurm_ext.commands import Commands; from ones.slurm_ext.slurm import Slurm;"
            "commands = Commands(); found = Slurm(commands, choose_reader('commands', commands));"
            "print(msgspec.json.encode(found.snapshot().reservations).decode())"
        )
        text = self.root("/opt/ones/bin/python", "-c", script)
        return msgspec.json.decode(text, type=dict[str, Reservation])

    def reservation_of(self, number: int) -> str:
        """The job's reservation, as Slurm has it."""
        return str(self.job(number)["resv_name"])

    def eventually(self, condition: Callable[[], bool], *, within: float, what: str) -> None:
        self.cluster.eventually(condition, within=within, what=what)

    def wait(self, number: int, state: str) -> None:
        self.cluster.eventually(
            lambda: self.state(number) == state, within=20, what=f"job {number} {state}"
        )

    def printed(self, number: int, *, run: int) -> list[str]:
        """What one run of a job printed, its tasks' lines included."""

        def lines() -> list[str]:
            text = self.root("cat", f"/home/alice/{number}.out")
            _, found, rest = text.partition(f"run {run} ")
            return (found + rest.partition(f"run {run + 1} ")[0]).splitlines()

        self.cluster.eventually(
            lambda: len(lines()) > 1, within=20, what=f"run {run} of job {number} has printed"
        )
        time.sleep(0.3)
        return [line for line in lines() if "CANCELLED" not in line and line != "asked"]

    def clean(self) -> None:
        self.cluster.run("ctl", "squeue --noheader -o %A | sort -u | xargs -r scancel --quiet")
        self.cluster.eventually(
            lambda: not self.root("squeue", "--noheader"), within=120, what="an empty queue"
        )
        for line in self.root("scontrol", "--all", "show", "reservation", "--oneliner").split():
            key, _, name = line.partition("=")
            if key == "ReservationName":
                self.root("scontrol", "delete", f"reservationname={name}")


@pytest.fixture(scope="module", name="slurm")
def slurm_with_a_heartbeat(cluster: Cluster) -> Iterator[Slurm]:
    """The cluster as an onesd holds it that does nothing: new elastic jobs wait for the tests."""
    if cluster.run("ctl", "pgrep -f bin/onesd", check=False).returncode == 0:
        pytest.skip("onesd runs on this cluster and would move the jobs itself")
    here = Slurm(cluster)
    here.clean()
    text = f"ones-heartbeat 1\ntime {time.time():.0f}\nlifetime 3600\nhold yes\n"
    cluster.run("ctl", f"cat > {HEARTBEAT}.new; mv {HEARTBEAT}.new {HEARTBEAT}", stdin=text)
    yield here
    cluster.run("ctl", f"rm -f {HEARTBEAT}")
    here.clean()
