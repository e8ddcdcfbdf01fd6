"""What a job's owner asked for, as a shape, once onesd has had it ask for something else.

That is what it gets where onesd lets it go, or is not there any more.
"""

from __future__ import annotations

from ones.policies.model import Shape
from ones.policies.shapes import own_forms
from ones.slurm_ext.actuator import reshape_fields
from ones.slurm_ext.layout import gpus_wanted, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord
from ones.slurm_ext.takes import CPU, MEMORY, Asked
from ones.slurm_ext.tres import gpus_in, shards_in
from ones.slurm_ext.whereabouts import Whereabouts


def own_shape(job: JobRecord, where: Whereabouts) -> Shape | None:
    """On as many nodes as its owner named, or as few as have room for it; None: there is none.

    Nor is there where Slurm alone could share the GPUs out over the nodes, unevenly.
    """
    try:
        mark = Mark.read(job.admin_comment)
        layout = layout_of(job, mark)
        nodes = where.nodes(job, layout.gpu_type)
        asked = Asked(job, mark, layout)
        shapes, _ = where.with_room(
            where.shapes(mark.sizes, layout, nodes), nodes, asked.take(CPU), asked.take(MEMORY)
        )
    except ValueError:
        return None
    own = next(iter(own_forms(shapes, mark.request, mark.nodes or 0)), None)
    return own if own is not None and own.gpus == mark.request else None


def to_put_back(job: JobRecord, where: Whereabouts) -> Shape | None:
    """The shape of its own request, where the job asks for another by now."""
    own = own_shape(job, where)
    if own is None:
        return None
    # Only ours ask for GPUs of each node where their owner said how many in all, or of whom the
    # number of nodes says nothing: before Slurm has tried it, that is a guess.
    spread = bool(gpus_in(job.tres_per_node)) and job.nodes_wanted[0] != own.nodes
    other = gpus_wanted(job) != own.gpus or spread or bool(shards_in(job.tres_per_node))
    return own if other else None


def own_fields(job: JobRecord, where: Whereabouts) -> dict[str, str]:
    """What an update has to say for that, in the form that the job has; empty: it can't be said."""
    own = own_shape(job, where)
    if own is None:
        return {}
    layout = layout_of(job, Mark.read(job.admin_comment))
    return reshape_fields(job, layout, own, cpus_per_gpu=gpus_in(job.cpus_per_gpu))
