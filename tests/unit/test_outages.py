"""When nodes that were down are used again."""

from __future__ import annotations

from pathlib import Path

from ones.daemon.onesd.books.outages import AFTERMATH, Outages
from ones.daemon.onesd.books.store import Store
from ones.slurm_ext.snapshot import NodeRecord


def nodes(*down: str) -> list[NodeRecord]:
    return [
        NodeRecord(name=name, states=frozenset({"DOWN" if name in down else "IDLE"}))
        for name in ("n1", "n2")
    ]


def test_a_node_that_is_back_waits_until_what_was_left_there_has_ended(tmp_path: Path) -> None:
    outages = Outages(Store(tmp_path / "db"))
    outages.take(nodes("n1"), now=1000.0)
    assert outages.note("n1", now=1000.0) == ""  # Slurm itself says why
    outages.take(nodes(), now=1010.0)
    outages.take(nodes(), now=1020.0)
    assert outages.note("n1", now=1030.0).startswith("down until 20 s ago")
    assert outages.note("n1", now=1010.0 + AFTERMATH) == ""
    assert outages.note("n2", now=1030.0) == ""


def test_a_new_outage_counts_anew(tmp_path: Path) -> None:
    outages = Outages(Store(tmp_path / "db"))
    for down, now in ((("n1",), 1000.0), ((), 1010.0), (("n1",), 1050.0), ((), 1100.0)):
        outages.take(nodes(*down), now=now)
    assert outages.note("n1", now=1110.0).startswith("down until 10 s ago")


def test_a_restart_of_onesd_forgets_no_outage(tmp_path: Path) -> None:
    before = Outages(Store(tmp_path / "db"))
    before.take(nodes("n1"), now=1000.0)
    before.take(nodes(), now=1010.0)
    after = Outages(Store(tmp_path / "db"))
    assert after.note("n1", now=1030.0)
    after.take(nodes(), now=1010.0 + AFTERMATH)
    assert Store(tmp_path / "db").fact("outages") == {}
