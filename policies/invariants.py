"""What must hold of every plan, checked before any of it is acted upon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ones.policies.caps import breakers
from ones.policies.forecast import by_id, by_name
from ones.policies.model import Assignment, Job, JobId, Node, Plan, Problem
from ones.policies.sharing import occupied, pair_of
from ones.policies.sizes import in_gpus


class PlanError(Exception):
    """A plan that must not be acted upon; names the job or node at fault."""

    def __init__(self, fault: str, *, job: JobId | None = None, node: str | None = None) -> None:
        super().__init__(f"plan refused: {fault}")
        self.job = job
        self.node = node


def validate(problem: Problem, plan: Plan) -> None:
    """Raise PlanError unless the plan keeps within the cluster and each job's own terms."""
    fault = next(faults(problem, plan), None)
    if fault is not None:
        raise fault


def faults(problem: Problem, plan: Plan) -> Iterator[PlanError]:
    """All that is wrong with the plan, one fault a job at most; those of no one job come last."""
    jobs, nodes = by_id(problem.jobs), by_name(problem.nodes)
    wrong: set[JobId] = set()
    for id_ in {**plan.assignments, **plan.idle}:
        if (fault := _fault(problem, plan, jobs, nodes, id_)) is not None:
            wrong.add(id_)
            yield fault
    for id_, words in breakers(problem, plan).items() if not wrong else ():
        wrong.add(id_)
        yield PlanError(f"job {id_} would get more than is allowed: {words}", job=id_)
    if not wrong:
        yield from _overfull(problem, plan, nodes)


def _fault(
    problem: Problem,
    plan: Plan,
    jobs: Mapping[JobId, Job],
    nodes: Mapping[str, Node],
    id_: JobId,
) -> PlanError | None:
    """What is wrong with what the plan has for this job."""
    job, assignment = jobs.get(id_), plan.assignments.get(id_)
    try:
        if job is None:
            raise PlanError(f"job {id_} is not in the problem", job=id_)
        if assignment is not None and id_ in plan.idle:
            raise PlanError(f"job {id_} is both placed and idle", job=id_)
        if assignment is not None:
            _check_job(job, assignment, nodes)
            _check_pair(problem, plan, job, assignment)
        elif job.placement is not None and job.fixed:
            raise PlanError(f"job {id_} is preempted but fixed: {job.fixed}", job=id_)
    except PlanError as fault:
        return fault
    return None


def _overfull(problem: Problem, plan: Plan, nodes: Mapping[str, Node]) -> Iterator[PlanError]:
    """Nodes that would hold more than they have."""
    held = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    beside = {job.id: job.beside for job in problem.jobs}
    present = occupied(held, beside)
    for id_, assignment in plan.assignments.items():
        if assignment.beside is not None or assignment.placement != held.get(id_):
            beside[id_] = assignment.beside
        held[id_] = assignment.placement
    for id_ in plan.idle:
        held.pop(id_, None)
    wanted = occupied(held, beside)
    for name, gpus in wanted.items():
        if gpus <= present[name]:
            continue  # nothing was added; what Slurm runs now is not ours to judge
        node = nodes.get(name)
        if node is None or gpus > node.gpus - node.taken:
            have = node.gpus - node.taken if node else 0
            yield PlanError(
                f"node {name} would hold {in_gpus(gpus)} and has {have} for us", node=name
            )


def _check_pair(problem: Problem, plan: Plan, job: Job, assignment: Assignment) -> None:
    """Who shares a GPU does so with one job, that shares it with nobody else, and may."""
    other = assignment.beside
    if other is None:
        return
    theirs = plan.assignments.get(other)
    if theirs is None or theirs.beside != job.id or theirs.placement != assignment.placement:
        raise PlanError(f"job {job.id} is beside job {other}, which is elsewhere", job=job.id)
    if assignment.placement.gpus != 1:
        raise PlanError(f"job {job.id} would share more than one GPU", job=job.id)
    if job.beside != other and pair_of(job.id, other) not in problem.pairs:
        raise PlanError(f"jobs {job.id} and {other} may not share a GPU", job=job.id)


def _check_job(job: Job, assignment: Assignment, nodes: Mapping[str, Node]) -> None:
    if job.placement is None and (job.fixed or not job.startable):
        raise PlanError(
            f"job {job.id} may not be started: {job.fixed or 'not startable'}", job=job.id
        )
    shares = assignment.beside is not None and not job.share
    if assignment.placement == job.placement and not (shares and job.fixed):
        tunes = job.batches is not None and job.batches.tunes
        if job.fixed and not tunes and assignment.batch not in (None, job.batch):
            raise PlanError(f"job {job.id} gets a new batch but is fixed: {job.fixed}", job=job.id)
        _check_batch(job, assignment)
        return
    if job.fixed:
        raise PlanError(f"job {job.id} is moved but fixed: {job.fixed}", job=job.id)
    placement = assignment.placement
    live = job.goes_live(placement)
    if (job.uneven or live) and placement.gpus not in job.sizes:
        raise PlanError(
            f"job {job.id} does not accept {in_gpus(placement.gpus)}, only {job.sizes}", job=job.id
        )
    if not (job.uneven or live) and placement.shape not in job.shapes:
        raise PlanError(
            f"job {job.id} would get {dict(placement.gpus_on)}, which is none of its shapes "
            f"({', '.join(map(str, job.shapes))})",
            job=job.id,
        )
    for name, gpus in placement.gpus_on:
        node = nodes.get(name)
        if node is None or name not in job.nodes:
            raise PlanError(f"job {job.id} may not run on node {name}", job=job.id, node=name)
        # A job that shrinks on a node that is being drained adds nothing to it.
        if not node.usable and gpus > dict(job.placement.gpus_on if job.placement else ()).get(
            name, 0
        ):
            raise PlanError(f"job {job.id} would go to unusable node {name}", job=job.id, node=name)
    if len({nodes[name].gpu_type for name in placement.nodes}) > 1:
        raise PlanError(f"job {job.id} would mix GPU types", job=job.id)
    _check_batch(job, assignment)


def _check_batch(job: Job, assignment: Assignment) -> None:
    batch, bounds = assignment.batch, job.batches
    if batch is None or batch == job.batch:
        return
    gpus = assignment.placement.gpus
    if bounds is None:
        raise PlanError(f"job {job.id} keeps its own batch but would get {batch}", job=job.id)
    if not bounds.accepts(batch, gpus):
        raise PlanError(
            f"job {job.id} does not accept batch {batch} on {in_gpus(gpus)}", job=job.id
        )
