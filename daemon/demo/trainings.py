"""What runs inside jobs, and the agents: progress, checkpoints, reports, live orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec.structs import replace

from ones.daemon.wire import (
    Checkpoint,
    GpuSample,
    Lease,
    Live,
    LiveOrder,
    NodeReport,
    Received,
    Report,
)
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.job import Job, Wants
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.submission import Request, SatelliteOf
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import SATELLITE_MARK

INTERVAL = 10.0  # seconds between two reports of an agent
GIB = 2**30


@dataclass(slots=True, kw_only=True)
class Training:
    """One job's program: what it has done, and what of that is on disk."""

    job: int
    user: str
    total: float  # samples
    speed: float  # samples a second on one GPU
    scale: float  # how much of the next GPU it makes use of
    fixed: float = 0.0  # seconds of a step whatever its batch
    loss: float | None = None  # at its beginning; None: it reports none
    epochs: int | None = None  # in all; None: it does not say what an epoch is
    submitted: int  # the batch that its user wrote
    batch: int
    most_batch: int
    most_per_gpu: int
    tunes: bool = False
    live: bool = False
    answers: float = 1.0  # seconds to a checkpoint; infinite: never
    absurd: dict[str, object] = field(default_factory=dict)  # what it reports beside the truth
    done: float = 0.0
    saved: float = 0.0
    since: float = 0.0  # `done` is as of then
    running: bool = False
    restarts: int = 0
    gpus: int = 0
    began: float = 0.0
    saved_at: float = 0.0
    lost: float = 0.0  # samples that were done again, of stops by onesd
    parts: dict[int, int] = field(default_factory=dict)  # satellite -> its workers
    order: LiveOrder | None = None
    coming: dict[int, int] = field(default_factory=dict)
    state: str = "idle"
    answered: int = 0
    reason: str = ""
    ordered_at: float = 0.0

    def rate(self) -> float:
        """Samples a second now."""
        rate: float = self.speed * max(1, self.gpus) ** self.scale
        return self.batch / (self.batch / rate + self.fixed) if self.fixed else rate

    def advance(self, now: float) -> None:
        if self.running:
            self.done = min(self.total, self.done + self.rate() * (now - self.since))
        self.since = now


class Trainings:
    """All programs, all agents; `hear` takes a node's report, `lease` is what onesd answers."""

    def __init__(
        self,
        world: World,
        rng: Random,
        *,
        hear: Callable[[NodeReport], None],
        lease: Callable[[int], Lease | None],
        interval: float = INTERVAL,
        varied: bool = False,
    ) -> None:
        """`varied`: the agents see what runs on each GPU, which is as busy as that makes it; else
        all are alike."""
        self._interval = interval
        self._varied = varied
        self._world = world
        self._rng = rng
        self._hear = hear
        self._lease = lease
        self.of: dict[int, Training] = {}
        self.silent: dict[str, float] = {}  # node -> until when its agent says nothing
        self.muddled: Random | None = None  # reports come late, twice, or make no sense
        self._words: dict[int, dict[str, Received]] = {}  # job -> kind -> last word
        self._ended: dict[str, set[int]] = {}
        self._old: list[NodeReport] = []
        self._gpus = {
            name: tuple(
                GpuSample(
                    minor=minor,
                    uuid=f"{name}-{minor}",
                    type=node.spec.gpu_type,
                    utilization=0.9,
                    memory_used=8 * GIB,
                    memory_total=16 * GIB,
                )
                for minor in range(node.spec.gpus)
            )
            for name, node in world.state.nodes.items()
        }

    def happened(self, what: Happening, job: Job) -> None:
        """The world's listener."""
        if what == "submitted":
            return
        if job.admin_comment.startswith(SATELLITE_MARK):
            self._satellite(what, job)
            return
        training = self.of.get(job.id)
        if training is None:
            return
        now = self._world.now
        if what == "started":
            training.running, training.restarts = True, job.restarts
            training.done = training.saved
            training.since = training.began = training.saved_at = now
            training.gpus = job.gpus
            self._take_leased(training)
            training.parts, training.coming = {}, {}
            training.order, training.state, training.answered = None, "idle", 0
            self._foresee(training)
        elif what == "resized":
            self._resize(training)
        elif what in ("stopped", "ended", "requeued"):
            if training.running:
                training.advance(now)
                training.running = False
                for node in job.ran_on:
                    self._ended.setdefault(node, set()).add(job.id)
            if what == "ended" and job.state not in ("PENDING", "RUNNING"):
                self._words.pop(job.id, None)

    def _foresee(self, training: Training, *, least: float = 0.0) -> None:
        left = max(least, (training.total - training.done) / training.rate())
        number, restarts, gpus = training.job, training.restarts, training.gpus
        self._world.at(
            self._world.now + left, partial(self._over, number, restarts, gpus, training)
        )

    def _over(self, number: int, restarts: int, gpus: int, training: Training) -> None:
        same = training.running and (training.restarts, training.gpus) == (restarts, gpus)
        if not same or self.of.get(number) is not training:
            return
        training.advance(self._world.now)
        if training.done >= training.total - 1e-6 and self._world.runs(number):
            for satellite in (*training.parts, *training.coming):
                self._world.finish(satellite)
            self._world.finish(number)
        if training.running:  # suspended, or its node is away
            self._foresee(training, least=30.0)

    def _resize(self, training: Training) -> None:
        training.advance(self._world.now)
        own = self._world.state.jobs.get(training.job)
        gpus = (own.gpus if own is not None else 0) + sum(training.parts.values())
        if gpus != training.gpus:
            training.gpus = gpus
            self._take_leased(training)
            self._foresee(training)

    def _take_leased(self, training: Training) -> None:
        """What onesd says is taken where it is for the size that the training has."""
        lease = self._lease(training.job)
        if lease is not None and lease.gpus == training.gpus:
            self._take_batch(training, lease.batch)

    def _take_batch(self, training: Training, told: int | None) -> None:
        if told is None or told == training.batch:
            return
        training.advance(self._world.now)
        training.batch = told
        if training.running:
            self._foresee(training)

    def _satellite(self, what: Happening, job: Job) -> None:
        training = self.of.get(_base_of(job))
        if training is None:
            return
        if what == "started" and job.id in training.coming and training.running:
            training.coming[job.id] = job.gpus
            training.parts[job.id] = job.gpus
            del training.coming[job.id]
            self._resize(training)
            self._joined(training)
        elif what in ("stopped", "ended"):
            training.coming.pop(job.id, None)
            if training.parts.pop(job.id, None) is not None and training.running:
                self._resize(training)

    def signals(self) -> None:
        """Answer the signals that came since; a checkpoint takes a moment."""
        signals = self._world.state.signals
        while signals:
            sent = signals.popleft()
            training = self.of.get(sent.job)
            if training is None or training.answers == float("inf"):
                continue
            if training.answers < 0:  # it does not know the signal, and dies of it
                self._world.finish(sent.job, 138)
                continue
            delay = training.answers * self._rng.uniform(0.5, 1.5)
            self._world.at(self._world.now + delay, partial(self._save, training, sent.restarts))

    def _save(self, training: Training, restarts: int) -> None:
        if not training.running or training.restarts != restarts:
            return
        now = self._world.now
        training.advance(now)
        training.saved, training.saved_at = training.done, now
        word = Checkpoint(job=training.job, restarts=restarts, samples=int(training.saved))
        self._say(training.job, "checkpoint", word)
        job = self._world.state.jobs.get(training.job)
        if job is not None and job.nodes:
            node = job.nodes[0]
            self._tell(node, self._heard_on().get(node, ()))

    def _say(self, job: int, kind: str, word: Report | Checkpoint | Live) -> None:
        received = Received(at=self._world.now, evidence="cgroup", message=word)
        self._words.setdefault(job, {})[kind] = received

    def report(self) -> None:
        """All agents report."""
        now = self._world.now
        for training in self.of.values():
            if training.running and now - training.began > 2.0:
                training.advance(now)
                if training.tunes:
                    self._take_leased(training)
                if self._rng.random() < 0.02:  # it saves now and then without being asked
                    self._save(training, training.restarts)
                self._say(training.job, "report", self._report_of(training))
                if training.live:
                    self._say(training.job, "live", self._live_of(training))
        heard = self._heard_on()
        for node in self._world.state.nodes:
            self._tell(node, heard.get(node, ()))

    def _heard_on(self) -> dict[str, list[int]]:
        """Node -> the jobs whose words its agent has: those that run there first."""
        heard: dict[str, list[int]] = {}
        for number in self._words:
            job = self._world.state.jobs.get(number)
            if job is not None and job.ran_on:
                heard.setdefault(job.ran_on[0], []).append(number)
        return heard

    def _report_of(self, training: Training) -> Report:
        seconds = training.batch / training.rate()
        fields: dict[str, object] = {
            "samples": int(training.done),
            "batch": training.batch,
            "gpus": training.gpus,
            "step_seconds": min(seconds, 86400.0),
            "total_samples": int(training.total),
            "batch_submitted": training.submitted,
            "batch_most": training.most_batch,
            "batch_most_per_gpu": training.most_per_gpu,
            "resumed_seconds": 2.0,
            "tunes": training.tunes,
        }
        if training.fixed:  # a noise scale of some batches, so that larger ones are worth having
            fields |= {"grad_sqr": 1.0, "grad_var": 8.0, "epoch": training.done / training.total}
        if training.epochs is not None:
            fields["epoch_samples"] = int(training.total / training.epochs)
        if training.loss is not None:
            far = training.done / training.total
            noise = self._rng.uniform(0.97, 1.03)
            fields["loss"] = training.loss * (0.1 + 0.9 / (1.0 + 20.0 * far) ** 0.7) * noise
        fields |= training.absurd
        return Report(job=training.job, restarts=training.restarts, **fields)  # type: ignore[arg-type]

    def _live_of(self, training: Training) -> Live:
        return Live(
            job=training.job,
            restarts=training.restarts,
            workers=training.gpus,
            parts={str(number): gpus for number, gpus in training.parts.items()},
            order=training.order.number if training.order is not None else 0,
            state=training.state,  # type: ignore[arg-type]
            reason=training.reason,
            pause=0.1 if training.state == "done" else None,
        )

    def _tell(self, node: str, jobs: Sequence[int]) -> None:
        now = self._world.now
        there = self._world.state.nodes[node]
        if not there.answers or self.silent.get(node, 0.0) > now:
            return
        report = NodeReport(
            node=node,
            taken=now,
            interval=self._interval,
            version="0",
            gpus=self._samples(node) if self._varied else self._gpus[node],
            received=tuple(word for number in jobs for word in self._words[number].values()),
            ended=tuple(self._ended.pop(node, ())),
        )
        self._deliver(report)
        for number in jobs:
            training = self.of.get(number)
            if training is not None and training.live and training.running:
                self._take_order(training)

    def _samples(self, name: str) -> tuple[GpuSample, ...]:
        """A job's GPUs are as busy as it makes use of them; those of plain jobs somehow."""

        def load(holder: int) -> float:
            training = self._computing_in(holder)
            if training is None or not training.gpus:
                return 0.3 + holder % 7 / 10 if holder else 0.0
            return min(1.0, 0.98 * training.rate() / (training.speed * training.gpus))

        whole = self._world.state.nodes[name].whole
        held = [(sample, whole[sample.minor]) for sample in self._gpus[name]]
        return tuple(
            replace(sample, utilization=load(holder), jobs=(holder,) if holder else ())
            for sample, holder in held
        )

    def _computing_in(self, number: int) -> Training | None:
        """What keeps the GPUs of this job busy: its own training, or that of its base."""
        job = self._world.state.jobs.get(number)
        if job is None or not job.admin_comment.startswith(SATELLITE_MARK):
            return self.of.get(number)
        base = self.of.get(_base_of(job))
        return base if base is not None and number in base.parts else None

    def _deliver(self, report: NodeReport) -> None:
        rng = self.muddled
        if rng is not None:
            fate = rng.random()
            if fate < 0.05:
                return  # lost
            if fate < 0.10:
                self._old.append(report)
                self._world.at(self._world.now + rng.uniform(5, 200), partial(self._hear, report))
                return
            if fate < 0.15 and self._old:
                self._hear(self._old.pop())
        self._hear(report)

    def _take_order(self, training: Training) -> None:
        """What a job's launcher does with an order, as slurm_ext.runtime.live does it."""
        lease = self._lease(training.job)
        order = lease.order if lease is not None else None
        now = self._world.now
        if order is None or order.restarts != training.restarts:
            return
        known = training.order is not None and training.order.number == order.number
        if known and order.withdrawn and training.state == "working":
            self._give_up(training, "withdrawn")
        elif known and training.state == "working" and now - training.ordered_at > order.patience:
            self._give_up(training, "no room in time")
        if known or order.withdrawn:
            return
        training.order, training.state, training.reason = order, "working", ""
        training.ordered_at = now
        person = self._world.by(training.user)
        for number in [each for each in training.parts if each not in order.keep]:
            self._world.finish(number)
        for part in order.add:
            tie = SatelliteOf(base=training.job, restarts=training.restarts, order=order.number)
            wants = Wants(tres_per_node=f"gres/gpu:{part.gpus}", required=(part.node,))
            try:
                number = person.submit(
                    Request(wants=wants, satellite=tie, name="ones-satellite", requeue=False)
                )
            except SlurmError as fault:
                self._give_up(training, str(fault)[:200])
                return
            training.coming[number] = 0
        self._joined(training)

    def _joined(self, training: Training) -> None:
        if training.state == "working" and not training.coming:
            training.state = "done"
            if training.order is not None:
                self._take_batch(training, training.order.batch)
            self._say(training.job, "live", self._live_of(training))

    def _give_up(self, training: Training, why: str) -> None:
        training.state, training.reason = "failed", why
        for number in list(training.coming):
            with suppress(SlurmError):  # onesd cancels satellites that their job does not know
                self._world.by(training.user).cancel(number)
        training.coming = {}


def _base_of(satellite: Job) -> int:
    """The live job that grew by this one."""
    return int(satellite.admin_comment.split("base=")[1].split(";")[0])
