"""How a job asked for its GPUs and tasks, and what it must ask for at another shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ones.policies.model import Shape
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord
from ones.slurm_ext.tres import gpus_by_type, gpus_in, shards_in

Form = Literal["per_job", "per_node", "per_task"]
PER_NODE = 0  # as gpus_per_task: one task on each node, whatever its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The form of a job's request, kept at every size."""

    form: Form
    gpu_type: str = ""  # '' where the job takes any
    gpus_per_task: int = PER_NODE
    per_node_fixed: int | None = None  # GPUs per node, where the job's form allows no other number

    @property
    def whole_nodes(self) -> bool:
        """Whether only whole nodes keep a shape of several nodes uniform.

        --gpus-per-task alone lets Slurm spread tasks unevenly, and nothing that could be written
        beside it to prevent that can be changed again later.
        """
        return self.form == "per_task" and self.per_node_fixed is None

    def suits(self, shape: Shape) -> bool:
        """Whether whole tasks fit the shape's nodes."""
        whole = self.gpus_per_task == PER_NODE or shape.gpus_per_node % self.gpus_per_task == 0
        return whole and self.per_node_fixed in (None, shape.gpus_per_node)

    def tasks_per_node(self, shape: Shape) -> int:
        if self.gpus_per_task == PER_NODE:
            return 1
        return shape.gpus_per_node // self.gpus_per_task

    def gpu(self, count: int) -> str:
        """GPUs in the job's own type: Slurm refuses to mix typed with untyped."""
        return f"gres/gpu:{self.gpu_type}:{count}" if self.gpu_type else f"gres/gpu:{count}"


def layout_of(job: JobRecord, mark: Mark) -> Layout:
    """Read the form of a job. Raises ValueError with why such a job can't be given other shapes."""
    form, types = _form(job, mark)
    if len(types) > 1:
        raise ValueError(f"it asks for several types of GPU ({', '.join(sorted(types))})")
    ((gpu_type, count),) = types.items()
    if form == "per_task":
        fixed = gpus_in(job.tres_per_node) or job.tasks_per_node * count or None
        return Layout(form=form, gpu_type=gpu_type, gpus_per_task=count, per_node_fixed=fixed)
    if form == "per_job" and gpus_by_type(job.tres_per_task):
        # From GPUs per node beside those per task Slurm derives tasks per node, for good.
        raise ValueError("it asks by --gpus and --gpus-per-task at once")
    gpus_per_task, fixed = _tasks(job, mark)
    return Layout(form=form, gpu_type=gpu_type, gpus_per_task=gpus_per_task, per_node_fixed=fixed)


def gpus_wanted(job: JobRecord) -> int:
    """GPUs in the job's request as it stands now; 0 for a job without."""
    try:
        form, types = _form(job)
    except ValueError:
        return 0
    each = sum(types.values())
    times = {"per_job": 1, "per_node": job.nodes_wanted[0], "per_task": job.tasks}
    return each * times[form]


def gpu_type_wanted(job: JobRecord) -> str:
    """The one type of GPU that the job asks for, or ''."""
    try:
        _, types = _form(job)
    except ValueError:
        return ""
    return next(iter(types)) if len(types) == 1 else ""


def cannot_share(job: JobRecord, mark: Mark) -> str:
    """Why a job can't ask for shards instead of its GPU; empty: it can."""
    if job.cpus_per_gpu or job.memory_per_gpu:
        return "it asks for CPUs or memory per GPU"
    if gpu_type_wanted(job) not in ("", mark.gpu_type):
        return "its mark does not say which type of GPU it asks for"
    return ""


def _form(job: JobRecord, mark: Mark | None = None) -> tuple[Form, dict[str, int]]:
    # --gpus-per-node comes last: our own reshapes write it beside --gpus.
    forms: tuple[tuple[Form, str], ...] = (
        ("per_job", job.tres_per_job),
        ("per_task", job.tres_per_task),
        ("per_node", job.tres_per_node),
    )
    for form, text in forms:
        types = gpus_by_type(text)
        if types:
            return form, types
    if shards_in(job.tres_per_node):
        # One of ours that shares. Shards carry no type: with one, srun in the job would fail.
        return "per_node", {mark.gpu_type if mark else "": 1}
    raise ValueError("it asks for no GPUs by --gpus, --gres, --gpus-per-node or --gpus-per-task")


def _tasks(job: JobRecord, mark: Mark) -> tuple[int, int | None]:
    """GPUs per task (or PER_NODE) and the GPUs per node, where they can't be changed."""
    if mark.tasks is not None and mark.nodes is not None:
        tasks, nodes, gpus = mark.tasks, mark.nodes, mark.request
    else:
        tasks, nodes, gpus = job.tasks, job.nodes_wanted[0], gpus_wanted(job)
    if not tasks and _reckoned_by_slurm(job, nodes):
        raise ValueError(
            f"its {job.tasks} tasks are of Slurm's own reckoning, as from --ntasks-per-gpu, and its"
            " mark doesn't say so"
        )
    tasks = tasks or job.tasks_per_node * nodes or nodes
    if gpus == nodes and nodes > 1 and tasks == nodes:
        # One task per GPU and one per node at once: only 1 GPU on each node is both.
        return PER_NODE, 1
    if tasks == nodes and job.tasks_per_node in (0, 1):
        return PER_NODE, None
    if tasks == gpus:
        # Slurm lets nobody change --ntasks-per-node later.
        return 1, job.tasks_per_node or None
    raise ValueError(
        f"its {tasks} tasks for {gpus} GPUs on {nodes} nodes are not one per GPU or one per node"
    )


def _reckoned_by_slurm(job: JobRecord, nodes: int) -> bool:
    """Whether a job submitted on so many nodes has tasks for its GPUs that nobody has named.

    Only a job that still asks as it was submitted shows that: ours asks per node, too, and has one
    task for each of the nodes that it was given, of which it may have given some back.
    """
    untouched = bool(job.tres_per_job) and not job.tres_per_node and not job.tasks_per_node
    return untouched and job.tasks > max(nodes, *job.nodes_wanted) and job.tasks >= gpus_wanted(job)
