"""A cluster of a few lines on which policies can be tried: rounds, restarts, reports, no Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ones.estimator.assess import Priors, assess, family_of
from ones.estimator.experience import Experience
from ones.estimator.progress import Finished, Progress
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.forecast import by_name, type_of
from ones.policies.guard import History, Limits, check, freeze
from ones.policies.invariants import validate
from ones.policies.model import Batch, Job, JobId, Node, Placement, Policy
from ones.policies.moves import reconcile
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A job as its user wrote it. `length` is its time in seconds at the requested size on v100."""

    id: int
    submit: float
    length: float
    sizes: str = "1-8"
    requested: int = 4
    name: str = ""
    fixed_share: float = 0.1
    sync: float = 0.05
    across: float = 0.08
    batch: int = 64
    most_batch: int | None = None


@dataclass(slots=True)
class Life:
    """What becomes of a job."""

    script: Script
    placement: Placement | None = None
    batch: int | None = None
    started: float | None = None
    ready: float = 0.0  # when the present run makes its first step
    done: float = 0.0
    executed: float = 0.0
    waited: float = 0.0
    ended: float | None = None
    runs: int = 0
    sizes: list[tuple[float, int]] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)


K80 = 1.7
TOTAL = 64 * 1000.0


def seconds_per_step(script: Script, kind: str, nodes: int, gpus: int, batch: int) -> float:
    """The truth: relative to `batch` samples at the requested size on one v100 node taking 1."""

    def relative(kind: str, nodes: int, gpus: int, batch: int) -> float:
        gradient = (0.06 + 0.94 * batch / script.batch / gpus) * (K80 if kind == "k80" else 1.0)
        network = script.sync * (gpus > 1) + script.across * (nodes > 1)
        return gradient + network * 0.25

    at = relative(kind, nodes, gpus, batch)
    reference = relative("v100", -(-script.requested // 4), script.requested, script.batch)
    return at / reference * script.length / (TOTAL / script.batch)


@dataclass(slots=True)
class VirtualCluster:
    """Runs scripts under a policy, a decision every `round_seconds`."""

    nodes: list[Node]
    policy: Policy
    limits: Limits
    restart: float = 8.0
    start: float = 4.0
    round_seconds: float = 5.0
    seed: int = 1
    lives: dict[int, Life] = field(default_factory=dict)
    experience: Experience = field(default_factory=Experience)
    refusals: list[str] = field(default_factory=list)

    def run(self, scripts: list[Script], *, until: float = 5000.0) -> dict[int, Life]:
        self.lives = {script.id: Life(script) for script in scripts}
        rng, memory, now, moved = np.random.default_rng(self.seed), None, 0.0, {}
        while now < until and any(life.ended is None for life in self.lives.values()):
            problem = assess(
                now=now,
                nodes=self.nodes,
                jobs=self._jobs(now),
                experience=self.experience,
                progress=self._progress(now),
                arrivals=[s.submit for s in scripts if s.submit <= now],
                priors=Priors(restart_seconds=10.0, job_seconds=120.0),
            )
            history = History(moved)
            problem = freeze(problem, history, self.limits)
            plan, memory = self.policy.plan(problem, memory, rng)
            validate(problem, plan)
            verdict = check(reconcile(problem, plan), problem, history, self.limits)
            self.refusals += [
                f"{now:.0f} {r.move.job} {r.move.kind}: {r.reason}" for r in verdict.refused
            ]
            for move in verdict.allowed:
                life = self.lives[move.job]
                before = life.placement.gpus if life.placement else 0
                after = move.target.gpus if move.target else 0
                word = (
                    move.kind
                    if move.kind != "resize"
                    else ("grow" if after > before else "shrink" if after < before else "move")
                )
                if move.kind == "start" and life.runs:
                    word = "resume"
                if move.kind != "start":
                    moved.setdefault(move.job, []).append(now)
                    self.experience.restart(
                        RestartCost(job=move.job, family="", seconds=self.restart)
                    )
                life.moves.append(word)
                life.sizes.append((now, after))
                life.placement, life.batch = (
                    move.target,
                    move.batch or life.batch or life.script.batch,
                )
                life.started = now
                life.ready = now + (self.start if word == "start" else self.restart)
                life.runs += move.target is not None
            self._advance(now, now + self.round_seconds)
            now += self.round_seconds
        return self.lives

    def _advance(self, now: float, then: float) -> None:
        kinds = by_name(self.nodes)
        for life in self.lives.values():
            if life.ended is not None or life.script.submit > then:
                continue
            if life.placement is None:
                life.waited += then - max(now, life.script.submit)
                continue
            kind = type_of(life.placement, kinds)
            step = seconds_per_step(
                life.script, kind, len(life.placement.gpus_on), life.placement.gpus, life.batch
            )
            begin = max(now, life.ready)
            if begin >= then:
                continue
            rate = life.batch / step
            life.executed += then - begin
            if life.done + rate * (then - begin) >= TOTAL:
                life.ended = begin + (TOTAL - life.done) / rate
                life.placement = None
                self.experience.finish(
                    Finished(
                        job=JobId(life.script.id),
                        family=family_of("ada", life.script.name),
                        total_samples=TOTAL,
                    )
                )
            else:
                life.done += rate * (then - begin)
                placement = life.placement
                self.experience.observe(
                    Observation(
                        job=JobId(life.script.id),
                        family=family_of("ada", life.script.name),
                        gpu_type=kind,
                        nodes=len(placement.gpus_on),
                        gpus=placement.gpus,
                        batch=float(life.batch),
                        step_seconds=step,
                    )
                )

    def _progress(self, now: float) -> dict[JobId, Progress]:
        return {
            JobId(id_): Progress(
                job=JobId(id_), samples=life.done, total_samples=TOTAL, epoch_samples=TOTAL / 20
            )
            for id_, life in self.lives.items()
            if life.done
        }

    def _jobs(self, now: float) -> list[Job]:
        return [
            Job(
                id=JobId(id_),
                name=life.script.name,
                user="ada",
                account="lab",
                submitted=life.script.submit,
                sizes=Sizes.parse(life.script.sizes),
                requested=life.script.requested,
                shapes=realisable(
                    Sizes.parse(life.script.sizes), [node.gpus for node in self.nodes]
                ),
                nodes=frozenset(node.name for node in self.nodes),
                placement=life.placement,
                batch=life.batch if life.placement else None,
                batches=Batch(
                    submitted=life.script.batch,
                    most_per_gpu=life.script.batch,
                    most=life.script.most_batch,
                )
                if life.script.most_batch and life.done
                else None,
                started=life.started if life.placement else None,
                executed=life.executed,
                waited=life.waited,
            )
            for id_, life in self.lives.items()
            if life.script.submit <= now and life.ended is None
        ]
