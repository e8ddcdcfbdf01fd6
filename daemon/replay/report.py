"""Replays drawn: one HTML file with its drawings inside, several policies side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ones.daemon.ctl.table import duration
from ones.daemon.replay.drawing import (
    PALETTE,
    STYLE,
    completion_times,
    gpu_legend,
    gpus_in_use,
    gpus_of_jobs,
    shown,
)
from ones.daemon.replay.figures import Figures, completion_seconds, labels
from ones.daemon.replay.simulation import Run
from ones.policies.model import Node

ROWS = (
    ("average_jct_s", "Average completion time"),
    ("median_jct_s", "Median"),
    ("p90_jct_s", "90th percentile"),
    ("p99_jct_s", "99th percentile"),
    ("makespan_s", "Makespan"),
    ("average_wait_s", "Average wait without GPUs"),
    ("gpu_hours", "GPU-hours held"),
    ("utilisation", "Share of the GPU-hours until the last end"),
    ("resizes_per_job", "Changes of placement per job"),
    ("decide_s_mean", "CPU time of a round, mean"),
    ("decide_s_p99", "CPU time of a round, 99th percentile"),
)
MOST_LISTED = 2000  # jobs in the table of all jobs; the drawings show every one


def page(runs: Sequence[Run], nodes: Sequence[Node], *, trace: str) -> str:
    """The whole report. All runs are of the same trace on the same cluster."""
    figures = [Figures.of(run) for run in runs]
    gpus = sum(node.gpus for node in nodes)
    end = max(one.makespan_s for one in figures)
    jobs = len(runs[0].jobs)
    title = f"Replay of {shown(trace)}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{title}</h1>",
            f'<p class="lead">{jobs:,} jobs on {gpus:,} GPUs ({_cluster(nodes)}); simulated time'
            f" {duration(end)}.</p>",
            _table(figures),
            "<h2>Completion times</h2>",
            "<p>Share of the jobs that were done within a time of their submission. Further left"
            " is better.</p>",
            _legend(runs),
            f"<figure>{completion_times(runs)}</figure>",
            "<h2>GPUs in use</h2>",
            f"<p>Of the {gpus:,} in the cluster, restarts included.</p>",
            _side_by_side(runs, [gpus_in_use(run, gpus, end, k) for k, run in enumerate(runs)]),
            "<h2>GPUs of each job</h2>",
            "<p>A line a job, by submission. Point at one for its name.</p>",
            gpu_legend(),
            _side_by_side(runs, [gpus_of_jobs(run, end) for run in runs]),
            _jobs(runs),
            "</main></body></html>",
            "",
        ]
    )


def _cluster(nodes: Sequence[Node]) -> str:
    kinds = Counter((node.gpu_type, node.gpus) for node in nodes)
    parts = [f"{count} nodes × {gpus} {shown(kind)}" for (kind, gpus), count in kinds.items()]
    more = len(parts) - 6
    return ", ".join(parts[:6]) + (f" and {more} other kinds" if more > 0 else "")


def _table(figures: Sequence[Figures]) -> str:
    heads = "".join(
        f'<th scope="col"><i class="key p{k % PALETTE}"></i>{shown(one.policy)}</th>'
        for k, one in enumerate(figures)
    )
    lines = []
    for name, label in ROWS:
        values = [getattr(one, name) for one in figures]
        best = min(values) if len(figures) > 1 and name != "utilisation" else None
        cells = "".join(
            f"<td{' class=best' if value == best else ''}>{_figure(name, value)}</td>"
            for value in values
        )
        lines.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    note = '<p class="note">Bold: the least of a row.</p>' if len(figures) > 1 else ""
    return (
        f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{note}"
    )


def _figure(name: str, value: float) -> str:
    if name.startswith("decide"):
        return f"{1000 * value:.1f} ms"
    if name.endswith("_s"):
        return f'{duration(value)} <span class="unit">{value:,.0f} s</span>'
    if name == "utilisation":
        return f"{value:.0%}"
    return f"{value:,.0f}" if name == "gpu_hours" else f"{value:.2f}"


def _legend(runs: Sequence[Run]) -> str:
    keys = "".join(
        f'<li><i class="key p{k % PALETTE}"></i>{shown(run.policy)}</li>'
        for k, run in enumerate(runs)
    )
    return f'<ul class="legend">{keys}</ul>'


def _side_by_side(runs: Sequence[Run], drawings: Sequence[str]) -> str:
    cards = "".join(
        f'<figure><figcaption><i class="key p{k % PALETTE}"></i>{shown(run.policy)}</figcaption>'
        f"{drawing}</figure>"
        for k, (run, drawing) in enumerate(zip(runs, drawings, strict=True))
    )
    return f'<div class="cards">{cards}</div>'


def _jobs(runs: Sequence[Run]) -> str:
    """Every job's completion time under each policy, folded away."""
    first = runs[0]
    heads = "".join(f'<th scope="col">{shown(run.policy)}</th>' for run in runs)
    lines = []
    named = list(zip(labels(first.jobs), range(len(first.jobs)), strict=True))
    for label, at in named[:MOST_LISTED]:
        times = "".join(f"<td>{duration(completion_seconds(run.jobs[at]))}</td>" for run in runs)
        job = first.jobs[at].trace
        lines.append(
            f'<tr><th scope="row">{shown(label)}</th><td>{duration(job.submitted)}</td>'
            f"<td>{job.requested}</td>{times}</tr>"
        )
    left = len(named) - MOST_LISTED
    rest = f'<p class="note">{left:,} more jobs are not listed.</p>' if left > 0 else ""
    return (
        "<details><summary>Completion time of every job</summary>"
        '<div class="wide"><table><thead><tr><th>Job</th><th>Submitted</th><th>GPUs asked</th>'
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{rest}</details>"
    )
