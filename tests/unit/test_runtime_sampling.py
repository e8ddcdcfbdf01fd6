"""Exactly once per epoch, whatever sizes a job goes through; and the learning rate's way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.runtime.learning_rate import Ramp, Rule
from ones.slurm_ext.runtime.sampling import Division, Progress, Sampler

SIZES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(0, 7)), min_size=1, max_size=12
)  # workers, batch, steps at that size


def a_sampler(division: Division, progress: Progress) -> Sampler:
    return Sampler(lambda: division, lambda: progress)


def one_epoch(samples: int, sizes: Sequence[tuple[int, int, int]]) -> list[int]:
    """The samples that count, over runs of the given sizes, the last of which ends the epoch."""
    progress, seen = Progress(), []
    for workers, batch, steps in itertools.chain(sizes, [(*sizes[-1][:2], samples)]):
        cuts = [
            Division(samples=samples, batch=batch, rank=rank, workers=workers)
            for rank in range(workers)
        ]
        # Lists, so that the samplers read ahead of what is committed.
        shares = [list(a_sampler(cut, progress)) for cut in cuts]
        for step in range(min(steps, len(shares[0]))):
            for cut, share in zip(cuts, shares, strict=True):
                seen += share[step] if cut.weight(progress.position) else []
            progress = progress.after(cuts[0].step_size(progress.position))
    assert progress.samples == progress.position == samples
    return seen


@given(st.integers(1, 150), SIZES)
def test_every_sample_of_an_epoch_is_seen_exactly_once_whatever_the_sizes(
    samples: int, sizes: list[tuple[int, int, int]]
) -> None:
    assert sorted(one_epoch(samples, sizes)) == list(range(samples))


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 9), st.integers(0, 199))
def test_shares_of_a_step_are_level_and_their_weights_make_one(
    samples: int, batch: int, workers: int, position: int
) -> None:
    position %= samples
    cuts = [Division(samples=samples, batch=batch, rank=r, workers=workers) for r in range(workers)]
    lengths = [end - begin for begin, end in (cut.share(position) for cut in cuts)]
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) == cuts[0].step_size(position)
    assert sum(cut.weight(position) for cut in cuts) == pytest.approx(1)


@given(st.integers(1, 60), st.integers(1, 64), st.integers(1, 9))
def test_all_workers_take_part_in_every_step(samples: int, batch: int, workers: int) -> None:
    for rank in range(workers):
        cut = Division(samples=samples, batch=batch, rank=rank, workers=workers)
        shares = list(a_sampler(cut, Progress()))
        assert len(shares) == cut.steps
        assert all(shares)


def test_the_order_of_an_epoch_is_the_same_for_ever() -> None:
    cut = Division(samples=8, batch=4, seed=5)
    assert cut.order(0).tolist() == [6, 7, 5, 2, 4, 3, 1, 0]
    assert cut.order(1).tolist() != cut.order(0).tolist()
    assert Division(samples=8, batch=4, shuffle=False).order(3).tolist() == list(range(8))


def test_an_empty_data_set_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="0 samples in batches of 4 make no step"):
        Division(samples=0, batch=4)


def test_the_rate_follows_the_batch_by_its_rule() -> None:
    assert Rule("linear").factor(256, 64) == 4
    assert Rule("sqrt").factor(256, 64) == 2
    assert Rule("none").factor(256, 64) == 1


def test_adascale_gives_what_the_noise_says_between_nothing_and_linear() -> None:
    assert Rule("adascale").factor(256, 64, (1.0, 0.0)) == 1
    assert Rule("adascale").factor(256, 64, (0.0, 1.0)) == 4
    assert Rule("adascale").factor(256, 64, (1.0, 1.0)) == pytest.approx(1.6)
    assert Rule("adascale").factor(256, 64) == 1  # nothing is known yet
    assert Rule("adascale").factor(32, 64) == 0.5


def test_a_higher_rate_is_warmed_up_to_and_a_lower_one_taken_at_once() -> None:
    ramp = Ramp().towards(4.0, steps=3)
    factors = []
    for _ in range(5):
        factors.append(ramp.factor)
        ramp = ramp.after_step()
    assert factors == [1, 2, 3, 4, 4]
    assert ramp.towards(2.0, steps=3).factor == 2
    assert ramp.towards(4.0, steps=3) == ramp


def test_a_warm_up_goes_on_after_a_resize_that_keeps_the_batch() -> None:
    half = Ramp().towards(3.0, steps=4).after_step().after_step()
    assert half.towards(3.0, steps=9) == half
    assert half.towards(5.0, steps=4).factor == half.factor
