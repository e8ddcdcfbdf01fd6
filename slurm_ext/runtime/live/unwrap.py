"""A model that FSDP2 has cut becomes a plain one again, in place, to be cut over other workers.

PyTorch has no call for it, so this is the only place that knows how FSDP2 marks its modules. What
is left has parameters on the meta device, which FSDP2 cuts without any memory.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from torch.distributed import (  # type: ignore[import-not-found,unused-ignore]
    _composable_state as states,
)

from ones.slurm_ext.runtime.framework import StateFault
from ones.slurm_ext.runtime.sharded_state import placed, spec_of
from ones.slurm_ext.runtime.sharding import parts

contract: Any = importlib.import_module("torch.distributed._composable.contract")
HANDLES = (
    "_module_to_pre_save_state_dict_hook_handle",
    "_module_to_pre_load_state_dict_hook_handle",
)
MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")


def supported() -> str:
    """Why models can't be resized live with this torch; empty where they can."""
    known: Any = states
    if hasattr(contract, "STATE_KEY") and hasattr(known, "_module_state_mapping"):
        return ""
    return f"this PyTorch ({torch.__version__}) marks FSDP2's modules in another way"


def bare(model: Any) -> None:
    """Undo what `fully_shard` has done to the model, and put its parameters on the meta device."""
    known: Any = states
    for part in parts(model):
        state = part._get_fsdp_state()
        for group in _groups(state):
            group.reshard()
            for name in HANDLES:
                for handle in getattr(group, name).values():
                    handle.remove()
            for parameter in group.fsdp_params:
                parameter._post_load_hook_handle.remove()
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
        _forget(state)
        known._module_state_mapping.pop(part, None)
        part.__class__ = type(part).__mro__[type(part)._orig_cls_mro_index]
    metas: dict[int, Any] = {}
    for module in model.modules():
        for key in (contract.STATE_KEY, contract.REGISTRY_KEY, *MARKS):
            module.__dict__.pop(key, None)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = metas.setdefault(id(parameter), _meta(parameter))


def fill(model: Any, slices: dict[str, Any], *, prefix: str, device: Any) -> None:
    """Give a model that was cut on the meta device its slices, by prefix and parameter's name.

    Without slices it gets memory that holds nothing yet.
    """
    filled: dict[int, Any] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in filled:
            continue
        spec = spec_of(parameter)
        if slices:
            value = placed(slices[prefix + name], spec, parameter)
        else:
            value = torch.empty_like(parameter, device=device)
        filled[id(parameter)] = torch.nn.Parameter(value, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = filled[id(parameter)]


def check(model: Any) -> None:
    """Raise StateFault where a model is cut in a way that isn't known before it is cut."""
    for name, parameter in model.named_parameters():
        if spec_of(parameter).dim != 0:
            raise StateFault(
                f"parameter {name} is not cut along its first dimension, as it must be under"
                " --live; leave --live out, or have `wrap` cut it so"
            )


def _forget(state: Any) -> None:
    """Let go of the slices: what FSDP2 knows refers to itself, and would keep them for long."""
    for group in _groups(state):
        for parameter in group.fsdp_params:
            vars(parameter).clear()
        vars(group).clear()
    if hasattr(state, "_fsdp_param_groups"):
        state._fsdp_param_groups.clear()
    else:
        state._fsdp_param_group = None


def _groups(state: Any) -> list[Any]:
    """What FSDP2 has cut together of a module; up to PyTorch 2.11 all of it, or nothing."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [group for group in [state._fsdp_param_group] if group is not None]


def _meta(parameter: Any) -> Any:
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    return torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
