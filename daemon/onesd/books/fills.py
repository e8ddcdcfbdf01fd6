"""The table `fills`: what onesd wrote into jobs' requests before it started them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ones.daemon.onesd.books.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What was written for one run of a job; None: its own request was left."""

    job: int
    restarts: int
    at: float
    memory: int | None  # MiB on each node
    memory_asked: int | None  # by the job itself; None: nothing
    cpus: int | None  # on each node
    why: str

    def words(self) -> str:
        """The same as one line for people."""
        parts = []
        if self.memory is not None:
            asked = f"{self.memory_asked} MiB" if self.memory_asked else "none"
            parts.append(f"{self.memory} MiB of memory on each node (the job itself said {asked})")
        if self.cpus is not None:
            parts.append(f"{self.cpus} CPUs on each node (the job itself said none)")
        return f"onesd asked for {' and '.join(parts)}: {self.why}"


class Fills:
    """What Slurm has taken of us."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, fill: Fill) -> None:
        """Write it down."""
        self._store.put("fills", [asdict(fill)])

    def of_job(self, job: int) -> list[Fill]:
        """Run by run."""
        rows = self._store.rows("SELECT * FROM fills WHERE job = ? ORDER BY restarts", job)
        return [Fill(**dict(row)) for row in rows]

    def last(self, job: int) -> Fill | None:
        """Of the job's latest run for which anything was written."""
        return next(reversed(self.of_job(job)), None)
