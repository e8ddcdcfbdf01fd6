"""Real trainings beside each other on one GPU, as scripts/evaluate-interference reads them.

usage: scripts/measure-sharing FOLDER [--seconds S] [--models NAME,NAME...]

On a machine with an NVIDIA GPU, with torch, torchvision and transformers. Each training is a
process of its own. First each runs alone, then each two of them at once, for --seconds each;
FOLDER/single_data.csv says how busy the GPU was by NVML, and FOLDER/pairs.csv how fast both were
relative to their speed alone. Inputs come from pinned memory of the host at each step, and the host
reads the loss ten times a second or at every tenth step. Where CUDA's MPS runs, they use it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import mean
from typing import Any

import pynvml  # type: ignore[import-untyped]

SETTLE = 0.5  # seconds of each measurement that don't count
READ = 10  # steps between two looks at the loss, at most ...
LOOK = 0.1  # ... and seconds
PERIOD = 0.1  # seconds between two looks at the GPU
Step = Callable[[], Any]  # one step of training; gives the loss


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, in batches of how many, and whether in half precision."""

    model: str
    batch: int
    half: bool
    inputs: Callable[[Any, int], tuple[Any, ...]]
    network: Callable[[], Any]


def trainings() -> dict[str, Training]:
    import torch
    import torchvision.models as vision
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    def images(side: int, classes: int) -> Callable[[Any, int], tuple[Any, ...]]:
        def make(generator: Any, batch: int) -> tuple[Any, ...]:
            pixels = torch.randn(batch, 3, side, side, generator=generator)
            return pixels, torch.randint(classes, (batch,), generator=generator)

        return make

    def words(length: int, count: int) -> Callable[[Any, int], tuple[Any, ...]]:
        def make(generator: Any, batch: int) -> tuple[Any, ...]:
            return (torch.randint(count, (batch, length), generator=generator),)

        return make

    class Text(torch.nn.Module):
        """A language model of transformers, which works out its own loss."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, numbers: Any) -> Any:
            return self.model(input_ids=numbers, labels=numbers).loss

    class Images(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: Any, classes: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.model(pixels), classes)

    class Recurrent(torch.nn.Module):
        """Two layers of LSTM over a sequence of words, each of which it foretells."""

        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(10_000, 650)
            self.layers = torch.nn.LSTM(650, 650, 2, batch_first=True)
            self.last = torch.nn.Linear(650, 10_000)

        def forward(self, numbers: Any) -> Any:
            told = self.last(self.layers(self.words(numbers[:, :-1]))[0])
            return torch.nn.functional.cross_entropy(told.flatten(0, 1), numbers[:, 1:].flatten())

    def bert() -> Any:
        return Text(BertForMaskedLM(BertConfig()))

    def gpt2() -> Any:
        return Text(GPT2LMHeadModel(GPT2Config()))

    found = [
        Training("ResNet18", 128, False, images(32, 10), lambda: Images(vision.resnet18())),
        Training("ResNet18", 1024, True, images(32, 10), lambda: Images(vision.resnet18())),
        Training("ResNet50", 32, False, images(224, 1000), lambda: Images(vision.resnet50())),
        Training("ResNet50", 128, True, images(224, 1000), lambda: Images(vision.resnet50())),
        Training(
            "MobileNetV3", 128, False, images(64, 200),
            lambda: Images(vision.mobilenet_v3_small()),
        ),
        Training("ViT-B16", 32, True, images(224, 1000), lambda: Images(vision.vit_b_16())),
        Training("BERT", 16, True, words(128, 30_000), bert),
        Training("BERT", 64, True, words(128, 30_000), bert),
        Training("GPT2", 8, True, words(256, 50_000), gpt2),
        Training("LSTM", 64, False, words(36, 10_000), Recurrent),
    ]  # fmt: skip
    return {f"{each.model}-{each.batch}": each for each in found}


def train(name: str) -> None:
    """Be one training: run for as many seconds as each line of the standard input says."""
    import torch

    training = trainings()[name]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    network = training.network().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    inputs = training.inputs(torch.Generator().manual_seed(2), training.batch)
    if device.type == "cuda":
        inputs = tuple(each.pin_memory() for each in inputs)

    def step() -> Any:
        batch = [each.to(device, non_blocking=True) for each in inputs]
        with torch.autocast(device.type, torch.bfloat16, enabled=training.half):
            loss = network(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        begun = time.perf_counter()
        float(step())
    every = max(1, min(READ, round(LOOK / (time.perf_counter() - begun))))
    print("ready", flush=True)
    for line in sys.stdin:
        begin, end = json.loads(line)
        print(json.dumps(speed(step, every, begin, end)), flush=True)


def speed(step: Step, every: int, begin: float, end: float) -> float:
    """Steps a second between two times of the clock; the training runs a little longer."""
    seen: list[tuple[float, int]] = []
    done = 0
    while not seen or seen[-1][0] < end + SETTLE:
        for _ in range(every):
            loss = step()
        float(loss)
        done += every
        seen.append((time.time(), done))
    inside = [(at, count) for at, count in seen if begin <= at <= end]
    if len(inside) < 2:  # a few long steps
        inside = seen
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


class Gpu:
    """How busy the GPU is, by NVML."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def over(self, seconds: float) -> tuple[float, float]:
        """Means, in %, of time in which kernels ran, and in which memory was read or written."""
        end, seen = time.monotonic() + seconds, []
        while time.monotonic() < end:
            used = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
            seen.append((used.gpu, used.memory))
            time.sleep(PERIOD)
        return mean(each[0] for each in seen), mean(each[1] for each in seen)


class Runs:
    """The processes, which wait to be told."""

    def __init__(self, names: Sequence[str], copies: int) -> None:
        self._running = {
            (name, copy): subprocess.Popen(
                [sys.executable, __file__, "--train", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
            for copy in range(copies)
        }
        for (name, _), process in self._running.items():
            if self._said(process) != "ready":
                raise RuntimeError(f"{name} did not begin")

    @staticmethod
    def _said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def together(
        self, names: Sequence[str], seconds: float, gpu: Gpu
    ) -> tuple[list[float], tuple[float, float]]:
        """Steps a second of each, and how busy the GPU was."""
        begin = time.time() + SETTLE
        chosen = [self._running[name, names[:at].count(name)] for at, name in enumerate(names)]
        for process in chosen:
            assert process.stdin is not None
            process.stdin.write(json.dumps([begin, begin + seconds]) + "\n")
            process.stdin.flush()
        time.sleep(SETTLE)
        busy = gpu.over(seconds)
        return [float(self._said(process)) for process in chosen], busy

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--train"]:
        train(arguments[1])
        return 0
    parser = argparse.ArgumentParser(prog="scripts/measure-sharing", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--models", default="", help="all by default; else those with commas")
    chosen = parser.parse_args(arguments)
    known = trainings()
    names = chosen.models.split(",") if chosen.models else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no {unknown[0]}; known are {', '.join(known)}")
    try:
        gpu = Gpu()
    except pynvml.NVMLError as fault:
        print(f"scripts/measure-sharing: error: no GPU here: {fault}", file=sys.stderr)
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(names, copies=2)
    try:
        measure(runs, {name: known[name] for name in names}, gpu, chosen.folder, chosen.seconds)
    finally:
        runs.end()
    return 0


def measure(
    runs: Runs, known: Mapping[str, Training], gpu: Gpu, folder: Path, seconds: float
) -> None:
    alone: dict[str, float] = {}
    with (folder / "single_data.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(("model", "batchsize", "amp", "speed", "gpu_util", "gmem_util"))
        for name, each in known.items():
            (alone[name],), busy = runs.together([name], seconds, gpu)
            told = (f"{alone[name]:.3f}", *(f"{share:.1f}" for share in busy))
            write.writerow((each.model, each.batch, int(each.half), *told))
            file.flush()
    head = ("model1", "batchsize1", "amp1", "speed1", "model2", "batchsize2", "amp2", "speed2")
    with (folder / "pairs.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow((*head, "gpu_util", "gmem_util"))
        for pair in combinations_with_replacement(known, 2):
            speeds, busy = runs.together(pair, seconds, gpu)
            row: list[object] = []
            for name, found in zip(pair, speeds, strict=True):
                each = known[name]
                row += [each.model, each.batch, int(each.half), f"{found / alone[name]:.4f}"]
            write.writerow((*row, *(f"{share:.1f}" for share in busy)))
            file.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
