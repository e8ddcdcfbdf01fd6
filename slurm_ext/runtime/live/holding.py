"""What one worker holds of a sharded state, and copies of it that outlast a neighbour."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.live.group import Group
from ones.slurm_ext.runtime.live.reshard import Cut, neighbours
from ones.slurm_ext.runtime.live.slices import begun, part_of, room
from ones.slurm_ext.runtime.live.state import compare
from ones.slurm_ext.runtime.sharded_state import (
    Spec,
    is_optimizer,
    local,
    model_tensors,
    optimizer_apart,
    parameter_names,
    plain,
    spec_of,
)


@dataclass(slots=True)
class State:
    """Slices of every tensor, and the small rest of the state."""

    specs: dict[str, Spec]
    slices: dict[str, Any]
    skeletons: list[Any]  # of each tracked object

    def sizes(self, prefix: str = "") -> Sizes:
        """How much it is; of the tensors whose names begin so."""
        whole, rows = 0, Counter[int]()
        for name, spec in self.specs.items():
            if name.startswith(prefix):
                part = part_of(spec)
                if part.whole:
                    whole += part.rows * part.row
                else:
                    rows[part.rows] += part.row
        return Sizes(whole, rows)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of many tensors."""

    whole: int  # of those that all workers have
    rows: Mapping[int, int]  # of one row of all those with so many

    def of(self, cut: Cut) -> int:
        """What a worker with this cut has."""
        spans = ((*cut.rows(number), size) for number, size in self.rows.items())
        return self.whole + sum((end - begin) * size for begin, end, size in spans)


@dataclass(slots=True)
class Copy:
    """This worker's slice and a neighbour's, as they were after so many samples."""

    committed: int
    generation: int
    slices: dict[Cut, State]
    note: bytes


def apart(models: Sequence[Any], tracked: Sequence[Any], *, whole: bool) -> State:
    """What the models and optimizers hold just now. Gradients are given up.

    With `whole` that is all of it, which is cut by rows from here on.
    """
    names, tensors = parameter_names(models), model_tensors(models)
    skeletons = []
    for index, each in enumerate(tracked):
        if is_optimizer(each):
            skeleton, own = optimizer_apart(each, names)
            tensors.update({f"tracked.{index}.{name}": one for name, one in own.items()})
            each.zero_grad(set_to_none=True)
            skeletons.append(skeleton)
        else:
            skeletons.append({"state": plain(each.state_dict(), each)})
    for model in models:
        model.zero_grad(set_to_none=True)
    specs = {name: spec_of(each) for name, each in tensors.items()}
    if whole:
        # What is whole is cut as FSDP2 will cut it: parameters and what goes with them.
        specs = {name: _to_cut(name, each, tensors, names) for name, each in specs.items()}
    return State(specs, {name: local(each) for name, each in tensors.items()}, skeletons)


def copied(group: Group, present: State, cut: Cut, *, node: int, device: Any) -> dict[Cut, State]:
    """The present slices, and those of a neighbour on another node, apart from what trains."""
    kept = neighbours([row[0] for row in compare(group, [node])])
    giver, taker = kept[group.rank], kept.index(group.rank)
    own = State(
        present.specs,
        {name: each.clone() for name, each in present.slices.items()},
        copy.deepcopy(present.skeletons),  # an optimizer counts its steps in place
    )
    theirs = Cut(giver % cut.of, cut.of)
    slices = {
        name: each.clone() if spec.dim is None else room(spec, theirs, device)
        for (name, spec), each in zip(own.specs.items(), own.slices.values(), strict=True)
    }
    operations: list[Any] = []
    if giver != group.rank:
        for tag, (name, spec) in enumerate(own.specs.items(), start=1):
            if spec.dim is not None:
                operations.append((dist.irecv, slices[name], giver, tag))
                operations.append((dist.isend, own.slices[name], taker, tag))
    group.finish_all(begun(group, operations))
    return {theirs: State(own.specs, slices, own.skeletons), cut: own}


def _to_cut(name: str, spec: Spec, tensors: dict[str, Any], names: dict[int, str]) -> Spec:
    """The spec of a whole tensor as it is once FSDP2 has cut it."""
    owner = next((own for own in names.values() if name.endswith(own)), None)
    if owner is None or not spec.shape or spec.shape != tuple(tensors[owner].shape):
        return spec
    return Spec(spec.shape, spec.dtype, 0)
