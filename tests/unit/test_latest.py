"""The last values of what is told again and again."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ones.estimator.latest import Latest


@given(st.lists(st.floats(allow_nan=False)), st.integers(1, 9), st.floats(allow_nan=False))
def test_the_last_values_are_those_of_a_deque_also_of_copies(
    values: list[float], most: int, one_more: float
) -> None:
    plain: deque[float] = deque(maxlen=most)
    latest: Latest[float] = Latest(most)
    for value in values:
        plain.append(value)
        latest.append(value)
    for same in (latest, copy.deepcopy(latest), pickle.loads(pickle.dumps(latest))):
        assert list(same) == list(plain)
        again = plain.copy()
        again.append(one_more)
        same.append(one_more)
        assert list(same) == list(again)


def test_few_values_take_little_memory() -> None:
    assert sys.getsizeof(Latest(32)) < sys.getsizeof(deque(maxlen=32)) / 5
