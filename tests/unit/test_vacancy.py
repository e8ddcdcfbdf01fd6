"""When and where GPUs will be free, as far as anybody knows."""

from __future__ import annotations

from dataclasses import replace

from policy_builders import a_cluster, a_job, a_problem, on, unusable

from ones.policies.model import Node
from ones.policies.vacancy import vacancy


def taken(nodes: list[Node], **gpus: int) -> list[Node]:
    return [replace(node, taken=gpus.get(node.name, 0)) for node in nodes]


def test_free_gpus_are_free_now() -> None:
    job = a_job(1, "4", requested=4)
    nodes = taken(a_cluster(), n1=1, n2=4, n3=0, n4=0)
    assert vacancy(a_problem([job], nodes), job, {}) == (0.0, ("n3",))


def test_the_node_whose_jobs_end_first_is_named_with_the_time() -> None:
    job = a_job(1, "4", requested=4)
    nodes = taken(a_cluster(2), n1=4, n2=4)
    ends = {"n1": [(50.0, 2), (900.0, 2)], "n2": [(300.0, 4)]}
    assert vacancy(a_problem([job], nodes), job, ends) == (300.0, ("n2",))


def test_two_nodes_are_free_when_the_later_one_is() -> None:
    job = a_job(1, "8", requested=8)
    nodes = taken(a_cluster(), n1=4, n2=4, n3=4)
    ends = {"n1": [(70.0, 4)], "n2": [(20.0, 4)], "n3": [(800.0, 4)]}
    found = vacancy(a_problem([job], nodes), job, ends)
    assert found is not None
    assert (found[0], set(found[1])) == (20.0, {"n2", "n4"})


def test_jobs_in_our_hands_end_when_they_are_expected_to() -> None:
    waiting = a_job(1, "4", requested=4, nodes=a_cluster(1))
    running = a_job(2, "4", nodes=a_cluster(1), placement=on(n1=4), time_left=30.0)
    problem = a_problem([waiting, running], a_cluster(1), left={2: 1000.0})
    assert vacancy(problem, waiting, {}) == (30.0, ("n1",))


def test_where_nobody_knows_an_end_there_is_no_answer() -> None:
    job = a_job(1, "4", requested=4)
    held = taken(a_cluster(1), n1=4)
    assert vacancy(a_problem([job], held), job, {}) is None
    assert vacancy(a_problem([job], [unusable(a_cluster(1)[0])]), job, {}) is None
