"""Whether the cluster that `onesctl where` names is the one in which a job ends first.

usage: scripts/benchmark-where [--cases N] [--seed S] [--policy P] [--json]

Each case is two simulated clusters of other sizes and loads, each with a whole onesd, after three
quarters of an hour of jobs that come and go. Both are asked what would become of a job, as onesctl
asks them; then it is submitted to both, and each goes on until it has ended, while others go on
coming. Jobs of one user and name are alike but for their length, which differs by about a third;
what is known of the job is what others of its user and name have reported in that cluster, if any.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median

from onesd_and_people import Cluster, families

from ones.daemon.ctl.where import one_length, ranked

SEED = 840_000
LOADS = (0.1, 1.2)
ELASTIC = 0.8  # so many of the jobs
TICK = 5.0  # seconds
WARM = 2700.0  # seconds before the question
ALIKE = 60.0  # seconds: of two ends that are this near either cluster was the right one


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What was foretold, and what came."""

    seed: int
    named: str
    foretold: dict[str, float | None]
    ended: dict[str, float]
    clear: bool  # whether every draw said the same
    known: int  # clusters that knew jobs like it
    nodes: dict[str, int]
    loads: dict[str, float]

    @property
    def lost(self) -> float:
        """Seconds by which the job ended later than in the other cluster."""
        return max(0.0, self.ended[self.named] - min(self.ended.values()))

    @property
    def right(self) -> bool:
        return self.lost <= ALIKE


def one_case(chosen: tuple[int, str]) -> Case:
    seed, policy = chosen
    logging.disable(logging.CRITICAL)
    rng = Random(f"case {seed}")
    every = families(rng)
    newcomer = every[0]
    clusters = []
    for name in ("a", "b"):
        # Half of the clusters have seen nobody like it.
        there = every if rng.random() < 0.5 else every[1:]
        one = Cluster(
            name,
            policy,
            seed=f"{seed} {name}",
            rng=rng,
            there=there,
            loads=LOADS,
            elastic=ELASTIC,
            tick=TICK,
        )
        clusters.append(one)
    seconds = newcomer.length(rng)
    for one in clusters:
        one.live(WARM)
    told = [one.asked(newcomer) for one in clusters]
    best = one_length(told)
    known = sum(not (one.answer["length"] or {"guessed": True})["guessed"] for one in told)
    if best is not None:
        told = [
            one
            if one is best or not one.answer["length"]["guessed"]
            else cluster.asked(newcomer, best.answer["length"])
            for one, cluster in zip(told, clusters, strict=True)
        ]
    ranks = ranked(told)
    sooner = ranks[1].before(ranks[0])[0]
    ended = {one.name: one.until_over(one.submit(newcomer, seconds)) for one in clusters}
    return Case(
        seed=seed,
        named=ranks[0].cluster,
        foretold={one.cluster: one.end for one in told},
        ended=ended,
        clear=not sooner,
        known=known,
        nodes={one.name: one.nodes for one in clusters},
        loads={one.name: round(one.load, 2) for one in clusters},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-where", description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first case")
    parser.add_argument("--policy", default="ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    chosen = parser.parse_args(arguments)
    asked = [(chosen.seed + number, chosen.policy) for number in range(chosen.cases)]
    cases = []
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for case in pool.imap(one_case, asked):
            cases.append(case)
            if not chosen.as_json:
                print(_line(case), flush=True)
    print(json.dumps(_summary(cases), indent=2) if chosen.as_json else _words(cases))
    return 0


def _line(case: Case) -> str:
    parts = [
        f"{name} ({case.nodes[name]} nodes, load {case.loads[name]}):"
        f" {case.foretold[name] or float('nan'):.0f} s foretold, {case.ended[name]:.0f} s"
        for name in sorted(case.ended)
    ]
    verdict = "right" if case.right else f"WRONG by {case.lost:.0f} s"
    doubt = "" if case.clear else ", in doubt"
    return f"{case.seed}: {'; '.join(parts)}; named {case.named}{doubt}: {verdict}"


def _summary(cases: Sequence[Case]) -> dict[str, object]:
    wrong = [case for case in cases if not case.right]
    clear = [case for case in cases if case.clear]
    stayed = [case for case in cases if case.ended["a"] <= min(case.ended.values()) + ALIKE]
    return {
        "cases": len(cases),
        "right": len(cases) - len(wrong),
        "agreement": (len(cases) - len(wrong)) / len(cases),
        "clear": len(clear),
        "clear_right": sum(case.right for case in clear),
        "lost_median_s": median(case.lost for case in wrong) if wrong else 0.0,
        "lost_most_s": max((case.lost for case in wrong), default=0.0),
        "submitting_right": len(stayed),
        "each": [asdict(case) for case in cases],
    }


def _words(cases: Sequence[Case]) -> str:
    found = _summary(cases)
    return (
        f"right in {found['right']} of {found['cases']} cases ({found['agreement']:.0%});"
        f" where all draws agreed, in {found['clear_right']} of {found['clear']}."
        f" The wrong ones lost {found['lost_median_s']:.0f} s in the median,"
        f" {found['lost_most_s']:.0f} s at most."
        f" To stay in the submitting cluster would have been right in {found['submitting_right']}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
