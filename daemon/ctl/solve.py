"""`onesctl solve`: a scheduling problem in a file, answered by one of Gavel's policies.

It needs no daemon. The format is that of the published oracle cases: `policy`, `worker_types`,
`cluster`, `jobs`, and where the policy uses them `pairs`, `entities` and `instance_costs`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import click
import numpy as np

from ones.policies.gavel import (
    POLICIES,
    Allocation,
    BadProblem,
    Entity,
    Pairs,
    Problem,
    Unsolved,
)
from ones.policies.model import Floats
from ones.slurm_ext.errors import OnesError

LEAST, LARGEST = 1e-100, 1e100  # beyond these, products of a few numbers are no numbers any more
# Policies that ask how much work is left.
TIMED = ("min_total_duration", "finish_time_fairness", "allox", "shortest_job_first")


class BadCase(OnesError):
    """A file that holds no problem that can be solved."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}; correct the file")
        self.file = file
        self.reason = reason


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON list, an object for each file.")
def solve(files: tuple[Path, ...], as_json: bool) -> None:
    """Solve scheduling problems in files with Gavel's policies."""
    answers = [answer(file) for file in files]
    if as_json:
        click.echo(json.dumps(answers))
        return
    for one in answers:
        objective = "-" if one["objective"] is None else f"{one['objective']:.9g}"
        click.echo(f"{one['name']}: {one['policy']}, objective {objective}")
        if one["dropped"]:
            click.echo(f"  deadlines dropped: {' '.join(map(str, one['dropped']))}")
        for row, shares in zip(one["rows"], one["allocation"], strict=True):
            if any(share > 0.0005 for share in shares):
                name = "+".join(map(str, row))
                spent = "  ".join(
                    f"{column} {share:.3f}"
                    for column, share in zip(one["columns"], shares, strict=True)
                )
                click.echo(f"  {name:>8}  {spent}")


def answer(file: Path) -> dict[str, Any]:
    """What the file's policy makes of the file's problem."""
    try:
        case = json.loads(file.read_text())
    except OSError as fault:
        raise BadCase(str(file), fault.strerror or "can't be read") from None
    except ValueError as fault:
        raise BadCase(str(file), f"is not valid JSON: {fault}") from None
    except RecursionError:
        raise BadCase(str(file), "is nested too deep") from None
    try:
        policy, problem, listed = read_case(case)
    except BadProblem as fault:
        raise BadCase(str(file), str(fault)) from None
    except RecursionError:
        raise BadCase(str(file), "its entities are nested too deep") from None
    started = time.process_time()
    try:
        allocation = POLICIES[policy].allocate(problem, rng=np.random.default_rng(0))
    except (BadProblem, Unsolved) as fault:
        raise BadCase(str(file), str(fault)) from None
    except (ArithmeticError, LookupError, ValueError) as fault:
        said = f"{policy} finds no answer, as its numbers are too far apart: {fault}"
        raise BadCase(str(file), said) from None
    seconds = time.process_time() - started
    rows, x = rows_of(allocation, listed)
    return {
        "name": str(case.get("name", file.stem)),
        "policy": policy,
        "objective": allocation.objective,
        "columns": list(problem.columns),
        "rows": rows,
        "allocation": x.tolist(),
        "levels": None
        if allocation.levels is None
        else {
            str(job): level
            for job, level in zip(problem.jobs, allocation.levels.tolist(), strict=True)
        },
        "dropped": list(allocation.dropped),
        "violation": _violation(problem, allocation),
        "seconds": seconds,
    }


def read_case(case: Any) -> tuple[str, Problem, list[list[Any]]]:
    """The policy's name, the problem, and the job ids of the pairs that the file lists."""
    if not isinstance(case, dict):
        raise BadProblem("case", "", "is not a JSON object")
    policy = _field(case, "policy", "case", str)
    if policy not in POLICIES:
        raise BadProblem("case", "policy", f"{policy!r} is none of {', '.join(sorted(POLICIES))}")
    cluster = _field(case, "cluster", "case", dict)
    types = _field(case, "worker_types", "case", list)
    for name in types:
        if not isinstance(name, str) or types.count(name) > 1:
            raise BadProblem("case", "worker_types", f"{name!r} is no name, or stands there twice")
        if name not in cluster:
            raise BadProblem(f"type {name}", "cluster", "has no number of GPUs")
    for name in cluster:
        if name not in types:
            raise BadProblem(f"type {name}", "worker_types", "is missing")
    jobs = _field(case, "jobs", "case", list)
    ids = [_field(job, "id", f"jobs[{i}]", (int, str)) for i, job in enumerate(jobs)]
    index = {name: i for i, name in enumerate(ids)}
    for name, times in Counter(map(str, index)).items():
        if times > 1:
            raise BadProblem(f"job {name}", "id", "is a number and, of another job, a text")

    def numbers(field: str, default: float | None) -> Floats:
        return np.array(
            [_number(job, field, f"job {ids[i]}", default) for i, job in enumerate(jobs)],
            dtype=np.float64,
        )

    throughput = np.array(
        [
            [
                _number(
                    _field(job, "throughput", f"job {ids[i]}", dict), name, f"job {ids[i]}", None
                )
                for name in types
            ]
            for i, job in enumerate(jobs)
        ],
        dtype=np.float64,
    ).reshape(len(jobs), len(types))
    prices = case.get("instance_costs")
    pairs, listed = _pairs(case, types, index)
    problem = Problem.of(
        throughput,
        np.array([_number(cluster, name, "cluster", None) for name in types]),
        jobs=ids,
        columns=types,
        gang=numbers("scale_factor", 1.0),
        weight=numbers("weight", 1.0),
        steps=numbers("steps_remaining", None if policy.startswith(TIMED) else 0.0),
        age=numbers("time_since_start", 0.0),
        isolated=numbers("cumulative_isolated_time", 0.0),
        deadline=numbers("slo_seconds", np.inf),
        costs=None
        if prices is None
        else np.array([_number(prices, name, "instance_costs", None) for name in types]),
        pairs=pairs,
        entities=tuple(
            _entity(name, entity, index)
            for name, entity in _optional(case, "entities", "case", dict).items()
        ),
    )
    return policy, problem, listed


def rows_of(
    allocation: Allocation, listed: Sequence[Sequence[Any]]
) -> tuple[list[list[Any]], Floats]:
    """Rows as the file lists them: every job, then every pair, and the time of each."""
    jobs, shares = allocation.jobs, allocation.shares
    rows = [[job] for job in jobs] + [list(pair) for pair in listed]
    x = np.zeros((len(rows), len(allocation.columns)))
    x[: len(jobs)] = shares.alone
    at = {frozenset(pair): len(jobs) + i for i, pair in enumerate(listed)}
    for i, j, spent in zip(
        shares.first.tolist(), shares.second.tolist(), shares.together, strict=True
    ):
        x[at[frozenset((jobs[i], jobs[j]))]] += spent
    return rows, x


def _pairs(
    case: Mapping[str, Any], types: list[str], index: Mapping[Any, int]
) -> tuple[Pairs, list[list[Any]]]:
    first: list[int] = []
    second: list[int] = []
    speeds: list[list[list[float]]] = []
    listed: list[list[Any]] = []
    met: set[frozenset[Any]] = set()
    for at, pair in enumerate(_optional(case, "pairs", "case", list)):
        where = f"pairs[{at}]"
        both = _field(pair, "jobs", where, list)
        if len(both) != 2 or both[0] == both[1]:
            raise BadProblem(where, "jobs", f"{both} are not two jobs")
        for job in both:
            if not isinstance(job, int | str) or job not in index:
                raise BadProblem(where, "jobs", f"there is no job {job}")
        if frozenset(both) in met:
            raise BadProblem(where, "jobs", f"{both} stand in another pair, too")
        met.add(frozenset(both))
        listed.append(both)
        if _number(pair, "scale_factor", where, None) == 0:
            continue  # gangs of unequal size don't share
        throughput = _field(pair, "throughput", where, dict)
        row = []
        for name in types:
            two = _field(throughput, name, where, list)
            if len(two) != 2:
                raise BadProblem(where, f"throughput {name}", f"{two} are not two numbers")
            row.append([_real(value, f"throughput {name}", where) for value in two])
        first.append(index[both[0]])
        second.append(index[both[1]])
        speeds.append(row)
    return (
        Pairs(
            first=np.array(first, dtype=np.int64),
            second=np.array(second, dtype=np.int64),
            throughput=np.array(speeds, dtype=np.float64).reshape(len(first), len(types), 2),
        ),
        listed,
    )


def _entity(name: str, entity: Any, index: Mapping[Any, int]) -> Entity:
    where = f"entity {name}"
    if not isinstance(entity, dict):
        raise BadProblem(where, "", "is not a JSON object")
    members = _optional(entity, "jobs", where, list)
    for job in members:
        if not isinstance(job, int | str) or job not in index:
            raise BadProblem(where, "jobs", f"there is no job {job}")
    rule = _field(entity, "policy", where, str)
    rows = [index[job] for job in members]
    return Entity(
        name=name,
        rule=rule,
        weight=_number(entity, "weight", where, 1.0),
        # First in is the lowest id, which is how the file's format numbers jobs.
        jobs=tuple(sorted(rows, key=lambda i: _by_id(i, index)) if rule == "fifo" else rows),
        entities=tuple(
            _entity(child, inner, index)
            for child, inner in _optional(entity, "entities", where, dict).items()
        ),
    )


def _by_id(row: int, index: Mapping[Any, int]) -> tuple[bool, Any, int]:
    name = next(job for job, at in index.items() if at == row)
    return isinstance(name, str), name, row


def _field(table: Any, field: str, where: str, kind: Any) -> Any:
    if not isinstance(table, dict):
        raise BadProblem(where, field, "is not a JSON object")
    if field not in table:
        raise BadProblem(where, field, "is missing")
    value = table[field]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadProblem(where, field, f"{value!r} is of the wrong type")
    return value


def _optional(table: Any, field: str, where: str, kind: type[Any]) -> Any:
    """A list or table that may be missing; then it is empty."""
    return kind() if table.get(field) is None else _field(table, field, where, kind)


def _number(table: Any, field: str, where: str, default: float | None) -> float:
    if isinstance(table, dict) and table.get(field) is None and default is not None:
        return default
    return _real(_field(table, field, where, (int, float)), field, where)


def _real(value: Any, field: str, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadProblem(where, field, f"{value!r} is no number")
    # What isn't finite is refused later, where it may not be: a deadline may.
    finite = not isinstance(value, float) or isfinite(value)
    if finite and value != 0 and not LEAST <= abs(value) <= LARGEST:
        raise BadProblem(where, field, f"is not 0 and not within {LEAST:g} and {LARGEST:g}")
    return float(value)


def _violation(problem: Problem, allocation: Allocation) -> float:
    """By how much the worst constraint is exceeded; GPUs relative to the pool's."""
    shares = allocation.shares
    if not len(problem.jobs):
        return 0.0
    busy = shares.alone.sum(axis=1)
    spent = shares.together.sum(axis=1)
    busy = busy + np.bincount(shares.first, spent, len(busy))
    busy = busy + np.bincount(shares.second, spent, len(busy))
    per_column = problem.gang @ shares.alone + problem.gang[shares.first] @ shares.together
    used = np.bincount(problem.pool, per_column, len(problem.gpus))
    over = (used - problem.gpus) / np.maximum(problem.gpus, 1.0)
    least = min(float(shares.alone.min()), float(shares.together.min(initial=0.0)))
    return max(0.0, -least, float(busy.max()) - 1.0, float(over.max()))
