"""Loops of Lightning and Hugging Face in real processes: stopped, and gone on with elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from patience import PATIENCE, eventually

pytestmark = pytest.mark.torch
SAMPLES, EPOCHS = 103, 4
COUNTED = """
import json, os, signal, sys, time
import torch

torch.set_num_threads(1)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 103

    def __getitem__(self, number):
        return {"numbers": number, "x": torch.full((4,), number / 103)}

steps, told = 0, []

def seen(epoch, numbers):
    global steps
    steps += 1
    if steps == 1:  # or who is a step behind could wait for a signal that has come already
        taken = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *it: (told.append(it), taken(*it)))
    with open(f"{os.environ['SEEN']}.{job.rank}", "a") as file:
        file.write(json.dumps([epoch, job.samples, job.world_size, numbers.tolist()]) + "\\n")
    while steps == int(os.environ.get("HELD_AFTER", 0)) and not told:
        time.sleep(0.01)
"""
LIGHTNING = """
import lightning
import ones

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        if job._weight():
            seen(self.current_epoch, batch["numbers"])
        return self.line(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

elastic = ones.LightningCallback(checkpoints=os.environ["CHECKPOINTS"])
job = elastic.job
trainer = lightning.Trainer(max_epochs=4, callbacks=[elastic], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    accumulate_grad_batches=int(os.environ.get("PASSES", 1)), **elastic.here)
loader = elastic.loader(Numbers(), batch_size=16, batch_most=64)
trainer.fit(Module(), loader, ckpt_path=elastic.checkpoint)
if job.rank == 0:
    print(json.dumps({"samples": job.samples, "epochs": trainer.current_epoch}))
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
import ones

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, numbers, x):
        seen(trainer.state.global_step // 13, numbers)
        return {"loss": self.line(x).square().mean()}

elastic = ones.TransformersCallback(8, most_per_gpu=4, checkpoints=os.environ["CHECKPOINTS"])
job = elastic.job
arguments = TrainingArguments(output_dir=os.environ["OUTPUT"], num_train_epochs=4,
    save_strategy="no", report_to="none", disable_tqdm=True, **elastic.here)
trainer = Trainer(Line(), arguments, train_dataset=Numbers(), callbacks=[elastic])
trainer.train(resume_from_checkpoint=elastic.checkpoint)
if job.rank == 0:
    print(json.dumps({"samples": job.samples, "epochs": trainer.state.epoch}))
"""


class Loop:
    """Runs of one training script in one folder."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(COUNTED + script)
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HF_HUB_OFFLINE": "1",
            "CHECKPOINTS": str(folder / "checkpoints"),
            "OUTPUT": str(folder / "output"),
            "SEEN": str(folder / "seen"),
        }

    def start(self, workers: int, **more: str) -> subprocess.Popen[str]:
        launcher = ["-m", "ones.slurm_ext.runtime.launcher", f"--workers={workers}"]
        return subprocess.Popen(
            [sys.executable, *launcher, str(self.script)],
            env={**self.environment, **more},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stopped_after(self, steps: int, workers: int, **more: str) -> None:
        """Train with so many workers until Slurm would stop the job."""
        before = len(self.seen(0))
        running = self.start(workers, HELD_AFTER=str(steps), **more)

        def there() -> bool:
            reached = len(self.seen(0)) >= before + steps
            assert reached or running.poll() is None, running.communicate()
            return reached

        eventually(there)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == 143, said

    def seen(self, rank: int) -> list[tuple[int, int, int, list[int]]]:
        file = self.folder / f"seen.{rank}"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def finished(self, workers: int, **more: str) -> dict[str, float]:
        said, faults = (running := self.start(workers, **more)).communicate(timeout=PATIENCE)
        assert running.returncode == 0, faults
        result: dict[str, float] = json.loads(said.splitlines()[-1])
        return result

    def counted(self) -> Counter[tuple[int, int]]:
        """How often each sample of each epoch was seen."""
        lines = [line for rank in range(3) for line in self.seen(rank)]
        return Counter((epoch, number) for epoch, *_, numbers in lines for number in numbers)


@pytest.fixture
def lightning(tmp_path: Path) -> Loop:
    pytest.importorskip("lightning", reason="Lightning is not installed here")
    return Loop(tmp_path, LIGHTNING)


@pytest.fixture
def trainer(tmp_path: Path) -> Loop:
    pytest.importorskip("transformers", reason="transformers is not installed here")
    pytest.importorskip("accelerate", reason="accelerate is not installed here")
    return Loop(tmp_path, TRAINER)


def test_lightning_goes_on_in_an_epoch_with_other_workers_and_another_batch(
    lightning: Loop,
) -> None:
    lightning.stopped_after(3, workers=2)
    lightning.stopped_after(6, workers=3, ONES_BATCH_SIZE="30")
    assert lightning.finished(1) == {"samples": EPOCHS * SAMPLES, "epochs": EPOCHS}
    counted = lightning.counted()
    assert set(counted.values()) == {1}
    assert len(counted) == EPOCHS * SAMPLES


def test_lightning_stopped_after_an_epochs_last_step_begins_the_next_one(lightning: Loop) -> None:
    lightning.stopped_after(7, workers=1)
    saved = [path.name for path in (lightning.folder / "checkpoints").iterdir()]
    assert list(map(int, saved)) == [SAMPLES]
    assert lightning.finished(2) == {"samples": EPOCHS * SAMPLES, "epochs": EPOCHS}
    counted = lightning.counted()
    assert set(counted.values()) == {1}
    assert len(counted) == EPOCHS * SAMPLES


@pytest.mark.parametrize(("first", "second"), [((7, ""), (7, "")), ((5, ""), (1, "30"))])
def test_lightning_stopped_at_the_end_of_two_epochs_or_of_one_with_another_batch(
    lightning: Loop, first: tuple[int, str], second: tuple[int, str]
) -> None:
    for steps, batch in (first, second):
        lightning.stopped_after(steps, workers=1, **({"ONES_BATCH_SIZE": batch} if batch else {}))
    assert lightning.finished(1) == {"samples": EPOCHS * SAMPLES, "epochs": EPOCHS}
    assert lightning.counted() == {
        (epoch, number): 1 for epoch in range(EPOCHS) for number in range(SAMPLES)
    }


def test_lightning_is_refused_what_would_be_wrong(lightning: Loop) -> None:
    running = lightning.start(1, PASSES="2")
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "accumulate_grad_batches can't be used with LightningCallback" in said


def test_a_trainer_goes_on_with_other_workers_and_fills_an_epochs_last_step_up(
    trainer: Loop,
) -> None:
    trainer.stopped_after(5, workers=2)
    trainer.stopped_after(10, workers=1)  # a step takes two passes there
    assert trainer.finished(2)["samples"] == EPOCHS * 13 * 8
    counted = trainer.counted()
    assert len(counted) == EPOCHS * SAMPLES
    twice = Counter(epoch for (epoch, _), times in counted.items() for _ in range(times - 1))
    assert twice == dict.fromkeys(range(EPOCHS), 1)  # 13 steps of 8 for 103 samples


def test_a_trainer_is_refused_a_size_that_does_not_divide_its_batch(trainer: Loop) -> None:
    running = trainer.start(3)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "a batch of 8 can't be cut into 3 equal parts" in said
