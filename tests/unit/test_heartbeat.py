"""The sign of life by which Slurm holds jobs for onesd."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from patience import PATIENCE
from simulated_onesd import AtWork

from ones.daemon.onesd import heartbeat
from ones.daemon.onesd.main import _beat


def test_jobs_are_held_from_the_first_round_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`onesctl status` tells of that round: who submits then finds his job held."""
    monkeypatch.setattr(heartbeat, "BEAT", 2 * PATIENCE)
    path = tmp_path / "heartbeat"
    work = AtWork(heartbeat=str(path))

    async def lives() -> None:
        stop, rounds = asyncio.Event(), asyncio.Event()
        beats = asyncio.create_task(_beat(work.onesd.service, stop, rounds))
        await asyncio.sleep(0.1)
        assert not path.exists()
        work.onesd.rounds.round()
        rounds.set()
        async with asyncio.timeout(PATIENCE):
            while not path.exists():
                await asyncio.sleep(0.02)
        stop.set()
        await beats

    asyncio.run(lives())
    assert "\nhold yes\n" in path.read_text()
