"""The training of train.py under torchft's HSDP: one worker of one replica.

usage: torchft_train.py FOLDER REPLICA RANK WIDTH LAYERS BATCH

Each replica is a copy of the model, cut over REPLICA workers by FSDP2. It begins once
FOLDER/go-REPLICA is there, with everything that can be done before already done, and leaves in good
order once that file is gone. Steps are written to FOLDER/torchft.REPLICA-RANK as train.py does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replicas import REPLICA
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torchft import Manager, Optimizer, ProcessGroupGloo
from train import Sequences, Transformer, loss_of, peak

from ones.slurm_ext.runtime.sharding import by_layers


def main(folder: Path, replica: str, rank: int, *, width: int, layers: int, batch: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    file = dist.FileStore(str(folder / f"store-{replica}"), REPLICA)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=REPLICA)
    model = Transformer(width, layers)
    by_layers({})(model, init_device_mesh("cpu", (REPLICA,), mesh_dim_names=("shards",)))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Sequences(1000)
    numbers = torch.stack([samples[index][1] for index in range(batch)])
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    if rank == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, 0)
    go = folder / f"go-{replica}"
    (folder / f"ready-{replica}-{rank}").touch()
    while not go.exists():
        time.sleep(0.01)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "adam": adam.state_dict()}

    def load(found: dict[str, Any]) -> None:
        model.load_state_dict(found["model"])
        adam.load_state_dict(found["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=300)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        # Else the state is taken in a thread beside the forward pass, where state_dict() has FSDP2
        # give up what it has gathered, and the backward pass fails.
        use_async_quorum=False,
        timeout=timedelta(seconds=300),
        quorum_timeout=timedelta(seconds=300),
        rank=rank,
        world_size=REPLICA,
        store_addr="localhost",
        store_port=int(port),
        replica_id=f"replica_{replica}",
    )

    def average(gradients: torch.Tensor) -> None:
        manager.allreduce(gradients).wait()

    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_all_reduce_hook(average)
    optimizer = Optimizer(manager, adam)
    step = 0
    told = (folder / f"torchft.{replica}-{rank}").open("w", buffering=1)
    while True:
        # Both workers of the replica leave after the same step.
        stay = torch.tensor(int(go.exists()))
        dist.all_reduce(stay, op=dist.ReduceOp.MIN)
        if not stay:
            break
        began = time.time()
        present = max(1, manager.num_participants() if manager.current_step() else 1)
        share = max(1, batch // (REPLICA * present))
        optimizer.zero_grad()
        loss = loss_of(model, (None, numbers[:share]))
        loss.backward()
        optimizer.step()
        workers, ended = manager.num_participants() * REPLICA, time.time()
        line = [0, step, workers, [], float(loss.detach()), began, ended, peak(), 0]
        told.write(json.dumps(line) + "\n")
        step = manager.current_step()
    manager.shutdown(wait=False)
    os._exit(0)  # threads of torchft would wait for their time to be up


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]),
        width=int(sys.argv[4]), layers=int(sys.argv[5]), batch=int(sys.argv[6]),
    )  # fmt: skip
