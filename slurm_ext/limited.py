"""What the site's limits come to for several jobs together.

Slurm counts what running jobs hold, those outside our hands among them. What a job would take at
another size is a straight line in its nodes and GPUs, because it keeps its form (`takes`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ones.policies.caps import least_awaited, most_taken
from ones.policies.model import Cap, Job, JobId, Take
from ones.slurm_ext.allowed import as_size, in_words, qualities
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import gpus_wanted
from ones.slurm_ext.limits import Amounts, SiteLimits
from ones.slurm_ext.reserved import licenses_kept
from ones.slurm_ext.snapshot import HOLDING, JobRecord, NodeRecord, Snapshot
from ones.slurm_ext.takes import CPU, GPUS, JOBS, LICENSE, MEMORY, NODES, asked_by
from ones.slurm_ext.tres import licenses_in, memory_in

_TIMED = {CPU: "CPU", NODES: "node", GPUS: "GPU", MEMORY: "MiB"}
Scope = tuple[str, ...]  # of whose jobs a sum is taken: a QOS, a user under it, an account ...
Whose = tuple[str, str, str, str]  # user, account, QOS, partition: all that scopes go by
Limit = tuple[Scope, str]  # and the TRES that it is on


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit as it counts for one job: on a sum over its scope."""

    scope: Scope
    tres: str
    most: int
    words: str  # "QOS normal allows 4 GPUs a user"
    whose: str  # "alice has", or who else has what is used of it


def stopped(
    used: Used, waiting: Iterable[JobRecord], jobs: Iterable[Job]
) -> dict[int, dict[Limit, int]]:
    """The waiting plain jobs that limits on sums would keep from starting though elastic jobs had
    no more than they asked for; which limits, and how much of each they would have.

    Slurm says so itself only once it has found nodes for a job.
    """
    known: dict[Whose, tuple[Rule, ...]] = {}
    beyond: Counter[Limit] | None = None
    found: dict[int, dict[Limit, int]] = {}
    for record in waiting:
        key = _whose(record)
        if key not in known:
            known[key] = tuple(rules(used.limits, record))
        theirs = known[key]
        if record.licenses:
            theirs = (*theirs, *license_rules(used, record))
        if not theirs:
            continue
        if beyond is None:
            beyond = used.beyond_requests(jobs)
        over: dict[Limit, int] = {}
        for rule in theirs:
            limit, asks = (rule.scope, rule.tres), _asks(used.limits, record, rule.tres)
            if asks and used.total(*limit) - beyond[limit] + asks > rule.most:
                over[limit] = asks
        if over:
            found[record.id] = over
    return found


def _asks(limits: SiteLimits, record: JobRecord, tres: str) -> int:
    """What a waiting plain job would have of a TRES; 0 where that is not known."""
    if tres == GPUS:
        return gpus_wanted(record)
    if tres == JOBS:
        return 1
    if tres == NODES:
        return max(1, record.nodes_wanted[0])
    if tres == CPU:
        return record.cpus
    if tres == MEMORY:
        return _waiting_memory(limits, record)
    return _licenses(record).get(tres, 0)


def caps(
    used: Used, jobs: Iterable[Job], stopped: Mapping[int, Mapping[Limit, int]]
) -> tuple[tuple[Cap, ...], tuple[str, ...]]:
    """The limits on several jobs that could keep one of these from a size, or for which plain ones
    are `stopped`; and what is not known.

    Any other limit that they could not reach together is left out.
    """
    limits, snapshot = used.limits, used.snapshot
    if not (limits.enforced or limits.licenses):
        return (), ()
    awaited = least_awaited(stopped)
    counted: dict[tuple[Scope, str], dict[JobId, tuple[Rule, Take, Job]]] = {}
    spent: dict[str, dict[JobId, Take]] = {}
    strange: dict[str, None] = {}
    for job in jobs:
        record = snapshot.jobs[int(job.id)]
        if not (limits.enforced or record.licenses):
            continue
        try:
            asked = asked_by(record, limits)
        except ValueError:
            continue  # it is not moved
        for words in _not_known(limits, record):
            strange[words] = None
        for rule in (*rules(limits, record), *license_rules(used, record)):
            take = asked.take(rule.tres)
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
    awaited: tuple[float, int] | None,
) -> Cap | None:
    rule = next(iter(takers.values()))[0]
    held = {id_: used.by_job(int(id_), tres) for id_ in takers}
    total = used.total(scope, tres)
    left = rule.most - (total - sum(held.values()))
    most = sum(most_taken(take, job) for _, take, job in takers.values())
    if most <= left and awaited is None:
        return None
    amount = as_size(total) if tres == MEMORY else str(total)
    words = f"{rule.words}; {rule.whose} {amount}"
    return Cap(
        words=words,
        left=float(left),
        takes={id_: take for id_, (_, take, _) in takers.items()},
        held=held,
        gpu_type=tres.partition(":")[2],
        awaited="" if awaited is None else f"{words}; job {awaited[1]} waits for it",
        lacks=0.0 if awaited is None else awaited[0] - (rule.most - total),
    )


def rules(limits: SiteLimits, record: JobRecord) -> Iterator[Rule]:
    """The limits on sums that count for the job; each TRES once a kind, but at every level."""
    if not limits.enforced:
        return
    said: set[tuple[str, str]] = set()

    def new(kind: str, amounts: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
        for tres, most in amounts.items():
            if most is not None and (kind, tres) not in said:
                said.add((kind, tres))
                yield tres, most

    user, account = record.user, record.account
    for qos in qualities(limits, record):
        name = f"QOS {qos.name}"
        for tres, most in new("all", {**qos.together, JOBS: qos.jobs}):
            words = f"{name} allows {in_words(most, tres)} in all"
            yield Rule(("qos", qos.name), tres, most, words, "it has")
        for tres, most in new("user", {**qos.a_user, JOBS: qos.jobs_a_user}):
            words = f"{name} allows {in_words(most, tres)} a user"
            yield Rule(("qos", qos.name, "user", user), tres, most, words, f"{user} has")
        for tres, most in new("account", {**qos.an_account, JOBS: qos.jobs_an_account}):
            words = f"{name} allows {in_words(most, tres)} an account"
            yield Rule(("qos", qos.name, "account", account), tres, most, words, f"{account} has")
    own = limits.association(account, user, record.partition)
    if own is not None:
        if own.own_jobs is not None and ("user", JOBS) not in said:
            words = f"account {account} allows {user} {in_words(own.own_jobs, JOBS)}"
            yield Rule(("own", *own.key), JOBS, own.own_jobs, words, f"{user} has")
        for tres, most in _levels(own.together, own.jobs, said):
            words = f"account {account} allows {user} {in_words(most, tres)}"
            yield Rule(("own", *own.key), tres, most, words, f"{user} has")
    for above in limits.above(account):
        for tres, most in _levels(above.together, above.jobs, said):
            words = f"account {above.account} allows {in_words(most, tres)}"
            yield Rule(("account", above.account), tres, most, words, "it has")


def license_rules(used: Used, record: JobRecord) -> Iterator[Rule]:
    """What the cluster has of each licence that the job asks for: all, and what reservations keep
    from it left out."""
    for tres in _licenses(record):
        name = tres.removeprefix(LICENSE)
        total = used.limits.licenses.get(name)
        if total is None:
            continue
        words = f"the cluster has {in_words(total, tres)}"
        yield Rule((LICENSE, name), tres, total, words, "jobs have")
        if kept := licenses_kept(record, name, used.snapshot):
            left = max(0, total - kept)
            words = f"{words}, {kept} of them reserved"
            yield Rule((LICENSE, name, str(kept)), tres, left, words, "jobs have")


def _whose(record: JobRecord) -> Whose:
    return record.user, record.account, record.qos, record.partition


def _licenses(record: JobRecord) -> dict[str, int]:
    """What the job asks for, by TRES; none where it takes one or another of several."""
    found = licenses_in(record.licenses) if record.licenses else None
    return {f"{LICENSE}{name}": count for name, count in found.items()} if found else {}


def used_up(limits: SiteLimits, record: JobRecord) -> Iterator[str]:
    """The limits on time (GrpTRESMins) of which nothing is left for the job, in words."""
    if not limits.enforced:
        return
    said: set[str] = set()
    for qos in qualities(limits, record):
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


def _not_known(limits: SiteLimits, record: JobRecord) -> Iterator[str]:
    if limits.unread or not limits.enforced:
        return
    if record.qos and record.qos not in limits.qos:
        yield f"QOS {record.qos[:60]} of job {record.id} is not there: planned without its limits"
    if limits.association(record.account, record.user, record.partition) is None:
        who = f"{record.user[:60]} in account {record.account[:60]}"
        yield f"no association of {who}: planned without its limits"


def _waiting_memory(limits: SiteLimits, record: JobRecord) -> int:
    """MiB that a waiting job asks for; Slurm counts a default per GPU only once it has tried it."""
    if record.memory == 0 and (one := limits.partitions.get(record.partition)) is not None:
        return one.memory_per_gpu * gpus_wanted(record) or memory_in(record.tres)
    return memory_in(record.tres)


@dataclass(slots=True)
class Used:
    """What running jobs hold, by scope."""

    limits: SiteLimits
    snapshot: Snapshot
    _of: defaultdict[Scope, Counter[str]] = field(init=False)
    _licenses: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self._of, self._licenses = defaultdict(Counter), Counter()
        enforced = self.limits.enforced
        if not (enforced or self.limits.licenses):
            return
        together: dict[Whose, tuple[JobRecord, Counter[str]]] = {}
        for record in self.snapshot.jobs.values():
            if record.state not in HOLDING:
                continue
            if record.licenses:
                self._licenses.update(_licenses(record))
            if enforced:
                holds = held_of(record, self.snapshot.nodes)
                together.setdefault(_whose(record), (record, Counter()))[1].update(holds)
        for record, holds in together.values():
            for scope in self._scopes(record):
                self._of[scope].update(holds)

    def total(self, scope: Scope, tres: str) -> int:
        """What running jobs of that scope hold of a TRES; of the cluster's licences all do."""
        return self._licenses[tres] if scope[0] == LICENSE else self._of[scope][tres]

    def _scopes(self, record: JobRecord) -> Iterator[Scope]:
        limits = self.limits
        for qos in dict.fromkeys(one.name for one in qualities(limits, record)):
            yield ("qos", qos)
            yield ("qos", qos, "user", record.user)
            yield ("qos", qos, "account", record.account)
        own = limits.association(record.account, record.user, record.partition)
        if own is not None:
            yield ("own", *own.key)
        for above in limits.above(record.account):
            yield ("account", above.account)

    def beyond_requests(self, jobs: Iterable[Job]) -> Counter[Limit]:
        """What the jobs hold beyond what they asked for, by scope."""
        found = Counter[Limit]()
        together: dict[Whose, tuple[JobRecord, Counter[str]]] = {}
        for job in jobs:
            if job.placement is None or job.placement.gpus <= job.requested:
                continue
            record = self.snapshot.jobs[int(job.id)]
            try:
                asked = asked_by(record, self.limits)
            except ValueError:
                continue  # it is not moved
            gpus = job.placement.gpus - job.requested
            nodes = max(0, len(job.placement.nodes) - (asked.mark.nodes or 1))
            takes = ((tres, asked.take(tres)) for tres in (GPUS, NODES, CPU, MEMORY))
            held = {t: round(take.gpu * gpus + take.node * nodes) for t, take in takes if take}
            together.setdefault(_whose(record), (record, Counter()))[1].update(held)
        for record, more in together.values():
            for scope in self._scopes(record):
                found.update({(scope, tres): amount for tres, amount in more.items()})
        return found

    def by_job(self, number: int, tres: str) -> float:
        """What the job and its satellites hold."""
        record = self.snapshot.jobs[number]
        parts = [one for one in (record, *record.satellites) if one.state in HOLDING]
        return float(sum(held_of(one, self.snapshot.nodes)[tres] for one in parts))


def held_of(record: JobRecord, nodes: Mapping[str, NodeRecord]) -> Counter[str]:
    """What Slurm counts of a running job; a GPU in shards is none."""
    held = Counter({JOBS: 1, CPU: record.cpus, NODES: len(expand(record.nodes))})
    held[MEMORY] = memory_in(record.tres)
    if record.licenses:
        held.update(_licenses(record))
    for name, gpus in record.gpus_on.items():
        whole = gpus - len(record.shares.get(name, ()))
        held[GPUS] += whole
        if name in nodes and nodes[name].gpu_type:
            held[f"{GPUS}:{nodes[name].gpu_type}"] += whole
    return held
