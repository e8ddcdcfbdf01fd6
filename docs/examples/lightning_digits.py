"""Learn handwritten digits with PyTorch Lightning, on as many GPUs as the job has just now.

Plain Lightning, but for the lines with `elastic` in them. It runs in a Slurm job under ones-run,
and by itself: python lightning_digits.py
"""

import argparse
import gzip
import importlib.util
import json
import os
from pathlib import Path

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def validation_step(self, batch, number):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.network(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)

    elastic = ones.LightningCallback()  # before anything that asks for the number of GPUs
    images, labels = load_digits()
    training = TensorDataset(images[HELD_BACK:], labels[HELD_BACK:])
    testing = TensorDataset(images[:HELD_BACK], labels[:HELD_BACK])
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        callbacks=[elastic],
        logger=False,
        enable_checkpointing=False,  # of your own; those of ONES don't need it
        enable_progress_bar=False,
        **elastic.here,
    )
    trainer.fit(
        Digits(),
        elastic.loader(training, batch_size=128, batch_most=512, batch_most_per_gpu=128),
        DataLoader(testing, batch_size=HELD_BACK),
        ckpt_path=elastic.checkpoint,
    )
    if trainer.is_global_zero:
        result = {
            "samples": elastic.job.samples,
            "epochs": trainer.current_epoch,
            "loss": trainer.callback_metrics["loss"].item(),
            "gpus": trainer.world_size,
        }
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
