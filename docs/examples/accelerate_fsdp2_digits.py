"""Learn handwritten digits with Accelerate and FSDP2, on as many GPUs as the job has just now.

A loop of one's own with Accelerate's sharding and checkpoints; what makes it resizable are the
lines with `job` in them. It runs in a Slurm job under ones-run, on two GPUs or more.
"""

import argparse
import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import TensorDataset

import ones

HELD_BACK = 297  # samples to test with


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 digits that come with scikit-learn, read without importing it: that takes longer."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn; pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :-1] / 16), torch.from_numpy(table[:, -1].astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)

    job = ones.init()  # before Accelerator, which finds the process group made
    sharding = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="size_based_wrap",
        min_num_params=1000,
        cpu_ram_efficient_loading=False,
        state_dict_type="SHARDED_STATE_DICT",  # which any number of GPUs can read
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), fsdp_plugin=sharding)
    images, labels = load_digits()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    model, prepared = accelerator.prepare(network, optimizer)
    job.adopt(model, prepared.optimizer)
    job.saves_with(lambda folder: accelerator.save_state(str(folder)))
    if job.checkpoint is not None:
        accelerator.load_state(str(job.checkpoint))
    loader = job.loader(  # not to be prepared: each worker gets its share already
        TensorDataset(images[HELD_BACK:], labels[HELD_BACK:]),
        batch_size=128,
    )

    device = accelerator.device
    for _ in job.epochs(options.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            prepared.zero_grad()
            accelerator.backward(loss * job.weight)  # FSDP2 takes the plain mean of gradients
            prepared.step()
            job.step(loss=loss)

    with torch.no_grad():  # on all workers: each needs the slices of the others
        answers = model(images[:HELD_BACK].to(device)).cpu()
    loss = nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item()
    if job.rank == 0:
        result = {"samples": job.samples, "loss": loss, "gpus": job.world_size}
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
