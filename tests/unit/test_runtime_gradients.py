"""The gradient noise that a job reports is the noise there is."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listening_agent import ListeningAgent
from patience import PATIENCE

from ones.daemon.wire import Report
from ones.slurm_ext.runtime.gradients import ENOUGH, Gradients, Smoothed, interval

needs_torch = pytest.mark.torch
SUBMITTED, SAMPLES = 16, 320
# The gradient of each sample is the sample itself, wherever training stands: so all is known.
SCRIPT = f"""
import sys
import torch
from torch import nn
import ones


class Network(nn.Module):
    def __init__(self, width, hostile):
        super().__init__()
        self.line = nn.Linear(width, 1, bias=False)
        self.table = nn.Embedding(4, 2, sparse=True) if hostile else None
        self.idle = nn.Linear(3, 3) if hostile else None

    def forward(self, rows):
        found = self.line(rows).mean()
        return found if self.table is None else found + self.table.weight.numel() + 100 * (
            self.table(torch.tensor([1, 2])).sum())


hostile = sys.argv[1] == "hostile"
torch.set_num_threads(1)
job = ones.init()
numbers = torch.load("numbers.pt")
network = Network(numbers.shape[1], hostile)
options = dict(find_unused_parameters=True) if job.world_size > 1 and hostile else dict()
model = job.ddp(network, **options)
optimizer = torch.optim.SGD(network.line.parameters(), lr=0.001)
job.track(optimizer)
loader = job.loader(numbers, batch_size={SUBMITTED}, batch_most=64)
steps = 0
for _ in job.epochs(80):
    for rows in loader:
        optimizer.zero_grad()
        loss = model(rows)
        (loss * float("nan") if hostile and steps % 7 == 3 else loss).backward()
        if hostile:
            nn.utils.clip_grad_norm_(network.line.parameters(), 1e-3)
        optimizer.step()
        with torch.no_grad():
            network.line.weight.nan_to_num_(0.0)
        steps += 1
        job.step()
"""


@pytest.fixture
def numbers(tmp_path: Path) -> Any:
    import torch

    rng = np.random.default_rng(5)
    rows = rng.normal(0.15, 0.8, (SAMPLES, 50)).astype(np.float32)
    torch.save(torch.from_numpy(rows), tmp_path / "numbers.pt")
    return rows


def last_report(folder: Path, *, workers: int, kind: str = "plain", **more: str) -> Report:
    agent = ListeningAgent(folder / "agent.sock")
    agent.up()
    (folder / "train.py").write_text(SCRIPT)
    launched = ["-m", "ones.slurm_ext.runtime.launcher", f"--workers={workers}", "train.py", kind]
    passed_on = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    inside = {"SLURM_JOB_ID": "42", "ONES_SOCKET": str(folder / "agent.sock"), **more}
    subprocess.run(
        [sys.executable, *launched],
        cwd=folder,
        env={**passed_on, **inside},
        check=True,
        timeout=PATIENCE,
    )
    report = agent.wait_for(1)[-1]
    agent.down()
    assert isinstance(report, Report)
    return report


def truth(rows: Any) -> tuple[float, float]:
    """|G|^2 and the variance of the gradient at the submitted batch."""
    spread = float(rows.var(axis=0, ddof=1).sum())
    return float((rows.mean(axis=0) ** 2).sum()) - spread / len(rows), spread / SUBMITTED


@needs_torch
@pytest.mark.parametrize(("workers", "batch"), [(1, "16"), (1, "32"), (3, "32")])
def test_one_worker_and_several_with_any_batch_find_the_noise_that_is_there(
    tmp_path: Path, numbers: Any, workers: int, batch: str
) -> None:
    report = last_report(tmp_path, workers=workers, ONES_BATCH_SIZE=batch)
    assert (report.batch, report.gpus) == (int(batch), workers)
    sqr, var = truth(numbers)
    assert report.grad_sqr == pytest.approx(sqr, rel=0.15)
    assert report.grad_var == pytest.approx(var, rel=0.1)


@needs_torch
@pytest.mark.parametrize("workers", [1, 2])
def test_clipping_sparse_tables_idle_parameters_and_steps_without_numbers_change_nothing(
    tmp_path: Path, numbers: Any, workers: int
) -> None:
    report = last_report(tmp_path, workers=workers, kind="hostile")
    sqr, var = truth(numbers)
    assert report.grad_sqr == pytest.approx(sqr, rel=0.2)
    assert report.grad_var == pytest.approx(var, rel=0.15)


def test_shares_of_unequal_size_give_the_same_without_bias() -> None:
    rng = np.random.default_rng(3)
    shares = np.array([3, 5, 8])
    real, spread, found = np.full(20, 0.5), 2.0, []
    for _ in range(4000):
        parts = real + rng.normal(0, spread, (3, 20)) / np.sqrt(shares)[:, None]
        weights = shares / shares.sum()
        gradients = Gradients(
            parts=3,
            batch=int(shares.sum()),
            own=float(weights @ (parts**2).sum(axis=1)),
            mean=float(((weights @ parts) ** 2).sum()),
        )
        found.append(gradients.at(8))
    sqr, var = np.mean([one for one in found if one is not None], axis=0)
    assert sqr == pytest.approx(20 * 0.25, rel=0.02)
    assert var == pytest.approx(20 * spread**2 / 8, rel=0.02)


def test_one_gradient_alone_and_what_is_no_number_tell_nothing() -> None:
    assert Gradients(parts=1, batch=8, own=1.0, mean=1.0).at(8) is None
    assert Gradients(parts=2, batch=8, own=math.inf, mean=1.0).at(8) is None
    assert Gradients(parts=2, batch=8, own=1.0, mean=math.nan).at(8) is None
    assert Smoothed().after(1e300, 1.0) == Smoothed()


def test_means_are_not_drawn_to_nothing_and_follow_what_changes() -> None:
    smoothed = Smoothed()
    for count in range(ENOUGH):
        assert smoothed.told is None, count
        smoothed = smoothed.after(3.0, 2.0)
    assert smoothed.told == pytest.approx((3.0, 2.0))
    for _ in range(1000):
        smoothed = smoothed.after(-1.0, 5.0)
    assert smoothed.told == pytest.approx((0.0, 5.0), rel=1e-3)


def test_short_epochs_are_measured_too_and_long_ones_seldom() -> None:
    steps = (1, 12, 30, 10_000)
    assert [interval(each, workers=2) for each in steps] == [2, 6, 10, 10]
    assert [interval(each, workers=1) for each in steps] == [2, 6, 15, 20]
