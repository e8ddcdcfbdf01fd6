"""How a worker becomes part of its job: the order of things is what matters here."""

from __future__ import annotations

import atexit
import importlib.util
import json
import logging
import os
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ones.slurm_ext.runtime.checkpoint import Checkpoint, Checkpoints, Moment, moment_from
from ones.slurm_ext.runtime.environment import Environment, read_environment
from ones.slurm_ext.runtime.framework import Framework, PlainFramework
from ones.slurm_ext.runtime.job import Job, UsageFault
from ones.slurm_ext.runtime.learning_rate import Rule
from ones.slurm_ext.runtime.live.member import AGAIN, FD
from ones.slurm_ext.runtime.reporting import Reporter
from ones.slurm_ext.runtime.sampling import Progress
from ones.slurm_ext.runtime.signals import Requests, would_end

if TYPE_CHECKING:
    from ones.slurm_ext.runtime.live.resizing import Resizing

log = logging.getLogger(__name__)
OLDEST_TORCH = (2, 6)


def start(
    *,
    seed: int,
    checkpoints: Path | None,
    checkpoint_seconds: float | None,
    rule: Rule,
    warmup_steps: int | None,
    backend: str | None,
) -> Job:
    """Join the job. Collective: every worker's script calls it once."""
    environment = read_environment(os.environ)
    requests = Requests(environment.checkpoint_signal)
    # Before any report: whoever has reported may be asked, and every worker gets the signal.
    requests.listen_for_checkpoints()
    framework, live = _framework(backend)
    framework.connect(environment.place)
    folder = _folder(environment, checkpoints)
    kept = None if folder is None else Checkpoints(folder)
    found = None
    leads = environment.place.rank == 0 if live is None else live.leads
    if kept is not None and leads:
        found = _find(kept, environment, given=checkpoints is not None)
    moment, path = _shared(framework, found, seed)
    framework.seed(moment.seed)
    # Whoever reports may be signalled, and a worker that is not yet this far would die of it: a
    # script that met the others by itself comes here worker by worker.
    framework.barrier()

    def reporter() -> Reporter | None:
        if not environment.socket or environment.job is None:
            return None
        return Reporter(environment.socket, job=environment.job, restarts=environment.restarts)

    job = Job(
        environment,
        framework,
        started=_started(environment),
        reporter=reporter,
        requests=requests,
        askable=not leads or _askable(environment),
        checkpoints=kept,
        checkpoint_seconds=checkpoint_seconds,
        found=found,
        moment=moment,
        checkpoint=path,
        rule=rule,
        warmup_steps=warmup_steps,
        live=live,
    )
    atexit.register(job.close)
    return job


def _askable(environment: Environment) -> bool:
    """Whether the job would outlive being asked for a checkpoint; where not, say so."""
    if not environment.socket:
        return True
    number = environment.checkpoint_signal
    if not (program := would_end(number)):
        return True
    log.warning(
        "ones: %s, by which Slurm asks for a checkpoint, would end '%.40s', which started this"
        " script: the job is not asked, and keeps its size; start it with: srun ones-run SCRIPT",
        *(number.name, program),
    )
    return False


def _framework(backend: str | None) -> tuple[Framework, Resizing | None]:
    if importlib.util.find_spec("torch") is None:
        return PlainFramework(), None
    _check_torch()
    if FD in os.environ:
        from ones.slurm_ext.runtime.live.resizing import resizing  # noqa: PLC0415 (heavy)

        return resizing(backend)
    from ones.slurm_ext.runtime.torch_framework import TorchFramework  # noqa: PLC0415 (heavy)

    return TorchFramework(backend), None


def _check_torch() -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 (heavy)

    said = str(torch.__version__)
    if tuple(map(int, re.findall("[0-9]+", said)[:2])) < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        raise UsageFault(f"PyTorch {said} is too old for ones; install {wanted} or newer")


def _folder(environment: Environment, checkpoints: Path | None) -> Path | None:
    """Where checkpoints go; None where nothing would ever ask for them or look for them."""
    if checkpoints is not None:
        return checkpoints.absolute()
    if environment.job is None:
        return None
    # Named after the script as well: a job may train one thing after the other.
    script = Path(sys.argv[0]).stem or "job"
    return Path.cwd() / "ones-checkpoints" / str(environment.job) / script


def _find(kept: Checkpoints, environment: Environment, *, given: bool) -> Checkpoint | None:
    """Where to go on from. A first run finds nothing of its own in the folder of its number."""
    if not (environment.restarts or given or os.environ.get(AGAIN)):
        kept.set_aside()
        return None
    found = kept.latest()
    if found is not None:
        log.info("ones: going on from %s", found.path)
    elif environment.restarts:
        log.warning(
            "ones: restart %d finds no checkpoint in %s; training begins anew",
            environment.restarts,
            kept.folder,
        )
    return found


def _shared(
    framework: Framework, found: Checkpoint | None, seed: int
) -> tuple[Moment, Path | None]:
    """On every worker the moment, and where it was found: only rank 0 has looked at the disk."""
    mine = found.moment if found is not None else Moment(progress=Progress(), seed=seed)
    path = str(found.path) if found is not None else ""
    moment, path = json.loads(framework.share(json.dumps([asdict(mine), path]).encode()))
    return moment_from(moment), Path(path) if path else None


def _started(environment: Environment) -> float:
    """When what this worker needs to get ready began, in seconds since the epoch.

    That is the launcher's start, but for one that comes to a training that has run for long.
    """
    if os.environ.get(AGAIN):
        return _process_start()
    return environment.started or _process_start()


def _process_start() -> float:
    """When this process started, in seconds since the epoch."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, ValueError, IndexError):
        return time.time()
