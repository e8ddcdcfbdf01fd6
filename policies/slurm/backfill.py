"""Conservative backfill: every job that is looked at reserves nodes, in the order of priority.

Slurm reserves whole nodes for a job that is to start later, whatever it needs of them, and rounds
such a reservation outwards to `bf_resolution`. A lower job starts now where by its time limit it is
gone from all reserved nodes before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, inf

from ones.policies.model import Seconds, Shape
from ones.policies.slurm.floor import Floor, Free, Nodes
from ones.policies.slurm.settings import DAY, Reservation, SlurmSettings

WINDOW: Seconds = 30.0  # of ends of running jobs that are first looked at as one
UNLIMITED: Seconds = 365 * DAY  # how long a job without a time limit is taken to run
MOST_TRIES = 10_000  # of one job, at other times


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that a running job holds until, by its time limit, it ends."""

    end: Seconds
    gpus_on: tuple[tuple[int, int], ...]  # node by number, GPUs


@dataclass(frozen=True, slots=True)
class Form:
    """What a waiting job asks of the cluster."""

    shapes: tuple[Shape, ...]  # the first that fits is taken
    nodes: Nodes  # where it may run
    limit: Seconds
    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Where and when a job is to start."""

    at: Seconds
    shape: Shape
    nodes: Nodes


@dataclass(frozen=True, slots=True)
class Fences:
    """Reservations by administrators, as far as other jobs are concerned."""

    floor: Floor
    reservations: tuple[Reservation, ...]

    def open_to(self, form: Form, begin: Seconds, end: Seconds) -> tuple[Nodes, Seconds | None]:
        """The nodes that the job may have between these times, and when there may be more."""
        able, later = form.nodes, None
        for one in self.reservations:
            nodes = self.floor.named(one.nodes)
            if one == form.reservation:
                able &= nodes
            elif one.start < end and begin < one.end:
                if able & nodes and one.end < inf:
                    later = one.end if later is None else min(later, one.end)
                able &= ~nodes
        return able, later


@dataclass(slots=True)
class Releases:
    """When running jobs give back what they hold."""

    floor: Floor
    free: Free  # now
    held: list[Held]  # by end
    _groups: dict[Nodes, list[tuple[Seconds, Free]]] = field(default_factory=dict)

    @classmethod
    def of(cls, floor: Floor, free: Free, held: Iterable[Held]) -> Releases:
        return cls(floor, free, sorted(held, key=lambda one: one.end))

    def add(self, held: Held) -> None:
        """A job that has just been started; `free` already lacks what it holds."""
        self.held = sorted([*self.held, held], key=lambda one: one.end)
        self._groups.clear()

    def first(self, form: Form, able: Nodes, now: Seconds) -> Start | None:
        """The earliest start on these nodes if nobody else comes; None: there is none."""
        found = self.free.fit(self.floor, able, form.shapes)
        if found is not None:
            return Start(now, *found)
        groups = self._by_end(able)
        least, most = 0, len(groups)
        while least < most:  # room only grows, so that the first that has enough can be bisected
            middle = (least + most) // 2
            if groups[middle][1].fit(self.floor, able, form.shapes) is None:
                least = middle + 1
            else:
                most = middle
        if least == len(groups):
            return None
        at, free = groups[least]
        found = free.fit(self.floor, able, form.shapes)
        return None if found is None else Start(at, *found)

    def _by_end(self, able: Nodes) -> list[tuple[Seconds, Free]]:
        """What is free of these nodes once one group of running jobs after the other has ended.

        Groups as Slurm forms them: by windows that begin at a multiple of 30 s after the first
        end and double with each group. The next job of the list is held against the window
        wherever it runs; is it elsewhere, the one after it here belongs to the group whenever it
        ends.
        """
        groups = self._groups.get(able)
        if groups is not None:
            return groups
        groups = self._groups[able] = []
        free, jobs, at = self.free.copy(), self.held, 0
        begin, window = -inf, WINDOW
        while at < len(jobs):
            last = -inf
            while at < len(jobs):
                one = jobs[at]
                at += 1
                if not any(able >> node & 1 for node, _ in one.gpus_on):
                    continue
                if begin == -inf:
                    begin = WINDOW * (floor(one.end / WINDOW) + 1)
                last = one.end
                free.give(one.gpus_on)
                if at < len(jobs) and jobs[at].end > begin + window:
                    break
            if last == -inf:
                break
            groups.append((last, free.copy()))
            window *= 2
            while at < len(jobs) and jobs[at].end > begin + window:
                window *= 2
        return groups


@dataclass(slots=True)
class _Slot:
    begin: Seconds
    end: Seconds
    free: Nodes  # which nobody has reserved


@dataclass(slots=True)
class Backfill:
    """One cycle. Jobs are to be brought in the order of their priority."""

    settings: SlurmSettings
    now: Seconds
    releases: Releases
    fences: Fences
    _slots: list[_Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        end = self.now + self.settings.bf_window
        self._slots = [_Slot(self.now, end, self.releases.floor.usable)]

    def next_start(self, form: Form) -> Start | None:
        """When the job can start beside the running jobs and all reservations.

        None: not within the window.
        """
        now, later = self.now, self.now
        if form.reservation is not None:
            later = max(later, form.reservation.start)
        for _ in range(MOST_TRIES):
            begin = later
            if begin > now + self.settings.bf_window:
                return None
            end = begin + form.limit
            able, reopened = self.fences.open_to(form, begin, end)
            able, next_try = self._unreserved(able, begin, end)
            if reopened is not None and (next_try is None or reopened < next_try):
                next_try = reopened + 1.0
            found = self.releases.first(form, able, now)
            if found is None:
                if next_try is None:
                    return None
                later = next_try
                continue
            start = Start(max(begin, found.at), found.shape, found.nodes)
            if start.at > now:
                if self._overlaps(start.nodes, *self._slot_of(start.at, form.limit)):
                    step = self.settings.bf_resolution if start.at == begin else 0.0
                    later = start.at + step
                    continue
                if next_try is not None and start.at > next_try:
                    later = next_try
                    continue
            return start
        return None

    def reserve(self, form: Form, start: Start) -> None:
        """Keep whole nodes for a job that starts later; beyond the window nothing is kept."""
        if start.at > self.now + self.settings.bf_window:
            return
        begin, end = self._slot_of(start.at, form.limit)
        slots: list[_Slot] = []
        for slot in self._slots:
            inner = [time for time in (begin, end) if slot.begin < time < slot.end]
            cuts = sorted({slot.begin, *inner, slot.end})
            for left, right in pairwise(cuts):
                inside = begin <= left and right <= end
                slots.append(_Slot(left, right, slot.free & ~start.nodes if inside else slot.free))
        self._slots = slots

    def _unreserved(
        self, able: Nodes, begin: Seconds, end: Seconds
    ) -> tuple[Nodes, Seconds | None]:
        """The nodes that are unreserved all the time, and when there will be others."""
        every, later = able, None
        slots = self._slots
        for at, slot in enumerate(slots):
            last = at + 1 == len(slots)
            if slot.end > begin and not last and later is None:
                others = every & slots[at + 1].free & ~(able & slot.free)
                later = slot.end if others else None
            if slot.end <= begin:
                continue
            if slot.begin > end:
                if later is None and at + 2 < len(slots):
                    later = slots[at + 1].end
                break
            able &= slot.free
        return able, later

    def _overlaps(self, nodes: Nodes, begin: Seconds, end: Seconds) -> bool:
        return any(
            nodes & ~slot.free for slot in self._slots if slot.begin < end and begin < slot.end
        )

    def _slot_of(self, at: Seconds, limit: Seconds) -> tuple[Seconds, Seconds]:
        step = self.settings.bf_resolution
        return step * floor(at / step), step * ceil((at + limit) / step)
