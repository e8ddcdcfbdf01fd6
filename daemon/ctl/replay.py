"""`onesctl replay`: a trace on a simulated cluster, under one policy or several."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import process_time

import click

from ones.daemon.ctl.quiet import without_output
from ones.daemon.ctl.table import cell, duration, table
from ones.daemon.replay import inventory, traces
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.figures import Figures, as_json
from ones.daemon.replay.history import Recording, load, save
from ones.daemon.replay.report import page
from ones.daemon.replay.simulation import Run, World
from ones.daemon.replay.simulation import replay as simulate
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge
from ones.estimator.experience import Experience
from ones.policies.model import Node, Policy, Seconds
from ones.policies.registry import information, make, names

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
    "decide_s_mean": "DECIDE",
    "decide_s_p99": "DECIDE P99",
}
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
@click.option("--undeclared", is_flag=True, help="What jobs declare of their length is not used.")
@click.option("--own-fit-only", is_flag=True, help="Each job is judged by its own reports alone.")
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
    undeclared: bool,
    own_fit_only: bool,
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
    policies = _policies(policy_names)
    if cluster is not None and (nodes is not None or gpus_per_node is not None):
        raise click.UsageError("--cluster already tells nodes and GPUs; leave out the others")
    if save_history is not None and len(policies) > 1:
        raise click.UsageError("--save-history keeps one run's history; name a single --policy")
    if report is not None and not report.parent.is_dir():
        raise click.UsageError(f"--report: there is no folder {report.parent}")
    there, workload = _read(trace, profiles, cluster, nodes or 16, gpus_per_node or 4)
    world = World(
        nodes=there,
        round_seconds=round_seconds,
        restart_seconds=restart_cost,
        seed=seed,
        prices={} if cluster is None else inventory.prices(cluster),
    )
    runs = []
    for name, policy in policies:
        experience = Recording() if history is None else load(history)
        knowledge = Knowledge(
            declared=not undeclared,
            families=not own_fit_only and information(name) != "own",
        )
        runs.append(_run(name, policy, workload, world, knowledge=knowledge, experience=experience))
        if save_history is not None:
            save(experience, save_history)
    if report is not None:
        _write(report, page(runs, world.nodes, trace=trace.name))
    if json_wanted:
        click.echo(json.dumps({"runs": [as_json(run) for run in runs]}, indent=2))
    else:
        columns = {name: head for name, head in COLUMNS.items() if name != "cost" or world.prices}
        click.echo(table([_row(run) for run in runs], columns))


def _policies(text: str) -> list[tuple[str, Policy]]:
    """The policies of a list of names, each made now, so that a fault shows before any run."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if not chosen:
        raise click.UsageError(f"--policy names none; choose from: {', '.join(names())}")
    try:
        return [(name, make(name)) for name in chosen]
    except ValueError as fault:
        raise click.UsageError(f"--policy: {fault}") from None


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


def _run(
    name: str,
    policy: Policy,
    workload: Workload,
    world: World,
    *,
    knowledge: Knowledge,
    experience: Experience,
) -> Run:
    with _progress(name, len(workload.jobs)) as watch, without_output():
        run = simulate(
            workload,
            policy,
            world,
            clock=process_time,
            knowledge=knowledge,
            experience=experience,
            truth=information(name) == "truth",
            watch=watch,
        )
    return replace(run, policy=name)  # with its settings


@contextmanager
def _progress(label: str, jobs: int) -> Iterator[Callable[[Seconds, int], None] | None]:
    """A bar of the jobs that have ended, where somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=jobs, label=cell(label), file=sys.stderr, show_pos=True) as bar:

        def watch(_: Seconds, ended: int) -> None:
            if ended > bar.pos:
                bar.update(ended - bar.pos)

        yield watch


def _row(run: Run) -> dict[str, object]:
    figures = asdict(Figures.of(run))
    shown = {name: value for name, value in figures.items() if not name.startswith("decide")}
    for name in COLUMNS:
        if name.endswith("_s"):
            shown[name] = duration(figures[name])
    shown["gpu_hours"] = f"{figures['gpu_hours']:.0f}"
    shown["utilisation"] = f"{figures['utilisation']:.0%}"
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
