"""Replays drawn: one HTML file that stands alone, with its data and the page's own drawings."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from html import escape
from math import ceil
from typing import Any

import numpy as np

from ones.daemon.replay.curves import Curve, gpus_held, jobs_waiting
from ones.daemon.replay.figures import Figures, completion_seconds, labels, remarks
from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import Run
from ones.daemon.web import files
from ones.daemon.web.bundle import bundle
from ones.daemon.web.readable import readable
from ones.policies.model import Node
from ones.policies.words import counted

# Bounds of what a report holds, which keep it below some ten MiB whatever was replayed.
MOST_ROWS = 60_000  # jobs times policies that are drawn; figures and curves count all jobs
MOST_CHANGES = 400_000  # of sizes, of all jobs under all policies
FEWEST_CHANGES = 4  # of one job under one policy, its end included, even then
MOST_COMPLETIONS = 400  # points of the distribution of completion times
MOST_NOTES = 20  # on jobs that were left out of plans
LONGEST_NAME = 80  # characters
LONGEST_SHOWN = 200  # of them, where hidden ones are spelt out


def page(runs: Sequence[Run], nodes: Sequence[Node], *, trace: str) -> str:
    """The whole report. All runs are of the same trace on the same cluster."""
    data = json.dumps(_data(runs, nodes, trace), ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # in which no script ends
    script = f'"use strict";\n{bundle("report")}\n'
    style = files.read("style.css").decode() + files.read("report.css").decode()
    icon = b64encode(files.read("icon.svg")).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">
<title>Replay of {escape(_shown(trace))}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body class="report">
<noscript>This report needs JavaScript; <code>onesctl replay</code> prints the figures.</noscript>
<script type="application/json" id="replay">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _policy(script: str, style: str) -> str:
    """Only what stands in the file runs, nothing is fetched, and no text becomes markup."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _data(runs: Sequence[Run], nodes: Sequence[Node], trace: str) -> dict[str, Any]:
    """What daemon/web/static/runs.js reads; times in whole seconds."""
    jobs = runs[0].jobs
    drawn = min(len(jobs), MOST_ROWS // len(runs))
    texts = _Texts()
    most = _most_changes(runs, drawn)
    figures = [Figures.of(run) for run in runs]
    return {
        "trace": _shown(trace),
        "cluster": _cluster(nodes),
        "gpus": sum(node.gpus for node in nodes),
        "jobs_in_all": len(jobs),
        "coarse": most - 1 if most else 0,  # all but a job's last change begin a stretch
        "end": max(1, ceil(max(one.makespan_s for one in figures))),
        "jobs": [
            _job(job, label, texts) for job, label in zip(jobs[:drawn], labels(jobs), strict=False)
        ],
        "texts": texts.all,
        "runs": [
            {
                "policy": _shown(run.policy),
                "notes": _notes(run),
                "figures": {name: value for name, value in asdict(one).items() if name != "policy"},
                "jobs": [_lived(job, most) for job in run.jobs[:drawn]],
                "completions": _completions(run),
                "busy": _curve(gpus_held(run)),
                "waiting": _curve(jobs_waiting(run)),
            }
            for run, one in zip(runs, figures, strict=True)
        ],
    }


class _Texts:
    """Texts that many jobs share, each once."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._number.setdefault(_shown(text), len(self._number))

    @property
    def all(self) -> list[str]:
        return list(self._number)


def _shown(text: str, *, longest: int = LONGEST_NAME) -> str:
    return readable(readable(text, longest=longest), longest=max(LONGEST_SHOWN, longest))


def _job(job: SimulatedJob, label: str, texts: _Texts) -> list[Any]:
    trace = job.trace
    shared = (texts.number(text) for text in (trace.family, trace.user, trace.account))
    submitted = round(trace.submitted)
    return [_shown(label), *shared, submitted, trace.requested, texts.number(str(trace.sizes))]


def _lived(job: SimulatedJob, most: int | None) -> list[Any]:
    """When a job ended, how long it waited, its moves, and [seconds, GPUs, ...].

    Before these 1 where its time limit ended it, else 0.
    """
    changes: list[int] = []
    at = round(job.trace.submitted)
    for change, gpus in _changes(job, most):
        changes += [round(change) - at, gpus]
        at = round(change)
    finished = round(job.finished or 0.0)
    return [finished, round(job.waited), job.resizes, int(job.at_limit), changes]


def _changes(job: SimulatedJob, most: int | None) -> list[tuple[float, int]]:
    """Where its GPUs become more or less; of too many, those that last longest."""
    found: list[tuple[float, int]] = []
    for at, gpus in job.sizes:
        if gpus != (found[-1][1] if found else 0):
            found.append((at, gpus))
    if most is None or len(found) <= most:
        return found
    *stretches, end = range(len(found))
    longest = sorted(stretches, key=lambda k: found[k][0] - found[k + 1][0])[: most - 1]
    return [found[k] for k in (*sorted(longest), end)]


def _most_changes(runs: Sequence[Run], drawn: int) -> int | None:
    """Of one job, so that all together are not too many; None: they aren't."""
    if sum(len(job.sizes) for run in runs for job in run.jobs[:drawn]) <= MOST_CHANGES:
        return None
    return max(FEWEST_CHANGES, MOST_CHANGES // (drawn * len(runs)))


def _completions(run: Run) -> list[float]:
    """Ascending, each for an equal share of the jobs."""
    times = np.array([completion_seconds(job) for job in run.jobs])
    count = min(len(times), MOST_COMPLETIONS)
    shares = np.arange(1, count + 1) / count
    found = np.quantile(times, shares, method="inverted_cdf")
    return [round(float(one), 1) for one in found]


def _curve(curve: Curve) -> list[Any]:
    """The seconds from each of its times to the next, and its values."""
    values = [int(one) if one == int(one) else one for one in curve.values]
    return [[int(one) for one in np.diff(curve.times, prepend=0)], values]


def _notes(run: Run) -> list[str]:
    told = [_shown(remark, longest=400) for remark in remarks(run)]
    more = len(told) - MOST_NOTES
    others = "1 more job was" if more == 1 else f"{more} more jobs were"
    return [*told[:MOST_NOTES], *([f"{others} left out"] if more > 0 else [])]


def _cluster(nodes: Sequence[Node]) -> str:
    kinds = Counter((node.gpu_type, node.gpus) for node in nodes)
    parts = [
        f"{counted(count, 'node')} × {gpus} {_shown(kind)}" for (kind, gpus), count in kinds.items()
    ]
    more = len(parts) - 6
    return ", ".join(parts[:6]) + (f" and {counted(more, 'other kind')}" if more > 0 else "")
