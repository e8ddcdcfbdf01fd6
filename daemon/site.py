"""What a site's configuration comes to in onesd: its policy, limits, priors and rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ones.daemon.config import (
    Config,
    ConfigError,
    EstimatorConfig,
    GuardConfig,
    NeedsConfig,
    SharingConfig,
    read_config,
)
from ones.estimator.assess import Knowledge, Priors
from ones.estimator.needs.estimate import Quality
from ones.estimator.pairing import Rules
from ones.policies.gavel.rounds_settings import RoundSettings
from ones.policies.guard import Limits
from ones.policies.model import Policy
from ones.policies.registry import Site, information, is_peer, make
from ones.slurm_ext.live_moves import LiveLimits
from ones.slurm_ext.moves import MoveLimits


def load_site(path: Path | None = None, overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration as onesd needs it: with a policy that can be used here.

    Raises ConfigError with one line that names the file and the key.
    """
    loaded = read_config(path, overrides)
    try:
        make_policy(loaded.config)
    except ValueError as fault:
        raise ConfigError(f"{loaded.file_of('policy')}: policy: {fault}") from None
    return loaded.config


def make_policy(config: Config) -> Policy:
    """The policy as it is to be here. Raises ValueError that names the fault."""
    if information(config.policy) == "truth":
        raise ValueError(f"'{config.policy}' knows what only a simulation can tell")
    if is_peer(config.policy):
        raise ValueError(
            f"'{config.policy}' is for replays, to compare with; where onesd is paused or stopped"
            " Slurm decides by itself"
        )
    gavel = config.gavel
    rounds = RoundSettings(entities=gavel.entities, weights=gavel.weights, prices=gavel.prices)
    site = Site(gavel=rounds, sharing=config.sharing.allow)
    return make(config.policy, max_wait=config.guard.max_wait, site=site)


def with_policy(config: Config, name: str) -> Config:
    """The same site with another policy. Raises ValueError where that can't be used here."""
    changed = msgspec.structs.replace(config, policy=name)
    make_policy(changed)
    return changed


def guard_limits(guard: GuardConfig) -> Limits:
    return Limits(
        grace=guard.grace_time,
        exempt=guard.exempt_time,
        max_resizes_per_hour=guard.max_resizes_per_hour,
        live_grace=guard.live_grace_time,
        max_live_resizes_per_hour=guard.max_live_resizes_per_hour,
        min_gain=guard.min_gain,
        max_wait=guard.max_wait,
        renew_runs=guard.renew_runs,
        max_slowdown=guard.max_slowdown,
    )


def knowledge(estimator: EstimatorConfig) -> Knowledge:
    return Knowledge(noise=estimator.goodput)


def priors(estimator: EstimatorConfig) -> Priors:
    return Priors(
        restart_seconds=estimator.restart_seconds,
        live_seconds=estimator.live_seconds,
        job_seconds=estimator.job_seconds,
    )


def quality(needs: NeedsConfig) -> Quality:
    return Quality(least_runs=needs.least_runs, worst_error=needs.worst_error)


def rules(sharing: SharingConfig) -> Rules:
    return Rules(
        most_busy=sharing.most_busy,
        spare_memory=sharing.spare_memory,
        least_speed=sharing.least_speed,
        between=sharing.between,
    )


def move_limits(config: Config) -> MoveLimits:
    return MoveLimits(
        checkpoint_timeout=config.moves.checkpoint_timeout,
        requeue_timeout=config.moves.requeue_timeout,
        start_timeout=config.moves.start_timeout,
        checkpoint_signal=config.checkpoint_signal,
    )


def live_limits(config: Config) -> LiveLimits:
    return LiveLimits(
        room=config.moves.start_timeout,
        order=config.moves.live_timeout,
        answer=config.moves.live_timeout / 2,
    )
