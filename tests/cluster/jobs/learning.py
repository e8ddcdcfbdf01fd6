"""A training job without PyTorch, so that it starts at once: softmax regression on digits.

usage: learning.py EPOCHS SECONDS SLOW     SECONDS: of a step on a V100; a K80 takes SLOW times that

It follows the documented files and the signal. Its result tells the loss that it came to, which no
number of restarts changes: the order of the samples depends on the epoch alone.
"""

import gzip
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

JOB = os.environ["SLURM_JOB_ID"]
RESTARTS = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
STATE = Path(f"learnt-{JOB}.npz")
EPOCHS, SECONDS, SLOW = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
BATCH = 128
asked = False


def ask(*_: object) -> None:
    global asked  # noqa: PLW0603
    asked = True


def put(path: Path, said: dict[str, object]) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(said))
    beside.replace(path)


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = np.column_stack([table[:, :-1] / 16, np.ones(len(table), dtype=np.float32)])
    return images, table[:, -1].astype(np.int64)


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    scores = x @ weights
    scores -= scores.max(axis=1, keepdims=True)
    chance = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -float(np.log(chance[np.arange(len(y)), y] + 1e-12).mean())
    chance[np.arange(len(y)), y] -= 1.0
    return loss, x.T @ chance / len(y)


def main() -> None:
    global asked  # noqa: PLW0603
    signal.signal(signal.SIGUSR1, ask)
    begun = time.monotonic()
    folder = Path(os.environ.get("ONES_JOB_DIR", "."))
    gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) * int(
        os.environ["SLURM_JOB_NUM_NODES"]
    )
    pace = SECONDS * (SLOW if os.environ["SLURMD_NODENAME"] in ("n3", "n4") else 1.0)
    images, labels = load_digits()
    steps = len(images) // BATCH
    weights, step = np.zeros((images.shape[1], 10), dtype=np.float32), 0
    if STATE.exists():
        with np.load(STATE) as state:
            weights, step = state["weights"], int(state["step"])
    loss, told = 0.0, 0.0
    resumed = time.monotonic() - begun
    while step < EPOCHS * steps:
        started = time.monotonic()
        order = np.random.default_rng(step // steps).permutation(len(images))
        mine = order[step % steps * BATCH :][:BATCH]
        loss, slope = gradient(weights, images[mine], labels[mine])
        weights -= 0.5 * slope
        step += 1
        if time.monotonic() > told + 0.5 or asked:
            told = time.monotonic()
            said = {
                "restarts": RESTARTS,
                "samples": step * BATCH,
                "step_seconds": pace,
                "batch": BATCH,
                "gpus": gpus,
                "loss": loss,
                "total_samples": EPOCHS * steps * BATCH,
                "epoch_samples": steps * BATCH,
                "resumed_seconds": resumed,
            }
            put(folder / "report.json", said)
        if asked:
            asked = False
            beside = STATE.with_name(f".{STATE.name}")
            np.savez(beside, weights=weights, step=step)
            beside.replace(STATE)
            put(folder / "checkpoint.json", {"restarts": RESTARTS, "samples": step * BATCH})
        time.sleep(max(0.0, started + pace - time.monotonic()))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python takes its handlers back as it ends
    answers = (images @ weights).argmax(axis=1)
    result = {"samples": step * BATCH, "accuracy": float((answers == labels).mean())}
    Path(f"result-{JOB}.json").write_text(json.dumps(result))


main()
