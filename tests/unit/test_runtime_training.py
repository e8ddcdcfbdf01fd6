"""Real training in real processes: stopped, killed, and gone on with at another size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from listening_agent import ListeningAgent
from patience import PATIENCE, eventually

from ones.daemon.wire import Checkpoint, Report
from ones.slurm_ext.runtime.reporting import Reporter

pytestmark = pytest.mark.torch
SAMPLES, EPOCHS, BATCH = 103, 12, 16
SCRIPT = """
import json, os, sys, time
import torch
import ones

EPOCHS, BATCH, PAUSE = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
job = ones.init(checkpoints=os.environ.get("CHECKPOINTS"))
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(103, 8, generator=generator)
answers = inputs @ torch.randn(8, 1, generator=generator)
model = torch.nn.Linear(8, 1)
ddp = job.ddp(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
job.track(optimizer, schedule)
loader = job.loader(list(range(103)), batch_size=BATCH, batch_most=64)
for epoch in job.epochs(EPOCHS):
    for numbers in loader:
        weight = job._weight()
        loss = (ddp(inputs[numbers]) - answers[numbers]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if weight and os.environ.get("SEEN"):
            with open(f"{os.environ['SEEN']}.{job.rank}", "a") as file:
                file.write(json.dumps([epoch, numbers.tolist()]) + "\\n")
        job.step(loss=loss)
        time.sleep(PAUSE)
    schedule.step()
if job.rank == 0:
    loss = (model(inputs) - answers).square().mean().item()
    print(json.dumps({"samples": job.samples, "loss": loss, "gpus": job.world_size,
                      "batch": job.batch, "rate": optimizer.param_groups[0]["lr"]}))
"""


class Training:
    """Runs of one training script in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "CHECKPOINTS": str(self.checkpoints),
            "SEEN": str(folder / "seen"),
        }
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.running: subprocess.Popen[str] | None = None

    def start(self, *launcher: str, pause: float = 0.0, **more: str) -> subprocess.Popen[str]:
        arguments = [str(self.script), str(EPOCHS), str(BATCH), str(pause)]
        self.running = subprocess.Popen(
            [sys.executable, *launcher, *arguments],
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.running

    def under_ones_run(
        self, workers: int, *, pause: float = 0.0, **more: str
    ) -> subprocess.Popen[str]:
        return self.start(
            "-m", "ones.slurm_ext.runtime.launcher", f"--workers={workers}", pause=pause, **more
        )

    def result(self) -> dict[str, Any]:
        assert self.running is not None
        output, _ = self.running.communicate(timeout=PATIENCE)
        assert self.running.returncode == 0
        result: dict[str, Any] = json.loads(output)
        return result

    def wait_for_steps(self, steps: int) -> None:
        def there() -> bool:
            reached = len(self.seen(0)) >= steps
            assert self.running is not None
            assert reached or self.running.poll() is None
            return reached

        eventually(there)

    def seen(self, rank: int) -> list[tuple[int, list[int]]]:
        file = self.folder / f"seen.{rank}"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path)
    yield training
    if training.running is not None and training.running.poll() is None:
        os.killpg(training.running.pid, signal.SIGKILL)
        training.running.wait()


def test_a_stopped_job_goes_on_at_another_size_and_sees_every_sample_once(
    training: Training,
) -> None:
    training.start(SEEN="", CHECKPOINTS=str(training.folder / "none"))
    whole = training.result()
    first = training.under_ones_run(2, pause=0.1)
    training.wait_for_steps(10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=PATIENCE) == 143
    training.under_ones_run(3)
    resized = training.result()
    assert resized["samples"] == whole["samples"] == EPOCHS * SAMPLES
    assert resized["gpus"] == 3
    assert resized["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert resized["rate"] == whole["rate"]
    counted = Counter(
        (epoch, number)
        for rank in range(3)
        for epoch, numbers in training.seen(rank)
        for number in numbers
    )
    assert set(counted.values()) == {1}
    assert len(counted) == EPOCHS * SAMPLES


def test_a_checkpoint_is_confirmed_training_goes_on_and_a_kill_loses_only_what_came_after(
    training: Training,
) -> None:
    agent = ListeningAgent(training.folder / "agent.sock")
    agent.up()
    inside = {"SLURM_JOB_ID": "42", "ONES_SOCKET": str(training.folder / "agent.sock")}
    first = training.under_ones_run(2, pause=0.1, **inside)
    training.wait_for_steps(5)
    first.send_signal(signal.SIGUSR1)

    def confirmed() -> list[Checkpoint]:
        return [message for message in agent.wait_for(1) if isinstance(message, Checkpoint)]

    eventually(confirmed)
    checkpoint = confirmed()[0]
    steps = len(training.seen(0))
    training.wait_for_steps(steps + 2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert len(confirmed()) == 1
    assert Path(checkpoint.path).parent == training.checkpoints
    assert 0 < checkpoint.samples < EPOCHS * SAMPLES
    agent.taken.clear()

    training.under_ones_run(1, **inside, SLURM_RESTART_COUNT="1", ONES_BATCH_SIZE="32")
    result = training.result()
    assert result["samples"] == EPOCHS * SAMPLES
    assert result["batch"] == 32
    reports = agent.wait_for(2)
    assert isinstance(reports[0], Report)
    assert (reports[0].samples, reports[0].restarts) == (checkpoint.samples, 1)
    assert (reports[0].total_samples, reports[0].batch_most) == (EPOCHS * SAMPLES, 64)
    last = reports[-1]
    assert isinstance(last, Report)
    assert (last.samples, last.total_samples) == (EPOCHS * SAMPLES, EPOCHS * SAMPLES)
    assert (last.batch, last.batch_submitted, last.batch_most, last.gpus) == (32, BATCH, 64, 1)
    assert last.resumed_seconds is not None
    saving = [report.checkpoints for report in reports if isinstance(report, Report)]
    assert (saving[0], saving[-1]) == (True, False)
    agent.down()


def test_a_job_takes_another_batch_when_an_epoch_begins_without_a_restart(
    training: Training,
) -> None:
    agent = ListeningAgent(training.folder / "agent.sock")
    agent.up()
    inside = {"SLURM_JOB_ID": "42", "ONES_SOCKET": str(training.folder / "agent.sock")}
    first = training.under_ones_run(2, pause=0.05, **inside, ONES_REPORT_SECONDS="0.1")
    training.wait_for_steps(2)
    agent.batch = 1000  # the script accepts 64
    result = training.result()
    assert first.returncode == 0
    assert (result["batch"], result["samples"]) == (64, EPOCHS * SAMPLES)
    sizes: dict[int, set[int]] = {}
    counted: Counter[tuple[int, int]] = Counter()
    steps = [training.seen(rank) for rank in range(2)]
    for (epoch, mine), (other_epoch, others) in zip(*steps, strict=True):
        assert epoch == other_epoch
        sizes.setdefault(epoch, set()).add(len(mine) + len(others))
        counted.update((epoch, number) for number in mine + others)
    # Whole epochs with one batch each; the last step of one has what is left.
    assert sizes[0] == {BATCH, SAMPLES % BATCH}
    assert sizes[EPOCHS - 1] == {64, SAMPLES % 64}
    assert set(counted.values()) == {1}
    assert len(counted) == EPOCHS * SAMPLES
    reports = [report for report in agent.wait_for(1) if isinstance(report, Report)]
    assert all(report.tunes for report in reports)
    timed = [report.batch for report in reports if report.step_seconds is not None]
    assert timed == sorted(timed, key=lambda batch: batch or 0)
    assert {BATCH, 64} <= set(timed)
    agent.down()


@pytest.mark.parametrize("said", [None, 0, -8, "32", True, 1e3, 10**30], ids=repr)
def test_an_agent_that_says_nothing_usable_leaves_the_batch_as_it_is(
    training: Training, said: object
) -> None:
    agent = ListeningAgent(training.folder / "agent.sock")
    agent.batch = said  # type: ignore[assignment]
    agent.up()
    reporter = Reporter(str(training.folder / "agent.sock"), job=42, restarts=0)
    reporter.report({"samples": 1})
    agent.wait_for(1)
    reporter.close()
    assert reporter.batch is None
    agent.down()


def test_workers_agree_whether_a_stop_needs_a_checkpoint_soon_after_a_regular_one(
    training: Training,
) -> None:
    training.script.write_text(
        SCRIPT.replace(
            "loader = ",
            "job.saves_with(lambda folder: (folder / str(job.rank)).touch())\nloader = ",
        ).replace("ones.init(", "ones.init(checkpoint_seconds=0.4, ")
    )
    first = training.under_ones_run(2, pause=0.1)
    eventually(lambda: list(training.checkpoints.glob("0*")))
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=PATIENCE) == 143
    newest = max(training.checkpoints.glob("0*"))
    seen = sum(len(numbers) for rank in range(2) for _, numbers in training.seen(rank))
    assert int(newest.name) == seen


def test_where_one_worker_cannot_write_its_part_there_is_no_checkpoint_and_a_stop_tries_again(
    training: Training,
) -> None:
    tried, room = training.folder / "tried", training.folder / "room"
    training.script.write_text(
        SCRIPT.replace(
            "loader = ",
            "def save(folder):\n"
            "    (folder / str(job.rank)).touch()\n"
            f"    if job.rank == 1 and not os.path.exists({str(room)!r}):\n"
            f"        open({str(tried)!r}, 'w').close()\n"
            "        raise OSError(28, 'No space left on device')\n"
            "job.saves_with(save)\n"
            "loader = ",
        )
    )
    first = training.under_ones_run(2, pause=0.1)
    training.wait_for_steps(2)
    first.send_signal(signal.SIGUSR1)
    eventually(tried.exists)
    training.wait_for_steps(len(training.seen(0)) + 2)
    assert not list(training.checkpoints.glob("0*"))
    room.touch()
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=PATIENCE) == 143
    (kept,) = training.checkpoints.glob("0*")
    assert {each.name for each in kept.iterdir()} == {"0", "1", "manifest.json"}


def test_a_worker_that_fails_ends_the_others_and_its_code_is_the_launchers(
    training: Training,
) -> None:
    training.script.write_text(
        "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(3600)\n"
    )
    assert training.under_ones_run(3).wait(timeout=PATIENCE) == 7


def test_nothing_is_reported_before_every_worker_can_be_signalled(training: Training) -> None:
    agent = ListeningAgent(training.folder / "agent.sock")
    agent.up()
    training.script.write_text(
        "import os, pathlib, time\n"
        "import torch.distributed as dist\n"
        "import ones\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 7:\n"
        "    time.sleep(1)\n"
        "    pathlib.Path(os.environ['SEEN']).touch()\n"
        "job = ones.init()\n"
        "time.sleep(1)\n"
        "job.close()\n"
        "dist.destroy_process_group()\n"
    )
    inside = {"SLURM_JOB_ID": "42", "ONES_SOCKET": str(training.folder / "agent.sock")}
    running = training.under_ones_run(8, **inside, USE_LIBUV="0")
    agent.wait_for(1)
    assert (training.folder / "seen").exists()
    assert running.wait(timeout=PATIENCE) == 0
    agent.down()


def test_the_same_script_runs_under_torchrun(training: Training) -> None:
    plain = {"SEEN": "", "CHECKPOINTS": str(training.folder / "none")}
    # Its agent meets by a file, as Debian's torch is built without the store that it would open.
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file"]
    where = f"--rdzv-endpoint={training.folder}/rendezvous"
    no_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    training.start(*torchrun, where, "--nproc-per-node=2", **plain, **no_store)
    under_torchrun = training.result()
    training.start(**plain)
    alone = training.result()
    assert under_torchrun["gpus"] == 2
    assert under_torchrun["samples"] == alone["samples"] == EPOCHS * SAMPLES
    assert under_torchrun["loss"] == pytest.approx(alone["loss"], rel=1e-3)
