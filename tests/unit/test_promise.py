"""No plain job starts later than if every elastic job were rigid at its own request."""

from __future__ import annotations

from random import Random

import pytest
from mixed_cluster import ROUND, Elastic, Plain, kept_waiting
from policy_builders import a_cluster

from ones.policies.registry import make

NODES = a_cluster(2, 4)
NOTICE = 2 * ROUND  # a round sees what has happened, and its moves take their time


def a_mix(seed: int) -> list[Plain | Elastic]:
    """A few jobs of both kinds, close together, of all widths and lengths."""
    rng = Random(seed)
    found: list[Plain | Elastic] = []
    for id_ in range(1, rng.randint(3, 9) + 1):
        submitted, priority = ROUND * rng.randint(0, 30), rng.randint(0, 3)
        if rng.random() < 0.5:
            seconds = ROUND * rng.randint(1, 40)
            found.append(
                Plain(
                    id=id_,
                    submitted=submitted,
                    nodes=rng.choice((1, 1, 2)),
                    per_node=rng.choice((1, 2, 4)),
                    seconds=seconds,
                    limit=seconds * rng.choice((1, 2)),
                    priority=priority,
                )
            )
        else:
            found.append(
                Elastic(
                    id=id_,
                    submitted=submitted,
                    requested=rng.choice((1, 2, 4, 8)),
                    sizes="1-8",
                    work=ROUND * rng.randint(2, 200),
                    priority=priority,
                )
            )
    return found


FOUND = (48, 69, 93, 95, 111, 142, 163, 236)  # that broke it once


@pytest.mark.parametrize("seed", [*range(12), *FOUND])
def test_no_plain_job_starts_later_than_with_rigid_ones(seed: int) -> None:
    policy = make("srtf" if seed % 4 else "ones")
    assert kept_waiting(NODES, a_mix(seed), policy, notice=NOTICE) == {}
