"""Two jobs on one GPU: what measured pairs tell of others, and how surely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.estimator.interference import Alone, Interference, Loads, Measured, Together


def alone(model: str, busy: float | None = None, memory_busy: float | None = None) -> Alone:
    return Alone(model=model, batch=32, busy=busy, memory_busy=memory_busy)


LIGHT, MIDDLE, HEAVY = alone("light", 0.1, 0.05), alone("mid", 0.5, 0.3), alone("heavy", 0.95, 0.8)


def pair(first: Alone, second: Alone, *speeds: float) -> Measured:
    return Measured(first=first, second=second, speeds=(speeds[0], speeds[1]))


def of(found: Interference, first: Alone, second: Alone) -> Together:
    return found.predict([(first, second)])[0]


MEASURED = [
    pair(LIGHT, LIGHT, 1.0, 1.0),
    pair(LIGHT, HEAVY, 0.9, 0.98),
    pair(MIDDLE, MIDDLE, 0.9, 0.9),
    pair(HEAVY, HEAVY, 0.5, 0.5),
]


def test_a_measured_pair_is_foretold_as_measured_whichever_job_is_named_first() -> None:
    found = Interference(MEASURED * 3)
    assert of(found, LIGHT, HEAVY).speeds == pytest.approx((0.9, 0.98), abs=0.03)
    forth, back = of(found, LIGHT, HEAVY), of(found, HEAVY, LIGHT)
    assert forth.speeds == pytest.approx(back.speeds[::-1])
    assert forth.errors == pytest.approx(back.errors[::-1])


def test_models_never_measured_are_foretold_by_their_loads() -> None:
    found = Interference(MEASURED * 3)
    light = of(found, alone("new", 0.1, 0.05), alone("other", 0.1, 0.05))
    heavy = of(found, alone("new", 0.95, 0.8), alone("other", 0.95, 0.8))
    assert min(light.speeds) > 0.9
    assert max(heavy.speeds) < 0.7


def test_what_is_nearer_to_a_measurement_is_surer() -> None:
    found = Interference(MEASURED)
    seen, unseen = of(found, HEAVY, HEAVY), of(found, alone("new", 0.5, 0.9), HEAVY)
    assert max(seen.errors) < min(unseen.errors)


def test_a_measurement_that_comes_later_is_learnt() -> None:
    found = Interference(MEASURED)
    before = of(found, MIDDLE, HEAVY)
    found.learn(pair(MIDDLE, HEAVY, 0.3, 0.9))
    after = of(found, MIDDLE, HEAVY)
    assert after.speeds[0] < before.speeds[0] - 0.1
    assert after.errors[0] < before.errors[0]


def test_without_any_measurement_nothing_is_sure() -> None:
    found = of(Interference(), LIGHT, HEAVY)
    assert found.speeds == (1.0, 1.0)
    assert found.chance(0.9) < 0.9


def test_the_chance_is_that_of_the_job_that_suffers_more() -> None:
    assert Together((1.0, 0.8), (0.1, 0.1)).chance(0.8) == pytest.approx(0.5)
    assert Together((1.0, 1.0), (0.05, 0.05)).chance(0.8) > 0.99
    assert Together((1.0, 0.5), (0.05, 0.05)).chance(0.8) < 0.01


@pytest.mark.parametrize("speed", [float("nan"), -0.1, float("inf"), 1e6])
def test_what_can_not_be_true_is_not_learnt(speed: float) -> None:
    found = Interference(MEASURED)
    found.learn(pair(LIGHT, HEAVY, speed, 1.0))
    assert len(found) == len(MEASURED)


def test_the_load_of_a_job_nobody_measured_alone_comes_from_its_pairs() -> None:
    known, hidden = alone("known", 0.3, 0.2), alone("hidden")
    loads = Loads(
        [
            Measured(first=known, second=hidden, speeds=(1, 1), busy=0.7, memory_busy=0.5),
            Measured(first=hidden, second=hidden, speeds=(1, 1), busy=0.8, memory_busy=0.6),
        ]
    )
    assert loads.of(hidden) == pytest.approx([0.4, 0.3])
    assert loads.of(known) == pytest.approx([0.3, 0.2])


def test_of_a_job_of_which_nothing_tells_the_middle_load_is_taken() -> None:
    loads = Loads(MEASURED)
    assert loads.of(alone("stranger")) == pytest.approx([0.5, 0.3])


SPEEDS = st.floats(0, 2)
JOBS = st.builds(
    Alone,
    model=st.sampled_from("abc"),
    batch=st.sampled_from([8, 32, 1e6]),
    half=st.booleans(),
    busy=st.none() | st.floats(0, 1),
    memory_busy=st.none() | st.floats(0, 1),
)
PAIRS = st.builds(
    Measured,
    first=JOBS,
    second=JOBS,
    speeds=st.tuples(SPEEDS, SPEEDS),
    busy=st.none() | st.floats(0, 1),
    memory_busy=st.none() | st.floats(0, 1),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(PAIRS, max_size=6), st.tuples(JOBS, JOBS))
def test_every_answer_is_a_speed_with_an_error(
    pairs: list[Measured], asked: tuple[Alone, Alone]
) -> None:
    found = of(Interference(pairs), *asked)
    assert np.all(np.isfinite([*found.speeds, *found.errors]))
    assert min(found.speeds) >= 0
    assert min(found.errors) > 0
    assert 0 <= found.chance(0.8) <= 1
