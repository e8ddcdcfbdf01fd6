from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profile_builders import a_profile, a_typed_profile

from ones.daemon.replay import inventory, traces
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.recorded import speedup
from ones.daemon.replay.workload import OutsideProfile, TraceJob, Workload
from ones.policies.model import Node

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
NAMED = "name,time,application,num_replicas,batch_size\n"
SIMPLE = "submitted,name,user,gpus,duration_s,sizes,account,gpu_type,declared\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)
SACCT = "JobIDRaw|JobName|User|Account|Submit|ElapsedRaw|State|AllocTRES|AdminComment\n"
RATES = {
    "v100": {
        "('ResNet (batch size 16)', 1)": {"null": 10.0, "('other', 1)": [1.0, 2.0]},
        "('ResNet (batch size 16)', 2)": {"null": 16.0},
    },
    "v100_unconsolidated": {"('ResNet (batch size 16)', 2)": {"null": 12.0}},
    "k80": {
        "('ResNet (batch size 16)', 1)": {"null": 2.0},
        "('ResNet (batch size 16)', 2)": {"null": 0.0},
    },
}


@pytest.fixture(autouse=True)
def _data(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("shared") and not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")


def read(tmp_path: Path, text: str | bytes, **options: Any) -> Workload:
    file = tmp_path / "trace"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return traces.read(file, **options)


def fault_of(tmp_path: Path, text: str | bytes, **options: Any) -> str:
    """What is said of a bad trace, behind the file's name: one line."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, text, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(tmp_path))
    return said.removeprefix(f"{tmp_path}/")


def only(workload: Workload) -> TraceJob:
    (job,) = workload.jobs
    return job


def run_seconds(job: TraceJob, gpu_type: str, *gpus_on: int) -> float:
    """How long it trains on these GPUs with its own batch, without restarts."""
    batches = job.application.batches
    assert batches is not None
    local, passes = (int(part) for part in batches.split(batches.submitted, sum(gpus_on)))  # type: ignore[arg-type]
    real = local * passes * sum(gpus_on)
    steps = float(job.application.epochs[-1]) * batches.reference / real
    return steps * job.application.step(gpu_type, gpus_on, local).seconds_of(passes)


def test_jobs_of_a_named_application_follow_its_profile(tmp_path: Path) -> None:
    text = NAMED + "b,60,plain,4,64\n\na,30,plain,2,32\n"
    first, second = read(tmp_path, text, profiles=a_profile(tmp_path / "p")).jobs
    assert (first.name, first.submitted, first.requested, first.batch) == ("a", 30.0, 2, 32)
    assert (second.name, second.family) == ("b", "plain")
    assert first.application is second.application
    assert str(first.sizes) == "1-8"


def test_a_request_beyond_what_was_measured_is_cut(tmp_path: Path) -> None:
    job = only(read(tmp_path, NAMED + "a,0,plain,64,64\n", profiles=a_profile(tmp_path / "p")))
    assert job.requested == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,-1,plain,2,32", "trace:2: column time: '-1' is less than 0"),
        ("a,nan,plain,2,32", "trace:2: column time: 'nan' is not a finite number"),
        ("a,0,gpt,2,32", "trace:2: column application: 'gpt' has no profile in"),
        ("a,0,../plain,2,32", "trace:2: column application: '../plain' has no profile in"),
        ("a,0,plain,0,32", "trace:2: column num_replicas: '0' is less than 1"),
        ("a,0,plain,2.5,32", "trace:2: column num_replicas: '2.5' is not a whole number"),
        ("a,0,plain,2,8", "trace:2: column batch_size: '8' is outside of what was measured"),
        ("a,0,plain,2,", "trace:2: column batch_size: is empty"),
        ("a,0,plain,2", "trace:2: has 4 columns where the heading has 5"),
        ("", "trace: has no jobs"),
    ],
)
def test_bad_named_jobs_are_named_with_line_and_column(
    tmp_path: Path, text: str, said: str
) -> None:
    folder = a_profile(tmp_path / "p")
    assert said in fault_of(tmp_path, NAMED + text + "\n", profiles=folder)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    text = "name,time,application,batch_size\na,0,plain,32\n"
    said = fault_of(tmp_path, text, profiles=a_profile(tmp_path / "p"))
    assert said.startswith("trace:1: column num_replicas: is missing")


def test_named_jobs_without_profiles_say_what_to_do(tmp_path: Path) -> None:
    assert "--profiles DIR" in fault_of(tmp_path, NAMED + "a,0,plain,2,32\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\x7fELF\x00\x01", "zero byte"),
        (b"name\xff\xfe", "is not text"),
        (b"hello,world\n1,2\n", "is no trace that we know"),
        (b"{", "is not JSON"),
        (b'{"runs": []}', "has no list of jobs"),
        (b"[" * 100000, "is no trace that we know"),
        (b'{"jobs":' + b"[" * 100000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in fault_of(tmp_path, content)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        traces.read(tmp_path / "none")
    with pytest.raises(TraceError, match="can't be read"):
        traces.read(tmp_path)


def test_hostile_names_stay_on_one_line(tmp_path: Path) -> None:
    said = fault_of(tmp_path, SIMPLE + '0,"a\nb\x1b[31m",u,1,x,,,,\n')
    assert "column duration_s: 'x' is not a number" in said
    folder = a_profile(tmp_path / "p")
    said = fault_of(tmp_path, NAMED + '0,0,"a\x1b[31m\nb",1,1\n', profiles=folder)
    assert "\x1b" not in said


def test_a_recorded_job_takes_as_long_as_it_did(tmp_path: Path) -> None:
    job = only(read(tmp_path, SIMPLE + "5,train,ada,4,3600,,lab,,no\n"))
    assert (job.user, job.account, job.family) == ("ada", "lab", "train")
    assert (job.requested, str(job.sizes), job.batch, job.declared) == (4, "4", None, False)
    assert run_seconds(job, "any", 4) == pytest.approx(3600.0)
    assert run_seconds(job, "any", 1, 3) == pytest.approx(3600.0)
    with pytest.raises(OutsideProfile):
        job.application.step("any", (2,), 8)


def test_an_elastic_recorded_job_scales_by_amdahl(tmp_path: Path) -> None:
    job = only(read(tmp_path, SIMPLE + "0,train,ada,4,3600,1-8,,v100|t4,\n"))
    assert job.declared
    assert job.gpu_types == {"v100", "t4"}
    assert run_seconds(job, "t4", 8) == pytest.approx(3600 * speedup(4) / speedup(8))
    assert run_seconds(job, "t4", 1) == pytest.approx(3600 * speedup(4))
    assert job.application.step("t4", (1,), 1).sync == pytest.approx(0.0)
    with pytest.raises(OutsideProfile):
        job.application.step("p100", (4,), 64)


@pytest.mark.parametrize("sizes", ["4", "1-8", "1-64", "2,3,4,5,7,11", "4-4096"])
def test_a_recorded_job_keeps_its_batch_on_any_size(tmp_path: Path, sizes: str) -> None:
    job = only(read(tmp_path, SIMPLE + f'0,train,ada,4,3600,"{sizes}",,,\n'))
    batches = job.application.batches
    assert batches is not None
    for gpus in list(job.sizes)[:100]:
        least, most = batches.bounds(np.array(gpus))
        local, passes = batches.split(most, np.array(gpus))
        assert least <= local * passes * gpus <= most
        seconds = 3600 * speedup(4) / speedup(gpus)
        assert run_seconds(job, "any", gpus) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,a,u,4,60,1-2,,,", "column sizes: 1-2 does not hold the 4 GPUs"),
        ("0,a,u,4,60,4-x,,,", "column sizes: sizes '4-x'"),
        ("0,a,u,4,0,,,,", "column duration_s: '0' is less than 0.001"),
        ("0,a,u,4,60,,,,maybe", "column declared: 'maybe' is not yes or no"),
        ("-3,a,u,4,60,,,,", "column submitted: '-3' is less than 0"),
        ("0,a,,4,60,,,,", "column user: is empty"),
        ("0,a,u,99999999999,60,,,,", "column gpus: '99999999999' is more than 65536"),
    ],
)
def test_bad_recorded_jobs_are_named(tmp_path: Path, line: str, said: str) -> None:
    assert f"trace:2: {said}" in fault_of(tmp_path, SIMPLE + line + "\n")


def test_a_job_wider_than_the_cluster_is_named(tmp_path: Path) -> None:
    nodes = inventory.uniform(2, 4)
    text = SIMPLE + "0,a,u,8,60,,,,\n0,b,u,9,60,,,,\n"
    said = fault_of(tmp_path, text, nodes=nodes)
    assert said.startswith("trace:3: column gpus: job 'b' needs 9 GPUs and the cluster has 8;")
    text = SIMPLE + "0,a,u,1,60,,,v100,\n"
    assert "the cluster has 0 that it can run on" in fault_of(tmp_path, text, nodes=nodes)


def test_a_job_that_can_shrink_is_not_too_wide(tmp_path: Path) -> None:
    text = SIMPLE + "0,a,u,16,60,4-16,,,\n"
    assert only(read(tmp_path, text, nodes=inventory.uniform(1, 4))).requested == 16


def gavel(tmp_path: Path) -> Path:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RATES))
    return file


def test_gavels_jobs_run_at_the_measured_throughput(tmp_path: Path) -> None:
    line = "ResNet (batch size 16)\tcmd %s\tdir\t--steps\t1\t4800\t2\t1\t-1.0\t7\n"
    job = only(read(tmp_path, line, profiles=gavel(tmp_path)))
    assert (job.family, job.submitted, job.requested) == ("ResNet (batch size 16)", 7.0, 2)
    assert run_seconds(job, "v100", 2) == pytest.approx(4800 / 16)
    assert run_seconds(job, "v100", 1, 1) == pytest.approx(4800 / 12)
    assert job.application.runs_on("v100")
    assert not job.application.runs_on("k80")  # 0 steps a second: it does not fit there
    with pytest.raises(OutsideProfile):
        job.application.step("k80", (2,), 64)


def test_gavels_older_trace_has_its_columns_in_another_order(tmp_path: Path) -> None:
    line = "ResNet (batch size 16)\tcmd\t--steps\t1\t4800\t12.5\t1\n"
    job = only(read(tmp_path, line, profiles=gavel(tmp_path)))
    assert (job.submitted, job.requested) == (12.5, 1)
    assert run_seconds(job, "k80", 1) == pytest.approx(2400)


def test_gavels_jobs_wider_than_measured_are_told_of(tmp_path: Path) -> None:
    notes: list[str] = []
    line = "ResNet (batch size 16)\tcmd\t--steps\t1\t4800\t0\t8\n"
    job = only(read(tmp_path, line, profiles=gavel(tmp_path), note=notes.append))
    assert run_seconds(job, "v100", 4, 4) == pytest.approx(4800 / 48)
    assert len(notes) == 1
    assert "1 jobs are wider than any measured" in notes[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("VGG\tcmd\t--steps\t1\t4800\t0\t1", "trace:1: column type: 'VGG' has no throughputs"),
        ("X\tcmd\t--steps\t1\t-5\t0\t1", "trace:1: column steps: '-5' is less than 1"),
        ("X\tcmd\t--steps\t1\t5\t-1\t1", "trace:1: column type: 'X' has no throughputs"),
    ],
)
def test_bad_jobs_of_gavel_are_named(tmp_path: Path, line: str, said: str) -> None:
    assert said in fault_of(tmp_path, line + "\n", profiles=gavel(tmp_path))


def test_a_broken_table_of_throughputs_is_named(tmp_path: Path) -> None:
    line = "ResNet (batch size 16)\tcmd\t--steps\t1\t4800\t0\t1\n"
    file = tmp_path / "rates.json"
    for table, said in (
        ('{"v100": {\n', "rates.json:2: is not JSON"),
        ('{"v100": []}', "worker type 'v100' has no job types"),
        ('{"v100": {"(1": {"null": 1}}}', "'(1' is not ('job type', GPUs)"),
        ('{"v100": {"X": {"null": -1}}}', "'v100', 'X': no throughput of the job alone"),
        ('{"v100": {"X": {"null": NaN}}}', "'v100', 'X': no throughput of the job alone"),
    ):
        file.write_text(table)
        assert said in fault_of(tmp_path, line, profiles=file)


def test_alibabas_tasks_run_as_long_as_they_did(tmp_path: Path) -> None:
    notes: list[str] = []
    text = PODS + (
        "p0,1,1,2,1000,T4|V100M16,LS,Running,10,110,40\n"
        "p1,1,1,1,460,,BE,Failed,5,65,5\n"
        "p2,1,1,0,0,,BE,Running,5,65,5\n"
        "p3,1,1,1,1000,,BE,Pending,5,65,\n"
    )
    shared, wide = read(tmp_path, text, note=notes.append).jobs
    assert (wide.name, wide.submitted, wide.requested) == ("p0", 10.0, 2)
    assert wide.gpu_types == {"T4", "V100M16"}
    assert run_seconds(wide, "T4", 2) == pytest.approx(70)
    assert shared.gpu_types is None
    assert run_seconds(shared, "any", 1) == pytest.approx(60)
    assert not shared.declared
    assert [note.split(": ", 1)[1] for note in notes] == [
        "1 tasks without a GPU are left out",
        "1 tasks that never ran are left out",
        "1 tasks of less than a GPU get a whole one",
    ]


def test_an_alibaba_task_that_ends_before_it_starts_is_named(tmp_path: Path) -> None:
    text = PODS + "p0,1,1,2,1000,,LS,Running,10,30,40\n"
    said = fault_of(tmp_path, text)
    assert said.startswith("trace:2: column deletion_time: '30' is less than 40")


def test_parsable_records_of_sacct_become_jobs(tmp_path: Path) -> None:
    notes: list[str] = []
    text = SACCT + (
        "7|train|ada|lab|2026-03-01T10:00:00|3600|COMPLETED|cpu=8,gres/gpu:v100=4,gres/gpu=4|\n"
        "7.0|step|||2026-03-01T10:00:00|3600|COMPLETED|gres/gpu=4|\n"
        "8|grow|bob|lab|2026-03-01T10:01:00|600|CANCELLED by 5|gres/gpu=2|"
        "ONES1:sizes=1-8;request=2;held=1 ticket 5\n"
        "9|cpu|bob|lab|2026-03-01T10:01:00|600|COMPLETED|cpu=4|\n"
        "10|now|bob|lab|2026-03-01T10:01:00|600|RUNNING|gres/gpu=2|\n"
    )
    first, second = read(tmp_path, text, note=notes.append).jobs
    assert (first.name, first.family, first.user) == ("7", "train", "ada")
    assert (first.submitted, first.requested, str(first.sizes)) == (0.0, 4, "4")
    assert run_seconds(first, "any", 4) == pytest.approx(3600)
    assert (second.submitted, str(second.sizes), second.declared) == (60.0, "1-8", False)
    assert "2 records that never ran, still run or had no GPUs are left out" in notes[0]


def test_the_runs_of_a_resized_job_count_together(tmp_path: Path) -> None:
    mark = "ONES1:sizes=1-8;request=2;held=1"
    text = SACCT + (
        f"8|grow|bob|lab|100|600|REQUEUED|gres/gpu=2|{mark}\n"
        f"8|grow|bob|lab|100|300|COMPLETED|gres/gpu=4|{mark}\n"
    )
    job = only(read(tmp_path, text))
    assert run_seconds(job, "any", 2) == pytest.approx(600 + 300 * speedup(4) / speedup(2))


def test_satellites_are_parts_of_their_job_and_no_jobs(tmp_path: Path) -> None:
    mark, part = "ONES1:sizes=1-8;request=2;held=1", "ONES1S:base=8;restarts=0;order=100"
    text = SACCT + (
        f"8|grow|bob|lab|100|600|COMPLETED|gres/gpu=2|{mark}\n"
        f"9|grow|bob|lab|200|300|COMPLETED|gres/gpu=2|{part}\n"
    )
    job = only(read(tmp_path, text))
    assert job.requested == 2
    assert run_seconds(job, "any", 2) == pytest.approx(900)


@pytest.mark.parametrize(
    ("heading", "line", "said"),
    [
        ("JobID|Submit|Start|End", "1|5|6|7", "trace:1: column AllocTRES: is missing"),
        ("JobID|Submit|AllocTRES", "1|5|gres/gpu=1", "trace:1: column Start: is missing"),
        (
            "JobID|Submit|Start|End|AllocTRES",
            "1|5|9|7|gres/gpu=1",
            "trace:2: column End: lies before Start",
        ),
        (
            "JobID|Submit|Elapsed|AllocTRES",
            "1|5|fast|gres/gpu=1",
            "trace:2: column Elapsed: 'fast' is not [D-]HH:MM:SS",
        ),
        (
            "JobID|Submit|Elapsed|AllocTRES",
            "1|yesterday|1:00|gres/gpu=1",
            "trace:2: column Submit: 'yesterday' is not a time as sacct prints it",
        ),
        (
            "JobID|Submit|ElapsedRaw|AllocTRES",
            "1|5|-60|gres/gpu=1",
            "trace:2: column ElapsedRaw: '-60' is less than 0",
        ),
    ],
)
def test_bad_records_of_sacct_are_named(tmp_path: Path, heading: str, line: str, said: str) -> None:
    assert fault_of(tmp_path, f"{heading}\n{line}\n").startswith(said)


def test_elapsed_times_are_read_as_slurm_writes_them(tmp_path: Path) -> None:
    heading = "JobID|Submit|Elapsed|AllocTRES\n"
    for elapsed, seconds in (("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184)):
        job = only(read(tmp_path, f"{heading}1|5|{elapsed}|gres/gpu=1\n"))
        assert run_seconds(job, "any", 1) == pytest.approx(seconds)


def a_record(**changes: Any) -> dict[str, Any]:
    return {
        "job_id": 12,
        "name": "train",
        "user": "ada",
        "account": "lab",
        "comment": {"administrator": "", "job": "", "system": ""},
        "time": {"submission": 1000, "start": 1100, "end": 1400, "elapsed": 300},
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 8},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
                {"type": "gres", "name": "gpu:v100", "id": 1002, "count": 2},
            ]
        },
        **changes,
    }


def test_json_records_of_sacct_become_jobs(tmp_path: Path) -> None:
    wrapped = {"set": True, "infinite": False, "number": 1500}
    listed = [
        a_record(),
        a_record(
            job_id=13,
            comment={"administrator": "ONES1:sizes=1-4;request=1;held=0"},
            time={"submission": 1010, "start": 1100, "end": wrapped},
        ),
        a_record(job_id=14, time={"submission": 1010, "start": 0, "end": 0}),
    ]
    first, second = read(tmp_path, json.dumps({"jobs": listed})).jobs
    assert (first.name, first.user, first.requested) == ("12", "ada", 2)
    assert run_seconds(first, "any", 2) == pytest.approx(300)
    assert (second.submitted, second.requested, str(second.sizes)) == (10.0, 1, "1-4")
    assert run_seconds(second, "any", 2) == pytest.approx(400)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time": None}, "column time: jobs[0] has no times"),
        ({"tres": {}}, "column tres.allocated: jobs[0] has no list of resources"),
        (
            {"time": {"submission": -5, "start": 1, "end": 2}},
            "column jobs[0].time.submission: '-5' is not a number of 0 or more",
        ),
        (
            {"time": {"submission": 5, "start": 9, "end": 7}},
            "column time.end: jobs[0] ends before it starts",
        ),
    ],
)
def test_bad_json_records_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    text = json.dumps({"jobs": [a_record(**change)]})
    assert fault_of(tmp_path, text) == f"trace: {said}"


def cluster(tmp_path: Path, name: str, text: str) -> tuple[Node, ...]:
    file = tmp_path / name
    file.write_text(text)
    return inventory.read(file)


def test_a_cluster_is_described_in_toml(tmp_path: Path) -> None:
    text = """
        [[nodes]]
        names = "b[1-2]"
        gpus = 4
        type = "v100"
        switches = ["leaf", "root"]
        [[nodes]]
        names = "a"
        gpus = 8
    """
    first, second, third = cluster(tmp_path, "c.toml", text)
    assert first == Node(name="a", gpu_type="gpu", gpus=8)
    assert second == Node(name="b1", gpu_type="v100", gpus=4, switches=("leaf", "root"))
    assert third.name == "b2"


def test_a_description_may_tell_what_gpus_cost(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[prices]\nv100 = 0.74\n[[nodes]]\nnames = 'a'\ngpus = 1\n")
    assert inventory.prices(file) == {"v100": 0.74}
    assert len(inventory.read(file)) == 1
    file.write_text("[prices]\nv100 = 'much'\n")
    with pytest.raises(TraceError, match=r"column prices: 'v100' has no price from 0 to 1e\+12"):
        inventory.prices(file)
    table = tmp_path / "c.csv"
    table.write_text("name,gpus,type\nn1,4,t4\n")
    assert inventory.prices(table) == {}


def test_a_cluster_is_described_in_a_table(tmp_path: Path) -> None:
    text = 'name,gpus,type,switches\n"n[1-2]",4,t4,leaf;root\nlogin,0,none,\n'
    nodes = cluster(tmp_path, "c.csv", text)
    assert [node.name for node in nodes] == ["n1", "n2"]
    assert nodes[0].switches == ("leaf", "root")


def test_alibabas_node_lists_are_clusters(tmp_path: Path) -> None:
    (node,) = cluster(tmp_path, "a.csv", "sn,cpu_milli,memory_mib,gpu,model\nx,1,1,2,P100\n")
    assert node == Node(name="x", gpu_type="P100", gpus=2)
    (node,) = cluster(tmp_path, "b.csv", "gpu_model,gpu_capacity_num,cpu_num,node_name\nG,4,1,0\n")
    assert node == Node(name="0", gpu_type="G", gpus=4)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.toml", "[[nodes", "is not TOML"),
        ("c.toml", "", "has no [[nodes]]"),
        ("c.toml", "[[nodes]]\nnames='a'\ngpus=-1", "column gpus: nodes 1: is no number from 0"),
        ("c.toml", "[[nodes]]\nnames='a'\ngpu=1", "column gpu: nodes 1: there are names, gpus"),
        ("c.toml", "[[nodes]]\nnames='a['\ngpus=1", "column names: nodes 1: 'a[' is not a hostl"),
        ("c.csv", "name,gpus,type\nn1,4,t4\nn1,4,t4\n", "node 'n1' is there twice"),
        ("c.csv", "name,gpus,type\nn1,many,t4\n", "c.csv:2: column gpus: 'many' is not a number"),
        ("c.csv", "name,type\nn1,t4\n", "c.csv:1: column gpus: is missing"),
        ("c.csv", "name,gpus,type\nn1,0,t4\n", "has no nodes with GPUs"),
    ],
)
def test_bad_descriptions_of_clusters_are_named(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(TraceError) as caught:
        cluster(tmp_path, name, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_nodes_get_a_type_on_which_every_job_runs(tmp_path: Path) -> None:
    one = read(tmp_path, SIMPLE + "0,a,u,1,60,,,,\n")
    assert inventory.common_type(one) == inventory.ANY_TYPE
    two = read(tmp_path, SIMPLE + "0,a,u,1,60,,,,\n0,b,u,1,60,,,t4|a100,\n")
    assert inventory.common_type(two) == "a100"
    none = read(tmp_path, SIMPLE + "0,a,u,1,60,,,t4,\n0,b,u,1,60,,,a100,\n")
    assert inventory.common_type(none) is None
    folder = a_typed_profile(tmp_path / "p", types=("aws", "rtx"))
    typed = read(tmp_path, NAMED + "a,0,plain,2,32\n", profiles=folder)
    assert inventory.common_type(typed) == "aws"
    assert len(inventory.uniform(16, 4)) == 16
    names = [node.name for node in inventory.uniform(11, 4)]
    assert names == sorted(names)


SEEDS = (
    NAMED + "a,0,plain,2,32\n",
    SIMPLE + "0,a,u,4,60,1-8,lab,t4,no\n",
    PODS + "p0,1,1,2,1000,T4|V100M16,LS,Running,10,110,40\n",
    SACCT + "8|grow|bob|lab|2026-03-01T10:00:00|600|DONE|gres/gpu=2|ONES1:sizes=1-8\n",
    "ResNet (batch size 16)\tcmd\t--steps\t1\t4800\t0\t8\n",
    json.dumps({"jobs": [{"time": {"submission": 1, "start": 2, "end": 3}, "tres": {}}]}),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SEEDS), st.integers(0, 300), st.integers(0, 30), st.binary(max_size=6))
def test_a_damaged_trace_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, seed: str, at: int, gone: int, put: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = seed.encode()
    profiles = gavel(folder) if "\t" in seed else a_profile(folder / "p")
    try:
        damaged = content[:at] + put + content[at + gone :]
        assert read(folder, damaged, profiles=profiles, nodes=inventory.uniform(2, 4)).jobs
    except TraceError as fault:
        assert "\n" not in str(fault)
        assert str(fault).startswith(str(folder))


@pytest.mark.shared
def test_every_published_workload_is_read_whole() -> None:
    data = SHARED / "pollux"
    for load, jobs in (("-0.5", 80), ("", 160), ("-1.5", 240), ("-2.0", 320), ("-realistic", 160)):
        for number in (2, 4, 6, 8):
            file = data / f"workloads{load}" / f"workload-{number}.csv"
            workload = traces.read(file, profiles=data / "profiles")
            assert len(workload.jobs) == jobs
            times = [job.submitted for job in workload.jobs]
            assert times == sorted(times)


@pytest.mark.shared
def test_published_requests_can_run_as_asked() -> None:
    data = SHARED / "pollux"
    for number in (2, 4, 6, 8):
        file = data / "workloads" / f"workload-{number}.csv"
        for job in traces.read(file, profiles=data / "profiles").jobs:
            full = (4,) * (job.requested // 4) + (job.requested % 4,) * (job.requested % 4 > 0)
            batches = job.application.batches
            assert batches is not None
            assert job.batch is not None
            local, _ = batches.split(job.batch, job.requested)  # type: ignore[arg-type]
            assert job.application.step("t4", full, int(local)).seconds > 0


@pytest.mark.shared
def test_sias_gavels_and_alibabas_data_are_read() -> None:
    sia = SHARED / "sia"
    found = traces.read(
        sia / "workloads" / "philly" / "workload-2.csv",
        profiles=sia / "profiles",
        gpu_types={"aws", "rtx", "dgx-ext"},
    )
    assert len(found.jobs) == 160
    folder = SHARED / "gavel"
    for file in folder.glob("traces/*/*.trace"):
        assert traces.read(file, profiles=folder).jobs
    nodes = inventory.read(SHARED / "alibaba" / "openb_node_list_gpu_node.csv")
    assert len(nodes) == 1213
    tasks = traces.read(SHARED / "alibaba" / "openb_pod_list_default.csv", nodes=nodes)
    assert len(tasks.jobs) == 6203


def test_only_jobs_with_our_mark_have_opted_in_and_time_limits_are_read(tmp_path: Path) -> None:
    heading = "JobIDRaw|Submit|ElapsedRaw|AllocTRES|AdminComment|TimelimitRaw\n"
    text = heading + (
        "1|5|60|gres/gpu=1||90\n2|5|60|gres/gpu=1|ONES1:sizes=1-4;request=1;held=0|UNLIMITED\n"
    )
    plain, elastic = read(tmp_path, text).jobs
    assert (plain.opted_in, plain.time_limit) == (False, 5400.0)
    assert (elastic.opted_in, elastic.time_limit) == (True, None)
    times = {"submission": 1000, "start": 1100, "end": 1400}
    limited = {**times, "limit": {"set": True, "infinite": False, "number": 30}}
    endless = {**times, "limit": {"set": False, "infinite": True, "number": 0}}
    listed = [a_record(time=limited), a_record(job_id=13, time=endless)]
    first, second = read(tmp_path, json.dumps({"jobs": listed})).jobs
    assert (first.opted_in, first.time_limit, second.time_limit) == (False, 1800.0, None)
