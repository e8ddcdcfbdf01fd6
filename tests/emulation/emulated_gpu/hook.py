"""Starts the pacing when a program imports torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterTorch:
    """A finder of modules that finds none itself: it only stands by when torch is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, AfterTorch))
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Not before: a program may look for torch's spec without importing it.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            try:
                from emulated_gpu import pacing

                pacing.start(module)
            except Exception as fault:  # an emulation that fails must not fail the job
                print(f"emulated GPU: no pacing: {fault!r}", file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
