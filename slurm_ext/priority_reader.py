"""Reads what Slurm makes priorities of: each part at most so often, however short the rounds.

What can't be read is what it was when it could; a program that fails is not run again before its
time, for it may have taken its whole timeout. On 1,000 users, 5,000 associations and 50
partitions all of it is 0.4 MB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ones.slurm_ext.command_reader import entries, seconds_of
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.job_json import MALFORMED, number
from ones.slurm_ext.priority import (
    Association,
    Multifactor,
    PartitionFactors,
    QosFactors,
    Weights,
    tres_in,
)

log = logging.getLogger(__name__)
Value = TypeVar("Value")
CONFIG, PARTITIONS, QOS, ASSOCIATIONS, SHARES = 600.0, 60.0, 60.0, 300.0, 30.0  # seconds


@dataclass(slots=True)
class _Part(Generic[Value]):
    """One part of it: read again when it is older than it may be."""

    read: Callable[[], Value]
    lifetime: float
    value: Value | None = None
    tried: float | None = None
    fault: str = ""

    def get(self, now: float) -> Value | None:
        if self.tried is None or not 0 <= now - self.tried < self.lifetime:
            self.tried = now
            try:
                self.value, self.fault = self.read(), ""
            except SlurmError as fault:
                if not self.fault:
                    log.warning("Slurm's priorities: %s", fault)
                self.fault = str(fault)
        return self.value


@dataclass(slots=True)
class PriorityReader:
    """Slurm's order, by its own programs."""

    commands: Commands
    clock: Callable[[], float]
    _parts: dict[str, _Part[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._parts = {
            "config": _Part(self._weights, CONFIG),
            "partitions": _Part(self._partitions, PARTITIONS),
            "qos": _Part(self._qos, QOS),
            "associations": _Part(self._associations, ASSOCIATIONS),
            "shares": _Part(self._shares, SHARES),
        }

    def order(self) -> Multifactor:
        """The order as far as it can be told. Raises SlurmError where nothing ever could."""
        now = self.clock()
        weights: Weights | None = self._parts["config"].get(now)
        if weights is None:
            raise SlurmError("scontrol show config", self._parts["config"].fault)
        needed = ["config", "partitions"]
        needed += ["qos"] * bool(weights.qos or weights.by_qos)
        needed += ["associations"] * bool(weights.association)
        needed += ["shares"] * bool(weights.fair_share)
        got = {name: self._parts[name].get(now) for name in needed}
        faults = [self._parts[name].fault for name in needed if self._parts[name].fault]
        missing = [name for name in needed if got[name] is None]
        nodes, cpus, partitions = got["partitions"] or (1, 1, {})
        trouble = "; ".join(faults)
        if missing:
            trouble += ": jobs go by their submission"
        elif faults:
            trouble += ": priorities go by what Slurm said before"
        elif weights.site_plugin and weights.multifactor:
            trouble = "held jobs go without the factor of PrioritySiteFactorPlugin: Slurm hides it"
        return Multifactor(
            weights=weights,
            partitions=partitions,
            qos=got.get("qos") or {},
            associations=got.get("associations") or {},
            fair_shares=got.get("shares") or {},
            nodes=nodes,
            cpus=cpus,
            unknown=trouble if missing else "",
            trouble=trouble,
        )

    def _weights(self) -> Weights:
        text = self.commands.run("scontrol", "show", "config")
        pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
        said = {name.strip(): value.strip() for name, value in pairs}

        def weight(name: str) -> float:
            return tres_in(f"x={said.get(f'PriorityWeight{name}', '0')}").get("x", 0.0)

        return Weights(
            multifactor=said.get("PriorityType", "priority/multifactor") == "priority/multifactor",
            age=weight("Age"),
            association=weight("Assoc"),
            fair_share=weight("FairShare"),
            job_size=weight("JobSize"),
            partition=weight("Partition"),
            qos=weight("QOS"),
            tres=_tres_weights(said.get("PriorityWeightTRES", "")),
            max_age=seconds_of(said.get("PriorityMaxAge", "")) or 604800.0,
            favor_small=said.get("PriorityFavorSmall", "no").lower() in ("yes", "1"),
            flags=frozenset(said.get("PriorityFlags", "").upper().split(",")),
            site_plugin=said.get("PrioritySiteFactorPlugin", "(null)") not in ("", "(null)"),
            by_qos=said.get("PreemptType", "") == "preempt/qos",
            cluster=said.get("ClusterName", ""),
        )

    def _partitions(self) -> tuple[int, int, dict[str, PartitionFactors]]:
        """The cluster's nodes and CPUs, and its partitions."""
        text = self.commands.run("scontrol", "show", "partition", "--all", "--json")
        found: dict[str, PartitionFactors] = {}
        for entry in entries(text, "partitions", "scontrol show partition"):
            try:
                limit = entry["maximums"]["time"]
                found[str(entry["name"])] = PartitionFactors(
                    factor=float(entry["priority"]["job_factor"]),
                    tier=int(entry["priority"]["tier"]),
                    max_time=60.0 * number(limit) if number(limit) else None,
                    tres=tres_in(entry["tres"]["configured"]),
                )
            except MALFORMED as fault:
                log.warning("a partition is left out of Slurm's order: %r", fault)
        totals = self.commands.run("sinfo", "--all", "--noheader", "--Node", "--format=%N|%c")
        sizes = dict(line.strip().split("|", 1) for line in totals.splitlines() if "|" in line)
        cpus = [int(count) for count in sizes.values() if count.isdecimal() and len(count) < 10]
        return max(1, len(sizes)), max(1, sum(cpus)), found

    def _qos(self) -> dict[str, QosFactors]:
        rows = self._rows("sacctmgr", "-nP", "show", "qos", "format=name,priority,preempt")
        return {
            name: QosFactors(
                priority=_count(priority),
                preempts=frozenset(filter(None, preempts.split(","))),
            )
            for name, priority, preempts in rows
        }

    def _associations(self) -> dict[Association, float]:
        """Read after the configuration, which names the cluster that they are of."""
        weights: Weights | None = self._parts["config"].value
        rows = self._rows(
            "sacctmgr",
            "-nP",
            "show",
            "assoc",
            f"cluster={weights.cluster if weights else ''}",
            "format=account,user,partition,priority",
        )
        return {
            (account, user, partition): _count(priority)
            for account, user, partition, priority in rows
        }

    def _shares(self) -> dict[Association, float]:
        rows = self._rows("sshare", "-anPm", "--format=Account,User,Partition,FairShare")
        return {
            (account.strip(), user, partition): tres_in(f"x={share}").get("x", 0.0)
            for account, user, partition, share in rows
            if user
        }

    def _rows(self, *command: str) -> list[list[str]]:
        """The columns of each line, without lines that have too few or too many."""
        wide = command[-1].count(",") + 1
        lines = self.commands.run(*command).splitlines()
        return [row for line in lines if len(row := line.split("|")) == wide]


def _count(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 12 else 0.0


def _tres_weights(text: str) -> dict[str, float]:
    return {name: value for name, value in tres_in(text).items() if value} if "=" in text else {}
