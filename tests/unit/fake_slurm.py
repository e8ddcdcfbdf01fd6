"""A Slurm in memory, behind the interface of Commands: obeys, refuses and forgets as Slurm does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.slurm import Slurm
from ones.slurm_ext.snapshot import ENDED, JobRecord
from ones.slurm_ext.tres import gpus_in

MARK = "ONES1:sizes=1-16;request=4;held=1;tasks=0;nodes=1"


def a_record(number: int = 1, **changes: Any) -> JobRecord:
    """A marked job that is held at submission and asks by --gpus=4."""
    base = JobRecord(
        id=number,
        name="train",
        user="alice",
        account="vision",
        partition="gpu",
        qos="normal",
        state="PENDING",
        reason="JobHeldUser",
        held=True,
        submitted=1000.0,
        time_limit=3600.0,
        tres_per_job="gres/gpu:4",
        admin_comment=MARK,
        requeue=True,
    )
    return replace(base, **changes)


def as_json(job: JobRecord, *, cpus_per_tres: str = "") -> dict[str, Any]:
    """The job as `scontrol show job --json` prints it, as far as we read it."""

    def number(value: float | None) -> dict[str, Any]:
        return {"set": value is not None, "infinite": False, "number": int(value or 0)}

    limit = None if job.time_limit is None else job.time_limit / 60
    return {
        "job_id": job.id,
        "name": job.name,
        "user_name": job.user,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "job_state": [job.state, *sorted(job.flags)],
        "state_reason": job.reason,
        "priority": number(0 if job.held else max(1, job.priority)),
        "restart_cnt": job.restarts,
        "exit_code": {
            "return_code": number(job.exit_code),
            "signal": {"id": number(job.exit_signal)},
        },
        "submit_time": number(job.submitted),
        "eligible_time": number(job.eligible),
        "start_time": number(job.started),
        "end_time": number(job.ended),
        "time_limit": number(limit),
        "node_count": number(job.nodes_wanted[0]),
        "max_nodes": number(job.nodes_wanted[1]),
        "tasks": number(job.tasks),
        "cpus_per_task": number(job.cpus_per_task),
        "tasks_per_node": number(job.tasks_per_node),
        "cpus": number(job.cpus),
        "memory_per_node": number(job.memory if job.memory_of == "node" else None),
        "memory_per_cpu": number(job.memory if job.memory_of == "cpu" else None),
        "tres_per_job": job.tres_per_job,
        "tres_per_node": job.tres_per_node,
        "tres_per_task": job.tres_per_task,
        "cpus_per_tres": cpus_per_tres,
        "memory_per_tres": job.memory_per_gpu,
        "licenses": job.licenses,
        "features": job.features,
        "dependency": job.dependency,
        "required_nodes": job.required_nodes,
        "excluded_nodes": job.excluded_nodes,
        "nodes": job.nodes,
        "gres_detail": [f"gpu:v100:{gpus}(IDX:0)" for gpus in job.gpus_on.values()],
        "batch_host": job.batch_host,
        "admin_comment": job.admin_comment,
        "requeue": job.requeue,
        "array_job_id": number(job.array_job),
        "array_task_id": number(int(job.array_task) if job.array_task.isdecimal() else None),
        "array_task_string": job.array_task if job.several else "",
        "resv_name": job.reservation,
    }


@dataclass
class FakeSlurm:
    """Jobs on nodes of some GPUs each. Whoever tests it also plays users and administrators."""

    job: JobRecord
    capacity: dict[str, int] = field(default_factory=lambda: {"n1": 4, "n2": 4, "n3": 4, "n4": 4})
    others: dict[str, int] = field(default_factory=dict)  # node -> GPUs that plain jobs hold
    now: float = 2000.0
    steps: tuple[str, ...] = ("batch",)
    known: bool = True
    down: bool = False
    cpus_per_tres: str = ""
    written: list[str] = field(default_factory=list)
    held_by: str = ""  # ones | user: who holds the job; onesd may also lift what submission holds
    locked: bool = False  # held so that the owner can't release it
    stopped_at: float = -1.0
    timeout: float = 20.0
    deaf: bool = False  # agrees to give nodes back, and does not
    before: Callable[[str], None] = lambda _command: None  # runs before each command takes effect

    @property
    def cluster(self) -> Slurm:
        """Itself behind the seam, by its commands."""
        return Slurm(self, CommandReader(self))

    @property
    def free(self) -> dict[str, int]:
        return {
            node: gpus - self.others.get(node, 0) - self.job.gpus_on.get(node, 0)
            for node, gpus in self.capacity.items()
        }

    def write(
        self, program: str, *args: str, timeout: float | None = None, refusal: str = ""
    ) -> str:
        return self.run(program, *args, timeout=timeout)

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        self.before(" ".join((program, *args)))
        if self.down:
            raise SlurmUnreachable(program, "Unable to contact slurm controller")
        match (program, *args):
            case ("squeue", *_, "--json", wanted):
                if not self.known or wanted != f"--jobs={self.job.id}":
                    raise SlurmError("squeue", "slurm_load_jobs error: Invalid job id specified")
                return json.dumps({"jobs": [as_json(self.job, cpus_per_tres=self.cpus_per_tres)]})
            case ("squeue", "--noheader", "--steps", *_):
                return "".join(f"{self.job.id}.{step}\n" for step in self.steps)
        self.written.append(" ".join((program, *args)))
        match (program, *args):
            case ("scancel", "--ctld", _signal, *_):
                if self.job.state == "PENDING":
                    words = "Job can not be altered now, try again later"
                    raise SlurmError("scancel", f"Kill job error on job id {self.job.id}: {words}")
            case ("scontrol", "requeuehold", "incomplete", _):
                self._requeue_hold()
            case ("scontrol", "requeuehold", _) if self.job.state == "FAILED":
                self._put_back_held()
            case ("scontrol", "hold", _):
                # Slurm agrees on a running job too.
                self.job = replace(self.job, held=True)
                if self.job.state == "PENDING":
                    if self.job.reason != "job_requeued_in_held_state":
                        self.job = replace(self.job, reason="JobHeldAdmin")
                    self.held_by, self.locked = "ones", True
            case ("scontrol", "release", _):
                self.job = replace(self.job, held=False, reason="None")
                self.held_by, self.locked = "", False
            case ("scontrol", "update", _, *fields):
                self._update(dict(item.split("=", 1) for item in fields))
            case _:
                raise AssertionError(f"not a command we know: {program} {args}")
        return ""

    def _requeue_hold(self) -> None:
        if self.job.state in ENDED:
            return
        if self.job.state != "RUNNING":
            raise SlurmError("scontrol requeuehold", "Job is pending execution")
        self._put_back_held()

    def _put_back_held(self) -> None:
        self.requeue()
        reason = "job_requeued_in_held_state"
        self.job = replace(self.job, held=True, reason=reason, eligible=self.now + 121)
        self.held_by, self.locked = "ones", False

    def _update(self, fields: dict[str, str]) -> None:
        job = self.job
        if job.state == "RUNNING":
            assert set(fields) == {"NodeList"}, "other updates may take nodes away, and fail"
            if self.deaf:
                return
            left = expand(fields["NodeList"])
            gpus = {node: gpus for node, gpus in job.gpus_on.items() if node in left}
            self.job = replace(job, nodes=fold(left), gpus_on=gpus)
            return
        if "NumNodes" in fields:
            least, most = fields["NumNodes"].split("-")
            job = replace(job, nodes_wanted=(int(least), int(most)))
        names = {"TresPerJob": "tres_per_job", "TresPerNode": "tres_per_node"}
        changed: dict[str, Any] = {names[key]: fields[key] for key in names if key in fields}
        for key, name in (("NumTasks", "tasks"), ("NumCPUs", "cpus")):
            if key in fields:
                changed[name] = int(fields[key])
        if "ReqNodeList" in fields:
            changed["required_nodes"] = fields["ReqNodeList"]
        if "StartTime" in fields:
            changed["eligible"] = self.now
        self.job = replace(job, **changed)

    def requeue(self) -> None:
        """Stop the running job, back into the queue."""
        self.stopped_at = self.now
        self.job = replace(
            self.job,
            state="PENDING",
            flags=frozenset({"COMPLETING"}),
            restarts=self.job.restarts + 1,
            nodes="",
            gpus_on={},
            reason="None",
            held=False,
            eligible=self.now + 121,
        )
        self.held_by = ""

    def pass_time(self, seconds: float) -> None:
        """Let time go by: a stopped job is out, a pending one starts where it can."""
        self.now += seconds
        job = self.job
        if "COMPLETING" in job.flags:
            self.job = job = replace(job, flags=frozenset(), submitted=float(int(self.now)))
            return
        can = job.state == "PENDING" and not job.held and job.eligible <= self.now
        nodes, per_node = self._fit()
        if can and nodes:
            if int(self.now) <= int(self.stopped_at):
                self.end("FAILED")  # "Job credential revoked"
                return
            self.job = replace(
                job,
                state="RUNNING",
                reason="None",
                started=self.now,
                nodes=fold(nodes),
                gpus_on=dict.fromkeys(nodes, per_node),
            )

    def _fit(self) -> tuple[tuple[str, ...], int]:
        count = self.job.nodes_wanted[0]
        per_node = gpus_in(self.job.tres_per_node) or gpus_in(self.job.tres_per_job)
        pinned = expand(self.job.required_nodes)
        fitting = [
            node
            for node, free in self.free.items()
            if free >= per_node and (not pinned or node in pinned)
        ]
        wanted = pinned or tuple(fitting[:count])
        enough = len(wanted) == count and set(wanted) <= set(fitting)
        return (wanted, per_node) if enough else ((), 0)

    def end(self, state: str) -> None:
        """The job ends: by itself, or by its user's scancel."""
        if self.job.state not in ENDED:
            self.job = replace(
                self.job, state=state, flags=frozenset(), ended=self.now, gpus_on={}, held=False
            )
            self.held_by = ""

    def user_releases(self) -> None:
        if self.job.state == "PENDING" and self.job.held and not self.locked:
            self.job = replace(self.job, held=False, reason="None")
            self.held_by = ""

    def user_holds(self) -> None:
        if self.job.state == "PENDING" and not self.job.held:
            self.job = replace(self.job, held=True, reason="JobHeldUser")
            self.held_by, self.locked = "user", False

    def somebody_requeues(self) -> None:
        if self.job.state == "RUNNING":
            self.requeue()
