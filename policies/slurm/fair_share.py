"""Fair share as Slurm's Fair Tree ranks it, from usage that halves with time.

Below each account its users and accounts are sorted by level fair share, LF = S / U: S an
association's part of its siblings' shares, U its part of their usage. Walked in that order, the
tree gives the users their ranks; the fair-share factor is the rank as a part of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ones.policies.model import Seconds
from ones.policies.slurm.settings import ROOT, Association

Member = tuple[str, str]  # account and user


@dataclass(frozen=True, slots=True)
class Knot:
    """An account with all below it, or a user in one (then nothing is below)."""

    member: Member
    share: float  # of its siblings' shares
    below: tuple[Knot, ...] = ()

    @property
    def is_user(self) -> bool:
        return bool(self.member[1])


def decay(half_life: Seconds, seconds: Seconds) -> float:
    """What is left of usage after so long, in Slurm's own approximation; 1 without half-life."""
    if half_life <= 0:
        return 1.0
    return float(max(0.0, 1.0 - 0.693 / half_life) ** seconds)


def tree(associations: Iterable[Association], people: Iterable[Member]) -> tuple[Knot, ...]:
    """What is directly below the root, with `people` of whom the site has said nothing."""
    shares: dict[Member, int] = {}
    parents: dict[str, str] = {}
    for one in associations:
        shares[one.account, one.user] = one.shares
        if not one.user and one.account != ROOT:
            parents[one.account] = one.parent
    for account, user in people:
        shares.setdefault((account, user), 1)
    for account in [account for account, _ in shares] + list(parents.values()):
        if account != ROOT:
            shares.setdefault((account, ""), 1)
            parents.setdefault(account, ROOT)
    below: dict[str, list[Member]] = {}
    for account, user in shares:
        if user or account != ROOT:
            below.setdefault(account if user else parents[account], []).append((account, user))

    def knots(account: str) -> tuple[Knot, ...]:
        siblings = sorted(below.get(account, ()))
        total = sum(shares[member] for member in siblings)
        return tuple(
            Knot(member, shares[member] / total if total else 0.0, _under(member))
            for member in siblings
        )

    def _under(member: Member) -> tuple[Knot, ...]:
        return () if member[1] else knots(member[0])

    return knots(ROOT)


def factors(top: Sequence[Knot], usage: Mapping[Member, float]) -> dict[Member, float]:
    """Each user's fair-share factor, 1 for the one who is owed most."""
    used: dict[Member, float] = {}
    for knot in top:
        _add_up(knot, usage, used)
    users = sum(1 for member in used if member[1])
    found: dict[Member, float] = {}
    ranks = _Ranks(users, users, users, found)
    ranks.walk([(knot, _level(knot, top, used)) for knot in top], used, tied=False)
    return found


def _add_up(knot: Knot, usage: Mapping[Member, float], used: dict[Member, float]) -> float:
    own = usage.get(knot.member, 0.0) if knot.is_user else 0.0
    used[knot.member] = own + sum(_add_up(each, usage, used) for each in knot.below)
    return used[knot.member]


def _level(knot: Knot, siblings: Sequence[Knot], used: Mapping[Member, float]) -> float:
    """LF, infinite for who has used nothing, 0 for who has no shares."""
    if knot.share == 0:
        return 0.0
    total = sum(used[each.member] for each in siblings)
    part = used[knot.member] / total if total else 0.0
    return knot.share / part if part else inf


@dataclass(slots=True)
class _Ranks:
    """Ranks are given from the highest down; equals have the rank of the first of them."""

    users: int
    rank: int
    untied: int  # what the rank would be without ties
    found: dict[Member, float]

    def walk(
        self,
        siblings: Sequence[tuple[Knot, float]],
        used: Mapping[Member, float],
        *,
        tied: bool,
    ) -> None:
        """Sibling accounts with equal LF have their children ranked as one family."""
        ordered = sorted(siblings, key=lambda each: (-each[1], not each[0].is_user))
        before: float | None = None
        at = 0
        while at < len(ordered):
            knot, level = ordered[at]
            equal = tied if at == 0 and tied else before == level
            at += 1
            if knot.is_user:
                if not equal:
                    self.rank = self.untied
                self.found[knot.member] = self.rank / self.users
                self.untied -= 1
            else:
                family = [(each, _level(each, knot.below, used)) for each in knot.below]
                while at < len(ordered) and ordered[at][1] == level:
                    other = ordered[at][0].below
                    family += [(each, _level(each, other, used)) for each in other]
                    at += 1
                self.walk(family, used, tied=equal)
            before = level
