"""Checkpoints of sharded models: written by all workers, and read by any number of them.

    sharded.pt     the skeleton (sharded_state), written by rank 0 and read with weights_only
    .metadata, *   the tensors, as torch.distributed.checkpoint writes them

Each worker writes the slices that it has, one of those who hold a copy of the same one, and reads
the slices that it needs. Beside this package, torch's own tools can read the tensors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.checkpoint.api import CheckpointException  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.checkpoint import measuring
from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.scalars import plain_numbers
from ones.slurm_ext.runtime.sharded_state import (
    is_optimizer,
    model_tensors,
    optimizer_apart,
    optimizer_room,
    parameter_names,
    plain,
    spec_of,
)

log = logging.getLogger(__name__)
SKELETON = "sharded.pt"


class Beside:
    """A checkpoint that is written beside training: this worker's part of it."""

    def __init__(self, future: Any, fault: OSError | None) -> None:
        self._future = future
        self._fault = fault

    def done(self) -> bool:
        return bool(self._future.done())

    def finish(self) -> None:
        """Wait for its end. Raises OSError where a worker could not write."""
        try:
            self._future.result()
        except CheckpointException as fault:
            raise OSError(_reason(fault)) from None
        if self._fault is not None:
            raise self._fault


def save(
    folder: Path, models: Sequence[Any], tracked: Sequence[Any], *, group: Any, beside: Any = None
) -> Beside | None:
    """Write this worker's part of a checkpoint into the folder. All workers call this.

    With `beside`, another group of the same workers on the CPU, only a copy is made now, and
    writing goes on beside training. Raises OSError where this worker could not write its part, and
    on all of them where one could not write its tensors.
    """
    skeleton, tensors = _taken_apart(models, tracked)
    lone, fault = group is None, None
    if lone or torch.distributed.get_rank(group) == 0:
        try:
            with (folder / SKELETON).open("wb") as file, measuring(file) as measured:
                torch.save(skeleton, measured)
        except OSError as found:
            fault = found  # the others are about to write their tensors, and count on this worker
    try:
        if beside is not None:
            writing = dcp.async_save(tensors, checkpoint_id=folder, process_group=beside)
            return Beside(writing, fault)
        dcp.save(tensors, checkpoint_id=folder, process_group=group, no_dist=lone)
    except CheckpointException as found:
        raise OSError(_reason(found)) from None
    if fault is not None:
        raise fault
    return None


class Kept:
    """The state of sharded models and tracked objects in a checkpoint."""

    def __init__(self, folder: Path, *, group: Any) -> None:
        """`group` is of those who read together, on the CPU; None: one worker reads alone."""
        self._folder, self._group = folder, group
        self._skeleton = _read_skeleton(folder)

    def restore_model(self, models: Sequence[Any]) -> None:
        """Read the state of the last of the models. All workers call this."""
        index = len(models) - 1
        here = f"models.{index}."
        tensors = {k: v for k, v in model_tensors(models).items() if k.startswith(here)}
        kept = {k: v for k, v in self._skeleton["specs"].items() if k.startswith(here)}
        self._compare(tensors, kept)
        self._load(tensors)

    def restore_tracked(self, models: Sequence[Any], index: int, each: Any) -> None:
        """Read the state of the object that was tracked as the index-th. All workers call this."""
        if index >= len(self._skeleton["tracked"]):
            raise StateFault(
                f"checkpoint {self._folder} holds {len(self._skeleton['tracked'])} tracked objects,"
                " and the script has more; was it changed? remove the checkpoint to begin again"
            )
        kept = self._skeleton["tracked"][index]
        if is_optimizer(each) != ("groups" in kept):
            raise StateFault(
                f"checkpoint {self._folder} has something else than a {type(each).__name__} tracked"
                f" as number {index}; keep the order of job.track(), or remove the checkpoint"
            )
        if not is_optimizer(each):
            each.load_state_dict(kept["state"])
            return
        found = optimizer_room(each, kept, parameter_names(models))
        self._load({f"tracked.{index}.{name}": tensor for name, tensor in found.items()})

    def check_all_given(self, models: int, tracked: int) -> None:
        """Raise StateFault where it holds more than the script has given."""
        all_kept = (
            ("models", models, self._skeleton["models"]),
            (
                "tracked objects",
                tracked,
                len(self._skeleton["tracked"]),
            ),
        )
        for kind, given, kept in all_kept:
            if given < kept:
                raise StateFault(
                    f"checkpoint {self._folder} holds {kept} {kind}, and the script gave job"
                    f" {given} before job.epochs(); was it changed?"
                )

    def _compare(self, tensors: dict[str, Any], kept: dict[str, Any]) -> None:
        for name in sorted(tensors.keys() | kept.keys()):
            mine = spec_of(tensors[name]).told()[:2] if name in tensors else None
            theirs = kept[name][:2] if name in kept else None
            if mine != theirs:
                raise StateFault(
                    f"checkpoint {self._folder} is of another model: its {name.split('.', 2)[2]} is"
                    f" {_words(theirs)}, and the script's is {_words(mine)}; bring the script back,"
                    " or remove the checkpoint to begin again"
                )

    def _load(self, tensors: dict[str, Any]) -> None:
        if not tensors:
            return
        try:
            lone = self._group is None
            dcp.load(tensors, checkpoint_id=self._folder, process_group=self._group, no_dist=lone)
        except CheckpointException as fault:
            raise StateFault(
                f"checkpoint {self._folder} can't be read ({_reason(fault)}); remove it to go on"
                " from the one before"
            ) from None


def _taken_apart(models: Sequence[Any], tracked: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    names, tensors = parameter_names(models), model_tensors(models)
    specs = {name: spec_of(tensor).told() for name, tensor in tensors.items()}
    kept = []
    for index, each in enumerate(tracked):
        if is_optimizer(each):
            without, own = optimizer_apart(each, names)
            tensors.update({f"tracked.{index}.{name}": tensor for name, tensor in own.items()})
            kept.append(without)
        else:
            kept.append({"state": plain(each.state_dict(), each)})
    skeleton = {"models": len(models), "specs": specs, "tracked": kept}
    return plain_numbers(skeleton), tensors


def _read_skeleton(folder: Path) -> Any:
    path = folder / SKELETON
    if not path.exists():
        raise StateFault(
            f"checkpoint {folder} was not written from job.fsdp(); remove it to begin again, or"
            " keep the script as it was"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # whatever the unpickler met
        raise StateFault(f"{path} can't be read ({_first_line(fault)}); remove {folder}") from None


def _reason(fault: CheckpointException) -> str:
    """The first of the workers' reasons."""
    for rank, failure in sorted(fault.failures.items()):
        cause = failure[0] if isinstance(failure, tuple) else failure
        number = getattr(cause, "errno", None)
        return f"rank {rank}: {os.strerror(number) if number else _first_line(cause)}"
    return _first_line(fault)


def _first_line(fault: BaseException) -> str:
    text = str(fault).strip()
    return text.splitlines()[0] if text else type(fault).__name__


def _words(spec: Any) -> str:
    return "absent" if spec is None else f"{spec[1]} of shape {tuple(spec[0])}"
