"""A family never seen: which guess is made of its need, and that what is promised holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.estimator.needs.estimate import Needs
from ones.estimator.needs.features import Precision, Resource, Run, Traits
from ones.estimator.needs.headroom import Footing
from ones.estimator.needs.structural import LEAST, Known, structural
from ones.estimator.needs.unseen import MOST_SPARE, WAYS, Unseen, densest_half, unseen

MEMORY, BUSY = Resource.GPU_MEMORY, Resource.GPU_UTILIZATION
CARD = 24576.0


def runs(family: str, *values: float, parameters: float | None = None) -> list[Known]:
    return [
        (Traits(family=family, batch_per_gpu=16.0 * 2**k, parameters=parameters), value)
        for k, value in enumerate(values)
    ]


def told(known: Sequence[Known], resource: Resource = MEMORY, share: float = 0.99) -> Unseen:
    return unseen(structural(resource), known, share=share, least=LEAST[resource])


def learnt(known: Sequence[Known]) -> Needs:
    needs = Needs()
    for traits, value in known:
        assert needs.learn(Run(traits=traits, used={MEMORY: value}))
    return needs


ALIKE = [one for k in range(9) for one in runs(f"m{k}", 2000 + 20 * k, 2100 + 20 * k)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=12), st.floats(1, 1e6))
def test_no_other_guess_has_a_smaller_median_error(values: list[float], other: float) -> None:
    found = np.array(values)
    half = len(values) // 2 + len(values) % 2  # so many of them are at least as near

    def error(guess: float) -> float:
        return float(np.sort(np.abs(guess / found - 1.0))[half - 1])

    guess = densest_half(found, np.ones(len(values)))
    assert error(guess) <= error(other) + 1e-9  # rounding


def test_a_few_families_that_need_far_more_do_not_carry_the_guess_away() -> None:
    odd = [*runs("large", 15_000, 21_000), *runs("larger", 18_000, 23_000)]
    assert told([*ALIKE, *odd]).way != "mean"
    found = learnt([*ALIKE, *odd]).estimate(Traits(family="new", batch_per_gpu=16))[MEMORY]
    assert found.footing is Footing.UNSEEN
    assert found.expected == pytest.approx(2100, rel=0.1)


def test_the_mean_stays_where_no_way_is_markedly_better() -> None:
    busy = [one for k in range(8) for one in runs(f"m{k}", 0.3 + 0.05 * k, 0.7 - 0.05 * k)]
    assert told(busy, BUSY, share=0.5).way == "mean"


def test_where_parameters_tell_the_need_the_regression_over_all_families_is_taken() -> None:
    sizes = [2.0**k for k in range(18, 30)]
    known = [
        one
        for k, size in enumerate(sizes)
        for one in runs(f"m{k}", 40 * size**0.5, 44 * size**0.5, parameters=size)
    ]
    assert told(known).way == "pooled"
    guess = told(known).guess(structural(MEMORY)(known), LEAST[MEMORY])
    asked = Traits(family="new", batch_per_gpu=16, parameters=2.0**31)
    assert guess(asked) == pytest.approx(40 * 2.0**15.5, rel=0.25)


def test_so_few_families_promise_no_more_than_they_can_tell() -> None:
    for count in (2, 4, 9):
        assert told(ALIKE[: 2 * count]).share <= count / (count + 1)


def test_what_is_promised_holds_for_families_that_nobody_has_seen() -> None:
    rng = np.random.default_rng(5)
    held, promised = [], []
    for draw in range(40):
        levels = rng.lognormal(8.0, 0.5, 13)
        known = [one for k in range(12) for one in runs(f"m{k}", levels[k], 1.3 * levels[k])]
        found, fitted = told(known, share=0.9), structural(MEMORY)(known)
        for traits, value in runs(f"new{draw}", levels[12], 1.3 * levels[12]):
            held.append(value <= found.bound(fitted, traits, LEAST[MEMORY]))
            promised.append(found.share)
    assert np.mean(promised) > 0.75
    assert np.mean(held) >= np.mean(promised) - 0.05


def test_one_family_that_needs_far_more_does_not_make_everybody_ask_for_as_much() -> None:
    known = [*ALIKE, *runs("giant", 200_000, 220_000)]
    found, fitted = told(known), structural(MEMORY)(known)
    asked = [found.bound(fitted, traits, LEAST[MEMORY]) / value - 1.0 for traits, value in ALIKE]
    assert np.mean(asked) < 1.5 * MOST_SPARE
    assert found.share < 0.9


def test_a_model_never_seen_is_not_given_the_whole_card_where_many_others_tell() -> None:
    found = learnt(ALIKE).estimate(Traits(family="new", batch_per_gpu=16), card=CARD)[MEMORY]
    assert found.expected <= found.reserve < CARD / 2
    assert 0.75 <= found.share <= 0.9
    assert f"enough for {found.share:.0%} of runs" in found.why
    assert found.advice_only


def test_it_is_given_the_whole_card_where_others_tell_too_little() -> None:
    found = learnt(ALIKE[:4]).estimate(Traits(family="new", batch_per_gpu=16), card=CARD)[MEMORY]
    assert found.reserve == CARD
    assert found.share == 1.0


def test_one_other_family_promises_nothing_and_says_so() -> None:
    found = learnt(ALIKE[:2]).estimate(Traits(family="new", batch_per_gpu=16))[MEMORY]
    assert found.share == 0
    assert "a model never seen; which promises nothing" in found.why


TRAITS = st.builds(
    Traits,
    family=st.sampled_from([f"m{k}" for k in range(8)]),
    precision=st.sampled_from([None, Precision.HALF, Precision.FULL]),
    parameters=st.none() | st.floats(1e-9, 1e15),
    batch_per_gpu=st.none() | st.floats(1e-9, 1e15),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(TRAITS, st.floats(0, 1e15)), min_size=1, max_size=16))
def test_whatever_was_seen_guesses_and_bounds_are_finite(known: list[Known]) -> None:
    for resource in (MEMORY, BUSY, Resource.HOST_MEMORY):
        found, fitted = told(known, resource), structural(resource)(known)
        asked = Traits(family="new", batch_per_gpu=64, parameters=1e9)
        assert 0 <= found.share < 1
        assert 0 <= found.error < 1e3
        assert 0 <= found.bound(fitted, asked, LEAST[resource]) < np.inf
        for way in WAYS.values():
            assert 0 <= way(fitted, LEAST[resource])(asked) < np.inf
