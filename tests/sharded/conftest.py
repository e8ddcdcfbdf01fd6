"""Sharded training needs FSDP2 over gloo, as newer PyTorch has it: scripts/test-sharded."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainings import Trainings


def missing() -> str:
    """Why these can't run with this Python; empty where they can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    from ones.slurm_ext.runtime import sharding

    return sharding.supported()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := missing():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"{reason}; run scripts/test-sharded"))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Trainings]:
    training = Trainings(tmp_path)
    yield training
    training.end()


@pytest.fixture(scope="session")
def has_gpu() -> bool:
    """Whether workers train on a GPU, over NCCL, and take ten seconds to start."""
    import torch

    return bool(torch.cuda.is_available())
