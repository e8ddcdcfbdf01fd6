"""sbatch on the simulated Slurm, with what job_submit.lua makes of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.policies.sizes import Sizes
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.job import Job, Wants, gpus_asked, need_of
from ones.slurm_ext.simulated.state import State
from ones.slurm_ext.snapshot import MARK, SATELLITE_MARK, STAGE_MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteOf:
    """For whose run, and by which order, a satellite is submitted."""

    base: int
    restarts: int
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What sbatch is told."""

    wants: Wants = field(default_factory=Wants)
    name: str = "train"
    elastic: str | None = None  # --elastic=...; '' for a bare --elastic
    satellite: SatelliteOf | None = None
    staging: bool = False  # it is a stage-in job
    stage_in: int | None = None  # the job that stages in for it
    account: str = ""  # its user's, where it names none
    partition: str = ""
    qos: str = "normal"
    time_limit: float | None = None  # seconds; None: the partition's default
    priority: int = 1000
    hold: bool = False
    begin: float = 0.0
    dependency: str = ""
    reservation: str = ""
    requeue: bool = True
    no_kill: bool = False
    array: int = 0  # tasks of an array; 0: none
    seconds: float | None = None  # that a run takes; None: until World.finish
    deaf: bool = False  # does not end at SIGTERM
    steps: bool = False  # runs steps beside its batch script
    memory_used: float | None = None


def submit(state: State, user: str, request: Request) -> Job:
    """The job, or the first task of an array. Raises SlurmError in the words of sbatch."""
    _check(state, user, request)
    first = _job(state, user, request)
    try:
        _admit(state, first, request)
    except _Refused as refusal:
        raise SlurmError("sbatch", str(refusal)) from None
    jobs = [first]
    if request.array:
        first.array = first.id
        jobs += [_job(state, user, request) for _ in range(request.array - 1)]
    for index, job in enumerate(jobs):
        job.array, job.task = first.array, str(index) if first.array else ""
        job.admin_comment = first.admin_comment
        job.requeue = first.requeue
        state.jobs[job.id] = job
        state.listener("submitted", job)
        if job.begin > state.now:
            job.reason = "BeginTime"
            state.at(job.begin, state.wake)
        if job.dependency and not job.held:
            job.reason = "Dependency"
    state.touch(*jobs)
    state.wake()
    return first


def _check(state: State, user: str, request: Request) -> None:
    def refuse(words: str) -> SlurmError:
        return SlurmError("sbatch", f"Batch job submission failed: {words}")

    if user not in state.users:
        raise refuse("Invalid account or account/partition combination specified")
    if request.partition and request.partition not in state.partitions:
        raise refuse("Invalid partition name specified")
    unknown = [name for name in request.wants.required if name not in state.nodes]
    if unknown:
        raise refuse("Invalid node name specified")
    if request.reservation:
        account = request.account or state.users[user]
        for name in request.reservation.split(","):
            if (reservation := state.reservations.get(name)) is None:
                raise refuse("Requested reservation is invalid")
            if not reservation.admits(user, account):
                raise refuse("Access denied to requested reservation")


def _job(state: State, user: str, request: Request) -> Job:
    partition = state.partitions[request.partition or next(iter(state.partitions))]
    limit = partition.default_time if request.time_limit is None else request.time_limit
    job = Job(
        id=0,
        name=request.name,
        user=user,
        account=request.account or state.users[user],
        qos=request.qos,
        partition=partition.name,
        wants=request.wants,
        weight=request.priority,
        submitted=state.now,
        first_submitted=state.now,
        begin=request.begin,
        eligible=0.0,
        time_limit=limit,
        dependency=request.dependency,
        memory_per_cpu=partition.memory_per_cpu,
        reservation=request.reservation,
        requeue=request.requeue,
        no_kill=request.no_kill,
        seconds=request.seconds,
        deaf=request.deaf,
        own_steps=request.steps,
        memory_used=request.memory_used,
    )
    if request.hold:
        job.held, job.held_by, job.reason = True, "user", "JobHeldUser"
    job.id = state.new_id()
    return job


class _Refused(Exception):
    """job_submit.lua's word to the user."""


def _admit(state: State, job: Job, request: Request) -> None:
    if request.staging:
        job.admin_comment = STAGE_MARK
    elif request.satellite is not None:
        _admit_satellite(state, job, request.satellite)
    elif request.elastic is not None:
        _mark(state, job, request, request.elastic)


def _mark(state: State, job: Job, request: Request, text: str) -> None:
    wants = job.wants
    if request.array and request.stage_in is not None:
        raise _Refused(
            "--stage-in brings the data of one job to its nodes, not those of a job array; "
            "drop one of the two"
        )
    if not request.requeue:
        raise _Refused(
            "--elastic resizes a job by requeueing it, which --no-requeue forbids; "
            "drop one of the two"
        )
    if wants.required:
        raise _Refused(
            f"--elastic leaves the choice of nodes to onesd, which --nodelist="
            f"{','.join(wants.required)} forbids; use --exclude or --constraint instead"
        )
    gpus = gpus_asked(wants)
    if gpus < 1:
        raise _Refused(f"--elastic={text}: the job asks for no GPUs")
    sizes = text or f"1-{gpus}"
    try:
        accepted = Sizes.parse(sizes)
    except ValueError as fault:
        raise _Refused(f"--elastic: {fault}") from None
    if gpus not in accepted.counts:
        raise _Refused(f"--elastic={text}: the job itself asks for {gpus} GPUs")
    waits = request.hold or job.begin > state.now or bool(job.dependency) or request.array > 0
    held = not waits and state.holds_new_jobs()
    stage = "" if request.stage_in is None else f";stage={request.stage_in}"
    kinds = need_of(wants).gpu_type
    job.admin_comment = (
        f"{MARK}sizes={sizes};request={gpus};held={int(held)};tasks={wants.tasks}"
        f";nodes={wants.nodes[0]};mem={_memory(wants)};cpu={_cpus(wants)}{stage}"
        + (f";type={kinds}" if kinds else "")
    )
    job.requeue = True
    if held:
        job.held, job.held_by, job.reason = True, "submission", "JobHeldUser"


def _memory(wants: Wants) -> str:
    if wants.memory is not None:
        return str(wants.memory)
    return "yes" if wants.memory_per_gpu else "no"


def _cpus(wants: Wants) -> str:
    asked = wants.cpus_per_task > 1 or wants.cpus_per_node or wants.cpus_per_gpu
    return "yes" if asked or "cpu" in wants.tres_per_task else "no"


def _admit_satellite(state: State, job: Job, tie: SatelliteOf) -> None:
    base = state.jobs.get(tie.base)
    if (
        base is None
        or base.state != "RUNNING"
        or base.user != job.user
        or base.restarts != tie.restarts
        or not base.admin_comment.startswith(MARK)
    ):
        raise _Refused(
            f"a satellite of job {tie.base}: you have no elastic job of this number running"
        )
    job.account, job.qos, job.partition = base.account, base.qos, base.partition
    if base.time_limit is not None:
        left = base.started + base.time_limit + base.paused - state.now
        if left < 60.0:
            raise _Refused(f"a satellite of job {tie.base}: that job ends within a minute")
        left = 60.0 * (left // 60.0)
        job.time_limit = left if job.time_limit is None else min(job.time_limit, left)
    job.requeue = False
    tied = f"base={tie.base};restarts={tie.restarts};order={tie.order}"
    job.admin_comment = f"{SATELLITE_MARK}{tied}"
