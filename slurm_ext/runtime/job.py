"""The job as a training script sees it."""

from __future__ import annotations

import json
import logging
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.checkpoint import STATE, Checkpoint, Checkpoints, Moment
from ones.slurm_ext.runtime.environment import Environment, Place
from ones.slurm_ext.runtime.framework import Cutting, Framework, Shards, StateFault
from ones.slurm_ext.runtime.gradients import NoiseMeter
from ones.slurm_ext.runtime.learning_rate import Rule
from ones.slurm_ext.runtime.meter import Meter
from ones.slurm_ext.runtime.reporting import Reporter
from ones.slurm_ext.runtime.sampling import Division, Sampler
from ones.slurm_ext.runtime.saving import Saving
from ones.slurm_ext.runtime.signals import Request, Requests

log = logging.getLogger(__name__)
JUST_SAVED = 60.0  # seconds: a stop that soon after an asked-for checkpoint is the move it was for
STOPPED = 143  # exit code of a process that SIGTERM ended
BOTH = "job.ddp() and job.fsdp() don't go together; give all models to job.fsdp()"


class UsageFault(OnesError):
    """The script calls the library in a way that can't work."""


class Changes(Protocol):
    """What takes a job from one set of workers to the next while it trains."""

    at_base: bool

    @property
    def lost(self) -> bool: ...

    def join(self, job: Job) -> bool: ...

    def between_epochs(self, job: Job) -> None: ...

    def after_step(self, job: Job) -> None: ...

    def at_boundary(self, job: Job) -> bool: ...

    def mend(self, job: Job) -> bool: ...

    def finish(self) -> None: ...


class Job:
    """A training job whose size may differ from one run to the next.

    Call order: `ddp` for each model, `track` for each optimizer, scheduler or other object with
    `state_dict`, `loader` or `sampler`, then `epochs`, and `step` as the last line of the loop.
    """

    def __init__(
        self,
        environment: Environment,
        framework: Framework,
        *,
        started: float,
        reporter: Callable[[], Reporter | None],
        requests: Requests,
        askable: bool,
        checkpoints: Checkpoints | None,
        checkpoint_seconds: float | None,
        found: Checkpoint | None,
        moment: Moment,
        checkpoint: Path | None,
        rule: Rule,
        warmup_steps: int | None,
        live: Changes | None = None,
    ) -> None:
        self._place = environment.place
        self._planned_batch = environment.batch
        self._framework = framework
        self._live = live
        self._hear = reporter
        self._reporter: Reporter | None = None
        self._requests = requests
        self._checkpoint_seconds = checkpoint_seconds
        self._moment = moment
        self._found = found  # rank 0's; its state is read when the first model or object needs it
        self._restored: Any = None
        self._sharded = False
        self._shards: Shards | None = None
        self._rule = rule
        self._warmup_steps = warmup_steps
        self._division: Division | None = None
        # What rank 0 has told all workers of the noise: a rate that follows it must be one rate.
        self._told = moment.noise.told
        self._models: list[Any] = []
        self._tracked: list[Any] = []
        self._saving: Saving | None = None
        if checkpoints is not None:
            self._saving = Saving(
                checkpoints, framework, self._models, self._tracked, self._confirm
            )
        self._meter = Meter(started=started, seconds=environment.report_seconds)
        # From the run before, so that this one's first report says them already.
        self._declared: dict[str, int | None] = dict(moment.declared)
        self._noise = self._noise_meter()
        self._rehearsal: Callable[[Any], Any] | None = None
        self._loaders: list[Any] = []
        self._resized: list[Callable[[int, int], None]] = []
        self._last_epoch = 0
        self._over = False  # whether no step follows that would save, and that has been said
        self._askable = askable
        self._saved_at = time.monotonic()
        self._asked_save_at: float | None = None
        self.resumed = moment.progress.samples > 0
        """Whether this run goes on from a checkpoint."""
        self.checkpoint = checkpoint
        """The folder of the checkpoint that this run goes on from, on every worker."""
        self._deferring: Callable[[Request], None] | None = None
        if live is None and self.rank == 0:
            self._reporter = self._hear()
        self._report()

    @property
    def place(self) -> Place:
        """This worker's place among the workers."""
        return self._place

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        return self._place.local_rank

    @property
    def device(self) -> Any:
        """The torch.device of this worker."""
        return getattr(self._framework, "device", "cpu")

    @property
    def batch(self) -> int:
        """The global batch size of the steps being done, over all workers."""
        return self._cut.batch

    @property
    def epoch(self) -> int:
        return self._moment.progress.epoch

    @property
    def samples(self) -> int:
        """Samples that all committed steps of the job's life have seen."""
        return self._moment.progress.samples

    @property
    def steps_per_epoch(self) -> int:
        return self._cut.steps

    @property
    def steps_left(self) -> int:
        """Steps of the present epoch that are still to do."""
        cut = self._cut
        return -(-(cut.samples - self._moment.progress.position) // cut.batch)

    @property
    def weight(self) -> float:
        """What to multiply this worker's mean loss by where another library averages gradients.

        Shares of a step differ by a sample at most; a plain mean over workers takes them for equal.
        `ddp` and `adopt` on a DistributedDataParallel see to that by themselves.
        """
        return self._weight() * self.world_size

    def ddp(self, model: Any, **options: Any) -> Any:
        """The model, restored, and wrapped in DistributedDataParallel where there are others.

        Gradients are averaged over samples, so shares of unequal size do no harm.
        """
        if self._sharded:
            raise UsageFault(BOTH)
        if self._found is not None:
            model.load_state_dict(self._kept("models", len(self._models)))
        self._models.append(model)
        return self._framework.wrap(model, self._weight, **options)

    def fsdp(
        self,
        model: Any,
        wrap: Callable[[Any, Any], object] | None = None,
        *,
        shards: int | None = None,
        copy_steps: int | None = None,
        **options: Any,
    ) -> Any:
        """The same model, cut over the workers by FSDP2, and restored.

        `wrap(model, mesh)` calls torch's `fully_shard` on its parts as it likes; without it, each
        layer in a list of modules is one part, with `options` for `fully_shard`. A model that the
        script has wrapped already is taken as it is. With `shards`, so many workers share one copy
        of the model, and the others hold further copies (HSDP); a group that is called alike on
        all workers, one node's say. Gradients are averaged over samples.

        Under --live `copy_steps` has each worker's slice kept a second time by a neighbour on
        another node, every so many steps: without further copies of the model a lost worker then
        costs those steps, and not all since the last checkpoint.
        """
        if self._models and not self._sharded:
            raise UsageFault(BOTH)
        for name, given in (("shards", shards), ("copy_steps", copy_steps)):
            if given is not None and given < 1:
                raise UsageFault(
                    f"{name} is {given}; give a whole number from 1 up, or leave it out"
                )
        self._sharded = True
        cutting = Cutting(wrap, shards, copy_steps, options)
        self._framework.shard(model, self._weight, cutting)
        self._models.append(model)
        if self._kept_shards is not None:
            self._kept_shards.restore_model(self._models)
        return model

    @property
    def _kept_shards(self) -> Shards | None:
        """What the checkpoint holds of sharded models; None where there is none to restore here."""
        if self.checkpoint is None or self._live is not None:
            return None
        if self._shards is None:
            self._shards = self._framework.kept_shards(self.checkpoint)
        return self._shards

    def track(self, *objects: Any) -> None:
        """Keep these objects' `state_dict()` in checkpoints, and restore it now.

        The learning rate of optimizers among them follows the batch size.
        """
        for each in objects:
            if any(each is other for other in self._tracked):
                raise UsageFault(
                    f"job.track() was given the same {type(each).__name__} twice; once is enough"
                )
            state = None
            if self._sharded:
                if self._kept_shards is not None:
                    index = len(self._tracked)
                    self._kept_shards.restore_tracked(self._models, index, each)
            elif self.resumed:
                kept = self._kept("tracked", len(self._tracked))
                state = self._framework.unpack(self._framework.share(self._framework.pack(kept)))
            if state is not None:
                each.load_state_dict(state)
            elif not (self._sharded and hasattr(each, "param_groups")):
                # Found out now, and not in the run that needs the checkpoint.
                self._framework.check(each.state_dict())
            self._tracked.append(each)
            if hasattr(each, "param_groups") and hasattr(each, "register_step_pre_hook"):
                self._framework.scale_rate(each, lambda: self._moment.ramp.factor)

    def adopt(self, model: Any, *optimizers: Any) -> None:
        """Look after a model that another library has restored and wrapped, in place of `ddp`.

        Gradients are averaged and measured as `ddp` does; the optimizers' learning rates follow the
        batch size, and their states are the other library's, as all the rest: see `saves_with`.
        """
        self._not_live("job.adopt()")
        self._framework.adopt(model, self._weight)
        for each in optimizers:
            self._framework.scale_rate(each, lambda: self._moment.ramp.factor)

    def saves_with(self, save: Callable[[Path], None]) -> None:
        """Have `save(folder)` write checkpoints, called on all workers, in place of our own.

        In the run that goes on from it, `checkpoint` is that folder.
        """
        self._not_live("job.saves_with()")
        if self.checkpoint is not None and (self.checkpoint / STATE).exists():
            raise UsageFault(
                f"checkpoint {self.checkpoint} was written from job.ddp() and job.track(), and not"
                " by job.saves_with()'s function; use what wrote it, or remove it"
            )
        if self._saving is not None:
            self._saving.by = save

    def defers(self, call: Callable[[Request], None]) -> None:
        """Have `call` told of a request; `fulfil` is then called a little later, by all workers."""
        self._deferring = call

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
        """A DataLoader over this worker's share; `batch_size` is GLOBAL, of all workers together.

        `batch_most` and `batch_most_per_gpu` allow ONES to choose another batch size up to them.
        """
        sampler = self.sampler(
            len(dataset),
            batch_size,
            shuffle=shuffle,
            batch_most=batch_most,
            batch_most_per_gpu=batch_most_per_gpu,
        )
        loader = self._framework.loader(dataset, sampler, **options)
        self._loaders.append(loader)
        return loader

    def warm_up(self, loss_of: Callable[[Any], Any]) -> None:
        """Have a worker that joins a running job do this with a batch or two before it joins.

        `loss_of` takes a batch and gives the loss: what is slow only at its first use is then done
        while the others still train. Nothing of it lasts.
        """
        self._rehearsal = loss_of

    def on_resize(self, call: Callable[[int, int], None]) -> None:
        """Have this called with the old and the new number of workers after each live resize."""
        self._resized.append(call)

    def sampler(
        self,
        samples: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        batch_most: int | None = None,
        batch_most_per_gpu: int | None = None,
    ) -> Sampler:
        """Lists of sample numbers, one a step: this worker's share of the rest of the epoch."""
        if self._division is not None:
            raise UsageFault("a job has one elastic loader or sampler; use torch's for others")
        # They go into reports and checkpoints, which hold no numbers of numpy's or torch's.
        samples, batch_size = int(samples), int(batch_size)
        batch_most = None if batch_most is None else int(batch_most)
        batch_most_per_gpu = None if batch_most_per_gpu is None else int(batch_most_per_gpu)
        kept = self._moment.epoch_samples
        if kept is not None and kept != samples:
            raise UsageFault(
                f"the data set has {samples} samples and had {kept} at the checkpoint, so its epoch"
                " can't be finished; bring the data back, or remove the checkpoints"
            )
        self._declared.update(
            epoch_samples=samples,
            batch_submitted=batch_size,
            batch_most=batch_most,
            batch_most_per_gpu=batch_most_per_gpu,
        )
        self._division = Division(
            samples=samples,
            batch=self._fitting(self._planned_batch or batch_size),
            rank=self.rank,
            workers=self.world_size,
            seed=self._moment.seed,
            shuffle=shuffle,
        )
        self._follow_batch()
        return Sampler(lambda: self._cut, lambda: self._moment.progress)

    def epochs(self, epochs: int) -> Iterator[int]:
        """The numbers of the epochs still to do; the first may be half done."""
        division, epochs = self._cut, int(epochs)
        self._check_restored()
        self._declared["total_samples"] = epochs * division.samples
        self._last_epoch = epochs - 1
        self._over = False
        begins = True
        if self._live is not None:
            begins = self._live.join(self)
        self._report()
        self.listen_for_stop()
        try:
            while self._moment.progress.epoch < epochs:
                if self._live is not None:
                    self._live.between_epochs(self)
                if begins:
                    self._tune()
                begins = True
                self._reseed()
                self._watch()
                self._meter.resume()
                yield self._moment.progress.epoch
                self._moment = replace(self._moment, progress=self._moment.progress.next_epoch())
            self._over = True
            self._report()
            if self._live is not None:
                self._live.finish()
        finally:  # also where the script breaks out, or fails: no step follows that would save
            if self._heeds_stop and not sys.is_finalizing():
                self._requests.ignore_stop()

    def step(self, *, loss: Any = None, accuracy: Any = None) -> bool:
        """Commit the step just done. The last line of the loop, and the only place of changes.

        Returns whether the job's size has changed. Exits with 143 when Slurm has asked to stop.
        """
        if self._live is not None and self._live.lost:
            return self._live.mend(self)
        if self._cut.step_size(self._moment.progress.position) < 1:
            raise UsageFault(
                "job.step() was called after the epoch's last step;"
                " call it once for each batch of the job's loader"
            )
        self._moment = self._committed()
        self._meter.step(loss=loss, accuracy=accuracy)
        self._noise.after_step(reference=self._submitted)
        self._watch()
        if self._live is not None:
            self._live.after_step(self)
        alone = self.world_size == 1 and self._live is None
        request = self._wanted() if alone else Request(self._framework.agreed())
        if request is not Request.NOTHING:
            self._answer(request)
        if self._saving is not None:
            self._saving.finish(wait=False)
        changed = self._live is not None and self._live.at_boundary(self)
        if not alone and not changed:
            self._framework.propose(self._wanted())
        if self._meter.due:
            self._report()
        return changed

    def _committed(self) -> Moment:
        """The moment after the step under way."""
        now = self._moment
        size = self._cut.step_size(now.progress.position)
        return replace(now, progress=now.progress.after(size), ramp=now.ramp.after_step())

    def untimed(self) -> None:
        """Say that what lies between the last step and here is no part of the next one's time."""
        self._meter.resume()

    def listen_for_stop(self) -> None:
        """From here on save and leave when Slurm asks to stop; `epochs` does this by itself."""
        if self._heeds_stop:
            self._requests.listen_for_stop()

    def close(self) -> None:
        """Say the last word and leave the other workers; done by itself at exit."""
        self._requests.ignore_checkpoints()
        if self._saving is not None:
            self._saving.finish()
        if self._reporter is not None:
            # Nothing is measured for it: where a worker has failed, its numbers can't be read.
            self._reporter.close(None if self._over else {**self._state(), "checkpoints": False})
            self._reporter = None
        self._framework.close()

    @property
    def _heeds_stop(self) -> bool:
        return self._saving is not None and (self._live is None or self._live.at_base)

    def _not_live(self, what: str) -> None:
        if self._live is not None:
            raise UsageFault(
                f"{what} leaves the state to another library, which can't hand it to new workers;"
                " leave --live out"
            )

    @property
    def _cut(self) -> Division:
        if self._division is None:
            raise UsageFault("call job.loader() or job.sampler() before job.epochs()")
        return self._division

    def _noise_meter(self) -> NoiseMeter:
        return NoiseMeter(
            self._framework,
            rank=self.rank,
            workers=self.world_size,
            smoothed=self._moment.noise,
            waited=self._meter.waited,
        )

    def _weight(self) -> float:
        return self._cut.weight(self._moment.progress.position)

    def _fitting(self, batch: int) -> int:
        """The batch, or the largest that the script accepts and the GPUs hold."""
        most, each = self._declared["batch_most"], self._declared["batch_most_per_gpu"]
        if most is not None:
            batch = min(batch, most)
        if each is not None:
            batch = min(batch, each * self.world_size)
        return max(1, batch)

    def _follow_batch(self) -> None:
        """Note the batch with which it goes on, and let the learning rate go after it."""
        cut, warmup = self._cut, self._warmup_steps
        ramp = self._moment.ramp.towards(
            self._rule.factor(cut.batch, self._submitted, self._told),
            steps=-(-cut.steps // 10) if warmup is None else warmup,
        )
        self._moment = replace(self._moment, epoch_samples=cut.samples, batch=cut.batch, ramp=ramp)

    def _tune(self) -> None:
        """Take the batch that the plan has for the job by now, the same on all workers."""
        planned = (self._reporter.batch if self._reporter is not None else None) or 0
        noise = self._noise.read().told
        said = self._framework.share(json.dumps([planned, noise]).encode())
        if not said:
            return
        planned, noise = json.loads(said)
        self._told = None if noise is None else (noise[0], noise[1])
        if planned:
            self._planned_batch = planned
            self._take_batch(self._fitting(planned))
        if self._rule is Rule.ADASCALE:
            self._follow_batch()

    def _take_batch(self, batch: int) -> None:
        """Go on with another global batch."""
        if batch == self._cut.batch:
            return
        log.info("ones: from here on with batch %d instead of %d", batch, self._cut.batch)
        self._report()  # what was measured with the old one
        self._division = replace(self._cut, batch=batch)
        self._follow_batch()

    def _watch(self) -> None:
        cut = self._cut
        samples = cut.step_size(self._moment.progress.position)
        self._noise.before_step(samples, steps_per_epoch=cut.steps)

    @property
    def _submitted(self) -> int:
        """B0: the batch that the script was written for."""
        return self._declared["batch_submitted"] or self._cut.batch

    def _due(self) -> bool:
        """Whether the time for a regular checkpoint has come; rank 0's clock counts."""
        every = self._checkpoint_seconds
        return every is not None and self.rank == 0 and time.monotonic() - self._saved_at > every

    def _just_saved(self) -> bool:
        """Whether the checkpoint stands that a move asks for before its stop; rank 0 knows."""
        at = self._asked_save_at
        saved = at is not None and time.monotonic() - at < JUST_SAVED
        return self._framework.share(b"1" if saved else b"0") == b"1"

    def _wanted(self) -> Request:
        """What this worker knows to be asked for."""
        return max(self._requests.pending, Request.CHECKPOINT if self._due() else Request.NOTHING)

    def _answer(self, request: Request) -> None:
        if self._deferring is None:
            self.fulfil(request)
        else:
            self._requests.clear(request)
            self._deferring(request)

    def fulfil(self, request: Request) -> None:
        """Save, and leave where that was asked for. All workers do this at the same step."""
        stands = request is Request.STOP and self._just_saved()
        if self._saving is not None and not stands:
            asked = not self._due()
            kept = self._save(self._saving)
            self._saved_at = time.monotonic()
            if asked and kept:
                self._asked_save_at = self._saved_at
        if request is Request.STOP:
            # Who leaves first would take the others down while rank 0 still writes.
            self._framework.barrier()
        if self._live is not None and self._live.lost:
            return  # those who are left are asked again
        # Where the signal came a moment later, it asked for what has just been done.
        self._requests.clear(request)
        self._meter.resume()
        if request is Request.STOP:
            if self._live is not None:
                self._live.finish()
            self.close()
            raise SystemExit(STOPPED)

    def _save(self, saving: Saving) -> bool:
        self._moment = replace(
            self._moment, noise=self._noise.read(), declared=dict(self._declared)
        )
        # Who has asked for a checkpoint waits for it, and nobody for a regular one.
        beside = self._requests.pending is Request.NOTHING and self._live is None
        return saving.save(
            self._moment,
            rank=self.rank,
            sharded=self._sharded,
            beside=beside and self.world_size > 1,
        )

    def _confirm(self, path: Path) -> None:
        if self._reporter is not None:
            self._reporter.confirm(samples=int(path.name), path=str(path))

    def _kept(self, kind: str, index: int) -> Any:
        """The state of the model or object that was registered as the index-th."""
        if self._found is None:
            return None
        if self._restored is None:
            if not self._found.state.exists():
                raise StateFault(
                    f"checkpoint {self._found.path} was written by job.saves_with()'s function, or"
                    " from job.fsdp(), and not from job.ddp(); use what wrote it, or remove it"
                )
            self._restored = self._framework.load(self._found.state)
        kept = self._restored[kind]
        if index >= len(kept):
            raise StateFault(
                f"checkpoint {self._found.path} holds {len(kept)} {kind}, and the script has more;"
                " was it changed? remove the checkpoint to begin again"
            )
        return kept[index]

    def _check_restored(self) -> None:
        if self._sharded:
            self._framework.check_cut(self._models)
            if self._kept_shards is not None:
                self._kept_shards.check_all_given(len(self._models), len(self._tracked))
            return
        if self._found is None or self._restored is None:
            return
        for kind, given in (("models", self._models), ("tracked", self._tracked)):
            if len(given) < len(self._restored[kind]):
                raise StateFault(
                    f"checkpoint {self._found.path} holds {len(self._restored[kind])} {kind}, and"
                    f" the script gave job {len(given)} before job.epochs(); was it changed?"
                )
        self._restored = None  # it is as large as the model

    def _reseed(self) -> None:
        """Random numbers differ between workers and are the same when a run is repeated."""
        at = f"{self._moment.seed} {self.samples} {self.rank}"
        self._framework.seed(zlib.crc32(at.encode()))

    def _report(self) -> None:
        if self._reporter is None:
            return
        sqr, var = self._noise.read().told or (None, None)
        measured = self._meter.read()
        self._reporter.report(
            {
                **self._state(),
                "loss": measured.loss,
                "accuracy": measured.accuracy,
                "step_seconds": measured.step_seconds,
                "sync_seconds": measured.sync_seconds,
                "grad_sqr": sqr,
                "grad_var": var,
                "resumed_seconds": measured.resumed_seconds,
            }
        )

    def _state(self) -> dict[str, int | float | None]:
        """What a report says without having measured anything."""
        epoch_samples = self._moment.epoch_samples
        return {
            "samples": self.samples,
            "epoch": self.samples / epoch_samples if epoch_samples else None,
            "batch": self._moment.batch,
            "gpus": self.world_size,
            "checkpoints": self._saving is not None and self._askable and not self._over,
            "tunes": True,
            **self._declared,
        }
