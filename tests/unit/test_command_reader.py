from __future__ import annotations

import json
from typing import Any

import pytest
from fake_slurm import a_record, as_json
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext import command_reader
from ones.slurm_ext.command_reader import CommandReader, record_of, rows_of, seconds_of, switches_of
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.job_json import (
    gpus_on_nodes,
    job_record,
    node_record,
    shards_per_gpu,
    shares_on_nodes,
)
from ones.slurm_ext.tres import gpus_by_type, gpus_in, replace_gpus, shared_gpus

COLUMNS = command_reader._COLUMNS
TOPOLOGY = """\
SwitchName=s0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4]
"""
NODE = {
    "name": "n1",
    "state": ["MIXED", "PLANNED"],
    "reason": "",
    "gres": "gpu:v100:4(S:0-1)",
    "gres_used": "gpu:v100:2(IDX:0,2)",
    "partitions": ["gpu", "all"],
    "active_features": ["nvlink"],
}


def a_row(**changes: str) -> dict[str, str]:
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "JobID": "17",
        "Name": "train",
        "UserName": "alice",
        "State": "PENDING",
        "Reason": "Resources",
        "PriorityLong": "4294901757",
        "RestartCnt": "0",
        "TimeLimit": "1:00:00",
        "NumNodes": "2",
        "MaxNodes": "2",
        "NumTasks": "4294967294",
        "cpus-per-task": "1",
        "NTPerNode": "0",
        "NumCPUs": "2",
        "tres-per-job": "N/A",
        "tres-per-node": "gres/gpu:2",
        "NodeList": "",
        "Requeue": "1",
        "JobArrayID": "17",
        "ArrayJobID": "17",
        "Dependency": "(null)",
        "StartTime": "N/A",
    }
    return row | changes


def printed(rows: list[dict[str, str]], token: str) -> str:
    return "".join("".join(f"{row[name]}{token}" for name in COLUMNS) + "\n" for row in rows)


@given(names=st.lists(st.text(max_size=40), max_size=4))
def test_no_name_can_forge_a_column_or_a_job(names: list[str]) -> None:
    rows = [a_row(JobID=str(number), Name=name) for number, name in enumerate(names, start=1)]
    found = rows_of(printed(rows, "~a1b2~"), "~a1b2~")
    assert [(row["JobID"], row["Name"]) for row in found] == [
        (row["JobID"], row["Name"]) for row in rows
    ]


def test_a_name_with_line_ends_and_a_whole_forged_row_is_only_a_name() -> None:
    evil = "x\n" + printed([a_row(JobID="99")], "|")
    (row,) = rows_of(printed([a_row(Name=evil)], "~tok~"), "~tok~")
    assert row["Name"] == evil


def test_an_answer_cut_short_is_an_error_and_not_a_shorter_queue() -> None:
    text = printed([a_row(), a_row()], "~t~")
    with pytest.raises(SlurmError, match="no whole number of jobs"):
        rows_of(text[:-20], "~t~")


def test_a_pending_job_is_read_from_its_columns() -> None:
    job = record_of(a_row())
    assert (job.id, job.state, job.held, job.tasks) == (17, "PENDING", False, 2)
    assert (job.tres_per_job, job.tres_per_node) == ("", "gres/gpu:2")
    assert (job.time_limit, job.dependency, job.array_job) == (3600.0, "", 0)


def test_a_job_of_priority_nothing_is_held() -> None:
    assert record_of(a_row(PriorityLong="0")).held


def test_a_waiting_array_is_known_as_one() -> None:
    assert record_of(a_row(JobArrayID="17_[1-3]")).array_job == 17


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("3:04", 184.0),
        ("UNLIMITED", None),
        ("", None),
        ("INVALID", None),
        ("PARTITION_LIMIT", None),
        ("x-00:00:01", None),
    ],
)
def test_time_limits_are_read_in_slurms_forms(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_switches_are_listed_from_the_leaf_up() -> None:
    assert switches_of(TOPOLOGY)["n3"] == ("s2", "s0")
    assert switches_of("No topology information available\n") == {}


def test_gpus_are_counted_on_each_node_in_order() -> None:
    detail = ["gpu:v100:2(IDX:0,2)", "gpu:v100:1(IDX:3)", ""]
    assert gpus_on_nodes("n[3-4],a1", detail) == {"n3": 2, "n4": 1}
    assert gpus_on_nodes("n[3-4]", detail) == {}


def test_a_node_of_two_types_fits_no_job_that_names_one() -> None:
    node = node_record(NODE | {"gres": "gpu:v100:2,gpu:k80:2", "gres_used": "gpu:v100:0,gpu:k80:1"})
    assert (node.gpu_type, node.gpus, node.gpus_used) == ("k80+v100", 4, 1)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("gres/gpu:v100:4", {"v100": 4}),
        ("gres/gpu=2", {"": 2}),
        ("gres/gpu", {"": 1}),
        ("cpu=3,gres/gpu:v100=2", {"v100": 2}),
        ("gpu:a100_3g.20gb:2(IDX:0,2),shard:4", {"a100_3g.20gb": 2}),
        ("gres/gpu_mem:4", {}),
        ("(null)", {}),
        ("gpu:(null):4(IDX:0-3)", {"": 4}),  # of untyped GPUs that have cores (24.11)
    ],
)
def test_gpus_are_found_in_every_form_of_slurms_strings(text: str, types: dict[str, int]) -> None:
    assert gpus_by_type(text) == types
    assert gpus_in(text) == sum(types.values())


def test_other_resources_stay_when_gpus_are_replaced() -> None:
    wanted = "gres/nvme:1,gres/gpu:v100:2"
    for before in ("gres/gpu:v100:4,gres/nvme:1", "gres/shard:v100:1,gres/nvme:1"):
        assert replace_gpus(before, "gres/gpu:v100:2") == wanted
    assert replace_gpus("gres/gpu:v100:4,gres/nvme:1", "") == "gres/nvme:1"


def test_a_gpu_in_shards_is_in_use_and_its_index_is_told() -> None:
    assert shared_gpus("shard:1(0/2,0/2,1/2,0/2)") == (2,)
    assert shared_gpus("shard:v100:3(2/2,1/2,0/2)") == (0, 1)
    assert shared_gpus("shard:v100:1(-/2,-/2,-/2,1/2)") == (3,)  # as Slurm 26.05 says it
    assert shared_gpus("gpu:v100:2(IDX:0,2)") == shared_gpus("shard:4") == ()
    assert shared_gpus("shard:(null):1(0/2,1/2)") == (1,)
    assert gpus_on_nodes("n1", ["shard:1(0/2,1/2)"]) == {"n1": 1}
    assert gpus_on_nodes("c[1-2]", [None, "gpu:4(IDX:0-3)"]) == {"c2": 4}
    assert shares_on_nodes("c[1-2]", [None, "shard:1(0/2,1/2)"]) == {"c2": (1,)}
    assert shares_on_nodes("n1", ["shard:1(0/2,1/2)"]) == {"n1": (1,)}
    used = "gpu:v100:1(IDX:3),shard:v100:3(2/2,1/2,0/2,0/2)"
    node = node_record(NODE | {"gres": "gpu:v100:4,shard:v100:8", "gres_used": used})
    assert (node.gpus, node.gpus_used, node.shards_per_gpu) == (4, 3, 2)


@pytest.mark.parametrize(
    ("gres", "each"),
    [("gpu:v100:4,shard:v100:8", 2), ("gpu:4,shard:6", 0), ("gpu:4", 0), ("shard:4", 0), ("", 0)],
)
def test_shards_of_a_gpu_are_known_where_all_have_as_many(gres: str, each: int) -> None:
    assert shards_per_gpu(gres) == each


class Answers:
    """Commands that answer from a table."""

    def __init__(self, rows: list[dict[str, str]], jobs: list[dict[str, Any]]) -> None:
        self.rows, self.jobs, self.asked = rows, jobs, list[tuple[str, ...]]()
        self.timeout = 20.0

    def run(self, *command: str) -> str:
        self.asked.append(command)
        match command:
            case ("squeue", *_, layout) if layout.startswith("--Format="):
                token = layout.removeprefix("--Format=JobID:").split(",")[0]
                return printed(self.rows, token)
            case ("squeue", *_, wanted):
                numbers = wanted.removeprefix("--jobs=").split(",")
                return json.dumps({"jobs": [j for j in self.jobs if str(j["job_id"]) in numbers]})
            case ("scontrol", "show", "node", "--json"):
                return json.dumps({"nodes": [NODE]})
            case ("scontrol", "show", "topology"):
                return TOPOLOGY
        raise AssertionError(command)


def test_a_long_queue_costs_as_many_calls_as_a_short_one() -> None:
    running = a_record(3, state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 2})
    plain = a_row(JobID="4", State="RUNNING", NodeList="n1")
    rows = [a_row(JobID=str(number)) for number in range(100, 600)]
    rows += [a_row(JobID="3", State="RUNNING", admin_comment=running.admin_comment), plain]
    answers = Answers(rows, [as_json(running)])
    reader = CommandReader(answers, clock=lambda: 1000.0)
    first = reader.snapshot()
    assert len(first.jobs) == 502
    assert first.jobs[3].gpus_on == {"n1": 2}
    assert first.nodes["n1"].states == {"MIXED", "PLANNED"}
    assert [command[:1] for command in answers.asked] == [
        ("squeue",),
        ("squeue",),
        ("scontrol",),
        ("scontrol",),
    ]
    assert answers.asked[1][-1] == "--jobs=3", "jobs without GPUs need no more than their columns"
    reader.snapshot()
    assert len(answers.asked) == 4 + 3, "the topology is not read every round"


def test_each_call_draws_another_token() -> None:
    answers = Answers([], [])
    reader = CommandReader(answers)
    reader.snapshot()
    reader.snapshot()
    layouts = [command[-1] for command in answers.asked if command[0] == "squeue"]
    assert len(layouts) == len(set(layouts)) == 2


def test_json_and_columns_say_the_same_of_a_job() -> None:
    job = a_record(17, submitted=5000.0, held=False, reason="Resources", priority=4, cpus=2)
    row = a_row(
        PriorityLong="4",
        SubmitTime="5000",
        Account="vision",
        Partition="gpu",
        QOS="normal",
        NumNodes="1",
        MaxNodes="1",
        NumTasks="1",
        admin_comment=job.admin_comment,
    ) | {"tres-per-job": "gres/gpu:4", "tres-per-node": "N/A"}
    assert record_of(row) == job_record(as_json(job)) == job


class TestWhatHasNotChanged:
    def reader(self, **changes: str) -> tuple[Answers, CommandReader, list[float]]:
        """Two jobs, of which one runs, and the clock."""
        runs = a_record(3, state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 2})
        row = a_row(JobID="3", State="RUNNING", NodeList="n1", admin_comment=runs.admin_comment)
        answers = Answers([a_row(JobID="2"), row | changes], [as_json(runs)])
        now = [1000.0]
        return answers, CommandReader(answers, clock=lambda: now[0]), now

    def details(self, answers: Answers) -> int:
        """How often a job's JSON was asked for."""
        return sum(command[-1].startswith("--jobs=") for command in answers.asked)

    def test_is_the_same_record_and_not_asked_for_again(self) -> None:
        answers, reader, _ = self.reader()
        first, second = reader.snapshot(), reader.snapshot()
        assert first.jobs[3].gpus_on == {"n1": 2}
        assert all(second.jobs[job] is first.jobs[job] for job in (2, 3))
        assert self.details(answers) == 1

    def test_a_job_of_other_columns_is_read_anew(self) -> None:
        answers, reader, _ = self.reader()
        reader.snapshot()
        moved = a_record(3, state="RUNNING", held=False, nodes="n2", gpus_on={"n2": 1})
        answers.rows[1] |= {"NodeList": "n2"}
        answers.jobs = [as_json(moved)]
        answers.rows[0] |= {"Reason": "Priority"}
        second = reader.snapshot()
        assert second.jobs[3].gpus_on == {"n2": 1}
        assert second.jobs[2].reason == "Priority"

    def test_details_are_read_again_after_a_while(self) -> None:
        answers, reader, now = self.reader()
        reader.snapshot()
        now[0] += command_reader.DETAILS_LIFETIME
        reader.snapshot()
        assert self.details(answers) == 2

    @pytest.mark.parametrize(
        "changes", [{"State": "COMPLETING"}, {"NodeList": "n2"}, {"RestartCnt": "1"}]
    )
    def test_a_job_that_changes_between_two_answers_is_asked_for_again(
        self, changes: dict[str, str]
    ) -> None:
        answers, reader, _ = self.reader(**changes)
        reader.snapshot()
        reader.snapshot()
        assert self.details(answers) == 2

    def test_many_at_once_are_asked_for_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(command_reader, "MOST_DETAILS", 2)
        several = [a_record(number, state="RUNNING", held=False, nodes="n1") for number in range(5)]
        answers = Answers([], [as_json(job) for job in several])
        found = command_reader.read_jobs(answers, range(5))
        assert [job["job_id"] for job in found] == [0, 1, 2, 3, 4]
        asked = [command[-1] for command in answers.asked]
        assert asked == ["--jobs=0,1", "--jobs=2,3", "--jobs=4"]

    def test_a_job_that_is_gone_is_not_remembered(self) -> None:
        answers, reader, _ = self.reader()
        reader.snapshot()
        answers.rows.clear()
        assert not reader.snapshot().jobs
