"""Deliberate bugs: what a simulation must find, or it is worth nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ones.daemon.onesd.moves.restart import Mover
from ones.policies import invariants
from ones.policies.model import Batch
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.snapshot import JobRecord


def _journal_order(put: Callable[[Any, str, Any], None]) -> None:
    """That a job is about to be stopped and held is written down once it is, not before."""
    record = Mover._record
    waiting: list[tuple[Mover, MoveRecord, MoveRecord]] = []

    def late(self: Mover, before: MoveRecord, after: MoveRecord) -> None:
        due = [each for each in waiting if each[0] is self]
        waiting.clear()
        for each in due:
            record(*each)
        if after.step == "stopping" != before.step:
            waiting.append((self, before, after))
        else:
            record(self, before, after)

    put(Mover, "_record", late)
    # Nor is it written down that the hold has been sent, which would make up for it.
    put(Mover, "_perform", lambda self, action: self._actuator.perform(action))


def _double_release(put: Callable[[Any, str, Any], None]) -> None:
    """A release is made a second time, whoever holds the job by then."""
    perform = Actuator.perform
    again: list[int] = []

    def twice(self: Actuator, action: Any) -> Any:
        for job in again:
            with suppress(SlurmError):
                self._cluster.release(job)
        again.clear()
        done = perform(self, action)
        if type(action).__name__ == "Release":
            again.append(action.job)
        return done

    put(Actuator, "perform", twice)


def _wrong_restart_count(put: Callable[[Any, str, Any], None]) -> None:
    """A stopped job is expected with the restart count that it had before."""
    put(MoveRecord, "expected_restarts", property(lambda self: self.restarts))


def _lost_mark(put: Callable[[Any, str, Any], None]) -> None:
    """Any job is taken for one that opted in."""
    put(JobRecord, "marked", property(lambda self: not self.is_satellite))


def _unchecked_batch(put: Callable[[Any, str, Any], None]) -> None:
    """A batch is rounded up far too much, and nobody looks whether the job accepts it."""
    even = Batch.even

    def larger(self: Batch, batch: Any, gpus: Any) -> Any:
        return 4.0 * even(self, batch, gpus)

    put(Batch, "even", larger)
    put(Batch, "accepts", lambda *_: True)
    put(invariants, "_check_batch", lambda *_: None)


BUGS: Mapping[str, Callable[[Callable[[Any, str, Any], None]], None]] = {
    "journal order": _journal_order,
    "double release": _double_release,
    "wrong restart count": _wrong_restart_count,
    "lost mark": _lost_mark,
    "unchecked batch": _unchecked_batch,
}


@contextmanager
def put_in(name: str) -> Iterator[None]:
    """The bug of that name, for as long as this lasts."""
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, value: Any) -> None:
        before.append((owner, attribute, owner.__dict__[attribute]))
        setattr(owner, attribute, value)

    BUGS[name](put)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)
