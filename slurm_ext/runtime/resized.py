"""The user's own command at a resize, `ONES_ON_RESIZE`: run in the job, and never in its way."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)
COMMAND = "ONES_ON_RESIZE"
MOST = 60  # seconds that the command may take
# In the background, so that training waits for nothing of it; `timeout` ends all that it started.
_RUN = f"""(timeout --kill-after=5 {MOST} /bin/sh -c "${COMMAND}" ||
    echo "ones-run: {COMMAND} ended with $?; the job goes on" >&2) < /dev/null &"""


def at_start(environ: Mapping[str, str], *, gpus: int, folder: Path) -> None:
    """The job starts on so many GPUs, and may have had others in its last run.

    `folder` is the job's own, which outlives its runs. Nothing is kept there for who wants nothing.
    """
    if not environ.get(COMMAND):
        return
    kept = folder / "gpus"
    before = 0
    with suppress(OSError, ValueError):
        before = int(kept.read_text()[:20])
    if environ.get("SLURM_RESTART_COUNT", "0") != "0" and before:
        happened(environ, before, gpus, how="restart")
    _keep(kept, gpus)


def live(environ: Mapping[str, str], before: int, gpus: int, *, folder: Path) -> None:
    """The job trains on another number of GPUs now, in the same run."""
    if environ.get(COMMAND):
        happened(environ, before, gpus, how="live")
        _keep(folder / "gpus", gpus)


def happened(
    environ: Mapping[str, str], before: int, gpus: int, *, how: Literal["restart", "live"]
) -> None:
    """Run the command, where the number of GPUs is another one; its failure is the log's alone."""
    if before == gpus:
        return
    told = {"ONES_OLD_GPUS": str(before), "ONES_NEW_GPUS": str(gpus), "ONES_RESIZE": how}
    try:
        subprocess.run(
            ["/bin/sh", "-c", _RUN], env={**environ, **told}, start_new_session=True, check=False
        )
    except OSError as fault:
        log.warning("ones-run: %s could not be started: %s", COMMAND, fault)


def _keep(kept: Path, gpus: int) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(f"{gpus}\n")
    except OSError as fault:
        log.warning("ones-run: %s: %s; the next resize is not told", kept, fault.strerror)


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """The job's own folder, in the directory that it runs in; None outside a job."""
    job = environ.get("SLURM_JOB_ID", "")
    return Path.cwd() / "ones-checkpoints" / job if job.isdecimal() else None
