"""What a soak kills: each kind often enough, in an order drawn by chance."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from test_live import Live

AGENT = "/opt/ones/bin/ones-agent"
ENDS_JOB = frozenset({"ones-run", "srun"})
"""Kills that end the job, as its script does."""
CARDS = {
    "onesd": 3,
    "agent": 2,
    "satellite's ones-run": 3,
    "satellite's job": 2,
    "worker": 3,
    "workers of one launcher": 2,
    "all workers": 1,
    "ones-run": 2,
    "srun": 1,
}
NEEDS_SATELLITE = frozenset({"satellite's ones-run", "satellite's job"})

Card = TypeVar("Card")


class Deck(Generic[Card]):
    """Deals all its cards in random order, and then all of them again."""

    def __init__(self, cards: Sequence[Card], chance: random.Random) -> None:
        self._cards = tuple(cards)
        self._chance = chance
        self._left: list[Card] = []

    def deal(self, *, but: frozenset[Card] = frozenset()) -> Card:
        """The next card, but for those that can't be played now; they come later."""
        if not any(card not in but for card in self._left):
            self._left += self._chance.sample(self._cards, len(self._cards))
        place = next(place for place, card in enumerate(self._left) if card not in but)
        return self._left.pop(place)


class Faults:
    """Kills parts of a live job, and of ONES."""

    def __init__(self, live: Live, chance: random.Random) -> None:
        self._live = live
        self._chance = chance
        cards = [kind for kind, times in CARDS.items() for _ in range(times)]
        self._deck = Deck(cards, chance)
        self.done: Counter[str] = Counter()
        self.total_losses = 0
        """How often all workers of a job were killed, so that a checkpoint had to be read."""
        self.losses = 0
        """How often any were."""

    def strike(self, job: int, host: str, satellites: dict[int, str]) -> str:
        """Kill something of a job on `host`, with satellites on these nodes; what it was."""
        status = self._live.status(job)
        python = f"{self._live.environment.removeprefix('/')}/bin/python"
        impossible = frozenset() if satellites else NEEDS_SATELLITE
        if status is None:
            impossible |= {"worker", "workers of one launcher", "all workers"}
        kind = self._deck.deal(but=impossible)
        self.done[kind] += 1
        self.losses += kind not in ("onesd", "agent")
        match kind:
            case "onesd":
                self._live.steering.kill()
                self._live.steering.start_steered(policy="asked", ready=False)
            case "agent":
                self._agent(self._chance.choice(["n1", "n2"]))
            case "satellite's ones-run":
                node = self._chance.choice(sorted(satellites.values()))
                self._kill(node, "[r]untime.launcher --join")
            case "satellite's job":
                victim = self._chance.choice(sorted(satellites))
                self._live.cluster.run("ctl", f"scancel {victim}", check=False)
            case "ones-run":
                self._kill(host, f"[/]{python}[^ ]* [^ ]*ones-run --live")
            case "srun":
                self._kill(host, "^srun .*ones-run --live")
            case _:
                assert status is not None, "it was asked for above"
                self._workers(kind, status, host, satellites)
        return kind

    def _workers(
        self, kind: str, status: dict[str, Any], host: str, satellites: dict[int, str]
    ) -> None:
        members = [member for member in status["members"] if member["pid"]]
        victims = members
        if kind != "all workers":
            one = self._chance.choice(members)
            victims = [one]
            if kind == "workers of one launcher":
                victims = [each for each in members if each["home"] == one["home"]]
        if len(victims) == len(members):
            self.total_losses += 1
        places: dict[str, list[str]] = {}
        for each in victims:
            launcher, _, own = str(each["home"]).partition(".")
            node = own or (satellites.get(int(launcher)) if launcher else host)
            if node:
                places.setdefault(node, []).append(str(each["pid"]))
        with ThreadPoolExecutor() as together:
            for node, pids in places.items():
                command = f"kill -KILL {' '.join(pids)}"
                together.submit(self._live.cluster.run, node, command, check=False)

    def _agent(self, node: str) -> None:
        self._live.cluster.run(node, "pkill -KILL -f '[b]in/ones-agent'", check=False)
        again = ["docker", "exec", "--detach", f"{self._live.cluster.name}-{node}", AGENT]
        subprocess.run(again, check=True)

    def _kill(self, node: str, pattern: str) -> None:
        """The oldest of alice's processes whose command line has the pattern."""
        self._live.cluster.run(node, f"pkill -KILL -u alice -o -f '{pattern}'", check=False)
