"""What a job that lost workers says of how it went on, from its launcher to `onesctl job`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_slurm import a_record
from hypothesis import given
from hypothesis import strategies as st

from ones.daemon.agent.messages import Refused, read_message
from ones.daemon.onesd.books.heard import Told
from ones.daemon.onesd.books.recoveries import MOST, KnownRecovery, RecoveriesBook
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import Live, Received, Recovery
from ones.slurm_ext.runtime.live.recovery import KEPT, Recoveries, steps_between
from ones.slurm_ext.runtime.live.terms import Loss, Number
from ones.slurm_ext.snapshot import JobRecord, Snapshot

JOB = a_record(7, state="RUNNING", restarts=2, held=False)
ONE_LOST, ALL_LOST = Loss(1, restarted=False), Loss(3, restarted=True)


def steps_one_by_one(begin: int, end: int, batch: int, epoch: int) -> int:
    steps = 0
    while begin < end:
        begin += min(batch, epoch - begin % epoch)
        steps += 1
    return steps


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 60), st.integers(1, 200))
def test_steps_are_counted_as_a_training_does_them(
    first: int, steps: int, batch: int, epoch: int
) -> None:
    begin = 0
    for _ in range(first % 50):
        begin += min(batch, epoch - begin % epoch)
    end = begin
    for _ in range(steps):
        end += min(batch, epoch - end % epoch)
    assert steps_between(begin, end, batch=batch, epoch=epoch) == steps
    assert steps_one_by_one(begin, end, batch, epoch) == steps


def told(*, reached: int | None, samples: int, loss: Loss, copies: bool = False) -> dict[str, Any]:
    found = Recoveries()
    found.broken(reached)
    found.broken(None)
    found.switched(batch=16, epoch=100, copies=copies)
    found.changed(Number(4), loss, samples=samples, at=50.0)
    (said,) = found.told()
    return said


def test_a_launcher_says_what_it_went_on_from_and_what_is_done_again() -> None:
    said = {"generation": 4, "at": 50.0, "lost": 1, "source": "memory", "samples": 0, "steps": 0}
    assert told(reached=64, samples=64, loss=ONE_LOST) == said
    copied = said | {"source": "neighbour", "samples": 48, "steps": 3}
    assert told(reached=64, samples=16, loss=ONE_LOST, copies=True) == copied
    kept = said | {"lost": 3, "source": "checkpoint"}
    assert told(reached=None, samples=32, loss=ALL_LOST) == kept | {"samples": None, "steps": None}
    assert told(reached=112, samples=96, loss=ALL_LOST) == kept | {"samples": 16, "steps": 2}


def test_a_change_without_a_loss_is_no_recovery() -> None:
    found = Recoveries()
    found.switched(batch=16, epoch=100, copies=False)
    assert found.changed(Number(1), None, samples=0, at=1.0) is None
    assert found.told() == []


def test_a_word_of_the_launcher_is_one_that_the_agent_takes() -> None:
    found = Recoveries()
    for number in range(1, 2 * KEPT):
        found.broken(number)
        found.switched(batch=1, epoch=10, copies=number % 2 == 0)
        found.changed(Number(number), ONE_LOST, samples=number, at=float(number))
    word = {"op": "live", "job": 7, "restarts": 2, "recoveries": found.told()}
    live = read_message(json.dumps(word).encode(), job=7)
    assert isinstance(live, Live)
    assert [each.generation for each in live.recoveries] == list(range(KEPT, 2 * KEPT))


@pytest.mark.parametrize(
    "hostile",
    [
        {"generation": 0},
        {"generation": 2**63},
        {"lost": -1},
        {"lost": True},
        {"at": -1.0},
        {"at": float("nan")},
        {"source": "thin air"},
        {"steps": 10**16},
        {"samples": "7"},
    ],
)
def test_a_recovery_that_makes_no_sense_is_refused(hostile: dict[str, Any]) -> None:
    fair = {"generation": 1, "at": 5.0, "lost": 1, "source": "memory"}
    word = {"op": "live", "job": 7, "recoveries": [fair | hostile]}
    with pytest.raises(Refused):
        read_message(json.dumps(word).encode(), job=7)
    word = {"op": "live", "job": 7, "recoveries": [fair] * (KEPT + 1)}
    with pytest.raises(Refused):
        read_message(json.dumps(word).encode(), job=7)


def a_recovery(generation: int = 4, **changes: Any) -> Recovery:
    fields = {"at": 50.0, "lost": 1, "source": "neighbour", "samples": 48, "steps": 3}
    return Recovery(generation=generation, **(fields | changes))


def slurm_has(*jobs: JobRecord) -> Snapshot:
    return Snapshot(taken=60.0, jobs={job.id: job for job in jobs}, nodes={}, switches={})


def heard(*recoveries: Recovery, restarts: int = 2, at: float = 60.0) -> dict[int, Told]:
    live = Live(job=7, restarts=restarts, recoveries=recoveries)
    return {7: Told("n1", Received(at=at, evidence="cgroup", message=live), at)}


@pytest.fixture
def book() -> RecoveriesBook:
    return RecoveriesBook(Store(":memory:"))


def test_what_a_job_says_is_kept_once(book: RecoveriesBook) -> None:
    snapshot = slurm_has(JOB)
    book.take(snapshot, heard(a_recovery(4)))
    book.take(snapshot, heard(a_recovery(4), a_recovery(6, source="memory", samples=0, steps=0)))
    book.take(snapshot, heard(a_recovery(4), a_recovery(6, source="memory", samples=0, steps=0)))
    assert [(each.run, each.generation) for each in book.of_job(7)] == [(2, 4), (2, 6)]
    assert book.of_job(8) == []


def test_the_word_of_another_run_and_of_a_job_that_did_not_opt_in_are_left_out(
    book: RecoveriesBook,
) -> None:
    book.take(slurm_has(JOB), heard(a_recovery(), restarts=1))
    other = a_record(7, state="RUNNING", restarts=2, admin_comment="")
    book.take(slurm_has(other), heard(a_recovery()))
    book.take(slurm_has(), heard(a_recovery()))
    assert book.of_job(7) == []


def test_a_job_whose_clock_is_wrong_tells_of_nothing_that_is_still_to_come(
    book: RecoveriesBook,
) -> None:
    book.take(slurm_has(JOB), heard(a_recovery(at=1e9), at=60.0))
    assert [each.at for each in book.of_job(7)] == [60.0]


def test_a_job_that_loses_workers_without_end_fills_no_database(book: RecoveriesBook) -> None:
    snapshot = slurm_has(JOB)
    for number in range(1, 3 * MOST, KEPT):
        many = [a_recovery(each) for each in range(number, number + KEPT)]
        book.take(snapshot, heard(*many))
    kept = [each.generation for each in book.of_job(7)]
    assert len(kept) == MOST
    assert kept[-1] == number + KEPT - 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "lost 1 worker; went on from slices that neighbours had kept,"
            " and 3 steps (48 samples) were done again",
        ),
        (
            {"lost": 2, "source": "memory", "samples": 0, "steps": 0},
            "lost 2 workers; went on from replicas in the memory of those left,"
            " and only the step under way was done again",
        ),
        (
            {"lost": 4, "source": "checkpoint", "samples": None, "steps": None},
            "lost 4 workers; went on from the last confirmed checkpoint,"
            " and all since then was done again",
        ),
        (
            {"lost": 0, "source": "checkpoint", "samples": 16, "steps": 1},
            "lost the connection between its workers; went on from the last confirmed checkpoint,"
            " and 1 step (16 samples) was done again",
        ),
    ],
)
def test_a_recovery_in_words(changes: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {"at": 5.0, "lost": 1, "source": "neighbour"}
    fields |= {"samples": 48, "steps": 3, **changes}
    assert KnownRecovery(run=2, generation=4, **fields).words() == words
