"""A round of the whole daemon on a real slurmctld: many slurmd on one host, and jobs that sleep.

Called by scripts/benchmark-scale --slurm. On a container cluster of its own: nodes of eight GPUs,
each with a slurmd (`slurmd -N`) beside slurmctld, in a partition of their own; their agents'
reports come from the process that has onesd's rounds. What it measures is in rounds_on_slurm.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from on_cluster import Cluster, on_controller, standing

CONF = "/etc/slurm/slurm.conf"
FIRST_PORT = 17000
LAB = """\
NodeName=g[0001-{nodes:04}] NodeHostname=ctl NodeAddr=ctl Port=[{first}-{last}] CPUs=128 \
RealMemory=512000 Gres=gpu:a100:8
PartitionName=lab Nodes=g[0001-{nodes:04}] State=UP MaxTime=INFINITE DefMemPerCPU=100
MaxJobCount=50000
"""
# A busy host answers late, and each slurmd needs files of its own. The scheduler has the pace of
# Slurm's defaults, with what its manual advises for long queues: without the last of it backfill
# keeps slurmctld's locks for two seconds at a time, in which nobody is answered. That of the
# tests' cluster is for impatient tests. All jobs of the cluster are on one host: what looks for
# each job's processes would read those of all.
CHANGED = {
    "SlurmdTimeout": "3000",
    "SlurmctldTimeout": "300",
    "MessageTimeout": "60",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd/%n",
    "SlurmdPidFile": "/run/slurm/slurmd.%n.pid",
    "SlurmdLogFile": "/var/log/slurm/slurmd.%n.log",
    "SchedulerParameters": "defer,batch_sched_delay=3,sched_interval=15,bf_interval=30,bf_continue"
    ",bf_yield_interval=100000",
    "JobAcctGatherType": "jobacct_gather/none",
    "ProctrackType": "proctrack/pgid",
    "AccountingStorageTRES": "gres/gpu,gres/gpu:a100,gres/gpu:v100,gres/gpu:k80,gres/shard",
}
GRES = "NodeName=g[0001-{nodes:04}] Name=gpu Type=a100 File=/dev/nvidia[0-7]\n"
PID_MAX = Path("/proc/sys/kernel/pid_max")
THREADS = 40  # for each node, of its slurmd and of its jobs' slurmstepd
SWITCH = 32  # nodes below one leaf switch
START = """\
for gpu in 0 1 2 3 4 5 6 7; do
    [[ -e /dev/nvidia$gpu ]] || mknod -m 0666 /dev/nvidia$gpu c 195 $gpu
done
pkill -x slurmctld
while pgrep -x slurmctld > /dev/null; do sleep 0.1; done
slurmctld
for node in $(seq -f 'g%04g' 1 {nodes}); do
    mkdir -p /var/lib/slurm/slurmd/$node
    slurmd -N $node || exit 1
done
"""


def measured(*, nodes: int, jobs: int, rounds: int, seed: int, reader: str) -> dict[str, Any]:
    """What rounds_on_slurm.py found with so many nodes and jobs."""
    room_for_threads(nodes)
    with standing() as cluster:
        make_nodes(cluster, nodes)
        given = [str(number) for number in (nodes, jobs, rounds, seed)] + [reader]
        answer = on_controller(cluster, "rounds_on_slurm.py", *given, timeout=7200)
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def room_for_threads(nodes: int) -> None:
    """Ends the program where the kernel can't have a slurmd for each node, and their jobs."""
    most, wanted = int(PID_MAX.read_text()), THREADS * nodes + 10_000
    if most < wanted:
        sys.exit(
            f"kernel.pid_max is {most}; {nodes} nodes and their jobs may need {wanted} threads:"
            f" sysctl -w kernel.pid_max=4194304, or fewer --nodes"
        )


def make_nodes(cluster: Cluster, nodes: int) -> None:
    """Nodes on the controller's own host, all of them idle when it returns."""
    for name, value in CHANGED.items():
        cluster.run("ctl", f"sed -i 's|^{name}=.*|{name}={value}|' {CONF}")
    lab = LAB.format(nodes=nodes, first=FIRST_PORT + 1, last=FIRST_PORT + nodes)
    cluster.run("ctl", f"cat >> {CONF}", stdin=lab)
    cluster.run("ctl", "cat >> /etc/slurm/gres.conf", stdin=GRES.format(nodes=nodes))
    cluster.run("ctl", "cat > /etc/slurm/topology.conf", stdin=topology(nodes))
    cluster.run("ctl", START.format(nodes=nodes), timeout=1800)
    idle = "sinfo --noheader --partition=lab --states=idle --format=%D"
    cluster.eventually(
        lambda: sum(map(int, cluster.run("ctl", idle).stdout.split())) == nodes,
        within=1800,
        what=f"{nodes} nodes idle",
    )


def topology(nodes: int) -> str:
    """The cluster's own switches, and one for each 32 of these nodes."""
    lines = ["SwitchName=s1 Nodes=n[1-2]", "SwitchName=s2 Nodes=n[3-4]"]
    leaves = ["s1", "s2"]
    for first in range(1, nodes + 1, SWITCH):
        last = min(nodes, first + SWITCH - 1)
        leaves.append(f"leaf{first:04}")
        lines.append(f"SwitchName={leaves[-1]} Nodes=g[{first:04}-{last:04}]")
    return "\n".join([*lines, f"SwitchName=root Switches={','.join(leaves)}"]) + "\n"
