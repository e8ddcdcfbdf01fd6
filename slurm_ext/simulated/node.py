"""A node of the simulated Slurm: who has which of its GPUs, shards, CPUs and memory."""

from __future__ import annotations

from dataclasses import dataclass

from ones.slurm_ext.simulated.job import Part
from ones.slurm_ext.simulated.settings import NodeSpec
from ones.slurm_ext.snapshot import NodeRecord


@dataclass(slots=True)
class Room:
    """What is free on a node, at some time."""

    gpu_type: str
    gpus: int
    shards: int  # of a GPU of which some are taken, or else of a free one
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class Count:
    """How much a job is given of a node."""

    gpus: int
    shards: int
    cpus: int
    memory: int
    tasks: int = 1


class Node:
    """One node. Whoever changes it tells the world so."""

    def __init__(self, spec: NodeSpec, partitions: frozenset[str]) -> None:
        self.spec = spec
        self.partitions = partitions
        self.whole: list[int] = [0] * spec.gpus  # the job that has the GPU; 0: none
        self.shards: list[dict[int, int]] = [{} for _ in range(spec.gpus)]  # job -> shards of it
        self.cpus = spec.cpus  # free
        self.memory = spec.memory
        self.jobs: set[int] = set()
        self.up = True  # as slurmctld believes
        self.answers = True  # whether its slurmd does, in truth
        self.drained = False
        self.reason = ""
        self.reserved: frozenset[str] = frozenset()  # states that reservations give it
        self._record: NodeRecord | None = None
        self._room: Room | None = None

    @property
    def usable(self) -> bool:
        """Whether Slurm starts jobs on it."""
        return self.up and not self.drained

    def forget_record(self) -> None:
        self._record = None

    def room(self) -> Room:
        """What is free now; nobody is to change it."""
        if self._room is None:
            self._room = self._what_is_free()
        return self._room

    def _what_is_free(self) -> Room:
        free = sum(1 for index in range(self.spec.gpus) if self._free(index))
        index = self._for_shards(1)
        shards = 0 if index is None else self._shards_left(index)
        if free:
            shards = max(shards, self.spec.shards_per_gpu)
        return Room(self.spec.gpu_type, free, shards, self.cpus, self.memory)

    def take(self, job: int, count: Count) -> Part:
        """Give the job its part: the first GPUs that are free, the first that is taken in part."""
        gpus = tuple(index for index in range(self.spec.gpus) if self._free(index))[: count.gpus]
        shards: tuple[tuple[int, int], ...] = ()
        if len(gpus) < count.gpus or count.cpus > self.cpus or count.memory > self.memory:
            raise AssertionError(f"{self.spec.name} has no room for job {job}")
        for index in gpus:
            self.whole[index] = job
        if count.shards:
            place = self._for_shards(count.shards)
            assert place is not None, f"{self.spec.name} has no shards for job {job}"
            shards = ((place, count.shards),)
        part = Part(gpus, shards, count.cpus, count.memory, count.tasks)
        self.put(job, part)
        return part

    def put(self, job: int, part: Part) -> None:
        """Give the job this very part, which is free."""
        for index in part.gpus:
            self.whole[index] = job
        for index, shards in part.shards:
            self.shards[index][job] = shards
        self.cpus -= part.cpus
        self.memory -= part.memory
        self._room = None
        self.jobs.add(job)

    def clear(self) -> None:
        """Nobody has anything of it."""
        self.whole = [0] * self.spec.gpus
        self.shards = [{} for _ in range(self.spec.gpus)]
        self.cpus, self.memory = self.spec.cpus, self.spec.memory
        self.jobs.clear()
        self._room = None

    def give_back(self, job: int, part: Part) -> None:
        for index in part.gpus:
            assert self.whole[index] == job
            self.whole[index] = 0
        for index, _ in part.shards:
            del self.shards[index][job]
        self.cpus += part.cpus
        self.memory += part.memory
        self._room = None
        self.jobs.discard(job)

    def record(self) -> NodeRecord:
        """The node as Slurm reports it."""
        if self._record is None:
            used = sum(1 for index in range(self.spec.gpus) if not self._free(index))
            self._record = NodeRecord(
                name=self.spec.name,
                states=self._states(),
                reason=self.reason,
                gpu_type=self.spec.gpu_type if self.spec.gpus else "",
                gpus=self.spec.gpus,
                gpus_used=used,
                shards_per_gpu=self.spec.shards_per_gpu,
                cpus=self.spec.cpus,
                cpus_used=self.spec.cpus - self.cpus,
                memory=self.spec.memory,
                memory_used=self.spec.memory - self.memory,
                partitions=self.partitions,
                features=self.spec.features,
            )
        return self._record

    def _states(self) -> frozenset[str]:
        if not self.up:
            base = "DOWN"
        elif not self.jobs:
            base = "IDLE"
        else:
            base = "ALLOCATED" if self.cpus == 0 else "MIXED"
        flags = {"DRAIN"} if self.drained else set()
        if not self.up and not self.answers:
            flags.add("NOT_RESPONDING")
        return frozenset({base, *flags, *self.reserved})

    def _free(self, index: int) -> bool:
        return not self.whole[index] and not self.shards[index]

    def _shards_left(self, index: int) -> int:
        return self.spec.shards_per_gpu - sum(self.shards[index].values())

    def _for_shards(self, wanted: int) -> int | None:
        """The first GPU of which some are taken and enough are left, else the first free one."""
        for index, holders in enumerate(self.shards):
            if holders and self._shards_left(index) >= wanted:
                return index
        for index in range(self.spec.gpus):
            if self._free(index) and self.spec.shards_per_gpu >= wanted:
                return index
        return None
