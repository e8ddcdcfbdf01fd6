"""The pyslurm reader: its records, and a libslurm that hangs, dies or is of another release."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ones.slurm_ext import pyslurm_reader
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.pyslurm_reader import (
    PyslurmReader,
    available,
    job_record,
    node_record,
    refuse_other_releases,
)
from ones.slurm_ext.snapshot import JobRecord

FAKE_PACKAGE = """
import json, pathlib
class RPCError(Exception):
    errno = 1800
class Nodes:
    @staticmethod
    def load():
        return {}
class Jobs:
    @staticmethod
    def load():
        return dict(enumerate(json.loads((pathlib.Path(__file__).parent / "jobs").read_text())))
"""
FAKE_FIELDS = """
import os, time
job_fields = dict
from pyslurm import RPCError
LIBRARY = 42
def built_for(): return (24, 11, 5)
def library(): return 42
def controller(): return "24.11.5"
def topology():
"""


def fields(**changes: Any) -> dict[str, Any]:
    """A pending one-node job's fields, as the worker sends them."""
    return {
        "id": 7,
        "array_job": 0,
        "name": "train",
        "uid": 0,
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "qos": "normal",
        "state": "PENDING",
        "flags": [],
        "reason": "Resources",
        "reason_text": "",
        "priority": 1,
        "restarts": 0,
        "requeue": 1,
        "submitted": 100,
        "eligible": 100,
        "started": 900,
        "ended": 4500,
        "time_limit": 60,
        "least_nodes": 1,
        "most_nodes": 0,
        "tasks": 1,
        "tasks_per_node": None,
        "cpus": 1,
        "cpus_per_task": None,
        "tres_per_job": "gres/gpu:v100:4",
        "tres_per_node": "",
        "tres_per_task": "",
        "features": "",
        "dependency": "",
        "required_nodes": "",
        "excluded_nodes": "",
        "nodes": "",
        "gres": [],
        "batch_host": "",
        "admin_comment": "",
    } | changes


FakeSlurm = Callable[[str], None]


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Puts a `pyslurm` before the worker whose topology call runs the given statement."""
    package = tmp_path / "pyslurm"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def install(statement: str) -> None:
        (package / "jobs").write_text("[]")
        (package / "__init__.py").write_text(FAKE_PACKAGE)
        (package / "exact.py").write_text(FAKE_FIELDS + f"    {statement}\n")

    return install


def test_a_user_whom_the_name_service_did_not_tell_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(uid: int) -> Any:
        raise KeyError(uid)

    with monkeypatch.context() as patch:
        patch.setattr(pyslurm_reader.pwd, "getpwuid", away)
        assert job_record(fields(user="", uid=0)).user == "0"
    assert job_record(fields(user="", uid=0)).user == "root"


def test_a_start_that_slurm_foretells_is_no_start() -> None:
    job = job_record(fields())
    assert (job.started, job.ended) == (0.0, 0.0)


def test_a_running_job_has_started_and_not_ended() -> None:
    job = job_record(fields(state="RUNNING", nodes="n1"))
    assert (job.started, job.ended) == (900.0, 0.0)


def test_no_time_limit_is_none() -> None:
    assert job_record(fields(time_limit=-1)).time_limit is None
    assert job_record(fields(time_limit=720)).time_limit == 43200.0


def test_a_running_job_holds_gpus_on_its_nodes() -> None:
    gres = ["gpu:v100:3(IDX:0-2)", "gpu:k80:1(IDX:0)"]
    running = fields(state="RUNNING", nodes="n[1,3]", gres=gres)
    assert job_record(running).gpus_on == {"n1": 3, "n3": 1}
    assert job_record(running | {"state": "CANCELLED"}).gpus_on == {}


def test_a_node_counts_its_gpus_and_those_in_use() -> None:
    node = node_record(
        {
            "name": "n1",
            "states": "MIXED+DRAIN",
            "reason": "",
            "gres": "gpu:v100:4(S:0-1)",
            "gres_used": "gpu:v100:2(IDX:0-1)",
            "partitions": "gpu,all",
            "features": "",
        }
    )
    assert (node.gpu_type, node.gpus, node.gpus_used) == ("v100", 4, 2)
    assert node.states == {"MIXED", "DRAIN"}
    assert node.partitions == {"gpu", "all"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"library": 43}, "libslurm 43"), ({"controller": "25.05.1"}, "slurmctld is of 25.05.1")],
)
def test_another_release_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    same = {
        "built_for": [24, 11, 5],
        "library": 42,
        "built_for_library": 42,
        "controller": "24.11.9",
    }
    refuse_other_releases(same)
    with pytest.raises(SlurmError, match=named):
        refuse_other_releases(same | changes)


def test_a_release_of_may_is_known_by_its_two_digits() -> None:
    refuse_other_releases(
        {
            "built_for": [26, 5, 5],
            "library": 45,
            "built_for_library": 45,
            "controller": "26.05.7",
        }
    )


def test_a_snapshot_comes_through_the_worker(fake_slurm: FakeSlurm) -> None:
    fake_slurm("return 'SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]'")
    reader = PyslurmReader()
    assert reader.snapshot().switches == {"n1": ("s1",), "n2": ("s1",)}
    reader.close()


def test_a_job_is_told_again_only_when_it_has_changed(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(told: dict[str, Any]) -> JobRecord:
        read.append(told["id"])
        return job_record(told)

    monkeypatch.setattr(pyslurm_reader, "job_record", counted)
    fake_slurm("return ''")
    reader = PyslurmReader()

    def seen(*jobs: dict[str, Any]) -> tuple[dict[int, str], list[int], list[str]]:
        """States by job, which were read, and what made no sense."""
        (tmp_path / "pyslurm" / "jobs").write_text(json.dumps(jobs))
        read.clear()
        snapshot = reader.snapshot()
        states = {job.id: job.state for job in snapshot.jobs.values()}
        return states, list(read), list(snapshot.unread)

    first, broken = fields(id=1), fields(id=2, submitted="yesterday")
    runs = first | {"state": "RUNNING", "nodes": "n1", "gres": ["gpu:v100:4"]}
    assert seen(first, broken) == ({1: "PENDING"}, [1, 2], ["job 2"])
    assert seen(first, broken) == ({1: "PENDING"}, [], ["job 2"])
    assert seen(runs, fields(id=2)) == ({1: "RUNNING", 2: "PENDING"}, [1, 2], [])
    assert seen(fields(id=3), broken) == ({3: "PENDING"}, [3, 2], ["job 2"])
    assert seen(fields(id=3)) == ({3: "PENDING"}, [], [])
    reader.close()
    assert seen(fields(id=3)) == ({3: "PENDING"}, [3], [])  # another worker
    reader.close()


def test_after_an_answer_that_makes_no_sense_everything_is_told_again(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    fake_slurm("return '' if os.path.exists(os.path.dirname(__file__) + '/fine') else 7")
    (tmp_path / "pyslurm" / "jobs").write_text(json.dumps([fields(id=1)]))
    reader = PyslurmReader()
    with pytest.raises(SlurmError, match="no jobs, nodes and topology"):
        reader.snapshot()
    (tmp_path / "pyslurm" / "fine").touch()
    assert list(reader.snapshot().jobs) == [1]
    reader.close()


def test_a_call_that_hangs_is_given_up_at_the_deadline(fake_slurm: FakeSlurm) -> None:
    fake_slurm("time.sleep(60)")
    reader = PyslurmReader(timeout=1.0)
    with pytest.raises(SlurmUnreachable):
        reader.snapshot()
    fake_slurm("return ''")
    assert reader.snapshot().jobs == {}
    reader.close()


def test_a_library_that_ends_its_process_ends_only_the_worker(fake_slurm: FakeSlurm) -> None:
    fake_slurm("os.write(2, b'fatal: no slurm.conf'); os._exit(1)")
    with pytest.raises(SlurmError, match=r"fatal: no slurm\.conf"):
        PyslurmReader().snapshot()


def test_a_worker_that_died_meanwhile_is_replaced(fake_slurm: FakeSlurm) -> None:
    fake_slurm("return ''")
    reader = PyslurmReader()
    reader.snapshot()
    assert reader._worker is not None
    reader._worker._process.kill()
    reader._worker._process.wait()
    with pytest.raises(SlurmError, match="its process ended"):
        reader.snapshot()
    assert reader.snapshot().jobs == {}
    reader.close()


def test_a_controller_that_is_away_is_unreachable(fake_slurm: FakeSlurm) -> None:
    fake_slurm("raise RPCError('Unable to contact slurm controller')")
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        PyslurmReader().snapshot()


def test_a_pyslurm_without_the_exact_fields_is_named(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    (tmp_path / "pyslurm" / "__init__.py").write_text("")
    reason = available()
    assert reason is not None
    assert "pyslurm_build" in reason


def test_an_absent_pyslurm_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyslurm.py").write_text("raise ModuleNotFoundError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    reason = available()
    assert reason is not None
    assert "not here" in reason
    assert "Slurm 24.11" in reason
