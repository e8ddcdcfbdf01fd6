"""Traces of jobs, of whatever kind: recognised by their content, read into one Workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from ones.daemon.replay import alibaba, gavel, named_jobs, simple_trace, slurm_records
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.tables import Row, text_of
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.model import Node

KINDS = (
    "workloads of Pollux and Sia, traces of Gavel, Alibaba's task list, sacct --json, sacct -P,"
    f" or a CSV with the columns {','.join(simple_trace.COLUMNS)}"
)
WIDTHS = ("num_replicas", "gpus", "num_gpu", "AllocTRES")  # the columns that hold a job's GPUs


def read(
    path: Path,
    *,
    profiles: Path | None = None,
    nodes: Sequence[Node] = (),
    gpu_types: Collection[str] | None = None,
    note: Callable[[str], None] = lambda text: None,
    text: str | None = None,
) -> Workload:
    """The jobs of a trace by submission, with what their training does.

    `text` is what stands in it, where that was read before. With `nodes` every job has to fit on
    them. `gpu_types` leaves out profiles of other types.
    `note` is told, in a line each, what was left out or assumed. Raises TraceError.
    """
    text = text_in(path) if text is None else text
    found = []
    for row, job in _jobs(path, text, profiles, gpu_types, note):
        _check_width(row, job, nodes)
        found.append(job)
    if not found:
        raise TraceError(path, "has no jobs that ran on GPUs")
    return Workload(tuple(sorted(found, key=lambda job: job.submitted)))


def text_in(path: Path) -> str:
    """What stands in a trace. Raises TraceError."""
    return text_of(path, lenient=slurm_records.is_records)


def _jobs(
    path: Path,
    text: str,
    profiles: Path | None,
    gpu_types: Collection[str] | None,
    note: Callable[[str], None],
) -> Iterator[tuple[Row, TraceJob]]:
    heading = text.split("\n", 1)[0].strip()
    columns = {name.strip().strip('"') for name in heading.split(",")}
    if not text.strip():
        raise TraceError(path, "is empty")
    if slurm_records.is_records(text):
        return slurm_records.jobs(path, text, note)
    if gavel.is_gavel(text):
        return gavel.jobs(path, text, profiles, note)
    if _mostly(columns, named_jobs.COLUMNS):
        return named_jobs.jobs(path, text, profiles, gpu_types)
    if _mostly(columns, alibaba.COLUMNS):
        return alibaba.jobs(path, text, note)
    if _mostly(columns, simple_trace.COLUMNS):
        return simple_trace.jobs(path, text)
    raise TraceError(path, f"is no trace that we know: {KINDS}", line=1)


def _mostly(columns: Collection[str], expected: Sequence[str]) -> bool:
    """So many that a missing one is better named than the whole file refused."""
    return len(set(expected) & set(columns)) > len(expected) / 2


def _check_width(row: Row, job: TraceJob, nodes: Sequence[Node]) -> None:
    if not nodes:
        return
    usable = [
        node.gpus
        for node in nodes
        if job.application.runs_on(node.gpu_type)
        and (job.gpu_types is None or node.gpu_type in job.gpu_types)
    ]
    if sum(usable) < job.sizes.least:
        column = next((name for name in WIDTHS if name in row.cells), "tres.allocated")
        of = "" if len(usable) == len(nodes) else " that it can run on"
        raise row.fault(
            column,
            f"job '{job.name[:60]}' needs {job.sizes.least} GPUs and the cluster has"
            f" {sum(usable)}{of}; take it out, or replay on a larger --cluster",
        )
