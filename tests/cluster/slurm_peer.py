"""The same jobs on a real slurmctld and under the policy `slurm` of a replay, side by side."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.simulation import World, replay
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.model import Node
from ones.policies.registry import Site, make
from ones.policies.sizes import Sizes
from ones.policies.slurm.backfill import WINDOW
from ones.policies.slurm.settings import Association, Bounds, Partition, Qos, SlurmSettings
from ones.slurm_ext.hostlists import expand

if TYPE_CHECKING:
    from conftest import Cluster

PEOPLE = {"alice": "vision", "bob": "vision", "carol": "language", "dave": "language"}
CALC_PERIOD = 60  # seconds; Slurm takes whole minutes
HALF_LIFE = 600
FAST = ("n1", "n2")
PASS = 1.0  # seconds from one pass of slurmctld's schedulers to the next, about
AT_ONCE = 2  # seconds: starts so near to each other have no order
TIGHT = 4  # GPUs that a user may have in the QOS of that name
CONFIG = "/etc/slurm/slurm.conf"
# Half an hour of a cluster's day in a second: intervals that are seconds in slurm.conf are 1 here.
PARAMETERS = (
    "bf_interval=1,bf_resolution=1,bf_window=1440,sched_interval=1,sched_min_interval=100000,"
    "batch_sched_delay=0"
)
BILLED = 'MaxTime=60 DefMemPerCPU=500 TRESBillingWeights="CPU=0.0,GRES/gpu=1.0"'
SCHEDULING = f"""
SchedulerParameters={PARAMETERS}
AccountingStorageEnforce=associations,limits,qos
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightPartition=1000
PriorityWeightQOS=5000
PriorityMaxAge=10
PriorityDecayHalfLife={HALF_LIFE // 60}
PriorityCalcPeriod={CALC_PERIOD // 60}
PartitionName=gpu Nodes=n[1-4] Default=YES {BILLED}
PartitionName=fast Nodes=n[1-2] PriorityTier=2 PriorityJobFactor=2 {BILLED}
"""
REPLACED = (
    "SchedulerParameters AccountingStorageEnforce Priority[A-Z][A-Za-z]* PartitionName"
    " PrologSlurmctld EpilogSlurmctld JobSubmitPlugins"
)
SETTINGS = SlurmSettings(
    weight_age=1000,
    weight_fair_share=10000,
    weight_partition=1000,
    weight_qos=5000,
    max_age=600,
    half_life=HALF_LIFE,
    calc_period=CALC_PERIOD,
    bf_interval=1,
    bf_resolution=1,
    partitions=(
        Partition(name="gpu", max_time=3600),
        Partition(name="fast", nodes=frozenset(FAST), max_time=3600, tier=2, job_factor=2),
    ),
    qos=(Qos(name="normal"), Qos(name="tight", priority=10, bounds=Bounds(gpus_per_user=TIGHT))),
    associations=(
        *(Association(account="root", user=user) for user in ("ones", "oper", "root")),
        *(Association(account=account) for account in ("vision", "language")),
        *(Association(account=account, user=user) for user, account in PEOPLE.items()),
    ),
)
NODES = tuple(
    Node(f"n{number}", "gpu", 4, (f"s{1 + (number > 2)}", "s0")) for number in range(1, 5)
)


SLOT = 3  # seconds: jobs end at multiples, one at each, and are submitted halfway between
SLOTS = "/home/slots"
UNTIL = (
    f"t=$((($(date +%%s) + %d + {SLOT - 1}) / {SLOT} * {SLOT}));"
    f" until mkdir {SLOTS}/$t; do t=$((t + {SLOT})); done;"
    " sleep $(awk -v t=$t -v now=$(date +%%s.%%N) 'BEGIN { printf \"%%.3f\", t - now }')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """A job of `sleep`, so long and up to a slot that no other job ends in."""

    at: float  # seconds from the beginning
    user: str
    gpus: int
    seconds: int
    minutes: int  # time limit
    partition: str
    qos: str

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // 4)

    @property
    def command(self) -> list[str]:
        per_node = self.gpus // self.nodes
        return [
            *("sbatch", "--parsable", f"--uid={self.user}", f"--account={PEOPLE[self.user]}"),
            *("--output=/dev/null", "--chdir=/tmp", f"--time={self.minutes}"),
            *(f"--nodes={self.nodes}", f"--gres=gpu:{per_node}", f"--partition={self.partition}"),
            *(f"--qos={self.qos}", "--mem-per-cpu=1", f"--wrap={UNTIL % self.seconds}"),
        ]


def recipe(jobs: int, seed: int) -> list[Sleep]:
    """Jobs of several users that keep 16 GPUs busy and others waiting."""
    rng = random.Random(seed)
    made: list[Sleep] = []
    slot = 0
    for _ in range(jobs):
        seconds = rng.choice([8, 12, 16, 24, 36, 48])
        gpus = rng.choice([1, 1, 1, 2, 2, 4, 4, 8])
        fast = gpus <= 4 and rng.random() < 0.2
        made.append(
            Sleep(
                at=SLOT * (slot + 0.5),
                user=rng.choice(["alice", "alice", "alice", "bob", "carol", "dave"]),
                gpus=gpus,
                seconds=seconds,
                minutes=rng.choice([2, 2, 3, 4]),
                partition="fast" if fast else "gpu",
                qos="tight" if gpus <= 2 and rng.random() < 0.2 else "normal",
            )
        )
        slot += rng.choice([1, 1, 1, 2, 3])
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of a job; times as Slurm logged them."""

    job: int
    sleep: Sleep
    submitted: float
    started: float
    ended: float
    nodes: tuple[str, ...]


@contextmanager
def scheduling(cluster: Cluster) -> Iterator[None]:
    """The cluster with these settings and nobody's usage; as it was, afterwards."""
    cluster.run("ctl", f"cp -p {CONFIG} {CONFIG}.before")
    try:
        words = "|".join(REPLACED.split())
        cluster.run("ctl", f"sed -i -E '/^({words})=/d' {CONFIG}")
        cluster.run("ctl", f"cat >> {CONFIG}", stdin=SCHEDULING)
        cluster.run("ctl", "sacctmgr -i add qos tight", check=False)
        _manage(cluster, f"modify qos tight set Priority=10 MaxTRESPerUser=gres/gpu={TIGHT}")
        _people(cluster, "normal,tight")
        _restart(cluster)
        yield
    finally:
        cluster.run("ctl", "squeue -h -o %A | sort -u | xargs -r scancel")
        cluster.run("ctl", f"mv {CONFIG}.before {CONFIG}")
        _people(cluster, "normal")
        cluster.run("ctl", "sacctmgr -i delete qos tight", check=False)
        _restart(cluster)


def _people(cluster: Cluster, qos: str) -> None:
    """Nobody has used anything, and all may use these QOS."""
    for user, account in PEOPLE.items():
        who = f"modify user where name={user} account={account} cluster=ones set"
        _manage(cluster, f"{who} qos={qos}")
        _manage(cluster, f"{who} RawUsage=0")


def _manage(cluster: Cluster, words: str) -> None:
    """`sacctmgr`, which fails where nothing is changed by it."""
    cluster.run("ctl", f"sacctmgr -i {words}", check=False)


def _restart(cluster: Cluster) -> None:
    cluster.run("ctl", "pkill -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done")
    cluster.run("ctl", "slurmctld && until scontrol ping > /dev/null; do sleep 0.1; done")
    cluster.eventually(
        lambda: cluster.run("ctl", "sinfo -h -p gpu -t idle -o %D").stdout.strip() == "4",
        within=60,
        what="four idle nodes",
    )


SUBMIT = """
import json, subprocess, sys, time
slot = int(sys.argv[1])
began = time.time() + slot - time.time() % slot
for at, command in json.load(sys.stdin):
    time.sleep(max(0.0, began + at - time.time()))
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
"""


def on_slurm(cluster: Cluster, sleeps: Sequence[Sleep]) -> list[Ran]:
    """Submit the jobs, each in its time, and wait for all of them to end."""
    listed = json.dumps([(one.at, one.command) for one in sleeps])
    cluster.run("ctl", f"rm -rf {SLOTS} && mkdir -m 1777 {SLOTS}")
    submit = ["python3", "-c", SUBMIT, str(SLOT)]
    done = cluster.run("ctl", submit, stdin=listed, timeout=sleeps[-1].at + 300)
    jobs = [int(line) for line in done.stdout.split()]
    work = sum(one.gpus * one.seconds for one in sleeps)
    cluster.eventually(
        lambda: not cluster.run("ctl", "squeue -h").stdout, within=300 + work, what="no jobs left"
    )
    told = happened(cluster)
    where = places(cluster)
    untold = {job: {"submitted", "started", "ended"} - {*told.get(job, {})} for job in jobs}
    assert not {job: missing for job, missing in untold.items() if missing}, untold
    return [
        Ran(job=job, sleep=one, nodes=where[job], **told[job])
        for job, one in zip(jobs, sleeps, strict=True)
    ]


LOGGED = re.compile(
    r"\[(?P<at>[^]]+)\] (?:(?P<submitted>_slurm_rpc_submit_batch_job:)"
    r"|(?P<started>sched: Allocate|sched/backfill: _start_job: Started)"
    r"|(?P<ended>_job_complete:(?=.* done$))) JobId=(?P<job>\d+)"
)
LAUNCHED = re.compile(r"\[(?P<at>[^]]+)\] Launching batch (?:job |JobId=)(?P<job>\d+)\b.* for UID")


def happened(cluster: Cluster) -> dict[int, dict[str, float]]:
    """Job -> when what became of it; the accounting has whole seconds, the logs a thousandth."""
    found: dict[int, dict[str, float]] = {}
    for match in _logged(cluster, "ctl", "slurmctld", LOGGED):
        what = next(word for word in ("submitted", "started", "ended") if match[word])
        found.setdefault(int(match["job"]), {})[what] = _time(match)
    # Slurm 26.05 does not log a start by its backfill, but slurmd what it is then told to do.
    for node in NODES:
        for match in _logged(cluster, node.name, "slurmd", LAUNCHED):
            found.setdefault(int(match["job"]), {}).setdefault("started", _time(match))
    return found


def _logged(
    cluster: Cluster, node: str, daemon: str, form: re.Pattern[str]
) -> Iterator[re.Match[str]]:
    lines = cluster.run(node, f"cat /var/log/slurm/{daemon}.log").stdout.splitlines()
    return (match for line in lines if (match := form.match(line)))


def _time(match: re.Match[str]) -> float:
    return datetime.fromisoformat(match["at"]).replace(tzinfo=UTC).timestamp()


def places(cluster: Cluster) -> dict[int, tuple[str, ...]]:
    """Job -> the nodes it ran on, of those that have run."""
    listed = cluster.run("ctl", "sacct -a -X -n -P -S now-1hour -o JobIDRaw,NodeList").stdout
    columns = [line.split("|") for line in listed.splitlines()]
    return {int(job): expand(nodes) for job, nodes in columns if not nodes.startswith("None")}


def last_decay(cluster: Cluster) -> float:
    """When slurmctld last counted usage and priorities."""
    path = "/var/lib/slurm/slurmctld/priority_last_decay_ran"
    return float(cluster.run("ctl", f"stat -c %.Y {path}").stdout)


def replayed(ran: Sequence[Ran], *, counted: float) -> list[float]:
    """The starts of the same jobs in a replay, as times of the real run."""
    zero = beginning(ran, counted)
    policy = make("slurm", site=Site(slurm=SETTINGS))
    world = World(nodes=NODES, round_seconds=PASS, restart_seconds=0.0)
    done = replay(Workload(as_traced(ran, zero)), policy, world, clock=time.process_time)
    return [zero + (job.started or 0.0) for job in done.jobs]


def beginning(ran: Sequence[Ran], counted: float) -> float:
    """When the clock of a replay begins: at a multiple of the windows in which the backfill looks
    at the ends of running jobs, and less than one of them before a real count of usage."""
    first = min(one.submitted for one in ran)
    return (counted - CALC_PERIOD * (1 + (counted - first) // CALC_PERIOD)) // WINDOW * WINDOW


def as_traced(ran: Sequence[Ran], zero: float) -> tuple[TraceJob, ...]:
    """The jobs as a replay takes them, its clock beginning then."""
    return tuple(
        TraceJob(
            name=str(one.job),
            user=one.sleep.user,
            family="sleep",
            account=PEOPLE[one.sleep.user],
            submitted=one.submitted - zero,
            application=Recorded(
                name=str(one.job),
                gpus=one.sleep.gpus,
                seconds=one.ended - one.started,
                sizes=Sizes((one.sleep.gpus,)),
            ),
            requested=one.sleep.gpus,
            batch=None,
            sizes=Sizes((one.sleep.gpus,)),
            time_limit=60.0 * one.sleep.minutes,
            partition=one.sleep.partition,
            qos=one.sleep.qos,
            nodes=one.sleep.nodes,
        )
        for one in ran
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How near the replay came to what really happened."""

    jobs: int
    real_start: float  # mean, from the first submission on
    replayed_start: float
    pairs: int  # that really started one clearly after the other
    swapped: int  # of these, those that start the other way round in the replay
    largest: float  # difference of a start

    @classmethod
    def of(cls, ran: Sequence[Ran], starts: Sequence[float]) -> Agreement:
        first = min(one.submitted for one in ran)
        clear = [
            (one, other)
            for one, really in enumerate(ran)
            for other, later in enumerate(ran)
            if really.started + AT_ONCE < later.started
        ]
        return cls(
            jobs=len(ran),
            real_start=sum(one.started - first for one in ran) / len(ran),
            replayed_start=sum(start - first for start in starts) / len(ran),
            pairs=len(clear),
            swapped=sum(1 for one, other in clear if starts[one] > starts[other]),
            largest=max(abs(a.started - start) for a, start in zip(ran, starts, strict=True)),
        )

    @property
    def mean_error(self) -> float:
        return abs(self.replayed_start / self.real_start - 1)
