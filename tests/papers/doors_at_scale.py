"""What onesd's doors answer while rounds run, and while none does.

usage: scripts/benchmark-doors [--agents N] [--pages N] [--askers N] [--nodes N] [--jobs N] [--json]

onesd is a process with its own doors, loops and database on disk, in act mode, on a simulated Slurm
that is another process, on which one job in fifty changes every 15 s. Each agent has an address of
its own on loopback and one kept connection, and reports every 10 s: those of Slurm's nodes what
runs there, the others, if there are more, eight GPUs without jobs. Pages stay open, and one is
loaded again every half second. Askers ask as `watch onesctl` does, a question every two seconds
each; one in ten is root on the unix socket, and asks about everybody's jobs. Signatures stand in
for munge's: no munged would seal for so many hosts.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "unit")]

import msgspec  # noqa: E402
import sealing  # noqa: E402
import slurm_at_work  # noqa: E402
from line import Line, Stream  # noqa: E402

from ones.daemon.wire import (  # noqa: E402
    AGENT_PURPOSE,
    CTL_PURPOSE,
    HEARD,
    NODE,
    GpuSample,
    Lease,
    NodeReport,
)

AGENTS, PAGES, ASKERS, NODES, JOBS = 10_000, 500, 100, 1280, 10_000
SECONDS = 120.0  # that are measured
WARM = 2  # rounds with all jobs and everybody there, before it is measured
USERS = tuple(f"uid-{30_000 + number}" for number in range(100))  # whom no host knows by a name
PAGES_EVERY, ASKS_EVERY = 0.5, 2.0  # seconds
JITTER = 0.1  # of an agent's interval, as in daemon/agent/push.py
MOST_FILES = 20_000
LATE = 0.05  # seconds of a sleep, by which this program's own lateness is told
QUESTIONS = ("jobs", "status", "jobs", "nodes", "plan", "jobs")


@dataclass(frozen=True, slots=True)
class Answered:
    """One question: when it was asked and answered, by time.monotonic(); `how`: '' is well."""

    kind: str
    asked: float
    answered: float
    how: str


@dataclass(slots=True)
class Load:
    """All who ask, and what came of it."""

    port: int
    page_port: int
    unix: str
    rng: Random
    interval: float
    answers: list[Answered] = field(default_factory=list)
    reports: dict[str, bytes] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    pages: list[tuple[str, str]] = field(default_factory=list)  # cookie and proof
    late: list[float] = field(default_factory=list)

    async def _ask(self, kind: str, line: Line, request: bytes) -> bytes:
        began = time.monotonic()
        body, how = b"", ""
        try:
            status, body = await line.ask(request)
            how = "" if status == 200 else str(status)
        except (OSError, TimeoutError) as fault:
            how = type(fault).__name__
        self.answers.append(Answered(kind, began, time.monotonic(), how))
        return b"" if how else body

    async def agent(self, number: int, name: str) -> None:
        """A node's agent, for ever."""
        own = f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"
        line, failures = Line(port=self.port, own=own), 0
        idle = _idle(name)
        await asyncio.sleep(self.rng.uniform(0, self.interval))
        while True:
            report = self.reports.get(name) or msgspec.json.encode(idle(time.time()))
            signed = sealing.sign_as(0, AGENT_PURPOSE, name, report)
            heard = await self._ask(
                "report", line, _request("POST", "/v1/agent", report, signed, f"{NODE}: {name}")
            )
            failures = 0 if heard else failures + 1
            if b'"leases":[{' in heard:
                self.leases.update({one.job: one for one in HEARD.decode(heard).leases})
            jitter = 1 + JITTER * self.rng.uniform(-1, 1)
            await asyncio.sleep(self.interval * min(3, max(1, failures)) * jitter)

    async def asker(self, number: int) -> None:
        """Somebody with `watch onesctl`, for ever."""
        root = number % 10 == 0
        uid = int(USERS[number % len(USERS)].removeprefix("uid-"))
        line = Line(path=self.unix) if root else Line(port=self.port)
        own = list[int]()
        await asyncio.sleep(self.rng.uniform(0, ASKS_EVERY))
        while True:
            for question in QUESTIONS:
                path, kind = f"/v1/{question}", f"onesctl {question}"
                if own and self.rng.random() < 0.5:
                    about_one = self.rng.choice(("jobs", "explain"))
                    path = f"/v1/{about_one}/{self.rng.choice(own)}"
                    kind = "onesctl job" if about_one == "jobs" else "onesctl explain"
                if root:
                    kind = "onesctl as root"
                signed = "" if root else sealing.sign_as(uid, CTL_PURPOSE, f"GET {path}", b"")
                body = await self._ask(kind, line, _request("GET", path, b"", signed))
                if path == "/v1/jobs" and body:
                    own = [one["job"] for one in json.loads(body)["jobs"]][:50]
                await asyncio.sleep(ASKS_EVERY)

    async def page(self, number: int) -> None:
        """Sign in, load the page's state, and listen."""
        uid = int(USERS[number % len(USERS)].removeprefix("uid-"))
        secret, line = os.urandom(16).hex(), Line(port=self.port)
        offer = json.dumps({"digest": hashlib.sha256(secret.encode()).hexdigest()}).encode()
        signed = sealing.sign_as(uid, CTL_PURPOSE, "POST /v1/page", offer)
        await self._ask("link", line, _request("POST", "/v1/page", offer, signed))
        line.close()
        line = Line(port=self.page_port)
        origin = "Origin: http://127.0.0.1"
        body = json.dumps({"secret": secret}).encode()
        status, answer, cookie = await _signed_in(self.page_port, body, origin)
        if status != 200:
            self.answers.append(Answered("sign in", time.monotonic(), time.monotonic(), "refused"))
            return
        proof = json.loads(answer)["proof"]
        self.pages.append((cookie, proof))
        headers = f"Cookie: {cookie}\r\nOnes-Proof: {proof}"
        await self._ask("page, loaded", line, _request("GET", "/data/state", b"", "", headers))
        line.close()
        stream = Stream(_request("GET", "/data/changes", b"", "", headers))
        await asyncio.get_running_loop().create_connection(
            lambda: stream, "127.0.0.1", self.page_port
        )
        self.streams.append(stream)

    async def reloads(self) -> None:
        """Now and then one of the pages is loaded again."""
        line = Line(port=self.page_port)
        while True:
            await asyncio.sleep(PAGES_EVERY)
            if self.pages:
                cookie, proof = self.rng.choice(self.pages)
                headers = f"Cookie: {cookie}\r\nOnes-Proof: {proof}"
                request = _request("GET", "/data/state", b"", "", headers)
                await self._ask("page, loaded", line, request)

    async def lateness(self) -> None:
        """How late this program itself is."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LATE)
            self.late.append(time.monotonic() - before - LATE)


def _request(method: str, path: str, body: bytes, signed: str, header: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"Authorization: Munge {signed}"] if signed else []
    lines += [header] if header else []
    lines += [f"Content-Length: {len(body)}"] if method == "POST" else []
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _signed_in(port: int, body: bytes, origin: str) -> tuple[int, bytes, str]:
    """Status, body and cookie."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request("POST", "/sign-in", body, "", f"{origin}\r\nConnection: close"))
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    cookies = [one for one in head.decode().split("\r\n") if one.lower().startswith("set-cookie:")]
    cookie = cookies[0].partition(":")[2].partition(";")[0].strip() if cookies else ""
    return int(head[9:12] or b"0"), answer, cookie


def _idle(name: str) -> Callable[[float], NodeReport]:
    gpus = tuple(
        GpuSample(minor=minor, uuid=f"{name}-{minor}", type="a100", utilization=0.0)
        for minor in range(8)
    )
    interval = slurm_at_work.INTERVAL
    return lambda now: NodeReport(node=name, taken=now, interval=interval, version="0", gpus=gpus)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-doors", description=__doc__)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--askers", type=int, default=ASKERS)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that are measured")
    parser.add_argument("--policy", default="ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    chosen = parser.parse_args(arguments)
    if min(chosen.agents, chosen.nodes, chosen.jobs) < 1 or chosen.agents > 15_000:
        parser.error("--agents, --nodes and --jobs are at least 1, agents at most 15000")
    # Who ends this program ends onesd and the simulated Slurm, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(MOST_FILES, hard), hard))
    with tempfile.TemporaryDirectory(prefix="ones-doors-") as folder:
        found = measured(Path(folder), chosen)
    print(json.dumps(found, indent=2) if chosen.json else table(found))
    return 0


def measured(folder: Path, chosen: argparse.Namespace) -> dict[str, object]:
    ours, theirs = multiprocessing.Pipe()
    slurm, rounds = folder / "slurm", folder / "rounds"
    cluster = multiprocessing.get_context("spawn").Process(
        target=slurm_at_work.work,
        args=(slurm,),
        kwargs={
            "nodes": chosen.nodes,
            "jobs": chosen.jobs,
            "seed": chosen.seed,
            "users": USERS,
            "pipe": theirs,
        },
        daemon=True,
    )
    cluster.start()
    theirs.close()
    ours.recv()  # its jobs have been submitted
    ports = _free_port(), _free_port()
    config = folder / "ones.toml"
    config.write_text(
        f'controller = "127.0.0.1:{ports[0]}"\nmode = "act"\npolicy = "{chosen.policy}"\n'
        f'store = "{folder}/db"\nsocket = "{folder}/onesd.sock"\n'
        f'heartbeat = "{folder}/heartbeat"\n[events]\nsocket = "{folder}/events"\n'
        f'[daemon]\naddress = "127.0.0.1"\n[page]\naddress = "127.0.0.1:{ports[1]}"\n'
    )
    with (folder / "log").open("w") as log:
        onesd = subprocess.Popen(
            [sys.executable, HERE / "onesd_on_simulated.py", config, slurm, rounds], stderr=log
        )
    load = Load(
        *ports, f"{folder}/onesd.sock", Random(chosen.seed), interval=slurm_at_work.INTERVAL
    )
    try:
        return asyncio.run(_watched(load, chosen, onesd.pid, rounds, ours))
    except BaseException:
        print((folder / "log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        onesd.terminate()
        try:
            onesd.wait(60)
        except subprocess.TimeoutExpired:  # in the midst of a round on a machine that is too busy
            onesd.kill()
        cluster.terminate()


async def _watched(
    load: Load, chosen: argparse.Namespace, pid: int, rounds: Path, pipe: object
) -> dict[str, object]:
    full = threading.Event()

    def hear() -> None:
        while True:
            try:
                said = pipe.recv()  # type: ignore[attr-defined]
            except (EOFError, OSError):
                return
            load.reports.update(said.reports)
            if said.full:
                full.set()
            leases, load.leases = load.leases, {}
            pipe.send(leases)  # type: ignore[attr-defined]

    threading.Thread(target=hear, daemon=True).start()
    while not Path(load.unix).exists():
        await asyncio.sleep(0.2)
        if not Path(f"/proc/{pid}").exists():
            raise RuntimeError("onesd has ended")
    digits = len(str(chosen.nodes))
    names = [
        f"n{number:0{digits}}" if number <= chosen.nodes else f"other{number}"
        for number in range(1, chosen.agents + 1)
    ]
    tasks = [asyncio.create_task(load.agent(at, name)) for at, name in enumerate(names)]
    tasks.append(asyncio.create_task(load.lateness()))
    while not full.is_set():
        await asyncio.sleep(0.5)
    for number in range(chosen.pages):
        await load.page(number)
    tasks += [asyncio.create_task(load.asker(number)) for number in range(chosen.askers)]
    tasks.append(asyncio.create_task(load.reloads()))
    before = len(_intervals(rounds))
    while len(_intervals(rounds)) < before + WARM:
        await asyncio.sleep(0.5)
    begun, cpu = time.monotonic(), _cpu(pid)
    load.late.clear()
    await asyncio.sleep(chosen.seconds)
    ended, cpu = time.monotonic(), _cpu(pid) - cpu
    while _intervals(rounds)[-1][1] < ended:  # the round under way
        await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    return _figures(load, chosen, pid, _intervals(rounds), begun=begun, ended=ended, cpu=cpu)


def _figures(
    load: Load,
    chosen: argparse.Namespace,
    pid: int,
    rounds: list[tuple[float, float]],
    *,
    begun: float,
    ended: float,
    cpu: float,
) -> dict[str, object]:
    during = [one for one in rounds if one[1] > begun and one[0] < ended]
    kinds: dict[str, object] = {}
    within = [one for one in load.answers if begun <= one.asked < ended]
    for kind in sorted({one.kind for one in within}):
        of_kind = [one for one in within if one.kind == kind]
        kinds[kind] = {
            "asked": len(of_kind),
            "failed": {
                how: sum(one.how == how for one in of_kind)
                for how in sorted({one.how for one in of_kind if one.how})
            },
            "rounds": _spread([one for one in of_kind if _meets(one, during)]),
            "none": _spread([one for one in of_kind if not _meets(one, during)]),
        }
    reports = [one for one in within if one.kind == "report"]
    taken = sum(not one.how for one in reports)
    news = [
        min(later) - end
        for _, end in during
        for stream in load.streams
        if (later := [at for at in stream.times if at > end])
    ]
    return {
        "nodes": chosen.nodes,
        "jobs": chosen.jobs,
        "agents": chosen.agents,
        "pages": chosen.pages,
        "askers": chosen.askers,
        "seconds": round(ended - begun, 1),
        "rounds": len(during),
        "share_in_rounds": round(
            sum(min(to, ended) - max(at, begun) for at, to in during) / (ended - begun), 2
        ),
        "reports_a_second": round(taken / (ended - begun), 1),
        "reports_lost": len(reports) - taken,
        "pages_cut_off": sum(not stream.open for stream in load.streams),
        "news_ms": _quantiles(news),
        "answers": kinds,
        "cpu_share": round(cpu / (ended - begun), 2),
        "memory_mib": _memory(pid, "VmRSS"),
        "peak_mib": _memory(pid, "VmHWM"),
        "asker_late_ms": _quantiles(load.late),
    }


def _meets(one: Answered, rounds: list[tuple[float, float]]) -> bool:
    """Whether a round ran while it was answered."""
    at = bisect_left([end for _, end in rounds], one.asked)
    return at < len(rounds) and rounds[at][0] < one.answered


def _spread(answers: list[Answered]) -> list[float]:
    return _quantiles([one.answered - one.asked for one in answers if not one.how])


def _quantiles(seconds: list[float]) -> list[float]:
    """Milliseconds: median, 99 % and worst; none of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return []
    places = (len(ordered) // 2, len(ordered) * 99 // 100, len(ordered) - 1)
    return [round(1000 * ordered[place], 1) for place in places]


def table(found: dict[str, object]) -> str:
    """The same as lines of a Markdown table and a sentence."""
    lines = [
        "| answers, ms: median, 99 %, worst | asked | failed | while rounds run | while none runs |"
    ]
    lines.append("|---|---|---|---|---|")
    answers = found["answers"]
    assert isinstance(answers, dict)
    for kind, one in answers.items():
        failed = ", ".join(f"{number} {how}" for how, number in one["failed"].items()) or "none"
        spreads = (", ".join(f"{ms:,.0f}" for ms in one[when]) for when in ("rounds", "none"))
        lines.append(f"| {kind} | {one['asked']:,} | {failed} | " + " | ".join(spreads) + " |")
    rest = {name: told for name, told in found.items() if name != "answers"}
    return "\n".join([*lines, "", ", ".join(f"{name} {told}" for name, told in rest.items())])


def _intervals(rounds: Path) -> list[tuple[float, float]]:
    if not rounds.exists():
        return []
    lines = rounds.read_text().splitlines()
    return [(float(line.split()[0]), float(line.split()[1])) for line in lines]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
