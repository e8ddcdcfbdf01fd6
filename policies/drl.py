"""A reinforcement learner: a trained network gives or takes one job's workers a step at a time.

The peer of that kind in ONES (SC21 §6) is known by its actions alone: one worker more or less for
one job. The network sees the same of every job, whatever its number and the cluster's size, so that
it is trained on small clusters, too; `scripts/train-drl` trains it, by policy gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log, log1p

import numpy as np

from ones.policies.drl_network import FEATURES, Network
from ones.policies.forecast import own_batch, seconds_left
from ones.policies.model import Floats, Job, JobId, Outlook, Plan, Problem, Seconds
from ones.policies.optimus import sizes_of_own_batch
from ones.policies.peers import Draft, kinds_of
from ones.policies.sizes import in_gpus
from ones.policies.words import NO_SIZE_FITS

_AT = {name: column for column, name in enumerate(FEATURES)}
LONGEST: Seconds = 1e9  # to its end, of a job that hardly gets any further
STOP = 0  # the first action

Choose = Callable[[Problem, Sequence[tuple[JobId, int]], Floats], int]
"""Which action is taken: 0 to stop, or the number of one of the steps (whose, and how many GPUs it
has after it), counted from 1; with the [1 + steps, FEATURES] that tell of them."""


@dataclass(slots=True)
class _Worker:
    """A job whose workers may be given and taken."""

    job: Job
    sizes: list[int]
    seconds: Floats  # to its end at each of them
    restart: Seconds
    rank: float  # share of the jobs that have less to do
    place: int = -1  # index of its present size; -1: none
    home: int = -1  # of the size that it runs on

    @property
    def gpus(self) -> int:
        return self.sizes[self.place] if self.place >= 0 else 0

    def step(self, way: int) -> int:
        """GPUs that one step up or down takes; 0: there is none."""
        target = self.place + way
        if not -1 <= target < len(self.sizes):
            return 0
        return (self.sizes[target] if target >= 0 else 0) - self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class DrlSettings:
    """The knobs that stand behind its name."""

    actions: int = 32  # a round, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Drl:
    """Until the network says stop, or `actions` have been taken, one job gets its next size or the
    one before, or none; its actions are drawn as probable as the network has them. Batches stay as
    submitted."""

    network: Network
    settings: DrlSettings = DrlSettings()
    choose: Choose | None = None  # instead of the network, to teach it; None: the network
    name: str = "drl"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        workers = _workers(draft, problem)
        total = sum(node.gpus - node.taken for node in problem.nodes if node.usable)
        free = draft.room.gpus - sum(one.gpus for one in workers)
        for _ in range(self.settings.actions):
            steps = _steps(workers, free)
            features = _features(workers, steps, free=free, total=max(total, 1))
            action = self._chosen(problem, workers, steps, features, rng)
            if action == STOP:
                break
            index, way = steps[action - 1]
            free -= workers[index].step(way)
            workers[index].place += way
        draft.place(
            [(one.job, one.gpus, f"the network gives it {in_gpus(one.gpus)}") for one in workers]
        )
        return draft.plan(), None

    def _chosen(
        self,
        problem: Problem,
        workers: Sequence[_Worker],
        steps: Sequence[tuple[int, int]],
        features: Floats,
        rng: np.random.Generator,
    ) -> int:
        if self.choose is not None:
            one = [(workers[index], way) for index, way in steps]
            after = [(who.job.id, who.gpus + who.step(way)) for who, way in one]
            return self.choose(problem, after, features)
        return chosen_by(self.network, features, rng)


def chosen_by(network: Network, features: Floats, rng: np.random.Generator) -> int:
    """An action, each as probable as the network has it: the largest score, with noise of Gumbel's
    kind on each, is a draw by their softmax."""
    return int((network.scores(features) + rng.gumbel(size=len(features))).argmax())


def _workers(draft: Draft, problem: Problem) -> list[_Worker]:
    found: list[_Worker] = []
    for job in draft.open:
        sizes = sizes_of_own_batch(job, problem.nodes)
        if not sizes:
            draft.idle[job.id] = NO_SIZE_FITS
            continue
        kind = next(iter(kinds_of(draft.room, job)), "")
        found.append(_worker(problem, job, problem.outlooks[job.id], kind, sizes))
    order = np.argsort([one.seconds[0] for one in found], kind="stable")
    for rank, index in enumerate(order.tolist()):
        found[index].rank = rank / len(found)
    return found


def _worker(problem: Problem, job: Job, outlook: Outlook, kind: str, sizes: list[int]) -> _Worker:
    gpus = np.array(sizes)
    nodes = -(-gpus // max((node.gpus for node in problem.nodes), default=1))
    batch = np.full(len(sizes), own_batch(replace(job, batch=None), outlook))
    left = seconds_left(job, outlook, kind, nodes=nodes, gpus=gpus, batch=batch)
    seconds = np.where(np.isfinite(left), np.clip(left, 1.0, LONGEST), LONGEST)
    held = job.placement.gpus if job.placement is not None else 0
    home = sizes.index(held) if held in sizes else -1
    return _Worker(job, sizes, seconds, outlook.restart_cost, 0.0, home, home)


def _steps(workers: Sequence[_Worker], free: int) -> list[tuple[int, int]]:
    """Whose step each action but the first is, and which way."""
    return [
        (index, way)
        for index, one in enumerate(workers)
        for way in (1, -1)
        if one.step(way) and one.step(way) <= free
    ]


def _features(
    workers: Sequence[_Worker], steps: Sequence[tuple[int, int]], *, free: int, total: int
) -> Floats:
    """[1 + steps, FEATURES]; see there. The first row is to stop."""
    rows = np.zeros((1 + len(steps), len(FEATURES)))
    rows[STOP, _AT["stop"]] = 1.0
    share = total / max(1, len(workers))
    for row, (index, way) in zip(rows[1:], steps, strict=True):
        _of_action(row, workers[index], way, total=total, share=share)
    rows[:, _AT["free"]] = free / total
    idle = sum(one.place < 0 for one in workers)
    rows[:, _AT["waiting"]] = idle / max(1, len(workers))
    rows[:, _AT["active"]] = log1p(len(workers)) / 5
    return rows


def _of_action(row: Floats, one: _Worker, way: int, *, total: int, share: float) -> None:
    target, step = one.place + way, one.step(way)
    after = float(one.seconds[max(target, 0)])
    row[_AT["more"]] = way > 0
    row[_AT["starts"]] = one.place < 0
    row[_AT["stops"]] = target < 0
    row[_AT["returns"]] = target == one.home
    row[_AT["leaves"]] = one.place == one.home and one.home >= 0
    row[_AT["left"]] = log1p(after) / 10
    if one.place < 0 or target < 0:
        row[_AT["gain"]] = float(way)
        row[_AT["saved"]] = way * log1p(after / abs(step)) / 10
    else:
        saved = float(one.seconds[one.place]) - after
        row[_AT["gain"]] = np.clip(log(float(one.seconds[one.place]) / after), -3.0, 3.0)
        row[_AT["saved"]] = np.sign(saved) * log1p(abs(saved) / abs(step)) / 10
    row[_AT["held"]] = one.gpus / total
    row[_AT["step"]] = step / total
    row[_AT["fair"]] = min(4.0, (one.gpus + step) / share) / 4
    row[_AT["waited"]] = log1p(max(0.0, one.job.waited)) / 10 if isfinite(one.job.waited) else 0.0
    row[_AT["rank"]] = one.rank
    row[_AT["restart"]] = min(1.0, one.restart / after)
