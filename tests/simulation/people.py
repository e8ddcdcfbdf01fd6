"""Who else is at the cluster: users who change their minds, administrators, plain jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

from ones.daemon.demo.trainings import Training, Trainings
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.job import Job, Wants
from ones.slurm_ext.simulated.submission import Request
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import Reservation
from simulation.scenario import Scenario

USERS = ("alice", "bob", "carol")
SIZES = ("1-8", "1-4", "2-8", "1,2,4,8", "2-4", "1-16", "4")


def queue(scenario: Scenario) -> list[tuple[float, Request, str, Callable[[int], Training | None]]]:
    """When who submits what, and what the job then does; None: it did not opt in."""
    rng = scenario.rng("queue")
    found = []
    for place in range(scenario.jobs):
        at = rng.uniform(0.0, scenario.rounds * 15.0 * 0.6)
        user = rng.choice(USERS)
        elastic = rng.random() < 0.8
        sizes = rng.choice(SIZES)
        asked = rng.choice((1, 2, 4)) if sizes != "4" else 4
        if sizes in ("2-8", "2-4"):
            asked = max(2, asked)
        wants = (
            Wants(tres_per_job=f"gres/gpu:{asked}")
            if rng.random() < 0.7
            else Wants(tres_per_node=f"gres/gpu:{asked}")
        )
        length = rng.choice((60.0, 300.0, 900.0, 1800.0)) * rng.uniform(0.7, 1.3)
        training = _training(rng, scenario, user, length, asked)
        request = Request(
            wants=wants,
            name=rng.choice(("resnet", "bert", "gpt", "lstm")),
            elastic=sizes if elastic else None,
            time_limit=86400.0 if rng.random() < 0.9 else 3600.0,
            priority=rng.choice((500, 1000, 2000)),
            seconds=None if elastic else length,
        )
        if place not in scenario.without:
            found.append((at, request, user, training if elastic else _nothing))
    return sorted(found, key=lambda each: each[0])


def _nothing(_job: int) -> None:
    return None


def _training(
    rng: Random, scenario: Scenario, user: str, length: float, asked: int
) -> Callable[[int], Training]:
    speed = rng.uniform(5.0, 200.0)
    scale = rng.uniform(0.5, 0.95)
    batch = rng.choice((32, 64, 100, 128))
    deaf = rng.random() if "deaf" in scenario.faults else 1.0
    answers = float("inf") if deaf < 0.08 else -1.0 if deaf < 0.12 else rng.uniform(0.2, 8.0)
    absurd: dict[str, object] = {}
    if "reports" in scenario.faults and rng.random() < 0.3:
        absurd = rng.choice(
            (
                {"batch_submitted": 100, "batch_most": 100, "batch_most_per_gpu": 128},
                {"batch_submitted": 64, "batch_most": 32, "batch_most_per_gpu": 64, "tunes": True},
                {"batch_submitted": 64, "batch_most": 128, "batch_most_per_gpu": 64},
                {"samples": 10**15, "total_samples": 1, "step_seconds": 1e-6},
                {"samples": 0, "total_samples": 10**15, "step_seconds": 86400.0},
                {"grad_sqr": 1e-30, "grad_var": 1e30, "epoch": 3.0},
                {"gpus": 65536, "batch": 1},
                {"batch_submitted": 1000, "batch_most": 1001, "batch_most_per_gpu": 1},
            )
        )
    live = rng.random() < 0.25
    tunes = rng.random() < 0.3
    fixed = rng.uniform(0.1, 2.0) * batch / speed if "batches" in scenario.faults else 0.0

    rate = speed * asked**scale
    rate = batch / (batch / rate + fixed) if fixed else rate

    def made(job: int) -> Training:
        return Training(
            job=job,
            user=user,
            total=rate * length,
            speed=speed,
            scale=scale,
            submitted=batch,
            batch=batch,
            fixed=fixed,
            most_batch=batch * 8,
            most_per_gpu=batch,
            tunes=tunes,
            live=live,
            answers=answers,
            absurd=absurd,
        )

    return made


class People:
    """Random deeds of users and administrators, one now and then."""

    def __init__(
        self,
        world: World,
        trainings: Trainings,
        rng: Random,
        told: Callable[[str], None],
        doubtful: Callable[[], Collection[int]],
    ) -> None:
        self._doubtful = doubtful
        self._world = world
        self._trainings = trainings
        self._rng = rng
        self._told = told
        self.ambiguous: set[int] = set()  # held by somebody, and nobody can tell for whom

    def act(self) -> bool:
        """One deed of somebody; whether Slurm let it be done."""
        alive = [
            job for job in self._world.state.alive() if not job.admin_comment.startswith("ONES1S")
        ]
        if not alive:
            return False
        job = self._rng.choice(alive)
        who = job.user if self._rng.random() < 0.6 else "root"
        deed = self._rng.choice(
            ("cancel", "hold", "hold", "release", "release", "requeue", "requeuehold", "suspend",
             "resume", "resume", "limit", "unrequeue", "unmark", "exclude")
        )  # fmt: skip
        before = job.record()
        try:
            self._do(deed, who, job)
        except SlurmError:
            return False
        after = job.record()
        unseen = (before.state, before.held, before.reason) == (
            after.state,
            after.held,
            after.reason,
        )
        if deed in ("hold", "requeuehold") and (unseen or job.id in self._doubtful()):
            # Slurm shows nothing of a hold on top of another, nor who of two locked a job.
            self.ambiguous.add(job.id)
        self._told(f"{who}: {deed} {job.id}")
        return True

    def _do(self, deed: str, who: str, job: Job) -> None:
        person = self._world.by(who)
        match deed:
            case "cancel":
                if self._rng.random() < 0.4:
                    person.cancel(job.id)
            case "hold":
                person.hold(job.id)
            case "release":
                person.release(job.id)
            case "requeue":
                person.requeue(job.id)
            case "requeuehold":
                person.requeuehold(job.id)
            case "suspend":
                self._world.by("root").suspend(job.id)
            case "resume":
                self._world.by("root").resume(job.id)
            case "limit":
                self._world.by("root").update(job.id, {"TimeLimit": "600"})
            case "unrequeue":
                if self._rng.random() < 0.3:
                    person.update(job.id, {"Requeue": "0"})
            case "unmark":
                if self._rng.random() < 0.3:
                    self._world.by("root").update(job.id, {"AdminComment": ""})
            case "exclude":
                node = self._rng.choice(list(self._world.state.nodes))
                person.update(job.id, {"ExcNodeList": node})

    def reserve(self, rng: Random) -> bool:
        """An administrator reserves nodes; whether Slurm lets him."""
        state = self._world.state
        names = sorted(state.nodes)
        start = self._world.now + rng.choice((0.0, 120.0, 900.0, 3600.0))
        new = Reservation(
            name=f"r{len(state.reservations)}-{int(self._world.now)}",
            nodes=frozenset(rng.sample(names, rng.randint(1, len(names)))),
            users=frozenset(rng.sample(USERS, 2)),
            start=start,
            end=start + rng.choice((60.0, 300.0, 1800.0)),
            flags=frozenset({"IGNORE_JOBS"} if rng.random() < 0.7 else ())
            | frozenset(rng.sample(("FLEX", "MAGNETIC", "MAINT", "OVERLAP"), rng.randint(0, 2))),
        )
        try:
            self._world.reserve(new)
        except SlurmError:
            return False
        kind = " ".join(sorted(new.flags)) or "no flags"
        until = f"{new.start - self._world.now:.0f} s to {new.end - self._world.now:.0f} s from now"
        self._told(f"root: reservation {new.name} of {len(new.nodes)} nodes, {kind}, {until}")
        return True

    def into_a_reservation(self, request: Request, user: str, rng: Random) -> Request:
        """The same job in a reservation of its user's, perhaps."""
        own = [
            each.name
            for each in self._world.state.reservations.values()
            if each.admits(user, self._world.state.users[user])
        ]
        if not own or rng.random() < 0.5:
            return request
        return replace(request, reservation=rng.choice(own))

    def go_home(self) -> None:
        """Nobody holds or suspends anything any more."""
        root = self._world.by("root")
        for job in list(self._world.state.alive()):
            if job.state == "SUSPENDED":
                root.resume(job.id)
            named = {name for name in job.reservation.split(",") if name}
            gone = not named & self._world.state.reservations.keys()
            if job.state == "PENDING" and named and gone:
                # A slurmctld that went back to what it had saved knows the job in a reservation
                # that is over meanwhile, and leaves it there; its user takes it out.
                root.update(job.id, {"ReservationName": ""})
            theirs = job.held_by in ("user", "administrator")
            if theirs or (job.held and (job.held_by == "slurm" or not job.admin_comment)):
                over = job.reason.startswith("Reservation ")  # it is for its user to look at that
                if job.held_by == "slurm" and job.admin_comment and not over:
                    continue  # onesd's own doing, and for it to mend
                if not job.admin_comment and job.state == "PENDING":
                    # Nobody else sees to it any more.
                    root.update(job.id, {"ReqNodeList": "", "ExcNodeList": ""})
                root.release(job.id)
