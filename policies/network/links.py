"""What it costs to join GPUs of one node, from the pairs of them that NVLink connects."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ones.policies.model import Floats

Link = tuple[int, int]  # two GPUs of a node, by number
MOST_SEARCHED = 10  # GPUs of a node whose every subset is looked at


@lru_cache(maxsize=256)
def inside_costs(gpus: int, links: frozenset[Link], *, near: float, far: float) -> Floats:
    """[0..gpus] the least cost of a chain through so many GPUs: `near` over NVLink, else `far`.

    Slurm picks the GPUs of a node and prefers linked ones (gres.conf Links=), so the best choice
    among all of them is what a job may hope for. Larger nodes without a chain over all of their
    GPUs are taken to have none at all.
    """
    joined = np.zeros((gpus, gpus), dtype=np.bool_)
    for one, other in links:
        if not (0 <= one < gpus and 0 <= other < gpus):
            raise ValueError(f"NVLink pair {one}-{other} is not on a node of {gpus} GPUs")
        joined[one, other] = joined[other, one] = True
    hops = np.maximum(np.arange(gpus + 1) - 1, 0)
    if gpus <= MOST_SEARCHED:
        return near * (hops - _gaps(joined)) + far * _gaps(joined)
    chained = joined.sum() == gpus * (gpus - 1)
    return np.asarray((near if chained else far) * hops, dtype=np.float64)


def _gaps(joined: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Floats:
    """[0..n] the fewest hops without NVLink of a chain through so many of n GPUs."""
    gpus = len(joined)
    least = np.zeros(gpus + 1)
    least[2:] = np.inf
    ends = {(1 << gpu, gpu): 0 for gpu in range(gpus)}  # (GPUs visited, the last) -> gaps
    for count in range(2, gpus + 1):
        longer: dict[tuple[int, int], int] = {}
        for (visited, last), gaps in ends.items():
            for gpu in range(gpus):
                if not visited >> gpu & 1:
                    key = visited | 1 << gpu, gpu
                    there = gaps + (not joined[last, gpu])
                    longer[key] = min(longer.get(key, gpus), there)
        ends = longer
        least[count] = min(ends.values())
    return least
