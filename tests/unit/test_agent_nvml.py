"""The real pynvml over the emulated NVML library, in a process of its own: one NVML for life."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ones.daemon.agent import nvml
from ones.daemon.agent.nvml import Reading
from ones.daemon.agent.sampler import Sampler
from ones.daemon.wire import GpuSample

EMULATION = Path(__file__).resolve().parents[1] / "emulation"
CHILD = """
import json, logging, sys, msgspec
from ones.daemon.agent.nvml import Nvml
logging.disable()
now = [0.0]
telemetry = Nvml(clock=lambda: now[0])
for line in sys.stdin:
    command, number = json.loads(line)
    now[0] += number
    if command == "poll":
        answer = telemetry.poll_errors()
    else:
        answer = [[msgspec.to_builtins(each.gpu), each.pids] for each in telemetry.sample()]
    print(json.dumps([answer, telemetry.note]), flush=True)
"""
TWO_GPUS = """count 2
*.name NVIDIA A100-SXM4-40GB
0.uuid GPU-zero
1.uuid GPU-one
0.minor 1
1.minor 0
*.mem_total 40000
*.mem_used 10000
*.mem_reserved 600
*.util_gpu 97
*.util_mem 10
*.power 250500
*.temp 61
0.procs 4711:1,4712:2,4711:3
"""


class Emulated:
    """A process that samples an emulated driver when told to."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        self._state = folder / "gpu.state"
        environ = {**os.environ, "ONES_EMULATION_STATE": str(self._state)}
        if library:
            environ["LD_LIBRARY_PATH"] = str(library)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.note = ""

    def become(self, state: str | None) -> None:
        """The driver's state from now on; None: it is unloaded."""
        if state is None:
            self._state.unlink()
            return
        new = self._state.with_suffix(".new")
        new.write_text(state)
        new.rename(self._state)

    def sample(self, after: float = 0.0) -> list[tuple[GpuSample, list[int]]]:
        return [(msgspec.convert(gpu, GpuSample), pids) for gpu, pids in self._ask("sample", after)]

    def poll(self) -> object:
        return self._ask("poll", 0.0)

    def _ask(self, command: str, after: float) -> list[tuple[dict[str, object], list[int]]]:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps([command, after]), file=self.process.stdin, flush=True)
        answer, self.note = json.loads(self.process.stdout.readline())
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def emulated(tmp_path: Path, library: Path) -> Iterator[Callable[[str | None], Emulated]]:
    started = []

    def start(state: str | None) -> Emulated:
        one = Emulated(tmp_path, library)
        started.append(one)
        if state is not None:
            one.become(state)
        return one

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


Start = Callable[[str | None], Emulated]


def test_a_gpu_is_read_in_base_units(emulated: Start) -> None:
    (first, pids), (second, nobody) = emulated(TWO_GPUS).sample()
    assert first == GpuSample(
        minor=1,
        uuid="GPU-zero",
        type="nvidia_a100-sxm4-40gb",
        utilization=0.97,
        memory_used=10000,
        memory_total=40000,
        power=250.5,
        temperature=61.0,
    )
    assert (pids, nobody) == ([4711, 4712], [])
    assert second.minor == 0


def test_what_the_driver_has_reserved_counts_as_used_where_it_is_not_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a driver before 510, which knows the first version of the question only."""

    class Used:
        used, total = 10600, 40000

    def info(handle: object, version: int | None = None) -> Used:
        if version is not None:
            raise nvml.pynvml.NVMLError(nvml.pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return Used()

    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetMemoryInfo", info)
    known = nvml.Nvml()
    known._known["GPU-old"] = GpuSample(minor=0, uuid="GPU-old", type="k80")
    for name in ("UtilizationRates", "PowerUsage", "Temperature"):
        monkeypatch.setattr(nvml.pynvml, f"nvmlDeviceGet{name}", info_of_none)
    for name in ("", "MPS"):
        monkeypatch.setattr(
            nvml.pynvml, f"nvmlDeviceGet{name}ComputeRunningProcesses", info_of_none
        )
    gpu = known._read("GPU-old", object()).gpu
    assert (gpu.memory_used, gpu.memory_total) == (10600, 40000)


def info_of_none(*_: object) -> None:
    raise nvml.pynvml.NVMLError(nvml.pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_nvlink_is_told_by_the_numbers_of_the_gpus_at_its_other_ends(emulated: Start) -> None:
    gpu = emulated(f"{TWO_GPUS}*.p2p 0\n")
    assert [reading.linked for reading, _ in gpu.sample()] == [(0,), (1,)]


def test_gpus_that_nvlink_does_not_join_have_none(emulated: Start) -> None:
    gpu = emulated(f"{TWO_GPUS}*.p2p 5\n")
    assert [reading.linked for reading, _ in gpu.sample()] == [(), ()]


def test_what_the_driver_does_not_say_is_unknown_and_not_zero(emulated: Start) -> None:
    state = "count 1\n0.uuid GPU-zero\n0.name K80\n0.mig 1\n"
    ((gpu, pids),) = emulated(state).sample()
    assert gpu == GpuSample(minor=0, uuid="GPU-zero", type="k80", linked=())
    assert gpu.healthy
    assert pids == []


def test_a_lost_gpu_is_unhealthy_and_the_other_goes_on(emulated: Start) -> None:
    node = emulated(TWO_GPUS)
    node.sample()
    node.become(TWO_GPUS + "0.lost 1\n0.xid 1 79\n")
    assert node.poll()
    assert not node.poll()
    for _ in range(3):
        (lost, pids), (fine, _) = node.sample()
        assert lost == GpuSample(
            minor=1, uuid="GPU-zero", type="nvidia_a100-sxm4-40gb", healthy=False, xid=79
        )
        assert pids == []
        assert (fine.healthy, fine.utilization, fine.xid) == (True, 0.97, None)


def test_a_lost_gpu_that_comes_back_is_healthy_again_after_a_while(emulated: Start) -> None:
    node = emulated(TWO_GPUS)
    node.sample()
    node.become(TWO_GPUS + "0.lost 1\n")
    node.sample()
    node.sample()
    node.become(TWO_GPUS)
    (still, _), _ = node.sample(after=5)
    (back, _), _ = node.sample(after=6)
    assert (still.healthy, back.healthy) == (False, True)


def test_a_gpu_that_is_lost_when_the_agent_starts_is_found_once_it_is_back(
    emulated: Start,
) -> None:
    node = emulated(TWO_GPUS + "0.lost 1\n")
    assert [gpu.uuid for gpu, _ in node.sample()] == ["GPU-one"]
    node.become(TWO_GPUS)
    assert len(node.sample(after=5)) == 1
    assert [(gpu.uuid, gpu.healthy) for gpu, _ in node.sample(after=6)] == [
        ("GPU-one", True),
        ("GPU-zero", True),
    ]


def test_an_xid_of_a_lost_gpu_is_not_lost_with_it(emulated: Start) -> None:
    node = emulated(TWO_GPUS)
    node.sample()
    node.become(TWO_GPUS + "0.lost 1\n0.xid 1 79\n")
    node.sample()
    (lost, _), _ = node.sample()
    assert lost.xid == 79
    assert node.poll()


def test_a_driver_that_goes_away_leaves_its_gpus_unhealthy_until_it_returns(
    emulated: Start,
) -> None:
    node = emulated(TWO_GPUS)
    node.sample()
    node.become(None)
    for _ in range(3):
        assert [gpu.healthy for gpu, _ in node.sample()] == [False, False]
    assert "Driver Not Loaded" in node.note
    node.become(TWO_GPUS)
    assert [gpu.healthy for gpu, _ in node.sample()] == [False, False]
    assert [gpu.healthy for gpu, _ in node.sample(after=11)] == [True, True]
    assert node.note == ""


def test_a_driver_that_is_loaded_later_is_found(emulated: Start) -> None:
    node = emulated(None)
    assert node.sample() == []
    assert "GPUs are not measured" in node.note
    node.become(TWO_GPUS)
    assert len(node.sample(after=11)) == 2


def test_a_node_without_gpus_says_so(emulated: Start) -> None:
    node = emulated("count 0\n")
    assert node.sample() == []
    assert node.note == "NVML finds no GPU here"
    assert not node.poll()


def test_a_node_without_nvml_says_so(tmp_path: Path) -> None:
    with suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1")
        pytest.skip("this machine has an NVIDIA driver")
    node = Emulated(tmp_path, None)
    try:
        assert node.sample() == []
        assert "no NVML here" in node.note
        assert "\n" not in node.note
    finally:
        node.process.kill()
        node.process.communicate()


class Stuck:
    """A driver that hangs until let go."""

    note = ""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def sample(self) -> tuple[Reading, ...]:
        self.free.wait(10)
        return (Reading(GpuSample(minor=0, uuid="G", type="t", utilization=0.5), (1,)),)

    def poll_errors(self) -> bool:
        return True


def test_a_driver_that_hangs_makes_gpus_unhealthy_and_hangs_nobody() -> None:
    async def main() -> None:
        driver = Stuck()
        sampler = Sampler(driver, patience=0.1)
        assert await sampler.poll_errors()
        (good,), note = await sampler.sample()
        assert (good.gpu.healthy, good.pids, note) == (True, (1,), "")
        driver.free.clear()
        for _ in range(2):
            (unknown,), note = await sampler.sample()
            assert unknown == Reading(GpuSample(minor=0, uuid="G", type="t", healthy=False))
            assert "has not answered" in note
        assert sampler.stuck
        assert not await sampler.poll_errors()
        driver.free.set()
        await asyncio.sleep(0.05)
        (good,), note = await sampler.sample()
        assert (good.gpu.healthy, note) == (True, "")
        sampler.close()

    asyncio.run(main())


def test_nothing_else_imports_pynvml() -> None:
    root = Path(nvml.__file__).resolve().parents[2]
    importers = {
        path.name for path in (root / "daemon").rglob("*.py") if "import pynvml" in path.read_text()
    }
    assert importers == {"nvml.py"}
