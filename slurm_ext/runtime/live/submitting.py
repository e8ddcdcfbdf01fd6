"""Satellites as the base launcher sees them: submitted by sbatch, and cancelled where unwanted.

They are the user's own jobs, asked for by the user's own process: in the same account, QOS and
partition, on exactly the nodes that onesd names, no longer than this job (job_submit.lua sees to
that). Slurm's programs run beside us: nobody waits for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ones.slurm_ext.runtime.environment import LEADER, LEADER_RESTARTS, TICKET

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds for Slurm to answer
# Of this job, and not for another one: Slurm's own, ours, the devices, and a worker's place.
_OWN = re.compile(
    r"(SLURM|SLURMD|SBATCH|SPANK|ONES|PMI|PMIX|OMPI|TORCHELASTIC)_.*|CUDA_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|GROUP_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|OMP_NUM_THREADS|TMPDIR"
)


@dataclass(frozen=True, slots=True)
class Ours:
    """What a satellite takes from the job that it is for."""

    job: int
    restarts: int
    gpus: int  # of this node
    command: tuple[str, ...]  # that joins this job
    log: Path  # where a satellite's output goes


@dataclass(slots=True)
class Submitted:
    """A satellite on its way."""

    node: str
    gpus: int
    process: subprocess.Popen[bytes]
    output: tempfile.SpooledTemporaryFile[bytes]
    since: float
    job: int | None = None
    fault: str = ""


class Submitter:
    """Submits satellites, and cancels them."""

    def __init__(self, ours: Ours, environ: Mapping[str, str]) -> None:
        self._ours = ours
        self._environ = environ
        self._beside: list[subprocess.Popen[bytes]] = []

    def ask(self, order: int, node: str, gpus: int, gpu_type: str) -> Submitted:
        """Submit a satellite; `look` says when Slurm has answered."""
        text = os.fsencode(script(self._ours, order))  # paths in it need not be UTF-8
        output = tempfile.SpooledTemporaryFile()  # noqa: SIM115 (closed with its satellite)
        words = options(
            self._ours, self._environ, order=order, node=node, gpus=gpus, gpu_type=gpu_type
        )
        process = self._run(["sbatch", *words], output.fileno())
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(text)
            process.stdin.close()
        return Submitted(node, gpus, process, output, time.monotonic())

    @staticmethod
    def look(satellite: Submitted) -> bool:
        """Whether Slurm has answered: then it has a job, or a fault."""
        if satellite.job is not None or satellite.fault:
            return True
        code = satellite.process.poll()
        if code is None:
            if time.monotonic() - satellite.since > PATIENCE:
                satellite.process.kill()
                satellite.fault = f"sbatch did not answer within {PATIENCE:.0f} s"
            return bool(satellite.fault)
        satellite.output.seek(0)
        said = satellite.output.read().decode(errors="replace").strip()
        satellite.output.close()
        number = said.splitlines()[-1].split(";")[0] if said else ""
        if code == 0 and number.isdecimal():
            satellite.job = int(number)
        else:
            satellite.fault = "; ".join(said.split("\n"))[-300:] or f"sbatch ended with {code}"
        return True

    def cancel(self, jobs: Sequence[int]) -> None:
        """Have Slurm end these; those that train leave in good order."""
        self._beside = [each for each in self._beside if each.poll() is None]
        if jobs:
            with contextlib.suppress(OSError):  # onesd ends them as well, a round later
                self._beside.append(self._run(["scancel", *map(str, jobs)], subprocess.DEVNULL))

    def _run(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean(self._environ),
            start_new_session=True,
        )


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, without what belongs to this job alone."""
    kept = {name: value for name, value in environ.items() if not _OWN.fullmatch(name)}
    if "SLURM_CONF" in environ:
        kept["SLURM_CONF"] = environ["SLURM_CONF"]
    return kept


def script(ours: Ours, order: int) -> str:
    """The satellite's batch script."""
    named = {
        TICKET: f"{ours.restarts}.{order}",
        LEADER: str(ours.job),
        LEADER_RESTARTS: str(ours.restarts),
    }
    lines = ["#!/bin/sh", *(f"export {name}={value}" for name, value in named.items())]
    return "\n".join([*lines, f"exec {shlex.join(ours.command)}", ""])


def options(
    ours: Ours, environ: Mapping[str, str], *, order: int, node: str, gpus: int, gpu_type: str
) -> list[str]:
    """What sbatch is told: one task on one node, and of CPUs and memory the same share per GPU."""
    kind = f"gpu:{gpu_type}:{gpus}" if gpu_type else f"gpu:{gpus}"
    words = [
        "--parsable",
        f"--comment=ones-satellite:{ours.job}.{ours.restarts}.{order}",
        f"--job-name={environ.get('SLURM_JOB_NAME', 'ones')}",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        f"--gres={kind}",
        "--no-requeue",
        "--open-mode=append",
        f"--output={ours.log}",
        f"--chdir={Path.cwd()}",
    ]
    cpus = _number(environ, "SLURM_CPUS_ON_NODE")
    if cpus and ours.gpus:
        words.append(f"--cpus-per-task={max(1, cpus * gpus // ours.gpus)}")
    if whole := _number(environ, "SLURM_MEM_PER_NODE"):
        words.append(f"--mem={max(1, whole * gpus // max(1, ours.gpus))}M")
    elif each := _number(environ, "SLURM_MEM_PER_GPU"):
        words.append(f"--mem={each * gpus}M")
    elif each := _number(environ, "SLURM_MEM_PER_CPU"):
        words.append(f"--mem-per-cpu={each}M")
    for name, option in (
        ("SLURM_JOB_ACCOUNT", "account"),
        ("SLURM_JOB_QOS", "qos"),
        ("SLURM_JOB_PARTITION", "partition"),
        ("SLURM_JOB_RESERVATION", "reservation"),
    ):
        if environ.get(name):
            words.append(f"--{option}={environ[name]}")
    return words


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0
