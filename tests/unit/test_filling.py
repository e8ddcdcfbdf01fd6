"""What onesd writes into a request: only with leave, only what was left out or is too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_slurm import a_record
from policy_builders import on

from ones.daemon.config import NeedsConfig
from ones.daemon.onesd.books.fills import Fills
from ones.daemon.onesd.books.journal import Journal
from ones.daemon.onesd.books.needs import NothingKnown
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.moves.requests import Filling
from ones.estimator.needs.estimate import Estimate
from ones.estimator.needs.features import Resource
from ones.estimator.needs.headroom import Footing
from ones.slurm_ext.actions import Request
from ones.slurm_ext.cluster import NodeSize
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord

HERE = on(n1=4)
LEAVE = NeedsConfig(fill=True, lower_memory=True)


def an_estimate(resource: Resource, reserve: float, *doubts: str) -> Estimate:
    return Estimate(
        resource=resource, expected=reserve, reserve=reserve, share=0.99, error=0.1, runs=5,
        footing=next(iter(Footing)), doubts=doubts,
    )  # fmt: skip


class Book:
    """Stands for what runs have taught."""

    def __init__(self, *estimates: Estimate) -> None:
        self.estimates = estimates

    def estimate(self, **_: Any) -> tuple[int, Sequence[Estimate]]:
        if not self.estimates:
            raise NothingKnown("no run of that name")
        return 5, self.estimates


class Sinfo:
    """Nodes of 16 CPUs and 32,000 MiB; n9 is small."""

    down = False

    def node_sizes(self) -> Mapping[str, NodeSize]:
        if self.down:
            raise SlurmError("sinfo", "no answer")
        return {"n1": NodeSize(cpus=16, memory=32000), "n9": NodeSize(cpus=2, memory=200)}


KNOWN = (an_estimate(Resource.HOST_MEMORY, 1000.0), an_estimate(Resource.CPU_CORES, 2.6))


def filling(folder: Path, *estimates: Estimate, config: NeedsConfig = LEAVE) -> Filling:
    book, sinfo = cast(Any, Book(*estimates)), cast(Any, Sinfo())
    store = Store(folder / "db")
    return Filling(config, book, Fills(store), Journal(store), sinfo)


def a_job(mark: str, memory: int | None = None) -> JobRecord:
    """It asks for the memory that it was submitted with, unless told otherwise."""
    comment = f"ONES1:sizes=4;request=4;held=1;{mark}"
    if memory is None:
        said = Mark.parse(comment)
        memory = said.memory or 0 if said else 0
    return a_record(admin_comment=comment, memory=memory)


def decided(each: Filling, record: JobRecord, **more: Any) -> tuple[int | None, int | None] | None:
    request = each.request(record, more.get("target", HERE), now=0.0)
    return None if request is None else (request.memory, request.cpus)


def test_what_was_left_out_is_asked_for(tmp_path: Path) -> None:
    assert decided(filling(tmp_path, *KNOWN), a_job("mem=no;cpu=no")) == (1024, 3)


@pytest.mark.parametrize("mark", ["mem=yes;cpu=yes", "", "mem=0;cpu=yes", "tasks=4;nodes=1"])
def test_what_the_user_named_or_an_older_mark_does_not_tell_is_left_alone(
    tmp_path: Path, mark: str
) -> None:
    assert decided(filling(tmp_path, *KNOWN), a_job(mark or "tasks=1")) is None


def test_memory_is_lowered_and_never_raised(tmp_path: Path) -> None:
    each = filling(tmp_path, *KNOWN)
    assert decided(each, a_job("mem=8000;cpu=yes")) == (1024, None)
    assert decided(each, a_job("mem=500;cpu=yes")) == (500, None)


@pytest.mark.parametrize(
    ("config", "mark"),
    [
        (NeedsConfig(), "mem=no;cpu=no"),
        (NeedsConfig(lower_memory=True), "mem=no;cpu=no"),
        (NeedsConfig(fill=True), "mem=8000;cpu=yes"),
    ],
)
def test_without_leave_nothing_is_written(tmp_path: Path, config: NeedsConfig, mark: str) -> None:
    assert decided(filling(tmp_path, *KNOWN, config=config), a_job(mark)) is None


def test_an_estimate_with_doubts_is_advice_only(tmp_path: Path) -> None:
    doubtful = replace(KNOWN[0], doubts=("fewer than 3 runs",))
    assert decided(filling(tmp_path, doubtful, KNOWN[1]), a_job("mem=no;cpu=no")) == (None, 3)
    assert decided(filling(tmp_path, doubtful), a_job("mem=8000;cpu=no")) is None


def test_of_a_name_that_never_ran_nothing_is_written(tmp_path: Path) -> None:
    assert decided(filling(tmp_path), a_job("mem=no;cpu=no")) is None


def test_no_more_is_asked_for_than_the_smallest_node_has(tmp_path: Path) -> None:
    each = filling(tmp_path, *KNOWN)
    assert decided(each, a_job("mem=no;cpu=no"), target=on(n1=2, n9=2)) == (200, 2)
    assert decided(each, a_job("mem=no;cpu=no"), target=on(gone=2)) is None


def test_where_the_estimate_is_gone_a_lowered_job_gets_back_what_it_asked_for(
    tmp_path: Path,
) -> None:
    record = a_job("mem=8000;cpu=no")
    known, unknown = filling(tmp_path, *KNOWN), filling(tmp_path)
    assert decided(unknown, record) is None
    request = known.request(record, HERE, now=0.0)
    assert request is not None
    known.written(record, request, now=0.0)
    assert decided(unknown, a_job("mem=8000;cpu=no", 1024)) == (8000, 1)


@pytest.mark.parametrize("memory", [64000, 500, 0])
def test_memory_that_its_owner_has_changed_since_is_left_alone(tmp_path: Path, memory: int) -> None:
    each = filling(tmp_path, *KNOWN)
    assert decided(each, a_job("mem=8000;cpu=yes", memory)) is None
    assert decided(each, a_job("mem=8000;cpu=no", memory)) == (None, 3)


@pytest.mark.parametrize("said", ["mem=8000", "mem=no"])
def test_memory_that_its_owner_has_changed_after_it_was_filled_in_is_left_alone(
    tmp_path: Path, said: str
) -> None:
    each, mark = filling(tmp_path, *KNOWN), f"{said};cpu=yes"
    each.written(a_job(mark), Request(memory=1024, cpus=None, why="5 runs"), now=0.0)
    assert decided(each, a_job(mark, 64000)) is None
    assert decided(each, a_job(mark, 1024)) == (1024, None)
    later = replace(a_job(mark), restarts=1)
    each.written(later, Request(memory=None, cpus=3, why="5 runs"), now=1.0)
    assert decided(each, a_job(mark, 1024)) == (1024, None)
    assert decided(each, a_job(mark, 64000)) is None


@pytest.mark.parametrize("outcome", ["failed: Slurm can't", "expired: it did not start"])
def test_a_start_that_did_not_come_is_tried_again_as_the_user_asked(
    tmp_path: Path, outcome: str
) -> None:
    record, each = a_job("mem=8000;cpu=no"), filling(tmp_path, *KNOWN)
    each.written(record, Request(memory=1024, cpus=3, why="5 runs"), now=0.0)
    store = Store(tmp_path / "db")
    store.write(
        "INSERT INTO moves(job, at, open, record, outcome) VALUES(1, 0, 0, '{}', ?)",
        outcome,
    )
    assert decided(each, a_job("mem=8000;cpu=no", 1024)) == (8000, 1)


def test_what_was_written_is_told_beside_what_the_user_said(tmp_path: Path) -> None:
    each = filling(tmp_path, *KNOWN)
    each.written(a_job("mem=8000;cpu=no"), Request(memory=1024, cpus=3, why="5 runs"), now=0.0)
    fill = Fills(Store(tmp_path / "db")).last(a_job("").id)
    assert fill is not None
    line = fill.words()
    assert "1024 MiB of memory on each node (the job itself said 8000 MiB)" in line
    assert "3 CPUs on each node (the job itself said none): 5 runs" in line
