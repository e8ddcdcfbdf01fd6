"""Slices of a sharded state, from memory to memory: each worker sends only what another lacks.

Where all workers have memory for it, all parts go at once, and old slices are kept until everybody
has said that he has his. Else parts go in windows, one after the other, and old slices are given up
window by window. A slice that is the same before and after is not copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.live.group import Group
from ones.slurm_ext.runtime.live.reshard import Cut, Move, Part, Place, common, moves
from ones.slurm_ext.runtime.sharded_state import Spec

WINDOW = 1 << 26  # bytes of whole parts that are under way at a time, at least
CHECKED = 3  # rows of each part whose sums are compared afterwards
NUMBERS = 64  # of such a row
SUMS = (1 << 61) - 1  # sums are taken modulo this


def part_of(spec: Spec) -> Part:
    size = getattr(torch, spec.dtype).itemsize
    numbers = 1
    for length in spec.shape:
        numbers *= length
    if spec.dim is None:
        return Part(rows=1, row=numbers * size, whole=True)
    rows = spec.shape[spec.dim]
    return Part(rows=rows, row=numbers // rows * size if rows else 0)


def room(spec: Spec, cut: Cut, device: Any) -> Any:
    """A slice of a tensor that holds nothing yet."""
    shape = list(spec.shape)
    if spec.dim is not None:
        begin, end = cut.rows(shape[spec.dim])
        shape[spec.dim] = end - begin
    return torch.empty(shape, dtype=getattr(torch, spec.dtype), device=device)


class Exchange:
    """One worker's part in a change of slices."""

    def __init__(
        self,
        group: Group,
        specs: Mapping[str, Spec],
        *,
        old: Mapping[Place, Sequence[Cut]],
        new: Mapping[Place, Cut],
        device: Any,
    ) -> None:
        self._group, self._device = group, device
        self._names, self._specs = list(specs), list(specs.values())
        self.parts = [part_of(spec) for spec in self._specs]
        self._old, self._new = old, new
        self._moves = list(moves(self.parts, old, new))
        self.sums = [0, 0]
        """Of some rows of what this worker had, and of what it has afterwards."""

    @property
    def moved(self) -> int:
        """Bytes that all workers together send."""
        return sum((move.end - move.begin) * self.parts[move.part].row for move in self._moves)

    def run(
        self,
        had: Mapping[Cut, Mapping[str, Any]],
        *,
        keep: bool,
        lent: Collection[Cut],
        window: float,
    ) -> dict[str, Any]:
        """The new slices. Without `keep` the old ones are given up on the way.

        Those of the cuts `lent` may become new ones as they are. `window` is how many bytes of
        whole parts are under way at a time, the same number on all workers.
        """
        place, got, first = self._group.rank, {}, self._first()
        numbered: dict[int, list[tuple[int, Move]]] = {}
        for tag, move in enumerate(self._moves, start=1):
            numbered.setdefault(move.part, []).append((tag, move))
        for parts in self._windows(window):
            fresh = {}
            if place in self._new:
                fresh = {part: self._room(part, had, lent=lent) for part in parts}
            under_way = [each for part in parts for each in numbered.get(part, ())]
            works, copies = self._start(under_way, fresh, had)
            for part in parts:  # while slices are on their way
                for cut, slices in had.items():
                    if first[cut] == place:
                        self.sums[0] += self._sum(part, cut, slices[self._names[part]])
                if part in fresh:
                    self._take_over(part, fresh[part], had)
            self._group.finish_all(works)
            for slice_, whole in copies:
                slice_.copy_(whole)
            for part, tensor in fresh.items():
                got[self._names[part]] = tensor
                self.sums[1] += self._sum(part, self._new[place], tensor)
            if not keep:
                for name in (self._names[part] for part in parts):
                    for slices in had.values():
                        _give_up(slices[name], got.get(name))
        self.sums = [each % SUMS for each in self.sums]
        return got

    def agree(self, sums: Sequence[Sequence[int]]) -> bool:
        """Whether the new slices are what the old ones were, by everybody's sums."""
        before = sum(each[0] for each in sums) % SUMS
        by_copy: dict[int, int] = {}
        counted: dict[int, int] = {}
        for place, cut in sorted(self._new.items()):
            copy = counted[cut.index] = counted.get(cut.index, -1) + 1
            by_copy[copy] = (by_copy.get(copy, 0) + sums[place][1]) % SUMS
        return all(each == before for each in by_copy.values())

    def _first(self) -> dict[Cut, Place]:
        """Who sums up an old slice that several have."""
        found: dict[Cut, Place] = {}
        for place, cuts in sorted(self._old.items()):
            for cut in cuts:
                found.setdefault(cut, place)
        return found

    def _windows(self, most: float) -> Iterator[list[int]]:
        """Parts in their order, so many bytes at a time or one."""
        window: list[int] = []
        size = 0
        for number, part in enumerate(self.parts):
            if window and size + part.rows * part.row > most:
                yield window
                window, size = [], 0
            window.append(number)
            size += part.rows * part.row
        if window:
            yield window

    def _room(
        self, part: int, had: Mapping[Cut, Mapping[str, Any]], *, lent: Collection[Cut]
    ) -> Any:
        """A new slice: what this worker has had, where that is the same one, else empty memory."""
        name, spec, cut = self._names[part], self._specs[part], self._new[self._group.rank]
        rows, whole = self.parts[part].rows, self.parts[part].whole
        for old in had.keys() & set(lent):
            same = whole or old.rows(rows) == cut.rows(rows)
            if same and had[old][name].is_contiguous():
                return had[old][name]
        return room(spec, cut, self._device)

    def _take_over(self, part: int, fresh: Any, had: Mapping[Cut, Mapping[str, Any]]) -> None:
        """Fill a new slice with the rows that this worker has had."""
        name, spec, rows = self._names[part], self._specs[part], self.parts[part].rows
        if any(slices[name] is fresh for slices in had.values()):
            return
        new = self._new[self._group.rank].rows(rows)
        for old, slices in had.items():
            if self.parts[part].whole:
                fresh.copy_(slices[name])
            elif (both := common(new, old.rows(rows))) is not None:
                mine = _rows(slices[name], spec, both, old.rows(rows))
                _rows(fresh, spec, both, new).copy_(mine)

    def _start(
        self,
        numbered: Sequence[tuple[int, Move]],
        fresh: Mapping[int, Any],
        had: Mapping[Cut, Mapping[str, Any]],
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Begin to send and receive; what to wait for, and what to copy where after that."""
        place, operations, copies = self._group.rank, [], []
        for tag, move in numbered:
            spec, rows = self._specs[move.part], self.parts[move.part].rows
            if move.source == place:
                slice_ = self._to_send(move, had)
                operations.append((dist.isend, slice_.contiguous(), move.target, tag))
            elif move.target == place:
                wanted = self._new[place].rows(rows)
                slice_ = _rows(fresh[move.part], spec, (move.begin, move.end), wanted)
                whole = slice_ if slice_.is_contiguous() else torch.empty_like(slice_)
                operations.append((dist.irecv, whole, move.source, tag))
                if whole is not slice_:
                    copies.append((slice_, whole))
        return begun(self._group, operations), copies

    def _to_send(self, move: Move, had: Mapping[Cut, Mapping[str, Any]]) -> Any:
        """The rows of a move, from that of this worker's slices which has them."""
        name, spec, part = self._names[move.part], self._specs[move.part], self.parts[move.part]
        for cut, slices in had.items():
            held = cut.rows(part.rows)
            if part.whole or (held[0] <= move.begin and move.end <= held[1]):
                return _rows(slices[name], spec, (move.begin, move.end), held)
        raise AssertionError(f"no slice has rows {move.begin} to {move.end} of {name}")

    def _sum(self, part: int, cut: Cut | None, tensor: Any) -> int:
        """Of some rows of a part, as far as they are in this slice of it."""
        if cut is None or tensor is None or self.parts[part].whole:
            return 0
        spec, rows = self._specs[part], self.parts[part].rows
        held, total = cut.rows(rows), 0
        for row in {number * (rows - 1) // (CHECKED - 1) for number in range(CHECKED)}:
            if held[0] <= row < held[1]:
                total += _checksum(part, row, _rows(tensor, spec, (row, row + 1), held))
        return total


def _checksum(part: int, row: int, numbers: Any) -> int:
    # A copy, because memory that numpy has seen can't be given up.
    sampled = numbers.detach().reshape(-1)[:NUMBERS].clone().view(torch.uint8).cpu()
    return zlib.crc32(sampled.numpy().tobytes(), part * 1_000_003 + row)


def _rows(tensor: Any, spec: Spec, rows: tuple[int, int], held: tuple[int, int]) -> Any:
    """These rows of a tensor that has the rows `held`; all of one that isn't cut."""
    if spec.dim is None:
        return tensor
    return tensor.narrow(spec.dim, rows[0] - held[0], rows[1] - rows[0])


def begun(group: Group, operations: Sequence[tuple[Any, Any, int, int]]) -> list[Any]:
    """Sends and receives under way. On GPUs as one, as NCCL needs it where two send to each other.

    Gloo takes them one by one, and carries them out beside each other.
    """
    if operations and operations[0][1].is_cuda:
        batch = [
            dist.P2POp(call, tensor, group=group.pg, tag=tag, group_peer=peer)
            for call, tensor, peer, tag in operations
        ]
        return list(dist.batch_isend_irecv(batch))
    return [
        group.pg.send([tensor], peer, tag)
        if call is dist.isend
        else group.pg.recv([tensor], peer, tag)
        for call, tensor, peer, tag in operations
    ]


def _give_up(tensor: Any, instead: Any) -> None:
    """Free the memory of an old slice, also where something still refers to it."""
    if tensor is not instead:
        tensor.untyped_storage().resize_(0)
