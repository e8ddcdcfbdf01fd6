"""The whole state of a training, from those workers that have it to those that don't.

Small things travel as one packed message. Tensors go straight from memory to memory, in pieces
that the senders share among them: on the CPU from worker to worker, between GPUs as broadcasts, for
which the communicator is there already. Nothing is unpickled but what `weights_only` allows.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.live.group import Group
from ones.slurm_ext.runtime.scalars import plain_numbers

SMALL = 1 << 12  # numbers of a tensor that travels in the message
PIECE = 1 << 21  # numbers that are sent at a time
SAMPLED = 64  # numbers of each parameter that are compared at the end
MARK = "ones-tensor:"


class Cargo:
    """What is to be handed on: models, other objects with `state_dict`, and a few bytes."""

    def __init__(self, models: Sequence[Any], tracked: Sequence[Any], note: bytes) -> None:
        self.models = models
        self.tracked = tracked
        self.note = note

    def send(self, group: Group, *, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Hand it on. Called by the sources; all others of the group call `receive`."""
        large = self._model_tensors()
        skeletons = [_take_apart(each.state_dict(), large) for each in self.tracked]
        if group.rank == sources[0]:
            message = pack(
                {
                    "note": self.note,
                    "tracked": skeletons,
                    "small": [_shrunk(each) for each in large],
                    "specs": [_spec(each) for each in large],
                }
            )
            length = torch.tensor([message.numel()], dtype=torch.int64)
            works = [group.pg.send([part], to, 0) for to in receivers for part in (length, message)]
            group.finish_all(works)
        _exchange(group, large, sources, receivers)

    def receive(
        self, group: Group, *, sources: Sequence[int], receivers: Sequence[int], device: Any
    ) -> bytes:
        """Take it over, and give back the note."""
        length = torch.zeros(1, dtype=torch.int64)
        group.finish_all([group.pg.recv([length], sources[0], 0)])
        packed = torch.empty(int(length.item()), dtype=torch.uint8)
        group.finish_all([group.pg.recv([packed], sources[0], 0)])
        message = unpack(packed)
        large = self._model_tensors()
        count = len(large)
        own: list[Any] = []
        for each in self.tracked:
            _take_apart(each.state_dict(), own)
        specs = message["specs"]
        if specs[:count] != [_spec(each) for each in large]:
            raise StateFault(
                "the models of a new worker are not those of the others; does the script build"
                " them differently by rank or size?"
            )
        if len(message["tracked"]) != len(self.tracked):
            raise StateFault(
                f"the others track {len(message['tracked'])} objects, and a new worker"
                f" {len(self.tracked)}; call job.track alike on all, before job.epochs()"
            )
        # Memory that is there already needn't be paged in while everybody waits.
        kept = [_spec(each) for each in own] == specs[count:]
        large += own if kept else [_room(spec, device) for spec in specs[count:]]
        _exchange(group, large, sources, receivers)
        for tensor, small in zip(large, message["small"], strict=True):
            if small is not None:
                tensor.detach().copy_(small)
        for each, skeleton in zip(self.tracked, message["tracked"], strict=True):
            each.load_state_dict(_put_together(skeleton, large))
        note: bytes = message["note"]
        return note

    def fingerprint(self) -> int:
        """A number that differs where parameters differ, as good as always."""
        sampled = [
            each.detach().reshape(-1)[:: max(1, each.numel() // SAMPLED)][:SAMPLED].float().cpu()
            for model in self.models
            for each in model.parameters()
        ]
        return zlib.crc32(torch.cat(sampled).numpy().tobytes()) if sampled else 0

    def _model_tensors(self) -> list[Any]:
        found: list[Any] = []
        for model in self.models:
            _take_apart(dict(model.state_dict()), found)
        return found


def compare(group: Group, mine: Sequence[int]) -> list[list[int]]:
    """Everybody's numbers, by rank. All are there when this is done."""
    table = torch.zeros(group.size, len(mine), dtype=torch.int64)
    table[group.rank] = torch.tensor(mine, dtype=torch.int64)
    group.finish(dist.all_reduce(table, group=group.pg, async_op=True))
    return [[int(each) for each in row] for row in table.tolist()]


def _take_apart(state: Any, tensors: list[Any]) -> Any:
    """The state without its tensors, which are appended to the list; marks stand for them."""
    match state:
        case torch.Tensor():
            tensors.append(state)
            return f"{MARK}{len(tensors) - 1}"
        case dict():
            return {name: _take_apart(each, tensors) for name, each in state.items()}
        case list() | tuple():
            return [type(state).__name__, *(_take_apart(each, tensors) for each in state)]
    return state


def _put_together(skeleton: Any, tensors: Sequence[Any]) -> Any:
    match skeleton:
        case str() if skeleton.startswith(MARK):
            return tensors[int(skeleton.removeprefix(MARK))]
        case dict():
            return {name: _put_together(each, tensors) for name, each in skeleton.items()}
        case ["tuple", *rest]:
            return tuple(_put_together(each, tensors) for each in rest)
        case [_, *rest]:
            return [_put_together(each, tensors) for each in rest]
    return skeleton


def _spec(tensor: Any) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type]


def _room(spec: Sequence[Any], device: Any) -> Any:
    name, shape, kind = spec
    where = device if kind == device.type else kind
    return torch.empty(shape, dtype=getattr(torch, name), device=where)


def _shrunk(tensor: Any) -> Any:
    return tensor.detach().cpu().clone() if tensor.numel() <= SMALL else None


def _exchange(
    group: Group,
    tensors: Sequence[Any],
    sources: Sequence[int],
    receivers: Sequence[int],
) -> None:
    sends = group.rank in sources
    works, copies = [], []
    for index, (piece, source) in enumerate(_pieces(tensors, sources)):
        whole = piece if piece.is_contiguous() else piece.contiguous()
        if whole.device.type == "cuda":
            works.append(dist.broadcast(whole, source, group=group.pg, async_op=True))
        elif sends and group.rank == source:
            works += [group.pg.send([whole], to, index + 1) for to in receivers]
        elif not sends:
            works.append(group.pg.recv([whole], source, index + 1))
        if whole is not piece and not sends:
            copies.append((piece, whole))
    group.finish_all(works)
    for piece, whole in copies:
        piece.copy_(whole)


def _pieces(tensors: Sequence[Any], sources: Sequence[int]) -> Iterator[tuple[Any, int]]:
    """What is to be sent, and by whom: each source about as much as any other."""
    load = dict.fromkeys(sources, 0)
    for tensor in tensors:
        if tensor.numel() <= SMALL:
            continue
        flat = tensor.detach()
        flat = flat.view(-1) if flat.is_contiguous() else flat
        for piece in flat.split(PIECE) if flat.dim() == 1 else [flat]:
            source = min(load, key=lambda rank: (load[rank], rank))
            load[source] += piece.numel() * piece.element_size()
            yield piece, source


def pack(message: Any) -> Any:
    """A message as bytes in a tensor."""
    buffer = io.BytesIO()
    torch.save(plain_numbers(message), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(packed: Any) -> Any:
    """The message again. Nothing in it is run as code."""
    return torch.load(io.BytesIO(packed.numpy()), weights_only=True)


def tell(group: Group, message: Any, source: int, others: Sequence[int]) -> Any:
    """The message, on those others too; on all the rest None."""
    if group.rank == source:
        packed = pack(message)
        length = torch.tensor([packed.numel()], dtype=torch.int64)
        works = [group.pg.send([each], to, 0) for to in others for each in (length, packed)]
        group.finish_all(works)
        return message
    if group.rank not in others:
        return None
    length = torch.zeros(1, dtype=torch.int64)
    group.finish_all([group.pg.recv([length], source, 0)])
    packed = torch.empty(int(length.item()), dtype=torch.uint8)
    group.finish_all([group.pg.recv([packed], source, 0)])
    return unpack(packed)
