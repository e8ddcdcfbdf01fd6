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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

GIB = 2**30
CHUNK = 2**20
FAULT = ".fault"  # as in slurm_ext/spank/stage_in.c
LONGEST_FAULT = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


@contextmanager
def new_folder(folder: Path) -> Iterator[int]:
    """The folder, open, which this process has made and nobody else can write in.

    Raises CannotStage. What is done by its descriptor is done in no other folder, wherever its
    path leads meanwhile: every user may make folders beside it.
    """
    above = handle = -1
    try:
        above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(above).st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise CannotStage(f"{folder.parent}: anybody may move others' folders; chmod +t it")
        os.mkdir(folder.name, 0o700, dir_fd=above)
        handle = os.open(folder.name, _FOLDER, dir_fd=above)
        made = os.fstat(handle)
        if made.st_uid != os.geteuid() or stat.S_IMODE(made.st_mode) & 0o077:
            raise CannotStage(f"{folder}: others have put a folder of theirs here")
        yield handle
    except FileNotFoundError:
        raise CannotStage(f"{folder.parent} is not there; is ones-agent running?") from None
    except FileExistsError as fault:
        raise CannotStage(f"{folder}: {fault.strerror}{_whose(folder.name, above)}") from None
    except OSError as fault:
        raise CannotStage(f"{folder}: {fault.strerror}") from None
    finally:
        for each in (above, handle):
            if each >= 0:
                os.close(each)


def _whose(name: str, above: int) -> str:
    with suppress(OSError):
        return f", made by user {os.lstat(name, dir_fd=above).st_uid}"
    return ""


def stage(source: Path, folder: Path, name: str, bounds: Bounds) -> int:
    """Copy source to folder/name, in a new folder; the bytes it has. Raises CannotStage."""
    with new_folder(folder) as handle:
        return fill(handle, source, folder / name, bounds)


def fill(folder: int, source: Path, target: Path, bounds: Bounds) -> int:
    """Copy source to target, whose folder is open as `folder`; the bytes it has.

    Raises CannotStage and leaves no part of it.
    """
    name, part = target.name, f".{target.name}.part"
    try:
        # As it is copied: of links only the one at the top is followed.
        size = sum(
            entry.stat(follow_symlinks=entry is source).st_size for entry in _entries(source)
        )
        _fits(size, os.fstatvfs(folder), target.parent.parent, bounds)
        copied = _Copy(bounds, most=size + CHUNK).tree(source, part, folder)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return copied
    except OSError as fault:
        raise CannotStage(f"{fault.filename or source}: {fault.strerror}") from None
    except RecursionError:
        raise CannotStage(f"{source}: its folders are nested too deeply") from None
    finally:
        _remove(part, folder)


def _fits(size: int, room: os.statvfs_result, disk: Path, bounds: Bounds) -> None:
    if size > bounds.most_gib * GIB:
        raise CannotStage(
            f"{size / GIB:.1f} GiB are more than the {bounds.most_gib:g} GiB that may be staged"
        )
    left = room.f_bavail * room.f_frsize - size
    if left < bounds.keep_free * room.f_blocks * room.f_frsize:
        raise CannotStage(
            f"{size / GIB:.1f} GiB do not fit into {disk}, of which"
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

    def tree(self, source: Path, name: str, folder: int) -> int:
        """Copy source to `name` in the open folder; the bytes so far."""
        if source.is_dir():
            os.mkdir(name, 0o700, dir_fd=folder)
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                for entry in sorted(source.iterdir()):
                    self._entry(entry, entry.name, below)
            finally:
                os.close(below)
        else:
            self._file(source, name, folder)
        return self.bytes

    def _entry(self, source: Path, name: str, folder: int) -> None:
        kind = source.lstat().st_mode
        if stat.S_ISLNK(kind):
            os.symlink(source.readlink(), name, dir_fd=folder)
        elif stat.S_ISDIR(kind):
            self.tree(source, name, folder)
        elif stat.S_ISREG(kind):
            self._file(source, name, folder)
        else:
            raise CannotStage(f"{source}: neither file nor folder nor link")

    def _file(self, source: Path, name: str, folder: int) -> None:
        if not stat.S_ISREG(source.stat().st_mode):
            raise CannotStage(f"{source}: neither file nor folder nor link")
        with source.open("rb") as read, _create(name, folder) as written:
            while chunk := read.read(CHUNK):
                self.bytes += len(chunk)
                if self.bytes > self._most:
                    raise CannotStage(f"{source}: it grows while it is copied")
                written.write(chunk)
                self._wait()
            written.flush()  # what is written later would change its times
            shutil.copystat(source, f"/proc/self/fd/{written.fileno()}")

    def _wait(self) -> None:
        if self._pace:
            ahead = self.bytes / self._pace - (time.monotonic() - self._begun)
            if ahead > 0:
                time.sleep(ahead)


def _create(name: str, folder: int) -> BinaryIO:
    """A new file in the open folder."""
    handle = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    return os.fdopen(handle, "wb")


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def here(folder: Path, source: Path, name: str) -> str:
    """Stage on this node; '' or what went wrong."""
    config = Path(os.environ.get("ONES_CONF") or "/etc/ones/ones.toml")
    try:
        with new_folder(folder) as handle:
            try:
                fill(handle, source, folder / name, Bounds.read(config))
            except CannotStage as fault:
                with suppress(OSError), _create(FAULT, handle) as file:
                    file.write(_line(fault).encode())
                raise
    except CannotStage as fault:
        return _line(fault)
    return ""


def _line(fault: CannotStage) -> str:
    """On one line, and text: names of files are bytes, which need not be UTF-8."""
    text = str(fault).encode(errors="replace").decode()
    return " ".join(text.split())[:LONGEST_FAULT]


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
    if words == ["--version"]:
        import ones  # noqa: PLC0415 - of no use to a copy

        print(f"ones-stage-in, version {ones.__version__}")
        return
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
