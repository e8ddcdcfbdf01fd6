"""Which sizes the site's limits on one job alone leave it, and whether they let it run so long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ones.policies.caps import SLACK, of_shape
from ones.policies.model import Shape, Take
from ones.slurm_ext.limits import Amounts, Qos, SiteLimits
from ones.slurm_ext.snapshot import JobRecord
from ones.slurm_ext.takes import CPU, GPUS, JOBS, LICENSE, MEMORY, NODES, Asked

_UNITS = {CPU: "CPUs", NODES: "nodes", GPUS: "GPUs", JOBS: "running jobs"}
_OfAJob = tuple[str, Amounts, str, bool]
"""Words, amounts, of a `job` or a `node`, and whether they are the least."""


class _Span(NamedTuple):
    """How large a partition lets a job be; None: as large as it likes."""

    partition: str
    least_nodes: int
    most_nodes: int | None
    most_memory: int | None  # MiB of one node

    @property
    def open(self) -> bool:
        return self.least_nodes <= 1 and self.most_nodes is None and self.most_memory is None


def forbidden(
    limits: SiteLimits,
    asked: Asked,
    shapes: Iterable[Shape],
    kinds: Iterable[str],
) -> dict[Shape, str]:
    """The shapes that a limit on one job forbids on each of these types of GPU; it in words."""
    types, record = list(kinds), asked.record
    if not types:
        return {}
    rules = [rule for rule in _of_a_job(limits, record) if rule[1]] if limits.enforced else []
    spans = _spans(limits, record)
    if not rules and (not spans or any(one.open for one in spans)):
        return {}  # as on most clusters, for nearly all jobs
    takes = [_takes(asked, {tres for rule in rules for tres in rule[1]}, kind) for kind in types]
    memory = asked.by_node() if any(one.most_memory is not None for one in spans) else None
    found = {
        shape: _no_partition(spans, memory, shape) or _against(rules, takes, shape)
        for shape in shapes
    }
    return {shape: words for shape, words in found.items() if words}


def _spans(limits: SiteLimits, record: JobRecord) -> list[_Span]:
    """Those of its partitions."""
    flags = limits.qos[record.qos].flags if record.qos in limits.qos else frozenset[str]()
    return [
        _Span(
            one.name,
            0 if "PartitionMinNodes" in flags else one.least_nodes,
            None if "PartitionMaxNodes" in flags else one.most_nodes,
            one.most_memory,
        )
        for name in record.partition.split(",")
        if (one := limits.partitions.get(name)) is not None
    ]


def _no_partition(spans: Sequence[_Span], memory: Take | None, shape: Shape) -> str:
    """Why none of its partitions takes a job of that shape; one of them is enough."""
    against = ""
    for one in reversed(spans):
        against = _too_large(one, memory, shape)
        if not against:
            return ""
    return against


def _too_large(span: _Span, memory: Take | None, shape: Shape) -> str:
    name, least, most, room = span
    if most is not None and shape.nodes > most:
        return f"partition {name} allows {in_words(most, NODES)} a job"
    if shape.nodes < least:
        return f"partition {name} asks for at least {in_words(least, NODES)} a job"
    each = Shape(1, shape.gpus_per_node)
    if room is not None and memory is not None and of_shape(memory, each) > room + SLACK:
        return f"partition {name} allows {in_words(room, MEMORY)} of one node"
    return ""


def _against(rules: Sequence[_OfAJob], takes: Iterable[Mapping[str, Take]], shape: Shape) -> str:
    """The limit that the shape meets on the last type of GPU; '' where it meets none on one."""
    against = ""
    for of in takes:
        against = _met(rules, of, shape)
        if not against:
            return ""
    return against


def _met(rules: Sequence[_OfAJob], takes: Mapping[str, Take], shape: Shape) -> str:
    each = Shape(1, shape.gpus_per_node)
    for words, allowed, has, least in rules:
        for tres, amount in allowed.items():
            if tres not in takes:
                continue
            found = of_shape(takes[tres], each if has == "node" else shape)
            if found < amount - SLACK if least else found > amount + SLACK:
                return words.format(in_words(amount, tres))
    return ""


def _of_a_job(limits: SiteLimits, record: JobRecord) -> Iterator[_OfAJob]:
    """The limits on it alone; each TRES once."""
    said: dict[str, set[str]] = {"job": set(), "node": set(), "least": set()}

    def new(kind: str, amounts: Amounts) -> Amounts:
        found = {tres: most for tres, most in amounts.items() if tres not in said[kind]}
        said[kind] |= found.keys()
        return found

    for qos in qualities(limits, record):
        yield f"QOS {qos.name} allows {{}} a job", new("job", qos.a_job), "job", False
        yield f"QOS {qos.name} allows {{}} of one node", new("node", qos.a_node), "node", False
        least = new("least", qos.least)
        yield f"QOS {qos.name} asks for at least {{}} a job", least, "job", True
    own = limits.association(record.account, record.user, record.partition)
    if own is not None:
        who = f"account {own.account} allows {own.user} {{}}"
        yield f"{who} a job", new("job", own.a_job), "job", False
        yield f"{who} of one node", new("node", own.a_node), "node", False


def too_long(limits: SiteLimits, record: JobRecord) -> str:
    """The limit on time that the job's own time limit exceeds, in words; empty: none."""
    asks = record.time_limit
    if asks is None:
        return ""
    flags = limits.qos[record.qos].flags if record.qos in limits.qos else frozenset[str]()
    names = [name for name in record.partition.split(",") if name in limits.partitions]
    walls = [limits.partitions[name].wall for name in names]
    if walls and None not in walls and "PartitionTimeLimit" not in flags:
        longest = max(wall for wall in walls if wall is not None)
        if asks > longest:
            return f"partition {names[0]} allows {_time(longest)}; it asks for {_time(asks)}"
    if not limits.enforced:
        return ""
    for qos in qualities(limits, record):
        if qos.wall is not None:
            long = f"QOS {qos.name} allows {_time(qos.wall)}; it asks for {_time(asks)}"
            return long if asks > qos.wall else ""
    own = limits.association(record.account, record.user, record.partition)
    if own is not None and own.wall is not None and asks > own.wall:
        who = f"account {own.account} allows {own.user} {_time(own.wall)}"
        return f"{who}; it asks for {_time(asks)}"
    return ""


def qualities(limits: SiteLimits, record: JobRecord) -> Iterator[Qos]:
    """Those whose limits count for the job, the stronger one first."""
    return limits.rules(record.qos, record.partition if "," not in record.partition else "")


def _takes(asked: Asked, limited: Iterable[str], kind: str) -> dict[str, Take]:
    """Of each of these TRES of which that is known; of GPUs of that type."""
    takes = {tres: asked.take(tres) for tres in limited if tres.partition(":")[2] in ("", kind)}
    return {tres: take for tres, take in takes.items() if take is not None}


def in_words(amount: int, tres: str) -> str:
    """So much of it, in words."""
    if tres.startswith(f"{GPUS}:"):
        return f"{amount} {tres.partition(':')[2]} GPUs"
    if tres == MEMORY:
        return f"{as_size(amount)} of memory"
    if tres.startswith(LICENSE):
        return f"{amount} {tres.removeprefix(LICENSE)} licence{'s' if amount != 1 else ''}"
    unit = _UNITS.get(tres, tres)
    return f"{amount} {unit.removesuffix('s') if amount == 1 else unit}"


def as_size(mebibytes: int) -> str:
    """An amount of memory as Slurm writes it."""
    gibibytes, rest = divmod(mebibytes, 1024)
    return f"{mebibytes}M" if rest or not gibibytes else f"{gibibytes}G"


def _time(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
