"""What Slurm's programs print, and what users wrote into it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from fuzz.target import Target, as_text, must
from ones.daemon.presence import Heartbeat
from ones.daemon.release import parse_squeue
from ones.policies.registry import make
from ones.policies.sizes import Sizes
from ones.slurm_ext.accounting import runs_of
from ones.slurm_ext.command_reader import (
    _COLUMNS,
    CommandReader,
    entries,
    nice_in,
    read_reservations,
    record_of,
    rows_of,
    seconds_of,
    switches_of,
)
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.hostlists import MOST_NAMES, expand, fold
from ones.slurm_ext.job_json import (
    gpus_on_nodes,
    job_record,
    node_record,
    shards_per_gpu,
    shares_on_nodes,
)
from ones.slurm_ext.lapse import since_in
from ones.slurm_ext.limits_reading import (
    _ASSOCIATION,
    _QOS,
    Faults,
    associations_in,
    partitions_in,
    qos_in,
    totals_in,
    used_in,
)
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.priority import tres_in
from ones.slurm_ext.priority_reader import PriorityReader
from ones.slurm_ext.pyslurm_reader import Known, answer_in, refuse_other_releases, snapshot_of
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.tres import (
    gpus_by_type,
    gpus_in,
    licenses_in,
    replace_gpus,
    shards_by_type,
    shared_gpus,
)
from ones.slurm_ext.usage import seconds_in, size_in, usage_of

NUMBER = {"set": True, "infinite": False, "number": 2}
JOB: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("priority", "submit_time", "eligible_time", "start_time", "end_time", "time_limit"),
            *("node_count", "max_nodes", "tasks", "cpus_per_task", "tasks_per_node", "cpus"),
            *("memory_per_node", "memory_per_cpu", "array_job_id", "array_task_id"),
        ),
        NUMBER,
    ),
    **{"job_id": 7, "name": "train", "user_name": "alice", "account": "vision"},
    **{"partition": "gpu", "qos": "normal", "job_state": ["RUNNING", "COMPLETING"]},
    **{"state_reason": "None", "restart_cnt": 1, "tres_per_job": "gres/gpu:v100:4", "nice": -5},
    **{"tres_per_node": "", "tres_per_task": "", "cpus_per_tres": "", "memory_per_tres": ""},
    **{"features": "a&b", "dependency": "", "required_nodes": "", "excluded_nodes": "n[7-9]"},
    **{"nodes": "n[1-2]", "gres_detail": ["gpu:v100:2(IDX:0-1)", "shard:v100:1(1/2,0/2)"]},
    **{"batch_host": "n1", "admin_comment": "ONES1:sizes=1-16;request=4;held=1", "requeue": True},
    **{"array_task_string": "1-5%2", "resv_name": "weekly", "state_description": ""},
    **{"licenses": "matlab:2,ansys"},
    **{"tres_alloc_str": "cpu=4,mem=100G,node=2,billing=4,gres/gpu=4,gres/gpu:v100=4"},
}
NODE = {
    **{"name": "n1", "state": ["MIXED", "PLANNED"], "reason": "", "gres": "gpu:v100:4,shard:8"},
    **{"gres_used": "gpu:v100:2(IDX:0-1),shard:v100:1(1/2,0/2)", "partitions": ["gpu"]},
    "active_features": ["a", "b"],
}
RESERVATION = {
    **{"name": "weekly", "flags": ["MAINT", "SPEC_NODES"], "core_specializations": []},
    **{"start_time": NUMBER, "end_time": {**NUMBER, "number": 9}, "node_list": "n[1-2]"},
    **{"users": "alice,bob", "accounts": "", "groups": "", "core_count": 4, "licenses": "matlab:2"},
}
LICENSE = {"LicenseName": "matlab", "Total": 4, "Used": 1, "LastDeficit": 0, "Remote": False}
PYSLURM_JOB = {
    **{"id": 7, "name": "train", "user": "", "uid": 1000, "account": "a", "partition": "gpu"},
    **{"qos": "normal", "state": "RUNNING", "flags": ["COMPLETING"], "reason": "None"},
    **{"reason_text": "", "priority": 5, "nice": 0, "restarts": 0, "submitted": 1, "eligible": 2},
    **{"started": 3, "ended": 4, "time_limit": 60, "least_nodes": 1, "most_nodes": 2, "tasks": 4},
    **{"cpus_per_task": 1, "tasks_per_node": 0, "cpus": 4, "tres_per_job": "gres/gpu:4"},
    **{"tres_per_node": "", "tres_per_task": "", "tres": "", "features": ""},
    **{"cpus_per_gpu": "", "memory": 500, "memory_of": "cpu", "memory_per_gpu": ""},
    **{"licenses": "matlab:2"},
    **{"dependency": "", "required_nodes": "", "excluded_nodes": "", "nodes": "n[1-2]"},
    **{"gres": ["gpu:v100:2(IDX:0-1)", "gpu:1"], "batch_host": "n1", "admin_comment": ""},
    **{"requeue": 1, "array_job": 0, "array_task": None, "array_tasks": "", "reservation": ""},
}
PYSLURM_NODE = {
    **{"name": "n1", "states": "IDLE+DRAIN", "reason": "", "gres": "gpu:v100:4"},
    **{"gres_used": "gpu:v100:0", "partitions": "gpu,all", "features": "a,b"},
}
RELEASES = {
    **{"built_for": [24, 11, 5], "library": 42, "built_for_library": 42, "controller": "24.11.5"},
}
TOPOLOGY = (
    b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n"
    b"SwitchName=s0 Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=s[1-2]\n"
)
QOS_ROW = (
    b"normal|DenyOnLimit|cpu=4,gres/gpu:v100=2|gres/gpu=100|5|mem=100G|||node=2||3|2|1-00:00:00"
)
ASSOCIATION_ROW = b"vision|alice|gpu|root|gres/gpu=4|cpu=100|10|gres/gpu=2||5|02:00:00"
PARTITION = (
    b"PartitionName=gpu AllowGroups=ALL AllowAccounts=vision,nlp DenyQos=low MinNodes=1"
    b" MaxNodes=UNLIMITED MaxTime=1-00:00:00 State=UP QoS=N/A TRES=cpu=8,gres/gpu=4\n"
)
USED = (
    b"QOS=normal(1) UsageRaw=1.0 GrpTRESMins=cpu=N(5),gres/gpu=100(7),gres/gpu:v100=N(3) X=1\n"
    b"ClusterName=c Account=vision UserName= Partition= GrpTRESMins=node=3(4)\n"
)
USAGE_ROW = b"7|0|CANCELLED by 5|1000|2000|1000|2|4|8|4000Mn|1-02:03:04.567|2.5G|60"
RUN_ROW = b"7|0|1000|2000|RESIZING|cpu=4,gres/gpu=2,gres/gpu:v100=2,gres/shard=1|n[1-2]"
CONFIG = (
    b"PriorityType            = priority/multifactor\nPriorityWeightFairShare = 1000\n"
    b"PriorityWeightTRES      = CPU=1000,GRES/gpu=3000\nPriorityMaxAge          = 7-00:00:00\n"
    b"PriorityWeightQOS       = 100\nPriorityWeightAssoc = 5\nPreemptType = preempt/qos\n"
)
TOKEN = "~token~"
_DRAWN = re.compile(":(~[0-9a-f]+~)")  # what stands there for one call of squeue


class Canned:
    """Slurm's programs, each of which prints what it was given."""

    timeout = 20.0

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._calls = 0

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        said = self._texts[self._calls % len(self._texts)]
        self._calls += 1
        token = next((found[1] for arg in args if (found := _DRAWN.search(arg))), TOKEN)
        return said.replace(TOKEN, token)


def _parts(data: bytes, most: int) -> list[str]:
    return [as_text(part) for part in data.split(b"\x1e", most - 1)]


def _canned(data: bytes, calls: int) -> Any:
    return Canned(_parts(data, calls))


def _snapshot(data: bytes) -> object:
    return CommandReader(_canned(data, 4)).snapshot()


def _job(data: bytes) -> object:
    return [job_record(each) for each in entries(as_text(data), "jobs", "squeue --json")]


def _node(data: bytes) -> object:
    return [node_record(each) for each in entries(as_text(data), "nodes", "scontrol show node")]


def _hostlist(data: bytes) -> object:
    names = expand(as_text(data))
    must(len(names) <= MOST_NAMES, "more names than it may be")
    if len(names) <= 64:
        must(set(expand(fold(names))) == set(names), f"{names!r:.200} folded is something else")
    return names


def _tres(data: bytes) -> object:
    text = as_text(data)
    found = [gpus_by_type(text), shards_by_type(text), shared_gpus(text), tres_in(text)]
    shards_per_gpu(text)
    return found, gpus_in(text), replace_gpus(text, "gres/gpu:1")


def _gres_detail(data: bytes) -> object:
    nodes, *detail = _parts(data, 16)
    return gpus_on_nodes(nodes, detail), shares_on_nodes(nodes, detail)


def _sizes(data: bytes) -> object:
    sizes = Sizes.parse(as_text(data))
    must(Sizes.parse(str(sizes)) == sizes or len(str(sizes)) > 256, "written, it is another one")
    return sizes


def _mark(data: bytes) -> object:
    text = as_text(data)
    Tie.read(text)
    return Mark.read(text)


def _times(data: bytes) -> object:
    text = as_text(data)
    found = [seconds_of(text), seconds_in(text), size_in(text), float(nice_in(text))]
    must(all(value is None or value < 1e40 for value in found), "a time that is no time")
    return found


def _columns(data: bytes) -> object:
    return [record_of(row) for row in rows_of(as_text(data), TOKEN)]


def _reservations(data: bytes) -> object:
    unread: dict[str, str] = {}
    return read_reservations(_canned(data, 1), unread), unread


def _pyslurm(data: bytes) -> object:
    answer = answer_in(data)
    if "built_for" in answer:
        return refuse_other_releases(answer)
    return snapshot_of(answer, 0.0, Known())


def _limits(read: Callable[[str, Faults], object]) -> Callable[[bytes], object]:
    def feed(data: bytes) -> object:
        faults = Faults()
        found = read(as_text(data), faults)
        must(len(faults.words()) <= 21, "more faults than are told")
        return found, faults.words()

    return feed


def _licenses(text: str, faults: Faults) -> object:
    return totals_in(entries(text, "licenses", "scontrol show licenses"), faults)


def _used(data: bytes) -> object:
    return used_in(as_text(data), [("qos", "normal"), ("account", "vision")])


def _order(data: bytes) -> object:
    order = PriorityReader(_canned(data, 6), clock=lambda: 0.0).order()
    return order.weights, order.partitions, order.qos, order.associations, order.fair_shares


def _policy(data: bytes) -> object:
    make(as_text(data)[:1000])
    return None


def _as_json(what: str, entry: object) -> bytes:
    return json.dumps({what: [entry]}).encode()


_ROW = (TOKEN.join("7" if name == "JobID" else "1" for name in _COLUMNS) + TOKEN + "\n").encode()
_REAL_ROW = (
    TOKEN.join(
        {
            **dict.fromkeys(_COLUMNS, "N/A"),
            **{"JobID": "7", "State": "RUNNING", "PriorityLong": "4294901757", "Nice": "-100"},
            **{"TimeLimit": "1-00:00:00", "NodeList": "n[1-2]", "tres-alloc": "gres/gpu=4"},
            **{"JobArrayID": "7_[1-5]", "admin_comment": "ONES1:sizes=1-16;request=4;held=1"},
        }.values()
    )
    + TOKEN
    + "\n"
).encode()
_SLURM = (
    b"gres/",
    b"gpu:",
    b"shard:",
    b"v100",
    b"(IDX:0-1)",
    b"(1/2,0/2)",
    b"n[1-2]",
    b"n[01-10/2]",
)
_SACCTMGR = (b"gres/gpu:v100=", b"cpu=", b"mem=", b"UNLIMITED", b"-1", b"|", b"\n", b"N(", b"5)")

TARGETS = (
    Target(
        name="hostlists",
        feed=_hostlist,
        seeds=(b"n1", b"n[1-3,7]", b"gpu-a[01-16]-[1-4].site,m7", b"n[1-9/2],x[08-11]y"),
        faults=(ValueError,),
        words=(b"[1-", b"/2", b"],", b"[0-9][0-9]", b"n[1-99999]"),
        seconds=3.0,
        most=16_000_000,
    ),
    Target(
        name="tres",
        feed=_tres,
        seeds=(b"gres/gpu:v100:4,gres/shard:2", NODE["gres_used"].encode(), b"cpu=4,mem=10G"),
        words=_SLURM,
    ),
    Target(
        name="gres-detail",
        feed=_gres_detail,
        seeds=(b"n[1-2]\x1egpu:v100:2(IDX:0-1)\x1eshard:v100:1(1/2,0/2)", b"n1\x1egpu:1"),
        faults=(ValueError,),
        words=(*_SLURM, b"\x1e"),
        seconds=3.0,
    ),
    Target(
        name="sizes",
        feed=_sizes,
        seeds=(b"4", b"2-16", b"4-16:4", b"1,2,4,8", b"1-65536"),
        faults=(ValueError,),
        words=(b"1-65536", b",1", b":2"),
    ),
    Target(
        name="mark",
        feed=_mark,
        seeds=(
            b"ONES1:sizes=2-16;request=4;held=1;tasks=4;nodes=1;mem=no;cpu=no;type=v100 x",
            b"ONES1S:base=12;restarts=0;order=700",
        ),
        faults=(ValueError,),
        words=(b"ONES1:", b"ONES1S:", b"stage=", b"mem=400", b"held=", b"sizes=1-65536;"),
    ),
    Target(
        name="times",
        feed=_times,
        seeds=(b"1-02:03:04.567", b"02:03", b"2.5G", b"4000Mn", b"-100", b"UNLIMITED"),
        words=(b":", b"-", b".", b"P", b"Kc"),
    ),
    Target(
        name="squeue-columns",
        feed=_columns,
        seeds=(_ROW, _REAL_ROW, _REAL_ROW + _ROW),
        faults=(SlurmError,),
        words=(TOKEN.encode(), *_SLURM, b"ONES1:"),
        seconds=3.0,
    ),
    Target(
        name="slurm-json",
        feed=_snapshot,
        seeds=(
            _REAL_ROW
            + b"\x1e"
            + _as_json("jobs", JOB)
            + b"\x1e"
            + _as_json("nodes", NODE)
            + b"\x1e"
            + TOPOLOGY,
        ),
        faults=(SlurmError,),
        words=(*_SLURM, b"\x1e"),
        seconds=3.0,
        most=32_000_000,
    ),
    Target(
        name="job-json",
        feed=_job,
        seeds=(_as_json("jobs", JOB), _as_json("jobs", {**JOB, "job_state": ["PENDING"]})),
        faults=(SlurmError,),
        words=_SLURM,
        seconds=3.0,
    ),
    Target(
        name="node-json",
        feed=_node,
        seeds=(_as_json("nodes", NODE),),
        faults=(SlurmError,),
        words=_SLURM,
    ),
    Target(
        name="reservations",
        feed=_reservations,
        seeds=(_as_json("reservations", RESERVATION),),
        faults=(SlurmError,),
        words=_SLURM,
        seconds=3.0,
        most=16_000_000,
    ),
    Target(
        name="topology",
        feed=lambda data: switches_of(as_text(data)),
        seeds=(TOPOLOGY,),
        words=(b"SwitchName=", b"Level=", b"Nodes=n[1-60000]", b"\n"),
        seconds=3.0,
        most=32_000_000,
    ),
    Target(
        name="sdiag",
        feed=lambda data: since_in(as_text(data)),
        seeds=(b"Data since      Tue Nov 24 03:21:47 2026 (1795490507)\n",),
        words=(b"Data since ", b"(", b")", b"\n"),
    ),
    Target(
        name="pyslurm",
        feed=_pyslurm,
        seeds=(
            json.dumps(
                {
                    "jobs": [PYSLURM_JOB],
                    "gone": [3],
                    "nodes": [PYSLURM_NODE],
                    "topology": TOPOLOGY.decode(),
                }
            ).encode(),
            json.dumps(RELEASES).encode(),
            b'{"error": "no", "unreachable": true}',
        ),
        faults=(SlurmError,),
        words=_SLURM,
        seconds=3.0,
        most=32_000_000,
    ),
    Target(
        name="limits-qos",
        feed=_limits(qos_in),
        seeds=(QOS_ROW + b"\n", b"|".join([b"x"] * len(_QOS)) + b"\n"),
        words=_SACCTMGR,
    ),
    Target(
        name="limits-associations",
        feed=_limits(associations_in),
        seeds=(
            ASSOCIATION_ROW + b"\nvision||||root|||||\n",
            b"|".join([b"a"] * len(_ASSOCIATION)) + b"\n",
            b"a|||b|||||||\nb|||a|||||||\n",
        ),
        words=_SACCTMGR,
    ),
    Target(
        name="limits-partitions",
        feed=_limits(partitions_in),
        seeds=(PARTITION,),
        words=(b"PartitionName=", b"MaxNodes=", b"MaxTime=", b"MaxMemPerNode=", b" "),
    ),
    Target(
        name="limits-licenses",
        feed=_limits(_licenses),
        seeds=(_as_json("licenses", LICENSE),),
        faults=(SlurmError,),
        words=_SLURM,
    ),
    Target(
        name="licenses",
        feed=lambda data: licenses_in(as_text(data)),
        seeds=(b"matlab:2,ansys", b"a:1|b:1", b"lic@server:2"),
        words=(b":", b",", b"|", b"@"),
    ),
    Target(name="limits-used", feed=_used, seeds=(USED,), words=_SACCTMGR),
    Target(
        name="priorities",
        feed=_order,
        seeds=(
            b"\x1e".join(
                (
                    CONFIG,
                    json.dumps(
                        {
                            "partitions": [
                                {
                                    "name": "gpu",
                                    "maximums": {"time": NUMBER},
                                    "priority": {"job_factor": 1, "tier": 2},
                                    "tres": {"configured": "cpu=8,gres/gpu=4"},
                                }
                            ]
                        }
                    ).encode(),
                    b"n1|8\nn2|16\n",
                    b"normal|10|low\n",
                    b"vision|alice||5\n",
                    b" vision|alice||0.5\n",
                )
            ),
        ),
        faults=(SlurmError,),
        words=(b"\x1e", b"PriorityWeight", b"=", b"|"),
    ),
    Target(
        name="accounting",
        feed=lambda data: (usage_of(_canned(data, 1), [7]), runs_of(_canned(data, 1), [7])),
        seeds=(USAGE_ROW + b"\n7.batch" + USAGE_ROW[1:] + b"\n", RUN_ROW + b"\n"),
        faults=(SlurmError,),
        words=(b"|", b"\n7|", b"7.batch|"),
    ),
    Target(
        name="release-squeue",
        feed=lambda data: (parse_squeue(as_text(data).split("\n")), Heartbeat.parse(as_text(data))),
        seeds=(
            b"7".ljust(20) + b"7".ljust(40) + b"0".ljust(20) + b"1".ljust(12)
            + b"JobHeldUser".ljust(128) + b"ONES1:sizes=1-16;request=4;held=1\n",
            b"ones-heartbeat 1\ntime 1700000000.5\nlifetime 30\nhold yes\nacts yes\n",
        ),
        words=(b"time ", b"lifetime ", b"\n", b"ones-heartbeat 1\n", b" " * 20),
    ),
    Target(
        name="policy-names",
        feed=_policy,
        seeds=(b"ones:generations=0:exponent=0.5", b"srtf", b"liquid", b"pollux", b"fifo"),
        faults=(ValueError,),
        words=(b":", b"=", b",", b"ones", b"true"),
        largest=2000,
    ),
)  # fmt: skip
