"""Events wake the round, and nothing more: they are not believed, and many of them make few."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from simulated_onesd import AtWork

from ones.daemon.config import EventsConfig
from ones.daemon.onesd.events import SHARE, Events, unsettled
from ones.daemon.onesd.main import _forever
from ones.daemon.onesd.metrics import Metrics
from ones.policies.model import JobId
from ones.policies.moves import Move
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.snapshot import JobRecord, Snapshot

PATIENCE = 15.0


def with_events(
    folder: Path, work: Callable[[Events], Awaitable[None]], *, wake: bool = True
) -> Metrics:
    metrics = Metrics()

    async def run() -> None:
        path = str(folder / "events.sock")
        events = Events(EventsConfig(socket=path, wake=wake, debounce=0.0), metrics)
        await events.open()
        try:
            async with asyncio.timeout(PATIENCE):
                await work(events)
        finally:
            events.close()

    asyncio.run(run())
    return metrics


def send(folder: Path, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for one in datagrams:
            sender.sendto(one, str(folder / "events.sock"))


def counted(metrics: Metrics, source: str) -> float | None:
    return metrics.registry.get_sample_value("ones_events_total", {"source": source})


def test_a_hooks_datagram_wakes_the_round(tmp_path: Path) -> None:
    async def work(events: Events) -> None:
        send(tmp_path, b"epilog_slurmctld 7")
        await events.wake.wait()

    assert counted(with_events(tmp_path, work), "epilog") == 1


@pytest.mark.parametrize("bad", [b"", b"\xff\x00\x01", b"x" * 60000, b"ones_events{} 1"])
def test_whatever_else_comes_is_an_event_of_no_name(tmp_path: Path, bad: bytes) -> None:
    async def work(events: Events) -> None:
        send(tmp_path, bad)
        await events.wake.wait()

    assert counted(with_events(tmp_path, work), "other") == 1


def test_where_events_are_off_they_are_counted_and_wake_nobody(tmp_path: Path) -> None:
    async def work(events: Events) -> None:
        events.happened("agent")
        assert not events.wake.is_set()

    assert counted(with_events(tmp_path, work, wake=False), "agent") == 1


def test_a_socket_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    async def work(events: Events) -> None:
        events.happened("agent")
        assert events.wake.is_set()

    with_events(tmp_path / "missing", work)


def test_a_storm_leaves_rounds_their_share_of_the_time() -> None:
    events = Events(EventsConfig(debounce=1.0), Metrics())
    assert events.pause(0.0) == 1.0
    for took in (0.1, 1.0, 10.0):
        assert took / (took + events.pause(took)) < SHARE


def test_an_event_brings_the_work_forward_and_is_served_once() -> None:
    runs: list[str] = []

    async def run() -> None:
        stop, wake, quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def work() -> None:
            runs.append("round")
            loop.call_soon_threadsafe(quiet.set)

        loop = asyncio.get_running_loop()
        hours = lambda: 36000.0  # noqa: E731
        task = asyncio.create_task(_forever("round", work, hours, stop, wake))
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await quiet.wait()
            quiet.clear()
            for _ in range(100):
                wake.set()
        async with asyncio.timeout(PATIENCE):
            await quiet.wait()
        stop.set()
        await task

    asyncio.run(run())
    assert len(runs) == 3


def test_after_a_failure_events_do_not_shorten_the_pause() -> None:
    runs: list[str] = []

    async def run() -> None:
        stop, wake, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            runs.append("round")
            loop.call_soon_threadsafe(failed.set)
            raise SlurmError("squeue", "no answer")

        task = asyncio.create_task(_forever("round", work, lambda: 36000.0, stop, wake))
        async with asyncio.timeout(PATIENCE):
            await failed.wait()
        wake.set()
        for _ in range(100):
            await asyncio.sleep(0)
        stop.set()
        await task

    asyncio.run(run())
    assert runs == ["round"]


def a_job(*flags: str, ended: float) -> JobRecord:
    return JobRecord(
        id=7, name="train", user="alice", account="vision", partition="gpu", qos="",
        state="COMPLETED", flags=frozenset(flags), ended=ended,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "again"),
    [
        (a_job("COMPLETING", ended=95.0), True),
        (a_job(ended=95.0), False),
        (a_job("COMPLETING", ended=5.0), False),  # a node that hangs is not waited for at this pace
    ],
)
def test_a_job_that_is_still_being_cleaned_up_after_is_looked_at_again(
    job: JobRecord,
    again: bool,
) -> None:
    assert unsettled(Snapshot(taken=100.0, jobs={7: job}, nodes={}, switches={})) is again


def test_the_end_of_the_last_move_under_way_is_told_once() -> None:
    at_work = AtWork()
    jobs = [at_work.running(), at_work.running()]
    ticks = at_work.onesd.rounds.tick
    assert not ticks()
    for job in jobs:
        at_work.move(Move(job=JobId(job), kind="preempt", target=None, reason="a test"))
    told = []
    for _ in range(60):
        at_work.world.step(1.0)
        at_work.report()
        told.append(ticks())
        assert told[-1] <= (not at_work.onesd.service.open_moves())
        if told[-1]:
            break
    assert told[-1]
    assert not ticks()
    assert [at_work.job(job).held for job in jobs] == [True, True]


def test_an_outage_of_days_ends_no_loop() -> None:
    """slurmctld is down over a long weekend, with a try a minute; then it answers again."""
    tries, outage = 0, 3 * 24 * 60

    async def lives() -> None:
        stop = asyncio.Event()

        def work() -> None:
            nonlocal tries
            tries += 1
            if tries <= outage:
                raise SlurmUnreachable("squeue", "Unable to contact slurm controller")
            loop.call_soon_threadsafe(stop.set)

        loop = asyncio.get_running_loop()
        await _forever("round", work, lambda: 0.0, stop, most_backoff=0.0)

    asyncio.run(lives())
    assert tries == outage + 1
