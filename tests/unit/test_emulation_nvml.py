"""The stand-in for libnvidia-ml.so.1 under the real pynvml, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EMULATION = Path(__file__).resolve().parents[1] / "emulation"
# Each line of standard input is an expression; each answer its value, or the error's name.
CHILD = """
import ctypes, json, sys
import pynvml as n
kept = {}
def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, _ in value._fields_}
    if hasattr(value, "pid"):
        return {"pid": value.pid, "memory": getattr(value, "usedGpuMemory", None)}
    return value.decode() if isinstance(value, bytes) else value
def gpu(index):
    return n.nvmlDeviceGetHandleByIndex(index)
def replace(path, text):
    import pathlib
    beside = pathlib.Path(path + ".new")
    beside.write_text(text)
    beside.replace(path)
def keep(name, value):
    kept[name] = value
for line in sys.stdin:
    try:
        value = eval(json.loads(line))
        try:
            answer = plain(value)
            json.dumps(answer)
        except TypeError:
            answer = str(type(value))
    except n.NVMLError as fault:
        answer = type(fault).__name__
    print(json.dumps(answer))
"""
STATE = """count 2
driver 550.54
*.name Tesla V100-SXM2-16GB
*.mem_total 1000
*.topo 40
0.topo.1 20
*.p2p 0
*.mig 0
0.uuid GPU-zero
1.uuid GPU-one
0.minor 3
0.pci 00000000:0A:00.0
0.mem_used 300
0.mem_reserved 10
0.util_gpu 97
0.util_mem 40
0.power 250500
0.power_limit 300000
0.energy 99999999999
0.temp 61
0.throttle 4
0.numa 1
0.clock_sm 1380
0.ecc_corrected 5
0.ecc_uncorrected 6
0.remapped 1 2 0 1
0.nvlink.0 1
0.procs 4711:100,4712:200
"""
Ask = Callable[..., list[Any]]


@pytest.fixture
def ask(library: Path, tmp_path: Path) -> Ask:
    """The answers of a fresh process to expressions, over a given state."""
    state = tmp_path / "gpu.state"

    def ask(*expressions: str, text: str | None = STATE) -> list[Any]:
        if text is not None:
            state.write_text(text)
        ended = subprocess.run(
            [sys.executable, "-c", CHILD],
            input="".join(
                json.dumps(each.replace("STATE", repr(str(state)))) + "\n" for each in expressions
            ),
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library),
                "ONES_EMULATION_STATE": str(state),
            },
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return [json.loads(line) for line in ended.stdout.splitlines()]

    return ask


ANSWERS = {
    "n.nvmlSystemGetDriverVersion()": "550.54",
    "n.nvmlSystemGetNVMLVersion()": "12.550.0-emulated",
    "n.nvmlSystemGetCudaDriverVersion()": 12040,
    "n.nvmlDeviceGetCount()": 2,
    "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('GPU-one'))": 1,
    "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('00000000:0A:00.0'))": 0,
    "n.nvmlDeviceGetName(gpu(1))": "Tesla V100-SXM2-16GB",
    "n.nvmlDeviceGetUUID(gpu(0))": "GPU-zero",
    "n.nvmlDeviceGetMinorNumber(gpu(0))": 3,
    "n.nvmlDeviceGetPciInfo(gpu(0)).bus": 10,
    "n.nvmlDeviceGetPciInfo(gpu(0)).busId": "00000000:0A:00.0",
    "n.nvmlDeviceGetMemoryInfo(gpu(0))": {"total": 1000, "free": 690, "used": 310},
    "n.nvmlDeviceGetMemoryInfo(gpu(0), version=n.nvmlMemory_v2).used": 300,
    "n.nvmlDeviceGetMemoryInfo(gpu(0), version=n.nvmlMemory_v2).reserved": 10,
    "n.nvmlDeviceGetUtilizationRates(gpu(0))": {"gpu": 97, "memory": 40},
    "n.nvmlDeviceGetPowerUsage(gpu(0))": 250500,
    "n.nvmlDeviceGetEnforcedPowerLimit(gpu(0))": 300000,
    "n.nvmlDeviceGetTotalEnergyConsumption(gpu(0))": 99999999999,
    "n.nvmlDeviceGetTemperature(gpu(0), n.NVML_TEMPERATURE_GPU)": 61,
    "n.nvmlDeviceGetTemperatureV(gpu(0), n.NVML_TEMPERATURE_GPU)": 61,
    "n.nvmlDeviceGetClockInfo(gpu(0), n.NVML_CLOCK_SM)": 1380,
    "n.nvmlDeviceGetCurrentClocksEventReasons(gpu(0))": 4,
    "n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu(0))": 4,
    "n.nvmlDeviceGetNumaNodeId(gpu(0))": 1,
    "n.nvmlDeviceGetComputeRunningProcesses(gpu(0))": [
        {"pid": 4711, "memory": 100},
        {"pid": 4712, "memory": 200},
    ],
    "n.nvmlDeviceGetComputeRunningProcesses(gpu(1))": [],
    "n.nvmlDeviceGetGraphicsRunningProcesses(gpu(0))": [],
    "n.nvmlDeviceGetMPSComputeRunningProcesses(gpu(0))": [],
    "[p.pid for p in n.nvmlDeviceGetProcessUtilization(gpu(0), 0)]": [4711, 4712],
    "[p.smUtil for p in n.nvmlDeviceGetProcessUtilization(gpu(0), 0)]": [48, 48],
    "n.nvmlDeviceGetTopologyCommonAncestor(gpu(1), gpu(0))": 20,
    "n.nvmlDeviceGetTopologyCommonAncestor(gpu(1), gpu(1))": 40,
    "n.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), n.NVML_P2P_CAPS_INDEX_NVLINK)": 0,
    "n.nvmlDeviceGetNvLinkState(gpu(0), 0)": 1,
    "n.nvmlDeviceGetTotalEccErrors(gpu(0), 0, 0)": 5,
    "n.nvmlDeviceGetTotalEccErrors(gpu(0), 1, 0)": 6,
    "n.nvmlDeviceGetRemappedRows(gpu(0))": [1, 2, 0, 1],
    "n.nvmlDeviceGetMigMode(gpu(0))": [0, 0],
    "n.nvmlShutdown()": None,
}


def test_every_call_gives_what_the_state_says(ask: Ask) -> None:
    answers = ask("n.nvmlInit()", *ANSWERS)[1:]
    assert dict(zip(ANSWERS, answers, strict=True)) == ANSWERS


def test_a_missing_state_is_a_driver_that_is_not_loaded(ask: Ask) -> None:
    assert ask("n.nvmlInit()", text=None) == ["NVMLError_DriverNotLoaded"]


def test_without_init_nothing_is_answered(ask: Ask) -> None:
    first = "keep('gpu', gpu(0))"
    answers = ask("n.nvmlInit()", first, "n.nvmlShutdown()", "n.nvmlDeviceGetName(kept['gpu'])")
    assert answers[-1] == "NVMLError_Uninitialized"


def test_faults_have_the_errors_of_nvml(ask: Ask) -> None:
    expected = {
        "n.nvmlInit()": None,
        "gpu(2)": "NVMLError_InvalidArgument",
        "gpu(1)": "NVMLError_GpuIsLost",
        "n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByUUID('GPU-one'))": "NVMLError_NotFound",
        "n.nvmlDeviceGetFanSpeed(gpu(0))": "NVMLError_FunctionNotFound",
        "n.nvmlDeviceGetClockInfo(gpu(0), n.NVML_CLOCK_MEM)": "NVMLError_NotSupported",
        "n.nvmlDeviceGetNvLinkState(gpu(0), 5)": "NVMLError_NotSupported",
    }
    assert ask(*expected, text=STATE + "1.lost 1\n") == list(expected.values())


def test_a_replaced_state_is_read_again(ask: Ask) -> None:
    answers = ask(
        "n.nvmlInit()",
        "n.nvmlDeviceGetPowerUsage(gpu(0))",
        "replace(STATE, 'count 1\\n0.power 9\\n')",
        "n.nvmlDeviceGetPowerUsage(gpu(0))",
        "n.nvmlDeviceGetCount()",
        "n.nvmlDeviceGetName(gpu(0))",
    )
    assert answers[1:] == [250500, None, 9, 1, "NVMLError_NotSupported"]


def test_an_xid_comes_once_through_the_event_set_even_from_a_lost_gpu(ask: Ask) -> None:
    wait = "n.nvmlEventSetWait_v2(kept['set'], 20)"
    event = f"(lambda e: [e.eventData, n.nvmlDeviceGetIndex(e.device)])({wait})"
    answers = ask(
        "n.nvmlInit()",
        "keep('set', n.nvmlEventSetCreate())",
        "[n.nvmlDeviceRegisterEvents(gpu(i), 8, kept['set']) for i in (0, 1)]",
        wait,
        "replace(STATE, 'count 2\\n0.xid 7 31\\n1.lost 1\\n1.xid 8 79\\n')",
        event,
        event,
        wait,
        "n.nvmlEventSetFree(kept['set'])",
        text=STATE + "0.xid 6 13\n",
    )
    assert answers[3] == "NVMLError_Timeout"  # what was before the registration is no event
    assert answers[5:8] == [[31, 0], [79, 1], "NVMLError_Timeout"]
