"""What the runs of `onesctl replay` came to: tables, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from ones.daemon.ctl.table import table
from ones.daemon.replay.fairness import DECILES, Fairness
from ones.daemon.replay.figures import Figures, as_json
from ones.daemon.replay.simulation import Run
from ones.daemon.times import duration

COLUMNS = {
    "policy": "POLICY",
    "average_jct_s": "AVG JCT",
    "median_jct_s": "MEDIAN",
    "p90_jct_s": "P90",
    "p99_jct_s": "P99",
    "makespan_s": "MAKESPAN",
    "average_wait_s": "AVG WAIT",
    "gpu_hours": "GPU HOURS",
    "utilisation": "IN USE",
    "cost": "COST",
    "resizes_per_job": "RESIZES/JOB",
    "lost_to_moves": "LOST",
    "decide_s_mean": "DECIDE",
    "decide_s_p99": "DECIDE P99",
}
FAIRNESS = {
    "who": "AGAINST",
    "jobs": "JOBS",
    "completion_s": "AVG JCT",
    "rigid_completion_s": "RIGID",
    "wait_s": "AVG WAIT",
    "rigid_wait_s": "RIGID",
    "p10": "P10",
    "p50": "MEDIAN",
    "p90": "P90",
    "worst": "WORST",
    "worse_off": "WORSE OFF",
    "worse_by": "BY",
}
MOST_ROWS = 20  # of accounts and of users, those with most jobs; JSON has them all


def show(runs: Sequence[Run], fairness: Sequence[Fairness], *, priced: bool, as_text: bool) -> None:
    """What the runs came to, as JSON or as a table with the answer in words first."""
    if as_text:
        found = {"fairness": [one.as_json() for one in fairness]} if fairness else {}
        click.echo(json.dumps({"runs": [as_json(run) for run in runs], **found}, indent=2))
        return
    for one in fairness:
        click.echo(one.answer())
    columns = {name: head for name, head in COLUMNS.items() if name != "cost" or priced}
    click.echo(table([_row(run) for run in runs], columns))
    for one in fairness:
        columns = {**FAIRNESS, "who": f"{one.policy} AGAINST {one.rigid}"}
        click.echo("\n" + table(list(_groups(one)), columns))


def _groups(fairness: Fairness) -> Iterator[dict[str, object]]:
    """Everybody's completion against the rigid run's: by class, then by account and by user."""
    for kind, found in (
        ("", fairness.classes),
        ("account ", fairness.accounts),
        ("user ", fairness.users),
    ):
        if kind and len(found) < 2:
            continue
        for name in sorted(found, key=lambda name: -found[name].jobs)[:MOST_ROWS]:
            group = found[name]
            ratios = zip(DECILES, group.deciles, strict=True)
            yield {
                "who": f"{kind}{name}",
                "jobs": group.jobs,
                **{key: duration(getattr(group, key)) for key in FAIRNESS if key.endswith("_s")},
                **{f"p{at}": f"{ratio:.2f}" for at, ratio in ratios},
                "worst": f"{group.worst:.2f}",
                "worse_off": f"{group.worse_off:.1%}",
                "worse_by": f"{group.worse_by:.2f}",
            }


def _row(run: Run) -> dict[str, object]:
    figures = asdict(Figures.of(run))
    shown = {name: value for name, value in figures.items() if not name.startswith("decide")}
    for name in COLUMNS:
        if name.endswith("_s"):
            shown[name] = duration(figures[name])
    shown["gpu_hours"] = f"{figures['gpu_hours']:.0f}"
    shown["utilisation"] = f"{figures['utilisation']:.0%}"
    shown["lost_to_moves"] = f"{figures['lost_to_moves']:.1%}"
    if figures["cost"] is not None:
        shown["cost"] = f"{figures['cost']:.2f}"
    shown["decide_s_mean"] = f"{1000 * figures['decide_s_mean']:.1f} ms"
    shown["decide_s_p99"] = f"{1000 * figures['decide_s_p99']:.1f} ms"
    return shown
