"""Who a worker is, under torchrun, under srun, under ones-run and by itself."""

from __future__ import annotations

import signal

import pytest

from ones.slurm_ext.runtime.environment import (
    EnvironmentFault,
    Place,
    first_host,
    meeting_port,
    read_environment,
    tasks_on_node,
)
from ones.slurm_ext.runtime.launcher import places_here


def a_step(*, task: int, tasks: int, per_node: str, node: int, nodes: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_STEP_NODELIST": "n[1-2]",
    }


def test_a_bare_process_is_alone() -> None:
    environment = read_environment({})
    assert environment.place == Place()
    assert environment.job is None
    assert environment.socket == ""


def test_torchruns_names_come_first() -> None:
    slurm = a_step(task=1, tasks=2, per_node="2", node=0, nodes=1)
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "29501"}
    environment = read_environment({**slurm, **torchrun})
    assert (environment.place.rank, environment.place.world_size) == (3, 4)
    assert environment.place.port == 29501
    assert environment.job == 42


def test_a_task_of_srun_is_a_worker() -> None:
    step = a_step(task=5, tasks=8, per_node="4(x2)", node=1, nodes=2)
    place = read_environment({**step, "SLURM_LOCALID": "1"}).place
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (5, 8, 1, 4)
    assert place.master == "n1"


def test_the_batch_script_itself_is_no_worker_of_a_group() -> None:
    batch = {"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert read_environment(batch).place.world_size == 1


def test_what_ones_says_is_read_and_nonsense_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    said = {"ONES_BATCH_SIZE": "256", "ONES_CHECKPOINT_SIGNAL": "USR2", "SLURM_RESTART_COUNT": "3"}
    environment = read_environment(said)
    assert environment.batch == 256
    assert environment.checkpoint_signal == signal.SIGUSR2
    assert environment.restarts == 3
    nonsense = {"ONES_BATCH_SIZE": "-4", "ONES_CHECKPOINT_SIGNAL": "x", "ONES_REPORT_SECONDS": "?"}
    environment = read_environment(nonsense)
    assert environment.batch is None
    assert environment.checkpoint_signal == signal.SIGUSR1
    assert environment.report_seconds == 1
    assert len(caplog.records) == 3


def test_a_rank_outside_its_group_is_refused_in_one_line() -> None:
    with pytest.raises(EnvironmentFault, match="rank 4 is not one of 4 workers; look at RANK"):
        read_environment({"RANK": "4", "WORLD_SIZE": "4"})


@pytest.mark.parametrize(
    ("hostlist", "first"),
    [
        ("n1", "n1"),
        ("n[07-09,12],m1", "n07"),
        ("gpu-3,gpu-4", "gpu-3"),
        ("r[1-2]n[3-4].site", "r1n3.site"),
    ],
)
def test_the_first_host_of_a_folded_list(hostlist: str, first: str) -> None:
    assert first_host(hostlist) == first


def test_each_run_of_a_job_meets_at_a_port_of_its_own() -> None:
    first = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
    ports = {meeting_port({**first, "SLURM_RESTART_COUNT": str(n)}) for n in range(5)}
    assert len(ports) == 5
    assert all(1024 < port < 32768 for port in ports)


def test_tasks_on_this_node_are_read_from_slurms_list() -> None:
    assert tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": "3(x2),1", "SLURM_NODEID": "1"}) == 3
    assert tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": "3(x2),1", "SLURM_NODEID": "2"}) == 1


def test_ones_run_once_per_node_starts_a_worker_for_each_gpu() -> None:
    step = a_step(task=1, tasks=2, per_node="1(x2)", node=1, nodes=2)
    places = places_here({**step, "CUDA_VISIBLE_DEVICES": "0,1,3", "ONES_GPUS": "6"})
    assert [place.rank for place in places] == [3, 4, 5]
    assert {place.world_size for place in places} == {6}
    assert [place.local_rank for place in places] == [0, 1, 2]
    assert places[0].variables()["MASTER_ADDR"] == "n1"


def test_ones_run_once_per_gpu_is_one_worker() -> None:
    step = a_step(task=1, tasks=2, per_node="2", node=0, nodes=1)
    (place,) = places_here({**step, "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert (place.rank, place.world_size, place.local_rank) == (1, 2, 1)


def test_ones_run_outside_slurm_starts_what_it_is_told() -> None:
    assert [place.rank for place in places_here({}, workers=3)] == [0, 1, 2]
    assert len(places_here({})) == 1


def test_ones_run_refuses_nodes_with_unequal_numbers_of_gpus() -> None:
    step = a_step(task=0, tasks=2, per_node="1(x2)", node=0, nodes=2)
    with pytest.raises(EnvironmentFault, match="its nodes are unequal; start one task per GPU"):
        places_here({**step, "CUDA_VISIBLE_DEVICES": "0,1,2", "ONES_GPUS": "4"})
