"""PyTorch whose process group is another one from time to time, and may be lost at any time.

A step in which a member is lost comes to its end on the others, without effect: gradients are left
as they are, optimizers do nothing, and `lost` says so.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch.nn.parallel import (  # type: ignore[import-not-found,unused-ignore]
    DistributedDataParallel,
)

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.framework import Cutting, StateFault, Writing
from ones.slurm_ext.runtime.live import group as groups
from ones.slurm_ext.runtime.live.handing import Arrived, Baggage
from ones.slurm_ext.runtime.live.member import Entry, Member
from ones.slurm_ext.runtime.live.memory import keep
from ones.slurm_ext.runtime.live.state import Cargo, compare
from ones.slurm_ext.runtime.live.terms import Offer
from ones.slurm_ext.runtime.live.wrapped import Elastic, is_compiled
from ones.slurm_ext.runtime.sampling import Sampler
from ones.slurm_ext.runtime.torch_framework import TorchFramework
from ones.slurm_ext.runtime.torch_gradients import LoneNorms, WorkersNorms

if TYPE_CHECKING:  # few jobs need them, and importing them takes a while
    from ones.slurm_ext.runtime.live.bundle import Bundle
    from ones.slurm_ext.runtime.live.sharded import Shards
    from ones.slurm_ext.runtime.sharding import Workers

log = logging.getLogger(__name__)
Result = TypeVar("Result")
AT_END = 5.0  # seconds for what is under way
SYNC = {"init_sync": False}  # the state is there already
HAS_SYNC = "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters


class LostGroup(OnesError):
    """The group has lost a member before all had entered it."""


class HalfStep:
    """A step for which this worker has its gradients, and perhaps others have done it."""

    def __init__(self, optimizer: Any) -> None:
        self.reach: int | None = None
        """Samples that are committed once it is done."""
        self._optimizer = optimizer
        self._gradients = [
            (each, each.grad) for group in optimizer.param_groups for each in group["params"]
        ]

    def finish(self) -> None:
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._optimizer.step()


class LiveFramework(TorchFramework):
    """One worker in one generation after the other."""

    def __init__(self, backend: str | None = None) -> None:
        super().__init__(backend)
        self.lost = False
        self.entry: Entry | None = None
        """The generation to enter, by the vote of the step before."""
        self.member: Member | None = None
        self.last_step = False
        """Whether the step just done was the training's last one."""
        self._group: groups.Group | None = None
        self._wrapped: list[tuple[Elastic, Any, Callable[[], float], dict[str, Any]]] = []
        self._generation = 0
        self.shards: Shards | None = None
        """The sharded models, where the script has any."""
        self.half: HalfStep | None = None
        self._bundle: Bundle | None = None

    def connect(self, place: Place) -> None:
        if torch.cuda.is_available():
            index = place.local_rank % torch.cuda.device_count()
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(index)
            groups.prepare_nccl()
        else:
            keep()

    def make(self, offer: Offer, name: str, store: tuple[str, int]) -> groups.Group | Bundle | None:
        """The group of an offer; beside training, in a thread. None: it leaves without one."""
        if offer.rank is None and self.shards is None:
            return None
        if self.shards is not None and (fault := self.shards.fits(offer)):
            raise groups.GroupFault(fault)
        try:
            connection = groups.store(*store)
        except (RuntimeError, ValueError) as fault:
            raise groups.GroupFault(f"group {name}: no store at {store}: {fault}") from None
        if self.shards is not None:
            return self.shards.groups(connection, offer, name=name)
        assert offer.rank is not None
        return groups.make(
            connection, name=name, rank=offer.rank, size=offer.size, device=self.device
        )

    def warm_up(self) -> None:
        """Have the libraries do now what they put off until their first use."""
        with torch.enable_grad():
            weight = torch.ones(8, 8, device=self.device, requires_grad=True)
            total: Any = (weight @ weight).sum()
            total.backward()

    def propose(self, request: int) -> None:
        if self.lost or self.member is None:
            return
        vote = self.member.vote
        # The least of the votes is the greatest of their negatives.
        self._vote = torch.tensor([request, vote, -vote], dtype=torch.int64)
        try:
            self._verdict = dist.all_reduce(
                self._vote, op=dist.ReduceOp.MAX, group=self._control, async_op=True
            )
            if self._group is not None:
                self._group.watch(self._verdict)
        except RuntimeError:
            self.lose()

    def agreed(self) -> int:
        if self.lost or self._verdict is None or self.member is None:
            return 0
        self._settle()
        if self.lost:
            return 0
        request, greatest, least = self._vote.tolist()
        if self.entry is None and not self.last_step:
            self.entry = self.member.result(-least, greatest)
        return int(request)

    def share(self, payload: bytes) -> bytes:
        """Rank 0's payload; empty, which is nobody's answer, where a member was lost."""
        return self._unless_lost(partial(super().share, payload), b"")

    def barrier(self) -> None:
        self._settle()
        self._unless_lost(super().barrier, None)

    def all_did(self, did: bool) -> bool:
        """Whether all did it; nobody did where a member was lost, as far as this one knows."""
        self._settle()
        return self._unless_lost(partial(super().all_did, did), False)

    def save_shards(
        self, folder: Path, models: Sequence[Any], tracked: Sequence[Any], *, beside: bool
    ) -> Writing | None:
        save = partial(super().save_shards, folder, models, tracked, beside=beside)
        writing = self._unless_lost(save, None)
        if self.lost:
            # For the caller as a fault of the disk is: a part is missing, and training goes on.
            raise OSError("a worker was lost")
        return writing

    def _unless_lost(self, collective: Callable[[], Result], otherwise: Result) -> Result:
        """What a collective gives; `otherwise` where a member is lost in it, or was before."""
        if self.lost:
            return otherwise
        try:
            return collective()
        except RuntimeError as fault:
            if not groups.is_lost(fault):
                raise
            self.lose()
            return otherwise

    def lose(self) -> None:
        """The group has lost a member: nothing of this step counts."""
        self.lost = True

    def enter(
        self, entry: Entry, cargo: Cargo, common: Sequence[int]
    ) -> tuple[bytes | None, list[int]]:
        """Become a member of a generation, with the state of those who have it.

        Gives back the note of their cargo where it was taken over, and the numbers that are common
        to all from here on: those of the first who has the state. Raises LostGroup.
        """
        assert self.member is not None
        offer, group, old = entry.offer, entry.group, self._group
        self._settle()
        self._norms.settle()
        for elastic, _, _, _ in self._wrapped:
            elastic.use(None)
        note = None
        self.entry, self.lost = None, False
        self.member.enters(offer.number, group)
        way: dict[str, Any] = {
            "sources": offer.sources,
            "receivers": offer.receivers,
        }
        try:
            if offer.rank in offer.receivers:
                self.member.committed = None
                note = cargo.receive(group, device=self.device, **way)
            elif offer.receivers:
                cargo.send(group, **way)
            table = compare(group, [cargo.fingerprint(), *common])
        except RuntimeError as fault:
            group.cut()
            group.drop()
            self._leave_old(old)
            if not groups.is_lost(fault):
                raise
            raise LostGroup(str(fault)) from None
        self._check([row[0] for row in table], offer)
        group.install()
        self._leave_old(old)
        self._group, self._control, self._joined = group, group.pg, True
        self._rewrap(group.size)
        self._generation = offer.number
        self.member.entered(offer.number)
        return note, table[offer.sources[0]][1:]

    def enter_sharded(self, entry: Entry, baggage: Baggage, common: Sequence[int]) -> Arrived:
        """As `enter`, where models are sharded. Who leaves only hands on what it has."""
        assert self.member is not None
        assert self.shards is not None
        offer, bundle = entry.offer, entry.group
        self._settle()
        self._norms.settle()
        half, self.half = self.half, None
        self.entry, self.lost = None, False
        self.member.enters(offer.number, bundle)
        if half is not None:
            baggage.gradients_first(half.finish)
        try:
            arrived = self.shards.hand_on(
                bundle,
                offer,
                baggage,
                common,
                committed=self.member.committed,
                reach=None if half is None else half.reach,
            )
        except RuntimeError as fault:
            self.half = half
            bundle.cut()
            bundle.drop()
            self._leave_bundle()
            if not self.shards.holds:
                self.member.committed = None
            if not groups.is_lost(fault):
                raise
            raise LostGroup(str(fault)) from None
        self._leave_bundle()
        if offer.rank is None:
            bundle.drop()
            return arrived
        bundle.main.install()
        bundle.only_train()
        self._bundle, self._group = bundle, bundle.main
        self._control, self._joined = bundle.main.pg, True
        self.shards.enter(bundle, baggage.tracked, offer.number)
        self._norms = self.shards.averaging(self._workers(bundle))
        self._generation = offer.number
        self.member.entered(offer.number)
        return arrived

    def copy_slices(self, tracked: Sequence[Any], note: bytes, *, node: int) -> None:
        """Have each slice kept a second time; `lost` says afterwards whether that failed."""
        assert self.shards is not None
        assert self._group is not None
        assert self.member is not None
        committed = self.member.committed
        if committed is None or (self._bundle is not None and self._bundle.across is not None):
            return  # other copies of the model have every slice
        try:
            self.shards.keep_copy(self._group, tracked, note, node=node, committed=committed)
        except RuntimeError as fault:
            if not groups.is_lost(fault):
                raise
            self.lose()

    def _workers(self, bundle: Bundle) -> Workers:
        from ones.slurm_ext.runtime.sharding import Workers  # noqa: PLC0415 (heavy)

        main, across = bundle.main, bundle.across
        assert main is not None

        def lose(fault: RuntimeError) -> None:
            if not groups.is_lost(fault):
                raise fault
            self.lose()

        return Workers(
            main.size,
            copies=1 if across is None else across.size,
            across=None if across is None else across.pg,
            everybody=main.pg,
            finish=main.finish,
            lost=lambda: self.lost,
            lose=lose,
        )

    def _leave_bundle(self) -> None:
        bundle, self._bundle = self._bundle, None
        self._group, self._control = None, None
        if bundle is not None:
            bundle.drop()

    def broke(self) -> None:
        """Give up the group, so that the members who wait in it are freed."""
        assert self.member is not None
        self._verdict = None
        self.entry, self.lost = None, True
        for elastic, _, _, _ in self._wrapped:
            elastic.use(None)
        self._norms = LoneNorms()
        if self._bundle is not None:
            self._bundle.cut()
        elif self._group is not None:
            self._group.cut()
        if self._bundle is not None:
            self._leave_bundle()
        else:
            self._leave_old(self._group)
        self.member.broke()

    def wrap(self, model: Any, weight: Callable[[], float], **options: Any) -> Any:
        if any(isinstance(each, torch.nn.SyncBatchNorm) for each in model.modules()):
            raise StateFault("SyncBatchNorm keeps its process group, so it can't be resized live")
        elastic = Elastic(model, lambda: self.lost, self.lose)
        self._wrapped.append((elastic, model, weight, options))
        self._norms.add(model)
        return elastic

    def shard(self, model: Any, weight: Callable[[], float], cutting: Cutting) -> None:
        from ones.slurm_ext.runtime import sharding  # noqa: PLC0415 (heavy, and few need it)
        from ones.slurm_ext.runtime.live import unwrap  # noqa: PLC0415 (heavy)
        from ones.slurm_ext.runtime.live.sharded import Shards  # noqa: PLC0415 (heavy)

        if fault := sharding.supported() or unwrap.supported():
            raise StateFault(fault)
        if self.shards is None:
            self.shards = Shards(self.device)
            self.shards.weight = weight
        wrap = cutting.wrap or sharding.by_layers(cutting.options)
        self.shards.add(model, wrap, cutting.shards)
        self.shards.copy_every = cutting.copy_steps

    def _await_gradients(self) -> None:
        """Wait until the GPU has the gradients of all: only then is it sure that none is of half.

        What was cut ends on the GPU as well, with numbers that mean nothing.
        """
        if self.lost or self.device.type != "cuda" or self._group is None or self._group.size == 1:
            return
        torch.cuda.current_stream(self.device).synchronize()
        if self._group.cut_at is not None or (self._bundle is not None and self._bundle.is_cut):
            self.lose()

    def _all_have_gradients(self, optimizer: Any) -> None:
        """Before a step changes slices: either all members do it, or in the end none does.

        Once one has seen that all have their gradients, all can do the step without the others.
        """
        if self.lost or self._group is None or self._group.size == 1:
            return
        ready = torch.zeros(1)
        try:
            self._group.finish(dist.all_reduce(ready, group=self._control, async_op=True))
        except RuntimeError as fault:
            if not groups.is_lost(fault):
                raise
            assert self.member is not None
            self.half = HalfStep(optimizer)
            self.lose()

    def refuse_compiled(self) -> None:
        """Nothing compiled can go from one generation to the next, whose group is another."""
        if any(is_compiled(elastic) for elastic, _, _, _ in self._wrapped):
            raise StateFault(
                "torch.compile of what job.ddp() has returned can't be resized live; compile the"
                " model before: job.ddp(torch.compile(model)), or leave --live out"
            )

    def scale_rate(self, optimizer: Any, factor: Callable[[], float]) -> None:
        def forget(*_: object) -> None:
            self._await_gradients()
            if self.shards is not None:
                self._all_have_gradients(optimizer)
            if self.lost:
                # Without gradients a step changes nothing, and the step is done again.
                for each in optimizer.param_groups:
                    for parameter in each["params"]:
                        parameter.grad = None

        optimizer.register_step_pre_hook(forget)
        super().scale_rate(optimizer, factor)

    def loader(self, dataset: Any, sampler: Sampler, **options: Any) -> Any:
        if options.get("num_workers"):
            # So that a change need not start them again.
            options.setdefault("persistent_workers", True)
        return _Loader(super().loader(dataset, sampler, **options), lambda: self._generation)

    def close(self) -> None:
        for elastic, _, _, _ in self._wrapped:
            elastic.use(None)
        if self._group is not None and not self._group.has_calmed(within=AT_END):
            return  # the process is about to end, and the group with it
        try:
            super().close()
        except RuntimeError:
            log.debug("ones: a member was lost at the end")

    def _settle(self) -> None:
        try:
            super()._settle()
        except RuntimeError as fault:
            self._verdict = None
            if not groups.is_lost(fault):
                raise
            self.lose()

    def _finish(self, work: Any) -> None:
        if self._group is None:
            super()._finish(work)
        else:
            self._group.finish(work)

    def _leave_old(self, old: groups.Group | None) -> None:
        self._group, self._control = None, None
        if old is not None and old.pg is not None:
            old.drop()

    def _check(self, prints: list[int], offer: Offer) -> None:
        right = prints[offer.sources[0]]
        for rank in offer.receivers:
            if prints[rank] != right:
                raise StateFault(f"rank {rank} has not received the state as it was sent")
        if any(prints[rank] != right for rank in offer.sources):
            log.warning("ones: the workers' models differ, though they were averaged at each step")

    def _rewrap(self, size: int) -> None:
        group = self._group
        assert group is not None
        self._norms = LoneNorms() if size == 1 else WorkersNorms(group.watch, group.finish)
        for elastic, model, weight, options in self._wrapped:
            self._norms.add(model)
            elastic.use(None if size == 1 else self._distributed(model, weight, options))

    def _distributed(self, model: Any, weight: Callable[[], float], options: dict[str, Any]) -> Any:
        more = dict(options)
        if HAS_SYNC:
            more.update(SYNC)
        if self.device.type == "cuda":
            more.setdefault("device_ids", [self.device.index])
        wrapped = DistributedDataParallel(model, process_group=self._control, **more)
        norms, group = self._norms, self._group
        assert isinstance(norms, WorkersNorms)
        assert group is not None

        def average(weight: Any, bucket: Any) -> Any:
            if self.lost:
                return _done(bucket.buffer())
            try:
                averaged = norms.average(model, weight(), bucket)
                return group.outcome(averaged, bucket.buffer(), self.lose)
            except RuntimeError as fault:
                if not groups.is_lost(fault):
                    raise
                self.lose()
                return _done(bucket.buffer())

        # A lambda, because torch looks at the annotations of a hook.
        wrapped.register_comm_hook(weight, lambda weight, bucket: average(weight, bucket))  # noqa: PLW0108
        return wrapped


class _Loader:
    """A DataLoader that begins again, from what is committed, where the workers have changed."""

    def __init__(self, loader: Any, generation: Callable[[], int]) -> None:
        self._loader = loader
        self._generation = generation

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Any:
        changed = True
        while changed:
            changed, began = False, self._generation()
            for batch in self._loader:
                yield batch
                if self._generation() != began:
                    changed = True
                    break


def _done(buffer: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future
