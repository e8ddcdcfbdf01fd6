"""The course of a job's training: bounded, even, and of nothing that can't be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import a_record
from hypothesis import given
from hypothesis import strategies as st
from onesd_builders import the_books

from ones.daemon.onesd.books.courses import MOST, Courses, superfluous
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import GpuSample, NodeReport, Received, Report
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

JOB = a_record(7, state="RUNNING", held=False, gpus_on={"n1": 2, "n2": 2})


def a_report(**said: Any) -> Report:
    return Report(job=7, **({"batch": 64, "step_seconds": 0.5, "loss": 2.0, "gpus": 4} | said))


def course(store: Store, *, seconds: float, every: float, since: float = 1000.0) -> list[float]:
    """The times that are kept of a job that reported so often for so long."""
    courses = Courses(store)
    for number in range(int(seconds / every) + 1):
        courses.add(7, a_report(), utilization=None, at=since + number * every)
    return courses.of_job(7)["at"]


@pytest.fixture
def store() -> Store:
    return Store(":memory:")


def test_of_a_short_job_all_is_kept(store: Store) -> None:
    Courses(store).add(7, a_report(), utilization=0.75, at=1000.0)
    Courses(store).add(7, a_report(loss=1.5, batch=128), utilization=None, at=1015.0)
    assert Courses(store).of_job(7) == {
        "at": [1000.0, 1015.0],
        "batch": [64.0, 128.0],
        "loss": [2.0, 1.5],
        "samples_per_second": [128.0, 256.0],
        "utilization": [0.75, None],
    }


@pytest.mark.parametrize(("seconds", "every"), [(60, 2), (86400, 15), (30 * 86400, 300)])
def test_a_minute_a_day_and_a_month_are_readable_alike(
    store: Store, seconds: float, every: float
) -> None:
    times = course(store, seconds=seconds, every=every)
    assert min(MOST / 2 - 1, seconds / every) <= len(times) <= MOST
    assert (times[0], times[-1]) == (1000.0, 1000.0 + seconds)
    *gaps, _ = [later - sooner for sooner, later in pairwise(times)]  # the last one still grows
    assert max(gaps) <= 2 * min(gaps)


def test_after_a_restart_of_onesd_it_goes_on_as_if_there_had_been_none(tmp_path: Path) -> None:
    for half in (0.0, 5000.0):
        store = Store(tmp_path / "db")
        with store.transaction():
            course(store, seconds=4990.0, every=10.0, since=1000.0 + half)
        store.close()
    kept = Courses(Store(tmp_path / "db")).of_job(7)["at"]
    assert kept == course(Store(":memory:"), seconds=9990.0, every=10.0)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=600))
def test_it_is_bounded_whatever_the_clock_does(clock: list[float]) -> None:
    times: list[float] = []
    for now in clock:
        gone = superfluous(times, now)
        times = [*(at for at in times if at not in gone), now]
        assert times == sorted(set(times))
        assert len(times) <= MOST


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), -1.0, 1e300])
def test_a_loss_that_can_t_be_is_left_out_and_the_rest_is_kept(store: Store, loss: float) -> None:
    Courses(store).add(7, a_report(loss=loss), utilization=float("nan"), at=1.0)
    found = Courses(store).of_job(7)
    assert (found["loss"], found["utilization"], found["batch"]) == ([None], [None], [64.0])


@pytest.mark.parametrize(
    "said",
    [
        {"batch": 10**15, "step_seconds": 5e-324},
        {"batch": 0},
        {"batch": None, "step_seconds": None},
    ],
)
def test_where_nothing_is_left_there_is_no_point(store: Store, said: dict[str, Any]) -> None:
    Courses(store).add(7, a_report(loss=None, **said), utilization=7.0, at=1.0)
    assert Courses(store).of_job(7)["at"] == []


class World:
    """A Slurm that lists one job on two nodes, and their agents."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.books = the_books(store)

    def tell(self, node: str, *samples: GpuSample, at: float, report: Report | None = None) -> None:
        said = () if report is None else (Received(at=at, evidence="cgroup", message=report),)
        word = NodeReport(
            node=node, taken=at, interval=10.0, version="0", received=said, gpus=samples
        )
        self.books.heard.accept(word, now=at)

    def take(self, at: float) -> None:
        nodes = {
            name: NodeRecord(name=name, states=frozenset({"MIXED"}), gpu_type="v100", gpus=4)
            for name in ("n1", "n2")
        }
        self.books.reports.take(Snapshot(taken=at, jobs={7: JOB}, nodes=nodes, switches={}))

    def course(self) -> dict[str, list[Any]]:
        return self.books.courses.of_job(7)


def a_gpu(minor: int, utilization: float | None, *jobs: int, healthy: bool = True) -> GpuSample:
    return GpuSample(
        minor=minor,
        uuid=str(minor),
        type="v100",
        utilization=utilization,
        jobs=jobs,
        healthy=healthy,
    )


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_each_new_report_that_fits_adds_a_point_at_the_time_of_onesd(world: World) -> None:
    world.tell("n1", at=10.0, report=a_report())
    world.take(12.0)
    world.take(27.0)  # the same report
    world.tell("n1", at=30.0, report=a_report(restarts=3))  # of another run
    world.take(42.0)
    assert world.course()["at"] == [12.0]


def test_its_gpus_are_as_busy_as_the_agents_of_its_nodes_say(world: World) -> None:
    own = (a_gpu(0, 1.0, 7), a_gpu(1, 0.5, 7), a_gpu(2, 0.1, 8), a_gpu(3, 0.9))
    world.tell("n1", *own, at=10.0, report=a_report())
    world.tell("n2", a_gpu(0, 0.9, 7), at=10.0)  # on its other GPU there nothing runs
    world.take(12.0)
    assert world.course()["utilization"] == [pytest.approx((1.0 + 0.5 + 0.9) / 4)]


@pytest.mark.parametrize(
    "samples", [(), (a_gpu(0, None, 7),), (a_gpu(0, 0.9),), (a_gpu(0, 0.9, 7, healthy=False),)]
)
def test_where_no_agent_says_how_busy_they_are_there_is_none(
    world: World, samples: tuple[GpuSample, ...]
) -> None:
    world.tell("n1", *samples, at=10.0, report=a_report())
    world.take(12.0)
    assert world.course()["utilization"] == [None]


def test_of_a_node_that_is_silent_nothing_is_taken(world: World) -> None:
    world.tell("n2", a_gpu(0, 0.9, 7), at=10.0)
    world.tell("n1", a_gpu(0, 0.2, 7), a_gpu(1, 0.2, 7), at=100.0, report=a_report())
    world.take(101.0)
    assert world.course()["utilization"] == [pytest.approx(0.2)]


def test_a_report_and_its_point_are_kept_together_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(world.books.courses, "add", full)
    world.tell("n1", at=10.0, report=a_report())
    with pytest.raises(OSError, match="full"):
        world.take(12.0)
    assert world.books.reports.last(7) is None


def test_it_goes_with_the_rest_of_a_job_s_history(world: World) -> None:
    row = {"name": "n", "user": "u", "account": "a", "sizes": "1-2", "requested": 1, "state": "X"}
    for job, ended in ((7, 50.0), (8, None), (9, None)):
        rest = {"job": job, "submitted": 0.0, "family": "u/n", "ended": ended}
        world.store.put("jobs", [row | rest])
        world.books.courses.add(job, a_report(), utilization=None, at=40.0)
    world.store.forget(before=60.0)
    world.store.forget_job(9)  # its number is another job's now
    assert [len(world.books.courses.of_job(job)["at"]) for job in (7, 8, 9)] == [0, 1, 0]
