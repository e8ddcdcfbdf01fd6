"""What it costs to read a real Slurm by its commands and by PySlurm.

usage: scripts/benchmark-readers [--nodes N] [--running N] [--pending N] [--readings N]

On a container cluster of its own, with nodes that Slurm alone believes in (State=CLOUD, as in
docs/scale.md): jobs there are given their GPUs and go on starting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from on_cluster import Cluster, on_controller, standing

CONF = "/etc/slurm/slurm.conf"
CLOUD = """\
NodeName=c[0001-{nodes:04}] CPUs=128 RealMemory=512000 Gres=gpu:v100:8 State=CLOUD
PartitionName=cloud Nodes=c[0001-{nodes:04}] State=UP MaxTime=INFINITE DefMemPerCPU=100
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=60000
ResumeTimeout=60000
ResumeRate=0
MaxJobCount=50000
"""
SWITCHES = "SwitchName=s0 Switches=s[1-3]\nSwitchName=s3 Nodes=c[0001-{nodes:04}]\n"
GRES = "NodeName=c[0001-{nodes:04}] Name=gpu Type=v100 Count=8\n"
READERS = ("commands", "pyslurm")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-readers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=160)
    parser.add_argument("--running", type=int, default=1200)
    parser.add_argument("--pending", type=int, default=1200)
    parser.add_argument("--readings", type=int, default=6, help="with each reader")
    chosen = parser.parse_args(arguments)
    with standing() as cluster:
        fill(cluster, chosen.nodes, chosen.running, chosen.pending)
        given = (str(chosen.readings), *READERS)
        answer = on_controller(cluster, "reading_cost.py", *given, user="ones", timeout=1800)
    show(json.loads(answer), chosen.nodes)
    return 0


def fill(cluster: Cluster, nodes: int, running: int, pending: int) -> None:
    """Nodes and jobs that exist in slurmctld alone."""
    cluster.run("ctl", f"cat >> {CONF}", stdin=CLOUD.format(nodes=nodes))
    cluster.run("ctl", "cat >> /etc/slurm/gres.conf", stdin=GRES.format(nodes=nodes))
    topology = "/etc/slurm/topology.conf"
    cluster.run("ctl", f"sed -i /s0/d {topology}")
    cluster.run("ctl", f"cat >> {topology}", stdin=SWITCHES.format(nodes=nodes))
    cluster.run("ctl", f"sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=0/' {CONF}")
    cluster.run(
        "ctl", "pkill -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done; slurmctld"
    )
    for count, hold in ((running, ""), (pending, "--hold")):
        submit = (
            f"seq {count} | xargs -P 4 -I X sbatch --quiet {hold} -p cloud --gpus=1 --time=100"
            " --job-name=jobX --wrap 'sleep 100000'"
        )
        cluster.run("ctl", submit, user="alice", timeout=1800)
    begun = "squeue --noheader --states=CONFIGURING,RUNNING | wc -l"
    cluster.eventually(
        lambda: int(cluster.run("ctl", begun).stdout) >= running,
        within=600,
        what=f"{running} jobs with GPUs",
    )


def show(found: dict[str, dict[str, Any]], nodes: int) -> None:
    """The tables of docs/scale.md."""
    jobs = found[READERS[0]]["readings"][0]["jobs"]
    print(f"{jobs} jobs, {nodes} nodes besides; seconds\n")
    names = {
        "passed": "passed",
        "own": "CPU of onesd",
        "programs": "CPU of programs",
        "slurmctld": "CPU of slurmctld",
    }
    print(f"| reader | reading | {' | '.join(names.values())} |\n{'|---' * 6}|")
    for reader, of in found.items():
        for which, part in (
            ("first", of["readings"][:1]),
            ("later, median", of["readings"][1:]),
        ):
            costs = (median(one[key] for one in part) for key in names)
            print(f"| {reader} | {which} | {' | '.join(f'{cost:.3f}' for cost in costs)} |")
    print("\nRPCs of the later readings, ms\n\n| reader | RPC | a reading | least | mean | worst |")
    print("|---" * 6 + "|")
    for reader, of in found.items():
        for name, rpc in sorted(of["rpcs"].items()):
            times = (1000 * rpc[f"{key}mean_s"] for key in ("least_", "", "worst_"))
            count = rpc["count"] / (len(of["readings"]) - 1)
            row = f"{count:.1f} | {' | '.join(f'{each:.1f}' for each in times)}"
            print(f"| {reader} | `{name}` | {row} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
