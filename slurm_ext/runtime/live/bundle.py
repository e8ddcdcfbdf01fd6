"""The process groups of one generation of a sharded job, made and ended together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ones.slurm_ext.runtime.live import group as groups
from ones.slurm_ext.runtime.live.reshard import Cut
from ones.slurm_ext.runtime.live.terms import Offer
from ones.slurm_ext.runtime.sharding import copies


@dataclass(slots=True)
class Bundle:
    """Those groups in which this process is."""

    involved: groups.Group  # all that hand on or get slices
    main: groups.Group | None = None  # all that train; None: this one leaves
    slices: groups.Group | None = None  # those who share one copy of the model
    across: groups.Group | None = None  # those who have the same slices of other copies

    def cut(self) -> None:
        for each in self._all:
            each.cut()

    @property
    def is_cut(self) -> bool:
        return any(each.cut_at is not None for each in self._all)

    def drop(self) -> None:
        for each in self._all:
            if each.pg is not None:
                each.drop()

    def only_train(self) -> None:
        """The slices have been handed on."""
        if self.involved is not self.main:
            self.involved.drop()

    @property
    def _all(self) -> list[groups.Group]:
        found: list[groups.Group] = []
        for each in (self.involved, self.main, self.slices, self.across):
            if each is not None and each not in found:
                found.append(each)
        return found


def cut_of(rank: int, size: int, shards: int | None) -> tuple[int, Cut]:
    """Which copy, and which slice of it, the worker of this rank has."""
    _, of = copies(size, shards)
    copy, index = divmod(rank, of)
    return copy, Cut(index, of)


def make(store: Any, offer: Offer, *, name: str, device: Any, shards: int | None) -> Bundle:
    """The groups of an offer; may run in a thread beside training. Raises GroupFault."""
    bundle = Bundle(
        groups.make(store, name=f"{name}-all", rank=offer.place, size=offer.involved, device=device)
    )
    if offer.rank is None:
        return bundle
    try:
        _finish(bundle, store, offer, name=name, device=device, shards=shards)
    except groups.GroupFault:
        bundle.drop()
        raise
    return bundle


def _finish(
    bundle: Bundle, store: Any, offer: Offer, *, name: str, device: Any, shards: int | None
) -> None:
    assert offer.rank is not None
    bundle.main = bundle.involved
    if offer.involved != offer.size:
        bundle.main = groups.make(store, name=name, rank=offer.rank, size=offer.size, device=device)
    copy, cut = cut_of(offer.rank, offer.size, shards)
    if cut.of == offer.size:
        bundle.slices = bundle.main
        return
    mine = [copy * cut.of + index for index in range(cut.of)]
    same = list(range(cut.index, offer.size, cut.of))
    bundle.slices = groups.make(
        store, name=f"{name}-s{copy}", rank=cut.index, size=cut.of, device=device, ranks=mine
    )
    bundle.across = groups.make(
        store, name=f"{name}-c{cut.index}", rank=copy, size=len(same), device=device, ranks=same
    )
