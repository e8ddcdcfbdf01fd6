"""Waits, in a Python program of a Slurm job with GPUs, for `import torch`; then paces its steps.

A .pth file calls install() at the start of every such program. Until torch is imported it costs one
comparison for each import; it imports nothing heavy, and no fault of the emulation reaches the
program: it is written to ROOT/log/PID and the program runs on unpaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from emulated_gpu.loads import root


class _BeforeTorch:
    """Finds torch as the other finders would, and has it hooked once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        try:
            return self._hooked_spec(path, target)
        except Exception:
            record()
            return None

    def _hooked_spec(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec("torch", path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Only now: many programs look for torch before they import it.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _start(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wait for torch, if this node has emulated GPUs."""
    try:
        if "torch" in sys.modules or not root().is_dir():
            return
        if any(isinstance(finder, _BeforeTorch) for finder in sys.meta_path):
            return
        # An emulated GPU's worker needs next to no CPU, and a node has few for its many workers.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.meta_path.insert(0, _BeforeTorch())
    except Exception:
        record()


def _start(torch: ModuleType) -> None:
    try:
        # Only programs that use torch pay for it.
        from emulated_gpu import pacing

        pacing.start(torch)
    except Exception:
        record()


def record() -> None:
    """Keep the fault under way where whoever looks after the emulation finds it."""
    try:
        import traceback

        with (root() / "log" / str(os.getpid())).open("a") as log:
            traceback.print_exc(file=log)
    except OSError:
        return
