"""What must hold whatever goes wrong. Each looks at the truth, and says what is broken, or ''."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ones.policies.renewal import LEAD
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.simulated.reserving import fenced_off, magnets, own_of
from ones.slurm_ext.snapshot import MARK, SATELLITE_MARK, STAGE_MARK

if TYPE_CHECKING:
    from ones.slurm_ext.simulated.job import Job
    from simulation.play import Play

OURS = (MARK, SATELLITE_MARK, STAGE_MARK)
MISLEADING = frozenset(
    {"stale", "empty", "late", "clock", "second", "people"}
)  # faults by which onesd may know no better
OLDEST = 120.0  # seconds between a job's last checkpoint and a stop by onesd
LONGEST_MOVE = 3600.0
UNSEEN = 900.0  # seconds that a job may be held for onesd which counts it among nobody's
STARTS_AN_HOUR = 20  # of one job that come to nothing


def only_marked_jobs_are_touched(play: Play) -> str:
    """onesd writes to jobs that opted in, and to what belongs to them."""
    for deed in play.new_deeds:
        if deed.by != "ones":
            continue
        job = play.world.state.jobs.get(deed.job)
        if job is not None and deed.job not in play.was_marked and not _ours(job.admin_comment):
            return f"{deed.what} on job {deed.job}, which did not opt in"
    return ""


def _ours(comment: str) -> bool:
    return comment.startswith(OURS)


def nobody_elses_hold_is_lifted(play: Play) -> str:
    """A user's or an administrator's hold is theirs."""
    for deed in play.new_deeds:
        lifted = deed.by == "ones" and deed.what == "release"
        if deed.job in play.people.ambiguous:
            continue
        if lifted and deed.held_by in ("user", "administrator"):
            return f"job {deed.job} was held by its {deed.held_by}, and released by onesd"
    return ""


def one_onesd_acts(play: Play) -> str:
    """Whoever writes to Slurm is the onesd of the latest term."""
    return play.office.foul if play.office is not None else ""


def nobody_is_stopped_for_whom_no_node_is_left(play: Play) -> str:
    """onesd stops no job that reservations would not let start again, if it has time."""
    state = play.world.state
    if not MISLEADING.isdisjoint(play.scenario.faults):
        return ""
    for deed in play.new_deeds:
        job = state.jobs.get(deed.job)
        if deed.by != "ones" or not deed.what.startswith("requeuehold") or job is None:
            continue
        own, why = own_of(state, job)
        ways = [*own, *magnets(state, job)] or [None]
        closed = why or all(state.nodes.keys() <= fenced_off(state, job, each) for each in ways)
        if closed and not _was_near_its_limit(play, job, deed.at):
            return f"job {deed.job} was stopped, and reservations leave it no node {why}"
    return ""


def _was_near_its_limit(play: Play, job: Job, stopped: float) -> bool:
    """Whether its run would have been over soon, and the job with it."""
    runs = play.world.state.accounting.runs([job.id], stopped)
    return (
        bool(runs)
        and job.time_limit is not None
        and (runs[-1].started + job.time_limit - stopped <= LEAD)
    )


def no_gpu_is_given_twice(play: Play) -> str:
    """The allocations on a node are of different GPUs, and no more than there are."""
    for name, node in play.world.state.nodes.items():
        given: list[int] = []
        for job in play.world.state.jobs.values():
            part = job.parts.get(name)
            if part is not None:
                given += part.gpus
        if len(given) != len(set(given)) or len(given) > node.spec.gpus:
            return f"GPUs {sorted(given)} of {name} are given out"
    return ""


def no_work_is_lost(play: Play) -> str:
    """onesd stops a job right after a checkpoint, and no later."""
    for deed in play.new_deeds:
        if deed.by != "ones" or not deed.what.startswith("requeuehold"):
            continue
        training = play.trainings.of.get(deed.job)
        age = deed.at - training.saved_at if training is not None else 0.0
        if training is not None and age > OLDEST + play.outage:
            return f"job {deed.job} was stopped {age:.0f} s after its last checkpoint"
    return ""


def every_size_is_one_the_job_accepts(play: Play) -> str:
    """A job that opted in runs at one of its sizes, or as it was submitted."""
    for number in play.new_starts:
        job = play.world.state.jobs.get(number)
        mark = Mark.parse(job.admin_comment) if job is not None else None
        if job is None or mark is None or not job.parts:
            continue
        shares = any(part.shards for part in job.parts.values())
        if not shares and job.gpus not in mark.sizes and job.gpus != mark.request:
            return f"job {number} of sizes {mark.sizes} runs on {job.gpus} GPUs"
    return ""


def every_move_ends(play: Play) -> str:
    """No move is under way for ever."""
    for move in play.open_moves():
        age = play.world.now - move.begun_at
        if age > LONGEST_MOVE + play.outage:
            return f"job {move.job}: its {move.kind} is at {move.step} for {age:.0f} s"
    return ""


def nobody_is_held_unseen(play: Play) -> str:
    """Who is held for onesd is one that onesd plans for, moves, lets go, or names."""
    now, published = play.world.now, play.published
    if published is None or not play.alive:
        play.unseen.clear()
        return ""
    known = {int(job.id) for job in published.jobs if job.startable or job.fixed}
    known |= set(published.ignored) | {move.job for move in play.open_moves()}
    for number, job in play.world.state.jobs.items():
        ours = job.held and job.held_by in ("submission", "ones") and job.state == "PENDING"
        ours = ours and _ours(job.admin_comment)  # without its mark nobody may touch it
        told = number in play.named or number in play.people.ambiguous
        if not ours or number in known or job.flags or told:
            play.unseen.pop(number, None)
            continue
        since = play.unseen.setdefault(number, now)
        if now - since > UNSEEN + play.outage:
            return f"job {number} is held by {job.held_by} for {now - since:.0f} s, and not seen to"
    return ""


def no_round_fails_of_itself(play: Play) -> str:
    """A round or tick fails only where Slurm or the disk did."""
    return play.unexpected


def nothing_is_tried_for_ever(play: Play) -> str:
    """A start that comes to nothing isn't made again and again."""
    recent = [each for each in play.failed_starts if play.world.now - each[0] < 3600.0]
    play.failed_starts[:] = recent
    counts: dict[int, int] = {}
    for _, job in recent:
        counts[job] = counts.get(job, 0) + 1
    for job, count in counts.items():
        if count > STARTS_AN_HOUR:
            return f"job {job} was started in vain {count} times within an hour"
    return ""


def sizes_told_are_sizes_held(play: Play) -> str:
    """`onesctl jobs` says of each job what Slurm said when it was last asked."""
    if play.published is None or play.views is None:
        return ""
    for told in play.views:
        record = play.published.snapshot.jobs.get(told["job"])
        held = sum(record.held_on.values()) if record is not None else None
        if told["gpus"] != held:
            return f"onesctl jobs says {told['gpus']} GPUs of job {told['job']}, Slurm {held}"
    return ""


def every_batch_is_one_the_job_accepts(play: Play) -> str:
    """What a job is told to take as its batch is within what it said that it accepts."""
    for number, training in play.trainings.of.items():
        if training.absurd or not training.running:
            continue
        lease = play.lease(number)
        if lease is None or lease.batch is None or lease.gpus != training.gpus:
            continue
        most = min(training.most_batch, training.gpus * training.most_per_gpu)
        if lease.batch > max(most, training.submitted):
            return f"job {number} is told batch {lease.batch} on {training.gpus} GPUs of {most}"
    return ""


ALWAYS: Mapping[str, Callable[[Play], str]] = {
    "only marked jobs are touched": only_marked_jobs_are_touched,
    "nobody else's hold is lifted": nobody_elses_hold_is_lifted,
    "one onesd acts": one_onesd_acts,
    "nobody is stopped for whom no node is left": nobody_is_stopped_for_whom_no_node_is_left,
    "no GPU is given twice": no_gpu_is_given_twice,
    "no work is lost": no_work_is_lost,
    "every size is one the job accepts": every_size_is_one_the_job_accepts,
    "every batch is one the job accepts": every_batch_is_one_the_job_accepts,
    "every move ends": every_move_ends,
    "nobody is held unseen": nobody_is_held_unseen,
    "no round fails of itself": no_round_fails_of_itself,
    "nothing is tried for ever": nothing_is_tried_for_ever,
    "sizes told are sizes held": sizes_told_are_sizes_held,
}


def everybody_finishes(play: Play) -> str:
    """Once nothing goes wrong any more, every job comes to its end.

    But for those of which a lost database leaves in doubt who holds them: they are named.
    """
    doubts = play.published.doubts if play.published is not None else {}
    there = [job for job in play.world.state.alive() if not is_satellite(job)]
    words = [
        f"{job.id} {job.state} ({job.reason}{f', held by {job.held_by}' if job.held else ''})"
        for job in there
        if job.id not in doubts
    ]
    return f"still there in the end: {', '.join(words[:5])}" if words else ""


def is_satellite(job: Job) -> bool:
    """Whether it holds GPUs for another one."""
    return job.admin_comment.startswith(SATELLITE_MARK)


def no_satellite_is_left(play: Play) -> str:
    """No satellite outlives its job."""
    left = [job.id for job in play.world.state.alive() if is_satellite(job)]
    return f"satellites {left} are left" if left else ""


def no_move_is_left(play: Play) -> str:
    """Nothing is under way where nobody is left to be moved."""
    left = [f"{move.kind} of job {move.job}" for move in play.open_moves()]
    return f"under way in the end: {', '.join(left)}" if left else ""


def the_books_are_slurms(play: Play) -> str:
    """GPU seconds by `onesctl job` are those of the accounting."""
    return play.book_error()


IN_THE_END: Mapping[str, Callable[[Play], str]] = {
    "everybody finishes": everybody_finishes,
    "no satellite is left": no_satellite_is_left,
    "no move is left": no_move_is_left,
    "the books are Slurm's": the_books_are_slurms,
}
