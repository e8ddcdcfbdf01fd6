"""Which samples each worker takes in each step, so that an epoch sees every sample exactly once.

The order of an epoch is a permutation that seed and epoch fix alone. What has been done of it is
one number, the position, equal on all workers; so the number of workers and the batch size may
change between any two steps, and nothing is lost or seen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training has come, in committed steps only."""

    epoch: int = 0
    position: int = 0  # samples of this epoch
    samples: int = 0  # samples of the whole life of the job

    def after(self, size: int) -> Progress:
        """The progress after a step of `size` samples."""
        return replace(self, position=self.position + size, samples=self.samples + size)

    def next_epoch(self) -> Progress:
        return replace(self, epoch=self.epoch + 1, position=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How an epoch's samples are cut into steps, and a step into the shares of workers."""

    samples: int  # of one epoch
    batch: int  # global: of all workers together
    rank: int = 0
    workers: int = 1
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise ValueError(
                f"{self.samples} samples in batches of {self.batch} make no step;"
                " give a data set and a batch size that are not empty"
            )

    @property
    def steps(self) -> int:
        """Steps of a whole epoch; the last one may be smaller."""
        return -(-self.samples // self.batch)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of an epoch, the same for ever: RandomState's stream is frozen."""
        # Here, as whoever starts workers has no use for it, and it takes a tenth of a second.
        import numpy as np  # noqa: PLC0415

        if not self.shuffle:
            return np.arange(self.samples)
        bits = np.random.MT19937(np.random.SeedSequence((self.seed, epoch)))
        return np.random.RandomState(bits).permutation(self.samples)

    def step_size(self, position: int) -> int:
        """Samples of the step that begins at `position`, over all workers."""
        return min(self.batch, self.samples - position)

    def share(self, position: int) -> tuple[int, int]:
        """Where this worker's part of that step begins and ends in the epoch's order.

        Shares differ by one sample at most; where a step has fewer samples than there are workers,
        some are empty.
        """
        size = self.step_size(position)
        return (
            position + self.rank * size // self.workers,
            position + (self.rank + 1) * size // self.workers,
        )

    def weight(self, position: int) -> float:
        """How much of that step's mean gradient this worker's mean gradient is."""
        size = self.step_size(position)
        if size < 1:
            return 0.0
        begin, end = self.share(position)
        return (end - begin) / size


class Sampler:
    """This worker's batches of the rest of the present epoch; a torch DataLoader's batch_sampler.

    It may be read ahead: what counts as done is what `job.step()` has committed.
    """

    def __init__(self, division: Callable[[], Division], progress: Callable[[], Progress]) -> None:
        self._division = division
        self._progress = progress

    def __len__(self) -> int:
        return self._division().steps

    def __iter__(self) -> Iterator[list[int]]:
        now, division = self._progress(), self._division()
        order, position = division.order(now.epoch), now.position
        while position < division.samples:
            begin, end = division.share(position)
            # A worker without a share still takes part in the step, with a sample of weight 0:
            # the others wait for its gradients.
            yield order[begin : max(end, begin + 1)].tolist()
            position += division.step_size(position)
