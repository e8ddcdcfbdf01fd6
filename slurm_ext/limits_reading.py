"""Reads the site's limits: a few small calls, whatever the number of jobs.

What Slurm prints is text that operators wrote: a line or an amount that makes no sense is left
out and named, and the rest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeGuard

from ones.slurm_ext.command_reader import entries, seconds_of
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.counts import count_in
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.limits import Amounts, Association, Key, Partition, Qos, SiteLimits
from ones.slurm_ext.usage import size_in

PATIENCE = 10.0  # seconds for each call: a round waits for it
MOST_ROWS = 100_000
MOST_FAULTS = 20  # told
MOST = 2**50  # of anything
_QOS = (
    *("name", "flags", "grptres", "grptresmins", "grpjobs", "maxtresperuser"),
    *("maxtresperaccount", "maxtresperjob", "maxtrespernode", "mintresperjob", "maxjobsperuser"),
    *("maxjobsperaccount", "maxwall"),
)
_ASSOCIATION = (
    *("account", "user", "partition", "parentname", "grptres", "grptresmins", "grpjobs"),
    *("maxtresperjob", "maxtrespernode", "maxjobs", "maxwall"),
)
_CONFIG = re.compile(
    r"^(AccountingStorageEnforce|ClusterName|DefMemPerCPU|DefMemPerNode|MaxMemPerCPU|MaxMemPerNode"
    r"|JobDefaults|SelectType|SelectTypeParameters)\s*=\s*(\S+)",
    re.MULTILINE,
)
_USED = re.compile(r"\b(gres/gpu(?::[^=,()\s]{1,64})?|cpu|mem|node)=[0-9N]{1,20}\(([0-9]{1,20})\)")
_PER_GPU = re.compile(r"\bDefMemPerGPU=([0-9]{1,9})\b")
_NONE = frozenset({None, "", "0", "UNLIMITED"})
NO_CONFIG: Mapping[str, str] = {}
_UNITS = ("CPU", "CORE", "SOCKET")  # by which nodes are shared out
_UNLIMITED = frozenset({"", "UNLIMITED", "INFINITE", "-1", "N"})


class Faults:
    """What made no sense, each said once."""

    def __init__(self) -> None:
        self._words: dict[str, None] = {}

    def add(self, words: str) -> None:
        self._words[" ".join(words.split())[:200]] = None

    def words(self) -> tuple[str, ...]:
        found = [*islice(self._words, MOST_FAULTS)]
        more = len(self._words) - len(found)
        return (*found, f"and {more} more limits that make no sense") if more else (*found,)


def read_limits(commands: Commands) -> SiteLimits:
    """The limits now. Raises SlurmError where slurmctld does not answer.

    Where slurmdbd does not, the partitions' are there, and `unread` says why the others are not.
    """
    timeout = min(PATIENCE, commands.timeout)
    config = dict(_CONFIG.findall(commands.run("scontrol", "show", "config", timeout=timeout)))
    faults = Faults()
    shown = commands.run("scontrol", "show", "partition", "--oneliner", timeout=timeout)
    partitions = partitions_in(shown, faults, config)
    known = SiteLimits(
        partitions=partitions,
        licenses=_licenses(commands, faults, timeout=timeout),
        shares_out_cpus=_shares_out_cpus(config),
        faults=faults.words(),
    )
    words = {word.strip() for word in config.get("AccountingStorageEnforce", "").split(",")}
    if not words & {"limits", "safe", "all"}:
        return known
    cluster = config.get("ClusterName", "")
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        qos = commands.run(*show, "qos", f"format={','.join(_QOS)}", timeout=timeout)
        associations = commands.run(
            *show, "assoc", f"cluster={cluster}", f"format={','.join(_ASSOCIATION)}",
            timeout=timeout,
        )  # fmt: skip
    except SlurmError as fault:
        return replace(known, enforced=True, unread=str(fault))
    found_qos = qos_in(qos, faults)
    found = associations_in(associations, faults)
    return replace(
        known,
        enforced=True,
        qos=found_qos,
        associations=found,
        used=_used(commands, found_qos.values(), found.values(), timeout=timeout),
        faults=faults.words(),
    )


def _shares_out_cpus(config: Mapping[str, str]) -> bool:
    """Whether each CPU is one job's: not where nodes are given whole, or by their memory alone."""
    by = config.get("SelectTypeParameters", "").upper()
    whole = config.get("SelectType", "") == "select/linear"
    return not whole and (by in ("", "NONE") or any(unit in by for unit in _UNITS))


def qos_in(text: str, faults: Faults) -> dict[str, Qos]:
    """By name, from `sacctmgr show qos`."""
    found: dict[str, Qos] = {}
    for row in _rows(text, _QOS, "QOS", faults):
        name, where = row["name"], f"QOS {row['name'][:60]}"
        if not name:
            faults.add("a QOS without a name")
            continue
        one = Qos(
            name=name,
            flags=frozenset(row["flags"].split(",")) - {""},
            together=amounts_in(row["grptres"], f"{where}: GrpTRES", faults),
            minutes=amounts_in(row["grptresmins"], f"{where}: GrpTRESMins", faults),
            a_user=amounts_in(row["maxtresperuser"], f"{where}: MaxTRESPerUser", faults),
            an_account=amounts_in(row["maxtresperaccount"], f"{where}: MaxTRESPerAccount", faults),
            a_job=amounts_in(row["maxtresperjob"], f"{where}: MaxTRESPerJob", faults),
            a_node=amounts_in(row["maxtrespernode"], f"{where}: MaxTRESPerNode", faults),
            least=amounts_in(row["mintresperjob"], f"{where}: MinTRESPerJob", faults),
            jobs=_count(row["grpjobs"], f"{where}: GrpJobs", faults),
            jobs_a_user=_count(row["maxjobsperuser"], f"{where}: MaxJobsPerUser", faults),
            jobs_an_account=_count(row["maxjobsperaccount"], f"{where}: MaxJobsPerAccount", faults),
            wall=_wall(row["maxwall"], f"{where}: MaxWall", faults),
        )
        if "Relative" in one.flags:
            faults.add(f"{where}: its limits are in per cent (Relative); planned without them")
            one = replace(one, together={}, a_user={}, an_account={}, a_job={}, a_node={}, least={})
        found[name] = one
    return found


def associations_in(text: str, faults: Faults) -> dict[Key, Association]:
    """By account, user and partition, from `sacctmgr show assoc`. Trees that go round are cut."""
    found: dict[Key, Association] = {}
    for row in _rows(text, _ASSOCIATION, "association", faults):
        who = f"{row['user'][:60]} in " if row["user"] else ""
        where = f"association of {who}account {row['account'][:60]}"
        if not row["account"]:
            faults.add("an association without an account")
            continue
        one = Association(
            account=row["account"],
            user=row["user"],
            partition=row["partition"],
            parent="" if row["user"] else row["parentname"],
            together=amounts_in(row["grptres"], f"{where}: GrpTRES", faults),
            minutes=amounts_in(row["grptresmins"], f"{where}: GrpTRESMins", faults),
            a_job=amounts_in(row["maxtresperjob"], f"{where}: MaxTRESPerJob", faults),
            a_node=amounts_in(row["maxtrespernode"], f"{where}: MaxTRESPerNode", faults),
            jobs=_count(row["grpjobs"], f"{where}: GrpJobs", faults),
            own_jobs=_count(row["maxjobs"], f"{where}: MaxJobs", faults),
            wall=_wall(row["maxwall"], f"{where}: MaxWall", faults),
        )
        if one.key in found:
            faults.add(f"{where}: listed twice; the first counts")
            continue
        found[one.key] = one
    _tell_circles(found, faults)
    return found


def _tell_circles(found: Mapping[Key, Association], faults: Faults) -> None:
    fine: set[str] = set()
    for account, user, _ in found:
        if user:
            continue
        way: list[str] = []
        at = account
        while at and at not in fine:
            if at in way:
                faults.add(f"account {at}: it is above itself; the limits met once count")
                break
            way.append(at)
            above = found.get((at, "", ""))
            at = above.parent if above is not None else ""
        fine.update(way)


def partitions_in(
    text: str, faults: Faults, config: Mapping[str, str] = NO_CONFIG
) -> dict[str, Partition]:
    """By name, from `scontrol show partition --oneliner`; what one leaves out, `config` says."""
    found: dict[str, Partition] = {}
    for line in islice(text.splitlines(), MOST_ROWS):
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = words.get("PartitionName", "")
        if not name:
            continue
        where = f"partition {name[:60]}"
        qos = words.get("QoS", "N/A")
        found[name] = Partition(
            name=name,
            state=words.get("State", "UP"),
            default=words.get("Default") == "YES",
            accounts=(_named(words, "AllowAccounts"), _named(words, "DenyAccounts")),
            qualities=(_named(words, "AllowQos"), _named(words, "DenyQos")),
            least_nodes=_count(words.get("MinNodes", ""), f"{where}: MinNodes", faults) or 0,
            most_nodes=_count(words.get("MaxNodes", ""), f"{where}: MaxNodes", faults),
            most_memory=_memory("MaxMemPerNode", words, config, where, faults),
            memory_per_cpu=_memory("DefMemPerCPU", words, config, where, faults) or 0,
            memory_per_gpu=_per_gpu(words.get("JobDefaults", ""))
            or _per_gpu(config.get("JobDefaults", "")),
            wall=_wall(words.get("MaxTime", ""), f"{where}: MaxTime", faults),
            qos="" if qos == "N/A" else qos,
            exclusive=words.get("OverSubscribe", "") == "EXCLUSIVE",
            oversubscribes=words.get("OverSubscribe", "").startswith(("YES", "FORCE")),
        )
    return found


def _memory(
    key: str, words: Mapping[str, str], config: Mapping[str, str], where: str, faults: Faults
) -> int | None:
    """Of a node or CPU, MiB; None: without limit. Where a partition says it of the one, the whole
    cluster's of the other does not count."""
    other = key.replace("CPU", "Node") if key.endswith("CPU") else key.replace("Node", "CPU")
    of = next((each for each in (words, config) if {each.get(key), each.get(other)} - _NONE), {})
    return _count(of.get(key, ""), f"{where}: {key}", faults)


def _per_gpu(defaults: str) -> int:
    """DefMemPerGPU in `DefCpuPerGPU=2,DefMemPerGPU=700`, MiB; 0: there is none."""
    match = _PER_GPU.search(defaults)
    return int(match[1]) if match else 0


def _licenses(commands: Commands, faults: Faults, *, timeout: float) -> dict[str, int]:
    """How many of each there are for this cluster, and not for others elsewhere; none, which is
    said, where Slurm answers in words that can't be read. Raises SlurmUnreachable."""
    try:
        shown = commands.run("scontrol", "show", "licenses", "--json", timeout=timeout)
        return totals_in(entries(shown, "licenses", "scontrol show licenses"), faults)
    except SlurmUnreachable:
        raise
    except SlurmError as fault:
        faults.add(f"licences: {fault}")
        return {}


def totals_in(listed: Sequence[object], faults: Faults) -> dict[str, int]:
    """By name, from `scontrol show licenses --json`."""
    found: dict[str, int] = {}
    for each in islice(listed, MOST_ROWS):
        one = each if isinstance(each, Mapping) else {}
        name, total, missing = (one.get(key) for key in ("LicenseName", "Total", "LastDeficit"))
        if not (isinstance(name, str) and name and _is_count(total)):
            faults.add(f"licence {str(name)[:60]}: its total is {str(total)[:40]}")
        else:
            found[name] = max(0, total - (missing if _is_count(missing) else 0))
    return found


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= MOST


def _named(words: Mapping[str, str], key: str) -> frozenset[str]:
    """Those that Slurm lists; ALL and NONE are no names."""
    return frozenset(words.get(key, "").split(",")) - {"", "ALL", "NONE", "(null)"}


def amounts_in(text: str, where: str, faults: Faults) -> Amounts:
    """`cpu=4,mem=100G,gres/gpu:v100=2` by name; -1 is Slurm's word for no limit."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value in _UNLIMITED and value:
            continue
        count = count_in(value)  # of mem: MiB
        if count is None and name == "mem" and (size := size_in(value)) is not None:
            count = int(size)
        if not name or count is None or not 0 <= count <= MOST:
            faults.add(f"{where}: '{part[:40]}' is no amount")
        elif name in found:
            faults.add(f"{where}: {name} is said twice; the smaller counts")
            found[name] = min(found[name], count)
        else:
            found[name] = count
    return found


def used_in(text: str, of: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Amounts]:
    """What is used up of GrpTRESMins, from `scontrol show assoc_mgr --oneliner`."""
    wanted = set(of)
    found: dict[tuple[str, str], Amounts] = {}
    for line in islice(text.splitlines(), MOST_ROWS):
        head, _, rest = line.partition(" GrpTRESMins=")
        name: tuple[str, str]
        if match := re.match(r"QOS=([^\s(]+)\(", head):
            name = ("qos", match[1])
        elif match := re.search(r"\bAccount=(\S{1,256}) UserName= ", head):
            name = ("account", match[1])
        else:
            continue
        if name in wanted:
            minutes = rest.partition(" ")[0]
            found[name] = {tres: int(used[:18]) for tres, used in _USED.findall(minutes)}
    return found


def _used(
    commands: Commands,
    qos: Iterable[Qos],
    associations: Iterable[Association],
    *,
    timeout: float,
) -> Mapping[tuple[str, str], Amounts]:
    """Asked for only where there is such a limit."""
    of = [("qos", one.name) for one in qos if one.minutes]
    of += [("account", one.account) for one in associations if one.minutes and not one.user]
    if not of:
        return {}
    show = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")
    try:
        return used_in(commands.run(*show, timeout=timeout), of)
    except SlurmError:
        return {}  # not known: Slurm's own reason will say so


def _rows(text: str, columns: Sequence[str], what: str, faults: Faults) -> Iterable[dict[str, str]]:
    for line in islice(text.splitlines(), MOST_ROWS):
        values = line.split("|")
        if len(values) != len(columns):
            faults.add(f"{what} '{line[:60]}': {len(values)} columns, not {len(columns)}")
            continue
        yield dict(zip(columns, (value.strip() for value in values), strict=True))


def _count(text: str, where: str, faults: Faults) -> int | None:
    if text in _UNLIMITED:
        return None
    count = count_in(text)
    if count is None or not 0 <= count <= MOST:
        faults.add(f"{where}: '{text[:40]}' is no number")
        return None
    return count


def _wall(text: str, where: str, faults: Faults) -> float | None:
    if text in _UNLIMITED:
        return None
    seconds = seconds_of(text)
    if seconds is None:
        faults.add(f"{where}: '{text[:40]}' is no time")
    return seconds
