"""From one size of cluster to the next: what each step of a round costs, and with which power.

Called by scripts/benchmark-scale --curve. Each size is measured in a process of its own, so that
memory is that size's. The power is log(ratio of CPU) / log(ratio of size), where the size is what
grew more of nodes and jobs: with steps that cost so much a node and so much a job it is 1 at most.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import log
from typing import Any

from busy_cluster import STEPS

Size = tuple[int, int]  # nodes of eight GPUs, jobs
Found = Mapping[str, Any]  # what --json prints of one size

BOTH: tuple[Size, ...] = (
    *((8, 40), (32, 250), (128, 1000), (320, 2500), (640, 5000), (1280, 10_000)),
    *((3200, 20_000), (6400, 30_000), (12_800, 40_000)),
)
MORE_JOBS: tuple[Size, ...] = ((640, 2500), (640, 5000), (640, 10_000), (640, 20_000))
MORE_NODES: tuple[Size, ...] = ((320, 5000), (640, 5000), (1280, 5000), (2560, 5000))
CURVES = {"both": BOTH, "jobs": MORE_JOBS, "nodes": MORE_NODES}
LEAST = 0.002  # seconds; of less a power says nothing


def curve(sizes: Sequence[Size], measure: Callable[[Size], Found]) -> Iterator[str]:
    """Lines of a Markdown table, each as soon as it is known: of each size the CPU seconds, medians
    but for the worst round, and below them the powers since the size before."""
    head = ["nodes", "GPUs", "jobs", "round", "worst", *STEPS, "tick", "set-up", "MiB"]
    yield _line(head)
    yield _line(["---"] * len(head))
    before: Found | None = None
    for size in sizes:
        found = _apart(measure, size)
        if before is not None:
            grew = growth(before, found)
            powers = [power(a, b, grew) for a, b in zip(_costs(before), _costs(found), strict=True)]
            yield _line(["", "", "", *("" if each is None else f"^{each:.2f}" for each in powers)])
        name = [f"{found[key]:,}" for key in ("nodes", "gpus", "jobs")]
        *costs, memory = _costs(found)
        yield _line([*name, *(f"{each:.3f}" for each in costs), f"{memory:,.0f}"])
        before = found


def growth(before: Found, after: Found) -> float:
    """How many times as large, by what grew more of nodes and jobs."""
    ratios: list[float] = [after[key] / before[key] for key in ("nodes", "jobs")]
    return max(ratios)


def power(before: float, after: float, grew: float) -> float | None:
    """The power of the size with which the cost grew; None where that can't be said."""
    if min(before, after) < LEAST or grew <= 1.0:
        return None
    return log(after / before) / log(grew)


def _costs(found: Found) -> list[float]:
    steps = [found["steps"][step][0] for step in STEPS]
    return [
        *(found["round_median_s"], found["round_worst_s"], *steps),
        *(found["tick_median_s"], found["setup_s"], found["memory_mib"]),
    ]


def _apart(measure: Callable[[Size], Found], size: Size) -> Found:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as process:
        return process.submit(measure, size).result()


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
