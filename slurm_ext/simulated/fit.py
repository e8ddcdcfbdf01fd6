"""Which nodes a job can have, and how much of each, as Slurm's select plugin would say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ones.slurm_ext.simulated.job import Need, Wants, need_of
from ones.slurm_ext.simulated.node import Count, Room


def fit(
    wants: Wants, rooms: Mapping[str, Room], *, memory_per_cpu: int = 0
) -> dict[str, Count] | None:
    """Node -> what the job gets of it, in the order of `rooms`; None where it does not fit."""
    need = need_of(wants)
    least, most = max(wants.nodes[0], 1), max(wants.nodes)
    named = wants.required[:most]  # Slurm takes the first of too many
    if sum(room.gpus for room in rooms.values()) < need.least_gpus:
        return None
    usable = {name: room for name, room in rooms.items() if need.gpu_type in ("", room.gpu_type)}
    if any(name not in usable for name in named):
        return None
    least = max(least, len(named))
    if len(named) == most:  # there is nothing to choose
        usable = {name: room for name, room in usable.items() if name in named}
    ask = _Ask(wants, need, memory_per_cpu, named)
    if need.per_node or need.shards or not need.least_gpus:
        counts = range(min(most, len(usable)), least - 1, -1)
        found = (ask.even(usable, nodes) for nodes in counts)
    else:
        found = (ask.uneven(usable, nodes) for nodes in range(least, most + 1))
    chosen = next((each for each in found if each is not None), None)
    return chosen and {name: chosen[name] for name in rooms if name in chosen}


@dataclass(frozen=True, slots=True)
class _Ask:
    wants: Wants
    need: Need
    memory_per_cpu: int
    required: tuple[str, ...]

    def even(self, rooms: Mapping[str, Room], nodes: int) -> dict[str, Count] | None:
        """The same of each node: the first that have it."""
        need = self.need
        if need.gpus and need.per_node and need.gpus != need.per_node * nodes:
            return None
        if need.per_task and need.per_node and need.per_task * need.tasks != need.per_node * nodes:
            return None
        count = self._count(need.per_node, self._tasks(need.per_node, nodes))
        fitting = [name for name, room in rooms.items() if _holds(room, count)]
        chosen = self._first(fitting, nodes)
        return None if chosen is None else dict.fromkeys(chosen, count)

    def uneven(self, rooms: Mapping[str, Room], nodes: int) -> dict[str, Count] | None:
        """As many as there are on one node after the other, but one on each at least."""
        unit = self.need.per_task or 1
        units = self.need.tasks if self.need.per_task else self.need.gpus
        if nodes > units:
            return None
        most: dict[str, int] = {}
        full = 0  # nodes that could have all of it, before which no other is taken
        for name, room in rooms.items():
            if full == nodes and not self.required:
                break
            most[name] = self._most(room, unit, units, nodes)
            full += most[name] == units
        free = sorted((name for name in most if most[name]), key=lambda name: -most[name])
        chosen = self._first(free, nodes)
        if chosen is None or sum(most[name] for name in chosen) < units:
            return None
        found, left = {}, units
        for at, name in enumerate(name for name in rooms if name in chosen):
            here = min(most[name], left - (nodes - 1 - at))
            left -= here
            found[name] = self._count(here * unit, self._tasks(here * unit, nodes))
        return found if left == 0 else None

    def _first(self, fitting: list[str], nodes: int) -> list[str] | None:
        required = self.required
        if any(name not in fitting for name in required):
            return None
        others = [name for name in fitting if name not in required]
        chosen = [*required, *others][:nodes]
        return chosen if len(chosen) == nodes else None

    def _most(self, room: Room, unit: int, units: int, nodes: int) -> int:
        for here in range(min(room.gpus // unit, units), 0, -1):
            if _holds(room, self._count(here * unit, self._tasks(here * unit, nodes))):
                return here
        return 0

    def _tasks(self, gpus: int, nodes: int) -> int:
        if self.wants.tasks_per_node:
            return self.wants.tasks_per_node
        if self.need.per_task and gpus:
            return gpus // self.need.per_task
        return ceil(self.need.tasks / nodes) or 1

    def _count(self, gpus: int, tasks: int) -> Count:
        wants = self.wants
        cpus = max(tasks * wants.cpus_per_task, wants.cpus_per_node, gpus * wants.cpus_per_gpu, 1)
        memory = wants.memory
        if memory is None:
            memory = gpus * wants.memory_per_gpu or cpus * self.memory_per_cpu
        return Count(gpus, self.need.shards, cpus, memory, tasks)


def _holds(room: Room, count: Count) -> bool:
    return (
        room.gpus >= count.gpus
        and room.shards >= count.shards
        and room.cpus >= count.cpus
        and room.memory >= count.memory
    )
