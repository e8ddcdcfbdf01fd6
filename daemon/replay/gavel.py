"""Gavel's job traces (OSDI20) with its table of measured throughputs."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.recorded import EPOCH, equal_epochs, one_batch
from ones.daemon.replay.tables import Row, rows, text_of
from ones.daemon.replay.workload import OutsideProfile, Step, TraceJob
from ones.policies.model import Batch, Floats, Seconds
from ones.policies.sizes import Sizes

FILE = "simulation_throughputs.json"
APART = "_unconsolidated"  # ends the worker type where a job's GPUs are on different servers
WITH_PRIORITIES = (
    "type",
    "command",
    "folder",
    "steps_name",
    "needs_data",
    "steps",
    "gpus",
    "priority",
    "slo",
    "submitted",
)
WITHOUT_FOLDER = tuple(name for name in WITH_PRIORITIES if name != "folder")
WITHOUT = ("type", "command", "steps_name", "needs_data", "steps", "submitted", "gpus")
COLUMNS = {len(names): names for names in (WITH_PRIORITIES, WITHOUT_FOLDER, WITHOUT)}
Rates = Mapping[tuple[str, int], Mapping[str, float]]  # (job type, GPUs) -> worker type -> steps/s


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """A rigid job with its measured steps a second on every GPU type, together and apart."""

    name: str
    gpus: int
    sizes: Sizes
    together: Mapping[str, float]
    apart: Mapping[str, float]
    batches: Batch
    epochs: Floats
    restart_seconds: Seconds | None = None

    @property
    def gpu_types(self) -> frozenset[str]:
        found = {**self.apart, **self.together}
        return frozenset(kind for kind in found if self._best(kind) > 0)

    def runs_on(self, gpu_type: str) -> bool:
        return self._best(gpu_type) > 0

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        rates = self.together if len(gpus_on) == 1 else self.apart
        rate = rates.get(gpu_type, 0.0)
        if rate <= 0 or sum(gpus_on) != self.gpus:
            raise OutsideProfile(
                f"{self.name} was not measured on {'+'.join(map(str, gpus_on))} GPUs of {gpu_type}"
            )
        return Step(seconds=local_batch * self.gpus / self.batches.submitted / rate, sync=0.0)

    def gradient(self, batch: float, epoch: int) -> None:
        """Nothing is known of it: every sample counts fully."""

    def _best(self, kind: str) -> float:
        return max(self.together.get(kind, 0.0), self.apart.get(kind, 0.0))


def is_gavel(text: str) -> bool:
    """Whether the first line has the columns of one of the two forms of the trace."""
    return text.split("\n", 1)[0].count("\t") + 1 in COLUMNS


def jobs(
    path: Path, text: str, profiles: Path | None, note: Callable[[str], None]
) -> Iterator[tuple[Row, TraceJob]]:
    """The jobs with their lines. Raises TraceError."""
    if profiles is None:
        raise TraceError(path, f"names job types; --profiles names Gavel's {FILE} or its folder")
    rates = throughputs(profiles / FILE if profiles.is_dir() else profiles)
    names = COLUMNS[text.split("\n", 1)[0].count("\t") + 1]
    table = "\t".join(names) + "\n" + text
    stretched = 0
    lines = rows(path, names, text=table, delimiter="\t", quoting=False)
    for number, line in enumerate(lines):
        row = Row(path, line.line - 1, line.cells)  # the trace has no heading
        kind, gpus = row.text("type"), row.count("gpus", least=1, most=65536)
        steps = row.number("steps", least=1)
        application = _application(row, kind, gpus, steps, rates)
        stretched += gpus > _largest(kind, rates)
        yield (
            row,
            TraceJob(
                name=f"job-{number}",
                user="gavel",
                family=kind,
                account="",
                submitted=row.number("submitted", least=0.0),
                application=application,
                requested=gpus,
                batch=None,
                sizes=application.sizes,
            ),
        )
    if stretched:
        note(
            f"{path}: {stretched} jobs are wider than any measured; they are taken to be as fast"
            " a GPU as the widest measured"
        )


def _largest(kind: str, rates: Rates) -> int:
    return max((gpus for name, gpus in rates if name == kind), default=0)


def _application(row: Row, kind: str, gpus: int, steps: float, rates: Rates) -> Measured:
    largest = _largest(kind, rates)
    if not largest:
        known = ", ".join(sorted({name for name, _ in rates})[:5])
        raise row.fault("type", f"{quoted(kind)} has no throughputs; there are {known}, ...")
    found = rates.get((kind, min(gpus, largest)))
    if found is None:
        raise row.fault("gpus", f"{quoted(kind)} was not measured on {gpus} GPUs")
    times = gpus / min(gpus, largest)
    together = {name: rate * times for name, rate in found.items() if not name.endswith(APART)}
    apart = {
        name.removesuffix(APART): rate * times
        for name, rate in found.items()
        if name.endswith(APART)
    }
    best = max([*together.values(), *apart.values()])
    if best <= 0:
        raise row.fault("type", f"{quoted(kind)} runs on no GPU type on {gpus} GPUs")
    return Measured(
        name=kind,
        gpus=gpus,
        sizes=Sizes((gpus,)),
        together=together,
        apart=apart,
        batches=one_batch(gpus, Sizes((gpus,))),
        epochs=equal_epochs(steps, best * EPOCH),
    )


def throughputs(file: Path) -> Rates:
    """Steps a second of each job type alone, by worker type. Raises TraceError."""
    try:
        table = json.loads(text_of(file))
    except json.JSONDecodeError as fault:
        raise TraceError(file, f"is not JSON: {fault.msg}", line=fault.lineno) from None
    except ValueError as fault:  # a number of too many digits
        raise TraceError(file, f"is not JSON: {fault}") from None
    except RecursionError:
        raise TraceError(file, "is nested too deeply to be a table of throughputs") from None
    if not isinstance(table, dict) or not table:
        raise TraceError(file, "is no table of throughputs by worker type")
    found: dict[tuple[str, int], dict[str, float]] = {}
    for worker, entries in table.items():
        if not isinstance(entries, dict):
            raise TraceError(file, f"worker type {quoted(worker)} has no job types")
        for key, rates in entries.items():
            rate = rates.get("null") if isinstance(rates, dict) else None
            if not _is_rate(rate):
                raise TraceError(
                    file, f"{quoted(worker)}, {quoted(key)}: no throughput of the job alone"
                )
            found.setdefault(_job_type(file, key), {})[worker] = rate
    return found


def _is_rate(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _job_type(file: Path, key: str) -> tuple[str, int]:
    """`('ResNet-18 (batch size 16)', 2)`, or a job type alone, which then is on one GPU."""
    if not key.startswith("("):
        return key, 1
    try:
        name, gpus = ast.literal_eval(key)
        if isinstance(name, str) and isinstance(gpus, int) and gpus > 0:
            return name, gpus
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    raise TraceError(file, f"{quoted(key)} is not ('job type', GPUs)")
