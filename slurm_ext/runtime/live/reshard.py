"""Which slices of a sharded state go from whom to whom, when its workers change.

A state is a list of parts (tensors) of so many rows each. A worker's *cut* says which slice of
every part it has: slice `index` of `of`, as FSDP2 cuts. Several workers may have the same one.
Workers are numbered by their places among all who take part, those that leave included. Nothing
here knows a tensor or a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Place = int
Rows = tuple[int, int]  # from, and up to


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """A slice of every part: one of `of` slices, which differ by little in size."""

    index: int
    of: int

    def rows(self, rows: int) -> Rows:
        """Which of so many rows it has. The last slices may be smaller, or empty."""
        step = -(-rows // self.of)
        begin = min(rows, self.index * step)
        return begin, min(rows, begin + step)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the state."""

    rows: int
    row: int  # bytes of a row
    whole: bool = False  # every worker has all of it


@dataclass(frozen=True, slots=True)
class Move:
    """Rows of a part that one worker sends to another."""

    part: int
    source: Place
    target: Place
    begin: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Have:
    """A slice of a state that one worker has."""

    committed: int  # samples after which it was so
    generation: int  # of the workers over which it is cut
    cut: Cut
    present: bool = True  # the one that it trains with, and no copy of an earlier one


@dataclass(frozen=True, slots=True)
class Held:
    """What one worker says that it has."""

    have: Sequence[Have] = ()
    reach: int | None = None  # samples after a step that it could still finish by itself

    def at(self, committed: int, generation: int, *, copies: bool = True) -> tuple[Cut, ...]:
        """Its slices of that state; without `copies` only those that it trains with."""
        found = {
            each.cut
            for each in self.have
            if each.generation == generation
            and (copies or each.present)
            and (each.committed == committed or (each.present and self.reach == committed))
        }
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The state that all go on from."""

    committed: int
    generation: int
    cuts: Mapping[Place, tuple[Cut, ...]]  # of those who have a part of it, or can get there
    copied: bool = False  # some of it is only in copies of an earlier state


def choose(held: Sequence[Held]) -> Chosen | None:
    """The latest state of which all slices are there; None where there is none.

    A worker that has lost its group in the middle of a change may have the slices of two
    generations, one that lost it at the end of a step may have the step still to do, and all may
    have copies of an earlier state, their own slice and a neighbour's.
    """
    states = {(each.committed, each.generation) for one in held for each in one.have}
    for committed, generation in sorted(states, reverse=True):
        slices = [each.at(committed, generation) for each in held]
        cuts = {place: found for place, found in enumerate(slices) if found}
        if _is_whole([cut for found in cuts.values() for cut in found]):
            trained = [each.at(committed, generation, copies=False) for each in held]
            copied = not _is_whole([cut for found in trained for cut in found])
            return Chosen(committed, generation, cuts, copied=copied)
    return None


def _is_whole(cuts: Sequence[Cut]) -> bool:
    slices = {each.of for each in cuts}
    return len(slices) == 1 and {each.index for each in cuts} == set(range(slices.pop()))


def neighbours(nodes: Sequence[int]) -> list[int]:
    """Whose slice each worker keeps a second time, by rank; on another node where that can be.

    `nodes` says on which node each is. Everybody keeps one, and everybody's is kept.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    most = max(Counter(nodes).values())
    shift = most % len(nodes) or len(nodes) // 2 or 0
    kept = [0] * len(nodes)
    for at, rank in enumerate(order):
        kept[rank] = order[(at + shift) % len(order)]
    return kept


def moves(
    parts: Sequence[Part], old: Mapping[Place, Sequence[Cut]], new: Mapping[Place, Cut]
) -> Iterator[Move]:
    """What has to be sent so that each worker of `new` has its slices; part by part.

    Nobody is sent what he has. Where several have the same rows, each sends about as much as any.
    """
    load = dict.fromkeys(old, 0)
    holders: dict[Cut, list[Place]] = {}
    for place, cuts in sorted(old.items()):
        for cut in cuts:
            holders.setdefault(cut, []).append(place)
    pieces: dict[int, list[tuple[Place, Rows, list[Place]]]] = {}  # by the number of rows
    for number, part in enumerate(parts):
        if part.whole:
            for target in sorted(set(new) - set(old)):
                source = _least(list(old), load, part.rows * part.row)
                yield Move(number, source, target, 0, part.rows)
            continue
        if part.rows not in pieces:
            pieces[part.rows] = list(_pieces(part, holders, old, new))
        for target, (begin, end), places in pieces[part.rows]:
            source = _least(places, load, (end - begin) * part.row)
            yield Move(number, source, target, begin, end)


def _pieces(
    part: Part,
    holders: Mapping[Cut, list[Place]],
    old: Mapping[Place, Sequence[Cut]],
    new: Mapping[Place, Cut],
) -> Iterator[tuple[Place, Rows, list[Place]]]:
    """Which rows of a part each worker lacks that another slice has, and who has that."""
    slices = [(cut.rows(part.rows), places) for cut, places in holders.items()]
    for target, cut in sorted(new.items()):
        for lacking in _lacking(part, cut, old.get(target, ())):
            for rows, places in slices:
                wanted = common(lacking, rows)
                if wanted is not None:
                    yield target, wanted, places


def least_bytes(
    parts: Sequence[Part], old: Mapping[Place, Sequence[Cut]], new: Mapping[Place, Cut]
) -> int:
    """The bytes that any change from these slices to those must send: what workers lack."""
    newcomers = len(set(new) - set(old))
    rows: dict[int, int] = {}  # that all workers together lack of a part of so many
    for part in parts:
        if not part.whole and part.rows not in rows:
            lacking = [_lacking(part, cut, old.get(place, ())) for place, cut in new.items()]
            rows[part.rows] = sum(end - begin for each in lacking for begin, end in each)
    return sum(
        part.row * (newcomers * part.rows if part.whole else rows[part.rows]) for part in parts
    )


def _lacking(part: Part, cut: Cut, had: Sequence[Cut]) -> list[Rows]:
    """The rows of a new slice that are in none of the old ones."""
    lacking = [cut.rows(part.rows)]
    for each in had:
        lacking = [piece for rows in lacking for piece in _without(rows, each.rows(part.rows))]
    return [(begin, end) for begin, end in lacking if begin < end]


def _least(places: Sequence[Place], load: dict[Place, int], size: int) -> Place:
    """Who of these has sent least so far, and now sends so much more."""
    source = min(places, key=lambda place: (load[place], place))
    load[source] += size
    return source


def _without(rows: Rows, had: Rows) -> list[Rows]:
    (begin, end), (first, last) = rows, had
    if first >= last:
        return [rows] if begin < end else []
    pieces = [(begin, min(end, first)), (max(begin, last), end)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def common(one: Rows, other: Rows) -> Rows | None:
    """The rows that are in both; None where there are none."""
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    return (begin, end) if begin < end else None
