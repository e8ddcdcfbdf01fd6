"""What a round sees: Slurm's records, and what the books know of the jobs and nodes in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.completing import Histories
from ones.daemon.onesd.limits import LimitsKnown
from ones.daemon.onesd.missing import with_missing
from ones.daemon.onesd.moves.under_way import MovesUnderWay
from ones.daemon.onesd.outcome import NOTHING
from ones.policies.model import Cap, Job, Node
from ones.policies.sharing import occupied
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.elastic import doubts, elastic_jobs, gpu_nodes, ranked, waiting_plain_jobs
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.holding import Holds
from ones.slurm_ext.limited import Used, caps, stopped
from ones.slurm_ext.limits import NO_LIMITS, SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.satellites import attach
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

READINGS = 5  # of Slurm, the last ones, of which the middle one says how long it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The cluster as a round sees it."""

    at: float
    snapshot: Snapshot
    jobs: tuple[Job, ...]  # that opted in and can be planned for, complete with their past
    ignored: Mapping[int, str]  # the others that opted in, with why not
    nodes: tuple[Node, ...]
    holds: Holds
    order: Order | None  # in which Slurm would start jobs; None: it does not say
    disorder: str  # what is not known of that order, with what is done without it
    doubts: Mapping[int, str]  # held jobs of which nobody can tell for whom they wait
    caps: tuple[Cap, ...] = ()  # the site's limits on several of the jobs together
    stopped: frozenset[int] = frozenset()  # plain jobs that wait for one
    unlimited: tuple[str, ...] = ()  # what is not known of the site's limits
    limits: SiteLimits = NO_LIMITS


def counted_once(nodes: Sequence[Node], jobs: Sequence[Job]) -> tuple[Node, ...]:
    """The nodes, with no GPU taken by others that these jobs hold, or that a move has for them.

    What a job gives back while it moves is still used, for all that Slurm says, and may be what the
    move has it come back to. Counted as another's as well, it would crowd out who runs beside it.
    """
    held = occupied(
        {job.id: job.placement for job in jobs if job.placement is not None},
        {job.id: job.beside for job in jobs},
    )
    return tuple(
        replace(node, taken=max(0, node.gpus - held.get(node.name, 0)))
        if node.taken > max(0, node.gpus - held.get(node.name, 0))
        else node
        for node in nodes
    )


class Observer:
    """Reads Slurm, keeps what is new in the books, and completes jobs and nodes from them."""

    def __init__(
        self,
        cluster: Cluster,
        books: Books,
        moves: MovesUnderWay,
        *,
        clock: Callable[[], float],
        limits_every: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._books = books
        self._moves = moves
        self._clock = clock
        self._histories = Histories(books, moves.live)
        self._limits = LimitsKnown(
            cluster,
            every=limits_every,
            changed=lambda: books.starts.limits_changed(now=self._clock()),
        )
        self.latest: Snapshot = NOTHING
        self._took: deque[float] = deque(maxlen=READINGS)

    def look(self) -> Snapshot:
        """What Slurm says now, written down. Raises SlurmError."""
        begun = self._clock()
        books = self._books
        moving, met = books.journal.moving(), books.jobs.met()
        snapshot = attach(with_missing(self._cluster.snapshot(), self._cluster, moving, met))
        self.latest = snapshot
        self._took.append(self._clock() - begun)
        self._books.take(snapshot, now=begun)
        self._moves.compare(snapshot, self._books.controller.lapse(now=begun))
        return snapshot

    @property
    def read_seconds(self) -> float:
        """That a reading of Slurm takes; a slow one, as while a backup takes over, is no rule."""
        return median(self._took) if self._took else 0.0

    def see(self) -> Seen:
        """All that a round goes by. Raises SlurmError."""
        begun = self._clock()
        snapshot = self.look()
        holds = self._books.holds.of(snapshot.jobs, now=begun)
        limits = self._limits.now(begun)
        jobs, ignored = elastic_jobs(snapshot, holds, limits)
        nodes = tuple(
            replace(
                node,
                usable=not self.unusable(snapshot.nodes[node.name]),
                links=self._books.heard.links(node.name, gpus=node.gpus),
            )
            for node in gpu_nodes(snapshot, jobs, limits)
        )
        complete, spoilt = self._histories.complete(jobs, snapshot, self._moves.open(), now=begun)
        order, disorder = self._order()
        if order is not None:
            complete = tuple(ranked(job, snapshot.jobs[int(job.id)], order) for job in complete)
        used = Used(limits, snapshot)
        waiting = (
            waiting_plain_jobs(snapshot, complete) if limits.enforced or limits.licenses else ()
        )
        met = stopped(used, waiting, complete)
        together, unknown = caps(used, complete, met)
        trouble = self._limits.trouble
        unread = (f"the site's limits could not be read: {trouble}",) if trouble else ()
        return Seen(
            at=begun,
            snapshot=snapshot,
            jobs=complete,
            ignored=ignored | spoilt,
            nodes=counted_once(nodes, complete),
            holds=holds,
            order=order,
            disorder=disorder,
            doubts=doubts(snapshot, holds, self._books.jobs.met()),
            caps=together,
            stopped=frozenset(met),
            unlimited=(*unread, *limits.faults, *unknown),
            limits=limits,
        )

    def _order(self) -> tuple[Order | None, str]:
        """Slurm's order, and what is wrong with it. A round is not lost over it."""
        try:
            order = self._cluster.order()
        except SlurmError as fault:
            return None, f"{fault}: jobs go by their submission"
        return order, order.trouble

    def unusable(self, node: NodeRecord) -> str:
        """Why nothing new is placed on a node, or ''."""
        out = self.latest.barred(node)
        if out:
            words = " ".join(sorted(out)).lower().replace("_", " ")
            return f"{words}: {node.reason}" if node.reason else words
        now = self._clock()
        books = self._books
        if back := books.outages.note(node.name, now=now):
            return back
        # Its agent reports once a job has woken it, so its silence must not keep jobs off.
        return "" if node.asleep else books.heard.silence(node.name, now=now)

    def silent(self, node: NodeRecord) -> bool:
        """Whether a node that is in service, and awake, has an agent that does not report."""
        if node.asleep or self.latest.barred(node):
            return False
        return not self._books.heard.reports_from(node.name, now=self._clock())
