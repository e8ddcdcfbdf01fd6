"""What the audit log is told of moves."""

from __future__ import annotations

from collections.abc import Mapping

from ones.daemon.onesd import audit
from ones.policies.moves import Move
from ones.slurm_ext.snapshot import JobRecord

ONESD = "onesd"  # who decided, where no policy did


def begun(move: Move, record: JobRecord, *, kind: str, by: str, number: int | None) -> None:
    """Whose job it is, who decided, on what, and why; `number` in the journal, where it has one."""
    target = {} if move.target is None else dict(move.target.gpus_on)
    fields: dict[str, object] = {"user": record.user, "kind": kind, "by": by}
    if number is not None:
        fields["id"] = number
    if move.batch is not None:
        fields["batch"] = move.batch
    seats = {"had": _words(record.held_on), "to": _words(target)}
    audit.acted("move", job=record.id, **fields, **seats, why=move.reason)


def ended(job: int, number: int, *, kind: str, outcome: str) -> None:
    """How a move came out that was begun."""
    audit.acted("moved", job=job, kind=kind, id=number, outcome=outcome)


def _words(gpus_on: Mapping[str, int]) -> str:
    return ", ".join(f"{gpus} on {node}" for node, gpus in gpus_on.items()) or "nothing"
