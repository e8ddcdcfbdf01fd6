"""What the site's limits come to: which shapes one job may have, and caps on several together.

Slurm counts what running jobs hold, those outside our hands among them. What a job would take at
another size is a straight line in its nodes and GPUs, because it keeps its form.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ones.policies.model import Cap, Job, JobId, Shape, Take
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import PER_NODE, Layout, gpus_wanted, layout_of
from ones.slurm_ext.limits import Amounts, Qos, SiteLimits
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import HOLDING, JobRecord, NodeRecord, Snapshot

GPUS, NODES = "gres/gpu", "node"
JOBS = "jobs"  # counted beside what Slurm calls TRES
_UNITS = {"cpu": "CPUs", "node": "nodes", GPUS: "GPUs", JOBS: "running jobs"}
_TIMED = {"cpu": "CPU", NODES: "node", GPUS: "GPU"}
_OfAJob = tuple[str, Amounts, str, bool]
"""Words, amounts, of a `job` or a `node`, and whether they are the least."""
Scope = tuple[str, ...]  # of whose jobs a sum is taken: a QOS, a user under it, an account ...
Limit = tuple[Scope, str]  # and the TRES that it is on


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit as it counts for one job: on a sum over its scope."""

    scope: Scope
    tres: str
    most: int
    words: str  # "QOS normal allows 4 GPUs a user"
    whose: str  # "alice", or what else has what it is told to have


def forbidden(
    limits: SiteLimits,
    record: JobRecord,
    layout: Layout,
    shapes: Iterable[Shape],
    kinds: Iterable[str],
) -> dict[Shape, str]:
    """The shapes that a limit on one job forbids on each of these types of GPU; it in words."""
    types = list(kinds)
    if not types:
        return {}
    rules = [rule for rule in _of_a_job(limits, record) if rule[1]] if limits.enforced else []
    spans = _spans(limits, record)
    open_to_all = any(least <= 1 and most is None for _, least, most in spans)
    if not rules and (open_to_all or not spans):
        return {}  # as on most clusters, for nearly all jobs
    takes = [_takes(record, layout, kind) for kind in types] if rules else []
    found = {
        shape: _no_partition(spans, shape) or _against(rules, takes, shape) for shape in shapes
    }
    return {shape: words for shape, words in found.items() if words}


def _spans(limits: SiteLimits, record: JobRecord) -> list[tuple[str, int, int | None]]:
    """Its partitions, with the fewest and most nodes that each gives a job; None: any number."""
    flags = limits.qos[record.qos].flags if record.qos in limits.qos else frozenset[str]()
    return [
        (
            one.name,
            0 if "PartitionMinNodes" in flags else one.least_nodes,
            None if "PartitionMaxNodes" in flags else one.most_nodes,
        )
        for name in record.partition.split(",")
        if (one := limits.partitions.get(name)) is not None
    ]


def _no_partition(spans: Sequence[tuple[str, int, int | None]], shape: Shape) -> str:
    """Why none of its partitions takes that many nodes; one of them is enough."""
    for _, least, most in spans:
        if least <= shape.nodes and (most is None or shape.nodes <= most):
            return ""
    if not spans:
        return ""
    name, least, most = spans[0]
    if most is not None and shape.nodes > most:
        return f"partition {name} allows {_some(most, NODES)} a job"
    return f"partition {name} asks for at least {_some(least, NODES)} a job"


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
            found = _at(takes[tres], each if has == "node" else shape)
            if found < amount if least else found > amount:
                return words.format(_some(amount, tres))
    return ""


def _of_a_job(limits: SiteLimits, record: JobRecord) -> Iterator[_OfAJob]:
    """The limits on it alone; each TRES once."""
    said: dict[str, set[str]] = {"job": set(), "node": set(), "least": set()}

    def new(kind: str, amounts: Amounts) -> Amounts:
        found = {tres: most for tres, most in amounts.items() if tres not in said[kind]}
        said[kind] |= found.keys()
        return found

    for qos in _qos(limits, record):
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
    for qos in _qos(limits, record):
        if qos.wall is not None:
            long = f"QOS {qos.name} allows {_time(qos.wall)}; it asks for {_time(asks)}"
            return long if asks > qos.wall else ""
    own = limits.association(record.account, record.user, record.partition)
    if own is not None and own.wall is not None and asks > own.wall:
        who = f"account {own.account} allows {own.user} {_time(own.wall)}"
        return f"{who}; it asks for {_time(asks)}"
    return ""


def stopped(
    used: Used, waiting: Iterable[JobRecord], jobs: Iterable[Job]
) -> dict[int, tuple[Limit, ...]]:
    """The waiting plain jobs that limits on sums would keep from starting though elastic jobs had
    no more than they asked for; and which limits.

    Slurm says so itself only once it has found nodes for a job.
    """
    known: dict[tuple[str, ...], tuple[Rule, ...]] = {}
    beyond: Counter[Limit] | None = None
    found: dict[int, tuple[Limit, ...]] = {}
    for record in waiting:
        key = (record.user, record.account, record.qos, record.partition)
        if key not in known:
            known[key] = tuple(rules(used.limits, record))
        if not known[key]:
            continue
        if beyond is None:
            beyond = used.beyond_requests(jobs)
        asks = {
            JOBS: 1,
            GPUS: gpus_wanted(record),
            NODES: max(1, record.nodes_wanted[0]),
            "cpu": record.cpus,
        }
        over = tuple(
            (rule.scope, rule.tres)
            for rule in known[key]
            if rule.tres in asks
            and used.of[rule.scope][rule.tres] - beyond[rule.scope, rule.tres] + asks[rule.tres]
            > rule.most
        )
        if over:
            found[record.id] = over
    return found


def caps(
    used: Used, jobs: Iterable[Job], stopped: Mapping[int, Iterable[Limit]]
) -> tuple[tuple[Cap, ...], tuple[str, ...]]:
    """The limits on several jobs that could keep one of these from a size, or for which plain ones
    are `stopped`; and what is not known.

    Any other limit that they could not reach together is left out.
    """
    limits, snapshot = used.limits, used.snapshot
    if not limits.enforced:
        return (), ()
    awaited = {limit: job for job, met in stopped.items() for limit in met}
    counted: dict[tuple[Scope, str], dict[JobId, tuple[Rule, Take, Job]]] = {}
    spent: dict[str, dict[JobId, Take]] = {}
    strange: dict[str, None] = {}
    for job in jobs:
        record = snapshot.jobs[int(job.id)]
        try:
            layout = layout_of(record, Mark.read(record.admin_comment))
        except ValueError:
            continue  # it is not moved
        for words in _not_known(limits, record):
            strange[words] = None
        for rule in rules(limits, record):
            take = take_of(rule.tres, record, layout)
            if take is not None:
                counted.setdefault((rule.scope, rule.tres), {})[job.id] = (rule, take, job)
        for words in used_up(limits, record):
            spent.setdefault(words, {})[job.id] = Take(each=1.0)
    # Slurm starts none of these any more; what runs it ends by itself, or not.
    found = [Cap(words=words, left=0.0, takes=takes) for words, takes in spent.items()]
    for (scope, tres), takers in counted.items():
        cap = _cap(scope, tres, takers, used, awaited.get((scope, tres)))
        if cap is not None:
            found.append(cap)
    return tuple(found), tuple(strange)


def _cap(
    scope: Scope,
    tres: str,
    takers: Mapping[JobId, tuple[Rule, Take, Job]],
    used: Used,
    awaited: int | None,
) -> Cap | None:
    rule = next(iter(takers.values()))[0]
    held = {id_: used.by_job(int(id_), tres) for id_ in takers}
    total = used.of[scope][tres]
    left = rule.most - (total - sum(held.values()))
    most = 0.0
    for _, take, job in takers.values():
        widest = max((_at(take, shape) for shape in job.shapes), default=0.0)
        most += widest if job.keeps is None else widest + take.each * len(job.nodes)
    if most <= left and awaited is None:
        return None
    has = f"{rule.whose} has {total}" if rule.whose else f"there are {total}"
    words = f"{rule.words}; {has}"
    return Cap(
        words=words,
        left=float(left),
        takes={id_: take for id_, (_, take, _) in takers.items()},
        held=held,
        gpu_type=tres.partition(":")[2],
        awaited="" if awaited is None else f"{words}; job {awaited} waits for it",
    )


def _at(take: Take, shape: Shape) -> float:
    return take.each + take.node * shape.nodes + take.gpu * shape.gpus


def rules(limits: SiteLimits, record: JobRecord) -> Iterator[Rule]:
    """The limits on sums that count for the job; each TRES once a kind, but at every level."""
    said: set[tuple[str, str]] = set()

    def new(kind: str, amounts: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
        for tres, most in amounts.items():
            if most is not None and (kind, tres) not in said:
                said.add((kind, tres))
                yield tres, most

    user, account = record.user, record.account
    for qos in _qos(limits, record):
        name = f"QOS {qos.name}"
        for tres, most in new("all", {**qos.together, JOBS: qos.jobs}):
            words = f"{name} allows {_some(most, tres)} in all"
            yield Rule(("qos", qos.name), tres, most, words, "it")
        for tres, most in new("user", {**qos.a_user, JOBS: qos.jobs_a_user}):
            words = f"{name} allows {_some(most, tres)} a user"
            yield Rule(("qos", qos.name, "user", user), tres, most, words, user)
        for tres, most in new("account", {**qos.an_account, JOBS: qos.jobs_an_account}):
            words = f"{name} allows {_some(most, tres)} an account"
            yield Rule(("qos", qos.name, "account", account), tres, most, words, account)
    own = limits.association(account, user, record.partition)
    if own is not None:
        if own.own_jobs is not None and ("user", JOBS) not in said:
            words = f"account {account} allows {user} {_some(own.own_jobs, JOBS)}"
            yield Rule(("own", *own.key), JOBS, own.own_jobs, words, user)
        for tres, most in _levels(own.together, own.jobs, said):
            words = f"account {account} allows {user} {_some(most, tres)}"
            yield Rule(("own", *own.key), tres, most, words, user)
    for above in limits.above(account):
        for tres, most in _levels(above.together, above.jobs, said):
            words = f"account {above.account} allows {_some(most, tres)}"
            yield Rule(("account", above.account), tres, most, words, "it")


def used_up(limits: SiteLimits, record: JobRecord) -> Iterator[str]:
    """The limits on time (GrpTRESMins) of which nothing is left for the job, in words."""
    said: set[str] = set()
    for qos in _qos(limits, record):
        minutes = {tres: most for tres, most in qos.minutes.items() if tres not in said}
        said |= minutes.keys()
        yield from _spent(minutes, limits.used.get(("qos", qos.name), {}), f"QOS {qos.name}")
    for above in limits.above(record.account):
        minutes = {tres: most for tres, most in above.minutes.items() if tres not in said}
        used = limits.used.get(("account", above.account), {})
        yield from _spent(minutes, used, f"account {above.account}")


def _spent(minutes: Amounts, used: Amounts, whose: str) -> Iterator[str]:
    for tres, most in minutes.items():
        if tres in _TIMED and used.get(tres, 0) >= most:
            yield f"{whose} allows {most} {_TIMED[tres]} minutes; {used.get(tres, 0)} are used"


def _levels(
    together: Amounts, jobs: int | None, said: set[tuple[str, str]]
) -> Iterator[tuple[str, int]]:
    """Those that no QOS has a say in."""
    for tres, most in {**together, JOBS: jobs}.items():
        if most is not None and ("all", tres) not in said:
            yield tres, most


def _qos(limits: SiteLimits, record: JobRecord) -> Iterator[Qos]:
    return limits.rules(record.qos, record.partition if "," not in record.partition else "")


def _not_known(limits: SiteLimits, record: JobRecord) -> Iterator[str]:
    if limits.unread:
        return
    if record.qos and record.qos not in limits.qos:
        yield f"QOS {record.qos[:60]} of job {record.id} is not there: planned without its limits"
    if limits.association(record.account, record.user, record.partition) is None:
        who = f"{record.user[:60]} in account {record.account[:60]}"
        yield f"no association of {who}: planned without its limits"


def take_of(tres: str, record: JobRecord, layout: Layout) -> Take | None:
    """How much of a TRES the job takes, by nodes and GPUs; None where that is not known."""
    if tres == JOBS:
        return Take(each=1.0)
    if tres == "node":
        return Take(node=1.0)
    if tres == GPUS or tres.startswith(f"{GPUS}:"):
        return Take(gpu=1.0)
    if tres != "cpu":
        return None
    wants = gpus_wanted(record)
    if record.per_gpu and wants:
        return Take(gpu=record.cpus / wants)
    if layout.gpus_per_task == PER_NODE:
        return Take(node=float(record.cpus_per_task))
    return Take(gpu=record.cpus_per_task / layout.gpus_per_task)


def _takes(record: JobRecord, layout: Layout, kind: str) -> dict[str, Take]:
    """Of each TRES of which that is known."""
    each = ("cpu", NODES, GPUS, f"{GPUS}:{kind}")
    takes = {tres: take_of(tres, record, layout) for tres in each}
    return {tres: take for tres, take in takes.items() if take is not None}


@dataclass(slots=True)
class Used:
    """What running jobs hold, by scope."""

    limits: SiteLimits
    snapshot: Snapshot
    of: defaultdict[Scope, Counter[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.of = defaultdict(Counter)
        if not self.limits.enforced:
            return
        for record in self.snapshot.jobs.values():
            if record.state in HOLDING:
                holds = held_of(record, self.snapshot.nodes)
                for scope in self._scopes(record):
                    self.of[scope].update(holds)

    def _scopes(self, record: JobRecord) -> Iterator[Scope]:
        limits = self.limits
        for qos in dict.fromkeys(one.name for one in _qos(limits, record)):
            yield ("qos", qos)
            yield ("qos", qos, "user", record.user)
            yield ("qos", qos, "account", record.account)
        own = limits.association(record.account, record.user, record.partition)
        if own is not None:
            yield ("own", *own.key)
        for above in limits.above(record.account):
            yield ("account", above.account)

    def beyond_requests(self, jobs: Iterable[Job]) -> Counter[Limit]:
        """The GPUs that these hold beyond what they asked for, by scope."""
        found = Counter[Limit]()
        for job in jobs:
            if job.placement is not None and job.placement.gpus > job.requested:
                for scope in self._scopes(self.snapshot.jobs[int(job.id)]):
                    found[scope, GPUS] += job.placement.gpus - job.requested
        return found

    def by_job(self, number: int, tres: str) -> float:
        """What the job and its satellites hold."""
        record = self.snapshot.jobs[number]
        parts = [one for one in (record, *record.satellites) if one.state in HOLDING]
        return float(sum(held_of(one, self.snapshot.nodes)[tres] for one in parts))


def held_of(record: JobRecord, nodes: Mapping[str, NodeRecord]) -> Counter[str]:
    """What Slurm counts of a running job; a GPU in shards is none."""
    held = Counter({JOBS: 1, "cpu": record.cpus, "node": len(expand(record.nodes))})
    for name, gpus in record.gpus_on.items():
        whole = gpus - len(record.shares.get(name, ()))
        held[GPUS] += whole
        if name in nodes and nodes[name].gpu_type:
            held[f"{GPUS}:{nodes[name].gpu_type}"] += whole
    return held


def _some(amount: int, tres: str) -> str:
    """So much of it, in words."""
    if tres.startswith(f"{GPUS}:"):
        return f"{amount} {tres.partition(':')[2]} GPUs"
    unit = _UNITS.get(tres, tres)
    return f"{amount} {unit.removesuffix('s') if amount == 1 else unit}"


def _time(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
