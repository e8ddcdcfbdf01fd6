"""ones-release: when onesd is gone, release the jobs that wait for it.

A timer runs it every minute, apart from onesd and importing nothing of it, so that whatever stops
onesd (a crash, a full disk, a configuration that no longer loads) leaves no job held. It releases
jobs that job_submit.lua held at submission, jobs that onesd held between two runs, and jobs that
Slurm requeued for nodes onesd had chosen and that are lost; never a job that its user or an
administrator holds. One that is held asks for its owner's own request again, which onesd wrote down
when it gave the job another. Running it twice, or beside a reviving onesd, is safe: a released job
waits for onesd no more, so the next run does not see it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import click

from ones.daemon.presence import (
    Absence,
    absence,
    alive_elsewhere,
    lock_held,
    read_heartbeat,
    read_paths,
    read_takeover,
)
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.holding import (
    LATE,
    SINCE,
    Hold,
    Known,
    Waits,
    begins_by_owner,
    held_for_onesd,
    left_pinned,
)
from ones.slurm_ext.snapshot import MARK, STAGE_MARK

TIMEOUT = 20.0  # seconds for one Slurm command; an unreachable slurmctld takes nine
_COLUMNS = {
    "JobID": 20,
    "JobArrayID": 40,  # ARRAY_TASK of a task, which its number alone does not name to Slurm
    "PriorityLong": 20,
    "RestartCnt": 12,
    "SubmitTime": 20,
    "EligibleTime": 20,
    "Reason": 64,
    "ReqNodes": 64,  # whether it names any is all that counts
    "admin_comment": 320,  # the mark is shorter; what an administrator appended may be cut off
}
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
# A job, a task of an array, or a part of a heterogeneous job.
_NAME = re.compile(r"[0-9]{1,19}([_+][0-9]{1,10})?", re.ASCII)
_HELD_AT_SUBMISSION = re.compile(r"[^ ]*;held=1(?:[; ]|$)")


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A pending job as squeue shows it."""

    id: int
    priority: int
    restarts: int
    reason: str
    required_nodes: str
    admin_comment: str
    task: str = ""  # of an array: ARRAY_INDEX, its name to Slurm's programs
    submitted: float = 0.0
    eligible: float = 0.0  # when it may begin; 0: not known

    @property
    def marked(self) -> bool:
        return self.admin_comment.startswith(MARK)

    @property
    def stages_in(self) -> bool:
        return self.admin_comment.startswith(STAGE_MARK)

    @property
    def held(self) -> bool:
        return self.priority == 0

    @property
    def held_at_submission(self) -> bool:
        """Whether job_submit.lua held it; its user may have released or held it since."""
        return self.marked and _HELD_AT_SUBMISSION.match(self.admin_comment) is not None

    @property
    def waits(self) -> Waits:
        """How Slurm says that it is pending."""
        return Waits(
            reason=self.reason,
            restarts=self.restarts,
            held_at_submission=self.held_at_submission,
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What is in onesd's database of holds, by job."""

    known: Mapping[int, Known]
    looked: bool  # whether onesd has looked at the queue, and would have written down its holds
    requests: Mapping[int, str]  # of those that onesd has given a shape; see `own`

    def of(self, job: int) -> Known:
        return self.known.get(job, Known(lost=not self.looked))

    def own(self, job: PendingJob) -> dict[str, str]:
        """What an update has to say for the job to ask for its owner's own request again.

        Nothing for a job that nobody holds: were it started meanwhile, an update of its shape would
        take nodes away from it. That may start at the size that onesd has given it.
        """
        try:
            own = json.loads(self.requests[job.id]) if job.held else {}
            return {str(name): str(value) for name, value in own.items()}
        except (AttributeError, KeyError, ValueError):
            return {}


def why_release(job: PendingJob, known: Known, *, moves_too: bool) -> str | None:
    """Why this job waits for onesd and nobody else, or None where it is not ours to release.

    Where onesd's database can't be read, or knows nothing of it, a marked job that was requeued and
    is held counts as onesd's, because a job must not wait for ever on a lost file.
    """
    if not job.marked:
        return None
    if left_pinned(job.waits, known, held=job.held, required_nodes=job.required_nodes):
        if not moves_too:
            return None
        return f"{'requeued' if job.restarts else 'released'} onto nodes that onesd chose"
    if not job.held or not held_for_onesd(job.waits, known):
        return None
    if known.hold is None and job.restarts == 0 and known.unanswered is None:
        return "held at submission"
    if not moves_too:
        return None
    return "requeued and held, presumably by onesd" if known.lost else "held by onesd"


def parse_squeue(
    lines: Iterable[str], odd: Callable[[str], None] = lambda _line: None
) -> list[PendingJob]:
    """Those with a mark of ours, from the fixed columns that `pending_jobs` asks for.

    `odd` is told what is no job. The others are not kept: with all tasks of pending arrays they may
    be a million.
    """
    jobs = []
    for line in lines:
        fields, at = [], 0
        for width in _COLUMNS.values():
            fields.append(line[at : at + width].strip())
            at += width
        job, name, priority, restarts, submitted, eligible, reason, nodes, comment = fields
        fair = all(_NUMBER.fullmatch(field) for field in (job, priority, restarts))
        if fair and _NAME.fullmatch(name):
            if comment.startswith((MARK, STAGE_MARK)):
                numbers = int(job), int(priority), int(restarts)
                task = name if "_" in name else ""
                times = _seconds(submitted), _seconds(eligible)
                jobs.append(PendingJob(*numbers, reason, nodes, comment, task, *times))
        elif line.strip():
            odd(line)
    return jobs


def _seconds(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else 0.0


def pending_jobs() -> list[PendingJob]:
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    return parse_squeue(
        _lines(
            "squeue",
            "--noheader",
            "--local",
            "--array",
            "--states=PENDING",
            f"--Format={columns}",
        ),
        _odd,
    )


def _odd(line: str) -> None:
    shown = json.dumps(" ".join(line.split())[:100])
    click.echo(f"ones-release: error: squeue printed {shown}; that line is left out", err=True)


def terms(job: PendingJob) -> dict[str, str]:
    """What is written of a job before it is released.

    A node list that onesd pinned may name a node that is down, and a requeued job begins two
    minutes late; when else it begins is for its owner to say.
    """
    times = {"eligible": job.eligible, "submitted": job.submitted}
    late = begins_by_owner(**times, restarts=job.restarts)
    return {"ReqNodeList": ""} | ({} if late else {"StartTime": "now"})


def release(job: PendingJob, own: Mapping[str, str]) -> None:
    """Let Slurm start the job wherever it fits, at its `own` request. Raises SlurmError.

    All is written in one update. Where Slurm refuses it, the job is released at the size it has.
    """
    name = job.task or str(job.id)
    if own:
        try:
            _update(name, {**own, **terms(job)})
        except SlurmError as fault:
            words = f"job {name} is not put back to its own request"
            click.echo(f"ones-release: error: {words}: {fault}", err=True)
            own = {}
    if not own:
        _update(name, terms(job))
    _slurm("scontrol", "release", name)


def _update(job: str, fields: Mapping[str, str]) -> None:
    words = (f"{name}={value}" for name, value in fields.items())
    _slurm("scontrol", "update", f"JobId={job}", *words)


def cancel(job: int) -> None:
    """End a job. Raises SlurmError."""
    _slurm("scancel", str(job))


def _slurm(*command: str) -> None:
    for _ in _lines(*command):
        pass


def _lines(*command: str) -> Iterator[str]:
    """What one of Slurm's programs prints, as it prints it. Raises SlurmError, at the end too."""
    shown, began = " ".join(command[:3]), time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"SLURM_TIME_FORMAT": "%s"},
            encoding="utf-8",
            errors="replace",
        )
    except OSError as fault:
        raise SlurmError(shown, f"{fault.strerror}; is Slurm's bin directory on PATH?") from None
    assert process.stdout is not None and process.stderr is not None
    killer = Timer(TIMEOUT, process.kill)
    killer.start()
    try:
        with process:
            yield from process.stdout
            said = process.stderr.read()
    finally:
        killer.cancel()
    if process.returncode == 0:
        return
    if time.monotonic() - began >= TIMEOUT:
        raise SlurmError(shown, f"no answer in {TIMEOUT:.0f} s")
    raise SlurmError(shown, " ".join(said.split()) or f"exit status {process.returncode}")


def read_holds(store: Path, now: float) -> Written | None:
    """What onesd wrote down of holds, or None where it never could or that can't be read."""
    try:
        with closing(_open(store)) as database:
            return holds_in(database, now)
    except (sqlite3.Error, KeyError):
        return None


def holds_in(database: sqlite3.Connection, now: float) -> Written:
    """The same of an open database. Raises sqlite3.Error and KeyError."""
    rows = database.execute(
        "SELECT * FROM holds WHERE typeof(job) = 'integer' AND typeof(restarts) = 'integer'"
    )
    names = [column[0] for column in rows.description]
    found, requests = {}, {}
    for row in (dict(zip(names, tuple(values), strict=True)) for values in rows):
        released = row["released"] is not None
        # An onesd of an earlier version did not write the last two down.
        freed, pinned = bool(row.get("freed")) or released, row.get("pinned", released)
        hold = Hold(row["restarts"], released=released, freed=freed, pinned=bool(pinned))
        found[row["job"]] = Known(hold=hold)
        requests[row["job"]] = row.get("own") or ""
    for job, restarts in _late(database, now):
        found[job] = Known(hold=found.get(job, Known()).hold, unanswered=restarts)
    return Written(found, looked=_looked(database), requests=requests)


def _looked(database: sqlite3.Connection) -> bool:
    """Whether an onesd has seen Slurm's jobs since the database was made."""
    try:
        seen = database.execute(
            "SELECT EXISTS(SELECT 1 FROM rounds)"
            f" OR EXISTS(SELECT 1 FROM facts WHERE name = '{SINCE}')"
        ).fetchone()
    except sqlite3.Error:
        return False
    return bool(seen[0])


def _late(database: sqlite3.Connection, now: float) -> list[tuple[int, int]]:
    """Jobs, and their restarts, to which onesd has sent a hold that nobody answered."""
    try:
        rows = database.execute(
            "SELECT job, restarts FROM unanswered WHERE at BETWEEN ? AND ?"
            " AND typeof(job) = 'integer' AND typeof(restarts) = 'integer'",
            (now - LATE, now),
        )
        return [(row[0], row[1]) for row in rows]
    except sqlite3.Error:
        return []


def record_release(store: Path, job: PendingJob, now: float) -> None:
    """Write down that the job was released, so that its user's later hold is his own.

    A database that can't be written is no reason to leave a job held, so that passes in silence.
    """
    with suppress(sqlite3.Error), closing(_open(store)) as database, database:
        write_release(database, job, now)


def write_release(database: sqlite3.Connection, job: PendingJob, now: float) -> None:
    """The same in an open database."""
    row = {"job": job.id, "restarts": job.restarts, "since": now, "released": now}
    columns = {column[1] for column in database.execute("PRAGMA table_info(holds)")}
    if "freed" in columns:  # an onesd of an earlier version has no such
        row |= {"freed": 1, "pinned": 0}
    if "let_go" in columns:
        row |= {"let_go": now}
    updates = ", ".join(f"{name} = excluded.{name}" for name in row if name != "job")
    database.execute(
        f"INSERT INTO holds({', '.join(row)}) VALUES({', '.join('?' * len(row))})"
        f" ON CONFLICT(job) DO UPDATE SET {updates}",
        tuple(row.values()),
    )


def _open(store: Path) -> sqlite3.Connection:
    # mode=rw: a database that is not there is not made.
    return sqlite3.connect(f"{store.absolute().as_uri()}?mode=rw", uri=True, timeout=5)


def release_all(
    jobs: Iterable[PendingJob],
    written: Written | None,
    gone: Absence,
    store: Path,
    *,
    dry_run: bool,
) -> Sequence[SlurmError]:
    """Release every job that is ours to release; returns the refusals, each already printed."""
    refusals = []
    for job in jobs:
        if job.stages_in and job.held:
            # Nobody will let it run; the job that it is for starts without its data.
            if dry_run:
                click.echo(f"would end stage-in job {job.id}: {gone.why}")
                continue
            try:
                cancel(job.id)
                click.echo(f"ended stage-in job {job.id}: {gone.why}")
            except SlurmError as fault:
                refusals.append(fault)
                click.echo(f"ones-release: error: job {job.id} stays held: {fault}", err=True)
            continue
        known = written.of(job.id) if written is not None else Known(lost=True)
        why = why_release(job, known, moves_too=gone.moves_too)
        if why is None:
            continue
        if dry_run:
            click.echo(f"would release job {job.id}: {why}, and {gone.why}")
            continue
        try:
            release(job, written.own(job) if written is not None else {})
        except SlurmError as fault:
            refusals.append(fault)
            click.echo(f"ones-release: error: job {job.id} is not released: {fault}", err=True)
            continue
        record_release(store, job, time.time())
        click.echo(f"released job {job.id}: {why}, and {gone.why}")
    return refusals


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Default: /etc/ones/ones.toml.")
@click.option("--store", type=click.Path(path_type=Path), help="onesd's database.")
@click.option("--heartbeat", type=click.Path(path_type=Path), help="onesd's heartbeat file.")
@click.option("--onesd-is-gone", is_flag=True, help="For good, whatever its heartbeat says.")
@click.option("--dry-run", is_flag=True, help="Say what would be released, release nothing.")
@click.version_option(package_name="ones-slurm")
def main(
    config: Path | None,
    store: Path | None,
    heartbeat: Path | None,
    onesd_is_gone: bool,
    dry_run: bool,
) -> None:
    """Release the jobs that are held for an onesd that is not there.

    Does nothing while onesd's heartbeat is fresh and asks for new jobs to be held. Prints one line
    for each job released; exits 1 when Slurm did not answer or refused one.

    With --onesd-is-gone, as at its removal, the heartbeat counts for nothing, and is removed. Still
    nothing is done on a host that has neither it nor the database, while an onesd has that open,
    or, with [standby], while the onesd of another host lives: it looks for a sign of that for one
    and a half times `takeover`.
    """
    config = config or Path(os.environ.get("ONES_CONF") or "/etc/ones/ones.toml")
    paths = read_paths(config)
    store, heartbeat = store or paths["store"], heartbeat or paths["heartbeat"]
    if onesd_is_gone:
        if not (os.path.lexists(store) or os.path.lexists(heartbeat)):
            return
        refuse_while_alive(store, read_takeover(config))
        if not dry_run:
            # First, or job_submit.lua would hold more jobs.
            with suppress(OSError):
                heartbeat.unlink()
        gone: Absence | None = Absence("onesd is gone", moves_too=True)
    else:
        gone = absence(read_heartbeat(heartbeat), time.time())
    if gone is None:
        return
    try:
        jobs = pending_jobs()
    except SlurmError as fault:
        click.echo(f"ones-release: error: {fault}; jobs held for onesd stay held", err=True)
        sys.exit(1)
    if release_all(jobs, read_holds(store, time.time()), gone, store, dry_run=dry_run):
        sys.exit(1)


def refuse_while_alive(store: Path, takeover: float) -> None:
    """End the program where an onesd is not gone, whatever the operator says."""
    if takeover:
        if host := alive_elsewhere(store.parent / "terms", takeover):
            click.echo(f"onesd is alive on {host}; what it holds is left to it")
            sys.exit(0)
    elif lock := lock_held(store):
        click.echo(f"ones-release: error: an onesd holds {lock}; stop it first", err=True)
        sys.exit(1)
