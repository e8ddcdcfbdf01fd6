"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from ones.policies.fifo import Fifo
from ones.policies.model import MAX_WAIT, Policy, Seconds
from ones.policies.ones import Ones
from ones.policies.ones_settings import Settings
from ones.policies.srtf import Srtf

_POLICIES: dict[str, Callable[[Seconds], Policy]] = {
    "fifo": lambda _: Fifo(),
    "ones": lambda max_wait: Ones(Settings(max_wait=max_wait)),
    "srtf": Srtf,
}


def names() -> tuple[str, ...]:
    return tuple(sorted(_POLICIES))


def make(name: str, *, max_wait: Seconds = MAX_WAIT) -> Policy:
    """The policy of that name; preemptive ones put first who waited longer than `max_wait`.

    Raises ValueError that lists the known ones.
    """
    try:
        return _POLICIES[name](max_wait)
    except KeyError:
        raise ValueError(f"no policy '{name}'; choose one of: {', '.join(names())}") from None
