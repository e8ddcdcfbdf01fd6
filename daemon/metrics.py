"""What onesd tells Prometheus, in base units."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info


class Metrics:
    """One registry of our own, so that tests and several daemons in a process don't collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Info("ones_build", "The running version.", registry=self.registry).info(
            {"version": version("ones-slurm")}
        )
        self.round_seconds = Histogram(
            "ones_round_duration_seconds", "Length of a round.", registry=self.registry
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
        self.slurm_errors = Counter(
            "ones_slurm_errors", "Slurm calls that failed.", registry=self.registry
        )
        self.gpus = Gauge(
            "ones_gpus", "GPUs by who holds them.", ["holder"], registry=self.registry
        )
        self.jobs = Gauge("ones_jobs", "Elastic jobs by state.", ["state"], registry=self.registry)
        self.events = Counter(
            "ones_events", "What was heard at once, by source.", ["source"], registry=self.registry
        )
        self.agents_silent = Gauge(
            "ones_agents_silent", "GPU nodes without a fresh report.", registry=self.registry
        )
        self.reports_refused = Counter(
            "ones_reports_refused",
            "Job reports that did not fit Slurm's records.",
            registry=self.registry,
        )
