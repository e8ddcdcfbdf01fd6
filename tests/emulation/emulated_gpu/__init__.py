"""What makes a training process on an emulated node take the time that its GPU would take.

Loaded by a .pth file into every Python program of a node, so it must cost nothing and break nothing
until that program, inside a Slurm job with GPUs, imports torch. Then each optimiser step is paced:
gradients are real, only the step's end waits for the emulated GPU. Training scripts know nothing of
it. What the process does to its GPU is left in /run/emulation/load/PID for the node's emulator.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

ROOT = "/run/emulation"


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Waits for `import torch`, lets it happen, then hooks the optimisers."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                from emulated_gpu import pacing  # noqa: PLC0415

                pacing.start(module)
            except Exception as fault:  # an emulation that fails must not fail the job
                print(f"emulated GPU: no pacing: {fault!r}", file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Called by the .pth file at every start of Python."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") and os.environ.get("SLURM_JOB_ID"):
        if os.path.isdir(ROOT) and "torch" not in sys.modules:
            sys.meta_path.insert(0, _AfterTorch())
