"""job_submit.lua outside Slurm: a stand-in for slurmctld's `slurm` table, real Lua."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.policies.sizes import Sizes
from ones.slurm_ext.mark import Mark

pytest.importorskip("lupa", reason="lupa (Lua for Python) is not installed: pip install lupa")

SCRIPT = Path(__file__).resolve().parents[2] / "slurm_ext/lua/job_submit.lua"
NOW = 1_763_700_000
NO_VAL, NO_VAL16 = 0xFFFFFFFE, 0xFFFE
SUCCESS, ERROR = 0, -1

# What a job carries when sbatch was told nothing else; Slurm's "unset" differs with the field.
A_BATCH_JOB: Mapping[str, Any] = {
    "script": "#!/bin/sh\n",
    "min_nodes": NO_VAL,
    "max_nodes": NO_VAL,
    "num_tasks": NO_VAL,
    "ntasks_per_node": NO_VAL16,
    "cpus_per_task": NO_VAL16,
    "pn_min_cpus": NO_VAL16,
    "shared": NO_VAL16,
    "contiguous": 0,
    "req_switch": NO_VAL,
    "het_job_offset": NO_VAL,
    "requeue": NO_VAL16,
    "priority": NO_VAL,
    "begin_time": 0,
}


@dataclass
class Answer:
    """What became of a submission."""

    code: int
    said: list[str]
    logged: list[str]
    job: Any

    @property
    def mark(self) -> str | None:
        """The admin comment, without what has tests of its own: tasks, nodes and type."""
        comment = self.job["admin_comment"]
        return (
            None
            if comment is None
            else re.sub(r";tasks=\d+;nodes=\d+;mem=\w+;cpu=\w+(;type=\w+)?", "", str(comment))
        )


@dataclass
class Slurmctld:
    """Loads the script as slurmctld does and calls its hooks."""

    heartbeat: Path
    said: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lua = import_module("lupa.lua54").LuaRuntime()
        run = self.lua.execute
        names = self.lua.globals()
        names.ONES_HEARTBEAT = str(self.heartbeat)
        names.tell = lambda _, text: self.said.append(text)
        names.log = lambda _, text: self.logged.append(text)
        run("""slurm = {
            SUCCESS = 0, ERROR = -1,
            log_user = function(...) tell(nil, string.format(...)) end,
            log_error = function(...) log(nil, string.format(...)) end,
        }""")
        run(f"os.time = function() return {NOW} end")
        self.ones = self.lua.eval("function(text) return load(text)() end")(SCRIPT.read_text())

    def table(self, values: Mapping[Any, Any]) -> Any:
        return self.lua.table_from(values)

    def submit(self, **request: Any) -> Answer:
        job = self.table({**A_BATCH_JOB, **request})
        partitions = self.table({"gpu": self.table({"name": "gpu", "flag_default": 1})})
        code = self.lua.globals().slurm_job_submit(job, partitions, 1000)
        return Answer(code, self.said[:], self.logged[:], job)

    def elastic(self, value: str = "", **request: Any) -> Answer:
        return self.submit(spank_job_env=self.table({0: f"ELASTIC={value}"}), **request)


@pytest.fixture
def slurmctld(tmp_path: Path) -> Slurmctld:
    return Slurmctld(tmp_path / "heartbeat")


@pytest.fixture(scope="module")
def lasting_slurmctld() -> Slurmctld:
    """One for many examples: the script keeps nothing between jobs."""
    return Slurmctld(Path("/nonexistent/heartbeat"))


@pytest.fixture
def beat(slurmctld: Slurmctld) -> Callable[..., None]:
    def write(*, age: int = 0, hold: str = "yes", partition: str = "gpu 16 v100=8,k80=8") -> None:
        slurmctld.heartbeat.write_text(
            f"ones-heartbeat 1\ntime {NOW - age}\nlifetime 30\nhold {hold}\npartition {partition}\n"
        )

    return write


def test_a_job_without_the_option_is_not_touched(slurmctld: Slurmctld, beat: Any) -> None:
    beat()
    before = {**A_BATCH_JOB, "tres_per_node": "gres/gpu:4", "admin_comment": "site's own"}
    answer = slurmctld.submit(**before)
    assert answer.code == SUCCESS
    assert dict(answer.job) == before


def test_an_elastic_job_is_marked_requeueable_and_held_while_onesd_lives(
    slurmctld: Slurmctld, beat: Any
) -> None:
    beat()
    answer = slurmctld.elastic("2-16", tres_per_job="gres/gpu:4")
    assert answer.code == SUCCESS
    assert answer.mark == "ONES1:sizes=2-16;request=4;held=1"
    assert (answer.job["requeue"], answer.job["priority"]) == (1, 0)


@pytest.mark.parametrize(
    "heartbeat",
    [
        None,
        {"age": 31},
        {"age": -61},
        {"hold": "no"},
    ],
    ids=["absent", "stale", "in the future", "does not hold"],
)
def test_without_a_heartbeat_that_holds_the_job_passes_marked_but_not_held(
    slurmctld: Slurmctld, beat: Any, heartbeat: dict[str, Any] | None
) -> None:
    if heartbeat is not None:
        beat(**heartbeat)
    answer = slurmctld.elastic("2-16", tres_per_job="gres/gpu:4")
    assert answer.code == SUCCESS
    assert answer.mark == "ONES1:sizes=2-16;request=4;held=0"
    assert answer.job["priority"] == NO_VAL


@pytest.mark.parametrize(
    "text", ["", "garbage", "ones-heartbeat 2\n", "ones-heartbeat 1\ntime x\nlifetime\nhold yes\n"]
)
def test_a_broken_heartbeat_holds_nobody(slurmctld: Slurmctld, text: str) -> None:
    slurmctld.heartbeat.write_text(text)
    assert slurmctld.elastic("2", tres_per_job="gres/gpu:2").job["priority"] == NO_VAL


@pytest.mark.parametrize(
    "waits", [{"priority": 0}, {"begin_time": NOW + 60}, {"dependency": "afterok:5"}]
)
def test_a_job_that_its_user_lets_wait_is_not_held_for_onesd(
    slurmctld: Slurmctld, beat: Any, waits: dict[str, Any]
) -> None:
    beat()
    answer = slurmctld.elastic("2", tres_per_job="gres/gpu:2", **waits)
    assert answer.mark == "ONES1:sizes=2;request=2;held=0"
    assert answer.job["priority"] == waits.get("priority", NO_VAL)


@pytest.mark.parametrize(
    ("request_of_job", "gpus"),
    [
        ({"tres_per_job": "gres/gpu:6"}, 6),
        ({"tres_per_job": "gres/gpu=6", "tres_per_node": "gres/gpu:3"}, 6),
        ({"tres_per_node": "gres/gpu:4"}, 4),
        ({"tres_per_node": "gres/gpu"}, 1),
        ({"tres_per_node": "gpu:v100:2", "min_nodes": 3, "max_nodes": 3}, 6),
        ({"tres_per_node": "gres/nvme:9,gres/gpu:v100=2"}, 2),
        ({"tres_per_node": "gres/gpu:2", "num_tasks": 8, "ntasks_per_node": 3}, 6),
        ({"tres_per_task": "cpu=4,gres/gpu=2", "num_tasks": 3}, 6),
        ({"tres_per_task": "gres/gpu:k80:1", "min_nodes": 2, "ntasks_per_node": 3}, 6),
        ({"tres_per_task": "gres/gpu:1", "min_nodes": 2}, 2),
    ],
)
def test_the_jobs_own_request_is_counted_in_every_form(
    slurmctld: Slurmctld, request_of_job: dict[str, Any], gpus: int
) -> None:
    answer = slurmctld.elastic("", **request_of_job)
    assert answer.said == []
    sizes = "1" if gpus == 1 else f"1-{gpus}"
    assert answer.mark == f"ONES1:sizes={sizes};request={gpus};held=0"


@pytest.mark.parametrize(
    ("value", "request_of_job", "words"),
    [
        ("8-2", {"tres_per_job": "gres/gpu:4"}, "--elastic: sizes '8-2': '8-2' runs backwards"),
        ("2-4", {}, "--elastic=2-4: the job asks for no GPUs"),
        ("", {"tres_per_node": "gres/nvme:1"}, "--elastic: the job asks for no GPUs"),
        ("", {"tres_per_node": "gres/gpu:0"}, "the job asks for no GPUs"),
        ("", {"tres_per_node": "gres/gpumem:8"}, "the job asks for no GPUs"),
        (
            "2-4",
            {"tres_per_job": "gres/gpu:6"},
            "asks for 6 GPUs, .* ask for 4, or use --elastic=2-6",
        ),
        (
            "2,4",
            {"tres_per_node": "gres/gpu:2", "min_nodes": 1, "max_nodes": 3},
            "may start the job with 6 GPUs",
        ),
        (
            "",
            {"tres_per_node": "gres/gpu:v100:2,gres/gpu:k80:2"},
            "two types of GPU.*--gres=gpu:k80",
        ),
        ("", {"tres_per_socket": "gres/gpu:1"}, "--gpus-per-socket; use --gpus-per-node"),
        ("", {"tres_per_job": "gres/gpu:2", "het_job_offset": 0}, "heterogeneous"),
        ("", {"tres_per_job": "gres/gpu:2", "requeue": 0}, "--no-requeue"),
        ("", {"tres_per_job": "gres/gpu:2", "req_nodes": "n1"}, "--nodelist=n1"),
        ("", {"tres_per_job": "gres/gpu:2", "script": None}, "use sbatch --elastic"),
        ("", {"tres_per_job": "gres/gpu:2", "shared": 0}, "drop --exclusive, and ask for sizes"),
        ("", {"tres_per_job": "gres/gpu:2", "shared": 2}, "--exclusive=user forbids; drop it"),
        ("", {"tres_per_job": "gres/gpu:2", "shared": 3}, "--exclusive=mcs forbids; drop it"),
        ("", {"tres_per_job": "gres/gpu:2", "shared": 4}, "--exclusive=topo forbids; drop it"),
        ("", {"tres_per_job": "gres/gpu:2", "core_spec": 0}, "drop --core-spec, and ask for sizes"),
        ("", {"tres_per_job": "gres/gpu:2", "thread_spec": 2}, "drop --thread-spec, and ask"),
        ("", {"tres_per_job": "gres/gpu:2", "contiguous": 1}, "close together.*drop --contiguous"),
        ("", {"tres_per_job": "gres/gpu:2", "req_switch": 1}, "close together.*drop --switches"),
        ("", {"tres_per_job": "gres/gpu:2", "pn_min_cpus": 8}, "--mincpus=8 .*--cpus-per-task or"),
        (
            "",
            {"tres_per_job": "gres/gpu:2", "pn_min_cpus": 8, "cpus_per_task": 4},
            "--mincpus=8 .*--cpus-per-task or --cpus-per-gpu",
        ),
        (
            "",
            {"tres_per_job": "gres/gpu:8", "ntasks_per_gpu": 1},
            "by --ntasks-per-gpu; use --ntasks: ",
        ),
        (
            "",
            {"tres_per_job": "gres/gpu:8", "tres_per_task": "cpu=2,gres/gpu=2"},
            "by --gpus and --gpus-per-task at once.*; drop --gpus and say --ntasks=4",
        ),
    ],
)
def test_what_cannot_be_elastic_is_refused_in_one_line_that_names_a_way_out(
    slurmctld: Slurmctld, value: str, request_of_job: dict[str, Any], words: str
) -> None:
    answer = slurmctld.elastic(value, **request_of_job)
    assert answer.code == ERROR
    assert len(answer.said) == 1
    assert re.search(words, answer.said[0])
    assert "\n" not in answer.said[0]
    assert answer.mark is None


@pytest.mark.parametrize(
    ("value", "request_of_job", "partition", "refusal"),
    [
        ("1-16", {"tres_per_job": "gres/gpu:4"}, "gpu 16 v100=8,k80=8", None),
        (
            "4-64:4",
            {"tres_per_job": "gres/gpu:4"},
            "gpu 16 v100=8,k80=8",
            "up to 64 GPUs, but partition gpu has 16; use --elastic=4-16:4",
        ),
        (
            "2-16:2",
            {"tres_per_job": "gres/gpu:v100:4"},
            "gpu 16 v100=8,k80=8",
            "up to 16 GPUs, but partition gpu has 8 of type v100; use --elastic=2-8:2",
        ),
        (
            "32",
            {"tres_per_job": "gres/gpu:32"},
            "gpu 16 v100=16",
            "up to 32 GPUs, but partition gpu has 16; choose another partition",
        ),
        ("2-64", {"tres_per_job": "gres/gpu:4"}, "other 16 v100=16", None),
        ("2-64", {"tres_per_job": "gres/gpu:4", "partition": "other,gpu"}, "gpu 16 v100=16", None),
        ("2-16", {"tres_per_job": "gres/gpu:v100:4"}, "gpu 16 =16", None),
    ],
)
def test_more_than_the_partition_has_is_refused_as_far_as_onesd_has_said(
    slurmctld: Slurmctld,
    beat: Any,
    *,
    value: str,
    request_of_job: dict[str, Any],
    partition: str,
    refusal: str | None,
) -> None:
    beat(partition=partition, age=3600)  # what a partition has stays true when onesd is gone
    answer = slurmctld.elastic(value, **request_of_job)
    if refusal is None:
        assert answer.code == SUCCESS
    else:
        assert answer.said == [f"--elastic={value}: {refusal}"]


def test_the_marks_sizes_are_never_longer_than_what_the_user_wrote(slurmctld: Slurmctld) -> None:
    answer = slurmctld.elastic("1-60000:3,7,8", tres_per_job="gres/gpu:7")
    assert answer.mark == "ONES1:sizes=1-60000:3,7,8;request=7;held=0"


def test_the_jobs_environment_shows_what_a_bare_option_means(slurmctld: Slurmctld) -> None:
    environment = slurmctld.table({"SLURM_ELASTIC": ""})
    slurmctld.elastic("", tres_per_job="gres/gpu:4", environment=environment)
    assert environment["SLURM_ELASTIC"] == "1-4"


def test_the_option_is_found_in_a_map_as_in_a_list(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(
        spank_job_env=slurmctld.table({"ELASTIC": "2-4"}), tres_per_job="gres/gpu:2"
    )
    assert answer.mark == "ONES1:sizes=2-4;request=2;held=0"


def test_the_mark_keeps_the_tasks_and_nodes_of_the_submission(slurmctld: Slurmctld) -> None:
    answer = slurmctld.elastic("4", tres_per_node="gres/gpu:2", min_nodes=2, num_tasks=4)
    assert answer.job["admin_comment"].endswith(";tasks=4;nodes=2;mem=no;cpu=no")


@pytest.mark.parametrize(
    ("request_of_job", "nodes"),
    [
        ({"tres_per_node": "gres/gpu:2", "num_tasks": 4, "ntasks_per_node": 1}, 4),
        ({"tres_per_job": "gres/gpu:8", "num_tasks": 2, "ntasks_per_node": 1}, 2),
        ({"tres_per_task": "gres/gpu:2", "num_tasks": 4, "ntasks_per_node": 3}, 2),
        ({"tres_per_job": "gres/gpu:8", "num_tasks": 8}, 1),
        ({"tres_per_job": "gres/gpu:8", "min_nodes": 0}, 1),
    ],
)
def test_the_mark_keeps_the_nodes_that_follow_from_tasks_where_none_are_said(
    slurmctld: Slurmctld, request_of_job: dict[str, Any], nodes: int
) -> None:
    answer = slurmctld.elastic("", **request_of_job)
    assert Mark.read(answer.job["admin_comment"]).nodes == nodes


@pytest.mark.parametrize(
    "unset_or_harmless",
    [
        {"shared": NO_VAL16},
        {"shared": 1},  # --oversubscribe
        {"core_spec": NO_VAL16},
        {"contiguous": NO_VAL16},  # not from sbatch
        {"req_switch": 0},
        {"pn_min_cpus": 0},
        {"pn_min_cpus": 1},
        {"pn_min_cpus": 8, "cpus_per_task": 8},  # sbatch says the one with the other
        {"pn_min_cpus": 8, "tres_per_task": "cpu=8"},
        {"pn_min_cpus": 8, "cpus_per_task": 4, "ntasks_per_node": 2},
        {"script": "#!/bin/sh\n#SBATCH --gpus=2 # no --deadline=18:00\n"},
        {"script": "#!/bin/sh\n#SBATCH --comment=a--deadline=1\n"},
        {"script": "#!/bin/sh\ntrue\n#SBATCH --deadline=18:00\n"},  # sbatch reads no further
    ],
)
def test_what_leaves_an_elastic_job_its_ways_passes(
    slurmctld: Slurmctld, unset_or_harmless: dict[str, Any]
) -> None:
    answer = slurmctld.elastic("2", tres_per_job="gres/gpu:2", **unset_or_harmless)
    assert (answer.code, answer.said, answer.logged) == (SUCCESS, [], [])


@pytest.mark.parametrize(
    "lines",
    [
        "#SBATCH --deadline=18:00",
        "#SBATCH -J train --deadline 18:00  # at the latest",
        "# A comment.\n\n  \n#SBATCH --deadline=18:00\r",
    ],
)
def test_a_script_that_says_a_deadline_is_refused(slurmctld: Slurmctld, lines: str) -> None:
    script = f"#!/bin/sh\n{lines}\ntrue\n"
    answer = slurmctld.elastic("2", tres_per_job="gres/gpu:2", script=script)
    assert (answer.code, answer.mark) == (ERROR, None)
    assert answer.said == [
        "--elastic restarts a job, and --deadline has Slurm cancel it then; leave one out"
    ]


def test_the_mark_keeps_the_type_that_is_asked_for(slurmctld: Slurmctld) -> None:
    answer = slurmctld.elastic("4", tres_per_node="gres/gpu:v100:4")
    assert answer.job["admin_comment"].endswith(";nodes=1;mem=no;cpu=no;type=v100")
    assert Mark.read(answer.job["admin_comment"]).gpu_type == "v100"
    assert "type" not in slurmctld.elastic("4", tres_per_node="gres/gpu:4").job["admin_comment"]
    strange = slurmctld.elastic("4", tres_per_node="gres/gpu:a;held=1:4")
    assert "type" not in str(strange.job["admin_comment"])


def test_a_forged_mark_is_taken_off_and_a_sites_comment_is_kept(slurmctld: Slurmctld) -> None:
    forged = "ONES1:sizes=1-999;request=1;held=1"
    assert slurmctld.submit(admin_comment=forged).mark == ""
    assert (
        slurmctld.elastic("2", tres_per_job="gres/gpu:2", admin_comment=forged).mark
        == "ONES1:sizes=2;request=2;held=0"
    )
    assert (
        slurmctld.elastic("2", tres_per_job="gres/gpu:2", admin_comment="by site").mark
        == "ONES1:sizes=2;request=2;held=0 by site"
    )


def test_a_fault_of_ours_is_logged_and_the_job_passes(slurmctld: Slurmctld) -> None:
    answer = slurmctld.elastic("2", tres_per_job=17)
    assert answer.code == SUCCESS
    assert answer.mark is None
    assert "passes as a plain one" in answer.logged[0]


def test_an_administrators_comment_does_not_unmark_a_job_and_an_empty_one_does(
    slurmctld: Slurmctld,
) -> None:
    mark = "ONES1:sizes=2;request=2;held=0"
    modify = slurmctld.lua.globals().slurm_job_modify

    def after(comment: str | None, before: str | None) -> str | None:
        job = slurmctld.table({"admin_comment": comment})
        assert modify(job, slurmctld.table({"admin_comment": before}), None, 0) == SUCCESS
        written = job["admin_comment"]
        return None if written is None else str(written)

    assert after("look at this", mark) == f"{mark} look at this"
    assert after("again", f"{mark} look at this") == f"{mark} again"
    assert after("", mark) == ""
    assert after(None, mark) is None
    assert after("plain", None) == "plain"


WAITING: Mapping[str, Any] = {
    "admin_comment": "ONES1:sizes=2;request=2;held=1",
    "user_id": 1000,
    "job_state": 0,
}
PINNED: Mapping[str, Any] = {"req_nodes": "n4", "begin_time": 0}


def test_the_owner_of_a_waiting_elastic_job_does_not_choose_its_nodes(slurmctld: Slurmctld) -> None:
    modify = slurmctld.lua.globals().slurm_job_modify
    assert modify(slurmctld.table(PINNED), slurmctld.table(WAITING), None, 1000) == ERROR
    assert slurmctld.said == [
        "an elastic job leaves the choice of nodes to onesd, which ReqNodeList=n4 forbids; "
        "use ExcNodeList= or Features= instead"
    ]


@pytest.mark.parametrize(
    ("written", "job", "by"),
    [
        (PINNED, WAITING, 0),
        (PINNED, WAITING, 995),
        (PINNED, {**WAITING, "user_id": 0}, 0),
        ({**PINNED, "begin_time": NOW}, WAITING, 1000),
        ({**PINNED, "req_nodes": ""}, WAITING, 1000),
        ({"begin_time": 0, "comment": "mine"}, WAITING, 1000),
        (PINNED, {**WAITING, "job_state": 1}, 1000),
        (PINNED, {**WAITING, "admin_comment": None}, 1000),
        (PINNED, {**WAITING, "admin_comment": "ONES-STAGE1:"}, 1000),
    ],
    ids=[
        "by root",
        "by onesd",
        "root's own",
        "by onesd in a job of its user",
        "choice taken back",
        "other field",
        "nodes of a running job given back",
        "plain",
        "stage-in",
    ],
)
def test_all_others_may_choose_nodes_and_an_owner_may_change_the_rest(
    slurmctld: Slurmctld, written: Mapping[str, Any], job: Mapping[str, Any], by: int
) -> None:
    modify = slurmctld.lua.globals().slurm_job_modify
    assert modify(slurmctld.table(written), slurmctld.table(job), None, by) == SUCCESS
    assert (slurmctld.said, slurmctld.logged) == ([], [])


BASE: Mapping[str, Any] = {
    "user_id": 1000,
    "admin_comment": "ONES1:sizes=1-8;request=1;held=0;tasks=1;nodes=1",
    "account": "vision",
    "qos": "normal",
    "partition": "gpu",
    "job_state": 1,
    "restart_cnt": 2,
    "end_time": NOW + 600,
}


def a_satellite(slurmctld: Slurmctld, base: Mapping[str, Any] | None, **request: Any) -> Answer:
    jobs = {} if base is None else {"12": slurmctld.table(base)}
    slurmctld.lua.globals().slurm.jobs = slurmctld.table(jobs)
    return slurmctld.submit(**{"comment": "ones-satellite:12.2.700", **request})


def test_a_satellite_is_marked_and_is_its_jobs_in_account_partition_and_time(
    slurmctld: Slurmctld,
) -> None:
    answer = a_satellite(slurmctld, BASE, account="other", time_limit=600)
    assert answer.code == SUCCESS
    assert answer.mark == "ONES1S:base=12;restarts=2;order=700"
    job = answer.job
    assert (job["account"], job["qos"], job["partition"]) == ("vision", "normal", "gpu")
    assert (job["time_limit"], job["requeue"]) == (10, 0)
    assert a_satellite(slurmctld, BASE, time_limit=3).job["time_limit"] == 3
    unlimited = {**BASE, "end_time": NO_VAL}
    assert a_satellite(slurmctld, unlimited, time_limit=3).job["time_limit"] == 3


@pytest.mark.parametrize(
    "base",
    [
        None,
        {**BASE, "user_id": 1001},
        {**BASE, "job_state": 3},
        {**BASE, "job_state": 0},
        {**BASE, "restart_cnt": 3},
        {**BASE, "admin_comment": ""},
        {**BASE, "admin_comment": "ONES1S:base=9;restarts=0;order=1"},
    ],
    ids=["absent", "another's", "ended", "pending", "another run", "plain", "a satellite itself"],
)
def test_a_satellite_of_what_is_no_running_elastic_job_of_its_user_is_refused(
    slurmctld: Slurmctld, base: Mapping[str, Any] | None
) -> None:
    answer = a_satellite(slurmctld, base)
    assert answer.code == ERROR
    assert "you have no elastic job of this number running" in answer.said[0]


def test_a_satellite_of_a_job_that_is_about_to_end_is_refused(slurmctld: Slurmctld) -> None:
    answer = a_satellite(slurmctld, {**BASE, "end_time": NOW + 59})
    assert answer.code == ERROR
    assert "ends within a minute" in answer.said[0]


def test_a_forged_satellite_mark_is_taken_away_and_a_true_one_stays(slurmctld: Slurmctld) -> None:
    forged = "ONES1S:base=12;restarts=2;order=700"
    assert slurmctld.submit(admin_comment=forged).job["admin_comment"] == ""
    modify = slurmctld.lua.globals().slurm_job_modify
    job = slurmctld.table({"admin_comment": "look at this"})
    assert modify(job, slurmctld.table({"admin_comment": forged}), None, 0) == SUCCESS
    assert job["admin_comment"] == f"{forged} look at this"


def test_a_sites_own_hooks_stay_and_can_call_ours(slurmctld: Slurmctld) -> None:
    slurmctld.lua.execute("function slurm_job_submit() return 17 end")
    ones = slurmctld.lua.eval("function(text) return load(text)() end")(SCRIPT.read_text())
    assert slurmctld.submit().code == 17
    job = slurmctld.table({**A_BATCH_JOB, "tres_per_job": "gres/gpu:2"})
    job["spank_job_env"] = slurmctld.table({0: "ELASTIC=2"})
    assert ones.submit(job, None, 1000) == SUCCESS
    assert job["admin_comment"] == "ONES1:sizes=2;request=2;held=0;tasks=0;nodes=1;mem=no;cpu=no"


@pytest.mark.parametrize("version", ["lua51", "lua52", "lua53", "lua54"])
def test_it_runs_on_every_lua_that_slurm_is_built_with(tmp_path: Path, version: str) -> None:
    pytest.importorskip(f"lupa.{version}", reason=f"this lupa was built without {version}")
    heartbeat = tmp_path / "heartbeat"
    heartbeat.write_text(f"ones-heartbeat 1\ntime {NOW}\nlifetime 30\nhold yes\n")
    script = SCRIPT.read_text()
    lua = import_module(f"lupa.{version}").LuaRuntime()
    lua.globals().ONES_HEARTBEAT = str(heartbeat)
    lua.execute(f"slurm = {{ SUCCESS = 0, ERROR = -1 }} os.time = function() return {NOW} end")
    lua.execute(script)
    job = lua.table_from({"script": "x", "tres_per_node": "gres/gpu:v100:4", "min_nodes": 2.0})
    job["spank_job_env"] = lua.table_from({0: "ELASTIC=4-16:4"})
    assert lua.globals().slurm_job_submit(job, lua.table_from({}), 1000) == SUCCESS
    own = "ONES1:sizes=4-16:4;request=8;held=1;tasks=0;nodes=2;mem=no;cpu=no;type=v100"
    assert job["admin_comment"] == own


part = st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3}(:[0-9]{1,2})?)?", fullmatch=True)
near_sizes = st.lists(part, min_size=1, max_size=4).map(",".join)


@settings(max_examples=150, deadline=None)
@given(text=near_sizes | st.text("0123456789-:,x ", min_size=1, max_size=12))
def test_lua_and_python_read_the_same_sizes_with_the_same_words(
    lasting_slurmctld: Slurmctld, text: str
) -> None:
    slurmctld = lasting_slurmctld
    slurmctld.said.clear()
    try:
        sizes = Sizes.parse(text)
    except ValueError as fault:
        answer = slurmctld.elastic(text, tres_per_job="gres/gpu:1")
        assert answer.said == [f"--elastic: {fault}"]
        return
    answer = slurmctld.elastic(text, tres_per_job=f"gres/gpu:{sizes.least}")
    assert answer.mark is not None
    match = re.fullmatch(r"ONES1:sizes=([^;]*);request=(\d+);held=0", answer.mark)
    assert match is not None
    assert Sizes.parse(match[1]) == sizes
    assert match[1] in (str(sizes), text)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, ";mem=no;cpu=no"),
        ({"min_mem_per_node": 3072, "cpus_per_task": 2}, ";mem=3072;cpu=yes"),
        ({"min_mem_per_node": 0, "cpus_per_task": 0xFFFE}, ";mem=0;cpu=no"),
        ({"min_mem_per_cpu": 300, "cpus_per_tres": "gres/gpu:3"}, ";mem=yes;cpu=yes"),
        ({"mem_per_tres": "gres/gpu:300", "pn_min_cpus": 1}, ";mem=yes;cpu=yes"),
        ({"tres_per_task": "cpu=2"}, ";mem=no;cpu=yes"),
    ],
)
def test_the_mark_says_what_of_memory_and_cpus_was_named(
    slurmctld: Slurmctld, request_: Mapping[str, Any], words: str
) -> None:
    answer = slurmctld.elastic("4", tres_per_job="gres/gpu:4", **request_)
    assert answer.job["admin_comment"].endswith(words)


def test_a_stage_in_job_is_marked_as_one_and_nothing_else(slurmctld: Slurmctld, beat: Any) -> None:
    beat()
    environment = slurmctld.table({0: "STAGING=1", 1: "ELASTIC=4"})
    answer = slurmctld.submit(spank_job_env=environment, name="ones-stage-in", priority=0)
    assert answer.job["admin_comment"] == "ONES-STAGE1:"
    assert answer.job["requeue"] == A_BATCH_JOB["requeue"]
    forged = slurmctld.submit(admin_comment="ONES-STAGE1:")
    assert forged.job["admin_comment"] == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "train"},
        {"priority": NO_VAL},
        {"tres_per_job": "gres/gpu:4"},
        {"tres_per_node": "gres:gpu:v100:1"},
    ],
)
def test_a_job_that_only_has_the_variable_of_stage_in_jobs_is_a_plain_one(
    slurmctld: Slurmctld, changes: Mapping[str, Any]
) -> None:
    job = {"name": "ones-stage-in", "priority": 0} | changes
    answer = slurmctld.submit(spank_job_env=slurmctld.table({0: "STAGING=1"}), **job)
    assert answer.code == SUCCESS
    assert answer.job["admin_comment"] is None
    assert answer.job["priority"] == job["priority"]


@pytest.mark.parametrize("text", ["1-65536", "1-32768,32769-65536", "1-65535:2,7"])
def test_sizes_are_not_written_out_one_by_one(slurmctld: Slurmctld, text: str) -> None:
    slurmctld.lua.execute("""
        steps = 0
        debug.sethook(function() steps = steps + 1 end, "", 100)
    """)
    answer = slurmctld.elastic(text, tres_per_job="gres/gpu:1")
    slurmctld.lua.execute("debug.sethook()")
    assert answer.mark == f"ONES1:sizes={text};request=1;held=0"
    assert slurmctld.lua.globals().steps < 1000  # hundreds of instructions of Lua


def test_a_range_of_very_many_nodes_is_refused(slurmctld: Slurmctld) -> None:
    answer = slurmctld.elastic("1-65536", tres_per_node="gres/gpu:1", min_nodes=1, max_nodes=60_000)
    assert answer.code == ERROR
    assert "a range of 60000 numbers of nodes; give one number of nodes" in answer.said[0]


@pytest.mark.parametrize(
    ("said", "jobs", "words"),
    [
        ("9", {}, ";stage=9"),  # not in Slurm's table yet
        ("9", {"9": 1000}, ";stage=9"),
        ("9", {"9": 1001}, ""),
        ("9;held=0", {}, ""),
        ("99999999999", {}, ""),
    ],
)
def test_a_jobs_mark_names_its_stage_in_job_unless_that_is_anothers(
    slurmctld: Slurmctld, said: str, jobs: Mapping[str, int], words: str
) -> None:
    known = {number: slurmctld.table({"user_id": user}) for number, user in jobs.items()}
    slurmctld.lua.globals().slurm.jobs = slurmctld.table(known)
    environment = slurmctld.table({0: "ELASTIC=4", 1: f"STAGE_IN={said}"})
    answer = slurmctld.submit(spank_job_env=environment, tres_per_job="gres/gpu:4")
    assert answer.job["admin_comment"].partition(";cpu=no")[2] == words


def test_stage_in_without_elastic_is_refused(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(spank_job_env=slurmctld.table({0: "STAGE_IN=refuse"}))
    assert answer.code == ERROR
    assert "--stage-in needs --elastic" in answer.said[0]


def allow(slurmctld: Slurmctld, *accounts: str) -> None:
    """As a site's own job_submit.lua does it."""
    slurmctld.ones.accounts = slurmctld.table(dict.fromkeys(accounts, True))


@pytest.mark.parametrize(
    "account", [{"account": "vision"}, {"default_account": "vision"}], ids=["named", "default"]
)
def test_jobs_of_the_sites_accounts_are_elastic(
    slurmctld: Slurmctld, account: dict[str, str]
) -> None:
    allow(slurmctld, "vision", "robots")
    answer = slurmctld.elastic("1-4", tres_per_job="gres/gpu:4", **account)
    assert (answer.code, answer.mark) == (SUCCESS, "ONES1:sizes=1-4;request=4;held=0")


@pytest.mark.parametrize("written", ["vision", "Vision", "VISION"])
def test_accounts_are_the_same_in_any_case_as_to_slurm(slurmctld: Slurmctld, written: str) -> None:
    modify = slurmctld.lua.globals().slurm_job_modify
    elastic = slurmctld.table({"admin_comment": "ONES1:sizes=1-4;request=4;held=1"})
    for account in ("vision", "Vision"):
        allow(slurmctld, written)
        assert slurmctld.elastic("4", tres_per_job="gres/gpu:4", account=account).code == SUCCESS
        assert modify(slurmctld.table({"account": account}), elastic, None, 0) == SUCCESS


@pytest.mark.parametrize(
    "account",
    [{"account": "maths"}, {"account": "maths", "default_account": "vision"}, {}],
    ids=["named", "instead of the default", "none"],
)
def test_an_elastic_job_of_another_account_is_refused_with_the_accounts_that_may(
    slurmctld: Slurmctld, account: dict[str, str]
) -> None:
    allow(slurmctld, "vision", "robots")
    answer = slurmctld.elastic("1-4", tres_per_job="gres/gpu:4", **account)
    assert (answer.code, answer.mark) == (ERROR, None)
    assert answer.said == [
        "--elastic is for jobs of the accounts robots, vision here; drop it, or choose one with -A"
    ]


def test_a_stage_in_job_may_be_of_any_account(slurmctld: Slurmctld) -> None:
    """Of the user's default one: it has no GPUs, and runs as its main job's."""
    allow(slurmctld, "vision")
    staging = {"name": "ones-stage-in", "priority": 0, "account": "maths"}
    job = {"spank_job_env": slurmctld.table({0: "STAGING=1"}), **staging}
    assert slurmctld.submit(**job).mark == "ONES-STAGE1:"


def test_a_plain_job_of_another_account_passes(slurmctld: Slurmctld) -> None:
    allow(slurmctld, "vision")
    answer = slurmctld.submit(account="maths", tres_per_job="gres/gpu:4")
    assert (answer.code, answer.mark, answer.said) == (SUCCESS, None, [])


def test_an_elastic_job_stays_in_the_sites_accounts(slurmctld: Slurmctld) -> None:
    modify = slurmctld.lua.globals().slurm_job_modify
    elastic = slurmctld.table({"admin_comment": "ONES1:sizes=1-4;request=4;held=1"})
    plain = slurmctld.table({"admin_comment": "the site's own"})
    moved = slurmctld.table({"account": "maths"})
    assert modify(moved, elastic, None, 0) == SUCCESS
    allow(slurmctld, "vision")
    assert modify(moved, plain, None, 0) == SUCCESS
    assert modify(slurmctld.table({"account": "vision"}), elastic, None, 0) == SUCCESS
    assert modify(slurmctld.table({"comment": "new"}), elastic, None, 0) == SUCCESS
    assert modify(moved, elastic, None, 0) == ERROR
    assert slurmctld.said == ["an elastic job stays in one of the accounts vision here"]
