"""Numbers of numpy's in states are written as Python's, which every reader takes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from ones.slurm_ext.runtime.scalars import plain_numbers


@pytest.mark.parametrize(
    ("state", "plain"),
    [
        ({"lr": np.float64(0.5)}, {"lr": 0.5}),
        ({"groups": [{"lr": np.float32(0.5), "betas": (np.float64(0.9), 1)}]},
         {"groups": [{"lr": 0.5, "betas": (0.9, 1)}]}),
        ({np.int64(3): np.bool_(True)}, {3: True}),
    ],
)  # fmt: skip
def test_they_become_pythons(state: Any, plain: Any) -> None:
    found = plain_numbers(state)
    assert found == plain
    assert repr(found) == repr(plain)


@pytest.mark.parametrize(
    "state", [{"a": [1, (2.0, "b")]}, OrderedDict(a=1), np.arange(3), None], ids=repr
)
def test_a_state_without_them_stays_what_it_is(state: Any) -> None:
    assert plain_numbers(state) is state
