"""What onesd tells Prometheus is so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from simulated_onesd import AtWork

from ones.daemon.onesd.books.starts import FailedStarts
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.policies.model import Placement
from ones.slurm_ext.simulated.machines import drain
from ones.slurm_ext.simulated.world import gpus


def told(at_work: AtWork, name: str, **labels: str) -> float | None:
    metrics = at_work.onesd.service.metrics
    return metrics.registry.get_sample_value(name, labels)


def test_gpus_are_told_by_who_holds_them() -> None:
    at_work = AtWork()
    at_work.submit(4)
    at_work.world.submit("bob", wants=gpus(2))
    at_work.live(60)
    held = {holder: told(at_work, "ones_gpus", holder=holder) for holder in ("elastic", "other")}
    assert held == {"elastic": 4.0, "other": 2.0}
    assert told(at_work, "ones_gpus", holder="free") == 10.0


def test_a_silent_agent_counts_where_its_node_is_in_service() -> None:
    at_work = AtWork()
    at_work.live(31)
    assert told(at_work, "ones_agents_silent") == 0.0
    at_work.mute = {"n1", "n2"}
    drain(at_work.world.state, "n2", "broken")
    at_work.live(121)
    assert told(at_work, "ones_agents_silent") == 1.0
    assert told(at_work, "ones_nodes_unusable") == 2.0


def test_the_database_is_as_large_as_its_files(tmp_path: Path) -> None:
    store, metrics = Store(tmp_path / "ones.sqlite"), Metrics()
    metrics.watch_database(store.size)
    size = metrics.registry.get_sample_value("ones_database_bytes")
    assert size == sum(
        path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"
    )
    assert size is not None
    store.put("facts", [{"name": "x", "value": '"' + 100_000 * "x" + '"'}])
    assert (metrics.registry.get_sample_value("ones_database_bytes") or 0.0) > size
    store.close()


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("QOSMaxGRESPerUser", "limit"),
        ("ReqNodeNotAvail", "nodes"),
        ("Resources", "nodes"),  # what passes by itself is laid on the nodes
        ("JobHeldUser", "job"),
    ],
)
def test_a_start_that_slurm_refused_counts_by_what_stood_in_its_way(
    reason: str, cause: str
) -> None:
    counted: Counter[str] = Counter()
    book = FailedStarts(Store(":memory:"), lambda found: counted.update([found]))
    book.failed(1, Placement.of({"n1": 2}), reason, now=100.0)
    assert counted == {cause: 1}


def test_everything_that_can_be_counted_is_there_before_it_happens() -> None:
    sample = Metrics().registry.get_sample_value
    assert sample("ones_moves_total", {"kind": "live", "outcome": "failed"}) == 0.0
    assert sample("ones_starts_refused_total", {"cause": "limit"}) == 0.0
    assert sample("ones_rounds_total", {"outcome": "failed"}) == 0.0
