"""Which policy decides: the configuration's, or the one that an operator chose over it.

The operator's choice is kept in the database, so that it outlives a restart of onesd.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ones.daemon.config import Config
from ones.daemon.onesd.books.store import Store
from ones.daemon.site import make_policy, with_policy
from ones.policies.model import Policy, TakesTurns
from ones.policies.registry import information, settings_of

log = logging.getLogger(__name__)
FACT = "policy"


class PolicyInForce:
    """The policy in force, and where it comes from."""

    def __init__(self, configured: Config, store: Store) -> None:
        self.configured = configured
        self._store = store
        self.chosen: dict[str, Any] | None = None  # name, by and at, where an operator chose
        said = store.fact(FACT)
        self.config = configured
        if isinstance(said, dict):
            try:
                self.config, self.chosen = with_policy(configured, str(said["name"])), said
            except ValueError as fault:
                log.error(
                    "the policy that %s chose can't be used any more: %s; going by the"
                    " configuration; onesctl policy set",
                    said.get("by"),
                    fault,
                )
        self.policy: Policy = make_policy(self.config)

    def make(self, by: str, name: str | None, *, now: float) -> Config:
        """The configuration with that policy, or with its own again for None; remembered.

        Raises ValueError, and changes nothing, where the policy can't be used here.
        """
        config = self.configured if name is None else with_policy(self.configured, name)
        policy = make_policy(config)
        chosen = None if name is None else {"name": name, "by": by, "at": now}
        self._store.set_fact(FACT, chosen)
        self.config, self.policy, self.chosen = config, policy, chosen
        return config

    @property
    def takes_turns(self) -> bool:
        """Whether a round is a turn to the policy, which no event brings forward."""
        return isinstance(self.policy, TakesTurns) and self.policy.turns

    def memory(self) -> Any:
        """What the policy keeps from one round to the next, or None."""
        return self._store.fact(f"memory:{self.policy.name}")

    def remember(self, memory: object) -> None:
        """Keep it for the next round; it outlives a restart of onesd."""
        self._store.set_fact(f"memory:{self.policy.name}", memory)

    def view(self) -> Mapping[str, Any]:
        """For onesctl."""
        return {
            "policy": self.config.policy,
            "information": information(self.config.policy),
            "settings": {
                name: dict(value) if isinstance(value, Mapping) else value
                for name, value in settings_of(self.policy).items()
            },
            "source": "operator" if self.chosen else "configuration",
            "by": self.chosen["by"] if self.chosen else None,
            "at": self.chosen["at"] if self.chosen else None,
            "configured": self.configured.policy,
        }
