"""What the mover writes down for a move that Slurm has no part in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from fake_slurm import a_record
from policy_builders import a_job, on

from ones.daemon.inbox import Inbox
from ones.daemon.learning import Learning
from ones.daemon.metrics import Metrics
from ones.daemon.mover import Mover
from ones.daemon.store import Store
from ones.policies.guard import Move
from ones.policies.model import JobId
from ones.slurm_ext.moves import MoveLimits


def test_a_new_batch_is_leased_and_nothing_else_is_begun(tmp_path: Path) -> None:
    store, inbox, metrics = Store(tmp_path / "db"), Inbox(), Metrics()
    mover = Mover(
        store,
        cast(Any, None),  # a hand on Slurm would be a mistake
        inbox,
        Learning(store, inbox, metrics),
        metrics,
        limits=MoveLimits(),
        clock=lambda: 0.0,
    )
    here = on(n1=2)
    tune = Move(job=JobId(1), kind="tune", target=here, batch=256, reason="better")
    record = a_record(1, state="RUNNING", held=False, gpus_on={"n1": 2})
    mover.begin(tune, a_job(1, placement=here), record)
    row = store.row("SELECT gpus, batch FROM leases WHERE job = 1")
    assert row is not None
    assert tuple(row) == (2, 256)
    assert mover.open() == []
    assert store.rows("SELECT * FROM moves") == []
