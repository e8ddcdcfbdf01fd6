"""Shockwave's window: how many of its rounds each job gets, and which (NSDI'23 §6, appendix G)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import (  # type: ignore[import-untyped]
    Bounds,
    LinearConstraint,
    milp,
)

from ones.policies.model import Floats, Ints, JobId, Seconds

PROGRESS = np.array([1e-6, 0.2, 0.4, 0.6, 0.8, 1.0])  # between which the logarithm is straight
GAP = 1e-3  # how far from the optimum the solver may stop
NODES = 2000  # of branch and bound
FAIREST, UNFAIREST = 0.1, 10.0  # bounds of an estimated finish-time fairness


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that shares in the window."""

    id: JobId
    gpus: int  # while it runs
    age: Seconds  # since its submission
    done: Seconds  # it has run
    left: Seconds  # it still has to run


def weights_of(demands: Sequence[Demand], *, gpus: int, power: float) -> Floats:
    """[J] Estimated finish-time fairness to a power: larger for who is behind a fair share.

    Its end, as crowded as the cluster is now, against its end had it had its share of that crowd
    from its submission on (Shockwave §6.3, Themis).
    """
    crowd = max(1.0, sum(one.gpus for one in demands) / max(gpus, 1))
    age = np.array([one.age for one in demands])
    done = np.array([one.done for one in demands])
    left = np.array([one.left for one in demands])
    fairness = (age + left * crowd) / np.maximum((done + left) * crowd, 1e-9)
    return np.asarray(np.clip(fairness, FAIREST, UNFAIREST) ** power)


def rounds_for(
    demands: Sequence[Demand],
    weights: Floats,
    *,
    gpus: int,
    rounds: int,
    seconds: Seconds,
    regularizer: float,
) -> Ints:
    """[J] Rounds of the window for each job.

    The largest mean of weighted logarithms of the jobs' progress at the window's end, less
    `regularizer` times what is then left of the makespan: of the longest job, and of all work
    shared out over all GPUs. Which rounds they are makes no difference to either, so that only
    their number is a variable, and the GPUs bound the sum of all rounds.
    """
    count = len(demands)
    if not count:
        return np.zeros(0, dtype=np.int64)
    size = np.array([one.gpus for one in demands], dtype=np.float64)
    done = np.array([one.done for one in demands])
    left = np.array([one.left for one in demands])
    whole = np.maximum(done + left, 1e-9)
    most = np.minimum(np.ceil(left / seconds), rounds)
    most[size > gpus] = 0
    # Variables: rounds n [J], logarithms y [J], the makespan h. y lies under each straight piece.
    logs = np.log(PROGRESS)
    slope = np.diff(logs) / np.diff(PROGRESS)
    start = logs[:-1] - slope * PROGRESS[:-1]
    eye = sparse.eye_array(count, format="csr")
    none, one = sparse.csr_array((count, 1)), np.ones((count, 1))
    pieces = [
        sparse.hstack([-steep * eye * (seconds / whole)[None, :], eye, none]) for steep in slope
    ]
    upper = np.concatenate(
        [base + steep * done / whole for steep, base in zip(slope, start, strict=True)]
    )
    ends = sparse.hstack([eye * seconds, sparse.csr_array((count, count)), one])
    work = np.concatenate([size * seconds, np.zeros(count), [float(max(gpus, 1))]])[None, :]
    taken = np.concatenate([size, np.zeros(count + 1)])[None, :]
    solved = milp(
        np.concatenate([np.zeros(count), -weights / (count * rounds), [regularizer]]),
        integrality=np.concatenate([np.ones(count), np.zeros(count + 1)]),
        bounds=Bounds(
            np.concatenate([np.zeros(count), np.full(count, -np.inf), [0.0]]),
            np.concatenate([most, np.zeros(count), [np.inf]]),
        ),
        constraints=[
            LinearConstraint(sparse.vstack(pieces), ub=upper),
            LinearConstraint(ends, lb=left),
            LinearConstraint(work, lb=float(size @ left)),
            LinearConstraint(taken, ub=float(gpus * rounds)),
        ],
        options={"mip_rel_gap": GAP, "node_limit": NODES},
    )
    if solved.x is None:  # nobody is kept from running for want of a plan
        return np.asarray(most, dtype=np.int64)
    return np.asarray(np.round(solved.x[:count]), dtype=np.int64)


def in_order(demands: Sequence[Demand], weights: Floats, given: Ints) -> list[int]:
    """Indices of the jobs, those first whose weight for each round is largest: what comes to the
    same as the least weighted mean of their rounds' numbers (Shockwave, appendix G.2)."""
    each = weights / np.maximum(given, 1)
    return sorted(range(len(demands)), key=lambda at: (-each[at], demands[at].id))


def window_of(
    demands: Sequence[Demand], weights: Floats, given: Ints, *, gpus: int, rounds: int
) -> list[list[JobId]]:
    """[rounds] The jobs of each round, each in as many as it was given, as far as they fit.

    Whose rounds would not all come in otherwise goes first, then as `in_order` has it.
    """
    left = given.copy()
    order = in_order(demands, weights, given)
    slots: list[list[JobId]] = []
    for slot in range(rounds):
        free = gpus
        chosen = []
        for at in sorted(order, key=lambda at: left[at] < rounds - slot):
            if left[at] > 0 and demands[at].gpus <= free:
                free -= demands[at].gpus
                left[at] -= 1
                chosen.append(demands[at].id)
        slots.append(chosen)
    return slots
