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

from ones.policies.caps import Ledger, of_counts, taken
from ones.policies.model import Cap, Floats, Ints, Placement, Problem
from ones.policies.ones_options import Options
from ones.policies.ones_seed import Knapsack

CLOSE = 1e-4  # of the best: near enough
NODES = 50  # of the tree that is searched: time, in effect, and the same on every machine


@dataclass(frozen=True, slots=True)
class CapTable:
    """What each option takes of each cap, and what is left of it.

    A row is a job under a cap, cap by cap: most caps count few jobs, such as those of one user.
    """

    left: Floats  # [C]
    cap: Ints  # [R], ascending; each cap has a row at least
    job: Ints  # [R]
    takes: Floats  # [R, T, K]

    def excess(self, chosen: Ints) -> Floats:
        """[P] by how much expressed candidates [P, J, 3] exceed the caps, in parts of them."""
        kind, size = chosen[:, self.job, 0].T, chosen[:, self.job, 1].T
        each = self.takes[np.arange(len(self.job))[:, None], kind, size]  # [R, P]
        used = np.add.reduceat(each, np.searchsorted(self.cap, np.arange(len(self.left))))  # [C, P]
        over = np.maximum(used - self.left[:, None], 0.0) / np.maximum(self.left[:, None], 1.0)
        return np.asarray(over.sum(axis=0))


def still_left(problem: Problem, stays: Iterable[tuple[int, Placement]]) -> Ledger:
    """What is left for the jobs to decide on, once those that stay have theirs.

    As much at least as they hold already: who is beyond a lowered limit may keep what he has.
    """
    ledger = Ledger.of(problem)
    settled = dict(stays)
    held: list[list[float]] = [[] for _ in problem.caps]
    for job in problem.jobs:
        if job.id in settled:
            ledger.add(job, settled[job.id])
            continue
        for at in problem.caps_of.get(job.id, ()):
            held[at].append(taken(problem.caps[at], job, job.placement, problem.by_name))
    ledger.left = [max(left, sum(has)) for left, has in zip(ledger.left, held, strict=True)]
    return ledger


def tabled(problem: Problem, options: Options, ledger: Ledger) -> CapTable | None:
    """The caps that these options can exceed; None where there is none."""
    if not problem.caps:
        return None
    forms = _Forms.of(options)
    place = {job.id: j for j, job in enumerate(options.jobs)}
    left: list[float] = []
    jobs: list[Ints] = []
    takes: list[Floats] = []
    for cap, room in zip(problem.caps, ledger.left, strict=True):
        counted = np.array(sorted(place[id_] for id_ in cap.takes if id_ in place), dtype=np.int64)
        table = forms.taken(problem, options, cap, counted)
        most = np.zeros(len(options.jobs))
        most[counted] = table.max(axis=(1, 2), initial=0.0)
        if len(counted) and most.sum() > room:
            left.append(room)
            jobs.append(counted)
            takes.append(table)
    if not left:
        return None
    return CapTable(
        left=np.array(left),
        cap=np.repeat(np.arange(len(left)), [len(counted) for counted in jobs]),
        job=np.concatenate(jobs),
        takes=np.concatenate(takes),
    )


@dataclass(frozen=True, slots=True)
class _Forms:
    """The shape in which each option is tried first."""

    nodes: Floats  # [J, T, K]; 0: the option isn't on offer
    gpus: Floats  # [J, T, K]

    @classmethod
    def of(cls, options: Options) -> _Forms:
        nodes = np.zeros(options.seconds.shape[:3])
        gpus = np.zeros_like(nodes)
        for at, shapes in options.shapes.items():
            nodes[at], gpus[at] = shapes[0].nodes, shapes[0].gpus
        return cls(nodes, gpus)

    def taken(self, problem: Problem, options: Options, cap: Cap, counted: Ints) -> Floats:
        """[N, T, K] what these jobs take of a cap that counts them, with each of their options."""
        of_type = np.array([cap.gpu_type in ("", kind) for kind in options.types], dtype=np.bool_)
        found = np.zeros((len(counted), *self.nodes.shape[1:]))
        for row, j in enumerate(counted):
            job, nodes = options.jobs[j], self.nodes[j]
            offered = (nodes > 0) & of_type[:, None]
            found[row] = np.where(offered, of_counts(cap.takes[job.id], nodes, self.gpus[j]), 0.0)
            t, k, _ = options.present[j]
            if k:
                found[row, t, k] = taken(cap, job, job.placement, problem.by_name)
        return found


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
    column = np.arange(len(j))
    rows = [(j, column, np.ones(len(j)), np.ones(jobs))]
    rows.append((t, column, sizes[j, k].astype(np.float64), capacity.astype(np.float64)))
    # The options of a job are side by side: those of each row of the table, one after the other.
    first, after = np.searchsorted(j, caps.job), np.searchsorted(j, caps.job, side="right")
    row = np.repeat(np.arange(len(caps.job)), after - first)
    option = np.concatenate([column[a:b] for a, b in zip(first, after, strict=True)])
    rows.append(
        (
            caps.cap[row],
            option,
            caps.takes[row, t[option], k[option]],
            np.maximum(caps.left, 0.0),
        )
    )
    constraints = [
        LinearConstraint(csr_array((value, (row, at)), shape=(len(most), len(j))), ub=most + 1e-9)
        for row, at, value, most in rows
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
