"""The training that scripts/benchmark-live resizes: parameters and Adam's state are 104 MB.

Rank 0 writes a line a step to the file STEPS: workers, and the times at which the step began, at
which it ended, and at which the next one may begin. What a resize takes lies between the last two.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

WIDTH, LAYERS, BATCH = 380, 60, 32


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def told(*step: float) -> None:
    with Path(os.environ["STEPS"]).open("a") as file:
        file.write(json.dumps(step) + "\n")


def main() -> None:
    import ones

    torch.set_num_threads(1)
    job = ones.init(checkpoints=os.environ["CHECKPOINTS"])
    ddp = job.ddp(network().to(job.device))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-4)
    job.track(optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH))
    loader = job.loader(data, batch_size=BATCH)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = (each.to(job.device) for each in batch)
        return mse_loss(ddp(x), y)

    job.warm_up(loss_of)
    begun = time.time()
    for _ in job.epochs(10**6):
        for batch in loader:
            size = job.world_size
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            float(loss.detach())  # a GPU has ended by then
            ended = time.time()
            job.step(loss=loss)
            if job.rank == 0:
                told(size, begun, ended, time.time())
            begun = time.time()


if __name__ == "__main__":
    main()
