"""The order in which jobs are served: who is furthest behind its share, on which GPU type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from ones.policies.gavel.rounds_choice import Bid
from ones.policies.gavel.rounds_ledger import Ledger
from ones.policies.gavel.rounds_market import Claimant, kind_of
from ones.policies.gavel.rounds_target import Target
from ones.policies.model import JobId, Outlook, Seconds

OVERDUE, SHARES, REST = range(3)  # who comes before whom in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By what bids are ranked."""

    holds: Mapping[JobId, Seconds]  # a running job counts as so much further behind than it is
    newcomer: Seconds  # as far behind as a job that has had nothing yet counts
    step: Seconds  # a round; who are behind by the same number of rounds come by size
    max_wait: Seconds
    strict: bool  # nobody runs who has no share, even where GPUs idle
    entities: bool  # accounts are held to their shares as well

    @classmethod
    def of(
        cls,
        claimants: Sequence[Claimant],
        outlooks: Mapping[JobId, Outlook],
        *,
        every: Seconds,
        hold: float,
        max_wait: Seconds,
        strict: bool,
        entities: bool,
    ) -> Rules:
        """`hold` is how many restart costs a running job is favoured by."""
        holds = {one.job.id: hold * outlooks[one.job.id].restart_cost for one in claimants}
        step = every or 1.0
        return cls(
            holds=holds,
            newcomer=max(holds.values(), default=0.0) + step,
            step=step,
            max_wait=max_wait,
            strict=strict,
            entities=entities,
        )


def bids(claimants: Sequence[Claimant], target: Target, ledger: Ledger, rules: Rules) -> list[Bid]:
    """Every movable claimant's bid on each column that it may get."""
    lack = lack_of_accounts(claimants, ledger) if rules.entities else {}
    found = []
    for one in claimants:
        if not one.movable:
            continue
        shares = target.shares.get(one.job.id, {})
        for column in target.columns:
            kind, share, leased = kind_of(column), shares.get(column, 0.0), one.column == column
            if kind not in one.speeds.together:
                continue
            # Who has no share gets what is left; not spread, and not where nobody may overtake.
            if share > 0 or leased or not (rules.strict or column != kind):
                more = lack.get(one.job.account, 0.0)
                rank = _rank(one, column, share, ledger, rules, lack=more)
                found.append(Bid(one, column, kind, rank, share, owed=rank[1] <= 1))
    return found


def lack_of_accounts(claimants: Sequence[Claimant], ledger: Ledger) -> Mapping[str, Seconds]:
    """How far an account's jobs are behind on average, so that their small lacks don't add up."""
    lack: dict[str, float] = {}
    gpus: dict[str, int] = {}
    for one in claimants:
        standing, name = ledger.of[one.job.id], one.job.account
        behind = sum(standing.behind(column) for column in standing.owed)
        lack[name] = lack.get(name, 0.0) + one.size * behind
        gpus[name] = gpus.get(name, 0) + one.size
    return {name: lack[name] / gpus[name] for name in lack}


def _rank(
    one: Claimant, column: str, share: float, ledger: Ledger, rules: Rules, *, lack: Seconds
) -> tuple[float, ...]:
    """The lowest comes first."""
    job, standing, leased = one.job, ledger.of[one.job.id], one.column == column
    hold = rules.holds[job.id] if leased else 0.0
    group, score, size = SHARES, standing.behind(column) + lack + hold, one.size
    if job.waited > rules.max_wait:
        group, score, size = OVERDUE, 0.0, 0
    elif share > 0:
        if standing.new and score < rules.newcomer:
            score, size = rules.newcomer, 0
    elif leased and not rules.strict:
        score = hold - rules.step
    else:
        group, score, size = REST, 0.0, 0
    return (
        group,
        -floor(score / rules.step + 1e-9),
        -size,
        -score,
        not leased,
        -share,
        -one.speeds.at(column) / max(one.speeds.together.values()),
        job.submitted,
        job.id,
    )
