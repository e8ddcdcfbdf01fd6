"""PyTorch Lightning: a callback that makes a Trainer's job resizable by restart.

    elastic = ones.LightningCallback()
    trainer = L.Trainer(max_epochs=20, callbacks=[elastic], **elastic.here)
    trainer.fit(module, elastic.loader(dataset, batch_size=128), ckpt_path=elastic.checkpoint)

Lightning keeps its loop, what is in its checkpoints and its DistributedDataParallel. Ours are the
place among the workers, the samples of each step, and when a checkpoint is written.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext import runtime
from ones.slurm_ext.runtime.job import Job, UsageFault
from ones.slurm_ext.runtime.sampling import Sampler

try:
    from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]
    from lightning.pytorch.plugins.environments import (  # type: ignore[import-not-found,unused-ignore]
        TorchElasticEnvironment,
    )
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[import-not-found,unused-ignore]
    from pytorch_lightning.plugins.environments import (  # type: ignore[import-not-found,unused-ignore]
        TorchElasticEnvironment,
    )

STATE = "lightning.ckpt"


class EpochSteps:
    """The sampler's batches, in the number that Lightning expects: with the steps already done."""

    def __init__(self, sampler: Sampler, elastic: LightningCallback) -> None:
        self._sampler = sampler
        self._elastic = elastic

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._sampler)

    def __len__(self) -> int:
        return self._elastic.steps + self._elastic.job.steps_left


class LightningCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Joins the job, and then keeps it and a Trainer together. Takes what `ones.init` takes."""

    def __init__(self, **options: Any) -> None:
        self.job: Job = runtime.init(**options)
        self.steps = 0
        """Steps of the present epoch, as Lightning counts them."""
        self._epochs: Iterator[int] = iter(())

    @property
    def here(self) -> dict[str, Any]:
        """What a Trainer has to know of this run's size and place.

        The environment is named, or Lightning would choose the one for Slurm: that one takes the
        signal for checkpoints as an order to requeue the job by itself.
        """
        place = self.job.place
        os.environ.update(place.variables())
        return {
            "accelerator": "cuda" if torch.cuda.is_available() else "cpu",
            "devices": place.local_world_size,
            "num_nodes": place.nodes,
            "plugins": [TorchElasticEnvironment()],
            "use_distributed_sampler": False,
            "reload_dataloaders_every_n_epochs": 1,
        }

    @property
    def checkpoint(self) -> str | None:
        """What `fit` needs as ckpt_path: where the run before this one has got to."""
        found = self.job.checkpoint
        return None if found is None else str(found / STATE)

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        batch_most: int | None = None,
        batch_most_per_gpu: int | None = None,
        **options: Any,
    ) -> Any:
        """The training data; the arguments are those of `job.loader`, so the batch is GLOBAL."""
        # Lightning can't know that this loader goes on where the epoch stood.
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")
        sampler = self.job.sampler(
            len(dataset),
            batch_size,
            shuffle=shuffle,
            batch_most=batch_most,
            batch_most_per_gpu=batch_most_per_gpu,
        )
        return torch.utils.data.DataLoader(
            dataset,
            batch_sampler=EpochSteps(sampler, self),  # type: ignore[arg-type,unused-ignore]
            **options,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.accumulate_grad_batches != 1:
            raise UsageFault(
                "accumulate_grad_batches can't be used with LightningCallback, whose batch size is"
                " that of all GPUs together; leave it out"
            )
        if trainer.world_size != self.job.world_size:
            raise UsageFault(
                f"the Trainer has {trainer.world_size} workers and the job {self.job.world_size};"
                " make it with Trainer(..., **elastic.here)"
            )
        self.job.saves_with(lambda folder: trainer.save_checkpoint(folder / STATE))
        # Now, because it may change the batch, and Lightning is about to ask how many there are.
        self._epochs = self.job.epochs(trainer.max_epochs)
        next(self._epochs, None)
        if not self.job.steps_left:
            self._next_epoch()  # the run before was stopped after an epoch's last step

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.job.adopt(trainer.strategy.model, *trainer.optimizers)
        # Lightning has just put its own handler in the place of ours.
        self.job.listen_for_stop()
        self._align(trainer.fit_loop)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps += 1
        self.job.step(loss=outputs.get("loss") if isinstance(outputs, Mapping) else outputs)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.job.untimed()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._next_epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        for _ in self._epochs:
            break

    def _align(self, fit_loop: Any) -> None:
        """Put Lightning's loops where the job is.

        By itself Lightning compares the steps done with those of the new run, so where the batch
        has changed, or the run before had begun with an epoch, it takes an epoch for done that
        is not, or the other way round.
        """
        for epochs in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
            epochs.processed = epochs.completed = self.job.epoch
            epochs.ready = epochs.started = self.job.epoch + (self.steps > 0)
        if not self.steps:
            fit_loop.restarting = False
            fit_loop.reset_restart_stage()
            fit_loop.epoch_loop.reset_restart_stage()

    def _next_epoch(self) -> None:
        self.steps = 0
        next(self._epochs, None)
