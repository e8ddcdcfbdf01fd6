"""What makes a training process on an emulated node take the time that its GPU would take.

Loaded by a .pth file into every Python program of a node, so it must cost nothing and break nothing
until that program, inside a Slurm job with GPUs, imports torch. Then each optimiser step is paced:
gradients are real, only the step's end waits for the emulated GPU. Training scripts know nothing of
it. What the process does to its GPU is left in /run/emulation/load/PID for the node's emulator.
"""

import os
import sys


def install() -> None:
    """Called by the .pth file at every start of Python."""
    in_gpu_job = "SLURM_JOB_ID" in os.environ and os.environ.get("CUDA_VISIBLE_DEVICES")
    # In a virtual environment with system packages Python reads each .pth file twice.
    if in_gpu_job and "emulated_gpu.hook" not in sys.modules:
        from emulated_gpu import hook

        sys.meta_path.insert(0, hook.AfterTorch())
