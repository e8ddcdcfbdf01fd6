"""Gavel's policies as they are offered by name: what each is for, and what it can't do without."""

from __future__ import annotations

from collections.abc import Mapping

from ones.policies.gavel.policies import GavelPolicy
from ones.policies.gavel.rounds import GavelRounds
from ones.policies.gavel.rounds_settings import RoundSettings

_AIMS: Mapping[str, str] = {
    "max_min_fairness": "the smallest weighted share as large as possible",
    "max_min_fairness_water_filling": "the smallest share, then the next; accounts share first",
    "min_total_duration": "the last job's end as soon as possible",
    "finish_time_fairness": "nobody much later than on 1/m of the cluster (Themis)",
    "max_sum_throughput": "as many optimiser steps a second as possible in all",
    "max_sum_throughput_normalized_by_cost": "as many optimiser steps as possible for the price",
    "proportional_fairness": "the weighted geometric mean of speeds",
    "fifo": "first come, first served; nobody overtakes",
    "shortest_job_first": "the least work first",
    "allox": "the least sum of completion times; single GPUs only",
    "gandiva": "equal time, random pairs that run well together",
    "isolated": "1/m of each GPU type for everybody",
}
_FORMS: Mapping[str, str] = {
    "": "",
    "_perf": ", by speed on each GPU type",
    "_packed": ", by speed, jobs sharing GPUs",
    "_perf_SLOs": ", by speed, within deadlines",
    "_packed_SLOs": ", by speed, within deadlines, jobs sharing GPUs",
}


def about(policy: GavelPolicy) -> str:
    """What it optimises, in a few words."""
    base = max((name for name in _AIMS if policy.name.startswith(name)), key=len)
    return _AIMS[base] + _FORMS[policy.name.removeprefix(base)]


def needs(policy: GavelPolicy) -> str:
    """What has to be set before it can be used; empty: nothing."""
    parts = ["sharing of GPUs"] if policy.packed else []
    parts += ["prices"] if "by_cost" in policy.name else []
    parts += ["slo"] if policy.name.endswith("SLOs") else []
    return ", ".join(parts)


def rounds_of(
    name: str, policy: GavelPolicy, settings: RoundSettings, *, sharing: bool
) -> GavelRounds:
    """The policy as a scheduler. Raises ValueError where something that it needs is missing."""
    if policy.packed and not sharing:
        raise ValueError("it lets jobs share GPUs; the operator has to allow that: [sharing] allow")
    if "by_cost" in policy.name and not settings.prices:
        raise ValueError("it needs the price of each GPU type, such as prices=v100=0.74+k80=0.14")
    if policy.name.endswith("SLOs") and not settings.slo:
        raise ValueError(
            "it needs deadlines; slo=2 gives each job twice its length on its best type"
        )
    return GavelRounds(policy, settings, name)
