"""ONES for Slurm as a training script sees it.

    import ones

    job = ones.init()

This tree is the package `ones`. What is public is named here and looked up at its first use, so
that `import ones` costs a training nothing, and the daemons nothing of a training.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ones.slurm_ext.errors import OnesError
    from ones.slurm_ext.runtime import init
    from ones.slurm_ext.runtime.job import Job
    from ones.slurm_ext.runtime.learning_rate import Rule
    from ones.slurm_ext.runtime.lightning import LightningCallback
    from ones.slurm_ext.runtime.transformers import TransformersCallback

__all__ = ["Job", "LightningCallback", "OnesError", "Rule", "TransformersCallback", "init"]

_PUBLIC = {
    "Job": ("ones.slurm_ext.runtime.job", "Job"),
    "LightningCallback": ("ones.slurm_ext.runtime.lightning", "LightningCallback"),
    "OnesError": ("ones.slurm_ext.errors", "OnesError"),
    "Rule": ("ones.slurm_ext.runtime.learning_rate", "Rule"),
    "TransformersCallback": ("ones.slurm_ext.runtime.transformers", "TransformersCallback"),
    "init": ("ones.slurm_ext.runtime", "init"),
}
# What may be installed: all of ONES, or what training environments need of it.
_DISTRIBUTIONS = ("ones-slurm", "ones-slurm-runtime")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ones' has no attribute '{name}'")
    module, attribute = _PUBLIC[name]
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as fault:
        raise _missing(name, fault) from None
    globals()[name] = found
    return found


def _missing(name: str, fault: ModuleNotFoundError) -> Exception:
    """What to say where a framework that something public is for is not installed."""
    from ones.slurm_ext.errors import OnesError  # noqa: PLC0415

    module = (fault.name or "").split(".")[0]
    if module == "ones":
        return fault
    package = "lightning" if module == "pytorch_lightning" else module
    return OnesError(f"ones.{name} needs {package}, which is not installed; pip install {package}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 (takes a while)

    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
