"""One node's agent: telemetry and both doors in, full reports out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ones.daemon.agent import traffic
from ones.daemon.agent.attribution import Owner, Process, Processes
from ones.daemon.agent.doors import Door, Peer, Visitors
from ones.daemon.agent.folders import Found, JobFolders
from ones.daemon.agent.jobs import Jobs
from ones.daemon.agent.messages import Message, Refused, read_message
from ones.daemon.agent.metrics import GpuState, Metrics
from ones.daemon.agent.push import ControllerError, Onesd, Pusher
from ones.daemon.agent.sampler import Sampler
from ones.daemon.agent.staging import StageFolders
from ones.daemon.config import STAGE_FOLDER, AgentConfig
from ones.daemon.systemd import notify
from ones.daemon.wire import Checkpoint, Heard, Lease, Live, NodeReport, Received, Report

log = logging.getLogger(__name__)
TICK = 0.5  # seconds between two looks at job folders, ended processes and XIDs
WATCHDOG_TICKS = 10
MOST_ENDED = 1000  # in one report
MOST_TOLD = 1000  # refusals that are logged
MOST_SKEW = 60.0  # seconds that onesd's clock may be ahead of ours
LONGEST_PAUSE = 60.0  # after failures of ours


@dataclass(frozen=True, slots=True)
class Scene:
    """Whose processes are on this node, at one moment."""

    stepds: Mapping[int, frozenset[Process]]
    owners: Mapping[int, Owner]  # of the processes on GPUs, by process id


class NodeAgent:
    """Puts the parts together. Everything but reading files runs on one event loop."""

    def __init__(
        self,
        *,
        node: str,
        version: str,
        config: AgentConfig,
        sampler: Sampler,
        onesd: Onesd,
        stage_folder: str = STAGE_FOLDER,
        proc: Path = Path("/proc"),
    ) -> None:
        self.metrics = Metrics(node, version)
        self._node = node
        self._version = version
        self._config = config
        self._sampler = sampler
        self._onesd = onesd
        self._folders = JobFolders(Path(config.jobs_dir))
        self._folders_change = asyncio.Lock()
        self._processes = Processes(proc, self._folders.owner)
        self._jobs = Jobs()
        self._stages = StageFolders(Path(stage_folder))
        self._needed: Heard | None = None  # what onesd last said of staged data
        self._told_skew = False
        self._told: set[tuple[int, str]] = set()
        self._ended: set[int] = set()  # jobs of whose end onesd has not heard yet
        self._pusher = Pusher(
            onesd,
            self.report,
            interval=config.interval,
            done=self._pushed,
            learn=self._learn,
        )
        self._door = Door(
            Path(config.socket),
            Visitors(
                identify=self._identify,
                take=self._take,
                environment=self._environment,
                refused=lambda why: self.metrics.refused.labels(why).inc(),
            ),
        )

    async def open(self) -> asyncio.Server:
        """Open both doors; raises OnesError. Jobs that run already are found again."""
        await asyncio.to_thread(self._folders.open)
        await asyncio.to_thread(self._stages.open)
        now = time.time()
        for job in self._folders.jobs():
            self._jobs.see({job: ()}, now=now)
        for job, processes in (await asyncio.to_thread(self._processes.stepds)).items():
            self._jobs.begin(job, None, now=now)
            self._jobs.see({job: processes}, now=now)
        return await self._door.open()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_forever("pushing", self._pusher.run))
            tasks.create_task(_forever("looking", self._look))

    async def report(self) -> NodeReport:
        """The node's full state, now."""
        readings, note = await self._sampler.sample()
        pids = {pid for reading in readings for pid in reading.pids}
        scene = await asyncio.to_thread(self._survey, pids)
        self._jobs.see(scene.stepds, now=time.time())
        owners = scene.owners
        gpus = tuple(
            msgspec.structs.replace(
                reading.gpu,
                jobs=tuple(sorted({owners[pid].job for pid in reading.pids if pid in owners})),
            )
            for reading in readings
        )
        evidence = {owner.job: owner.evidence for owner in owners.values()}
        self.metrics.state = GpuState(gpus, evidence)
        self.metrics.sample_seconds.set(self._sampler.seconds)
        self.metrics.jobs.set(len(self._jobs))
        return NodeReport(
            node=self._node,
            taken=time.time(),
            interval=self._config.interval,
            version=self._version,
            gpus=gpus,
            received=self._jobs.received(),
            ended=tuple(sorted(self._ended)[-MOST_ENDED:]),
            network=await asyncio.to_thread(traffic.read),
            note=note,
        )

    async def tick(self) -> None:
        """Look at what changes between two reports; push at once what onesd waits for."""
        urgent = False
        for found in await asyncio.to_thread(self._folders.scan):
            try:
                urgent |= self._take_file(found)
            except (ValueError, TypeError, ArithmeticError, RecursionError):
                log.exception("job %d: %s.json is left out", found.job, found.op)
        # After the folders: a job's last word may be its last deed.
        ended = self._jobs.bury(self._processes.alive, now=time.time())
        self._ended.update(ended)
        urgent |= bool(ended) | await self._sampler.poll_errors()
        if urgent:
            self._pusher.soon()
        needed, self._needed = self._needed, None
        if needed is not None and 0 < needed.staged_at <= time.time() + MOST_SKEW:
            clean = self._stages.clean
            for job in await asyncio.to_thread(clean, needed.staged, seen=needed.staged_at):
                log.info("what stage-in job %d brought is removed", job)
        await asyncio.to_thread(self._stages.go_on)
        for job in self._jobs.forget(now=time.time()):
            async with self._folders_change:
                if job not in self._jobs:
                    await asyncio.to_thread(self._folders.remove, job)
                    self._told = {told for told in self._told if told[0] != job}

    def _learn(self, heard: Heard) -> None:
        for lease in heard.leases:
            self._jobs.learn(lease)
        self._needed = heard
        ahead = heard.staged_at - time.time()
        if ahead > MOST_SKEW and not self._told_skew:
            log.warning(
                "onesd saw Slurm %.0f s from now: no staged data are removed until the clocks of"
                " both hosts agree",
                ahead,
            )
        self._told_skew = ahead > MOST_SKEW

    async def _look(self) -> None:
        ticks = 0
        while True:
            await self.tick()
            if ticks % WATCHDOG_TICKS == 0:
                notify("WATCHDOG=1")
            ticks += 1
            await asyncio.sleep(TICK)

    def _survey(self, pids: Iterable[int]) -> Scene:
        owners = {pid: self._processes.owner(pid) for pid in pids}
        return Scene(
            self._processes.stepds(), {pid: owner for pid, owner in owners.items() if owner}
        )

    def _identify(self, peer: Peer) -> Owner | None:
        owner = self._processes.owner(peer.pid)
        # Another user's process under this id is not the one that connected.
        return owner if self._processes.uid(peer.pid) == peer.uid else None

    def _take(self, peer: Peer, owner: Owner, message: Message) -> Lease | None:
        received = Received(at=time.time(), evidence=owner.evidence, message=message)
        process = self._processes.process(peer.pid)
        if self._jobs.hear(received, now=received.at, process=process):
            self._pusher.soon()
        self._count(received)
        changes = isinstance(message, Live) or (isinstance(message, Report) and message.tunes)
        return self._jobs.lease(message.job) if changes else None

    def _take_file(self, found: Found) -> bool:
        """Take a job folder's file; True for urgent news. Ended jobs say nothing any more."""
        if not self._jobs.alive(found.job):
            return False
        try:
            if found.fault:
                raise Refused("malformed", found.fault)
            message = read_message(found.data, job=found.job, op=found.op)
            now = time.time()
            received = Received(at=min(now, found.at), evidence="directory", message=message)
            news = self._jobs.hear(received, now=now, unpaced=True)
        except Refused as refusal:
            self.metrics.refused.labels(refusal.why).inc()
            # The first of each kind: one job's many faults must not fill the journal.
            if (found.job, refusal.why) not in self._told and len(self._told) < MOST_TOLD:
                self._told.add((found.job, refusal.why))
                log.warning("job %d: %s.json refused: %s", found.job, found.op, refusal)
            return False
        self._count(received)
        return news

    def _count(self, received: Received) -> None:
        match received.message:
            case Checkpoint():
                op = "checkpoint"
            case Live():
                op = "live"
            case Report():
                op = "report"
        self.metrics.messages.labels(op, received.evidence).inc()

    async def _environment(self, peer: Peer, job: int, uid: int) -> list[str]:
        """What a step of an elastic job that starts here finds in its environment."""
        fresh = self._jobs.begin(job, self._processes.process(peer.pid), now=time.time())
        lines = [f"ONES_SOCKET={self._config.socket}"]
        try:
            async with self._folders_change:
                folder = await asyncio.to_thread(self._folders.prepare, job, uid, fresh=fresh)
            lines.append(f"ONES_JOB_DIR={folder}")
        except OSError as fault:
            log.error("job %d: no folder for it: %s", job, fault)
        try:
            lease = await self._onesd.lease(job)
            if lease is not None:
                self._jobs.learn(lease)
        except ControllerError as fault:
            lease = self._jobs.lease(job)  # of this run, from an earlier step
            log.warning("job %d starts %s: %s", job, "as before" if lease else "plainly", fault)
        return lines + (_environment_of(lease) if lease else [])

    def _pushed(self, report: NodeReport, heard: bool) -> None:
        self.metrics.pushes.labels("taken" if heard else "failed").inc()
        if heard:
            self._jobs.sent(report.received)
            self._ended.difference_update(report.ended)
            self.metrics.last_push.set_to_current_time()


def _environment_of(lease: Lease) -> list[str]:
    told = {
        "ONES_SIZES": lease.sizes or None,
        "ONES_GPUS": lease.gpus,
        "ONES_BATCH_SIZE": lease.batch,
        "ONES_CHECKPOINT_SIGNAL": lease.checkpoint_signal,
    }
    return [
        f"{name}={value}"
        for name, value in told.items()
        if value is not None and str(value).isprintable()
    ]


async def _forever(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """The outermost loop: a bug is told and backed off from, but ends nothing."""
    pause = 1.0
    while True:
        begun = time.monotonic()
        try:
            await work()
        except Exception:
            log.exception("%s failed; again in %g s", what, pause)
        pause = 1.0 if time.monotonic() - begun > LONGEST_PAUSE else min(LONGEST_PAUSE, 2 * pause)
        await asyncio.sleep(pause)
