"""From what agents and accounting say of runs to what onesctl estimate answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click.testing
import pytest
from fake_slurm import a_record

from ones.daemon.agent import traffic as agent_traffic
from ones.daemon.ctl import estimate as command
from ones.daemon.ctl import report as reporting
from ones.daemon.ctl.main import main
from ones.daemon.onesd.books import needs
from ones.daemon.onesd.books.needs import NeedsBook, NothingKnown, Question, answer
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import GpuSample, NodeReport, Traffic
from ones.slurm_ext.errors import SlurmUnreachable
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot
from ones.slurm_ext.usage import Usage, usage_of

GIB = 2**30
JOB = a_record(7, state="RUNNING", held=False, gpus_on={"n1": 2}, admin_comment="")


class Slurm:
    """Slurm with one node, and an agent that reports from it."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "db")
        self.lines = ""
        self.silent = False
        self.now = 1000.0
        self.book = NeedsBook(self.store, self)

    def run(self, *_: str) -> str:
        if self.silent:
            raise SlurmUnreachable("sacct", "no answer")
        return self.lines

    def usage(self, jobs: Iterable[int]) -> list[Usage]:
        return usage_of(cast(Any, self), jobs)

    def see(
        self,
        *jobs: JobRecord,
        gpus: Sequence[GpuSample] = (),
        network: Traffic | None = None,
    ) -> None:
        self.now += 30
        node = NodeRecord(name="n1", states=frozenset(), gpu_type="a100", gpus=4)
        snapshot = Snapshot(
            taken=self.now, jobs={job.id: job for job in jobs}, nodes={"n1": node}, switches={}
        )
        report = NodeReport(
            node="n1",
            taken=self.now,
            interval=30,
            version="0",
            gpus=tuple(gpus),
            network=network,
        )
        self.book.take(snapshot, {"n1": (self.now, report)}, now=self.now)

    def whole_run(
        self, job: JobRecord, *, gibibytes: float, state: str = "COMPLETED", others: int = 0
    ) -> None:
        """A run of an hour on two GPUs, and others beside it."""
        began = self.now
        beside = tuple(range(900, 900 + others))
        for busy in (0.0, 0.8, 0.6):
            samples = [gpu(number, (job.id, *beside), gibibytes, busy) for number in range(2)]
            self.see(job, gpus=samples)
        self.now = began + 3600
        ended = f"{job.id}|{job.restarts}|{state}|{began:.0f}|{self.now:.0f}|3600|1||8|64G"
        step = f"{job.id}.batch|{job.restarts}|{state}|0|0|3600|1|1|8||02:00:00|20G|"
        self.lines = f"{ended}|02:00:00||600\n{step}\n"
        self.see()


def gpu(number: int, jobs: tuple[int, ...], gibibytes: float, busy: float) -> GpuSample:
    return GpuSample(
        minor=number,
        uuid=f"GPU-{number}",
        type="a100",
        utilization=busy,
        memory_used=int(gibibytes * GIB),
        memory_total=40 * GIB,
        jobs=jobs,
    )


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def ask(slurm: Slurm, only: str | None = "alice", **question: Any) -> dict[str, Any]:
    asked = Question(**({"user": "alice", "name": "train"} | question))
    found = answer(slurm.book, asked, only)
    return found | {"estimates": {one["resource"]: one for one in found["estimates"]}}


def test_a_run_teaches_what_agents_and_accounting_saw(slurm: Slurm) -> None:
    for number in (7, 8, 9):
        slurm.whole_run(replace(JOB, id=number), gibibytes=10)
    found = ask(slurm)
    needs = {name: one["expected"] for name, one in found["estimates"].items()}
    assert found["runs"] == 3
    assert needs["gpu_memory"] == pytest.approx(10 * 1024, rel=0.01)
    assert needs["host_memory"] == pytest.approx(20 * 1024, rel=0.01)
    assert needs["cpu_cores"] == pytest.approx(2.0, rel=0.01)
    assert needs["gpu_utilization"] == pytest.approx(1.4 / 3, rel=0.01)
    assert needs["total"] == pytest.approx(3600, rel=0.01)
    assert needs["before_gpu"] == pytest.approx(60, rel=0.01)
    assert not found["estimates"]["gpu_memory"]["doubts"]


def test_a_run_beside_others_is_written_down_but_teaches_nothing(slurm: Slurm) -> None:
    slurm.whole_run(JOB, gibibytes=10, others=1)
    row = slurm.store.row("SELECT shared, state FROM needs")
    assert row is not None
    assert tuple(row) == (1, "COMPLETED")
    with pytest.raises(NothingKnown, match="nothing is known of alice/train"):
        ask(slurm)


def test_a_run_that_was_resized_teaches_nothing(slurm: Slurm) -> None:
    slurm.see(JOB, gpus=[gpu(0, (7,), 10, 0.5)])
    slurm.whole_run(replace(JOB, gpus_on={"n1": 1}), gibibytes=10)
    with pytest.raises(NothingKnown):
        ask(slurm)


def test_what_was_learnt_outlasts_a_restart_of_onesd(slurm: Slurm) -> None:
    slurm.whole_run(JOB, gibibytes=10)
    slurm.book = NeedsBook(slurm.store, slurm)
    assert ask(slurm)["runs"] == 1


def test_an_out_of_memory_kill_raises_what_is_suggested(slurm: Slurm) -> None:
    slurm.whole_run(JOB, gibibytes=10)
    before = ask(slurm)["estimates"]["host_memory"]["reserve"]
    slurm.whole_run(replace(JOB, id=8), gibibytes=10, state="OUT_OF_MEMORY")
    found = ask(slurm)["estimates"]["host_memory"]
    assert found["reserve"] >= 1.5 * 64 * 1024 > before
    assert "killed" in found["why"]


def test_late_accounting_delays_what_is_learnt_and_none_gives_it_up(slurm: Slurm) -> None:
    slurm.see(JOB, gpus=[gpu(0, (7,), 10, 0.5)])
    slurm.silent = True
    slurm.see()
    assert slurm.store.row("SELECT 1 FROM needs WHERE state IS NULL")
    slurm.now += 7200
    slurm.see()
    assert slurm.store.row("SELECT 1 FROM needs WHERE state = 'UNKNOWN'")
    assert list(ask(slurm)["estimates"]) == ["gpu_memory", "gpu_utilization"]


def test_what_another_job_of_this_number_used_long_ago_is_not_this_ones(slurm: Slurm) -> None:
    slurm.now = 1e9
    slurm.see(JOB, gpus=[gpu(0, (7,), 10, 0.5)])
    slurm.lines = "7|0|OUT_OF_MEMORY|1000|5000|4000|1||8|64G|00:01:00|1G|60\n"
    slurm.see()  # it has ended, and accounting is late
    assert slurm.store.row("SELECT 1 FROM needs WHERE state IS NULL")


def test_others_runs_are_an_operators_business(slurm: Slurm) -> None:
    slurm.whole_run(JOB, gibibytes=10)
    with pytest.raises(NothingKnown, match="only an operator"):
        ask(slurm, only="bob")
    with pytest.raises(NothingKnown, match="no run of a job of yours"):
        ask(slurm, only="bob", job=7)
    assert ask(slurm, only=None, job=7)["asked"]["memory"] == 64 * 1024


def test_the_command_shows_what_was_asked_beside_what_is_suggested(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (7, 8, 9):
        slurm.whole_run(replace(JOB, id=number), gibibytes=10)
    script = tmp_path / "a.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH -J train --gpus=2 --mem=64G -c 8 --time=10:00:00\ntrue\n")

    def answered(_method: str, _path: str, body: dict[str, Any]) -> Any:
        question = Question(**(body | {"user": "alice"}))
        return json.loads(json.dumps(answer(slurm.book, question, "alice")))

    monkeypatch.setattr(command, "asks", answered)
    run = click.testing.CliRunner().invoke
    text = run(main, ["estimate", str(script)]).output
    line = next(line for line in text.splitlines() if line.startswith("memory of a node"))
    assert line.split()[4:7] == ["64G", "24G", "--mem=24G"]
    assert "3 runs" in line
    assert "error" in line
    as_json = json.loads(run(main, ["estimate", "7", "--json"]).output)
    assert as_json["asked"]["gpus"] == 2
    failed = run(main, ["estimate", str(tmp_path / "none.sbatch")])
    assert failed.exit_code == 1
    assert failed.output.count("\n") == 1
    assert "none.sbatch: is no file" in failed.output


def test_the_report_holds_what_was_used_against_what_was_asked_by_user(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.whole_run(JOB, gibibytes=10)
    slurm.whole_run(replace(JOB, id=8), gibibytes=30, others=1)
    slurm.whole_run(replace(JOB, id=9, user="bob"), gibibytes=10)
    alice = next(one for one in slurm.book.report(None) if one["user"] == "alice")
    assert alice["runs"] == 2
    assert alice["gpu_hours"] == pytest.approx(4.0)
    assert alice["busy"] == pytest.approx(1.4 / 3)
    assert alice["gpu_memory"] == pytest.approx(20 * 1024)
    assert (alice["host_memory"], alice["memory_asked"]) == (20 * 1024, 64 * 1024)
    assert [one["user"] for one in slurm.book.report("bob")] == ["bob"]
    monkeypatch.setattr(reporting, "asks", lambda *_: {"users": slurm.book.report("alice")})
    text = click.testing.CliRunner().invoke(main, ["report", "needs", "-n"]).output
    assert text.split() == [
        *("alice", "vision", "2", "4.0", "47%", "20.0G/40.0G", "20.0G/64.0G"),
        *("2.0/8.0", "01:00:00/10:00:00"),
    ]


def test_the_report_of_nothing_is_empty(slurm: Slurm) -> None:
    assert slurm.book.report(None) == []


def test_without_an_agent_accounting_alone_teaches(slurm: Slurm) -> None:
    slurm.see(JOB)
    slurm.lines = "7|0|COMPLETED|1000|4600|3600|1||8|64G|02:00:00||600\n"
    slurm.see()
    assert list(ask(slurm)["estimates"]) == ["cpu_cores", "total"]


def traffic(received: int, sent: int) -> Traffic:
    return Traffic(received=received, sent=sent)


def counted(slurm: Slurm, job: JobRecord) -> tuple[float, float, float]:
    row = slurm.store.row("SELECT received, sent, listened FROM needs WHERE job = ?", job.id)
    assert row is not None
    return row["received"], row["sent"], row["listened"]


def test_the_network_of_a_node_is_that_of_the_one_job_on_it(slurm: Slurm) -> None:
    job = replace(JOB, nodes="n1", started=slurm.now + 60)
    slurm.see(job, network=traffic(1000, 2000))
    slurm.see(job, network=traffic(1500, 2100))  # some of this was before its start
    slurm.see(job, network=traffic(4500, 8100))
    assert counted(slurm, job) == (3000, 6000, 30)
    beside = replace(job, id=8, gpus_on={}, started=0.0)
    slurm.see(job, beside, network=traffic(9000, 9000))
    assert counted(slurm, job) == (3000, 6000, 30)
    slurm.see(job, network=traffic(10, 10))  # the node was started anew
    assert counted(slurm, job) == (3000, 6000, 30)


def test_the_kernels_counters_are_read_without_loopback_and_bridges(tmp_path: Path) -> None:
    proc, sys = tmp_path / "dev", tmp_path / "class"
    zeros = " 0" * 7
    proc.write_text(
        "Inter-| Receive\n face |bytes\n"
        f"    lo: 7{zeros} 7{zeros}\n  eth0: 100{zeros} 50{zeros}\n  br0: 100{zeros} 50{zeros}\n"
    )
    assert agent_traffic.read(proc, sys) == traffic(200, 100)
    (sys / "net/eth0/device").mkdir(parents=True)
    assert agent_traffic.read(proc, sys) == traffic(100, 50)
    counters = sys / "infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("10\n")
    (counters / "port_xmit_data").write_text("20\n")
    assert agent_traffic.read(proc, sys) == traffic(140, 130)
    assert agent_traffic.read(tmp_path / "none", sys) is None


def test_runs_that_nobody_asks_about_fill_no_memory(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "MEMORY", 5)
    slurm.book = NeedsBook(slurm.store, slurm)
    for number in range(1, 9):
        slurm.whole_run(replace(JOB, id=number), gibibytes=10)
    assert len(slurm.book._closed) == 5
    assert ask(slurm)["runs"] == 5
