"""Checkpoints on disk: complete or absent, whatever dies in between.

A checkpoint is a folder named after its sample count. It is written under another name, flushed,
and renamed into place, so that one rename makes it exist; its manifest carries size and checksum of
the state, so that damage after that is seen as well. The last two are kept: a damaged one leaves
the one before it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ones.slurm_ext.runtime.gradients import Smoothed
from ones.slurm_ext.runtime.learning_rate import Ramp
from ones.slurm_ext.runtime.sampling import Progress

log = logging.getLogger(__name__)
KEPT = 2
STATE, MANIFEST = "state.pt", "manifest.json"
VERSION = 1
CHUNK = 1 << 22


class Writable(Protocol):
    """As much of a file as saving a state needs."""

    def write(self, data: Any, /) -> int: ...
    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a run must know of the one before it, beside the state of model and optimizer."""

    progress: Progress
    epoch_samples: int | None = None
    seed: int = 0
    batch: int | None = None
    ramp: Ramp = field(default_factory=Ramp)
    noise: Smoothed = field(default_factory=Smoothed)
    declared: Mapping[str, int | None] = field(default_factory=dict)  # what reports say of the job


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was found complete."""

    path: Path
    moment: Moment

    @property
    def state(self) -> Path:
        return self.path / STATE


class Checkpoints:
    """The checkpoints of one training in one folder, written by one process only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, moment: Moment, write: Callable[[Writable], None]) -> Path:
        """Write the checkpoint of this moment, or find that it stands there already.

        Raises OSError when it could not be written; what was there before is untouched then.
        """
        draft = self.begin(moment)
        if draft is None:
            return self.path(moment)
        with (draft / STATE).open("wb") as file:
            measured = _Measured(file)
            write(measured)
            _flush(file)
        return self._complete(moment, {"bytes": measured.bytes, "crc32": measured.crc32})

    def begin(self, moment: Moment) -> Path | None:
        """An empty folder for this moment's files; None where its checkpoint stands already."""
        target = self.path(moment)
        if _read(target) is not None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*.writing"):
            shutil.rmtree(leftover)
        draft = self._draft(moment)
        draft.mkdir()
        return draft

    def complete(self, moment: Moment) -> Path:
        """Let the checkpoint exist whose folder was begun for this moment and is full by now."""
        draft, sizes = self._draft(moment), {}
        for path in sorted(draft.rglob("*")):
            if path.is_dir():
                _flush_folder(path)
                continue
            with path.open("rb+") as file:
                _flush(file)
            sizes[str(path.relative_to(draft))] = path.stat().st_size
        return self._complete(moment, {"files": sizes})

    def _complete(self, moment: Moment, measured: Mapping[str, Any]) -> Path:
        target, draft = self.path(moment), self._draft(moment)
        manifest = {
            "version": VERSION,
            "saved": time.time(),
            **measured,
            "moment": asdict(moment),
        }
        with (draft / MANIFEST).open("wb") as file:
            file.write(json.dumps(manifest, indent=1).encode())
            _flush(file)
        _flush_folder(draft)
        if target.exists():
            shutil.rmtree(target)  # damaged, or we would not be here
        draft.rename(target)
        _flush_folder(self.folder)
        for old in self._folders()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def path(self, moment: Moment) -> Path:
        """Where the checkpoint of this moment is, or will be."""
        return self.folder / f"{moment.progress.samples:015d}"

    def _draft(self, moment: Moment) -> Path:
        return self.folder / f".{self.path(moment).name}.writing"

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; says of each newer one that it is damaged."""
        for folder in self._folders():
            moment = _read(folder)
            if moment is not None:
                return Checkpoint(folder, moment)
            log.warning("ones: checkpoint %s is damaged; going back to the one before", folder)
        return None

    def set_aside(self) -> None:
        """Make room for a job that has only the number of the one that wrote these."""
        if self._folders():
            aside = self.folder.with_name(f"{self.folder.name}.before-{time.time_ns()}")
            self.folder.rename(aside)
            log.warning("ones: checkpoints of an earlier job of this number moved to %s", aside)

    def _folders(self) -> list[Path]:
        """Newest first."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if re.fullmatch(r"[0-9]{15}", path.name)]
        return sorted(found, reverse=True)


def _read(folder: Path) -> Moment | None:
    """What a checkpoint's manifest says, or None where it or the state is not as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["version"] != VERSION:
            return None
        if "files" in manifest:
            sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
            return moment_from(manifest["moment"]) if sizes == manifest["files"] else None
        with (folder / STATE).open("rb") as file:
            if os.fstat(file.fileno()).st_size != manifest["bytes"]:
                return None
            crc32 = 0
            while chunk := file.read(CHUNK):
                crc32 = zlib.crc32(chunk, crc32)
        return moment_from(manifest["moment"]) if crc32 == manifest["crc32"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def moment_from(fields: Mapping[str, Any]) -> Moment:
    progress, ramp = Progress(**fields["progress"]), Ramp(**fields["ramp"])
    noise = Smoothed(**fields.get("noise", {}))
    return Moment(**{**fields, "progress": progress, "ramp": ramp, "noise": noise})


class _Measured:
    """Counts and sums what is written through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0
        self.crc32 = 0

    def write(self, data: Any, /) -> int:
        self.bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
