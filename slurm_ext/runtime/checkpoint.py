"""Checkpoints on disk: complete or absent, whatever dies in between.

A checkpoint is a folder named after its sample count. It is written under another name, flushed,
and renamed into place, so that one rename makes it exist; its manifest carries size and checksum of
the state, so that damage after that is seen as well. The last two are kept: a damaged one leaves
the one before it. What training does not go on from, though it is later, is set aside: it may be
whole, and of a newer release.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
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
PAUSES = (1.0, 4.0, 15.0)  # seconds between tries to read what a server doesn't give
NOT_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # of file systems that know no fsync of folders
GIVEN_UP = ".given-up"  # ends the name of what is set aside


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
        self._unusable: list[Path] = []  # what `latest` has gone past

    def save(self, moment: Moment, write: Callable[[Writable], None]) -> Path:
        """Write the checkpoint of this moment, or find that it stands there already.

        Raises OSError when it could not be written; what was there before is untouched then.
        """
        draft = self.begin(moment)
        if draft is None:
            return self.path(moment)
        with (draft / STATE).open("wb") as file:
            with measuring(file) as measured:
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
        self._give_up(target)
        before = [folder for folder in self._folders() if folder < target]
        for old in before[KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def _give_up(self, newest: Path) -> None:
        """Set aside what is no part of the training whose newest checkpoint this is."""
        for folder in self._folders():
            if folder == newest or not (folder > newest or folder in self._unusable):
                continue
            aside = folder.with_name(folder.name + GIVEN_UP)
            shutil.rmtree(aside, ignore_errors=True)
            try:
                folder.rename(aside)
            except OSError as fault:
                log.warning("ones: checkpoint %s can't be set aside: %s", folder, fault)
                continue
            log.warning(
                "ones: checkpoint %s is of training that was given up; moved to %s",
                folder,
                aside.name,
            )
        self._unusable.clear()

    def path(self, moment: Moment) -> Path:
        """Where the checkpoint of this moment is, or will be."""
        return self.folder / f"{moment.progress.samples:015d}"

    def _draft(self, moment: Moment) -> Path:
        return self.folder / f".{self.path(moment).name}.writing"

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; says of each newer one that it is damaged."""
        self._unusable.clear()
        for folder in self._folders():
            moment = _read(folder)
            if moment is not None:
                return Checkpoint(folder, moment)
            log.warning("ones: checkpoint %s is damaged; going back to the one before", folder)
            self._unusable.append(folder)
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
    for pause in (*PAUSES, None):
        try:
            return _moment_of(folder)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None
        except OSError as fault:
            if pause is None:
                log.warning("ones: %s can't be read: %s", folder, fault)
                return None
            # A shared folder's server may be away for a moment; hours of training hang on it.
            time.sleep(pause)
    return None


def _moment_of(folder: Path) -> Moment | None:
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
        self.fault: OSError | None = None

    def write(self, data: Any, /) -> int:
        self.bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        try:
            return self._file.write(data)
        except OSError as fault:
            self.fault = fault
            raise

    def flush(self) -> None:
        self._file.flush()


def full_disk(folder: Path) -> OSError | None:
    """What keeps a few mebibytes from being written there, whatever a library calls it."""
    probe = folder / ".probe"
    try:
        try:
            with probe.open("wb") as file:
                file.write(bytes(CHUNK))
                _flush(file)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as fault:
        return fault
    return None


@contextlib.contextmanager
def measuring(file: BinaryIO) -> Iterator[_Measured]:
    """A full disk stays an OSError here: torch makes a RuntimeError of it, as of much else."""
    measured = _Measured(file)
    try:
        yield measured
    except Exception:
        if measured.fault is not None:
            raise measured.fault from None
        raise
    if measured.fault is not None:
        raise measured.fault


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as fault:
        if fault.errno not in NOT_OF_FOLDERS:
            raise
    finally:
        os.close(handle)
