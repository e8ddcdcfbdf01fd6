"""Whatever jobs report of their batches, every policy plans what each of them accepts."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, an_outlook, on

from ones.daemon.onesd.books.batch_terms import batch_terms
from ones.daemon.wire import Report
from ones.policies.guard import History, Limits
from ones.policies.model import Batch, Job, JobId, Problem
from ones.policies.registry import make, names
from ones.policies.round import decide

NODES = a_cluster(2, 4)
SIZES = ("1-8", "1-4", "2,4,8", "2-8", "3,5,6", "4-8", "8", "1-65536")
PLAIN = [name for name in names() if ":" not in name]
REPORTED = [
    # submitted, most, most per GPU, tunes, present batch
    (100, 100, 128, False, None),
    (64, 128, 64, False, None),
    (64, 100, 64, False, None),
    (64, 32, 64, True, None),
    (50, 50, 64, True, 50),
    (65, 65, 65, True, None),
    (1001, 1001, 2000, False, 1001),
    (1, 1, 1, True, None),
    (101, 200, 10, True, None),
    (10**15, 10**15, 10**15, True, None),
]


def reported(
    submitted: int, most: int, per_gpu: int, *, tunes: bool, batch: int | None = None
) -> Report:
    text = msgspec.json.encode(
        Report(
            job=1,
            batch=batch,
            batch_submitted=submitted,
            batch_most=most,
            batch_most_per_gpu=per_gpu,
            tunes=tunes,
        )
    )
    return msgspec.json.decode(text, type=Report)  # with the bounds of the door


def elastic(id_: int, report: Report, sizes: str, **more: object) -> Job:
    job = a_job(id_, sizes, nodes=NODES, **more)
    least = min((shape.gpus for shape in job.shapes), default=job.sizes.least)
    return replace(job, batch=report.batch, batches=batch_terms(report, least=least)[0])


def check_rounds(name: str, policy_rounds: list[list[Job]], *, points: int) -> None:
    """Decide on the same jobs several times over, the policy's memory kept."""
    policy, memory = make(name), None
    for number, jobs in enumerate(policy_rounds):
        problem = Problem(
            now=1000.0 + 60.0 * number,
            nodes=tuple(NODES),
            jobs=tuple(jobs),
            outlooks={
                job.id: an_outlook(1000.0, points=points, epochs=float(number)) for job in jobs
            },
            arrival_rate=0.01,
        )
        decided = decide(
            problem,
            policy,
            memory,
            np.random.default_rng(number),
            history=History(),
            limits=Limits(min_gain=None),
        )
        assert (decided.left_out, decided.fault) == ({}, "")
        memory = decided.memory
        for id_, given_ in decided.plan.assignments.items():
            job = next(job for job in jobs if job.id == id_)
            if given_.batch is not None and given_.batch != job.batch:
                assert job.batches is not None
                assert job.batches.accepts(given_.batch, given_.placement.gpus)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("terms", REPORTED, ids=str)
def test_no_policy_plans_a_batch_that_was_found_to_stop_rounds(
    name: str, terms: tuple[int, int, int, bool, int | None]
) -> None:
    submitted, most, per_gpu, tunes, batch = terms
    report = reported(submitted, most, per_gpu, tunes=tunes, batch=batch)
    for sizes in ("1-8", "3,5,6"):
        waiting = elastic(1, report, sizes)
        plain = a_job(2, "1-4", nodes=NODES)
        here = on(n1=3) if sizes == "3,5,6" else on(n1=4, n2=2)
        running = replace(waiting, placement=here, started=0.0)
        rounds = [[waiting, plain], [running, plain], [running], [waiting]]
        for points in (0, 3):
            check_rounds(name, rounds, points=points)


counts = st.one_of(
    st.integers(0, 300),
    st.sampled_from([1, 2, 3, 63, 64, 65, 100, 127, 128, 129, 1000, 2**49 + 1, 10**15 - 1, 10**15]),
)
reports = st.one_of(
    st.builds(reported, counts, counts, counts, tunes=st.booleans(), batch=st.none() | counts),
    st.sampled_from(REPORTED).map(lambda one: reported(*one[:3], tunes=one[3], batch=one[4])),
)


@st.composite
def jobs_of_reports(draw: st.DrawFn) -> list[Job]:
    jobs = []
    free = {"n1": 4, "n2": 4}
    for id_ in range(1, draw(st.integers(1, 3)) + 1):
        job = elastic(id_, draw(reports), draw(st.sampled_from(SIZES)))
        shapes = [
            shape
            for shape in job.shapes
            if sum(n >= shape.gpus_per_node for n in free.values()) >= shape.nodes
        ]
        if shapes and draw(st.booleans()):
            shape = draw(st.sampled_from(shapes))
            able = [name for name, gpus in free.items() if gpus >= shape.gpus_per_node]
            placement = on(**dict.fromkeys(able[: shape.nodes], shape.gpus_per_node))
            for node, gpus in placement.gpus_on:
                free[node] -= gpus
            job = replace(job, placement=placement, started=0.0)
        jobs.append(job)
    return jobs


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=15, deadline=None)
@given(jobs=jobs_of_reports(), points=st.sampled_from([0, 3]))
def test_every_policy_plans_soundly_whatever_jobs_report_of_their_batches(
    name: str, jobs: list[Job], points: int
) -> None:
    idle = [replace(job, placement=None) for job in jobs]
    check_rounds(name, [jobs, jobs, idle], points=points)


@pytest.mark.parametrize("name", [name for name in names() if name not in PLAIN])
@settings(max_examples=3, deadline=None)
@given(jobs=jobs_of_reports(), points=st.sampled_from([0, 3]))
def test_gavels_policies_plan_soundly_whatever_jobs_report_of_their_batches(
    name: str, jobs: list[Job], points: int
) -> None:
    idle = [replace(job, placement=None) for job in jobs]
    check_rounds(name, [jobs, jobs, idle], points=points)


batches = st.builds(
    Batch,
    submitted=st.integers(1, 2000),
    most=st.integers(1, 2000),
    most_per_gpu=st.integers(1, 600),
    least_per_gpu=st.integers(1, 8),
    accumulates=st.booleans(),
    initial=st.none() | st.integers(1, 2000),
).filter(lambda terms: terms.least_per_gpu <= terms.most_per_gpu)


@given(batches, st.integers(1, 64), st.floats(0.0, 1.0))
def test_a_batch_within_its_bounds_stays_within_them_when_it_is_split_evenly(
    terms: Batch, gpus: int, share: float
) -> None:
    least, most = (float(bound) for bound in terms.bounds(np.array(gpus)))
    if least > most:
        return
    wanted = np.array([least + share * (most - least)])
    (found,) = terms.even(wanted, np.array([gpus]))
    assert found == int(found)
    assert gpus * terms.least_per_gpu <= found <= most or terms.accumulates
    assert found <= terms.most


@pytest.mark.parametrize(
    ("report", "least", "fault"),
    [
        (reported(64, 32, 64, tunes=True), 1, "batch_submitted 64 is more than its batch_most 32"),
        (reported(1, 1, 1, tunes=False), 2, "batch_most 1 is less than a sample on each of 2 GPUs"),
    ],
)
def test_terms_that_contradict_each_other_are_not_used_and_named(
    report: Report, least: int, fault: str
) -> None:
    found, said = batch_terms(report, least=least)
    assert found is None
    assert fault in said


def test_terms_that_a_report_leaves_out_are_no_contradiction() -> None:
    assert batch_terms(Report(job=1, batch_submitted=64), least=1) == (None, "")


def test_the_limit_of_a_job_of_fixed_shapes_lets_it_start() -> None:
    shapes = tuple(shape for shape in a_job(1, "1-8", nodes=NODES).shapes if shape.gpus >= 4)
    job = replace(elastic(1, reported(2, 512, 64, tunes=False), "1-8"), shapes=shapes, requested=4)
    problem = Problem(now=0.0, nodes=tuple(NODES), jobs=(job,), outlooks={job.id: an_outlook()})
    plan, _ = make("ones").plan(problem, None, np.random.default_rng(0))
    assert JobId(1) in plan.assignments
