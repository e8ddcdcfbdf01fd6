"""The second door: a folder for each job, in which a plain script leaves small JSON files.

The folder of folders is root's; each job's own is its user's, so that whatever lies in it is
hostile: nothing in it is followed, waited for, or read beyond its limit.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ones.daemon.agent.messages import MOST_BYTES, Op
from ones.daemon.agent.removal import Removal
from ones.slurm_ext.errors import OnesError

_OPS: tuple[Op, ...] = ("report", "checkpoint")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_Mark = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is new or changed: its bytes, or why they can't be taken."""

    job: int
    op: Op
    at: float  # when it was put there
    data: bytes = b""
    fault: str = ""


class JobFolders:
    """The job folders below one root-owned folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._removal = Removal(root)
        self._seen: dict[tuple[int, Op], _Mark] = {}

    def open(self) -> None:
        """Make the folder of folders; raises OnesError where others could write in it."""
        try:
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
            found = self._root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise OnesError(f"{self._root} is not a folder of ours; remove it and start again")
            self._root.chmod(0o755)
        except OSError as fault:
            raise OnesError(
                f"{self._root}: {fault.strerror}; name another with jobs_dir in [agent]"
            ) from None

    def path(self, job: int) -> Path:
        return self._root / str(job)

    def owner(self, job: int) -> int | None:
        """The user whose folder it is, or None where there is none."""
        try:
            found = self.path(job).lstat()
        except OSError:
            return None
        return found.st_uid if stat.S_ISDIR(found.st_mode) else None

    def prepare(self, job: int, uid: int, *, fresh: bool) -> Path:
        """Make the job's folder, its user's alone; `fresh`: without what an earlier run left."""
        path = self.path(job)
        if self.owner(job) not in (None, uid):
            self.remove(job)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            os.chown(path, uid, -1, follow_symlinks=False)
        if fresh:
            folder = os.open(path, _FOLDER)
            try:
                for op in _OPS:
                    with suppress(OSError):
                        os.unlink(f"{op}.json", dir_fd=folder)
            finally:
                os.close(folder)
        return path

    def remove(self, job: int) -> None:
        """Take a job's folder away; what is in it goes bit by bit, with the scans that follow."""
        for op in _OPS:
            self._seen.pop((job, op), None)
        self._removal.take(str(job))

    def jobs(self) -> list[int]:
        """The jobs that have a folder."""
        return sorted(int(entry.name) for entry in self._root.iterdir() if entry.name.isdecimal())

    def scan(self) -> list[Found]:
        """The files that are new or have changed since the last scan."""
        self._removal.go_on()
        found = []
        for job in self.jobs():
            try:
                folder = os.open(self.path(job), _FOLDER)
            except OSError:
                continue
            try:
                for op in _OPS:
                    one = self._look(job, op, folder)
                    if one is not None:
                        found.append(one)
            finally:
                os.close(folder)
        return found

    def _look(self, job: int, op: Op, folder: int) -> Found | None:
        name = f"{op}.json"
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        mark = (now.st_ino, now.st_mtime_ns, now.st_ctime_ns, now.st_size)
        if self._seen.get((job, op)) == mark:
            return None
        self._seen[job, op] = mark
        # Its user can't set the time of change, so no file can pretend to be newer than it is.
        at = now.st_ctime
        try:
            return Found(job, op, at, data=_read(name, folder))
        except OSError as fault:
            return Found(job, op, at, fault=f"{name}: {fault.strerror or fault}")


def _read(name: str, folder: int) -> bytes:
    """A small regular file of the folder's own user; raises OSError."""
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        if found.st_uid != os.fstat(folder).st_uid:
            raise OSError(0, "not owned by the job's user")
        data = b""
        while len(data) <= MOST_BYTES and (piece := os.read(file, MOST_BYTES + 1 - len(data))):
            data += piece
        return data
    finally:
        os.close(file)
