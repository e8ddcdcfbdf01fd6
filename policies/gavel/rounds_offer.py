"""Gavel's policies as schedulers of rounds, made where all is there that they need."""

from __future__ import annotations

from ones.policies.gavel.policies import GavelPolicy
from ones.policies.gavel.rounds import GavelRounds
from ones.policies.gavel.rounds_settings import RoundSettings


def rounds_of(
    name: str, policy: GavelPolicy, settings: RoundSettings, *, sharing: bool
) -> GavelRounds:
    """The policy as a scheduler. Raises ValueError where something that it needs is missing."""
    if policy.packed and not sharing:
        raise ValueError("it lets jobs share GPUs; the operator has to allow that: [sharing] allow")
    if "by_cost" in policy.name and not settings.prices:
        raise ValueError("it needs the price of each GPU type, such as prices=v100=0.74+k80=0.14")
    if policy.name.endswith("SLOs") and not (settings.slo or settings.stretch):
        raise ValueError(
            "it needs deadlines; slo=2 gives each job twice its length on its best type, and"
            " stretch=1.1 long ones 1.1 times the least makespan of all"
        )
    return GavelRounds(policy, settings, name)
