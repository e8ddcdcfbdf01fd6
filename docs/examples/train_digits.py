"""Learn handwritten digits with PyTorch, on as many GPUs as the job has just now.

Plain PyTorch, but for the lines with `job` in them. It runs in a Slurm job under ones-run, under
torchrun, and by itself: python train_digits.py
"""

import argparse
import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import torch
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
    parser.add_argument("--batch-size", type=int, default=128, help="of all workers together")
    options = parser.parse_args()
    torch.set_num_threads(1)

    job = ones.init()
    images, labels = load_digits()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(job.device)
    model = job.ddp(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.track(optimizer)
    loader = job.loader(
        TensorDataset(images[HELD_BACK:], labels[HELD_BACK:]),
        batch_size=options.batch_size,
        batch_most=512,
        batch_most_per_gpu=128,
    )

    for _ in job.epochs(options.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            job.step(loss=loss)

    if job.rank == 0:
        with torch.no_grad():
            answers = network(images[:HELD_BACK].to(job.device)).cpu()
        result = {
            "samples": job.samples,
            "epochs": options.epochs,
            "loss": nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item(),
            "accuracy": (answers.argmax(1) == labels[:HELD_BACK]).float().mean().item(),
            "gpus": job.world_size,
        }
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
