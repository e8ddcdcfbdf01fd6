"""What jobs may send, and how everything else is refused."""

from __future__ import annotations

import json
import math
from typing import Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ones.daemon.agent.messages import MOST_BYTES, Refused, read_message
from ones.daemon.wire import Checkpoint, Live, Received, Report


def test_a_report_is_read() -> None:
    told = b'{"op":"report","job":7,"restarts":1,"samples":1000,"loss":0.5,"step_seconds":1}'
    assert read_message(told, job=7) == Report(
        job=7, restarts=1, samples=1000, loss=0.5, step_seconds=1.0
    )


def test_a_file_names_neither_job_nor_op() -> None:
    assert read_message(b'{"samples":3}', job=7, op="checkpoint") == Checkpoint(job=7, samples=3)
    assert read_message(b"{}", job=7, op="report") == Report(job=7)


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_training_that_diverges_still_reports(loss: str) -> None:
    told = f'{{"op":"report","job":7,"samples":9,"loss":{loss},"accuracy":{loss}}}'.encode()
    assert read_message(told, job=7) == Report(job=7, samples=9)


def test_another_jobs_report_is_refused_as_foreign() -> None:
    with pytest.raises(Refused, match="belongs to job 7; it can't speak for job 8") as caught:
        read_message(b'{"op":"report","job":8}', job=7)
    assert caught.value.why == "foreign"


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\0",
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'"report"',
        b"{}",
        b'{"op":"report","job":"7"}',
        b'{"op":"report","job":7.5}',
        b'{"op":"report","job":true}',
        b'{"op":"report","job":-7}',
        b'{"op":"report","job":NaN}',
        b'{"op":"erase","job":7}',
        b'{"op":["report"],"job":7}',
        b'{"op":"report","job":7,"samples":-1}',
        b'{"op":"report","job":7,"samples":1e30}',
        b'{"op":"report","job":7,"samples":NaN}',
        b'{"op":"report","job":7,"samples":Infinity}',
        b'{"op":"report","job":7,"samples":' + b"9" * 5000 + b"}",
        b'{"op":"report","job":7,"samples":' + b"9" * 30 + b"}",
        b'{"op":"report","job":7,"step_seconds":0}',
        b'{"op":"report","job":7,"step_seconds":NaN}',
        b'{"op":"report","job":7,"gpus":0}',
        b'{"op":"report","job":7,"loss":"nan"}',
        b'{"op":"report","job":7,"loss":[1]}',
        b'{"op":"report","job":7,"loss":{"a":NaN}}',
        b'{"op":"checkpoint","job":7,"path":"' + b"x" * 5000 + b'"}',
        b'{"op":"checkpoint","job":7,"path":"a\\nb"}',
        b'{"op":"checkpoint","job":7,"path":"\\ud800"}',
        b'{"op":"checkpoint","job":7,"path":"\\u001b[2J"}',
        b"[" * 60000,
        b'{"a":' * 10000,
        b'{"op":"report","job":7,"x":' + b"[" * 50000 + b"]" * 50000 + b"}",
        b" " * (MOST_BYTES + 1),
        '{"op":"report","job":7}'.encode("utf-16"),
    ],
)
def test_hostile_input_is_refused_in_one_line(hostile: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read_message(hostile, job=7)
    assert "\n" not in str(caught.value)
    assert 0 < len(str(caught.value)) <= 300


def test_a_file_that_is_another_op_is_refused() -> None:
    with pytest.raises(Refused, match=r"checkpoint\.json"):
        read_message(b'{"op":"report"}', job=7, op="checkpoint")


# The first text of a process is slow to draw, and machines that test are busy.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patiently
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _read_or_refused(data)


@patiently
@given(
    st.dictionaries(
        st.sampled_from([*Report.__struct_fields__, *Checkpoint.__struct_fields__, "op", "x"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=20),
            st.sampled_from(["report", "checkpoint"]),
            st.lists(st.integers(), max_size=2),
        ),
    )
)
def test_whatever_is_read_can_be_sent_on(fields: dict[str, object]) -> None:
    _read_or_refused(json.dumps(fields).encode())


def _read_or_refused(data: bytes) -> None:
    for op in (None, "report", "checkpoint"):
        try:
            message = read_message(data, job=7, op=op)  # type: ignore[arg-type]
        except Refused:
            continue
        assert message.job == 7
        again = msgspec.json.decode(msgspec.json.encode(message), type=Report | Checkpoint)
        assert again == message
        if isinstance(message, Report):
            assert message.loss is None or math.isfinite(message.loss)


HALF = [
    b'{"op":"live","job":7,"own":{"\\ud800":1}}',
    b'{"op":"live","job":7,"reason":"\\udfff"}',
    b'{"op":"checkpoint","job":7,"path":"\\ud800"}',
    b'{"\\ud800":1}',
    b'{"\\ud800":NaN,"op":"report"}',
    b'{"op":"\\ud800"}',
    b'{"op":"report","job":"\\ud800"}',
]


@pytest.mark.parametrize("told", HALF)
@pytest.mark.parametrize("op", ["report", None])
def test_half_a_surrogate_pair_is_refused_in_words_that_can_be_sent(
    told: bytes, op: Literal["report"] | None
) -> None:
    with pytest.raises(Refused) as caught:
        read_message(told, job=7, op=op)
    assert msgspec.json.encode(str(caught.value))


@pytest.mark.parametrize(
    "told", [b'{"op":"\\u001b[2J\\u202e"}', b'{"op":"live","own":{"\\u001b[2J":"x"}}', b"\x1b"]
)
def test_a_refusal_can_be_shown_on_a_terminal(told: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read_message(told, job=7)
    assert str(caught.value).isprintable()


def test_a_node_of_ones_own_has_a_nodes_name() -> None:
    with pytest.raises(Refused, match="'own' names what is no node"):
        read_message(b'{"op":"live","job":7,"own":{"n 1":1}}', job=7)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*Live.__struct_fields__, *Report.__struct_fields__]) | st.text(), anything
    ),
    st.sampled_from(["report", "checkpoint", "live"]),
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_is_taken_can_be_sent_on_and_the_rest_is_refused(
    fields: dict[str, object], op: str
) -> None:
    try:
        message = read_message(json.dumps({**fields, "op": op}).encode(), job=7)
    except Refused as refusal:
        assert msgspec.json.encode(str(refusal))
    else:
        sent = msgspec.json.encode(Received(at=0.0, evidence="cgroup", message=message))
        assert msgspec.json.decode(sent, type=Received).message == message
