"""The least score there is, by an integer program: the judge of the others on small cases."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

from ones.policies.model import Floats, Ints
from ones.policies.network.gangs import Batch, Gang, hosts_of
from ones.policies.network.topology import Topology


class NoPlacement(Exception):
    """There is no room for all gangs, or the solver gave up."""


@dataclass(slots=True)
class _Rows:
    """A program as it grows: variables with cost and bounds, rows `least <= a x <= most`."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    constant: float = 0.0

    def variable(self, cost: float = 0.0, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, *terms: tuple[int, float], least: float = -np.inf, most: float = np.inf) -> None:
        self.entries += [(len(self.least), column, value) for column, value in terms]
        self.least.append(least)
        self.most.append(most)


def exact(batch: Batch, *, seconds: float | None = None) -> tuple[Ints, float]:
    """The cheapest placement of all gangs by `cost.score`, and that score. Raises NoPlacement.

    Distances must grow with the levels, which `Distances` sees to. What is known of NVLink is left
    out. `seconds` bounds the solver.
    """
    if batch.topology.inside is not None:
        raise ValueError("the exact placement knows nothing of NVLink")
    rows = _Rows()
    gangs = [_gang(rows, batch, number) for number in range(len(batch.gangs))]
    for node, free in enumerate(batch.free):
        taken = [
            (column, float(one.gpus))
            for gang in gangs
            for one in gang
            if (column := one.columns[node]) is not None
        ]
        used = rows.variable(cost=1.0 / max(1, len(batch.gang_of)))
        rows.row(*taken, (used, -float(free)), most=0.0)
    shape = (len(rows.least), len(rows.cost))
    at, columns, values = zip(*rows.entries, strict=True)
    matrix = sparse.csr_array((values, (at, columns)), shape=shape)
    found = milp(
        np.array(rows.cost),
        constraints=LinearConstraint(matrix, rows.least, rows.most),
        integrality=np.ones(len(rows.cost)),
        bounds=Bounds(0, rows.upper),
        options={"mip_rel_gap": 0.0} | ({} if seconds is None else {"time_limit": seconds}),
    )
    if found.x is None or found.status != 0:
        raise NoPlacement(found.message)
    sites = batch.nowhere()
    for one in (one for gang in gangs for one in gang):
        counts = [0 if column is None else round(found.x[column]) for column in one.columns]
        sites[one.tasks] = np.repeat(np.arange(len(counts)), counts)
    return sites, float(found.fun + rows.constant)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Tasks of a gang that may stand in for each other, and how many of them go to each node."""

    tasks: list[int]
    gpus: int
    columns: list[int | None]  # of each node; None: it has no room for any

    def on(self, nodes: Ints) -> list[int]:
        return [column for node in nodes if (column := self.columns[node]) is not None]


def _gang(rows: _Rows, batch: Batch, number: int) -> list[_Alike]:
    """All tasks seated, and the network cost of the gang, level by level.

    Distances of a tree are sums over its levels: two tasks that don't share a node pay the first
    step, two that don't share a leaf switch the next, and so on.
    """
    gang, part = batch.gangs[number], batch.tasks_of(number)
    kinds: dict[tuple[int, int], list[int]] = {}
    for at, task in enumerate(range(part.start, part.stop)):
        kinds.setdefault((at if at < gang.servers else -1, gang.tasks[at]), []).append(task)
    classes = [
        _alike(rows, batch, gang, tasks=tasks, gpus=gpus) for (_, gpus), tasks in kinds.items()
    ]
    if gang.apart:
        for node in range(len(batch.free)):
            there = [column for one in classes if (column := one.columns[node]) is not None]
            if there:
                rows.row(*((column, 1.0) for column in there), most=1.0)
    tree = _Tree.of(batch.topology, gang)
    if gang.servers:
        _servers(rows, gang, classes, tree)
    else:
        _reduces(rows, gang, classes, tree)
    return classes


def _alike(rows: _Rows, batch: Batch, gang: Gang, *, tasks: list[int], gpus: int) -> _Alike:
    able = hosts_of(gang, batch.free, gpus)
    columns = [
        rows.variable(upper=float(min(len(tasks), free // gpus))) if one else None
        for one, free in zip(able, batch.free, strict=True)
    ]
    terms = [(column, 1.0) for column in columns if column is not None]
    if not terms:
        raise NoPlacement(f"no node has room for a task of {gpus} GPUs")
    rows.row(*terms, least=float(len(tasks)), most=float(len(tasks)))
    return _Alike(tasks, gpus, columns)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The groups of nodes of every level from single nodes up, and what leaving each costs."""

    within: float
    groups: list[Ints]
    steps: Floats

    @classmethod
    def of(cls, topology: Topology, gang: Gang) -> _Tree:
        far = gang.bandwidth * np.array([topology.within, *topology.steps])
        groups = [np.arange(len(topology.nodes)), *topology.above[:-1]]
        return cls(float(far[0]), groups, np.diff(far))


def _servers(rows: _Rows, gang: Gang, classes: list[_Alike], tree: _Tree) -> None:
    """Each step is saved by every pair of server and worker in one group of the level below."""
    servers, workers = classes[: gang.servers], classes[gang.servers :]
    most = float(len(gang.tasks) - gang.servers)
    pairs = gang.servers * most
    rows.constant += pairs * tree.within
    for group, step in zip(tree.groups, tree.steps.tolist(), strict=True):
        rows.constant += step * pairs
        if step <= 0:
            continue
        for at in range(int(group.max()) + 1):
            inside = np.flatnonzero(group == at)
            held = [column for one in workers for column in one.on(inside)]
            for server in servers:
                here = server.on(inside)
                if held and here:
                    together = rows.variable(cost=-step, upper=most)
                    rows.row((together, 1.0), *((one, -1.0) for one in held), most=0.0)
                    rows.row((together, 1.0), *((one, -most) for one in here), most=0.0)


def _reduces(rows: _Rows, gang: Gang, classes: list[_Alike], tree: _Tree) -> None:
    """Each step is paid by every group of the level below but one, and by a ring's closing hop."""
    count = len(gang.tasks)
    closes = gang.pattern == "ring" and count > 1
    rows.constant += (count - 1 + closes) * tree.within
    for group, step in zip(tree.groups, tree.steps.tolist(), strict=True):
        if step <= 0:
            continue
        rows.constant -= step
        used = []
        for at in range(int(group.max()) + 1):
            held = [column for one in classes for column in one.on(np.flatnonzero(group == at))]
            if held:
                used.append(rows.variable(cost=step))
                room = min(float(count), sum(rows.upper[one] for one in held))
                rows.row(*((one, 1.0) for one in held), (used[-1], -room), most=0.0)
                for one in held:
                    rows.row((one, 1.0), (used[-1], -rows.upper[one]), most=0.0)
        if closes and len(used) > 1:
            wide = rows.variable(cost=step)
            rows.row(*((one, 1.0) for one in used), (wide, -float(len(used) - 1)), most=1.0)
