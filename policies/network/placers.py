"""The ways of placing by name, as the setting `placement` of a policy has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ones.policies.model import Ints
from ones.policies.network.baselines import pack, random_fit, slurm, spread
from ones.policies.network.best_fit import best_fit
from ones.policies.network.gangs import Batch
from ones.policies.network.grouping import Genetics, grouping
from ones.policies.network.subtree import by_arrival, packed, subtree

Placing = Callable[[Batch, np.random.Generator], Ints]

PLACERS: Mapping[str, Placing] = {
    "subtree": lambda batch, rng: packed(batch),
    "subtree-immediate": lambda batch, rng: subtree(batch, order=by_arrival),
    "best-fit": lambda batch, rng: best_fit(batch),
    "grouping": grouping,
    "grouping-mixed": lambda batch, rng: grouping(batch, rng, Genetics(seeds="best-fit")),
    "grouping-subtree": lambda batch, rng: grouping(batch, rng, Genetics(seeds="subtree")),
    "random": random_fit,
    "spread": lambda batch, rng: spread(batch),
    "pack": lambda batch, rng: pack(batch),
    "slurm": lambda batch, rng: slurm(batch),
}


def placing(name: str) -> Placing:
    """Raises ValueError that lists the known ones."""
    if name not in PLACERS:
        raise ValueError(f"no placement '{name}'; choose one of: {', '.join(PLACERS)}")
    return PLACERS[name]
