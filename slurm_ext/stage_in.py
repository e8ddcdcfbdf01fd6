"""ones-stage-in: copies a job's data to the disks of the nodes that it is about to start on.

It is the batch script of the stage-in job that `sbatch --stage-in` submits, and runs as its user.
On each node it fills FOLDER/JOBID/NAME; NAME is there only once all of it is. What goes wrong is
told in one line, in the job's comment and in FOLDER/JOBID/.fault, and nothing else stays behind.

usage: ones-stage-in FOLDER SOURCE NAME
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
CHUNK = 2**20
FAULT = ".fault"  # as in slurm_ext/spank/stage_in.c
LONGEST_FAULT = 200


class CannotStage(Exception):
    """The data can't be brought here; the text says why, on one line."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What staging may take of a node's disk; see [staging] of the configuration."""

    most_gib: float = 100.0  # of one job
    keep_free: float = 0.1  # of the file system, that staging leaves free
    most_rate: float = 0.0  # MB/s that one copy reads; 0: as fast as it can

    @classmethod
    def read(cls, config: Path) -> Bounds:
        """As far as the configuration can be read: a job's data must not wait for it."""
        said: dict[str, float] = {}
        for file in [config, *sorted((config.parent / "ones.d").glob("*.toml"))]:
            with suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
                found = tomllib.loads(file.read_text()).get("staging", {})
                for name in ("most_gib", "keep_free", "most_rate"):
                    if isinstance(found, dict) and isinstance(found.get(name), int | float):
                        said[name] = float(found[name])
        return cls(**said)


def stage(source: Path, folder: Path, name: str, bounds: Bounds) -> int:
    """Copy source to folder/name; the bytes it has. Raises CannotStage and leaves no part of it."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        raise CannotStage(f"{folder.parent} is not there; is ones-agent running?") from None
    except OSError as fault:
        raise CannotStage(f"{folder}: {fault.strerror}") from None
    part = folder / f".{name}.part"
    try:
        size = sum(entry.lstat().st_size for entry in _entries(source))
        _fits(size, folder, bounds)
        copied = _Copy(bounds, most=size + CHUNK).tree(source, part)
        part.rename(folder / name)
        return copied
    except OSError as fault:
        raise CannotStage(f"{fault.filename or source}: {fault.strerror}") from None
    finally:
        _remove(part)


def _fits(size: int, folder: Path, bounds: Bounds) -> None:
    if size > bounds.most_gib * GIB:
        raise CannotStage(
            f"{size / GIB:.1f} GiB are more than the {bounds.most_gib:g} GiB that may be staged"
        )
    room = os.statvfs(folder)
    left = room.f_bavail * room.f_frsize - size
    if left < bounds.keep_free * room.f_blocks * room.f_frsize:
        raise CannotStage(
            f"{size / GIB:.1f} GiB do not fit into {folder.parent}, of which"
            f" {100 * bounds.keep_free:.0f}% stay free"
        )


def _entries(source: Path) -> Iterator[Path]:
    """Source and all below it; symbolic links are not followed but at its top."""
    yield source
    if source.is_dir():
        for parent, folders, files in os.walk(source, onerror=_raise):
            yield from (Path(parent, name) for name in (*folders, *files))


def _raise(fault: OSError) -> None:
    raise fault


class _Copy:
    """One copy, at its pace and within its bound."""

    def __init__(self, bounds: Bounds, *, most: int) -> None:
        self._pace = bounds.most_rate * 1e6
        self._most = most
        self._begun = time.monotonic()
        self.bytes = 0

    def tree(self, source: Path, target: Path) -> int:
        if source.is_dir():
            target.mkdir(mode=0o700)
            for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
                self._entry(Path(entry.path), target / entry.name)
        else:
            self._file(source, target)
        return self.bytes

    def _entry(self, source: Path, target: Path) -> None:
        kind = source.lstat().st_mode
        if stat.S_ISLNK(kind):
            target.symlink_to(source.readlink())
        elif stat.S_ISDIR(kind):
            self.tree(source, target)
        elif stat.S_ISREG(kind):
            self._file(source, target)
        else:
            raise CannotStage(f"{source}: neither file nor folder nor link")

    def _file(self, source: Path, target: Path) -> None:
        if not stat.S_ISREG(source.stat().st_mode):
            raise CannotStage(f"{source}: neither file nor folder nor link")
        with source.open("rb") as read, target.open("xb") as written:
            while chunk := read.read(CHUNK):
                self.bytes += len(chunk)
                if self.bytes > self._most:
                    raise CannotStage(f"{source}: it grows while it is copied")
                written.write(chunk)
                self._wait()
        shutil.copystat(source, target)

    def _wait(self) -> None:
        if self._pace:
            ahead = self.bytes / self._pace - (time.monotonic() - self._begun)
            if ahead > 0:
                time.sleep(ahead)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def here(folder: Path, source: Path, name: str) -> str:
    """Stage on this node; '' or what went wrong."""
    config = Path(os.environ.get("ONES_CONF") or "/etc/ones/ones.toml")
    try:
        stage(source, folder, name, Bounds.read(config))
    except CannotStage as fault:
        line = " ".join(str(fault).split())[:LONGEST_FAULT]
        with suppress(OSError):
            (folder / FAULT).write_text(line)
        return line
    return ""


def everywhere(folder: Path, source: Path, name: str) -> str:
    """Stage on each node of this job; '' or what went wrong on the first that said so."""
    if os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return here(folder, source, name)
    nodes = os.environ["SLURM_JOB_NUM_NODES"]
    program = [sys.executable, "-m", "ones.slurm_ext.stage_in", "--here"]
    done = subprocess.run(
        ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", *program, folder.parent, source, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stdout.strip().splitlines() or ["srun failed"])[0][:LONGEST_FAULT]


def _tell(fault: str) -> None:
    """In the job's comment, where its user and onesd find it."""
    job = os.environ["SLURM_JOB_ID"]
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["scontrol", "update", f"JobId={job}", f"Comment=ones-stage-in: {fault}"],
            capture_output=True,
            timeout=20,
            check=False,
        )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part is removed
    words: Sequence[str] = sys.argv[1:]
    on_this_node = words[:1] == ["--here"]
    words = words[on_this_node:]
    job = os.environ.get("SLURM_JOB_ID", "")
    if len(words) != 3 or not job.isdecimal():
        print("usage: ones-stage-in FOLDER SOURCE NAME, as a batch job", file=sys.stderr)
        sys.exit(2)
    folder, source, name = Path(words[0], job), Path(words[1]), words[2]
    fault = (here if on_this_node else everywhere)(folder, source, name)
    if fault:
        print(f"{os.uname().nodename}: {fault}")
        if not on_this_node:
            _tell(fault)
        sys.exit(1)


if __name__ == "__main__":
    main()
