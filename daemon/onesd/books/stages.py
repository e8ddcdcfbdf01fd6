"""Data on the disks of a job's nodes before the job is: when and where stage-in jobs run.

A job submitted with --stage-in waits, held for onesd, beside a held stage-in job of the same user.
Where the policy would start the job now, or its GPUs are foretold to be free soon, the stage-in job
may run on those nodes. The job itself is not planned for until its data are there; then it is, on
those nodes alone for a while. Whatever goes wrong, it starts as if nothing had been asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ones.daemon.onesd import audit
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.deciding import Gate, StageIn
from ones.policies.model import Job, JobId
from ones.policies.words import lasting
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import ALIVE, ENDED, JobRecord, Snapshot
from ones.slurm_ext.staging import StageJobs, stages

if TYPE_CHECKING:
    from ones.daemon.config import StagingConfig

log = logging.getLogger(__name__)
ORPHAN = 60.0  # seconds after which a stage-in job that no job names is ended
STAGED = "staged"


class Staging:
    """Keeps the table `stages`: what became of each stage-in."""

    def __init__(self, config: StagingConfig, store: Store, stage_jobs: StageJobs) -> None:
        self._config = config
        self._store = store
        self._stage_jobs = stage_jobs

    def gates(self, jobs: Iterable[Job], snapshot: Snapshot, *, now: float) -> dict[JobId, Gate]:
        """What the data of jobs that are to start have to say to that; also brings the table up
        to what Slurm says of their stage-in jobs."""
        gates = {}
        for job in jobs:
            record = snapshot.jobs[int(job.id)]
            stage = _stage_of(record)
            if stage is None or not job.startable or record.restarts:
                continue
            state = self._state(record, stage, snapshot, now)
            if not state.outcome:
                gates[job.id] = Gate(note=state.words, to_begin=state.begun is None)
            elif state.outcome == STAGED and now < state.free_at + self._config.hold:
                gates[job.id] = Gate(only_on=frozenset(state.nodes))
        return gates

    def staged(self) -> dict[JobId, tuple[str, ...]]:
        """The jobs whose data are, or will be, on these nodes."""
        rows = self._store.rows("SELECT * FROM stages WHERE outcome IN ('', ?)", STAGED)
        return {JobId(row["job"]): tuple(expand(row["nodes"])) for row in rows}

    def _state(self, main: JobRecord, stage: int, snapshot: Snapshot, now: float) -> _State:
        row = self._store.row("SELECT * FROM stages WHERE job = ?", main.id)
        state = _State(stage)
        if row is not None:
            nodes = tuple(expand(row["nodes"]))
            state = _State(stage, nodes, row["begun"], row["free_at"], row["outcome"])
        if state.outcome:
            return state
        record = snapshot.jobs.get(stage)
        if record is None or not stages(record) or record.user != main.user:
            state = replace(state, outcome=f"failed: job {stage} stages nothing in for it")
        elif record.state == "COMPLETED":
            state = replace(state, outcome=STAGED, nodes=tuple(expand(record.nodes)))
        elif record.state in ENDED:
            state = replace(state, outcome=f"failed: {self._why(record)}")
        elif state.begun is None and not record.held:
            state = replace(state, begun=now)  # its user released it
        elif state.begun is not None and now - state.begun > self._config.patience:
            why = f"late: not done in {lasting(self._config.patience)}"
            state = replace(state, outcome=why)
            self._cancel(record, why)
        else:
            return state
        if state.outcome:
            state = replace(state, free_at=max(now, state.free_at))
            log.info("job %d: its stage-in job %d: %s", main.id, stage, state.outcome)
        self._keep(main.id, state)
        return state

    def _why(self, record: JobRecord) -> str:
        try:
            said = self._stage_jobs.comment(record.id)
        except SlurmError:
            said = ""
        return said or f"the stage-in job {record.id} is {record.state.lower()}"

    def begin(self, stage_ins: Mapping[JobId, StageIn], snapshot: Snapshot, *, now: float) -> None:
        """Let stage-in jobs run on the nodes that were decided upon."""
        for job, where in stage_ins.items():
            main = snapshot.jobs[int(job)]
            stage = _stage_of(main)
            assert stage is not None, "only jobs with one are waiting for it"
            try:
                self._stage_jobs.let_run(stage, main=main, nodes=where.nodes)
            except SlurmError as fault:
                log.warning("job %d: %s; tried again in the next round", main.id, fault)
                continue
            on = fold(where.nodes)
            audit.acted("stage-in", job=main.id, user=main.user, stage=stage, to=on)
            self._keep(main.id, _State(stage, where.nodes, now, now + where.left))

    def tidy(self, snapshot: Snapshot, *, now: float) -> None:
        """End the stage-in jobs that nobody waits for any more."""
        rows = self._store.rows("SELECT stage FROM stages WHERE begun IS NOT NULL")
        begun = {row["stage"] for row in rows}
        wanted = {
            stage
            for record in snapshot.jobs.values()
            if record.state == "PENDING" and (stage := _stage_of(record)) is not None
        }
        for record in snapshot.jobs.values():
            gone = record.id not in wanted and now - record.submitted > ORPHAN
            # One that runs and that we never let run is somebody's who only named it so.
            ours = record.held or record.id in begun
            if stages(record) and record.state in ALIVE and gone and ours:
                self._cancel(record, "no job waits for it")

    def told(self, job: int) -> str:
        """What became of a job's stage-in, for its user; '' where it asked for none."""
        row = self._store.row("SELECT * FROM stages WHERE job = ?", job)
        if row is None:
            return ""
        where = f"stage-in job {row['stage']} on {row['nodes'] or 'no node'}"
        return f"{where}: {row['outcome'] or 'under way'}"

    def _cancel(self, stage: JobRecord, why: str) -> None:
        try:
            self._stage_jobs.cancel(stage.id)
        except SlurmError as fault:
            log.warning("%s; tried again in the next round", fault)
            return
        audit.acted("cancel", job=stage.id, user=stage.user, why=f"stage-in: {why}")

    def _keep(self, job: int, state: _State) -> None:
        row = {
            "job": job,
            "stage": state.stage,
            "nodes": fold(state.nodes),
            "begun": state.begun,
            "free_at": state.free_at,
            "outcome": state.outcome,
        }
        self._store.put("stages", [row])


@dataclass(frozen=True, slots=True)
class _State:
    stage: int
    nodes: tuple[str, ...] = ()
    begun: float | None = None
    free_at: float = 0.0  # when its nodes are foretold to be free; not before its data are there
    outcome: str = ""  # empty: not begun, or under way

    @property
    def words(self) -> str:
        if self.begun is None:
            return "its data are staged in once its GPUs are foretold to be free soon"
        return f"its data are being staged in by job {self.stage} on {fold(self.nodes)}"


def _stage_of(record: JobRecord) -> int | None:
    mark = Mark.parse(record.admin_comment) if record.marked else None
    return None if mark is None else mark.stage


def in_use(snapshot: Snapshot) -> tuple[int, ...]:
    """The stage-in jobs whose data are still needed."""
    alive = [record for record in snapshot.jobs.values() if record.state in ALIVE]
    named = {stage for record in alive if (stage := _stage_of(record)) is not None}
    return tuple(sorted(named | {record.id for record in alive if stages(record)}))


def ends(snapshot: Snapshot) -> dict[str, list[tuple[float, int]]]:
    """What jobs that did not opt in give back, at their time limits."""
    found: dict[str, list[tuple[float, int]]] = {}
    for record in snapshot.jobs.values():
        if record.marked or record.time_limit is None:
            continue
        left = max(0.0, record.started + record.time_limit - snapshot.taken)
        for name, gpus in record.gpus_on.items():
            found.setdefault(name, []).append((left, gpus))
    return found
