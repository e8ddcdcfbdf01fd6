"""ONES by its authors' code: limits in GPUs, who bars a change, the order of genes, the score."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on

from ones.policies.model import Batch, Ints, Job, JobId, Outlook, Problem
from ones.policies.registry import make
from ones.policies.sc21 import Sc21
from ones.policies.sc21_search import (
    NOBODY,
    Draws,
    Field,
    crossed,
    filled,
    mutated,
    reordered,
    scored,
    sizes_of,
)


def a_field(home: list[int], limit: list[int], **more: Ints) -> Field:
    jobs, gpus = len(limit), len(home)
    fields = {
        "snap": np.tile(np.arange(gpus + 1), (jobs, 1)),
        "first": np.full(jobs, gpus),
        "new": np.zeros(0, dtype=np.int64),
        "settled": np.zeros(jobs, dtype=np.int64),
    }
    return Field(home=np.array(home), limit=np.array(limit), **(fields | more))


def some_draws(*work: float, gpus: int = 8) -> Draws:
    pace = np.tile(np.maximum(np.arange(gpus + 1.0), 1.0), (len(work), 1))
    left = np.array(work)
    return Draws(left, np.where(np.isnan(left), np.inf, left), pace)


def test_sizes_are_the_genes_of_each_job() -> None:
    owner = np.array([[0, 0, 1, NOBODY], [1, 1, 1, 1]])
    assert sizes_of(owner, 3).tolist() == [[2, 1, 0], [0, 4, 0]]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-1, 2), min_size=6, max_size=6), st.permutations([3, 2, 1]))
def test_reordering_packs_each_job_and_moves_few_gpus(home: list[int], sizes: list[int]) -> None:
    owner = reordered(np.array([sizes]), np.array(home))[0]
    assert sizes_of(owner[None], 3)[0].tolist() == list(sizes)
    for job in range(3):
        (spots,) = np.nonzero(owner == job)
        assert spots.max() - spots.min() + 1 == sizes[job]


def test_no_way_in_the_present_order_keeps_more_gpus() -> None:
    home = np.array([0, 0, NOBODY, 1, 1, NOBODY, 2, 2])
    for sizes in product(range(4), repeat=3):
        if sum(sizes) > len(home):
            continue
        found = reordered(np.array([sizes]), home)[0]
        best = 0
        for starts in product(range(len(home) + 1), repeat=3):
            ends = [start + size for start, size in zip(starts, sizes, strict=True)]
            if ends[0] <= starts[1] and ends[1] <= starts[2] and ends[2] <= len(home):
                kept = sum(int((home[starts[j] : ends[j]] == j).sum()) for j in range(3))
                best = max(best, kept)
        assert int(((found == home) & (found != NOBODY)).sum()) == best


def test_new_jobs_come_first_then_the_shortest_as_far_as_limits_allow() -> None:
    field = a_field([NOBODY] * 8, [4, 4, 1], new=np.array([2]), first=np.array([2, 8, 8]))
    sizes = filled(np.zeros((1, 3), dtype=np.int64), field, some_draws(10.0, 20.0, np.nan))
    assert sizes.tolist() == [[3, 4, 1]]  # 2 first, then the other's 4, then what is left


def test_what_no_limit_allows_stays_idle() -> None:
    field = a_field([NOBODY] * 8, [2, 1])
    assert filled(np.array([[8, 0]]), field, some_draws(5.0, 7.0)).tolist() == [[2, 1]]


def test_sizes_that_a_job_does_not_accept_are_rounded_down() -> None:
    snap = np.array([[0, 0, 2, 2, 4, 4, 4, 4, 4]])
    field = a_field([NOBODY] * 8, [3], snap=snap)
    assert filled(np.array([[3]]), field, some_draws(5.0)).tolist() == [[2]]


def test_the_score_counts_the_gpu_seconds_of_scheduled_jobs_with_a_draw() -> None:
    draws = some_draws(100.0, 50.0, np.nan)
    draws.pace[0] = np.array([1, 10, 15, 18, 20, 20, 20, 20, 20])
    found = scored(np.array([[1, 0, 0], [4, 0, 8], [2, 1, 1]]), draws)
    assert found.tolist() == pytest.approx([10.0, 20.0, 100 * 2 / 15 + 50.0])


def test_children_have_genes_of_both_and_mutants_lose_whole_jobs() -> None:
    rng = np.random.default_rng(1)
    parents = np.repeat([[0, 0, 0, 0], [1, 1, 1, 1]], 8, axis=0)
    assert {0, 1} <= set(crossed(parents, 0.5, rng).ravel().tolist())
    field = a_field([0, 0, 1, 1], [4, 4], settled=np.array([1, 0]))
    mutants = mutated(np.tile([[0, 0, 1, 1]], (64, 1)), field, 0.3, rng)
    kept = sizes_of(mutants, 2)
    assert (kept[:, 0] == 2).all()  # it has trained too little
    assert set(kept[:, 1].tolist()) == {0, 2}


def trained(epochs: float, remaining: float = 9000.0) -> Outlook:
    return an_outlook(remaining, processed=1000.0 * epochs, epochs=epochs)


def after(policy: Sc21, problem: Problem, memory: object = None) -> tuple[dict[int, int], object]:
    plan, state = policy.plan(problem, memory, np.random.default_rng(0))
    return {int(id_): given.placement.gpus for id_, given in plan.assignments.items()}, state


def a_round(*jobs: Job, outlooks: list[Outlook]) -> Problem:
    problem = a_problem(list(jobs))
    return replace(problem, outlooks={job.id: one for job, one in zip(jobs, outlooks, strict=True)})


def test_a_new_job_starts_on_one_gpu_or_as_it_asked_where_that_is_set() -> None:
    job = a_job(1, "1-16", requested=4)
    problem = a_round(job, outlooks=[an_outlook(processed=0.0, epochs=0.0)])
    assert after(Sc21(), problem)[0] == {1: 1}
    assert after(Sc21(start="request"), problem)[0] == {1: 4}


def test_a_job_at_its_limit_doubles_at_most_every_two_epochs() -> None:
    job = a_job(1, "1-16", requested=4, placement=on(n1=1))
    sizes, memory = {}, None
    for epochs in (1.0, 2.0, 3.0, 4.0):
        problem = a_round(job, outlooks=[trained(epochs)])
        given, memory = after(Sc21(), problem, memory)
        sizes[epochs] = given[1]
        job = replace(job, placement=on(n1=given[1]))
    assert sizes == {1.0: 1, 2.0: 2, 3.0: 2, 4.0: 4}


def test_a_job_that_has_trained_less_than_an_epoch_bars_changes_but_no_starts() -> None:
    grown = a_job(1, "1-16", requested=4, placement=on(n1=1))
    new = a_job(2, "1-16", requested=4)
    outlooks = [trained(2.5), an_outlook(processed=0.0, epochs=0.0)]
    _, memory = after(Sc21(), a_round(grown, outlooks=[trained(2.0)]))
    held = replace(grown, placement=on(n1=2))
    _, memory = after(Sc21(), a_round(held, outlooks=[trained(2.1)]), memory)
    memory["past"]["1"][0], memory["past"]["1"][2] = 4, 2.1
    problem = a_round(held, new, outlooks=outlooks)
    assert after(Sc21(), problem, memory)[0] == {1: 2, 2: 1}
    assert after(Sc21(epoch_rule="none"), problem, memory)[0] == {1: 4, 2: 1}


def test_the_batch_is_a_local_one_for_each_gpu_up_to_a_scale() -> None:
    batches = Batch(submitted=256, most_per_gpu=512, most=8192, least_per_gpu=16)
    job = a_job(1, "1-16", requested=4, batches=batches, batch=64, placement=on(n1=4, n2=4))
    outlook = an_outlook(processed=0.0, epochs=0.0)
    problem = a_round(job, outlooks=[outlook])
    plan, _ = Sc21(start="request").plan(problem, None, np.random.default_rng(0))
    assert plan.assignments[JobId(1)].batch == 512
    plan, _ = Sc21(most_scale=2.0).plan(problem, None, np.random.default_rng(0))
    assert plan.assignments[JobId(1)].batch == 128


def test_memory_that_is_none_of_ours_is_forgotten() -> None:
    problem = a_round(a_job(1), outlooks=[an_outlook()])
    for memory in (None, [], {"past": 3, "genes": "x"}, {"past": {"1": "no"}, "nodes": []}):
        assert after(Sc21(), problem, memory)[0] == {1: 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ones-sc21:start=half", "start is gpu or request, not 'half'"),
        ("ones-sc21:epoch_rule=some", "epoch_rule is all, changed or none"),
        ("ones-sc21:population=1", "population is 2 to 1000"),
        ("ones-sc21:population=100000000000000000000", "population is 2 to 1000"),
        ("ones-sc21:generations=100000000000000000000", "generations 1 to 1000"),
        ("ones-sc21:mutation=2", "mutation are 0 to 1"),
        ("ones-sc21:most_growth=0", "most_growth is 1 to 1000000"),
        ("ones-sc21:most_growth=1e300", "most_growth is 1 to 1000000"),
        ("ones-sc21:most_scale=0", "most_scale at least 1"),
    ],
)
def test_a_bad_setting_is_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(name)


def test_every_way_to_list_the_nodes_gives_out_no_gpu_twice() -> None:
    nodes = a_cluster(3, 2)
    for order in permutations(nodes):
        jobs = [a_job(k, "1-6", nodes=nodes) for k in range(1, 10)]
        problem = replace(a_problem(jobs, nodes), nodes=tuple(order))
        given, _ = after(Sc21(), problem)
        assert sum(given.values()) <= 6
