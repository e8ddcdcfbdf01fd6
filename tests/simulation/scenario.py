"""What one seed stands for: a cluster, its jobs, a policy, and which things go wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

FAULTS = (
    "refused",  # a command is refused, in Slurm's words
    "lost",  # it is done, but its answer is lost
    "late",  # nobody answers in time, and it strikes later
    "twice",  # it is done twice
    "hang",  # nobody answers in time, and nothing is done
    "stale",  # a snapshot says what was
    "empty",  # a snapshot lacks jobs, or nodes
    "slurmctld",  # is down for a while
    "kill",  # SIGKILL of onesd between any two statements that touch the world
    "database",  # disk full, locked
    "forget",  # the database is lost while onesd is down
    "clock",  # jumps, back and forth
    "nodes",  # fail, drain, return
    "agents",  # fall silent
    "reports",  # late, twice, absurd
    "deaf",  # jobs that answer no signal, or end when they are asked
    "people",  # users and administrators cancel, hold, requeue, update, suspend
    "limits",  # an operator changes those of the QOS, the account or the partition
    "reservations",  # of nodes, now or later, for some users, and of jobs in them
    "operators",  # pause, resume, another policy
    "second",  # another onesd on the same database, as if the lock were lost
    "standby",  # onesd is stopped in its work, another takes over, and it wakes up; handovers
    "backup",  # slurmctld is killed, and comes back with what it had saved seconds before
    "batches",  # no fault: a step has a fixed part, so that larger batches pay, and jobs take them
)
LATER = ("standby", "backup")  # drawn last: seeds without them mean the stories that they meant
POLICIES = (
    "fifo",
    "srtf",
    "ones",
    "ones-sc21",
    "tiresias",
    "liquid",
    "pollux",
    "sia",
    "gavel:max_min_fairness_perf",
    "gavel:finish_time_fairness_perf",
    "gavel:min_total_duration_perf",
    "gavel:max_min_fairness_water_filling_perf",
    "gavel:fifo_perf",
)
SLOW = {"pollux": 0.05, "sia": 0.3, "ones-sc21": 0.4}  # drawn so much more rarely
_WORDS = re.compile(
    r"seed (\d+): (\S+), (\d+) nodes, (\d+) jobs(?: without jobs ([\d,]+))?, (\d+) rounds,"
    r" faults (\S+)"
)
QUICK = ("fifo", "srtf", "tiresias", "liquid", "gavel:fifo_perf")  # decide in about a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A story that can be told again, word for word."""

    seed: int
    policy: str
    faults: frozenset[str]
    jobs: int = 20
    without: frozenset[int] = frozenset()  # jobs, by their place, that don't come
    rounds: int = 600  # with faults; then comes the rest without
    nodes: int = 4

    @classmethod
    def of(
        cls,
        seed: int,
        *,
        policies: tuple[str, ...] = POLICIES,
        faults: frozenset[str] = frozenset(FAULTS),
    ) -> Scenario:
        """The scenario of a seed: a policy, and a subset of the faults."""
        rng = Random(f"{seed}/scenario")
        chosen = {each for each in sorted(faults - {*LATER}) if rng.random() < 0.35}
        drawn = cls(
            seed=seed,
            policy=rng.choices(policies, [SLOW.get(each, 1.0) for each in policies])[0],
            faults=frozenset(),
            jobs=rng.choice((4, 8, 12, 20, 20, 20)),
            rounds=rng.choice((120, 240, 400)),
            nodes=rng.choice((2, 4, 4, 6)),
        )
        chosen |= {each for each in LATER if each in faults and rng.random() < 0.35}
        return replace(drawn, faults=frozenset(chosen))

    @classmethod
    def read(cls, words: str) -> Scenario:
        """The scenario of such `words`. Raises ValueError."""
        found = _WORDS.fullmatch(words)
        if found is None:
            raise ValueError(f"not a scenario as scripts/simulate tells it: {words}")
        seed, policy, nodes, jobs, without, rounds, faults = found.groups()
        return cls(
            seed=int(seed),
            policy=policy,
            faults=frozenset(faults.split(",")) - {"none"},
            jobs=int(jobs),
            without=frozenset(map(int, without.split(","))) if without else frozenset(),
            rounds=int(rounds),
            nodes=int(nodes),
        )

    def rng(self, of: str) -> Random:
        """A generator of its own for everything, so that one fault less moves no other."""
        return Random(f"{self.seed}/{of}")

    def less(self, fault: str) -> Scenario:
        """The same without this fault."""
        return replace(self, faults=self.faults - {fault})

    @property
    def words(self) -> str:
        """For people, and for `read`."""
        faults = ",".join(sorted(self.faults)) or "none"
        gone = f" without jobs {','.join(map(str, sorted(self.without)))}" if self.without else ""
        return (
            f"seed {self.seed}: {self.policy}, {self.nodes} nodes, {self.jobs} jobs{gone},"
            f" {self.rounds} rounds, faults {faults}"
        )
