"""What an agent tells Prometheus, in base units. No user names: each would be a new series."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Info
from prometheus_client import generate_latest as exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ones.daemon.strangers import quiet
from ones.daemon.wire import GpuSample
from ones.slurm_ext.errors import OnesError

# `node` joins with Slurm's own metrics, the others with those of dcgm-exporter, by its names.
_GPU = ["node", "Hostname", "gpu", "UUID"]
_GAUGES: tuple[tuple[str, str, Callable[[GpuSample], float | None]], ...] = (
    ("healthy", "1 while the driver reaches the GPU.", lambda gpu: gpu.healthy),
    ("utilization_ratio", "Share of time with a kernel.", lambda gpu: gpu.utilization),
    ("memory_used_bytes", "Memory in use.", lambda gpu: gpu.memory_used),
    ("memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total),
    ("power_watts", "Power drawn.", lambda gpu: gpu.power),
    ("temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature),
    ("last_xid", "Code of the last XID error event.", lambda gpu: gpu.xid),
)


@dataclass(frozen=True, slots=True)
class GpuState:
    """The last sample of the node's GPUs, and by which evidence jobs are on them."""

    gpus: tuple[GpuSample, ...] = ()
    evidence: Mapping[int, str] = field(default_factory=dict)  # job -> evidence


class Metrics:
    """One registry of our own, so that several agents in a process don't collide."""

    def __init__(self, node: str, version: str) -> None:
        self.state = GpuState()
        self.registry = CollectorRegistry()
        Info("ones_agent_build", "The running version.", registry=self.registry).info(
            {"version": version}
        )
        self.messages = Counter(
            "ones_agent_messages",
            "Messages of jobs that were taken, by kind and evidence.",
            ["op", "evidence"],
            registry=self.registry,
        )
        self.refused = Counter(
            "ones_agent_messages_refused",
            "Messages of jobs that were refused, by cause.",
            ["why"],
            registry=self.registry,
        )
        self.pushes = Counter(
            "ones_agent_pushes", "Reports to onesd.", ["outcome"], registry=self.registry
        )
        self.last_push = Gauge(
            "ones_agent_last_push_timestamp_seconds",
            "When onesd last took a report.",
            registry=self.registry,
        )
        self.sample_seconds = Gauge(
            "ones_agent_sample_duration_seconds",
            "How long the last sample took.",
            registry=self.registry,
        )
        self.jobs = Gauge("ones_agent_jobs", "Jobs known on this node.", registry=self.registry)
        self.registry.register(_Gpus(node, self))


class _Gpus(Collector):
    """The last sample, as it is when Prometheus asks."""

    def __init__(self, node: str, metrics: Metrics) -> None:
        self._node = node
        self._host = socket.gethostname()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        state = self._metrics.state
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(f"ones_gpu_{name}", text, labels=_GPU)
            for gpu in state.gpus:
                told = value(gpu)
                if told is not None:
                    family.add_metric(self._labels(gpu), float(told))
            yield family
        info = GaugeMetricFamily(
            "ones_gpu_job_info",
            "Which job computes on the GPU, and what proves it.",
            labels=[*_GPU, "jobid", "evidence"],
        )
        for gpu in state.gpus:
            for job in gpu.jobs:
                evidence = state.evidence.get(job, "")
                info.add_metric([*self._labels(gpu), str(job), evidence], 1.0)
        yield info

    def _labels(self, gpu: GpuSample) -> list[str]:
        return [self._node, self._host, str(gpu.minor), gpu.uuid]


async def serve(metrics: Metrics, address: str) -> web.AppRunner:
    """Answer /metrics at HOST:PORT; the caller cleans up. Raises OnesError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise OnesError(f"metrics: '{address}' is not HOST:PORT, such as 127.0.0.1:9460")

    async def answer(_: web.Request) -> web.Response:
        text = exposition(metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, logger=quiet(__name__), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    except (OSError, OverflowError) as fault:
        await runner.cleanup()
        raise OnesError(f"metrics: can't listen on {address}: {fault}") from None
    return runner
