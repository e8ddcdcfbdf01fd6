"""The form of a need comes first, then its numbers: a few runs are enough, and it extrapolates.

GPU memory of a fixed model is linear in the batch, and the rest multiplies:

    memory = context + states * (parameters - usual) + slope * batch * layers / usual
    other  = level * batch^e * 2^(half * h) * gpus_per_node^g * nodes^n

Both are Bayesian linear regressions on relative errors: what the runs of a family don't tell is
taken from a prior, whose centre is what other families or the arithmetic of training tell. Of a
family never seen this says what each of the known ones would need in its place; what comes of that
is the business of `unseen.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, log2
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.linalg import solve_triangular  # type: ignore[import-untyped]

from ones.estimator.needs.features import Precision, Resource, Traits
from ones.policies.model import Floats

Known = tuple[Traits, float]  # a run and how much it used of one resource
Fitted = Callable[[Traits], float]
Fit = Callable[[Sequence[Known]], Fitted]
Families = Mapping[str, Sequence[Known]]
Common = TypeVar("Common")  # what families tell of each other

NOISE = 0.1  # relative, of one run
UNLIKE = 2.0  # so many times the noise for each category in which a run of the family differs
CONTEXT_SPREAD = 0.3  # of the memory that a framework takes before there is a model
CONTEXT_SHARE = 0.5  # of a family's least need, where no other family tells what a context is
HALF = 0.5  # the slope of half precision relative to full: its numbers take half the bytes
HALF_SPREAD = 0.3
STATE_BYTES = 16.0  # a parameter, its gradient and Adam's two moments, 4 bytes each
STATE_SPREAD = 8.0
MIB = 2.0**20
EXPONENT_SPREAD = 0.5  # of e, g, n: what doubling a number does, in ln
HALF_EFFECT_SPREAD = 0.5  # of h
LEVEL_SPREAD = 10.0  # in ln: nothing is known before the first run
POOLED_DOUBT = 5.0  # families differ: so many times the noise of one run
SCALED = ("batch_per_gpu", "gpus_per_node", "nodes")
LEAST = {  # what is taken as nothing, so that logarithms exist
    Resource.GPU_MEMORY: 1.0,
    Resource.GPU_UTILIZATION: 0.01,
    Resource.HOST_MEMORY: 1.0,
    Resource.CPU_CORES: 0.01,
    Resource.NETWORK_IN: 1e3,
    Resource.NETWORK_OUT: 1e3,
    Resource.BEFORE_GPU: 0.1,
    Resource.AFTER_GPU: 0.1,
    Resource.TOTAL: 1.0,
}
LARGEST_EXPONENT = 35.0  # of e: beyond it there is no need
FAMILIES = 50  # the latest, which tell of the others
RUNS = 10  # of each, the latest, likewise
SAME_DATASET = 2.0  # so many times the weight of a family that reads the same data
KINSHIP = 1.0  # in ln parameters and ln layers: how far a family counts as alike


def structural(resource: Resource) -> StructuralFit:
    """The structural regression of a resource."""
    if resource is Resource.GPU_MEMORY:
        return lambda known: Mixture(known, _context, _memory)
    least = LEAST[resource]
    most = 1.0 if resource is Resource.GPU_UTILIZATION else None
    return lambda known: Mixture(
        known,
        lambda families: _slopes_of_all(families, least),
        lambda own, slopes: _power(own, slopes, least=least, most=most),
    )


class Mixture(Generic[Common]):
    """A regression of each family; of one never seen, the median of the others'."""

    def __init__(
        self,
        known: Sequence[Known],
        share: Callable[[Families], Common],
        fit: Callable[[Sequence[Known], Common], Fitted],
    ) -> None:
        self._fit = fit
        self.known = known
        self._of: dict[str, list[Known]] = {}
        for traits, value in known:
            self._of.setdefault(traits.family, []).append((traits, value))
        self._common = share(self._of)
        self._fits: dict[str, Fitted] = {}
        self._places: dict[Traits, tuple[Floats, Floats]] = {}  # several ask for the same

    def __call__(self, traits: Traits) -> float:
        if traits.family in self._of:
            return self._family(traits.family)(traits)
        values, weights = self.in_its_place(traits)
        order = np.argsort(values)
        below = np.cumsum(weights[order])
        return float(values[order][np.searchsorted(below, 0.5 * below[-1])])

    def in_its_place(self, traits: Traits) -> tuple[Floats, Floats]:
        """[F] what each of the latest families would need, and [F] how much alike it is."""
        found = self._places.get(traits)
        if found is None:
            families = list(self._of)[-FAMILIES:]
            values = np.array([self._family(family)(traits) for family in families])
            likeness = [self._likeness(traits, self._of[family]) for family in families]
            found = self._places[traits] = values, np.array(likeness)
        return found

    def _family(self, family: str) -> Fitted:
        found = self._fits.get(family)
        if found is None:
            found = self._fits[family] = self._fit(self._of[family], self._common)
        return found

    @staticmethod
    def _likeness(traits: Traits, family: Sequence[Known]) -> float:
        weight = 1.0
        if any(one.dataset == traits.dataset is not None for one, _ in family):
            weight *= SAME_DATASET
        for name in ("parameters", "layers"):
            mine = getattr(traits, name)
            theirs = usual_of(family, name)
            if mine is not None and theirs is not None:
                weight *= max(exp(-0.5 * (log(mine / theirs) / KINSHIP) ** 2), 1e-6)
        return weight


StructuralFit = Callable[[Sequence[Known]], Mixture[Any]]


def _context(families: Families) -> float:
    """The memory that a framework takes before there is a model: no run has needed less."""
    least = min(value for family in families.values() for _, value in family)
    return max(least if len(families) > 1 else CONTEXT_SHARE * least, LEAST[Resource.GPU_MEMORY])


def _memory(own: Sequence[Known], context: float) -> Fitted:
    values = np.maximum([value for _, value in own], LEAST[Resource.GPU_MEMORY])
    least = float(values.min())
    usual = {name: usual_of(own, name) for name in ("batch_per_gpu", "parameters", "layers")}

    def row(traits: Traits) -> list[float]:
        batch = told_or(traits.batch_per_gpu, usual["batch_per_gpu"])
        depth = told_or(traits.layers, usual["layers"])
        size = told_or(traits.parameters, usual["parameters"])
        work = batch * depth / told_or(usual["layers"], 1.0)
        half = traits.precision is Precision.HALF
        states = (size - told_or(usual["parameters"], size)) / MIB
        return [1.0, work * (HALF if half else 1.0), work if half else 0.0, states]

    rows = np.array([row(traits) for traits, _ in own])
    slope = max(float(np.mean(values - context)) / float(np.mean(rows[:, 1])), 1e-3 * context)
    found = most_probable(
        rows / values[:, None],
        np.ones(len(values)),
        doubt=np.array([_unlikeness(own, traits) for traits, _ in own]),
        prior=np.array([context, slope, 0.0, STATE_BYTES]),
        spread=np.array([CONTEXT_SPREAD * context, slope, HALF_SPREAD * slope, STATE_SPREAD]),
    )
    floor = 0.5 * least
    return lambda traits: max(float(np.dot(row(traits), found)), floor)


def _power(own: Sequence[Known], slopes: Floats, *, least: float, most: float | None) -> Fitted:
    usual = {name: usual_of(own, name) for name in SCALED}
    values = np.log(np.maximum([value for _, value in own], least))
    found = most_probable(
        np.array([_power_row(traits, usual) for traits, _ in own]),
        values,
        doubt=np.array([_unlikeness(own, traits) for traits, _ in own]),
        prior=np.array([float(values.mean()), *slopes]),
        spread=np.array([LEVEL_SPREAD, HALF_EFFECT_SPREAD, *[EXPONENT_SPREAD] * len(SCALED)]),
    )

    def value(traits: Traits) -> float:
        expected = exp(min(float(np.dot(_power_row(traits, usual), found)), LARGEST_EXPONENT))
        return expected if most is None else min(expected, most)

    return value


def _power_row(traits: Traits, usual: Mapping[str, float | None]) -> list[float]:
    """1, half precision or not, and the doublings of each number from the usual one."""
    told = [told_or(getattr(traits, name), usual[name]) for name in SCALED]
    doublings = [
        log2(one / told_or(usual[name], one)) for name, one in zip(SCALED, told, strict=True)
    ]
    return [1.0, float(traits.precision is Precision.HALF), *doublings]


def _slopes_of_all(families: Families, least: float) -> Floats:
    """h, e, g, n as the families have in common, each taken from its own middle."""
    rows, goals = [np.zeros((0, len(SCALED) + 1))], [np.zeros(0)]
    for whole in list(families.values())[-FAMILIES:]:
        family = whole[-RUNS:]
        usual = {name: usual_of(family, name) for name in SCALED}
        matrix = np.array([_power_row(traits, usual)[1:] for traits, _ in family])
        values = np.log(np.maximum([value for _, value in family], least))
        rows.append(matrix - matrix.mean(axis=0))
        goals.append(values - values.mean())
    matrix, goal = np.concatenate(rows), np.concatenate(goals)
    return most_probable(
        matrix,
        goal,
        doubt=np.full(len(goal), POOLED_DOUBT),
        prior=np.zeros(len(SCALED) + 1),
        spread=np.array([HALF_EFFECT_SPREAD, *[EXPONENT_SPREAD] * len(SCALED)]),
    )


def most_probable(
    rows: Floats, goals: Floats, *, doubt: Floats, prior: Floats, spread: Floats
) -> Floats:
    """The most probable parameters, their errors and prior being normal."""
    weight = 1.0 / (NOISE * doubt)
    matrix = np.concatenate([rows * weight[:, None], np.diag(1.0 / spread)])
    target = np.concatenate([goals * weight, prior / spread])
    # The prior makes every column count, and a QR of scaled columns ends whatever they hold.
    scale = np.linalg.norm(matrix, axis=0)
    left, right = np.linalg.qr(matrix / scale)
    return np.asarray(solve_triangular(right, left.T @ target) / scale)


def usual_of(known: Sequence[Known], name: str) -> float | None:
    """The middle of a trait among the runs that tell it."""
    told = [value for traits, _ in known if (value := getattr(traits, name)) is not None]
    return median(told) if told else None


def told_or(value: float | None, otherwise: float | None) -> float:
    """A trait, else what is usual in its family, else one: then it says nothing."""
    if value is not None:
        return value
    return 1.0 if otherwise is None else otherwise


def _unlikeness(own: Sequence[Known], traits: Traits) -> float:
    """How much less a run of the family tells than its latest one, by what differs between them."""
    latest = own[-1][0]
    different = sum(
        mine is not None and theirs is not None and mine != theirs
        for mine, theirs in (
            (traits.dataset, latest.dataset),
            (traits.optimizer, latest.optimizer),
            (traits.gpu_type, latest.gpu_type),
        )
    )
    return UNLIKE**different
