"""What jobs need: the form of each need, what is never seen, kills, doubt."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.estimator.needs.estimate import GROWTH, Needs, Quality
from ones.estimator.needs.features import Precision, Resource, Run, Traits
from ones.estimator.needs.headroom import RELATIVES, Footing, head_room, standing
from ones.estimator.needs.means import family_mean, mean
from ones.estimator.needs.structural import structural

MEMORY, BUSY = Resource.GPU_MEMORY, Resource.GPU_UTILIZATION
FULL, HALF = Precision.FULL, Precision.HALF


def job(family: str = "resnet", batch: float | None = 32, precision: Precision = FULL) -> Traits:
    return Traits(family=family, batch_per_gpu=batch, precision=precision)


def run(traits: Traits, **used: float) -> Run:
    return Run(traits=traits, used={Resource(name): value for name, value in used.items()})


def linear(family: str, context: float, slope: float, *batches: float) -> list[Run]:
    return [run(job(family, batch), gpu_memory=context + slope * batch) for batch in batches]


def learnt(*runs: Run, quality: Quality | None = None) -> Needs:
    needs = Needs(quality=quality)
    for one in runs:
        assert needs.learn(one)
    return needs


A_FEW = [
    *linear("resnet", 2000, 80, 16, 32, 64),
    *linear("vgg", 2300, 12, 32, 64, 128),
    *linear("lstm", 2100, 30, 64, 128),
    *linear("bert", 3500, 400, 8, 16, 32),
]


def test_memory_is_foretold_far_beyond_the_batches_that_were_seen() -> None:
    found = learnt(*A_FEW).estimate(job("resnet", 256))[MEMORY]
    assert found.expected == pytest.approx(2000 + 80 * 256, rel=0.1)
    assert found.reserve > found.expected
    assert found.footing is Footing.OTHER_BATCH


def test_half_precision_of_a_model_seen_in_full_needs_less_but_more_than_half() -> None:
    needs = learnt(*A_FEW)
    full = needs.estimate(job("resnet", 64))[MEMORY]
    half = needs.estimate(job("resnet", 64, HALF))[MEMORY]
    assert full.expected / 2 < half.expected < full.expected
    assert half.footing is Footing.PARTLY
    assert half.error > full.error


def test_a_single_run_is_split_into_what_others_have_in_common_and_its_own_slope() -> None:
    needs = learnt(*A_FEW, run(job("unet", 32), gpu_memory=2050 + 50 * 32))
    assert needs.estimate(job("unet", 64))[MEMORY].expected == pytest.approx(5250, rel=0.15)


def test_utilization_is_never_expected_above_all() -> None:
    runs = [run(job(batch=batch), gpu_utilization=busy) for batch, busy in ((16, 0.5), (32, 0.9))]
    found = learnt(*runs).estimate(job(batch=512))[BUSY]
    assert found.expected == 1.0
    assert found.reserve == 1.0


def test_more_gpus_on_a_node_take_more_of_its_cores() -> None:
    runs = [
        Run(
            traits=Traits(family="a", gpus=gpus, nodes=1),
            used={Resource.CPU_CORES: 3.0 * gpus},
        )
        for gpus in (1, 2, 4)
    ]
    found = learnt(*runs).estimate(Traits(family="a", gpus=8, nodes=1))[Resource.CPU_CORES]
    assert found.expected == pytest.approx(24, rel=0.05)


def test_a_model_never_seen_is_given_the_whole_card_and_the_middle_of_the_others() -> None:
    needs = learnt(*A_FEW)
    found = needs.estimate(job("new", 32), card=24576)[MEMORY]
    each = [needs.estimate(job(name, 32))[MEMORY].expected for name in ("vgg", "resnet", "lstm")]
    assert min(each) <= found.expected <= max(each)
    assert found.reserve == 24576
    assert found.runs == 0
    assert found.doubts == ("a model never seen",)
    assert "a model never seen" in found.why


def test_of_models_never_seen_those_of_a_like_size_tell_more() -> None:
    sizes = {"small": (1e6, 10.0), "middle": (1e7, 20.0), "large": (1e9, 500.0)}
    runs = [
        Run(
            traits=Traits(family=name, parameters=parameters, batch_per_gpu=batch),
            used={MEMORY: 2000 + slope * batch},
        )
        for name, (parameters, slope) in sizes.items()
        for batch in (8, 16)
    ]
    needs = learnt(*runs)
    new = Traits(family="new", parameters=9e8, batch_per_gpu=16)
    assert needs.estimate(new)[MEMORY].expected == pytest.approx(10_000, rel=0.2)


def test_a_run_that_shared_its_gpu_teaches_nothing() -> None:
    needs = Needs()
    assert not needs.learn(Run(traits=job(), used={MEMORY: 5000}, alone=False))
    assert needs.estimate(job()) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_what_can_not_be_true_teaches_nothing(value: float) -> None:
    needs = Needs()
    assert not needs.learn(run(job(), gpu_memory=value))
    assert needs.estimate(job()) == {}


@settings(deadline=None, max_examples=30)
@given(
    batch=st.sampled_from([8, 32, 64, 200]),
    limit=st.floats(1000, 80_000),
    times=st.integers(1, 4),
)
def test_every_kill_raises_the_next_estimate_above_its_limit(
    batch: float, limit: float, times: int
) -> None:
    needs = learnt(*A_FEW)
    for _ in range(times):
        needs.learn(Run(traits=job("vgg", batch), killed_at={MEMORY: limit}))
        found = needs.estimate(job("vgg", batch))[MEMORY]
        assert found.reserve >= GROWTH * limit
        assert found.killed_at == limit
        assert "killed" in found.why
        limit = found.reserve


def test_a_kill_says_nothing_of_smaller_batches_and_is_refuted_by_a_larger_one() -> None:
    needs = learnt(*A_FEW)
    needs.learn(Run(traits=job("vgg", 64), killed_at={MEMORY: 9000}))
    assert needs.estimate(job("vgg", 32))[MEMORY].killed_at is None
    assert needs.estimate(job("vgg", 128))[MEMORY].killed_at == 9000
    needs.learn(run(job("vgg", 128), gpu_memory=3900))
    assert needs.estimate(job("vgg", 128))[MEMORY].killed_at is None


def test_a_first_run_that_was_killed_is_enough_to_ask_for_more() -> None:
    needs = learnt(Run(traits=job("new"), killed_at={Resource.HOST_MEMORY: 4000}))
    assert needs.estimate(job("new"))[Resource.HOST_MEMORY].reserve >= 6000


def test_few_runs_are_advice_and_many_alike_are_more() -> None:
    few = learnt(run(job(), gpu_memory=4000), run(job(), gpu_memory=4000))
    assert few.estimate(job())[MEMORY].advice_only
    assert "fewer than 3 runs" in few.estimate(job())[MEMORY].doubts[0]
    many = learnt(*[run(job(), gpu_memory=4000 + 10 * k) for k in range(5)])
    assert not many.estimate(job())[MEMORY].advice_only


def test_runs_that_differ_widely_are_advice_however_many() -> None:
    runs = [run(job(), gpu_memory=value) for value in (2000, 9000, 2500, 20000, 3000, 15000)]
    found = learnt(*runs).estimate(job())[MEMORY]
    assert any(doubt.startswith("error above") for doubt in found.doubts)


def test_the_quality_that_is_asked_for_decides_what_is_advice() -> None:
    runs = [run(job(), gpu_memory=4000 + 10 * k) for k in range(5)]
    strict = learnt(*runs, quality=Quality(least_runs=6, worst_error=0.3))
    assert strict.estimate(job())[MEMORY].advice_only


def test_no_more_than_the_card_has_is_suggested() -> None:
    found = learnt(*A_FEW).estimate(job("bert", 64), card=16384)[MEMORY]
    assert found.reserve == 16384


USED: st.SearchStrategy[Mapping[Resource, float]] = st.dictionaries(
    st.sampled_from(list(Resource)), st.floats(0, 1e14), min_size=1
)
TRAITS = st.builds(
    Traits,
    family=st.sampled_from(["a", "b", "c"]),
    dataset=st.sampled_from([None, "x", "y"]),
    precision=st.sampled_from([None, FULL, HALF]),
    parameters=st.none() | st.floats(1, 1e12),
    layers=st.none() | st.floats(1, 1e3),
    batch_per_gpu=st.none() | st.floats(1, 1e5),
    gpus=st.none() | st.floats(1, 1e3),
    nodes=st.none() | st.floats(1, 1e3),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.builds(Run, traits=TRAITS, used=USED), max_size=8), TRAITS)
def test_whatever_was_seen_estimates_are_finite_and_reserve_no_less_than_nothing(
    runs: list[Run], asked: Traits
) -> None:
    for found in learnt(*runs).estimate(asked).values():
        assert 0 <= found.expected < float("inf")
        assert 0 <= found.reserve < float("inf")
        assert found.error >= 0


def test_a_batch_is_further_off_the_more_doublings_lie_between() -> None:
    known = [(job(batch=32), 1.0), (job(batch=64), 1.0)]
    assert standing(job(batch=64), known) == (Footing.SAME, 0.0)
    assert standing(job(batch=256), known) == (Footing.OTHER_BATCH, 2.0)
    assert standing(job(batch=32, precision=HALF), known)[0] is Footing.PARTLY
    assert standing(job("other"), known)[0] is Footing.UNSEEN


def test_head_room_grows_with_distance_and_with_how_little_is_known() -> None:
    known = [(one.traits, one.used[MEMORY]) for one in A_FEW]
    room = head_room(structural(MEMORY), known, tuple(Footing))
    factors = [room[footing].factor(0.99, 0.0) for footing in Footing]
    assert factors[0] > 1.0
    assert factors[1] < factors[3]
    assert room[Footing.OTHER_BATCH].factor(0.99, 2.0) > room[Footing.OTHER_BATCH].factor(0.99, 0.0)


def test_head_room_is_never_below_the_worst_error_that_was_seen() -> None:
    odd = [(job("odd", batch), value) for batch, value in ((16, 1e3), (32, 1e3), (64, 5e3))]
    room = head_room(mean, odd, RELATIVES)
    worst = room[Footing.OTHER_BATCH].worst
    assert worst > 0
    assert room[Footing.OTHER_BATCH].factor(0.99, 0.0) >= 2.718**worst * 0.999


def test_the_means_are_those_of_the_family_and_of_all() -> None:
    known = [(job("a"), 1.0), (job("a"), 3.0), (job("b"), 8.0)]
    assert mean(known)(job("a")) == 4.0
    assert family_mean(known)(job("a")) == 2.0
    assert family_mean(known)(job("new")) == 4.0


def test_a_number_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="batch_per_gpu 0 is not from 1e-09"):
        Traits(family="a", batch_per_gpu=0)


def test_liquids_forest_foretells_what_it_has_seen_and_stays_within_it() -> None:
    pytest.importorskip("sklearn", reason="the forest is an extra")
    from ones.estimator.needs.forest import forest

    known = [(job("a", 2.0**k), 1000.0 * 2**k) for k in range(4) for _ in range(8)]
    fitted = forest(known)
    assert 1000 <= fitted(job("a", 1)) < fitted(job("a", 8)) <= 8000
    assert fitted(job("a", 4096)) <= 8000


def test_a_missing_forest_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from ones.estimator.needs.forest import ForestMissing, forest

    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    with pytest.raises(ForestMissing, match="pip install"):
        forest([(job("a"), 1.0)])
