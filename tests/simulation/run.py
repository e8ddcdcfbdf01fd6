"""scripts/simulate: many scenarios, until so many rounds are done; what broke, as short stories."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.bugs import BUGS
from simulation.invariants import ALWAYS, IN_THE_END
from simulation.play import Outcome, play
from simulation.scenario import FAULTS, POLICIES, QUICK, Scenario
from simulation.shrink import shrink

DAY = 86400.0


@dataclass(slots=True)
class Total:
    """What all scenarios came to."""

    rounds: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    seeds: int = 0
    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome, cpu: float) -> None:
        self.rounds += outcome.rounds
        self.cpu_seconds += cpu
        self.seconds += outcome.seconds
        self.seeds += 1
        self.kills += outcome.kills
        self.faults.update(outcome.faults)
        self.policies[outcome.scenario.policy] += outcome.rounds
        if outcome.broken is not None:
            self.broken.append(outcome)

    def as_json(self) -> dict[str, object]:
        cpu = max(self.cpu_seconds, 1e-9)
        return {
            "rounds": self.rounds,
            "rounds_per_cpu_second": round(self.rounds / cpu, 1),
            "cluster_days_per_cpu_minute": round(self.seconds / DAY / (cpu / 60.0), 2),
            "seeds": self.seeds,
            "kills": self.kills,
            "policies": dict(sorted(self.policies.items())),
            "faults": dict(sorted(self.faults.items())),
            "invariants": [*ALWAYS, *IN_THE_END],
            "broken": [_told(outcome) for outcome in self.broken],
        }


def _told(outcome: Outcome) -> dict[str, object]:
    broken, scenario = outcome.broken, outcome.scenario
    assert broken is not None
    return {
        "seed": scenario.seed,
        "policy": scenario.policy,
        "faults": sorted(scenario.faults),
        "jobs": scenario.jobs - len(scenario.without),
        "rounds": broken.rounds,
        "invariant": broken.invariant,
        "what": broken.what,
        "scenario": scenario.words,
        "story": list(broken.story),
    }


def _one(scenario: Scenario, *, short: bool, bug: str) -> tuple[Outcome, float]:
    told = partial(play, bug=bug)
    began = time.process_time()
    outcome = told(scenario)
    cpu = time.process_time() - began
    return (shrink(outcome, of=told) if short and outcome.broken is not None else outcome), cpu


def _all(
    scenarios: Iterator[Scenario],
    rounds: int,
    workers: int,
    *,
    short: bool,
    most_broken: int,
    bug: str = "",
) -> Total:
    total = Total()

    def wanted() -> bool:
        return total.rounds < rounds and len(total.broken) < most_broken

    if workers == 1:
        while wanted():
            _count(total, *_one(next(scenarios), short=short, bug=bug))
        return total
    with ProcessPoolExecutor(workers) as pool:
        running: list[tuple[int, Future[tuple[Outcome, float]]]] = []  # with their rounds
        while wanted() or running:
            expected = total.rounds + sum(coming for coming, _ in running)
            if wanted() and expected < rounds and len(running) < 2 * workers:
                scenario = next(scenarios)
                one = pool.submit(_one, scenario, short=short, bug=bug)
                running.append((scenario.rounds, one))
            else:
                _, done = running.pop(0)
                _count(total, *done.result())
    return total


def _count(total: Total, outcome: Outcome, cpu: float) -> None:
    total.add(outcome, cpu)
    if outcome.broken is not None:
        click.echo(f"broken: {outcome.broken.invariant}: {outcome.scenario.words}", err=True)
    elif total.seeds % 50 == 0:
        so_far = f"{total.rounds} rounds, {total.seeds} seeds, {len(total.broken)} broken"
        click.echo(so_far, err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1), default=10_000, help="At least so many.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The first seed.")
@click.option("--only", is_flag=True, help="The scenario of this one seed, told as it goes.")
@click.option("--faults", default="all", help=f"A list of: {', '.join(FAULTS)}; all or none.")
@click.option("--policy", multiple=True, help="Only these policies; quick: those that decide fast.")
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1)
@click.option("--most-broken", type=click.IntRange(1), default=20, help="Give up after so many.")
@click.option("--no-shrink", is_flag=True, help="Tell broken stories as they are.")
@click.option("--bugs", is_flag=True, help="Put in five deliberate bugs, and say what finds each.")
@click.option("--json", "as_json", is_flag=True, help="One object instead of a table.")
def main(  # noqa: PLR0917 (click gives them by name)
    rounds: int,
    seed: int,
    only: bool,
    faults: str,
    policy: tuple[str, ...],
    workers: int,
    most_broken: int,
    no_shrink: bool,
    bugs: bool,
    as_json: bool,
) -> None:
    """Run the whole onesd on a simulated Slurm with faults, and check what must always hold.

    Ends with 1 where something broke.
    """
    chosen = {"all": set(FAULTS), "none": set()}.get(faults, set(faults.split(",")))
    if unknown := chosen - set(FAULTS):
        known = ", ".join(FAULTS)
        raise click.BadParameter(f"no fault {', '.join(sorted(unknown))}; known: {known}")
    policies = QUICK if policy == ("quick",) else policy or POLICIES
    allowed = frozenset(chosen)

    def scenarios() -> Iterator[Scenario]:
        number = seed
        while True:
            yield Scenario.of(number, policies=tuple(policies), faults=allowed)
            number += 1

    if bugs:
        sys.exit(_find_bugs(scenarios, rounds, workers))
    if only:
        outcome = play(next(scenarios()), told=lambda line: click.echo(line, err=as_json))
        total = Total()
        total.add(outcome, 1.0)
    else:
        total = _all(scenarios(), rounds, workers, short=not no_shrink, most_broken=most_broken)
    found = total.as_json()
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)
    sys.exit(1 if total.broken else 0)


def _find_bugs(scenarios: Callable[[], Iterator[Scenario]], rounds: int, workers: int) -> int:
    """A table of what found each deliberate bug; the number of those that nothing found."""
    missed = 0
    click.echo(f"{'BUG':22} {'ROUNDS':>7} {'SEEDS':>6}  FOUND BY")
    for bug in BUGS:
        total = _all(scenarios(), rounds, workers, short=False, most_broken=1, bug=bug)
        found = total.broken[0].broken if total.broken else None
        missed += found is None
        words = f"{found.invariant}: {found.what}" if found else "NOT FOUND"
        click.echo(f"{bug:22} {total.rounds:7} {total.seeds:6}  {words[:110]}")
    return missed


def _show(found: dict[str, object]) -> None:
    for key in ("rounds", "rounds_per_cpu_second", "cluster_days_per_cpu_minute", "seeds", "kills"):
        click.echo(f"{key.replace('_', ' '):30} {found[key]}")
    for key in ("policies", "faults"):
        click.echo(f"{key}:")
        counts = found[key]
        assert isinstance(counts, dict)
        for name, count in counts.items():
            click.echo(f"  {name:45} {count}")
    broken = found["broken"]
    assert isinstance(broken, list)
    click.echo(f"broken: {len(broken)}")
    for one in broken:
        click.echo(f"\n{one['scenario']}\n{one['invariant']}: {one['what']}")
        click.echo("\n".join(one["story"]))


if __name__ == "__main__":
    main()
