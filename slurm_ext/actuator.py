"""Carries actions out through scontrol and scancel, and believes only what it reads afterwards.

Before each action the one job is read again: it must be marked, at the expected restart count and
in the state that the action is for, else nothing is done (JobChanged). After it, it is read once
more, because an exit status of 0 does not mean that Slurm did what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ones.policies.model import Shape
from ones.slurm_ext.actions import (
    Action,
    GiveBack,
    Hold,
    Release,
    RequeueHold,
    Reshape,
    Signal,
)
from ones.slurm_ext.command_reader import read_jobs
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import OnesError, SlurmError
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.job_json import ENDED, job_record
from ones.slurm_ext.layout import Layout, cannot_share, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord
from ones.slurm_ext.tres import gpus_in, replace_gpus, shards_in

SIGNAL_TIMEOUT = 10.0  # scancel has been seen to wait for minutes on a job that was just requeued
_NOT_OURS = frozenset({"batch", "extern", "interactive"})


class JobChanged(OnesError):
    """The job is not as the decision saw it; nothing was done."""

    def __init__(self, job: int, what: str) -> None:
        super().__init__(f"job {job} {what}; nothing was done to it")
        self.job = job
        self.what = what


class Actuator:
    """Writes to Slurm: one job at a time, only jobs that opted in."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def perform(self, action: Action) -> JobRecord | None:
        """Carry the action out; the job as it is afterwards, None where Slurm forgot it meanwhile.

        Raises JobChanged where the job is not as expected, SlurmError where Slurm did not do it.
        """
        raw = self._read(action.job)
        job = None if raw is None else job_record(raw)
        if raw is None or job is None:
            raise JobChanged(action.job, "is not known to Slurm any more")
        if not job.marked:
            raise JobChanged(action.job, "is not marked as elastic")
        if job.restarts != action.restarts:
            raise JobChanged(
                action.job, f"was restarted {job.restarts} times, not {action.restarts}"
            )
        match action:
            case Signal():
                return self._signal(job, action)
            case RequeueHold():
                return self._requeue_hold(job)
            case Reshape():
                return self._reshape(job, raw, action)
            case Release():
                return self._release(job)
            case Hold():
                return self._hold(job)
            case GiveBack():
                return self._give_back(job, action)

    def end_satellite(self, number: int) -> None:
        """Cancel a job that holds GPUs for another one, and no job that doesn't.

        Raises JobChanged where it is none, SlurmError where Slurm did not do it.
        """
        raw = self._read(number)
        job = None if raw is None else job_record(raw)
        if job is None or not job.is_satellite:
            raise JobChanged(number, "is no satellite")
        if job.state not in ENDED:
            self._write("scancel", str(number))

    def _signal(self, job: JobRecord, action: Signal) -> JobRecord | None:
        """To the job's steps if it has any, else to its batch script: never to both."""
        _expect_running(job)
        text = self._commands.run(
            "squeue", "--noheader", "--steps", f"--jobs={job.id}", "--Format=StepID:200"
        )
        steps = {line.strip().rpartition(".")[2] for line in text.splitlines()} - {""}
        to_script = [] if steps - _NOT_OURS else ["--batch"]
        self._write(
            "scancel",
            f"--signal={action.signal}",
            *to_script,
            str(job.id),
            timeout=min(SIGNAL_TIMEOUT, self._commands.timeout),
        )
        return job

    def _requeue_hold(self, job: JobRecord) -> JobRecord | None:
        _expect_running(job)
        # `incomplete`: without it a job that has ended meanwhile would be run again.
        self._write("scontrol", "requeuehold", "incomplete", str(job.id))
        return self._reread(job.id)

    def _give_back(self, job: JobRecord, action: GiveBack) -> JobRecord | None:
        """Slurm ends at once whatever of the job is on these nodes: its launcher has left them."""
        _expect_running(job)
        held = expand(job.nodes)
        left = [node for node in held if node not in action.nodes]
        if len(left) == len(held):
            return job
        if job.batch_host not in left:
            raise JobChanged(job.id, f"can't give back its first node {job.batch_host}")
        self._write("scontrol", "update", f"JobId={job.id}", f"NodeList={fold(left)}")
        after = self._reread(job.id)
        same = after is not None and after.restarts == job.restarts and after.state == "RUNNING"
        if after is not None and same and set(expand(after.nodes)) != set(left):
            raise SlurmError(
                f"scontrol update JobId={job.id} NodeList={fold(left)}",
                f"Slurm agreed, but the job has {after.nodes}",
            )
        return after

    def _reshape(self, job: JobRecord, raw: Mapping[str, Any], action: Reshape) -> JobRecord | None:
        _expect_held(job)
        shape = action.target.shape
        if shape is None:
            raise JobChanged(job.id, f"can't have unequal parts {action.target.gpus_on}")
        try:
            layout = layout_of(job, Mark.read(job.admin_comment))
        except ValueError as fault:
            raise JobChanged(job.id, f"can't be given another shape: {fault}") from None
        if not layout.suits(shape):
            raise JobChanged(job.id, f"can't have {shape}: its tasks would not fit")
        if action.shards and shape.gpus != 1:
            raise JobChanged(job.id, f"can't share GPUs in the shape {shape}: only one GPU")
        if action.shards and (against := cannot_share(job, Mark.read(job.admin_comment))):
            raise JobChanged(job.id, f"can't share a GPU: {against}")
        # On a job that runs, this update would fail and still take nodes away from it. Held like
        # this, not even its owner can let it start under our hands.
        locked = self._lock(job)
        if locked is None or locked.restarts != job.restarts:
            raise JobChanged(job.id, "is not the same any more")
        _expect_held(locked)
        wanted = reshape_fields(
            job,
            layout,
            shape,
            cpus_per_gpu=gpus_in(raw["cpus_per_tres"]),
            least_cpus=action.request.cpus or 0,
            shards=action.shards,
        )
        if action.request.memory is not None:
            wanted["MinMemoryNode"] = str(action.request.memory)
        self._write(
            "scontrol",
            "update",
            f"JobId={job.id}",
            *(f"{name}={value}" for name, value in wanted.items()),
            f"ReqNodeList={fold(action.target.nodes)}",
            "StartTime=now",  # a requeued job would begin two minutes late
        )
        found = self._read(job.id)
        after = None if found is None else job_record(found)
        if found is not None and after is not None and after.state == "PENDING":
            _verify(after, layout, shape, action.target.nodes, shards=action.shards)
            _verify_memory(after, found, action.request.memory)
        return after

    def _release(self, job: JobRecord) -> JobRecord | None:
        if job.state in ENDED:
            raise JobChanged(job.id, f"is {job.state.lower()}")
        if not job.held:
            return job
        self._write("scontrol", "release", str(job.id))
        after = self._reread(job.id)
        if after is not None and after.held and after.state not in ENDED:
            raise SlurmError(f"scontrol release {job.id}", "Slurm agreed, but the job stays held")
        return after

    def _hold(self, job: JobRecord) -> JobRecord | None:
        if job.state != "PENDING":
            raise JobChanged(job.id, f"is {job.state.lower()}")
        held = self._lock(job)
        if held is None or held.state != "PENDING" or not held.required_nodes:
            return held
        self._write("scontrol", "update", f"JobId={job.id}", "ReqNodeList=")
        return self._reread(job.id)

    def _lock(self, job: JobRecord) -> JobRecord | None:
        """Hold a job as an administrator: its owner may release what submission or requeue hold."""
        self._write("scontrol", "hold", str(job.id))
        held = self._reread(job.id)
        if held is not None and held.state == "RUNNING" and held.held:
            # It started an instant before; the hold would only strike at its next requeue.
            return self._release(held)
        if held is not None and held.state == "PENDING" and not held.held:
            raise SlurmError(f"scontrol hold {job.id}", "Slurm agreed, but the job is not held")
        return held

    def _write(self, *command: str, timeout: float | None = None) -> None:
        self._commands.write(*command, timeout=timeout)

    def _reread(self, job: int) -> JobRecord | None:
        raw = self._read(job)
        return None if raw is None else job_record(raw)

    def _read(self, job: int) -> Mapping[str, Any] | None:
        found = read_jobs(self._commands, [job])
        return next((raw for raw in found if raw["job_id"] == job), None)


def reshape_fields(
    job: JobRecord,
    layout: Layout,
    shape: Shape,
    *,
    cpus_per_gpu: int,
    least_cpus: int = 0,
    shards: int = 0,
) -> dict[str, str]:
    """What one scontrol update has to say for a job to ask for `shape` in its own form.

    GPUs per node stand beside --gpus, and CPUs per node beside the tasks, because Slurm would
    otherwise spread either unevenly over the nodes (3 + 1 for 4 on 2). With --gpus-per-task it
    refuses the one (BadConstraints) and derives tasks per node, for good, from the other.

    Shards are asked for per node, whatever the form: with --gpus Slurm takes them and then never
    starts the job, with --gpus-per-task srun fails in it. It asks per node from then on. They carry
    no type, because srun in the job would fail with one.
    """
    tasks = layout.tasks_per_node(shape)
    # Slurm can't place CPUs that belong to no task (BadConstraints): they are asked for by task.
    filled = least_cpus and layout.form != "per_task"
    per_task = ceil(least_cpus / tasks) if filled else job.cpus_per_task
    cpus = max(tasks * per_task, shape.gpus_per_node * cpus_per_gpu)
    fields = {
        "NumNodes": f"{shape.nodes}-{shape.nodes}",
        "NumTasks": str(shape.nodes * tasks),
        "NumCPUs": str(shape.nodes * cpus),
    }
    if layout.form == "per_task" and not shards:
        return fields
    fields["MinCPUsNode"] = str(cpus)
    if filled:
        fields["CpusPerTask"] = str(per_task)
    if shards:
        fields["TresPerNode"] = replace_gpus(job.tres_per_node, f"gres/shard:{shards}")
        if layout.form == "per_job":
            fields["TresPerJob"] = replace_gpus(job.tres_per_job, "")
        elif layout.form == "per_task":
            fields["TresPerTask"] = replace_gpus(job.tres_per_task, "")
        return fields
    fields["TresPerNode"] = replace_gpus(job.tres_per_node, layout.gpu(shape.gpus_per_node))
    if layout.form == "per_job":
        fields["TresPerJob"] = replace_gpus(job.tres_per_job, layout.gpu(shape.gpus))
    return fields


def _verify(
    job: JobRecord, layout: Layout, shape: Shape, nodes: tuple[str, ...], *, shards: int
) -> None:
    """Raises SlurmError with what a pending job has instead of what was written."""
    tasks = shape.nodes * layout.tasks_per_node(shape)
    faults = [
        f"{name} {has}, not {wanted}"
        for name, has, wanted in (
            ("nodes", job.nodes_wanted, (shape.nodes, shape.nodes)),
            ("tasks", job.tasks, tasks),
            ("node list", set(expand(job.required_nodes)), set(nodes)),
        )
        if has != wanted
    ]
    asked = job.tres_per_node
    gpus = shape.gpus_per_node if not shards else 0
    if (layout.form != "per_task" or shards) and gpus_in(asked) != gpus:
        faults.append(f"GPUs per node {gpus_in(asked)}, not {gpus}")
    if shards_in(asked) != shards:
        faults.append(f"shards {shards_in(asked)}, not {shards}")
    if layout.form == "per_job" and gpus_in(job.tres_per_job) != (0 if shards else shape.gpus):
        faults.append(f"GPUs {gpus_in(job.tres_per_job)}, not {0 if shards else shape.gpus}")
    if faults:
        raise SlurmError(
            f"scontrol update JobId={job.id}", f"Slurm agreed, but it has {', '.join(faults)}"
        )


def _verify_memory(job: JobRecord, raw: Mapping[str, Any], wanted: int | None) -> None:
    if wanted is None:
        return
    has = raw["memory_per_node"]
    if not (has["set"] and has["number"] == wanted):
        raise SlurmError(
            f"scontrol update JobId={job.id}",
            f"Slurm agreed, but it asks for {has['number']} MiB of each node, not {wanted}",
        )


def _expect_running(job: JobRecord) -> None:
    if job.state != "RUNNING" or "COMPLETING" in job.flags:
        raise JobChanged(job.id, f"is {' '.join([job.state, *sorted(job.flags)]).lower()}")


def _expect_held(job: JobRecord) -> None:
    if job.state != "PENDING" or "COMPLETING" in job.flags:
        raise JobChanged(job.id, f"is {' '.join([job.state, *sorted(job.flags)]).lower()}")
    if not job.held:
        raise JobChanged(job.id, "is no longer held")
