"""What scripts do with PyTorch besides what an example shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.meter import Meter

pytestmark = pytest.mark.torch


@pytest.fixture
def optimizer() -> Any:
    import torch  # type: ignore[import-not-found,unused-ignore]

    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)


def framework() -> Any:
    from ones.slurm_ext.runtime.torch_framework import TorchFramework

    return TorchFramework()


def test_a_rate_out_of_an_array_is_read_again(optimizer: Any, tmp_path: Path) -> None:
    optimizer.param_groups[0]["lr"] = np.cos(np.linspace(0.0, 1.0, 10))[3]
    file = tmp_path / "state.pt"
    with file.open("wb") as written:
        framework().dump(optimizer.state_dict(), written)
    kept = framework().load(file)["param_groups"][0]["lr"]
    assert type(kept) is float
    assert framework().unpack(framework().pack(optimizer.state_dict())) is not None


def test_a_rate_out_of_an_array_reaches_a_live_newcomer(optimizer: Any) -> None:
    from ones.slurm_ext.runtime.live.state import pack, unpack

    assert unpack(pack({"lr": np.float64(0.5)})) == {"lr": 0.5}


def test_a_step_that_fails_leaves_the_rate_as_it_was(optimizer: Any) -> None:
    framework().scale_rate(optimizer, lambda: 2.0)
    rates = []

    def failing() -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        raise MemoryError

    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = parameter.detach().clone()
    for _ in range(3):
        with pytest.raises(MemoryError):
            optimizer.step(failing)
    optimizer.step(lambda: rates.append(optimizer.param_groups[0]["lr"]))
    assert rates == [1.0] * 4
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_object_is_tracked_once(optimizer: Any, tmp_path: Path, capsys: Any) -> None:
    import ones

    job = ones.init(checkpoints=tmp_path)
    try:
        job.track(optimizer)
        with pytest.raises(OnesError, match=r"job\.track\(\) was given the same SGD twice"):
            job.track(optimizer)
    finally:
        job.close()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_losses_of_few_bits_are_added_up_in_more(kind: str) -> None:
    import torch

    meter = Meter(started=0.0, seconds=1.0)
    for _ in range(2000):
        meter.step(loss=torch.tensor(300.0, dtype=getattr(torch, kind)))
    assert meter.read().loss == pytest.approx(300.0, rel=1e-3)
