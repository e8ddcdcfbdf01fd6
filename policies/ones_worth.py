"""What each option is worth: the score of ONES, and of what came after it."""

from __future__ import annotations

import numpy as np

from ones.policies.model import Floats
from ones.policies.ones_options import NONE, Options
from ones.policies.ones_settings import Settings
from ones.policies.ones_weight import weights

FIRST, KEPT = 1e6, 1e3  # in the largest worth there is


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
        weight = weights(options, settings, draw)
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
