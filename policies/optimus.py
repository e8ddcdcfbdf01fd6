"""Optimus (EuroSys'18): GPU by GPU to the job whose remaining time that shortens most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ones.policies.forecast import efficiency, own_batch
from ones.policies.model import (
    Floats,
    Job,
    JobId,
    Node,
    Outlook,
    Plan,
    Problem,
    Seconds,
)
from ones.policies.peers import Draft, accepted_sizes, kinds_of
from ones.policies.sizes import in_gpus
from ones.policies.words import NO_SIZE_FITS, lasting


@dataclass(slots=True)
class _Candidate:
    """A job that shares in the GPUs."""

    job: Job
    sizes: list[int]
    seconds: Floats  # to its end at each of them
    given: int = -1  # index of its present size; -1: none

    @property
    def gpus(self) -> int:
        return self.sizes[self.given] if self.given >= 0 else 0

    def step(self) -> int:
        """GPUs up to its next size; 0: there is none."""
        return self.sizes[self.given + 1] - self.gpus if self.given + 1 < len(self.sizes) else 0

    def gain(self) -> float:
        """Seconds saved per GPU by its next size."""
        if not self.step():
            return 0.0
        before, after = self.seconds[self.given], self.seconds[self.given + 1]
        gain = float(before - after) / self.step() if np.isfinite(after) else 0.0
        return gain if gain > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Optimus:
    """One size for everybody, in order of submission, then the largest marginal gain (Optimus §4).

    Batch sizes stay as submitted. The published figures are an oracle's: true speed and true
    remaining work; this policy takes both as its outlooks have them.
    """

    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "optimus-oracle"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        per_node = max((node.gpus for node in problem.nodes), default=1)
        free = draft.room.gpus
        order = sorted(draft.open, key=lambda job: job.waited <= self.max_wait)
        candidates = []
        for job in order:
            kind = next(iter(kinds_of(draft.room, job)), "")
            sizes = sizes_of_own_batch(job, problem.nodes)
            if not sizes:
                draft.idle[job.id] = NO_SIZE_FITS
                continue
            seconds = _seconds(job, problem.outlooks[job.id], kind, sizes, per_node=per_node)
            candidates.append(_Candidate(job, sizes, seconds))
        _share_out(candidates, free)
        draft.place([(one.job, one.gpus, _reason(one)) for one in candidates])
        return draft.plan(), None


def _share_out(candidates: list[_Candidate], free: int) -> None:
    """First the least size for each in turn, then always the step that saves most per GPU."""
    for one in candidates:
        if one.sizes[0] <= free:
            one.given = 0
            free -= one.sizes[0]
    gains = {one.job.id: one.gain() if one.given >= 0 else 0.0 for one in candidates}
    by_id: dict[JobId, _Candidate] = {one.job.id: one for one in candidates}
    while free > 0 and gains:
        best = max(gains, key=lambda id_: gains[id_])
        if gains[best] <= 0:
            break
        one = by_id[best]
        if one.step() > free:
            gains[best] = 0.0
            continue
        free -= one.step()
        one.given += 1
        gains[best] = one.gain()


def sizes_of_own_batch(job: Job, nodes: Sequence[Node]) -> list[int]:
    """The sizes that leave each GPU at least the smallest local batch of what was submitted."""
    bounds, all_gpus = job.batches, sum(node.gpus for node in nodes)
    most = bounds.submitted // bounds.least_per_gpu if bounds is not None else all_gpus
    sizes = [size for size in accepted_sizes(job) if size <= all_gpus]
    return [size for size in sizes if size <= most] or sizes[:1]


def _seconds(job: Job, outlook: Outlook, kind: str, sizes: list[int], *, per_node: int) -> Floats:
    """Time to the end at each size, on as few nodes as it takes, with the job's own batch."""
    gpus = np.array(sizes)
    batch = float(job.batches.submitted) if job.batches is not None else own_batch(job, outlook)
    step = outlook.speed.step_seconds(kind, -(-gpus // per_node), gpus, np.full(len(sizes), batch))
    return np.asarray(step * _steps_left(job, outlook, batch), dtype=np.float64)


def _steps_left(job: Job, outlook: Outlook, batch: float) -> float:
    """Optimiser steps still to do at this batch, 1 at least.

    An oracle's segments are epochs; as in Pollux's simulator the one under way is left out, so that
    sizes are reconsidered from epoch to epoch and not from round to round.
    """
    if job.batches is None or not outlook.segments:
        return max(1.0, outlook.remaining / batch)
    reference = job.batches.reference
    steps = 0.0
    for part in outlook.segments[1:]:
        noise = float(part.noise_of(np.array(batch)))
        worth = float(efficiency(noise, np.array(batch), reference)) if np.isfinite(noise) else 1.0
        steps += part.samples / (worth * batch)
    return max(1.0, steps)


def _reason(one: _Candidate) -> str:
    return f"about {lasting(one.seconds[one.given])} left on {in_gpus(one.gpus)}"
