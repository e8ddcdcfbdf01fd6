"""Runs an example of the documents, and writes down which samples each of its steps has seen.

Stands under the example's own name in a folder beside `examples`. Lines of the files in
`seen-JOB`: {"epoch", "at": the position before the step, "ids", "workers", "restarts"}, one for
each step that was committed. Each step takes $ONES_COUNTED_PAUSE seconds longer.
"""

import runpy
import sys
from pathlib import Path


def count() -> None:
    """Have this process write down what its steps see."""
    import json
    import os
    import time
    from collections import deque

    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    from ones.slurm_ext.runtime.job import Job

    fetched: deque[list[int]] = deque()
    fetch, step = _MapDatasetFetcher.fetch, Job.step
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    pause = float(os.environ.get("ONES_COUNTED_PAUSE", "0"))
    folder = Path(f"seen-{os.environ.get('SLURM_JOB_ID', '0')}")
    folder.mkdir(exist_ok=True)
    account = (folder / f"{restarts}-{os.uname().nodename}-{os.getpid()}").open("w", buffering=1)

    def counted_fetch(self, numbers):
        if len(self.dataset) > 1000:  # or it is the data to test with
            fetched.append(list(numbers))
        return fetch(self, numbers)

    def counted_step(self, **options):
        time.sleep(pause)
        epoch, at = self.epoch, self.samples
        begin, end = self._cut.share(self._moment.progress.position)
        ids = fetched.popleft()  # one sample where this worker has no share
        while len(ids) < end - begin:
            ids += fetched.popleft()
        try:
            return step(self, **options)
        finally:
            if self.samples > at and end > begin:
                line = {"epoch": epoch, "at": at, "ids": ids, "workers": self.world_size}
                account.write(json.dumps({**line, "restarts": restarts}) + "\n")

    _MapDatasetFetcher.fetch, Job.step = counted_fetch, counted_step


def take_cpus_for_gpus() -> None:
    """Have Accelerate shard over CPUs too, which it would not do, and does no differently."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    begin = PartialState.__init__

    def begun(self, *words, **options):
        begin(self, *words, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = begun


def leave_kernels_out() -> None:
    """Keep DeepSpeed from compiling one for the memory that CPUs share, which takes minutes."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Counted:
    """A function for submitit that counts where it is called: in the job."""

    def __init__(self, function):
        self.function = function

    def __call__(self):
        count()
        return self.function()

    def checkpoint(self):
        import submitit

        self.function.checkpoint()
        return submitit.helpers.DelayedSubmission(self)


example = Path(sys.argv[0]).resolve()
if example.name.startswith("submitit"):
    import submitit

    submit = submitit.AutoExecutor.submit
    submitit.AutoExecutor.submit = lambda self, function: submit(self, Counted(function))
else:
    count()
if example.name.startswith("accelerate_fsdp2"):
    take_cpus_for_gpus()
if example.name.startswith("deepspeed"):
    leave_kernels_out()
runpy.run_path(str(example.parent / "examples" / example.name), run_name="__main__")
