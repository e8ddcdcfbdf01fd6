"""Learn handwritten digits in a job that submitit submits: python submitit_digits.py

Without Slurm it learns them here. The job prints its result, and so does this script with --wait.
"""

import argparse
import gzip
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import submitit
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


class Training:
    """What each task of the job does: one task for each GPU, as many as the job has in this run."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def __call__(self) -> dict[str, float]:
        torch.set_num_threads(1)
        job = ones.init(checkpoint_seconds=300)
        images, labels = load_digits()
        network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(job.device)
        model = job.ddp(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        job.track(optimizer)
        training = TensorDataset(images[HELD_BACK:], labels[HELD_BACK:])
        loader = job.loader(training, batch_size=128, batch_most=512, batch_most_per_gpu=128)
        for _ in job.epochs(self.epochs):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                job.step(loss=loss)
        with torch.no_grad():
            answers = network(images[:HELD_BACK].to(job.device)).cpu()
        return {
            "samples": job.samples,
            "epochs": self.epochs,
            "loss": nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item(),
            "gpus": job.world_size,
        }

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What submitit starts again near the time limit: the same, which finds its checkpoint."""
        return submitit.helpers.DelayedSubmission(self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sizes", default="1-4")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()

    executor = submitit.AutoExecutor(
        "submitit", cluster="slurm" if shutil.which("sbatch") else "debug"
    )
    executor.update_parameters(
        name="submitit-digits",
        timeout_min=30,
        # Tasks for the whole job, because Slurm lets nobody change their number per node later.
        slurm_additional_parameters={
            "elastic": options.sizes,
            "gpus": options.gpus,
            "ntasks": options.gpus,
        },
    )
    job = executor.submit(Training(options.epochs))
    print(job.job_id, flush=True)
    if options.wait or executor.cluster == "debug":
        print(json.dumps(job.result()))


main()
