"""The documented example with an account: each worker writes which samples of which epoch it saw.

usage: counted_digits.py EPOCHS [SECONDS OF A CHECKPOINT [SHARDS SECONDS OF A STEP]]

With SHARDS the model is sharded by FSDP2 over so many workers (0: over all), under AdamW, and each
worker's slice is kept a second time every COPIED steps.

Lines of the files in `seen-JOB`:
{"epoch", "at": the position before the step, "ids", "worker", "workers", "generation", "restarts",
"time", "committed"}; one is written before a step, and another one after it where it counts. One
lost in a crash does not. And {"checkpoint": position, "restarts", "time"} for each checkpoint,
{"digest": norms of the parameters, "worker"} at the end of a sharded training.

While there is a file `gate-JOB` with a position, every worker waits before the step at it, and says
so by a file `at-gate-JOB`: a test can hold a training in its last steps.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

# Not `import ones`, which packages of before have not: scripts/test-install upgrades beside it.
from ones.slurm_ext import runtime
from ones.slurm_ext.runtime.torch_framework import TorchFramework

EPOCHS, BATCH, SAMPLES = int(sys.argv[1]), 96, 500
CHECKPOINT_SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
SHARDED = len(sys.argv) > 3
SHARDS, STEP_SECONDS = (int(sys.argv[3]), float(sys.argv[4])) if SHARDED else (0, 0.0)
COPIED = 5
LEADER = os.environ.get("ONES_LEADER_JOB", os.environ.get("SLURM_JOB_ID", "0"))
RESTARTS = os.environ.get("ONES_LEADER_RESTARTS", os.environ.get("SLURM_RESTART_COUNT", "0"))


class Numbered(torch.utils.data.Dataset):
    """Samples that say their number."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return index, self.images[index], self.labels[index]


def note_checkpoints(job, account) -> None:
    """Have each checkpoint noted, and take as long as one of a larger network would."""
    name = "save_shards" if SHARDED else "dump"
    write = getattr(TorchFramework, name)

    def noted(*given, **options):
        time.sleep(CHECKPOINT_SECONDS)
        done = write(*given, **options)
        line = {"checkpoint": job.samples, "restarts": int(RESTARTS), "time": time.time()}
        account.write(json.dumps(line) + "\n")
        return done

    setattr(TorchFramework, name, noted)


def digest(model) -> list[float]:
    """Norms of each parameter, the same however it is cut."""
    whole = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
    return [each.detach().double().square().sum().item() for each in whole]


def wait_at_gate(position: int) -> None:
    gate, here = Path(f"gate-{LEADER}"), Path(f"at-gate-{LEADER}")
    try:
        while position >= int(gate.read_text()):
            here.touch()
            time.sleep(0.05)
    except FileNotFoundError:
        return


def main() -> None:
    torch.set_num_threads(1)
    job = runtime.init(seed=7)
    generator = np.random.default_rng(1)
    images = torch.from_numpy(generator.normal(size=(SAMPLES, 64)).astype(np.float32))
    truth = torch.from_numpy(generator.normal(size=(64, 10)).astype(np.float32))
    labels = (images @ truth).argmax(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(job.device)
    if SHARDED:
        model = job.fsdp(network, shards=SHARDS or None, copy_steps=COPIED)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    else:
        model = job.ddp(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.track(optimizer)
    loader = job.loader(Numbered(images, labels), batch_size=BATCH)
    folder = Path(f"seen-{LEADER}")
    folder.mkdir(exist_ok=True)
    me = f"{os.uname().nodename}.{os.getpid()}"
    with (folder / f"{RESTARTS}-{me}-{time.time_ns()}.jsonl").open("w", buffering=1) as account:
        note_checkpoints(job, account)
        for epoch in job.epochs(EPOCHS):
            for ids, x, y in loader:
                before, workers = job.samples, job.world_size
                said = {
                    "epoch": epoch,
                    "at": before,
                    "ids": ids.tolist(),
                    "worker": me,
                    "workers": workers,
                    "generation": int(os.environ.get("ONES_GENERATION", "0")),
                    "restarts": int(RESTARTS),
                    "time": time.time(),
                }
                account.write(json.dumps({**said, "committed": False}) + "\n")
                if epoch == EPOCHS - 1:
                    wait_at_gate(before)
                loss = nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                try:
                    job.step(loss=loss)
                finally:  # a worker that leaves ends in there
                    if job.samples > before:
                        account.write(json.dumps({**said, "committed": True}) + "\n")
                time.sleep(STEP_SECONDS)
        if SHARDED:
            account.write(json.dumps({"digest": digest(model), "worker": me}) + "\n")
            return
    if job.rank == 0:
        with torch.no_grad():
            answers = network(images)
        result = {
            "samples": job.samples,
            "loss": nn.functional.cross_entropy(answers, labels).item(),
        }
        Path(f"result-{LEADER}.json").write_text(json.dumps(result))


main()
