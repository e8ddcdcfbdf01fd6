"""What Slurm's reason for not starting a job says to whoever chose its nodes and its size."""

from __future__ import annotations

import re
from typing import Literal

About = Literal["", "nodes", "size", "job"]
Whose = Literal["user", "account", "qos", "array", "anybody"]

# With these a job may start any moment: it is next, or others go first, or its start has begun.
_PASSING = frozenset({"", "none", "priority", "resources", "begintime", "prolog", "cleaning"})
_NODES = ("reqnodenotavail", "nodes required for job are", "nodedown", "badconstraints")
_LIMITS = ("qos", "assoc", "partition", "max")
_AMOUNTS = re.compile("gres|cpu|mem|node|bb|billing|energy")
_UNTIL_CHANGED = ("qos", "assoc", "partition", "reservation", "licenses", "max", "jobarray")
_ONE_BY_ONE = re.compile(
    r"jobs|submit|minutes|wall|time|min(?!utes)|notallowed|inactive|down|config"
)


def about(reason: str) -> About:
    """What keeps the job from starting where, and as large as, it was to start.

    The nodes that it names; its size, as limits on what users and accounts hold have it; or the
    job itself, whatever it is given. Empty: nothing that does not pass by itself.
    """
    word = reason.replace("_", " ").strip().lower()
    if word in _PASSING:
        return ""
    if word.startswith(_NODES):
        return "nodes"
    if word.startswith(_LIMITS) and _AMOUNTS.search(word) and not _ONE_BY_ONE.search(word):
        return "size"
    return "job"


def lasts(reason: str) -> bool:
    """Whether it is a rule of the site's, of which time alone changes nothing."""
    return reason.strip().lower().startswith(_UNTIL_CHANGED) and about(reason) in ("size", "job")


def whose(reason: str) -> Whose:
    """Of whose jobs one has to end before such a rule may have room again, as far as it says."""
    word = reason.strip().lower()
    if "peruser" in word or word.startswith("assocmax"):
        return "user"
    if "peraccount" in word or "peracct" in word:
        return "account"
    if word.startswith("jobarray"):
        return "array"
    return "qos" if word.startswith("qosgrp") else "anybody"
