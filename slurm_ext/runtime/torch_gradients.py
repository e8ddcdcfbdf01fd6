"""The norms of PyTorch's gradients, taken where they appear: before anybody clips them.

Among several workers they are taken in DistributedDataParallel's communication hook, where a
gradient is seen before and after it is averaged. A worker that is alone keeps some numbers of one
step's gradient until the next step's. Nothing waits for a GPU here: results are read later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.gradients import Gradients, Pending

log = logging.getLogger(__name__)
MOST_NUMBERS = 1 << 22  # of a gradient that are looked at: of a larger one every third, say


class Norms(Protocol):
    """Measures gradients in the steps for which it was told to."""

    def add(self, model: Any) -> None:
        """Measure this model's gradients as well."""
        ...

    def watch(self, samples: int) -> None:
        """Measure the step to come, of so many samples over all workers; 0: don't."""
        ...

    def seen(self) -> Pending | None:
        """What the step just done has completed, if anything."""
        ...

    def settle(self) -> None: ...


class LoneNorms:
    """Of the only worker: two steps, one after the other, are its two samples of the gradient."""

    def __init__(self) -> None:
        self._parameters: dict[int, Any] = {}
        self._hooks: list[Any] = []
        self._samples = 0  # of the step being measured
        self._now: Any = None  # its numbers
        self._before: tuple[int, Any] | None = None  # both of the step before
        self._free: list[Any] = []

    def add(self, model: Any) -> None:
        self._parameters.update({id(each): each for each in model.parameters()})

    def watch(self, samples: int) -> None:
        self._unhook()
        self._samples = 0
        usable = [each for each in self._parameters.values() if each.requires_grad and each.is_leaf]
        if not samples or not usable:
            return
        step = stride_of(sum(each.numel() for each in usable))
        counts = [-(-each.numel() // step) for each in usable]
        try:
            numbers = self._space(sum(counts), usable[0].device)
        except torch.OutOfMemoryError:
            log.warning("ones: no memory to spare, so the gradients' noise is not measured")
            self._parameters.clear()
            return
        # Hooks for this step only: all others stay as fast as they are.
        for each, part in zip(usable, numbers.split(counts), strict=True):
            self._hooks.append(each.register_post_accumulate_grad_hook(_keeps(part, step)))
        self._samples, self._now = samples, numbers

    def seen(self) -> Pending | None:
        samples, self._samples = self._samples, 0
        self._unhook()
        if not samples:
            return None
        before, self._before = self._before, None
        if before is None or before[1].shape != self._now.shape:
            self._before = samples, self._now
            return None
        first, kept = before
        squares = [square(kept), square(self._now)]
        squares.append(square(kept.sub_(self._now)))
        self._free = [kept, self._now]
        batch = first + samples

        def read() -> Gradients | None:
            one, other, apart = torch.stack(squares).tolist()
            share = first / batch
            own = share * one + (1 - share) * other
            if own <= 0:
                return None
            mean = own - share * (1 - share) * apart
            return Gradients(parts=2, batch=batch, own=own, mean=mean)

        return read

    def settle(self) -> None:
        self.watch(0)

    def _space(self, count: int, device: Any) -> Any:
        """Zeros: where a parameter gets no gradient they stay."""
        while self._free:
            kept = self._free.pop()
            if kept.numel() == count and kept.device == device:
                return kept.zero_()
        return torch.zeros(count, dtype=torch.float32, device=device)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _keeps(part: Any, step: int) -> Callable[[Any], None]:
    def keep(parameter: Any) -> None:
        # Called again where a step has several backward passes: the last one has it all.
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            part.copy_(parameter.grad.detach().reshape(-1)[::step])

    return keep


class WorkersNorms:
    """Of all workers together: each one's own gradient is a sample of it."""

    def __init__(
        self,
        watch: Callable[[Any], Any] = lambda work: work,
        finish: Callable[[Any], None] = lambda work: work.wait(),
    ) -> None:
        """`watch` is told of each collective, and gives it back; `finish` waits for one."""
        self._strides: dict[int, int] = {}
        self._step: _Step | None = None
        self._last: _Step | None = None
        self._watch, self._finish = watch, finish

    def add(self, model: Any) -> None:
        numbers = sum(each.numel() for each in model.parameters() if each.requires_grad)
        self._strides[id(model)] = stride_of(numbers)

    def watch(self, samples: int) -> None:
        parts = min(samples, dist.get_world_size())
        step = _Step(samples, parts, self._watch, self._finish) if parts > 1 else None
        self._step = step

    def seen(self) -> Pending | None:
        step, self._step = self._step, None
        if step is None or not step.told:
            return None
        self._last = step
        return step.read

    def settle(self) -> None:
        """Let what is under way between the workers end."""
        if self._last is not None:
            self._last.settle()
            self._last = None

    def average(self, model: Any, weight: float, bucket: Any) -> Any:
        """DDP's mean of gradients, where the workers' shares of a step need not be equal."""
        step, gradient = self._step, bucket.buffer()
        if step is None or gradient.layout != torch.strided:
            return _sum(gradient.mul_(weight), lambda mean: mean)
        stride, part = self._strides[id(model)], (id(model), bucket.index())
        step.before(part, gradient[::stride], weight)
        summed = _sum(gradient.mul_(weight), lambda mean: step.after(mean, stride))
        if bucket.is_last():
            step.computed(gradient.device)
        return summed


class _Step:
    """What is measured of one step. Every worker does the same, or none does."""

    def __init__(
        self,
        samples: int,
        parts: int,
        watch: Callable[[Any], Any],
        finish: Callable[[Any], None],
    ) -> None:
        self._watch, self._finish = watch, finish
        self._samples = samples
        self._parts = parts
        self._own: list[Any] = []
        self._mean: list[Any] = []
        self._sums: list[tuple[Any, Any]] = []
        self._begun: Any = None
        self._ended: list[Any] = []
        self._known: set[tuple[int, int]] = set()
        self._twice = False
        self.told = False

    def before(self, part: tuple[int, int], gradient: Any, weight: float) -> None:
        # A second backward pass adds to what is averaged already: its norms are of a mixture.
        self._twice |= part in self._known
        self._known.add(part)
        if weight:
            self._own.append(weight * square(gradient))

    def computed(self, device: Any) -> None:
        """A model's backward pass is through; what is left is waiting for the others."""
        zero = torch.zeros((), dtype=torch.float32, device=device)
        own = torch.stack([zero, *self._own]).sum()
        self._own.clear()
        self._sums.append((own, self._watch(dist.all_reduce(own, async_op=True))))
        self._begun = _moment(device)
        self.told = True

    def after(self, mean: Any, stride: int) -> Any:
        self._mean.append(square(mean.detach().reshape(-1)[::stride]))
        self._ended.append(_moment(mean.device))
        return mean

    def settle(self) -> None:
        for _, work in self._sums:
            self._finish(work)

    def read(self) -> Gradients | None:
        self.settle()
        own = sum(float(own.item()) for own, _ in self._sums)
        mean = float(torch.stack(self._mean).sum().item())
        if self._twice or own <= 0:
            return None
        waited = max(_seconds(self._begun, ended) for ended in self._ended)
        return Gradients(
            parts=self._parts,
            batch=self._samples,
            own=own,
            mean=mean,
            sync_seconds=max(0.0, waited),
        )


def _sum(gradient: Any, then: Callable[[Any], Any]) -> Any:
    future = dist.all_reduce(gradient, async_op=True).get_future()
    return future.then(lambda done: then(done.value()[0]))


def stride_of(numbers: int) -> int:
    """Odd, so that it doesn't fall into step with the rows of a matrix."""
    return -(-numbers // MOST_NUMBERS) | 1


def square(numbers: Any) -> Any:
    return torch.linalg.vector_norm(numbers.detach(), dtype=torch.float32).square()


def _moment(device: Any) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
    event.record()
    return event


def _seconds(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
