"""Learn handwritten digits with Lightning and FSDP2, on as many GPUs as the job has just now.

Plain Lightning, but for the lines with `elastic` in them. It runs in a Slurm job under ones-run, on
two GPUs or more.
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
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
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
    def __init__(self, elastic: ones.LightningCallback) -> None:
        super().__init__()
        self.elastic = elastic
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def configure_model(self):
        if any(isinstance(each, torch.distributed.tensor.DTensor) for each in self.parameters()):
            return  # Lightning calls this more than once
        for layer in self.network:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        # FSDP2 takes the plain mean of the workers' gradients.
        return {"loss": loss * self.elastic.job.weight}

    def validation_step(self, batch, number):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.network(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


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
        strategy=ModelParallelStrategy(
            data_parallel_size=elastic.job.world_size, tensor_parallel_size=1
        ),
        logger=False,
        enable_checkpointing=False,  # of your own; those of ONES don't need it
        enable_progress_bar=False,
        **elastic.here,
    )
    trainer.fit(
        Digits(elastic),
        elastic.loader(training, batch_size=128),
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
