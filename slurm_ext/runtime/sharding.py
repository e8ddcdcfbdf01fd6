"""A model cut over the workers of a job by PyTorch's FSDP2, and its gradients averaged.

FSDP2 cuts each parameter along its first dimension over `shards` workers. Where there are more of
them, they hold copies (HSDP): worker r has slice r % shards of copy r // shards. Gradients are
averaged over samples, so that shares of unequal size do no harm, and measured as under `job.ddp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.fsdp import FSDPModule, fully_shard  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.tensor import DTensor  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.gradients import Gradients, Pending
from ones.slurm_ext.runtime.torch_gradients import square, stride_of

NEEDED = ("set_custom_all_gather", "set_custom_reduce_scatter", "set_force_sum_reduction_for_comms")
Wrap = Callable[[Any, Any], object]  # has FSDP2 cut a model over a mesh, in place


def supported() -> str:
    """Why models can't be sharded with this torch; empty where they can."""
    if not all(hasattr(FSDPModule, name) for name in NEEDED):
        return f"job.fsdp() needs a newer PyTorch than {torch.__version__}; install 2.10 or newer"
    return ""


def copies(workers: int, shards: int | None) -> tuple[int, int]:
    """How many copies of the model so many workers hold, and over how many each copy is cut.

    Where `shards` doesn't divide the workers, a copy is cut over the next number that does: no
    worker then holds more than it was meant to, and none is left over.
    """
    if shards is None or shards >= workers:
        return 1, workers
    cut = next(each for each in range(shards, workers + 1) if workers % each == 0)
    return workers // cut, cut


def by_layers(options: Mapping[str, Any]) -> Wrap:
    """Cut each module that stands in a list of modules by itself, as layers do, and then the rest.

    `options` are those of torch's `fully_shard`.
    """

    def wrap(model: Any, mesh: Any) -> None:
        lists = (torch.nn.ModuleList, torch.nn.Sequential)
        layers = {
            layer: None
            for module in model.modules()
            if isinstance(module, lists) and module is not model
            for layer in module
            if any(True for _ in layer.parameters())
        }
        for layer in reversed(layers):  # those inside others come first
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)

    return wrap


def parts(model: Any) -> list[Any]:
    """The modules of a model that FSDP2 has cut each by itself."""
    return [each for each in model.modules() if isinstance(each, FSDPModule)]


def copies_of(model: Any) -> int:
    """How many copies of a model there are that the script has wrapped itself."""
    mesh = next(each.device_mesh for each in model.parameters() if isinstance(each, DTensor))
    return mesh.size(0) if mesh.ndim > 1 else 1


def check(model: Any, workers: int) -> None:
    """Raise StateFault where a wrapped model is not cut over so many workers by FSDP2 alone."""
    check_parameters(model)
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        *before, cut = parameter.placements
        whole = parameter.device_mesh.size() == workers
        if not (whole and cut.is_shard() and all(each.is_replicate() for each in before)):
            raise StateFault(
                f"parameter {name} is cut as {parameter.placements} over"
                f" {parameter.device_mesh.size()} of {workers} workers, which is more than FSDP2"
                " (tensor parallelism?); leave its state to job.saves_with()"
            )


def check_parameters(model: Any) -> None:
    """Raise StateFault where a wrapped model trains parameters that FSDP2 knows nothing of."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            raise StateFault(
                f"parameter {name} is not sharded, so its gradients differ between workers; add"
                " parameters before job.fsdp(), and have its `wrap` shard all of the model"
            )


@dataclass(slots=True)
class Workers:
    """Those over which models are cut, and how to wait for them."""

    size: int
    copies: int = 1
    across: Any = None  # the group of those who hold this worker's slice; None: nobody else
    everybody: Any = None  # a group on the CPU
    finish: Callable[[Any], None] = field(default=lambda work: work.wait())
    lost: Callable[[], bool] = field(default=lambda: False)
    lose: Callable[[RuntimeError], None] | None = None
    """Called where a worker was lost; the step then goes on without effect. None: raise it."""


class Averaging:
    """What FSDP2 calls to gather parameters and to average gradients, for all models of a job."""

    def __init__(self, weight: Callable[[], float], workers: Workers) -> None:
        self._weight = weight
        self._workers = workers
        self._step: _Step | None = None
        self._last: _Step | None = None
        self._stride = 1

    def add(self, model: Any) -> None:
        """Gather and average for this model, which FSDP2 has cut."""
        numbers = sum(each.numel() for each in model.parameters() if each.requires_grad)
        self._stride = max(self._stride, stride_of(numbers))
        for part in parts(model):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
            part.set_custom_all_gather(_Gather(self))
            scatter = _Scatter(self)
            part.set_custom_reduce_scatter(scatter)
            part.set_all_reduce_hook(scatter.across)

    # As gradients.Measures has it

    def watch(self, samples: int) -> None:
        shares = min(samples, self._workers.size)
        self._step = _Step(samples, shares, self._workers) if shares > 1 else None

    def seen(self) -> Pending | None:
        step, self._step = self._step, None
        if step is None or not step.told or self._workers.lost():
            return None
        try:
            step.computed()
        except RuntimeError as fault:
            if self._workers.lose is None:
                raise
            self._workers.lose(fault)
            return None
        self._last = step
        return step.read

    def settle(self) -> None:
        if self._last is not None:
            self._last.settle()
            self._last = None

    def run(self, begin: Callable[[], Any], output: Any) -> bool:
        """Have a collective done; False where a worker was lost, and the output is made zeros.

        On a GPU only the order of its streams is waited for.
        """
        workers = self._workers
        if not workers.lost():
            try:
                work = begin()
                if output.device.type == "cpu":
                    workers.finish(work)
                else:
                    work.wait()
                return True
            except RuntimeError as fault:
                if workers.lose is None:
                    raise
                workers.lose(fault)
        output.zero_()
        return False


class _Gather:
    """FSDP2's AllGather."""

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> None:
        self._averaging.run(
            lambda: dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=True
            ),
            output_tensor,
        )


class _Scatter:
    """FSDP2's ReduceScatter of one module, and what comes after it: the average over copies."""

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._done = False  # whether the gradient under way has been weighed

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        averaging = self._averaging
        self._weigh(input_tensor, group.size())
        if input_tensor.device.type == "cpu":
            # Gloo does it so as well, but says that it is done only to those who wait for it.
            if averaging.run(
                lambda: dist.all_reduce(input_tensor, group=group, async_op=True), output_tensor
            ):
                output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])
            return
        averaging.run(
            lambda: dist.reduce_scatter_tensor(
                output_tensor, input_tensor, group=group, op=dist.ReduceOp.SUM, async_op=True
            ),
            output_tensor,
        )

    def across(self, output: Any) -> None:
        """Average over the copies; FSDP2 calls this with its slice of the gradient."""
        averaging = self._averaging
        if not self._done:  # a slice that is the whole comes without a collective
            self._weigh(output, 1)
        self._done = False
        group = averaging._workers.across
        if group is not None:
            averaging.run(lambda: dist.all_reduce(output, group=group, async_op=True), output)
        if averaging._step is not None:
            averaging._step.after(output.detach().reshape(-1)[:: averaging._stride])

    def _weigh(self, gradient: Any, slices: int) -> None:
        averaging, weight = self._averaging, self._averaging._weight()
        if averaging._step is not None:
            numbers = gradient.detach().view(slices, -1)[:, :: averaging._stride]
            averaging._step.before(id(self), numbers, weight)
        gradient.mul_(weight)
        self._done = True


class _Step:
    """What is measured of one step. Every worker does the same, or none does."""

    def __init__(self, samples: int, shares: int, workers: Workers) -> None:
        self._samples, self._shares, self._workers = samples, shares, workers
        self._own: list[Any] = []
        self._mean: list[Any] = []
        self._known: set[int] = set()
        self._twice = False
        self._sums: Any = None
        self._work: Any = None

    @property
    def told(self) -> bool:
        return bool(self._known)

    def before(self, part: int, gradient: Any, weight: float) -> None:
        # A second backward pass adds to what is averaged already: its norms are of a mixture.
        self._twice |= part in self._known
        self._known.add(part)
        if weight:
            self._own.append(weight * square(gradient))

    def after(self, mean: Any) -> None:
        self._mean.append(square(mean) / self._workers.copies)

    def computed(self) -> None:
        """The step is over, and what it has told is summed over the workers; nobody waits here."""
        device = self._mean[0].device
        zero = torch.zeros((), device=device)
        both = [torch.stack([zero, *ones]).sum() for ones in (self._own, self._mean)]
        self._sums = torch.stack(both)
        group = self._workers.everybody if device.type == "cpu" else None
        self._work = dist.all_reduce(self._sums, group=group, async_op=True)

    def settle(self) -> None:
        if self._work is not None:
            self._workers.finish(self._work)
            self._work = None

    def read(self) -> Gradients | None:
        self.settle()
        own, mean = self._sums.tolist()
        if self._twice or own <= 0:
            return None
        return Gradients(parts=self._shares, batch=self._samples, own=own, mean=mean)
