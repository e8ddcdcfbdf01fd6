"""What an oracle is told: the true curves and the true remaining work of a simulated job."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import log2

import numpy as np

from ones.daemon.replay.jobs import NO_BATCH, SimulatedJob
from ones.daemon.replay.workload import Application, OutsideProfile
from ones.policies.model import Batch, Floats, Ints, Outlook, Seconds, Segment

ANSWERS = 256


@dataclass(frozen=True, slots=True, eq=False)
class TrueSpeed:
    """The application's own step times, full nodes first."""

    application: Application
    batches: Batch
    per_node: int  # GPUs of the largest node
    _answers: dict[tuple[object, ...], Floats] = field(default_factory=dict, repr=False)

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        """Asked again with the same arrays, as rounds do, it gives the same answer again."""
        asked = [np.asarray(one) for one in (nodes, gpus, global_batch)]
        key = (gpu_type, *((one.shape, one.dtype.str, one.tobytes()) for one in asked))
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            found = self._answers[key] = self._found(gpu_type, nodes, gpus, global_batch)
            found.flags.writeable = False
        return found

    def _found(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        n, c, b = np.broadcast_arrays(nodes, gpus, global_batch)
        local, passes = self.batches.split(b, c)
        found = [
            self._seconds(gpu_type, self._packed(int(one[0]), int(one[1])), *map(int, one[2:]))
            for one in zip(n.flat, c.flat, local.flat, passes.flat, strict=True)
        ]
        return np.array(found, dtype=np.float64).reshape(n.shape)

    def _seconds(self, gpu_type: str, gpus_on: tuple[int, ...], local: int, passes: int) -> Seconds:
        try:
            return self.application.step(gpu_type, gpus_on, local).seconds_of(passes)
        except OutsideProfile:
            return np.inf

    def _packed(self, nodes: int, gpus: int) -> tuple[int, ...]:
        """So many GPUs on so many nodes: full ones as far as that goes, else alike."""
        each = self.per_node if nodes == -(-gpus // self.per_node) else -(-gpus // nodes)
        counts = [min(each, gpus - each * k) for k in range(nodes)]
        return tuple(count for count in counts if count > 0)


@cache
def _speed(application: Application, batches: Batch, per_node: int) -> TrueSpeed:
    return TrueSpeed(application, batches, per_node)


@cache
def _noise(application: Application, batches: Batch, epoch: int) -> tuple[tuple[float, float], ...]:
    """The noise scale at the user's batch, and at twice B0 and so on."""
    least, most = batches.reference, batches.most
    doubled = {min(least * 2**power, most) for power in range(int(log2(most / least)) + 2)}
    found = []
    for batch in sorted(doubled | {min(max(batches.submitted, least), most)}):
        seen = application.gradient(batch, epoch)
        if seen is None:
            return ()
        found.append((float(batch), least * seen.var / max(seen.sqr, 1e-300)))
    return tuple(found)


def true_outlook(job: SimulatedJob, *, restart_cost: Seconds, per_node: int) -> Outlook:
    """The outlook of a job as it really is."""
    application, batches = job.trace.application, job.batches or NO_BATCH
    epoch, progress = job.epoch, job.progress
    reference = batches.reference
    segments = []
    before = progress
    first = epoch
    if application.gradient(reference, epoch) is None:
        first = len(application.epochs) - 1  # one epoch is like the other
    for number in range(first, len(application.epochs)):
        end = float(application.epochs[number])
        noise = _noise(application, batches, number)
        segments.append(Segment(max(end - before, 1e-9) * reference, None, noise))
        before = end
    remaining = sum(one.samples for one in segments)
    done = progress * reference
    share = done / (done + remaining)
    return Outlook(
        speed=_speed(application, batches, per_node),
        processed=done,
        alpha=1.0 + 1e6 * share,
        beta=1.0 + 1e6 * (1.0 - share),
        remaining=remaining,
        restart_cost=restart_cost,
        epochs=float(epoch),
        points=1,
        batch=float(batches.submitted),
        segments=tuple(segments),
    )
