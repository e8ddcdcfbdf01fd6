"""One run of a job as Slurm's accounting has it, whichever way `sacct` has printed it."""

from __future__ import annotations

from dataclasses import dataclass

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.tables import Row
from ones.policies.model import Seconds
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.satellites import Tie


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What Slurm's own scheduling goes by."""

    partition: str = ""
    qos: str = ""
    reservation: str = ""
    time_limit: Seconds | None = None
    nodes: int = 0
    memory: float = 0.0  # MiB of all nodes
    licenses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run of a job that has held GPUs."""

    row: Row
    key: str  # the job's number
    name: str
    user: str
    account: str
    admin_comment: str
    submitted: Seconds
    gpus: int
    seconds: Seconds  # 0: it has not ended, or never ran
    ended: bool
    terms: Terms

    @property
    def mark(self) -> Mark | None:
        return Mark.parse(self.admin_comment)

    @property
    def base(self) -> str:
        """The job whose satellite it is, or ''."""
        tie = Tie.read(self.admin_comment)
        return "" if tie is None else str(tie.base)

    def fault(self, reason: str) -> TraceError:
        """What makes no sense about it; a line of JSON has no number."""
        line = self.row.line if self.row.cells else None
        return TraceError(self.row.file, f"job {quoted(self.key)}: {reason}", line=line)
