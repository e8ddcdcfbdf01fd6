"""Learn handwritten digits with FSDP2, on as many GPUs as the job has just now.

Each GPU holds its slice of parameters, gradients and optimizer. Checkpoints are PyTorch's
distributed ones, which any number of GPUs can read. Plain PyTorch, but for the lines with `job` in
them. It runs in a Slurm job under ones-run, under torchrun, and by itself: python fsdp2_digits.py
"""

import argparse
import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
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


def save(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each worker writes what it holds."""
    parameters, state = get_state_dict(network, optimizer)
    dcp.save({"network": parameters, "optimizer": state}, checkpoint_id=folder)


def load(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each worker reads what it holds now, whatever the number of those that wrote."""
    parameters, state = get_state_dict(network, optimizer)
    kept = {"network": parameters, "optimizer": state}
    dcp.load(kept, checkpoint_id=folder)
    set_state_dict(
        network,
        optimizer,
        model_state_dict=kept["network"],
        optim_state_dict=kept["optimizer"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)

    job = ones.init()
    images, labels = load_digits()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(job.device)
    if dist.is_initialized():  # not where it is the only worker
        for layer in network:
            fully_shard(layer)
        fully_shard(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    job.adopt(network, optimizer)
    job.saves_with(lambda folder: save(folder, network, optimizer))
    if job.checkpoint is not None:
        load(job.checkpoint, network, optimizer)
    loader = job.loader(
        TensorDataset(images[HELD_BACK:], labels[HELD_BACK:]),
        batch_size=128,
    )

    for _ in job.epochs(options.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(network(x.to(job.device)), y.to(job.device))
            optimizer.zero_grad()
            (loss * job.weight).backward()  # FSDP2 takes the plain mean of the workers' gradients
            optimizer.step()
            job.step(loss=loss)

    with torch.no_grad():  # on all workers: each needs the slices of the others
        answers = network(images[:HELD_BACK].to(job.device)).cpu()
    loss = nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item()
    if job.rank == 0:
        result = {"samples": job.samples, "loss": loss, "gpus": job.world_size}
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
