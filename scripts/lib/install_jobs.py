"""Jobs of scripts/test-install: every way in which onesd and the agent act, under their units."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from install_site import Site

COUNTING = "python3 /opt/jobs/counting.py {samples} 10"  # samples; one GPU makes 10 a second
DROP_IN = "/run/systemd/system/onesd.service.d/asked.conf"
# The same daemon in the same sandbox, but with the policy that does as a file says.
STEERED = """[Service]
ExecStart=
ExecStart=/usr/bin/python3 /opt/jobs/steered_onesd.py -- --policy asked
"""
QUICK = "/etc/ones/ones.d/quick.toml"
SETTINGS = """[guard]
grace_time = 3.0
live_grace_time = 1.0
[agent]
interval = 2.0
"""
TRAINING = """#!/bin/sh
srun --kill-on-bad-exit=0 --no-kill --ntasks=1 ones-run --live /opt/jobs/counted_digits.py 40000
"""


@dataclass
class Jobs:
    """Jobs of alice's on the site, at sizes that we ask for."""

    site: Site

    def wait(self, condition: Callable[[], bool], what: str, *, within: float = 240) -> None:
        self.site.hosts.eventually(condition, within=within, what=what)

    def steer(self) -> None:
        """Until `let_go` every job has the size that is asked for."""
        self.site.write("ctl", QUICK, SETTINGS)
        self.site.write("ctl", DROP_IN, STEERED)
        self.restart("onesd")

    def let_go(self) -> None:
        self.site.on("ctl", f"rm -rf {DROP_IN} /etc/ones/ones.d /run/ones/asked.json")
        self.restart("onesd")

    def restart(self, unit: str) -> None:
        self.site.on("ctl", f"systemctl daemon-reload && systemctl restart {unit}")
        self.wait(self.holds, "a heartbeat that lets jobs be held")

    def holds(self) -> bool:
        return "hold yes" in self.site.on("ctl", "cat /run/ones/heartbeat", check=False)

    def ask(self, job: str, gpus: int) -> None:
        asked = "/run/ones/asked.json"
        self.site.write("ctl", f"{asked}.new", json.dumps({job: gpus}))
        self.site.on("ctl", f"mv {asked}.new {asked}")

    def of(self, job: str) -> dict[str, object]:
        """What onesd says of a running job; nothing where it doesn't know one."""
        said = self.site.on("ctl", "onesctl jobs --json", check=False)
        jobs = json.loads(said)["jobs"] if said else []
        return next((one for one in jobs if str(one["job"]) == job), {})

    def has(self, job: str, gpus: int) -> None:
        self.wait(lambda: self.of(job).get("gpus") == gpus, f"job {job} with {gpus} GPUs")

    def goes_on(self, job: str) -> None:
        """What its agent reports of the job gets more: it, its agent and onesd understand each
        other."""
        before = self.samples(job)
        self.wait(lambda: self.samples(job) > before, f"further reports of job {job}")
        said = self.site.on("ctl", "onesctl nodes --json")
        assert not json.loads(said)["nodes"][0]["note"], said

    def samples(self, job: str) -> int:
        """That onesd knows the job to have trained; -1 before it does."""
        said = self.site.on("ctl", f"onesctl job {job} --json", check=False)
        reported = json.loads(said)["job"]["report"] if said else None
        return int(reported["samples"]) if reported else -1

    def cancel(self, job: str) -> None:
        self.site.on("ctl", f"scancel {job}")
        self.wait(lambda: self.site.on("ctl", "squeue -h") == "", "an empty queue")

    def resize(self) -> None:
        """By a restart: signal, checkpoint in the job's folder, requeue, shape, release."""
        job = self.site.submit("--elastic=1-4 --gpus=1", COUNTING.format(samples=100000))
        self.has(job, 1)
        seen = f"onesctl job {job}"
        self.wait(lambda: "samples" in self.site.on("ctl", seen, check=False), "its report")
        self.ask(job, 3)
        self.has(job, 3)
        restarts = self.site.on("ctl", f"squeue -h -j {job} -O RestartCnt")
        assert restarts == "1", f"{restarts} restarts"
        self.cancel(job)

    def survive(self) -> None:
        """A killed onesd is started again by systemd, and so is an agent; the job runs on."""
        job = self.site.submit("--elastic=1-4 --gpus=2", COUNTING.format(samples=100000))
        self.has(job, 2)
        for host, unit in (("ctl", "onesd"), ("n1", "ones-agent")):
            show = f"systemctl show --value -p NRestarts {unit}"
            before = self.site.on(host, show)
            self.site.on(host, f"systemctl kill --signal=KILL {unit}")
            self.wait(
                lambda host=host, show=show, before=before: self.site.on(host, show) != before,
                f"{unit} started again",
            )
        self.has(job, 2)

        def measured() -> bool:
            said = self.site.on("ctl", "onesctl nodes --json", check=False)
            node = json.loads(said)["nodes"][0] if said else {"note": "no answer"}
            return not node["note"] and node["memory"] is not None

        self.wait(measured, "a report of the GPUs by the agent that was started again")
        self.cancel(job)

    def stage_in(self) -> None:
        """Data are brought to the node by the user's own job, and removed by the agent."""
        site = self.site
        site.on("ctl", "mkdir -p data && echo content > data/first", "alice")
        wanted = "--elastic=2 --gpus=2 --stage-in=data --output=staged.out"
        job = site.on(
            "ctl", f"sbatch --parsable {wanted} --wrap 'cat $ONES_STAGE_IN/first'", "alice"
        )
        self.wait(lambda: site.state(job) == "COMPLETED", f"job {job} at its end")
        assert site.on("ctl", "cat staged.out", "alice") == "content"
        left = "ls /var/spool/ones-stage"
        self.wait(lambda: site.on("n1", left) == "", "the staged data removed")

    def train(self) -> str:
        """Begin a training that can be resized live."""
        self.site.write("ctl", "/home/alice/train.sh", TRAINING)
        options = "--parsable --elastic=1-4 --gpus=1 --no-kill"
        job = self.site.on("ctl", f"sbatch {options} train.sh", "alice")
        self.wait(lambda: bool(self.of(job).get("gpus")), f"job {job} at work")
        return job

    def live(self, job: str) -> None:
        """A training grows by a satellite, and the satellite is let go again."""
        site, count = self.site, f"squeue -h -j {job} -O RestartCnt"
        restarts = site.on("ctl", count)
        self.ask(job, 3)
        self.has(job, 3)
        shown = site.on("ctl", "squeue -h -O admin_comment:60")
        assert "ONES1S:" in shown, f"no satellite among {shown}"
        assert site.on("ctl", count) == restarts
        self.ask(job, 1)
        self.has(job, 1)
        self.cancel(job)
