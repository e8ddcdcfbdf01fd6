"""A Slurm for claims, real or simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated_jobs import SimulatedSlurm
from slurm_jobs import Slurm

AnySlurm = Slurm | SimulatedSlurm


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.cluster), "simulated"])
def quiet(request: pytest.FixtureRequest) -> Iterator[AnySlurm]:
    """A Slurm with no job on it."""
    if request.param == "simulated":
        yield SimulatedSlurm()
        return
    slurm: Slurm = request.getfixturevalue("slurm")
    slurm.clean()
    yield slurm
    slurm.clean()
