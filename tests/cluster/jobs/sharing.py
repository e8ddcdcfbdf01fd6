"""A job that trains on one emulated GPU, alone or beside another: for tests of sharing.

usage: sharing.py TOTAL STEP BUSY MEMORY BESIDE

STEP: seconds of a step alone; BUSY: share of the GPU's time; MEMORY: GiB of its memory; BESIDE: how
fast it is beside another process on its GPU, relative to that. While the file rude-JOB lies in its
folder, it takes what that says instead, such as {"memory": 15} or {"beside": 0.2}.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

JOB = os.environ["SLURM_JOB_ID"]
RESTARTS = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
STATE, RUDE = Path(f"checkpoint-{JOB}.json"), Path(f"rude-{JOB}")
LOAD = Path("/run/emulation/load")
BATCH = 64
asked = False


def ask(*_: object) -> None:
    global asked  # noqa: PLW0603
    asked = True


def put(path: Path, said: dict[str, object]) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(said))
    beside.replace(path)


def others(minor: int) -> bool:
    """Whether another process of this node is on our GPU."""
    for file in LOAD.glob("[0-9]*"):
        if (
            file.name.isdigit()
            and int(file.name) != os.getpid()
            and Path("/proc", file.name).exists()
        ):
            try:
                if json.loads(file.read_text())["minor"] == minor:
                    return True
            except (OSError, ValueError, KeyError):
                continue  # it is just being replaced
    return False


def main() -> None:
    global asked  # noqa: PLW0603
    signal.signal(signal.SIGUSR1, ask)
    total, step, busy, memory, beside = (float(word) for word in sys.argv[1:6])
    folder = Path(os.environ.get("ONES_JOB_DIR", "."))
    minor = int(os.environ["CUDA_VISIBLE_DEVICES"])
    samples = json.loads(STATE.read_text())["samples"] if STATE.exists() else 0.0
    met = []
    while samples < total:
        now = {"memory": memory, "beside": beside}
        if RUDE.exists():
            now |= json.loads(RUDE.read_text())
        shared = others(minor)
        pace = step / now["beside"] if shared else step
        met.append(pace)
        load = {"minor": minor, "busy": busy, "memory": int(now["memory"] * 2**30), "step": pace}
        beside_it = LOAD / f".{os.getpid()}.new"
        beside_it.write_text(json.dumps(load))
        beside_it.replace(LOAD / str(os.getpid()))
        said = {
            "restarts": RESTARTS,
            "samples": int(samples),
            "step_seconds": sum(met[-4:]) / len(met[-4:]),
            "batch": BATCH,
            "gpus": 1,
            "total_samples": int(total),
            "epoch_samples": max(1, int(total / 20)),
            "resumed_seconds": 1.0,
        }
        put(folder / "report.json", said)
        if asked:
            asked = False
            put(STATE, {"samples": samples})
            put(folder / "checkpoint.json", {"restarts": RESTARTS, "samples": int(samples)})
        time.sleep(0.5)
        samples = min(total, samples + 0.5 * BATCH / pace)
    put(Path(f"result-{JOB}.json"), {"samples": int(samples)})


main()
