"""How much each job's speed-up counts: by its size among the others, and by how late it is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ones.policies.model import Floats, Ints
from ones.policies.ones_options import Options
from ones.policies.ones_settings import Settings

ALIKE = 0.05  # ln of a ratio of sizes within which jobs that no turn sets apart share their ranks
TOGETHER = 64  # jobs that are compared with all others at once, which bounds the memory it takes
LEAST_SLACK = 1e-3  # so that a weight is a number
LATEST = 10.0  # how late a job can count as: one that gets nowhere is later and later


def weights(options: Options, settings: Settings, draw: Floats) -> Floats:
    """[J]: each job's weight, its remaining work being `draw` times what is expected.

    size ** -exponent as for shortest-first, rank weight ** rank_share as in heSRPT, finish-time
    fairness ** fairness, so that who is behind an equal share of the cluster catches up, and
    slack ** -makespan, so that who takes longest and can't catch up begins in time.
    """
    size = options.least * draw
    if settings.first_come:
        size = _in_turn(size, options.untold)
    late = np.clip(options.lateness, 1.0, LATEST)
    return np.asarray(
        size**-settings.exponent
        * _ranks(size, settings) ** settings.rank_share
        * late**settings.fairness
        * np.clip(options.slack, LEAST_SLACK, 1.0) ** -settings.makespan
    )


def _in_turn(size: Floats, untold: Iterable[Ints]) -> Floats:
    """Sizes by which no job whose length is a guess is smaller than an earlier one of its family.

    Such a guess grows with what a job has done. By it the job that got furthest looks the longest,
    and makes way for its likes just before its end.
    """
    turns = size.copy()
    for alike in untold:
        turns[alike] = np.maximum.accumulate(turns[alike])
    return turns


def _ranks(size: Floats, settings: Settings) -> Floats:
    """heSRPT's weights by rank alone, the largest job first: what concave speed-ups call for.

    With speed-up size ** p the i-th largest of the jobs has the share (i/m)^e - ((i-1)/m)^e of the
    GPUs, e = 1 / (1 - p) (Berg et al., heSRPT, 2020); its 1 - p-th power is its weight.
    """
    power = 1.0 / (1.0 - settings.rank_power)
    order = _soft_ranks(np.log(size), settings.first_come)
    return np.asarray((order**power - (order - 1.0) ** power) ** (1.0 / power))


def _soft_ranks(size: Floats, first_come: float) -> Floats:
    """1 for the largest by far, and so on; of two of nearly the same size the later is the larger.

    With ranks by size alone two jobs alike would change places, and all their GPUs, with every
    report. `size` is in logarithms, jobs in the order of their submission.
    """
    found, turn = np.zeros(len(size)), np.arange(len(size))
    for begin in range(0, len(size), TOGETHER):
        some = slice(begin, begin + TOGETHER)
        later = np.sign(turn[some, None] - turn[None, :])
        by = (size[some, None] - size[None, :] + first_come * later) / ALIKE
        larger = 1.0 / (1.0 + np.exp(np.clip(by, -50.0, 50.0)))
        found[some] = 0.5 + larger.sum(axis=1)
    return found
