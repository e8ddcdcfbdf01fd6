"""The agent as a whole, between a fake /proc and driver and a stand-in for onesd."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from agent_onesd import Controller, served
from aiohttp import web
from click.testing import CliRunner

from ones.daemon.agent import jobs, node, push
from ones.daemon.agent.main import main
from ones.daemon.agent.metrics import serve
from ones.daemon.agent.node import NodeAgent
from ones.daemon.agent.nvml import Reading
from ones.daemon.agent.sampler import Sampler
from ones.daemon.agent.staging import StageFolders
from ones.daemon.config import AgentConfig
from ones.daemon.wire import Checkpoint, GpuSample, Lease, NodeReport, Received, Report

ME, PID, STEPD = os.geteuid(), os.getpid(), 999_999_001


class Driver:
    """Two GPUs; this very process computes on the first."""

    note = ""

    def __init__(self) -> None:
        self.xid = False

    def sample(self) -> tuple[Reading, ...]:
        busy = GpuSample(minor=0, uuid="GPU-0", type="v100", utilization=0.5, power=250.0)
        return Reading(busy, (PID, 4711)), Reading(GpuSample(minor=1, uuid="GPU-1", type="v100"))

    def poll_errors(self) -> bool:
        news, self.xid = self.xid, False
        return news


class Site:
    """A node with an agent, and the controller it reports to."""

    def __init__(self, folder: Path, controller: Controller) -> None:
        self.controller = controller
        self.driver = Driver()
        self.proc = folder / "proc"
        self.config = AgentConfig(
            interval=600,
            socket=str(folder / "run" / "agent.sock"),
            jobs_dir=str(folder / "run" / "jobs"),
        )
        self.agent: NodeAgent

    def start_step(self, job: int, parent: int = STEPD, step: str = "batch") -> None:
        """slurmstepd runs, and this process is its child."""
        self._process(parent, 1, f"slurmstepd: [{job}.{step}]", 0, "/usr/sbin/slurmstepd")
        self._process(PID, parent, "python", ME, "/usr/bin/python3")

    def end_step(self, parent: int = STEPD) -> None:
        shutil.rmtree(self.proc / str(parent))
        shutil.rmtree(self.proc / str(PID), ignore_errors=True)

    def _process(self, pid: int, parent: int, title: str, uid: int, exe: str) -> None:
        folder = self.proc / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (x) S {parent} " + "0 " * 17 + "100 0\n")
        (folder / "cmdline").write_text(f"{title}\0")
        (folder / "status").write_text(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "exe").symlink_to(exe)

    async def say(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.config.socket)
        writer.write(line)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return answer

    async def pushed(self, number: int) -> NodeReport:
        """The number-th report that the controller got."""
        async with asyncio.timeout(15):
            while len(self.controller.reports) < number:
                await asyncio.sleep(0.02)
        return self.controller.reports[number - 1]


Work = Callable[[Site], Awaitable[None]]


@pytest.fixture
def at_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    monkeypatch.setattr(node, "TICK", 0.05)
    monkeypatch.setattr(push, "LEASE_TIMEOUT", 5.0)

    def run(work: Work) -> None:
        async def main() -> None:
            controller = Controller()
            async with served(controller) as onesd:
                site = Site(tmp_path, controller)
                site.proc.mkdir()
                site.start_step(7)
                site.agent = NodeAgent(
                    node="n1",
                    version="0",
                    config=site.config,
                    sampler=Sampler(site.driver),
                    onesd=onesd,
                    proc=site.proc,
                )
                async with await site.agent.open():
                    running = asyncio.create_task(site.agent.run())
                    await work(site)
                    assert not running.done()
                    running.cancel()
                    await asyncio.wait([running])

        asyncio.run(main())

    return run


def test_a_job_learns_its_size_reports_and_is_seen_on_its_gpu(
    at_site: Callable[[Work], None],
) -> None:
    async def work(site: Site) -> None:
        site.controller.leases[7] = Lease(job=7, sizes="2-16", gpus=4, batch=256)
        answer = await site.say(f"env 7 {ME}\n".encode())
        assert answer.decode().splitlines() == [
            f"ONES_SOCKET={site.config.socket}",
            f"ONES_JOB_DIR={site.config.jobs_dir}/7",
            "ONES_SIZES=2-16",
            "ONES_GPUS=4",
            "ONES_BATCH_SIZE=256",
            "ONES_CHECKPOINT_SIGNAL=USR1",
        ]
        folder = Path(site.config.jobs_dir, "7").stat()
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, ME)
        first = await site.pushed(1)
        assert (first.node, first.interval, first.received) == ("n1", 600, ())
        assert [gpu.jobs for gpu in first.gpus] == [(7,), ()]
        told = b'{"op":"report","job":7,"samples":5}\n{"op":"checkpoint","samples":5}\n'
        assert await site.say(told) == b'{"ok":true}\n' * 2
        second = await site.pushed(2)
        assert [received.evidence for received in second.received] == ["slurmstepd"] * 2
        assert [received.message for received in second.received] == [
            Report(job=7, samples=5),
            Checkpoint(job=7, samples=5),
        ]

    at_site(work)


def test_a_job_that_tunes_hears_its_new_batch_with_the_answer_to_its_report(
    at_site: Callable[[Work], None],
) -> None:
    async def work(site: Site) -> None:
        site.controller.leases[7] = Lease(job=7, sizes="1-4", gpus=2)
        await site.say(f"env 7 {ME}\n".encode())
        told = b'{"op":"report","samples":5,"tunes":true}\n'
        assert await site.say(told) == b'{"ok":true}\n'
        others = Lease(job=8, sizes="1-4", gpus=2, batch=99)
        site.controller.changed = (Lease(job=7, sizes="1-4", gpus=2, batch=512), others)
        before = len(site.controller.reports)
        site.driver.xid = True  # something to push at once
        await site.pushed(before + 1)
        async with asyncio.timeout(5):
            while await site.say(told) != b'{"ok":true,"batch":512}\n':
                await asyncio.sleep(0.02)
        # Who doesn't say that he tunes is told nothing.
        assert await site.say(b'{"op":"report","samples":5}\n') == b'{"ok":true}\n'

    at_site(work)


def test_an_onesd_of_an_older_release_names_no_leases_and_is_heard_all_the_same(
    at_site: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def older(_controller: Controller, request: web.Request) -> web.Response:
        _controller.reports.append(msgspec.json.decode(await request.read(), type=NodeReport))
        return web.json_response({"ok": True})

    async def work(site: Site) -> None:
        await site.say(f"env 7 {ME}\n".encode())
        site.driver.xid = True
        await site.pushed(1)
        told = b'{"op":"report","samples":5,"tunes":true}\n'
        assert await site.say(told) == b'{"ok":true}\n'

    monkeypatch.setattr(Controller, "report", older)
    at_site(work)


def test_a_report_that_lies_about_its_job_reaches_nobody(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        answer = json.loads(await site.say(b'{"op":"report","job":8}\n'))
        assert answer["ok"] is False
        assert (await site.agent.report()).received == ()
        samples = site.agent.metrics.registry.get_sample_value
        assert samples("ones_agent_messages_refused_total", {"why": "foreign"}) == 1

    at_site(work)


def test_a_plain_scripts_checkpoint_file_is_pushed_at_once(
    at_site: Callable[[Work], None],
) -> None:
    async def work(site: Site) -> None:
        await site.pushed(1)
        await site.say(f"env 7 {ME}\n".encode())
        folder = Path(site.config.jobs_dir, "7")
        (folder / "report.json").write_text('{"samples": 3, "loss": NaN')
        (folder / "new").write_text('{"samples": 4, "path": "/home/a/c.pt"}')
        (folder / "new").rename(folder / "checkpoint.json")
        (received,) = (await site.pushed(2)).received
        assert received == Received(
            at=received.at,
            evidence="directory",
            message=Checkpoint(job=7, samples=4, path="/home/a/c.pt"),
        )

    at_site(work)


def test_the_end_of_a_job_and_an_xid_are_pushed_at_once(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        await site.pushed(1)
        site.driver.xid = True
        await site.pushed(2)
        site.end_step()
        last = await site.pushed(3)
        assert all(gpu.jobs == () for gpu in last.gpus)
        assert last.ended == (7,)

    at_site(work)


def test_the_end_of_a_job_is_told_until_onesd_has_heard_it(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        await site.pushed(1)
        site.controller.refusal = 503
        site.end_step()
        async with asyncio.timeout(15):
            while (await site.agent.report()).ended != (7,):
                await asyncio.sleep(0.02)
        site.controller.refusal = 0
        await site.pushed(2)
        async with asyncio.timeout(15):
            while (await site.agent.report()).ended:
                await asyncio.sleep(0.02)
        assert any(report.ended == (7,) for report in site.controller.reports)

    at_site(work)


def test_an_ended_job_is_forgotten_with_its_folder(
    at_site: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_AFTER_END", 0.0)

    async def work(site: Site) -> None:
        await site.say(f"env 7 {ME}\n".encode())
        assert await site.say(b'{"op":"report"}\n') == b'{"ok":true}\n'
        folder = Path(site.config.jobs_dir, "7")
        site.end_step()
        async with asyncio.timeout(15):
            while folder.exists():
                await asyncio.sleep(0.02)
        assert any(report.received for report in site.controller.reports)
        assert (await site.agent.report()).received == ()

    at_site(work)


def test_a_file_written_after_the_end_says_nothing(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        await site.say(f"env 7 {ME}\n".encode())
        site.end_step()
        await site.agent.tick()
        (Path(site.config.jobs_dir, "7") / "report.json").write_text("{}")
        await site.agent.tick()
        assert (await site.agent.report()).received == ()

    at_site(work)


def test_a_restarted_job_does_not_find_its_last_runs_files_or_lease(
    at_site: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        site.controller.leases[7] = Lease(job=7, gpus=4)
        await site.say(f"env 7 {ME}\n".encode())
        report = Path(site.config.jobs_dir, "7", "report.json")
        report.write_text("{}")
        site.start_step(7, STEPD + 1, "0")
        site.controller.hang = 1.0
        monkeypatch.setattr(push, "LEASE_TIMEOUT", 0.1)
        assert b"ONES_GPUS=4" in await site.say(f"env 7 {ME}\n".encode())
        assert report.exists()
        site.end_step()
        site.end_step(STEPD + 1)
        await site.agent.tick()
        site.start_step(7, STEPD + 2)
        answer = await site.say(f"env 7 {ME}\n".encode())
        assert b"ONES_GPUS" not in answer
        assert b"ONES_JOB_DIR" in answer
        assert not report.exists()

    at_site(work)


@pytest.mark.parametrize("bad", [b'{"\\ud800":1}', b"[" * 60000, b"\xff", b"1" * 5000])
def test_one_bad_file_loses_no_other_of_its_scan(
    at_site: Callable[[Work], None], bad: bytes
) -> None:
    async def work(site: Site) -> None:
        for job in (6, 7, 8):
            site.start_step(job, STEPD + job)
            await site.say(f"env {job} {ME}\n".encode())
            said = bad if job == 6 else b'{"samples":9}'
            (Path(site.config.jobs_dir, str(job)) / "checkpoint.json").write_bytes(said)
        await site.agent.tick()
        received = (await site.agent.report()).received
        assert {one.message for one in received} == {
            Checkpoint(job=7, samples=9),
            Checkpoint(job=8, samples=9),
        }

    at_site(work)


@pytest.mark.parametrize("ahead", [3600.0, 1e300])
def test_staged_data_stay_where_onesds_clock_makes_no_sense(
    at_site: Callable[[Work], None], tmp_path: Path, ahead: float, caplog: pytest.LogCaptureFixture
) -> None:
    staged = tmp_path / "stage" / "41"
    staged.mkdir(parents=True)

    async def work(site: Site) -> None:
        site.agent._stages = StageFolders(staged.parent)
        site.controller.staged_at = time.time() + ahead
        for _ in range(3):
            await site.agent._pusher.push()
            await site.agent.tick()
        assert staged.exists()

    at_site(work)
    assert caplog.text.count("no staged data are removed") == 1


def test_an_agent_that_restarts_finds_running_jobs_again(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        await site.say(f"env 7 {ME}\n".encode())
        (Path(site.config.jobs_dir, "7") / "checkpoint.json").write_text('{"samples":9}')
        Path(site.config.socket).unlink()
        again = NodeAgent(
            node="n1",
            version="0",
            config=site.config,
            sampler=Sampler(site.driver),
            onesd=site.agent._onesd,
            proc=site.proc,
        )
        async with await again.open():
            await again.tick()
            (received,) = (await again.report()).received
            assert received.message == Checkpoint(job=7, samples=9)
            assert b"ONES_JOB_DIR" in await site.say(f"env 7 {ME}\n".encode())
            assert (Path(site.config.jobs_dir, "7") / "checkpoint.json").exists()

    at_site(work)


def test_a_bug_ends_nothing(
    at_site: Callable[[Work], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(site: Site) -> None:
        def broken() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(site.agent._folders, "scan", broken)
        await asyncio.sleep(0.2)
        assert await site.say(b'{"op":"report"}\n') == b'{"ok":true}\n'

    at_site(work)
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_metrics_are_served_in_base_units(at_site: Callable[[Work], None]) -> None:
    async def work(site: Site) -> None:
        await site.pushed(1)
        runner = await serve(site.agent.metrics, "127.0.0.1:0")
        port = runner.addresses[0][1]
        lines: list[str] = []
        pushed = 'ones_agent_pushes_total{outcome="taken"} 1.0'
        # The controller has the report before the agent has its answer, and counts it.
        async with asyncio.timeout(15), aiohttp.ClientSession() as session:
            while pushed not in lines:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
        await runner.cleanup()
        of = f'Hostname="{socket.gethostname()}",UUID="GPU-0"'
        assert f'ones_gpu_utilization_ratio{{{of},gpu="0",node="n1"}} 0.5' in lines
        assert f'ones_gpu_power_watts{{{of},gpu="0",node="n1"}} 250.0' in lines
        assert any(line.startswith("ones_gpu_healthy{") and 'gpu="1"' in line for line in lines)
        on = f'{{{of},evidence="slurmstepd",gpu="0",jobid="7",node="n1"}}'
        assert f"ones_gpu_job_info{on} 1.0" in lines
        assert pushed in lines

    at_site(work)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--node", "a b"], 1, "'a b' is no node name"),
        (["--config", "/nowhere/ones.toml"], 2, "/nowhere/ones.toml"),
    ],
)
def test_the_command_line_says_what_is_wrong_in_one_line(
    tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    config = tmp_path / "ones.toml"
    config.write_text("")
    done = CliRunner().invoke(main, ["--config", str(config), *arguments])
    assert done.exit_code == code
    (line,) = (line for line in done.output.splitlines() if line.startswith("ones-agent: error: "))
    assert told in line
