"""A live sharded training and the orders that it is given."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

import pytest
from trainings import LAUNCHER, PATIENCE, Trainings, eventually

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.orders import OrderFault, order


class LiveTraining(Trainings):
    """One job under a live launcher, in one folder."""

    def live(self, workers: int, *, slots: int = 8, **more: object) -> subprocess.Popen[str]:
        self.slow.touch()
        folder = f"--folder={self.folder / 'live'}"
        words = ("--live", f"--workers={workers}", f"--slots={slots}", folder)
        process = self.start(*LAUNCHER, *words, **more)
        self.settles(workers)
        return process

    def settles(self, workers: int) -> None:
        """Wait until so many workers train."""

        def holds() -> bool:
            for process in self.running:
                assert process.poll() is None or process.returncode == 0
            with contextlib.suppress(OnesError, ValueError):
                status = self.status()
                return bool(status["workers"] == workers and status["settled"])
            return False

        eventually(holds)

    def order(self, message: dict[str, Any]) -> dict[str, Any]:
        return order(self.folder / "live", message, timeout=PATIENCE)

    def resize(self, workers: int) -> dict[str, Any]:
        return self.order({"op": "resize", "workers": workers})

    def order_that_fails(self, message: dict[str, Any]) -> str:
        """Why an order could not be carried out."""
        with pytest.raises(OrderFault) as caught:
            self.order(message)
        return str(caught.value)

    def status(self) -> dict[str, Any]:
        return self.order({"op": "status"})

    def recoveries(self) -> list[dict[str, Any]]:
        """What the training went on from each time that it had lost workers."""
        changes = self.status()["resizes"]
        return [each["recovery"] for each in changes if "recovery" in each]

    def pids(self) -> dict[str, int]:
        return {each["slot"]: each["pid"] for each in self.status()["members"]}

    def steps_more(self, samples: int) -> None:
        """Wait until the training has got further by so many samples."""
        reached = max((step.before for step in self.every_step()), default=0) + samples
        eventually(lambda: self.reached(reached))
