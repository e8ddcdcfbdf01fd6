"""Measured profiles of training jobs, as published with Pollux (OSDI21) and Sia (SOSP23).

A folder holds one folder an application: `placements.csv` and `scalability.csv` (Sia: one of each
for every GPU type, as `placements-TYPE.csv`) and `validation-B.csv` for each batch size B measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.stepping import Measured, StepTimes
from ones.daemon.replay.tables import Row, rows
from ones.daemon.replay.workload import Gradient, OutsideProfile, Step
from ones.policies.model import Batch, Floats, Seconds
from ones.policies.sizes import Sizes

# The rules of the two simulators that are not in their data.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
ONE_GPU = {"ncf": 32768}  # Pollux's world: one GPU, and this batch
POLLUX_MOST_LOCAL = {"yolov3": 8}
SIA_MOST_LOCAL = {("deepspeech2", "rtx"): 57}
SIA_RESTARTS: Mapping[str, Seconds] = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}
SIA_OTHER_RESTARTS: Seconds = 30.0
SIA_SLOWDOWNS = {  # by which real runs were slower than these profiles
    "cifar10": 1.8,
    "imagenet": 1.2,
    "yolov3": 1.2,
    "bert": 1.2,
    "deepspeech2": 1.2,
    "ncf": 1.5,
}
PIPELINED = ("_pmp",)  # its local batch is a microbatch of several stages, which we don't simulate


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Profile:
    """An application as it was measured; nothing is ever extrapolated."""

    name: str
    batches: Batch
    sizes: Sizes
    epochs: Floats
    restart_seconds: Seconds | None
    gpu_types: frozenset[str]  # empty: measured on one type, and taken to run alike on any
    times: Mapping[str, StepTimes]
    measured: tuple[int, ...]  # batch sizes, ascending
    statistics: Floats  # [batch size, epoch, (sqr, var)]
    _steps: dict[tuple[str, tuple[int, ...], int], Step | None] = field(default_factory=dict)
    _gradients: dict[tuple[float, int], Gradient] = field(default_factory=dict)

    def runs_on(self, gpu_type: str) -> bool:
        return not self.gpu_types or gpu_type in self.gpu_types

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        key = (gpu_type, gpus_on, local_batch)
        if key not in self._steps:
            times = self.times.get(gpu_type if self.gpu_types else "")
            self._steps[key] = times.step(gpus_on, local_batch) if times else None
        found = self._steps[key]
        if found is None:
            raise OutsideProfile(
                f"{self.name}: {local_batch} samples a GPU on {'+'.join(map(str, gpus_on))} GPUs"
                f" of type {gpu_type or 'any'} were not measured"
            )
        return found

    def gradient(self, batch: float, epoch: int) -> Gradient:
        key = (batch, epoch)
        found = self._gradients.get(key)
        if found is None:
            found = self._gradients[key] = self._interpolated(batch, epoch)
        return found

    def _interpolated(self, batch: float, epoch: int) -> Gradient:
        """Linear between the two batch sizes that were measured beside this one."""
        if not self.measured[0] <= batch <= self.measured[-1] or not epoch < len(self.epochs):
            raise OutsideProfile(
                f"{self.name}: a batch of {batch:g} in epoch {epoch + 1} was not measured"
            )
        sqr, var = (
            float(np.interp(batch, self.measured, self.statistics[:, epoch, which]))
            for which in (0, 1)
        )
        return Gradient(sqr=sqr, var=var)


def load(
    folder: Path, names: Collection[str], *, gpu_types: Collection[str] | None = None
) -> dict[str, Profile]:
    """The profiles of these applications, of all GPU types or of these. Raises TraceError."""
    if not folder.is_dir():
        raise TraceError(folder, "is no folder; --profiles names one with a folder an application")
    return {name: _application(folder / name, gpu_types) for name in sorted(set(names))}


def known(folder: Path) -> tuple[str, ...]:
    """The applications of which the folder has profiles."""
    found = {file.parent.name for file in folder.glob("*/placements*.csv")}
    return tuple(sorted(name for name in found if not name.endswith(PIPELINED)))


def _application(folder: Path, gpu_types: Collection[str] | None) -> Profile:
    name = folder.name
    if name.endswith(PIPELINED):
        raise TraceError(folder, "is trained in pipeline stages, which a replay can't simulate")
    if (folder / "placements.csv").is_file():
        measured = {"": _measured(folder, "")}
        typed = False
    else:
        found = {file.stem.removeprefix("placements-") for file in folder.glob("placements-*.csv")}
        chosen = found if gpu_types is None else found.intersection(gpu_types)
        if not chosen:
            of = "" if not found else f" of {', '.join(sorted(gpu_types or ()))}"
            raise TraceError(folder, f"has no placements.csv or placements-TYPE.csv{of}")
        measured = {kind: _measured(folder, f"-{kind}") for kind in sorted(chosen)}
        typed = True
    statistics = _statistics(folder, EPOCHS.get(name))
    sizes_measured = tuple(statistics)
    each = list(statistics.values())
    epochs = np.min([progress for progress, _ in each], axis=0)
    initial, most = sizes_measured[0], sizes_measured[-1]
    least_per_gpu = min(int(-(-one.least_local // 1)) for one in measured.values())
    most_per_gpu = int(max(one.most_local for one in measured.values()))
    if not typed:
        most_per_gpu = min(most_per_gpu, POLLUX_MOST_LOCAL.get(name, most_per_gpu))
    counts = min(max(one.most_gpus for one in measured.values()), most // least_per_gpu)
    if counts < 1:
        raise TraceError(folder, f"has no batch as large as the least per GPU, {least_per_gpu}")
    if not typed and name in ONE_GPU:
        counts = 1
        least_per_gpu = most_per_gpu = most = ONE_GPU[name]
    slowdown = SIA_SLOWDOWNS.get(name, 1.0) if typed else 1.0
    return Profile(
        name=name,
        batches=Batch(
            submitted=initial,
            most_per_gpu=most_per_gpu,
            most=most,
            least_per_gpu=least_per_gpu,
            initial=initial,
            accumulates=True,
            tunes=True,
        ),
        sizes=Sizes(tuple(range(1, counts + 1))),
        epochs=epochs,
        restart_seconds=SIA_RESTARTS.get(name, SIA_OTHER_RESTARTS) if typed else None,
        gpu_types=frozenset(measured) if typed else frozenset(),
        times={
            kind: StepTimes(
                one,
                slowdown=slowdown,
                memory_splits=typed,
                most_local=SIA_MOST_LOCAL.get((name, kind), inf) if typed else inf,
            )
            for kind, one in measured.items()
        },
        measured=sizes_measured,
        statistics=np.stack([gradients for _, gradients in each]),
    )


def _measured(folder: Path, ending: str) -> Measured:
    """The step times of one GPU type."""
    placements: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    file = folder / f"placements{ending}.csv"
    for row in rows(file, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = row.text("placement")
        if not (digits.isascii() and digits.isdecimal()) or "0" in digits:
            raise row.fault("placement", f"'{digits}' is not GPUs a node, each from 1 to 9")
        placements.setdefault(tuple(map(int, digits)), []).append(_times(row))
    if not placements:
        raise TraceError(file, "has no rows")
    wide: list[tuple[float, float, float, float, float]] = []
    file = folder / f"scalability{ending}.csv"
    required = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    for row in rows(file, required):
        nodes = row.count("num_nodes", least=1, most=65536)
        wide.append((nodes, row.count("num_replicas", least=nodes, most=65536), *_times(row)))
    return Measured(
        placements={key: tuple(sorted(each)) for key, each in placements.items()},
        wide=tuple(wide),
    )


def _times(row: Row) -> tuple[float, float, float]:
    local = row.number("local_bsz", least=1)
    seconds = row.number("step_time", least=1e-9, most=1e9)
    return local, seconds, row.number("sync_time", least=0.0, most=seconds)


def _statistics(folder: Path, trained: int | None) -> dict[int, tuple[Floats, Floats]]:
    """By batch size: progress at the end of each epoch, and [epoch, (sqr, var)] of the gradient."""
    found: dict[int, tuple[Floats, Floats]] = {}
    files: dict[int, Path] = {}
    for file in folder.glob("validation-*.csv"):
        named = file.stem.removeprefix("validation-")
        if not (named.isascii() and named.isdecimal()) or int(named[:10]) < 1:
            raise TraceError(file, "is named after no batch size, as validation-128.csv is")
        files[int(named)] = file
    if not files:
        raise TraceError(folder, "has no validation-BATCH.csv")
    for batch, file in sorted(files.items()):
        progress: list[float] = []
        gradients: list[tuple[float, float]] = []
        for row in rows(file, ("progress", "grad_sqr", "grad_var")):
            before = progress[-1] if progress else 0.0
            after = row.number("progress", most=1e15)
            if after <= before:
                raise row.fault("progress", f"{after:g} is not more than {before:g} before it")
            progress.append(after)
            sqr, var = row.number("grad_sqr", least=0.0), row.number("grad_var", least=0.0)
            if sqr + var <= 0:
                raise row.fault("grad_sqr", "is 0, and so is grad_var")
            gradients.append((sqr, var))
        found[batch] = np.array(progress), np.array(gradients).reshape(-1, 2)
    epochs = trained or min(len(progress) for progress, _ in found.values())
    for batch, (progress_of, gradients_of) in found.items():
        if len(progress_of) < max(epochs, 1):
            raise TraceError(
                files[batch],
                f"has {len(progress_of)} epochs and the application trains {max(epochs, 1)}",
            )
        found[batch] = progress_of[:epochs], gradients_of[:epochs]
    return found
