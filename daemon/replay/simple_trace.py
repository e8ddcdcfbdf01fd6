"""The project's own trace: a CSV that a shell script can write.

    submitted,name,user,gpus,duration_s,sizes,account,gpu_type,declared,
    time_limit_s,partition,qos,reservation,nodes,memory_mib,licenses

`sizes` and what follows may be left out: without sizes a job is rigid, without a GPU type it runs
on any, without nodes on as few as hold its GPUs. Licences are as in `matlab:2;ansys`, memory is of
all nodes. `duration_s` is its run time on `gpus` GPUs; other
sizes follow Amdahl's law.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ones.daemon.replay.faults import quoted
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.tables import Row, rows
from ones.daemon.replay.workload import TraceJob
from ones.policies.sizes import MOST_GPUS, Sizes
from ones.slurm_ext.tres import licenses_in

COLUMNS = ("submitted", "name", "user", "gpus", "duration_s")
ANSWERS = {"": True, "yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def jobs(path: Path, text: str) -> Iterator[tuple[Row, TraceJob]]:
    """Raises TraceError."""
    for row in rows(path, COLUMNS, text=text):
        gpus = row.count("gpus", least=1, most=MOST_GPUS)
        sizes = Sizes((gpus,))
        if row.has("sizes"):
            try:
                sizes = Sizes.parse(row.text("sizes"))
            except ValueError as fault:
                raise row.fault("sizes", str(fault)) from None
            if gpus not in sizes:
                raise row.fault("sizes", f"{sizes} does not hold the {gpus} GPUs of column gpus")
        said = row.cells.get("declared", "").strip().lower()
        if said not in ANSWERS:
            raise row.fault("declared", f"'{said}' is not yes or no")
        kinds = frozenset(row.cells.get("gpu_type", "").split("|")) - {""}
        name = row.text("name")
        yield (
            row,
            TraceJob(
                name=name,
                user=row.text("user"),
                family=name,
                account=row.cells.get("account", "").strip(),
                submitted=row.number("submitted", least=0.0),
                application=Recorded(
                    name=name,
                    gpus=gpus,
                    seconds=row.number("duration_s", least=1e-3, most=1e9),
                    sizes=sizes,
                    gpu_types=kinds,
                ),
                requested=gpus,
                batch=None,
                sizes=sizes,
                gpu_types=kinds or None,
                declared=ANSWERS[said],
                time_limit=(
                    row.number("time_limit_s", least=1.0, most=1e9)
                    if row.has("time_limit_s")
                    else None
                ),
                partition=row.cells.get("partition", "").strip(),
                qos=row.cells.get("qos", "").strip(),
                reservation=row.cells.get("reservation", "").strip(),
                nodes=row.count("nodes", least=1, most=gpus) if row.has("nodes") else 0,
                memory=row.number("memory_mib", least=0.0) if row.has("memory_mib") else 0.0,
                licenses=_licenses(row),
            ),
        )


def _licenses(row: Row) -> tuple[tuple[str, int], ...]:
    text = row.cells.get("licenses", "").strip()
    found = licenses_in(text.replace(";", ","))
    if found is None:
        raise row.fault("licenses", f"{quoted(text)} is not a list such as matlab:2;ansys")
    return (*found.items(),)
