"""Which policies there are, what each is for, and what it may know: all that can be said of them
without loading what they plan with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Information = Literal["family", "own", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A policy on offer."""

    about: str  # what it optimises
    information: Information = "family"
    needs: str = ""  # what has to be set before it can be used
    resizes: bool = False  # whether it gives jobs other sizes than they ask for
    peer: bool = False  # stands for another scheduler in replays, and decides nowhere else
    usual: bool = False  # one of the few that differ most, from which a site chooses


_PLAIN: Mapping[str, Offer] = {
    "ones": Offer(about="average completion time; sizes and batches", resizes=True, usual=True),
    "fifo": Offer(about="first come, first served, at the requested size", usual=True),
    "srtf": Offer(about="the shortest remaining time first", usual=True),
    "tiresias": Offer(about="the least service so far first", usual=True),
    "pollux": Offer(
        about="fair goodput; sizes, batches", information="own", resizes=True, usual=True
    ),
    "sia": Offer(
        about="fair goodput on mixed GPU types", information="own", resizes=True, usual=True
    ),
    "shockwave": Offer(about="fair progress over the coming rounds; makespan"),
    "liquid": Offer(about="jobs in order, where the network costs them least", usual=True),
    "ones-sc21": Offer(about="ONES as published", resizes=True, usual=True),
    "drl": Offer(
        about="a trained network gives and takes workers",
        needs="a network",
        resizes=True,
        peer=True,
    ),
    "slurm": Offer(about="Slurm's own: priority, fair share, backfill", peer=True),
    "ones-oracle": Offer(
        about="the same, knowing what is to come", information="truth", resizes=True
    ),
    "optimus-oracle": Offer(
        about="time left, one GPU more at a time", information="truth", resizes=True
    ),
    "srtf-oracle": Offer(about="the same, knowing what is to come", information="truth"),
}
GAVEL: Mapping[str, Information] = {"gavel": "family", "gavel-oracle": "truth"}  # by prefix
_AGNOSTIC, _PERF, _PACKED = "", "_perf", "_packed"
_ALL, _DEADLINES = (_AGNOSTIC, _PERF, _PACKED), ("_perf_SLOs", "_packed_SLOs")
_AIMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "max_min_fairness": ("the smallest weighted share as large as possible", _ALL),
    "max_min_fairness_water_filling": (
        "the smallest share, then the next; accounts share first",
        _ALL,
    ),
    "min_total_duration": ("the last job's end as soon as possible", _ALL),
    "finish_time_fairness": ("nobody much later than on 1/m of the cluster (Themis)", _ALL),
    "max_sum_throughput": (
        "as many optimiser steps a second as possible in all",
        (*_ALL, *_DEADLINES),
    ),
    "max_sum_throughput_normalized_by_cost": (
        "as many optimiser steps as possible for the price",
        (*_ALL, *_DEADLINES),
    ),
    "proportional_fairness": ("the weighted geometric mean of speeds", (_AGNOSTIC, _PERF)),
    "fifo": ("first come, first served; nobody overtakes", _ALL),
    "shortest_job_first": ("the least work first", (_AGNOSTIC, _PERF)),
    "allox": ("the least sum of completion times; single GPUs only", (_AGNOSTIC,)),
    "gandiva": ("equal time, random pairs that run well together", (_AGNOSTIC,)),
    "isolated": ("1/m of each GPU type for everybody", (_AGNOSTIC,)),
}
_FORMS: Mapping[str, str] = {
    _AGNOSTIC: "",
    _PERF: ", by speed on each GPU type",
    _PACKED: ", by speed, jobs sharing GPUs",
    "_perf_SLOs": ", by speed, within deadlines",
    "_packed_SLOs": ", by speed, within deadlines, jobs sharing GPUs",
}
_USUAL = frozenset(
    f"gavel:{aim}_perf"
    for aim in (
        *("max_min_fairness", "finish_time_fairness"),
        *("min_total_duration", "max_sum_throughput"),
    )
)


def _needs(aim: str, form: str) -> str:
    """What Gavel's policy can't do without; empty: nothing."""
    parts = ["sharing of GPUs"] if form.startswith(_PACKED) or aim == "gandiva" else []
    parts += ["prices"] if "by_cost" in aim else []
    parts += ["slo"] if form.endswith("SLOs") else []
    return ", ".join(parts)


def _gavel() -> Iterator[tuple[str, Offer]]:
    for prefix, known in GAVEL.items():
        for aim, (about, forms) in _AIMS.items():
            for form in forms:
                name = f"{prefix}:{aim}{form}"
                yield (
                    name,
                    Offer(
                        about=about + _FORMS[form],
                        information=known,
                        needs=_needs(aim, form),
                        usual=name in _USUAL,
                    ),
                )


OFFERS: Mapping[str, Offer] = {**_PLAIN, **dict(_gavel())}
"""Every policy by name: the usual ones first, then those that only replays can use."""
