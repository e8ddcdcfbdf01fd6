"""What a job will need, learnt run by run: each estimate with its doubt and what it stands on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import expm1
from typing import Any

from ones.estimator.needs.features import Resource, Run, Traits
from ones.estimator.needs.headroom import RELATIVES, Footing, HeadRoom, head_room, standing
from ones.estimator.needs.structural import (
    LARGEST_EXPONENT,
    LEAST,
    Known,
    Mixture,
    StructuralFit,
    structural,
)
from ones.estimator.needs.unseen import NOBODY_KNOWN, Unseen, unseen

MEMORY = 2000  # runs that are looked back on
ROOM_RUNS = 400  # the latest, of which head-room is told
ROOM_GROWTH = 1.05  # so many times as many runs, and it is told anew
LEAST_PROMISE = 0.75  # of the runs of a family never seen: where less can be told, the whole card
GROWTH = 1.5  # what was killed is expected to need so many times what it had
SHARE = {  # of the runs, that must get along with what is suggested
    Resource.GPU_MEMORY: 0.99,
    Resource.GPU_UTILIZATION: 0.5,
    Resource.HOST_MEMORY: 0.99,
    Resource.CPU_CORES: 0.9,
    Resource.NETWORK_IN: 0.5,
    Resource.NETWORK_OUT: 0.5,
    Resource.BEFORE_GPU: 0.5,
    Resource.AFTER_GPU: 0.5,
    Resource.TOTAL: 0.9,
}


@dataclass(frozen=True, slots=True)
class Quality:
    """What an estimate must have to be more than advice."""

    least_runs: int = 3  # of the family
    worst_error: float = 0.3  # relative, of the runs that were left out to see


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How much of a resource a job will need."""

    resource: Resource
    expected: float
    reserve: float  # what `share` of the runs get along with
    share: float
    error: float  # relative standard error of `expected`
    runs: int  # of the family, that measured this resource
    footing: Footing
    doubts: tuple[str, ...] = ()  # why it is advice only
    killed_at: float | None = None  # the limit at which a run like it was killed

    @property
    def advice_only(self) -> bool:
        """Whether nothing may be done by it unasked."""
        return bool(self.doubts)

    @property
    def why(self) -> str:
        """The reason, for people."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        told = f"{runs}: {self.footing.words}" if self.runs else self.footing.words
        enough = f"enough for {self.share:.0%} of runs" if self.share else "which promises nothing"
        parts = [told, enough, f"error {self.error:.0%}"]
        if self.killed_at is not None:
            parts.append(f"a run was killed at {self.killed_at:.0f}")
        return "; ".join(parts)


@dataclass(slots=True)
class _Learnt:
    """What runs told of one resource, and the fit of it, made when asked for."""

    known: deque[Known] = field(default_factory=lambda: deque(maxlen=MEMORY))
    killed: deque[Known] = field(default_factory=lambda: deque(maxlen=MEMORY))
    fitted: Mixture[Any] | None = None
    room: HeadRoom = field(default_factory=dict)
    unseen: Unseen | None = None
    told: int = 0  # runs, since the beginning
    room_of: int = -1  # runs that had been told when the head-room was taken


class Needs:
    """All that runs have taught of what jobs need."""

    def __init__(self, *, quality: Quality | None = None) -> None:
        self._quality = quality or Quality()
        self._learnt: dict[Resource, _Learnt] = {one: _Learnt() for one in Resource}

    def learn(self, run: Run) -> bool:
        """Take a run in; False where it teaches nothing: it shared a GPU, or can't be true."""
        if not run.alone or not run.sound:
            return False
        for resource, value in run.used.items():
            if resource not in run.killed_at:
                learnt = self._learnt[resource]
                learnt.known.append((run.traits, value))
                learnt.told += 1
                # What got along with more work shows that the kill was no want of it.
                kept = (one for one in learnt.killed if not _no_larger(one[0], run.traits))
                learnt.killed = deque(kept, MEMORY)
                learnt.fitted = None
        for resource, limit in run.killed_at.items():
            self._learnt[resource].killed.append((run.traits, limit))
            self._learnt[resource].fitted = None
        return True

    def seen(self, family: str) -> int:
        """Runs of the family that told anything."""
        return max(
            sum(one.family == family for one, _ in [*learnt.known, *learnt.killed])
            for learnt in self._learnt.values()
        )

    def estimate(self, traits: Traits, *, card: float | None = None) -> Mapping[Resource, Estimate]:
        """What such a job will need of each resource of which anything is known.

        `card` is the memory of a GPU, in MiB. No job can have more, and a model never seen gets all
        of it where too few others have run to promise anything.
        """
        return {
            resource: self._estimate(resource, traits, card)
            for resource, learnt in self._learnt.items()
            if learnt.known or learnt.killed
        }

    def _estimate(self, resource: Resource, traits: Traits, card: float | None) -> Estimate:
        learnt = self._learnt[resource]
        fitted = self._fitted(resource)
        known = [*learnt.known, *learnt.killed]
        footing, away = standing(traits, known)
        found = (
            self._newcomer(resource, traits, fitted)
            if footing is Footing.UNSEEN
            else self._relative(resource, traits, fitted, (footing, away))
        )
        reserve, share = found.reserve, found.share
        limits = [limit for one, limit in learnt.killed if _no_larger(one, traits)]
        if limits:
            reserve = max(reserve, GROWTH * max(limits))
        if resource is Resource.GPU_UTILIZATION:
            reserve = min(reserve, 1.0)
        if resource is Resource.GPU_MEMORY and card is not None:
            if footing is Footing.UNSEEN and (share < LEAST_PROMISE or reserve >= card):
                reserve, share = card, 1.0
            reserve = min(reserve, card)
        runs = sum(one.family == traits.family for one, _ in known)
        return replace(
            found,
            reserve=reserve,
            share=share,
            runs=runs,
            doubts=self._doubts(footing, runs, found.error),
            killed_at=max(limits) if limits else None,
        )

    def _relative(
        self,
        resource: Resource,
        traits: Traits,
        fitted: Mixture[Any],
        stands: tuple[Footing, float],
    ) -> Estimate:
        """Of a family that has run."""
        footing, away = stands
        spread, share = self._learnt[resource].room[footing], SHARE[resource]
        expected = fitted(traits)
        return Estimate(
            resource=resource,
            expected=expected,
            reserve=expected * spread.factor(share, away),
            share=share,
            error=expm1(min((1.0 + away) * spread.scale, LARGEST_EXPONENT)),
            runs=0,
            footing=footing,
        )

    def _newcomer(self, resource: Resource, traits: Traits, fitted: Mixture[Any]) -> Estimate:
        """Of a family that was never seen."""
        least, told = LEAST[resource], self._learnt[resource].unseen or NOBODY_KNOWN
        expected = told.guess(fitted, least)(traits)
        bound = told.bound(fitted, traits, least)
        return Estimate(
            resource=resource,
            expected=expected,
            reserve=bound if SHARE[resource] <= 0.5 else max(bound, expected),
            share=told.share,
            error=expm1(min(told.error, LARGEST_EXPONENT)),
            runs=0,
            footing=Footing.UNSEEN,
        )

    def _doubts(self, footing: Footing, runs: int, error: float) -> tuple[str, ...]:
        if footing is Footing.UNSEEN:
            return (footing.words,)
        doubts = []
        if runs < self._quality.least_runs:
            doubts.append(f"fewer than {self._quality.least_runs} runs")
        if error > self._quality.worst_error:
            doubts.append(f"error above {self._quality.worst_error:.0%}")
        return tuple(doubts)

    def _fitted(self, resource: Resource) -> Mixture[Any]:
        learnt = self._learnt[resource]
        if learnt.fitted is None:
            known, fit = list(learnt.known), structural(resource)
            if learnt.room_of < 0 or learnt.told > ROOM_GROWTH * learnt.room_of:
                latest = known[-ROOM_RUNS:]
                learnt.room, learnt.room_of = head_room(fit, latest, RELATIVES), learnt.told
                learnt.unseen = unseen(fit, latest, share=SHARE[resource], least=LEAST[resource])
            learnt.fitted = fit_censored(fit, known, learnt.killed)
        return learnt.fitted


def fit_censored(
    fit: StructuralFit, known: Sequence[Known], killed: Sequence[Known]
) -> Mixture[Any]:
    """A fit to what was used, and to what was killed for wanting more than a limit.

    Of the latter it is known only that they need more: those of which the others don't say so
    already are taken to need GROWTH times their limit.
    """
    if not killed:
        return fit(known)
    raised = [(traits, GROWTH * limit) for traits, limit in killed]
    if known:
        plain = fit(known)
        raised = [(traits, more) for traits, more in raised if plain(traits) < more]
    return fit([*known, *raised])


def _no_larger(one: Traits, other: Traits) -> bool:
    """Whether the one can't need more than the other: the same model, with no larger batch."""
    if one.family != other.family:
        return False
    if one.precision != other.precision and None not in (one.precision, other.precision):
        return False
    batches = one.batch_per_gpu, other.batch_per_gpu
    return batches[0] is None or batches[1] is None or batches[0] <= batches[1]
