"""Who runs in the coming round, and on which nodes.

Jobs are chosen in the order of their bids as long as their type has GPUs. Those chosen are placed
largest gang first on as few nodes as possible, and who stays on its type keeps its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ones.policies.gavel.rounds_market import Claimant, Market
from ones.policies.model import JobId, Placement
from ones.policies.peers import emptiest_first
from ones.policies.placement import Room

NEARLY = 0.9  # of its speed, from where a gang is rather spread than others are moved for it
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Bid:
    """A claimant on a column, and its place in the order: the lowest rank comes first."""

    one: Claimant
    column: str
    kind: str
    rank: tuple[float, ...]
    share: float  # that it is due there; 0: it would take what is left
    owed: bool = True  # whether it is less than a round ahead of that

    @property
    def spread(self) -> bool:
        return self.column != self.kind

    @property
    def renews(self) -> bool:
        """Whether the job would go on with the nodes it has."""
        return self.one.column == self.column and self.one.lease is not None


@dataclass(slots=True)
class Choice:
    """Who gets what; jobs for which nodes are kept free get those as soon as they can have all."""

    placed: dict[JobId, tuple[Placement, Bid]] = field(default_factory=dict)
    kept: dict[JobId, tuple[str, ...]] = field(default_factory=dict)
    behind: dict[JobId, tuple[float, ...]] = field(default_factory=dict)  # their ranks
    failed: Bid | None = None  # the first that was chosen and found no nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a round's choice is made on."""

    market: Market
    room: Room  # what those who can't be moved leave
    held: Sequence[Placement]  # by those
    kept: Mapping[JobId, Collection[str]]  # the nodes that were kept for a job last time
    lapsed: Collection[JobId] = ()  # jobs for which none are kept now


def choose(bids: Iterable[Bid], ground: Ground) -> Choice:
    """One round.

    A job that finds no nodes for its gang though it comes before others is placed before them.
    Where only those that can't be moved are in its way, nodes are kept for it.
    """
    order = sorted(bids, key=lambda bid: bid.rank)
    first: frozenset[JobId] = frozenset()
    waits: frozenset[JobId] = frozenset()
    best = choice = _attempt(order, ground, first, waits)
    for _ in range(ATTEMPTS):
        failed = choice.failed
        if failed is None or failed.one.job.id in waits:
            break
        if failed.one.job.id in first:
            waits |= {failed.one.job.id}
        else:
            first |= {failed.one.job.id}
        choice = _attempt(order, ground, first, waits)
        if choice.failed is None or (best.failed and choice.failed.rank >= best.failed.rank):
            best = choice
    return best


def _attempt(
    order: Sequence[Bid], ground: Ground, first: Collection[JobId], waits: Collection[JobId]
) -> Choice:
    """A choice in which the jobs of `first` are placed first, and those of `waits` wait."""
    market, room, choice = ground.market, ground.room.copy(), Choice()
    free = market.by_kind(room.free)
    blocked = Counter[str]()
    for placement in ground.held:
        blocked.update(dict(placement.gpus_on))
    in_the_way = market.by_kind(blocked)
    chosen: dict[JobId, Bid] = {}
    for bid in order:
        job, kind, size = bid.one.job, bid.kind, bid.one.size
        if job.id in chosen:
            continue
        if free[kind] >= size and job.id not in waits:
            chosen[job.id] = bid
            free[kind] -= size
            choice.kept.pop(job.id, None)
        elif (
            size > 1
            and in_the_way[kind]
            and free[kind] + in_the_way[kind] >= size
            and job.id not in ground.lapsed
            and job.id not in choice.kept
        ):
            before = ground.kept.get(job.id, ())
            nodes = _to_keep(bid, market, chosen.values(), blocked, before)
            if nodes:
                choice.kept[job.id], choice.behind[job.id] = nodes, bid.rank
    _make_way(order, chosen, free)
    _place(choice, chosen, room, first)
    _fill(choice, order, room, market)
    return choice


def _make_way(order: Sequence[Bid], chosen: dict[JobId, Bid], free: Counter[str]) -> None:
    """Who is owed a type that others hold gets it, if one of those is due another type as well.

    That one goes where GPUs are free, or in use by somebody who only takes what is left.
    """
    elsewhere: dict[JobId, list[Bid]] = {}
    for bid in order:
        if bid.share > 0:
            elsewhere.setdefault(bid.one.job.id, []).append(bid)
    changed = True
    while changed and (any(free.values()) or any(bid.share <= 0 for bid in chosen.values())):
        changed = False
        for bid in order:
            now = chosen.get(bid.one.job.id)
            if bid.owed and bid.share > 0 and (now is None or now.share <= 0):
                changed |= _exchange(bid, now, chosen, free, elsewhere)


def _exchange(
    bid: Bid,
    now: Bid | None,
    chosen: dict[JobId, Bid],
    free: Counter[str],
    elsewhere: Mapping[JobId, Sequence[Bid]],
) -> bool:
    """Give `bid` its type, if one that holds it can go elsewhere; `now` is what its job has now."""
    size = bid.one.size
    holders = (
        (holder, other)
        for holder in chosen.values()
        if holder is not now
        and holder.kind == bid.kind
        and free[bid.kind] + holder.one.size >= size
        for other in elsewhere.get(holder.one.job.id, ())
        if other.kind != bid.kind
    )
    for holder, other in sorted(holders, key=lambda pair: pair[1].rank):
        spare = free[other.kind] + (now.one.size if now and now.kind == other.kind else 0)
        gone = None
        if spare < other.one.size:
            takers = [
                taker
                for taker in chosen.values()
                if taker.share <= 0
                and taker.kind == other.kind
                and taker is not now
                and taker.rank > bid.rank
                and spare + taker.one.size >= other.one.size
            ]
            if not takers:
                continue
            gone = max(takers, key=lambda taker: taker.rank)
        for loser in (now, gone, holder):
            if loser is not None:
                free[loser.kind] += loser.one.size
                del chosen[loser.one.job.id]
        for winner in (bid, other):
            free[winner.kind] -= winner.one.size
            chosen[winner.one.job.id] = winner
        return True
    return False


def _to_keep(
    bid: Bid,
    market: Market,
    ahead: Iterable[Bid],
    blocked: Mapping[str, int],
    before: Collection[str],
) -> tuple[str, ...]:
    """The nodes that the job is nearest to getting: the same as last time, else the freest."""
    able = dict(market.free)
    for other in ahead:
        if other.renews and other.one.lease is not None:
            for name, gpus in other.one.lease.gpus_on:
                able[name] = able.get(name, 0) - gpus
    job, size = bid.one.job, bid.one.size
    able |= {name: min(able[name], most) for name, most in job.crowded.items() if name in able}
    hosts = [
        node.name
        for node in market.nodes
        if node.gpu_type == bid.kind and node.name in job.nodes and able[node.name] > 0
    ]
    hosts.sort(key=lambda name: (name not in before, blocked.get(name, 0), name))
    if job.uneven:
        found: list[str] = []
        while hosts and sum(able[name] for name in found) < size:
            found.append(hosts.pop(0))
        return tuple(sorted(found)) if sum(able[name] for name in found) >= size else ()
    for shape in sorted(shape for shape in job.shapes if shape.gpus == size):
        wide = [name for name in hosts if able[name] >= shape.gpus_per_node]
        if len(wide) >= shape.nodes:
            return tuple(sorted(wide[: shape.nodes]))
    return ()


def _place(
    choice: Choice, chosen: Mapping[JobId, Bid], room: Room, first: Collection[JobId]
) -> None:
    """Nodes for those chosen. Who renews keeps its nodes unless a larger gang finds none else."""
    order = sorted(
        chosen.values(),
        key=lambda bid: (bid.one.job.id not in first, -bid.one.size, not bid.renews, bid.rank),
    )
    spare = _without_leases(room, order)
    for at, bid in enumerate(order):
        lease = bid.one.lease
        if bid.renews and lease is not None and room.fits(lease):
            room.take(lease)
            choice.placed[bid.one.job.id] = lease, bid
            continue
        allowed = _allowed(choice, bid)
        placement = _find(bid, spare, allowed, tight=True)
        rate = bid.one.speeds.spread.get(bid.kind, 0.0)
        if placement is None and rate >= NEARLY * bid.one.speeds.together[bid.kind]:
            placement = _find(bid, spare, allowed)
        if placement is not None:
            spare.take(placement)
            room.take(placement)
        else:
            placement = _find(bid, room, allowed, tight=True) or _find(bid, spare, allowed)
            placement = placement or _find(bid, room, allowed)
            if placement is None and lease is not None and room.fits(lease):
                placement = lease
            if placement is not None:
                room.take(placement)
                spare = _without_leases(room, order[at + 1 :])
        if placement is not None:
            choice.placed[bid.one.job.id] = placement, bid
        elif choice.failed is None or bid.rank < choice.failed.rank:
            choice.failed = bid


def _fill(choice: Choice, order: Sequence[Bid], room: Room, market: Market) -> None:
    """What is left goes to whoever comes next in the order and finds nodes."""
    free = market.by_kind(room.free)
    for bid in order:
        job = bid.one.job
        if free[bid.kind] < bid.one.size or job.id in choice.placed:
            continue
        lease = bid.one.lease
        if bid.renews and lease is not None and room.fits(lease):
            placement: Placement | None = lease
        else:
            placement = _find(bid, room, _allowed(choice, bid))
        if placement is not None:
            room.take(placement)
            free[bid.kind] -= bid.one.size
            choice.placed[job.id] = placement, bid
            choice.kept.pop(job.id, None)


def _without_leases(room: Room, coming: Iterable[Bid]) -> Room:
    spare = room.copy()
    for bid in coming:
        lease = bid.one.lease
        if bid.renews and lease is not None and spare.fits(lease):
            spare.take(lease)
    return spare


def _allowed(choice: Choice, bid: Bid) -> frozenset[str]:
    """Where the job may be put: not where nodes are kept for somebody before it."""
    allowed = bid.one.job.nodes
    for id_, nodes in choice.kept.items():
        if id_ != bid.one.job.id and choice.behind[id_] < bid.rank:
            allowed = allowed.difference(nodes)
    return allowed


def _find(
    bid: Bid, room: Room, allowed: frozenset[str], *, tight: bool = False
) -> Placement | None:
    """Nodes of the bid's type; as few as hold the gang where `tight`, else the fewest there are."""
    one, kind = bid.one, bid.kind
    job, fewest = one.job, one.forms[kind].fewest
    spreads = kind in one.speeds.spread
    if tight and bid.spread:
        return None
    there = job if allowed is job.nodes else replace(job, nodes=allowed)
    for shape in sorted(shape for shape in job.shapes if shape.gpus == one.size):
        if shape.nodes > fewest and (tight or not spreads):
            break
        if shape.nodes > fewest or not bid.spread:
            placement = room.place_job(there, (shape,), gpu_type=kind)
            if placement is not None:
                return placement
    if not job.uneven:
        return None
    placement = emptiest_first(room, there, one.size, kind)
    if placement is None or (len(placement.gpus_on) > fewest and (tight or not spreads)):
        return None
    return placement
