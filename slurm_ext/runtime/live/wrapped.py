"""A model whose DistributedDataParallel may be another one after each step."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from ones.slurm_ext.runtime.live.group import is_lost


def is_compiled(module: Any) -> bool:
    """Whether torch.compile was called on this very module.

    That leaves no mark on it: what was made of it refers to it, by this name.
    """
    return module._compiled_call_impl is not None or any(
        isinstance(each, dict) and each.get("_orig_mod") is module
        for each in gc.get_referrers(module)
    )


class Elastic(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """What the script has as its model: it stays, and passes on to the present generation's."""

    def __init__(self, module: Any, lost: Callable[[], bool], lose: Callable[[], None]) -> None:
        super().__init__()
        self.module = module
        self._lost = lost
        self._lose = lose
        # Not an attribute as torch knows it, or all parameters would be there twice.
        self.__dict__["_present"] = None

    def use(self, present: Any) -> None:
        """Pass on to this from now on; None: to the module itself."""
        self.__dict__["_present"] = present

    def forward(self, *inputs: Any, **more: Any) -> Any:
        present = self.__dict__["_present"]
        if present is None or self._lost():
            return self.module(*inputs, **more)
        try:
            return present(*inputs, **more)
        except RuntimeError as fault:
            if not is_lost(fault):
                raise
            # The step is lost, but must come to its end: only there can the worker wait.
            self._lose()
            return self.module(*inputs, **more)

    def no_sync(self) -> Any:
        """Don't average the gradients of the passes inside, as DistributedDataParallel's."""
        present = self.__dict__["_present"]
        return contextlib.nullcontext() if present is None else present.no_sync()
