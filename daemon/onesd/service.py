"""All that the doors see of onesd: what it knows, and what may be asked of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ones.daemon.config import Config
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.stages import in_use
from ones.daemon.onesd.forecast.present import Present
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.under_way import MovesUnderWay
from ones.daemon.onesd.observing import Observer
from ones.daemon.onesd.operators import Operators
from ones.daemon.onesd.outcome import Round
from ones.daemon.onesd.policy_in_force import PolicyInForce
from ones.daemon.onesd.round import Rounds
from ones.daemon.onesd.steering import Steering
from ones.daemon.onesd.terms import Term
from ones.daemon.wire import Lease, NodeReport
from ones.estimator.experience import Experience
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

log = logging.getLogger(__name__)
UNHEALTHY = 10  # rounds without success after which Slurm must not hold jobs for us


class Service:
    """Reads what the rounds publish and the books keep; takes what agents and operators say.

    `news` is called where an agent told what a move may wait for, `ended` where one saw a job end.
    `term`: that in which it acts, where others wait to take over; `yields` gives it up.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        books: Books,
        moves: MovesUnderWay,
        observer: Observer,
        rounds: Rounds,
        policy: PolicyInForce,
        steering: Steering,
        metrics: Metrics,
        clock: Callable[[], float],
        news: Callable[[], None],
        ended: Callable[[], None],
        term: Term | None,
        yields: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.books = books
        self.steering = steering
        self.policy = policy
        self.metrics = metrics
        self.clock = clock
        self.operators = Operators(cluster)
        self._moves = moves
        self._observer = observer
        self._rounds = rounds
        self._news = news
        self._ended = ended
        self.term = term
        self._yields = yields
        self._staged: tuple[Snapshot | None, tuple[int, ...]] = None, ()

    @property
    def config(self) -> Config:
        """With the policy that is in force."""
        return self.policy.config

    @property
    def published(self) -> Round:
        """The last round that was finished."""
        return self._rounds.published

    @property
    def present(self) -> Present | None:
        """What the last round went by; None before the first."""
        return self._rounds.present

    def told_of(self, family: str) -> Experience:
        """What is known of jobs of this family; see Rounds."""
        return self._rounds.told_of(family)

    @property
    def trouble(self) -> str:
        """What the last round failed on, or ''."""
        return self._rounds.trouble

    def open_moves(self, of: Iterable[int] | None = None) -> list[MoveRecord | LiveMove]:
        """The moves under way; `of` these jobs alone."""
        return self._moves.open(of)

    def unusable(self, node: NodeRecord) -> str:
        """Why nothing new is placed on a node, or ''."""
        return self._observer.unusable(node)

    def refresh_runs(self, jobs: Sequence[int]) -> bool:
        """Read these jobs' runs from Slurm's accounting into the database; whether it answered."""
        return self.books.jobs.refresh_runs(jobs)

    def hear(self, report: NodeReport) -> None:
        """Take an agent's report; a fresh checkpoint is acted on at once, a job's end soon.

        Raises what `still_ours` does.
        """
        self.still_ours()
        if self.books.heard.accept(report, now=self.clock()):
            self._news()
        if report.ended:
            self._ended()

    def lease(self, job: int) -> Lease | None:
        """What the job's environment should say.

        A batch was planned for a size. Where Slurm gave the job another one (it was released by
        somebody else, say), the batch is left to the job. Raises what `still_ours` does.
        """
        self.still_ours()
        leased = self.books.leases.of(job)
        if leased is None:
            return None
        record = self._observer.latest.jobs.get(job)
        held = sum(record.held_on.values()) if record is not None else 0
        planned = held in (0, leased.gpus)
        acts = self.steering.mode == "act"
        return Lease(
            job=job,
            sizes=leased.sizes,
            gpus=leased.gpus if planned else held,
            batch=leased.batch if planned else None,
            checkpoint_signal=self.config.checkpoint_signal,
            order=self._moves.live.order(job, record) if acts else None,
        )

    def staged(self) -> tuple[tuple[int, ...], float]:
        """The stage-in jobs whose data are still needed, and when Slurm was seen so.

        Each report of an agent is answered with it, so that it is worked out once a round.
        """
        seen = self.published.snapshot
        before, found = self._staged
        if before is not seen:
            found = in_use(seen)
            self._staged = seen, found
        return found, seen.taken

    @property
    def paused(self) -> dict[str, Any] | None:
        """Who paused and why, or None."""
        return self.steering.paused

    def pause(self, by: str, reason: str) -> None:
        """Begin nothing any more."""
        self.steering.pause(by, reason)

    def resume(self, by: str) -> None:
        """Begin moves again."""
        self.steering.resume(by)

    def choose_policy(self, by: str, name: str | None) -> None:
        """Decide by this policy from the next round on; None: by the configuration's.

        Raises ValueError, and changes nothing, where it can't be used here.
        """
        config = self.policy.make(by, name, now=self.clock())
        log.warning("policy %s, by %s", config.policy, by)

    def still_ours(self) -> None:
        """Raises Superseded where another onesd has taken over, TermsError where nobody knows."""
        if self.term is not None:
            self.term.check()

    def hand_over(self, by: str) -> None:
        """Let another onesd take over. Raises ValueError where there is none."""
        if self.term is None:
            raise ValueError("there is no other onesd to take over; see [standby] controllers")
        log.warning("term %d is handed over, by %s", self.term.number, by)
        self._yields()

    def healthy(self) -> bool:
        """Whether rounds succeed; a first one must have."""
        age = self.clock() - self.published.at
        return self.published.number > 0 and age < UNHEALTHY * self.config.round + 60
