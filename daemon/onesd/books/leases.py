"""The table `leases`: what each job's environment should say of its size and batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ones.daemon.onesd.books.store import Store
from ones.policies.model import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """What a job was last given; None: nothing yet."""

    sizes: str
    gpus: int | None
    batch: int | None

    def batch_on(self, gpus: int | None) -> int | None:
        """The batch that goes with this size; None where it was given another size, or no batch."""
        return self.batch or None if self.gpus == gpus else None


class Leases:
    """What jobs are told to be."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def meet(self, job: int, sizes: str) -> None:
        """A job was seen for the first time."""
        self._store.put("leases", [{"job": job, "sizes": sizes}])

    def give(self, job: int, sizes: str, target: Placement, batch: int | None) -> None:
        """The job is to have this placement, and this batch."""
        row = {"job": job, "sizes": sizes, "gpus": target.gpus, "batch": batch}
        self._store.put("leases", [row])

    def grow(self, job: int, gpus: int, batch: int | None) -> None:
        """The job has another size, without a restart; with None it keeps its batch."""
        self._store.write(
            "UPDATE leases SET gpus = ?, batch = coalesce(?, batch) WHERE job = ?",
            gpus,
            batch,
            job,
        )

    def of(self, job: int) -> Leased | None:
        """None for a job that is not known."""
        return self.of_jobs([job]).get(job)

    def of_jobs(self, jobs: Iterable[int]) -> dict[int, Leased]:
        """Those of them that are known."""
        return {
            row["job"]: Leased(sizes=row["sizes"], gpus=row["gpus"], batch=row["batch"])
            for row in self._store.of_jobs("leases", jobs, "job, sizes, gpus, batch")
        }
