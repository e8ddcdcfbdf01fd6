"""The dashboard and the alerts, on a real Prometheus that scrapes a real onesd and an agent."""

from __future__ import annotations

import asyncio
import getpass
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry
from prometheus_server import Prometheus, free_port, program, scraping
from simulated_onesd import AtWork

from ones.daemon.agent import metrics as agent
from ones.daemon.config import DaemonConfig
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.wire import GpuSample

HERE = Path(__file__).parent
MONITORING = HERE.parents[1] / "daemon" / "monitoring"
RULES = MONITORING / "ones.rules.yml"
BOARD: dict[str, Any] = json.loads((MONITORING / "ones-dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]

# As dcgm-exporter and slurmctld 25.11 tell them.
OTHERS = """\
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-0",device="nvidia0",modelName="V100",Hostname="n1"} 0.7
slurm_node_cpus{node="n1"} 64
slurm_node_cpus_alloc{node="n1"} 16
"""


def an_agent() -> agent.Metrics:
    """What the agent of n1 tells: a busy GPU, one that is held but idle, and a lost one."""
    told = agent.Metrics("n1", "0.1.0")
    told.state = agent.GpuState(
        gpus=(
            _gpu(0, utilization=0.9, jobs=(7,)),
            _gpu(1, utilization=0.0, jobs=(7,)),
            _gpu(2, utilization=None, healthy=False, xid=79),
        ),
        evidence={7: "slurmstepd"},
    )
    told.messages.labels(op="report", evidence="slurmstepd").inc()
    told.refused.labels(why="foreign").inc()
    told.pushes.labels(outcome="taken").inc()
    return told


def _gpu(minor: int, **fields: Any) -> GpuSample:
    rest = {"memory_used": 1, "memory_total": 2, "power": 250.0, "temperature": 60.0} | fields
    return GpuSample(minor=minor, uuid=f"GPU-{minor}", type="v100", **rest)


@contextmanager
def served(folder: Path) -> Iterator[dict[str, int]]:
    """onesd after a minute of its life, an agent, and what others tell: job -> port."""
    ports = {"onesd": free_port()}
    at_work = AtWork(
        socket=str(folder / "onesd.sock"),
        agent_user=getpass.getuser(),
        daemon=DaemonConfig(metrics=f"127.0.0.1:{ports['onesd']}"),
    )
    at_work.submit()
    at_work.submit()
    at_work.live(60)
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def others(_: web.Request) -> web.Response:
        return web.Response(text=OTHERS, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def serve() -> None:
        beside = web.Application()
        beside.router.add_get("/metrics", others)
        runner = web.AppRunner(beside)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        an_agents = await agent.serve(an_agent(), "127.0.0.1:0")
        onesd = await Api(at_work.onesd.service).serve(only_here=True)
        ports["others"], ports["ones-agent"] = runner.addresses[0][1], an_agents.addresses[0][1]
        ready.set()
        await stop.wait()
        for one in (runner, an_agents, onesd):
            await one.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield ports
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("monitoring")
    program("prometheus")
    with served(folder) as ports, scraping(folder, RULES, ports) as server:
        yield server


def as_asked(expression: str) -> str:
    """As Grafana asks it, with all nodes chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$node", ".*")


def expressions() -> list[tuple[str, str]]:
    return [(panel["title"], one["expr"]) for panel in PANELS for one in panel["targets"]]


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_every_expression_of_the_dashboard_has_data(
    server: Prometheus, title: str, expression: str
) -> None:
    assert server.query(as_asked(expression)), f"{title}: {expression} is empty"


def test_metrics_join_with_those_of_dcgm_exporter_and_slurm(server: Prometheus) -> None:
    (busy,) = server.query(
        "DCGM_FI_PROF_SM_ACTIVE * on (UUID) group_left (jobid) ones_gpu_job_info"
    )
    assert busy["metric"]["jobid"] == "7"
    (ours,) = server.query("sum by (node) (ones_gpu_power_watts) / on (node) slurm_node_cpus")
    assert ours["metric"]["node"] == "n1"


def test_held_but_idle_gpus_are_counted(server: Prometheus) -> None:
    (expression,) = [each for title, each in expressions() if title == "Held but idle"]
    (found,) = server.query(as_asked(expression))
    assert found["value"][1] == "1"


def test_prometheus_takes_the_alerts_and_none_of_a_daemon_at_work_but_that_of_the_lost_gpu(
    server: Prometheus,
) -> None:
    (group,) = server.ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    raised = {rule["name"] for rule in group["rules"] if rule["state"] != "inactive"}
    assert raised <= {"OnesGpuLost", "OnesNoRound"}  # the simulated cluster's clock is its own


@pytest.mark.parametrize(
    "words",
    [("check", "rules", str(RULES)), ("test", "rules", str(HERE / "ones.rules.test.yml"))],
    ids=["check", "test"],
)
def test_promtool_passes_the_alerts(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_of_its_own() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"Ones\w+", (HERE / "ones.rules.test.yml").read_text()))


def names(registry: CollectorRegistry) -> set[str]:
    """Every series that it can have, as Prometheus names them."""
    found = set()
    for family in registry.collect():
        plain = {"counter": [f"{family.name}_total"], "info": [f"{family.name}_info"]}
        parts = [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
        found |= set(plain.get(family.type, parts if family.type == "histogram" else []))
        found |= {family.name} if family.type == "gauge" else set()
    return found


def test_the_dashboard_and_the_alerts_name_only_metrics_that_there_are() -> None:
    known = names(Metrics().registry) | names(an_agent().registry)
    words = RULES.read_text() + " ".join(expression for _, expression in expressions())
    used = set(re.findall(r"\bones_[a-z_]+", words)) - {"ones_agent"}
    assert used <= known, f"not at /metrics: {sorted(used - known)}"
    assert len(used) > 30


def lost(before: Any, after: Any, where: str) -> Iterator[str]:
    """What of the first is not in the second, which may have more."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif before != after:
        yield where


def test_the_dashboard_is_as_grafana_s_schema_has_it() -> None:
    plugins.register_default_plugins()
    understood = json.loads(json.dumps(Dashboard.from_json(BOARD), cls=JSONEncoder))
    assert list(lost(BOARD, understood, "dashboard")) == []
    broken = BOARD | {"panels": [PANELS[0] | {"targetz": []}]}
    again = json.loads(json.dumps(Dashboard.from_json(broken), cls=JSONEncoder))
    assert list(lost(broken, again, "dashboard")) == ["dashboard.panels[0].targetz"]


def test_no_panel_lies_on_another_and_each_says_what_it_shows() -> None:
    cells: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        for cell in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cells.setdefault(cell, panel["title"]) == panel["title"]
            assert cell[0] < 24
    assert all(panel["description"] for panel in PANELS)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
