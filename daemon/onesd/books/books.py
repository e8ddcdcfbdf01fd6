"""All books of one onesd, opened together on one database."""

from __future__ import annotations

from dataclasses import dataclass

from ones.daemon.config import Config
from ones.daemon.onesd.books.controller import Controller
from ones.daemon.onesd.books.courses import Courses
from ones.daemon.onesd.books.fills import Fills
from ones.daemon.onesd.books.heard import Inbox
from ones.daemon.onesd.books.holds import HoldsBook
from ones.daemon.onesd.books.jobs import Records
from ones.daemon.onesd.books.journal import Journal
from ones.daemon.onesd.books.leases import Leases
from ones.daemon.onesd.books.live_runs import LiveRuns
from ones.daemon.onesd.books.lives import Lives
from ones.daemon.onesd.books.needs import NeedsBook
from ones.daemon.onesd.books.outages import Outages
from ones.daemon.onesd.books.pairs import SharingBook
from ones.daemon.onesd.books.recoveries import RecoveriesBook
from ones.daemon.onesd.books.reports import Learning
from ones.daemon.onesd.books.rest import Rest
from ones.daemon.onesd.books.rounds import RoundsBook
from ones.daemon.onesd.books.stages import Staging
from ones.daemon.onesd.books.starts import FailedStarts
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.site import quality
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.snapshot import Snapshot
from ones.slurm_ext.staging import StageJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What onesd knows beside Slurm's present records; each table has one owner."""

    store: Store
    heard: Inbox
    leases: Leases
    holds: HoldsBook
    journal: Journal
    live_runs: LiveRuns
    fills: Fills
    courses: Courses
    recoveries: RecoveriesBook
    reports: Learning
    controller: Controller
    jobs: Records
    lives: Lives
    needs: NeedsBook
    pairs: SharingBook
    stages: Staging
    outages: Outages
    starts: FailedStarts
    rounds: RoundsBook

    @classmethod
    def open(cls, config: Config, store: Store, cluster: Cluster, metrics: Metrics) -> Books:
        heard, leases, journal, courses = Inbox(), Leases(store), Journal(store), Courses(store)
        reports = Learning(store, heard, metrics, leases=leases, journal=journal, courses=courses)
        accounting = Rest()
        needs = NeedsBook(store, cluster, quality=quality(config.needs), rest=accounting)
        return cls(
            store=store,
            heard=heard,
            leases=leases,
            holds=HoldsBook(store),
            journal=journal,
            live_runs=LiveRuns(store),
            fills=Fills(store),
            courses=courses,
            recoveries=RecoveriesBook(store),
            reports=reports,
            controller=Controller(store),
            jobs=Records(store, cluster, reports, leases, rest=accounting),
            lives=Lives(store),
            needs=needs,
            pairs=SharingBook(store, heard, needs, config.sharing),
            stages=Staging(config.staging, store, StageJobs(cluster)),
            outages=Outages(store),
            starts=FailedStarts(store, metrics.start_refused),
            rounds=RoundsBook(store),
        )

    def take(self, snapshot: Snapshot, *, now: float) -> None:
        """Bring the tables up to what Slurm says now."""
        self.heard.forget_jobs(snapshot.jobs)
        self.recoveries.take(snapshot, self.heard.lives())
        self.reports.take(snapshot)
        self.controller.take(snapshot, now=now)
        lapse = self.controller.lapse(now=now)
        met = self.jobs.take(snapshot, now=now, lapsed=lapse is not None)
        self.holds.take(snapshot, self.journal.moving(), now=now, met=met, lapse=lapse)
        self.starts.take(snapshot, now=now)
        self.outages.take(snapshot.nodes.values(), now=now)
        self.needs.take(snapshot, self.heard.nodes(), now=now)
