"""Hugging Face's Trainer: a callback that makes its job resizable by restart.

    elastic = ones.TransformersCallback(batch_size=128)
    arguments = TrainingArguments(output_dir=..., **elastic.here)
    trainer = Trainer(model, arguments, train_dataset=..., callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.checkpoint)

The Trainer keeps its loop, its data and its checkpoints. It goes on in an epoch by leaving out as
many batches as it has done steps, so the batch of all GPUs together is the same at every size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext import runtime
from ones.slurm_ext.runtime.job import Job, UsageFault
from ones.slurm_ext.runtime.signals import Request

WHERE = "trainer.json"  # in our checkpoint: which one of the Trainer's belongs to it


class TransformersCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Joins the job, and then keeps it and a Trainer together.

    `batch_size` is that of all GPUs together; where a GPU holds fewer than its share, say how many
    by `most_per_gpu`, and gradients are added up. The other arguments are those of `ones.init`.
    """

    def __init__(self, batch_size: int, *, most_per_gpu: int | None = None, **options: Any) -> None:
        self.job: Job = runtime.init(**options)
        self._batch = batch_size
        self._most_per_gpu = most_per_gpu
        self._epochs: Iterator[int] = iter(())
        self._asked = Request.NOTHING
        self._where = ""  # the Trainer's latest checkpoint
        self._loss: float | None = None

    @property
    def here(self) -> dict[str, Any]:
        """What TrainingArguments have to know of this run's size and place."""
        share, rest = divmod(self._batch, self.job.world_size)
        if rest or not share:
            raise UsageFault(
                f"a batch of {self._batch} can't be cut into {self.job.world_size} equal parts,"
                " which the Trainer needs; submit with sizes that divide it, as --elastic=1,2,4"
            )
        most = self._most_per_gpu or share
        passes = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= most)
        if self.job.world_size > 1:
            os.environ.update(self.job.place.variables())
        else:
            # Or Accelerate would make a process group of one.
            for name in self.job.place.variables():
                os.environ.pop(name, None)
        cuda = torch.cuda.is_available()
        backend = "nccl" if cuda else "gloo"
        return {
            "per_device_train_batch_size": share // passes,
            "gradient_accumulation_steps": passes,
            "use_cpu": not cuda,
            "ddp_backend": backend if self.job.world_size > 1 else None,
        }

    @property
    def checkpoint(self) -> str | None:
        """What `train` needs as resume_from_checkpoint: where the run before has got to."""
        found = self.job.checkpoint
        if found is None:
            return None
        where: str = json.loads((found / WHERE).read_bytes())["path"]
        return where

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        batches = len(more["train_dataloader"])
        steps = -(-batches // args.gradient_accumulation_steps)
        whole = args.per_device_train_batch_size * args.gradient_accumulation_steps
        if whole * self.job.world_size != self._batch:
            raise UsageFault(
                "the TrainingArguments have another batch size or number of workers than the job;"
                " make them with TrainingArguments(..., **elastic.here)"
            )
        # The Trainer takes the samples by itself; this only counts them.
        self.job.sampler(steps * self._batch, self._batch)
        if state.global_step * self._batch != self.job.samples:
            raise UsageFault(
                f"the Trainer begins at step {state.global_step} and the job at sample"
                f" {self.job.samples}; use train(resume_from_checkpoint=elastic.checkpoint)"
            )
        self.job.saves_with(self._save)
        self.job.defers(self._ask)
        self._epochs = self.job.epochs(-(-state.max_steps // steps))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        next(self._epochs, None)
        if not self.job.steps_left:
            next(self._epochs, None)  # it was saved after an epoch's last step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.job.step(loss=self._loss)
        self._loss = None
        if self._asked is not Request.NOTHING:
            control.should_save = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self._loss = (logs or {}).get("loss")

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.job.untimed()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._where = str(Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}")
        asked, self._asked = self._asked, Request.NOTHING
        self.job.fulfil(max(asked, Request.CHECKPOINT))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        for _ in self._epochs:
            break

    def _ask(self, request: Request) -> None:
        self._asked = max(self._asked, request)

    def _save(self, folder: Path) -> None:
        if self.job.rank == 0:
            (folder / WHERE).write_text(json.dumps({"path": self._where}))
