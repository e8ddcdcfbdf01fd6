"""Files that users and operators hand to our programs."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from fuzz.target import Target
from ones.daemon.config import ConfigError, read_config
from ones.daemon.ctl.solve import BadCase, answer
from ones.daemon.presence import read_paths
from ones.daemon.replay import gavel, inventory, profiles, traces
from ones.daemon.replay.faults import TraceError
from ones.policies.gavel import POLICIES
from ones.slurm_ext.batch_script import ScriptError, read_script
from ones.slurm_ext.elastic_script import read_elastic

SIMPLE = (
    b"submitted,name,user,gpus,duration_s,sizes,account,gpu_type,declared\n"
    b"0,a,alice,4,3600,1-8,vision,v100,yes\n60.5,b,bob,1,60,,,,no\n"
)
PODS = (
    b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    b"creation_time,deletion_time,scheduled_time\n"
    b"p1,1000,1000,2,1000,V100M16|P100,LS,Succeeded,0,500,10\n"
)
SACCT = (
    b"JobIDRaw|JobName|User|Account|Submit|ElapsedRaw|State|AllocTRES|AdminComment\n"
    b"7|a|alice|vision|2024-01-02T03:04:05|3600|COMPLETED|cpu=4,gres/gpu=4|ONES1:sizes=1-8\n"
    b"8|b|bob|vision|1700000000|60|FAILED|gres/gpu:v100=2|\n"
)
SACCT_JSON = json.dumps(
    {
        "jobs": [
            {
                "job_id": 7,
                "name": "a",
                "user": "alice",
                "account": "vision",
                "state": {"current": ["COMPLETED"]},
                "time": {"submission": 1000, "start": 1001, "end": 2000, "elapsed": 999},
                "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 4}]},
                "comment": {"administrator": ""},
                "allocation_nodes": 1,
            }
        ]
    }
).encode()
NAMED = b"name,time,application,num_replicas,batch_size\na,30,plain,2,32\nb,60,plain,4,64\n"
GAVEL = b"ResNet (batch size 16)\tpython3 x\tdir\t-n\t1\t1000\t2\t0\t-1.0\t60.5\n"
RATES = json.dumps(
    {
        "v100": {"('ResNet (batch size 16)', 1)": {"null": 10.0, "('o', 1)": [1.0, 2.0]}},
        "k80": {"('ResNet (batch size 16)', 2)": {"null": 2.0}, "plain": {"null": 1.0}},
    }
).encode()
CLUSTER = (
    b'[[nodes]]\nnames = "n[01-16]"\ngpus = 4\ntype = "v100"\nswitches = ["s1", "s0"]\n'
    b"[prices]\nv100 = 2.5\n"
)
CLUSTER_TABLE = b"name,gpus,type,switches\nn1,4,v100,s1\nn2,8,a100,\n"
CONFIG = (
    b'controller = "ctl:7667"\nround = 30\npolicy = "ones"\nmode = "observe"\n'
    b'[daemon]\naddress = "0.0.0.0"\nallow = ["10.0.0.0/8"]\nmetrics = "127.0.0.1:9000"\n'
    b'[page]\naddress = "127.0.0.1:7668"\nurl = "https://ones.site"\n'
    b'[clusters]\na = "ctl:7667"\nb = "c:1,d:2"\n'
    b"[gavel.prices]\nv100 = 1.5\n[agent]\n[staging]\n[estimator]\n"
)
SCRIPT = (
    b"#!/bin/bash\n#SBATCH -J train --gpus=v100:4\n#SBATCH --mem=4G -t 1-12:00:00 -N 1-2\n"
    b"#SBATCH --gres=gpu:v100:2 --cpus-per-gpu=4 --mem-per-gpu 2G --elastic=1-8 # x\n\necho\n"
)
CASE = {
    "name": "two",
    "worker_types": ["k80", "v100"],
    "cluster": {"v100": 1, "k80": 1},
    "jobs": [
        {
            **{"id": 0, "scale_factor": 1, "weight": 1, "throughput": {"k80": 1, "v100": 4}},
            **{"steps_remaining": 100, "time_since_start": 5, "slo_seconds": 50},
        },
        {
            **{"id": 1, "scale_factor": 1, "weight": 2, "throughput": {"k80": 3, "v100": 3}},
            **{"steps_remaining": 10, "time_since_start": 1, "cumulative_isolated_time": 2},
        },
    ],
    "pairs": [
        {
            **{"jobs": [0, 1], "scale_factor": 1},
            "throughput": {"k80": [0.5, 1.0], "v100": [2.0, 1.0]},
        }
    ],
    "entities": {"a": {"policy": "fifo", "weight": 1, "jobs": [0, 1]}},
    "instance_costs": {"k80": 1.0, "v100": 2.0},
}
PLACEMENTS = b"placement,local_bsz,step_time,sync_time\n1,8,0.2,0.0\n2,16,0.4,0.1\n11,8,0.4,0.2\n"
SCALABILITY = b"num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,8,32,1.5,0.8\n"
VALIDATION = b"progress,iteration,metric,grad_sqr,grad_var\n100,100,1,4.0,8.0\n250,250,2,2.0,8.0\n"


@cache
def folder() -> Path:
    """Where inputs lie as files, in memory where there is such a place."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="ones-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def in_file(data: bytes, name: str, read: Callable[[Path], object], *, mode: int = 0o644) -> object:
    """What is read of a file with these bytes."""
    file = folder() / name
    file.write_bytes(data)
    file.chmod(mode)
    return read(file)


def _trace(data: bytes) -> object:
    beside = folder() / "beside"
    if not beside.exists():
        (beside / "plain").mkdir(parents=True)
        (beside / gavel.FILE).write_bytes(RATES)
        (beside / "plain/placements.csv").write_bytes(PLACEMENTS)
        (beside / "plain/scalability.csv").write_bytes(SCALABILITY)
        (beside / "plain/validation-16.csv").write_bytes(VALIDATION)
        (beside / "plain/validation-64.csv").write_bytes(VALIDATION)
    return in_file(
        data, "trace", lambda file: traces.read(file, profiles=beside, note=lambda _: None)
    )


def _profile(data: bytes) -> object:
    """Three of its tables, of which the hostile one may be any."""
    place = folder() / "profiles" / "plain"
    place.mkdir(parents=True, exist_ok=True)
    texts = [*data.split(b"\x1e", 3), b"", b""]
    (place / "placements.csv").write_bytes(texts[0])
    (place / "scalability.csv").write_bytes(texts[1])
    (place / "validation-16.csv").write_bytes(texts[2])
    return profiles.load(place.parent, ["plain"])


def _cluster(data: bytes) -> object:
    def read(file: Path) -> object:
        with suppress(TraceError):
            inventory.prices(file)
        return inventory.read(file)

    return in_file(data, "cluster.toml" if data[:1] in b"[#" else "cluster", read)


def _config(data: bytes) -> object:
    def read(file: Path) -> object:
        read_paths(file)
        return read_config(file).config

    return in_file(data, "ones.toml", read)


def _solve(data: bytes) -> object:
    return in_file(data, "case.json", answer)


TARGETS = (
    Target(
        name="traces",
        feed=_trace,
        seeds=(SIMPLE, PODS, SACCT, SACCT_JSON, NAMED, GAVEL),
        faults=(TraceError,),
        words=(b",", b"|", b"\t", b"\n", b'"', b"COMPLETED", b"gres/gpu=", b"1-8", b"V100"),
        seconds=3.0,
        most=32_000_000,
    ),
    Target(
        name="profiles",
        feed=_profile,
        seeds=(b"\x1e".join((PLACEMENTS, SCALABILITY, VALIDATION)),),
        faults=(TraceError,),
        words=(b",", b"\n", b"\x1e", b"11,8,", b"1e300"),
        seconds=3.0,
        most=32_000_000,
    ),
    Target(
        name="throughputs",
        feed=lambda data: in_file(data, "rates.json", gavel.throughputs),
        seeds=(RATES,),
        faults=(TraceError,),
        words=(b"('", b"', 2)", b'"null":'),
    ),
    Target(
        name="clusters",
        feed=_cluster,
        seeds=(CLUSTER, CLUSTER_TABLE),
        faults=(TraceError,),
        words=(b"[[nodes]]\n", b"names = ", b"gpus = ", b'"""', b"[", b"= {a = ", b"\n"),
        seconds=3.0,
        most=64_000_000,
    ),
    Target(
        name="configuration",
        feed=_config,
        seeds=(CONFIG,),
        faults=(ConfigError,),
        words=(b"[page]\n", b'"""', b"[", b"= [", b"{a = ", b"inf", b"nan", b"1979-05-27", b"\n"),
    ),
    Target(
        name="batch-scripts",
        feed=lambda data: in_file(data, "job.sh", read_script),
        seeds=(SCRIPT,),
        faults=(ScriptError,),
        words=(b"#SBATCH ", b"\n#SBATCH -", b"--gpus=", b"--mem=", b"'", b'"', b"\\", b"-t"),
    ),
    Target(
        name="elastic-scripts",
        feed=lambda data: in_file(data, "job.sh", read_elastic),
        seeds=(SCRIPT, b"#!/bin/sh\n#SBATCH --elastic -G 4 -p a,b -x n[1-4] -C 'a|b' -N1-2\n"),
        faults=(ScriptError,),
        words=(b"#SBATCH ", b"--elastic=", b"--gpus=", b"--nodes=", b"--exclude=", b"-C", b"-n"),
    ),
    Target(
        name="solve",
        feed=_solve,
        seeds=tuple(json.dumps({**CASE, "policy": policy}).encode() for policy in POLICIES),
        faults=(BadCase,),
        seconds=10.0,
        largest=8192,
    ),
)
