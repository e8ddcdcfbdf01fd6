"""The site's limits within ONES: rows of the knapsack, and what a candidate of the search pays.

With caps the best sizes are an integer programme: one choice for each job, no type overfull, no cap
exceeded. Its relaxation bounds every plan, as without caps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from ones.policies.caps import Ledger, of_shape, taken
from ones.policies.model import Floats, Ints, Placement, Problem
from ones.policies.ones_options import Options
from ones.policies.ones_seed import Knapsack

CLOSE = 1e-4  # of the best: near enough
NODES = 50  # of the tree that is searched: time, in effect, and the same on every machine


@dataclass(frozen=True, slots=True)
class CapTable:
    """What each option takes of each cap, and what is left of it."""

    left: Floats  # [C]
    takes: Floats  # [C, J, T, K]

    def excess(self, chosen: Ints) -> Floats:
        """[P] by how much expressed candidates [P, J, 3] exceed the caps, in parts of them."""
        each = np.arange(chosen.shape[1])
        used = self.takes[:, each, chosen[..., 0], chosen[..., 1]].sum(axis=2)  # [C, P]
        over = np.maximum(used - self.left[:, None], 0.0) / np.maximum(self.left[:, None], 1.0)
        return np.asarray(over.sum(axis=0))


def still_left(problem: Problem, stays: Iterable[tuple[int, Placement]]) -> Ledger:
    """What is left for the jobs to decide on, once those that stay have theirs.

    As much at least as they hold already: who is beyond a lowered limit may keep what he has.
    """
    ledger = Ledger.of(problem)
    settled = dict(stays)
    for job in problem.jobs:
        if job.id in settled:
            ledger.add(job, settled[job.id])
    for at, cap in enumerate(problem.caps):
        free = (job for job in problem.jobs if job.id not in settled)
        held = sum(taken(cap, job, job.placement, problem.by_name) for job in free)
        ledger.left[at] = max(ledger.left[at], held)
    return ledger


def tabled(problem: Problem, options: Options, ledger: Ledger) -> CapTable | None:
    """The caps that these options can exceed; None where there is none."""
    if not problem.caps:
        return None
    takes = np.zeros((len(problem.caps), *options.seconds.shape[:3]))
    for c, cap in enumerate(problem.caps):
        for (j, t, k), shapes in options.shapes.items():
            take = cap.takes.get(options.jobs[j].id)
            if take is not None and cap.gpu_type in ("", options.types[t]):
                takes[c, j, t, k] = of_shape(take, shapes[0])
        for j, job in enumerate(options.jobs):
            t, k, _ = options.present[j]
            if k:
                takes[c, j, t, k] = taken(cap, job, job.placement, problem.by_name)
    left = np.array(ledger.left)
    binding = takes.max(axis=(2, 3), initial=0.0).sum(axis=1) > left
    return CapTable(left[binding], takes[binding]) if binding.any() else None


def best_within(worth: Floats, sizes: Ints, capacity: Ints, caps: CapTable) -> Knapsack:
    """As `best_sizes`, with what the caps allow."""
    jobs = len(worth)
    level = worth.argmax(axis=3)
    best = np.take_along_axis(worth, level[..., None], axis=3)[..., 0]
    chosen = np.zeros((jobs, 3), dtype=np.int64)
    nothing = best[:, 0, 0] if jobs else np.zeros(0)
    gain = np.where(np.isfinite(best), best, -np.inf) - nothing[:, None, None]
    gain[:, :, 0] = -np.inf
    j, t, k = np.nonzero(gain > 0)
    base = float(nothing.sum())
    if not len(j):
        return Knapsack(chosen, base)
    rows = [(j, np.ones(len(j)), np.ones(jobs))]
    rows.append((t, sizes[j, k].astype(np.float64), capacity.astype(np.float64)))
    for takes, left in zip(caps.takes, caps.left, strict=True):
        rows.append((np.zeros(len(j), dtype=np.int64), takes[j, t, k], np.array([max(left, 0.0)])))
    column = np.arange(len(j))
    constraints = [
        LinearConstraint(
            csr_array((value, (row, column)), shape=(len(most), len(j))), ub=most + 1e-9
        )
        for row, value, most in rows
    ]
    found = milp(
        -gain[j, t, k],
        constraints=constraints,
        integrality=np.ones(len(j)),
        bounds=Bounds(0.0, 1.0),
        options={"mip_rel_gap": CLOSE, "node_limit": NODES},
    )
    bound = found.mip_dual_bound
    top = base + (float(-bound) if bound is not None else float(gain[j, t, k].sum()))
    if found.x is None:
        return Knapsack(chosen, top)
    for at in np.flatnonzero(found.x > 0.5):
        one = j[at], t[at], k[at]
        chosen[j[at]] = t[at], k[at], level[one]
    return Knapsack(chosen, top)
