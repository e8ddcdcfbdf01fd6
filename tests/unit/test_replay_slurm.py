"""Slurm's own rules in replays: what traces tell of them, and a site's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ones.daemon.ctl.main import main
from ones.daemon.replay import site_rules, traces
from ones.daemon.replay.faults import TraceError
from ones.policies.slurm.settings import SlurmSettings

HEADING = "submitted,name,user,gpus,duration_s,time_limit_s,partition,qos,reservation,nodes\n"
SITE = """
[[nodes]]
names = "n[1-2]"
gpus = 4

[slurm]
weight_age = 0
half_life = 3600
favor_small = true

[[partitions]]
name = "gpu"
[[partitions]]
name = "fast"
nodes = "n2"
tier = 2
max_time = 3600

[[qos]]
name = "normal"
gpus_per_user = 4

[[associations]]
account = "lab"
shares = 3
[[associations]]
account = "lab"
user = "ada"
jobs_per_user = 2

[[reservations]]
name = "class"
nodes = "n1"
start = 600
end = 1200
"""


def a_site(tmp_path: Path, text: str = SITE) -> Path:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    return file


def ctl(tmp_path: Path, lines: str, *options: str) -> Result:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADING + lines)
    return CliRunner().invoke(main, ["replay", str(trace), "--restart-cost=0", *options])


def starts(done: Result) -> dict[str, float]:
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    return {job["id"]: job["started_s"] for job in run["jobs"]}


def test_the_columns_that_slurm_goes_by_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADING + "0,a,u,4,60,600,fast,high,class,2\n0,b,u,4,60,,,,,\n")
    full, plain = traces.read(trace).jobs
    told = (full.time_limit, full.partition, full.qos, full.reservation, full.nodes)
    assert told == (600.0, "fast", "high", "class", 2)
    assert (plain.time_limit, plain.partition, plain.qos, plain.nodes) == (None, "", "", 0)


MATLAB = (("matlab", 2), ("ansys", 1))


def test_memory_and_licences_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    heading = "submitted,name,user,gpus,duration_s,memory_mib,licenses\n"
    trace.write_text(heading + "0,a,u,4,60,8000,matlab:2;ansys\n0,b,u,4,60,,\n")
    full, plain = traces.read(trace).jobs
    assert (full.memory, full.licenses) == (8000.0, MATLAB)
    assert (plain.memory, plain.licenses) == (0.0, ())
    trace.write_text(heading + "0,a,u,4,60,8000,matlab:1|ansys:1\n")
    with pytest.raises(TraceError, match="is not a list such as"):
        traces.read(trace)


def test_licences_of_elastic_jobs_that_are_not_there_keep_nobody_from_starting(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADING.strip()},licenses,sizes\n0,a,u,2,60,,,,class2025,,matlab:2,1-2\n")
    done = CliRunner().invoke(main, ["replay", str(trace), "--policy=fifo", "--nodes=1"])
    assert done.exit_code == 0, done.output
    assert "1 jobs asked for reservation class2025, which --cluster does not have" in done.stderr
    assert "1 jobs asked for licence matlab, which --cluster does not have" in done.stderr


def test_records_of_sacct_tell_of_memory_and_licences_too(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    held = "cpu=4,mem=62.50G,node=2,gres/gpu=4,license/matlab=2,license/ansys=1"
    trace.write_text(f"JobIDRaw|Submit|ElapsedRaw|AllocTRES\n1|100|60|{held}\n")
    (job,) = traces.read(trace).jobs
    assert (job.memory, job.licenses) == (64000.0, MATLAB)


def test_the_sites_licences_stand_in_the_description_of_its_cluster(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[licenses]\nmatlab = 4\n[[qos]]\nname = "q"\ngrp_memory = 1000\n')
    found = site_rules.read(cluster)
    assert (found.licenses, found.qos[0].bounds.grp_memory) == ((("matlab", 4),), 1000)
    for wrong in ("licenses = 4\n", '[licenses]\nmatlab = "four"\n', "[licenses]\nmatlab = -1\n"):
        cluster.write_text(wrong + "[slurm]\n")
        with pytest.raises(TraceError, match="licen"):
            site_rules.read(cluster)


def test_records_of_sacct_tell_what_slurm_goes_by(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(
        "JobIDRaw|Submit|ElapsedRaw|AllocTRES|Partition|QOS|TimelimitRaw|Reservation|NNodes\n"
        "1|100|60|gres/gpu=4|gpu|high|90|class|2\n"
        "2|100|60|gres/gpu=4|gpu|normal|UNLIMITED||1\n"
    )
    full, plain = traces.read(trace).jobs
    told = (full.time_limit, full.partition, full.qos, full.reservation, full.nodes)
    assert told == (5400.0, "gpu", "high", "class", 2)
    assert plain.time_limit is None


def test_json_records_tell_it_too(tmp_path: Path) -> None:
    limit = {"set": True, "infinite": False, "number": 90}
    record = {
        "job_id": 1,
        "partition": "gpu",
        "qos": "high",
        "reservation": {"name": "class"},
        "allocation_nodes": 2,
        "time": {"submission": 100, "start": 100, "end": 160, "limit": limit},
        "tres": {
            "allocated": [
                {"type": "gres", "name": "gpu", "count": 4},
                {"type": "mem", "name": "", "count": 8000},
                {"type": "license", "name": "matlab", "count": 2},
            ]
        },
    }
    forever = {**record, "time": {**record["time"], "limit": {**limit, "infinite": True}}}  # type: ignore[dict-item]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"jobs": [record, {**forever, "job_id": 2}]}))
    first, second = traces.read(trace).jobs
    assert (first.memory, first.licenses) == (8000.0, (("matlab", 2),))
    told = (first.time_limit, first.partition, first.qos, first.reservation, first.nodes)
    assert told == (5400.0, "gpu", "high", "class", 2)
    assert second.time_limit is None


def test_a_description_of_the_cluster_has_the_sites_rules(tmp_path: Path) -> None:
    found = site_rules.read(a_site(tmp_path))
    assert (found.weight_age, found.half_life, found.favor_small) == (0, 3600, True)
    assert [one.name for one in found.partitions] == ["gpu", "fast"]
    assert found.partitions[1].nodes == {"n2"}
    assert found.qos[0].bounds.gpus_per_user == 4
    assert [one.bounds.jobs_per_user for one in found.associations] == [None, 2]
    assert found.reservations[0].start == 600
    table = tmp_path / "nodes.csv"
    table.write_text("name,gpus,type\nn1,4,v100\n")
    assert site_rules.read(table) == SlurmSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[slurm]\nwarp = 9\n", "column slurm: has no setting 'warp'; known: bf_interval"),
        ("[slurm]\nweight_age = 'much'\n", "column slurm.weight_age: 'much' is not a number"),
        ("[slurm]\nbf_interval = 0\n", "column slurm: its setting bf_interval must be above 0"),
        ("slurm = 3\n[x]\n", "column slurm: is no table"),
        ("[qos]\nname = 'a'\n", "column qos: is no list of tables; write [[qos]]"),
        ("[[qos]]\npriority = 1\n", "column qos 1: says no name"),
        ("[[reservations]]\nname = 'r'\n", "column reservations 1: says no nodes"),
        ("[[qos]]\nname = 'a'\ngrp_gpus = -1\n", "column qos 1: the limit grp_gpus is -1, below 0"),
        ("[[qos]]\nname = 'a'\ngrp_cpus = 1\n", "column qos 1: has no setting 'grp_cpus'"),
        ("[[partitions]]\nname = 'a'\nnodes = 'n['\n", "column partitions 1.nodes:"),
        ("[[partitions]]\nname = 'a'\ntier = true\n", "column partitions 1.tier: 'True' is not"),
        (
            "[[associations]]\naccount = 'a'\nparent = 'b'\n"
            "[[associations]]\naccount = 'b'\nparent = 'a'\n",
            "column slurm: account a is below itself",
        ),
        (
            "[[reservations]]\nname = 'r'\nnodes = 'n1'\nstart = 5\nend = 4\n",
            "column reservations 1: reservation r ends before it starts",
        ),
        ("[slurm]\nhalf_life = " + "9" * 5000, "is not TOML: "),
        ("x = " + "[" * 20000, "is not TOML: it is nested too deeply"),
        ("[slurm]\nhalf_life = " + "9" * 400, "is not a finite number of at most 9e+15"),
        ("[slurm]\nbf_window = nan\n", "column slurm.bf_window: 'nan' is not a finite number"),
        ("[[qos]]\nname = 'a'\npriority = inf\n", "column qos 1.priority: 'inf' is not a finite"),
        ("[[partition]]\nname = 'a'\n", "column partition: is not known; known: associations, li"),
        ("[license]\nmatlab = 3\n", "column license: is not known; known: associations, licenses"),
        (
            "[[partitions]]\nname = 'a'\nqos = 'b'\n",
            "partition a has the qos b, which is not there",
        ),
        (
            "[[partitions]]\nname = 'a'\nmax_time = -5\n",
            "partition a: its max_time must be above 0",
        ),
        (
            "[[partitions]]\nname = 'a'\ndefault_time = 0\n",
            "partition a: its default_time must be above 0",
        ),
        ("[[partitions]]\nname = 'a'\ntier = -1\n", "partition a: its tier must not be below 0"),
        ("[[partitions]]\nname = 'a'\nnodes = ''\n", "column partitions 1.nodes: is no hostlist"),
        ("[[partitions]]\nname = ''\n", "column partitions 1.name: is empty"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = a_site(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        site_rules.read(file)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_replay_under_slurm_obeys_the_sites_rules(tmp_path: Path) -> None:
    """The user's limit is four GPUs; the faster partition comes first; n1 is reserved later."""
    site = a_site(tmp_path)
    lines = (
        "0,a,ada,4,300,300,,,,\n"  # on n1, before its reservation
        "0,b,ada,4,300,300,,,,\n"  # at its user's limit until a has ended
        "0,c,bob,4,300,300,fast,,,\n"  # first, on n2
        "0,d,eve,2,300,3000,,,,\n"  # can't be gone from n1 in time, and n2 is c's
    )
    done = ctl(tmp_path, lines, "--policy=slurm", f"--cluster={site}", "--json")
    assert starts(done) == {"a": 0.0, "b": 300.0, "c": 0.0, "d": 300.0}


def test_jobs_are_rigid_under_slurm(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    heading = "submitted,name,user,gpus,duration_s,sizes\n"
    trace.write_text(f"{heading}0,a,u,2,600,1-8\n60,b,u,4,600,1-8\n")
    options = ["replay", str(trace), "--policy=slurm", "--nodes=1", "--restart-cost=0", "--json"]
    done = CliRunner().invoke(main, options)
    assert starts(done) == {"a": 0.0, "b": 600.0}


def test_settings_that_make_no_sense_end_the_command_with_one_line(tmp_path: Path) -> None:
    site = a_site(tmp_path, "[[nodes]]\nnames = 'n1'\ngpus = 4\n[slurm]\nwarp = 9\n")
    done = ctl(tmp_path, "0,a,ada,4,300,300,,,,\n", "--policy=slurm", f"--cluster={site}")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"onesctl: error: {site}: column slurm: has no setting 'warp'")
    assert len(done.stderr.splitlines()) == 1


NODES = "[[nodes]]\nnames = 'n[1-2]'\ngpus = 4\n[[nodes]]\nnames = 'c1'\ngpus = 0\n"
TWO = "[[partitions]]\nname = 'gpu'\n[[partitions]]\nname = 'cpu'\nnodes = 'c1'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[partitions]]\nname = 'p'\nnodes = 'n[2-3]'\n", "column partitions: 'p' has node 'n3'"),
        ("[[reservations]]\nname = 'r'\nnodes = 'x'\n", "column reservations: 'r' has node 'x'"),
    ],
)
def test_partitions_and_reservations_have_nodes_that_are_there(
    tmp_path: Path, text: str, said: str
) -> None:
    site = a_site(tmp_path, NODES + TWO * ("partitions" not in text) + text)
    done = ctl(tmp_path, "0,a,ada,4,300,300,,,,\n", f"--cluster={site}")
    assert done.exit_code == 1
    assert f"{site}: {said}, which is not in [[nodes]]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_jobs_of_partitions_and_qualities_that_are_not_there_are_counted(tmp_path: Path) -> None:
    site = a_site(tmp_path, NODES + TWO + "[[qos]]\nname = 'normal'\n")
    lines = (
        "0,a,ada,4,300,300,gpu,normal,,\n"
        "0,b,ada,4,300,300,gpux,normal,,\n"
        "0,c,ada,4,300,300,gpux,,,\n"
        "0,d,ada,4,300,300,,high,,\n"
    )
    done = ctl(tmp_path, lines, "--policy=slurm", f"--cluster={site}")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "onesctl: note: 2 jobs are of partition gpux, which --cluster does not have: it is taken to"
        " have all nodes",
        "onesctl: note: 1 jobs are of qos high, which --cluster does not have: it is taken to have"
        " no limits",
    ]
    done = ctl(tmp_path, lines, "--policy=slurm", f"--cluster={a_site(tmp_path, NODES)}")
    assert done.stderr == ""
