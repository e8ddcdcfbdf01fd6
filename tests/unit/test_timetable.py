"""When and where a job can first have what it asks for, held against all times and all nodes."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from policy_builders import a_cluster, on

from ones.policies.model import JobId, Node, Placement, Shape
from ones.policies.timetable import Request, Timetable

NOW = 1000.0


def a_request(gpus: int = 4, *, names: frozenset[str], **more: object) -> Request:
    fields: dict[str, object] = {
        "id": JobId(1),
        "place": (0.0,),
        "shapes": (Shape(1, gpus),),
        "limit": 600.0,
        "elastic": True,
        "began": None,
        "whole": None,
    }
    return Request(gpus=gpus, nodes=names, **(fields | more))  # type: ignore[arg-type]


def earliest(
    nodes: list[Node],
    taken: list[tuple[Placement, float, float]],
    job: Request,
    until: float,
) -> float | None:
    """The same by the plainest means: every time, every node, every moment until its end."""
    times = sorted({NOW, *(at for _, *both in taken for at in both if at < inf)})
    usable = [node for node in nodes if node.usable]

    def free(node: Node, at: float) -> int:
        held = (dict(where.gpus_on).get(node.name, 0) for where, a, b in taken if a <= at < b)
        return max(0, node.gpus - sum(held))

    for begin in times:
        if begin > until:
            break
        beside = [at for at in times if begin <= at < begin + job.limit]
        for kind in {node.gpu_type for node in usable}:
            here = [
                min(free(node, at) for at in beside)
                for node in usable
                if node.name in job.nodes and (not job.elastic or node.gpu_type == kind)
            ]
            if any(sum(gpus >= s.gpus_per_node for gpus in here) >= s.nodes for s in job.shapes):
                return begin
            if not job.shapes and sum(here) >= job.gpus:
                return begin
    return None


def a_request_by(rng: Random, nodes: list[Node]) -> Request:
    shape = rng.choice([Shape(1, 1), Shape(1, 3), Shape(1, 4), Shape(2, 2), Shape(3, 4)])
    names = [node.name for node in nodes]
    return a_request(
        shape.gpus,
        names=frozenset(rng.sample(names, rng.randint(1, len(names)))),
        shapes=rng.choice([(shape,), ()]),
        limit=rng.choice([1.0, 50.0, 300.0, inf]),
        elastic=rng.random() < 0.7,
    )


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_first_time_at_which_it_fits_until_its_end(seed: int) -> None:
    rng = Random(seed)
    nodes = a_cluster(rng.randint(1, 6), 4, types=rng.choice([("v100",), ("v100", "k80")]))
    nodes = [Node(n.name, n.gpu_type, n.gpus, usable=rng.random() < 0.9) for n in nodes]
    table = Timetable.of(nodes, NOW)
    taken: list[tuple[Placement, float, float]] = []
    for _ in range(rng.randint(0, 8)):  # who runs: some hold more than there is
        where = Placement.of({rng.choice(nodes).name: rng.randint(1, 4)})
        held = where, NOW, rng.choice([inf, NOW + rng.choice([1.0, 10.0, 90.0, 400.0])])
        table.take(*held)
        taken.append(held)
    for _ in range(12):
        job = a_request_by(rng, nodes)
        until = rng.choice([NOW, NOW + 100.0, inf])
        found = table.earliest(job, until=until)
        assert (found[0] if found else None) == earliest(nodes, taken, job, until)
        if found is None:
            continue
        at, where = found
        assert where.gpus == job.gpus and job.nodes.issuperset(where.nodes)
        assert where.shape in job.shapes or not job.shapes
        table.take(where, at, at + job.limit)
        taken.append((where, at, at + job.limit))


def test_a_booking_in_the_future_does_not_keep_a_job_off_that_ends_before() -> None:
    nodes = a_cluster(1, 4)
    table = Timetable.of(nodes, NOW)
    table.take(on(n1=4), NOW + 100.0, NOW + 200.0)
    short = a_request(4, names=frozenset({"n1"}), limit=100.0)
    long = a_request(4, names=frozenset({"n1"}), limit=101.0)
    assert table.earliest(short) == (NOW, on(n1=4))
    assert table.earliest(long) == (NOW + 200.0, on(n1=4))
