"""What onesd tells Prometheus, in base units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from ones.daemon.onesd.outcome import Round

# Counters have all their series from the start: Prometheus sees no increase where one appears.
_KINDS = ("start", "resize", "preempt", "tune", "live")
_ENDS = ("done", "changed", "abandoned", "expired", "failed", "refused")
_CAUSES = ("limit", "nodes", "size", "job")
_SOURCES = ("prolog", "epilog", "agent", "completing", "moves")
_HOLDERS = ("elastic", "other", "free")


class Roles:
    """Whether this onesd acts or waits, and who else there should be; in any registry."""

    def __init__(self, registry: CollectorRegistry, *, controllers: int = 1) -> None:
        Info("ones_build", "The running version.", registry=registry).info(
            {"version": version("ones-slurm")}
        )
        self._active = Gauge(
            "ones_active", "1 for the onesd that acts, 0 for a standby.", registry=registry
        )
        self._controllers = Gauge(
            "ones_controllers", "How many onesd the configuration names.", registry=registry
        )
        self._term = Gauge(
            "ones_term",
            "The term of the onesd that acts: how often one took over; 0 without standby.",
            registry=registry,
        )
        self._active.set(1)
        self._controllers.set(controllers)

    def standby(self) -> None:
        """It waits."""
        self._active.set(0)

    def acts(self, *, term: int) -> None:
        """It acts, in that term."""
        self._active.set(1)
        self._term.set(term)


class Metrics:
    """One registry of our own, so that tests and several daemons in a process don't collide."""

    def __init__(self, *, controllers: int = 1) -> None:
        self.registry = CollectorRegistry()
        self._round_at: float | None = None  # the last one
        self.roles = Roles(self.registry, controllers=controllers)
        self.round_seconds = Histogram(
            "ones_round_duration_seconds", "Length of a round.", registry=self.registry
        )
        self.step_seconds = Gauge(
            "ones_round_step_seconds",
            "Length of each step of the last round.",
            ["step"],
            registry=self.registry,
        )
        self.rounds = Counter(
            "ones_rounds", "Rounds by how they ended.", ["outcome"], registry=self.registry
        )
        self.last_success = Gauge(
            "ones_last_success_timestamp_seconds",
            "End of the last good round.",
            registry=self.registry,
        )
        self.plan_gap = Gauge(
            "ones_plan_gap_ratio",
            "How far the last plan may be below the best possible, as a share of that.",
            registry=self.registry,
        )
        self.decisions = Counter(
            "ones_decisions",
            "Decisions by kind and verdict.",
            ["kind", "verdict"],
            registry=self.registry,
        )
        self.moves = Counter(
            "ones_moves",
            "Ended moves by kind and outcome.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self.odd_moves = Counter(
            "ones_odd_moves",
            "Steps of moves that could not be taken because something made no sense.",
            registry=self.registry,
        )
        self.slurm_errors = Counter(
            "ones_slurm_errors", "Slurm calls that failed.", registry=self.registry
        )
        self.gpus = Gauge(
            "ones_gpus",
            "GPUs by who holds them: elastic jobs, other jobs, or nobody.",
            ["holder"],
            registry=self.registry,
        )
        self.held = Counter(
            "ones_gpu_seconds_held",
            "GPU time given to elastic jobs.",
            registry=self.registry,
        )
        self.lost = Counter(
            "ones_gpu_seconds_lost_to_moves",
            "GPU time in which elastic jobs stood still because of a move.",
            ["kind"],
            registry=self.registry,
        )
        self.jobs = Gauge("ones_jobs", "Elastic jobs by state.", ["state"], registry=self.registry)
        self.events = Counter(
            "ones_events", "What was heard at once, by source.", ["source"], registry=self.registry
        )
        self.agents_silent = Gauge(
            "ones_agents_silent",
            "GPU nodes in service whose agent has not reported in time.",
            registry=self.registry,
        )
        self.unusable = Gauge(
            "ones_nodes_unusable",
            "GPU nodes on which nothing new is placed, silent ones included.",
            registry=self.registry,
        )
        self.starts_refused = Counter(
            "ones_starts_refused",
            "Starts and live growth that Slurm did not carry out, by what stood in the way.",
            ["cause"],
            registry=self.registry,
        )
        self._database = Gauge(
            "ones_database_bytes",
            "Size of the database's files, the write-ahead log included.",
            registry=self.registry,
        )
        self.reports_refused = Counter(
            "ones_reports_refused",
            "Job reports that did not fit Slurm's records.",
            registry=self.registry,
        )
        for outcome in ("done", "failed"):
            self.rounds.labels(outcome=outcome)
        for source in _SOURCES:
            self.events.labels(source=source)
        for kind in _KINDS:
            self.lost.labels(kind=kind)
            for outcome in _ENDS:
                self.moves.labels(kind=kind, outcome=outcome)
        for cause in _CAUSES:
            self.starts_refused.labels(cause=cause)
        for holder in _HOLDERS:
            self.gpus.labels(holder=holder)

    def watch_database(self, size: Callable[[], int]) -> None:
        """Have the size of the database, in bytes, asked for whenever it is to be told."""
        self._database.set_function(size)

    def start_refused(self, cause: str) -> None:
        """Count a start that Slurm did not carry out, by what stood in its way."""
        self.starts_refused.labels(cause=cause).inc()

    def round(self, done: Round, *, silent: int, unusable: int, elastic: Mapping[str, int]) -> None:
        """Count what a round came to; `elastic`: node -> its GPUs that elastic jobs hold."""
        for decision in done.decisions:
            short = decision.verdict.split(":")[0]
            self.decisions.labels(kind=decision.kind, verdict=short).inc()
        self.plan_gap.set(float("nan") if done.gap is None else done.gap)
        waiting = sum(1 for job in done.jobs if job.placement is None)
        self.jobs.labels(state="waiting").set(waiting)
        self.jobs.labels(state="running").set(len(done.jobs) - waiting)
        self.agents_silent.set(silent)
        self.unusable.set(unusable)
        nodes = [node for node in done.snapshot.nodes.values() if node.gpus]
        ours = {node.name: elastic.get(node.name, 0) for node in nodes}
        self.gpus.labels(holder="elastic").set(sum(ours.values()))
        others = sum(max(0, node.gpus_used - ours[node.name]) for node in nodes)
        self.gpus.labels(holder="other").set(others)
        self.gpus.labels(holder="free").set(sum(node.gpus - node.gpus_used for node in nodes))
        # A clock that is set back gives no time, and one that is set on a round's at most.
        if self._round_at is not None and done.problem is not None:
            elapsed = min(max(0.0, done.at - self._round_at), 2.0 * done.problem.round_seconds)
            gpus = sum(job.placement.gpus for job in done.jobs if job.placement is not None)
            self.held.inc(elapsed * gpus)
        self._round_at = done.at
