"""The state of sharded models and their optimizers, under names that no number of workers changes.

A state is taken apart into tensors, each under one name for the whole job, of which every worker
may hold a slice only, and a skeleton of small things that are equal on all workers. Names are those
of the model's `state_dict`, so that a checkpoint says what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from torch.distributed import tensor as dtensor  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.tensor import DTensor, Replicate, Shard  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.sharding import parts


@dataclass(frozen=True, slots=True)
class Spec:
    """What a tensor is on all workers together."""

    shape: tuple[int, ...]
    dtype: str  # without torch's prefix
    dim: int | None  # along which it is cut; None: all have all of it

    def told(self) -> list[Any]:
        return [list(self.shape), self.dtype, self.dim]


def spec_from(told: Sequence[Any]) -> Spec:
    shape, dtype, dim = told
    return Spec(tuple(shape), dtype, dim)


def spec_of(tensor: Any) -> Spec:
    dim = None
    if isinstance(tensor, DTensor):
        cut = [each.dim for each in tensor.placements if isinstance(each, Shard)]
        dim = cut[0] if cut else None
    return Spec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), dim)


def local(tensor: Any) -> Any:
    """This worker's slice of it."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def is_optimizer(each: object) -> bool:
    return hasattr(each, "param_groups") and hasattr(each, "state")


def parameter_names(models: Sequence[Any]) -> dict[int, str]:
    """The name of each parameter, by its identity; one that is shared has its first name."""
    found: dict[int, str] = {}
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            found.setdefault(id(parameter), f"models.{index}.{name}")
    return found


def model_tensors(models: Sequence[Any]) -> dict[str, Any]:
    """Parameters and persistent buffers of the models."""
    found: dict[str, Any] = {}
    known: set[int] = set()
    for index, model in enumerate(models):
        for part in parts(model):
            part.reshard()  # after an evaluation what is there may be whole
        named = dict(model.named_parameters(remove_duplicate=False))
        for name, state in model.state_dict().items():
            tensor = named.get(name, state)
            if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
                known.add(id(tensor))
                found[f"models.{index}.{name}"] = tensor
    return found


def optimizer_apart(optimizer: Any, names: Mapping[int, str]) -> tuple[Any, dict[str, Any]]:
    """The skeleton of an optimizer's state, and its tensors by state and parameter."""
    groups, state, tensors = [], {}, {}
    for group in optimizer.param_groups:
        own = [_named(parameter, names) for parameter in group["params"]]
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": own})
        for parameter, name in zip(group["params"], own, strict=True):
            kept: dict[str, Any] = {}
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and (
                    value.numel() > 1 or isinstance(value, DTensor)
                ):
                    tensors[f"{key}.{name}"] = value
                    kept[key] = spec_of(value).told()
                else:
                    kept[key] = {"value": value}
            state[name] = kept
    return {"groups": groups, "state": state}, tensors


def optimizer_room(
    optimizer: Any,
    skeleton: Any,
    names: Mapping[int, str],
    make: Callable[[str, Spec, Any], Any] | None = None,
) -> dict[str, Any]:
    """Give an optimizer the state that the skeleton tells of; its tensors.

    `make` gives the tensor of a name and a spec for a parameter; without it they hold nothing yet.
    Raises StateFault where it is another optimizer's.
    """
    own = [
        [_named(parameter, names) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
    if own != [group["params"] for group in skeleton["groups"]]:
        raise StateFault(
            f"the kept state of {type(optimizer).__name__} is of other parameters than it has now;"
            " was the script changed? bring it back, or remove the checkpoint to begin again"
        )
    tensors: dict[str, Any] = {}
    for group, kept in zip(optimizer.param_groups, skeleton["groups"], strict=True):
        group.update({key: value for key, value in kept.items() if key != "params"})
        for parameter, name in zip(group["params"], kept["params"], strict=True):
            found = optimizer.state[parameter] = {}
            for key, value in skeleton["state"][name].items():
                if isinstance(value, dict):
                    found[key] = value["value"]
                else:
                    full, spec = f"{key}.{name}", spec_from(value)
                    tensor = room(spec, parameter) if make is None else make(full, spec, parameter)
                    found[key] = tensors[full] = tensor
    return tensors


def rebind(optimizer: Any, groups: Sequence[Sequence[str]], models: Sequence[Any]) -> None:
    """Give an optimizer the models' present parameters in place of those that it had, by names."""
    present = {
        f"models.{index}.{name}": parameter
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }
    optimizer.state.clear()
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = [present[name] for name in own]


def placed(slice_: Any, spec: Spec, like: Any) -> Any:
    """This worker's slice as a part of a tensor of all, cut as the parameter is that it is for."""
    if not isinstance(like, DTensor):
        return slice_
    stride = torch.empty(spec.shape, device="meta").stride()
    return DTensor.from_local(
        slice_,
        like.device_mesh,
        _placements(spec, like),
        run_check=False,
        shape=torch.Size(spec.shape),
        stride=stride,
    )


def room(spec: Spec, like: Any) -> Any:
    """A tensor that holds nothing yet, cut over the workers as the parameter is that it is for."""
    dtype = getattr(torch, spec.dtype)
    if not isinstance(like, DTensor):
        return torch.empty(spec.shape, dtype=dtype, device=like.device)
    return dtensor.empty(
        *spec.shape,
        dtype=dtype,
        device_mesh=like.device_mesh,
        placements=_placements(spec, like),
    )


def _placements(spec: Spec, like: Any) -> Any:
    if spec.shape == tuple(like.shape):
        return like.placements
    cut = Replicate() if spec.dim is None else Shard(spec.dim)
    return (*(Replicate() for _ in like.placements[1:]), cut)


def plain(state: Any, owner: object) -> Any:
    """The state of an object that is no optimizer, which each worker must have as a whole."""
    if _is_cut(state):
        raise StateFault(
            f"{type(owner).__name__} keeps slices of a sharded model in its state_dict(), which"
            " only models and optimizers may; keep numbers there, or give the model to job.fsdp()"
        )
    return state


def _is_cut(state: Any) -> bool:
    match state:
        case DTensor():
            return True
        case dict():
            return any(_is_cut(each) for each in state.values())
        case list() | tuple():
            return any(_is_cut(each) for each in state)
    return False


def _named(parameter: Any, names: Mapping[int, str]) -> str:
    try:
        return names[id(parameter)]
    except KeyError:
        raise StateFault(
            f"an optimizer has a parameter of shape {tuple(parameter.shape)} that is none of a"
            " model given to job.fsdp(); make it after job.fsdp(), from that model's parameters"
        ) from None
