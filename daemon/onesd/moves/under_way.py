"""All moves under way, of either kind: begun, advanced, ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from ones.daemon.config import Config
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.comments import Comments
from ones.daemon.onesd.moves.live import LiveMover
from ones.daemon.onesd.moves.pairs import waits_for
from ones.daemon.onesd.moves.queueing import Queueing
from ones.daemon.onesd.moves.requests import Filling
from ones.daemon.onesd.moves.restart import Mover
from ones.daemon.onesd.moves.turns import Turns
from ones.daemon.site import live_limits, move_limits
from ones.daemon.wire import Report
from ones.policies.model import Job, JobId, Seconds
from ones.policies.moves import Move, is_live
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.elastic import about_nodes, stranded, to_release
from ones.slurm_ext.holding import Holds
from ones.slurm_ext.lapse import Lapse
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import BY_OWNER, MoveRecord
from ones.slurm_ext.own_request import to_put_back
from ones.slurm_ext.shards import alone, half
from ones.slurm_ext.snapshot import Snapshot
from ones.slurm_ext.whereabouts import Whereabouts

IN_A_ROUND: Seconds = 0.25  # for each kind of what a round itself asks of Slurm for waiting jobs
NODELESS = 120.0  # seconds for which a job must fit no node before it is let go for that


class MovesUnderWay:
    """What is being done to jobs, and the only hands on them."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        books: Books,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._journal = books.journal
        self._compared: Lapse | None = None
        self._nodeless: dict[int, float] = {}  # since when these jobs fit no node
        actuator = Actuator(cluster)
        self._let_go, self._stranded = Turns(clock), Turns(clock)
        self._comments = Comments(actuator, every=config.slurm.comment_every, clock=clock)
        self.live = LiveMover(books, actuator, metrics, limits=live_limits(config), clock=clock)
        self.restarts = Mover(
            books,
            actuator,
            metrics,
            limits=move_limits(config),
            clock=clock,
            filling=Filling(config.needs, books.needs, books.fills, books.journal, cluster),
        )
        self.queueing = Queueing(self.restarts, clock)

    def open(self, of: Iterable[int] | None = None) -> list[MoveRecord | LiveMove]:
        """The moves that have not ended; `of` these jobs alone."""
        return [*self.restarts.open(of), *self.live.open(of)]

    def jobs(self) -> frozenset[JobId]:
        """The jobs that they are of."""
        return frozenset(map(JobId, self._journal.moving()))

    def obstacle(self, move: Move, jobs: Mapping[JobId, Job], snapshot: Snapshot) -> str:
        """Why a move can't be begun yet, or ''."""
        if move.beside is None or is_live(move, jobs[move.job]):
            return ""
        return waits_for(move, snapshot, jobs, self.restarts.open())

    def begin(self, move: Move, jobs: Mapping[JobId, Job], snapshot: Snapshot, *, by: str) -> None:
        """Write a move into the journal, decided `by` a policy; a tick takes its first step.

        Raises ValueError.
        """
        record = snapshot.jobs[int(move.job)]
        if is_live(move, jobs[move.job]):
            self.live.begin(move, record, by=by)
            return
        shards, beside = 0, None
        if move.beside is not None and move.target is not None and move.kind != "tune":
            node = move.target.nodes[0]
            shards = half(snapshot.nodes[node])
            beside = move.beside if move.beside in alone(snapshot.jobs).get(node, ()) else None
        self.restarts.begin(move, jobs[move.job], record, shards=shards, beside=beside, by=by)

    def tidy(self, snapshot: Snapshot, ignored: Mapping[int, str], holds: Holds) -> None:
        """Let go of jobs that can't be handled, take back those that nobody sees to."""
        moving, where = self.jobs(), Whereabouts(snapshot)
        lasting = self._lasting(to_release(snapshot, ignored, holds), ignored, snapshot)
        for job in self._let_go.of(lasting, most=IN_A_ROUND):
            record = snapshot.jobs[job]
            own = to_put_back(record, where)
            self.restarts.let_go(record, f"as a plain job: {ignored[job]}", own=own)
        for record in snapshot.jobs.values():
            # Left so, the next requeue would hold it for ever.
            late = record.held and holds.unanswered.get(record.id, inf) <= record.restarts
            late &= record.reason != BY_OWNER
            if late and record.marked and record.state == "RUNNING" and record.id not in moving:
                self.restarts.let_go(record, "a hold of ours that came late struck as it ran")
        for job in self._stranded.of(stranded(snapshot, ignored, holds), most=IN_A_ROUND):
            if job not in moving:  # one of `ignored` is let go as a plain job in the next round
                record = snapshot.jobs[job]
                why = f"Slurm can't start it on {record.required_nodes} ({record.reason})"
                if not record.required_nodes:
                    why = "nobody starts it, and it would go before all others"
                self.restarts.take_back(record, why)
        self.live.give_up_nodes(snapshot, moving)

    def _lasting(
        self, jobs: Sequence[int], ignored: Mapping[int, str], snapshot: Snapshot
    ) -> list[int]:
        """Those of the jobs that are to be let go whatever Slurm says of its nodes next.

        What is missing of nodes may be missing from one answer of Slurm's alone.
        """
        now = self._clock()
        nodes = any(node.gpus for node in snapshot.nodes.values())
        doubtful = {job for job in jobs if about_nodes(ignored[job])}
        self._nodeless = {job: min(self._nodeless.get(job, now), now) for job in doubtful if nodes}
        return [
            job
            for job in jobs
            if job not in doubtful or (nodes and now - self._nodeless[job] >= NODELESS)
        ]

    def comment(
        self,
        jobs: Sequence[Job],
        decided: Mapping[int, int],
        reports: Mapping[int, Report],
        snapshot: Snapshot,
    ) -> None:
        """Tell in jobs' comments how they go; `decided`: job -> the GPUs it is to have next."""
        under_way = {
            move.job: move.target.gpus if move.target is not None else 0 for move in self.open()
        }
        self._comments.write(jobs, {**decided, **under_way}, reports, snapshot)

    def compare(self, snapshot: Snapshot, lapse: Lapse | None) -> None:
        """Once after each lapse, with what Slurm has gone back to."""
        if lapse is not None and lapse != self._compared:
            self._compared = lapse
            self.restarts.put_back(snapshot, lapse)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to advance."""
        return not self.open() and not self.queueing.left

    def advance(self, snapshot: Snapshot, *, most: Seconds) -> None:
        """Take every step that is due, in so many seconds; what is left is for the next time."""
        self.live.tick(snapshot, self.restarts.claimed(snapshot))
        self.restarts.tick(snapshot, self.live.promised(snapshot), most=most)
        self.live.clean(snapshot)
