"""`onesctl replay`: a trace on a simulated cluster, under one policy or several."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import click

from ones.daemon.ctl.progress import progress
from ones.daemon.ctl.quiet import without_output
from ones.daemon.ctl.replay_answer import show
from ones.daemon.replay import inventory, networks, outputs, site_rules, traces
from ones.daemon.replay.fairness import Fairness
from ones.daemon.replay.faults import ReplayError, TraceError, clean
from ones.daemon.replay.figures import remarks
from ones.daemon.replay.history import Recording, check_target, save
from ones.daemon.replay.opting import Opting
from ones.daemon.replay.plain import moves_nobody
from ones.daemon.replay.report import page
from ones.daemon.replay.side_by_side import Task, side_by_side
from ones.daemon.replay.simulation import LIMITS, Run, World
from ones.daemon.replay.tables import text_of
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge
from ones.policies.guard import Limits
from ones.policies.model import Node, Seconds
from ones.policies.registry import Site, information, make, names
from ones.policies.slurm.settings import SlurmSettings

SCHEDULER = "slurm"  # that starts plain jobs, where --policy names none that does
GROWTH = 4  # times the GPUs that a job asks for
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


def _number(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Ranges let pass what is not a number."""
    if value is not None and not isfinite(value):
        raise click.BadParameter(f"{value} is not a number")
    return value


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text == "":
        raise ReplayError("--elastic names nobody; write a pattern such as 'train*'")
    return text


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
    callback=_number,
    default=60.0,
    show_default=True,
    help="Seconds between two decisions.",
)
@click.option(
    "--restart-cost",
    type=click.FloatRange(0, 86400),
    callback=_number,
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
    callback=_pattern,
    metavar="PATTERN",
    help="What if the jobs had opted in whose name or account is like this: 'train*'.",
)
@click.option(
    "--elastic-growth",
    "growth",
    type=click.IntRange(1, 1024),
    help=f"Those jobs take up to so many times the GPUs that they ask for; {GROWTH}.",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(1, 1000),
    callback=_number,
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
    growth: int | None,
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
    reads = {
        "TRACE": trace,
        "--profiles": profiles,
        "--cluster": cluster,
        "--network": network,
        "--history": history,
    }
    _check_outputs(report, save_history, {what: file for what, file in reads.items() if file})
    text = "" if cluster is None else text_of(cluster)  # once: it may come through a pipe
    rules = Site(
        slurm=SlurmSettings() if cluster is None else site_rules.read(cluster, text),
        network=None if network is None else networks.read(network),
    )
    policies = _policies(policy_names, rules)
    if cluster is not None and (nodes is not None or gpus_per_node is not None):
        raise click.UsageError("--cluster already tells nodes and GPUs; leave out the others")
    what_if = share is not None or pattern is not None
    if growth is not None and not what_if:
        raise click.UsageError(
            "--elastic-growth: who grows is told by --elastic-share or --elastic; give one of them"
        )
    if save_history is not None and len(policies) > 1:
        raise click.UsageError("--save-history keeps one run's history; name a single --policy")
    named = policies[-1]
    described = None if cluster is None else _described(cluster, text, rules.slurm)
    there, workload = _read(trace, profiles, described, nodes or 16, gpus_per_node or 4)
    site = not all(job.opted_in for job in workload.jobs)
    if what_if and not site:
        option = "--elastic" if share is None else "--elastic-share"
        raise ReplayError(
            f"{option}: all {len(workload.jobs)} jobs of the trace have opted in already, as only"
            " records of sacct tell of others; leave it out"
        )
    if max_slowdown is not None and not site:
        raise ReplayError(
            "--max-slowdown: the guard is there beside plain jobs, and the trace has none; leave"
            " it out"
        )
    if max_slowdown is not None and all(map(moves_nobody, policies)):
        raise ReplayError(
            f"--max-slowdown: no policy of {clean(policy_names)} moves a job; leave it out, or"
            " name another --policy"
        )
    workload = site_rules.still_there(workload, rules.slurm, _note)
    if what_if:
        opting = Opting(
            share=share or 0.0, pattern=pattern or "", growth=growth or GROWTH, seed=seed
        )
        workload = opting.of(workload, sum(node.gpus for node in there))
        if not any(map(moves_nobody, policies)):
            policies = [SCHEDULER, *policies]  # with which the others are compared
    world = World(
        nodes=there,
        round_seconds=round_seconds,
        restart_seconds=restart_cost,
        limits=Limits(max_slowdown=max_slowdown) if site else LIMITS,
        seed=seed,
        prices={} if cluster is None else inventory.prices(cluster, text),
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
            kept=save_history is not None and name == named,
        )
        for name in policies
    ]
    with _interrupted(), progress(len(tasks), len(workload.jobs)) as watch, without_output():
        runs = side_by_side(tasks, watch)
    for run in runs:
        for remark in remarks(run):
            _note(f"{run.policy}: {remark}")
    try:
        fairness = _fairness(runs) if site else []
        show(runs, fairness, priced=bool(world.prices), as_text=json_wanted)
    finally:  # each of the three is of use where another is lost
        faults = []
        if save_history is not None:
            faults += _fault_of(lambda: save(_learnt(runs, named), save_history))
        if report is not None:
            drawn = page(runs, world.nodes, trace=trace.name)
            faults += _fault_of(lambda: outputs.write(report, drawn))
        if faults:
            raise ReplayError("; ".join(faults))


def _check_outputs(
    report: Path | None, save_history: Path | None, reads: Mapping[str, Path]
) -> None:
    """What can't be written shows before hours of computing, not after them."""
    for option, target in (("--save-history", save_history), ("--report", report)):
        if target is not None and not target.parent.is_dir():
            raise click.UsageError(f"{option}: there is no folder {target.parent}")
    if save_history is not None:
        others = {what: file for what, file in reads.items() if what != "--history"}
        outputs.check("--save-history", save_history, others)
        check_target(save_history)
    if report is not None:
        written = {} if save_history is None else {"--save-history": save_history}
        outputs.check("--report", report, {**reads, **written})


def _learnt(runs: Sequence[Run], policy: str) -> Recording:
    """What was learnt under the policy that was named."""
    experience = next(run.experience for run in runs if run.policy == policy)
    assert isinstance(experience, Recording)
    return experience


def _fault_of(write: Callable[[], None]) -> list[str]:
    try:
        write()
    except TraceError as fault:
        return [str(fault)]
    return []


@contextmanager
def _interrupted() -> Iterator[None]:
    """Ctrl-C ends with the exit code that a shell knows it by."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\nAborted!", err=True)
        sys.exit(128 + signal.SIGINT)


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


def _described(cluster: Path, text: str, rules: SlurmSettings) -> tuple[Node, ...]:
    """The nodes of a description, whose rules are of no others."""
    site_rules.check_nodes(cluster, rules, inventory.every(cluster, text))
    return inventory.read(cluster, text)


def _read(
    trace: Path,
    profiles: Path | None,
    described: tuple[Node, ...] | None,
    nodes: int,
    gpus_per_node: int,
) -> tuple[tuple[Node, ...], Workload]:
    """The cluster and the jobs, which fit on it."""
    text = traces.text_in(trace)  # once: it may come through a pipe
    if described is not None:
        return described, _workload(trace, text, profiles, described)
    workload = traces.read(trace, profiles=profiles, text=text)
    needed = inventory.common_type(workload)
    if needed is None:
        raise TraceError(trace, "its jobs run on no common GPU type; describe one with --cluster")
    there = inventory.uniform(nodes, gpus_per_node, needed)
    return there, _workload(trace, text, profiles, there)


def _workload(trace: Path, text: str, profiles: Path | None, there: tuple[Node, ...]) -> Workload:
    kinds = {node.gpu_type for node in there}
    return traces.read(
        trace, profiles=profiles, nodes=there, gpu_types=kinds, note=_note, text=text
    )


def _note(text: str) -> None:
    click.echo(f"onesctl: note: {text}", err=True)
