"""The drawings of a report, as SVG that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

import numpy as np

from ones.daemon.replay.figures import completion_seconds, labels
from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import Run
from ones.policies.model import Seconds

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
PALETTE = 8  # colours for policies; then they repeat
SHADES = (
    (1, "1"),
    (2, "2"),
    (4, "3-4"),
    (8, "5-8"),
    (16, "9-16"),
    (32, "17-32"),
    (0, "33 and more"),
)
LEFT, RIGHT, TOP, BOTTOM = 46.0, 22.0, 10.0, 26.0
TICKS = (
    (1, (1, 2, 5, 10, 20, 30)),
    (60, (1, 2, 5, 10, 20, 30)),
    (3600, (1, 2, 4, 6, 12)),
    (86400, (1, 2, 5, 10, 30, 100, 365)),
)
TICK_SECONDS = tuple(unit * step for unit, steps in TICKS for step in steps)

STYLE = (
    """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;
--card:#f6f8fa;--p0:#0969da;--p1:#bc4c00;--p2:#1a7f37;--p3:#8250df;--p4:#bf3989;--p5:#9a6700;
--p6:#0f7b83;--p7:#57606a;--wait:#c3c9d0;--g0:#9dc6f3;--g1:#7db2ec;--g2:#579ae3;--g3:#3a83d6;
--g4:#1f65b5;--g5:#134a8a;--g6:#0b305c}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9198a1;
--line:#343b44;--card:#151b23;--p0:#58a6ff;--p1:#f0883e;--p2:#3fb950;--p3:#bc8cff;--p4:#f778ba;
--p5:#e3b341;--p6:#39c5cf;--p7:#9198a1;--wait:#4a525c;--g0:#16365c;--g1:#1c4a80;--g2:#2462a8;
--g3:#3a80cf;--g4:#62a1e8;--g5:#94c1f3;--g6:#cfe3fb}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1320px;margin:0 auto;padding:24px 20px 60px}h1{font-size:24px;margin:0 0 4px;
overflow-wrap:anywhere}h2{font-size:18px;margin:36px 0 2px}p{margin:2px 0 10px;color:var(--soft)}
.lead{margin-bottom:18px}.note{font-size:13px}figure{margin:0;background:var(--card);
border:1px solid var(--line);border-radius:8px;padding:10px;min-width:0}
figcaption{font-weight:600;margin:0 0 6px;overflow-wrap:anywhere}
.cards{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr))}
.cards figure{max-width:760px}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);stroke-width:1;fill:none}
.key{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;
vertical-align:-1px}.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;
margin:0 0 8px;font-size:13px}.wide{overflow-x:auto}table{border-collapse:collapse;
font-variant-numeric:tabular-nums}th,td{padding:5px 22px 5px 0;text-align:right;
border-bottom:1px solid var(--line);white-space:nowrap}th:first-child{text-align:left;
font-weight:400;max-width:420px;overflow:hidden;text-overflow:ellipsis}
thead th{font-weight:600}.best{font-weight:700}.unit{color:var(--soft);font-weight:400;
font-size:12px;margin-left:4px}details{margin-top:36px}summary{cursor:pointer;font-weight:600}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}.wait{fill:var(--wait)}.waits{background:var(--wait)}
g.job:hover rect.row{fill:var(--ink);opacity:.12}rect.row{fill:transparent}
"""
    + "".join(
        f".p{k}{{background:var(--p{k})}}path.p{k}{{stroke:var(--p{k})}}"
        f"path.a{k}{{fill:var(--p{k});opacity:.75}}"
        for k in range(PALETTE)
    )
    + "".join(f".g{k}{{fill:var(--g{k});background:var(--g{k})}}" for k in range(len(SHADES)))
)


def shown(text: str) -> str:
    """Foreign text as the page may hold it: escaped, on one line, of bearable length."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return escape(plain if len(plain) <= 80 else plain[:79] + "…")


def completion_times(runs: Sequence[Run]) -> str:
    """The distribution of completion times of each run, time on a logarithmic axis."""
    width, height = 1000.0, 360.0
    every = [sorted(max(completion_seconds(job), 1.0) for job in run.jobs) for run in runs]
    ticks = _axis(min(times[0] for times in every), max(times[-1] for times in every))
    low, high = ticks[0], ticks[-1]

    def x(seconds: Seconds) -> float:
        share = (log10(seconds) - log10(low)) / (log10(high) - log10(low))
        return LEFT + share * (width - LEFT - RIGHT)

    def y(share: float) -> float:
        return height - BOTTOM - share * (height - TOP - BOTTOM)

    parts = [_grid_line(x(at), TOP, height - BOTTOM, across=False, text=_time(at)) for at in ticks]
    parts += [
        _grid_line(y(share), LEFT, width - RIGHT, across=True, text=f"{share:.0%}")
        for share in (0, 0.25, 0.5, 0.75, 0.9, 1.0)
    ]
    for k, (run, times) in enumerate(zip(runs, every, strict=True)):
        steps = [f"M{x(low):.1f} {y(0):.1f}"]
        for number, at in enumerate(times, start=1):
            steps.append(f"H{x(at):.1f}V{y(number / len(times)):.1f}")
        dash = ' stroke-dasharray="7 4"' if k >= PALETTE else ""
        parts.append(
            f'<path class="curve p{k % PALETTE}"{dash} d="{"".join(steps)}H{x(high):.1f}">'
            f"<title>{shown(run.policy)}</title></path>"
        )
    return _svg(width, height, parts, "Distribution of completion times")


def gpus_in_use(run: Run, gpus: int, end: Seconds, number: int) -> str:
    """GPUs held over time: the mean of each of some hundred intervals."""
    width, height, bins = 560.0, 190.0, 256
    edges = np.linspace(0.0, end, bins + 1)
    changes = sorted(_changes(run))
    times = np.array([at for at, _ in changes])
    held = np.cumsum([more for _, more in changes])
    # GPU-seconds up to a time, of which the mean over an interval is the difference
    total = np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(times))])
    at = np.searchsorted(times, edges, side="right") - 1
    upto = np.where(at >= 0, total[at] + held[at] * (edges - times[at]), 0.0)
    means = np.diff(upto) / np.maximum(np.diff(edges), 1e-9)

    def y(count: float) -> float:
        return height - BOTTOM - count / gpus * (height - TOP - BOTTOM)

    parts = list(_times_below(width, height, end))
    parts += [
        _grid_line(y(count), LEFT, width - RIGHT, across=True, text=f"{count:g}")
        for count in sorted({0, gpus / 2 if gpus % 2 == 0 else 0, gpus})
    ]
    points = [f"M{LEFT:.1f} {y(0):.1f}"]
    step = (width - LEFT - RIGHT) / bins
    for k, mean in enumerate(means):
        points.append(f"V{y(float(mean)):.1f}H{LEFT + (k + 1) * step:.1f}")
    parts.append(f'<path class="a{number % PALETTE}" d="{"".join(points)}V{y(0):.1f}Z"/>')
    return _svg(width, height, parts, f"GPUs in use under {run.policy}")


def gpus_of_jobs(run: Run, end: Seconds) -> str:
    """A line a job from its submission to its end, shaded by the GPUs that it holds."""
    width, jobs = 560.0, len(run.jobs)
    line = min(max(900.0 / jobs, 0.35), 12.0)
    height = TOP + BOTTOM + line * jobs
    each = (width - LEFT - RIGHT) / max(end, 1e-9)
    named = zip(labels(run.jobs), run.jobs, strict=True)
    order = sorted(named, key=lambda one: (one[1].trace.submitted, one[1].id))
    parts = list(_times_below(width, height, end))
    for row, (label, job) in enumerate(order):
        top = TOP + row * line
        spans: dict[str, list[str]] = {}
        for begun, ended, gpus in _spans(job):
            shade = "wait" if gpus == 0 else f"g{_shade(gpus)}"
            thick = line * (0.25 if gpus == 0 else 0.9)
            wide = max((ended - begun) * each, 0.8)  # else nobody would see it
            spans.setdefault(shade, []).append(
                f"M{LEFT + begun * each:.1f} {top + (line - thick) / 2:.2f}"
                f"h{wide:.1f}v{thick:.2f}h{-wide:.1f}z"
            )
        paths = "".join(f'<path class="{shade}" d="{"".join(d)}"/>' for shade, d in spans.items())
        most = max((gpus for _, gpus in job.sizes), default=0)
        parts.append(
            f'<g class="job"><title>{shown(label)}: done in'
            f" {_time(completion_seconds(job))}, {job.resizes} changes, at most {most} GPUs"
            f'</title><rect class="row" x="{LEFT}" y="{top:.2f}" width="{width - LEFT - RIGHT}"'
            f' height="{line:.2f}"/>{paths}</g>'
        )
    step = _nice(jobs / 5)
    for count in range(0, jobs, step):
        y = TOP + (count + 0.5) * line
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count + 1}</text>')
    return _svg(width, height, parts, f"GPUs of each job under {run.policy}")


def gpu_legend() -> str:
    """What the shades of `gpus_of_jobs` mean."""
    keys = "".join(f'<li><i class="key g{k}"></i>{text}</li>' for k, (_, text) in enumerate(SHADES))
    return f'<ul class="legend"><li><i class="key waits"></i>waiting</li><li>GPUs:</li>{keys}</ul>'


def _changes(run: Run) -> Iterator[tuple[Seconds, int]]:
    yield 0.0, 0
    for job in run.jobs:
        before = 0
        for at, gpus in job.sizes:
            yield at, gpus - before
            before = gpus


def _spans(job: SimulatedJob) -> Iterator[tuple[Seconds, Seconds, int]]:
    """From, to and GPUs of each stretch of a job's life; those of equal shade put together."""
    begun, held = job.trace.submitted, 0
    for at, gpus in job.sizes:
        if gpus == held or (gpus and held and _shade(gpus) == _shade(held)):
            continue
        if at > begun:
            yield begun, at, held
        begun, held = at, gpus


def _shade(gpus: int) -> int:
    return next((k for k, (most, _) in enumerate(SHADES) if gpus <= most), len(SHADES) - 1)


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{shown(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _grid_line(at: float, begin: float, end: float, *, across: bool, text: str) -> str:
    """A line of the grid across the drawing or down it, with its label at the axis."""
    if across:
        return (
            f'<path class="grid" d="M{begin:.1f} {at:.1f}H{end:.1f}"/>'
            f'<text x="{begin - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return (
        f'<path class="grid" d="M{at:.1f} {begin:.1f}V{end:.1f}"/>'
        f'<text x="{at:.1f}" y="{end + 16:.1f}" text-anchor="middle">{text}</text>'
    )


def _times_below(width: float, height: float, end: Seconds) -> Iterator[str]:
    """The time axis, from the start of the trace."""
    step = next((one for one in TICK_SECONDS if end / one <= 7), ceil(end / 7))
    unit, name = next((one for one in UNITS if step >= one[0]), UNITS[-1])
    for number in range(floor(end / step) + 1):
        x = LEFT + number * step / max(end, 1e-9) * (width - LEFT - RIGHT)
        text = f"{round(number * step / unit, 1):g} {name}" if number else "0"
        yield _grid_line(x, TOP, height - BOTTOM, across=False, text=text)


def _axis(low: Seconds, high: Seconds) -> list[Seconds]:
    """Ticks of a logarithmic time axis, about ten, the ends beyond the data included."""
    ticks = [float(one) for one in TICK_SECONDS]
    first = max((k for k, one in enumerate(ticks) if one <= low), default=0)
    last = min((k for k, one in enumerate(ticks) if one >= high), default=len(ticks) - 1)
    chosen = ticks[first : last + 1]
    every = ceil(len(chosen) / 12)
    return sorted({chosen[0], *chosen[::every], chosen[-1]}) if len(chosen) > 1 else [1.0, 60.0]


def _nice(least: float) -> int:
    """1, 2 or 5 times a power of ten, not less than this."""
    power = 10 ** floor(log10(max(least, 1.0)))
    return int(next(times * power for times in (1, 2, 5, 10) if times * power >= least))


def _time(seconds: Seconds) -> str:
    unit, name = next((one for one in UNITS if seconds >= one[0]), UNITS[-1])
    return f"{round(seconds / unit, 1):g} {name}"
