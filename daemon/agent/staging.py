"""The folder on a node's disk into which jobs' data are staged, and out of which they are taken."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from ones.daemon.agent.removal import Removal

log = logging.getLogger(__name__)
GRACE = 60.0  # seconds: clocks differ, and a stage-in job is a little older than its folder
DIGITS = 10  # of a job's number
MOST_ENTRIES = 20_000  # that are looked at in one go: every user may make as many as he likes


class StageFolders:
    """FOLDER/JOBID for each stage-in job that ran here.

    Every user may make anything there. What is none of a stage-in job's folders is removed as well,
    but for what belongs to us, such as a file system's lost+found.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._removal = Removal(folder)
        # Name -> inode and its time of change when it was first seen: its owner can renew that.
        self._first: dict[str, tuple[int, float]] = {}

    def open(self) -> None:
        """Make the folder, in which every user may make his own and nobody touch another's."""
        try:
            self._folder.mkdir(mode=0o1777)
            self._folder.chmod(0o1777)
        except FileExistsError:
            pass
        except OSError as fault:
            log.warning("%s: %s; nothing can be staged in here", self._folder, fault.strerror)

    def clean(self, needed: Collection[int], *, seen: float) -> list[int]:
        """Take away what no job needs, as Slurm was seen at that time; which jobs' it was."""
        removed = []
        first: dict[str, tuple[int, float]] = {}
        try:
            with os.scandir(self._folder) as entries:
                found = list(islice(entries, MOST_ENTRIES))
        except OSError:
            return []
        for entry in found:
            job = _job(entry.name)
            if job in needed:
                continue
            try:
                now = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            ours = now.st_uid == os.geteuid()
            if ours and (job is None or not entry.is_dir(follow_symlinks=False)):
                continue
            inode, since = self._first.get(entry.name, (now.st_ino, now.st_ctime))
            if inode != now.st_ino:
                since = now.st_ctime
            if since + GRACE >= seen:
                first[entry.name] = now.st_ino, since
            elif self._removal.take(entry.name) and job is not None:
                removed.append(job)
        self._first = first
        self.go_on()
        return removed

    def go_on(self) -> None:
        """Remove some more of what was taken away."""
        self._removal.go_on()


def _job(name: str) -> int | None:
    """The stage-in job of a folder; None for a name that is no job's."""
    number = name.isascii() and name.isdecimal() and len(name) <= DIGITS
    return int(name) if number and str(int(name)) == name else None
