"""Shockwave (NSDI'23): rounds planned a window ahead, for all jobs' progress over all of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ones.policies.forecast import seconds_left_as_requested
from ones.policies.model import Job, Plan, Problem, Seconds
from ones.policies.peers import Draft, size_asked_for
from ones.policies.shockwave_window import Demand, in_order, rounds_for, weights_of, window_of
from ones.policies.sizes import in_gpus
from ones.policies.words import OTHERS_GAIN_MORE

MOST_ROUNDS = 1000  # of a window: each is filled job by job
MOST_POWER = 10.0  # weights are then from 1e-10 to 1e10


@dataclass(frozen=True, slots=True)
class Shockwave:
    """Which jobs run in which round of a window, at each job's own size (Shockwave §5, §6).

    The window is planned anew when a job comes or goes, or GPUs do, and at its end. How long a job
    still takes is its outlook's estimate: it stands for the paper's forecast of how users change
    their batches. The paper has no one value for its constants, which are settings.
    """

    seconds: Seconds = 120.0  # of a round, in which nobody makes way for another
    rounds: int = 20  # of a window
    power: float = 5.0  # k: how much more they count who are behind their fair share
    regularizer: float = 1e-3  # lambda, for each second of the estimated makespan
    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "shockwave"

    def __post_init__(self) -> None:
        if not 1 <= self.seconds < inf:
            raise ValueError("its setting seconds is at least 1")
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise ValueError(f"its setting rounds is 1 to {MOST_ROUNDS}")
        if not 0 <= self.power <= MOST_POWER:
            raise ValueError(f"its setting power is 0 to {MOST_POWER:g}")
        if not 0 <= self.regularizer < inf:
            raise ValueError("its setting regularizer is at least 0")

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        window = self._window(problem, draft, memory)
        now = set(window["slots"][self._slot(problem, window)])
        place = {id_: place for place, id_ in enumerate(window["order"])}

        def turn(job: Job) -> tuple[bool, bool, bool, int]:
            """Who is owed GPUs, then whose round it is; idle GPUs go to who has some, then on."""
            late = job.waited > self.max_wait
            idle = job.id not in now
            return not late, idle, idle and job.placement is None, place.get(job.id, len(place))

        free = draft.room.gpus
        served: list[tuple[Job, int, str]] = []
        for job in sorted(draft.open, key=turn):
            gpus = size_asked_for(job)
            if gpus is None or gpus > free:
                draft.idle[job.id] = OTHERS_GAIN_MORE
                continue
            free -= gpus
            why = "its round" if job.id in now else "idle in this round"
            served.append((job, gpus, f"{why}: {in_gpus(gpus)}"))
        draft.place(served)
        return draft.plan(), window

    def _slot(self, problem: Problem, window: dict[str, Any]) -> int:
        return int((problem.now - window["begun"]) // self.seconds)

    def _window(self, problem: Problem, draft: Draft, memory: object) -> dict[str, Any]:
        """The window that holds: the one of the last rounds, or a new one; fit for JSON."""
        jobs, gpus = sorted(job.id for job in draft.open), draft.room.gpus
        kept = memory if isinstance(memory, dict) else {}
        alike = (kept.get("jobs"), kept.get("gpus")) == (jobs, gpus)
        if alike and 0 <= self._slot(problem, kept) < len(kept["slots"]):
            return kept
        demands = [
            Demand(
                id=job.id,
                gpus=size,
                age=problem.now - job.submitted,
                done=job.executed,
                left=seconds_left_as_requested(problem, job),
            )
            for job in draft.open
            if (size := size_asked_for(job)) is not None
        ]
        weights = weights_of(demands, gpus=gpus, power=self.power)
        given = rounds_for(
            demands,
            weights,
            gpus=gpus,
            rounds=self.rounds,
            seconds=self.seconds,
            regularizer=self.regularizer,
        )
        return {
            "begun": problem.now,
            "jobs": jobs,
            "gpus": gpus,
            "slots": window_of(demands, weights, given, gpus=gpus, rounds=self.rounds),
            "order": [demands[at].id for at in in_order(demands, weights, given)],
        }
