"""What each option is worth: the score of ONES, and of what came after it."""

from __future__ import annotations

import numpy as np

from ones.policies.model import Floats
from ones.policies.ones_options import NONE, Options
from ones.policies.ones_settings import Settings

FIRST, KEPT = 1e6, 1e3  # in the largest worth there is
ALIKE = 0.05  # ln of a ratio of sizes within which jobs share their ranks


def values(options: Options, settings: Settings, draw: Floats) -> Floats:
    """[J, T, K, L]: what each option is worth; size 0 holds what it is worth to get nothing.

    `draw` scales each job's remaining work: 1 is its expectation, other values are draws of
    Y (1/rho - 1) with rho ~ Beta(alpha, beta), shared by all candidates of a generation.
    """
    here = np.arange(len(options.jobs)), *options.present.T
    running = options.present[:, 1] > 0
    wide = (slice(None), None, None, None)
    left = options.seconds * draw[wide]
    cost, stop = options.cost[..., None], options.cost[:, 0, 0]
    changed = np.broadcast_to(running[wide], left.shape).copy()
    changed[here] = False
    if not settings.charge_restarts:
        changed[:] = False
    if settings.objective == "sruf":
        gpus = np.where(options.sizes == NONE, 0, options.sizes)[:, None, :, None]
        spent = np.where(np.isfinite(left), left + np.where(changed, cost, 0.0), 0.0) * gpus
        # Every GPU in use is worth more than any utilisation, so that only full schedules compete.
        full = 1.0 + float(np.max(spent, initial=0.0)) * len(draw)
        worth = full * gpus - spent
        nothing = np.where(running, -stop * options.sizes[here[0], here[2]], 0.0)
    else:
        work = options.least * draw
        weight = work**-settings.exponent * _ranks(work, settings) ** settings.rank_share
        # A restart is paid out of the time for which the decision stands (at most to the end).
        stands = np.minimum(options.horizon, left + cost)
        charge = np.where(changed, np.maximum(0.0, 1.0 - cost / stands), 1.0)
        worth = (weight * work)[wide] / left * charge
        stopped = np.minimum(1.0, stop / options.horizon)
        nothing = np.where(running, -worth[here] * stopped, 0.0)
    if not settings.charge_restarts:
        nothing = np.zeros_like(nothing)
    offered = np.isfinite(left)
    # Who has waited too long comes before everything, and no running job is stopped that is kept.
    most = float(np.max(np.abs(worth), where=offered, initial=1.0))
    worth = np.where(offered, worth + np.where(options.urgent, FIRST * most, 0.0)[wide], -np.inf)
    nothing = np.where(options.kept, -KEPT * most, nothing)
    worth[:, :, 0, :] = nothing[:, None, None]
    return worth


def _ranks(work: Floats, settings: Settings) -> Floats:
    """heSRPT's weights by rank alone, the largest job first: what concave speed-ups call for.

    With speed-up size ** p the i-th largest of the jobs has the share (i/m)^e - ((i-1)/m)^e of the
    GPUs, e = 1 / (1 - p) (Berg et al., heSRPT, 2020); its 1 - p-th power is its weight.
    """
    power = 1.0 / (1.0 - settings.rank_power)
    order = _soft_ranks(np.log(work))
    return np.asarray((order**power - (order - 1.0) ** power) ** (1.0 / power))


def _soft_ranks(size: Floats) -> Floats:
    """1 for the largest by far, and so on; jobs of nearly the same size share their ranks.

    With hard ranks two jobs alike would change places, and all their GPUs, with every report.
    """
    if not len(size):
        return size
    larger = 1.0 / (1.0 + np.exp(np.clip((size[:, None] - size[None, :]) / ALIKE, -50.0, 50.0)))
    return np.asarray(0.5 + larger.sum(axis=1))
