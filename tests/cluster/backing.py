"""A cluster of its own with two slurmctld: on ctl, and its backup on ctl2, with one saved state."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import cluster_name, cluster_up
from steering import IMPATIENT, Steering

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/cluster"
SHARED = "/home/ones-shared"  # on the volume that all containers see
STATE = f"{SHARED}/slurmctld"
NODES = ("n1", "n2", "n3", "n4")
# GPUs in shards are left out: a backup of 24.11 takes their nodes for wrongly configured.
CONFIGURE = rf"""
cd /etc/slurm
sed -i 's|^SlurmctldHost=.*|SlurmctldHost=ctl\nSlurmctldHost=ctl2|' slurm.conf
sed -i 's|^StateSaveLocation=.*|StateSaveLocation={STATE}|' slurm.conf
sed -i 's|^SlurmctldTimeout=.*|SlurmctldTimeout=5|' slurm.conf
sed -i 's|,shard:8||; s|^GresTypes=.*|GresTypes=gpu|; s|,gres/shard||' slurm.conf
sed -i '/shard/d' gres.conf
"""
# What an operator does where slurmctld has forgotten a start and made it again: slurmd still had
# the first, so that Slurm took the node out of service, and holds the job.
REPAIR = """
[[ $(squeue -h -j "$1" -O Reason:60) == *"launch failed"* ]] || exit 0
for node in $(sinfo -h -N -t drain -o %N); do
    scontrol show node "$node" | grep -q 'Reason=Duplicate jobid' || continue
    scontrol update nodename="$node" state=resume
done
scontrol release "$1" && echo repaired
"""
# Just behind a requeue that slurmctld may not have saved yet. It saves at once what comes five
# seconds or more after its last save: with "$3" there is always something that it has just saved.
KILL_AFTER_REQUEUE = """
restarts() { squeue -h -t all -j "$1" -O RestartCnt; }
before=$(restarts "$1")
until [[ $(restarts "$1") != "$before" ]]; do
    [[ -z $3 ]] || scontrol update JobId="$1" Nice=0
    sleep 0.05
done
sleep "$2"
pkill -KILL -x slurmctld
"""


class Backed:
    """onesd on ctl, whose slurmctld is killed and started again; ctl2 has the backup."""

    def __init__(self, onesd: Steering) -> None:
        self.onesd = onesd
        self.cluster = onesd.cluster
        self.repaired = 0

    def configure(self) -> None:
        """Two slurmctld that share their state, and a heartbeat that both see."""
        run = self.cluster.run
        for host in ("ctl", "ctl2", *NODES):
            run(host, CONFIGURE)
        run("ctl", f"install -d -o ones -m 0711 {SHARED}")
        self._end("ctl", "slurmctld")
        run("ctl", f"cp -a /var/lib/slurm/slurmctld {STATE}")
        self.start_primary()
        run("ctl2", "slurmctld")
        for node in NODES:
            self._end(node, "slurmd")
            run(node, "slurmd")
        idle = "[[ $(sinfo -h -t idle -o %D) == 4 ]] && ! scontrol ping | grep DOWN"
        self.cluster.eventually(
            lambda: not run("ctl", idle, check=False).returncode,
            within=30,
            what="two slurmctld and four idle nodes",
        )

    def steer(self) -> None:
        """onesd with a policy that never leaves a job at its size."""
        for host in ("ctl", "ctl2"):
            self.cluster.run(host, f"ln -sfn {SHARED}/heartbeat /run/ones/heartbeat")
        self.onesd.configure(f'heartbeat = "{SHARED}/heartbeat"\n{IMPATIENT}')
        self.onesd.start_steered()

    def kill_after_requeue(self, job: int, *, seconds: float, unsaved: bool = False) -> None:
        """SIGKILL of the primary so long after the job has been requeued, whoever waits for it.

        `unsaved`: it has not saved the requeue, but for once in a hundred times.
        """
        words = [str(job), str(seconds), "yes" if unsaved else ""]
        self.cluster.run("ctl", ["bash", "-c", KILL_AFTER_REQUEUE, "-", *words])

    def wait_for_the_job(self, job: int, states: Sequence[str], *, within: float) -> None:
        """Until it is in one of the states, with an operator at hand."""

        def there() -> bool:
            said = self.cluster.run("ctl", ["bash", "-c", REPAIR, "-", str(job)], check=False)
            self.repaired += "repaired" in said.stdout
            return self.onesd.state(job) in states

        what = f"job {job} {'/'.join(states)}"
        self.cluster.eventually(there, within=within, what=what)

    def wait_for_backup(self) -> None:
        """Until the backup answers."""
        self.cluster.eventually(
            lambda: not self.cluster.run("ctl", "squeue -h", check=False).returncode,
            within=30,
            what="the backup slurmctld at work",
        )

    def start_primary(self) -> None:
        """It takes over from its backup, if that is at work."""
        self.cluster.run("ctl", "slurmctld")
        up = "scontrol ping | grep -q 'primary) at ctl is UP' && squeue -h"
        self.cluster.eventually(
            lambda: not self.cluster.run("ctl", up, check=False).returncode,
            within=30,
            what="the primary slurmctld at work",
        )

    def asked(self, question: str) -> list[list[Any]]:
        """Rows of onesd's database."""
        ask = (
            "import json, sqlite3, sys;"
            "base = sqlite3.connect('/var/lib/ones/ones.sqlite', timeout=20);"
            "print(json.dumps(base.execute(sys.argv[1]).fetchall()))"
        )
        command = ["/opt/ones/bin/python", "-c", ask, question]
        return list(json.loads(self.cluster.run("ctl", command).stdout))

    def _end(self, host: str, daemon: str) -> None:
        self.cluster.run(host, f"pkill -x {daemon}; while pgrep -x {daemon}; do sleep 0.1; done")


@contextmanager
def backed() -> Iterator[Backed]:
    """The cluster, brought up for this and taken down."""
    name = f"{cluster_name()}-backup"
    with cluster_up(name) as cluster:
        environment = {**os.environ, "ONES_CLUSTER_NAME": name}
        subprocess.run([SCRIPT, "standby"], env=environment, check=True, capture_output=True)
        pair = Backed(Steering(cluster))
        pair.configure()
        pair.onesd.prepare()
        pair.steer()
        yield pair
