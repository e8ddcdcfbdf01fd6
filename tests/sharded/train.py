"""A transformer that learns to continue sequences of numbers, for the tests of sharded training.

usage: train.py [--width N] [--layers N] [--epochs N] [--samples N] [--batch N] [--shards N]
                [--ddp] [--pause SECONDS] [--slow FILE] [--seen PREFIX]

Each worker writes the samples that it has committed to PREFIX.HOST-PID, and at the end what has
become of the training to PREFIX.HOST-PID.result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

from ones.slurm_ext import runtime as ones

WORDS, LENGTH = 97, 16


class Layer(torch.nn.Module):
    """One layer: attention to what came before, and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = torch.nn.LayerNorm(width)
        self.mixed = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.between = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)
        self.heads = max(1, width // 64)

    def forward(self, states: Any) -> Any:
        batch, length, width = states.shape
        parts = self.mixed(self.before(states)).chunk(3, dim=-1)
        query, key, value = (
            each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return states + self.narrow(functional.gelu(self.wide(self.between(states))))


class Transformer(torch.nn.Module):
    """Tells the next of LENGTH numbers below WORDS."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        self.places = torch.nn.Embedding(LENGTH, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.last = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, WORDS)

    def forward(self, numbers: Any) -> Any:
        states = self.words(numbers) + self.places.weight
        for layer in self.layers:
            states = layer(states)
        return self.head(self.last(states))


class Sequences(torch.utils.data.Dataset[Any]):
    """Geometric sequences modulo WORDS, each with its number."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, Any]:
        start, ratio = 1 + index % (WORDS - 1), 2 + index // (WORDS - 1) % 7
        numbers = [start * pow(ratio, power, WORDS) % WORDS for power in range(LENGTH + 1)]
        return index, torch.tensor(numbers)


def loss_of(model: Any, batch: Any) -> Any:
    numbers = batch[1].to(next(model.parameters()).device)
    told = model(numbers[:, :-1])
    return functional.cross_entropy(told.reshape(-1, WORDS), numbers[:, 1:].reshape(-1))


def digest(model: Any) -> list[float]:
    """Norms of each parameter, the same however it is cut."""
    found = []
    for parameter in model.parameters():
        whole = parameter.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        found += [whole.double().abs().sum().item(), whole.double().square().sum().item()]
    return found


def peak() -> int:
    """Bytes that this process has had at its most since the last call; 0 where nobody counts.

    Those of its GPU, where it has one.
    """
    if torch.cuda.is_available():
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return most
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=103)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--copy-steps", type=int)
    parser.add_argument("--adds", type=int, default=0, help="1: a parameter after job.fsdp")
    parser.add_argument("--checkpoints")
    parser.add_argument("--checkpoint-seconds", type=float)
    parser.add_argument("--dies-saving", type=Path, help="rank 1, where there is no such file yet")
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--slow", type=Path)
    parser.add_argument("--other-width-from", type=int, default=10**6, help="on ranks from this on")
    parser.add_argument("--seen", required=True)
    return parser.parse_args()


def die_saving(job: Any, once: Path) -> None:
    """Have this worker be killed when it is to write its part of the first checkpoint."""
    write = job._framework.save_shards

    def killed(*words: Any, **more: Any) -> Any:
        if job.rank == 1 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*words, **more)

    job._framework.save_shards = killed


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    job = ones.init(checkpoints=given.checkpoints, checkpoint_seconds=given.checkpoint_seconds)
    if given.dies_saving is not None:
        die_saving(job, given.dies_saving)
    torch.manual_seed(3)
    width = given.width if job.rank < given.other_width_from else 2 * given.width
    network = Transformer(width, given.layers).to(job.device)
    model = job.fsdp(network, shards=given.shards, copy_steps=given.copy_steps)
    if given.adds:
        model.added = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    job.track(optimizer, schedule)
    loader = job.loader(Sequences(given.samples), batch_size=given.batch)
    job.warm_up(lambda batch: loss_of(model, batch))
    host = os.uname().nodename.partition(".")[0]
    seen = Path(f"{given.seen}.{host}-{os.getpid()}")
    for epoch in job.epochs(given.epochs):
        for batch in loader:
            share, before, size, began = job._weight(), job.samples, job.world_size, time.time()
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine, ended, most = float(loss.detach()) * share, time.time(), peak()
            try:
                job.step(loss=loss)
            finally:
                if job.samples > before:
                    numbers = batch[0].tolist() if share else []
                    told = [epoch, before, size, numbers, mine, began, ended, most, peak()]
                    with seen.open("a") as file:
                        file.write(json.dumps(told) + "\n")
            if given.slow is not None and given.slow.exists():
                time.sleep(given.pause)
        schedule.step()
    result = {
        "samples": job.samples,
        "gpus": job.world_size,
        "rate": optimizer.param_groups[0]["lr"],
        "digest": digest(model),
    }
    Path(f"{seen}.result").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
