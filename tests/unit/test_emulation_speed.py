"""The emulated GPU's truth: how long steps take, how they are paced, what NVML then shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EMULATION = Path(__file__).resolve().parents[1] / "emulation"
sys.path.insert(0, str(EMULATION))

from emulated_gpu import emulator, node, pacing, speed  # noqa: E402
from emulated_gpu.emulator import MODELS, Load, Node, read_fault, read_loads  # noqa: E402
from emulated_gpu.pacing import Pacer, Place, batch_of, place_of  # noqa: E402

BATCH = 64


def per_second(gpus: int, **where: Any) -> float:
    return gpus * BATCH / speed.step_seconds("v100", BATCH, gpus=gpus, **where)


def test_steps_leave_room_for_the_real_arithmetic() -> None:
    assert speed.step_seconds("v100", BATCH, gpus=1) >= 0.25


@pytest.mark.parametrize(
    ("gpus", "nodes", "switches", "times"),
    [(2, 1, 1, 1.93), (4, 1, 1, 3.75), (8, 2, 1, 6.48), (2, 2, 1, 1.77), (8, 2, 2, 5.14)],
)
def test_more_gpus_train_faster_but_less_and_less(
    gpus: int, nodes: int, switches: int, times: float
) -> None:
    gain = per_second(gpus, nodes=nodes, switches=switches) / per_second(1)
    assert gain == pytest.approx(times, rel=0.03)


def test_a_k80_is_two_times_slower_than_a_v100() -> None:
    slow, fast = (speed.step_seconds(kind, BATCH, gpus=1) for kind in ("k80", "v100"))
    assert slow == pytest.approx(2 * fast)


def test_the_slowest_gpu_of_a_group_counts() -> None:
    assert speed.slowest(["a100", "k80", "v100"]) == "k80"
    assert speed.slowest(["a100", "never-heard-of"]) == "never-heard-of"


def test_places_come_from_slurms_files_and_the_task(tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text(
        "# GPUs\nNodeName=n[1-2] Name=gpu Type=V100 File=/dev/nvidia[0-3]\n"
        "NodeName=n3 Name=gpu Type=k80 File=/dev/nvidia0\n"
    )
    (tmp_path / "topology.conf").write_text(
        "SwitchName=s0 Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n3\n"
    )
    types, switches = node.gpu_types(tmp_path), node.switches_of(tmp_path)
    assert [node.gpu_count(name, tmp_path) for name in ("n1", "n3", "n4")] == [4, 1, 0]
    near = {"SLURM_JOB_NODELIST": "n[1-2]", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_LOCALID": "1"}
    assert place_of(near, types, switches) == Place(3, "v100", nodes=2, switches=1)
    far = {"SLURM_JOB_NODELIST": "n[1,3]", "CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "3"}
    assert place_of(far, types, switches) == Place(1, "k80", nodes=2, switches=2)


@pytest.mark.parametrize(
    ("environ", "minor"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_LOCALID": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_LOCALID": "0", "LOCAL_RANK": "3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "3", "SLURM_LOCALID": "3"}, 3),
        ({}, 0),
    ],
)
def test_a_task_has_its_own_gpu_whether_slurm_splits_them_or_not(
    environ: dict[str, str], minor: int
) -> None:
    assert place_of(environ, {}, {}).minor == minor


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Module:
    """What a pacer sees of torch.nn.Module."""

    def __init__(self, *, parameters: int = 1) -> None:
        self.training = True
        self.inner: list[Module] = []
        self._parameters = parameters

    def parameters(self) -> Any:
        return iter(range(self._parameters))

    def modules(self) -> Any:
        return iter([self, *self.inner])


class World:
    """A pacer in a process whose time passes only when told to."""

    def __init__(self, load: Path, gpus: int = 1) -> None:
        self.now = 1000.0
        self.grad = True
        self.place = Place(2, "v100", 1, 1)
        self.model = Module()
        self.load = load
        self.pacer = Pacer(
            lambda: self.grad,
            lambda: gpus,
            lambda: self.place,
            load=load,
            clock=lambda: self.now,
            sleep=self.work,
        )

    def work(self, seconds: float) -> None:
        self.now += seconds

    def forward(self, batch: int, module: Module | None = None) -> None:
        module = module or self.model
        self.pacer.before_forward(module, (Tensor(batch, 8),))
        self.pacer.before_forward(Module(), (Tensor(batch * 2, 8),))
        self.pacer.after_forward(None)
        self.pacer.after_forward(None)

    def step(self, batch: int = BATCH, arithmetic: float = 0.01) -> float:
        """Train on one batch; how long the step took."""
        began = self.now
        self.forward(batch)
        self.work(arithmetic)
        self.pacer.after_step()
        return self.now - began


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


TRUE = speed.step_seconds("v100", BATCH, gpus=1)


def test_a_step_takes_what_the_gpu_would_take(world: World) -> None:
    assert [world.step() for _ in range(3)] == pytest.approx([TRUE] * 3)


def test_loading_the_next_batch_overlaps_with_the_step(world: World) -> None:
    world.step()
    world.work(0.1)
    assert world.step() == pytest.approx(TRUE - 0.1)


def test_a_step_after_a_long_pause_takes_its_full_time(world: World) -> None:
    world.step()
    world.work(30.0)
    assert world.step() == pytest.approx(TRUE)


def test_slow_arithmetic_makes_a_step_late_and_the_next_one_no_shorter(world: World) -> None:
    world.step()
    assert world.step(arithmetic=1.0) == pytest.approx(1.0)
    assert world.step() == pytest.approx(TRUE)


def test_a_late_awakening_is_made_good_by_the_next_step(world: World) -> None:
    world.pacer._sleep = lambda seconds: world.work(seconds + 0.02)
    began = world.now
    for _ in range(10):
        world.step()
    assert world.now - began == pytest.approx(10 * TRUE + 0.02)


def test_validation_adds_no_samples(world: World) -> None:
    world.grad = False
    world.forward(500)
    world.grad, world.model.training = True, False
    world.forward(500)
    world.model.training = True
    assert world.step() == pytest.approx(TRUE)


def test_a_wrapper_left_in_evaluation_mode_does_not_hide_the_model_in_it(world: World) -> None:
    world.model.inner.append(Module())
    world.model.training = False
    assert world.step() == pytest.approx(TRUE)


def test_a_loss_module_and_recomputed_parts_add_no_samples(world: World) -> None:
    world.forward(BATCH)
    world.forward(BATCH, Module(parameters=0))
    world.forward(BATCH, Module())
    began = world.now
    world.pacer.after_step()
    assert world.now - began == pytest.approx(TRUE)


def test_accumulated_batches_add_up(world: World) -> None:
    world.forward(BATCH)
    expected = speed.step_seconds("v100", 2 * BATCH, gpus=1)
    assert world.step() == pytest.approx(expected)


def test_an_empty_batch_takes_the_fixed_time(world: World) -> None:
    assert world.step(0) == pytest.approx(speed.step_seconds("v100", 0, gpus=1))


def test_a_step_without_a_forward_pass_costs_nothing(world: World) -> None:
    world.pacer.after_step()
    assert world.now == 1000.0


def test_a_worker_forked_after_the_import_has_its_own_gpu_and_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.step()
    world.place = Place(3, "k80", 1, 1)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    assert world.step() == pytest.approx(2 * TRUE)
    assert json.loads((world.load / "4711").read_text())["minor"] == 3


def test_load_says_how_busy_the_gpu_was(world: World) -> None:
    for _ in range(4):
        world.step()
    said = json.loads((world.load / str(os.getpid())).read_text())
    assert said["busy"] == pytest.approx(1.0)
    assert said["memory"] == pacing.FIXED_MEMORY + BATCH * pacing.MEMORY_PER_SAMPLE
    for _ in range(4):
        world.work(3 * TRUE)
        world.step()
    said = json.loads((world.load / str(os.getpid())).read_text())
    assert said["busy"] == pytest.approx(0.25)


def test_a_node_without_emulator_does_not_stop_the_training(tmp_path: Path) -> None:
    assert World(tmp_path / "absent").step() == pytest.approx(TRUE)


def test_the_batch_is_found_inside_dicts_and_lists() -> None:
    assert batch_of(({"mask": None, "ids": Tensor(7, 3)},)) == 7
    assert batch_of((3, Tensor(), [Tensor(5)])) == 5
    assert batch_of(()) is None


def test_nvml_shows_load_faults_energy_and_heat() -> None:
    physics = Node("n1", MODELS["v100"], 2)
    load = [Load(11, 0, 0.7, 2 << 30), Load(12, 0, 0.7, 1 << 30)]
    for _ in range(100):
        text = physics.tick(load, [{}, {"lost": "1", "xid": "5 79"}], 0.5)
    state = dict(line.split(" ", 1) for line in text.splitlines())
    assert (state["count"], state["0.util_gpu"], state["1.util_gpu"]) == ("2", "100", "0")
    assert state["0.procs"] == f"11:{2 << 30},12:{1 << 30}"
    assert state["0.mem_used"] == str(3 << 30)
    assert (state["0.power"], state["1.power"]) == ("300000", "40000")
    assert (state["0.energy"], state["0.temp"]) == ("15000000", "75")
    assert (state["1.lost"], state["1.xid"], "1.procs" in state) == ("1", "5 79", False)


def test_loads_of_dead_processes_go_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    folder, proc = tmp_path / "load", tmp_path / "proc"
    folder.mkdir()
    said = {"minor": 1, "busy": 0.5, "memory": 100, "step": 0.3}
    texts = {
        "1": json.dumps(said),
        "2": json.dumps(said),  # dead
        "3": '{"minor": 0, "busy": 1, "memory": Infinity}',
        "4": "[]",
        "5": "no JSON",
        "6": json.dumps({**said, "step": 20.0}),
        "6.new": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        os.utime(folder / name, (1000, 1000))
        if name != "2":
            (proc / name).mkdir(parents=True)
    found = {load.pid: load for load in read_loads(folder, 1001.0, proc)}
    assert found == {1: Load(1, 1, 0.5, 100), 6: Load(6, 1, 0.5, 100)}
    assert not (folder / "2").exists()
    later = {load.pid: load.busy for load in read_loads(folder, 1001 + emulator.STALE, proc)}
    assert later == {1: 0.0, 6: 0.5}


def test_an_unreadable_fault_is_none(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("{")
    (tmp_path / "1").write_text('{"xid": "1 31"}')
    assert [read_fault(tmp_path, minor) for minor in range(3)] == [{}, {"xid": "1 31"}, {}]


FAKE_TORCH = "name = 'torch'\n"
HOOKED = """
import importlib.util, sys, types
import emulated_gpu
emulated_gpu.install()
emulated_gpu.install()
started = []
sys.modules["emulated_gpu.pacing"] = types.SimpleNamespace(start=started.append)
emulated_gpu.pacing = sys.modules["emulated_gpu.pacing"]
importlib.util.find_spec("torch")
import torch
print(len(started), any("hook" in type(each).__module__ for each in sys.meta_path))
"""


@pytest.mark.parametrize(("gpus", "expected"), [("0,1", "1 False"), ("", "0 False")])
def test_the_hook_fires_once_when_torch_is_imported_in_a_job_with_gpus(
    tmp_path: Path, gpus: str, expected: str
) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    environ = {
        "PYTHONPATH": f"{tmp_path}:{EMULATION}",
        "SLURM_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": gpus,
    }
    ended = subprocess.run(
        [sys.executable, "-c", HOOKED],
        env=environ,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert (ended.stdout.strip(), ended.stderr) == (expected, "")
