"""The order in which jobs are served: who is furthest behind its share, on which GPU type."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    turn: Seconds  # what a job that is started has at least, before others are as far behind
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
            turn=max(holds.values(), default=0.0) + step,
            step=step,
            max_wait=max_wait,
            strict=strict,
            entities=entities,
        )


def bids(
    claimants: Sequence[Claimant],
    target: Target,
    ledger: Ledger,
    rules: Rules,
    free: Mapping[str, int],
) -> list[Bid]:
    """Every movable claimant's bid on each column that it may get; `free` is GPUs by type."""
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
                rank = _rank(one, column, share, ledger, rules)
                found.append(Bid(one, column, kind, rank, share, owed=rank[1] <= 1))
    if not rules.entities or len({bid.one.job.account for bid in found}) < 2:
        return found
    claims = _claims(claimants, target, ledger, rules, free)
    return _by_accounts(found, claims, ledger, rules, free)


def _claims(
    claimants: Sequence[Claimant],
    target: Target,
    ledger: Ledger,
    rules: Rules,
    free: Mapping[str, int],
) -> dict[str, float]:
    """What each account's jobs are to get in the coming turn, in GPU-seconds.

    That is what they lack together, and their part of all GPUs, less what they hold in any case.
    """
    due: dict[str, float] = defaultdict(float)
    has: dict[str, float] = defaultdict(float)
    held = 0
    for one in claimants:
        account, standing = one.job.account, ledger.of[one.job.id]
        due[account] += one.size * sum(target.shares.get(one.job.id, {}).values())
        has[account] -= one.size * sum(standing.behind(column) for column in standing.owed)
        if not one.movable and one.column is not None:
            has[account] += one.size * rules.turn
            held += one.size
    each = rules.turn * (sum(free.values()) + held) / max(sum(due.values()), 1e-9)
    return {name: each * due[name] - has[name] for name in has}


def _by_accounts(
    bids: Sequence[Bid],
    claims: dict[str, float],
    ledger: Ledger,
    rules: Rules,
    free: Mapping[str, int],
) -> list[Bid]:
    """All bids in one order, those of an account in their own.

    Next is the job whose account's claim has most left after the jobs before it. By each job's own
    standing alone, all jobs of an account that is hardly further behind would come first.
    """
    most = max(claims.values())  # newcomers run whatever their account has
    queues: dict[str, list[Bid]] = defaultdict(list)
    for bid in sorted(bids, key=lambda bid: bid.rank, reverse=True):
        queues[bid.one.job.account].append(bid)

    def head(account: str) -> tuple[tuple[float, ...], str]:
        bid = queues[account][-1]
        claim = claims[account] - bid.one.size * rules.turn / 2  # in the middle of its turn
        rank = _rank(bid.one, bid.column, bid.share, ledger, rules, claim=claim, most=most)
        return rank, account

    heads = [head(account) for account in queues]
    heapq.heapify(heads)
    left, served, order = dict(free), set[JobId](), list[Bid]()
    while heads:
        _, account = heapq.heappop(heads)
        bid = queues[account].pop()
        one = bid.one
        if one.job.id not in served and left[bid.kind] >= one.size:
            served.add(one.job.id)
            left[bid.kind] -= one.size
            claims[account] -= one.size * rules.turn
        order.append(replace(bid, rank=(len(order),)))
        if queues[account]:
            heapq.heappush(heads, head(account))
    return order


def _rank(
    one: Claimant,
    column: str,
    share: float,
    ledger: Ledger,
    rules: Rules,
    *,
    claim: float = 0.0,
    most: float = 0.0,
) -> tuple[float, ...]:
    """The lowest comes first. `claim` is its account's in GPU-seconds, `most` the largest claim."""
    job, standing, leased = one.job, ledger.of[one.job.id], one.column == column
    hold = rules.holds[job.id] if leased else 0.0
    group, score, size = SHARES, standing.behind(column) + claim + hold, one.size
    if job.waited > rules.max_wait:
        group, score, size = OVERDUE, 0.0, 0
    elif share > 0:
        if standing.new and score < most + rules.turn:
            score, size = most + rules.turn, 0
    elif leased and not rules.strict:
        score = hold - rules.step
    else:
        group, score, size = REST, 0.0, 0
    return (
        group,
        -floor(score / rules.step + 1e-9),
        -size,
        -score,
        -claim,
        not leased,
        -share,
        -one.speeds.at(column) / max(one.speeds.together.values()),
        job.submitted,
        job.id,
    )
