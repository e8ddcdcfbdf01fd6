"""Gavel's rounds: GPUs go to those who are furthest behind the shares of a policy (OSDI20 §5).

A Gavel policy says which share of its time each job should spend on each GPU type. Each round the
jobs run that lack most of what they should have had. What one has had outlives restarts, newcomers
run in their first round, and who runs goes on until somebody is materially further behind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.forecast import type_of
from ones.policies.gavel.policies import GavelPolicy
from ones.policies.gavel.rounds_bids import Rules, bids
from ones.policies.gavel.rounds_choice import Bid, Choice, Ground, choose
from ones.policies.gavel.rounds_ledger import MOST_OWED, Ledger
from ones.policies.gavel.rounds_market import Claimant, Market, claimed_size, column_of
from ones.policies.gavel.rounds_settings import RoundSettings
from ones.policies.gavel.rounds_target import Among, Target, aim
from ones.policies.model import Plan, Problem, Seconds
from ones.policies.peers import Draft
from ones.policies.sharing import fill, keep_pairs, pair_of, pair_up
from ones.policies.sizes import in_gpus
from ones.policies.words import lasting

KEPT: Seconds = 3600.0  # for which nodes are kept for a job, and then for as long are not
STRICT = ("fifo", "fifo_perf")  # nobody overtakes, even where GPUs idle


@dataclass(frozen=True, slots=True)
class GavelRounds:
    """One of Gavel's policies as a scheduler; jobs run at the size they ask for."""

    policy: GavelPolicy
    settings: RoundSettings
    name: str

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft, market, ledger = Draft.of(problem), Market.of(problem), Ledger.read(memory)
        claimants = _claimants(problem, draft, market, ledger.target, self.settings.refresh)
        passed = ledger.advance(problem.now)
        rules = Rules.of(
            claimants,
            problem.outlooks,
            every=ledger.every,
            hold=self.settings.hold,
            max_wait=self.settings.max_wait,
            strict=self.policy.name in STRICT,
            entities=self.settings.entities == "account",
        )
        ledger.keep(problem, claimants, passed, most=MOST_OWED + rules.turn)
        target = self._target(problem, claimants, market, ledger, rng)
        ledger.target = target
        claimants = [_at(problem, one, target) for one in claimants]
        ground = Ground(
            market=market,
            room=draft.room,
            held=[job.placement for job in draft.stays if job.placement is not None],
            kept={id_: nodes for id_, (_, nodes) in ledger.kept.items()},
            lapsed=[
                id_ for id_, (since, _) in ledger.kept.items() if (problem.now - since) // KEPT % 2
            ],
        )
        order = bids(claimants, target, ledger, rules, market.by_kind(draft.room.free))
        choice = choose(order, ground)
        self._draw_up(draft, claimants, choice, target, ledger)
        plan = draft.plan()
        if self.plans_pairs:
            kept = {name for nodes in choice.kept.values() for name in nodes}
            plan = self._share(problem, plan, order, target, kept)
        begun = {id_: since for id_, (since, _) in ledger.kept.items()}
        ledger.kept = {
            **{id_: ledger.kept[id_] for id_ in ground.lapsed if id_ not in choice.placed},
            **{id_: (begun.get(id_, problem.now), nodes) for id_, nodes in choice.kept.items()},
        }
        return plan, ledger.as_json()

    @property
    def turns(self) -> bool:
        return self.policy.name not in STRICT

    @property
    def shares(self) -> bool:
        return self.policy.packed

    @property
    def plans_pairs(self) -> bool:
        return self.policy.packed

    def _share(
        self,
        problem: Problem,
        plan: Plan,
        order: Sequence[Bid],
        target: Target,
        kept: Collection[str],
    ) -> Plan:
        """Pairs that share a GPU now and may go on do, and what that leaves free is given out;
        then who got nothing joins somebody with whom the optimum has it share."""
        in_turn = [bid.one.job.id for bid in sorted(order, key=lambda bid: bid.rank)]
        plan = keep_pairs(problem, plan)
        plan = fill(problem, plan, in_turn, kept=kept)
        return pair_up(
            problem,
            plan,
            list(dict.fromkeys(in_turn)),
            allows=lambda one, other: pair_of(one, other) in target.together,
        )

    def _target(
        self,
        problem: Problem,
        claimants: Sequence[Claimant],
        market: Market,
        ledger: Ledger,
        rng: np.random.Generator,
    ) -> Target:
        """The last optimum as long as it is one, else a new one."""
        old = ledger.target
        among = Among(pairs=problem.pairs if self.policy.packed else {}, problem=problem)
        if old and old.holds(claimants, market.free, self.settings.refresh, problem.now, among):
            return old.confirmed(claimants, problem.outlooks)
        return aim(
            self.policy,
            claimants,
            market,
            problem.outlooks,
            self.settings,
            now=problem.now,
            isolated={id_: standing.isolated for id_, standing in ledger.of.items()},
            among=among,
            rng=rng,
        )

    def _draw_up(
        self,
        draft: Draft,
        claimants: Sequence[Claimant],
        choice: Choice,
        target: Target,
        ledger: Ledger,
    ) -> None:
        """The choice as a plan, with a reason for everybody."""
        for one in claimants:
            job = one.job
            if not one.movable:
                continue
            if job.id in choice.placed:
                placement, bid = choice.placed[job.id]
                batch = job.batch if placement == job.placement else None
                why = self._why(one, bid.column, target, ledger)
                draft.give(job, placement, why, batch=batch)
            elif job.id in choice.kept:
                nodes = ", ".join(choice.kept[job.id])
                draft.idle[job.id] = f"{nodes}: kept for its {in_gpus(one.size)} as they get free"
            else:
                draft.idle[job.id] = _in_its_way(one, choice) or self._why_not(one, target, ledger)
        taking_part = {one.job.id for one in claimants}
        for job in draft.open:
            if job.id in taking_part:
                continue
            reason = f"no GPU type has the {in_gpus(job.requested)} that it asks for"
            if job.placement is not None and draft.room.fits(job.placement):
                draft.give(job, job.placement, f"goes on; {reason}", batch=job.batch)
            else:
                draft.idle[job.id] = reason

    def _why(self, one: Claimant, column: str, target: Target, ledger: Ledger) -> str:
        standing, where = ledger.of[one.job.id], column or "GPUs"
        share = target.shares.get(one.job.id, {}).get(column, 0.0)
        if one.job.waited > self.settings.max_wait:
            return f"has waited {lasting(one.job.waited)} in all"
        if share <= 0:
            return f"nobody else uses these {where}"
        due = f"{share:.0%} of its time on {where}{target.instead}"
        if standing.new:
            return f"newcomer, {due}"
        behind = standing.behind(column)
        return f"{due}, {lasting(abs(behind))} {'behind' if behind > 0 else 'ahead'}"

    def _why_not(self, one: Claimant, target: Target, ledger: Ledger) -> str:
        shares = target.shares.get(one.job.id, {})
        if one.job.id in target.dropped:
            return "its deadline can't be met beside the others'"
        if not shares:
            return f"{self.policy.name} gives it nothing now"
        column = max(shares, key=ledger.of[one.job.id].behind)
        return f"others are further behind: {self._why(one, column, target, ledger)}"


def _in_its_way(one: Claimant, choice: Choice) -> str:
    """For whom nodes are kept that the job could use; empty: for nobody."""
    for other, nodes in choice.kept.items():
        if not one.job.nodes.isdisjoint(nodes):
            return f"{', '.join(nodes)}: kept for job {other}, which is further behind"
    return ""


def _claimants(
    problem: Problem, draft: Draft, market: Market, target: Target | None, refresh: Seconds
) -> list[Claimant]:
    """The jobs that take part; who can't be moved does as well, if its nodes are usable."""
    found = []
    for movable, jobs in ((True, draft.open), (False, draft.stays)):
        for job in jobs:
            held, size = job.placement, claimed_size(job, market)
            if size is None or (not movable and held and not market.free.keys() >= {*held.nodes}):
                continue
            outlook = problem.outlooks[job.id]
            if target is not None and target.knows(
                job.id, size, outlook.points, market.free, problem.now - refresh
            ):
                speeds = target.speeds[job.id]
            else:
                speeds = market.speeds(job, size, outlook)
            one = Claimant(job, size, speeds, market.forms(job, size), movable=movable)
            found.append(_at(problem, one, target))
    return found


def _at(problem: Problem, one: Claimant, target: Target | None) -> Claimant:
    """With the column that it runs on, as far as the target tells columns apart."""
    held = one.job.placement
    if held is None:
        return one
    kind = type_of(held, problem.by_name)
    column = column_of(kind, one.forms, nodes=len(held.gpus_on))
    return replace(one, column=column if target and column in target.columns else kind)
