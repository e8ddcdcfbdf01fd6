"""Sharded models of one worker, from one generation of workers to the next.

What a worker has is a *cut* (reshard) of every tensor of the state, of one generation; in the
middle of a change perhaps of two. All who take part say what they have, choose the same state by
it, and move slices until each member of the new generation has its own.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.device_mesh import (  # type: ignore[import-not-found,unused-ignore]
    DeviceMesh,
)

from ones.slurm_ext.runtime import sharding
from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.live import group as groups
from ones.slurm_ext.runtime.live import unwrap
from ones.slurm_ext.runtime.live.bundle import Bundle, cut_of, make
from ones.slurm_ext.runtime.live.group import Group
from ones.slurm_ext.runtime.live.handing import Arrived, Baggage
from ones.slurm_ext.runtime.live.holding import Copy, State, apart, copied
from ones.slurm_ext.runtime.live.memory import available, give_back
from ones.slurm_ext.runtime.live.reshard import (
    Chosen,
    Cut,
    Have,
    Held,
    Place,
    choose,
    least_bytes,
)
from ones.slurm_ext.runtime.live.slices import WINDOW, Exchange
from ones.slurm_ext.runtime.live.state import compare, tell
from ones.slurm_ext.runtime.live.terms import Number, Offer
from ones.slurm_ext.runtime.sharded_checkpoint import Kept
from ones.slurm_ext.runtime.sharded_state import (
    Spec,
    is_optimizer,
    local,
    model_tensors,
    optimizer_room,
    parameter_names,
    placed,
    rebind,
    spec_from,
    spec_of,
)

log = logging.getLogger(__name__)
SPARE = 0.15  # of what training takes at its most, for a second copy at a change
HAVES = 6  # slices that a worker may have: of two generations, and two of each of two copies
ROW = 3 + 5 * HAVES  # numbers that each says of itself, before those that are to be common
NOTHING = -1
Own = list[tuple[Any, list[list[str]]]]  # optimizers, and the names of what each has in its groups


class Shards:
    """The models that a script has given to job.fsdp."""

    def __init__(self, device: Any) -> None:
        self.models: list[Any] = []
        self.weight: Callable[[], float] = lambda: 1.0
        self.shards: int | None = None
        self._wraps: list[sharding.Wrap] = []
        self._device = device
        self._generation = 0
        self._cut: Cut | None = None
        self._next: tuple[int, Cut, State] | None = None  # got, and not known to be all's
        self._reads: Path | None = None  # the checkpoint that the generation begins with
        self._size = 0  # bytes of the whole state, as far as it is known
        self._rolled_back = False  # whether the state that was got is an earlier one
        self.copy_every: int | None = None  # steps
        self._copies: list[Copy] = []  # the latest, and while that is made the one before
        self._less = False  # whether the last change has left memory that is not needed any more
        # Of a newcomer, until it is in:
        self._own: Own | None = None
        self._cutting = threading.Lock()
        self._idle = False  # whether its models may be cut beside what it does
        self._ahead: Number | None = None  # the generation over which they are cut already

    def add(self, model: Any, wrap: sharding.Wrap, shards: int | None) -> None:
        if self.models and shards != self.shards:
            raise StateFault("job.fsdp() was given several models; give it the same shards for all")
        if sharding.parts(model):
            raise StateFault(
                "the model is cut already, over workers that may change under --live; give"
                " job.fsdp(model, wrap) the function that does it"
            )
        if any(each.is_meta for each in model.parameters()):
            raise StateFault("under --live the model must be built in memory, not on meta")
        self.models.append(model)
        self._wraps.append(wrap)
        self.shards = shards
        self._size += sum(each.numel() * each.element_size() for each in model.parameters())

    def leads(self) -> None:
        """This worker's models are as the script made them, and whole."""
        self._cut = Cut(0, 1)

    def rehearse(self, tracked: Sequence[Any]) -> None:
        """Do once, while the others train, what is slow the first time.

        What the script has built is given up: its memory is there for the slices that will come.
        """
        self._own = self._optimizers(tracked)
        alone = groups.make(dist.HashStore(), name="alone", rank=0, size=1, device=self._device)
        self._cut_over(alone, alone, "alone")
        self._rebind(self._own)
        alone.drop()
        self._idle = True

    def after_step(self) -> None:
        """The first step since a change needs no more memory than any other."""
        if self._less:
            self._less = False
            threading.Thread(target=give_back, name="ones-memory", daemon=True).start()

    def groups(self, store: Any, offer: Offer, *, name: str) -> Bundle:
        """The groups of an offer; may run in a thread beside training. Raises GroupFault.

        A newcomer, which trains nothing meanwhile, has its models cut over them as well.
        """
        bundle = make(store, offer, name=name, device=self._device, shards=self.shards)
        with self._cutting:
            if self._idle and bundle.main is not None:
                self._cut_over(bundle.main, bundle.slices, str(offer.number))
                self._ahead = offer.number
        return bundle

    def fits(self, offer: Offer) -> str:
        """Why this machine has no memory for the slices of that generation; empty where it has."""
        if offer.rank is None:
            return ""
        _, cut = cut_of(offer.rank, offer.size, self.shards)
        have, held = available(self._device), self._size // self._cut.of if self._cut else 0
        wanted = self._size // cut.of - held
        if have is not None and wanted > 0 and wanted + WINDOW > have:
            return (
                f"too little memory for 1/{cut.of} of the model's state: {have >> 20} MiB are free,"
                f" and {(wanted + WINDOW) >> 20} MiB are needed"
            )
        return ""

    def hand_on(
        self,
        bundle: Bundle,
        offer: Offer,
        baggage: Baggage,
        common: Sequence[int],
        *,
        committed: int | None,
        reach: int | None,
    ) -> Arrived:
        """Have all members of a generation get their slices. All involved call this.

        Raises RuntimeError where one was lost, StateFault where this worker has another model than
        the others. Where the state is nowhere any more, nobody has any part of it afterwards.
        """
        with self._cutting:
            self._idle = False
        group = bundle.involved
        mine = self._fingerprint(baggage.tracked)
        table = compare(group, [*self._told(committed, reach, baggage), mine, *common])
        held = [_held(row) for row in table]
        chosen = choose(held)
        reads = [place for place, row in enumerate(table) if row[ROW - 2]]
        first = reads[0] if reads else min(chosen.cuts) if chosen else 0
        right = table[first][ROW - 1]
        if mine != right:
            raise StateFault(
                "this worker has another model, or tracks other objects, than the others; build"
                " them alike on all, whatever rank and size are"
            )
        if any(row[ROW - 1] != right for row in table):
            raise RuntimeError("connection to a worker with another model is given up")
        if reads:
            return self._begin(group, baggage, table, source=first)
        if chosen is None:
            self._cut = self._next = None
            raise RuntimeError("connection to a worker with slices that nobody else has is lost")
        if reach == chosen.committed and group.rank in chosen.cuts:
            baggage.finish_step()
        source = min(place for place in chosen.cuts if _has(held[place], chosen))
        latest = max((each.committed for one in held for each in one.have), default=0)
        again = latest - chosen.committed
        arrived = Arrived(None, table[source][ROW:], again=again, copied=chosen.copied)
        states = self._take(group, chosen, baggage, arrived, source=source, size=offer.involved)
        self._exchange(group, offer, chosen, states, arrived)
        return arrived

    def enter(self, bundle: Bundle, tracked: Sequence[Any], number: int) -> None:
        """Cut the models over the workers of the new generation, with the slices that were got.

        Its main group is the default one by now.
        """
        assert bundle.main is not None
        assert bundle.slices is not None
        own = self._own or self._optimizers(tracked)
        if self._ahead != number:
            self._cut_over(bundle.main, bundle.slices, str(number))
        for model in self.models:
            sharding.check(model, bundle.slices.size)
            unwrap.check(model)
        slices = self._next[2].slices if self._next is not None else {}
        for index, model in enumerate(self.models):
            unwrap.fill(model, slices, prefix=f"models.{index}.", device=self._device)
        self._rebind(own)
        if self._next is not None:
            self._settle(self._next[2], tracked)
            self._cut = self._next[1]
        else:
            self._read(bundle.main, tracked)
            assert bundle.main is not None
            self._cut = cut_of(bundle.main.rank, bundle.main.size, self.shards)[1]
        self._generation, self._next, self._reads = number, None, None
        self._own = self._ahead = None
        self._less = True

    def _optimizers(self, tracked: Sequence[Any]) -> Own:
        names = parameter_names(self.models)
        return [
            (each, [[names[id(one)] for one in group["params"]] for group in each.param_groups])
            for each in tracked
            if is_optimizer(each)
        ]

    def _rebind(self, own: Own) -> None:
        for optimizer, names in own:
            rebind(optimizer, names, self.models)

    def _cut_over(self, main: Group, slices: Group | None, name: str) -> None:
        """Cut the models over a group, on the meta device. What they were is given up."""
        assert slices is not None
        main.install()
        # A name of its own, or what torch remembers of another mesh of these ranks would be used.
        dim = f"generation {name}"
        mesh = DeviceMesh.from_group(slices.pg, self._device.type, mesh_dim_names=(dim,))
        for model, wrap in zip(self.models, self._wraps, strict=True):
            unwrap.bare(model)
            wrap(model, mesh)

    @property
    def holds(self) -> bool:
        """Whether this worker has any part of the state."""
        return self._cut is not None or self._next is not None or bool(self._copies)

    def averaging(self, workers: sharding.Workers) -> sharding.Averaging:
        """What gathers the models and averages their gradients, from here on."""
        found = sharding.Averaging(self.weight, workers)
        for model in self.models:
            found.add(model)
        return found

    def _told(self, committed: int | None, reach: int | None, baggage: Baggage) -> list[int]:
        """What this worker has, in ROW numbers but for the fingerprint."""
        have = [] if committed is None else self._present(committed)
        have += [
            Have(kept.committed, kept.generation, cut, present=False)
            for kept in self._copies
            for cut in kept.slices
        ]
        flat = [
            number
            for each in have[:HAVES]
            for number in (each.committed, each.generation, each.cut.index, each.cut.of,
                           int(each.present))
        ]  # fmt: skip
        flat += [NOTHING] * (5 * HAVES - len(flat))
        reads = baggage.checkpoint is not None and self._cut is not None and not self._generation
        return [NOTHING if reach is None else reach, *flat, int(reads)]

    def keep_copy(
        self, group: Group, tracked: Sequence[Any], note: bytes, *, node: int, committed: int
    ) -> None:
        """Keep this worker's slices as they are now, and those of a neighbour on another node.

        All members call this. Raises RuntimeError where one was lost; the copy before this one is
        then kept beside it.
        """
        assert self._cut is not None
        both = copied(group, self._apart(tracked), self._cut, node=node, device=self._device)
        self._copies.append(Copy(committed, self._generation, both, note))
        compare(group, [committed])
        self._copies = self._copies[-1:]

    def _present(self, committed: int) -> list[Have]:
        found = [] if self._cut is None else [Have(committed, self._generation, self._cut)]
        if self._next is not None:
            found.append(Have(committed, self._next[0], self._next[1]))
        return found

    def _fingerprint(self, tracked: Sequence[Any]) -> int:
        told = [(name, spec_of(each).told()[:2]) for name, each in self._tensors().items()]
        return zlib.crc32(repr([told, [type(each).__name__ for each in tracked]]).encode())

    def _tensors(self) -> dict[str, Any]:
        return model_tensors(self.models)

    def _begin(
        self, group: Group, baggage: Baggage, table: Sequence[Sequence[int]], *, source: Place
    ) -> Arrived:
        """All read the checkpoint that one of them has found, once the models are cut."""
        message = None
        if group.rank == source:
            message = {"note": baggage.note, "path": str(baggage.checkpoint)}
        others = [place for place in range(group.size) if place != source]
        message = tell(group, message, source, others)
        self._next, self._reads = None, Path(message["path"])
        note = None if group.rank == source else message["note"]
        return Arrived(note, list(table[source][ROW:]))

    def _read(self, group: Group, tracked: Sequence[Any]) -> None:
        assert self._reads is not None
        kept = Kept(self._reads, group=group.pg)
        for index in range(len(self.models)):
            kept.restore_model(self.models[: index + 1])
        for index, each in enumerate(tracked):
            kept.restore_tracked(self.models, index, each)
        kept.check_all_given(len(self.models), len(tracked))

    def _take(
        self,
        group: Group,
        chosen: Chosen,
        baggage: Baggage,
        arrived: Arrived,
        *,
        source: Place,
        size: int,
    ) -> dict[Cut | None, State]:
        """What this worker has of the chosen state, and the small rest from one who has it."""
        states: dict[Cut | None, State] = {}
        note = baggage.note
        for kept in self._copies:
            if (kept.committed, kept.generation) == (chosen.committed, chosen.generation):
                states.update((cut, state) for cut, state in kept.slices.items())
                note = kept.note
        if group.rank in chosen.cuts and not arrived.again:
            if self._next is not None and self._next[0] == chosen.generation:
                states[self._next[1]] = self._next[2]
            elif self._cut is not None and self._generation == chosen.generation:
                states[self._cut] = apart(
                    self.models, baggage.tracked, whole=self._cut == Cut(0, 1)
                )
            note = baggage.note
        if arrived.again:
            arrived.note, self._cut = (note if states else None), None
        if not any(state is self._next[2] for state in states.values() if self._next):
            self._next = None
        message = None
        if group.rank == source:
            state = next(iter(states.values()))
            told = json.dumps({name: spec.told() for name, spec in state.specs.items()})
            message = {"note": note, "specs": told, "skeletons": state.skeletons}
        others = [place for place in range(size) if place not in chosen.cuts]
        message = tell(group, message, source, others)
        if not states:
            specs = {name: spec_from(told) for name, told in json.loads(message["specs"]).items()}
            states[None] = State(specs, {}, message["skeletons"])
            arrived.note = message["note"]
        return states

    def _apart(self, tracked: Sequence[Any]) -> State:
        return apart(self.models, tracked, whole=self._cut == Cut(0, 1))

    def _exchange(
        self,
        group: Group,
        offer: Offer,
        chosen: Chosen,
        states: dict[Cut | None, State],
        arrived: Arrived,
    ) -> None:
        new = {place: cut_of(place, offer.size, self.shards)[1] for place in range(offer.size)}
        mine, old = new.get(group.rank), chosen.cuts
        had = next(iter(states.values()))
        exchange = Exchange(group, had.specs, old=old, new=new, device=self._device)
        arrived.least = least_bytes(exchange.parts, old, new)
        arrived.moved = exchange.moved
        slices = {cut: state.slices for cut, state in states.items() if cut is not None}
        copies = [id(state) for kept in self._copies for state in kept.slices.values()]
        lent = [cut for cut, state in states.items() if cut is not None and id(state) not in copies]
        room = _Room(had)
        shares = [room.share(cuts, new[place]) for place, cuts in old.items() if place in new]
        keep = bool(self._copies) or mine is None or room.share(old.get(group.rank, ()), mine) >= 1
        if not keep:
            self._cut = self._next = None
        window = max(WINDOW, min(shares, default=1.0) * room.state.of(Cut(0, 1)))
        got = exchange.run(slices, keep=keep, lent=lent, window=window)
        if mine is not None:
            self._next = offer.number, mine, State(had.specs, got, copy.deepcopy(had.skeletons))
        self._size = sum(part.rows * part.row for part in exchange.parts)
        if not exchange.agree(compare(group, exchange.sums)):
            self._next = None
            raise RuntimeError("connection to a worker whose slices came out wrong is given up")
        self._rolled_back = bool(arrived.again)

    def _settle(self, state: State, tracked: Sequence[Any]) -> None:
        """Give optimizers and other objects their state."""
        names = parameter_names(self.models)
        for index, (each, skeleton) in enumerate(zip(tracked, state.skeletons, strict=True)):
            if not is_optimizer(each):
                if self._cut is None or self._generation == 0 or self._rolled_back:
                    each.load_state_dict(skeleton["state"])
                continue
            optimizer_room(each, skeleton, names, _places(state.slices, f"tracked.{index}."))
        buffers = {
            name: each for name, each in self._tensors().items() if state.specs[name].dim is None
        }
        for name, each in buffers.items():
            with torch.no_grad():
                local(each).copy_(state.slices[name])


def _places(slices: dict[str, Any], prefix: str) -> Callable[[str, Spec, Any], Any]:
    return lambda name, spec, like: placed(slices[prefix + name], spec, like)


class _Room:
    """Where what is old and what is new of a state fit beside each other."""

    def __init__(self, state: State) -> None:
        self.state, self._models = state.sizes(), state.sizes("models.")

    def share(self, old: Sequence[Cut], new: Cut) -> float:
        """How much of the state may be under way at a time, so that both fit into what training
        takes; from 1 on all of it, and nothing is given up.

        While a change goes on there are no gradients, so that their memory is free for it.
        """
        had, wanted = sum(self.state.of(cut) for cut in old), self.state.of(new)
        most = max(self.state.of(cut) + self._models.of(cut) for cut in (*old, new))
        room = (1 + SPARE) * most
        if had + wanted <= room:
            return 1.0
        # At first all that is old is there, and at last all that is new, with the window beside it.
        return max(0.0, min((room - had) / max(1, wanted), (room - wanted) / max(1, had)))


def _held(row: Sequence[int]) -> Held:
    have = [
        Have(row[at], row[at + 1], Cut(row[at + 2], row[at + 3]), present=bool(row[at + 4]))
        for at in range(1, 1 + 5 * HAVES, 5)
        if row[at] != NOTHING
    ]
    return Held(have, None if row[0] == NOTHING else row[0])


def _has(held: Held, chosen: Chosen) -> bool:
    """Whether a worker has its part of the chosen state without doing anything for it."""
    return any(
        (each.committed, each.generation) == (chosen.committed, chosen.generation)
        for each in held.have
    )
