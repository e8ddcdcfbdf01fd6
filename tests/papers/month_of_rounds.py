"""A month of onesd's life on a busy cluster, day by day: memory, database, CPU.

Called by scripts/benchmark-scale --month. In each round jobs end, and others come in their place;
agents report once; the page remembers the round as it does where nobody looks, and is drawn whole
once an hour. Memory is that of the whole process, the simulated Slurm included, whose accounting
forgets what is older than a day.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

from busy_cluster import Busy

from ones.daemon.config import Config
from ones.daemon.onesd.page.rendering import Rendering

DAY, HOUR = 86400.0, 3600.0
CHANGING = 0.004  # of the jobs, from one round to the next
COLUMNS = {
    "day": "day",
    "rounds": "rounds",
    "submitted": "jobs that came",
    "cpu_s": "CPU s",
    "round_ms": "ms a round",
    "memory_mib": "memory MiB",
    "database_mib": "database MiB",
    "in_use_mib": "of it in use",
}
Row = dict[str, float]


def month(
    folder: Path,
    *,
    nodes: int,
    jobs: int,
    days: int,
    config: Config,
    told: Callable[[Row], None],
) -> list[Row]:
    """A row for each day, which `told` is told as soon as the day is over."""
    site = Busy(folder, nodes=nodes, jobs=jobs, config=config, changing=CHANGING)
    page = Rendering(site.onesd.service)
    state = site.cluster.world.state
    a_day, an_hour = round(DAY / config.round), round(HOUR / config.round)
    rows: list[Row] = []
    for day in range(1, days + 1):
        spent, came, of_rounds = process_time(), state.next_id, 0.0
        for number in range(a_day):
            site.cluster.turnover()
            of_rounds += site.one_round()["round"]
            page.take()
            if number % an_hour == 0:
                page.for_viewer(page.picture(page.outline()), None)
        site.forget_ticks()
        state.accounting.purge(before=state.now - DAY)
        row: Row = {
            "day": day,
            "rounds": site.onesd.service.published.number,
            "submitted": state.next_id - came,
            "cpu_s": round(process_time() - spent, 1),
            "round_ms": round(1000 * of_rounds / a_day, 1),
            "memory_mib": round(_resident() / 2**20, 1),
            "database_mib": round(site.store.size() / 2**20, 2),
            "in_use_mib": round(site.store.used() / 2**20, 2),
        }
        rows.append(row)
        told(row)
    site.close()
    return rows


def month_head() -> str:
    """The first two lines of the Markdown table."""
    return "| " + " | ".join(COLUMNS.values()) + " |\n" + "|---" * len(COLUMNS) + "|"


def month_line(row: Row) -> str:
    return "| " + " | ".join(f"{row[name]:,}" for name in COLUMNS) + " |"


def _resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
