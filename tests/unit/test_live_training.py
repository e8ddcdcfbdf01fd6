"""Real training in real processes that grows and shrinks, loses workers, and is not restarted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from listening_agent import ListeningAgent
from patience import PATIENCE, eventually

from ones.daemon.agent.messages import read_message
from ones.daemon.wire import Live
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.base import JOIN
from ones.slurm_ext.runtime.live.orders import OrderFault, order

pytestmark = pytest.mark.torch
SAMPLES, EPOCHS, BATCH = 251, 6, 16
OTHERS = ("ONES_", "SLURM_")  # variables of jobs
SCRIPT = """
import json, os, sys, time
import torch
import ones

EPOCHS, BATCH = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
job = ones.init(checkpoints=os.environ.get("CHECKPOINTS"))
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(251, 8, generator=generator)
answers = inputs @ torch.randn(8, 1, generator=generator)
inputs, answers = inputs.to(job.device), answers.to(job.device)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
for parameter in model.parameters():
    # Any newcomer has other numbers than the first worker, until it gets them.
    torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(5 + job.rank))
model.to(job.device)
ddp = job.ddp(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
job.track(optimizer, schedule)
loaders = int(os.environ.get("LOADERS", 0))
loader = job.loader(list(range(251)), batch_size=BATCH, num_workers=loaders)
job.warm_up(lambda numbers: (ddp(inputs[numbers]) - answers[numbers]).square().mean())
for epoch in job.epochs(EPOCHS):
    for numbers in loader:
        share, before, size = job._weight(), job.samples, job.world_size
        loss = (ddp(inputs[numbers]) - answers[numbers]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if job.rank == 1 and before > int(os.environ.get("FAILS", 10**9)):
            sys.exit(7)
        try:
            job.step(loss=loss)  # from where a worker may leave
        finally:
            if job.samples > before:
                mine = numbers.tolist() if share else []
                with open(f"{os.environ['SEEN']}.{os.getpid()}", "a") as file:
                    file.write(json.dumps([epoch, before, size, mine]) + "\\n")
        if os.path.exists(os.environ["SLOW"]):
            time.sleep(float(os.environ.get("PAUSE", 0.05)))
    schedule.step()
state = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()
result = {"samples": job.samples, "loss": (model(inputs) - answers).square().mean().item(),
          "gpus": job.world_size, "batch": job.batch, "state": state,
          "rate": optimizer.param_groups[0]["lr"]}
with open(f"{os.environ['SEEN']}.{os.getpid()}.result", "w") as file:
    json.dump(result, file)
"""


@dataclass(frozen=True)
class Step:
    """What one worker says of a step that it has committed."""

    epoch: int
    before: int
    workers: int
    numbers: list[int]


class LiveTraining:
    """One job under a live launcher, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)
        self.environment = {
            **{name: one for name, one in os.environ.items() if not name.startswith(OTHERS)},
            "SEEN": str(folder / "seen"),
            "SLOW": str(folder / "slow"),
            "OMP_NUM_THREADS": "1",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, **more: str) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-m", "ones.slurm_ext.runtime.launcher"] if options else []
        script = [str(self.folder / "train.py"), str(EPOCHS), str(BATCH)]
        process = subprocess.Popen(
            [*(launcher or [sys.executable]), *options, *script],
            env={**self.environment, **more},
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def live(self, workers: int, *, slots: int = 8, **more: str) -> subprocess.Popen[bytes]:
        (self.folder / "slow").touch()
        folder = f"--folder={self.folder / 'live'}"
        process = self.start("--live", f"--workers={workers}", f"--slots={slots}", folder, **more)
        self.wait_for_workers(workers)
        return process

    def wait_for_workers(self, workers: int) -> None:
        self.wait_until(lambda: self.order({"op": "status"})["workers"] == workers)

    def ends(self, job: subprocess.Popen[bytes]) -> int:
        """The exit code of a job that needn't be slow any more."""
        (self.folder / "slow").unlink()
        return job.wait(timeout=PATIENCE)

    def order(self, message: dict[str, Any]) -> dict[str, Any]:
        return order(self.folder / "live", message, timeout=PATIENCE)

    def resize(self, workers: int, **more: int) -> dict[str, Any]:
        return self.order({"op": "resize", "workers": workers, **more})

    def pids(self) -> dict[str, int]:
        return {each["slot"]: each["pid"] for each in self.order({"op": "status"})["members"]}

    def wait_until(self, condition: Any) -> None:
        def holds() -> bool:
            with contextlib.suppress(OnesError, ValueError):
                return bool(condition())
            return False

        eventually(holds)

    def wait_for_samples(self, samples: int) -> None:
        self.wait_until(
            lambda: max(step.before for steps in self.seen().values() for step in steps) >= samples
        )

    def seen(self) -> dict[int, list[Step]]:
        found = {}
        for file in self.folder.glob("seen.*"):
            if file.suffix != ".result":
                lines = [line for line in file.read_text().splitlines() if line.endswith("]")]
                found[int(file.suffix[1:])] = [Step(*json.loads(line)) for line in lines]
        return found

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.folder.glob("seen.*.result")]

    def forget(self) -> None:
        for file in self.folder.glob("seen.*"):
            file.unlink()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[LiveTraining]:
    training = LiveTraining(tmp_path)
    yield training
    for process in training.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def whole(training: LiveTraining) -> dict[str, Any]:
    """The result of the same training by one process, never resized."""
    process = training.start()
    assert process.wait(timeout=PATIENCE) == 0
    (result,) = training.results()
    training.forget()
    return result


def counted(training: LiveTraining) -> Counter[tuple[int, int]]:
    return Counter(
        (step.epoch, number)
        for steps in training.seen().values()
        for step in steps
        for number in step.numbers
    )


def steps_follow_each_other(training: LiveTraining) -> bool:
    """Whether each sample position of the job's life was committed by exactly one step."""
    begins = sorted({step.before for steps in training.seen().values() for step in steps})
    ends = [*begins[1:], EPOCHS * SAMPLES]
    whole_steps = all(0 < end - begin <= BATCH for begin, end in zip(begins, ends, strict=True))
    return whole_steps and begins[0] == 0


@pytest.mark.parametrize(
    ("first", "sizes", "loaders"), [(1, (3, 2), 1), (1, (4, 2, 8, 3), 0)], ids=["short", "long"]
)
def test_a_training_grows_and_shrinks_without_a_restart_and_sees_every_sample_once(
    training: LiveTraining, first: int, sizes: tuple[int, ...], loaders: int
) -> None:
    alone = whole(training)
    job = training.live(first, LOADERS=str(loaders))
    present = training.pids()
    for size in sizes:
        before = present
        answer = training.resize(size)
        assert answer["workers"] == size
        present = training.pids()
        kept = before.keys() & present.keys()
        assert len(kept) == min(len(before), size)
        assert all(before[slot] == present[slot] for slot in kept)
        time.sleep(0.2)
    status = training.order({"op": "status"})
    pauses = [each["pause"] for each in status["resizes"][1:]]
    assert len(pauses) == len(sizes), status
    assert all(pause is not None for pause in pauses)
    assert training.ends(job) == 0
    assert set(counted(training).values()) == {1}
    assert len(counted(training)) == EPOCHS * SAMPLES
    sizes_seen = {step.workers for steps in training.seen().values() for step in steps}
    assert {first, *sizes} <= sizes_seen
    results = training.results()
    assert [result["gpus"] for result in results] == [sizes[-1]] * sizes[-1]
    assert all(result["state"] == results[0]["state"] for result in results)
    assert results[0]["samples"] == alone["samples"] == EPOCHS * SAMPLES
    assert results[0]["rate"] == alone["rate"]
    assert results[0]["loss"] == pytest.approx(alone["loss"], rel=1e-2)


def test_a_plan_may_bring_another_batch_with_the_size(training: LiveTraining) -> None:
    job = training.live(1)
    training.resize(2, batch=32)
    assert training.ends(job) == 0
    assert [result["batch"] for result in training.results()] == [32, 32]
    assert set(counted(training).values()) == {1}
    assert len(counted(training)) == EPOCHS * SAMPLES


def test_survivors_of_a_killed_worker_go_on_from_memory_and_it_is_replaced(
    training: LiveTraining,
) -> None:
    alone = whole(training)
    job = training.live(3)
    training.wait_for_samples(100)
    before = training.pids()
    os.kill(before["0/1"], signal.SIGKILL)
    training.wait_until(lambda: training.pids().get("0/1") not in (None, before["0/1"]))
    after = training.pids()
    assert after["0/0"] == before["0/0"]
    assert after["0/2"] == before["0/2"]
    changes = training.order({"op": "status"})["resizes"]
    (recovery,) = [each["recovery"] for each in changes if "recovery" in each]
    assert (recovery["lost"], recovery["source"], recovery["steps"]) == (1, "memory", 0)
    assert training.ends(job) == 0
    assert steps_follow_each_other(training)
    assert max(counted(training).values()) == 1
    # All are there but for what the victim had no time to write down.
    assert len(counted(training)) >= EPOCHS * SAMPLES - BATCH
    results = training.results()
    assert all(result["state"] == results[0]["state"] for result in results)
    assert results[0]["loss"] == pytest.approx(alone["loss"], rel=1e-2)


def test_the_agent_is_told_what_those_who_lost_a_worker_went_on_from(
    training: LiveTraining,
) -> None:
    agent = ListeningAgent(training.folder / "agent.sock")
    agent.up()
    job = training.live(2, SLURM_JOB_ID="7", ONES_SOCKET=str(training.folder / "agent.sock"))
    training.wait_for_samples(50)
    os.kill(training.pids()["0/1"], signal.SIGKILL)

    def told() -> list[Any]:
        words = [read_message(line, job=7) for line in list(agent.taken)]
        return [each for word in words if isinstance(word, Live) for each in word.recoveries]

    training.wait_until(told)
    recovery = told()[-1]
    assert (recovery.lost, recovery.source) == (1, "memory")
    assert (recovery.samples, recovery.steps) == (0, 0)
    assert training.ends(job) == 0


@pytest.fixture
def agent(training: LiveTraining) -> ListeningAgent:
    listening = ListeningAgent(training.folder / "agent.sock")
    listening.up()
    training.environment |= {
        "SLURM_JOB_ID": "7",
        "CHECKPOINTS": str(training.folder / "checkpoints"),
        "ONES_SOCKET": str(training.folder / "agent.sock"),
        "ONES_REPORT_SECONDS": "0.2",
    }
    return listening


def test_where_rank_0_was_replaced_it_alone_reports_and_counts_from_its_own_start(
    training: LiveTraining, agent: ListeningAgent
) -> None:
    twelve_days_ago = f"{time.time() - 12 * 86400:.0f}"
    job = training.live(2, PAUSE="0.5", ONES_STARTED=twelve_days_ago)
    training.wait_for_samples(50)
    before = training.pids()
    os.kill(before["0/0"], signal.SIGKILL)
    training.wait_until(lambda: training.pids().get("0/0") not in (None, before["0/0"]))
    new = training.pids()["0/0"]
    training.wait_until(lambda: agent.reports_of(new))
    known = len(agent.reports_of(before["0/1"]))
    training.wait_until(lambda: len(agent.reports_of(new)) > 4)
    assert len(agent.reports_of(before["0/1"])) - known <= 1  # its last one may have come late
    assert agent.reports_of(new)[-1]["resumed_seconds"] < 1000
    # Who does not lead any more says no last word: the training goes on.
    assert all(each["checkpoints"] for each in agent.reports_of(before["0/1"]))
    assert training.ends(job) == 0


def test_a_new_rank_0_reports_what_it_has_measured_since_it_is_that(
    training: LiveTraining, agent: ListeningAgent
) -> None:
    job = training.live(2, PAUSE="0.7")
    training.wait_for_samples(60)
    before = training.pids()
    os.kill(before["0/0"], signal.SIGKILL)
    assert training.ends(job) == 0  # without a pause after each step
    assert agent.reports_of(before["0/1"])[0]["step_seconds"] < 0.2


def test_when_all_workers_are_lost_training_goes_on_from_the_checkpoint(
    training: LiveTraining,
) -> None:
    job = training.live(2, CHECKPOINTS=str(training.folder / "checkpoints"))
    training.wait_for_samples(100)
    job.send_signal(signal.SIGUSR1)
    training.wait_until(lambda: list((training.folder / "checkpoints").glob("0*")))
    for pid in training.pids().values():
        os.kill(pid, signal.SIGKILL)
    assert training.ends(job) == 0
    results = training.results()
    assert [result["samples"] for result in results] == [EPOCHS * SAMPLES] * 2
    begins = [min(step.before for step in steps) for steps in training.seen().values()]
    assert sorted(begins)[:2] == [0, 0]
    assert min(begin for begin in begins if begin) >= 100


def test_a_worker_that_fails_again_and_again_is_given_up_and_the_others_finish(
    training: LiveTraining,
) -> None:
    # Long steps: the training lasts for longer than it takes to start a worker three times.
    job = training.live(2, FAILS="30", PAUSE="2")

    def is_given_up() -> bool:
        status = training.order({"op": "status"})
        return bool(status["settled"]) and status["workers"] == 1

    training.wait_until(is_given_up)
    assert training.ends(job) == 0
    assert [result["gpus"] for result in training.results()] == [1]
    assert steps_follow_each_other(training)


def test_a_stopped_job_saves_and_ends_with_143(training: LiveTraining) -> None:
    checkpoints = training.folder / "checkpoints"
    job = training.live(2, CHECKPOINTS=str(checkpoints))
    training.wait_for_samples(50)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=PATIENCE) == 143
    assert len(list(checkpoints.glob("0*"))) == 1
    assert not (training.folder / "live" / JOIN).exists()


def test_another_launcher_joins_lends_its_workers_and_is_sent_home(training: LiveTraining) -> None:
    job = training.live(1, slots=1, PAUSE="0.3", SLURM_JOB_ID="7", CHECKPOINTS="none")
    join = str(training.folder / "live" / JOIN)
    satellite = training.start("--join", join, "--workers=2", PAUSE="0.3", SLURM_JOB_ID="8")
    training.wait_for_workers(3)
    members = training.order({"op": "status"})["members"]
    assert [(each["slot"], each["home"]) for each in members[1:]] == [("1/0", "8"), ("1/1", "8")]
    answer = training.order({"op": "retire", "home": "8"})
    assert answer["workers"] == 1
    assert satellite.wait(timeout=PATIENCE) == 0
    assert training.ends(job) == 0
    assert set(counted(training).values()) == {1}
    assert len(counted(training)) == EPOCHS * SAMPLES


def test_a_launcher_that_is_killed_leaves_the_others_training(training: LiveTraining) -> None:
    job = training.live(2, slots=2, PAUSE="0.3")
    join = str(training.folder / "live" / JOIN)
    satellite = training.start("--join", join, "--workers=1")
    training.wait_for_workers(3)
    before = training.pids()
    os.killpg(satellite.pid, signal.SIGKILL)
    training.wait_for_workers(2)
    assert training.pids() == {slot: before[slot] for slot in ("0/0", "0/1")}
    assert training.ends(job) == 0
    assert steps_follow_each_other(training)


def test_a_satellite_that_is_told_to_end_leaves_in_good_order(training: LiveTraining) -> None:
    job = training.live(1, slots=1, PAUSE="0.3", SLURM_JOB_ID="7", CHECKPOINTS="none")
    join = str(training.folder / "live" / JOIN)
    satellite = training.start("--join", join, "--workers=1", PAUSE="0.3", SLURM_JOB_ID="8")
    training.wait_for_workers(2)
    os.killpg(satellite.pid, signal.SIGTERM)  # as Slurm does, to all of its processes
    assert satellite.wait(timeout=PATIENCE) == 0
    assert training.ends(job) == 0
    assert set(counted(training).values()) == {1}
    assert len(counted(training)) == EPOCHS * SAMPLES


def test_orders_that_make_no_sense_are_refused_and_training_goes_on(
    training: LiveTraining,
) -> None:
    job = training.live(1)
    for message, reason in [
        ({"op": "resize", "workers": 9}, "9 workers, with 8 slots"),
        ({"op": "resize", "workers": 0}, "0 workers, with 8 slots"),
        ({"op": "retire", "home": "nobody"}, "there is no launcher nobody"),
        ({"op": "resize", "workers": 2, "batch": -1}, "batch is -1, no whole number from 1 to"),
        ({"op": "dance"}, "no order: {'op': 'dance'}"),
    ]:
        with pytest.raises(OrderFault, match=re.escape(reason)):
            training.order(message)
    assert training.ends(job) == 0


def test_a_group_does_not_end_while_one_of_its_callbacks_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from ones.slurm_ext.runtime.live import group as groups

    ended: list[object] = []
    monkeypatch.setattr(groups.dist, "destroy_process_group", ended.append)
    monkeypatch.setattr(groups, "QUIET", 0.0)
    made = object()
    group = groups.Group(made, rank=0, size=2, links={})
    averaged: Any = torch.futures.Future()
    found = group.outcome(averaged, "as it was", lambda: None)
    group.drop()
    assert not group.has_calmed(within=0.2)
    assert ended == []
    averaged.set_result("the mean of a bucket")
    assert found.wait() == "the mean of a bucket"
    eventually(lambda: ended)
    assert ended == [made]


class Unending:
    """A collective whose data are lost on their way: gloo says nothing of it."""

    def is_completed(self) -> bool:
        return False


def test_who_waits_for_data_that_were_lost_with_their_connection_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from ones.slurm_ext.runtime.live import group as groups

    monkeypatch.setattr(groups, "CUT", 0.1)
    group = groups.Group(object(), rank=0, size=2, links={})
    averaged: Any = torch.futures.Future()
    lost: list[bool] = []
    found = group.outcome(averaged, "as it was", lambda: lost.append(True))
    group.cut()
    assert found.wait() == "as it was"
    assert lost == [True]
    with pytest.raises(RuntimeError) as fault:
        group.finish(Unending())
    assert groups.is_lost(fault.value)
    assert not group.has_calmed(within=0.0)
    averaged.set_result("too late")
    assert not group.has_calmed(within=0.0)  # the other one is under way for ever


@pytest.mark.parametrize(
    "phases",
    [
        "job.epochs(1), job.epochs(EPOCHS)",
        "islice(job.epochs(EPOCHS), 1), job.epochs(EPOCHS)",
    ],
    ids=["to its end", "broken out of"],
)
def test_a_training_in_two_phases_comes_to_its_end_with_the_workers_of_the_first(
    training: LiveTraining, phases: str
) -> None:
    script = training.folder / "train.py"
    script.write_text(f"from itertools import islice\n{script.read_text()}")
    twice = f"(each for phase in ({phases}) for each in phase)"
    script.write_text(script.read_text().replace("job.epochs(EPOCHS)", twice))
    job = training.live(2)
    training.wait_for_samples(SAMPLES + 1)
    with pytest.raises(OrderFault, match="the training is ending"):
        training.resize(3)
    assert training.ends(job) == 0
    assert set(counted(training).values()) == {1}
    assert len(counted(training)) == EPOCHS * SAMPLES


@pytest.mark.parametrize("how", ["ddp = torch.compile(ddp)", "ddp.compile()"])
def test_a_compiled_wrapper_is_refused_before_the_first_step(
    training: LiveTraining, how: str
) -> None:
    script = training.folder / "train.py"
    made = "ddp = job.ddp(model)\n"
    script.write_text(script.read_text().replace(made, f"{made}{how}\n"))
    launcher = [sys.executable, "-m", "ones.slurm_ext.runtime.launcher", "--live", "--workers=1"]
    done = subprocess.run(
        [*launcher, f"--folder={training.folder / 'live'}", str(script), "1", str(BATCH)],
        env=training.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "torch.compile of what job.ddp() has returned can't be resized live" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(training.folder.glob("seen.*"))
