"""Carries actions out on the cluster, and believes only what it reads afterwards.

Before each action the one job is read again: it must be marked, at the expected restart count and
in the state that the action is for, else nothing is done (JobChanged). After it, it is read once
more, because an exit status of 0 does not mean that Slurm did what it was told.
"""

from __future__ import annotations

from math import ceil

from ones.policies.model import Shape
from ones.slurm_ext.actions import (
    FIRST,
    Action,
    Comment,
    GiveBack,
    GoFirst,
    Hold,
    Release,
    RequeueHold,
    Reshape,
    Restore,
    Revive,
    Signal,
)
from ones.slurm_ext.cluster import Cluster, JobDetails
from ones.slurm_ext.errors import OnesError, SlurmError
from ones.slurm_ext.holding import begins_by_owner
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.layout import Layout, cannot_share, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import ENDED, OUR_COMMENT, JobRecord
from ones.slurm_ext.tres import gpus_in, replace_gpus, shards_in


class JobChanged(OnesError):
    """The job is not as the decision saw it; nothing was done."""

    def __init__(self, job: int, what: str) -> None:
        super().__init__(f"job {job} {what}; nothing was done to it")
        self.job = job
        self.what = what


class OthersComment(JobChanged):
    """Somebody else has written the job's comment."""


class Actuator:
    """Writes to Slurm: one job at a time, only jobs that opted in."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def perform(self, action: Action) -> JobRecord | None:
        """Carry the action out; the job as it is afterwards, None where Slurm forgot it meanwhile.

        Raises JobChanged where the job is not as expected, SlurmError where Slurm did not do it.
        """
        details = self._cluster.job(action.job)
        if details is None:
            raise JobChanged(action.job, "is not known to Slurm any more")
        job = details.record
        if not job.marked:
            raise JobChanged(action.job, "is not marked as elastic")
        if job.several:
            raise JobChanged(action.job, f"stands for the tasks {job.array_task[:40]} of an array")
        if job.restarts != action.restarts:
            raise JobChanged(
                action.job, f"was restarted {job.restarts} times, not {action.restarts}"
            )
        match action:
            case Signal():
                return self._signal(job, action)
            case RequeueHold():
                return self._requeue_hold(job)
            case Revive():
                return self._revive(job)
            case Reshape():
                return self._reshape(details, action)
            case Restore():
                return self._restore(details, action)
            case Release():
                return self._release(job)
            case GoFirst():
                return self._go_first(job)
            case Hold():
                return self._hold(job)
            case GiveBack():
                return self._give_back(job, action)
            case Comment():
                return self._comment(details, action)

    def end_satellite(self, number: int) -> None:
        """Cancel a job that holds GPUs for another one, and no job that doesn't.

        Raises JobChanged where it is none, SlurmError where Slurm did not do it.
        """
        if self._satellite(number).state not in ENDED:
            self._cluster.cancel(number)

    def put_satellite_first(self, number: int) -> None:
        """Put a job that holds GPUs for another one, and waits for them, before all that wait.

        Raises JobChanged where it is none, SlurmError where Slurm did not do it.
        """
        self._go_first(self._satellite(number))

    def _satellite(self, number: int) -> JobRecord:
        job = self._reread(number)
        if job is None or not job.is_satellite:
            raise JobChanged(number, "is no satellite")
        return job

    def _signal(self, job: JobRecord, action: Signal) -> JobRecord | None:
        """To the job's steps if it has any, else to its batch script: never to both."""
        _expect_running(job)
        script = not self._cluster.has_steps(job.id)
        self._cluster.signal(job.id, action.signal, script=script)
        return job

    def _requeue_hold(self, job: JobRecord) -> JobRecord | None:
        _expect_running(job)
        self._cluster.requeue_hold(job.id)
        return self._reread(job.id)

    def _revive(self, job: JobRecord) -> JobRecord | None:
        if job.state != "FAILED" or job.flags:
            raise JobChanged(job.id, f"is {_state(job)}")
        self._cluster.revive(job.id)
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
        self._cluster.update(job.id, {"NodeList": fold(left)})
        after = self._reread(job.id)
        same = after is not None and after.restarts == job.restarts and after.state == "RUNNING"
        if after is not None and same and set(expand(after.nodes)) != set(left):
            raise SlurmError(
                f"scontrol update JobId={job.id} NodeList={fold(left)}",
                f"Slurm agreed, but the job has {after.nodes}",
            )
        return after

    def _reshape(self, details: JobDetails, action: Reshape) -> JobRecord | None:
        job = details.record
        _expect_held(job)
        shape = action.target.shape
        if shape is None:
            raise JobChanged(job.id, f"can't have unequal parts {action.target.gpus_on}")
        layout = _layout(job, shape)
        if action.shards and shape.gpus != 1:
            raise JobChanged(job.id, f"can't share GPUs in the shape {shape}: only one GPU")
        if action.shards and (against := cannot_share(job, Mark.read(job.admin_comment))):
            raise JobChanged(job.id, f"can't share a GPU: {against}")
        self._lock_for_good(job)
        wanted = reshape_fields(
            job,
            layout,
            shape,
            cpus_per_gpu=details.cpus_per_gpu,
            least_cpus=action.request.cpus or 0,
            shards=action.shards,
        )
        if action.request.memory is not None:
            wanted["MinMemoryNode"] = str(action.request.memory)
        wanted["ReqNodeList"] = fold(action.target.nodes)
        wanted["StartTime"] = "now"  # a requeued job would begin two minutes late
        self._cluster.update(job.id, wanted)
        found = self._cluster.job(job.id)
        if found is None:
            return None
        if found.record.state == "PENDING":
            _verify(found.record, layout, shape, action.target.nodes, shards=action.shards)
            _verify_memory(found, action.request.memory)
        return found.record

    def _restore(self, details: JobDetails, action: Restore) -> JobRecord | None:
        job, shape = details.record, action.shape
        _expect_held(job)
        layout = _layout(job, shape)
        self._lock_for_good(job)
        wanted = reshape_fields(job, layout, shape, cpus_per_gpu=details.cpus_per_gpu)
        wanted["ReqNodeList"] = ""
        if not begins_by_owner(
            eligible=job.eligible, submitted=job.submitted, restarts=job.restarts
        ):
            wanted["StartTime"] = "now"
        self._cluster.update(job.id, wanted)
        after = self._reread(job.id)
        if after is not None and after.state == "PENDING":
            _verify(after, layout, shape, (), shards=0)
        return after

    def _release(self, job: JobRecord) -> JobRecord | None:
        if job.state in ENDED:
            raise JobChanged(job.id, f"is {job.state.lower()}")
        if not job.held:
            return job
        self._cluster.release(job.id)
        after = self._reread(job.id)
        if after is not None and after.held and after.state not in ENDED:
            raise SlurmError(f"scontrol release {job.id}", "Slurm agreed, but the job stays held")
        return after

    def _go_first(self, job: JobRecord) -> JobRecord | None:
        """Until it is held again: Slurm reckons its priority anew at the next release."""
        if job.state != "PENDING" or job.held or not job.required_nodes:
            return job
        self._cluster.update(job.id, {"Priority": str(FIRST)})
        return self._reread(job.id)

    def _hold(self, job: JobRecord) -> JobRecord | None:
        if job.state != "PENDING":
            raise JobChanged(job.id, f"is {job.state.lower()}")
        held = self._lock(job)
        if held is None or held.state != "PENDING" or not held.required_nodes:
            return held
        self._cluster.update(job.id, {"ReqNodeList": ""})
        return self._reread(job.id)

    def _comment(self, details: JobDetails, action: Comment) -> JobRecord | None:
        job = details.record
        if job.state in ENDED:
            raise JobChanged(job.id, f"is {job.state.lower()}")
        if details.comment and not details.comment.startswith(OUR_COMMENT):
            raise OthersComment(job.id, "has a comment of somebody else's")
        if details.comment == action.text:
            return job
        self._cluster.update(job.id, {"Comment": action.text})
        return job

    def _lock_for_good(self, job: JobRecord) -> None:
        """Before a shape is written, which would fail on a job that runs and still take nodes away
        from it. Held like this, not even its owner can let it start under our hands.
        """
        locked = self._lock(job)
        if locked is None or locked.restarts != job.restarts:
            raise JobChanged(job.id, "is not the same any more")
        _expect_held(locked)

    def _lock(self, job: JobRecord) -> JobRecord | None:
        """Hold a job as an administrator: its owner may release what submission or requeue hold."""
        self._cluster.hold(job.id)
        held = self._reread(job.id)
        if held is not None and held.state == "RUNNING" and held.held:
            # It started an instant before; the hold would only strike at its next requeue.
            return self._release(held)
        if held is not None and held.state == "PENDING" and not held.held:
            raise SlurmError(f"scontrol hold {job.id}", "Slurm agreed, but the job is not held")
        return held

    def _reread(self, job: int) -> JobRecord | None:
        found = self._cluster.job(job)
        return None if found is None else found.record


def _layout(job: JobRecord, shape: Shape) -> Layout:
    """The form that the job keeps in this shape. Raises JobChanged where it can't have it."""
    try:
        layout = layout_of(job, Mark.read(job.admin_comment))
    except ValueError as fault:
        raise JobChanged(job.id, f"can't be given another shape: {fault}") from None
    if not layout.suits(shape):
        raise JobChanged(job.id, f"can't have {shape}: its tasks would not fit")
    return layout


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


def _verify_memory(found: JobDetails, wanted: int | None) -> None:
    has = found.memory_per_node or 0
    if wanted is not None and has != wanted:
        raise SlurmError(
            f"scontrol update JobId={found.record.id}",
            f"Slurm agreed, but it asks for {has} MiB of each node, not {wanted}",
        )


def _expect_running(job: JobRecord) -> None:
    if job.state != "RUNNING" or "COMPLETING" in job.flags:
        raise JobChanged(job.id, f"is {_state(job)}")


def _expect_held(job: JobRecord) -> None:
    if job.state != "PENDING" or "COMPLETING" in job.flags:
        raise JobChanged(job.id, f"is {_state(job)}")
    if not job.held:
        raise JobChanged(job.id, "is no longer held")


def _state(job: JobRecord) -> str:
    return " ".join([job.state, *sorted(job.flags)]).lower()
