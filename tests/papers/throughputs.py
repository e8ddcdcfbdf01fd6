"""Throughputs that were hidden and completed again: errors, and how often the intervals hold.

usage: scripts/evaluate-throughputs [--repeats N] [--seed N]

Gavel's table has 83 job types on three GPU types, alone and in pairs. What is hidden is completed
from the rest (ones.estimator.completion) and compared with what was measured:

  types     a job type of which one or two GPU types are known, the others being references
  strangers the same, all sizes and batches of the model hidden, so that no relative is left
  pairs     a share of all measured pairs hidden at random, single GPUs
  online    every job reports where it runs, in random order, and is held against what was expected
            before it did: the estimator as the daemon has it (ones.estimator.experience)

The baselines are one factor a GPU type (the median over the references) and the mean of the
references; for pairs the median slow-down beside that partner, and the mean of all.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ones.daemon.replay import gavel
from ones.estimator.completion import learn
from ones.estimator.experience import Experience
from ones.estimator.speed import DOUBT, Observation
from ones.policies.model import JobId

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "gavel"
TYPES = ("v100", "p100", "k80")
HIDDEN = (0.3, 0.5, 0.7, 0.9)  # shares of the pairs
TESTED = 0.2  # share of the rows whose entries are hidden
INSIDE = {level: NormalDist().inv_cdf(0.5 + level / 2) for level in (0.5, 0.9)}
Row = dict[str, float]  # ln of the seconds of a step, by GPU type


@dataclass(slots=True)
class Misses:
    """Expected against measured logarithms of one method."""

    off: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, measured: float, expected: float, error: float = np.nan) -> None:
        self.off.append(measured - expected)
        self.errors.append(error)

    @property
    def relative(self) -> float:
        """Median relative error of the throughput."""
        return float(np.median(np.abs(np.expm1(-np.array(self.off)))))

    @property
    def spread(self) -> float:
        """Root mean square of ln(measured / expected)."""
        return float(np.sqrt(np.mean(np.square(self.off))))

    def inside(self, level: float) -> float:
        """How often the interval of that level holds."""
        return float(np.mean(np.abs(self.off) <= INSIDE[level] * np.array(self.errors)))


@cache
def alone() -> Mapping[tuple[str, int], Row]:
    """Seconds of a step of each job type and number of GPUs, on the types that it runs on."""
    found = gavel.throughputs(SHARED / gavel.FILE)
    return {
        key: {kind: -log(rates[kind]) for kind in TYPES if rates[kind] > 0}
        for key, rates in found.items()
    }


@cache
def slow_downs() -> tuple[Mapping[str, Mapping[tuple[str, str], float]], float]:
    """ln of how much longer a step takes on one GPU beside another job, by GPU type and partner;
    and the share of all pairs that don't fit in memory together, of which nothing is asked."""
    table = json.loads((SHARED / gavel.FILE).read_text())
    found: dict[str, dict[tuple[str, str], float]] = {}
    pairs = without = 0
    for kind in TYPES:
        for key, rates in table[kind].items():
            name, gpus = ast.literal_eval(key) if key.startswith("(") else (key, 1)
            for partner, both in rates.items():
                if partner == "null" or gpus > 1:
                    continue
                pairs += 1
                if both[0] > 0:
                    found.setdefault(name, {})[kind, partner] = log(rates["null"] / both[0])
                else:
                    without += 1
    return found, without / pairs


def types(known: int, *, strangers: bool, repeats: int, rng: np.random.Generator) -> Table:
    """GPU types of some rows hidden, all but `known` of them."""
    rows = {key: row for key, row in alone().items() if len(row) == len(TYPES)}
    table = Table("completed", "factor a type", "mean")
    for _ in range(repeats):
        for tested, references in _split(list(rows), rng, strangers=strangers):
            completion = learn([rows[key] for key in references])
            for key in tested:
                row = rows[key]
                shown = [str(kind) for kind in rng.permutation(TYPES)[:known]]
                found = completion.complete({kind: row[kind] for kind in shown})
                for kind in set(TYPES) - set(shown):
                    ratios = [rows[other][kind] - rows[other][shown[0]] for other in references]
                    mean = float(np.mean([rows[other][kind] for other in references]))
                    factor = row[shown[0]] + float(np.median(ratios))
                    table["completed"].add(row[kind], found[kind].value, found[kind].error)
                    table["factor a type"].add(row[kind], factor, DOUBT)
                    table["mean"].add(row[kind], mean)
    return table


def _split(
    keys: Sequence[tuple[str, int]], rng: np.random.Generator, *, strangers: bool
) -> Iterator[tuple[list[tuple[str, int]], list[tuple[str, int]]]]:
    """Rows to be completed and their references, each row once; `strangers`: model by model."""
    group = [key[0].partition(" (")[0] if strangers else str(key) for key in keys]
    names = rng.permutation(sorted(set(group)))
    for part in np.array_split(names, round(1 / TESTED)):
        chosen = set(part.tolist())
        yield (
            [key for key, name in zip(keys, group, strict=True) if name in chosen],
            [key for key, name in zip(keys, group, strict=True) if name not in chosen],
        )


def pairs(hidden: float, *, repeats: int, rng: np.random.Generator) -> Table:
    """A share of all pairs hidden."""
    measured, _ = slow_downs()
    table = Table("completed", "median of the partner", "mean")
    for _ in range(repeats):
        shown = [
            {column: y for column, y in row.items() if rng.random() >= hidden}
            for row in measured.values()
        ]
        completion = learn([row for row in shown if row])
        everything = [y for row in shown for y in row.values()]
        for seen, row in zip(shown, measured.values(), strict=True):
            found = completion.complete(seen)
            for column, y in row.items():
                if column in seen or column not in found:
                    continue
                others = [other[column] for other in shown if column in other]
                table["completed"].add(y, found[column].value, found[column].error)
                table["median of the partner"].add(y, float(np.median(others)))
                table["mean"].add(y, float(np.mean(everything)))
    return table


def online(*, repeats: int, rng: np.random.Generator) -> Table:
    """Jobs one after another, each first on one type, then on the others, as jobs report."""
    table = Table("completed", "factor a type")
    for _ in range(repeats):
        experience = Experience()
        for number, (name, gpus) in enumerate(rng.permutation(list(alone()), axis=0).tolist()):
            row = alone()[name, int(gpus)]
            for turn, kind in enumerate(rng.permutation(list(row)).tolist()):
                report = Observation(
                    job=JobId(number),
                    family=f"{name}/{gpus}",
                    gpu_type=kind,
                    nodes=1,
                    gpus=int(gpus),
                    batch=float(gpus),
                    step_seconds=float(np.exp(row[kind])),
                )
                if turn:
                    _expect(table, experience, report)
                experience.observe(report)
    return table


def _expect(table: Table, experience: Experience, report: Observation) -> None:
    """What the estimator expects of a type that the family has not run on, before it reports."""
    records, factors = experience.of_family(report.family), experience.type_factors()
    kind, gpus, completion = report.gpu_type, report.gpus, experience.completion()
    plain = records.speed(requested=gpus, batches=None, factors=factors)
    speed = records.speed(requested=gpus, batches=None, factors=factors, completion=completion)
    if speed is None or plain is None or kind not in speed.unseen:
        return
    where = np.array(report.nodes), np.array(gpus), np.array(report.batch)
    measured, error = log(report.step_seconds), speed.error(kind, report.nodes, gpus, report.batch)
    table["completed"].add(measured, log(float(speed.step_seconds(kind, *where))), error)
    table["factor a type"].add(measured, log(float(plain.step_seconds(kind, *where))), DOUBT)


class Table(dict[str, Misses]):
    """The misses of each method."""

    def __init__(self, *methods: str) -> None:
        super().__init__({method: Misses() for method in methods})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/evaluate-throughputs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    rng = np.random.default_rng(given.seed)
    print("| hidden | method | entries | median error | rms of ln | in 50 % | in 90 % |")
    print("|---|---|---|---|---|---|---|")
    for strangers in (False, True):
        for known in (1, 2):
            what = f"{len(TYPES) - known} of 3 types" + (" of strange models" if strangers else "")
            table = types(known, strangers=strangers, repeats=given.repeats, rng=rng)
            _print(what, table)
    _print("types, one by one online", online(repeats=given.repeats, rng=rng))
    for hidden in HIDDEN:
        _print(f"{hidden:.0%} of the pairs", pairs(hidden, repeats=given.repeats, rng=rng))
    print(f"\n{slow_downs()[1]:.0%} of the single-GPU pairs don't fit in memory: left out.")
    return 0


def _print(what: str, table: Table) -> None:
    for method, misses in table.items():
        known = not np.isnan(misses.errors).any()
        inside = [f"{100 * misses.inside(level):.0f} %" if known else "-" for level in INSIDE]
        print(
            f"| {what} | {method} | {len(misses.off)} | {100 * misses.relative:.1f} %"
            f" | {misses.spread:.2f} | {inside[0]} | {inside[1]} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
