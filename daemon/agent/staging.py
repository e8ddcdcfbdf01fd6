"""The folder on a node's disk into which jobs' data are staged, and out of which they are taken."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)
GRACE = 60.0  # seconds: clocks differ, and a stage-in job is a little older than its folder


class StageFolders:
    """FOLDER/JOBID for each stage-in job that ran here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
        """Remove what no job needs, as Slurm was seen at that time; which folders these were."""
        removed = []
        try:
            found = list(os.scandir(self._folder))
        except OSError:
            return []
        for entry in found:
            if not (entry.name.isascii() and entry.name.isdecimal()) or int(entry.name) in needed:
                continue
            if not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_ctime + GRACE < seen:
                # It never follows a link out of the folder, whatever a user does meanwhile.
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(int(entry.name))
        return removed
