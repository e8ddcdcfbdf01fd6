"""What of a job's request onesd writes itself: what its user left out, and less memory.

Only where the site's configuration says so, only in jobs that opted in, only before a start, and
only by estimates without doubts. All of it is kept in the table `fills`, which `onesctl job` shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from ones.daemon.onesd.books.fills import Fill, Fills
from ones.daemon.onesd.books.journal import Journal
from ones.daemon.onesd.books.needs import NeedsBook, NothingKnown
from ones.estimator.assess import family_of
from ones.estimator.needs.estimate import Estimate
from ones.estimator.needs.features import Resource
from ones.policies.model import Placement
from ones.slurm_ext.actions import Request
from ones.slurm_ext.cluster import Cluster, NodeSize
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord

if TYPE_CHECKING:
    from ones.daemon.config import NeedsConfig

log = logging.getLogger(__name__)
LEAST_MEMORY = 64  # MiB, in which memory is rounded up
NODES_FRESH = 300.0  # seconds for which what nodes have is believed


class Filling:
    """Decides on requests, and keeps what was written."""

    def __init__(
        self,
        config: NeedsConfig,
        needs: NeedsBook,
        fills: Fills,
        journal: Journal,
        cluster: Cluster,
    ) -> None:
        self._config = config
        self._needs = needs
        self._fills = fills
        self._journal = journal
        self._cluster = cluster
        self._nodes: tuple[float, Mapping[str, NodeSize]] = (0.0, {})

    def request(self, record: JobRecord, target: Placement, *, now: float) -> Request | None:
        """What the job should ask for on these nodes, or None where nothing is to be written."""
        mark = Mark.parse(record.admin_comment)
        if mark is None or not (self._config.fill or self._config.lower_memory):
            return None
        owners = self._owner_changed_memory(record, mark)
        memory_free = self._config.fill and "memory" in mark.left_out and not owners
        cpus_free = self._config.fill and "cpus" in mark.left_out
        lower = self._config.lower_memory and mark.memory is not None and not owners
        if not (memory_free or cpus_free or lower):
            return None
        before = self._fills.last(record.id)
        # Where no start came of it, the job has again what it asked for.
        sure = {} if before and self._failed(record.id) else self._estimates(record, target)
        try:
            least = self._least(target, now=now)
        except SlurmError as fault:
            log.warning("%s; requests are left as they are", fault)
            return None
        memory = sure.get(Resource.HOST_MEMORY) if memory_free or lower else None
        cores = sure.get(Resource.CPU_CORES) if cpus_free else None
        amount: int | None = None
        if memory is not None:
            amount = min(LEAST_MEMORY * ceil(memory.reserve / LEAST_MEMORY), least.memory)
        if lower and mark.memory is not None:
            # Where there is no estimate for these nodes, he has again what he asked for.
            amount = min(amount, mark.memory) if amount else (mark.memory if before else None)
        cpus = 1 if cpus_free and before and before.cpus else None
        if cores is not None:
            cpus = min(max(ceil(cores.reserve - 0.05), 1), least.cpus)
        if amount is None and cpus is None:
            return None
        why = "; ".join(
            f"{one.resource.value.replace('_', ' ')}: {one.why}" for one in (memory, cores) if one
        )
        return Request(memory=amount, cpus=cpus, why=why or "as the job asked")

    def _owner_changed_memory(self, record: JobRecord, mark: Mark) -> bool:
        """Whether the job asks for memory that neither its submission nor we have written.

        Without either there is nothing to tell it by: what is shown may be the partition's default.
        """
        known = {mark.memory, *(fill.memory for fill in self._fills.of_job(record.id))} - {None}
        return bool(known) and record.memory not in known

    def _failed(self, job: int) -> bool:
        """Whether the job's last start did not come."""
        return self._journal.last_outcome(job).split(":")[0] in ("failed", "expired")

    def _estimates(self, record: JobRecord, target: Placement) -> dict[Resource, Estimate]:
        """The estimates that may be acted on."""
        try:
            _, found = self._needs.estimate(
                family=family_of(record.user, record.name),
                gpus=float(target.gpus),
                nodes=float(len(target.nodes)),
            )
        except NothingKnown:
            return {}
        return {one.resource: one for one in found if not one.advice_only}

    def _least(self, target: Placement, *, now: float) -> NodeSize:
        """What the smallest of these nodes has: a job that asks for more would never start."""
        at, nodes = self._nodes
        if now - at > NODES_FRESH or not set(target.nodes) <= nodes.keys():
            nodes = self._cluster.node_sizes()
            self._nodes = (now, nodes)
        there = [nodes[name] for name in target.nodes if name in nodes]
        if not there:
            raise SlurmError("sinfo", f"does not know {', '.join(target.nodes)[:100]}")
        return NodeSize(
            cpus=min(one.cpus for one in there), memory=min(one.memory for one in there)
        )

    def written(self, record: JobRecord, request: Request, *, now: float) -> None:
        """Keep what Slurm has taken."""
        mark = Mark.parse(record.admin_comment)
        asked = mark.memory if mark is not None else None
        fill = Fill(
            job=record.id,
            restarts=record.restarts,
            at=now,
            memory=request.memory,
            memory_asked=asked,
            cpus=request.cpus,
            why=request.why,
        )
        self._fills.keep(fill)
        log.info("job %d: %s", record.id, fill.words())
