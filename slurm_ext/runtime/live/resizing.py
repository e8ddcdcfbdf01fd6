"""What a job does at each change of its workers, seen from one of them."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

from ones.slurm_ext.runtime.checkpoint import moment_from
from ones.slurm_ext.runtime.job import Job
from ones.slurm_ext.runtime.live.handing import Baggage
from ones.slurm_ext.runtime.live.member import FD, FIRST, HOME, Entry, Leave, Member
from ones.slurm_ext.runtime.live.state import Cargo
from ones.slurm_ext.runtime.live.torch_live import LiveFramework, LostGroup

log = logging.getLogger(__name__)
REHEARSED = 2  # batches
LOWEST = 19  # priority of a process


def resizing(backend: str | None) -> tuple[LiveFramework, Resizing]:
    """This process as a worker of a live launcher."""
    framework = LiveFramework(backend)
    link = socket.socket(fileno=int(os.environ.pop(FD)))  # what the script starts has none
    member = framework.member = Member(link, framework.make)
    return framework, Resizing(framework, member)


class Resizing:
    """Takes a job from generation to generation; called by the job, at the ends of its steps."""

    def __init__(self, framework: LiveFramework, member: Member) -> None:
        self.leads = os.environ.get(FIRST) == "1"
        """Whether this worker has the state from the checkpoint, or makes the first one."""
        self.at_base = os.environ.get(HOME) == "0"
        self._framework = framework
        self._member = member
        self._kept: list[tuple[Any, Any]] = []  # small objects, and their states at the last step
        self._joined = False
        self._began = 0.0  # when the last step ended
        self._copy_in = 1  # steps, 0 or less where it is overdue
        self._after: list[tuple[Any, Any]] = []  # as `_kept`, at the end of a step half done
        self._moved: dict[str, int] = {}  # bytes of the last change of sharded models
        self._copied = False  # whether its state is of copies that neighbours had kept

    @property
    def lost(self) -> bool:
        return self._framework.lost

    def join(self, job: Job) -> bool:
        """Wait for the first generation of this worker. Whether an epoch begins with it.

        In a later `job.epochs()` it goes on with those who are there. Nobody may come any more: a
        newcomer's script would begin with the first one.
        """
        if self._joined:
            log.info("ones: a further job.epochs(): from here on the workers stay as they are")
            self.finish()  # it has not said so where the script broke out of the first one
            return True
        self._framework.refuse_compiled()
        if self.leads:
            self._member.committed = job.samples
            if self._framework.shards is not None:
                self._framework.shards.leads()
        else:
            self._warm_up(job)
        self._member.say("ready")
        begins = self._enter(job, None, begins=True)
        self._joined = True
        return begins

    def after_step(self, job: Job) -> None:
        """A step is committed, and the state is that of its end."""
        self._began = time.perf_counter()
        self._member.committed = job.samples
        at_end = _epoch_is_done(job) and job.epoch >= job._last_epoch
        self._framework.last_step = at_end
        if self._framework.shards is not None:
            self._framework.shards.after_step()
        self._remember(job)

    def at_boundary(self, job: Job) -> bool:
        """Go over to the next generation where it was agreed; whether that is done."""
        if self._framework.lost:
            return self.mend(job)
        entry = self._framework.entry
        if entry is None and self._copy_is_due(job):
            self._copy(job)
            if self._framework.lost:
                return self.mend(job)
        if entry is None or _epoch_is_done(job):
            return False  # after the last step of an epoch there may be an evaluation first
        self._enter(job, entry, begins=False)
        return True

    def between_epochs(self, job: Job) -> None:
        """An epoch begins, and a change may be due from the end of the last one."""
        if self._framework.lost:
            self.mend(job)
        elif self._framework.entry is not None:
            self._began = time.perf_counter()
            self._enter(job, self._framework.entry, begins=True)
        self._remember(job)

    def mend(self, job: Job) -> bool:
        """The step just done has lost a member: undo it, and go on with those who are left."""
        self._began = time.perf_counter()
        if (half := self._framework.half) is not None:
            half.reach = job._committed().progress.samples
            self._after = [(each, copy.deepcopy(each.state_dict())) for each, _ in self._kept]
        for each, state in self._kept:
            each.load_state_dict(copy.deepcopy(state))
        self._framework.broke()
        self._enter(job, None, begins=False)
        return True

    def _copy_is_due(self, job: Job) -> bool:
        """Whether slices are to be kept a second time now: the same answer on all members."""
        shards = self._framework.shards
        every = None if shards is None else shards.copy_every
        if every is None or job.world_size == 1:
            return False
        self._copy_in -= 1
        if self._copy_in > 0 or _epoch_is_done(job):
            return False  # who evaluates after an epoch is not held up before it
        self._copy_in = every
        return True

    def _copy(self, job: Job) -> None:
        node = int(os.environ.get(HOME, "0"))
        self._framework.copy_slices(job._tracked, _note(job, begins=False), node=node)

    def finish(self) -> None:
        """The training is over, and the other workers know it by themselves."""
        self._member.say("finished")

    def _enter(self, job: Job, entry: Entry | None, *, begins: bool) -> bool:
        size = job.world_size if self._began else 0
        if self._began:
            if job._reporter is not None:
                job._report()  # what was measured with the old size
            else:
                job._meter.read()  # or it would be told of the new size, should this one lead then
            if not self._framework.lost:
                job._moment = replace(job._moment, noise=job._noise.read())
        while True:
            try:
                entry = entry or self._member.wait()
            except Leave:
                self._leave(job)
            if entry.offer.rank is None and self._framework.shards is None:
                self._leave(job)
            try:
                taken, common = self._change(job, entry, _note(job, begins=begins))
                break
            except LostGroup as fault:
                log.warning("ones: %s", fault)
                self._framework.broke()
                entry = None
        offer = entry.offer
        if offer.rank is None:
            self._leave(job)
        self._copy_in = 1
        job._place = replace(job._place, rank=offer.rank, world_size=offer.size)
        os.environ.update(RANK=str(offer.rank), WORLD_SIZE=str(offer.size))
        os.environ["ONES_GENERATION"] = str(offer.number)
        if taken is not None:
            told = json.loads(taken)
            begins = told["begins"]
            job._moment = moment_from(told["moment"])
            job._declared = dict(told["declared"])
            job.resumed = job.samples > 0
            self._member.committed = job.samples
        job._planned_batch = offer.batch or common[0] or None
        sqr, var = struct.unpack("<dd", struct.pack("<qq", *common[1:]))
        job._told = (sqr, var) if var else None
        self._follow(job)
        pause = time.perf_counter() - self._began if self._began else None
        said: dict[str, Any] = {"samples": job.samples, "pause": pause, "copied": self._copied}
        if offer.rank == 0:
            said |= self._moved
        said |= {"batch": job._cut.batch, "epoch": job._cut.samples}
        self._member.say("switched", number=offer.number, **said)
        if self._began and pause is not None:
            log.info("ones: %d workers instead of %d, after %.3f s", offer.size, size, pause)
            for call in job._resized:
                call(size, offer.size)
        return begins

    def _change(self, job: Job, entry: Entry, note: bytes) -> tuple[bytes | None, list[int]]:
        """Enter a generation; the note of those with the state, and numbers common to all."""
        if self._framework.shards is None:
            cargo = Cargo(job._models, job._tracked, note)
            return self._framework.enter(entry, cargo, _common(job))

        def finish_step() -> None:
            for each, state in self._after:
                each.load_state_dict(state)
            job._moment = job._committed()
            self._member.committed = job.samples

        baggage = Baggage(job._tracked, note, job.checkpoint, finish_step)
        arrived = self._framework.enter_sharded(entry, baggage, _common(job))
        self._moved = {"moved": arrived.moved, "least": arrived.least, "again": arrived.again}
        self._copied = arrived.copied
        return arrived.note, arrived.common

    def _follow(self, job: Job) -> None:
        """Shares, batch, learning rate, random numbers and reports of the new size."""
        if job.rank != 0:
            _fall_silent(job, patience=0.0)  # it led while rank 0 was away
        moment = job._moment
        job._division = replace(
            job._cut,
            rank=job.rank,
            workers=job.world_size,
            seed=moment.seed,
            batch=moment.batch or job._cut.batch,
        )
        wanted = job._planned_batch or job._submitted
        job._take_batch(job._fitting(wanted))
        job._follow_batch()
        job._noise = job._noise_meter()
        job._reseed()
        if job.rank == 0 and job._reporter is None and self.at_base:
            job._reporter = job._hear()
        job._watch()
        job._meter.resume()
        self._remember(job)

    def _remember(self, job: Job) -> None:
        """Keep the small states, such as schedulers', that a failed step may have changed."""
        self._kept = [
            (each, copy.deepcopy(each.state_dict()))
            for each in job._tracked
            if not hasattr(each, "param_groups") and not hasattr(each, "parameters")
        ]

    def _warm_up(self, job: Job) -> None:
        """Do once, while the others train, what is slow only the first time."""
        self._framework.warm_up()
        if self._framework.shards is not None:
            self._framework.shards.rehearse(job._tracked)
            return  # a step takes the memory of a whole model
        for loader in job._loaders:
            for batch in itertools.islice(iter(loader), REHEARSED):
                if job._rehearsal is not None:
                    job._rehearsal(batch).backward()
        for each in job._tracked:
            if hasattr(each, "param_groups") and hasattr(each, "step"):
                _materialise(each)

    def _leave(self, job: Job) -> NoReturn:
        with suppress(OSError):
            os.nice(LOWEST)  # those who stay are needed sooner
        _fall_silent(job, patience=1.0)
        job.close()
        raise SystemExit(0)


def _fall_silent(job: Job, *, patience: float) -> None:
    """Report no more, without a last word: the training goes on, and another worker leads it."""
    if job._reporter is not None:
        job._reporter.close(patience=patience)
        job._reporter = None


def _epoch_is_done(job: Job) -> bool:
    return job._cut.step_size(job._moment.progress.position) < 1


def _note(job: Job, *, begins: bool) -> bytes:
    """Where the training is, for those who take over its state."""
    told = {"moment": asdict(job._moment), "declared": job._declared, "begins": begins}
    return json.dumps(told).encode()


def _common(job: Job) -> list[int]:
    """What a plan and measurements have told some workers perhaps, and must be one for all."""
    noise = struct.unpack("<qq", struct.pack("<dd", *(job._told or (0.0, 0.0))))
    return [job._planned_batch or 0, *noise]


def _materialise(optimizer: Any) -> None:
    """Have an optimizer make its state, which is then taken over from the others in place."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for each in parameters:
        if each.requires_grad and each.grad is None:
            each.grad = each.detach().clone().zero_()
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as fault:
        log.debug("ones: no rehearsal of %s: %s", type(optimizer).__name__, fault)
    for each in parameters:
        each.grad = None
