from __future__ import annotations

from dataclasses import replace

from policy_builders import a_cluster, a_job, on

from ones.daemon.onesd.observing import counted_once
from ones.policies.model import JobId


def taken(**by_node: int) -> list[int]:
    """GPUs taken on n1 and n2, by Slurm's count, once each is counted once."""
    nodes = [replace(node, taken=by_node[node.name]) for node in a_cluster(nodes=2)]
    moving = a_job(1, placement=on(n1=3, n2=3), fixed="resize under way")
    return [node.taken for node in counted_once(nodes, [moving, a_job(2, placement=on(n1=1))])]


def test_what_a_moving_job_is_just_giving_back_is_not_taken_by_others_as_well() -> None:
    assert taken(n1=3, n2=3) == [0, 1]


def test_what_others_hold_stays_taken_beside_jobs_that_fit() -> None:
    assert taken(n1=0, n2=1) == [0, 1]


def test_a_gpu_that_two_jobs_share_is_one() -> None:
    (node,) = [replace(node, taken=3) for node in a_cluster(nodes=1)]
    pair = [a_job(n, placement=on(n1=1), share=True, beside=JobId(3 - n)) for n in (1, 2)]
    assert counted_once([node], pair) == (node,)
