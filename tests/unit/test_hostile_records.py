"""Whatever stands where Slurm's or our own words should be: parsers raise what they declare."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from fake_slurm import a_record, as_json
from hypothesis import example, given
from hypothesis import strategies as st

from ones.policies.model import Placement
from ones.slurm_ext import command_reader, pyslurm_reader
from ones.slurm_ext.accounting import runs_of
from ones.slurm_ext.command_reader import CommandReader, record_of, seconds_of, switches_of
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import RecordFault, SlurmError
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.job_json import job_record, node_record
from ones.slurm_ext.live_moves import LiveMove, Order
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.runtime.live.agent_line import read_order
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.usage import seconds_in, size_in, usage_of

HUGE = 10**400
DIGITS = "9" * 5000
NODE = {
    "name": "n1",
    "state": ["IDLE"],
    "reason": "",
    "gres": "gpu:v100:4",
    "gres_used": "gpu:v100:0",
    "partitions": ["gpu"],
    "active_features": [],
}
RUNNING = a_record(3, state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 2})
MOVE = LiveMove(
    id=7,
    job=3,
    restarts=0,
    target=Placement.of({"n1": 2, "n10": 1, "n9": 4}),
    begun_at=5.0,
    order=Order(number=700, keep=(8,), add=(("n9", 4),), leave=("n2",)),
    given=("n3",),
)
ORDER = {
    "number": 700,
    "restarts": 2,
    "keep": [11],
    "add": [{"node": "n2", "gpus": 3}],
    "leave": ["n3"],
    "gpu_type": "v100",
    "batch": 64,
    "patience": 60.0,
    "withdrawn": False,
}
numerals = st.from_regex(r"[0-9]{1,25}", fullmatch=True)
texts = st.one_of(st.text(max_size=20), numerals, st.just(DIGITS))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(HUGE)
    | st.floats()
    | texts
    | st.fixed_dictionaries(
        {"set": st.booleans(), "infinite": st.booleans(), "number": st.integers() | st.floats()}
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def changed(valid: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The same, with some of its fields changed for anything, or away."""
    changes = st.dictionaries(st.sampled_from(sorted(valid)), values, max_size=3)
    away = st.sets(st.sampled_from(sorted(valid)), max_size=1)
    return st.builds(
        lambda new, gone: {k: v for k, v in (valid | new).items() if k not in gone}, changes, away
    )


@given(changed(as_json(RUNNING)) | values)
@example(as_json(RUNNING) | {"node_count": float("inf")})
@example(as_json(RUNNING) | {"priority": {"set": True, "infinite": False, "number": 1e999}})
@example(as_json(RUNNING) | {"submit_time": HUGE})
@example(as_json(RUNNING) | {"time_limit": {"set": True, "infinite": False, "number": HUGE}})
@example(as_json(RUNNING) | {"job_state": []})
@example(as_json(RUNNING) | {"name": 7})
@example(as_json(RUNNING) | {"nodes": "n[1-"})
def test_a_jobs_json_is_read_or_is_a_fault_of_this_job(job: Any) -> None:
    with suppress(RecordFault):
        assert isinstance(job_record(job).name, str)


@given(changed(NODE) | values)
def test_a_nodes_json_is_read_or_is_a_fault_of_this_node(node: Any) -> None:
    with suppress(RecordFault):
        assert isinstance(node_record(node).name, str)


def test_null_is_no_text() -> None:
    assert job_record(as_json(RUNNING) | {"features": None}).features == ""


@given(st.fixed_dictionaries(dict.fromkeys(command_reader._COLUMNS, texts)))
def test_a_jobs_columns_are_read_or_are_a_fault_of_this_job(row: dict[str, str]) -> None:
    with suppress(RecordFault):
        record_of(row)


@given(texts, texts, texts)
def test_times_and_sizes_are_read_or_are_none(one: str, two: str, three: str) -> None:
    for text in (one, f"{one}-{two}:{three}", f"{one}:{two}:{three}", f"{one}.{two}K"):
        for read in (seconds_of, seconds_in, size_in):
            found = read(text)
            assert found is None or 0.0 <= found < float("inf")


class Sacct(Commands):
    """A sacct that prints anything."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, *command: str) -> str:
        return self.text


@given(st.lists(texts, min_size=13, max_size=13))
@example([DIGITS, "0", "COMPLETED", "1", "2", "3", "1", "1", "1", "1M", "00:01", "1K", "5"])
@example(["7", "0", "COMPLETED", DIGITS, "2", "3", DIGITS, "1", "1", "1Mn", "00:01", "1K", DIGITS])
def test_accounting_is_read_or_slurms_fault(fields: list[str]) -> None:
    line = "|".join(field.replace("|", "").replace("\n", "") for field in fields)
    for read, text in ((usage_of, line), (runs_of, line.rsplit("|", 6)[0])):
        with suppress(SlurmError):
            read(Sacct(text), [7])  # type: ignore[operator]


@given(texts | st.from_regex(r"ONES1:sizes=[0-9:,-]{1,9};request=\d{1,30};held=[01](;\w+=\w*)*"))
@example(f"ONES1:sizes=1-2;request=1{'0' * 900};held=0")
@example("ONES1:sizes=1-2;request=00000000000000005;held=0")
def test_a_mark_is_read_or_a_value_error(text: str) -> None:
    Mark.parse(text)
    Tie.read(text.replace("ONES1:", "ONES1S:"))


def test_a_count_in_a_mark_is_checked_as_a_whole() -> None:
    with pytest.raises(ValueError, match="request=00000000001000000000, not a count"):
        Mark.read("ONES1:sizes=1-2;request=00000000001" + "0" * 12 + ";held=0")


@given(changed(json.loads(MOVE.to_json())) | values)
@example({})
@example([])
@example(json.loads(MOVE.to_json()) | {"target": {"n1": "two"}})
@example(json.loads(MOVE.to_json()) | {"order": {"number": 1}})
@example(json.loads(MOVE.to_json()) | {"deadline": HUGE})
def test_a_moves_record_is_read_or_a_value_error(record: Any) -> None:
    for kind in (LiveMove, MoveRecord):
        with suppress(ValueError):
            kind.from_json(json.dumps(record))


def test_a_live_move_comes_back_as_it_was_written_down() -> None:
    assert LiveMove.from_json(MOVE.to_json()) == MOVE
    with pytest.raises(ValueError, match="it has colour"):
        LiveMove.from_json(json.dumps(json.loads(MOVE.to_json()) | {"colour": "red"}))


def test_a_record_that_is_nested_without_end_is_a_value_error() -> None:
    for kind in (LiveMove, MoveRecord):
        with pytest.raises(ValueError, match="not a "):
            kind.from_json("[" * 100_000)


@given(changed(ORDER) | values)
@example(ORDER | {"number": 1e999})
@example(ORDER | {"batch": float("inf")})
@example(ORDER | {"add": [{"node": "n2", "gpus": 1e999}]})
@example(ORDER | {"patience": HUGE})
def test_an_order_is_read_or_is_none(order: Any) -> None:
    found = read_order(order, restarts=2)
    assert found is None or 0.0 <= found.patience < float("inf")


@given(st.text("n1239,[]-/ .@&!*%^", max_size=40) | texts)
@example("n[1-999999]")
@example("n[1-9999999]")
@example("n[1-300]m[1-300]")
@example("n[1-99],m[1-99]o[1-99]p[1-99]")
@example("n[1-" + "9" * 30 + "]")
@example("n[+1-99999999]")
@example("n[1-999999999]!n[2-999999999]")
@example("n[1]" * 10_000)
@example("," * 100_000)
def test_a_hostlist_is_read_or_a_value_error_and_bounded(text: str) -> None:
    with suppress(ValueError):
        assert len(expand(text)) <= 65_536


@pytest.mark.parametrize("text", ["n[1-65537]", "n[1-300]m[1-300]", ",".join(["n[1-9999]"] * 7)])
def test_a_hostlist_of_more_names_than_slurm_has_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="more than 65536 names"):
        expand(text)


def test_a_switch_that_makes_no_sense_does_not_cost_the_others() -> None:
    text = "SwitchName=s1 Level=0 Nodes=n[1-\nSwitchName=s2 Level=0 Nodes=n3\n"
    assert switches_of(text) == {"n3": ("s2",)}


class Answers:
    """Commands that answer from a table."""

    timeout = 20.0

    def __init__(self, rows: list[dict[str, str]], jobs: list[Any], nodes: Any) -> None:
        self.rows, self.jobs, self.nodes = rows, jobs, nodes

    def run(self, *command: str) -> str:
        match command:
            case ("squeue", *_, layout) if layout.startswith("--Format="):
                token = layout.removeprefix("--Format=JobID:").split(",")[0]
                return "".join("".join(v + token for v in row.values()) + "\n" for row in self.rows)
            case ("squeue", *_):
                return json.dumps({"jobs": self.jobs})
            case ("scontrol", "show", "node", "--json"):
                return json.dumps(self.nodes)
        return ""


def a_row(number: str, **changes: str) -> dict[str, str]:
    row = dict.fromkeys(command_reader._COLUMNS, "")
    return row | {"JobID": number, "State": "PENDING", "Name": "train"} | changes


def test_a_record_that_makes_no_sense_is_left_out_and_named_and_the_others_are_read() -> None:
    rows = [a_row("2"), a_row("seven"), a_row("9" * 30)]
    rows += [a_row(n, State="RUNNING", admin_comment=RUNNING.admin_comment) for n in ("3", "4")]
    jobs = [
        as_json(RUNNING),
        as_json(RUNNING) | {"job_id": 4, "nodes": 7},
        None,
        [],
        {"job_id": []},
    ]
    nodes = {
        "nodes": [NODE, NODE | {"name": "n2", "gres": None}, 17, NODE | {"name": "n3", "gres": 4}]
    }
    snapshot = CommandReader(Answers(rows, jobs, nodes)).snapshot()
    assert sorted(snapshot.jobs) == [2, 3]
    assert snapshot.jobs[3].gpus_on == {"n1": 2}
    assert sorted(snapshot.nodes) == ["n1"]
    assert sorted(snapshot.unread) == [
        "job 4",
        f"job {'9' * 20}",
        "job seven",
        "node None",
        "node n2",
        "node n3",
    ]
    assert all("makes no sense" in reason for reason in snapshot.unread.values())


@pytest.mark.parametrize("nodes", [[], {}, {"nodes": None}, 7])
def test_an_answer_that_is_no_list_of_nodes_is_slurms_fault(nodes: Any) -> None:
    with pytest.raises(SlurmError, match="no list of nodes"):
        CommandReader(Answers([], [], nodes)).snapshot()


def test_pyslurms_record_that_makes_no_sense_is_left_out_and_named() -> None:
    node = {
        "name": "n1",
        "states": "IDLE",
        "reason": "",
        "gres": "gpu:4",
        "gres_used": "",
        "partitions": "gpu",
        "features": "",
    }
    answer = {
        "jobs": [{"id": 5}, {"id": 6, "state": "PENDING"}],
        "gone": ["5", None],
        "nodes": [node, node | {"name": "n2", "states": 7}],
        "topology": "",
    }
    known = pyslurm_reader.Known()
    snapshot = pyslurm_reader.snapshot_of(answer, 1.0, known)
    assert sorted(snapshot.nodes) == ["n1"]
    assert sorted(snapshot.unread) == ["job 5", "job 6", "node n2"]
    nothing = {"jobs": [], "gone": [6], "nodes": [], "topology": ""}
    later = pyslurm_reader.snapshot_of(nothing, 2.0, known)
    assert sorted(later.unread) == ["job 5"]
