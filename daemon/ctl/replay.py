"""`onesctl replay`: a trace on a simulated cluster, under one policy or several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from ones.daemon.ctl.progress import progress
from ones.daemon.ctl.quiet import without_output
from ones.daemon.ctl.table import table
from ones.daemon.replay import inventory, networks, site_rules, traces
from ones.daemon.replay.fairness import DECILES, Fairness
from ones.daemon.replay.faults import ReplayError, TraceError, clean
from ones.daemon.replay.figures import Figures, as_json, remarks
from ones.daemon.replay.history import Recording, save
from ones.daemon.replay.opting import Opting
from ones.daemon.replay.plain import moves_nobody
from ones.daemon.replay.report import page
from ones.daemon.replay.side_by_side import Task, side_by_side
from ones.daemon.replay.simulation import LIMITS, Run, World
from ones.daemon.replay.workload import Workload
from ones.daemon.times import duration
from ones.estimator.assess import Knowledge
from ones.policies.guard import Limits
from ones.policies.model import Node, Seconds
from ones.policies.registry import Site, information, make, names
from ones.policies.slurm.settings import SlurmSettings

COLUMNS = {
    "policy": "POLICY",
    "average_jct_s": "AVG JCT",
    "median_jct_s": "MEDIAN",
    "p90_jct_s": "P90",
    "p99_jct_s": "P99",
    "makespan_s": "MAKESPAN",
    "average_wait_s": "AVG WAIT",
    "gpu_hours": "GPU HOURS",
    "utilisation": "IN USE",
    "cost": "COST",
    "resizes_per_job": "RESIZES/JOB",
    "lost_to_moves": "LOST",
    "decide_s_mean": "DECIDE",
    "decide_s_p99": "DECIDE P99",
}
FAIRNESS = {
    "who": "AGAINST",
    "jobs": "JOBS",
    "completion_s": "AVG JCT",
    "rigid_completion_s": "RIGID",
    "wait_s": "AVG WAIT",
    "rigid_wait_s": "RIGID",
    "p10": "P10",
    "p50": "MEDIAN",
    "p90": "P90",
    "worst": "WORST",
    "worse_off": "WORSE OFF",
    "worse_by": "BY",
}
MOST_ROWS = 20  # of accounts and of users, those with most jobs; JSON has them all
SCHEDULER = "slurm"  # that starts plain jobs, where --policy names none that does
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("trace", type=EXISTING)
@click.option(
    "--profiles",
    type=click.Path(exists=True, path_type=Path),
    help="How the trace's applications train: a folder of Pollux or Sia, or Gavel's throughputs.",
)
@click.option("--nodes", type=click.IntRange(1, inventory.MOST_NODES), help="Equal nodes; 16.")
@click.option(
    "--gpus-per-node", type=click.IntRange(1, inventory.MOST_GPUS), help="GPUs of each; 4."
)
@click.option("--cluster", type=EXISTING, help="A description of the nodes: TOML or CSV.")
@click.option(
    "--policy",
    "policy_names",
    default="ones",
    metavar="NAME[,NAME...]",
    show_default=True,
    help="Replay the trace under each of these.",
)
@click.option(
    "--round",
    "round_seconds",
    type=click.FloatRange(1, 86400),
    default=60.0,
    show_default=True,
    help="Seconds between two decisions.",
)
@click.option(
    "--restart-cost",
    type=click.FloatRange(0, 86400),
    default=30.0,
    show_default=True,
    help="Seconds that a start or change takes, where the profile doesn't say.",
)
@click.option(
    "--elastic-share",
    "share",
    callback=lambda _, __, text: _share(text),
    metavar="SHARE",
    help="What if so many of the jobs had opted in, in whole families: 20%.",
)
@click.option(
    "--elastic",
    "pattern",
    metavar="PATTERN",
    help="What if the jobs had opted in whose name or account is like this: 'train*'.",
)
@click.option(
    "--elastic-growth",
    "growth",
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Those jobs take up to so many times the GPUs that they ask for.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(1, 1000),
    help="The guard lets no elastic job take more than so many times as long as rigid: 1.1.",
)
@click.option("--undeclared", is_flag=True, help="What jobs declare of their length is not used.")
@click.option("--own-fit-only", is_flag=True, help="Each job is judged by its own reports alone.")
@click.option("--network", type=EXISTING, help="What scripts/train-drl has made, for policy drl.")
@click.option("--history", type=EXISTING, help="Begin with what this database has learnt.")
@click.option(
    "--save-history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what was learnt in this database.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "json_wanted", is_flag=True, help="JSON instead of a table.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Draw the runs side by side.",
)
def replay(
    *,
    trace: Path,
    profiles: Path | None,
    nodes: int | None,
    gpus_per_node: int | None,
    cluster: Path | None,
    policy_names: str,
    round_seconds: Seconds,
    restart_cost: Seconds,
    share: float | None,
    pattern: str | None,
    growth: int,
    max_slowdown: float | None,
    undeclared: bool,
    own_fit_only: bool,
    network: Path | None,
    history: Path | None,
    save_history: Path | None,
    seed: int,
    json_wanted: bool,
    report: Path | None,
) -> None:
    """Run the jobs of TRACE on a simulated cluster and a virtual clock.

    TRACE is a workload of Pollux or Sia, a trace of Gavel, Alibaba's task list, the output of
    `sacct --json` or `sacct -P`, or a CSV with the columns submitted, name, user, gpus and
    duration_s. Nothing is asked of Slurm or onesd.
    """
    rules = Site(
        slurm=SlurmSettings() if cluster is None else site_rules.read(cluster),
        network=None if network is None else networks.read(network),
    )
    policies = _policies(policy_names, rules)
    if cluster is not None and (nodes is not None or gpus_per_node is not None):
        raise click.UsageError("--cluster already tells nodes and GPUs; leave out the others")
    if report is not None and not report.parent.is_dir():
        raise click.UsageError(f"--report: there is no folder {report.parent}")
    there, workload = _read(trace, profiles, cluster, nodes or 16, gpus_per_node or 4)
    what_if = share is not None or pattern is not None
    site = what_if or not all(job.opted_in for job in workload.jobs)
    workload = site_rules.still_there(workload, rules.slurm, _note)
    if what_if:
        opting = Opting(share=share or 0.0, pattern=pattern or "", growth=growth, seed=seed)
        workload = opting.of(workload, sum(node.gpus for node in there))
        if not any(map(moves_nobody, policies)):
            policies = [SCHEDULER, *policies]  # with which the others are compared
    if save_history is not None and len(policies) > 1:
        raise click.UsageError("--save-history keeps one run's history; name a single --policy")
    world = World(
        nodes=there,
        round_seconds=round_seconds,
        restart_seconds=restart_cost,
        limits=Limits(max_slowdown=max_slowdown) if site else LIMITS,
        seed=seed,
        prices={} if cluster is None else inventory.prices(cluster),
        rules=rules.slurm if site else None,
    )
    scheduler = next(filter(moves_nobody, policies), SCHEDULER)
    tasks = [
        Task(
            name=name,
            site=rules,
            workload=workload,
            world=world,
            knowledge=Knowledge(
                declared=not undeclared,
                families=not own_fit_only and information(name) != "own",
            ),
            scheduler=scheduler if site else None,
            history=history,
        )
        for name in policies
    ]
    with progress(len(tasks), len(workload.jobs)) as watch, without_output():
        runs = side_by_side(tasks, watch)
    for run in runs:
        for remark in remarks(run):
            _note(f"{run.policy}: {remark}")
    if save_history is not None and isinstance(runs[0].experience, Recording):
        save(runs[0].experience, save_history)
    if report is not None:
        _write(report, page(runs, world.nodes, trace=trace.name))
    _answer(runs, _fairness(runs) if site else [], priced=bool(world.prices), as_text=json_wanted)


def _answer(
    runs: Sequence[Run], fairness: Sequence[Fairness], *, priced: bool, as_text: bool
) -> None:
    """What the runs came to, as JSON or as a table with the answer in words first."""
    if as_text:
        found = {"fairness": [one.as_json() for one in fairness]} if fairness else {}
        click.echo(json.dumps({"runs": [as_json(run) for run in runs], **found}, indent=2))
        return
    for one in fairness:
        click.echo(one.answer())
    columns = {name: head for name, head in COLUMNS.items() if name != "cost" or priced}
    click.echo(table([_row(run) for run in runs], columns))
    for one in fairness:
        columns = {**FAIRNESS, "who": f"{one.policy} AGAINST {one.rigid}"}
        click.echo("\n" + table(list(_groups(one)), columns))


def _groups(fairness: Fairness) -> Iterator[dict[str, object]]:
    """Everybody's completion against the rigid run's: by class, then by account and by user."""
    for kind, found in (
        ("", fairness.classes),
        ("account ", fairness.accounts),
        ("user ", fairness.users),
    ):
        if kind and len(found) < 2:
            continue
        for name in sorted(found, key=lambda name: -found[name].jobs)[:MOST_ROWS]:
            group = found[name]
            ratios = zip(DECILES, group.deciles, strict=True)
            yield {
                "who": f"{kind}{name}",
                "jobs": group.jobs,
                **{key: duration(getattr(group, key)) for key in FAIRNESS if key.endswith("_s")},
                **{f"p{at}": f"{ratio:.2f}" for at, ratio in ratios},
                "worst": f"{group.worst:.2f}",
                "worse_off": f"{group.worse_off:.1%}",
                "worse_by": f"{group.worse_by:.2f}",
            }


def _fairness(runs: Sequence[Run]) -> list[Fairness]:
    """Each run against the first of a policy that moves nobody."""
    rigid = next((run for run in runs if moves_nobody(run.policy)), None)
    if rigid is None:
        return []
    return [Fairness.of(run, rigid) for run in runs if not moves_nobody(run.policy)]


def _share(text: str | None) -> float | None:
    """`20%` or `0.2`, of the jobs."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?(%?)", text.strip())
    found = float(match[1]) / (100.0 if match[2] else 1.0) if match else 0.0
    if not 0 < found <= 1:
        raise ReplayError(
            f"--elastic-share: '{clean(text[:20])}' is no share of the jobs; say more than 0% and"
            " at most 100%"
        )
    return found


def _policies(text: str, site: Site) -> list[str]:
    """The policies of a list, each made once, so that a fault shows before any run."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if not chosen:
        raise click.UsageError(f"--policy names none; choose from: {', '.join(names())}")
    try:
        for name in chosen:
            make(name, site=site)
    except ValueError as fault:
        raise click.UsageError(f"--policy: {fault}") from None
    return chosen


def _read(
    trace: Path, profiles: Path | None, cluster: Path | None, nodes: int, gpus_per_node: int
) -> tuple[tuple[Node, ...], Workload]:
    """The cluster and the jobs, which fit on it."""
    if cluster is not None:
        there = inventory.read(cluster)
        return there, _workload(trace, profiles, there)
    there = inventory.uniform(nodes, gpus_per_node)
    workload = traces.read(trace, profiles=profiles)
    needed = inventory.common_type(workload)
    if needed is None:
        raise TraceError(trace, "its jobs run on no common GPU type; describe one with --cluster")
    there = inventory.uniform(nodes, gpus_per_node, needed)
    return there, _workload(trace, profiles, there)


def _workload(trace: Path, profiles: Path | None, there: tuple[Node, ...]) -> Workload:
    kinds = {node.gpu_type for node in there}
    return traces.read(trace, profiles=profiles, nodes=there, gpu_types=kinds, note=_note)


def _row(run: Run) -> dict[str, object]:
    figures = asdict(Figures.of(run))
    shown = {name: value for name, value in figures.items() if not name.startswith("decide")}
    for name in COLUMNS:
        if name.endswith("_s"):
            shown[name] = duration(figures[name])
    shown["gpu_hours"] = f"{figures['gpu_hours']:.0f}"
    shown["utilisation"] = f"{figures['utilisation']:.0%}"
    shown["lost_to_moves"] = f"{figures['lost_to_moves']:.1%}"
    if figures["cost"] is not None:
        shown["cost"] = f"{figures['cost']:.2f}"
    shown["decide_s_mean"] = f"{1000 * figures['decide_s_mean']:.1f} ms"
    shown["decide_s_p99"] = f"{1000 * figures['decide_s_p99']:.1f} ms"
    return shown


def _note(text: str) -> None:
    click.echo(f"onesctl: note: {text}", err=True)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise TraceError(file, f"can't be written: {fault.strerror}") from None
