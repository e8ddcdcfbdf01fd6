"""The node-local socket, with honest and hostile peers."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ones.daemon.agent import doors
from ones.daemon.agent.attribution import Owner
from ones.daemon.agent.doors import Door, Peer, Visitors
from ones.daemon.agent.messages import MOST_BYTES, Refused
from ones.daemon.wire import Checkpoint, Report
from ones.slurm_ext.errors import OnesError


class House:
    """What lies behind the door."""

    def __init__(self) -> None:
        self.owner: Owner | None = Owner(7, "cgroup")
        self.taken: list[Report | Checkpoint] = []
        self.peers: list[Peer] = []
        self.asked: list[tuple[int, int]] = []
        self.refused: Counter[str] = Counter()
        self.fault: Refused | None = None

    def identify(self, peer: Peer) -> Owner | None:
        self.peers.append(peer)
        return self.owner

    def take(self, peer: Peer, owner: Owner, message: Report | Checkpoint) -> None:
        if self.fault:
            raise self.fault
        self.taken.append(message)

    async def environment(self, peer: Peer, job: int, uid: int) -> list[str]:
        self.asked.append((job, uid))
        return ["ONES_SIZES=2-16", "ONES_GPUS=4"]

    def visitors(self) -> Visitors:
        return Visitors(
            identify=self.identify,
            take=self.take,
            environment=self.environment,
            refused=lambda why: self.refused.update([why]),
        )


class Visitor:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def hear(self) -> dict[str, object]:
        answer = json.loads(await asyncio.wait_for(self._reader.readline(), 5))
        assert isinstance(answer, dict)
        return answer

    async def hear_all(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), 5)

    def hang_up(self) -> None:
        self._writer.close()

    def end(self) -> None:
        self._writer.write_eof()


Work = Callable[[House, Callable[[], Awaitable[Visitor]]], Awaitable[None]]


@pytest.fixture
def at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    monkeypatch.setattr(doors, "PENALTY", 0.0)

    def run(work: Work) -> None:
        async def main() -> None:
            house = House()
            path = tmp_path / "run" / "agent.sock"
            async with await Door(path, house.visitors()).open():

                async def visit() -> Visitor:
                    return Visitor(*await asyncio.open_unix_connection(path))

                await work(house, visit)

        asyncio.run(main())

    return run


Run = Callable[[Work], None]


def test_several_reports_go_through_one_connection(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b'{"op":"report","job":7,"samples":1}\n')
        assert await visitor.hear() == {"ok": True}
        await visitor.say(b'\n{"op":"checkpoint","job":7,"samples":1,"path":"/home/a"}\n')
        assert await visitor.hear() == {"ok": True}
        assert house.taken == [
            Report(job=7, samples=1),
            Checkpoint(job=7, samples=1, path="/home/a"),
        ]
        assert house.peers == [Peer(os.getpid(), os.geteuid())]

    at_the_door(work)


def test_a_last_line_without_an_end_counts(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b'{"op":"report"}')
        visitor.end()
        assert await visitor.hear() == {"ok": True}
        assert await visitor.hear_all() == b""

    at_the_door(work)


def test_a_report_that_lies_about_its_job_is_refused_and_counted(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b'{"op":"report","job":8}\n')
        answer = await visitor.hear()
        assert answer["ok"] is False
        assert "belongs to job 7" in str(answer["error"])
        assert house.taken == []
        assert house.refused == {"foreign": 1}

    at_the_door(work)


def test_a_process_of_no_job_is_refused(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        house.owner = None
        visitor = await visit()
        await visitor.say(b'{"op":"report","job":8}\n')
        assert "belongs to no job" in str((await visitor.hear())["error"])
        assert house.refused == {"unproven": 1}

    at_the_door(work)


def test_slurmstepd_gets_the_environment_of_a_job(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        house.owner = None
        visitor = await visit()
        await visitor.say(b"env 12 1001\n")
        assert await visitor.hear_all() == b"ONES_SIZES=2-16\nONES_GPUS=4\n"
        assert house.asked == [(12, 1001)]

    at_the_door(work)


def test_nobody_but_root_gets_an_environment(
    at_the_door: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_peer", lambda _: Peer(os.getpid(), 54321))

    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b"env 12 1001\n")
        assert (await visitor.hear())["ok"] is False
        assert house.asked == []

    at_the_door(work)


def test_an_endless_line_is_refused_and_the_next_one_taken(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b"x" * (3 * MOST_BYTES))
        assert "more than 65536 bytes" in str((await visitor.hear())["error"])
        await visitor.say(b"\n" + b'{"op":"report"}\n')
        while (await visitor.hear())["ok"] is False:
            pass
        assert house.taken == [Report(job=7)]

    at_the_door(work)


def test_noise_is_answered_in_one_line_each_and_then_no_more(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitor = await visit()
        await visitor.say(b"\0\xff{[\n" * 1000)
        answers = (await visitor.hear_all()).splitlines()
        assert len(answers) == doors.MOST_FAULTS
        assert all(json.loads(answer)["ok"] is False for answer in answers)
        again = await visit()
        await again.say(b'{"op":"report"}\n')
        assert await again.hear() == {"ok": True}

    at_the_door(work)


def test_a_refusal_for_haste_does_not_end_the_connection(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        house.fault = Refused("too_fast", "send fewer")
        visitor = await visit()
        for _ in range(2 * doors.MOST_FAULTS):
            await visitor.say(b'{"op":"report"}\n')
            assert await visitor.hear() == {"ok": False, "error": "send fewer"}

    at_the_door(work)


def test_peers_who_hang_up_or_stay_silent_hold_up_nobody(at_the_door: Run) -> None:
    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        silent = [await visit() for _ in range(20)]
        for visitor in silent[:10]:
            await visitor.say(b'{"op":')
            visitor.hang_up()
        visitor = await visit()
        await visitor.say(b'{"op":"report"}\n')
        assert await visitor.hear() == {"ok": True}

    at_the_door(work)


def test_one_user_can_not_take_all_connections(
    at_the_door: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "MOST_OF_ONE_USER", 3)
    uids = iter([54321] * 4 + [54322])
    monkeypatch.setattr(doors, "_peer", lambda _: Peer(os.getpid(), next(uids)))

    async def work(house: House, visit: Callable[[], Awaitable[Visitor]]) -> None:
        visitors = [await visit() for _ in range(5)]
        assert await visitors[3].hear_all() == b""
        for visitor in (*visitors[:3], visitors[4]):
            await visitor.say(b'{"op":"report"}\n')
            assert await visitor.hear() == {"ok": True}

    at_the_door(work)


def test_the_socket_is_open_to_all_users_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    async def main() -> None:
        async with await Door(path, House().visitors()).open():
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            with pytest.raises(OnesError, match="another ones-agent"):
                await Door(path, House().visitors()).open()

    import socket

    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    asyncio.run(main())


def test_root_gets_in_where_others_have_taken_all_they_may(tmp_path: Path) -> None:
    """In a process that may have 512 descriptors, as root and as five other users."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("crowd_at_the_door.py"), tmp_path / "sock"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout)
    assert heard["environment"] == "ONES_GPUS=4\n"
    assert heard["refused"] > 0
    assert "Too many open files" not in done.stderr
