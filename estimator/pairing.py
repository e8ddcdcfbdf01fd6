"""Who may sit with whom on one GPU (Liquid §3.2): a rule over what is predicted of both.

What is not known is not guessed: a job of which nobody can say how much memory it will need, or
how busy it will keep the GPU, gets one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ones.estimator.interference import Alone, Interference
from ones.policies.model import JobId, Pairs
from ones.policies.sharing import pair_of

BETWEEN = ("any", "account", "user")
MOST = 300  # jobs among which pairs are looked for, the first ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator allows."""

    most_busy: float = 1.0  # of a GPU's time, both jobs' shares added up
    spare_memory: float = 0.1  # of the card that both jobs together leave free
    least_speed: float = 0.6  # of each, relative to its speed alone
    between: str = "any"  # whose jobs may meet: anybody's, or of one account, or of one user

    def __post_init__(self) -> None:
        if self.between not in BETWEEN:
            raise ValueError(f"between is '{self.between}', none of: {', '.join(BETWEEN)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A job that could share a GPU, with what is predicted of it."""

    job: JobId
    user: str
    account: str
    alone: Alone  # its load among it
    memory: float | None  # of the GPU in MiB, what it needs at most
    nodes: frozenset[str]  # where it may share

    @property
    def unknown(self) -> str:
        """What would have to be known of it; empty: nothing."""
        if self.memory is None:
            return "how much GPU memory it needs"
        return "how busy it keeps a GPU" if self.alone.busy is None else ""


def against(one: Sharer, other: Sharer, cards: Mapping[str, float], rules: Rules) -> str:
    """What speaks against the two on one GPU, whatever their speeds; empty: nothing.

    `cards` is the memory of a GPU of each node in MiB.
    """
    for job in (one, other):
        if job.unknown:
            return f"nobody knows {job.unknown} (job {job.job})"
    if rules.between == "user" and one.user != other.user:
        return "they are of different users"
    if rules.between == "account" and one.account != other.account:
        return "they are of different accounts"
    common = [cards[node] for node in one.nodes & other.nodes if node in cards]
    if not common:
        return "no node has GPUs that both could share"
    memory = (one.memory or 0.0) + (other.memory or 0.0)
    room = (1.0 - rules.spare_memory) * min(common)
    if memory > room:
        return f"they need {memory:.0f} MiB of {room:.0f} MiB"
    busy = (one.alone.busy or 0.0) + (other.alone.busy or 0.0)
    if busy > rules.most_busy + 1e-9:
        return f"they would keep it busy for {busy:.0%} of its time"
    return ""


def pairs_of(
    sharers: Sequence[Sharer],
    cards: Mapping[str, float],
    model: Interference,
    rules: Rules,
    *,
    parted: Collection[tuple[str, str]] = (),
) -> Pairs:
    """All pairs that may share, with their expected speeds.

    `parted` are models, by name and in order, that were tried together and did not get along.
    """
    able = [
        (one, other)
        for one, other in combinations(sharers[:MOST], 2)
        if named(one.alone.model, other.alone.model) not in parted
        and not against(one, other, cards, rules)
    ]
    kinds = list(dict.fromkeys((one.alone, other.alone) for one, other in able))
    expected = dict(zip(kinds, model.predict(kinds), strict=True)) if kinds else {}
    found: dict[tuple[JobId, JobId], tuple[float, float]] = {}
    for one, other in able:
        first, second = (min(1.0, speed) for speed in expected[one.alone, other.alone].speeds)
        if min(first, second) < rules.least_speed or first + second <= 1.0:
            continue
        pair = pair_of(one.job, other.job)
        found[pair] = (first, second) if pair[0] == one.job else (second, first)
    return found


def named(one: str, other: str) -> tuple[str, str]:
    """Two models, whichever comes first."""
    return (one, other) if one <= other else (other, one)
