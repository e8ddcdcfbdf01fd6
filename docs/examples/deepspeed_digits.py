"""Learn handwritten digits with DeepSpeed's ZeRO, on as many GPUs as the job has just now.

DeepSpeed keeps its engine and its checkpoints, which are written by as many workers as there are;
before another number reads one it is turned into a universal checkpoint. What makes the script
resizable are the lines with `job` in them. It runs in a Slurm job under ones-run.
"""

import argparse
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import deepspeed
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import ones

HELD_BACK = 297  # samples to test with
UNIVERSAL = "universal"  # beside the checkpoint that it is made of


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 digits that come with scikit-learn, read without importing it: that takes longer."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn; pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :-1] / 16), torch.from_numpy(table[:, -1].astype(np.int64))


def universal(job: ones.Job) -> str:
    """The checkpoint that this run goes on from, as any number of workers can read it."""
    made = job.checkpoint / UNIVERSAL
    if job.rank == 0 and not made.exists():
        draft = Path(tempfile.mkdtemp(dir=job.checkpoint))
        command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
        # What ZeRO-1 and 2 leave to the script to say of its parameters: nothing special.
        command.append("--inject_missing_state")
        folders = ["--input_folder", str(job.checkpoint / "zero"), "--output_folder", str(draft)]
        subprocess.run([*command, *folders], check=True, stdout=subprocess.DEVNULL)
        draft.rename(made)
    deepspeed.comm.barrier()
    return str(job.checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO: 1, 2 or 3")
    options = parser.parse_args()
    torch.set_num_threads(1)

    job = ones.init()  # before DeepSpeed, which finds the process group made
    images, labels = load_digits()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    engine, *_ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.AdamW(network.parameters(), lr=0.003),
        config={
            "train_micro_batch_size_per_gpu": 1,  # DeepSpeed only counts with it
            "zero_optimization": {"stage": options.stage},
            "zero_allow_untested_optimizer": True,
            "checkpoint": {"load_universal": job.resumed},
        },
    )
    job.saves_with(lambda folder: engine.save_checkpoint(str(folder), tag="zero"))
    if job.checkpoint is not None:
        engine.load_checkpoint(universal(job), tag=UNIVERSAL)
    loader = job.loader(
        TensorDataset(images[HELD_BACK:], labels[HELD_BACK:]),
        batch_size=128,
    )

    for _ in job.epochs(options.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(engine(x.to(engine.device)), y.to(engine.device))
            engine.backward(loss * job.weight)  # ZeRO takes the plain mean of gradients
            engine.step()
            job.step(loss=loss)

    with torch.no_grad():  # on all workers: with ZeRO-3 each needs the slices of the others
        answers = engine(images[:HELD_BACK].to(engine.device)).cpu()
    loss = nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item()
    if job.rank == 0:
        result = {"samples": job.samples, "loss": loss, "gpus": job.world_size}
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
