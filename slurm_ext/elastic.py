"""From Slurm's records to the jobs and nodes that policies plan for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf

from ones.policies.caps import barred
from ones.policies.model import Job, JobId, Node, Placement, Shape, Take
from ones.policies.prospects import NEVER, Release
from ones.policies.rigid import PlainJob
from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.allowed import forbidden, too_long
from ones.slurm_ext.cpus_and_memory import held_of_nodes, left_of_node
from ones.slurm_ext.holding import (
    NO_HOLDS,
    Holds,
    Waits,
    begins_by_owner,
    held_for_onesd,
    in_doubt,
    left_pinned,
    left_unfit,
)
from ones.slurm_ext.layout import gpu_type_wanted, gpus_wanted, layout_of
from ones.slurm_ext.limits import NO_LIMITS, Partition, SiteLimits
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.partitioned import opened_to
from ones.slurm_ext.priority import Order
from ones.slurm_ext.reserved import end_of_reservation, left_to
from ones.slurm_ext.shards import beside, gpus_held, half
from ones.slurm_ext.snapshot import ALIVE, HOLDING, JobRecord, Snapshot
from ones.slurm_ext.takes import CPU, MEMORY, Asked, asked_by
from ones.slurm_ext.tres import gpus_in, memory_in
from ones.slurm_ext.waits import about
from ones.slurm_ext.whereabouts import Whereabouts, features_of

FOR_GPUS = frozenset({"None", "Priority", "Resources"})  # reasons of a job that waits for room
BEHIND = "Nodes required for job are DOWN"  # ... or reserved for a higher tier's, as Slurm goes on
NO_NODE = "no GPU node is in its partition, of its type and with its features"
NO_SIZE = "none of its sizes"
CLOSED = "reservations leave it no nodes before its time limit would be over"


def elastic_jobs(
    snapshot: Snapshot, holds: Holds = NO_HOLDS, limits: SiteLimits = NO_LIMITS
) -> tuple[list[Job], dict[int, str]]:
    """The jobs that opted in and can be planned for; and the others that opted in, with why not.

    A running job of a form that can't be reshaped is planned around: it is `fixed`.
    """
    jobs, ignored = [], {}
    together, where = beside(snapshot.jobs), Whereabouts(snapshot)
    room = _room_in_arrays(snapshot)
    for record in snapshot.jobs.values():
        if not record.marked or record.state not in ALIVE or record.several:
            continue
        try:
            job = _job(record, where, holds, limits.partitions)
            job = _within_limits(job, record, where, limits)
            if record.array_job in room:
                job = _within_array(job, room[record.array_job])
            jobs.append(_with_share(job, record, together))
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


def about_nodes(ignored: str) -> bool:
    """Whether a job can't be handled on account of what nodes there are."""
    return ignored == NO_NODE or ignored.startswith(NO_SIZE)


def stranded(snapshot: Snapshot, ignored: Collection[int], holds: Holds = NO_HOLDS) -> list[int]:
    """Jobs that can't start on the nodes or in the form which we chose, and wait for nobody.

    Slurm requeued them without us, when a node failed, or their user held and released them while
    they were about to start, or excluded nodes since. Or their user requeued them, and they still
    have the priority that they were put first with. Of the jobs that can't be handled only nodes
    and that priority are taken away.
    """
    found = []
    for job in snapshot.jobs.values():
        waits = job.marked and job.state == "PENDING" and "COMPLETING" not in job.flags
        if not waits or job.eligible > snapshot.taken:  # Slurm lets it wait for two minutes first
            continue
        words = waits_of(job, Mark.parse(job.admin_comment))
        known = holds.of(job.id, job.submitted)
        pinned = left_pinned(words, known, held=job.held, required_nodes=job.required_nodes)
        first = job.priority == FIRST and not job.held
        if pinned or first or (job.held and job.id not in ignored and left_unfit(words, known)):
            found.append(job.id)
    return found


def held_for_us(job: JobRecord, mark: Mark | None, holds: Holds) -> bool:
    """Whether a pending job waits for onesd, not for its user, an administrator or Slurm itself."""
    if job.state != "PENDING" or not job.held:
        return False
    return held_for_onesd(waits_of(job, mark), holds.of(job.id, job.submitted))


def doubts(snapshot: Snapshot, holds: Holds, met: Collection[int] = ()) -> dict[int, str]:
    """Held jobs of which nobody can tell for whom they wait, with why; `met` have opted in once."""
    found = {}
    for job in snapshot.jobs.values():
        if job.state != "PENDING" or not job.held:
            continue
        mark = Mark.parse(job.admin_comment) if job.marked else None
        known = holds.of(job.id, job.submitted)
        if job.marked and in_doubt(waits_of(job, mark), known):
            found[job.id] = (
                "held by an administrator, or by onesd before its database was lost: nobody can"
                f" tell; if it should run: scontrol release {job.id}"
            )
        elif not job.marked and job.id in met and held_for_onesd(waits_of(job, mark), known):
            found[job.id] = (
                "held for onesd, but no longer marked as elastic: its AdminComment was changed;"
                f" if it should run: scontrol release {job.id}"
            )
    return found


def waits_of(job: JobRecord, mark: Mark | None) -> Waits:
    """How Slurm says that a marked job is pending; one whose mark can't be read is onesd's."""
    return Waits(
        reason=job.reason,
        restarts=job.restarts,
        submitted=job.submitted,
        held_at_submission=mark is None or mark.held,
    )


def ranked(job: Job, record: JobRecord, order: Order) -> Job:
    """The job with the priority and the tier that it has in Slurm's order."""
    priority = order.priority(record, requested=job.requested, waited=job.waited)
    priority, tier = priority or 0, order.tier(record)
    if (job.priority, job.tier) == (priority, tier):
        return job
    return replace(job, priority=priority, tier=tier)


def gpu_nodes(
    snapshot: Snapshot, jobs: Iterable[Job], limits: SiteLimits = NO_LIMITS
) -> list[Node]:
    """All GPU nodes; `taken` is what others hold than these jobs, which elastic_jobs returned, and
    what these leave of the CPUs and the memory is for them."""
    running = [snapshot.jobs[int(job.id)] for job in jobs if job.placement]
    parts = [each for job in running for each in (job, *job.satellites)]
    elastic, ours = gpus_held(parts), held_of_nodes(parts)
    return [
        Node(
            name=node.name,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            switches=snapshot.switches.get(node.name, ()),
            taken=max(0, node.gpus_used - elastic.get(node.name, 0)),
            shares=half(node) > 0,
            cpus=left.cpus,
            memory=left.memory,
        )
        for node in snapshot.nodes.values()
        if node.gpus
        for left in (left_of_node(node, ours, limits),)
    ]


def waiting_plain_jobs(snapshot: Snapshot, jobs: Iterable[Job]) -> list[JobRecord]:
    """Jobs beside these that wait for GPUs, or for a limit on what is held, also without GPUs."""
    ours = {int(job.id) for job in jobs}
    return [
        record
        for record in snapshot.jobs.values()
        if record.state == "PENDING"
        and record.id not in ours
        and not record.is_satellite
        and ((_waits_for_gpus(record) and gpus_wanted(record)) or _waits_for_a_limit(record))
    ]


def _waits_for_a_limit(record: JobRecord) -> bool:
    reason = record.reason
    return not record.held and (about(reason) == "size" or "license" in reason.lower())


def plain_jobs(
    snapshot: Snapshot,
    jobs: Iterable[Job],
    order: Order | None = None,
    stopped: Collection[int] = (),
) -> list[PlainJob]:
    """Jobs beside these that hold GPUs, or that wait for them and for nothing else.

    Those that a limit has `stopped` wait for that, whatever Slurm says so far. Elastic jobs that
    Slurm itself will start are among those that wait. The ones that we released onto a pinned list
    of nodes are not, because their move already claims these; nor the `queued` ones, which a plan
    may still start sooner.
    """
    jobs = tuple(jobs)
    ours = {int(job.id) for job in jobs}
    queued = {int(job.id) for job in jobs if job.queued}
    where, found = Whereabouts(snapshot), []
    for job in snapshot.jobs.values():
        runs = job.state != "PENDING"
        wants = sum(job.gpus_on.values()) if runs else gpus_wanted(job)
        if not wants or job.is_satellite or (runs and job.id in ours):
            continue
        if not runs and (job.id in queued or job.id in stopped or not _waits_for_gpus(job)):
            continue
        left = left_to(job, where.nodes(job, gpu_type_wanted(job)), snapshot)
        if runs or not left.closed:
            found.append(_plain_job(job, wants, left.nodes, order))
    return found


def waiting_without_gpus(
    snapshot: Snapshot, order: Order | None = None, stopped: Collection[int] = ()
) -> list[PlainJob]:
    """Jobs that need no GPU and wait for room, where all nodes of their partitions have GPUs.

    Where some have none Slurm may start them there, and it is not planned for.
    """
    elsewhere = {
        name for node in snapshot.nodes.values() if not node.gpus for name in node.partitions
    }
    where, found = Whereabouts(snapshot), []
    for job in snapshot.jobs.values():
        if job.id in stopped or not _waits_for_gpus(job):
            continue
        if elsewhere.isdisjoint(job.partition.split(",")) and not gpus_wanted(job):
            left = left_to(job, where.nodes(job, ""), snapshot)
            if left.nodes and not left.closed:
                found.append(_plain_job(job, 0, left.nodes, order))
    return found


def _waits_for_gpus(job: JobRecord) -> bool:
    pinned = job.marked and bool(job.required_nodes)
    if job.state != "PENDING" or job.held or pinned:
        return False
    return job.reason in FOR_GPUS or job.reason.replace("_", " ").startswith(BEHIND)


def _plain_job(job: JobRecord, wants: int, nodes: frozenset[str], order: Order | None) -> PlainJob:
    runs = job.state != "PENDING"
    known = order is not None and order.priority(job, requested=0, waited=0.0) is not None
    each = gpus_in(job.tres_per_node)
    even = bool(each) and wants % each == 0
    return PlainJob(
        id=JobId(job.id),
        submitted=job.submitted,
        gpus=wants,
        nodes=nodes,
        tier=order.tier(job) if order is not None else 0,
        priority=job.priority if known else 0,
        expected=job.expected or inf,
        shapes=(Shape(wants // each, each),) if even else (),
        least_nodes=max(1, job.nodes_wanted[0]),
        cpus=float(job.cpus),
        memory=float(memory_in(job.tres)),
        limit=inf if job.time_limit is None else job.time_limit,
        started=job.started if runs else None,
        placement=Placement.of(job.gpus_on) if runs else None,
    )


def running_plain_jobs(snapshot: Snapshot, ours: Collection[int]) -> list[Release]:
    """Jobs outside our hands that hold GPUs, and when they give them back at the latest."""
    return [
        Release(
            job=job.id,
            left=NEVER
            if job.time_limit is None
            else max(0.0, job.started + job.time_limit - snapshot.taken),
            gpus_on=tuple(job.gpus_on.items()),
            at_limit=True,
        )
        for job in snapshot.jobs.values()
        if job.gpus_on and job.id not in ours and not job.is_satellite
    ]


def _job(
    record: JobRecord, where: Whereabouts, holds: Holds, partitions: Mapping[str, Partition]
) -> Job:
    mark, snapshot = Mark.read(record.admin_comment), where.snapshot
    if record.held and record.dependency:
        raise ValueError(
            f"it waits for {record.dependency[:60]}, which Slurm sees to when released"
        )
    running = record.state != "PENDING"
    if not running and not record.requeue and held_for_us(record, mark, holds):
        raise ValueError(
            "its Requeue flag was taken away: once started, it could not be moved any more"
        )
    if running and not record.gpus_on:
        raise ValueError("Slurm does not say which GPUs it holds")
    fixed, closed, nodes = "", "", frozenset[str]()
    takes: tuple[Take | None, Take | None] = (None, None)
    queued = in_slurms_queue(record, holds)
    shapes: tuple[Shape, ...] = ()
    try:
        layout = layout_of(record, mark)
        asked = Asked(record, mark, layout, partitions.get(record.partition.partition(",")[0]))
        takes = asked.take(CPU), asked.take(MEMORY)
        nodes = _allowed(record, where, layout.gpu_type)
        every, nodes = _with_room(
            record, where.shapes(mark.sizes, layout, nodes), nodes, where, takes
        )
        shapes = every
        if not shapes:
            raise ValueError(f"{NO_SIZE} {mark.sizes} fits the nodes it may use")
        left = opened_to(record, nodes, where, partitions)
        if not left.closed:
            left = left_to(record, left.nodes, snapshot)
        if left.nodes is not nodes and left.nodes != nodes:
            nodes = left.nodes
            shapes = where.shapes(mark.sizes, layout, nodes)
            shapes, nodes = _with_room(record, shapes, nodes, where, takes)
            closed = left.closed or ("" if shapes else CLOSED)
            shapes = shapes or every
        if not closed and _has_all_of_nodes(record, partitions):
            shapes = where.whole(mark.sizes, layout, nodes)
            shapes, nodes = _with_room(record, shapes, nodes, where, takes)
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
        time_limit=record.time_limit,
        time_left=_time_left(record, snapshot) if running else None,
        fixed=_unmovable(record) or fixed or ("" if running else closed),
        startable=not closed and (queued or _startable(record, mark, holds, snapshot.taken)),
        queued=queued and not closed,
        stays=closed if running else "",
        cpus=takes[0],
        memory=takes[1],
    )


def _with_room(
    record: JobRecord,
    shapes: tuple[Shape, ...],
    nodes: frozenset[str],
    where: Whereabouts,
    takes: tuple[Take | None, Take | None],
) -> tuple[tuple[Shape, ...], frozenset[str]]:
    """Those of the shapes, and of the nodes, that have the CPUs and the memory which it asks for.

    What a job runs with is kept in any case: Slurm knows better, as of CPUs that tasks share.
    """
    left, able = where.with_room(shapes, nodes, *takes)
    has = Placement.of(record.held_on).shape if record.held_on else None
    if has in shapes and has not in left:
        return tuple(one for one in shapes if one in left or one == has), nodes
    return left, able


def _has_all_of_nodes(record: JobRecord, partitions: Mapping[str, Partition]) -> bool:
    names = [partitions.get(name) for name in record.partition.split(",")]
    return any(partition is not None and partition.exclusive for partition in names)


def _within_limits(job: Job, record: JobRecord, where: Whereabouts, limits: SiteLimits) -> Job:
    """The job with the shapes that the site's limits on one job allow, and that it runs with.

    One that waits and is allowed none is not started, in any shape.
    """
    if not (limits.enforced or limits.partitions):
        return job
    if job.placement is None and (words := too_long(limits, record)):
        return barred(job, words)
    try:
        asked = asked_by(record, limits)
    except ValueError:
        return job
    now = job.placement.shape if job.placement else None
    why = forbidden(limits, asked, job.shapes, where.kinds(job.nodes))
    if not why:
        return job
    against = next(iter(why.values()))
    shapes = tuple(shape for shape in job.shapes if shape not in why or shape == now)
    if not shapes and job.placement is None:
        return barred(replace(job, shapes=()), against)
    return replace(job, shapes=shapes, limited=against)


def _room_in_arrays(snapshot: Snapshot) -> dict[int, int]:
    """Of arrays of which tasks wait under a limit (%4), how many more may run by it."""
    room: dict[int, int] = {}
    for record in snapshot.jobs.values():
        _, limited, most = record.array_task.partition("%")
        if limited and most.isdecimal():
            room[record.array_job] = int(most)
    for record in snapshot.jobs.values() if room else ():
        if record.array_job in room and record.state in HOLDING:
            room[record.array_job] -= 1
    return room


def _within_array(job: Job, room: int) -> Job:
    """The task of an array of which others wait: Slurm starts one of them for each that stops."""
    if job.placement is not None:
        words = "its array has a limit (%), and a task that waits would get its place"
        return replace(job, fixed=job.fixed or words)
    return barred(job, "its array has a limit (%) on tasks that run") if room <= 0 else job


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
    if record.held and record.state == "RUNNING":
        return "it is held: once stopped, it would wait for whoever holds it"
    busy = sorted(record.flags & {"COMPLETING", "CONFIGURING"})
    return f"it is {busy[0].lower()}" if busy else ""


def _startable(record: JobRecord, mark: Mark, holds: Holds, now: float) -> bool:
    ready = "COMPLETING" not in record.flags and not begins_later(record, now)
    return ready and held_for_us(record, mark, holds)


def begins_later(record: JobRecord, now: float) -> bool:
    """Whether a pending job is to begin later, as its owner has said since its submission."""
    return record.eligible > now and begins_by_owner(
        eligible=record.eligible, submitted=record.submitted, restarts=record.restarts
    )


def in_slurms_queue(record: JobRecord, holds: Holds) -> bool:
    """Whether it waits where we have put it: in Slurm's own queue, for GPUs and nothing else."""
    hold = holds.rows.get(record.id)
    ours = hold is not None and hold.released and hold.queued and hold.counts(record.restarts)
    return ours and "COMPLETING" not in record.flags and _waits_for_gpus(record)


def _time_left(record: JobRecord, snapshot: Snapshot) -> float | None:
    """Until its time limit ends it, or with its reservation Slurm does."""
    ends = [] if record.time_limit is None else [record.started + record.time_limit]
    if (over := end_of_reservation(record, snapshot)) is not None:
        ends.append(over)
    return max(0.0, min(ends) - snapshot.taken) if ends else None


def _allowed(record: JobRecord, where: Whereabouts, gpu_type: str) -> frozenset[str]:
    if features_of(record.features) is None:
        raise ValueError(f"its constraint '{record.features[:60]}' is more than names with & or |")
    nodes = where.nodes(record, gpu_type)
    if not nodes:
        raise ValueError(NO_NODE)
    return nodes
