"""A job that only counts samples, by the documented files and signal: for tests of what steers it.

usage: counting.py TOTAL RATE [deaf]     RATE: samples a second on one GPU; deaf: ignores the signal
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

JOB = os.environ["SLURM_JOB_ID"]
RESTARTS = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
STATE = Path(f"checkpoint-{JOB}.json")
TOTAL, RATE, DEAF = float(sys.argv[1]), float(sys.argv[2]), "deaf" in sys.argv
asked = False


def ask(*_: object) -> None:
    global asked  # noqa: PLW0603
    asked = not DEAF


def put(path: Path, said: dict[str, object]) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(said))
    beside.replace(path)


def main() -> None:
    global asked  # noqa: PLW0603
    signal.signal(signal.SIGUSR1, ask)
    folder = Path(os.environ.get("ONES_JOB_DIR", "."))
    gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) * int(
        os.environ["SLURM_JOB_NUM_NODES"]
    )
    samples = json.loads(STATE.read_text())["samples"] if STATE.exists() else 0.0
    batch = int(os.environ.get("ONES_BATCH_SIZE", "64"))
    while samples < TOTAL:
        said = {
            "restarts": RESTARTS,
            "samples": int(samples),
            "step_seconds": batch / (RATE * gpus**0.9),
            "batch": batch,
            "gpus": gpus,
            "total_samples": int(TOTAL),
            "epoch_samples": max(1, int(TOTAL / 20)),
            "resumed_seconds": 1.0,
        }
        put(folder / "report.json", said)
        if asked:
            asked = False
            put(STATE, {"samples": samples})
            put(folder / "checkpoint.json", {"restarts": RESTARTS, "samples": int(samples)})
        time.sleep(0.5)
        samples = min(TOTAL, samples + 0.5 * RATE * gpus**0.9)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python takes its handlers back as it ends
    Path(f"result-{JOB}.json").write_text(json.dumps({"samples": int(samples)}))


main()
