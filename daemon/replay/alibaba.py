"""The task list of Alibaba's heterogeneous cluster of 2023 (`openb_pod_list_*.csv`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.tables import Row, rows
from ones.daemon.replay.workload import TraceJob
from ones.policies.sizes import Sizes

COLUMNS = (
    "name",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)


def jobs(path: Path, text: str, note: Callable[[str], None]) -> Iterator[tuple[Row, TraceJob]]:
    """The tasks with GPUs that ran, rigid. Raises TraceError."""
    without, never, shared = 0, 0, 0
    for row in rows(path, COLUMNS, text=text):
        gpus = row.count("num_gpu", most=65536)
        if not gpus:
            without += 1
            continue
        if not row.has("scheduled_time"):
            never += 1
            continue
        created = row.number("creation_time", least=0.0)
        scheduled = row.number("scheduled_time", least=created)
        seconds = row.number("deletion_time", least=scheduled) - scheduled
        if not seconds:
            never += 1
            continue
        shared += gpus == 1 and row.number("gpu_milli", least=0.0) < 1000
        kinds = frozenset(row.cells["gpu_spec"].strip().split("|")) - {""}
        quality = row.text("qos")
        application = Recorded(
            name=f"{quality}, {gpus} GPUs",
            gpus=gpus,
            seconds=seconds,
            sizes=Sizes((gpus,)),
            gpu_types=kinds,
        )
        yield (
            row,
            TraceJob(
                name=row.text("name"),
                user="alibaba",
                family=application.name,  # nothing else in the trace tells tasks apart
                account=quality,
                submitted=created,
                application=application,
                requested=gpus,
                batch=None,
                sizes=application.sizes,
                gpu_types=kinds or None,
                declared=False,
            ),
        )
    for count, what in (
        (without, "without a GPU are left out"),
        (never, "that never ran are left out"),
        (shared, "of less than a GPU get a whole one"),
    ):
        if count:
            note(f"{path}: {count} tasks {what}")
