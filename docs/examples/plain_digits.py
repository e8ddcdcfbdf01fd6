"""Learn handwritten digits with PyTorch, resizable without any library of ONES.

What makes it resizable is marked (1) to (4). Needs one task per GPU: srun python plain_digits.py
"""

import argparse
import gzip
import importlib.util
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

HELD_BACK = 297  # samples to test with
BATCH, RATE = 128, 0.1  # what this script was written for
BATCH_MOST, BATCH_MOST_PER_GPU = 512, 128

rank = int(os.environ.get("SLURM_PROCID", "0"))
world = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
job = os.environ.get("SLURM_JOB_ID", "0")
restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
checkpoint = Path(f"plain-checkpoint-{job}.pt")

# (1) The signal asks for a checkpoint. It only sets a flag: a step is never cut in two.
asked = False


def on_signal(number, frame):
    global asked
    asked = True


SIGNAL = getattr(signal, "SIG" + os.environ.get("ONES_CHECKPOINT_SIGNAL", "USR1"))
signal.signal(SIGNAL, on_signal)


def write(path, fill):
    """Let a file appear at once and whole."""
    draft = path.with_suffix(".writing")
    with draft.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def tell(name, **fields):
    """(2) Leave a message for the node's agent. Without an agent there is no such folder."""
    folder = os.environ.get("ONES_JOB_DIR")
    if rank == 0 and folder:
        message = json.dumps({"restarts": restarts, **fields}).encode()
        try:
            write(Path(folder) / f"{name}.json", lambda file: file.write(message))
        except OSError as fault:
            print(f"no message to the agent: {fault}", file=sys.stderr)


def since_start():
    """Seconds for which this process has been running, its slow imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def load_digits():
    """The 1797 digits that come with scikit-learn, read without importing it: that takes longer."""
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :-1] / 16), torch.from_numpy(table[:, -1].astype(np.int64))


def meet():
    """Make a process group out of the tasks of this step."""
    nodes = os.environ["SLURM_STEP_NODELIST"]
    first = re.match(r"[^,\[]+(\[[0-9]+)?", nodes)[0].replace("[", "")
    port = 16384 + (int(job) * 61 + restarts * 7 + 3) % 16384
    store = dist.TCPStore(first, port, world, is_master=rank == 0, use_libuv=False)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


def main():
    global asked
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())
    if world > 1:
        meet()
    images, labels = load_digits()
    train, targets = images[HELD_BACK:].to(device), labels[HELD_BACK:].to(device)

    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    # (3) The plan's batch size, with the learning rate in proportion.
    batch = min(int(os.environ.get("ONES_BATCH_SIZE", BATCH)), BATCH_MOST)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE * batch / BATCH, momentum=0.9)
    epoch, done, samples = 0, 0, 0
    if restarts and checkpoint.exists():
        # (4) A restarted job goes on where its checkpoint stands.
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(saved["network"])
        momenta = saved["optimizer"]
        momenta["param_groups"] = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(momenta)
        epoch, done, samples = saved["epoch"], saved["done"], saved["samples"]
    model = nn.parallel.DistributedDataParallel(network) if world > 1 else network

    declared = {
        "gpus": world,
        "batch": batch,
        "batch_submitted": BATCH,
        "batch_most": BATCH_MOST,
        "batch_most_per_gpu": BATCH_MOST_PER_GPU,
        "epoch_samples": len(train),
        "total_samples": options.epochs * len(train),
    }
    tell("report", samples=samples, **declared)

    told, steps = time.monotonic(), 0
    while epoch < options.epochs:
        order = torch.from_numpy(np.random.RandomState(epoch).permutation(len(train)))
        while done < len(train):
            size = min(batch, len(train) - done)
            mine = order[done + rank : done + size : world].to(device)
            # DDP divides by the number of workers; the samples are what counts.
            share = nn.functional.cross_entropy(model(train[mine]), targets[mine], reduction="sum")
            loss = share * world / size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done, samples, steps = done + size, samples + size, steps + 1
            # What a restart costs: ONES weighs it against what a move gains.
            declared.setdefault("resumed_seconds", since_start())

            # All workers must act at the same step, and the signal may reach some of them later.
            vote = torch.tensor([int(asked)], device=device)
            if world > 1:
                dist.all_reduce(vote, op=dist.ReduceOp.MAX)
            if vote.item():
                asked = False
                if rank == 0:
                    state = {
                        "network": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "epoch": epoch,
                        "done": done,
                        "samples": samples,
                    }
                    write(checkpoint, lambda file, state=state: torch.save(state, file))
                    tell("checkpoint", samples=samples, path=str(checkpoint.absolute()))
            if time.monotonic() - told >= 1:
                seconds = (time.monotonic() - told) / steps
                tell("report", samples=samples, loss=loss.item(), step_seconds=seconds, **declared)
                told, steps = time.monotonic(), 0
        epoch, done = epoch + 1, 0
    # Nothing is asked any more of a job that says so: the signal ends what has no handler for it,
    # as Python has none while it ends.
    signal.signal(SIGNAL, signal.SIG_IGN)
    tell("report", samples=samples, checkpoints=False, **declared)

    if rank == 0:
        with torch.no_grad():
            answers = network(images[:HELD_BACK].to(device)).cpu()
        loss = nn.functional.cross_entropy(answers, labels[:HELD_BACK]).item()
        result = {"samples": samples, "epochs": options.epochs, "loss": loss, "gpus": world}
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))
    if world > 1:
        dist.destroy_process_group()


main()
