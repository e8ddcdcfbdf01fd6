"""The shares that rounds aim at: a Gavel policy's optimum for the jobs and GPUs of the moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ones.policies.caps import of_shape, taken
from ones.policies.forecast import by_id, own_batch, seconds_left
from ones.policies.gavel.classes import Shares
from ones.policies.gavel.policies import GavelPolicy, within_makespan
from ones.policies.gavel.problem import BadProblem, Entity, Problem, with_placements
from ones.policies.gavel.program import Caps, Unsolved
from ones.policies.gavel.program import Pairs as Rows
from ones.policies.gavel.rounds_market import Claimant, Market, Speeds
from ones.policies.gavel.rounds_settings import RoundSettings
from ones.policies.model import Cap, Floats, Job, JobId, Outlook, Pairs, Seconds, Shape
from ones.policies.model import Problem as Ground
from ones.policies.sharing import pair_of

CHANGED = 0.05  # of a speed, from where the optimum is sought anew
NOTHING = 1e-9  # a share below this is none
LEAST_WORK, MOST_WORK = 1e-6, 1e15  # samples, whatever an outlook says


@dataclass(frozen=True, slots=True, kw_only=True)
class Among:
    """What several jobs have to do with one another."""

    pairs: Pairs  # who could share a GPU
    problem: Ground

    def _left(self, cap: Cap, jobs: Mapping[JobId, Job], part: Collection[JobId]) -> float:
        """For this part of the jobs; at least what it holds: nobody is stopped for a limit."""
        nodes = self.problem.by_name
        held = {
            id_: taken(cap, jobs[id_], jobs[id_].placement, nodes)
            for id_ in cap.takes
            if id_ in jobs
        }
        others = sum(amount for id_, amount in held.items() if id_ not in part)
        return max(cap.left - others, sum(held.values()) - others, 0.0)

    def capped(self, claimants: Sequence[Claimant]) -> tuple[tuple[float, tuple[JobId, ...]], ...]:
        """What is left of each limit of the site, and for whom."""
        part, jobs = {one.job.id for one in claimants}, by_id(self.problem.jobs)
        caps = self.problem.caps
        return tuple((self._left(cap, jobs, part), tuple(sorted(cap.takes))) for cap in caps)

    def rows(self, claimants: Sequence[Claimant], problem: Problem) -> Caps | None:
        """The limits that the claimants could exceed all together; None: there is none."""
        place = {one.job.id: at for at, one in enumerate(claimants)}
        jobs = by_id(self.problem.jobs)
        takes, left = [], []
        for cap in self.problem.caps:
            of_type = [cap.gpu_type in ("", name.partition(",")[0]) for name in problem.columns]
            row = np.zeros(problem.throughput.shape)
            for id_, take in cap.takes.items():
                at = place.get(id_)
                if at is not None:
                    row[at, of_type] = of_shape(take, Shape(1, claimants[at].size))
            room = self._left(cap, jobs, place.keys())
            if row.max(axis=1, initial=0.0).sum() > room:
                takes.append(row)
                left.append(room)
        return Caps(takes=np.array(takes), left=np.array(left)) if takes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The last optimum, and what it was an optimum of."""

    at: Seconds
    free: Mapping[str, int]  # GPUs by node
    sizes: Mapping[JobId, int]
    speeds: Mapping[JobId, Speeds]
    points: Mapping[JobId, int]
    columns: tuple[str, ...]
    shares: Mapping[JobId, Mapping[str, float]]  # of its time, by column; none left out
    isolated: Mapping[JobId, float]  # samples a second on 1/m of the cluster
    dropped: frozenset[JobId] = frozenset()  # whose deadline can't be met
    trouble: str = ""  # why these are equal shares instead
    pairs: Pairs = field(default_factory=dict)  # who could share a GPU
    together: Mapping[tuple[JobId, JobId], float] = field(default_factory=dict)
    """The share of their time that two jobs spend on one GPU; none left out. It is part of the
    shares of each."""
    capped: tuple[tuple[float, tuple[JobId, ...]], ...] = ()
    """The site's limits: what is left of each, and for which jobs."""

    def holds(
        self,
        claimants: Sequence[Claimant],
        free: Mapping[str, int],
        until: Seconds,
        now: Seconds,
        among: Among,
    ) -> bool:
        """Whether it is still the optimum, nearly."""
        pairs = among.pairs
        return (
            now < self.at + until
            and self.capped == among.capped(claimants)
            and self.pairs.keys() == pairs.keys()
            and all(
                abs(mine - theirs) <= CHANGED
                for pair, speeds in pairs.items()
                for mine, theirs in zip(speeds, self.pairs[pair], strict=True)
            )
            and free == self.free
            and len(claimants) == len(self.sizes)
            and all(
                self.sizes.get(one.job.id) == one.size
                and (
                    one.speeds is self.speeds[one.job.id]
                    or one.speeds.near(self.speeds[one.job.id], CHANGED)
                )
                for one in claimants
            )
        )

    @property
    def instead(self) -> str:
        """What to say behind a share that is no optimum."""
        return f" (equal shares: {self.trouble})" if self.trouble else ""

    def confirmed(self, claimants: Sequence[Claimant], outlooks: Mapping[JobId, Outlook]) -> Target:
        """The same, resting on what is known now: speeds that changed too little to matter."""
        points = {one.job.id: outlooks[one.job.id].points for one in claimants}
        return self if points == self.points else replace(self, points=points)

    def knows(
        self, job: JobId, size: int, points: int, free: Mapping[str, int], since: Seconds
    ) -> bool:
        """Whether the job's speeds need not be asked for again."""
        return (
            self.at > since
            and self.sizes.get(job) == size
            and self.points[job] == points
            and self.free == free
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "free": dict(self.free),
            "columns": list(self.columns),
            "trouble": self.trouble,
            "dropped": sorted(self.dropped),
            "capped": [[left, list(jobs)] for left, jobs in self.capped],
            "pairs": [[*pair, *speeds] for pair, speeds in self.pairs.items()],
            "together": [[*pair, share] for pair, share in self.together.items()],
            "jobs": {
                str(id_): [
                    size,
                    self.points[id_],
                    dict(self.speeds[id_].together),
                    dict(self.speeds[id_].spread),
                    dict(self.shares.get(id_, {})),
                    self.isolated.get(id_, 0.0),
                ]
                for id_, size in self.sizes.items()
            },
        }

    @classmethod
    def read(cls, kept: Any) -> Target:
        jobs = {JobId(int(id_)): one for id_, one in kept["jobs"].items()}
        return cls(
            at=kept["at"],
            free=kept["free"],
            sizes={id_: one[0] for id_, one in jobs.items()},
            points={id_: one[1] for id_, one in jobs.items()},
            speeds={id_: Speeds(one[2], one[3]) for id_, one in jobs.items()},
            columns=tuple(kept["columns"]),
            shares={id_: one[4] for id_, one in jobs.items()},
            isolated={id_: one[5] for id_, one in jobs.items()},
            dropped=frozenset(JobId(id_) for id_ in kept["dropped"]),
            trouble=kept["trouble"],
            capped=tuple(
                (float(left), tuple(JobId(job) for job in jobs))
                for left, jobs in kept.get("capped", ())
            ),
            pairs={
                (JobId(one), JobId(other)): (first, second)
                for one, other, first, second in kept.get("pairs", ())
            },
            together={
                (JobId(one), JobId(other)): share for one, other, share in kept.get("together", ())
            },
        )


def aim(
    policy: GavelPolicy,
    claimants: Sequence[Claimant],
    market: Market,
    outlooks: Mapping[JobId, Outlook],
    settings: RoundSettings,
    *,
    now: Seconds,
    isolated: Mapping[JobId, Seconds],
    among: Among,
    rng: np.random.Generator,
) -> Target:
    """The policy's optimum; equal shares, with the trouble named, where it has none."""
    kinds, pairs = market.kinds, among.pairs
    target = Target(
        at=now,
        free=market.free,
        sizes={one.job.id: one.size for one in claimants},
        speeds={one.job.id: one.speeds for one in claimants},
        points={one.job.id: outlooks[one.job.id].points for one in claimants},
        columns=kinds,
        shares={},
        isolated={},
        pairs=pairs,
        capped=among.capped(claimants),
    )
    if not claimants:
        return target
    problem = _problem(policy, claimants, market, outlooks, settings, now=now, isolated=isolated)
    problem = replace(problem, caps=among.rows(claimants, problem))
    if policy.packed:
        problem = replace(problem, pairs=_pairs(problem, claimants, pairs))
    iso = np.einsum("ik,ik->i", problem.throughput, problem.equal_share)
    trouble, dropped = "", frozenset[JobId]()
    together: dict[tuple[JobId, JobId], float] = {}
    try:
        if missing := _without_price(policy, kinds, settings):
            raise BadProblem(f"type {missing[0]}", "prices", "has no price")
        if settings.stretch and policy.name.endswith("SLOs"):
            problem = within_makespan(problem, settings.stretch)
        allocation = policy.allocate(problem, rng=rng)
        shares, together = _with_pairs(allocation.shares, claimants)
        dropped = frozenset(JobId(int(str(name))) for name in allocation.dropped)
    except (BadProblem, Unsolved) as fault:
        trouble, shares = str(fault), problem.equal_share * problem.usable
    return replace(
        target,
        columns=problem.columns,
        shares={
            one.job.id: {
                name: float(share)
                for name, share in zip(problem.columns, row, strict=True)
                if share > NOTHING
            }
            for one, row in zip(claimants, shares.tolist(), strict=True)
        },
        isolated={one.job.id: float(rate) for one, rate in zip(claimants, iso, strict=True)},
        dropped=dropped,
        trouble=trouble,
        together=together,
    )


def _pairs(problem: Problem, claimants: Sequence[Claimant], pairs: Pairs) -> Rows:
    """The pairs as the program has them: how fast each of both is on each type then."""
    row = {one.job.id: at for at, one in enumerate(claimants) if one.size == 1}
    known = [pair for pair in sorted(pairs) if row.keys() >= {*pair}]
    if not known:
        return Rows.none(len(problem.columns))
    first = np.array([row[one] for one, _ in known])
    second = np.array([row[other] for _, other in known])
    speeds = np.array([pairs[pair] for pair in known])
    alone = np.where(problem.usable, problem.throughput, 0.0)
    throughput = np.stack([alone[first], alone[second]], axis=2) * speeds[:, None, :]
    both = (alone[first] > 0) & (alone[second] > 0)
    return Rows(first=first, second=second, throughput=np.where(both[:, :, None], throughput, 0.0))


def _with_pairs(
    shares: Shares, claimants: Sequence[Claimant]
) -> tuple[Floats, dict[tuple[JobId, JobId], float]]:
    """What each job has of its time with a GPU, to itself or not; and what pairs have of theirs."""
    own, together = shares.alone.copy(), {}
    np.add.at(own, shares.first, shares.together)
    np.add.at(own, shares.second, shares.together)
    total = shares.together.sum(axis=1)
    for one, other, share in zip(shares.first, shares.second, total.tolist(), strict=True):
        if share > NOTHING:
            together[pair_of(claimants[one].job.id, claimants[other].job.id)] = share
    return own, together


def _problem(
    policy: GavelPolicy,
    claimants: Sequence[Claimant],
    market: Market,
    outlooks: Mapping[JobId, Outlook],
    settings: RoundSettings,
    *,
    now: Seconds,
    isolated: Mapping[JobId, Seconds],
) -> Problem:
    kinds, gpus = market.kinds, market.by_kind(market.free)
    unit = _unit(policy, claimants, outlooks)
    together = _table(claimants, kinds, spread=False) / unit[:, None]
    steps = np.array([_work(one, outlooks[one.job.id]) for one in claimants]) / unit
    steps = np.clip(np.nan_to_num(steps, nan=MOST_WORK), LEAST_WORK, MOST_WORK)
    age = np.array([max(0.0, now - one.job.submitted) for one in claimants])
    entities, weight = _who_shares(policy, claimants, settings)
    problem = Problem.of(
        together,
        np.array([gpus[kind] for kind in kinds], dtype=np.float64),
        jobs=[one.job.id for one in claimants],
        columns=kinds,
        gang=np.array([one.size for one in claimants], dtype=np.float64),
        weight=weight,
        steps=steps,
        age=age,
        isolated=np.array([isolated.get(one.job.id, 0.0) for one in claimants]),
        deadline=_deadlines(policy, claimants, outlooks, age, settings),
        costs=_costs(policy, kinds, settings),
        entities=entities,
    )
    if _knows_speeds(policy) and any(one.speeds.matters(k) for one in claimants for k in kinds):
        per_kind = [[n for n in market.nodes if n.gpu_type == kind] for kind in kinds]
        problem = with_placements(
            problem,
            _table(claimants, kinds, spread=True) / unit[:, None],
            np.array([len(nodes) for nodes in per_kind]),
            np.array([max(node.gpus - node.taken for node in nodes) for nodes in per_kind]),
        )
    return problem.where_it_runs()


def _knows_speeds(policy: GavelPolicy) -> bool:
    return policy.name.partition("_perf")[1] == "_perf"


def _table(claimants: Sequence[Claimant], kinds: Sequence[str], *, spread: bool) -> Floats:
    rows = [one.speeds.spread if spread else one.speeds.together for one in claimants]
    return np.array([[row.get(kind, 0.0) for kind in kinds] for row in rows], dtype=np.float64)


def _unit(
    policy: GavelPolicy, claimants: Sequence[Claimant], outlooks: Mapping[JobId, Outlook]
) -> Floats:
    """Samples that count as one: a step where throughputs are added up (§4.1), else a sample."""
    if not policy.name.startswith("max_sum"):
        return np.ones(len(claimants))
    return np.array([own_batch(one.job, outlooks[one.job.id]) for one in claimants])


def _work(one: Claimant, outlook: Outlook) -> float:
    """Samples still to do at the job's own batch."""
    if not outlook.segments or one.job.batches is None:
        return outlook.remaining
    kind = next(iter(one.speeds.together))
    batch = np.array([own_batch(one.job, outlook)])
    nodes, gpus = np.array([1]), np.array([one.size])
    left = seconds_left(one.job, outlook, kind, nodes=nodes, gpus=gpus, batch=batch)
    step = outlook.speed.step_seconds(kind, nodes, gpus, batch)
    samples = float(left[0] / step[0] * batch[0])
    return samples if np.isfinite(samples) else outlook.remaining


def _who_shares(
    policy: GavelPolicy, claimants: Sequence[Claimant], settings: RoundSettings
) -> tuple[tuple[Entity, ...], Floats]:
    """Accounts as entities if the policy knows them, else their weights split among their jobs."""
    weight = np.ones(len(claimants))
    if settings.entities == "none":
        return (), weight
    members: dict[str, list[int]] = {}
    for row in sorted(
        range(len(claimants)), key=lambda i: (claimants[i].job.submitted, claimants[i].job.id)
    ):
        members.setdefault(claimants[row].job.account, []).append(row)
    if "water_filling" not in policy.name:
        for account, rows in members.items():
            weight[rows] = settings.weights.get(account, 1.0) / len(rows)
        return (), weight
    if len(members) == 1 and settings.inside == "fairness":
        return (), weight
    return tuple(
        Entity(account, settings.inside, settings.weights.get(account, 1.0), tuple(rows))
        for account, rows in sorted(members.items())
    ), weight


def _deadlines(
    policy: GavelPolicy,
    claimants: Sequence[Claimant],
    outlooks: Mapping[JobId, Outlook],
    age: Floats,
    settings: RoundSettings,
) -> Floats | None:
    """Seconds from now to `slo` times what each job takes on its fastest type; past ones: 1 s."""
    if not policy.name.endswith("SLOs") or not settings.slo:
        return None
    known = [outlooks[one.job.id] for one in claimants]
    total = np.array([one.processed + one.remaining for one in known])
    fastest = np.array([max(one.speeds.together.values()) for one in claimants])
    return np.asarray(np.maximum(settings.slo * total / fastest - age, 1.0))


def _costs(policy: GavelPolicy, kinds: Sequence[str], settings: RoundSettings) -> Floats | None:
    if "by_cost" not in policy.name or _without_price(policy, kinds, settings):
        return None
    return np.array([settings.prices[kind] for kind in kinds])


def _without_price(
    policy: GavelPolicy, kinds: Sequence[str], settings: RoundSettings
) -> Sequence[str]:
    """The types that a policy by cost can't judge."""
    if "by_cost" not in policy.name:
        return ()
    return [kind for kind in kinds if kind not in settings.prices]
