"""The workloads of Pollux and Sia: jobs that name an application of a folder of profiles."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.profiles import Profile, known, load
from ones.daemon.replay.tables import Row, rows
from ones.daemon.replay.workload import TraceJob

LONGEST_NAME = 255  # bytes of a file's or folder's name
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def jobs(
    path: Path, text: str, folder: Path | None, gpu_types: Collection[str] | None
) -> Iterator[tuple[Row, TraceJob]]:
    """Jobs of any size that their application was measured at. Raises TraceError."""
    if folder is None:
        raise TraceError(path, "names applications; --profiles DIR tells how they train")
    applications: dict[str, Profile] = {}
    for row in rows(path, COLUMNS, text=text):
        name = row.text("application")
        if name not in applications:
            if not _is_folder_name(name) or not (folder / name).is_dir():
                there = ", ".join(known(folder)) or "none"
                raise row.fault(
                    "application", f"{quoted(name)} has no profile in {folder}; it has {there}"
                )
            applications.update(load(folder, [name], gpu_types=gpu_types))
        application = applications[name]
        batch = row.count("batch_size", least=1)
        most = application.batches.most
        if not application.batches.reference <= batch <= most:
            raise row.fault(
                "batch_size",
                f"'{batch}' is outside of what was measured of {name},"
                f" {application.batches.reference} to {most}",
            )
        yield (
            row,
            TraceJob(
                name=row.text("name"),
                user="trace",
                family=name,
                account="",
                submitted=row.number("time", least=0.0),
                application=application,
                requested=min(row.count("num_replicas", least=1), application.sizes.most),
                batch=batch,
                sizes=application.sizes,
            ),
        )


def _is_folder_name(name: str) -> bool:
    fits = len(name.encode()) <= LONGEST_NAME
    return fits and name not in (".", "..") and not {"/", "\\", "\0"} & set(name)
