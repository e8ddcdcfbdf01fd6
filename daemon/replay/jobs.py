"""A simulated job: what it holds, how far it is, what it would report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ones.daemon.replay.faults import ReplayError
from ones.daemon.replay.workload import OutsideProfile, TraceJob
from ones.estimator.progress import Progress
from ones.policies.model import Batch, Job, JobId, Node, Placement, Seconds, Shape
from ones.policies.renewal import limit_share
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes

NO_BATCH = Batch(submitted=1, most_per_gpu=1, most=1)  # of a job whose batch is of no matter


@dataclass(slots=True)
class SimulatedJob:
    """One job of the trace in the simulated cluster; times are seconds since its start."""

    id: JobId
    trace: TraceJob
    shapes: tuple[Shape, ...]
    nodes: frozenset[str]
    batches: Batch | None = None
    placement: Placement | None = None
    gpu_type: str = ""
    batch: int | None = None  # what the plan has chosen; None: its user's
    started: Seconds | None = None
    begun: Seconds | None = None  # of the present run
    finished: Seconds | None = None
    pause: Seconds = 0.0  # of a restart, still to go
    epoch: int = 0
    progress: float = 0.0  # steps at B0
    executed: Seconds = 0.0
    waited: Seconds = 0.0
    gpu_seconds: float = 0.0
    limit_used: Seconds = 0.0
    lost: float = 0.0  # of these, GPU-seconds in which it was restarted because of a move
    resizes: int = 0
    sizes: list[tuple[Seconds, int]] = field(default_factory=list)  # GPUs from that time on
    places: list[tuple[Seconds, Placement | None]] = field(default_factory=list)  # as `sizes`
    held: dict[str, float] = field(default_factory=dict)  # GPU-seconds by type
    at_limit: bool = False  # whether its time limit has ended it
    trained: bool = False  # whether it made steps since it was last asked
    _splits: dict[tuple[int | None, int], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = self.trace.application.batches
        if own is not None and self.trace.batch is not None:
            own = replace(own, submitted=self.trace.batch)
        self.batches = own

    def as_seen(self) -> Job:
        """As Slurm and its own reports would show it."""
        trace = self.trace
        return Job(
            id=self.id,
            name=trace.family,
            user=trace.user,
            account=trace.account,
            submitted=trace.submitted,
            sizes=trace.sizes,
            requested=trace.requested,
            shapes=self.shapes,
            nodes=self.nodes,
            priority=trace.priority,
            tier=trace.tier,
            placement=self.placement,
            batch=self.present_batch if self.placement else None,
            batches=self.batches,
            started=self.begun,
            executed=self.executed,
            limit_used=self.limit_used,
            waited=self.waited,
            time_limit=trace.time_limit,
            partition=trace.partition,
            qos=trace.qos,
            reservation=trace.reservation,
            requested_nodes=trace.nodes,
            requested_memory=trace.memory,
            licenses=trace.licenses,
            uneven=True,
        )

    @property
    def present_batch(self) -> int:
        """The global batch it really runs with, whole passes on every GPU."""
        local, passes = self.split()
        return local * passes * (self.placement.gpus if self.placement else 1)

    @property
    def epoch_began(self) -> float:
        """The progress at which the present epoch began."""
        return float(self.trace.application.epochs[self.epoch - 1]) if self.epoch else 0.0

    def split(self) -> tuple[int, int]:
        """Samples per GPU and pass, and passes."""
        gpus = self.placement.gpus if self.placement else 1
        key = (self.batch, gpus)
        found = self._splits.get(key)
        if found is None:
            bounds = self.batches or NO_BATCH
            local, passes = bounds.split(float(self.batch or bounds.submitted), gpus)  # type: ignore[arg-type]
            found = self._splits[key] = int(local), int(passes)
        return found

    def place(self, placement: Placement | None, gpu_type: str, now: Seconds) -> None:
        self.placement, self.gpu_type = placement, gpu_type
        self.sizes.append((now, placement.gpus if placement else 0))
        self.places.append((now, placement))
        self.begun = now if placement else None
        if placement is None:
            return
        if self.started is None:
            self.started = now
        else:
            self.resizes += 1

    def end(self, now: Seconds) -> None:
        """A run that nobody touched is over."""
        if self.placement is None or self.begun is None:
            return
        self.executed += now - self.begun
        self._hold(self.placement, now - self.begun)
        self.place(None, "", now)
        self.finished = now

    def advance(
        self, now: Seconds, seconds: Seconds, epoch_over: Callable[[SimulatedJob], None]
    ) -> None:
        """Train, or wait, for so long; it may end on the way. `epoch_over` hears of each epoch."""
        if self.placement is None:
            self.waited += seconds
            return
        limit = self.time_left(now)
        self.at_limit = limit is not None and limit <= seconds
        if limit is not None:
            seconds = min(seconds, limit)
        self.executed += seconds
        left = seconds - min(self.pause, seconds)
        self.pause -= seconds - left
        if self.resizes:  # its first start is no move's fault
            self.lost += (seconds - left) * self.placement.gpus
        epochs = self.trace.application.epochs
        while left > 0 and self.epoch < len(epochs):
            rate = self._rate()
            if rate <= 0:
                break
            self.trained = True
            end = float(epochs[self.epoch])
            if self.progress + rate * left < end:
                self.progress += rate * left
                left = 0.0
            else:
                # Epochs take whole seconds, as in the simulators of Pollux and Sia.
                left -= max(0, round((end - self.progress) / rate))
                self.progress = end
                self.epoch += 1
                epoch_over(self)
        done = self.epoch == len(epochs)
        used = seconds - left if done else seconds
        self.at_limit = self.at_limit and not done
        if done or self.at_limit:
            self.finished = now + used
            self.executed -= seconds - used
            self.sizes.append((self.finished, 0))
            self.places.append((self.finished, None))
        self._hold(self.placement, used)
        if self.finished is not None:
            self.placement = None

    def _hold(self, placement: Placement, seconds: Seconds) -> None:
        """Book what it has held for so long."""
        held = seconds * placement.gpus
        self.gpu_seconds += held
        self.held[self.gpu_type] = self.held.get(self.gpu_type, 0.0) + held
        self.limit_used += seconds * limit_share(placement.gpus, self.trace.requested)

    def time_left(self, now: Seconds) -> Seconds | None:
        """Until its time limit ends its present run; None: it has none, or does not run."""
        if self.begun is None or self.trace.time_limit is None:
            return None
        return max(0.0, self.begun + self.trace.time_limit - now)

    def step_seconds(self) -> tuple[Seconds, Seconds] | None:
        """Of an optimiser step as it runs now, and what synchronising adds to a pass."""
        if self.placement is None:
            return None
        local, passes = self.split()
        counts = tuple(sorted((gpus for _, gpus in self.placement.gpus_on), reverse=True))
        try:
            step = self.trace.application.step(self.gpu_type, counts, local)
        except OutsideProfile:
            return None
        return step.seconds_of(passes), step.sync

    def _rate(self) -> float:
        """Progress in steps at B0 a second."""
        timed = self.step_seconds()
        if timed is None:
            return 0.0
        batch = self.present_batch
        scale = batch / (self.batches.reference if self.batches else 1)
        seen = self.trace.application.gradient(batch, self.epoch)
        return (scale if seen is None else seen.gain(scale)) / timed[0]

    def told(self, *, declared: bool) -> Progress | None:
        """Its last word on its progress, in samples at B0."""
        reference = self.batches.reference if self.batches else 1
        epochs = self.trace.application.epochs
        samples = self.progress * reference
        epoch_samples = float(epochs[0]) * reference
        said = declared and self.trace.declared
        return Progress(
            job=self.id,
            samples=samples,
            total_samples=epoch_samples * len(epochs) if said else None,
            epoch_samples=epoch_samples,
        )


def simulated(
    traces: Sequence[TraceJob],
    nodes: Sequence[Node],
    ours: Sequence[bool],
    partitions: Mapping[str, frozenset[str]],
) -> list[SimulatedJob]:
    """The jobs of a trace on these nodes; of those that aren't ours only the size they ask for.

    `partitions` have only these nodes, any other has all. Raises ReplayError where a job fits
    none of them.
    """
    there: dict[object, list[Node]] = {}
    shapes: dict[object, tuple[tuple[Shape, ...], frozenset[str]]] = {}
    kinds = sorted({node.gpu_type for node in nodes})
    jobs = []
    for number, (trace, own) in enumerate(zip(traces, ours, strict=True), start=1):
        usable = tuple(
            kind
            for kind in kinds
            if trace.application.runs_on(kind)
            and (trace.gpu_types is None or kind in trace.gpu_types)
        )
        where = (usable, trace.partition)
        if where not in there:
            inside = partitions.get(trace.partition)
            there[where] = [
                node
                for node in nodes
                if node.gpu_type in usable and (not inside or node.name in inside)
            ]
        gpus = [node.gpus for node in there[where]]
        sizes = trace.sizes if own else Sizes((trace.requested,))
        if (sizes, where) not in shapes:
            names = frozenset(node.name for node in there[where])
            shapes[sizes, where] = realisable(sizes, gpus), names
        found, names = shapes[sizes, where]
        if not found:
            raise ReplayError(
                f"job {number} ({trace.name!r}) accepts {sizes} GPUs, and the cluster has"
                f" {sum(node.gpus for node in nodes)} of which it can use {sum(gpus)}"
            )
        jobs.append(SimulatedJob(id=JobId(number), trace=trace, shapes=found, nodes=names))
    return jobs
