"""The framework PyTorch: DistributedDataParallel over gloo or NCCL, from torch 2.6 on."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.checkpoint import Writable
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.framework import Cutting, Shards, StateFault, Writing
from ones.slurm_ext.runtime.gradients import Pending
from ones.slurm_ext.runtime.sampling import Sampler
from ones.slurm_ext.runtime.scalars import plain_numbers
from ones.slurm_ext.runtime.torch_gradients import LoneNorms, Norms, WorkersNorms

LAST_CALLBACK = 0.2  # seconds
CONTROL_TIMEOUT = timedelta(minutes=30)  # torch's own default; a dead worker shows at once


class TorchFramework:
    """One worker among the workers of a job, or a single process without a group."""

    def __init__(self, backend: str | None = None) -> None:
        self._backend = backend
        self._joined = False  # whether we made the default group, and so must end it
        self._control: Any = None  # a group on the CPU, so that agreeing never waits for a GPU
        self._vote: Any = None
        self._verdict: Any = None
        self._norms: Norms = LoneNorms()
        self._beside: Any = None  # a group for what is written beside training
        self.device: Any = torch.device("cpu")

    def connect(self, place: Place) -> None:
        cuda = torch.cuda.is_available()
        if cuda:
            # A task that sees one GPU only has been given its own.
            index = place.local_rank % torch.cuda.device_count()
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(index)
        if place.world_size == 1:
            return
        if not dist.is_initialized():
            os.environ.update(place.variables())
            # Debian builds torch without libuv; the older store is there in every build.
            os.environ.setdefault("USE_LIBUV", "0")
            backend = self._backend or ("nccl" if cuda and dist.is_nccl_available() else "gloo")
            dist.init_process_group(backend, rank=place.rank, world_size=place.world_size)
            self._joined = True
        if dist.get_backend() == "gloo":
            self._control = dist.group.WORLD
        else:
            self._control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)

    def propose(self, request: int) -> None:
        # Its result is read a step later, so that no step waits for it.
        self._vote = torch.tensor([request], dtype=torch.int32)
        self._verdict = dist.all_reduce(
            self._vote, op=dist.ReduceOp.MAX, group=self._control, async_op=True
        )

    def agreed(self) -> int:
        if self._verdict is None:
            return 0
        self._settle()
        return int(self._vote.item())

    def barrier(self) -> None:
        self._settle()
        if self._control is not None:
            self._finish(dist.barrier(group=self._control, async_op=True))

    def all_did(self, did: bool) -> bool:
        self._settle()
        if self._control is None:
            return did
        failed = torch.tensor([not did], dtype=torch.int32)
        self._finish(
            dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=self._control, async_op=True)
        )
        return not int(failed.item())

    def share(self, payload: bytes) -> bytes:
        if self._control is None:
            return payload
        length = torch.tensor([len(payload)], dtype=torch.int64)
        self._finish(dist.broadcast(length, src=0, group=self._control, async_op=True))
        if not int(length.item()):
            return b""
        if dist.get_rank() == 0:
            data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        else:
            data = torch.empty(int(length.item()), dtype=torch.uint8)
        self._finish(dist.broadcast(data, src=0, group=self._control, async_op=True))
        return bytes(data.numpy())

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def check(self, state: object) -> None:
        self.unpack(self.pack(state))

    def dump(self, state: object, file: Writable) -> None:
        torch.save(plain_numbers(state), cast(Any, file))

    def load(self, path: Path) -> Any:
        return self._read(path)

    def pack(self, state: object) -> bytes:
        buffer = io.BytesIO()
        torch.save(plain_numbers(state), buffer)
        return buffer.getvalue()

    def unpack(self, payload: bytes) -> Any:
        return self._read(io.BytesIO(payload))

    def _read(self, source: Path | io.BytesIO) -> Any:
        # weights_only: data that arrives over the network or from a disk is never run as code.
        try:
            return torch.load(source, map_location="cpu", weights_only=True)
        except Exception as fault:  # whatever the unpickler met
            reason = str(fault).strip().splitlines()[0] if str(fault).strip() else repr(fault)
            raise StateFault(
                f"a state holds what torch.load(weights_only=True) refuses ({reason});"
                " keep tensors, numbers, strings, lists and dicts in state_dict()"
            ) from None

    def wrap(self, model: Any, weight: Callable[[], float], **options: Any) -> Any:
        if self._control is not None:
            if self.device.type == "cuda":
                options.setdefault("device_ids", [self.device.index])
            model = torch.nn.parallel.DistributedDataParallel(model, **options)
        self.adopt(model, weight)
        return model

    def adopt(self, wrapped: Any, weight: Callable[[], float]) -> None:
        norms = self._norms
        if self._control is None:
            norms.add(wrapped)
            return
        if not isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            return  # whose gradients nobody can look at before they are averaged
        if not isinstance(norms, WorkersNorms):
            norms = self._norms = WorkersNorms()
        model = wrapped.module
        norms.add(model)
        # A lambda, because torch looks at the annotations of a hook.
        wrapped.register_comm_hook(
            weight, lambda weight, bucket: norms.average(model, weight(), bucket)
        )

    def shard(self, model: Any, weight: Callable[[], float], cutting: Cutting) -> None:
        from ones.slurm_ext.runtime import sharding  # noqa: PLC0415 (heavy, and few need it)

        if fault := sharding.supported():
            raise StateFault(fault)
        if self._control is None:
            self._norms.add(model)
            return
        workers = dist.get_world_size()
        copies, cut = sharding.copies(workers, cutting.shards)
        mesh = dist.init_device_mesh(
            self.device.type, (copies, cut), mesh_dim_names=("copies", "shards")
        )
        across = mesh["copies"].get_group() if copies > 1 else None
        if sharding.parts(model):
            sharding.check(model, workers)
            across, copies = None, sharding.copies_of(model)  # FSDP2 averages over them itself
        else:
            (cutting.wrap or sharding.by_layers(cutting.options))(model, mesh["shards"])
            sharding.check(model, cut)
        if not isinstance(self._norms, sharding.Averaging):
            self._norms = sharding.Averaging(
                weight,
                sharding.Workers(workers, copies=copies, across=across, everybody=self._control),
            )
            self._beside = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        self._norms.add(model)

    def check_cut(self, models: Sequence[Any]) -> None:
        from ones.slurm_ext.runtime import sharding  # noqa: PLC0415 (heavy, and few need it)

        for model in models:
            if sharding.parts(model):
                sharding.check_parameters(model)

    def save_shards(
        self, folder: Path, models: Sequence[Any], tracked: Sequence[Any], *, beside: bool
    ) -> Writing | None:
        from ones.slurm_ext.runtime import sharded_checkpoint  # noqa: PLC0415 (heavy)

        return sharded_checkpoint.save(
            folder,
            models,
            tracked,
            group=self._control,
            beside=self._beside if beside else None,
        )

    def kept_shards(self, folder: Path) -> Shards:
        from ones.slurm_ext.runtime import sharded_checkpoint  # noqa: PLC0415 (heavy)

        return sharded_checkpoint.Kept(folder, group=self._control)

    def watch(self, samples: int) -> None:
        self._norms.watch(samples)

    def seen(self) -> Pending | None:
        return self._norms.seen()

    def scale_rate(self, optimizer: Any, factor: Callable[[], float]) -> None:
        kept: list[tuple[Any, Any]] = []  # of the step under way: each rate, and what it became

        def raise_rates(*_: object) -> None:
            for group, (rate, raised) in zip(optimizer.param_groups, kept, strict=False):
                if group["lr"] is raised:  # by a step that has failed, and that the script survived
                    group["lr"] = rate
            kept[:] = [(group["lr"], group["lr"] * factor()) for group in optimizer.param_groups]
            for group, (_rate, raised) in zip(optimizer.param_groups, kept, strict=True):
                group["lr"] = raised

        def restore_rates(*_: object) -> None:
            for group, (rate, _raised) in zip(optimizer.param_groups, kept, strict=True):
                group["lr"] = rate
            kept.clear()

        optimizer.register_step_pre_hook(raise_rates)
        optimizer.register_step_post_hook(restore_rates)

    def loader(self, dataset: Any, sampler: Sampler, **options: Any) -> Any:
        return torch.utils.data.DataLoader(dataset, batch_sampler=sampler, **options)  # type: ignore[arg-type,unused-ignore]

    def close(self) -> None:
        self._settle()
        self._norms.settle()
        if self._control is not None:
            # A thread of gloo may still be dropping the last callback, for which it needs Python:
            # if that ended first, the whole process would abort, or stand still (see live/group).
            time.sleep(LAST_CALLBACK)
        if self._joined and dist.is_initialized():
            dist.destroy_process_group()
            self._joined = False
        self._control = None

    def _settle(self) -> None:
        """Wait for the vote under way: nobody may leave while others count on his."""
        if self._verdict is not None:
            self._finish(self._verdict)
            self._verdict = None

    def _finish(self, work: Any) -> None:
        """Wait for a collective that has begun."""
        work.wait()
