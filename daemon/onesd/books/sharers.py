"""What is known of the jobs that could share a GPU, and of the GPUs that can be shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from ones.daemon.onesd.books.heard import Inbox
from ones.daemon.onesd.books.needs import MIB, NeedsBook
from ones.estimator.assess import family_of
from ones.estimator.interference import Alone
from ones.estimator.needs.estimate import Estimate
from ones.estimator.needs.features import Resource
from ones.estimator.pairing import Sharer
from ones.policies.forecast import own_batch
from ones.policies.model import Job, Problem
from ones.slurm_ext.layout import cannot_share
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.shards import Gpu, holders
from ones.slurm_ext.snapshot import Snapshot

FRESH = 30.0  # seconds for which what a family needs is not asked for again
FAMILIES = 1000  # from which on those are forgotten that nobody has asked about for so long


class Sharers:
    """What agents and earlier runs tell of jobs on one GPU."""

    def __init__(self, inbox: Inbox, needs: NeedsBook) -> None:
        self._inbox = inbox
        self._needs = needs
        self._families: dict[str, tuple[float, Mapping[Resource, Estimate]]] = {}

    def able(self, problem: Problem, snapshot: Snapshot, closed: Collection[Gpu]) -> list[Job]:
        """The jobs for one GPU that aren't kept from sharing by where they are, oldest first."""
        held = holders(snapshot.jobs)

        def could(job: Job) -> bool:
            size = job.placement.gpus if job.placement else job.requested
            if size != 1 or job.uneven or not any(shape.gpus == 1 for shape in job.shapes):
                return False
            record = snapshot.jobs[int(job.id)]
            mark, shares = Mark.parse(record.admin_comment), record.shares
            if mark is None or cannot_share(record, mark):
                return False
            return all(
                (node, gpu) not in closed and (len(held[node, gpu]) == 1 or job.beside is not None)
                for node, gpus in shares.items()
                for gpu in gpus
            )

        return sorted(filter(could, problem.jobs), key=lambda job: (job.submitted, job.id))

    def sharer(self, job: Job, problem: Problem, cards: Mapping[str, float], now: float) -> Sharer:
        family = family_of(job.user, job.name)
        memory, busy = self._needs.used_alone(int(job.id))
        at, known = self._families.get(family, (-inf, {}))
        if now - at > FRESH:
            known = self._needs.undoubted(family)
            if len(self._families) >= FAMILIES:
                self._families = {
                    name: told for name, told in self._families.items() if now - told[0] <= FRESH
                }
            self._families[family] = (now, known)
        if Resource.GPU_MEMORY in known:
            estimate = known[Resource.GPU_MEMORY]
            # A job that has run here itself needs less room for doubt than one of its family.
            told = estimate.reserve if memory is None else estimate.expected
            memory = max(memory or 0.0, told)
        if busy is None and Resource.GPU_UTILIZATION in known:
            busy = known[Resource.GPU_UTILIZATION].expected
        batch = max(1.0, own_batch(job, problem.outlooks[job.id]))
        return Sharer(
            job=job.id,
            user=job.user,
            account=job.account,
            alone=Alone(model=family, batch=batch, busy=busy),
            memory=memory,
            nodes=job.nodes & cards.keys(),
        )

    def cards(self, problem: Problem) -> dict[str, float]:
        """The memory of a GPU, in MiB, of every node where GPUs can be shared."""
        heard = self._inbox.nodes()
        found = {}
        for node in problem.nodes:
            gpus = heard[node.name][1].gpus if node.name in heard else ()
            totals = [gpu.memory_total for gpu in gpus]
            if node.shares and node.usable and totals and None not in totals:
                found[node.name] = min(total for total in totals if total) / MIB
        return found
