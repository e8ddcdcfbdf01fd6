"""What the job needs of a deep-learning framework, and the least one: plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.checkpoint import Writable
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.gradients import Measures, Pending
from ones.slurm_ext.runtime.sampling import Sampler


class StateFault(OnesError):
    """A state can't be kept in a checkpoint, or the checkpoint holds another script's."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a script wants its model to be cut over the workers."""

    wrap: Callable[[Any, Any], object] | None = None  # cuts a model over a mesh, in place
    shards: int | None = None  # workers that share a copy; None: all
    copy_steps: int | None = None  # from one copy of each slice on a neighbour to the next
    options: Mapping[str, Any] = field(default_factory=dict)  # of fully_shard


class Writing(Protocol):
    """A checkpoint that is being written beside training."""

    def done(self) -> bool: ...

    def finish(self) -> None:
        """Wait for its end. Raises OSError where a worker could not write."""
        ...


class Shards(Protocol):
    """The state of sharded models in a checkpoint. All workers call these, in the same order."""

    def restore_model(self, models: Sequence[Any]) -> None:
        """Read the state of the last of the models."""
        ...

    def restore_tracked(self, models: Sequence[Any], index: int, each: Any) -> None:
        """Read the state of the object that was tracked as the index-th."""
        ...

    def check_all_given(self, models: int, tracked: int) -> None:
        """Raise StateFault where it holds more than that."""
        ...


class Framework(Measures, Protocol):
    """Workers' talk among each other, and everything that touches models."""

    def connect(self, place: Place) -> None:
        """Meet the other workers."""
        ...

    def propose(self, request: int) -> None:
        """Begin a vote, at the end of a step, on what to do at the end of the next."""
        ...

    def agreed(self) -> int:
        """The greatest proposal of any worker at the step before; the same answer for all."""
        ...

    def barrier(self) -> None: ...

    def all_did(self, did: bool) -> bool:
        """Whether all workers did what each of them says of itself; waits for all."""
        ...

    def share(self, payload: bytes) -> bytes:
        """Rank 0's payload, on every worker."""
        ...

    def seed(self, seed: int) -> None: ...

    def check(self, state: object) -> None:
        """Raise StateFault where a state could be written but not read again."""
        ...

    def dump(self, state: object, file: Writable) -> None: ...

    def load(self, path: Path) -> Any: ...

    def pack(self, state: object) -> bytes: ...

    def unpack(self, payload: bytes) -> Any: ...

    def wrap(self, model: Any, weight: Callable[[], float], **options: Any) -> Any:
        """The model, its gradients averaged over workers with their weights."""
        ...

    def adopt(self, wrapped: Any, weight: Callable[[], float]) -> None:
        """Average and measure the gradients of a model that somebody else has wrapped."""
        ...

    def shard(self, model: Any, weight: Callable[[], float], cutting: Cutting) -> None:
        """Cut the model over the workers, in place, its gradients averaged with their weights."""
        ...

    def check_cut(self, models: Sequence[Any]) -> None:
        """Raise StateFault where these models have got parameters since they were cut."""
        ...

    def save_shards(
        self, folder: Path, models: Sequence[Any], tracked: Sequence[Any], *, beside: bool
    ) -> Writing | None:
        """Write every worker's part of a checkpoint; with `beside`, perhaps beside training.

        Collective. Raises OSError where this worker could not write, and perhaps on the others.
        """
        ...

    def kept_shards(self, folder: Path) -> Shards:
        """What such a checkpoint holds. Raises StateFault where it is none."""
        ...

    def scale_rate(self, optimizer: Any, factor: Callable[[], float]) -> None:
        """Multiply the optimizer's learning rate, during its steps only."""
        ...

    def loader(self, dataset: Any, sampler: Sampler, **options: Any) -> Any: ...

    def close(self) -> None: ...


class PlainFramework:
    """One process without PyTorch: states are what JSON can hold."""

    def connect(self, place: Place) -> None:
        if place.world_size > 1:
            raise StateFault(
                f"{place.world_size} workers need PyTorch to talk to each other;"
                " install torch, or start one worker"
            )

    def propose(self, request: int) -> None:
        pass

    def agreed(self) -> int:
        return 0

    def barrier(self) -> None:
        pass

    def all_did(self, did: bool) -> bool:
        return did

    def share(self, payload: bytes) -> bytes:
        return payload

    def seed(self, seed: int) -> None:
        pass

    def check(self, state: object) -> None:
        self.pack(state)

    def dump(self, state: object, file: Writable) -> None:
        file.write(self.pack(state))

    def load(self, path: Path) -> Any:
        return json.loads(path.read_bytes())

    def pack(self, state: object) -> bytes:
        try:
            return json.dumps(state).encode()
        except (TypeError, ValueError) as fault:
            raise StateFault(
                f"a tracked state can't be kept without PyTorch: {fault}; install torch"
            ) from None

    def unpack(self, payload: bytes) -> Any:
        return json.loads(payload)

    def wrap(self, model: Any, weight: Callable[[], float], **options: Any) -> Any:
        return model

    def adopt(self, wrapped: Any, weight: Callable[[], float]) -> None:
        pass

    def shard(self, model: Any, weight: Callable[[], float], cutting: Cutting) -> None:
        raise StateFault("job.fsdp needs PyTorch; install torch")

    def check_cut(self, models: Sequence[Any]) -> None:
        pass

    def save_shards(
        self, folder: Path, models: Sequence[Any], tracked: Sequence[Any], *, beside: bool
    ) -> Writing | None:
        raise NotImplementedError

    def kept_shards(self, folder: Path) -> Shards:
        raise NotImplementedError

    def watch(self, samples: int) -> None:
        pass

    def seen(self) -> Pending | None:
        return None

    def scale_rate(self, optimizer: Any, factor: Callable[[], float]) -> None:
        pass

    def loader(self, dataset: Any, sampler: Sampler, **options: Any) -> Any:
        raise StateFault("job.loader needs PyTorch; install torch, or use job.sampler")

    def close(self) -> None:
        pass
