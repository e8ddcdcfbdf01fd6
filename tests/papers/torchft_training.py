"""The training of live_training.py under torchft: one replica, that joins and leaves when told.

usage: torchft_training.py FOLDER NAME

It begins once FOLDER/go-NAME is there, with everything that can be done before already done, and
leaves in good order once that file is gone. The replica 0 writes steps as live_training.py does.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from live_training import BATCH, WIDTH, network, told
from torch.distributed import TCPStore
from torch.nn.functional import mse_loss
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    for _ in range(2):
        mse_loss(model(x), y).backward()
        adam.zero_grad()
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, use_libuv=False)
    go = folder / f"go-{name}"
    (folder / f"ready-{name}").touch()
    while not go.exists():
        time.sleep(0.01)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "adam": adam.state_dict()}

    def load(found: dict[str, Any]) -> None:
        model.load_state_dict(found["model"])
        adam.load_state_dict(found["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"replica_{name}",
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, adam)
    while go.exists():
        begun = time.time()
        # As much of the global batch as falls to one of so many.
        share = max(1, BATCH // max(1, manager.num_participants() if manager.current_step() else 1))
        optimizer.zero_grad()
        mse_loss(ddp(x[:share]), y[:share]).backward()
        optimizer.step()
        if name == "0":
            told(manager.num_participants(), begun, time.time(), time.time())
    manager.shutdown(wait=False)
    os._exit(0)  # threads of torchft would wait for their time to be up


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
