"""Which job a process belongs to, and by which evidence.

Parsing is pure; `Processes` reads /proc. The evidence, strongest first: the process's cgroup; an
ancestor that is root's slurmstepd, whose title names the job; a cgroup that it shares with such a
slurmstepd; SLURM_JOB_ID in its environment, which its user can set at will and which therefore
counts for jobs of that user only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Evidence = Literal["cgroup", "slurmstepd", "environ"]

MOST_ANCESTORS = 128
MOST_ENVIRON = 2**20  # bytes of an environment that are read
_JOB = re.compile(r"job_([1-9][0-9]{0,9})")
_SLUID = re.compile(r"s[0-9A-Z]{13}")
_SCOPE = re.compile(r"(?:[\w.-]+_)?slurmstepd\.scope")  # NODE_ in builds for several slurmd a host
_ROOT = re.compile(r"slurm(?:_[\w.-]+)?")
_UID = re.compile(r"uid_[0-9]+")
_TITLE = re.compile(r"slurmstepd: \[([1-9][0-9]{0,9})\.[\w+]+\]")
_JOB_ID = re.compile(rb"(?:^|\0)SLURM_JOB_ID=([1-9][0-9]{0,9})(?:\0|$)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process for life: its id may be used again, never together with its start time."""

    pid: int
    born: int  # clock ticks after boot


@dataclass(frozen=True, slots=True)
class Owner:
    """The job that a process belongs to, and what proves it."""

    job: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says."""

    state: str
    parent: int
    born: int


def job_of_cgroup(text: str) -> int | None:
    """The job in the text of /proc/PID/cgroup, in any form that Slurm has used.

    v1: /slurm/uid_U/job_J/step_S; v2: /system.slice/slurmstepd.scope/job_J/step_S/user/task_T;
    builds for several slurmd a host write slurm_NODE and NODE_slurmstepd.scope. Slurm 26.05 names
    the directory by SLUID, not by job: None, see `sluid_of_cgroup`.
    """
    for name in _slurms_names(text):
        if found := _JOB.fullmatch(name):
            return int(found[1])
    return None


def sluid_of_cgroup(text: str) -> str | None:
    """The SLUID by which Slurm 26.05 names a job in /proc/PID/cgroup; its processes share it."""
    return next((name for name in _slurms_names(text) if _SLUID.fullmatch(name)), None)


def _slurms_names(text: str) -> Iterator[str]:
    """What Slurm, as root, has called the directory of a process's job, for each hierarchy."""
    for line in text.splitlines():
        parts = line.split(":", 2)[-1].split("/")
        for at, part in enumerate(parts):
            # Below these, users make groups of any name themselves.
            if part == "user.slice" or part.startswith("user@"):
                break
            if _SCOPE.fullmatch(part):
                yield from parts[at + 1 : at + 2]
                break
            if _ROOT.fullmatch(part) and _UID.fullmatch("".join(parts[at + 1 : at + 2])):
                yield from parts[at + 2 : at + 3]
                break


def job_of_title(title: str) -> int | None:
    """The job of `slurmstepd: [JOB.STEP]`; STEP is a number, batch, extern, interactive, 0+1."""
    found = _TITLE.fullmatch(title)
    return int(found[1]) if found else None


def job_of_environ(environ: bytes) -> int | None:
    """The job that an environment claims."""
    found = _JOB_ID.search(environ)
    return int(found[1]) if found else None


def parse_stat(text: str) -> Stat | None:
    """/proc/PID/stat; the name in parentheses may itself hold spaces and parentheses."""
    fields = text.rpartition(")")[2].split()
    try:
        return Stat(fields[0], int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def parse_uids(status: str) -> tuple[int, int, int] | None:
    """Real, effective and saved user id in /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("Uid:"):
            real, effective, saved = (int(field) for field in line.split()[1:4])
            return real, effective, saved
    return None


class Processes:
    """The processes of this node. `folder_owner` names the user whose job folder of ours exists."""

    def __init__(
        self,
        root: Path = Path("/proc"),
        folder_owner: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self._root = root
        self._folder_owner = folder_owner

    def process(self, pid: int) -> Process | None:
        """The living process of this id."""
        stat = self._stat(pid)
        return None if stat is None or stat.state in "ZX" else Process(pid, stat.born)

    def alive(self, process: Process) -> bool:
        return self.process(process.pid) == process

    def uid(self, pid: int) -> int | None:
        """The effective user of a process."""
        uids = parse_uids(self._text(pid, "status"))
        return None if uids is None else uids[1]

    def owner(self, pid: int) -> Owner | None:
        """The job of a process, by the strongest evidence there is."""
        cgroup = self._text(pid, "cgroup")
        job = job_of_cgroup(cgroup)
        if job is not None:
            return Owner(job, "cgroup")
        job = self._job_of_ancestors(pid)
        if job is not None:
            return Owner(job, "slurmstepd")
        job = self._job_of_sluid(sluid_of_cgroup(cgroup))
        if job is not None:
            return Owner(job, "cgroup")
        job = job_of_environ(self._bytes(pid, "environ"))
        if job is not None and (owner := self._folder_owner(job)) is not None:
            uids = parse_uids(self._text(pid, "status"))
            if uids is not None and uids[0] == owner:
                return Owner(job, "environ")
        return None

    def stepds(self) -> Mapping[int, frozenset[Process]]:
        """The slurmstepd processes of each job on this node."""
        found: dict[int, set[Process]] = {}
        for entry in self._root.iterdir():
            if not entry.name.isdecimal():
                continue
            pid = int(entry.name)
            job = self._job_of_stepd(pid)
            process = self.process(pid) if job is not None else None
            if job is not None and process is not None:
                found.setdefault(job, set()).add(process)
        return {job: frozenset(processes) for job, processes in found.items()}

    def _job_of_sluid(self, sluid: str | None) -> int | None:
        """The job of a slurmstepd in that cgroup, for a process that has lost its ancestors."""
        if sluid is None:
            return None
        for job, processes in self.stepds().items():
            for process in processes:
                if sluid_of_cgroup(self._text(process.pid, "cgroup")) == sluid:
                    return job
        return None

    def _job_of_ancestors(self, pid: int) -> int | None:
        for _ in range(MOST_ANCESTORS):
            job = self._job_of_stepd(pid)
            if job is not None:
                return job
            stat = self._stat(pid)
            if stat is None or stat.parent <= 1:
                return None
            pid = stat.parent
        return None

    def _job_of_stepd(self, pid: int) -> int | None:
        """The job of a slurmstepd. A title is anybody's to write; root's program file is not."""
        title = self._bytes(pid, "cmdline", 128).rstrip(b"\0").decode(errors="replace")
        job = job_of_title(title)
        if job is None:
            return None
        # slurmstepd lends out its effective id at times; a set-uid program keeps its user's real id
        uids = parse_uids(self._text(pid, "status"))
        if uids is None or uids[0] != 0 or uids[2] != 0:
            return None
        try:
            program = (self._root / str(pid) / "exe").readlink()
        except OSError:
            return None
        return job if program.name.startswith("slurmstepd") else None  # Debian's: slurmstepd-wlm

    def _stat(self, pid: int) -> Stat | None:
        return parse_stat(self._text(pid, "stat"))

    def _text(self, pid: int, name: str) -> str:
        return self._bytes(pid, name).decode(errors="replace")

    def _bytes(self, pid: int, name: str, most: int = MOST_ENVIRON) -> bytes:
        """Empty where the process is gone or not ours to look into: then it proves nothing."""
        with suppress(OSError), (self._root / str(pid) / name).open("rb", buffering=0) as file:
            pieces = []
            while most > 0 and (piece := file.read(most)):
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
        return b""
