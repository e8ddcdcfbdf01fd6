"""The documented example with an account: each worker writes which samples of which epoch it saw.

usage: counted_digits.py EPOCHS

Lines of the files in `seen-JOB`:
{"epoch", "at": the position before the step, "ids", "pid", "workers", "committed"}; one is written
before a step, and another one after it where it counts. One lost in a crash does not.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ones.slurm_ext import runtime as ones

EPOCHS, BATCH, SAMPLES = int(sys.argv[1]), 96, 500


class Numbered(torch.utils.data.Dataset):
    """Samples that say their number."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return index, self.images[index], self.labels[index]


def main() -> None:
    torch.set_num_threads(1)
    job = ones.init(seed=7)
    generator = np.random.default_rng(1)
    images = torch.from_numpy(generator.normal(size=(SAMPLES, 64)).astype(np.float32))
    truth = torch.from_numpy(generator.normal(size=(64, 10)).astype(np.float32))
    labels = (images @ truth).argmax(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(job.device)
    model = job.ddp(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.track(optimizer)
    loader = job.loader(Numbered(images, labels), batch_size=BATCH)
    leader = os.environ.get("ONES_LEADER_JOB", os.environ.get("SLURM_JOB_ID", "0"))
    folder = Path(f"seen-{leader}")
    folder.mkdir(exist_ok=True)
    restarts = os.environ.get("ONES_LEADER_RESTARTS", os.environ.get("SLURM_RESTART_COUNT", "0"))
    name = f"{restarts}-{os.uname().nodename}-{os.getpid()}-{time.time_ns()}.jsonl"
    with (folder / name).open("w", buffering=1) as account:
        for epoch in job.epochs(EPOCHS):
            for ids, x, y in loader:
                before, workers = job.samples, job.world_size
                said = {
                    "epoch": epoch,
                    "at": before,
                    "ids": ids.tolist(),
                    "pid": os.getpid(),
                    "workers": workers,
                    "restarts": int(restarts),
                    "time": time.time(),
                }
                account.write(json.dumps({**said, "committed": False}) + "\n")
                loss = nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                try:
                    job.step(loss=loss)
                finally:  # a worker that leaves ends in there
                    if job.samples > before:
                        account.write(json.dumps({**said, "committed": True}) + "\n")
    if job.rank == 0:
        with torch.no_grad():
            answers = network(images)
        result = {
            "samples": job.samples,
            "loss": nn.functional.cross_entropy(answers, labels).item(),
            "pid": os.getpid(),
        }
        Path(f"result-{leader}.json").write_text(json.dumps(result))


main()
