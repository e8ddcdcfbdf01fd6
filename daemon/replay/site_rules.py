"""What a site has set of Slurm's scheduling, as tables of the description of its cluster.

    [slurm]             weight_age, half_life, bf_interval, ...: policies/slurm/settings.py
    [[partitions]]      name, nodes (a hostlist), tier, job_factor, max_time, default_time, qos
    [[qos]]             name, priority, usage_factor, and limits
    [[associations]]    account, user, parent, shares, and limits
    [[reservations]]    name, nodes, start, end
    [licenses]          how many there are of each, by name

Limits are grp_gpus, gpus_per_user and the other fields of `Bounds`. Times are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from ones.daemon.replay.faults import TraceError, clean, quoted
from ones.daemon.replay.inventory import is_toml, toml_in
from ones.daemon.replay.tables import LARGEST, text_of
from ones.daemon.replay.workload import Workload
from ones.policies.slurm.settings import (
    Association,
    Bounds,
    Partition,
    Qos,
    Reservation,
    SlurmSettings,
)
from ones.slurm_ext.hostlists import expand

MOST_GONE = 5  # of which one line each is said
WORDS = ("name", "qos", "account", "user", "parent", "default_qos")
NEEDED = ("name", "account")  # of these, what can't be empty
_LIMITS = {each.name for each in fields(Bounds)}
_TABLES: Mapping[str, Callable[..., Any]] = {
    "partitions": Partition,
    "qos": Qos,
    "associations": Association,
    "reservations": Reservation,
}


def read(path: Path, text: str | None = None) -> SlurmSettings:
    """Slurm's defaults where the description says nothing. Raises TraceError."""
    text = text_of(path) if text is None else text
    if not is_toml(path, text):
        return SlurmSettings()
    loaded = toml_in(path, text)
    own = loaded.get("slurm", {})
    if not isinstance(own, dict):
        raise TraceError(path, "is no table", column="slurm")
    known = {field.name for field in fields(SlurmSettings)} - {*_TABLES, "licenses"}
    given: dict[str, Any] = {
        key: _value(path, "slurm", key, value, known) for key, value in own.items()
    }
    for name, kind in _TABLES.items():
        given[name] = tuple(_each(path, name, kind, loaded.get(name, [])))
    given["licenses"] = _licenses(path, loaded.get("licenses", {}))
    names = {"nodes", "prices", "slurm", "licenses", *_TABLES}
    for name in sorted(loaded.keys() - names):
        raise TraceError(path, f"is not known; known: {', '.join(sorted(names))}", column=name)
    try:
        return SlurmSettings(**given)
    except ValueError as fault:
        raise TraceError(path, str(fault), column="slurm") from None


def check_nodes(path: Path, settings: SlurmSettings, there: Container[str]) -> None:
    """Raise TraceError where a partition or a reservation has other nodes than these."""
    for table, listed in (
        ("partitions", settings.partitions),
        ("reservations", settings.reservations),
    ):
        for one in listed:
            for node in sorted(one.nodes):
                if node not in there:
                    raise TraceError(
                        path,
                        f"{quoted(one.name)} has node {quoted(node)}, which is not in [[nodes]];"
                        " take it out, or describe it there (gpus = 0 where it has none)",
                        column=table,
                    )


def _licenses(path: Path, counts: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(counts, dict):
        raise TraceError(path, "is no table", column="licenses")
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            wrong = f"{quoted(str(count))} is not a number"
            raise TraceError(path, wrong, column=f"licenses.{quoted(name)}")
    return (*counts.items(),)


def still_there(
    workload: Workload, settings: SlurmSettings, note: Callable[[str], None]
) -> Workload:
    """The jobs without reservations and licences that the site does not have: with one of those
    none would ever start. Partitions and qualities stay, as if the site had them without any rule.
    `note` is told, in a line each."""
    partitions = {"", *(one.name for one in settings.partitions)}
    qualities = {"", settings.default_qos, *(one.name for one in settings.qos)}
    reservations = {one.name for one in settings.reservations}
    licenses = dict(settings.licenses)
    gone: Counter[str] = Counter()
    jobs = []
    for job in workload.jobs:
        held = tuple(each for each in job.licenses if each[0] in licenses)
        own = job.reservation if job.reservation in reservations else ""
        gone.update(_without("licence", name) for name, _ in job.licenses if name not in licenses)
        gone.update([_without("reservation", job.reservation)] if job.reservation != own else [])
        if settings.partitions and job.partition not in partitions:
            gone[_unruled("partition", job.partition, "have all nodes")] += 1
        if settings.qos and job.qos not in qualities:
            gone[_unruled("qos", job.qos, "have no limits")] += 1
        jobs.append(replace(job, reservation=own, licenses=held))
    for told, count in gone.most_common(MOST_GONE):
        note(f"{count} jobs {told}")
    if len(gone) > MOST_GONE:
        note(
            f"{len(gone) - MOST_GONE} more reservations, licences, partitions and qualities are not"
            " there"
        )
    return replace(workload, jobs=tuple(jobs))


def _without(what: str, name: str) -> str:
    return f"asked for {what} {clean(name)}, which --cluster does not have: without it"


def _unruled(what: str, name: str, taken: str) -> str:
    return f"are of {what} {clean(name)}, which --cluster does not have: it is taken to {taken}"


def nodes_of(settings: SlurmSettings) -> dict[str, frozenset[str]]:
    """The nodes of each partition that has not all of them; '' is the default one."""
    found = {one.name: one.nodes for one in settings.partitions if one.nodes}
    if settings.partitions and settings.partitions[0].nodes:
        found[""] = settings.partitions[0].nodes
    return found


def _each(path: Path, table: str, kind: Callable[..., Any], listed: object) -> list[Any]:
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise TraceError(path, f"is no list of tables; write [[{table}]]", column=table)
    return [
        _one(path, f"{table} {number}", kind, row) for number, row in enumerate(listed, start=1)
    ]


def _one(path: Path, where: str, kind: Callable[..., Any], row: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)} - {"bounds"}  # type: ignore[arg-type]
    limited = kind in (Qos, Association)
    given: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for key, value in row.items():
        into = limits if limited and key in _LIMITS else given
        into[key] = _value(path, where, key, value, known | _LIMITS if limited else known)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING and field.name not in given:
            raise TraceError(path, f"says no {field.name}", column=where)
    try:
        if limits:
            given["bounds"] = Bounds(**limits)
        return kind(**given)
    except ValueError as fault:
        raise TraceError(path, str(fault), column=where) from None


def _value(path: Path, where: str, key: str, value: object, known: set[str]) -> object:
    """A value fit for the field of that name: a number, a word, yes or no, or a set of nodes."""
    if key not in known:
        allowed = ", ".join(sorted(known))
        raise TraceError(path, f"has no setting {quoted(key)}; known: {allowed}", column=where)
    if key == "nodes":
        if not isinstance(value, str) or not value:
            raise TraceError(path, "is no hostlist such as 'gpu[01-16]'", column=f"{where}.nodes")
        try:
            return frozenset(expand(value))
        except ValueError as fault:
            raise TraceError(path, str(fault), column=f"{where}.nodes") from None
    words = key in WORDS
    flag = key == "favor_small"
    fits = isinstance(value, str if words else bool if flag else int | float)
    if not fits or (not flag and isinstance(value, bool)):
        wanted = "a word" if words else "true or false" if flag else "a number"
        raise TraceError(path, f"{quoted(str(value))} is not {wanted}", column=f"{where}.{key}")
    if key in NEEDED and not value:
        raise TraceError(path, "is empty", column=f"{where}.{key}")
    if isinstance(value, int | float) and not _is_bounded(key, value):
        wrong = f"{quoted(str(value))} is not a finite number of at most {LARGEST:.0e}"
        raise TraceError(path, wrong, column=f"{where}.{key}")
    return value


def _is_bounded(key: str, value: float) -> bool:
    """Whether it can be reckoned with; limits and ends may be infinite, as if none were set."""
    endless = key in ("end", "max_time") or key in _LIMITS
    return abs(value) <= LARGEST or (endless and value == inf)
