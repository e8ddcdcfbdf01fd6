"""From Slurm's records to the jobs and nodes that policies plan for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ones.policies.model import Job, JobId, Node, Placement, Shape
from ones.policies.reserve import Waiting
from ones.policies.shapes import realisable
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import Layout, gpu_type_wanted, gpus_wanted, layout_of
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.shards import beside, gpus_held, half
from ones.slurm_ext.snapshot import UNTRIED, JobRecord, NodeRecord, Snapshot

ALIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
FOR_GPUS = frozenset({"None", "Priority", "Resources"})  # reasons of a job that waits for room
_FEATURE = re.compile(r"[\w.:+-]+")


@dataclass(frozen=True, slots=True)
class Hold:
    """What onesd wrote down about holding a job."""

    restarts: int  # of the job when onesd decided on it: one less than once it is requeued
    released: bool


Holds = Mapping[int, Hold]
NO_HOLDS: Holds = {}


def elastic_jobs(snapshot: Snapshot, holds: Holds = NO_HOLDS) -> tuple[list[Job], dict[int, str]]:
    """The jobs that opted in and can be planned for; and the others that opted in, with why not.

    A running job of a form that can't be reshaped is planned around: it is `fixed`.
    """
    jobs, ignored = [], {}
    together = beside(snapshot.jobs)
    for record in snapshot.jobs.values():
        if not record.marked or record.state not in ALIVE:
            continue
        try:
            jobs.append(_with_share(_job(record, snapshot, holds), record, together))
        except ValueError as fault:
            ignored[record.id] = str(fault)
    return jobs, ignored


def to_release(snapshot: Snapshot, ignored: Mapping[int, str], holds: Holds) -> list[int]:
    """Jobs that are held for onesd although it can't handle them: they must run as plain jobs."""
    return [
        number
        for number in ignored
        if held_for_us(
            snapshot.jobs[number], Mark.parse(snapshot.jobs[number].admin_comment), holds
        )
    ]


def stranded(snapshot: Snapshot) -> list[int]:
    """Jobs that Slurm requeued without us, when a node failed, and can't start where they ran.

    A job keeps asking for the nodes it was started on, and a lost one may never come back.
    """
    return [
        job.id
        for job in snapshot.jobs.values()
        if job.marked
        and job.restarts
        and job.state == "PENDING"
        and not job.held
        and job.required_nodes
        and "COMPLETING" not in job.flags
        and job.eligible <= snapshot.taken  # Slurm lets it wait for two minutes first
        and job.reason not in UNTRIED
    ]


def held_for_us(job: JobRecord, mark: Mark | None, holds: Holds) -> bool:
    """Whether a pending job waits for onesd, not for its user, an administrator or Slurm itself."""
    if job.state != "PENDING" or not job.held:
        return False
    reason = job.reason.replace("_", " ").lower()
    if "launch failed" in reason:
        return False
    row = holds.get(job.id)
    if row is not None and row.restarts <= job.restarts <= row.restarts + 1:
        return not row.released
    if row is not None:
        return False
    if job.restarts == 0:
        return (mark is None or mark.held) and reason != "jobheldadmin"
    # The database does not know the job: it was lost, and may not leave the job held for ever.
    return reason in ("job requeued in held state", "jobheldadmin")


def gpu_nodes(snapshot: Snapshot) -> list[Node]:
    """All GPU nodes; `taken` is what jobs hold that elastic_jobs does not return."""
    running = [snapshot.jobs[int(job.id)] for job in elastic_jobs(snapshot)[0] if job.placement]
    elastic = gpus_held(each for job in running for each in (job, *job.satellites))
    return [
        Node(
            name=node.name,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            switches=snapshot.switches.get(node.name, ()),
            taken=max(0, node.gpus_used - elastic.get(node.name, 0)),
            shares=half(node) > 0,
        )
        for node in snapshot.nodes.values()
        if node.gpus
    ]


def waiting_plain_jobs(snapshot: Snapshot) -> list[Waiting]:
    """Jobs outside our hands that wait for GPUs in Slurm's queue.

    Elastic jobs that Slurm itself will start are among them; those that we released onto a pinned
    list of nodes are not, because their move already claims these.
    """
    waiting = []
    for job in snapshot.jobs.values():
        wants = gpus_wanted(job)
        ours = job.is_satellite or (job.marked and bool(job.required_nodes))
        if job.state != "PENDING" or job.held or not wants or ours or job.reason not in FOR_GPUS:
            continue
        nodes = _nodes_for(job, snapshot, gpu_type_wanted(job), features=_features(job.features))
        waiting.append(Waiting(submitted=job.submitted, gpus=wants, nodes=frozenset(nodes)))
    return waiting


def _job(record: JobRecord, snapshot: Snapshot, holds: Holds) -> Job:
    mark = Mark.read(record.admin_comment)
    if record.array_job:
        raise ValueError("it is of a job array, whose waiting tasks share one size")
    if record.held and record.dependency:
        raise ValueError(
            f"it waits for {record.dependency[:60]}, which Slurm sees to when released"
        )
    running = record.state != "PENDING"
    if running and not record.gpus_on:
        raise ValueError("Slurm does not say which GPUs it holds")
    fixed, nodes = "", frozenset[str]()
    shapes: tuple[Shape, ...] = ()
    try:
        layout = layout_of(record, mark)
        nodes = _allowed(record, snapshot, layout.gpu_type)
        shapes = _shapes(mark, layout, [snapshot.nodes[name] for name in nodes])
        if not shapes:
            raise ValueError(f"none of its sizes {mark.sizes} fits the nodes it may use")
    except ValueError as fault:
        if not running:
            raise
        fixed = str(fault)
    return Job(
        id=JobId(record.id),
        name=record.name,
        user=record.user,
        account=record.account,
        submitted=record.submitted,
        sizes=mark.sizes,
        requested=mark.request,
        shapes=shapes,
        nodes=nodes,
        priority=record.priority,
        placement=Placement.of(record.held_on) if running else None,
        started=record.started if running else None,
        time_left=_time_left(record, snapshot.taken) if running else None,
        fixed=_unmovable(record) or fixed,
        startable=_startable(record, mark, holds),
    )


def _with_share(job: Job, record: JobRecord, together: Mapping[int, frozenset[int]]) -> Job:
    if not record.shares:
        return job
    others = sorted(together.get(record.id, ()))
    return replace(job, share=True, beside=JobId(others[0]) if len(others) == 1 else None)


def _unmovable(record: JobRecord) -> str:
    if record.state == "SUSPENDED":
        return "it is suspended"
    if not record.requeue:
        return "its Requeue flag was taken away, so it can't be restarted"
    busy = sorted(record.flags & {"COMPLETING", "CONFIGURING"})
    return f"it is {busy[0].lower()}" if busy else ""


def _startable(record: JobRecord, mark: Mark, holds: Holds) -> bool:
    return "COMPLETING" not in record.flags and held_for_us(record, mark, holds)


def _time_left(record: JobRecord, now: float) -> float | None:
    if record.time_limit is None:
        return None
    return max(0.0, record.started + record.time_limit - now)


def _shapes(mark: Mark, layout: Layout, nodes: list[NodeRecord]) -> tuple[Shape, ...]:
    """What an allocation on one type of GPU can promise; a job is never spread over two types."""
    types: dict[str, list[int]] = {}
    for node in nodes:
        types.setdefault(node.gpu_type, []).append(node.gpus)
    shapes: dict[Shape, None] = {}
    for _, counts in sorted(types.items()):
        found = realisable(mark.sizes, counts, per_node_fixed=layout.per_node_fixed)
        whole = set(counts) if layout.whole_nodes else set()
        shapes |= {
            shape: None
            for shape in found
            if layout.suits(shape)
            and (shape.nodes == 1 or not whole or whole == {shape.gpus_per_node})
        }
    return tuple(sorted(shapes, key=lambda shape: (shape.gpus, shape.nodes)))


def _allowed(record: JobRecord, snapshot: Snapshot, gpu_type: str) -> frozenset[str]:
    features = _features(record.features)
    if features is None:
        raise ValueError(f"its constraint '{record.features[:60]}' is more than names with & or |")
    nodes = _nodes_for(record, snapshot, gpu_type, features=features)
    if not nodes:
        raise ValueError("no GPU node is in its partition, of its type and with its features")
    return nodes


def _nodes_for(
    record: JobRecord,
    snapshot: Snapshot,
    gpu_type: str,
    *,
    features: tuple[frozenset[str], ...] | None,
) -> frozenset[str]:
    """GPU nodes by partition, type, exclusion and features: any one of the sets; None asks none."""
    partitions = set(record.partition.split(","))
    excluded = frozenset(expand(record.excluded_nodes))
    return frozenset(
        node.name
        for node in snapshot.nodes.values()
        if node.gpus
        and node.partitions & partitions
        and gpu_type in ("", node.gpu_type)
        and node.name not in excluded
        and (not features or any(one <= node.features for one in features))
    )


def _features(text: str) -> tuple[frozenset[str], ...] | None:
    """`a&b` -> one set, `a|b` -> two of one; () for none; None for Slurm's richer expressions."""
    if not text:
        return ()
    names = re.split(r"[&,|]", text)
    mixed = "|" in text and ("&" in text or "," in text)
    if mixed or not all(_FEATURE.fullmatch(name) for name in names):
        return None
    return tuple(frozenset({name}) for name in names) if "|" in text else (frozenset(names),)
