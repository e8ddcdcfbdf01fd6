"""Runs an example of the documents, and writes down which samples each of its steps has seen.

Stands under the example's own name in a folder beside `examples`. Lines of the files in
`seen-JOB`: {"epoch", "at": the position before the step, "ids", "workers", "restarts"}, one for
each step that was committed.
"""

import json
import os
import runpy
import sys
from collections import deque
from pathlib import Path

from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ones.slurm_ext.runtime.job import Job

fetched: deque[list[int]] = deque()
fetch, step = _MapDatasetFetcher.fetch, Job.step
job = os.environ.get("SLURM_JOB_ID", "0")
restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def counted_fetch(self, numbers):
    if len(self.dataset) > 1000:  # or it is the data to test with
        fetched.append(list(numbers))
    return fetch(self, numbers)


def counted_step(self, **options):
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
folder = Path(f"seen-{job}")
folder.mkdir(exist_ok=True)
example = Path(sys.argv[0]).resolve()
name = f"{restarts}-{os.uname().nodename}-{os.getpid()}.jsonl"
with (folder / name).open("w", buffering=1) as account:
    runpy.run_path(str(example.parent / "examples" / example.name), run_name="__main__")
