"""How long the bytes of a change take by themselves: the least that its pause can be.

usage: transfer.py BEFORE AFTER SHARDS WIDTH LAYERS RANK STORE

As many processes as take part in the change of sharded workers send each other the same slices, and
do nothing else: over gloo, or NCCL where there is a GPU. SHARDS is 0 where all workers share one
copy. Rank 0 prints the seconds of the fastest of some times.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from train import Transformer

from ones.slurm_ext.runtime.live.bundle import cut_of
from ones.slurm_ext.runtime.live.reshard import Part, moves

TIMES = 3
NUMBER = 4  # bytes, in fp32
STATE = 3  # tensors for each parameter: itself, and two of AdamW


def main() -> None:
    before, after, shards, width, layers, rank = (int(word) for word in sys.argv[1:7])
    store = f"file://{sys.argv[7]}"
    size = max(before, after)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    name = "nccl" if cuda else "gloo"
    dist.init_process_group(name, init_method=store, rank=rank, world_size=size)
    with torch.device("meta"):
        model = Transformer(width, layers)
    parts = STATE * [
        Part(each.shape[0], each.numel() // each.shape[0] * NUMBER) for each in model.parameters()
    ]
    old = {place: (cut_of(place, before, shards or None)[1],) for place in range(before)}
    new = {place: cut_of(place, after, shards or None)[1] for place in range(after)}
    sends, receives = [], []
    for tag, move in enumerate(moves(parts, old, new), start=1):
        numbers = (move.end - move.begin) * parts[move.part].row // NUMBER
        if move.source == rank:
            sends.append((torch.ones(numbers, device=device), move.target, tag))
        elif move.target == rank:
            receives.append((numbers, move.source, tag))
    found = []
    for _ in range(TIMES):
        # New memory each time, as new slices are.
        slices = [
            (torch.empty(numbers, device=device), source, tag) for numbers, source, tag in receives
        ]
        dist.barrier()
        began = time.perf_counter()
        calls = [(dist.irecv, *each) for each in slices] + [(dist.isend, *each) for each in sends]
        if cuda:  # all at once, as NCCL needs it
            works = dist.batch_isend_irecv(
                [dist.P2POp(call, tensor, peer) for call, tensor, peer, _ in calls]
            )
        else:
            works = [call(tensor, peer, tag=tag) for call, tensor, peer, tag in calls]
        for work in works:
            work.wait()
        if cuda:
            torch.cuda.synchronize()
        dist.barrier()
        found.append(time.perf_counter() - began)
    if rank == 0:
        print(min(found))


if __name__ == "__main__":
    main()
