"""Taking users' folders away: out of the way at once, then gone entry by entry, so many at a time.

What lies in them is hostile: any number of entries, any number of levels, changed meanwhile. So
nothing is walked down. A folder that is taken is moved into a bin that only we can enter, and the
folders in it beside it, each in its turn; no link is followed, and no mount point entered.
"""

from __future__ import annotations

import logging
import os
import secrets
from itertools import islice
from pathlib import Path

log = logging.getLogger(__name__)
AT_ONCE = 2000  # entries: some tens of milliseconds
BIN = ".ones-removed-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Removal:
    """Removes what is `taken` out of one folder; `go_on` does some more of it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bin = -1  # open while there is something in it
        self._name = ""
        self._taken = 0
        self._stuck: set[str] = set()  # in the bin, and can't be removed
        self._begun = False

    def take(self, name: str) -> bool:
        """Put an entry of the folder out of the way; False where that is not possible."""
        try:
            self._open()
            self._into_bin(self._root / name)
        except OSError as fault:
            if not isinstance(fault, FileNotFoundError):
                log.warning("%s can't be removed: %s", self._root / name, fault.strerror)
            return False
        return True

    def go_on(self, most: int = AT_ONCE) -> bool:
        """Remove so many entries more; whether all are gone that can be."""
        try:
            if not self._begun:
                self._begun = True
                self._find_left_over()
            while self._bin >= 0 and most > 0:
                with os.scandir(self._bin) as entries:
                    some = list(
                        islice((e.name for e in entries if e.name not in self._stuck), most)
                    )
                if not some:
                    self._close()
                    break
                for name in some:
                    most -= self._remove(name, most)
                    if most <= 0:
                        break
        except OSError as fault:
            log.warning("%s: %s; again later", self._root, fault.strerror)
        return self._bin < 0

    def _remove(self, name: str, most: int) -> int:
        """Remove an entry of the bin, or a part of what is in it; what that cost."""
        if self._unlink(name, self._bin):
            return 1
        cost, stuck = 1, 0
        try:
            folder = os.open(name, _FOLDER, dir_fd=self._bin)
        except OSError:
            self._stuck.add(name)
            return cost
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, most):
                    cost += 1
                    if not self._unlink(entry.name, folder) and not self._lift(entry.name, folder):
                        stuck += 1
        finally:
            os.close(folder)
        try:
            os.rmdir(name, dir_fd=self._bin)
        except OSError:
            if stuck == cost - 1 < most:  # nothing else is in it
                self._stuck.add(name)
        return cost

    @staticmethod
    def _unlink(name: str, folder: int) -> bool:
        """False for a folder, and for what can't be removed."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _lift(self, name: str, folder: int) -> bool:
        """Move a folder within one that was taken beside it."""
        try:
            self._into_bin(name, folder)
        except OSError:
            return False
        return True

    def _into_bin(self, path: Path | str, folder: int | None = None) -> None:
        self._taken += 1
        os.rename(path, str(self._taken), src_dir_fd=folder, dst_dir_fd=self._bin)

    def _find_left_over(self) -> None:
        """Bins of an agent that was killed."""
        with os.scandir(self._root) as entries:
            left = [
                entry.name
                for entry in entries
                if entry.name.startswith(BIN)
                and entry.name != self._name
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            ]
        for name in left:
            self.take(name)

    def _open(self) -> None:
        if self._bin < 0:
            # Where everybody may make folders, nobody can have made one of this name.
            name = BIN + secrets.token_hex(8)
            (self._root / name).mkdir(mode=0o700)
            self._bin, self._name = os.open(self._root / name, _FOLDER), name

    def _close(self) -> None:
        if not self._stuck:
            (self._root / self._name).rmdir()
        os.close(self._bin)
        self._bin, self._name, self._stuck = -1, "", set()
